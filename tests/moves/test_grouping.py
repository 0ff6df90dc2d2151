"""From evidence to membership: the papers' worked numbers, reductions, partitions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.spatial.distance import cdist

from coterie.core.errors import CoterieError, SettingsError
from coterie.moves.evidence import update_cosine
from coterie.moves.grouping import (
    Grouping,
    best_fit,
    bipartition,
    by_key,
    dbscan,
    density,
    kmeans,
    kmeans_silhouette,
    largest_group,
    linkage,
    merging,
    neighbourhoods,
    vote,
)


def partition(grouping):
    """Groups as a set of sets, without their order."""
    return {frozenset(grouping.members(group).tolist()) for group in range(len(grouping))}


def sets(*groups):
    return {frozenset(group) for group in groups}


# What a grouping is


def test_labels_and_matrix_say_the_same():
    grouping = Grouping.of([0, 1, 0, -1], groups=3)
    assert grouping.matrix.tolist() == [[True, False, True, False], [False, True, False, False], [False] * 4]
    assert grouping.labels.tolist() == [0, 1, 0, -1]
    assert grouping.sizes.tolist() == [2, 1, 0]
    assert grouping.members(0).tolist() == [0, 2]
    assert len(grouping) == 3
    assert Grouping(torch.eye(2, dtype=torch.bool)).labels.tolist() == [0, 1]


def test_overlapping_groups_have_no_labels():
    grouping = Grouping(np.array([[1, 1, 0], [0, 1, 1]]))
    assert not grouping.disjoint
    assert not hasattr(grouping, "labels")
    with pytest.raises(CoterieError, match="client 1 is in several groups"):
        _ = grouping.labels


def test_repeated_groups_are_one():
    grouping = Grouping(np.array([[0, 1, 1], [1, 0, 0], [0, 1, 1]]))
    assert grouping.distinct().matrix.tolist() == [[False, True, True], [True, False, False]]
    assert grouping.distinct().labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize("matrix", [[True, False], [[]], np.zeros((0, 3), dtype=bool)])
def test_a_grouping_has_groups_and_clients(matrix):
    with pytest.raises(SettingsError, match=r"\[group, client\]"):
        Grouping(matrix)


def test_a_label_beyond_the_groups_is_an_error():
    with pytest.raises(SettingsError, match="3 with 2 groups"):
        Grouping.of([0, 3], groups=2)


# k-means and silhouette

LINE = np.array([[0.0], [1.0], [4.0], [5.0]])
SQUARE = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [4.0, 1.0]])


def test_the_mean_silhouette_of_two_pairs():
    # {0, 1} | {4, 5}: (1 - 1/4.5, 1 - 1/3.5, 1 - 1/3.5, 1 - 1/4.5), mean .746032.
    found = kmeans_silhouette(LINE)
    assert found.scores[2] == pytest.approx(0.746032, abs=1e-6)
    assert found.k == 2
    assert set(found.scores) == {2, 3}
    assert partition(found) == sets({0, 1}, {2, 3})
    # b = (4 + sqrt(17)) / 2 = 4.061553, 1 - 1/b = .753789 for each.
    assert kmeans_silhouette(SQUARE).scores[2] == pytest.approx(0.753789, abs=1e-6)


def test_a_silhouette_unpacks_as_labels_k_and_scores():
    labels, k, scores = kmeans_silhouette(torch.from_numpy(SQUARE))
    assert labels.tolist() == [0, 0, 1, 1]
    assert k == 2
    assert scores[2] > scores[3]


def test_k_is_sought_in_the_range_and_the_lowest_of_equals_is_taken():
    found = kmeans_silhouette(SQUARE, k_range=[3])
    assert list(found.scores) == [3]
    assert len(found) == 3
    # Three places with two clients each: silhouette 1 for k = 3 alone; as far apart as can be.
    places = np.eye(3)[[0, 0, 1, 1, 2, 2]]
    found = kmeans_silhouette(places)
    assert found.k == 3
    assert found.scores[3] == pytest.approx(1)
    assert max(found.scores) == 3  # more groups than distinct features say nothing
    assert partition(found) == sets({0, 1}, {2, 3}, {4, 5})


@pytest.mark.parametrize(
    "features",
    [[[1.0, 2.0]], [[0.0], [9.0]], [[0.0], [1.0], [9.0]], np.full((6, 3), 0.1)],
    ids=["one client", "two", "three", "all identical"],
)
def test_few_or_identical_clients_are_one_group(features):
    found = kmeans_silhouette(features)
    assert found.labels.tolist() == [0] * len(features)
    assert found.scores == {}


def test_a_range_without_a_possible_k_gives_one_group():
    assert kmeans_silhouette(LINE, k_range=[1]).k == 1
    assert kmeans_silhouette(LINE, k_range=[7]).k == 1
    with pytest.raises(SettingsError, match="k=0"):
        kmeans_silhouette(LINE, k_range=range(3))


def test_kmeans_gives_k_groups_or_as_many_as_are_distinct():
    assert partition(kmeans(SQUARE, 2)) == sets({0, 1}, {2, 3})
    assert len(kmeans(SQUARE, 1)) == 1
    assert len(kmeans(SQUARE, 9)) == 4
    assert len(kmeans(np.ones((5, 2)), 3)) == 1
    with pytest.raises(SettingsError, match="k=0"):
        kmeans(SQUARE, 0)


def test_kmeans_repeats_for_its_seed():
    features = np.random.default_rng(0).normal(size=(12, 3))
    np.testing.assert_array_equal(kmeans(features, 4, seed=3).labels, kmeans(features, 4, seed=3).labels)


# Keys, sizes, losses


def test_equal_keys_are_a_group():
    found = by_key(torch.tensor([7, 3, 7, 9]))
    assert found.labels.tolist() == [1, 0, 1, 2]
    assert by_key(["b", "a", "b"]).labels.tolist() == [1, 0, 1]
    assert by_key([5]).labels.tolist() == [0]
    with pytest.raises(SettingsError, match="finite"):
        by_key([1.0, np.nan])


def test_the_largest_group_is_iid_and_entropy_decides_ties():
    shares = np.array([[1, 0], [1, 0], [0.5, 0.5], [0.5, 0.5], [0, 1.0]])
    found = largest_group([0, 0, 0, 1, 1], shares)
    assert found.matrix.tolist() == [[True, True, True, False, False]]
    assert found.labels.tolist() == [0, 0, 0, -1, -1]
    assert largest_group([0, 0, 1, 1, 2], shares).members(0).tolist() == [2, 3]
    assert largest_group([0, 0], [[0.5, 0.5]] * 2).matrix.all()
    assert largest_group([1, 0], [[0.5, 0.5]] * 2).members(0).tolist() == [1]
    with pytest.raises(SettingsError, match="1 rows for 2 clients"):
        largest_group([0, 1], [[0.5, 0.5]])


def test_clients_join_the_model_with_the_lowest_loss():
    assert best_fit([[1, 2], [3, 1]]).labels.tolist() == [0, 1]
    assert best_fit(torch.tensor([[1.0, 1.0], [2.0, 1.0]])).labels.tolist() == [0, 1]
    assert best_fit([[np.nan, 5.0], [np.nan, np.nan], [np.inf, 1.0]]).labels.tolist() == [1, 0, 1]
    found = best_fit([[2, 1, 3]])
    assert found.sizes.tolist() == [0, 1, 0]  # models nobody has chosen are still there
    with pytest.raises(SettingsError, match=r"\[client, model\]"):
        best_fit([1.0, 2.0])


@given(arrays.arrays(np.float64, (5, 4), elements=st.floats(0, 10), unique=True), st.permutations(range(4)))
def test_permuting_models_permutes_groups(loss, order):
    np.testing.assert_array_equal(best_fit(loss[:, order]).matrix, best_fit(loss).matrix[list(order)])


# Votes

FOUR = np.array([[0, 1, 9, 10], [1, 0, 8, 9], [9, 8, 0, 1], [10, 9, 1, 0]], dtype=float)
SIZES = [100, 300, 200, 50]


def test_the_worked_vote():
    # P of 0 and 1 is {0, 1}: 100/400 and 300/400, twice each for client 1; of 2 and 3 {2, 3}: 200/250 and 50/250.
    found = vote(FOUR, SIZES)
    assert found.labels.tolist() == [0, 0, 1, 1]
    expected = [[0, 0.5, 0, 0], [0, 1.5, 0, 0], [0, 0, 1.6, 0], [0, 0, 0.4, 0]]
    np.testing.assert_allclose(found.scores, expected)
    assert found.near.tolist() == [[True, True, False, False]] * 2 + [[False, False, True, True]] * 2


def test_unweighted_votes_count_alike():
    found = vote(FOUR, SIZES, weighted=False)
    assert found.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(found.scores, [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]])


def test_equal_distances_are_one_group():
    equal = np.ones((5, 5)) - np.eye(5)
    assert len(vote(equal, np.ones(5))) == 1
    assert len(vote(np.zeros((5, 5)), np.ones(5), guard=0)) == 1
    hardly = equal[:4, :4] + 1e-9 * (FOUR > 5)
    assert len(vote(hardly, SIZES)) == 1
    assert len(vote(hardly, SIZES, guard=0)) == 2


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_clients_are_one_group(clients):
    assert len(vote(np.ones((clients, clients)) - np.eye(clients), np.ones(clients))) == 1


def test_a_representative_takes_those_that_joined_it_along():
    # On a line 0, 1, 2.5, ..., 20: with these sizes 0 joins 1 and 1 joins 2, so all three are one group.
    place = np.array([0.0, 1.0, 2.5, 20.0, 21.0])
    found = vote(np.abs(place[:, None] - place), [10, 20, 30, 5, 4])
    assert partition(found) == sets({0, 1, 2}, {3, 4})


@given(
    arrays.arrays(np.float64, (6, 2), elements=st.floats(-4, 4, width=16)),
    st.permutations(range(6)),
    st.sampled_from([0.25, 1.0, 8.0]),
    st.booleans(),
)
def test_permuting_or_scaling_permutes_the_partition_only(points, order, scale, weighted):
    order = list(order)
    samples = np.array([10, 20, 40, 80, 160, 320])
    distance = cdist(points, points)
    found = vote(distance, samples, weighted)
    highest = np.sort(found.scores, axis=1)
    assume((highest[:, -1] - highest[:, -2] > 1e-6).all())  # the lowest position decides ties, so order matters there
    assert found.disjoint
    assert (found.labels >= 0).all()
    other = vote(scale * distance[np.ix_(order, order)], samples[order], weighted)
    assert {frozenset(order[client] for client in group) for group in partition(other)} == partition(found)


def rates(groups, ratio, guard, trials=40):
    """How often 20 clients with Gaussian weights are grouped exactly as they were made."""
    hits = 0
    truth = np.arange(20) % groups
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        # Distances between groups are `ratio` times those inside: sqrt(2 spread^2 + |centre distance|^2).
        centres = rng.normal(size=(groups, 4010)) * np.sqrt(ratio**2 - 1)
        weights = centres[truth] + rng.normal(size=(20, 4010))
        sizes = rng.integers(500, 1500, 20)
        found = vote(cdist(weights, weights), sizes, guard=guard)
        hits += partition(found) == partition(Grouping.of(truth))
    return hits / trials


def test_the_guard_keeps_iid_clients_together_and_lets_groups_apart():
    assert rates(1, 1.0, guard=0.1) > 0.9
    assert rates(1, 1.0, guard=0.0) < 0.5
    assert rates(4, 1.8, guard=0.1) > 0.9


def test_bad_votes_are_refused():
    with pytest.raises(SettingsError, match="3 numbers for 4 clients"):
        vote(FOUR, [1, 2, 3])
    with pytest.raises(SettingsError, match="client 2 has none"):
        vote(FOUR, [1, 2, 0, 3])
    with pytest.raises(SettingsError, match="guard=-1"):
        vote(FOUR, SIZES, guard=-1)


# Neighbourhoods

AGREEMENT = np.array([[1, 0.75, 0], [0.75, 1, 0.25], [0, 0.25, 1]])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.5, [[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
        (0.75, [[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
        (0.0, np.ones((3, 3))),
        (0.9, np.eye(3)),
        (1.1, np.eye(3)),  # oneself is always in
        (0.25, [[1, 1, 0], [1, 1, 1], [0, 1, 1]]),
    ],
)
def test_neighbourhoods(threshold, expected):
    np.testing.assert_array_equal(neighbourhoods(AGREEMENT, threshold).matrix, np.array(expected, dtype=bool))


@given(arrays.arrays(np.float64, (5, 5), elements=st.floats(0, 1)), st.floats(0, 1), st.permutations(range(5)))
def test_permuting_clients_permutes_neighbourhoods(similarity, threshold, order):
    order = list(order)
    found = neighbourhoods(similarity, threshold).matrix
    assert found.diagonal().all()
    permuted = neighbourhoods(similarity[np.ix_(order, order)], threshold).matrix
    np.testing.assert_array_equal(permuted, found[np.ix_(order, order)])


# Linkage

PAIRS = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0], [5.0, 1.0]])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.5, sets({0}, {1}, {2}, {3})),
        (1.5, sets({0, 1}, {2, 3})),
        (6.0, sets({0, 1, 2, 3})),
        (np.inf, sets({0, 1, 2, 3})),
        (0.0, sets({0}, {1}, {2}, {3})),
    ],
)
def test_fl_hcs_worked_cuts(threshold, expected):
    assert partition(linkage(cdist(PAIRS, PAIRS), threshold, method="complete")) == expected


@pytest.mark.parametrize("method", ["single", "complete", "average", "ward"])
def test_a_number_of_groups_is_met_exactly(method):
    for groups in range(1, 5):
        assert len(linkage(cdist(PAIRS, PAIRS), groups=groups, method=method)) == groups
    assert len(linkage(cdist(PAIRS, PAIRS), groups=9, method=method)) == 4
    assert len(linkage(np.zeros((4, 4)), groups=3, method=method)) == 3


def test_a_relative_threshold_is_in_medians():
    distance = 1000 * cdist(PAIRS, PAIRS)  # the median pair is 5 apart
    assert partition(linkage(distance, 0.3, relative=True)) == sets({0, 1}, {2, 3})
    assert len(linkage(distance, 0.1, relative=True)) == 4


def test_identical_clients_are_one_group_at_threshold_zero():
    assert len(linkage(np.zeros((5, 5)), 0.0)) == 1
    assert len(linkage([[0.0]], 0.0)) == 1
    assert len(linkage([[0.0]], groups=3)) == 1


def test_the_cut_of_flis_includes_its_threshold():
    # a and b agree on three of four: they are together for every threshold up to .75.
    assert partition(linkage(1 - AGREEMENT, 1 - 0.75)) == sets({0, 1}, {2})
    assert len(linkage(1 - AGREEMENT, 1 - 0.76)) == 3
    assert len(linkage(1 - AGREEMENT, 1 - 0.0)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a threshold or the number"),
        ({"threshold": 1.0, "groups": 2}, "either a threshold or the number"),
        ({"threshold": -1.0}, "threshold=-1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"groups": 0}, "groups=0"),
        ({"groups": 2, "method": "centroid"}, "method='centroid'"),
    ],
)
def test_bad_linkage_is_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        linkage(cdist(PAIRS, PAIRS), **options)


# Two groups

DELTA = np.array([[1, 0], [0.9, 0.1], [-1, 0], [-0.9, -0.1]])


@pytest.mark.parametrize("method", ["single", "complete"])
def test_cfls_worked_split(method):
    similarity = update_cosine(DELTA)
    found = bipartition(similarity, method)
    assert partition(found) == sets({0, 1}, {2, 3})
    across = similarity[np.ix_(found.members(0), found.members(1))]
    within = [similarity[np.ix_(found.members(group), found.members(group))] for group in range(2)]
    assert across.max() == pytest.approx(-0.99388, abs=1e-5)
    assert min(block.min() for block in within) == pytest.approx(0.99388, abs=1e-5)


@given(arrays.arrays(np.float64, (6, 3), elements=st.floats(-4, 4, width=16)))
def test_a_split_minimises_the_greatest_similarity_across(rows):
    similarity = update_cosine(rows)

    def greatest(inside):
        return similarity[np.ix_(inside, ~inside)].max()

    best = min(
        greatest(np.isin(np.arange(6), group)) for size in (1, 2, 3) for group in itertools.combinations(range(6), size)
    )
    found = bipartition(similarity)
    assert len(found) == 2
    assert found.sizes.min() >= 1
    assert greatest(found.matrix[0]) == pytest.approx(best, abs=1e-9)


def test_splits_of_few_clients():
    assert len(bipartition([[1.0]])) == 1
    assert partition(bipartition(np.ones((2, 2)))) == sets({0}, {1})


# Density


def bundles(sizes=(5, 5)):
    """Directions in bundles that are orthogonal to each other, with a little noise."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.eye(8)[[number] * size] for number, size in enumerate(sizes)])
    return 1 - update_cosine(rows + 0.05 * rng.normal(size=rows.shape))


