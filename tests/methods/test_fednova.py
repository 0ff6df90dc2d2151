"""FedNova: the worked example, reductions, what public code gets wrong."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.moves import server_steps
from support.worked_examples import apart, of_sizes, quadratics, same, unequal, value
from support.worlds import normed, world


def test_a_client_with_three_steps_counts_by_its_change_per_step(monkeypatch):
    # n = tau = (1, 3), eta = .1, F_i = (w - c_i)^2 / 2, c = (1, -1), w = 0. Locals: .1 and -(1 - .9^3) = -.271.
    # Per step: .1 and -.090333; weighted .25 and .75: -.04275; times tau_eff = .25 * 1 + .75 * 3 = 2.5: -.106875.
    fed = quadratics(monkeypatch, (1, 1, 1), (-1, 1, 3))
    options = {"rounds": 1, "epochs": 1, "batch": 1, "rate": 0.1}
    assert value(coterie.FedNova(**options).fit(fed).state.model) == pytest.approx(-0.106875, abs=1e-12)
    assert value(coterie.FedAvg(**options).fit(fed).state.model) == pytest.approx(-0.17825, abs=1e-12)


def test_with_momentum_changes_are_divided_by_gradients_and_not_by_steps_as_flgo_does(monkeypatch):
    # rho = .9, eta = .01: the first client moves by 1 a = 1 gradient, the second by tau = 3, a = 1 + 1.9 + 2.71 = 5.61.
    fed = quadratics(monkeypatch, (1, 1, 1), (-1, 1, 3))
    options = {"rounds": 1, "epochs": 1, "batch": 1, "rate": 0.01, "momentum": 0.9}
    # By hand, w <- w - .01 v, v <- .9 v + (w + 1): v = 1, .9 + .99, .9 * 1.89 + .9711.
    second = -0.01 * (1 + 1.89 + (0.9 * 1.89 + 1 - 0.0289))
    effective = 0.25 * 1 + 0.75 * 5.61
    expected = effective * (0.25 * 0.01 + 0.75 * second / 5.61)
    by_steps = 2.5 * (0.25 * 0.01 + 0.75 * second / 3)
    found = value(coterie.FedNova(**options).fit(fed).state.model)
    assert found == pytest.approx(expected, abs=1e-12)
    assert abs(found - by_steps) > 0.004


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 4},
        {"steps": 4, "momentum": 0.9, "rate": 0.01},
        {"steps": 3, "participation": 0.5},
        {"steps": 3, "weighting": "uniform", "server_rate": 0.7, "server_momentum": 0.5},
    ],
)
def test_with_equal_steps_it_is_fedavg(options):
    fed = unequal()
    nova = coterie.FedNova(rounds=3, **options).fit(fed).state
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed).state
    assert apart(nova.model, fedavg.model) < 1e-12


def test_with_unequal_steps_it_is_not_fedavg():
    fed = of_sizes([10, 70])
    nova, fedavg = (made(rounds=1, batch=4).fit(fed).state.model for made in (coterie.FedNova, coterie.FedAvg))
    assert apart(nova, fedavg) > 1e-3


def test_without_any_steps_the_model_stays():
    fed = unequal()
    assert same(coterie.FedNova(rounds=1, epochs=0).fit(fed).state.model, fed.new_model())


HERE = world(normed, shape=(2, 4, 4))
MODELS = HERE.models(4)
START, TRAINED = MODELS[0], MODELS[1:]


def test_a_client_that_took_no_step_has_no_say():
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    lengths = torch.tensor([2.0, 0.0, 5.0])
    mean = weights @ TRAINED
    found = server_steps.normalised(START, TRAINED, mean, weights, lengths)
    alone = server_steps.normalised(START, TRAINED[[0, 2]], mean, torch.tensor([5 / 7, 2 / 7]), lengths[[0, 2]])
    assert apart(found, alone) < 1e-7


def test_running_statistics_are_a_plain_mean_and_not_divided_by_steps():
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = weights @ TRAINED
    found = server_steps.normalised(START, TRAINED, mean, weights, torch.tensor([1.0, 7.0, 30.0]))
    assert torch.equal(found.buffers, mean.buffers)
    assert not torch.allclose(found.parameters, mean.parameters)


@pytest.mark.parametrize(("rho", "taken", "weight"), [(0.9, 1, 1), (0.9, 2, 2.9), (0.9, 10, 41.381060), (0.0, 5, 5)])
def test_the_gradients_in_a_number_of_steps(rho, taken, weight):
    found = server_steps.weight_of_steps(torch.tensor([taken], dtype=torch.float64), rho).item()
    assert found == pytest.approx(weight, abs=1e-6)
    # By definition: a_i adds up what every gradient is multiplied with, 1 + (1 + rho) + (1 + rho + rho^2) + ...
    assert found == pytest.approx(sum(sum(rho**power for power in range(step + 1)) for step in range(taken)), abs=1e-9)


def test_a_client_sends_one_number_more_than_in_fedavg():
    fed = unequal()
    ledger = coterie.FedNova(rounds=1).fit(fed).summary["ledger"]
    size = fed.net.parameters.total * 8 * 6
    assert ledger["down"] == {"model": size}
    assert ledger["up"] == {"model": size, "gradients": 8 * 6}


def test_adam_is_refused():
    with pytest.raises(SettingsError, match="optimizer=adam"):
        coterie.methods.make("fednova", optimizer="adam")
