"""FedBABU: nobody trains the head in rounds; who trains what before predicting; without a head it is FedAvg."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.training.local import LocalTraining
from support.worked_examples import apart, normed, unequal

NETS = pytest.mark.parametrize("net", ["mlp", normed])


@NETS
@pytest.mark.parametrize("options", [{}, {"weighting": "uniform", "momentum": 0.5}])
def test_without_a_head_and_without_tuning_it_is_fedavg(net, options):
    fed = unequal(net=net)
    ours = coterie.FedBABU(rounds=3, head="none", tune_epochs=0.0, participation=0.5, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.5, **options).fit(fed)
    assert apart(fed.new_model().patched("all", ours.state.body), fedavg.state.model) < 1e-12
    for one, other in zip(ours.clients, fedavg.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)


@NETS
def test_exactly_the_body_travels(net):
    fed = unequal(net=net)
    ledger = coterie.FedBABU(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    size = int(fed.net.part("body").sum() + fed.net.buffers.total) * 8 * 3 * 2
    assert ledger["up"] == ledger["down"] == {"body": size}


def test_the_head_that_is_served_is_the_first_one():
    fed = unequal()
    result = coterie.FedBABU(rounds=3).fit(fed)
    start, served = fed.new_model(), result.served.models[0]
    assert torch.equal(served.part("head"), start.part("head"))
    assert not torch.equal(served.part("body"), start.part("body"))


def test_bodies_are_trained_under_the_same_head_in_every_round(monkeypatch):
    starts = []
    train = coterie.Clients.train

    def watched(self, start, local, **options):
        starts.append((start, options["trains"]))
        return train(self, start, local, **options)

    monkeypatch.setattr(coterie.Clients, "train", watched)
    fed = unequal()
    coterie.FedBABU(rounds=3).fit(fed)
    assert [trains for _, trains in starts] == ["not head"] * 3
    assert all(torch.equal(start.part("head"), fed.new_model().part("head").expand(6, -1)) for start, _ in starts)


def test_before_predicting_a_client_tunes_the_part_it_is_told():
    result = coterie.FedBABU(rounds=1, tune_epochs=3.0, tunes="head", rate=0.05).fit(unequal())
    assert result.served.adapt == (("head", LocalTraining(epochs=3.0, rate=0.05)),)
    assert coterie.FedBABU(rounds=1, tune_epochs=0.0).fit(unequal()).served.adapt == ()


@pytest.mark.parametrize("options", [{"head": "hat"}, {"tunes": "hat"}])
def test_an_unknown_part_is_refused(options):
    with pytest.raises(SettingsError, match="has no layer 'hat'"):
        coterie.FedBABU(rounds=1, **options).fit(unequal())
