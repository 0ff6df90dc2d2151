"""Wall time, CPU time and peak memory of a command with all its processes. Linux only: it reads /proc."""

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Clock", "Measured", "machine", "measure"]


class Clock:
    """Notes when each round of a run is done: evaluated on the host, so that a GPU has nothing left to do."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round_done(self, *_: Any) -> None:
        """A round is done."""
        self.times.append(time.perf_counter())

    def run_done(self, *_: Any) -> None:
        """All rounds are done."""


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    seconds: float
    """By the clock on the wall."""
    cpu: float
    """Of all its processes, in user code and in the system."""
    megabytes: float
    """The most that its processes had at once; what they share is counted once."""
    output: str


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command and watch it until it ends."""
    before, started = _cpu_of_children(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_proportional(pid) for pid in _tree(process.pid)))
        # Not more often: asking takes time, and holds up the process that is asked about.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    seconds = time.perf_counter() - started
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Measured(seconds, _cpu_of_children() - before, peak / 1024, output)


def machine() -> str:
    """How busy the machine is."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
