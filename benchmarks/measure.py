"""Wall time and peak memory of a command with all its processes. Linux only: it reads /proc."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    seconds: float
    megabytes: float
    output: str


def measure(command: Sequence[str]) -> Measured:
    """Run a command and watch it until it ends."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_proportional(pid) for pid in _tree(process.pid)))
        time.sleep(0.1)
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Measured(time.perf_counter() - started, peak / 1024, output)


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _tree(int(child)))]


def _proportional(pid: int) -> int:
    """Kilobytes of a process, memory shared with others counted in parts."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
