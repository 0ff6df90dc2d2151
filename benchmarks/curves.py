"""Learning curves of the forms on a GPU: loop, vectorised and branch must learn alike.

    python benchmarks/curves.py --data-dir DIR [--rounds 30] [--figure FILE]

FedAvg with LeNet-5 on 10,000 images of CIFAR-10 at 10 clients, two seeds, in tf32: the difference between forms is to
be held against the difference between seeds.
"""

import argparse
from pathlib import Path

import coterie


def main() -> None:
    """Run all and print the accuracy at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    curves = {}
    for form in ("loop", "vectorised", "branch"):
        for seed in (0, 1):
            fed = coterie.simulate(
                "cifar10", "dirichlet", "lenet5", alpha=0.5, clients=10, limit=10_000, seed=seed, split_seed=0,
                data_dir=arguments.data_dir, engine=form, device="cuda", precision="tf32",
            )  # fmt: skip
            result = coterie.FedAvg(rounds=arguments.rounds, epochs=1, batch=32, rate=0.05).fit(fed)
            curves[form, seed] = [100 * record["global_accuracy_mean"] for record in result.rounds]
            print(f"{form:12} seed {seed}: {curves[form, seed][-1]:.2f} %", flush=True)
    if arguments.figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.subplots()
        styles = {"loop": ("-", 4), "vectorised": ("--", 2), "branch": (":", 2)}
        for (form, seed), curve in curves.items():
            style, width = styles[form]
            axes.plot(range(1, len(curve) + 1), curve, style, lw=width, color=f"C{seed}", label=f"{form}, seed {seed}")
        axes.set_xlabel("round")
        axes.set_ylabel("global test accuracy, %")
        axes.legend(frameon=False)
        figure.savefig(arguments.figure, dpi=120)


if __name__ == "__main__":
    main()
