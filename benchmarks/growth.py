"""What more clients cost: rounds per second and memory at 10 to 10,000 clients, of whom 100 take part in a round.

    python benchmarks/growth.py [--device cuda] [--rounds 10] [--figure FILE]

Each client has 8 images of CIFAR-10's size to train on (noise: only time is measured) and a LeNet-5. FedAvg keeps
nothing at the clients; Local keeps a model at each that has taken part, and scores them all at the end. Every row is a
process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import coterie
from coterie.scoring import Scoring

CLIENTS = (10, 100, 1000, 10_000)


def measured(method: str, clients: int, rounds: int, device: str) -> dict[str, float]:
    """Rounds per second after the first, and peaks of memory in gigabytes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (10 * clients, 3, 32, 32), dtype=np.uint8)
    data = coterie.Dataset(x, np.arange(len(x)) % 10)
    options = {"validation": 0.0, "device": device, "precision": "tf32"}
    fed = coterie.simulate(data, "iid", "lenet5", clients=clients, **options)
    made = coterie.methods.make(
        method, rounds=rounds, epochs=1, batch=4, rate=0.01, participation=min(1.0, 100 / clients)
    )
    times: list[float] = []

    class Clock:
        def round_done(self, *_: object) -> None:
            times.append(time.perf_counter())

        def run_done(self, *_: object) -> None:
            pass

    coterie.fit(made, fed, scoring=Scoring(evaluate_every=rounds), observers=[Clock()])
    gpu = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    # The last round is followed by the scoring of all clients.
    speed = (rounds - 2) / (times[-2] - times[0])
    return {
        "rounds_per_second": speed,
        "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "gpu": gpu,
        "scoring": times[-1] - times[-2],
    }


def draw(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Rounds per second and memory over the number of clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    speed, memory = figure.subplots(1, 2)
    for method, rows in found.items():
        speed.plot(rows.keys(), [row["rounds_per_second"] for row in rows.values()], "o-", label=method)
        memory.plot(rows.keys(), [row["host"] for row in rows.values()], "o-", label=f"{method}, host")
        if any(row["gpu"] for row in rows.values()):
            memory.plot(rows.keys(), [row["gpu"] for row in rows.values()], "s--", label=f"{method}, GPU")
    for axes, title in ((speed, "rounds per second"), (memory, "peak memory, GB")):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("clients")
        axes.set_title(title)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--one", nargs=2, help="measure one method with so many clients, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        method, clients = arguments.one
        print(json.dumps(measured(method, int(clients), arguments.rounds, arguments.device)))
        return
    found: dict[str, dict[int, dict[str, float]]] = {}
    print("| method | clients | rounds a second | host memory, GB | GPU memory, GB | scoring all clients, s |")
    print("|---|---|---|---|---|---|")
    for method in ("fedavg", "local"):
        for clients in CLIENTS:
            command = [sys.executable, __file__, "--device", arguments.device, "--rounds", str(arguments.rounds)]
            done = subprocess.run([*command, "--one", method, str(clients)], capture_output=True, text=True, check=True)
            row = found.setdefault(method, {})[clients] = json.loads(done.stdout)
            cells = f"{row['rounds_per_second']:.1f} | {row['host']:.1f} | {row['gpu']:.2f} | {row['scoring']:.1f}"
            print(f"| {method} | {clients:,} | {cells} |", flush=True)
    if arguments.figure:
        draw(found, arguments.figure)


if __name__ == "__main__":
    main()
