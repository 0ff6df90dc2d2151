"""Moments of columns: those of parts add up to those of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.moments import Moments

NUMBERS = st.lists(st.floats(-1e4, 1e4) | st.just(float("nan")), min_size=1, max_size=30)


@given(NUMBERS, NUMBERS)
def test_moments_of_parts_add_up_to_those_of_the_whole(one, other):
    column = np.array([*one, *other])[:, None]
    added = Moments.of(column[: len(one)]) + Moments.of(column[len(one) :])
    whole = Moments.of(column)
    for name in ("count", "total", "squares"):
        np.testing.assert_allclose(getattr(added, name), getattr(whole, name), rtol=1e-12, atol=1e-9)


def test_moments_are_mean_and_deviation_of_what_is_there():
    moments = Moments.of(np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]]))
    assert moments.count.tolist() == [2, 0]
    assert moments.mean.tolist() == [2, 0]
    assert moments.deviation.tolist() == [1, 1]


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e9 / 3])
def test_a_column_of_equal_values_is_divided_by_one(value):
    assert Moments.of(np.full((7, 1), value)).deviation.tolist() == [1]


def test_a_small_deviation_around_a_large_mean_is_found():
    column = 2020 + np.arange(5.0)[:, None]
    assert Moments.of(column).deviation[0] == pytest.approx(np.sqrt(2), rel=1e-6)
