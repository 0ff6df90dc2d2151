"""Figures of what came out: values over an option, over cells, over clients, and what each client gained."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.core.errors import SettingsError
from coterie.report.figures import style
from coterie.report.figures.courses import Curves
from coterie.report.figures.kinds import Kind, Plot, kind
from coterie.report.figures.records import (
    MANY_CLIENTS,
    Gained,
    NotRecordedError,
    Runs,
    gains,
    named,
    scaled,
    setting,
    value,
)
from coterie.report.score import ACCURACY, Score, first_score
from coterie.report.tables import over_seeds
from coterie.runs.folder import StoredRun
from coterie.runs.identity import world_of
from coterie.server.metrics import known_facts
from coterie.studies.statistics import statistic

Record = Mapping[str, Any]


@kind("sweep")
class Sweep(Plot):
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

    def content(self, runs: Runs) -> dict[str, dict[Any, tuple[float, float]]]:
        """Mean and deviation over seeds, by name and by the option's value."""
        curves = {name: self._curve(some, runs) for name, some in runs.items()}
        curves = {name: curve for name, curve in curves.items() if curve}
        if not curves:
            raise NotRecordedError(f"sweep: no run has a setting {self.x!r} and a figure {self.value!r}")
        return curves

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """One curve for each name, through its runs in the order of the option."""
        told = {x for curves in everywhere.values() for curve in curves for x in curve}
        numbers = all(isinstance(x, int | float) for x in told)
        ticks = sorted(map(str, told))
        for number, name in enumerate(everywhere):
            curve = content.get(name, {})
            ordered = sorted(curve, key=lambda x: x if numbers else str(x))
            if ordered:
                places = ordered if numbers else [ticks.index(str(x)) for x in ordered]
                means, deviations = zip(*(curve[x] for x in ordered), strict=True)
                spread: dict[str, Any] = {"yerr": deviations, "capsize": 3} if any(deviations) else {}
                label = name if len(everywhere) > 1 else None
                looks = style.look(style.number(name, number))
                line, *_ = axes.errorbar(places, means, label=label, **spread, **looks)
                style.show_below(axes, line)
        if not numbers:
            axes.set_xticks(range(len(ticks)), ticks)
        elif self.log:
            style.logarithmic(axes, "x")
        axes.set(xlabel=self._option, ylabel=named(self.value))

    @property
    def heading(self) -> str:
        """What is varied."""
        return f"Over {self._option}"

    @property
    def _option(self) -> str:
        return self.x.rpartition(".")[2].replace("_", " ")

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
        return {x: pair for x, values in found.items() if (pair := over_seeds(values))}


@kind("bars")
class Bars(Plot):
    """A figure of runs as bars, with the standard deviation over seeds."""

    value: str = "accuracy_mean"
    """What is shown: a statistic of a run."""

    upright = False

    def __post_init__(self) -> None:
        statistic(self.value)  # refuses what there is not

    def content(self, runs: Runs) -> dict[str, tuple[float, float]]:
        """Mean and deviation over seeds by name."""
        measured = {name: [value(run, self.value, runs) for run in some] for name, some in runs.items()}
        found = {name: pair for name, values in measured.items() if (pair := over_seeds(values))}
        if not found:
            raise NotRecordedError(f"bars: no run has a figure {self.value!r}")
        return found

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """A bar for each name, from top to bottom."""
        _rows(axes, everywhere)
        rows = [row for row, name in enumerate(everywhere) if name in content]
        means, deviations = scaled(self.value, [*content.values()]).T
        error: dict[str, Any] = {"xerr": deviations, "capsize": 3} if deviations.any() else {}
        colours = [style.look(style.number(name, 0))["color"] for name in everywhere if name in content]
        axes.barh(rows, means, height=0.65, color=colours, **error)
        end = float((means + deviations).max())
        for place, mean, deviation in zip(rows, means, deviations, strict=True):
            told: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
            axes.annotate(f"{mean:.4g}", (mean + deviation, place), (5, 0), **told)
        axes.set_xlim(right=1.12 * end if end > 0 else None)
        axes.set(xlabel=named(self.value))

    @property
    def heading(self) -> str:
        """What is shown."""
        words = named(self.value).removesuffix(", %")
        return words[:1].upper() + words[1:]

    def height(self, everywhere: Mapping[str, Sequence[Any]], small: bool) -> float:
        """By the number of rows."""
        return _height(everywhere, small)


