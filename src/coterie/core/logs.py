"""Log lines that nobody can forge: what others say stays on the line of who reports it."""

import logging
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    r"""A text without anything that ends a line, moves the cursor or turns the direction of writing.

    >>> one_line("north\n2026-11-19 INFO all is well")
    'north\\x0a2026-11-19 INFO all is well'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class OneLineFormatter(logging.Formatter):
    """Formats every record as one line, and what a traceback adds as lines that cannot be taken for others."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of a record."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, told: object) -> str:  # noqa: N802
        """The lines of a traceback, each with a bar before it."""
        lines = super().formatException(told).splitlines()  # type: ignore[arg-type]
        return "\n".join("    | " + one_line(line) for line in lines)
