"""What a site was asked and what left it, in a file that is only ever appended to.

Each line is an entry in JSON that has the digest of the line before it: who alters, removes or inserts one must write
all later ones anew. The digest of the last line, which `coterie deploy audit` prints, stands for the whole file:
whoever has noted it elsewhere can tell later whether the file still begins with the same entries.

An entry is on the disk before an answer leaves. Where it cannot be written nothing is answered. A line that was cut off
as the machine went down is left in place, and the next entry says so.

>>> import tempfile
>>> trail = Trail(Path(tempfile.mkdtemp()) / "audit.jsonl")
>>> head = trail.note(what="call", program="coterie.programs.train", outcome="answered")
>>> trail.check().entries, trail.check().head == head
(1, True)
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError

BEGINNING = "0" * 64
"""Stands for the line before the first one."""

_LONGEST = 1 << 16
"""The longest entry in bytes; what a server says is cut before it comes here."""

_TORN = "cut off"
"""What an entry says that follows on a line which was cut off."""


class TrailError(CoterieError):
    """An audit log cannot be written, or is not what was written."""


@dataclass(frozen=True)
class TrailReport:
    """What the check of an audit log has found."""

    entries: int
    """How many entries there are."""
    head: str
    """The digest of the last line."""
    digests: tuple[str, ...]
    """The digests of all lines, in their order."""


@dataclass(frozen=True)
class Trail:
    """An audit log in a file."""

    path: Path

    def note(self, **entry: Any) -> str:
        """Append an entry, and wait until it is on the disk; returns the digest of its line."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._open() as file:
                last, torn = self._last(file)
                if torn:
                    os.write(file, b"\n")
                    last = _append(file, {"what": _TORN}, _digest(last[1]), last[0] + 1)
                _, line = _append(file, entry, _digest(last[1]), last[0] + 1)
                os.fsync(file)
        except OSError as error:
            raise TrailError(f"{self.path}: cannot be written ({error.strerror}); nothing leaves unrecorded") from error
        return _digest(line)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file, opened to be appended to, which no other process writes meanwhile."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with suppress(ImportError):  # there is no such lock on Windows
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _last(self, file: int) -> tuple[tuple[int, bytes], bool]:
        """The number and the content of the last whole line, and whether something that is no line comes after it."""
        end = os.lseek(file, 0, os.SEEK_END)
        start = max(0, end - 2 * _LONGEST)
        os.lseek(file, start, os.SEEK_SET)
        content = b""
        while len(content) < end - start:
            content += os.read(file, end - start - len(content))
        lines = content.split(b"\n")
        torn = lines.pop()
        if not lines:
            return (0, b""), bool(torn)
        try:
            return (int(json.loads(lines[-1])["number"]), lines[-1]), bool(torn)
        except (ValueError, KeyError, TypeError) as error:
            raise TrailError(f"{self.path}: its last line is no entry; see `coterie deploy audit`") from error

    def check(self) -> TrailReport:
        """Go through the whole file; an error names the first line that is not what was written."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise TrailError(f"{self.path}: cannot be read ({error.strerror})") from error
        if lines.pop():
            raise TrailError(f"{self.path}: ends in the middle of line {len(lines) + 1}")
        digests: list[str] = []
        before, number = b"", 0
        for place, line in enumerate(lines, start=1):
            entry = _entry(line)
            if entry is None and place < len(lines):
                # Cut off as the machine went down, if the next entry says so and follows on the line before.
                following = _entry(lines[place])
                if following and following.get("what") == _TORN and following.get("before") == _digest(before):
                    continue
            if entry is None or entry.get("before") != _digest(before) or entry.get("number") != number + 1:
                raise TrailError(f"{self.path}: line {place} does not follow on the one before it")
            before, number = line, number + 1
            digests.append(_digest(line))
        return TrailReport(number, _digest(before), tuple(digests))


def _append(file: int, entry: dict[str, Any], before: str, number: int) -> tuple[int, bytes]:
    told = {"number": number, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry, "before": before}
    line = json.dumps(told, ensure_ascii=True, separators=(",", ":")).encode()
    if len(line) > _LONGEST:
        raise TrailError(f"an entry of {len(line)} bytes: at most {_LONGEST}")
    if os.write(file, line + b"\n") != len(line) + 1:
        raise TrailError("an entry was written in part: is the disk full?")
    return number, line


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else BEGINNING
