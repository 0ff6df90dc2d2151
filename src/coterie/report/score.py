"""Scores of clients as reports show them: what they are called, in which unit, what is better, how sure they are."""

from dataclasses import dataclass

import numpy as np

from coterie.report.words import FIGURES
from coterie.studies.statistics import Ends, difference_ends, wilson

_COUNTED = ("accuracy", "accuracy_adapted", "accuracy_last")
"""Scores that are shares of a client's own test samples, so that the number of these says how sure they are."""


def word(key: str) -> str:
    """What a figure is called in running text and on axes."""
    return FIGURES.get(key, key.replace("_", " "))


def is_share(key: str) -> bool:
    """Whether a figure is a share of samples, which is shown in per cent."""
    return "accuracy" in key and not key.startswith(("rounds_to", "bytes_to", "megabits_to"))


@dataclass(frozen=True)
class Score:
    """One score of clients, by its key in clients.jsonl."""

    key: str

    @property
    def word(self) -> str:
        """What it is called."""
        return word(self.key)

    @property
    def unit(self) -> str:
        """What stands behind its name: a comma and the unit, if it has one."""
        return ", %" if is_share(self.key) else ""

    @property
    def points(self) -> str:
        """The unit of differences."""
        return "points" if is_share(self.key) else self.word

    @property
    def sign(self) -> int:
        """1 if more of it is better, -1 if less is."""
        return -1 if "loss" in self.key else 1

    @property
    def factor(self) -> float:
        """By what figures are multiplied to be shown."""
        return 100.0 if is_share(self.key) else 1.0

    def text(self, value: float | None, signed: bool = False) -> str:
        """A figure, or with `signed` a difference, as it is printed; a dash if there is none."""
        if value is None or not np.isfinite(value):
            return "–"
        digits = 1 if is_share(self.key) else 3
        rounded = round(self.factor * value, digits) + 0.0  # no negative zero
        return (f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}").replace("-", "−")

    def ends(self, value: float, samples: int | None) -> Ends | None:
        """The 95 % confidence interval of a client's score; nothing if it is unknown how many samples it has."""
        return wilson(value, samples) if samples and self.key in _COUNTED else None

    def ends_of_difference(self, value: float, other: float, samples: int | None) -> Ends | None:
        """The 95 % confidence interval of a client's score less another one, both on the same samples."""
        return difference_ends(value, other, samples) if samples and self.key in _COUNTED else None


ACCURACY = Score("accuracy")
"""By which clients are judged if nobody says otherwise."""