@pytest.mark.parametrize("find", [density, lambda distance: dbscan(distance, 0.3)], ids=["density", "dbscan"])
def test_two_orthogonal_bundles_are_two_groups(find):
    assert partition(find(bundles())) == sets(range(5), range(5, 10))


@pytest.mark.parametrize("find", [density, dbscan])
def test_clients_in_no_dense_place_are_alone_or_placed_or_out(find):
    distance = bundles((4, 4, 1))
    assert partition(find(distance)) == sets(range(4), range(4, 8), {8})
    placed = find(distance, noise="nearest")
    assert len(placed) == 2
    assert (placed.labels >= 0).all()
    out = find(distance, noise="out")
    assert out.labels[8] == -1
    assert len(out) == 2
    with pytest.raises(SettingsError, match="noise='lost'"):
        find(distance, noise="lost")


@pytest.mark.parametrize("find", [density, dbscan])
def test_identical_clients_have_the_same_label(find):
    distance = bundles((3, 3))
    twice = np.repeat(np.repeat(distance, 2, axis=0), 2, axis=1)
    labels = find(twice).labels
    np.testing.assert_array_equal(labels[::2], labels[1::2])
    assert len(find(np.zeros((6, 6)))) == 1


@pytest.mark.parametrize("noise", ["alone", "nearest", "out"])
@pytest.mark.parametrize("find", [density, dbscan])
def test_one_client_is_a_group_of_its_own(find, noise):
    assert find([[0.0]], noise=noise).matrix.shape == (1, 1)


