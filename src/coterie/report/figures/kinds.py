"""Kinds of figures by name, as studies ask for them.

Options of kinds are documented fields, so a study's file is checked before its runs are made. Figures read stored runs
and nothing else; what no run has recorded is a `NotRecordedError`, by which pages know what to leave out. Kinds that
draw into one pair of axes (`Plot`) can be the panels of one figure.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, TypeVar, dataclass_transform

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.core.errors import SettingsError
from coterie.core.fields import Checked
from coterie.core.registry import Registry
from coterie.report.figures import style
from coterie.report.figures.grids import Grid
from coterie.report.figures.records import NotRecordedError, Runs
from coterie.report.words import axis_and_label
from coterie.runs.folder import StoredRun
from coterie.studies.campaign import Results
from coterie.studies.patterns import matches
from coterie.studies.study import FigureSpec, Place

log = logging.getLogger("coterie")

K = TypeVar("K", bound="Kind")


class Kind(Checked, ABC):
    """Base of all kinds. A subclass declares its options as fields with a default and a docstring below."""

    name: ClassVar[str]

    caption: ClassVar[str] = ""
    """What a page about runs says below it, if it is shown there without being asked for."""

    @abstractmethod
    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A figure of runs, by what to call them; those of one name are of different seeds.

        Runs that have nothing to show are left out; if none has, it is a `NotRecordedError`.
        """

    @property
    def varied(self) -> str:
        """The axis of a study that goes from left to right in the figure, and so tells no runs apart."""
        return ""


