"""Files that are whole at any moment, whoever looks at them and whenever their writer is killed."""

import os
from pathlib import Path

__all__ = ["PART", "write_whole"]

PART = ".part"
"""How the name of a file ends that is still being written."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is never seen half-written, whoever else writes it."""
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)
