"""From the command line to the end of the first round: FedAvg on the digits that come with scikit-learn.

    python benchmarks/startup.py [--repeats 5]

Beside it, what of this is importing torch and importing Coterie. Medians of runs in turns, wall clock and CPU time.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from measure import Measured, machine, measure


def main() -> None:
    """Run all in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    found: dict[str, list[Measured]] = {}
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            commands = {
                "import torch": ["-c", "import torch"],
                "import coterie": ["-c", "import coterie"],
                "coterie run fedavg --rounds 1": [
                    *("-m", "coterie", "run", "fedavg", "--rounds", "1", "--out", str(Path(folder) / str(repeat)))
                ],
            }
            for name, command in commands.items():
                found.setdefault(name, []).append(measure([sys.executable, *command]))
    print(f"start-up, medians of {repeats} runs in turns; {before} at the beginning, {machine()} at the end")
    print(f"{'':32}{'wall clock':>12}{'CPU time':>12}{'memory':>10}")
    for name, runs in found.items():
        seconds, cpu, memory = (
            statistics.median(getattr(run, field) for run in runs) for field in ("seconds", "cpu", "megabytes")
        )
        print(f"{name:32}{seconds:10.2f} s{cpu:10.2f} s{memory:7.0f} MB")


if __name__ == "__main__":
    main()
