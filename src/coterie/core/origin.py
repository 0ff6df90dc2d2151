"""Where results come from: which versions of what computed them, on which device, and from which data."""

import json
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from coterie._version import __version__


def origin(device: Any, data: str = "") -> dict[str, str]:
    """What computes in this process on a torch device, from own data with this checksum. What is not known is absent.

    >>> from coterie.core.origin import origin
    >>> origin(torch.device("cpu"))["device"]
    'cpu'
    """
    import torch

    named = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    found = {
        "coterie": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": named,
        "data": data,
    }
    return {name: value for name, value in found.items() if value}


@cache
def _commit() -> str:
    """The commit of Coterie's source, with `-dirty` behind it if that was changed since; empty for a released one."""
    try:
        installed = json.loads(metadata.distribution("coterie").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        installed = {}
    if told := installed.get("vcs_info", {}).get("commit_id"):
        return str(told)
    home = Path(__file__).parents[1]
    # Only where the source itself is under version control: it may be installed inside of somebody else's repository.
    asked = (
        ("ls-files", "--error-unmatch", "_version.py"),
        ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
    )
    said = ""
    for words in asked:
        try:
            done = subprocess.run(
                ["git", "-C", str(home), *words], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        said = done.stdout.strip()
    return said
