"""What SLFed's figures show of its inside: what clients think of each other, and what their weak GANs make."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from coterie.core.fields import Count
from coterie.report.figures import style
from coterie.report.figures.kinds import Kind, kind
from coterie.report.figures.records import NotRecordedError, Runs, Seed, clients_of, one_of_each, recorded
from coterie.runs.folder import StoredRun


@kind("trust")
class Trust(Kind):
    """How sure clients of SLFed are of each other over rounds, and how many of them they choose."""

    caption = "How sure clients of SLFed are of each other, and how many they choose to mix with."

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """The mean uncertainty on the left and the sizes of lists on the right; the area is from client to client."""
        names = [name for name, some in runs.items() if any(_opinions(run) for run in some)]
        if not names:
            raise NotRecordedError("trust: no run recorded opinions; run SLFed in a simulation with --insights")
        figure, (left, right) = style.figure(9, 3.8, columns=2)
        with matplotlib.rc_context(style.STYLE):
            for place, name in enumerate(names):
                number = style.number(name, place)
                found = [opinions for run in runs[name] if (opinions := _opinions(run))]
                for axes, part in ((left, 1), (right, 2)):
                    values = np.stack([opinions[part][: min(len(o[0]) for o in found)] for opinions in found])
                    rounds = found[0][0][: values.shape[1]]
                    ends = np.nanmin(values, axis=(0, 2)), np.nanmax(values, axis=(0, 2))
                    style.curve(axes, name, rounds, np.nanmean(values, axis=(0, 2)), number, ends)
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


@kind("images")
class Images(Kind):
    """Images that clients made, such as those of SLFed's GANs: a row for each of the first clients."""

    clients: Count = 6
    """How many clients are shown."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name that has images."""
        chosen = one_of_each(runs, self.seed)
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
