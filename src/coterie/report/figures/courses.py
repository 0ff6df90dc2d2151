"""Figures over rounds: accuracy and what it cost, cumulative losses, opinions."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from coterie.core.errors import SettingsError, unknown
from coterie.report.figures import style
from coterie.report.figures.kinds import Kind, Plot, kind
from coterie.report.figures.records import NotRecordedError, Runs, clients_of, named, recorded, scaled
from coterie.report.tables import megabytes
from coterie.runs.folder import StoredRun
from coterie.studies.statistics import ROUND_KEYS, smooth

__all__ = ["Curves", "LossVariance", "Losses", "Trust", "curves_figure"]

Record = Mapping[str, Any]


def curves_figure(runs: Mapping[str, Sequence[Sequence[Record]]], key: str = "accuracy_mean") -> Figure:
    """Accuracy over rounds for each method, with the spread over its seeds."""
    return Curves(key).picture(runs, "Accuracy over rounds")


@kind("curves")
class Curves(Plot):
    """A figure of every evaluated round over rounds or over what they cost, with the spread over seeds."""

    key: str = "accuracy_mean"
    """What is shown: a key of rounds.jsonl."""

    over: Literal["rounds", "bytes", "steps", "seconds"] = "rounds"
    """Against what: rounds, all bytes sent while training, local steps of a client on average, or time."""

    band: Literal["seeds", "clients", "none"] = "seeds"
    """The area around a curve: a standard deviation over seeds, or from the worst client to the best."""

    smooth: float = 0.0
    """How much a value counts for a round later, from 0 (no smoothing) to below 1: a mean over the past, weighted by
    time."""

    log: bool = False
    """Whether what it cost is on a logarithmic axis; runs that cost nothing are not there then."""

    def __post_init__(self) -> None:
        if not 0 <= self.smooth < 1:
            raise SettingsError(f"smooth={self.smooth}: from 0 (no smoothing) to below 1")
        if self.key not in ROUND_KEYS:
            raise unknown("key of rounds", self.key, ROUND_KEYS)
        if self.band == "clients" and not {self._end("min"), self._end("max")} <= ROUND_KEYS:
            raise SettingsError(f"band=clients with key={self.key}: its worst and best client are not recorded")

    def content(self, runs: Runs) -> Mapping[str, Sequence[Sequence[Record]]]:
        """The records of rounds by name and seed."""
        courses = {name: [run.rounds for run in some if run.rounds] for name, some in runs.items()}
        courses = {name: some for name, some in courses.items() if any(_has(records, self.key) for records in some)}
        if self.log:
            costs = {name: max(_cost(records[-1], self.over) for records in some) for name, some in courses.items()}
            courses = {name: some for name, some in courses.items() if costs[name] > 0}
        if not courses:
            raise NotRecordedError(f"curves: no run has evaluated rounds with {self.key}")
        return courses

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """One curve for each name."""
        for number, name in enumerate(everywhere):
            if name in content:
                self.curve(axes, name, content[name], number)
        axes.set(xlabel=_OVER[self.over], ylabel=named(self.key))
        if self.log:
            style.logarithmic(axes, "x", _amount if self.over == "bytes" else "{:g}".format)
        elif self.over == "bytes":
            axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: _amount(amount)))
        elif self.over == "rounds":
            style.whole_numbers(axes.xaxis)

    @property
    def heading(self) -> str:
        """What is shown over what."""
        return _title(self.key, self.over)

    def curve(self, axes: Axes, name: str, seeds: Sequence[Sequence[Record]], number: int) -> None:
        """A curve of the mean over seeds, in rounds that all seeds have."""
        common = min(len(records) for records in seeds)
        cut = [records[:common] for records in seeds]
        rounds = np.array([record["round"] for record in cut[0]])
        places = np.mean([[_cost(record, self.over) for record in records] for records in cut], axis=0)
        values = self._values(cut, self.key, rounds)
        mean = values.mean(axis=0)
        every = max(1, len(rounds) // 10)
        looks = style.look(number) | {"markevery": (number % every, every)}
        axes.plot(places, mean, label=name, **looks)
        if self.band == "clients":
            ends = [self._values(cut, self._end(end), rounds).mean(axis=0) for end in ("min", "max")]
        elif self.band == "seeds" and len(seeds) > 1:
            deviation = values.std(axis=0, ddof=1)
            ends = [mean - deviation, mean + deviation]
        else:
            return
        axes.fill_between(places, *ends, color=looks["color"], alpha=0.15, linewidth=0)

    def _end(self, end: str) -> str:
        """The key of the worst or the best client."""
        return self.key.removesuffix("mean") + end

    def _values(self, seeds: Sequence[Sequence[Record]], key: str, rounds: np.ndarray) -> np.ndarray:
        values = [scaled(key, [record.get(key) for record in records]) for records in seeds]
        return np.array(
            [smooth(rounds.tolist(), row.tolist(), self.smooth) for row in values] if self.smooth else values
        )


_OVER = {
    "rounds": "round",
    "bytes": "sent so far, by all clients and to them",
    "steps": "local steps of a client",
    "seconds": "seconds",
}


def _title(key: str, over: str) -> str:
    words = {"rounds": "rounds", "bytes": "traffic", "steps": "local steps", "seconds": "time"}
    what = named(key).removesuffix(", %")
    return f"{what[:1].upper()}{what[1:]} over {words[over]}"


def _amount(amount: float) -> str:
    return megabytes(amount).replace(".0 ", " ")


def _has(records: Sequence[Record], key: str) -> bool:
    return any(record.get(key) is not None for record in records)


def _cost(record: Record, over: str) -> float:
    if over == "bytes":
        return float(sum(record[f"bytes_{direction}"] for direction in ("up", "down", "peer")))
    found = record.get({"rounds": "round", "steps": "steps_mean", "seconds": "seconds"}[over])
    if found is None:
        raise NotRecordedError(f"curves over {over}: the rounds do not tell; draw them over rounds")
    return float(found)


@kind("loss-variance")
class LossVariance(Plot):
    """The variance of clients' cumulative losses over rounds, by which AutoCFL judges how far they are from another."""

    log: bool = False
    """Whether the variance is on a logarithmic axis."""

    def content(self, runs: Runs) -> dict[str, np.ndarray]:
        """Variances by name, [seed, round], of rounds that all seeds have."""
        courses = {}
        for name, some in runs.items():
            found = [lines[-1][1] for run in some if (lines := recorded(run, "loss_variance", "variances"))]
            if found:
                courses[name] = np.array([one[: min(map(len, found))] for one in found], dtype=np.float64)
        if not courses:
            raise NotRecordedError("loss-variance: no run recorded cumulative losses; run AutoCFL with --insights")
        return courses

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """One curve for each name, with the spread over seeds."""
        for number, name in enumerate(everywhere):
            if name in content:
                style.banded(axes, name, np.arange(1, content[name].shape[1] + 1), content[name], number)
        axes.set(xlabel="round", ylabel="variance over clients")
        if self.log:
            style.logarithmic(axes, "y")
        style.whole_numbers(axes.xaxis)

    @property
    def heading(self) -> str:
        """What is shown."""
        return "Variance of cumulative losses"


