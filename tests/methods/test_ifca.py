"""IFCA: choosing, averaging by choice, starting well; reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients
from coterie.clients.programs import choose
from coterie.core.errors import CoterieError, SettingsError
from coterie.methods.as_published import choose_on_test_and_train
from coterie.methods.ifca import IFCA, IFCAState, choose_and_train
from coterie.nets.stacks import Models
from support.federations import at_round, opposed, same, uneven


def test_with_one_cluster_it_is_fedavg_to_the_last_bit():
    fed = uneven()
    ifca = IFCA(rounds=3, clusters=1, participation=0.7).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.7).fit(fed)
    assert same(ifca.state.models[0], fedavg.state.model)


def round_of(fed, models, **options):
    return IFCA(clusters=len(models), **options).round(at_round(fed), IFCAState(models)).models


def test_of_equal_models_only_the_first_moves():
    fed = uneven()
    equal = Models.stack([fed.new_model()] * 3)
    moved = round_of(fed, equal)
    assert not torch.equal(moved.parameters[0], equal.parameters[0])
    assert same(moved[1:], equal[1:])


def test_permuting_the_models_permutes_the_result():
    fed = uneven()
    models = fed.new_models(3)
    straight = round_of(fed, models)
    order = [2, 0, 1]
    assert same(round_of(fed, models[order]), straight[order])


def test_each_client_trains_the_model_with_the_lowest_training_loss():
    fed = uneven()
    models = fed.new_models(4)
    losses = fed.run(coterie.clients.programs.evaluate, shared=models, on="train").loss
    choice = fed.run(choose_and_train, shared=models, local=IFCA().local).choice
    assert choice.tolist() == losses.argmin(dim=1).tolist()
    assert len(set(choice.tolist())) > 1


def test_losses_choose_the_smaller_one_and_never_one_that_is_not_a_number(monkeypatch):
    losses = torch.tensor([[1.0, 2.0], [3.0, 1.0], [torch.nan, 5.0], [2.0, 2.0], [torch.inf, torch.nan], [9.0, 8.0]])

    class Found:
        loss = losses

    monkeypatch.setattr(Clients, "evaluate", lambda self, models, on="train": Found)
    fed = uneven(engine="vectorised")
    assert fed.run(choose, shared=fed.new_models(2)).choice.tolist() == [0, 1, 1, 0, 0, 1]


def test_a_group_is_averaged_by_samples_and_an_empty_one_stays():
    fed = at_round(uneven())
    models = fed.new_models(3)
    replies = fed.run(choose_and_train, shared=models, local=IFCA().local)
    by = torch.tensor([0, 0, 2, 0, 2, 0])
    moved = replies.average(by=by, otherwise=models)
    assert same(moved[1:2], models[1:2])
    for group in (0, 2):
        inside = by == group
        weights = replies.samples[inside].double() / replies.samples[inside].sum()
        mean = (weights[:, None] * replies.model.parameters[inside]).sum(dim=0)
        assert torch.allclose(moved.parameters[group], mean, atol=1e-14)


def test_two_opposed_groups_are_told_apart():
    result = IFCA(rounds=15, clusters=2, init_retry=5, rate=0.3).fit(opposed())
    assert result.summary["ari"] == 1
    assert result.summary["accuracy_mean"] > 0.8
    one = coterie.FedAvg(rounds=15, rate=0.3).fit(opposed())
    assert one.summary["accuracy_mean"] < 0.7


class TestInitRetry:
    """Drawing the initial models anew until every group attracts enough clients."""

    def test_off_it_costs_nothing_and_takes_the_first_draw(self):
        fed = uneven()
        fed.begin(1)
        models = IFCA(clusters=3).begin(fed).models
        assert same(models, fed.new_models(3))
        assert fed.ledger.total("down") == 0

    def test_the_first_good_draw_is_taken(self):
        fed = uneven(clients=8, seed=2)
        fed.begin(1)
        balances = [balance(fed, fed.new_models(3, first=3 * draw)) for draw in range(12)]
        asked = max(balances)
        good = balances.index(asked)
        assert good > 0, "the first draw is the best already: the test would show nothing"
        models = IFCA(clusters=3, init_retry=11, init_balance=asked).begin(fed).models
        assert same(models, fed.new_models(3, first=3 * good))
        assert fed.ledger.total("down") == (12 + good + 1) * 3 * 8 * fed.new_model().size

    def test_without_a_good_draw_the_best_one_is_taken(self):
        fed = uneven(clients=8)
        fed.begin(1)
        balances = [balance(fed, fed.new_models(3, first=3 * draw)) for draw in range(4)]
        models = IFCA(clusters=3, init_retry=3, init_balance=1.0).begin(fed).models
        assert max(balances) < 1
        assert same(models, fed.new_models(3, first=3 * int(np.argmax(balances))))

    def test_every_draw_is_counted(self):
        fed = uneven()
        fed.begin(1)
        IFCA(clusters=4, init_retry=2, init_balance=1.0).begin(fed)  # 6 clients in 4 groups are never even
        assert fed.ledger.total("down") == 3 * 4 * 6 * fed.new_model().size


def balance(fed, models):
    counts = torch.bincount(fed.run(choose, shared=models).choice, minlength=len(models))
    return float(counts.min() / counts.sum()) * len(models)


def test_k_models_travel_down_and_one_up():
    fed = uneven()
    result = IFCA(rounds=1, clusters=3).fit(fed)
    size = 6 * fed.net.parameters.total * 8
    assert result.summary["ledger"]["down"] == {"model": 3 * size}
    assert result.summary["ledger"]["up"] == {"model": size, "choice": 6 * 8}


@pytest.mark.parametrize("clients", [1, 2])
def test_more_models_than_clients(clients):
    fed = uneven(clients=clients)
    result = IFCA(rounds=2, clusters=5).fit(fed)
    assert result.summary["groups"] <= clients
    moved = (result.state.models.parameters != fed.new_models(5).parameters).any(dim=1)
    assert 1 <= moved.sum() <= 2 * clients


def test_a_client_that_never_takes_part_is_served_too():
    fed = uneven(clients=3)
    result = IFCA(rounds=1, clusters=2, participation=0.3).fit(fed)
    assert sum(client["rounds_taken_part"] for client in result.clients) == 1
    assert all(client["group_found"] in (0, 1) for client in result.clients)


def test_compat_chooses_on_test_data_and_says_so():
    # PACFL's code lets clients choose by accuracy on their own test data.
    fed, made = uneven(test_share=0.4), coterie.methods.make("ifca", rounds=1, clusters=4, compat=True)
    result = made.fit(fed)
    assert result.summary["reads_test_data"]
    assert "reads_test_data" not in IFCA(rounds=1).fit(fed).summary
    fed.begin(1, test_data=True)
    models = fed.new_models(4)
    chosen = fed.run(choose_on_test_and_train, shared=models, local=made.local).choice
    site = fed._engine._host
    for client in range(6):
        index = torch.from_numpy(site.shards[client].test)
        x, y = site.pool.inputs(index), site.pool.y[index]
        right = [(model.module()(x).argmax(dim=1) == y).sum().item() for model in models]
        assert chosen[client] == right.index(max(right))
    fed.begin(1)
    with pytest.raises(CoterieError, match="test data is for scoring only"):
        fed.run(choose_on_test_and_train, shared=models, local=made.local)


@pytest.mark.parametrize("options", [{"clusters": 0}, {"init_retry": -1}, {"init_balance": 1.5}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("ifca", **options)
