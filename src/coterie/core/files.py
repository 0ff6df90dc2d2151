"""Files of which nobody ever sees a part, even if their writer is killed or the power fails, and locks of folders."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.errors import CoterieError

PART = ".part"
"""The ending of the name of a file that is still being written."""


class StorageError(CoterieError, OSError):
    """A file cannot be written, because a disk is full, or may not be written to."""

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror})"


def write_whole(path: Path, content: str | bytes, lasting: bool = True) -> None:
    """Write a file so that nobody ever sees a part of it, even if several processes write it at once.

    It is on the disk when this returns, also if the power then fails, unless it need not be `lasting`.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    with _written(path):
        try:
            with part.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()  # on a full disk this makes room again
            raise
    if lasting:
        make_lasting(path.parent)


def append_to(path: Path, content: bytes) -> None:
    """Append to a file; if that fails in the middle, nothing has been appended."""
    with _written(path), path.open("ab") as file:
        before = file.tell()
        try:
            file.write(content)
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def make_lasting(path: Path) -> None:
    """See to it that a file, or what is in a folder, is on the disk; nothing is done where that cannot be asked for."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        with _written(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """While a file is written: what fails is an error of one sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error


def lock_folder(folder: Path) -> Callable[[], None] | None:
    """Lock a folder. What is returned unlocks it; None says that it is locked already, be it by this very process.

    The lock is on the folder itself (flock) and nothing is written, while filelock would need a file in it: a command
    that is refused must leave a run's folder as it is, to the time of its last change. The system unlocks it when this
    process ends, however that happens. Where there are no such locks, on Windows and on some shared disks, nobody is
    kept out.
    """
    try:
        import fcntl
    except ImportError:
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass

    def unlock() -> None:
        with suppress(OSError):
            # A process that was forked meanwhile has the descriptor too: closing ours would not be enough.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    return unlock
