"""What a field's type says in `Annotated`: which values it takes, and what another value of it changes.

    mu: Annotated[float, at_least(0)] = 0.01
    workers: Annotated[int | None, at_least(0), WITHOUT_EFFECT] = None

Both stand once, at the field. A class that derives from `Checked` refuses other values when an instance is made, and
code that asks whether two runs are the same reads the `Effect`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, wraps
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from coterie.core.errors import SettingsError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers that a field takes: those from `least` to `most`, with or without these two themselves."""

    least: float
    most: float
    words: str
    """What an error says that is allowed."""
    without_least: bool = False
    without_most: bool = False

    def __contains__(self, value: float) -> bool:
        from_below = self.least < value if self.without_least else self.least <= value
        from_above = value < self.most if self.without_most else value <= self.most
        return isfinite(value) and from_below and from_above


def at_least(least: float, words: str = "") -> Range:
    """A range: this number and all above."""
    return Range(least, inf, words or (f"{least:g} or more" if least == 0 else f"at least {least:g}"))


def above(least: float, words: str = "") -> Range:
    """A range: all above this number."""
    return Range(least, inf, words or f"above {least:g}", without_least=True)


def within(interval: str, words: str = "") -> Range:
    """A range as it is written in mathematics: `[0, 1)` is from 0, which is allowed, to 1, which is not."""
    least, most = (float(number) for number in interval[1:-1].split(","))
    return Range(least, most, words or f"in {interval}", interval[0] == "(", interval[-1] == ")")


Count = Annotated[int, at_least(1)]
"""A whole number of things, at least one."""
NonNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]
Share = Annotated[float, within("[0, 1]")]
"""A part of something, from none to all of it."""
Fraction = Annotated[float, within("[0, 1)")]
"""A part of something that is never all of it."""


class Effect(IntEnum):
    """What another value of a field changes. A field changes results unless it is marked with one of the others."""

    NOTHING = 0
    COURSE = 1
    """No result; but a run has one value from its beginning to its end."""
    RECORD = 2
    """No result; but what a run writes down besides, so that such runs cannot stand for each other."""
    RESULTS = 3


WITHOUT_EFFECT = Effect.NOTHING
"""Marks a field that says where or how something is computed, or how long to wait. Results are the same with any value,
but for the rounding of sums: it does not make a run another one, and a run that was stopped may go on with another."""


def extras_of(hint: Any) -> tuple[Any, ...]:
    """What stands in the `Annotated` of a field's type, also where that is a part of the type, as in `Count | None`."""
    own: tuple[Any, ...] = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return own + tuple(extra for part in get_args(hint) if not isinstance(part, Range) for extra in extras_of(part))


def range_of(hint: Any) -> Range | None:
    """The range of a field of this type, if it has one."""
    return next((extra for extra in extras_of(hint) if isinstance(extra, Range)), None)


def effect_of(hint: Any) -> Effect:
    """What another value of a field of this type changes."""
    return next((extra for extra in extras_of(hint) if isinstance(extra, Effect)), Effect.RESULTS)


@cache
def _types(cls: Any) -> dict[str, Any]:
    """The types of all fields of a class."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def _ranges(cls: Any) -> dict[str, Range]:
    """The ranges of those fields of a class that have one."""
    hints = get_type_hints(cls, include_extras=True)
    found = {field.name: range_of(hints[field.name]) for field in dataclasses.fields(cls)}
    return {name: allowed for name, allowed in found.items() if allowed is not None}


class Checked:
    """Base of frozen dataclasses that refuse, when an instance is made, a value of another type or out of range."""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, hint in _types(cls).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), hint))
        for name, allowed in _ranges(cls).items():
            check_range(name, getattr(self, name), allowed)


def known_keywords(cls: type[T]) -> type[T]:
    """Decorate a dataclass that refuses a keyword which is none of its fields with the name that was meant."""
    init = cls.__init__

    @wraps(init)
    def made(self: Any, *values: Any, **given: Any) -> None:
        known = [field.name for field in dataclasses.fields(self) if field.init]
        for name in given:
            if name not in known:
                raise unknown(f"option of {type(self).__name__}", name, known)
        init(self, *values, **given)

    cls.__init__ = made  # type: ignore[method-assign]
    return cls


def check_range(name: str, value: Any, allowed: Range | None) -> None:
    """Refuse a number that is out of a field's range, also one among several; None is always allowed."""
    numbers = value if isinstance(value, tuple) else () if value is None else (value,)
    if allowed is not None and not all(number in allowed for number in numbers):
        raise SettingsError(f"{name}={value}: {allowed.words}")


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value of an option, if it has the type that its field declares, else an error.

    Whole numbers are taken as floats, lists as tuples, NumPy's numbers as Python's. Infinity and not-a-number are
    refused: they mean nothing for any option.
    """
    allowed = get_args(hint) if _is_union(hint) else (hint,)
    for kind in allowed:
        origin = get_origin(kind)
        if kind is Any or (kind is type(None) and value is None):
            return value
        if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        if kind is float and isinstance(value, Real) and not isinstance(value, bool):
            if not isfinite(value):
                raise SettingsError(f"{name}={value}: expected a finite number")
            return float(value)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(checked(name, item, get_args(kind)[0]) for item in value)
        if str(origin) == "typing.Literal":
            if any(value == word and type(value) is type(word) for word in get_args(kind)):  # True is not 1
                return value
        elif not isinstance(origin or kind, type):
            return value  # a kind of type that nothing can be asked about
        elif kind is not int and isinstance(value, origin or kind):  # a bool is an int to Python, but not to us
            return value
    literal = [word for kind in allowed if str(get_origin(kind)) == "typing.Literal" for word in get_args(kind)]
    if literal:
        raise unknown(name, value, map(str, literal))
    raise SettingsError(f"{name}={value!r}: expected {_describe(hint)}")


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union)


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "nothing"}
    words |= {tuple: "a list", Mapping: "a table", Path: "a path"}
    kinds = get_args(hint) if _is_union(hint) else (hint,)
    return " or ".join(words.get(get_origin(kind) or kind, str(kind)) for kind in kinds)
