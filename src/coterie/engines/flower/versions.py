"""What a site's client keeps, on disk: one version for every call that changed it.

Each message from the server names the version that it builds on. No message ever builds on a round that was lost or
rejected, so that leaves no trace. The version before a round is kept until the round counts: a server that has lost its
own last round can go back to it, and its sites with it.
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

LOST = "this site does not have what it kept"
"""How the error begins that says that a version is not there, by which the server knows that its site has lost it."""

_RUNS = 10
"""Of how many runs a site keeps versions. If there are more, those that were written to least recently are deleted."""


class Versions:
    """The versions of what one client keeps in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        # The run's name comes from the server, and becomes part of a path.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", run):
            raise CoterieError(f"run {run!r}: letters, digits, dashes and underscores")
        self._parent, self._folder = folder, folder / run

    def _path(self, version: Version) -> Path:
        return self._folder / f"{version[0]:08d}-{version[1]:04d}.safetensors"

    def read(self, version: Version | None, nets: Mapping[str, Net]) -> Memory:
        """What the client keeps in a version: nothing if there is no version yet."""
        memory = Memory(1)
        if version is None:
            return memory
        if not self._path(version).is_file():
            raise CoterieError(f"{LOST} in round {version[0]}, call {version[1]}")
        for name, (value, known) in codec.read(self._path(version), nets).items():
            memory.values[name], memory.known[name] = value, known
        return memory

    def write(self, version: Version, memory: Memory) -> None:
        """Store what the client keeps as a version, whole or not at all."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, mode=0o700)
            self._forget_old_runs()
        codec.write(self._path(version), {name: [memory.values[name], memory.known[name]] for name in memory})

    def keep_only(self, versions: Iterable[Version | None]) -> None:
        """Delete all versions but these."""
        needed = {self._path(version) for version in versions if version is not None}
        for path in self._folder.glob("*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def _forget_old_runs(self) -> None:
        runs = sorted((path for path in self._parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for path in runs[:-_RUNS]:
            shutil.rmtree(path, ignore_errors=True)
