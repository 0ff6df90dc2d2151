"""FedOpt: each server optimizer by hand, and FedAvg where nothing is adapted."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.moves import server_steps
from coterie.nets.stacks import Changes
from support.worked_examples import apart, course, normed, quadratics, same, unequal, value

ONE_STEP = {"steps": 1, "batch": 0, "rate": 1.0, "weighting": "uniform"}


@pytest.fixture
def pulling(monkeypatch):
    """Clients that pull the model to 1 and 3."""
    return quadratics(monkeypatch, (1, 1, 2), (3, 1, 2))


def places(fed, **options):
    """Where the model is after each of two rounds."""
    return [value(state.model) for state in course(coterie.FedOpt(rounds=2, **ONE_STEP, **options), fed)[1:]]


# A client's step leads to its own centre, so the mean change at x is 2 - x: 2 in the first round. tau = 1, so v is 1.
SETTINGS = {"server_rate": 1.0, "tau": 1.0, "beta_1": 0.5, "beta_2": 0.75}


def test_adam_by_hand(pulling):
    # m = .5 * 2 = 1 and v = .75 + .25 * 4 = 1.75; x = 1 / (sqrt 1.75 + 1).
    first = 1 / (1.75**0.5 + 1)
    # Then the change is c = 2 - x: m = .5 + .5 c, v = .75 * 1.75 + .25 c^2.
    change = 2 - first
    second = first + (0.5 + 0.5 * change) / ((0.75 * 1.75 + 0.25 * change**2) ** 0.5 + 1)
    assert places(pulling, server_optimizer="adam", **SETTINGS) == pytest.approx([first, second], abs=1e-12)


def test_yogi_by_hand(pulling):
    # v = 1 - .25 * 4 * sign(1 - 4) = 2, so x = 1 / (sqrt 2 + 1); then c = 2 - x = 1.586 and v = 2 + .25 c^2.
    first = 1 / (2**0.5 + 1)
    change = 2 - first
    second = first + (0.5 + 0.5 * change) / ((2 + 0.25 * change**2) ** 0.5 + 1)
    assert places(pulling, server_optimizer="yogi", **SETTINGS) == pytest.approx([first, second], abs=1e-12)


def test_yogi_forgets_squares_that_are_too_large_by_as_much_as_it_adds_to_those_that_are_too_small():
    net = unequal().net
    zero = unequal().new_model()

    def squares(known):
        second = Changes(net, torch.full_like(zero.parameters, known))
        moved = zero + Changes(net, torch.full_like(zero.parameters, 2.0))
        return server_steps.adaptive(zero, moved, zero.zeros(), second, "yogi", 1.0, (0.9, 0.75), 1e-3)[2].parameters[0]

    assert squares(10.0).item() == pytest.approx(9.0, abs=1e-12)
    assert squares(1.0).item() == pytest.approx(2.0, abs=1e-12)
    assert squares(4.0).item() == pytest.approx(4.0, abs=1e-12)


def test_adagrad_by_hand_keeps_no_mean_by_default(pulling):
    # m = 2 and v = 1 + 4 = 5; then c = 2 - x and v = 5 + c^2.
    first = 2 / (5**0.5 + 1)
    change = 2 - first
    second = first + change / ((5 + change**2) ** 0.5 + 1)
    found = places(pulling, server_optimizer="adagrad", server_rate=1.0, tau=1.0)
    assert found == pytest.approx([first, second], abs=1e-12)


def test_the_mean_is_kept_by_nine_tenths_by_default(pulling):
    usual = places(pulling, server_rate=0.1)
    assert usual == places(pulling, server_rate=0.1, beta_1=0.9)
    assert usual != places(pulling, server_rate=0.1, beta_1=0.0)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
@pytest.mark.parametrize("net", ["mlp", normed])
def test_with_a_tau_that_hides_all_squares_it_is_fedavg(kind, net):
    # The step is server_rate / (sqrt v + tau) times the mean change, and v begins at tau^2: so 2 tau / 2 tau.
    fed, tau = unequal(net=net), 1e9
    options = {"server_optimizer": kind, "beta_1": 0.0, "tau": tau, "server_rate": 2 * tau, "beta_2": 0.99999999}
    ours = coterie.FedOpt(rounds=3, participation=0.5, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.5).fit(fed)
    assert apart(ours.state.model, fedavg.state.model) < 1e-6
    assert ours.summary["ledger"] == fedavg.summary["ledger"]


def test_a_step_is_never_much_longer_than_the_rate():
    # With Adam |m| <= sqrt(v / (1 - beta_2)) at most; in the first round m = .1 c and v >= .01 c^2: at most the rate.
    fed = unequal()
    state = coterie.FedOpt(rounds=1, server_rate=0.05).fit(fed).state
    moved = (state.model - fed.new_model()).parameters.abs()
    assert moved.max() <= 0.05
    assert moved.max() > 0.01


def test_running_statistics_take_no_adaptive_step():
    fed = unequal(net=normed)
    ours = coterie.FedOpt(rounds=1).fit(fed).state.model
    fedavg = coterie.FedAvg(rounds=1).fit(fed).state.model
    assert torch.equal(ours.buffers, fedavg.buffers)
    assert not same(ours, fedavg)


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"beta_2": 1.0}, {"server_optimizer": "sgd"}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedopt", **options)
