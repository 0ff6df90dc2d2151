"""What a site's client keeps, on disk: a version for every call that changed it.

Each message names the version that it builds on. A round that is lost or rejected is never built on, so it leaves no
trace; and because the version before the round stays until the round is settled, a server that lost its own last round
can go back with its sites.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError
from coterie.nets import codec
from coterie.nets.net import Net

Version = tuple[int, int]
"""A round and the number of the call within it."""

_RUNS = 10
"""Runs whose memories a site keeps; those that were written to least recently go first."""


class Versions:
    """The versions of one client's memory in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        # The name comes from the server and becomes a path.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", run):
            raise CoterieError(f"run {run!r}: letters, digits, dashes and underscores")
        self._parent, self._folder = folder, folder / run

    def _path(self, version: Version) -> Path:
        return self._folder / f"{version[0]:08d}-{version[1]:04d}.safetensors"

    def read(self, version: Version | None, nets: Mapping[str, Net]) -> Memory:
        """What the client remembers in a version; nothing before the first."""
        memory = Memory(1)
        if version is None:
            return memory
        if not self._path(version).is_file():
            raise CoterieError(f"this site does not have what it kept in round {version[0]}, call {version[1]}")
        for name, (value, known) in codec.read(self._path(version), nets).items():
            memory.values[name], memory.known[name] = value, known
        return memory

    def write(self, version: Version, memory: Memory) -> None:
        """Store a version, whole or not at all."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, mode=0o700)
            self._forget_old_runs()
        codec.write(self._path(version), {name: [memory.values[name], memory.known[name]] for name in memory})

    def keep_only(self, versions: Iterable[Version | None]) -> None:
        """Remove every version but these."""
        needed = {self._path(version) for version in versions if version is not None}
        for path in self._folder.glob("*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def _forget_old_runs(self) -> None:
        runs = sorted((path for path in self._parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for path in runs[:-_RUNS]:
            shutil.rmtree(path, ignore_errors=True)
