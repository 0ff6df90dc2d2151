"""What more clients cost: rounds per second and memory at 10 to 10,000 clients, of whom 100 take part in a round.

    python benchmarks/growth.py [--device cuda] [--rounds 10] [--methods fedavg local] [--out FILE]
    python benchmarks/growth.py --draw FILE ...

Each client has 8 images of CIFAR-10's size to train on (noise: only time is measured) and a LeNet-5. FedAvg keeps
nothing at the clients; Local keeps a model at each that has taken part, and scores them all at the end. Every row is a
process of its own, whose memory is counted with its workers'. What is in FILE already is not measured again.
"""

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie
from coterie.server.scoring import Scoring
from drawing import PALETTE, draw, new_figure, store, stored
from measure import Clock, measure

CLIENTS = (10, 100, 1000, 10_000)


def measured(method: str, clients: int, rounds: int, device: str) -> dict[str, Any]:
    """Rounds per second after the first, and peaks of memory in gigabytes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (10 * clients, 3, 32, 32), dtype=np.uint8)
    data = coterie.Dataset(x, np.arange(len(x)) % 10)
    options = {"validation": 0.0, "device": device, "precision": "tf32"}
    fed = coterie.simulate(data, "iid", "lenet5", clients=clients, **options)
    made = coterie.methods.make(
        method, rounds=rounds, epochs=1, batch=4, rate=0.01, participation=min(1.0, 100 / clients)
    )
    clock = Clock()
    coterie.fit(made, fed, scoring=Scoring(evaluate_every=rounds), observers=[clock])
    times = clock.times
    on_gpu = fed.net.device.type == "cuda"
    # The last round is followed by the scoring of all clients.
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "rounds_per_second": (rounds - 2) / (times[-2] - times[0]),
        "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "gpu": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0,
        "scoring": times[-1] - times[-2],
    }


def drawn(found: dict[str, dict[str, Any]]) -> None:
    """Draw rounds per second and memory over the number of clients."""
    figure, (speed, memory) = new_figure(8, 3.2, columns=2)
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for key, row in found.items():
        method, clients = key.split()
        by_method.setdefault(method, {})[int(clients)] = row
    for colour, (method, unsorted) in zip(PALETTE, by_method.items(), strict=False):
        rows = dict(sorted(unsorted.items()))
        style = {"color": colour, "marker": "o"}
        speed.plot(list(rows), [row["rounds_per_second"] for row in rows.values()], label=method, **style)
        memory.plot(list(rows), [row["host"] for row in rows.values()], label=f"{method}, host", **style)
        if any(row["gpu"] for row in rows.values()):
            gpu = [row["gpu"] for row in rows.values()]
            memory.plot(list(rows), gpu, label=f"{method}, GPU", linestyle="--", **style | {"marker": "s"})
    for axes, title in ((speed, "Rounds per second"), (memory, "Peak memory, GB")):
        axes.set(xscale="log", ylim=(0, None), xlabel="clients, 100 in a round", title=title)
        axes.set_xticks(CLIENTS, [f"{clients:,}" for clients in CLIENTS])
        axes.minorticks_off()
        axes.legend(frameon=False)
    draw(figure, "growth")


def main() -> None:
    """Measure and print, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=["fedavg", "local"])
    parser.add_argument("--out", type=Path, help="where results are stored as they come, and those before are kept")
    parser.add_argument("--draw", nargs="*", type=Path, help="draw the results in these files")
    parser.add_argument("--one", nargs=2, help="measure one method with so many clients, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        method, clients = arguments.one
        print(json.dumps(measured(method, int(clients), arguments.rounds, arguments.device)))
        return
    if arguments.draw is not None:
        drawn(stored(arguments.draw))
        return
    found = stored([arguments.out] if arguments.out else [])
    print("| method | clients | rounds a second | host memory, GB | GPU memory, GB | scoring all clients, s |")
    print("|---|---|---|---|---|---|")
    for method in arguments.methods:
        for clients in CLIENTS:
            key = f"{method} {clients}"
            if key not in found:
                command = [sys.executable, __file__, "--device", arguments.device, "--rounds", str(arguments.rounds)]
                done = measure([*command, "--one", method, str(clients)])
                found[key] = json.loads(done.output) | {"host": done.megabytes / 1e3}
                store(arguments.out, found)
            row = found[key]
            cells = f"{row['rounds_per_second']:.1f} | {row['host']:.1f} | {row['gpu']:.2f} | {row['scoring']:.1f}"
            print(f"| {method} | {clients:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
