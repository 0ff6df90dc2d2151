"""What AutoCFL's figures show of its inside: losses of local training, and how far they are from another."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.report.figures import style
from coterie.report.figures.kinds import Kind, Plot, kind
from coterie.report.figures.records import MANY_CLIENTS, NotRecordedError, Runs, Seed, clients_of, one_of_each, recorded
from coterie.runs.folder import StoredRun


@kind("loss-variance")
class LossVariance(Plot):
    """The variance of clients' cumulative losses over rounds, by which AutoCFL judges how far they are from another."""

    caption = "By which AutoCFL judges how far clients are from another in their training."
    heading = "Variance of cumulative losses"

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
                style.banded(
                    axes, name, np.arange(1, content[name].shape[1] + 1), content[name], style.number(name, number)
                )
        axes.set(xlabel="round", ylabel="variance over clients")
        if self.log:
            style.logarithmic(axes, "y")
        style.whole_numbers(axes.xaxis)


@kind("losses")
class Losses(Kind):
    """The loss of every client's local training over rounds, in the colours of their true groups."""

    cumulative: bool = False
    """Whether losses are summed up over rounds."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name, with a curve for each client."""
        shown = one_of_each(runs, self.seed)
        found = {name: (run, course) for name, run in shown.items() if (course := _losses(run)) is not None}
        if not found:
            raise NotRecordedError("losses: no run recorded losses of local training; run AutoCFL with --insights")
        figure, panels = style.panels(len(found), 6.4 if len(found) == 1 else 4.6, 3.8, most=2)
        with matplotlib.rc_context(style.STYLE):
            for axes, (name, (run, (rounds, losses))) in zip(panels, found.items(), strict=True):
                _, groups = clients_of(run, losses.shape[1])
                values = losses.cumsum(axis=0) if self.cumulative else losses
                known = sorted({one for one in groups if one is not None})
                if len(groups) > MANY_CLIENTS:
                    _bands(axes, rounds, values, groups)
                for client, group in enumerate(groups if len(groups) <= MANY_CLIENTS else ()):
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


def _bands(axes: Axes, rounds: np.ndarray, values: np.ndarray, groups: Sequence[int | None]) -> None:
    """A curve for each group of many clients: the middle one of its clients, and the area of nine tenths of them."""
    for number, group in enumerate(sorted({*groups}, key=lambda one: (one is None, one or 0))):
        own = values[:, [one == group for one in groups]]
        low, middle, high = np.nanpercentile(own, (5, 50, 95), axis=1)
        name = "_" if group is None else f"group {group}"
        style.curve(axes, name, rounds, middle, number, (low, high))


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
