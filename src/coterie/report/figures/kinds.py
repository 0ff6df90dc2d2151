"""Kinds of figures by name, as studies ask for them."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar, dataclass_transform

from matplotlib.figure import Figure

from coterie.lab.campaign import Results
from coterie.lab.folder import StoredRun
from coterie.lab.study import FigureSpec, Place, matches
from coterie.registry import Registry
from coterie.report.figures.records import NotRecordedError, Runs

__all__ = ["Kind", "draw", "kind", "kinds"]

log = logging.getLogger("coterie")

K = TypeVar("K", bound="Kind")


class Kind(ABC):
    """Base of all kinds. A subclass declares its options as fields with a default and a docstring below."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A figure of runs, by what to call them; those of one name are of different seeds.

        Runs that have nothing to show are left out; if none has, it is a `NotRecordedError`.
        """

    @property
    def varied(self) -> str:
        """The axis of a study that goes from left to right in the figure, and so tells no runs apart."""
        return ""


kinds: Registry[Kind] = Registry("kind of figure")
"""All kinds of figures by name."""


@dataclass_transform(frozen_default=True)
def kind(name: str) -> Callable[[type[K]], type[K]]:
    """Register a kind of figure under a name; its fields become its options."""
    return kinds.register(name)  # type: ignore[return-value]


def draw(spec: FigureSpec, results: Results) -> list[tuple[str, Figure]]:
    """The figures that a study asks for, each with a name; those for which there are no runs yet are left out.

    There is one for every combination of entries of the axes in `by`. The entries of the other axes name the runs in
    it, but for axes that have one entry there, and for one that the figure itself goes over.
    """
    made = kinds.make(spec.kind, **spec.options)
    axes = list(results.study.axes)
    figures: dict[Place, dict[Place, list[StoredRun]]] = {}
    for labels, runs in results.runs.items():
        place = dict(zip(axes, labels, strict=True))
        if runs and matches(place, spec.where):
            figures.setdefault(tuple(place[axis] for axis in spec.by), {})[labels] = runs
    drawn = []
    for entries, cells in figures.items():
        title = ", ".join([spec.title, *entries])
        try:
            drawn.append((title, made.draw(_named(cells, axes, (*spec.by, made.varied)), title)))
        except NotRecordedError as error:
            log.info("%s: not drawn (%s)", title, error)
    return drawn


def _named(cells: Mapping[Place, list[StoredRun]], axes: Sequence[str], without: Sequence[str]) -> Runs:
    """Runs by the entries that tell them apart."""
    telling = [
        number
        for number, axis in enumerate(axes)
        if axis not in without and len({labels[number] for labels in cells}) > 1
    ] or [axes.index("method")]
    named: dict[str, list[StoredRun]] = {}
    for labels, runs in cells.items():
        named.setdefault(", ".join(labels[number] for number in telling), []).extend(runs)
    return named
