"""CFL: the worked split, what public code gets wrong, the tree, reductions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.cfl import CFL, _across
from coterie.moves.evidence import update_cosine
from support.federations import AT_ONCE, at_round, lost, opposed, pulled, pulling, same, uneven

FOUR = [(1, 0), (0.9, 0.1), (-1, 0), (-0.9, -0.1)]
"""The worked example: two pairs that pull apart."""

QUARTERS = [(10, 1), (-10, 1), (10, -1), (-10, -1)] * 2
"""Four pairs: apart by their first number, then by their second. Members of a pair are four clients from each other."""

EAGER = {**AT_ONCE, "warmup": 0, "client_norm": 0.05}


def groups_of(state):
    """Who is together, as sets, by the node that each client is at."""
    place = state.place.tolist()
    return {frozenset(np.flatnonzero(np.array(place) == node).tolist()) for node in place}


def test_the_worked_example_is_split_in_two(monkeypatch):
    # The mean is 0 and the longest 1; cosines across are at most -.99388, and inside at least .99388.
    similarity = update_cosine(np.array(FOUR))
    sides = np.array([[True, True, False, False], [False, False, True, True]])
    assert _across(similarity, sides) == pytest.approx(-0.99388, abs=1e-5)
    assert similarity[0, 1] == pytest.approx(0.99388, abs=1e-5)
    pulling(monkeypatch)
    for linkage in ("single", "complete"):
        result = CFL(rounds=1, mean_norm=0.01, warmup=0, linkage=linkage, **AT_ONCE).fit(pulled(*FOUR))
        assert groups_of(result.state) == {frozenset({0, 1}), frozenset({2, 3})}
        assert result.state.models.parameters[1].tolist() == pytest.approx([0.95, 0.05], abs=1e-6)
        assert result.state.models.parameters[2].tolist() == pytest.approx([-0.95, -0.05], abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"mean_norm": 0.0},
        {"client_norm": 1.1},
        {"warmup": 1},
        {"relative": False, "mean_norm": 0.4, "client_norm": 1.6},
        {"mean_norm": 1e-9},
    ],
    ids=["mean_norm", "client_norm", "warmup", "absolute", "almost"],
)
def test_every_criterion_can_stop_a_split(options, monkeypatch):
    pulling(monkeypatch)
    result = CFL(rounds=1, **{"warmup": 0, **options}, **AT_ONCE).fit(pulled((1, 0), (0.9, 0.1), (-1, 0), (-0.9, 0)))
    assert len(result.state.models) == 1


def test_absolute_norms_are_norms(monkeypatch):
    pulling(monkeypatch)
    fed = pulled(*[(2 * x, 2 * y) for x, y in FOUR])  # updates as long as 2
    for client_norm, nodes in ((1.6, 3), (2.1, 1)):
        made = CFL(rounds=1, warmup=0, relative=False, mean_norm=0.4, client_norm=client_norm, **AT_ONCE)
        assert len(made.fit(fed).state.models) == nodes


@pytest.mark.parametrize(
    ("degrees", "gamma", "passes"),
    [(40, None, True), (40, 0.0, False), (50, 0.0, True), (50, 0.1, True), (50, 0.5, False), (95, 0.5, True)],
)
def test_gamma_asks_for_less_similarity_across_the_greater_it_is(degrees, gamma, passes):
    # Three updates, each so many degrees from the last: however they are split, the greatest cosine across is that of
    # the angle (.766, .643, -.087). It must be below sqrt((1 - gamma) / 2): .7071 for 0, .6708 for .1, .5 for .5.
    angles = np.radians(degrees * np.arange(3))
    none = pulled((0, 0)).new_model().expand(3).zeros()
    updates = replace(none, parameters=torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    for linkage in ("single", "complete"):
        made = CFL(warmup=0, mean_norm=2.0, client_norm=0.0, gamma=gamma, linkage=linkage)
        assert (made._sides(1, updates, torch.ones(3), unit=1.0) is not None) is passes


def test_identical_updates_are_never_split(monkeypatch):
    pulling(monkeypatch)
    result = CFL(rounds=3, mean_norm=100.0, **EAGER | {"client_norm": 0.0}).fit(pulled(*[(3, 4)] * 6))
    assert len(result.state.models) == 1


def test_after_a_second_split_numbers_are_still_those_of_clients(monkeypatch):
    # The known error (issue 2 of the authors' code; also in FL-bench, FedEM's and PACFL's code): positions inside the
    # cluster are taken for numbers. The cluster of clients 0, 2, 4 and 6 splits at positions (0, 2) and (1, 3).
    pulling(monkeypatch)
    result = CFL(rounds=2, **EAGER).fit(pulled(*QUARTERS))
    assert groups_of(result.state) == {frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7})}
    assert result.state.members.sum(dim=0).tolist() == [1] * 8
    served = result.state.models.parameters[result.state.place]
    assert torch.allclose(served, torch.tensor(QUARTERS, dtype=torch.float64), atol=1e-6)


def test_compat_repeats_the_error_of_public_code(monkeypatch):
    # Both clusters of the first split are split at positions (0, 2) and (1, 3): these are taken for clients, twice.
    # Clients 0 to 3 are in two clusters each, and 4 to 7 in none: they go on alone.
    pulling(monkeypatch)
    state = coterie.methods.make("cfl", rounds=2, compat="positions", **EAGER).fit(pulled(*QUARTERS)).state
    leaves = [state.members[node].nonzero()[:, 0].tolist() for node in range(3, len(state.models))]
    assert leaves == [[0, 2], [1, 3], [0, 2], [1, 3], [4], [5], [6], [7]]
    assert state.members[:3].sum() == 0
    assert (
        coterie.methods.make("cfl", rounds=1, compat="positions", **EAGER).fit(pulled(*QUARTERS)).state.members.sum()
        == 8
    )


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_a_partition_after_any_number_of_splits(seed, monkeypatch):
    pulling(monkeypatch)
    places = np.random.default_rng(seed).normal(size=(12, 2))
    made = CFL(rounds=6, mean_norm=5.0, participation=0.7, gamma=None, **EAGER | {"client_norm": 0.0})
    state = made.fit(pulled(*places)).state
    assert len(state.models) > 5
    assert (state.members.sum(dim=0) == 1).all()
    split, leaves = set(state.parents.tolist()), len(state.models)
    assert all((state.parents == node).sum() == 2 for node in split - {-1})
    assert leaves == 2 * len(split - {-1}) + 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_if_it_never_splits_it_is_fedavg_to_the_last_bit(weighting):
    fed = uneven()
    cfl = CFL(rounds=4, mean_norm=0.0, warmup=0, participation=0.7, weighting=weighting).fit(fed)
    fedavg = coterie.FedAvg(rounds=4, participation=0.7, weighting=weighting).fit(fed)
    assert same(cfl.state.models[0], fedavg.state.model)


def test_opposed_groups_are_told_apart_and_served_better():
    fed = opposed()
    result = CFL(rounds=15, warmup=3, rate=0.3, mean_norm=0.5).fit(fed)
    plain = coterie.FedAvg(rounds=15, rate=0.3).fit(fed)
    assert result.summary["ari"] == 1
    assert result.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.15


class TestTree:
    """Clients that were not asked when their cluster was split, or came later, go down the tree."""

    def test_a_client_that_was_away_joins_its_side_when_it_is_back(self, monkeypatch):
        pulling(monkeypatch)
        fed, made = pulled(*FOUR, (0.8, 0)), CFL(mean_norm=0.5, warmup=0, **AT_ONCE)
        run = fed._engine.run
        state = made.begin(at_round(lost(fed, 4)))
        state = made.round(fed, state)
        assert state.place.tolist() == [1, 1, 2, 2, 0]
        fed._engine.run = run
        before = state.models
        state = made.round(fed, replace(state))
        assert state.place.tolist() == [1, 1, 2, 2, 1]
        assert same(state.models[0], before[0])  # what parted there is kept
        # It trained from the root: its model is not in the mean of the cluster yet.
        assert state.models.parameters[1].tolist() == pytest.approx([0.95, 0.05], abs=1e-6)

    def test_one_that_comes_later_begins_at_the_root(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*QUARTERS, (10, 0.9), arrivals={8: 4})
        result = CFL(rounds=6, **EAGER).fit(fed)
        assert result.clients[8]["group_found"] == result.clients[0]["group_found"]
        assert result.clients[8]["rounds_taken_part"] == 3

    def test_names_may_be_appended_in_mid_run(self, monkeypatch):
        pulling(monkeypatch)
        few, more = pulled(*FOUR), pulled(*FOUR, (0.8, 0), (-0.7, 0.1))
        made = CFL(mean_norm=0.5, warmup=0, **AT_ONCE)
        state = made.round(at_round(few), made.begin(few))
        assert made.serve(more, state).index.tolist() == [1, 1, 2, 2, 0, 0]
        state = made.round(at_round(more, 2), state)
        assert state.place.tolist() == [1, 1, 2, 2, 1, 2]

    def test_fewer_than_three_that_answer_are_not_split(self, monkeypatch):
        pulling(monkeypatch)
        fed, made = pulled(*FOUR), CFL(mean_norm=2.0, warmup=0, **AT_ONCE)
        state = made.round(lost(at_round(fed), 1, 3), made.begin(fed))
        assert len(state.models) == 1


def test_permuting_clients_permutes_the_result(monkeypatch):
    pulling(monkeypatch)
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    state = CFL(rounds=2, **EAGER).fit(pulled(*[QUARTERS[client] for client in order])).state
    served = state.models.parameters[state.place]
    assert torch.allclose(served, torch.tensor([QUARTERS[client] for client in order]).double(), atol=1e-6)


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients_are_one_cluster(clients):
    result = CFL(rounds=3, warmup=0, mean_norm=9.0, client_norm=0.0, gamma=None).fit(uneven(clients=clients))
    assert result.summary["groups"] == 1


def test_a_cohort_of_one():
    result = CFL(rounds=3, warmup=0, mean_norm=9.0, participation=0.1).fit(uneven())
    assert result.summary["groups"] == 1


def test_one_model_travels_each_way():
    fed = uneven()
    result = CFL(rounds=2, warmup=0).fit(fed)
    size = 2 * 6 * fed.net.parameters.total * 8
    assert result.summary["ledger"]["down"] == result.summary["ledger"]["up"] == {"model": size}


@pytest.mark.parametrize(
    "options",
    [
        {"mean_norm": -1.0},
        {"client_norm": -0.1},
        {"warmup": -1},
        {"gamma": 1.0},
        {"participation": 0.5, "compat": "positions"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("cfl", **options)
