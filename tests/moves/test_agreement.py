"""Found groups against true ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.moves.agreement import agreement, placed_right, purity

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


def test_groups_that_are_right_but_for_their_names_are_perfect():
    scores = agreement([5, 5, 9, 9, 2], ["b", "b", "a", "a", "c"])
    assert scores == pytest.approx({"ari": 1, "nmi": 1, "purity": 1, "placed_right": 5})


def test_scores_by_hand():
    found, truth = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]
    # Commonest true groups: 2 of 3, 2 of 2, 1 of 1. The best matching takes 0-0 and 1-1, so group 2 is all misplaced.
    assert purity(found, truth) == pytest.approx(5 / 6)
    assert placed_right(found, truth) == 4
    # Pairs together in both: {0,1} and {3,4}; found has 3 + 1 = 4 pairs, truth 1 + 6 = 7, of 15 in all.
    # Expected 4 * 7 / 15, so the index is (2 - 28/15) / (5.5 - 28/15).
    assert agreement(found, truth)["ari"] == pytest.approx((2 - 28 / 15) / (5.5 - 28 / 15))


def test_one_group_for_all_says_nothing():
    scores = agreement([0] * 6, [0, 0, 0, 1, 1, 1])
    assert scores == pytest.approx({"ari": 0, "nmi": 0, "purity": 0.5, "placed_right": 3})


@given(LABELS, st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_names_or_order(pairs, random):
    found, truth = np.array(pairs).T
    order = random.sample(range(len(pairs)), len(pairs))
    renamed = np.array([7, 1, 9, 4])[found]
    assert agreement(renamed[order], truth[order]) == pytest.approx(agreement(found, truth), abs=1e-12)


@given(LABELS)
def test_scores_are_within_their_bounds(pairs):
    found, truth = np.array(pairs).T
    scores = agreement(found, truth)
    assert scores["ari"] <= 1 + 1e-12
    assert -1e-12 <= scores["nmi"] <= 1 + 1e-12
    assert scores["placed_right"] / len(pairs) <= scores["purity"] <= 1
    assert scores["placed_right"] >= 1
