"""pFedMe: a step on the Moreau envelope by hand and in closed form, and the two ways in which it becomes FedAvg."""

import numpy as np
import pytest

import coterie
from coterie.core.errors import SettingsError
from coterie.methods import pfedme
from coterie.methods.pfedme import MoreauEnvelope
from coterie.training.local import LocalTraining
from support.worked_examples import apart, kept_model, normed, same, unequal
from support.worlds import at, quadratic, quadratics

NETS = pytest.mark.parametrize("net", ["mlp", normed])
FORMS = pytest.mark.parametrize("form", ["loop", "vectorised"])


@pytest.fixture
def parabola(monkeypatch):
    """Makes the loss a/2 (w - c)^2 of samples (c, a), instead of cross-entropy."""
    monkeypatch.setattr(pfedme, "task_loss", quadratic)


def trained(here, form, start, envelope, steps, rate=0.1):
    """The clients' models, what they have found as their personal ones, and their losses, each [client]."""
    starts = at(here, *[start] * len(here.shards))
    local = LocalTraining(steps=steps, batch=0, rate=rate)
    found = here.clients(form).train(starts, local, objective=envelope, carried={"personal": starts.parameters})
    return found.models.parameters[:, 0], found.carried["personal"][:, 0], found.loss


@FORMS
def test_two_steps_by_hand(parabola, form):
    # f = (w - 4)^2 / 2 from 0, lambda = 2, K = 2 inner steps of .25, eta = .1. The inner steps lead to 1 and 1.25, so
    # w = .1 * 2 * 1.25 = .25. They go on from 1.25, to 1.25 - .25 (-2.75 + 2 * 1) = 1.4375 and to 1.4375 - .25 (-2.5625
    # + 2 * 1.1875) = 1.484375, so w = .25 + .2 * (1.484375 - .25) = .496875. The loss is h at that theta and the w
    # before: (1.484375 - 4)^2 / 2 + (1.484375 - .25)^2.
    w, theta, loss = trained(quadratics([(4, 1)] * 3, [(4, 1)]), form, 0.0, MoreauEnvelope(2.0, 2, 0.25), 2)
    assert w.tolist() == pytest.approx([0.496875] * 2, abs=1e-12)
    assert theta.tolist() == pytest.approx([1.484375] * 2, abs=1e-12)
    assert loss.tolist() == pytest.approx([2.515625**2 / 2 + 1.234375**2] * 2, abs=1e-12)


@FORMS
def test_with_many_inner_steps_it_is_descent_on_the_envelope(parabola, form):
    # theta(w) = (a c + lambda w) / (a + lambda), and F(w) = k/2 (w - c)^2 with k = lambda a / (a + lambda): in each
    # step the distance to c shrinks by 1 - eta k, also where the loss itself is steep.
    curvatures, strength = np.array([1.0, 8.0]), 2.0
    here = quadratics([(4, 1)], [(4, 8)] * 3)
    w, theta, _ = trained(here, form, 1.0, MoreauEnvelope(strength, 200, 0.1), 3, rate=0.3)
    left = 3 * (1 - 0.3 * strength * curvatures / (curvatures + strength)) ** np.array([[2], [3]])
    np.testing.assert_allclose(w, 4 - left[1], atol=1e-10)
    before = 4 - left[0]
    np.testing.assert_allclose(theta, (curvatures * 4 + strength * before) / (curvatures + strength), atol=1e-10)


@NETS
@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5, "server_rate": 0.7}])
def test_with_a_lambda_without_end_it_is_fedavg(net, options):
    # An inner step of 1 / lambda leads from anywhere to w - grad / lambda, so the gradient of the envelope is grad.
    fed = unequal(net=net)
    ours = coterie.PFedMe(rounds=3, strength=1e7, inner_rate=1e-7, weighting="samples", **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert apart(ours.state.model, fedavg.state.model) < 1e-5
    assert apart(fedavg.state.model, fed.new_model()) > 0.05
    assert ours.summary["ledger"]["up"] == fedavg.summary["ledger"]["up"]
    assert [client["steps"] for client in ours.clients] == [client["steps"] for client in fedavg.clients]


@pytest.mark.parametrize("batch", [0, 8])
def test_with_a_single_step_and_inner_step_it_is_fedavg_at_another_rate(batch):
    fed = unequal()
    ours = coterie.PFedMe(rounds=3, steps=1, batch=batch, rate=0.1, strength=15.0, inner_steps=1, inner_rate=0.2)
    fedavg = coterie.FedAvg(rounds=3, steps=1, batch=batch, rate=0.1 * 15 * 0.2, weighting="uniform")
    assert apart(ours.fit(fed).state.model, fedavg.fit(fed).state.model) < 1e-12


def test_the_running_statistics_are_those_at_the_personal_model():
    # Without a batch that differs, and with an inner step too small to move anything, they are FedAvg's with no rate.
    fed = unequal(net=normed)
    ours = coterie.PFedMe(rounds=1, batch=0, inner_rate=1e-12).fit(fed).state.model
    still = coterie.FedAvg(rounds=1, batch=0, rate=1e-12, weighting="uniform").fit(fed).state.model
    assert apart(ours, still) < 1e-9
    assert apart(coterie.PFedMe(rounds=1, batch=0).fit(fed).state.model, still) > 1e-3


def test_clients_are_served_their_personal_model_and_it_stays_while_they_are_absent():
    fed = unequal()
    kept = []
    for rounds in (2, 3):
        result = coterie.PFedMe(rounds=rounds, participation=0.34).fit(fed)
        assert result.served.kept == "model"
        kept.append((fed.run(kept_model).model, [client["rounds_taken_part"] for client in result.clients]))
    (before, then), (after, now) = kept
    absent = [one == other for one, other in zip(then, now, strict=True)]
    assert sum(absent) == 4
    assert [same(before[row], after[row]) for row in range(6)] == absent


def test_personal_models_are_farther_from_the_global_one_the_weaker_the_pull():
    fed = unequal()
    found = []
    for strength in (0.5, 5.0, 15.0):
        state = coterie.PFedMe(rounds=2, strength=strength, rate=1e-9).fit(fed).state
        found.append((fed.run(kept_model).model - state.model.expand(6)).norm().mean())
    assert found[0] > 1.5 * found[1] > 2 * found[2]


@pytest.mark.parametrize("options", [{"strength": 0.0}, {"inner_steps": 0}, {"inner_rate": 0.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.PFedMe(**options)
