"""Row-stochastic weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie.core.errors import SettingsError
from coterie.moves.grouping import Grouping, neighbourhoods
from coterie.moves.mixing import by_samples, cafa_weights, clipped, personal, uniform, without_oneself

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


def test_a_grouping_is_a_membership():
    assert by_samples([1, 3, 2], Grouping.of([0, 0, 1])).tolist() == [[0.25, 0.75, 0], [0, 0, 1]]
    overlapping = neighbourhoods([[1, 0.9, 0], [0.9, 1, 0.9], [0, 0.9, 1]], 0.5)
    assert uniform(3, overlapping)[0].tolist() == [0.5, 0.5, 0]


# CAFA


def test_cafas_worked_weights():
    # Labels (0, 0, 0, 1): w^K = (.75, .75, .75, .25). A = (.6, .4, .5, .5), here the same on everybody's data.
    # w = (.45, .3, .375, .125) / 1.25.
    accuracy = np.tile([[0.6], [0.4], [0.5], [0.5]], 4)
    weights = cafa_weights([3, 3, 3, 1], accuracy, [10, 20, 30, 40])
    np.testing.assert_allclose(weights, [[0.36, 0.24, 0.30, 0.10]])


def test_accuracies_are_weighted_by_whose_data_they_are_from():
    # A = (.9 * 100 + .1 * 300, .2 * 100 + .8 * 300) / 400 = (.3, .65)
    weights = cafa_weights([1, 1], [[0.9, 0.1], [0.2, 0.8]], [100, 300])
    np.testing.assert_allclose(weights, [[0.3 / 0.95, 0.65 / 0.95]])
    np.testing.assert_allclose(cafa_weights([1, 1], [[0.9, 0.1], [0.2, 0.8]], [1, 3]), weights)


def test_one_cluster_and_equal_accuracies_are_a_uniform_mean():
    np.testing.assert_allclose(cafa_weights([3] * 3, np.full((3, 3), 0.4), [5, 6, 7]), uniform(3))


def test_models_without_any_accuracy_count_by_their_clusters():
    np.testing.assert_allclose(cafa_weights([3, 1], np.zeros((2, 2)), [5, 6]), [[0.75, 0.25]])
    np.testing.assert_allclose(cafa_weights([3, 1], np.ones((2, 2)), [0, 0]), [[0.75, 0.25]])


def test_a_single_client_has_all_the_weight():
    assert cafa_weights([2], [[0.3]], [4]).tolist() == [[1]]


@st.composite
def selected(draw):
    count = draw(st.integers(1, 6))
    sizes = draw(arrays.arrays(np.int64, count, elements=st.integers(1, 20)))
    accuracy = draw(arrays.arrays(np.float64, (count, count), elements=st.floats(0, 1)))
    validation = draw(arrays.arrays(np.int64, count, elements=st.integers(0, 100)))
    return sizes, accuracy, validation


@given(selected(), st.randoms(use_true_random=False), st.sampled_from([2, 8]))
def test_cafas_weights_sum_to_one_and_follow_their_clients(case, random, scale):
    sizes, accuracy, validation = case
    weights = cafa_weights(sizes, accuracy, validation)
    np.testing.assert_allclose(weights.sum(dim=1), 1)
    assert (weights >= 0).all()
    order = random.sample(range(len(sizes)), len(sizes))
    permuted = cafa_weights(sizes[order], accuracy[np.ix_(order, order)], validation[order])
    np.testing.assert_allclose(permuted, weights[:, order], atol=1e-12)
    np.testing.assert_allclose(cafa_weights(sizes, accuracy, validation * scale), weights, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (([1, 1], [[0.5, 0.5]], [1, 1]), "for every pair"),
        (([1], [[0.5, 0.5], [0.5, 0.5]], [1]), "for 1 clients"),
        (([1, 1], [[0.5, 50], [0.5, 0.5]], [1, 1]), "from 0 to 1"),
        (([1, 0], [[0.5, 0.5], [0.5, 0.5]], [1, 1]), "none is empty"),
        (([1, 1], [[0.5, np.nan], [0.5, 0.5]], [1, 1]), "not a finite number"),
        (([1, 1], [[0.5, 0.5], [0.5, 0.5]], [1, 1, 1]), "3 numbers for 2 clients"),
    ],
)
def test_what_cafa_cannot_weigh_is_refused(case, message):
    with pytest.raises(SettingsError, match=message):
        cafa_weights(*case)


# SLFed


def test_a_personal_mix_counts_oneself_and_others_by_similarity():
    # (M_0 + .5 M_1 + .25 M_2) / 1.75; client 1 has chosen nobody.
    weights = personal([[0.9, 0.5, 0.25], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(weights, [[1 / 1.75, 0.5 / 1.75, 0.25 / 1.75], [0, 1, 0], [0, 0.5, 0.5]])
    np.testing.assert_allclose(personal([[0, 1.0], [1.0, 0]], own=3), [[0.75, 0.25], [0.25, 0.75]])
    assert personal(torch.zeros(1, 1)).tolist() == [[1]]


def test_with_every_similarity_one_a_personal_mix_is_uniform():
    np.testing.assert_allclose(personal(np.ones((4, 4))), np.full((4, 4), 0.25))


@given(arrays.arrays(np.float64, (5, 5), elements=st.floats(0, 1)), st.permutations(range(5)))
def test_personal_mixes_are_row_stochastic_zero_for_others_and_follow_their_clients(similarity, order):
    order, before = list(order), similarity.copy()
    weights = personal(similarity).numpy()
    np.testing.assert_array_equal(similarity, before)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    others = ~np.eye(5, dtype=bool)
    assert (weights[others & (similarity == 0)] == 0).all()
    np.testing.assert_allclose(personal(similarity[np.ix_(order, order)]), weights[np.ix_(order, order)], atol=1e-12)


def test_a_personal_mix_needs_somebody():
    with pytest.raises(SettingsError, match="weights below 0"):
        personal([[0, -0.5], [0, 0]])
    with pytest.raises(SettingsError, match="weights below 0"):
        personal([[0, 0.5], [0, 0]], own=-1)
    with pytest.raises(SettingsError, match="own=0"):
        personal([[0, 0.5], [0, 0]], own=0)


def test_clipping_brings_models_nearer():
    # Client 1 is 4 away and may be 1 away: at a quarter of the way its weight .5 counts .125, the rest is one's own.
    weights = clipped([[0.5, 0.5], [0.2, 0.8]], [[0, 4.0], [4.0, 0]], limit=1.0)
    np.testing.assert_allclose(weights, [[0.875, 0.125], [0.05, 0.95]])
    models = np.array([[0.0], [4.0]])
    nearer = models[0] + (models[1] - models[0]) / 4
    np.testing.assert_allclose((np.asarray(weights) @ models)[0], 0.5 * models[0] + 0.5 * nearer)
    far = clipped([[0.5, 0.5], [0.2, 0.8]], [[0, 4.0], [4.0, 0]], limit=9.0)
    np.testing.assert_allclose(far, [[0.5, 0.5], [0.2, 0.8]])
    with pytest.raises(SettingsError, match="limit=0"):
        clipped(np.eye(2), np.zeros((2, 2)), limit=0)


def test_a_mean_without_oneself_is_that_of_the_others_in_the_group():
    found = without_oneself([1, 2, 3, 4], Grouping.of([0, 1, 0, 0]))
    expected = [[0, 0, 3 / 7, 4 / 7], [1 / 8, 0, 3 / 8, 4 / 8], [1 / 5, 0, 0, 4 / 5], [1 / 4, 0, 3 / 4, 0]]
    np.testing.assert_allclose(found, expected)  # the second is alone: it gets the mean of all others
    np.testing.assert_allclose(without_oneself([1, 2, 3, 4])[1], expected[1])


def test_there_is_no_mean_without_the_only_one():
    with pytest.raises(SettingsError, match="there is nobody else"):
        without_oneself([3])
