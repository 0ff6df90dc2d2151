"""Figures: good in print and on a screen, and safe for colour-blind eyes."""

from coterie.report.figures.kinds import Kind, Plot, asked, draw, kinds
from coterie.report.figures.records import NotRecordedError, Runs
from coterie.report.figures.relations import split_figure
from coterie.report.figures.scores import clients_figure, run_figure
from coterie.report.figures.style import PALETTE, save, svg

__all__ = [
    "PALETTE",
    "Kind",
    "NotRecordedError",
    "Plot",
    "Runs",
    "asked",
    "clients_figure",
    "draw",
    "kinds",
    "run_figure",
    "save",
    "split_figure",
    "svg",
]
