"""A site's audit log: what it says, and that nobody alters it unseen."""

import json
import os
import threading

import pytest

from coterie.engines.flower import audit
from coterie.engines.flower.audit import BEGINNING, Trail, TrailError


@pytest.fixture
def trail(tmp_path):
    trail = Trail(tmp_path / "state" / "audit.jsonl")
    for number in range(4):
        trail.note(what="call", program=f"p{number}")
    return trail


def test_entries_follow_on_each_other(trail):
    entries = [json.loads(line) for line in trail.path.read_text().splitlines()]
    assert [entry["number"] for entry in entries] == [1, 2, 3, 4]
    assert entries[0]["before"] == BEGINNING
    found = trail.check()
    assert (found.entries, found.digests[-1]) == (4, found.head)
    assert [entry["before"] for entry in entries[1:]] == list(found.digests[:-1])
    assert trail.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", range(4))
def test_whoever_alters_a_line_is_found_out(trail, line):
    lines = trail.path.read_bytes().splitlines(keepends=True)
    noted = trail.check().head
    lines[line] = lines[line].replace(b'"p', b'"q')
    trail.path.write_bytes(b"".join(lines))
    if line < 3:
        with pytest.raises(TrailError, match=f"line {line + 2} does not follow"):
            trail.check()
    else:  # the last one is known by the digest that was noted
        assert trail.check().head != noted


@pytest.mark.parametrize("change", ["removed", "doubled", "swapped", "inserted"])
def test_so_is_who_removes_adds_or_moves_one(trail, change):
    one, two, three, four = trail.path.read_bytes().splitlines(keepends=True)
    changed = {
        "removed": [one, three, four],
        "doubled": [one, two, two, three, four],
        "swapped": [two, one, three, four],
        "inserted": [one, b'{"number":2,"before":"' + b"0" * 64 + b'"}\n', two, three, four],
    }
    trail.path.write_bytes(b"".join(changed[change]))
    with pytest.raises(TrailError, match="does not follow"):
        trail.check()


def test_what_is_cut_off_at_the_end_is_missing_from_what_was_noted(trail):
    noted = trail.check().head
    lines = trail.path.read_bytes().splitlines(keepends=True)
    trail.path.write_bytes(b"".join(lines[:-1]))
    assert noted not in trail.check().digests


def test_a_crash_in_the_middle_of_a_line_is_told_and_does_not_hide_anything(trail):
    with trail.path.open("ab") as file:
        file.write(b'{"number":5,"ti')
    with pytest.raises(TrailError, match="ends in the middle of line 5"):
        trail.check()
    trail.note(what="call")
    assert trail.check().entries == 6
    assert '"what":"cut off"' in trail.path.read_text()


def test_many_writers_make_one_chain(trail):
    writers = [threading.Thread(target=lambda: [trail.note(what="call") for _ in range(5)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert trail.check().entries == 24


def test_a_log_that_cannot_be_written_is_named(trail, monkeypatch):
    with pytest.raises(TrailError, match="at most"):
        trail.note(what="x" * 10**5)
    monkeypatch.setattr(audit.os, "write", lambda file, content: len(content) - 1)
    with pytest.raises(TrailError, match="is the disk full"):
        trail.note(what="call")
    monkeypatch.undo()

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrailError, match="No space left on device"):
        trail.note(what="call")


def test_a_last_line_that_is_no_entry_stops_the_log(trail):
    trail.path.write_bytes(b"nothing\n")
    with pytest.raises(TrailError, match="its last line is no entry"):
        trail.note(what="call")


def test_the_command_checks_it(call, refused, trail, tmp_path):
    outcome = call(f"deploy audit {trail.path} --last 1")
    assert outcome.code == 0
    assert "entries: 4" in outcome.out
    assert '"p3"' in outcome.out
    assert '"p2"' not in outcome.out
    head = trail.check().head
    assert head in outcome.out.replace("\n", "")
    trail.note(what="call")
    assert call(f"deploy audit {trail.path} --head {head}").code == 0
    refused(f"deploy audit {trail.path} --head {'1' * 64}", "entries are missing, or were replaced")
    trail.path.write_bytes(trail.path.read_bytes().replace(b"p1", b"p7"))
    refused(f"deploy audit {trail.path}", "line 3 does not follow")
    refused(f"deploy audit {tmp_path / 'none.jsonl'}", "cannot be read")
