"""FedRep: who trains what, what travels, and what it is without a head or a body."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from support.worked_examples import apart, kept_model, normed, same, unequal

NETS = pytest.mark.parametrize("net", ["mlp", normed])


@NETS
@pytest.mark.parametrize("options", [{}, {"participation": 0.5}, {"weighting": "uniform", "steps": 3}])
def test_without_a_head_it_is_fedavg(net, options):
    fed = unequal(net=net)
    ours = coterie.FedRep(rounds=3, head="none", **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert apart(fed.new_model().patched("all", ours.state.body), fedavg.state.model) < 1e-12
    for one, other in zip(ours.clients, fedavg.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)
        assert one["steps"] == other["steps"]


def test_without_a_body_it_is_training_alone_on_the_heads_schedule():
    fed = unequal()
    coterie.FedRep(rounds=2, head="all", head_epochs=3.0).fit(fed)
    ours = fed.run(kept_model).model
    coterie.Local(rounds=2, epochs=3).fit(fed)
    assert same(ours, fed.run(kept_model).model)


def test_the_head_trains_on_the_body_that_was_sent_and_then_the_body_under_the_new_head(monkeypatch):
    calls = []
    train = coterie.Clients.train

    def watched(self, start, local, **options):
        trained = train(self, start, local, **options)
        calls.append((start, trained.models, options["trains"], local.epochs))
        return trained

    monkeypatch.setattr(coterie.Clients, "train", watched)
    fed = unequal()
    coterie.FedRep(rounds=1, head_epochs=4.0, epochs=1).fit(fed)
    head = fed.net.part("head")
    (first, middle, *how), (again, last, *then) = calls
    assert how == ["head", 4.0]
    assert then == ["not head", 1]
    assert same(middle, again)
    assert torch.equal(first.parameters[:, ~head], middle.parameters[:, ~head])
    assert not torch.equal(first.parameters[:, head], middle.parameters[:, head])
    assert torch.equal(middle.parameters[:, head], last.parameters[:, head])
    assert not torch.equal(middle.parameters[:, ~head], last.parameters[:, ~head])


@NETS
def test_exactly_the_body_travels_with_its_running_statistics(net):
    fed = unequal(net=net)
    ledger = coterie.FedRep(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    size = int(fed.net.part("body").sum() + fed.net.buffers.total) * 8 * 3 * 2
    assert ledger["up"] == ledger["down"] == {"body": size}


@NETS
def test_clients_predict_with_the_newest_body_under_their_own_head(net):
    fed = unequal(net=net)
    result = coterie.FedRep(rounds=2, participation=0.5).fit(fed)
    own = fed.run(kept_model).model
    served = own.patched("body", result.state.body.expand(6, -1))
    assert same(
        served, fed.new_model().patched("body", result.state.body).expand(6).patched("head", own.packed("head"))
    )
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": served}, {})
    assert [client["loss"] for client in result.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)


def test_the_head_of_an_absent_client_stays_as_it_is():
    fed = unequal()
    kept = []
    for rounds in (2, 3):
        result = coterie.FedRep(rounds=rounds, participation=0.34).fit(fed)
        taken = [client["rounds_taken_part"] for client in result.clients]
        kept.append((fed.run(kept_model).model.part("head"), taken))
    (before, then), (after, now) = kept
    absent = [a == b for a, b in zip(then, now, strict=True)]
    assert sum(absent) == 4
    assert [torch.equal(*rows) for rows in zip(before, after, strict=True)] == absent


@NETS
def test_the_body_is_the_mean_of_what_clients_trained(net):
    fed = unequal(net=net)
    state = coterie.FedRep(rounds=1).fit(fed).state
    trained = fed.run(kept_model).model.packed("body")
    weights = fed.sizes.double() / fed.sizes.sum()
    assert torch.allclose(state.body, weights @ trained, atol=1e-12)


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="head_epochs=-1"):
        coterie.FedRep(head_epochs=-1.0)
    with pytest.raises(SettingsError, match="has no layer 'hat'"):
        coterie.FedRep(rounds=1, head="hat").fit(unequal())
