"""The experiments of AutoCFL: recipes, and what only they look at."""

from coterie.papers.autocfl import figures, measures

__all__ = ["figures", "measures"]
