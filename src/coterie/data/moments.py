"""Counts, sums and squares of columns: all that is needed to fill in missing values and to scale, and that adds up."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known of some columns, without their rows. Those of several sites are added up.

    >>> from coterie.data.moments import Moments
    >>> both = Moments.of([[1.0], [2.0]]) + Moments.of([[float("nan")], [6.0]])
    >>> both.count, both.mean
    (array([3.]), array([3.]))
    """

    count: np.ndarray
    """How many values are there, [column]; missing ones do not count."""

    total: np.ndarray
    """Their sum, [column]."""

    squares: np.ndarray
    """The sum of their squares, [column]."""

    @classmethod
    def of(cls, rows: np.ndarray) -> "Moments":
        """The moments of rows [row, column], in which not-a-number is a missing value."""
        rows = np.asarray(rows, dtype=np.float64)
        there = ~np.isnan(rows)
        known = np.where(there, rows, 0.0)
        return cls(there.sum(axis=0, dtype=np.float64), known.sum(axis=0), (known**2).sum(axis=0))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def __getitem__(self, columns: slice) -> "Moments":
        return Moments(self.count[columns], self.total[columns], self.squares[columns])

    @property
    def mean(self) -> np.ndarray:
        """The mean of each column; 0 where there is no value."""
        return self.total / np.maximum(self.count, 1)

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each column; 1 where all values are equal, so that one can divide by it."""
        variance = self.squares / np.maximum(self.count, 1) - self.mean**2
        # What is left of a column of one large value is rounding.
        spread = variance > 1e-12 * np.maximum(self.mean**2, 1e-4)
        return np.where(spread, np.sqrt(np.maximum(variance, 0)), 1.0)
