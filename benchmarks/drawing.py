"""What the benchmarks share: results that are stored as they come, and figures of them as SVG and PNG."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.report.figures import PALETTE, save

__all__ = ["PALETTE", "draw", "new_figure", "store", "stored"]

FIGURES = Path(__file__).parent / "figures"


def stored(paths: Sequence[Path]) -> dict[str, Any]:
    """The results in some files, as one; what is in several is taken from the last. A file that is missing has none."""
    found: dict[str, Any] = {}
    for path in paths:
        if path.is_file():
            found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def store(path: Path | None, found: dict[str, Any]) -> None:
    """Write results to a file, if there is one."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    every = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
    return figure, every


def draw(figure: Figure, name: str) -> None:
    """Write a figure in both formats."""
    FIGURES.mkdir(exist_ok=True)
    for ending in ("svg", "png"):
        save(figure, FIGURES / f"{name}.{ending}")
    print(f"{FIGURES / name}.svg, .png")