@kind("losses")
class Losses(Kind):
    """The loss of every client's local training over rounds, in the colours of their true groups."""

    cumulative: bool = False
    """Whether losses are summed up over rounds."""

    seed: int = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SettingsError(f"seed={self.seed}: counted from 0")

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name, with a curve for each client."""
        shown = {name: some[min(self.seed, len(some) - 1)] for name, some in runs.items() if some}
        found = {name: (run, course) for name, run in shown.items() if (course := _losses(run)) is not None}
        if not found:
            raise NotRecordedError("losses: no run recorded losses of local training; run AutoCFL with --insights")
        figure, panels = style.panels(len(found), 6.4 if len(found) == 1 else 4.6, 3.8, most=2)
        with matplotlib.rc_context(style.STYLE):
            for axes, (name, (run, (rounds, losses))) in zip(panels, found.items(), strict=True):
                _, groups = clients_of(run, losses.shape[1])
                values = losses.cumsum(axis=0) if self.cumulative else losses
                for client, group in enumerate(groups):
                    known = sorted({one for one in groups if one is not None})
                    number = known.index(group) if group is not None else 0
                    first = group is not None and groups.index(group) == client
                    looks = style.look(number) | {"marker": "", "label": f"group {group}" if first else "_"}
                    axes.plot(rounds, values[:, client], linewidth=1.2, alpha=0.85, **looks)
                what = "cumulative local loss" if self.cumulative else "local loss"
                heading = title if title and len(found) == 1 else name
                axes.set(xlabel="round", ylabel=what, title=style.fitted(axes, heading))
                style.whole_numbers(axes.xaxis)
                if any(group is not None for group in groups):
                    axes.legend(loc="best")
            if title and len(found) > 1:
                style.headed(figure, title)
        return figure


def _losses(run: StoredRun) -> tuple[np.ndarray, np.ndarray] | None:
    """Rounds, and losses of each, [round, client]; from cumulative ones where these are what is recorded."""
    if lines := recorded(run, "losses"):
        losses = np.array(lines[-1][1], dtype=np.float64)
        return np.arange(1, len(losses) + 1), losses
    if lines := recorded(run, "cumulative_loss"):
        # Nothing is added any more once clients are clustered.
        kept = [lines[0], *(line for before, line in pairwise(lines) if line[1] != before[1])]
        rows = np.array([row for _, row in kept], dtype=np.float64)
        return np.array([number for number, _ in kept]), np.diff(rows, axis=0, prepend=0)
    return None


@kind("trust")
class Trust(Kind):
    """How sure clients of SLFed are of each other over rounds, and how many of them they choose."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """The mean uncertainty on the left and the sizes of lists on the right; the area is from client to client."""
        names = [name for name, some in runs.items() if any(_opinions(run) for run in some)]
        if not names:
            raise NotRecordedError("trust: no run recorded opinions; run SLFed in a simulation with --insights")
        figure, (left, right) = style.figure(9, 3.8, columns=2)
        with matplotlib.rc_context(style.STYLE):
            for number, name in enumerate(names):
                found = [opinions for run in runs[name] if (opinions := _opinions(run))]
                for axes, part in ((left, 1), (right, 2)):
                    values = np.stack([opinions[part][: min(len(o[0]) for o in found)] for opinions in found])
                    rounds = found[0][0][: values.shape[1]]
                    mean = np.nanmean(values, axis=(0, 2))
                    looks = style.look(number) | {"markevery": max(1, len(rounds) // 10)}
                    axes.plot(rounds, mean, label=name, **looks)
                    ends = np.nanmin(values, axis=(0, 2)), np.nanmax(values, axis=(0, 2))
                    axes.fill_between(rounds, *ends, color=looks["color"], alpha=0.15, linewidth=0)
            left.set(xlabel="round", ylabel="mean uncertainty of a client", title="How unsure clients are of others")
            right.set(xlabel="round", ylabel="clients in a list", title="How many they choose")
            for axes in (left, right):
                style.whole_numbers(axes.xaxis)
                axes.set_ylim(bottom=0)
            if title:
                style.headed(figure, title)
            style.legend_below([left, right])
        return figure


def _opinions(run: StoredRun) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rounds, and uncertainties and sizes of lists [round, client]."""
    parts = [recorded(run, name) for name in ("uncertainty", "chosen")]
    if not all(parts):
        return None
    if parts[0][0][0] is None:  # a measure tells of all rounds at once
        uncertainty, chosen = (np.array(lines[0][1], dtype=np.float64) for lines in parts)
        return np.arange(1, len(uncertainty) + 1), uncertainty, chosen
    rounds = np.array([number for number, _ in parts[0]])
    return rounds, *(np.array([row for _, row in lines], dtype=np.float64) for lines in parts)  # type: ignore[return-value]
