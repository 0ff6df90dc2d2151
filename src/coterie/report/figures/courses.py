"""Figures over rounds: accuracy and what it cost."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from coterie.core.errors import SettingsError, unknown
from coterie.core.fields import within
from coterie.report.figures import style
from coterie.report.figures.kinds import Plot, kind
from coterie.report.figures.records import NotRecordedError, Runs, named, scaled
from coterie.report.tables import megabytes
from coterie.studies.statistics import figure_of, round_keys, smooth

Record = Mapping[str, Any]


@kind("curves")
class Curves(Plot):
    """A figure of every evaluated round over rounds or over what they cost, with the spread over seeds."""

    key: str = "accuracy_mean"
    """What is shown: a key of rounds.jsonl."""

    over: Literal["rounds", "bytes", "steps", "seconds"] = "rounds"
    """Against what: rounds, all bytes sent while training, local steps of a client on average, or time."""

    band: Literal["seeds", "clients", "none"] = "seeds"
    """The area around a curve: a standard deviation over seeds, or from the worst client to the best."""

    smooth: Annotated[float, within("[0, 1)", "from 0 (no smoothing) to below 1")] = 0.0
    """How much a value counts for a round later, from 0 (no smoothing) to below 1: a mean over the past, weighted by
    time."""

    log: bool = False
    """Whether what it cost is on a logarithmic axis; runs that cost nothing are not there then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key not in round_keys():
            raise unknown("key of rounds", self.key, round_keys())
        if self.band == "clients" and not {self._end("min"), self._end("max")} <= round_keys():
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
                self.curve(axes, name, content[name], style.number(name, number))
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
        ends = style.deviations(values) if self.band == "seeds" else None
        if self.band == "clients":
            low, high = (self._values(cut, self._end(end), rounds).mean(axis=0) for end in ("min", "max"))
            ends = low, high
        style.curve(axes, name, places, values.mean(axis=0), number, ends)

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
    found = figure_of(record, {"rounds": "round", "steps": "steps_mean"}.get(over, over))
    if found is None:
        raise NotRecordedError(f"curves over {over}: the rounds do not tell; draw them over rounds")
    return found
