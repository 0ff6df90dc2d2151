"""Subjective logic: SLFed's worked numbers, the laws of its rules, the threshold, the structure of Fig. 6."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie import trust
from coterie.core.errors import SettingsError

shares = st.floats(0, 1)


@st.composite
def opinions(draw, least=1e-6):
    """An opinion with some uncertainty."""
    s, d, u = draw(shares), draw(shares), draw(st.floats(least, 1))
    return np.array([s, d, u]) / (s + d + u)


def after(similarity, encounters=1):
    """The opinion after encounters of one similarity, from SLFed's start of 1 and 1."""
    return trust.opinion(1 + encounters * similarity, 1 + encounters * (1 - similarity))


# Worked numbers


def test_an_opinion_from_evidence():
    assert trust.opinion(1, 1) == pytest.approx([0.25, 0.25, 0.5])
    # lambda = .9: alpha = 1.9, beta = 1.1, divided by 5.
    assert after(0.9) == pytest.approx([0.38, 0.22, 0.40])
    assert after(0.8) == pytest.approx([0.36, 0.24, 0.40])


def test_discounting_and_consensus_of_the_worked_example():
    told = trust.discount(after(0.9), after(0.8))
    # .38 * .36, .38 * .24, .22 + .40 + .38 * .40
    assert told == pytest.approx([0.1368, 0.0912, 0.772])
    fused = trust.consensus(after(0.7), told)
    assert fused == pytest.approx([0.36747, 0.274791, 0.357739], abs=1e-6)


def test_uncertainty_falls_with_encounters_however_they_turn_out():
    # The paper says that fluctuating results keep it high; Eqs. 3-5 do not: u = 2 / (4 + k).
    alpha = beta = 1.0
    for k, similarity in enumerate([0.9, 0.1, 0.9, 0.1], start=1):
        alpha, beta = alpha + similarity, beta + 1 - similarity
        assert trust.opinion(alpha, beta)[2] == pytest.approx(2 / (4 + k))
    assert [round(float(after(0.5, k)[2]), 4) for k in range(5)] == [0.5, 0.4, 0.3333, 0.2857, 0.25]


def test_consensus_is_not_idempotent():
    assert trust.consensus([0.34, 0.26, 0.4], [0.34, 0.26, 0.4])[2] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("uncertainties", "tau", "chosen"),
    [
        ([0.2, 0.5, 0.6], 1.3 / 3, 1),  # mean below the median .5
        ([0.1, 0.2, 0.9], 0.1, 1),  # mean .4 above the median .2: the lowest floor(3/2)
        ([0.1, 0.2, 0.3, 0.4], 0.15, 1),  # mean and median .25: the lowest two
        ([0.4, 0.4], 0.4, 2),  # all equal: everybody
        ([0.4] * 7, 0.4, 7),
        ([0.7], 0.7, 1),
    ],
)
def test_the_threshold(uncertainties, tau, chosen):
    assert trust.uncertainty_threshold(uncertainties) == pytest.approx(tau)
    table = [[1 - u, 0, u] for u in uncertainties]
    assert trust.trusted(table).sum() == chosen


