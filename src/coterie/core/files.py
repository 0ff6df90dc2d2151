"""Files of which nobody ever sees a part, even if their writer is killed, and locks of folders."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PART = ".part"
"""The ending of the name of a file that is still being written."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that nobody ever sees a part of it, even if several processes write it at once."""
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


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
