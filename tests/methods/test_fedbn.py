"""FedBN: exactly batch normalisation stays at the clients, parameters and statistics."""

import pytest
import torch
from torch import nn

import coterie
from support.worked_examples import apart, kept_model, normed, unequal


def several(shape, classes):
    """Normalisation with parameters and without, and group normalisation, which is no batch normalisation."""
    return nn.Sequential(
        nn.Linear(shape[0], 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Sequential(nn.GroupNorm(2, 6), nn.BatchNorm1d(6, affine=False)),
        nn.Linear(6, classes),
    )


def test_batch_normalisation_is_a_part_with_its_statistics():
    net = unequal(net=several).net
    part = net.part("batch-norm")
    assert part.sum() == 2 * 6
    assert [name for name, chosen in net.parameters.views(part).items() if chosen.any()] == ["1.weight", "1.bias"]
    assert net.statistics("batch-norm").all()
    assert net.statistics("batch-norm").sum() == 4 * 6
    assert torch.equal(net.part("not batch-norm"), ~part)


@pytest.mark.parametrize("net", [several, normed])
def test_exactly_the_rest_travels(net):
    fed = unequal(net=net)
    ledger = coterie.FedBN(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    size = (fed.net.parameters.total - 2 * 6) * 8 * 3 * 2
    assert ledger["up"] == ledger["down"] == {"shared part": size}


def test_in_a_round_the_rest_is_fedavgs_mean_and_normalisation_is_everybodys_own():
    fed = unequal(net=several)
    state = coterie.FedBN(rounds=1).fit(fed).state
    own = fed.run(kept_model).model
    fedavg = coterie.FedAvg(rounds=1).fit(fed).state.model
    assert torch.allclose(state.shared, fedavg.packed("not batch-norm"), atol=1e-12)
    assert len(own.packed("batch-norm").unique(dim=0)) == 6


def test_normalisation_goes_on_from_where_the_client_left_it():
    fed = unequal(net=several)
    coterie.FedBN(rounds=1).fit(fed)
    before = fed.run(kept_model).model.packed("batch-norm")
    coterie.FedBN(rounds=2, rate=1e-12).fit(fed)
    tiny = fed.run(kept_model).model
    coterie.FedBN(rounds=2).fit(fed)
    after = fed.run(kept_model).model.packed("batch-norm")
    assert (after != before).any(dim=1).all()
    # With hardly any step the statistics still move, from round to round: they are not those of the first model.
    assert (tiny.buffers != fed.new_model().buffers).any(dim=1).all()


@pytest.mark.parametrize(("net", "options"), [("mlp", {}), (normed, {"shares": "all"})])
def test_without_normalisation_or_with_all_shared_it_is_fedavg(net, options):
    fed = unequal(net=net)
    ours = coterie.FedBN(rounds=3, participation=0.5, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.5).fit(fed)
    assert apart(fed.new_model().patched("all", ours.state.shared), fedavg.state.model) < 1e-12
