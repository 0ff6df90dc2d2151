"""A small study with its runs, for tests of tables: stated accuracies instead of training."""

from pathlib import Path

from coterie.report.results import Findings
from coterie.runs.folder import StoredRun
from coterie.studies.study import TableSpec


def table_of(**given):
    """A table of accuracies, as a study describes it, unless told otherwise."""
    usual = {
        "title": "Accuracy, %",
        "values": {"accuracy": "accuracy_mean"},
        "rows": ("setting", "method"),
        "columns": ("data",),
        "percent": True,
        "better": "higher",
        "reference": {"method": "FedAvg"},
    }
    return TableSpec(**usual | given)


AXES = {"data": ("CIFAR10", "MNIST"), "setting": ("IID-Im", "NonIID_La"), "method": ("FedAvg", "IFCA", "AutoCFL")}

PUBLISHED = {
    "CIFAR10/IID-Im/FedAvg": [44.68, 0.36],
    "CIFAR10/IID-Im/IFCA": [44.64, 0.49],
    "CIFAR10/IID-Im/AutoCFL": [47.23, 0.35],
    "CIFAR10/NonIID_La/AutoCFL": [69.1],
    "MNIST/IID-Im/FedAvg": [95.18],
}


def stored(accuracy, seed=0, name="run", steps=10, rounds=3, clients=(), **summary):
    """A run that gets to an accuracy in equal strides, and takes so many steps a round."""
    numbers = range(1, rounds + 1)
    traffic = {"bytes_up": 1000, "bytes_down": 1000, "bytes_peer": 0}
    course = [{"round": n, "accuracy_mean": accuracy * n / rounds, "steps_mean": steps * n, **traffic} for n in numbers]
    whole = {"accuracy_mean": accuracy, "clients": 2, **summary}
    return StoredRun(Path(f"runs/{name}-seed{seed}"), {"seed": seed}, whole, course, list(clients), [])


def seeds(*accuracies, name="run", **more):
    """Runs with these accuracies, one per seed."""
    return [stored(accuracy, seed, name, **more) for seed, accuracy in enumerate(accuracies)]


def example():
    """A table with every kind of mark in it, and what there is for it."""
    runs = {
        ("CIFAR10", "IID-Im", "FedAvg"): seeds(0.45, 0.454, 0.448, name="fedavg"),
        ("CIFAR10", "IID-Im", "IFCA"): seeds(0.41, 0.411, 0.413, name="ifca", reads_test_data=True),
        ("CIFAR10", "IID-Im", "AutoCFL"): seeds(0.48, 0.483, 0.478, name="autocfl", steps=15),
        ("MNIST", "IID-Im", "FedAvg"): seeds(0.9, 0.904, name="fedavg-mnist"),
        ("CIFAR10", "NonIID_La", "AutoCFL"): seeds(0.6, name="autocfl-labels"),
    }
    spec = table_of(
        published=PUBLISHED,
        incomparable={"MNIST/*/FedAvg": "copied from elsewhere"},
        scaled={"CIFAR10/NonIID_La/*": "15 rounds instead of 100"},
    )
    return spec, Findings(AXES, runs, 3, {("MNIST", "NonIID_La", "IFCA"): "needs 50 % more memory"})
