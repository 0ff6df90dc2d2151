"""How alike clients are: the papers' worked numbers, edge cases, properties."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import linalg

from coterie.clients.clients import new_models
from coterie.core.errors import SettingsError
from coterie.moves.evidence import (
    class_distance,
    dominant_label,
    inference_similarity,
    label_shares,
    prediction_similarity,
    standardised,
    subspace_angle,
    update_cosine,
    update_distance,
    weight_distance,
)
from coterie.nets import Net, nets
from coterie.nets.stacks import Changes

NAN = float("nan")

# Labels

COUNTS = arrays.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 500))


def test_shares_are_counts_over_samples():
    assert label_shares([[1, 3], [2, 2]]).tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert label_shares(torch.tensor([3, 1])).tolist() == [0.75, 0.25]


@given(COUNTS)
def test_shares_sum_to_one(counts):
    counts[:, 0] += 1
    np.testing.assert_allclose(label_shares(counts).sum(axis=1), 1)


def test_a_client_without_samples_has_no_shares():
    with pytest.raises(SettingsError, match="client 1 has no samples"):
        label_shares([[1, 2], [0, 0]])
    with pytest.raises(SettingsError, match="below 0"):
        label_shares([[1, -2]])


@pytest.mark.parametrize(
    ("shares", "label"),
    [
        ([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], 3),  # one label alone
        ([0.6, 0.4, 0, 0, 0, 0, 0, 0, 0, 0], 0),
        ([0.1, 0.9, 0, 0, 0, 0, 0, 0, 0, 0], 1),  # D_0 = 1/C: the printed logarithm of 0 would make it label 0
        ([0.2, 0.8], 1),  # two classes deviate alike: the majority
        ([0.8, 0.2], 0),
        ([0.5, 0.5], 0),
        ([0.1] * 10, 0),  # balanced: the lowest
        ([1 / 3, 1 / 3, 1 / 3], 0),
        ([0, 0.2, 0.2, 0.2, 0.2, 0.2], 0),  # a missing label deviates most: 1/6 against 1/30
        ([0.5, 0.25, 0.25, 0], 0),  # 1/4 above and 1/4 below: above comes first
        ([0, 0.25, 0.25, 0.5], 3),
        ([0, 0, 0.5, 0.5], 2),
        ([1.0], 0),
    ],
)
def test_the_dominant_label(shares, label):
    assert int(dominant_label(shares)) == label
    assert dominant_label([shares, shares]).tolist() == [label, label]


@given(COUNTS)
def test_the_dominant_label_deviates_most(counts):
    counts[:, 0] += 1
    shares = label_shares(counts)
    deviation = np.abs(shares - 1 / counts.shape[1])
    chosen = dominant_label(shares)
    np.testing.assert_allclose(deviation[np.arange(len(shares)), chosen], deviation.max(axis=1), atol=1e-8)


@given(COUNTS.filter(lambda counts: counts.shape[1] > 1))
def test_where_eq_2_of_cfic_is_defined_it_gives_the_same_label(counts):
    counts[:, 0] += 1
    for shares in label_shares(counts):
        deviation = np.abs(shares - 1 / len(shares))
        unique = (deviation > deviation.max() - 1e-6).sum() == 1
        if unique and (deviation > 0).all():
            assert int(dominant_label(shares)) == np.argmin(np.log(deviation) / np.log(deviation).sum())


def test_shares_must_be_shares():
    with pytest.raises(SettingsError, match="sum to 1"):
        dominant_label([[3, 4]])
    with pytest.raises(SettingsError, match=r"not a finite number at \[0, 1\]"):
        dominant_label([[0.5, NAN]])


# Weights and updates


def models(count=3, name="mlp"):
    return new_models(Net(nets[name], (1, 4, 4), 3, dtype=torch.float64), 0, count)


def test_weight_distances_are_euclidean_over_the_number_of_weights():
    # |(3, 4)| / 2
    assert weight_distance([[0, 0], [3, 4]]).tolist() == [[0, 2.5], [2.5, 0]]
    assert weight_distance(torch.zeros(2, 3, 5)).tolist() == [[0, 0], [0, 0]]


def test_by_default_the_last_layer_counts():
    stack = models()
    head = torch.cat([value.flatten(1) for value in stack.layer(stack.net.layers[-1]).values()], dim=1)
    np.testing.assert_allclose(weight_distance(stack), weight_distance(head), atol=1e-15)
    np.testing.assert_allclose(weight_distance(stack, "all"), weight_distance(stack.parameters), atol=1e-15)
    first = stack.part(stack.net.layers[0])
    np.testing.assert_allclose(weight_distance(stack, stack.net.layers[0]), weight_distance(first), atol=1e-15)
    with pytest.raises(SettingsError, match="no layer 'nose'"):
        weight_distance(stack, "nose")
    with pytest.raises(SettingsError, match="only Models know their layers"):
        weight_distance(head, "all")


def test_equal_updates_have_cosine_one_exactly():
    assert (update_cosine(np.full((4, 5), 0.3)) == 1).all()
    assert (inference_similarity(np.full((4, 5, 3), 1 / 3)) == 1).all()


def test_equal_models_are_at_distance_zero_exactly():
    stack = models(1).parameters.expand(7, -1) * 3.3
    assert (weight_distance(stack) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_below_the_precision_of_weights_is_no_distance(dtype):
    weights = models(1).parameters.to(dtype).expand(2, -1)
    last = torch.tensor([1.0, 1 + torch.finfo(dtype).eps], dtype=dtype)[:, None]
    assert weight_distance(weights * last)[0, 1] == 0
    assert weight_distance(weights * torch.tensor([[1.0], [1.0001]], dtype=dtype))[0, 1] > 0


ROWS = arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-10, 10, width=16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rounding_makes_of_equal_weights_is_no_distance(dtype):
    rows = torch.randn(4, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rows[1] = rows[0] * (1 + torch.finfo(dtype).eps)
    assert not torch.equal(rows[0], rows[1])
    found = weight_distance(rows)
    assert found[0, 1] == found[1, 0] == 0
    assert (found[~np.isin(np.arange(16).reshape(4, 4), [0, 1, 4, 5, 10, 15])] > 0).all()


@given(ROWS, st.randoms(use_true_random=False))
@pytest.mark.parametrize("measure", [weight_distance, update_cosine])
def test_permuting_clients_permutes_rows_and_columns(measure, rows, random):
    order = random.sample(range(len(rows)), len(rows))
    found = measure(rows)
    np.testing.assert_allclose(measure(rows[order]), found[np.ix_(order, order)], atol=1e-6)
    np.testing.assert_array_equal(found, found.T)


def test_update_cosines():
    # Delta of CFL's worked example: (1, 0) and (.9, .1) have cosine .9 / sqrt(.82) = .993884.
    found = update_cosine([[1, 0], [0.9, 0.1], [-1, 0], [0, 0]])
    expected = [[1, 0.993884, -1, 0], [0.993884, 1, -0.993884, 0], [-1, -0.993884, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    stack = models()
    change = Changes(stack.net, stack.parameters)
    np.testing.assert_array_equal(update_cosine(change), update_cosine(stack.parameters))


@pytest.mark.parametrize("measure", [weight_distance, update_cosine])
def test_a_model_that_is_not_finite_is_named(measure):
    with pytest.raises(SettingsError, match="client 1 has numbers that are not finite"):
        measure(torch.tensor([[1.0, 2.0], [NAN, 0.0]]))
    with pytest.raises(SettingsError, match="not a finite number"):
        measure([[1.0, 2.0], [NAN, 0.0]])
    with pytest.raises(SettingsError, match=r"\[client, ...\]"):
        measure([1.0, 2.0])


# Predictions

ABC = np.array([[0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]])
AGREEMENT = [[1, 0.75, 0], [0.75, 1, 0.25], [0, 0.25, 1]]


def test_similarity_of_hard_predictions_is_the_share_of_agreement():
    assert inference_similarity(ABC).tolist() == AGREEMENT
    assert inference_similarity(np.eye(2)[ABC]).tolist() == AGREEMENT
    assert inference_similarity(torch.eye(5)[torch.from_numpy(ABC)]).tolist() == AGREEMENT


def test_sixty_per_cent_agreement_on_the_papers_probe():
    labels = np.zeros((2, 2500), dtype=int)
    labels[1, 1500:] = 1
    assert inference_similarity(labels)[0, 1] == 0.6
    # As printed: sqrt(1500) / 2500 and sqrt(2500) / 2500.
    printed = inference_similarity(labels, as_printed=True)
    np.testing.assert_allclose(printed, [[0.02, 0.0154919], [0.0154919, 0.02]], atol=1e-7)


def test_similarity_of_soft_predictions():
    # <(.8, .2), (.6, .4)> = .56; |(.8, .2)|^2 = .68, |(.6, .4)|^2 = .52.
    found = inference_similarity([[[0.8, 0.2]], [[0.6, 0.4]]])
    assert found[0, 1] == pytest.approx(0.56 / np.sqrt(0.68 * 0.52))


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6), st.just(3)), elements=st.floats(0, 1)),
    st.randoms(use_true_random=False),
)
def test_similarities_are_symmetric_in_the_unit_interval_and_one_with_oneself(predictions, random):
    predictions[..., 0] += 0.1
    found = inference_similarity(predictions)
    assert (found >= 0).all()
    assert (found <= 1).all()
    np.testing.assert_allclose(np.diag(found), 1)
    np.testing.assert_array_equal(found, found.T)
    order = random.sample(range(len(found)), len(found))
    np.testing.assert_allclose(inference_similarity(predictions[order]), found[np.ix_(order, order)], atol=1e-12)


def test_bad_predictions_are_refused():
    with pytest.raises(SettingsError, match="not the net's raw outputs"):
        inference_similarity([[[0.5, -2.0]]])
    with pytest.raises(SettingsError, match="client 1 predicts nothing"):
        inference_similarity([[[0.5, 0.5]], [[0.0, 0.0]]])
    with pytest.raises(SettingsError, match="2 or 3 axes"):
        inference_similarity([0, 1])


def test_prediction_similarity_is_the_mean_of_two_cosines():
    # cos((6, 8), (8, 6)) = 96 / 100, cos((10, 0), (0, 10)) = 0.
    assert prediction_similarity([6, 8], [8, 6], [10, 0], [0, 10]) == pytest.approx(0.48)
    assert prediction_similarity([6, 8], [6, 8], [1, 2], [1, 2]) == pytest.approx(1)


VECTORS = arrays.arrays(np.int64, (4, 3, 10), elements=st.integers(0, 100))


@given(VECTORS)
def test_prediction_similarity_is_symmetric_in_the_unit_interval_and_works_on_many_at_once(counts):
    counts[..., 0] += 1
    aa, ba, ab, bb = counts
    found = prediction_similarity(aa, ba, ab, bb)
    assert found.shape == (3,)
    assert (found >= 0).all()
    assert (found <= 1).all()
    np.testing.assert_allclose(prediction_similarity(bb, ab, ba, aa), found)
    assert prediction_similarity(aa[1], ba[1], ab[1], bb[1]) == pytest.approx(found[1])


# Updates and subspaces


def test_update_distances_are_manhattan_euclidean_or_cosine():
    points = [[0, 3], [4, 0], [0, 6]]
    np.testing.assert_allclose(update_distance(points, "l1"), [[0, 7, 3], [7, 0, 10], [3, 10, 0]])
    np.testing.assert_allclose(update_distance(points), [[0, 5, 3], [5, 0, np.sqrt(52)], [3, np.sqrt(52), 0]])
    np.testing.assert_allclose(update_distance(points, "cosine"), [[0, 1, 0], [1, 0, 1], [0, 1, 0]], atol=1e-12)
    with pytest.raises(SettingsError, match="metric='l3'"):
        update_distance(points, "l3")


def orthonormal(rng, features, vectors):
    return np.linalg.qr(rng.normal(size=(features, vectors)))[0]


def test_angles_between_planes():
    # Planes in space that share an axis, and are 30 degrees apart around it; and one at right angles to a line.
    tilt = np.radians(30)
    flat = np.eye(3)[:, :2]
    tilted = np.array([[1, 0], [0, np.cos(tilt)], [0, np.sin(tilt)]])
    np.testing.assert_allclose(subspace_angle([flat, tilted], "sum"), [[0, 30], [30, 0]], atol=1e-6)
    np.testing.assert_allclose(subspace_angle([flat, tilted]), np.zeros((2, 2)), atol=1e-6)
    line = np.array([[0, 0], [0, 0], [1, 0]])  # one vector, and a place for another
    np.testing.assert_allclose(subspace_angle([flat, line], "sum"), [[0, 90], [90, 0]], atol=1e-6)
    np.testing.assert_allclose(subspace_angle([flat, line]), [[0, 90], [90, 0]], atol=1e-6)


@pytest.mark.parametrize("measure", ["smallest", "sum"])
def test_angles_are_symmetric_and_do_not_depend_on_the_basis(measure):
    rng = np.random.default_rng(0)
    bases = np.stack([orthonormal(rng, 9, 3) for _ in range(4)])
    turned = bases @ np.stack([orthonormal(rng, 3, 3) for _ in range(4)])
    angle = subspace_angle(bases, measure)
    np.testing.assert_array_equal(angle, angle.T)
    np.testing.assert_allclose(subspace_angle(turned, measure), angle, atol=1e-6)
    np.testing.assert_allclose(subspace_angle(-bases, measure), angle, atol=1e-6)
    np.testing.assert_array_equal(np.diag(angle), 0)
    assert (angle[~np.eye(4, dtype=bool)] > 0).all()
    np.testing.assert_array_equal(subspace_angle([bases[0]] * 2, measure), 0)


def test_the_angles_are_scipys():
    rng = np.random.default_rng(1)
    bases = np.stack([orthonormal(rng, 7, 3) for _ in range(2)])
    expected = np.degrees(linalg.subspace_angles(*bases))
    assert subspace_angle(bases)[0, 1] == pytest.approx(expected.min())
    assert subspace_angle(bases, "sum")[0, 1] == pytest.approx(expected.sum())


def test_classes_are_compared_with_themselves_and_a_missing_one_is_at_right_angles():
    axes = np.eye(4)[:, :, None]  # four lines
    none = np.zeros((4, 1))
    both, first, second = [axes[0], axes[1]], [axes[0], none], [none, axes[0]]
    np.testing.assert_allclose(subspace_angle([both, first, second]), [[0, 45, 90], [45, 0, 90], [90, 90, 0]])
    np.testing.assert_allclose(subspace_angle([both, first, second], "sum"), [[0, 45, 90], [45, 0, 90], [90, 90, 0]])


def test_a_client_without_any_direction_is_refused():
    with pytest.raises(SettingsError, match="client 1 has none"):
        subspace_angle([np.eye(3)[:, :2], np.zeros((3, 2))])
    with pytest.raises(SettingsError, match="measure='largest'"):
        subspace_angle([np.eye(3)[:, :2]], "largest")


# By class


def classes(*clients):
    """Class means of one feature, NaN where a client has not the class."""
    return np.array(clients, dtype=float)[..., None]


def test_classes_are_compared_with_themselves_in_units_of_their_own_spread():
    means = np.array([[[0.0, 0.0], [1.0, 0.0]], [[3.0, 4.0], [1.0, 2.0]]])
    found = class_distance(standardised(means, [[4.0, 1.0], [6.0, 3.0]], np.ones((2, 2))))
    # Squared distances 25 and 4, in units of the mean spreads 5 and 2: (5 + 2) / 2.
    np.testing.assert_allclose(found, [[0, 3.5], [3.5, 0]])


def test_which_labels_clients_have_beside_does_not_matter():
    nan = np.nan
    alone = class_distance(classes([1, nan, nan], [2, nan, nan]))
    beside = class_distance(classes([1, 7, nan], [2, nan, 5]))
    np.testing.assert_allclose(alone, beside)
    assert np.isnan(class_distance(classes([1, nan], [nan, 1]))[0, 1])


def test_a_class_that_varies_at_nobody_is_left_out():
    found = standardised([[[1.0], [9.0]], [[2.0], [5.0]]], [[1, 0], [1, 0]], np.ones((2, 2)))
    assert np.isnan(found[:, 1]).all()
    assert class_distance(found)[0, 1] == 1
