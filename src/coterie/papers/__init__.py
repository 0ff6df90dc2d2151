"""The experiments of published papers, a folder each: recipes, and the measures and figures that only they have.

Whoever imports one of the papers can name the measures and the kinds of figures of all.
"""

from coterie.papers import cfic
from coterie.papers.autocfl.figures import LossVariance
from coterie.papers.cafa.figures import SilhouetteCurves
from coterie.papers.slfed.figures import Trust
from coterie.report.figures import Kind

__all__ = ["cfic", "page_figures"]


def page_figures() -> tuple[type[Kind], ...]:
    """The kinds of figures that a page about runs shows besides the general ones, in this order."""
    return SilhouetteCurves, LossVariance, Trust
