"""FedPer: FedAvg if all is shared, training alone if nothing is; the base travels, and everything trains at once."""

import pytest
import torch

import coterie
from support.worked_examples import apart, kept_model, normed, same, unequal

NETS = pytest.mark.parametrize("net", ["mlp", normed])


@NETS
def test_with_everything_shared_it_is_fedavg(net):
    fed = unequal(net=net)
    ours = coterie.FedPer(rounds=3, shares="all", participation=0.5).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.5).fit(fed)
    assert apart(fed.new_model().patched("all", ours.state.shared), fedavg.state.model) < 1e-12
    for one, other in zip(ours.clients, fedavg.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)


@NETS
def test_with_nothing_shared_it_is_training_alone(net):
    fed = unequal(net=net)
    coterie.FedPer(rounds=3, shares="none").fit(fed)
    ours = fed.run(kept_model).model
    coterie.Local(rounds=3).fit(fed)
    assert same(ours, fed.run(kept_model).model)


@NETS
def test_exactly_the_base_travels_and_the_newest_one_is_served_under_each_own_head(net):
    fed = unequal(net=net)
    result = coterie.FedPer(rounds=2, participation=0.5).fit(fed)
    size = int(fed.net.part("body").sum() + fed.net.buffers.total) * 8 * 3 * 2
    assert result.summary["ledger"]["up"] == result.summary["ledger"]["down"] == {"shared part": size}
    own = fed.run(kept_model).model
    served = own.patched("body", result.state.shared.expand(6, -1))
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": served}, {})
    assert [client["loss"] for client in result.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)


def test_base_and_head_train_at_once_and_not_in_turns():
    # In the first round all start from the initial model, whatever is shared: a client's model is FedAvg's client's.
    fed = unequal()
    coterie.FedPer(rounds=1).fit(fed)
    kept = fed.run(kept_model).model
    coterie.Local(rounds=1).fit(fed)
    assert same(kept, fed.run(kept_model).model)
    coterie.FedRep(rounds=1, head_epochs=2.0).fit(fed)
    assert not torch.equal(kept.parameters, fed.run(kept_model).model.parameters)
