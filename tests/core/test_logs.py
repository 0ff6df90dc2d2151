"""Log lines: what others say cannot look like another line."""

import io
import logging

import pytest

from coterie.core.logs import OneLineFormatter, one_line


@pytest.mark.parametrize("forged", ["a\nb", "a\rb", "a\x1b[2Kb", "a\x85b", "a\u2028b", "a\u202eb", "a\x00b", "a\x0bb"])
def test_a_line_stays_one(forged):
    assert len(one_line(forged).splitlines()) == 1
    assert one_line(forged).isprintable()


def test_what_is_no_control_stays_as_it_is():
    assert one_line("München – 北京 🏥") == "München – 北京 🏥"


def test_neither_a_message_nor_a_traceback_can_be_taken_for_another_line():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLineFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    name = "north\n2026-01-01 00:00:00,000 INFO all is well"
    log.warning("site %s is not admitted", name)
    try:
        raise ValueError(name)
    except ValueError:
        log.exception("a program failed for %s", name)
    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert [line.split()[2] for line in lines if not line.startswith("    | ")] == ["WARNING", "ERROR"]
