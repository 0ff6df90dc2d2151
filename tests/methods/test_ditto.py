"""Ditto: the global part is FedAvg's, and the pull decides between training alone and the global model."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from support.worked_examples import apart, course, kept_model, normed, quadratics, same, unequal


@pytest.mark.parametrize("net", ["mlp", normed])
@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5}, {"server_momentum": 0.5}])
def test_the_global_model_is_fedavgs_to_the_last_bit(net, options):
    fed = unequal(net=net)
    ditto = coterie.Ditto(rounds=3, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert same(ditto.state.model, fedavg.state.model)
    assert ditto.summary["ledger"]["up"] == fedavg.summary["ledger"]["up"]
    assert ditto.summary["ledger"]["down"] == fedavg.summary["ledger"]["down"]
    assert [c["steps"] for c in ditto.clients] == [2 * c["steps"] for c in fedavg.clients]


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_a_pull_clients_train_alone(participation):
    # With all samples in one batch there is no order of samples, which would be another in the second training call.
    fed = unequal()
    options = {"rounds": 3, "batch": 0, "epochs": 4, "participation": participation}
    coterie.Ditto(mu=0.0, **options).fit(fed)
    ours = fed.run(kept_model).model
    coterie.Local(**options).fit(fed)
    assert apart(ours, fed.run(kept_model).model) < 1e-12


def test_with_a_pull_without_end_the_own_model_is_the_global_one():
    # mu times rate is 1, so a step ends at w_t - rate * gradient, whatever v_k was: with a tiny rate that is w_t. This
    # is what the client was sent, so the last own model is the global one of the round before.
    fed = unequal()
    made = coterie.Ditto(rounds=3, mu=1e6, rate=1e-6)
    before = course(made, fed)[-2].model
    assert apart(fed.run(kept_model).model, before.expand(6)) < 1e-5
    far = coterie.Ditto(rounds=3, mu=0.0, rate=0.1)
    before = course(far, fed)[-2].model
    assert apart(fed.run(kept_model).model, before.expand(6)) > 0.1


def test_the_pull_is_towards_the_global_model_and_not_towards_the_own(monkeypatch):
    # One client with (v - 4)^2 / 2, one step of .1 a round, mu = 1, and a server that goes half of the way: w_1 = .2
    # and v_1 = .4, so v_2 = .4 - .1 (.4 - 4 + .4 - .2) = .74. A pull to where training starts would not be felt: .76.
    fed = quadratics(monkeypatch, (4, 1, 2))
    coterie.Ditto(rounds=2, steps=1, rate=0.1, mu=1.0, server_rate=0.5).fit(fed)
    assert fed.run(kept_model).model.parameters.item() == pytest.approx(0.74, abs=1e-12)


def test_clients_are_served_their_own_model_and_it_stays_while_they_are_absent():
    fed = unequal()
    kept = []
    for rounds in (2, 3):
        result = coterie.Ditto(rounds=rounds, participation=0.34).fit(fed)
        assert result.served.kept == "model"
        taken = [client["rounds_taken_part"] for client in result.clients]
        kept.append((fed.run(kept_model).model.parameters, taken))
    (before, then), (after, now) = kept
    absent = [a == b for a, b in zip(then, now, strict=True)]
    assert sum(absent) == 4
    assert [torch.equal(*rows) for rows in zip(before, after, strict=True)] == absent


def test_a_negative_pull_is_refused():
    with pytest.raises(SettingsError, match="mu=-1"):
        coterie.Ditto(mu=-1.0)
