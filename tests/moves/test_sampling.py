"""Who takes part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.randomness import generator
from coterie.moves.grouping import Grouping, by_key, neighbourhoods
from coterie.moves.sampling import (
    by_size,
    chances_by_similarity,
    chances_by_size,
    cohort_size,
    draw,
    stratified,
    uniform,
)


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


# By size


def test_drawing_by_size_says_who_and_how_often():
    drawn, counts = by_size(CLIENTS, [1, 0, 2, 3, 0, 4], 50, generator(0))
    assert counts.sum() == 50
    assert set(drawn) <= {2, 5, 7, 13}
    assert (np.diff(drawn) > 0).all()
    only, times = by_size(CLIENTS, [0, 0, 9, 0, 0, 0], 7, generator(0))
    assert (only.tolist(), times.tolist()) == ([5], [7])


def test_clients_are_drawn_in_proportion_to_their_sizes():
    drawn, counts = by_size(np.arange(4), [1, 2, 3, 4], 5000, generator(1))
    assert drawn.tolist() == [0, 1, 2, 3]
    assert stats.chisquare(counts, 5000 * np.array([0.1, 0.2, 0.3, 0.4])).pvalue > 1e-3


def test_sizes_must_fit():
    with pytest.raises(SettingsError, match="1 numbers for 6 clients"):
        by_size(CLIENTS, [1], 2, generator(0))
    with pytest.raises(SettingsError, match="nobody has samples"):
        by_size(CLIENTS, [0] * 6, 2, generator(0))


# Stratified


@st.composite
def strata(draw):
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=30))
    return np.array(labels), draw(st.integers(1, 30)), draw(st.integers(0, 2**32))


@given(strata(), st.sampled_from(["max", "min"]))
def test_a_stratified_sample_is_of_so_many_different_clients(case, quota):
    labels, count, seed = case
    found = stratified(labels, count, quota, generator(seed))
    assert len(found) == min(count, len(labels))
    assert (np.diff(found) > 0).all()
    assert ((found >= 0) & (found < len(labels))).all()


@given(strata())
def test_every_group_is_hit_where_there_are_places_enough(case):
    labels, count, seed = case
    groups = len(set(labels))
    found = stratified(labels, count, "max", generator(seed))
    hit = np.bincount(labels[found], minlength=6)
    if groups <= count:
        assert (hit > 0).sum() == groups
        sizes = np.bincount(labels, minlength=6)
        assert (hit >= np.minimum(sizes, count // groups)).all()
    else:
        assert hit.max() == 1  # the groups that give one are drawn


def test_the_papers_numbers():
    # 100 clients in 10 groups, 30 places: `max` gives 3 from each; `min` one from each, and 20 of all others.
    labels = np.arange(100) % 10
    rng = generator(0)
    spread = [np.bincount(labels[stratified(labels, 30, "max", rng)], minlength=10) for _ in range(20)]
    assert all((hit == 3).all() for hit in spread)
    printed = [np.bincount(labels[stratified(labels, 30, "min", rng)], minlength=10) for _ in range(20)]
    assert all(hit.min() >= 1 for hit in printed)
    assert any(hit.max() > 3 for hit in printed)
    # `min` with fewer places than groups has a quota of 0: all are drawn at random, and a group can be drawn twice.
    few = [np.bincount(labels[stratified(labels, 6, "min", rng)]).max() for _ in range(50)]
    assert max(few) > 1


def test_a_small_group_gives_all_and_the_rest_fills_up():
    labels = np.array([0] + [1] * 9)
    for seed in range(20):
        found = stratified(labels, 6, "max", generator(seed))
        assert 0 in found
        assert len(found) == 6


def test_inside_a_group_every_client_is_equally_likely():
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    found = [stratified(labels, 2, "max", generator(seed)) for seed in range(3000)]
    hits = np.bincount(np.concatenate(found), minlength=8)
    assert stats.chisquare(hits[:3]).pvalue > 1e-3
    assert stats.chisquare(hits[3:]).pvalue > 1e-3


def test_groups_may_be_a_grouping_and_clients_have_positions():
    labels = ["a", "a", "b", "b", "b", "a"]
    plain = stratified(labels, 3, rng=generator(0))
    np.testing.assert_array_equal(stratified(by_key(labels), 3, rng=generator(0)), plain)
    np.testing.assert_array_equal(stratified(labels, 3, rng=generator(0), clients=CLIENTS), CLIENTS[plain])
    np.testing.assert_array_equal(stratified(Grouping.of([0, 2, 0], 4), 2, rng=generator(0)), [0, 1])


def test_all_are_taken_where_there_are_places_for_all():
    assert stratified([0, 1, 1], 3).tolist() == [0, 1, 2]
    assert stratified([0], 1).tolist() == [0]


def test_who_is_in_no_group_is_drawn_with_the_rest():
    groups = Grouping.of([0, 0, 1, -1, -1])
    drawn = [stratified(groups, 3, "max", generator(seed)).tolist() for seed in range(20)]
    assert all(2 in clients and (0 in clients or 1 in clients) for clients in drawn)
    assert {client for clients in drawn for client in clients} == {0, 1, 2, 3, 4}
    nobody = Grouping.of([-1, -1, -1, -1], groups=1)
    assert stratified(nobody, 2, "max", generator(0)).tolist() == uniform(np.arange(4), 2, generator(0)).tolist()


def test_what_cannot_be_stratified_is_refused():
    with pytest.raises(SettingsError, match="quota='median'"):
        stratified([0, 1, 1], 2, "median", generator(0))
    with pytest.raises(SettingsError, match="count=0"):
        stratified([0, 1, 1], 0, rng=generator(0))
    with pytest.raises(SettingsError, match="give a generator"):
        stratified([0, 1, 1], 2)
    with pytest.raises(SettingsError, match="of 3 clients, but there are 6"):
        stratified([0, 1, 1], 2, rng=generator(0), clients=CLIENTS)
    with pytest.raises(CoterieError, match="in several groups"):
        stratified(neighbourhoods(np.ones((3, 3)), 0.5), 2, rng=generator(0))


# Clustered sampling


def test_clients_are_poured_in_the_order_of_their_size():
    # 2 rows of 10: client 0 pours 8 of them, client 1 the other 2 and 4 of the next row, and so on.
    np.testing.assert_allclose(chances_by_size([4, 3, 2, 1], 2), [[0.8, 0.2, 0, 0], [0, 0.4, 0.4, 0.2]], atol=1e-15)
    np.testing.assert_allclose(chances_by_size([1, 2, 3, 4], 2), [[0, 0, 0.2, 0.8], [0.2, 0.4, 0.4, 0]], atol=1e-15)


def test_a_client_with_more_than_a_rows_worth_is_surely_drawn():
    np.testing.assert_allclose(chances_by_size([8, 1, 1], 2), [[1, 0, 0], [0.6, 0.2, 0.2]], atol=1e-15)
    np.testing.assert_allclose(
        chances_by_similarity([8, 1, 1], 2, np.ones((3, 3))), [[1, 0, 0], [0.6, 0.2, 0.2]], atol=1e-15
    )


@st.composite
def cases(draw_from):
    """Sizes of clients, a number of draws that may exceed theirs, and distances that may be tied or zero."""
    sizes = np.array(draw_from(st.lists(st.integers(1, 500), min_size=1, max_size=9)))
    points = np.array(draw_from(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes))), dtype=float)
    return sizes, draw_from(st.integers(1, 12)), np.abs(points[:, None] - points)


@given(cases())
def test_clustered_sampling_is_unbiased_and_varies_less_than_drawing_by_size(case):
    sizes, rows, distances = case
    parts = sizes / sizes.sum()
    for chances in (chances_by_size(sizes, rows), chances_by_similarity(sizes, rows, distances)):
        assert chances.shape == (rows, len(sizes))
        assert (chances >= 0).all()
        np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-12)
        # A client's weight is the number of its draws over all, so its expectation is the column's mean.
        np.testing.assert_allclose(chances.mean(axis=0), parts, atol=1e-12)
        variance = (chances * (1 - chances)).sum(axis=0) / rows**2
        assert (variance <= parts * (1 - parts) / rows + 1e-12).all()


def test_draws_come_as_often_as_their_chances_say():
    chances = chances_by_size([4, 3, 2, 1], 2)
    hits = sum(draw(chances, generator(seed)) for seed in range(4000))
    assert hits.sum() == 8000
    assert stats.chisquare(hits, 4000 * chances.sum(axis=0)).pvalue > 1e-3


def test_every_row_draws_one_client():
    chances = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert draw(chances, generator(0)).tolist() == [1, 2, 0]


def two_kinds():
    """Six clients of equal size, of two kinds that take turns."""
    kind = np.array([0, 1, 0, 1, 0, 1])
    return np.full(6, 10), np.where(kind[:, None] == kind, 0.1, 1.5) * (1 - np.eye(6))


def test_clients_that_are_alike_share_a_draw():
    sizes, distances = two_kinds()
    chances = chances_by_similarity(sizes, 2, distances)
    assert sorted(map(tuple, (chances > 0).tolist())) == [(False, True) * 3, (True, False) * 3]
    # So a cohort of two always has both kinds, which no draw by size alone ensures.
    for seed in range(50):
        drawn = np.flatnonzero(draw(chances, generator(seed)))
        assert sorted(drawn % 2) == [0, 1]


def test_groups_are_cut_where_they_no_longer_fit_into_a_row():
    # Three rows of 20 for two kinds of 30 each: no group may have more than two clients, and what is left is poured.
    sizes, distances = two_kinds()
    chances = chances_by_similarity(sizes, 3, distances)
    assert (np.count_nonzero(chances, axis=1) <= 3).all()
    np.testing.assert_allclose(chances.sum(axis=0), 0.5)


def test_the_matrix_of_distances_is_not_taken_for_coordinates():
    # The public code hands the square matrix to the linkage, which then compares clients by their rows of distances.
    # Here 0 and 1 are nearest, and so are 2 and 3; but as points in space the rows of 1 and 2 are nearest.
    distances = np.array([[0, 1, 1.5, 4], [1, 0, 1.2, 1.5], [1.5, 1.2, 0, 1], [4, 1.5, 1, 0]])
    rows = np.linalg.norm(distances[:, None] - distances, axis=2) + 9 * np.eye(4)
    assert tuple(sorted(divmod(rows.argmin(), 4))) == (1, 2)
    chances = chances_by_similarity([5, 5, 5, 5], 2, distances)
    assert sorted(map(tuple, (chances > 0).tolist())) == [(False, False, True, True), (True, True, False, False)]


def test_as_many_draws_as_clients_of_equal_size_draw_everybody():
    for chances in (chances_by_size([7] * 5, 5), chances_by_similarity([7] * 5, 5, np.zeros((5, 5)))):
        assert draw(chances, generator(3)).tolist() == [1] * 5