@kind("spread")
class Spread(Plot):
    """The worst client, the mean and the best client of each cell, at the end."""

    heading = "Over clients"
    upright = False

    of: tuple[str, ...] = ("accuracy", "global_accuracy")
    """Which scores: on clients' own test data (`accuracy`, or another metric), on the global test set
    (`global_accuracy`), or both of one metric."""

    def __post_init__(self) -> None:
        for one in self.of:
            if one.removeprefix(_GLOBAL) not in known_facts():
                metrics = ", ".join(known_facts())
                raise SettingsError(f"of={one!r}: a metric, or {_GLOBAL}METRIC; metrics are {metrics}")
        if len({one.removeprefix(_GLOBAL) for one in self.of}) != 1:
            raise SettingsError(f"of={', '.join(self.of)}: scores by one metric; draw a figure for each")

    def content(self, runs: Runs) -> dict[str, dict[str, list[float]]]:
        """The least, the mean and the most, shares in per cent, means over seeds, by name and score."""
        found: dict[str, dict[str, list[float]]] = {}
        for name, some in runs.items():
            for one in self.of:
                keys = [f"{one}_{end}" for end in ("min", "mean", "max")]
                ends = [pair[0] for key in keys if (pair := over_seeds([value(run, key) for run in some]))]
                if len(ends) == len(keys):
                    found.setdefault(name, {})[one] = scaled(one, ends).tolist()
        if not found:
            raise NotRecordedError(f"spread: no run has figures of {' or '.join(self.of)} over clients")
        return found

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """A line from the worst to the best with a dot at the mean, for each name."""
        _rows(axes, everywhere)
        shown = self._shown(everywhere)
        for number, one in enumerate(shown):
            rows = [row for row, name in enumerate(everywhere) if one in content.get(name, {})]
            if rows:
                low, mean, high = np.array([scores[one] for scores in content.values() if one in scores]).T
                places = np.array(rows) + 0.3 * (number - (len(shown) - 1) / 2)
                colours = [style.look(style.number(name, 0))["color"] for name in content if one in content[name]]
                axes.hlines(places, low, high, color=colours, linewidth=2, alpha=0.6)
                for end in (low, high):
                    axes.scatter(end, places, marker="|", s=80, color=colours)
                axes.scatter(mean, places, s=36, marker=("o", "D")[number], color=colours, zorder=3)
                if len(shown) > 1:
                    label = "global test set" if one.startswith(_GLOBAL) else "own test data"
                    axes.plot([], [], "oD"[number], color="#666666", label=label)
        score = Score(self.of[0].removeprefix(_GLOBAL))
        ends = "from the worst client to the best" if score.sign > 0 else "from the best client to the worst"
        axes.set(xlabel=f"{score.word} {ends}{score.unit}")

    def height(self, everywhere: Mapping[str, Sequence[Any]], small: bool) -> float:
        """By the number of rows, and of lines in each."""
        return _height(everywhere, small, each=0.26 + 0.11 * len(self._shown(everywhere)))

    def add_legend(self, axes: Axes) -> None:
        """Below all, because lines are everywhere."""
        style.legend_below([axes])

    def _shown(self, everywhere: Mapping[str, Sequence[Any]]) -> list[str]:
        """The scores that some run has."""
        return [one for one in self.of if any(one in scores for parts in everywhere.values() for scores in parts)]


_GLOBAL = "global_"
"""What the keys of scores on the global test set begin with."""


def _height(everywhere: Mapping[str, Any], small: bool, each: float = 0.36) -> float:
    return 0.45 + 0.6 * each * len(everywhere) if small else 1.4 + each * len(everywhere)


