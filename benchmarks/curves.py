"""Learning curves of the forms: loop, vectorised and branch must learn alike.

    python benchmarks/curves.py --data-dir DIR [--rounds 30] [--device cuda] [--out FILE]
    python benchmarks/curves.py --draw FILE ...

FedAvg with LeNet-5 on 10,000 images of CIFAR-10 at 10 clients, two seeds, in tf32: the difference between forms is to
be held against the difference between seeds. What is in FILE already is not run again.
"""

import argparse
from pathlib import Path
from typing import Any

import coterie
from drawing import PALETTE, draw, new_figure, store, stored

FORMS = ("loop", "vectorised", "branch")
SEEDS = (0, 1)


def curve(form: str, seed: int, rounds: int, data_dir: str, device: str) -> list[float]:
    """Accuracy on the global test set after each round, in percent."""
    fed = coterie.simulate(
        "cifar10", "dirichlet", "lenet5", alpha=0.5, clients=10, limit=10_000, seed=seed, split_seed=0,
        data_dir=data_dir, engine=form, device=device, precision="tf32",
    )  # fmt: skip
    result = coterie.FedAvg(rounds=rounds, epochs=1, batch=32, rate=0.05).fit(fed)
    fed.close()
    return [100 * record["global_accuracy_mean"] for record in result.rounds]


def drawn(found: dict[str, Any]) -> None:
    """Draw all curves over one another: a seed has a colour, a form a line."""
    figure, (axes,) = new_figure(6, 3.6)
    styles = {"loop": {"lw": 5, "alpha": 0.3}, "vectorised": {"lw": 1.8}, "branch": {"lw": 1.8, "ls": (0, (1, 1.5))}}
    for form in FORMS:
        for seed in SEEDS:
            if values := found.get(f"{form} {seed}"):
                label, colour = f"{form}, seed {seed}", PALETTE[seed if form != "branch" else seed + 4]
                axes.plot(range(1, len(values) + 1), values, color=colour, label=label, **styles[form])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="round", title="Accuracy on the global test set, %")
    axes.legend(frameon=False, ncols=len(FORMS), fontsize=8)
    draw(figure, "curves")


def main() -> None:
    """Run all and print the accuracy at the end, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="where results are stored as they come, and those before are kept")
    parser.add_argument("--draw", nargs="*", type=Path, help="draw the results in these files")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        drawn(stored(arguments.draw))
        return
    if arguments.data_dir is None:
        parser.error("--data-dir: where CIFAR-10 is")
    found = stored([arguments.out] if arguments.out else [])
    for form in FORMS:
        for seed in SEEDS:
            key = f"{form} {seed}"
            if key not in found:
                found[key] = curve(form, seed, arguments.rounds, arguments.data_dir, arguments.device)
                store(arguments.out, found)
            print(f"{form:12} seed {seed}: {found[key][-1]:.2f} %", flush=True)


if __name__ == "__main__":
    main()
