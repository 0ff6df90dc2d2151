"""The experiments of CFIC: recipes, and what only they look at."""

from coterie.papers.cfic import measures

__all__ = ["measures"]
