"""How good advice is: over worlds whose differences are known, and over seeds.

    python benchmarks/advice.py [--data digits] [--data-dir DIR] [--seeds 10] [--only iid rotations] --out advice.jsonl
    python benchmarks/advice.py --table advice.jsonl

For each world and seed: whether the diagnosis names the true cause and no other; how far the advised method is from the
best of the portfolio, every method of which is run at full length with its best setting by validation data, all on test
data (regret, points); and whether what the pilots expect clients to gain over training alone came true within the 90 %
interval. Results are added to the file as they come, and worlds that are in it are not run again.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.advice.advised import Advice
from coterie.server.scoring import Scoring

WORLDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "iid": ({"split": "iid"}, ()),
    "label skew, 2 labels": ({"split": "label-skew", "classes": 2}, ("labels",)),
    "Dirichlet 0.1": ({"split": "dirichlet", "alpha": 0.1}, ("labels",)),
    "rotations": ({"split": "autocfl-input"}, ("inputs",)),
    "rotations x label skew": ({"split": "rotated-label-skew"}, ("inputs", "labels")),
    "one site with swapped labels": ({"split": "swapped-labels", "swapped": 0.05}, ("concepts",)),
    "very unequal sizes": ({"split": "quantity", "alpha": 0.2}, ("sizes",)),
    "five samples a client": ({"split": "iid", "limit": 100}, ("few samples",)),
}
"""Each world, and how its clients differ in truth."""

CLIENTS = 20


def measured(world: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    """Advice in one world, and what every method of the portfolio gives there."""
    options, truth = WORLDS[world]
    data = given.pop("data")
    fed = coterie.simulate(data, clients=CLIENTS, net="mlp", seed=seed, **{**given, **options})
    began = time.perf_counter()
    advice = coterie.advise(fed, budget=60)
    seconds = time.perf_counter() - began
    scores = {name: result.summary["accuracy_mean"] for name, result in full_length(fed, advice).items()}
    gained = scores[advice.method] - scores["local"]
    expected = advice.trial.expected
    return {
        "world": world,
        "seed": seed,
        "causes": advice.diagnosis.main,
        "right": advice.diagnosis.main == truth,
        "advised": advice.method,
        "sure": advice.trial.sure,
        "scores": scores,
        "regret": 100 * (max(scores.values()) - scores[advice.method]),
        "gained": gained,
        "expected": expected,
        "covered": None if expected is None else expected[1] <= gained <= expected[2],
        "seconds": seconds,
    }


def full_length(fed: coterie.Federation, advice: Advice) -> dict[str, coterie.Result]:
    """Every method of the portfolio with its best setting, at full length, scored on test data."""
    found = dict(advice.results)
    for pilot in advice.trial.pilots:
        name = pilot.method.name
        if name not in found and not pilot.failed:
            found[name] = pilot.method.fit(fed, scoring=Scoring(evaluate_every=pilot.method.rounds, global_test=False))
    return found


def table(path: Path) -> None:
    """Print what a file of results comes to, as Markdown."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        one = json.loads(line)
        found[one["world"]].append(one)
    print("| world | seeds | right cause | regret, median (mean, worst), points | gain within its interval | advised |")
    print("|---|---|---|---|---|---|")
    everything = [one for some in found.values() for one in some]
    for world, some in [*found.items(), ("**all**", everything)]:
        regrets = [one["regret"] for one in some]
        covered = [one["covered"] for one in some if one["covered"] is not None]
        advised: dict[str, int] = defaultdict(int)
        for one in some:
            advised[one["advised"]] += 1
        told = ", ".join(f"{name} {count}" for name, count in sorted(advised.items(), key=lambda item: -item[1]))
        right = sum(one["right"] for one in some)
        regret = f"{np.median(regrets):.1f} ({np.mean(regrets):.1f}, {max(regrets):.1f})"
        within = f"{sum(covered)} of {len(covered)}" if covered else "–"
        print(f"| {world} | {len(some)} | {right} | {regret} | {within} | {told} |")
    print(f"\nmedian {np.median([one['seconds'] for one in everything]):.0f} s for one piece of advice")


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--limit", type=int, help="samples of the data set that are used")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(WORLDS), choices=list(WORLDS), metavar="WORLD")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table:
        return table(asked.table)
    if asked.out is None:
        parser.error("--out: say where results go")
    done = set()
    if asked.out.exists():
        done = {(one["world"], one["seed"]) for one in map(json.loads, asked.out.read_text().splitlines())}
    given = {"data": asked.data, "data_dir": asked.data_dir, "limit": asked.limit}
    for seed in range(asked.seeds):
        for world in asked.only:
            if (world, seed) not in done:
                one = measured(world, seed, {name: value for name, value in given.items() if value is not None})
                with asked.out.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    return table(asked.out)


if __name__ == "__main__":
    main()
