"""LG-FedAvg: from training alone to FedAvg, by the part that is shared; what travels and what stays."""

import pytest
import torch

import coterie
from coterie import Scoring
from coterie.core.errors import SettingsError
from coterie.nets import make_net
from support.worked_examples import apart, kept_model, normed, same, unequal

NETS = pytest.mark.parametrize("net", ["mlp", normed])


def shared(fed, state, part):
    """A fresh model with the server's part in it."""
    return fed.new_model().patched(part, state.shared)


@NETS
@pytest.mark.parametrize("options", [{}, {"participation": 0.5}, {"weighting": "uniform", "momentum": 0.5}])
def test_with_everything_shared_it_is_fedavg(net, options):
    fed = unequal(net=net)
    ours = coterie.LGFedAvg(rounds=3, shares="all", refresh=True, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert apart(shared(fed, ours.state, "all"), fedavg.state.model) < 1e-12
    # With the newest part in it, what a client predicts with is FedAvg's model.
    for one, other in zip(ours.clients, fedavg.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)


@NETS
@pytest.mark.parametrize("options", [{}, {"participation": 0.5}])
def test_with_nothing_shared_it_is_training_alone(net, options):
    fed = unequal(net=net)
    ours = coterie.LGFedAvg(rounds=3, shares="none", **options).fit(fed)
    own = fed.run(kept_model).model
    local = coterie.Local(rounds=3, **options).fit(fed)
    assert same(own, fed.run(kept_model).model)
    assert [client["loss"] for client in ours.clients] == [client["loss"] for client in local.clients]
    assert ours.summary["bytes_up"] == ours.summary["bytes_down"] == 0


@NETS
@pytest.mark.parametrize("part", ["head", "body", "top-2"])
def test_exactly_the_shared_part_travels_with_its_running_statistics(net, part):
    fed = unequal(net=net)
    ledger = coterie.LGFedAvg(rounds=2, shares=part, participation=0.5).fit(fed).summary["ledger"]
    size = int(fed.net.part(part).sum() + fed.net.statistics(part).sum()) * 8 * 3 * 2
    assert ledger["up"] == ledger["down"] == {"shared part": size}


def test_lenet_shares_as_many_numbers_as_in_flis():
    # The two upper layers of LeNet-5, 120 to 84 to 10: 11,014 of 62,006 numbers.
    net = make_net("lenet5", (3, 32, 32), 10)
    assert int(net.part("top-2").sum()) == 11_014
    assert net.parameters.total == 62_006


@NETS
def test_the_shared_part_is_the_mean_of_what_clients_trained(net):
    fed = unequal(net=net)
    state = coterie.LGFedAvg(rounds=1, shares="top-2").fit(fed).state
    trained = fed.run(kept_model).model.packed("top-2")
    weights = fed.sizes.double() / fed.sizes.sum()
    assert torch.allclose(state.shared, weights @ trained, atol=1e-12)


def test_clients_train_all_of_their_model_and_not_the_shared_part_alone():
    fed = unequal()
    coterie.LGFedAvg(rounds=1, shares="head").fit(fed)
    moved = fed.run(kept_model).model.parameters != fed.new_model().parameters
    assert moved[:, fed.net.part("head")].float().mean() > 0.9
    assert moved[:, fed.net.part("body")].float().mean() > 0.9


def test_the_model_of_an_absent_client_stays_as_it_is():
    fed = unequal()
    kept = []
    for rounds in (2, 3):
        result = coterie.LGFedAvg(rounds=rounds, participation=0.34).fit(fed)
        taken = [client["rounds_taken_part"] for client in result.clients]
        kept.append((fed.run(kept_model).model.parameters, taken))
    (before, then), (after, now) = kept
    absent = [a == b for a, b in zip(then, now, strict=True)]
    assert sum(absent) == 4
    assert [torch.equal(*rows) for rows in zip(before, after, strict=True)] == absent


def test_a_client_predicts_with_the_model_that_it_keeps_unless_it_is_refreshed():
    fed = unequal()
    scoring = Scoring(views=("served", "last"))
    kept = coterie.LGFedAvg(rounds=2).fit(fed, scoring=scoring)
    assert all(client["accuracy"] == client["accuracy_last"] for client in kept.clients)
    assert kept.summary["bytes_evaluation"] < 1000  # figures alone
    fresh = coterie.LGFedAvg(rounds=2, refresh=True).fit(fed, scoring=scoring)
    assert torch.equal(kept.state.shared, fresh.state.shared)
    assert [a["loss"] for a in kept.clients] != [b["loss"] for b in fresh.clients]
    assert fresh.summary["ledger"]["evaluation"]["shared part"] == 2 * 6 * 8 * len(fresh.state.shared)


def test_a_client_that_never_took_part_predicts_with_the_initial_model():
    fed = unequal(clients=8)
    result = coterie.LGFedAvg(rounds=1, participation=0.2).fit(fed)
    models = fed.run(kept_model).model
    for row, client in enumerate(result.clients):
        assert same(models[row], fed.new_model()) == (client["rounds_taken_part"] == 0)


def test_layers_can_be_named_and_an_unknown_one_is_an_error():
    fed = unequal()
    named = coterie.LGFedAvg(rounds=1, shares=fed.net.layers[-1]).fit(fed).state.shared
    assert torch.equal(named, coterie.LGFedAvg(rounds=1, shares="head").fit(fed).state.shared)
    with pytest.raises(SettingsError, match="has no layer 'feet'"):
        coterie.LGFedAvg(rounds=1, shares="feet").fit(fed)
