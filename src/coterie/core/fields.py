"""What a field says of itself: which values it takes, and whether it decides a result.

    mu: Annotated[float, at_least(0)] = 0.01
    workers: Annotated[int | None, at_least(0), WITHOUT_EFFECT] = None

It stands once, at the field. Classes with such fields check them when an instance is made, and whatever compares runs
reads there what makes them different.
"""

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import inf, isfinite
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from coterie.core.errors import SettingsError


@dataclass(frozen=True)
class Range:
    """Which numbers a field takes: all between two, with or without these themselves."""

    least: float
    most: float
    words: str
    """How an error says it."""
    without_least: bool = False
    without_most: bool = False

    def __contains__(self, value: float) -> bool:
        from_below = self.least < value if self.without_least else self.least <= value
        from_above = value < self.most if self.without_most else value <= self.most
        return isfinite(value) and from_below and from_above


def at_least(least: float, words: str = "") -> Range:
    """This number or more."""
    return Range(least, inf, words or (f"{least:g} or more" if least == 0 else f"at least {least:g}"))


def above(least: float, words: str = "") -> Range:
    """More than this number."""
    return Range(least, inf, words or f"above {least:g}", without_least=True)


def within(interval: str, words: str = "") -> Range:
    """An interval as it is written: `[0, 1)` is from 0 to below 1."""
    least, most = (float(number) for number in interval[1:-1].split(","))
    return Range(least, most, words or f"in {interval}", interval[0] == "(", interval[-1] == ")")


Count = Annotated[int, at_least(1)]
"""How many: a whole number from 1 on."""
NonNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]
Share = Annotated[float, within("[0, 1]")]
"""A part of a whole, up to all of it."""
Fraction = Annotated[float, within("[0, 1)")]
"""A part of a whole that is never all of it."""


class Effect(IntEnum):
    """What another value of a field changes. A field changes results unless it is marked with one of the others."""

    NOTHING = 0
    COURSE = 1
    """No result, but a run has one value from its beginning to its end."""
    RECORD = 2
    """No result, but what is written down of a run besides: such runs are not interchangeable."""
    RESULTS = 3


WITHOUT_EFFECT = Effect.NOTHING
"""Marks a field that says where or how something is computed, or how long is waited: results are the same with any
value, but for the rounding of sums. It tells no runs apart, and a run that was stopped goes on with another value."""


def extras_of(hint: Any) -> tuple[Any, ...]:
    """What is said of a field besides its type, also inside of `Count | None` and the like."""
    own: tuple[Any, ...] = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return own + tuple(extra for part in get_args(hint) if not isinstance(part, Range) for extra in extras_of(part))


def range_of(hint: Any) -> Range | None:
    """Which numbers a field of this type takes, if it says so."""
    return next((extra for extra in extras_of(hint) if isinstance(extra, Range)), None)


def effect_of(hint: Any) -> Effect:
    """What another value of a field of this type changes."""
    return next((extra for extra in extras_of(hint) if isinstance(extra, Effect)), Effect.RESULTS)


@cache
def _ranges(cls: Any) -> dict[str, Range]:
    """The ranges of a class's fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = {field.name: range_of(hints[field.name]) for field in dataclasses.fields(cls)}
    return {name: allowed for name, allowed in found.items() if allowed is not None}


class Checked:
    """Base of dataclasses whose fields say which values they take: they are checked when an instance is made."""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, allowed in _ranges(cls).items():
            check_range(name, getattr(self, name), allowed)


def check_range(name: str, value: Any, allowed: Range | None) -> None:
    """Refuse a number, or some of several, that a field does not take."""
    numbers = value if isinstance(value, tuple) else () if value is None else (value,)
    if allowed is not None and not all(number in allowed for number in numbers):
        raise SettingsError(f"{name}={value}: {allowed.words}")