def test_all_may_be_one_dense_group_only_if_allowed():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 400))
    assert len(density(cdist(rows, rows), min_size=5, noise="nearest")) == 1
    assert len(density(bundles((6, 6)), min_size=3, single=False)) == 2


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda distance: density(distance, min_size=1), "min_size=1"),
        (lambda distance: dbscan(distance, min_size=0), "min_size=0"),
        (lambda distance: dbscan(distance, radius=0.0), "radius=0"),
    ],
)
def test_bad_density_is_refused(find, message):
    with pytest.raises(SettingsError, match=message):
        find(bundles())


# All of them

ON_DISTANCES = {
    "vote": lambda distance: vote(distance, np.arange(len(distance)) + 1),
    "linkage": lambda distance: linkage(distance, 0.5, relative=True),
    "bipartition": lambda distance: bipartition(1 - distance),
    "density": density,
    "dbscan": dbscan,
    "kmeans": lambda distance: kmeans(distance, 2),
    "silhouette": kmeans_silhouette,
}


@pytest.mark.parametrize("find", ON_DISTANCES.values(), ids=ON_DISTANCES)
@settings(max_examples=25)
@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 7), st.just(2)), elements=st.floats(-4, 4, width=16)))
def test_every_client_is_in_exactly_one_group(find, points):
    before = cdist(points, points)
    distance = before.copy()
    found = find(distance)
    np.testing.assert_array_equal(distance, before)  # what was given is left alone
    assert (found.matrix.sum(axis=0) == 1).all()
    assert (found.sizes > 0).all()
    assert found.matrix.shape == (len(found), len(points))
    firsts = [found.members(group)[0] for group in range(len(found))]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("find", ON_DISTANCES.values(), ids=ON_DISTANCES)
