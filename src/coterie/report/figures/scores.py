"""Figures of what came out: values over an option, over cells, over clients, and what each client gained."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from coterie.errors import SettingsError
from coterie.lab.folder import StoredRun
from coterie.lab.statistics import statistic
from coterie.report.figures import style
from coterie.report.figures.courses import Curves
from coterie.report.figures.kinds import Kind, kind
from coterie.report.figures.records import (
    NotRecordedError,
    Runs,
    gains,
    is_share,
    named,
    over_seeds,
    scaled,
    setting,
    value,
)

__all__ = ["Bars", "Gain", "Spread", "Sweep", "clients_figure", "gained_over", "run_figure"]

Record = Mapping[str, Any]


@kind("sweep")
class Sweep(Kind):
    """A figure of runs over an option that was varied, such as a threshold, with the spread over seeds."""

    x: str
    """The option, by its name on the command line (`threshold`), or with its part (`split.alpha`)."""

    value: str = "accuracy_mean"
    """What is shown: a statistic of a run."""

    over: str = ""
    """The axis of the study that varies the option: its labels are not in the names of the curves."""

    log: bool = False
    """Whether the option is on a logarithmic axis."""

    def __post_init__(self) -> None:
        statistic(self.value)  # refuses what there is not

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """One curve for each name, through its runs in the order of the option."""
        curves = {name: self._curve(some, runs) for name, some in runs.items()}
        curves = {name: curve for name, curve in curves.items() if curve}
        if not curves:
            raise NotRecordedError(f"sweep: no run has a setting {self.x!r} and a figure {self.value!r}")
        numbers = all(isinstance(x, int | float) for curve in curves.values() for x in curve)
        ticks = sorted({str(x) for curve in curves.values() for x in curve})
        figure, (axes,) = style.figure(7, 4)
        with matplotlib.rc_context(style.STYLE):
            for number, (name, curve) in enumerate(curves.items()):
                ordered = sorted(curve, key=lambda x: x if numbers else str(x))
                places = ordered if numbers else [ticks.index(str(x)) for x in ordered]
                means, deviations = zip(*(curve[x] for x in ordered), strict=True)
                spread: dict[str, Any] = {"yerr": deviations, "capsize": 3} if any(deviations) else {}
                axes.errorbar(places, means, markersize=5, label=name, **spread, **style.look(number))
            if not numbers:
                axes.set_xticks(range(len(ticks)), ticks)
            elif self.log:
                style.logarithmic(axes, "x")
            option = self.x.rpartition(".")[2].replace("_", " ")
            axes.set(
                xlabel=option,
                ylabel=named(self.value),
                title=style.fitted(axes, title or f"Over {option}", style.is_beside(len(curves))),
            )
            if len(curves) > 1:
                style.legend(figure, axes, len(curves))
        return figure

    @property
    def varied(self) -> str:
        """The axis that varies the option."""
        return self.over

    def _curve(self, some: Sequence[StoredRun], beside: Runs) -> dict[Any, tuple[float, float]]:
        """Mean and deviation over seeds by the option's value."""
        found: dict[Any, list[float]] = {}
        for run in some:
            x, y = setting(run, self.x), value(run, self.value, beside)
            if x is not None and y is not None:
                found.setdefault(x, []).append(float(scaled(self.value, y)))
        return {x: over_seeds(values) for x, values in found.items()}


