"""Fields say which values they take and whether they decide a result, and are checked where instances are made."""

from dataclasses import dataclass
from math import inf, nan
from typing import Annotated

import pytest

from coterie.core.errors import SettingsError
from coterie.core.fields import (
    WITHOUT_EFFECT,
    Checked,
    Count,
    Fraction,
    NonNegative,
    above,
    at_least,
    within,
)
from coterie.core.registry import options


@dataclass(frozen=True)
class Settings(Checked):
    count: Count = 1
    share: Fraction = 0.5
    limit: NonNegative | None = None
    workers: Annotated[int | None, at_least(0), WITHOUT_EFFECT] = None
    parts: Annotated[tuple[float, ...], within("(0, 1]")] = (0.5,)
    name: str = "x"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count=0: at least 1"),
        ({"share": 1.0}, r"share=1.0: in \[0, 1\)"),
        ({"share": nan}, "share=nan"),
        ({"limit": -0.5}, "limit=-0.5: 0 or more"),
        ({"limit": inf}, "limit=inf: expected a finite number"),
        ({"workers": -1}, "workers=-1: 0 or more"),
        ({"parts": (0.5, 0.0)}, r"parts=\(0.5, 0.0\): in \(0, 1\]"),
    ],
)
def test_values_out_of_range_are_refused_by_name(given, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**given)


def test_values_in_range_and_none_pass():
    Settings(count=3, share=0.0, limit=None, workers=0, parts=(1.0,))
    Settings(limit=0.0, parts=())


def test_ranges_know_their_ends():
    assert 0.0 in at_least(0)
    assert 0.0 not in above(0)
    assert {0.0, 1.0} <= {value for value in (-0.1, 0.0, 1.0, 1.1) if value in within("[0, 1]")}
    assert [value in within("(0, 1)") for value in (0.0, 0.5, 1.0)] == [False, True, False]


def test_a_field_says_whether_it_decides_a_result_and_has_its_plain_type():
    known = {option.name: option for option in options(Settings)}
    assert {name for name, option in known.items() if not option.decides} == {"workers"}
    assert known["count"].type is int
    assert known["limit"].type == float | None
