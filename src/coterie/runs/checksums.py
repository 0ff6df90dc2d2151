"""Checksums of the files of a run folder, in `checksums.json`: what is not as it was written is never used silently.

For every file there is how many bytes it has and their SHA-256, as `sha256sum` prints it. Records are appended without
the checksums being written each time: what stands behind the bytes that are known is not checked, and when a run goes
on it is dropped, since checksums are written before every checkpoint. A file that is replaced has two entries until
that is done, so that a folder is sound wherever its writer was killed. Files of tensors have their checksum in
themselves (`coterie.nets.codec`). A folder from before there were checksums is read as it is.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from coterie.core.errors import DataError
from coterie.core.files import append_to, make_lasting, write_whole

CHECKSUMS = "checksums.json"
"""The file that has them."""

GROWING = ("rounds.jsonl", "groups.jsonl", "insights.jsonl")
"""Files to which lines are appended while a run goes on."""

_CHECKED = ("settings.toml", "origin.jsonl", *GROWING, "clients.jsonl", "summary.json")

_Entry = tuple[int, str] | None
"""Bytes and checksum; None if there is no such file."""


class Checksums:
    """The checksums of one run folder, and all writing of what they are about."""

    def __init__(self, folder: Path, entries: Mapping[str, list[_Entry]] | None = None) -> None:
        self._folder, self._entries = folder, dict(entries or {})
        self._grown: dict[str, tuple[int, hashlib._Hash]] = {}

    @classmethod
    def read(cls, folder: Path) -> "Checksums | None":
        """Those of a folder; None if it has none."""
        path = folder / CHECKSUMS
        if not path.is_file():
            return None
        try:
            told = json.loads(path.read_bytes())
            entries = {
                name: [None if one is None else (int(one[0]), str(one[1])) for one in told[name]] for name in told
            }
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"{path}: damaged ({error})") from error
        return cls(folder, entries)

    def check(self, names: Collection[str] | None = None) -> None:
        """Refuse a folder in which a file is not as it was written, of all or of those with these names."""
        for name in _CHECKED if names is None else names:
            path = self._folder / name
            if not path.is_file():  # whoever deleted it meant to
                continue
            content = path.read_bytes()
            # To a file that grows lines may have been appended before anything of it was written down.
            entries = self._entries.get(name, [_entry(b"")] if name in GROWING else [])
            if not any(_fits(name, content, entry) for entry in entries):
                raise DataError(f"{path}: damaged: it is not as it was written ({CHECKSUMS} says so)")

    def known(self, name: str) -> int | None:
        """How many bytes of a file that grows are checked: what stands behind them may be anything."""
        path = self._folder / name
        content = path.read_bytes() if path.is_file() else b""
        fitting = [entry[0] for entry in self._entries.get(name, ()) if entry and _fits(name, content, entry)]
        return max(fitting, default=0) if self._entries else None

    def replace(self, contents: Mapping[str, str | None]) -> None:
        """Write files anew, or delete those that get None; each is at any moment as it was or as it will be."""
        self.settle()
        new = {name: None if text is None else _entry(text.encode()) for name, text in contents.items()}
        for name, entry in new.items():
            self._entries[name] = [*self._entries.get(name, [None]), entry]
        self._write()
        for name, text in contents.items():
            if text is None:
                (self._folder / name).unlink(missing_ok=True)
            else:
                write_whole(self._folder / name, text)
            self._grown.pop(name, None)
        self._entries |= {name: [entry] for name, entry in new.items()}
        self._write()

    def append(self, name: str, text: str) -> None:
        """Append to a file that grows."""
        if name not in self._grown:
            path = self._folder / name
            before = path.read_bytes() if path.is_file() else b""
            self._grown[name] = len(before), hashlib.sha256(before)
        content = text.encode()
        append_to(self._folder / name, content)
        length, total = self._grown[name]
        total.update(content)
        self._grown[name] = length + len(content), total

    def settle(self) -> None:
        """Write down all that was appended: before a checkpoint that counts on it."""
        found: dict[str, list[_Entry]] = {name: [(size, sha.hexdigest())] for name, (size, sha) in self._grown.items()}
        for name in _CHECKED:
            if name not in self._entries and name not in found and (self._folder / name).is_file():
                found[name] = [_entry((self._folder / name).read_bytes())]
        if any(self._entries.get(name) != entries for name, entries in found.items()):
            for name in self._grown:
                make_lasting(self._folder / name)
            self._entries |= found
            self._write()

    def _write(self) -> None:
        write_whole(self._folder / CHECKSUMS, json.dumps(self._entries, indent=1) + "\n")


def check_folder(folder: Path, names: Collection[str] | None = None) -> None:
    """Refuse a run folder in which a file, of all or of some, is not as it was written, if it has checksums."""
    for last in (False, True):
        try:
            if (sums := Checksums.read(folder)) is not None:
                sums.check(names)
            return
        except DataError:  # it may have been written to between the two looks
            if last:
                raise


def _entry(content: bytes) -> _Entry:
    return len(content), hashlib.sha256(content).hexdigest()


def _fits(name: str, content: bytes, entry: _Entry) -> bool:
    if entry is None:
        return False
    size, checksum = entry
    if len(content) != size and not (name in GROWING and len(content) > size):
        return False
    return hashlib.sha256(content[:size]).hexdigest() == checksum
