"""What a pointer finds in a figure on a page: the values that are drawn, and which parts belong to which name.

Nothing of this is said where a figure is drawn: it is read from the finished figure. A part without a label, such as
the line of a confidence interval, belongs to the name that has its colour, if only one has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from coterie.report.figures.style import clients_on

_MOST = 4000
"""Of more values than this a pointer finds none: the page would grow too large."""


@dataclass
class Found:
    """What a page must know of a figure besides how it looks. Places are shares of its width and height."""

    names: list[str] = field(default_factory=list)
    """Whose values are shown, as in the legend."""
    parts: dict[str, int] = field(default_factory=dict)
    """The identifiers of what is drawn, each with the number of its name."""
    keys: dict[str, int] = field(default_factory=dict)
    """The identifiers of texts in a legend, likewise."""
    points: list[tuple[float, float, int, str]] = field(default_factory=list)
    """Values: where they are from the left and from the top, the number of their name or -1, and what they say."""

    def as_json(self) -> dict[str, Any]:
        """For the page's script."""
        return {"names": self.names, "parts": self.parts, "keys": self.keys, "points": self.points}


def identify(figure: Figure, prefix: str) -> Found:
    """Give whatever belongs to a name an identifier that begins with `prefix`; before the figure is written."""
    found = Found()
    for axes in figure.axes:
        for _, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in found.names:
                found.names.append(label)
    for number, (artist, name) in enumerate(_belonging(figure, found.names)):
        artist.set_gid(f"{prefix}{number}")
        found.parts[f"{prefix}{number}"] = name
    legends = [*figure.legends, *(legend for axes in figure.axes if (legend := axes.get_legend()))]
    texts = [text for legend in legends for text in legend.get_texts() if text.get_text() in found.names]
    for number, text in enumerate(texts):
        text.set_gid(f"{prefix}k{number}")
        found.keys[f"{prefix}k{number}"] = found.names.index(text.get_text())
    return found


def locate(figure: Figure, found: Found) -> None:
    """Find the values in a figure that has been written, and so has its layout."""
    for axes in figure.axes:
        for places, name, words in (*_of_lines(axes, found.names), *_of_images(axes)):
            shares = axes.transData.transform(places) / figure.bbox.size
            seen = [bool(np.isfinite(place).all()) for place in shares]
            found.points += [
                (round(float(x), 4), round(1 - float(y), 4), name, said)
                for (x, y), said, shown in zip(shares, words, seen, strict=True)
                if shown
            ]
    if len(found.points) > _MOST:
        found.points.clear()


def _belonging(figure: Figure, names: Sequence[str]) -> Iterator[tuple[Artist, int]]:
    """What is drawn of each name."""
    for axes in figure.axes:
        artists = [*axes.lines, *axes.collections, *axes.patches]
        labelled = {artist: names.index(str(artist.get_label())) for artist in artists if artist.get_label() in names}
        # The parts of an errorbar are labelled together.
        for container in axes.containers:
            if container.get_label() in names:
                parts = (part for group in container for part in (group if isinstance(group, tuple) else (group,)))
                labelled |= {part: names.index(str(container.get_label())) for part in parts if part in artists}
        colours: dict[str, set[int]] = {}
        for artist, name in labelled.items():
            colours.setdefault(_colour(artist), set()).add(name)
        for artist in artists:
            alike = {labelled[artist]} if artist in labelled else colours.get(_colour(artist), set())
            if len(alike) == 1:
                yield artist, next(iter(alike))


def _colour(artist: Artist) -> str:
    """The colour of something drawn, without how pale it is; empty if it has none, or several."""
    if isinstance(artist, Line2D):
        return to_hex(artist.get_color())
    if isinstance(artist, Patch):
        return to_hex(artist.get_facecolor())
    if isinstance(artist, Collection):
        colours = [*artist.get_edgecolor()] or [*artist.get_facecolor()]
        return to_hex(colours[0]) if len(colours) == 1 else ""
    return ""


def _of_lines(axes: Axes, names: Sequence[str]) -> Iterator[tuple[np.ndarray, int, list[str]]]:
    """The values of curves and dots, with what they say."""
    clients, told = clients_on(axes), (axes.get_xlabel(), axes.get_ylabel())
    for line in axes.lines:
        label = str(line.get_label())
        if label not in names and len(axes.lines) > 1:
            continue
        places = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
        words = [_said(x, y, told, clients) for x, y in places.tolist()]
        yield places, names.index(label) if label in names else -1, words


def _said(x: float, y: float, told: tuple[str, str], clients: Sequence[str]) -> str:
    """What a value says: its client or place below, and its height."""
    across, up = told
    place = round(x) if np.isfinite(x) else -1
    where = f"client {clients[place]}" if 0 <= place < len(clients) else f"{across} {x:.4g}".strip()
    unit = " %" if up.endswith(", %") else ""
    what = up.removesuffix(", %")
    return f"{where}: {f'{what} ' if unit else ''}{y:.4g}{unit or f' {what}'}".replace("-", "−")


def _of_images(axes: Axes) -> Iterator[tuple[np.ndarray, int, list[str]]]:
    """The cells of a matrix."""
    for image in axes.images:
        values = image.get_array() if isinstance(image, AxesImage) else None
        if values is None or values.ndim != 2:
            continue
        rows, columns = np.indices(values.shape).reshape(2, -1)
        clients = clients_on(axes)
        named = [clients[place] if place < len(clients) else str(place) for place in range(max(values.shape))]
        words = [
            f"{named[row]}, {named[column]}: {float(values[row, column]):.3g}"
            for row, column in zip(rows, columns, strict=True)
        ]
        yield np.column_stack([columns, rows]).astype(float), -1, words
