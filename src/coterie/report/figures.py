"""Figures: good in print and on a screen, and safe for colour-blind eyes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

__all__ = ["PALETTE", "clients_figure", "curves_figure", "run_figure", "save", "split_figure", "svg"]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's colours, which colour-blind people can tell apart."""

_MARKERS = "osD^vPX*"
_DASHES = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "coterie",  # the same figure is the same file
    "text.parse_math": False,  # a dollar in the name of a label is a dollar
    "figure.constrained_layout.use": True,
}

Record = Mapping[str, Any]


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file whose ending says the format: png, svg or pdf."""
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, dpi=160)


def svg(figure: Figure) -> str:
    """A figure as SVG text."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def curves_figure(runs: Mapping[str, Sequence[Sequence[Record]]], key: str = "accuracy_mean") -> Figure:
    """Accuracy over rounds for each method, with the spread over its seeds."""
    figure, (axes,) = _figure(7, 4)
    with matplotlib.rc_context(_STYLE):
        for number, (name, seeds) in enumerate(runs.items()):
            _curve(axes, name, seeds, key, number)
        axes.set(xlabel="round", ylabel="mean accuracy of clients, %", title="Accuracy over rounds")
        _legend(figure, axes, len(runs))
    return figure


def _curve(axes: Axes, name: str, seeds: Sequence[Sequence[Record]], key: str, number: int) -> None:
    colour, marker = PALETTE[number % len(PALETTE)], _MARKERS[number // len(PALETTE) % len(_MARKERS)]
    common = min(len(records) for records in seeds)
    rounds = np.array([record["round"] for record in seeds[0][:common]])
    values = np.array([_percents(records[:common], key) for records in seeds])
    mean = values.mean(axis=0)
    every = max(1, len(rounds) // 10)
    # Curves of alike methods lie on each other: different dashes and marked rounds let all of them be seen.
    dashes, first = _DASHES[number % len(_DASHES)], number % every
    axes.plot(
        rounds, mean, color=colour, linestyle=dashes, marker=marker, markevery=(first, every), markersize=4, label=name
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(seeds) > 1:
        deviation = values.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def clients_figure(runs: Mapping[str, Sequence[Record]]) -> Figure:
    """Every client's accuracy under each method, clients in their true groups where these are known."""
    figure, (axes,) = _figure(7, 4)
    first = next(iter(runs.values()))
    order = sorted(range(len(first)), key=lambda row: (first[row]["true_group"] or 0, row))
    with matplotlib.rc_context(_STYLE):
        for number, (name, clients) in enumerate(runs.items()):
            by_name = {client["client"]: client for client in clients}
            values = [_accuracy(by_name.get(first[row]["client"])) for row in order]
            # A second turn through the colours has the markers shifted by one.
            place = number + number // len(PALETTE)
            colour, marker = PALETTE[number % len(PALETTE)], _MARKERS[place % len(_MARKERS)]
            aside = 0.6 * ((number + 0.5) / len(runs) - 0.5)  # equal accuracies stand beside each other
            places = np.arange(len(order)) + aside
            axes.plot(places, values, marker, color=colour, markersize=4.5, alpha=0.85, label=name)
        _mark_groups(axes, [first[row]["true_group"] for row in order])
        _name_clients(axes, [first[row]["client"] for row in order], most=20)
        axes.set(xlabel="client", ylabel="accuracy, %", title="What each client gets")
        _legend(figure, axes, len(runs))
    return figure


def _accuracy(client: Record | None) -> float:
    return np.nan if client is None or client["accuracy"] is None else 100 * client["accuracy"]


def _percents(records: Sequence[Record], key: str) -> list[float]:
    """A share over records as percentages, not-a-number where it was not measured."""
    return [np.nan if record.get(key) is None else 100 * record[key] for record in records]


def _legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Inside the axes while it is short, beside them when it would hide the curves."""
    if entries <= 4:
        axes.legend(loc="best")
    else:
        figure.legend(loc="outside right upper")


def _name_clients(axes: Axes, names: Sequence[str], most: int) -> None:
    """Names below a row of clients: as many as there is room for, upright where they are long."""
    shown = range(0, len(names), -(-len(names) // most))
    labels = [names[place] for place in shown]
    upright = sum(len(label) + 1 for label in labels) > 4 * most
    axes.set_xticks(list(shown), labels, fontsize=8, rotation=90 if upright else 0)


def _mark_groups(axes: Axes, groups: Sequence[int | None]) -> None:
    """Lines between true groups."""
    for place in range(1, len(groups)):
        if groups[place] != groups[place - 1]:
            axes.axvline(place - 0.5, color="#999999", linewidth=0.8, linestyle=":")


def split_figure(
    counts: np.ndarray, labels: Sequence[str], names: Sequence[str], groups: np.ndarray | None = None
) -> Figure:
    """Labels by client: the area of a dot says how many samples of a label a client has."""
    clients, classes = counts.shape
    order = np.argsort(groups, kind="stable") if groups is not None else np.arange(clients)
    figure, (axes,) = _figure(min(14, max(6, 0.32 * clients)), min(12, max(3.2, 0.3 * classes)))
    with matplotlib.rc_context(_STYLE):
        shown = counts[order]
        places, label = np.nonzero(shown)
        size = 180 * shown[places, label] / max(counts.max(), 1)
        colours = [PALETTE[(groups[order[place]] if groups is not None else 0) % len(PALETTE)] for place in places]
        axes.scatter(places, label, s=np.maximum(size, 1), c=colours, alpha=0.85, linewidths=0)
        if groups is not None:
            _mark_groups(axes, [int(groups[client]) for client in order])
        _name_clients(axes, [names[client] for client in order], most=min(40, max(20, clients)))
        some = range(0, classes, max(1, classes // 30))
        axes.set_yticks(list(some), [labels[place] for place in some], fontsize=8)
        axes.set(xlabel="client", ylabel="label", title=f"Labels by client (largest dot: {counts.max()} samples)")
        axes.set_xlim(-0.7, clients - 0.3)
    return figure


def run_figure(result: Any) -> Figure:
    """A run: accuracy over rounds, and every client's accuracy at the end."""
    name = result.summary["method"]
    figure, (curve, clients) = _figure(11, 4, columns=2)
    with matplotlib.rc_context(_STYLE):
        _curve(curve, name, [result.rounds], "accuracy_mean", 0)
        rounds = [record["round"] for record in result.rounds]
        for key, style, label in (
            ("accuracy_worst_tenth", ":", "worst tenth"),
            ("global_accuracy_mean", "--", "global test"),
        ):
            if any(record.get(key) is not None for record in result.rounds):
                curve.plot(rounds, _percents(result.rounds, key), style, color="#666666", label=label)
        curve.set(xlabel="round", ylabel="accuracy, %", title=f"{name}: accuracy over rounds")
        curve.legend(loc="best")
        accuracies = np.array([_accuracy(client) for client in result.clients])
        order = np.argsort(accuracies)
        clients.bar(range(len(order)), accuracies[order], color=PALETTE[0], width=0.85)
        _name_clients(clients, [result.clients[client]["client"] for client in order], most=20)
        clients.set(xlabel="client, worst first", ylabel="accuracy, %", title="What each client gets")
    return figure
