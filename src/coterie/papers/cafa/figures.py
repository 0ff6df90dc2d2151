"""What CAFA's figures show of its inside: how well clusters of clients are apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from coterie.report.figures import style
from coterie.report.figures.kinds import Plot, kind
from coterie.report.figures.records import NotRecordedError, Runs, latest, recorded
from coterie.runs.folder import StoredRun


@kind("silhouette")
class SilhouetteCurves(Plot):
    """The mean silhouette of clients' labels for every number of clusters, by which CAFA chooses."""

    caption = "By which CAFA chooses the number of clusters: the higher, the better they are apart."
    heading = "Silhouette by number of clusters"

    def content(self, runs: Runs) -> dict[str, list[dict[int, float]]]:
        """Silhouettes by name and seed, of each number of clusters."""
        courses: dict[str, list[dict[int, float]]] = {}
        for name, some in runs.items():
            if curves := [curve for run in some if (curve := _silhouettes(run))]:
                courses[name] = curves
        if not courses:
            raise NotRecordedError("silhouette: no run recorded silhouettes; run CAFA with --insights")
        return courses

    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """One curve for each name, with the spread over seeds, and a ring around its highest point."""
        for place, name in enumerate(everywhere):
            if name in content:
                number = style.number(name, place)
                ks = sorted(set.intersection(*map(set, content[name])))
                values = np.array([[curve[k] for k in ks] for curve in content[name]])
                style.banded(axes, name, ks, values, number)
                best, mean = int(values.mean(axis=0).argmax()), values.mean(axis=0)
                ring: dict[str, Any] = {"markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.5}
                axes.plot(ks[best], mean[best], "o", color=style.look(number)["color"], **ring)
        axes.set(xlabel="clusters", ylabel="mean silhouette")
        style.whole_numbers(axes.xaxis)


def _silhouettes(run: StoredRun) -> dict[int, float]:
    if lines := recorded(run, "silhouettes"):
        return dict(zip(map(int, latest(run, "k")), lines[-1][1], strict=True))
    lines = recorded(run, "silhouette")
    return {int(k): score for k, score in lines[-1][1]} if lines else {}