def _rows(axes: Axes, names: Mapping[str, Any]) -> None:
    """A row for each name, from top to bottom."""
    axes.set_yticks(range(len(names)), [style.wrapped(name, 34) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


@kind("gain")
class Gain(Kind):
    """What each client gained over other methods, such as training alone, by a score such as accuracy."""

    over: tuple[str, ...] = ("local", "fedavg")
    """The methods it is compared with, by name; those that are not among the runs are left out."""

    key: str = "accuracy"
    """What is compared: a key of clients.jsonl."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each of the methods, and each variant of one, that is compared with; clients in true groups."""
        score = Score(self.key)
        found = {name: gained for method in self.over for name, gained in gained_over(runs, method, score).items()}
        if not found:
            raise NotRecordedError(f"gain: no runs in the same world as one of {' or '.join(self.over)}")
        figure, panels = style.panels(len(found), 7.4, 3.4, most=1)
        order = _clients_in_groups(runs)
        many = len(order) > MANY_CLIENTS
        with matplotlib.rc_context(style.STYLE):
            labels = list(dict.fromkeys(label for others in found.values() for label in others))
            for axes, (reference, others) in zip(panels, found.items(), strict=True):
                axes.axhline(0, color="#444444", linewidth=1)
                for label, gained in others.items():
                    if many:
                        values = [score.factor * one.value for one in gained.values()]
                        style.quantiles(axes, label, values, style.number(label, labels.index(label)))
                    else:
                        self._dots(axes, label, [gained.get(client) for client, _ in order], labels)
                if not many:
                    style.mark_groups(axes, [group for _, group in order])
                    style.name_clients(axes, [client for client, _ in order], most=20)
                    axes.set_xlim(-0.7, len(order) - 0.3)
                heading = f"Gain over {reference}"
                heading = f"{title}: {heading[0].lower()}{heading[1:]}" if title else heading
                axes.set(ylabel=score.points, title=style.fitted(axes, heading))
            panels[-1].set_xlabel(style.SORTED if many else "client")
            shown = style.handles(panels)
            style.legend(panels[0], {label: shown[label] for label in labels}, most=0)
        return figure

    def _dots(self, axes: Axes, label: str, gained: Sequence[Gained | None], labels: Sequence[str]) -> None:
        """A dot for each client, hollow if what it gained may be chance, and lines for the intervals."""
        factor, number = Score(self.key).factor, labels.index(label)
        aside = 0.6 * ((number + 0.5) / len(labels) - 0.5)
        places = np.arange(len(gained)) + aside
        values = np.array([np.nan if one is None else factor * one.value for one in gained])
        looks = {"markersize": 4.5, **style.points(style.number(label, number))}
        known = [(place, *one.ends) for place, one in zip(places, gained, strict=True) if one and one.ends]
        if known and len(gained) * len(labels) <= _MANY_LINES:
            at, low, high = np.array(known).T
            axes.vlines(at, factor * low, factor * high, color=looks["color"], linewidth=0.8, alpha=0.4)
        axes.plot(places, values, label=label, **looks)
        chance = np.array([one is not None and one.ends is not None and not one.clear for one in gained])
        axes.plot(places[chance], values[chance], **looks, markerfacecolor="white")


@kind("ranked")
class Ranked(Kind):
    """What each client gained with one method over another, from the client that gained least, with intervals."""

    method: str = ""
    """The runs that are shown, by name; by default those whose clients gained most on average."""

    over: str = "local"
    """The method it is compared with, by name."""

    key: str = "accuracy"
    """What is compared: a key of clients.jsonl."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A dot for each client, or of many clients a curve; what is no more than chance is hollow."""
        score = Score(self.key)
        name, gained = self._gained(runs, score)
        values = score.factor * np.array([one.value for one in gained.values()])
        order = np.argsort(score.sign * values, kind="stable")
        made, (axes,) = style.figure(7.4, 3.4)
        with matplotlib.rc_context(style.STYLE):
            axes.axhline(0, color="#444444", linewidth=1)
            if len(values) > MANY_CLIENTS:
                style.quantiles(axes, name, values, 0)
            else:
                self._dots(axes, [[*gained.items()][place] for place in order], score)
            axes.set(xlabel=style.SORTED if len(values) > MANY_CLIENTS else "client", ylabel=score.points)
            style.entitle(axes, title or f"{name}: what each client gains over {self.over}")
        return made

    def _gained(self, runs: Runs, score: Score) -> tuple[str, dict[str, Gained]]:
        """The runs that are shown, by name, and the gain of each of their clients."""
        others = gained_over(runs, self.over, score).values()
        wanted = [item for found in others for item in found.items() if self.method in ("", item[0])]
        if not wanted:
            raise NotRecordedError(f"ranked: no runs in the same world as one of {self.over}")
        return max(wanted, key=lambda item: score.sign * np.mean([one.value for one in item[1].values()]))

    def _dots(self, axes: Axes, gained: Sequence[tuple[str, Gained]], score: Score) -> None:
        """Gains and losses that are more than chance in colours of their own, with their intervals."""
        for label, color, shown in (
            ("gains", style.PALETTE[0], lambda one: one.clear and score.sign * one.value > 0),
            ("loses", style.PALETTE[5], lambda one: one.clear and score.sign * one.value < 0),
            ("may be chance", style.PALETTE[6], lambda one: not one.clear),
        ):
            places = [place for place, (_, one) in enumerate(gained) if shown(one)]
            some = [gained[place][1] for place in places]
            bounded = [(place, *one.ends) for place, one in zip(places, some, strict=True) if one.ends]
            if bounded:
                at, low, high = np.array(bounded).T
                axes.vlines(at, score.factor * low, score.factor * high, color=color, linewidth=1.2, alpha=0.5)
            if some:
                values = [score.factor * one.value for one in some]
                inside = "white" if label == "may be chance" else color
                axes.plot(places, values, "o", markersize=5, label=label, color=color, markerfacecolor=inside)
        style.name_clients(axes, [name for name, _ in gained], most=20)
        axes.set_xlim(-0.7, len(gained) - 0.3)
        axes.legend(loc="upper left" if score.sign > 0 else "upper right")  # where sorted clients leave room


_MANY_LINES = 120
"""Intervals that a panel has room for; of more clients and methods only the dots are drawn."""


def gained_over(runs: Runs, method: str, score: Score = ACCURACY) -> dict[str, dict[str, dict[str, Gained]]]:
    """What each client gained over a method, by what that is called, and by the other runs' names.

    Names in whose world the method was not run are left out.
    """
    called = [name for name, some in runs.items() if _is(method, name, some)]
    others = {name: some for name, some in runs.items() if name not in called}
    found = {
        reference: {name: gained for name, some in others.items() if (gained := gains(some, before, score))}
        for reference, before in _references(method, {name: runs[name] for name in called}).items()
    }
    return {reference: gained for reference, gained in found.items() if gained}


def _is(method: str, name: str, some: Sequence[StoredRun]) -> bool:
    """Whether runs are of a method, by what they are called or by its own name."""
    return method in (name, *(run.settings.get("method", {}).get("name") for run in some[:1]))


def _references(method: str, variants: Runs) -> Runs:
    """A method's runs by name, or all as one where no world has two variants: then it is clear which is meant."""
    worlds = [{world_of(run.settings) for run in some} for some in variants.values()]
    if any(one & two for one, two in combinations(worlds, 2)) or len(variants) < 2:
        return variants
    return {method: [run for some in variants.values() for run in some]}


def _clients_in_groups(runs: Runs) -> list[tuple[str, int | None]]:
    """All clients of the runs with their true groups, in the order of these."""
    found: dict[str, int | None] = {}
    for run in (run for some in runs.values() for run in some):
        for client in run.clients:
            found.setdefault(client["client"], client.get("true_group"))
    return sorted(found.items(), key=lambda pair: (pair[1] is None, pair[1] or 0))


# Of results at hand


def clients_figure(runs: Mapping[str, Sequence[Record]], score: Score = ACCURACY) -> Figure:
    """Every client's score under each name: clients in their true groups where these are known, or a distribution."""
    figure, (axes,) = style.figure(7, 4)
    first = next(iter(runs.values()))
    many = max(map(len, runs.values())) > MANY_CLIENTS
    order = sorted(range(len(first)), key=lambda row: (first[row]["true_group"] or 0, row))
    with matplotlib.rc_context(style.STYLE):
        for number, (name, clients) in enumerate(runs.items()):
            values = {client["client"]: _scaled(client, score) for client in clients}
            if many:
                style.quantiles(axes, name, [*values.values()], style.number(name, number))
                continue
            shown = [values.get(first[row]["client"], np.nan) for row in order]
            aside = 0.6 * ((number + 0.5) / len(runs) - 0.5)  # equal scores stand beside each other
            places = np.arange(len(order)) + aside
            looks = style.points(style.number(name, number))
            axes.plot(places, shown, markersize=4.5, alpha=0.85, label=name, **looks)
        if not many:
            style.mark_groups(axes, [first[row]["true_group"] for row in order])
            style.name_clients(axes, [first[row]["client"] for row in order], most=20)
        axes.set(xlabel=style.SORTED if many else "client", ylabel=score.word + score.unit)
        axes.set_title("What each client gets")
        style.legend(axes)
    return figure


def _scaled(client: Record, score: Score) -> float:
    """A client's score as it is shown, not-a-number if it has none."""
    value = client.get(score.key)
    return np.nan if value is None else score.factor * value


def run_figure(result: Any) -> Figure:
    """A run: its first metric over rounds, and every client's at the end."""
    name, score = result.summary["method"], first_score([result.summary])
    figure, (curve, clients) = style.figure(11, 4, columns=2)
    with matplotlib.rc_context(style.STYLE):
        Curves(key=f"{score.key}_mean").curve(curve, name, [result.rounds], 0)
        rounds = [record["round"] for record in result.rounds]
        for key, dashes, label in (
            (f"{score.key}_worst_tenth", ":", "worst tenth"),
            (f"global_{score.key}_mean", "--", "global test"),
        ):
            if any(record.get(key) is not None for record in result.rounds):
                values = scaled(key, [record.get(key) for record in result.rounds])
                curve.plot(rounds, values, dashes, color="#666666", label=label)
        style.whole_numbers(curve.xaxis)
        curve.set(xlabel="round", ylabel=score.word + score.unit, title=f"{name}: {score.word} over rounds")
        curve.legend(loc="best")
        values = np.array([_scaled(client, score) for client in result.clients])
        if len(values) > MANY_CLIENTS:
            style.quantiles(clients, name, values, 0)
            below = style.SORTED
        else:
            order = np.argsort(score.sign * values)
            clients.bar(range(len(order)), values[order], color=style.PALETTE[0], width=0.85)
            style.name_clients(clients, [result.clients[client]["client"] for client in order], most=20)
            below = "client, worst first"
        clients.set(xlabel=below, ylabel=score.word + score.unit, title="What each client gets")
    return figure
