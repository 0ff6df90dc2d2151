"""Clustered Sampling: what is done with the draws, and what public code gets wrong. The draws: `test_sampling.py`."""

import numpy as np
import pytest
import torch

import coterie
from coterie import sampling
from coterie.clients.programs import train
from coterie.nets.stacks import angles
from support.worked_examples import apart, losing, of_sizes, same, unequal

BOTH = pytest.mark.parametrize("by", ["size", "similarity"])


@BOTH
def test_with_equal_sizes_and_a_draw_for_everyone_it_is_fedavg(by):
    fed = of_sizes([12] * 5)
    ours = coterie.ClusteredSampling(rounds=3, by=by).fit(fed).state.model
    assert apart(ours, coterie.FedAvg(rounds=3).fit(fed).state.model) < 1e-12


def test_a_client_that_is_drawn_twice_trains_once_and_counts_twice(monkeypatch):
    fed = of_sizes([30, 20, 10, 10])
    monkeypatch.setattr(sampling, "draw", lambda chances, rng: np.array([2, 0, 1, 1]))
    made = coterie.ClusteredSampling(rounds=1)
    fed.begin(1)
    fed.start_round(1)
    alone = fed.run(train, [0, 2, 3], shared=fed.new_model(), local=made.local).model
    expected = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64) @ alone
    result = made.fit(fed)
    assert apart(result.state.model, expected) < 1e-12
    assert [client["rounds_taken_part"] for client in result.clients] == [1, 0, 1, 1]


def test_the_mean_over_all_draws_is_the_mean_by_samples():
    # The expectation of the new model, from the chances of the one round, is FedAvg's with everybody there.
    fed = of_sizes([40, 25, 10, 5, 9])
    made = coterie.ClusteredSampling(rounds=1, participation=0.4)
    fed.begin(1)
    fed.start_round(1)
    trained = fed.run(train, shared=fed.new_model(), local=made.local).model
    chances = sampling.chances_by_size(fed.sizes.numpy(), 2)
    expected = torch.from_numpy(chances.mean(axis=0)) @ trained
    assert apart(expected, coterie.FedAvg(rounds=1).fit(fed).state.model) < 1e-12


@BOTH
def test_who_does_not_answer_has_no_weight(by):
    fed = losing(of_sizes([20] * 5), [1, 3])
    made = coterie.ClusteredSampling(rounds=2, by=by)
    rest = coterie.FedAvg(rounds=2).fit(fed).state.model  # loses the same clients
    assert apart(made.fit(fed).state.model, rest) < 1e-12


def test_the_server_remembers_everybodys_last_change_by_similarity_and_nothing_by_size():
    fed = unequal()
    assert coterie.ClusteredSampling(rounds=1).fit(fed).state.changes is None
    result = coterie.ClusteredSampling(rounds=1, by="similarity", participation=0.5).fit(fed)
    taken = np.array([client["rounds_taken_part"] for client in result.clients])
    lengths = result.state.changes.norm()
    assert ((lengths > 0).numpy() == (taken > 0)).all()
    later = coterie.ClusteredSampling(rounds=2, by="similarity", participation=0.5).fit(fed)
    both = np.array([client["rounds_taken_part"] for client in later.clients])
    for client in range(6):
        stayed = torch.equal(later.state.changes.parameters[client], result.state.changes.parameters[client])
        assert stayed == (both[client] == taken[client])


def test_opposed_kinds_of_clients_are_both_in_every_cohort():
    # Two kinds with labels turned around: after a first round with everybody, one draw of two is of each kind.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    parts = np.array_split(np.arange(120), 6)
    y = (x[:, 0] > 0).astype(int)
    for part in parts[::2]:
        y[part] = 1 - y[part]
    data = coterie.Dataset(x, y, labels=("a", "b"))
    fed = coterie.simulate(data, coterie.Split(tuple(parts)), "logistic", precision="float64")
    fed.begin(9)
    fed.start_round(1)
    everybody = coterie.ClusteredSampling(by="similarity", batch=0, epochs=5)
    state = everybody.round(fed, everybody.begin(fed))
    two = coterie.ClusteredSampling(by="similarity", participation=0.34, batch=0, epochs=5)
    for number in range(2, 10):
        fed.start_round(number)
        assert sorted(np.flatnonzero(two._drawn(fed, state)) % 2) == [0, 1]
        state = two.round(fed, state)


def test_clients_that_were_never_drawn_are_alike_but_not_like_everyone():
    # The public code gives a zero change the distance 0 to all others.
    rows = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]], dtype=torch.float64)
    found = angles(rows)
    right = np.pi / 2
    assert found[0].tolist() == pytest.approx([0, 0, right, right, right])
    assert found[2].tolist() == pytest.approx([right, right, 0, right, np.pi])


def test_parallel_changes_are_at_no_angle_and_not_at_nan():
    # Rounding makes cosines of more than 1, whose arc cosine the public code takes.
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1000))).repeat(40, 1)
    found = angles(rows * torch.linspace(0.1, 9, 40, dtype=torch.float64)[:, None])
    assert torch.isfinite(found).all()
    assert found.max() < 1e-6


@BOTH
def test_a_client_that_joins_late_is_drawn_from_then_on(by):
    fed = of_sizes([15] * 4, arrivals={3: 3})
    result = coterie.ClusteredSampling(rounds=4, by=by).fit(fed)
    assert [client["rounds_taken_part"] for client in result.clients] == [4, 4, 4, 2]


def test_names_that_appear_in_mid_run_have_no_change_yet():
    few, more = of_sizes([15] * 3), of_sizes([15] * 5)
    made = coterie.ClusteredSampling(rounds=2, by="similarity")
    state = made.fit(few).state
    more.begin(3)
    more.start_round(3)
    after = made.round(more, type(state)(more.new_model(), type(state.changes)(more.net, state.changes.parameters)))
    assert len(after.changes) == 5
    assert (after.changes.norm() > 0).all()


def test_what_travels_is_as_in_fedavg_with_the_clients_that_were_drawn():
    fed = unequal()
    result = coterie.ClusteredSampling(rounds=3, participation=0.5).fit(fed)
    trained = sum(client["rounds_taken_part"] for client in result.clients)
    size = fed.net.parameters.total * 8 * trained
    assert result.summary["ledger"]["up"] == result.summary["ledger"]["down"] == {"model": size}
    assert trained <= 9


def test_both_ways_give_the_same_to_the_last_bit_in_a_second_run():
    fed = unequal()
    for by in ("size", "similarity"):
        made = coterie.ClusteredSampling(rounds=3, participation=0.5, by=by)
        assert same(made.fit(fed).state.model, made.fit(unequal()).state.model)
