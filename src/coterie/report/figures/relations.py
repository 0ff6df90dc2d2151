"""Figures of who is like whom: labels, distances, clusters, and whose models are mixed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from coterie.core.errors import SettingsError
from coterie.core.fields import at_least
from coterie.report.figures import style
from coterie.report.figures.kinds import Kind, kind
from coterie.report.figures.records import (
    MANY_CLIENTS,
    NotRecordedError,
    Runs,
    Seed,
    clients_of,
    found_groups,
    label_counts,
    latest,
    one_of_each,
    recorded,
)
from coterie.runs.folder import StoredRun

Groups = Sequence[int | None]

_UNKNOWN = "#dddddd"
"""The colour of what is not known, in maps of numbers."""


def split_figure(
    counts: np.ndarray, labels: Sequence[str], names: Sequence[str], groups: np.ndarray | None = None
) -> Figure:
    """Labels by client: the area of a dot says how many samples of a label a client has. Of many, distributions."""
    clients, classes = counts.shape
    if clients > MANY_CLIENTS:
        figure, panels = style.figure(*_HISTOGRAMS, columns=2)
        with matplotlib.rc_context(style.STYLE):
            _histograms(panels, counts, "")
        return figure
    figure, (axes,) = style.figure(min(14, max(6, 0.32 * clients)), min(12, max(3.2, 0.3 * classes)))
    with matplotlib.rc_context(style.STYLE):
        _dots(axes, counts, labels, names, [None] * clients if groups is None else groups.tolist())
        axes.set_title(style.fitted(axes, f"Labels by client (largest dot: {_amount(counts)})"))
    return figure


def _amount(counts: np.ndarray) -> str:
    """What the largest dot stands for: samples, or a share of a client's."""
    if np.issubdtype(counts.dtype, np.integer):
        return f"{counts.max()} samples"
    return f"{100 * counts.max():.0f} % of a client's samples"


