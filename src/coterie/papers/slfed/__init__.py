"""The experiments of SLFed: recipes, and what only they look at."""

from coterie.papers.slfed import figures, measures

__all__ = ["figures", "measures"]
