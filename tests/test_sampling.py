"""Who takes part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.errors import SettingsError
from coterie.randomness import generator
from coterie.sampling import cohort_size, uniform


@pytest.mark.parametrize(
    ("participation", "clients", "size"),
    [
        (1.0, 10, 10),
        (0.1, 100, 10),
        (0.29, 100, 29),  # 28.999... in binary
        (0.15, 10, 1),
        (0.01, 10, 1),
        (0.99, 10, 9),
        (0.07, 100, 7),  # 7.000...001 in binary
        (1e-12, 3, 1),
    ],
)
def test_a_cohort_is_the_share_rounded_down_but_never_empty(participation, clients, size):
    assert cohort_size(participation, clients) == size


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 1000))
def test_a_cohort_is_never_larger_than_all(participation, clients):
    assert 1 <= cohort_size(participation, clients) <= clients


@pytest.mark.parametrize("participation", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_out_of_range_is_an_error(participation):
    with pytest.raises(SettingsError, match=r"a fraction in \(0, 1\]; use 1.0 for all clients"):
        cohort_size(participation, 10)


CLIENTS = np.array([2, 3, 5, 7, 11, 13])


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_sample_is_of_different_clients_in_their_order(seed, count):
    found = uniform(CLIENTS, count, generator(seed))
    assert len(found) == min(count, 6)
    assert (np.diff(found) > 0).all()
    assert np.isin(found, CLIENTS).all()


def test_every_client_is_equally_likely():
    hits = np.bincount(np.concatenate([uniform(CLIENTS, 2, generator(seed)) for seed in range(3000)]))[CLIENTS]
    assert stats.chisquare(hits).pvalue > 1e-3


def test_a_sample_repeats_for_its_key():
    np.testing.assert_array_equal(uniform(CLIENTS, 3, generator(1, "a")), uniform(CLIENTS, 3, generator(1, "a")))
