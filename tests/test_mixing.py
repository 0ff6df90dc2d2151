"""Row-stochastic weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie.errors import SettingsError
from coterie.mixing import by_samples, uniform

SAMPLES = arrays.arrays(np.int64, st.integers(1, 8), elements=st.integers(1, 1000))


@st.composite
def groups(draw):
    """Samples of clients, and groups of them that may overlap but are never empty."""
    samples = draw(SAMPLES)
    member = arrays.arrays(bool, (draw(st.integers(1, 4)), len(samples)))
    membership = draw(member)
    membership[:, draw(st.integers(0, len(samples) - 1))] = True
    return samples, membership


@given(groups())
def test_rows_sum_to_one_and_are_zero_outside_of_the_group(case):
    samples, membership = case
    weights = by_samples(samples, membership)
    np.testing.assert_allclose(weights.sum(dim=1), 1, atol=1e-12)
    assert (weights.numpy()[~membership] == 0).all()
    assert (weights.numpy()[membership] > 0).all()


@given(groups(), st.randoms(use_true_random=False))
def test_permuting_clients_permutes_the_weights(case, random):
    samples, membership = case
    order = random.sample(range(len(samples)), len(samples))
    permuted = by_samples(samples[order], membership[:, order])
    np.testing.assert_allclose(permuted, by_samples(samples, membership)[:, order], atol=1e-15)


def test_weights_are_in_proportion_to_samples():
    assert by_samples([1, 3]).tolist() == [[0.25, 0.75]]
    # FedAvg of 0.1 and -0.271 by one and three samples: 0.025 - 0.20325.
    assert (by_samples([1, 3]) @ torch.tensor([0.1, -0.271], dtype=torch.float64)).item() == pytest.approx(-0.17825)


def test_a_client_without_samples_has_no_weight():
    assert by_samples([0, 2, 2]).tolist() == [[0, 0.5, 0.5]]


@pytest.mark.parametrize("samples", [torch.tensor([1, 3]), np.array([1, 3]), [1.0, 3.0], torch.tensor([1.0, 3.0])])
def test_samples_may_come_in_any_form(samples):
    weights = by_samples(samples, [[True, True], [False, True]])
    assert weights.dtype == torch.float64
    assert weights.tolist() == [[0.25, 0.75], [0, 1]]


def test_uniform_weights_are_equal_among_members():
    assert uniform(4).tolist() == [[0.25] * 4]
    assert uniform(3, [[1, 1, 0], [0, 0, 1]]).tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("samples", "membership"), [([0, 0], None), ([1, 2], [[True, True], [False, False]]), ([0, 2], [[True, False]])]
)
def test_a_group_without_samples_is_an_error(samples, membership):
    with pytest.raises(SettingsError, match="no members with samples"):
        by_samples(samples, membership)