def _dots(axes: Axes, counts: np.ndarray, labels: Sequence[str], names: Sequence[str], groups: Groups) -> None:
    """Dots for labels by client, clients in the order of their groups, which have a colour each."""
    clients, classes = counts.shape
    order = _order(groups)
    shown = counts[order]
    places, label = np.nonzero(shown)
    size = 180 * shown[places, label] / (counts.max() or 1)
    colours = [style.PALETTE[(groups[order[place]] or 0) % len(style.PALETTE)] for place in places]
    axes.scatter(places, label, s=np.maximum(size, 1), c=colours, alpha=0.85, linewidths=0)
    style.mark_groups(axes, [groups[client] for client in order])
    style.name_clients(axes, [names[client] for client in order], most=min(40, max(20, clients)))
    some = range(0, classes, max(1, classes // 30))
    axes.set_yticks(list(some), style.shortened([labels[place] for place in some], 32), fontsize=8)
    axes.set(xlabel="client", ylabel="label")
    axes.set_xlim(-0.7, clients - 0.3)


_HISTOGRAMS = (9.0, 3.4)
"""The size of a line of `_histograms`."""


def _histograms(panels: Sequence[Axes], counts: np.ndarray, lead: str) -> None:
    """How many samples, or how large a part of the commonest label, and how many labels so many clients have."""
    sizes, labels = counts.sum(axis=1), (counts > 0).sum(axis=1)
    if np.issubdtype(counts.dtype, np.integer):
        amounts, words = sizes, "training samples of a client"
    else:
        amounts, words = 100 * counts.max(axis=1) / np.maximum(sizes, 1e-12), "part of the commonest label, %"
    for axes, values, bins, below in (
        (panels[0], amounts, np.histogram_bin_edges(amounts, 40), words),
        (panels[1], labels, np.arange(labels.min(), labels.max() + 2) - 0.5, "labels of a client"),
    ):
        axes.hist(values, bins=bins.tolist(), histtype="stepfilled", color=style.PALETTE[0])
        axes.set(xlabel=below, ylabel="clients")
    style.whole_numbers(panels[1].xaxis)
    panels[0].set_title(style.fitted(panels[0], f"{lead}{len(counts):,} clients"))


def _order(groups: Groups) -> list[int]:
    """Clients in the order of their groups, those without one last."""
    return sorted(range(len(groups)), key=lambda client: (groups[client] is None, groups[client] or 0, client))


@kind("labels")
class Labels(Kind):
    """Which labels each client has: the area of a dot says how many samples."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name; one for all if all have the same clients."""
        found: dict[str, tuple[np.ndarray, Sequence[str], StoredRun]] = {}
        why = NotRecordedError("labels: there are no runs")
        for name, run in one_of_each(runs, self.seed).items():
            try:
                counts, labels = label_counts(run)
            except NotRecordedError as error:
                why = error
                continue
            if not any(_alike(counts, other) for other, *_ in found.values()):
                found[name] = counts, labels, run
        if not found:
            raise why
        clients, classes = np.max([counts.shape for counts, *_ in found.values()], axis=0)
        if clients > MANY_CLIENTS:
            return self._drawn_as_histograms({name: counts for name, (counts, *_) in found.items()}, title)
        size = min(14, max(6, 0.32 * clients)), min(12, max(3.4, 0.3 * classes))
        figure, panels = style.panels(len(found), *size, most=1)
        with matplotlib.rc_context(style.STYLE):
            for axes, (name, (counts, labels, run)) in zip(panels, found.items(), strict=True):
                _dots(axes, counts, labels, *clients_of(run, len(counts)))
                heading = title or "Labels by client" if len(found) == 1 else name
                axes.set_title(style.fitted(axes, f"{heading} (largest dot: {_amount(counts)})"))
            if title and len(found) > 1:
                style.headed(figure, title)
        return figure

    def _drawn_as_histograms(self, found: Mapping[str, np.ndarray], title: str) -> Figure:
        width, height = _HISTOGRAMS
        figure, panels = style.figure(width, height * len(found), columns=2, rows=len(found))
        with matplotlib.rc_context(style.STYLE):
            for row, (name, counts) in enumerate(found.items()):
                _histograms(panels[2 * row : 2 * row + 2], counts, f"{name}: " if len(found) > 1 else "")
            if title:
                style.headed(figure, title)
        return figure


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether clients have the same shares of labels, as counts or as they are recorded, to six digits."""
    if one.shape != other.shape:
        return False
    ours, theirs = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12) for counts in (one, other))
    return np.allclose(ours, theirs, atol=1e-5)


def _client_map(
    axes: Axes, matrix: np.ndarray, run: StoredRun, by: str, top: float, colours: str, lines: str = "#ffffff"
) -> AxesImage:
    """A map of numbers from 0 to `top` for every pair of clients, sorted by their true groups or those found."""
    names, groups = clients_of(run, len(matrix))
    if by != "true":
        groups = found_groups(run, len(matrix)) if by == "found" else [None] * len(matrix)
    order = _order(groups)
    known = matplotlib.colormaps[colours].with_extremes(bad=_UNKNOWN)
    shown, step = _coarse(matrix[np.ix_(order, order)])
    image = axes.imshow(shown, cmap=known, vmin=0.0, vmax=top, interpolation="none")
    axes.grid(visible=False)
    style.mark_groups(axes, [groups[client] for client in order[::step]], both=True, color=lines)
    style.name_clients(axes, [names[client] for client in order[::step]], most=12, both=True)
    return image


def _coarse(matrix: np.ndarray) -> tuple[np.ndarray, int]:
    """A map of at most `MANY_CLIENTS` rows: of more, means over squares of pairs; and how many clients a row is."""
    step = -(-len(matrix) // MANY_CLIENTS)
    if step == 1:
        return matrix, step
    starts = np.arange(0, len(matrix), step)
    there = np.isfinite(matrix)
    sums, counts = (
        np.add.reduceat(np.add.reduceat(one, starts, axis=0), starts, axis=1)
        for one in (np.where(there, matrix, 0.0), there.astype(float))
    )
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), step


@kind("matrix")
class Matrix(Kind):
    """How far clients are from each other, or how alike, as a map with clients in the order of their groups."""

    of: Literal["any", "distance", "similarity"] = "any"
    """Which of them; a run may have either."""

    order: Literal["true", "found", "none"] = "true"
    """By which groups clients are ordered: the true ones, or those that were found."""

    round: Annotated[int, at_least(1, "counted from 1")] | None = None
    """The evaluated round that is shown, or the next before it; by default the last."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    same_scale: bool = False
    """Whether all panels have the same scale of colours."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A panel for each name that has such a matrix."""
        wanted = ("distance", "similarity") if self.of == "any" else (self.of,)
        found: dict[str, tuple[str, np.ndarray, StoredRun]] = {}
        for name, run in one_of_each(runs, self.seed).items():
            for what in wanted:
                if lines := recorded(run, what):
                    before = [one for number, one in lines if number is None or number <= (self.round or number)]
                    found[name] = what, np.array((before or [lines[0][1]])[-1], dtype=np.float64), run
                    break
        if not found:
            raise NotRecordedError(f"matrix: no run recorded {' or '.join(wanted)}; run it with --insights")
        figure, panels = style.panels(len(found), 4.2, 3.6)
        highest = max(float(np.nanmax(matrix)) for _, matrix, _ in found.values())
        with matplotlib.rc_context(style.STYLE):
            for axes, (name, (what, matrix, run)) in zip(panels, found.items(), strict=True):
                top = 1.0 if what == "similarity" else highest if self.same_scale else float(np.nanmax(matrix))
                colours = "viridis" if what == "similarity" else "viridis_r"
                image = _client_map(axes, matrix, run, self.order, top or 1.0, colours)
                axes.set(xlabel="client", ylabel="client", title=_heading(axes, title, name, len(found)))
                figure.colorbar(image, ax=axes, label=what, shrink=0.85)
            if title and len(found) > 1:
                style.headed(figure, title)
        return figure


@kind("pca")
class PCA(Kind):
    """Clients in the plane of their first two principal components: by their true groups, and by those found."""

    of: Literal["labels", "distance"] = "labels"
    """What clients are described by: their shares of labels, or their distances to all others."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """For each name two panels: before and after clustering."""
        chosen = one_of_each(runs, self.seed)
        if not chosen:
            raise NotRecordedError("pca: there are no runs")
        figure, axes = style.figure(8.4, 3.8 * len(chosen), columns=2, rows=len(chosen))
        with matplotlib.rc_context(style.STYLE):
            for row, (name, run) in enumerate(chosen.items()):
                points, shares = self._points(run)
                _, truth = clients_of(run, len(points))
                before, after = axes[2 * row], axes[2 * row + 1]
                _scatter(before, points, truth, "group")
                _scatter(after, points, found_groups(run, len(points)), "cluster")
                lead = f"{name}: " if len(chosen) > 1 else ""
                before.set_title(style.fitted(before, f"{lead}before, by true group"))
                after.set_title("after, by cluster found")
                for place in (before, after):
                    place.set(xlabel=_component(1, shares), ylabel=_component(2, shares))
            if title:
                style.headed(figure, title)
        return figure

    def _points(self, run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
        """The first two components [client, 2], and what part of the variance each of them has."""
        rows = label_counts(run)[0] if self.of == "labels" else np.array(latest(run, "distance"), dtype=np.float64)
        rows = np.nan_to_num(rows.astype(np.float64))
        if self.of == "labels":
            rows = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-300)
        left, sizes, right = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        # The sign of a component is free: its largest weight is positive.
        signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
        points = np.zeros((len(rows), 2))
        known = min(2, len(sizes))
        points[:, :known] = (left * sizes * signs)[:, :known]
        parts = np.zeros(2)
        parts[:known] = (sizes**2 / max((sizes**2).sum(), 1e-300))[:known]
        return points, parts


def _component(number: int, shares: np.ndarray) -> str:
    return f"component {number} ({100 * shares[number - 1]:.0f} % of the variance)"


def _scatter(axes: Axes, points: np.ndarray, groups: Groups, word: str) -> None:
    """Clients as dots, with colour and marker by group; a note where groups are not known."""
    many = len(points) > MANY_CLIENTS
    dots: dict[str, Any] = {
        "alpha": 0.8,
        "markersize": 3 if many else 6,
        "rasterized": many,
    }  # a picture: it does not grow with them
    kinds_of = sorted({group for group in groups if group is not None and group >= 0})
    for number, group in enumerate(kinds_of):
        mine = points[[one == group for one in groups]]
        axes.plot(*mine.T, label=f"{word} {group}", **dots, **style.points(number))
    others = points[[one is None or one < 0 for one in groups]]
    if len(others):
        none = f"no {word}" if kinds_of else f"{word}s not known"
        axes.plot(*others.T, label=none, color="#666666", marker=".", linestyle="none", **dots)
    if len(kinds_of) <= 10:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1)


@kind("mixing")
class Mixing(Kind):
    """Whose models each client's is mixed of, in some rounds: a row for each client, whose weights add up to 1."""

    rounds: tuple[int, ...] = ()
    """The rounds that are shown, or the last before each; by default the first, the middle and the last."""

    seed: Seed = 0
    """Which of the runs over seeds is shown, counted from 0."""

    order: Literal["true", "found", "none"] = "true"
    """By which groups clients are ordered: the true ones, or those that were found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(number < 1 for number in self.rounds):
            raise SettingsError(f"rounds={list(self.rounds)}: counted from 1")

    def draw(self, runs: Runs, title: str = "") -> Figure:
        """A row of panels for each name."""
        courses = {name: (run, mixed_over_time(run)) for name, run in one_of_each(runs, self.seed).items()}
        courses = {name: (run, course) for name, (run, course) in courses.items() if course}
        if not courses and any(len(run.clients) > MOST_MIXED for some in runs.values() for run in some):
            raise NotRecordedError(f"mixing: a map of who mixes with whom has at most {MOST_MIXED:,} clients")
        if not courses:
            raise NotRecordedError(
                "mixing: no run has groups, or recorded how models are mixed; run it with --insights"
            )
        wanted = self.rounds or _some_rounds([run.rounds[-1]["round"] for run, _ in courses.values() if run.rounds])
        figure, axes = style.figure(3.2 * len(wanted) + 0.6, 3.2 * len(courses), len(wanted), len(courses))
        with matplotlib.rc_context(style.STYLE):
            image = None
            for row, (name, (run, course)) in enumerate(courses.items()):
                for column, number in enumerate(wanted):
                    matrix = next((one for at, one in reversed(course) if at <= number), course[0][1])
                    panel = axes[row * len(wanted) + column]
                    image = _client_map(panel, np.sqrt(matrix), run, self.order, 1.0, "Blues", lines="#999999")
                    lead = style.wrapped(name, 26) if column == 0 else ""
                    panel.set_title(f"{lead}\nround {number}")
                    last = row == len(courses) - 1
                    panel.set(xlabel="mixed of" if last else "", ylabel="" if column else "client")
                    panel.tick_params(labelleft=column == 0, labelbottom=last)
            place = {"orientation": "horizontal", "shrink": 0.6, "aspect": 40, "pad": 0.02}
            bar = figure.colorbar(image, ax=axes, label="weight in the mix", **place)  # type: ignore[arg-type]
            ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
            bar.set_ticks([float(np.sqrt(tick)) for tick in ticks], labels=[f"{tick:g}" for tick in ticks])
            if title:
                style.headed(figure, title)
        return figure


MOST_MIXED = 2_000
"""Clients of whom there is a map of pairs at most: it takes memory by the square of their number."""


def mixed_over_time(run: StoredRun) -> list[tuple[int, np.ndarray]]:
    """Whose models each client's is mixed of, [client, client], by round: as recorded, or by samples inside groups.

    Nothing of more than `MOST_MIXED` clients.
    """
    if len(run.clients) > MOST_MIXED:
        return []
    lines = recorded(run, "mixing")
    if lines:
        return [(number or 0, np.array(matrix, dtype=np.float64)) for number, matrix in lines]
    course = []
    for line in run.groups:
        groups = np.array(line["groups"])
        known = len(run.clients) == len(groups)
        samples = np.array([client["samples"] for client in run.clients] if known else [1] * len(groups), dtype=float)
        together = (groups[:, None] == groups[None, :]) & (groups >= 0)[:, None]
        weights = together * samples
        with np.errstate(invalid="ignore"):
            course.append((line["round"], weights / weights.sum(axis=1, keepdims=True)))
    return course


def _some_rounds(lasts: Sequence[int]) -> tuple[int, ...]:
    """The first, the middle and the last."""
    last = max(lasts, default=1)
    return tuple(sorted({1, (1 + last) // 2, last}))


def _heading(axes: Axes, title: str, name: str, panels: int) -> str:
    return style.fitted(axes, title if title and panels == 1 else name)