def test_what_is_not_a_number_is_named(find):
    with pytest.raises(SettingsError, match="not a finite number"):
        find(np.array([[0, np.nan], [np.nan, 0]]))


@pytest.mark.parametrize("name", ["vote", "linkage", "density", "dbscan"])
def test_distances_are_square_symmetric_and_not_negative(name):
    find = ON_DISTANCES[name]
    with pytest.raises(SettingsError, match="for every pair"):
        find(np.ones((2, 3)))
    with pytest.raises(SettingsError, match=r"not symmetric, \[0, 1\]"):
        find(np.array([[0, 1.0], [2.0, 0]]))
    with pytest.raises(SettingsError, match="below 0; a similarity s is the distance 1 - s"):
        find(np.array([[0, -1.0], [-1.0, 0]]))


# By class means

NAN = float("nan")


def test_clients_that_share_no_label_meet_by_way_of_others():
    # Two kinds of clients, at 0 and at 3; each has one or two of three labels.
    rows = [[0, 0, NAN], [NAN, 0.1, 0.1], [0.1, NAN, 0], [3, 3, NAN], [NAN, 3.1, 3.1], [3.1, NAN, NAN]]
    cuts = merging(np.array(rows)[..., None])
    assert cuts[2].labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [len(cuts[groups]) for groups in cuts] == list(cuts) == [2, 3, 4, 5]


def test_what_shares_no_label_is_never_merged():
    rows = np.array([[0, NAN, NAN], [9, NAN, NAN], [NAN, 0, NAN], [NAN, NAN, 0]])[..., None]
    cuts = merging(rows)
    assert list(cuts) == [3]
    assert cuts[3].labels.tolist() == [0, 0, 1, 2]
    assert merging(rows, most=2) == {}


def test_cuts_are_nested_and_permute_with_the_clients():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 4, 2))
    rows[rng.random((9, 4)) < 0.4] = NAN
    order = rng.permutation(9)
    plain, permuted = merging(rows), merging(rows[order])
    assert list(plain) == list(permuted)
    for groups, cut in plain.items():
        together = cut.labels[:, None] == cut.labels
        assert (together[np.ix_(order, order)] == (permuted[groups].labels[:, None] == permuted[groups].labels)).all()
        if groups + 1 in plain:
            assert (together | ~(plain[groups + 1].labels[:, None] == plain[groups + 1].labels)).all()


def test_class_means_have_three_axes():
    with pytest.raises(SettingsError, match=r"features of shape \(2, 2\): expected class means"):
        merging(np.zeros((2, 2)))
