"""What the papers of AutoCFL and CFIC claim about groups, measured over seeds.

    python benchmarks/groups.py autocfl [--data-dir DIR] [--seeds 10] [--samples 1800] [--guard 0.1] [--no-adjust]
    python benchmarks/groups.py cfic    [--data-dir DIR] [--seeds 3] [--data fashion-mnist] [--net mlp] [--rounds 40]

`autocfl`: how often the number of clusters is that of the true groups, in the paper's settings of labels, and how well
they agree. `cfic`: CFIC with its ablations beside FedAvg, with and without server momentum, at Dirichlet 0.05 on the
global test set.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import coterie
from coterie import serving
from coterie.server.scoring import score

SETTINGS: dict[str, dict[str, Any]] = {
    "label groups": {"split": "autocfl-label"},
    "label groups, imbalanced": {"split": "autocfl-label", "imbalanced": True},
    "IID": {"split": "iid"},
    "IID, imbalanced": {"split": "iid", "imbalanced": True},
}


def autocfl(options: argparse.Namespace) -> None:
    """Clusters found and true ones, in round 3, with the paper's rate, batch and net."""
    name = options.data or "fashion-mnist"
    small = name == "digits"
    local = {"rate": 0.1, "batch": 16} if small else {"rate": 0.01, "batch": 128}
    made = coterie.AutoCFL(rounds=3, guard=options.guard, adjust=not options.no_adjust, **local)
    for setting, given in SETTINGS.items():
        groups, rand = [], []
        for seed in range(options.seeds or 10):
            started = time.perf_counter()
            net = options.net or ("cnn" if small else "cnn-16-32")
            more = {"samples": options.samples, "workers": options.workers, **place(options, name)}
            fed = coterie.simulate(name, net=net, seed=seed, **given, **more)
            scoring = coterie.Scoring(evaluate_every=3, global_test=False)
            result = made.fit(fed, scoring=scoring).summary
            fed.close()
            groups.append(result["groups"])
            rand.append(result["ari"])
            placed = f"{result['placed_right']} of 20 clients placed right"
            seconds = time.perf_counter() - started
            print(f"  {setting}, seed {seed}: {groups[-1]} groups, ARI {rand[-1]:.3f}, {placed}, {seconds:.0f} s")
        true = 1 if given["split"] == "iid" else 4
        number, exact = sum(count == true for count in groups), sum(value == 1 for value in rand)
        found = f"{number} of {len(groups)} runs find {true} groups, {exact} exactly the true ones"
        print(f"{setting}: {found}; median ARI {np.median(rand):.3f}", flush=True)


def cfic(options: argparse.Namespace) -> None:
    """Accuracy on the global test set in the last round; for CFIC also that of the mean before its correction."""
    name = options.data or "fashion-mnist"
    common = {"rounds": options.rounds, "participation": 0.3, "epochs": 5, "batch": 64, "rate": 0.01}
    methods = {
        "FedAvg": coterie.FedAvg(**common),
        "FedAvg, server momentum 0.9": coterie.FedAvg(**common, server_momentum=0.9),
        "CFIC": coterie.CFIC(**common),
        "CFIC without stratified sampling": coterie.CFIC(**common, stratify=False),
        "CFIC without correction": coterie.CFIC(**common, correct=False),
    }
    figures: dict[str, list[float]] = {}
    for seed in range(options.seeds or 3):
        split = {"split": "dirichlet", "alpha": 0.05, "clients": 100, "min_size": 10, **place(options, name)}
        fed = coterie.simulate(name, net=options.net or "mlp", seed=seed, **split, workers=options.workers)
        scoring = coterie.Scoring(evaluate_every=options.rounds)
        for label, made in methods.items():
            started = time.perf_counter()
            result = made.fit(fed, scoring=scoring)
            figures.setdefault(label, []).append(100 * result.summary["global_accuracy_mean"])
            if label == "CFIC":
                before = score(fed, serving.one(result.state.average, len(fed.names)), scoring, made.local)
                figures.setdefault("CFIC, mean before correction", []).append(
                    100 * float(before.more["global_accuracy"].mean())
                )
            print(
                f"  seed {seed}, {label}: {figures[label][-1]:.2f} %, {time.perf_counter() - started:.0f} s", flush=True
            )
        fed.close()
    for label, values in figures.items():
        print(f"{label}: {np.mean(values):.2f} ± {np.std(values):.2f} %")


def place(options: argparse.Namespace, data: str) -> dict[str, Any]:
    """Where published data lies; the digits come with scikit-learn."""
    return {} if data == "digits" or options.data_dir is None else {"data_dir": options.data_dir}


if __name__ == "__main__":
    commands: dict[str, Callable[[argparse.Namespace], None]] = {"autocfl": autocfl, "cfic": cfic}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=commands)
    parser.add_argument("--data-dir")
    parser.add_argument("--data")
    parser.add_argument("--net")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--samples", type=int, help="samples per client for autocfl; by default as many as there are")
    parser.add_argument("--guard", type=float, default=0.1, help="of AutoCFL")
    parser.add_argument("--no-adjust", action="store_true", help="AutoCFL without its adjustment of epochs")
    parser.add_argument("--rounds", type=int, default=40, help="of cfic")
    parser.add_argument("--workers", type=int, help="worker processes; by default one per core")
    given = parser.parse_args()
    commands[given.what](given)
