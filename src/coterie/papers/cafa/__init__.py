"""The experiments of CAFA: recipes, and what only they look at."""

from coterie.papers.cafa import figures, measures

__all__ = ["figures", "measures"]
