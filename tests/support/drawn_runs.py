"""Runs for figures, with stated records instead of training, and ways to look at what is drawn of them."""

import warnings
from pathlib import Path

from coterie.report.figures import kinds, svg
from coterie.runs.folder import StoredRun


def stored(method="fedavg", seed=0, rounds=(), clients=(), groups=(), insights=(), summary=None, path="run", **told):
    settings = {"seed": seed, "net": "mlp", "method": {"name": method, **told}, "split": {"name": "iid", "alpha": 0.5}}
    return StoredRun(Path(path), settings, summary or {}, list(rounds), list(clients), list(groups), list(insights))


def evaluated(*accuracies, every=1, **more):
    """Records of rounds with these mean accuracies."""
    return [
        {
            "round": every * number,
            "accuracy_mean": accuracy,
            "accuracy_min": None if accuracy is None else accuracy - 0.1,
            "accuracy_max": None if accuracy is None else accuracy + 0.2,
            "bytes_up": 10 * number,
            "bytes_down": 20 * number,
            "bytes_peer": 0,
            "seconds": number / 2,
            **more,
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]


def with_accuracies(*accuracies, groups=None):
    return [
        {"client": f"c{n}", "samples": 10 * (n + 1), "accuracy": value, "true_group": groups and groups[n]}
        for n, value in enumerate(accuracies)
    ]


def drawn(kind, runs, title="", tmp_path=None, **told):
    """The figure, after it has been drawn in both forms without a warning."""
    figure = kinds.make(kind, **told).draw(runs, title)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert svg(figure).startswith("<svg")
    return figure


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def images(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
