"""Many small panels in one figure that is as wide as a page, with one legend for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.report.figures import style

_WIDTH = 7.0
"""Of a page of A4 between its margins, in inches."""
_NARROWEST = 1.5
"""Of a panel: more columns than fit make the figure wider."""
_ENOUGH = 0.4
"""Panels have a common scale if each of them needs at least this part of it."""
_TICKS = 7.5
"""The size of numbers on axes, in points."""
_LINE = 0.16
"""Of text that stands above or below all panels, in inches."""
_LETTERS = 14
"""That an inch has room for."""
_GAP = 0.06
"""Between what stands below each other, in inches."""


class Grid:
    """Empty panels by their labels: one label each, in reading order, or two, those of the row and the column."""

    def __init__(self, places: Sequence[tuple[str, ...]], height: float | None, upright: bool) -> None:
        """With panels of this height in inches, or of a good one; values go up if they are `upright`, else right."""
        self._upright = upright
        self._crossed = len(places[0]) == 2
        rows, columns = (
            [*dict.fromkeys(labels)] for labels in (zip(*places, strict=True) if self._crossed else ((), ()))
        )
        count = len(columns) if self._crossed else _columns(len(places))
        self._where = {
            place: (rows.index(place[0]), columns.index(place[1])) if self._crossed else divmod(number, count)
            for number, place in enumerate(places)
        }
        self._rows = 1 + max(row for row, _ in self._where.values())
        width = max(_WIDTH, _NARROWEST * count + 0.6)
        self._height = height or min(2.2, max(1.5, 0.74 * width / count))
        self.figure, axes = style.figure(width, self._height * self._rows, count, self._rows, small=True)
        self.panels = {place: axes[row * count + column] for place, (row, column) in self._where.items()}
        for unused in axes[len(places) :]:
            unused.remove()
        for panel in self.panels.values():
            panel.tick_params(labelsize=_TICKS, length=2.5, width=0.6, grid_linewidth=0.6)
        first, *others = self.panels.values()
        for panel in others:
            (panel.sharex if upright else panel.sharey)(first)
        self._drawn = dict.fromkeys(self.panels, True)

    def leave_empty(self, place: tuple[str, ...], why: str) -> None:
        """Say in a panel why there is nothing in it."""
        self._drawn[place] = False
        panel = self.panels[place]
        panel.text(0.5, 0.5, why, transform=panel.transAxes, ha="center", va="center", color="#767676", size="large")
        panel.grid(visible=False)

    def finish(self, title: str, order: Iterable[str]) -> None:
        """Add what panels have in common: scales, labels, the title, and a legend in this order."""
        drawn = [panel for place, panel in self.panels.items() if self._drawn[place]]
        below, beside = drawn[0].get_xlabel(), drawn[0].get_ylabel()
        for panel in drawn:
            panel.set(xlabel="", ylabel="")
        self._label_panels()
        self._share_scales()
        found = style.handles(drawn)
        found = {label: found[label] for label in [*(name for name in order if name in found), *found]}
        legend = _legend(self.figure, found) if found else 0.0
        lines = style.headed(self.figure, title, size=10) if title else 0
        foot = legend + _LINE * bool(below)
        height = self._height * self._rows + foot + _LINE * lines + _GAP
        self.figure.set_figheight(height)
        # What stands below is no part of the layout, which would put the legend over the label of the axes.
        gaps = {"w_pad": 0.04, "h_pad": 0.04, "hspace": 0.03, "wspace": 0.02}
        self.figure.set_layout_engine("constrained", rect=(0, foot / height, 1, 1 - foot / height), **gaps)
        if below:
            self.figure.supxlabel(below, y=legend / height, va="bottom", size="medium").set_in_layout(False)
        if beside:
            text = style.wrapped(beside, int(_LETTERS * self._height * self._rows))
            self.figure.supylabel(text, y=(1 + foot / height) / 2, size="medium")

    def _label_panels(self) -> None:
        """Headings: above every panel, or above columns and beside rows."""
        for place, panel in self.panels.items():
            row, column = self._where[place]
            if not self._crossed or row == 0:
                panel.set_title(style.fitted(panel, place[-1]))
            if self._crossed and column == 0:
                text = style.wrapped(place[0], int(0.75 * _LETTERS * self._height))
                panel.set_ylabel(text, weight="bold", size=matplotlib.rcParams["axes.titlesize"])
        self.figure.align_ylabels()

    def _share_scales(self) -> None:
        """One scale of values for a row, a column or all panels, where they fit, and numbers at the outside only."""
        values: Literal["x", "y"] = "y" if self._upright else "x"
        self._number(self.panels, "x" if self._upright else "y")
        groups: dict[int, dict[tuple[str, ...], Axes]] = {}
        for place, panel in self.panels.items():
            line = self._where[place][0 if self._upright else 1] if self._crossed else 0
            groups.setdefault(line, {})[place] = panel
        for group in groups.values():
            limits = [_limits(panel, values) for place, panel in group.items() if self._drawn[place]]
            low, high = (min(ends[0] for ends in limits), max(ends[1] for ends in limits)) if limits else (0.0, 0.0)
            if limits and all(end - start >= _ENOUGH * (high - low) for start, end in limits):
                for panel in group.values():
                    (panel.set_ylim if self._upright else panel.set_xlim)(low, high)
                self._number(group, values)
            else:
                for place, panel in group.items():
                    if not self._drawn[place]:
                        panel.tick_params(axis=values, **_nothing(values))

    def _number(self, group: Mapping[tuple[str, ...], Axes], which: Literal["x", "y"]) -> None:
        """Numbers on axes that are the same, where no other panel has them."""
        taken = {self._where[place] for place in group}
        for place, panel in group.items():
            row, column = self._where[place]
            if (row + 1, column) in taken if which == "x" else (row, column - 1) in taken:
                panel.tick_params(axis=which, **{_SIDES[which]: False})


_SIDES = {"x": "labelbottom", "y": "labelleft"}


def _nothing(which: str) -> dict[str, bool]:
    return {"labelbottom": False, "bottom": False} if which == "x" else {"labelleft": False, "left": False}


def _limits(panel: Axes, which: str) -> tuple[float, float]:
    return panel.get_ylim() if which == "y" else panel.get_xlim()


def _columns(count: int) -> int:
    """Of panels in reading order: at most three, and as few as the rows that this makes allow."""
    rows = -(-count // 3)
    return -(-count // rows)


def _legend(figure: Figure, shown: Mapping[str, Artist]) -> float:
    """A legend below all, in as few rows as fit; how many inches high it is."""
    told: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 0.2}
    told |= {"columnspacing": 1.6, "handlelength": 2.6, "fontsize": "medium"}
    box = style.extent(style.legend_rows(figure, shown, **told))
    return float(box.height / figure.dpi) + _GAP