@kind("bars")
class Bars(Kind):
    """A figure of runs as bars, with the standard deviation over seeds."""

    value: str = "accuracy_mean"
    """What is shown: a statistic of a run."""

    def __post_init__(self) -> None:
        statistic(self.value)  # refuses what there is not

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A bar for each name, from top to bottom."""
        found = {name: over_seeds([value(run, self.value, runs) for run in some]) for name, some in runs.items()}
        found = {name: pair for name, pair in found.items() if np.isfinite(pair[0])}
        if not found:
            raise NotRecordedError(f"bars: no run has a figure {self.value!r}")
        means, deviations = (scaled(self.value, column) for column in zip(*found.values(), strict=True))
        figure, (axes,) = _rows(found)
        with matplotlib.rc_context(style.STYLE):
            error: dict[str, Any] = {"xerr": deviations, "capsize": 3} if deviations.any() else {}
            axes.barh(range(len(found)), means, height=0.65, color=style.PALETTE[0], **error)
            end = float((means + deviations).max())
            for place, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
                axes.annotate(
                    f"{mean:.4g}",
                    (mean + deviation, place),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            axes.set_xlim(right=1.12 * end if end > 0 else None)
            axes.set(xlabel=named(self.value), title=style.fitted(axes, title or _headline(self.value)))
        return figure


@kind("spread")
class Spread(Kind):
    """The worst client, the mean and the best client of each cell, at the end."""

    of: tuple[str, ...] = ("accuracy", "global_accuracy")
    """Which scores: on clients' own test data (`accuracy`), on the global test set (`global_accuracy`), or both."""

    def __post_init__(self) -> None:
        for one in self.of:
            if one not in _SPREAD:
                raise SettingsError(f"of={one!r}: {' or '.join(_SPREAD)}")

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A line from the worst to the best with a dot at the mean, for each name; means over seeds."""
        found: dict[str, dict[str, list[float]]] = {}
        for name, some in runs.items():
            for one in self.of:
                keys = [f"{one}_{end}" for end in ("min", "mean", "max")]
                ends = [over_seeds([value(run, key) for run in some])[0] for key in keys]
                if np.isfinite(ends).all():
                    found.setdefault(name, {})[one] = [float(end) for end in 100 * np.array(ends)]
        if not found:
            raise NotRecordedError(f"spread: no run has figures of {' or '.join(self.of)} over clients")
        shown = [one for one in self.of if any(one in scores for scores in found.values())]
        figure, (axes,) = _rows(found, each=0.26 + 0.11 * len(shown))
        with matplotlib.rc_context(style.STYLE):
            for number, one in enumerate(shown):
                rows = [row for row, scores in enumerate(found.values()) if one in scores]
                low, mean, high = np.array([scores[one] for scores in found.values() if one in scores]).T
                places = np.array(rows) + 0.3 * (number - (len(shown) - 1) / 2)
                axes.hlines(places, low, high, color=style.PALETTE[number], linewidth=2, alpha=0.6)
                axes.plot(low, places, "|", high, places, "|", color=style.PALETTE[number], markersize=9)
                axes.plot(mean, places, markersize=6, label=_SPREAD[one], **style.points(number))
            axes.set(
                xlabel="accuracy from the worst client to the best, %",
                title=style.fitted(axes, title or "Over clients"),
            )
            if len(shown) > 1:
                figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=9)
        return figure


_SPREAD = {"accuracy": "own test data", "global_accuracy": "global test set"}


def _rows(found: Mapping[str, Any], each: float = 0.36) -> tuple[Figure, list[Axes]]:
    """Axes with a row for each name, from top to bottom."""
    figure, (axes,) = style.figure(7, 1.4 + each * len(found))
    with matplotlib.rc_context(style.STYLE):
        axes.set_yticks(range(len(found)), [style.wrapped(name, 34) for name in found])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
    return figure, [axes]


def _headline(key: str) -> str:
    words = named(key).removesuffix(", %")
    return words[:1].upper() + words[1:]


@kind("gain")
class Gain(Kind):
    """What each client gained over other methods, such as training alone, in points of accuracy."""

    over: tuple[str, ...] = ("local", "fedavg")
    """The methods it is compared with, by name; those that are not among the runs are left out."""

    key: str = "accuracy"
    """What is compared: a key of clients.jsonl."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each of the methods that is compared with; clients in their true groups."""
        found = {method: others for method in self.over if (others := gained_over(runs, method, self.key))}
        if not found:
            raise NotRecordedError(f"gain: no runs in the same world as one of {' or '.join(self.over)}")
        figure, panels = style.panels(len(found), 7.4, 3.4, most=1)
        order = _clients_in_groups(runs)
        factor, unit = (100, "points") if is_share(self.key) else (1, self.key)
        with matplotlib.rc_context(style.STYLE):
            labels = list(dict.fromkeys(label for others in found.values() for label in others))
            for axes, (reference, others) in zip(panels, found.items(), strict=True):
                axes.axhline(0, color="#444444", linewidth=1)
                for label, gained in others.items():
                    aside = 0.6 * ((labels.index(label) + 0.5) / len(labels) - 0.5)
                    values = [factor * gained.get(client, np.nan) for client, _ in order]
                    dots = {"markersize": 4.5, "alpha": 0.85, **style.points(labels.index(label))}
                    axes.plot(np.arange(len(order)) + aside, values, label=label, **dots)
                style.mark_groups(axes, [group for _, group in order])
                style.name_clients(axes, [client for client, _ in order], most=20)
                axes.set_xlim(-0.7, len(order) - 0.3)
                heading = f"Gain over {reference}"
                heading = f"{title}: {heading[0].lower()}{heading[1:]}" if title else heading
                axes.set(ylabel=unit, title=style.fitted(axes, heading, beside=True))
            panels[-1].set_xlabel("client")
            handles: dict[str, Any] = {}
            for axes in panels:
                handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            shown = [handles[label] for label in labels]
            figure.legend(shown, labels, loc="outside right upper", fontsize=9)
        return figure


