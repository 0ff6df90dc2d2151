"""How figures look: good in print and on a screen, and safe for colour-blind eyes."""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal
from weakref import WeakKeyDictionary

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#000000")
"""Okabe and Ito's colours, which colour-blind people can tell apart, but grey for yellow, which paper swallows."""


def _settings(name: str) -> dict[Any, Any]:
    """Matplotlib's settings that a style sheet beside this module makes."""
    return dict(matplotlib.rc_params_from_file(Path(__file__).with_name(name), use_default_template=False))


STYLE = _settings("page.mplstyle")
SMALL = STYLE | _settings("panels.mplstyle")
"""For figures of many small panels, which are as wide as a page."""

_MARKERS = "osD^vPX*"
_DASHES = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARGIN = 0.05
"""What is left free beside a title, in inches."""
_LINE, _AROUND = 0.22, 0.9
"""A line of a legend, and what is above and below axes, in inches."""
_LONG = 26
"""Letters of an entry that no legend has beside or inside axes: it would leave them no room."""
_NARROWEST = 12
"""Letters of a line that no title is broken below."""


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file whose ending says the format: png, svg or pdf."""
    told: dict[str, Any] = (
        {"metadata": {"CreationDate": None}} if path.suffix == ".pdf" else {}
    )  # the same figure is the same file
    with matplotlib.rc_context(STYLE), _any_letters():
        figure.savefig(path, dpi=160, **told)


def svg(figure: Figure) -> str:
    """A figure as SVG text."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE), _any_letters():
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    return text[text.index("<svg") :]


@contextmanager
def _any_letters() -> Iterator[None]:
    """Without a warning for each letter that the font lacks: it is a box in a picture, and as it is on a page."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


def extent(artist: Artist) -> Bbox:
    """What something takes of a figure, in pixels."""
    with _any_letters():
        return artist.get_window_extent()


def figure(
    width: float, height: float, columns: int = 1, rows: int = 1, small: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of this size in inches, and its axes row by row."""
    with matplotlib.rc_context(SMALL if small else STYLE):
        made = Figure(figsize=(width, height), layout="constrained")
        axes = made.subplots(rows, columns, squeeze=False)
    return made, list(axes.flat)