class Plot(Kind):
    """Base of kinds that are drawn into one pair of axes, of which a figure can have many, as panels."""

    upright: ClassVar[bool] = True
    """Whether values go up; else they go to the right, with a row for each name."""

    @abstractmethod
    def content(self, runs: Runs) -> Mapping[str, Any]:
        """What is drawn, by name; a `NotRecordedError` if there is nothing to draw. Some names may have no run."""

    @abstractmethod
    def plot(self, axes: Axes, content: Mapping[str, Any], everywhere: Mapping[str, Sequence[Any]]) -> None:
        """Draw it, with labels for axes and legend.

        `everywhere` has what all panels show, by name, in the same order: what is in several looks the same in each.
        """

    @property
    @abstractmethod
    def heading(self) -> str:
        """The title of a figure if the study gives it none."""

    def height(self, everywhere: Mapping[str, Sequence[Any]], small: bool) -> float | None:
        """How high it has to be in inches, as a `small` panel or as a whole figure; None leaves it to the figure."""
        return None

    def add_legend(self, axes: Axes) -> None:
        """The legend of a picture that is not a panel."""
        style.legend(axes)

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A figure of all runs in one pair of axes."""
        return self.picture(self.content(runs), title)

    def picture(self, content: Mapping[str, Any], title: str = "") -> Figure:
        """A figure of one pair of axes."""
        everywhere = {name: [part] for name, part in content.items()}
        figure, (axes,) = style.figure(7, self.height(everywhere, small=False) or 4)
        with matplotlib.rc_context(style.STYLE):
            self.plot(axes, content, everywhere)
            self.add_legend(axes)
            style.entitle(axes, title or self.heading)
        return figure

    def draw_panels(self, panels: Mapping[Place, Runs], title: str = "") -> Figure:
        """A panel for each place, named by its labels: one in reading order, or the row's and the column's.

        Names that have no runs say in which order names are in the legend.
        """
        contents: dict[Place, Mapping[str, Any]] = {}
        missing: dict[Place, str] = {}
        for place, runs in panels.items():
            try:
                contents[place] = self.content(runs)
            except NotRecordedError as error:
                missing[place] = "not recorded" if any(runs.values()) else "not run"
                if len(missing) == len(panels):
                    raise NotRecordedError(f"{error}, in none of {len(panels)} panels") from error
        names = dict.fromkeys(name for runs in panels.values() for name in runs)
        shown = {name: [content[name] for content in contents.values() if name in content] for name in names}
        everywhere = {name: parts for name, parts in shown.items() if parts}
        with matplotlib.rc_context(style.SMALL):
            grid = Grid([*panels], self.height(everywhere, small=True), self.upright)
            for place, content in contents.items():
                ordered = {name: content[name] for name in everywhere if name in content}
                self.plot(grid.panels[place], ordered, everywhere)
            for place, why in missing.items():
                grid.leave_empty(place, why)
            grid.finish(title or self.heading, everywhere)
        return grid.figure


kinds: Registry[Kind] = Registry("kind of figure")
"""All kinds of figures by name."""


@dataclass_transform(frozen_default=True)
def kind(name: str) -> Callable[[type[K]], type[K]]:
    """Register a kind of figure under a name; its fields become its options."""
    return kinds.register(name)  # type: ignore[return-value]


def asked(spec: FigureSpec) -> Kind:
    """The kind of figure that a study asks for; an error if there is none, or not with such options or panels."""
    made = kinds.make(spec.kind, **spec.options)
    if spec.panels and not isinstance(made, Plot):
        able = ", ".join(name for name in kinds if issubclass(kinds[name], Plot))
        raise SettingsError(
            f"figure {spec.title!r}: {spec.kind} cannot be drawn in panels, only {able}; "
            f"by = [...] makes a figure of each"
        )
    return made


def draw(spec: FigureSpec, results: Results) -> list[tuple[str, Figure]]:
    """The figures that a study asks for, each with a name; those for which there are no runs yet are left out.

    There is one for every combination of entries of the axes in `by`, and in it a panel for every combination of those
    in `panels`. The entries of the other axes name the runs in it, but for axes that have one entry there, and for one
    that the figure itself goes over.
    """
    made = asked(spec)
    axes = list(results.study.axes)
    figures: dict[Place, dict[Place, list[StoredRun]]] = {}
    for labels, runs in results.runs.items():
        if matches(dict(zip(axes, labels, strict=True)), spec.where):
            figures.setdefault(_part(labels, axes, spec.by), {})[labels] = runs
    drawn = []
    for entries, cells in figures.items():
        title = ", ".join([spec.title, *entries])
        telling = _telling(cells, axes, (*spec.by, *spec.panels, made.varied))
        try:
            if not any(cells.values()):
                continue
            if isinstance(made, Plot) and spec.panels:
                figure = made.draw_panels(_panels(cells, axes, spec.panels, telling), title)
            else:
                there = {place: runs for place, runs in cells.items() if runs}
                figure = made.draw(_named(there, telling, axes.index("method")), title)
            drawn.append((title, figure))
        except NotRecordedError as error:
            log.warning("%s: not drawn (%s)", title, error)
    return drawn


def _part(labels: Place, axes: Sequence[str], wanted: Sequence[str]) -> Place:
    """The labels on some of the axes, in the order of these."""
    return tuple(labels[axes.index(axis)] for axis in wanted)


def _panels(
    cells: Mapping[Place, list[StoredRun]], axes: Sequence[str], wanted: Sequence[str], telling: Sequence[int]
) -> dict[Place, Runs]:
    """The runs of each panel by its headings, and by name; for all combinations of entries that there are."""
    entries = (dict.fromkeys(labels[axes.index(axis)] for labels in cells) for axis in wanted)
    method = axes.index("method")
    return {
        tuple(map(axis_and_label, wanted, place)): _named(
            {labels: runs for labels, runs in cells.items() if _part(labels, axes, wanted) == place}, telling, method
        )
        for place in product(*entries)
    }


def _telling(cells: Mapping[Place, list[StoredRun]], axes: Sequence[str], without: Sequence[str]) -> list[int]:
    """The places of axes whose entries tell runs apart."""
    run = [labels for labels, runs in cells.items() if runs]
    return [
        number
        for number, axis in enumerate(axes)
        if axis not in without and len({labels[number] for labels in run}) > 1
    ] or [axes.index("method")]


def _named(cells: Mapping[Place, list[StoredRun]], telling: Sequence[int], method: int) -> Runs:
    """Runs by the entries that tell them apart; names with the same method in them have its colour."""
    named: dict[str, list[StoredRun]] = {}
    for labels, runs in cells.items():
        name = ", ".join(labels[number] for number in telling)
        if method in telling:
            style.give_look(name, labels[method], ", ".join(labels[one] for one in telling if one != method))
        named.setdefault(name, []).extend(runs)
    return named