def gained_over(runs: Runs, method: str, key: str = "accuracy") -> dict[str, dict[str, float]]:
    """What each client gained over a method, by the other runs' names; without those in whose world it was not run."""
    names, others = references(runs, method)
    found = {label: gains(some, others, key) for label, some in runs.items() if label not in names}
    return {label: gained for label, gained in found.items() if gained}


def references(runs: Runs, method: str) -> tuple[list[str], list[StoredRun]]:
    """The names that a method runs under, by its own name or by what its runs are called, and these runs."""
    names = [
        name
        for name, some in runs.items()
        if method in (name, *(run.settings.get("method", {}).get("name") for run in some[:1]))
    ]
    return names, [run for name in names for run in runs[name]]


def _clients_in_groups(runs: Runs) -> list[tuple[str, int | None]]:
    """All clients of the runs with their true groups, in the order of these."""
    found: dict[str, int | None] = {}
    for run in (run for some in runs.values() for run in some):
        for client in run.clients:
            found.setdefault(client["client"], client.get("true_group"))
    return sorted(found.items(), key=lambda pair: (pair[1] is None, pair[1] or 0))


# Of results at hand


def clients_figure(runs: Mapping[str, Sequence[Record]]) -> Figure:
    """Every client's accuracy under each method, clients in their true groups where these are known."""
    figure, (axes,) = style.figure(7, 4)
    first = next(iter(runs.values()))
    order = sorted(range(len(first)), key=lambda row: (first[row]["true_group"] or 0, row))
    with matplotlib.rc_context(style.STYLE):
        for number, (name, clients) in enumerate(runs.items()):
            by_name = {client["client"]: client for client in clients}
            values = [_accuracy(by_name.get(first[row]["client"])) for row in order]
            aside = 0.6 * ((number + 0.5) / len(runs) - 0.5)  # equal accuracies stand beside each other
            places = np.arange(len(order)) + aside
            axes.plot(places, values, markersize=4.5, alpha=0.85, label=name, **style.points(number))
        style.mark_groups(axes, [first[row]["true_group"] for row in order])
        style.name_clients(axes, [first[row]["client"] for row in order], most=20)
        axes.set(xlabel="client", ylabel="accuracy, %", title="What each client gets")
        style.legend(figure, axes, len(runs))
    return figure


def _accuracy(client: Record | None) -> float:
    return np.nan if client is None or client["accuracy"] is None else 100 * client["accuracy"]


def run_figure(result: Any) -> Figure:
    """A run: accuracy over rounds, and every client's accuracy at the end."""
    name = result.summary["method"]
    figure, (curve, clients) = style.figure(11, 4, columns=2)
    with matplotlib.rc_context(style.STYLE):
        Curves().curve(curve, name, [result.rounds], 0)
        rounds = [record["round"] for record in result.rounds]
        for key, dashes, label in (
            ("accuracy_worst_tenth", ":", "worst tenth"),
            ("global_accuracy_mean", "--", "global test"),
        ):
            if any(record.get(key) is not None for record in result.rounds):
                values = scaled(key, [record.get(key) for record in result.rounds])
                curve.plot(rounds, values, dashes, color="#666666", label=label)
        curve.xaxis.set_major_locator(MaxNLocator(integer=True))
        curve.set(xlabel="round", ylabel="accuracy, %", title=f"{name}: accuracy over rounds")
        curve.legend(loc="best")
        accuracies = np.array([_accuracy(client) for client in result.clients])
        order = np.argsort(accuracies)
        clients.bar(range(len(order)), accuracies[order], color=style.PALETTE[0], width=0.85)
        style.name_clients(clients, [result.clients[client]["client"] for client in order], most=20)
        clients.set(xlabel="client, worst first", ylabel="accuracy, %", title="What each client gets")
    return figure