def test_the_threshold_knows_only_those_that_are_known():
    assert trust.uncertainty_threshold([0.2, np.nan, 0.5, 0.6, np.nan]) == pytest.approx(1.3 / 3)
    assert np.isnan(trust.uncertainty_threshold([np.nan, np.nan]))
    assert not trust.trusted([trust.NOTHING, trust.NOTHING]).any()


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=30, unique=True))
def test_never_more_than_half_are_trusted_unless_uncertainties_are_equal(uncertainties):
    table = np.array([[1 - u, 0, u] for u in uncertainties])
    gaps = np.diff(np.sort(uncertainties))
    chosen = trust.trusted(table)
    assert chosen.any()
    if len(gaps) and gaps.min() > 1e-9:
        assert chosen.sum() <= max(1, len(uncertainties) // 2)
    # Whoever is chosen is not less certain than anybody who is not.
    if not chosen.all():
        assert table[chosen, 2].max() <= table[~chosen, 2].min() + 1e-12


# Laws


@given(opinions(), opinions())
def test_everything_sums_to_one_and_stays_within_it(a, b):
    for made in (trust.discount(a, b), trust.consensus(a, b)):
        assert made.sum() == pytest.approx(1)
        assert (made >= -1e-12).all()


@given(opinions(), opinions(), opinions())
def test_consensus_commutes_and_associates(a, b, c):
    assert trust.consensus(a, b) == pytest.approx(trust.consensus(b, a), abs=1e-9)
    left = trust.consensus(trust.consensus(a, b), c)
    assert left == pytest.approx(trust.consensus(a, trust.consensus(b, c)), abs=1e-9)


@given(opinions(), opinions())
def test_consensus_never_adds_uncertainty_and_discounting_never_takes_any(a, b):
    assert trust.consensus(a, b)[2] <= min(a[2], b[2]) + 1e-12
    assert trust.discount(a, b)[2] >= b[2] - 1e-12


@given(opinions())
def test_who_knows_nothing_changes_nothing(a):
    assert trust.consensus(a, trust.NOTHING) == pytest.approx(a)
    assert trust.discount(a, trust.NOTHING) == pytest.approx(trust.NOTHING)
    assert trust.discount(trust.NOTHING, a) == pytest.approx(trust.NOTHING)


def test_two_opinions_without_uncertainty_meet_halfway():
    assert trust.consensus([1, 0, 0], [0, 1, 0]) == pytest.approx([0.5, 0.5, 0])
    assert trust.consensus([1, 0, 0], [0, 0.5, 0.5]) == pytest.approx([1, 0, 0])


def test_leading_axes_are_rows_of_their_own():
    rng = np.random.default_rng(0)
    a, b = (trust.opinion(*rng.uniform(0, 5, (2, 4, 3))) for _ in range(2))
    assert a.shape == (4, 3, 3)
    for rule in (trust.discount, trust.consensus):
        whole = rule(a, b)
        assert rule(torch.from_numpy(a), b) == pytest.approx(whole)
        assert rule(a[:, None], b[None]).shape == (4, 4, 3, 3)
        for place in np.ndindex(4, 3):
            assert rule(a[place], b[place]) == pytest.approx(whole[place])
    taus = trust.uncertainty_threshold(a[..., 2])
    assert taus == pytest.approx([trust.uncertainty_threshold(row) for row in a[..., 2]])
    assert (trust.trusted(a) == [trust.trusted(row) for row in a]).all()


# Encounters and what is told


def table(**known):
    """Opinions on clients A to D."""
    return np.array([known.get(name, trust.NOTHING) for name in "ABCD"])


def test_fig_2_one_client_between_two():
    # (i): A knows B and C, both know D; (ii): A also knows D itself.
    ab, ac, ad, bd, cd = (after(x) for x in (0.9, 0.6, 0.5, 0.8, 0.3))
    told = {1: table(A=after(0.1), D=bd), 2: table(D=cd)}
    through_b, through_c = trust.discount(ab, bd), trust.discount(ac, cd)
    first = trust.heard(table(B=ab, C=ac), 0, told)
    assert first[3] == pytest.approx(trust.consensus(through_b, through_c))
    second = trust.heard(table(B=ab, C=ac, D=ad), 0, told)
    assert second[3] == pytest.approx(trust.consensus(ad, trust.consensus(through_b, through_c)))
    # Nothing is told of B or C, and what B thinks of A is ignored.
    assert second[:3] == pytest.approx(table(B=ab, C=ac)[:3])


def test_nobody_vouches_for_itself():
    boasting = table(B=np.array([1.0, 0.0, 0.0]))
    assert trust.heard(table(B=after(0.2)), 0, {1: boasting})[1] == pytest.approx(after(0.2))


def test_a_stranger_tells_nothing():
    assert trust.heard(table(), 0, {1: table(C=after(0.9))}) == pytest.approx(table())


def test_an_encounter_adds_evidence_and_is_fused_with_what_is_stored():
    evidence, opinions = np.ones((3, 2)), np.tile(trust.NOTHING, (3, 1))
    once = trust.met(evidence, opinions, np.array([np.nan, 0.9, np.nan]))
    assert once[0].tolist() == [[1, 1], [1.9, 1.1], [1, 1]]
    assert once[1] == pytest.approx(np.array([trust.NOTHING, after(0.9), trust.NOTHING]))
    twice = trust.met(*once, np.array([np.nan, 0.9, np.nan]))
    assert twice[1][1] == pytest.approx(trust.consensus(after(0.9), after(0.9, 2)))
    direct = trust.met(*once, np.array([np.nan, 0.9, np.nan]), "direct")
    assert direct[1][1] == pytest.approx(after(0.9, 2))


def test_meetings_are_mutual_and_nobody_meets_itself():
    links = trust.meetings([np.random.default_rng(client) for client in range(9)], 2)
    assert (links == links.T).all()
    assert not links.diagonal().any()
    assert (links.sum(axis=1) >= 2).all()


@pytest.mark.parametrize(("clients", "links"), [(1, 0), (2, 1), (3, 2)])
def test_small_federations_meet_as_far_as_they_can(clients, links):
    drawn = trust.meetings([np.random.default_rng(client) for client in range(clients)], 5)
    assert drawn.sum(axis=1).tolist() == [links] * clients


# The learning-free mode: the structure of Fig. 6


def five_groups(clients=50):
    group = np.arange(clients) % 5
    return np.where(group[:, None] == group, 0.9, 0.3)


@pytest.fixture(scope="module")
def courses():
    return {direct: trust.course(five_groups(), rounds=50, direct=direct) for direct in (1, 2)}


@pytest.mark.parametrize(("direct", "least", "most"), [(1, 5, 7), (2, 3, 5)])
def test_everybody_hears_of_everybody_within_a_few_rounds(courses, direct, least, most):
    # The paper says before round 4 for both; with one meeting a round it takes 5 or 6, with two 3 or 4.
    assert least <= courses[direct].reached <= most


def test_uncertainty_falls_faster_with_two_meetings_a_round(courses):
    one, two = (courses[direct].uncertainty.mean(axis=1) for direct in (1, 2))
    assert (two[3:] < one[3:]).all()
    assert two[-1] < one[-1] < 0.05
    assert (np.diff(two[5:]) < 0).all()


def test_fewer_than_26_of_50_contribute(courses):
    for course in courses.values():
        assert course.chosen.max() < 26
        assert course.chosen[10:].min() > 0


def test_telling_only_what_was_seen_reaches_everybody_much_later(courses):
    direct = trust.course(five_groups(), rounds=50, direct=2, store="direct")
    assert direct.reached > courses[2].reached + 1
    assert direct.uncertainty[-1].mean() > 5 * courses[2].uncertainty[-1].mean()


def test_gossip_washes_out_who_is_similar_to_whom(courses):
    # A finding: B's opinion of C is discounted by how similar B is, but even the least similar one counts by .2, and
    # what is told on is told again. In the end everybody has the same opinion of C: how similar it is to the average
    # client. True similarities are .9 within a group and .3 between groups.
    group = np.arange(50) % 5
    same, other = (group[:, None] == group) & ~np.eye(50, dtype=bool), group[:, None] != group

    def gap(course):
        similarity = course.opinions[..., 0]
        return similarity[same].mean() - similarity[other].mean()

    direct = trust.course(five_groups(), rounds=50, direct=2, store="direct")
    assert 0 < gap(courses[2]) < 0.05
    assert gap(direct) > 0.2


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 3))])
def test_similarities_are_for_pairs(wrong):
    with pytest.raises(SettingsError, match="every pair"):
        trust.course(wrong)


def test_bad_numbers_are_refused():
    with pytest.raises(SettingsError, match="evidence below 0"):
        trust.opinion(-1, 1)
    with pytest.raises(SettingsError, match="last axis"):
        trust.consensus([0.5, 0.5], [0.5, 0.5])
    with pytest.raises(SettingsError, match="shares from 0 to 1"):
        trust.met(np.ones((1, 2)), np.ones((1, 3)), np.array([1.5]))
