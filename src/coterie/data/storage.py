"""The files of published data sets: where they are looked for, how they get there, and whether they are the right ones.

Only the downloader is pooch's. Its registry knows one place, one address and one sum for each file, which it hashes at
every use, and its processors want to be told the paths inside of an archive.
"""

import gzip
import hashlib
import json
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import platformdirs

from coterie.core.errors import DataError
from coterie.core.files import write_whole
from coterie.data.readers import reading

logger = logging.getLogger("coterie.data")


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder that holds data sets: the given one, else `COTERIE_DATA`, else the user's cache."""
    chosen = folder or os.environ.get("COTERIE_DATA") or platformdirs.user_cache_dir("coterie")
    path = Path(chosen).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise DataError(f"data folder {path}: not a folder")
    return path


@dataclass(frozen=True)
class PublishedFile:
    """A file as it was published."""

    name: str
    """Its name, without a folder."""

    size: int | None = None
    """Its length in bytes, where known."""

    checksum: str = ""
    """Algorithm and digest, e.g. `md5:0123...`; empty where none is published."""

    unpacked: "PublishedFile | None" = None
    """The file without its compression, which is as good."""


@dataclass(frozen=True)
class Download:
    """Something to fetch: one of the files, or an archive that has some of them."""

    file: PublishedFile
    """What is fetched."""

    urls: tuple[str, ...]
    """Its addresses, the official one first; the checksum tells whether a mirror has the same."""

    into: str
    """Where the files go, below the data folder."""

    members: tuple[PublishedFile, ...] = ()
    """The files that are taken out of it, if it is an archive; otherwise it is itself the file that is needed."""

    @property
    def supplies(self) -> tuple[PublishedFile, ...]:
        """The files that this brings."""
        return self.members or (self.file,)


@dataclass(frozen=True)
class Collection:
    """The files of one data set: what they are, where they are looked for, and where they come from."""

    name: str
    """The data set's name; a folder of that name is one of the places."""

    files: tuple[PublishedFile, ...]
    """What must be there."""

    layouts: tuple[str, ...]
    """Folders below the data folder that hold the files in common layouts, e.g. `MNIST/raw`."""

    downloads: tuple[Download, ...] = ()
    """How to get the files."""

    source: str = ""
    """Who publishes the files, for people."""

    def places(self, folder: Path) -> list[Path]:
        """The folders that are searched, in order."""
        leaves = [PurePosixPath(layout).name for layout in self.layouts]
        within = [f"{self.name}/{place}" for place in (*self.layouts, *leaves)]
        return [folder / place for place in dict.fromkeys([*self.layouts, *within, self.name, *leaves, ""])]

    def obtain(self, folder: Path, download: bool) -> list[Path]:
        """Where each of the files is, verified; those that are missing are unpacked or fetched first."""
        paths = {file: path for file in self.files if (path := self._find(file, folder))}
        missing = [file for file in self.files if file not in paths]
        if missing:
            paths |= self._supply(missing, folder, download)
        return [paths[file] for file in self.files]

    def absent(self, names: Iterable[str], folder: Path, why: str) -> DataError:
        """The error for files that are not there: which, where they were looked for and where to get them."""
        below = " and ".join(dict.fromkeys((*self.layouts, self.name)))
        return DataError(
            f"{self.name}: no {', '.join(names)} in {folder} (or below it in {below}), and {why}. "
            f"Get them from {self.source} and put them there"
        )

    def _find(self, file: PublishedFile, folder: Path) -> Path | None:
        for place in self.places(folder):
            for form in filter(None, (file.unpacked, file)):
                if (place / form.name).is_file():
                    return verified(place / form.name, form)
        return None

    def _supply(self, missing: list[PublishedFile], folder: Path, download: bool) -> dict[PublishedFile, Path]:
        """Unpack or fetch the missing files, or raise one error that names all that are still missing."""
        paths: dict[PublishedFile, Path] = {}
        for item in self.downloads:
            needed = [file for file in missing if file in item.supplies]
            archive = self._find(item.file, folder) if item.members else None
            if not needed or (archive is None and not download):
                continue
            try:
                paths |= _produce(item, needed, archive, folder / item.into)
            except (DataError, OSError) as error:
                absent = [file.name for file in missing if file not in paths]
                raise self.absent(absent, folder, f"getting them failed ({_reason(error)})") from error
        if absent := [file.name for file in missing if file not in paths]:
            raise self.absent(absent, folder, "no download is known" if download else "downloading is switched off")
        return paths


