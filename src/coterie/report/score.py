"""Scores of clients as reports show them: what they are called, in which unit, what is better, how sure they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.report.words import FIGURES, METRICS
from coterie.server.metrics import facts_of, known_facts, metric_in
from coterie.studies.statistics import COUNTED, Ends, difference_ends, wilson

_COUNTS = ("rounds_to", "bytes_to", "megabits_to", "worse_off", "clearly_worse_off")
"""Functions of a figure that count something, until it is reached or by it."""


def metrics_of(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics of runs: first those by which any of them is compared, then all others."""
    known = [[*facts_of(summary)] for summary in summaries]
    return list(dict.fromkeys([*(names[0] for names in known), *(name for names in known for name in names)]))


def metric_word(name: str) -> str:
    """What a metric is called."""
    return METRICS.get(name, name.replace("_", " "))


def called_as(key: str, words: Mapping[str, str]) -> str | None:
    """What a figure is called by words that there are for accuracy; None if there are none for its like."""
    if key in words or not (name := metric_in(key)):
        return words.get(key)
    text = words.get(key.replace(name, "accuracy", 1))
    return None if text is None else text.replace("accuracy", metric_word(name))


def word(key: str) -> str:
    """What a figure is called in running text and on axes."""
    if key in known_facts():
        return metric_word(key)
    return called_as(key, FIGURES) or key.replace("_", " ")


def is_share(key: str) -> bool:
    """Whether a figure is a share of samples, which is shown in per cent."""
    if key.startswith(_COUNTS):
        return False
    return known_facts()[name]["share"] if (name := metric_in(key)) else "accuracy" in key


def is_lower_better(key: str) -> bool:
    """Whether less of a figure is better."""
    return not known_facts()[name]["higher"] if (name := metric_in(key)) else "loss" in key


def decimals(value: float) -> int:
    """How many decimals an amount is printed with: three, and fewer if it is large."""
    return max(0, 4 - len(str(int(abs(value)))))


@dataclass(frozen=True)
class Score:
    """One score of clients, by its key in clients.jsonl."""

    key: str

    @property
    def word(self) -> str:
        """What it is called."""
        return word(self.key)

    @property
    def title(self) -> str:
        """The same at the beginning of a heading, with its unit."""
        return self.word[:1].upper() + self.word[1:] + self.unit

    @property
    def unit(self) -> str:
        """What stands behind its name: a comma and the unit, if it has one."""
        return ", %" if is_share(self.key) else ""

    @property
    def counted(self) -> bool:
        """Whether the number of a client's test samples says how sure it is."""
        return self.key in COUNTED

    @property
    def points(self) -> str:
        """The unit of differences."""
        return "points" if is_share(self.key) else self.word

    @property
    def sign(self) -> int:
        """1 if more of it is better, -1 if less is."""
        return -1 if is_lower_better(self.key) else 1

    @property
    def factor(self) -> float:
        """By what figures are multiplied to be shown."""
        return 100.0 if is_share(self.key) else 1.0

    def text(self, value: float | None, signed: bool = False) -> str:
        """A figure, or with `signed` a difference, as it is printed; a dash if there is none."""
        if value is None or not np.isfinite(value):
            return "–"
        digits = 1 if is_share(self.key) else decimals(value)
        rounded = round(self.factor * value, digits) + 0.0  # no negative zero
        return (f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}").replace("-", "−")

    def ends(self, value: float, samples: int | None) -> Ends | None:
        """The 95 % confidence interval of a client's score; nothing if it is unknown how many samples it has."""
        return wilson(value, samples) if samples and self.counted else None

    def ends_of_difference(self, value: float, other: float, samples: int | None) -> Ends | None:
        """The 95 % confidence interval of a client's score less another one, both on the same samples."""
        return difference_ends(value, other, samples) if samples and self.counted else None


ACCURACY = Score("accuracy")
"""By which clients are judged if nobody says otherwise."""


def first_score(summaries: Iterable[Mapping[str, Any]]) -> Score:
    """The score by which runs are compared."""
    return Score(next(iter(metrics_of(summaries)), "accuracy"))