def panels(count: int, width: float = 3.6, height: float = 3.4, most: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of this size, with at most `most` in a row."""
    columns = min(count, most)
    rows = -(-count // columns)
    made, axes = figure(width * columns, height * rows, columns, rows)
    for unused in axes[count:]:
        unused.set_axis_off()
    return made, axes[:count]


class _Looks:
    """The number of every name, and so its colour, marker and dashes, in all figures of a page."""

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._turn = len(PALETTE) * max(1, -(-len(self._numbers) // len(PALETTE)))  # whole turns through the colours
        self._cases = [""]

    def number(self, name: str) -> int:
        """The number of a name; another name than those given gets the next that is free."""
        free = (number for number in count(len(self._numbers)) if number not in self._numbers.values())
        return self._numbers[name] if name in self._numbers else self._numbers.setdefault(name, next(free))

    def add(self, name: str, of: str, case: str) -> None:
        """A name that stands for another one in some case: it has its colour, and a marker and dashes of the case."""
        if name not in self._numbers:
            if case not in self._cases:
                self._cases.append(case)
            self._numbers[name] = self.number(of) + self._turn * self._cases.index(case)


_looks: ContextVar[_Looks | None] = ContextVar("looks", default=None)


@contextmanager
def same_looks(names: Iterable[str]) -> Iterator[None]:
    """Inside, every name looks the same in whatever figure it is; these names come first."""
    before = _looks.set(_Looks(names))
    try:
        yield
    finally:
        _looks.reset(before)


def number(name: str, otherwise: int) -> int:
    """By which number a name looks as it does on this page; for a figure alone, its place in it."""
    looks = _looks.get()
    return otherwise if looks is None else looks.number(name)


def give_look(name: str, of: str, case: str) -> None:
    """Let a name look like another one on this page, but for markers and dashes, which are those of the case."""
    looks = _looks.get()
    if looks is not None:
        looks.add(name, of, case)


def points(number: int) -> dict[str, Any]:
    """Colour and marker of the dots of this number: no two of the first 64 are the same."""
    place = number + number // len(PALETTE)  # a second turn through the colours has the markers shifted by one
    return {"color": PALETTE[number % len(PALETTE)], "marker": _MARKERS[place % len(_MARKERS)], "linestyle": "none"}


def look(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the curve of this number; no two of the first 64 are the same."""
    place = number + number // len(PALETTE)  # as with markers
    return points(number) | {"linestyle": _DASHES[place % len(_DASHES)]}


def curve(
    axes: Axes,
    name: str,
    places: Sequence[float] | np.ndarray,
    values: np.ndarray,
    number: int,
    ends: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """A curve with about ten markers, and a pale area between the two `ends`, if these are given."""
    every, looks = max(1, len(places) // 10), look(number)
    (line,) = axes.plot(places, values, label=name, markevery=(number % every, every), **looks)
    show_below(axes, line)
    if ends is not None:
        axes.fill_between(places, *ends, color=looks["color"], alpha=0.15, linewidth=0)


def show_below(axes: Axes, line: Line2D) -> None:
    """Widen the curves that are the same as this one and lie below it, so that all of them are seen."""
    for other in axes.get_lines():
        if other is not line and _same(other.get_xydata(), line.get_xydata()):
            other.set_linewidth(other.get_linewidth() + 1.6)
            other.set_markersize(other.get_markersize() + 2.5)


def _same(one: Any, other: Any) -> bool:
    """Whether two curves [point, 2] lie on each other, as far as an eye can tell."""
    if len(one) < 2 or one.shape != other.shape or not np.isfinite(other).any(axis=0).all():
        return False
    heights = np.nanmax(other, axis=0) - np.nanmin(other, axis=0)
    return np.allclose(one, other, rtol=1e-6, atol=0.005 * heights, equal_nan=True)


def deviations(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A standard deviation below and above the mean of values [seed, place]; nothing if there is only one seed."""
    if len(values) < 2:
        return None
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    return mean - deviation, mean + deviation


def banded(axes: Axes, name: str, places: Sequence[float] | np.ndarray, values: np.ndarray, number: int) -> None:
    """A curve of the mean of values [seed, place], with the standard deviation over seeds."""
    curve(axes, name, places, values.mean(axis=0), number, deviations(values))


SORTED = "clients, lowest first, %"
"""What is below a curve of `quantiles`."""


def quantiles(axes: Axes, name: str, values: Sequence[float] | np.ndarray, number: int) -> None:
    """A curve that says how many clients, in per cent, are below each value: for more clients than dots can show."""
    shares = np.linspace(0, 100, 101)
    known = np.array(values)[np.isfinite(values)]
    curve(axes, name, shares, np.percentile(known, shares) if len(known) else shares * np.nan, number)


def handles(panels: Iterable[Axes]) -> dict[str, Artist]:
    """What a legend of all these axes shows, by label."""
    found: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def legend(axes: Axes, shown: Mapping[str, Artist] | None = None, most: int = 4) -> None:
    """A legend inside the axes, beside them if it has more than `most` entries, or below them if these are long."""
    shown = handles([axes]) if shown is None else shown
    if any(len(label) > _LONG for label in shown):
        _put_below(axes, shown)
    elif len(shown) > most:
        _make_room(axes, _LINE * len(shown))
        axes.legend([*shown.values()], [*shown], loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    elif shown:
        axes.legend([*shown.values()], [*shown], loc="best")


def legend_below(panels: Sequence[Axes]) -> None:
    """One legend for all axes, below them: where areas or lines are everywhere, it would hide some inside."""
    shown = handles(panels)
    if len(shown) > 1:
        _put_below(panels[0], shown)


def _put_below(axes: Axes, shown: Mapping[str, Artist]) -> None:
    made = axes.figure
    assert isinstance(made, Figure)
    height = extent(legend_rows(made, shown, loc="outside lower center", fontsize=9)).height
    made.set_figheight(made.get_figheight() + height / made.dpi)


def legend_rows(made: Figure, shown: Mapping[str, Artist], **told: Any) -> Legend:
    """A legend of a figure, in as few rows as fit its width."""
    for rows in range(1, len(shown) + 1):
        columns = -(-len(shown) // rows)
        legend = made.legend([*shown.values()], [*shown], ncols=columns, **told)
        if columns == 1 or extent(legend).width <= made.bbox.width:
            break
        legend.remove()
    return legend


def _make_room(axes: Axes, height: float) -> None:
    """Make a figure so high that its axes have room for something `height` inches high."""
    made, place = axes.figure, axes.get_subplotspec()
    assert isinstance(made, Figure)
    rows = 1 if place is None else place.get_gridspec().nrows
    made.set_figheight(max(made.get_figheight(), rows * (height + _AROUND)))


def fitted(axes: Axes, text: str) -> str:
    """The title of a panel, on as many lines as it needs."""
    made, place = axes.figure, axes.get_subplotspec()
    assert isinstance(made, Figure)
    columns = 1 if place is None else place.get_gridspec().ncols
    return wrapped(text, int(8 * made.get_figwidth() / columns))


def entitle(axes: Axes, text: str) -> None:
    """A title above axes that have the whole width, also over a legend beside them, when all else is drawn."""
    made = axes.figure
    assert isinstance(made, Figure)
    with _any_letters():
        made.draw_without_rendering()  # before, nobody knows where the axes begin
    _fit(axes.set_title(text), made)


def _fit(title: Text, made: Figure) -> None:
    """Break a title into as many lines as keep it inside of the figure."""
    text, edge = title.get_text(), made.bbox.x1 - _MARGIN * made.dpi
    width = len(text)
    while (box := extent(title)).x1 > edge and width > _NARROWEST:
        width = max(_NARROWEST, min(width - 1, int(width * (edge - box.x0) / box.width)))
        title.set_text(wrapped(text, width))


def headed(made: Figure, title: str, size: float = 11.5) -> int:
    """A title above all panels; how many lines it has."""
    text = made.suptitle(title, x=0.01, ha="left", weight="bold", size=size)
    _fit(text, made)
    return text.get_text().count("\n") + 1


def wrapped(text: str, width: int = 26) -> str:
    """A label on several lines, if it is long, broken between words and nowhere else (`IID-Im` is one)."""
    return "\n".join(wrap(text, width, break_on_hyphens=False)) or text


def shortened(names: Sequence[str], most: int = 16) -> list[str]:
    """Names cut to `most` letters: in the middle, or at an end if that leaves more of them different."""

    def cut(name: str, start: int) -> str:
        rest = most - 1 - start
        return name if len(name) <= most else f"{name[:start]}…{name[len(name) - rest :]}"

    ways = [[cut(name, start) for name in names] for start in (most // 2, most - 1, 0)]
    return max(ways, key=lambda way: len(set(way)))  # the first of those that are as good


_clients: WeakKeyDictionary[Axes, list[str]] = WeakKeyDictionary()


def clients_on(axes: Axes) -> Sequence[str]:
    """The names of the clients at the places 0, 1, ... of axes that have clients below."""
    return _clients.get(axes, [])


def name_clients(axes: Axes, names: Sequence[str], most: int, both: bool = False) -> None:
    """At most about `most` names of clients below the axes, upright if long, and with `both` also at the left."""
    _clients[axes] = list(names)
    shown = range(0, len(names), -(-len(names) // most))
    labels = shortened([names[place] for place in shown])
    upright = sum(len(label) + 1 for label in labels) > 4 * most
    axes.set_xticks(list(shown), labels, fontsize=8, rotation=90 if upright else 0)
    if both:
        axes.set_yticks(list(shown), labels, fontsize=8)


def mark_groups(axes: Axes, groups: Sequence[int | None], both: bool = False, color: str = "#999999") -> None:
    """Lines between groups of clients, across the axes and with `both` also along them."""
    for place in range(1, len(groups)):
        if groups[place] != groups[place - 1]:
            axes.axvline(place - 0.5, color=color, linewidth=0.8, linestyle=":")
            if both:
                axes.axhline(place - 0.5, color=color, linewidth=0.8, linestyle=":")


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers, as many as there is room for."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))


def logarithmic(axes: Axes, which: Literal["x", "y"], text: Callable[[float], str] = "{:g}".format) -> None:
    """A logarithmic axis for what is drawn already, with plain numbers: powers of ten, and others if these are few."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    subs = (1.0, 2.0, 5.0) if high <= 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