def verified(path: Path, file: PublishedFile) -> Path:
    """The path, if the file has the published content. It is hashed once, and again only when it has changed."""
    status = path.stat()
    stamp = [file.checksum, status.st_size, status.st_mtime_ns]
    memory = _memory()
    if memory.get(str(path.absolute())) == stamp:
        return path
    with reading(path):
        difference = _difference(path, file)
    if difference:
        raise DataError(f"{path}: {difference}. {_WAY_OUT}")
    if file.checksum:
        _remember(memory | {str(path.absolute()): stamp})
    return path


def fetch(item: Download, folder: Path) -> Path:
    """Download into a folder what is at the first address that gives the published content."""
    path = folder / item.file.name
    failures = []
    for url in item.urls:
        logger.info("downloading %s", url)
        try:
            _retrieve(url, path)
            reason = _difference(path, item.file)
        except OSError as error:  # those of the network are OSErrors too
            reason = _reason(error)
        if not reason:
            return path
        failures.append(f"{url}: {reason}")
    raise DataError("; ".join(failures))


def unpack(archive: Path, members: Iterable[PublishedFile], folder: Path) -> dict[PublishedFile, Path]:
    """Take some files out of a tar or zip archive, each verified. Folders inside the archive do not matter."""
    wanted = {member.name: member for member in members}
    done: dict[PublishedFile, Path] = {}
    try:
        for name, stream in _contents(archive, set(wanted)):
            path = folder / name
            with path.open("wb") as target:
                shutil.copyfileobj(stream, target)
            if difference := _difference(path, wanted[name]):
                raise DataError(f"{archive}: {name} in it: {difference}. {_WAY_OUT}")
            done[wanted[name]] = path
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}). {_WAY_OUT}") from error
    if absent := [name for name, member in wanted.items() if member not in done]:
        raise DataError(f"{archive}: has no {', '.join(absent)}. {_WAY_OUT}")
    return done


_WAY_OUT = "The file is damaged or another one: remove it and get it again"


def _difference(path: Path, file: PublishedFile) -> str:
    """How a file differs from the published one, in words; empty if it does not."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size:,} bytes, found {size:,}"
    if not file.checksum:
        return ""
    algorithm, _, expected = file.checksum.partition(":")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    return "" if found == expected else f"expected the {algorithm} sum {expected}, found {found}"


def _contents(archive: Path, names: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Base names and streams of those regular files in an archive that are wanted. Paths in it are never followed."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as box:
            for entry in box.infolist():
                name = PurePosixPath(entry.filename).name
                if name in names and not entry.is_dir():
                    with box.open(entry) as stream:
                        yield name, stream
    else:
        with tarfile.open(archive) as tape:
            for member in tape:
                name = PurePosixPath(member.name).name
                if name in names and member.isfile() and (content := tape.extractfile(member)):
                    yield name, content


def _produce(
    item: Download, needed: list[PublishedFile], archive: Path | None, folder: Path
) -> dict[PublishedFile, Path]:
    """Bring files into a folder, from an archive that is there already or from the network.

    All work is done beside the target, and whole files are moved into place: nobody ever sees a part of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as name:
        workshop = Path(name)
        fetched = archive or fetch(item, workshop)
        ready = unpack(fetched, needed, workshop) if item.members else {item.file: fetched}
        return {file: path.replace(folder / file.name) for file, path in ready.items()}


def _retrieve(url: str, path: Path) -> None:
    """Fetch a file, with a progress bar on a terminal."""
    from pooch import HTTPDownloader

    # NIST turns away Python's usual name. And if a server sent a .gz file as an encoding, requests would unpack it.
    headers = {"User-Agent": "Mozilla/5.0 (compatible; Coterie)", "Accept-Encoding": "identity"}
    download = HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, headers=headers)
    download(url, str(path), None)


def _memory_file() -> Path:
    return Path(platformdirs.user_cache_dir("coterie")) / "verified.json"


def _memory() -> dict[str, Any]:
    """What was verified before: checksum, size and time of change by path."""
    try:
        memory = json.loads(_memory_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(memory: dict[str, Any]) -> None:
    """Write the memory. Where that is not possible, files are verified again the next time."""
    target = _memory_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, json.dumps(memory, indent=1))
    except OSError as error:
        logger.debug("%s: %s", target, error)


def _reason(error: Exception) -> str:
    """What went wrong, in a few words: the network's own messages run over several lines."""
    if isinstance(error, DataError):
        return str(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the server answered {status}"
    return type(error).__name__ if len(str(error)) > 100 else f"{type(error).__name__}, {error}"
