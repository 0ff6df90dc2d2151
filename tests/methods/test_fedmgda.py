"""FedMGDA+: the worked programs, their optimality, reductions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.moves.mixing import least_norm
from support.worked_examples import apart, of_sizes, quadratics, same, unequal, value

AXES = torch.eye(2, dtype=torch.float64)
UNEQUAL = torch.tensor([0.9, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(("within", "weights"), [(0.0, [0.9, 0.1]), (0.1, [0.8, 0.2]), (1.0, [0.5, 0.5])])
def test_the_worked_weights_of_two_orthogonal_directions(within, weights):
    assert least_norm(AXES, UNEQUAL, within).tolist() == pytest.approx(weights, abs=1e-9)


def test_opposed_directions_cancel():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    weights = least_norm(rows, UNEQUAL, 1.0)
    assert weights.tolist() == pytest.approx([0.5, 0.5], abs=1e-9)
    assert (weights @ rows).abs().max() < 1e-9


def test_a_single_client_has_all_the_weight():
    assert least_norm(torch.tensor([[0.6, 0.8]]), torch.tensor([1.0]), 0.1).tolist() == [1]


def test_equal_directions_leave_the_weights_as_they_are():
    rows = torch.tensor([[0.6, 0.8]] * 3)
    start = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert least_norm(rows, start, 0.3).tolist() == pytest.approx(start.tolist(), abs=1e-6)


def random_directions(seed, clients, parameters):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(clients, parameters)) + rng.normal(size=parameters)
    start = rng.integers(1, 50, clients).astype(float)
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)), torch.from_numpy(start / start.sum())


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 8), st.floats(0, 1))
def test_no_allowed_weights_give_a_shorter_direction(seed, clients, parameters, within):
    rows, start = random_directions(seed, clients, parameters)
    weights = least_norm(rows, start, within)
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert (weights >= -1e-12).all()
    assert ((weights - start).abs() <= within + 1e-9).all()
    # A convex program: it is solved if no small exchange between two clients that the bounds allow is downhill.
    slope = (rows @ rows.mT @ weights).numpy()
    can_grow = (weights < torch.clamp(start + within, max=1) - 1e-7).numpy()
    can_shrink = (weights > torch.clamp(start - within, min=0) + 1e-7).numpy()
    if can_grow.any() and can_shrink.any():
        assert slope[can_grow].min() >= slope[can_shrink].max() - 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_free_weights_give_a_direction_that_is_downhill_for_everybody(seed):
    rows, start = random_directions(seed, 6, 20)
    direction = least_norm(rows, start, 1.0) @ rows
    assert (rows @ direction >= direction @ direction - 1e-7).all()


def test_rounding_of_the_directions_does_not_show_in_the_weights():
    rows, start = random_directions(0, 40, 60)
    noise = torch.from_numpy(np.random.default_rng(1).normal(size=rows.shape)) * 1e-14
    for within in (0.01, 0.1, 1.0):
        assert (least_norm(rows, start, within) - least_norm(rows + noise, start, within)).abs().max() < 1e-9


@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5}, {"server_rate": 0.3}])
def test_with_epsilon_zero_it_is_fedavg_of_normalised_changes(options):
    fed = unequal()
    fed.begin(1)
    fed.start_round(1)
    made = coterie.FedMGDA(rounds=1, epsilon=0.0, **options)
    start = fed.new_model()
    replies = fed.run(train, fed.sample(made.participation), shared=start, local=made.local)
    changes = (replies.model - start).parameters
    weights = replies.samples / replies.samples.sum()
    step = weights.double() @ (changes / changes.norm(dim=1, keepdim=True))
    found = made.fit(fed).state.model
    assert torch.allclose(found.parameters, start.parameters + made.server_rate * step, atol=1e-9)


def test_a_single_client_takes_a_step_of_exactly_the_servers_rate():
    fed = of_sizes([20])
    start = fed.new_model()
    for rate in (1.0, 0.25):
        moved = coterie.FedMGDA(rounds=1, server_rate=rate).fit(fed).state.model
        assert (moved - start).norm().item() == pytest.approx(rate, abs=1e-9)


def test_no_step_is_longer_than_the_servers_rate():
    fed = unequal()
    start = fed.new_model()
    for epsilon in (0.0, 0.1, 1.0):
        moved = coterie.FedMGDA(rounds=1, epsilon=epsilon, server_rate=0.5).fit(fed).state.model
        assert (moved - start).norm() <= 0.5 + 1e-9


def test_opposed_clients_come_to_a_stop(monkeypatch):
    fed = quadratics(monkeypatch, (1, 1, 2), (-1, 1, 5))
    assert value(coterie.FedMGDA(rounds=2, epsilon=1.0).fit(fed).state.model) == pytest.approx(0, abs=1e-9)
    # FedAvg follows the larger one.
    assert value(coterie.FedAvg(rounds=2).fit(fed).state.model) < -0.05


def test_a_client_that_did_not_move_adds_nothing(monkeypatch):
    # The first client is at its optimum already: a direction of zero length. Within .25 it takes what weight it can.
    fed = quadratics(monkeypatch, (0, 1, 2), (-1, 1, 2))
    assert value(coterie.FedMGDA(rounds=1, epsilon=0.25).fit(fed).state.model) == pytest.approx(-0.25, abs=1e-9)


def test_without_any_steps_the_model_stays():
    fed = unequal()
    assert same(coterie.FedMGDA(rounds=1, epochs=0).fit(fed).state.model, fed.new_model())


def test_more_freedom_helps_the_client_that_fedavg_overrules():
    # 60 samples against 8, with labels turned around: the small one's loss after a round falls with epsilon.
    fed = of_sizes([60, 8], "logistic")
    ledger = coterie.FedMGDA(rounds=1).fit(fed).summary["ledger"]
    assert ledger == coterie.FedAvg(rounds=1).fit(fed).summary["ledger"]
    near, far = (coterie.FedMGDA(rounds=1, epsilon=epsilon).fit(fed).state.model for epsilon in (0.0, 0.4))
    assert apart(near, far) > 1e-4


@pytest.mark.parametrize("options", [{"epsilon": -0.1}, {"epsilon": 1.1}, {"server_rate": 0.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=f"{next(iter(options))}="):
        coterie.methods.make("fedmgda", **options)
