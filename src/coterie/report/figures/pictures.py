"""Figures of samples."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from coterie.core.errors import SettingsError
from coterie.report.figures import style
from coterie.report.figures.kinds import Kind, kind
from coterie.report.figures.records import NotRecordedError, Runs, clients_of, recorded

__all__ = ["Images"]


@kind("images")
class Images(Kind):
    """Images that clients made, such as those of SLFed's GANs: a row for each of the first clients."""

    clients: int = 6
    """How many clients are shown."""

    seed: int = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise SettingsError(f"clients={self.clients}: at least 1")
        if self.seed < 0:
            raise SettingsError(f"seed={self.seed}: counted from 0")

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name that has images."""
        chosen = {name: some[min(self.seed, len(some) - 1)] for name, some in runs.items() if some}
        found = {name: (run, lines[-1][1]) for name, run in chosen.items() if (lines := recorded(run, "images"))}
        if not found:
            raise NotRecordedError("images: no run recorded any; the measure synthetic-samples does")
        figure, panels = style.panels(len(found), 4.6, 3.8, most=2)
        with matplotlib.rc_context(style.STYLE):
            for axes, (name, (run, images)) in zip(panels, found.items(), strict=True):
                names, _ = clients_of(run, len(images))
                tiles = np.array(images[: self.clients], dtype=np.uint8)  # [client, image, channel, row, column]
                height = tiles.shape[-2]
                axes.imshow(_mosaic(tiles), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                axes.set_yticks((np.arange(len(tiles)) + 0.5) * (height + 1) - 1, names[: len(tiles)])
                axes.set_xticks([])
                axes.grid(visible=False)
                heading = name if len(found) > 1 or not title else title
                axes.set(ylabel="client", title=style.fitted(axes, heading))
            if title and len(found) > 1:
                style.headed(figure, title)
        return figure


def _mosaic(tiles: np.ndarray) -> Any:
    """Images [row, column, channel, height, width] as one, with a white line between them; in colour if they are."""
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, 0), (0, 1), (0, 1)), constant_values=255)
    rows, columns, channels, height, width = framed.shape
    whole = framed.transpose(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)[:-1, :-1]
    return whole if channels == 3 else whole.mean(axis=2)
