"""FeSEM: bundles and their centres, the E and the M step, late clients, reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.methods.fesem import FeSEM
from coterie.server.clusters import Clusters
from support.federations import AT_ONCE, at_round, lost, opposed, pulled, pulling, same, uneven

BUNDLES = [(5, 0), (5.2, 0), (4.8, 0.1), (-5, 1), (-5.1, 1.2)]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_one_centre_it_is_fedavg_to_the_last_bit(weighting):
    fed = uneven()
    fesem = FeSEM(rounds=4, clusters=1, participation=0.5, weighting=weighting).fit(fed)
    fedavg = coterie.FedAvg(rounds=4, participation=0.5, weighting=weighting).fit(fed)
    assert same(fesem.state.models[0], fedavg.state.model)


def test_two_bundles_have_two_centres_at_their_means(monkeypatch):
    pulling(monkeypatch)
    state = FeSEM(rounds=1, clusters=2, **AT_ONCE).fit(pulled(*BUNDLES)).state
    assert state.labels.tolist() == [0, 0, 0, 1, 1]
    means = [np.mean(BUNDLES[:3], axis=0), np.mean(BUNDLES[3:], axis=0)]
    assert torch.allclose(state.models.parameters, torch.tensor(np.array(means)), atol=1e-6)


def assigned(fed, made, centres, labels):
    """A round from given centres: the models that clients sent, and what is made of them."""
    state = Clusters(centres, torch.tensor(labels))
    replies = at_round(fed).run(train, each=state.start(fed, fed.clients), local=made.local)
    return replies.model.parameters, made.round(at_round(fed), state)


def test_a_step_never_moves_centres_away_from_their_clients():
    # Neither assigning to the nearest centre nor moving centres to their means can raise the sum of squared distances.
    fed, made = uneven(clients=8), FeSEM(clusters=3)
    for seed in range(3):
        centres = fed.new_models(3, first=3 * seed)
        labels = np.random.default_rng(seed).integers(3, size=8)
        sent, after = assigned(fed, made, centres, labels)
        before = (sent - centres.parameters[labels]).square().sum()
        between = (sent - centres.parameters[after.labels]).square().sum()
        assert between <= before + 1e-12
        assert (sent - after.models.parameters[after.labels]).square().sum() <= between + 1e-12


def test_permuting_the_centres_permutes_the_result():
    fed, made, labels, order = uneven(clients=8), FeSEM(clusters=3), [0, 1, 2, 0, 1, 2, 0, 1], [2, 0, 1]
    centres = fed.new_models(3)
    _, straight = assigned(fed, made, centres, labels)
    _, turned = assigned(fed, made, centres[order], [order.index(label) for label in labels])
    assert same(turned.models, straight.models[order])
    assert turned.labels.tolist() == [order.index(label) for label in straight.labels]


def test_a_centre_without_clients_stays_to_the_last_bit(monkeypatch):
    pulling(monkeypatch)
    fed = pulled(*BUNDLES)
    centres = fed.new_model().expand(3)
    centres = centres + coterie.Changes(fed.net, torch.tensor([[5.0, 0.0], [-5.0, 1.0], [0.0, 99.0]]).double())
    _, after = assigned(fed, FeSEM(clusters=3, **AT_ONCE), centres, [2] * 5)
    assert after.labels.tolist() == [0, 0, 0, 1, 1]
    assert same(after.models[2], centres[2])


def test_a_layer_can_be_compared_alone():
    fed = uneven()
    head = FeSEM(clusters=2, layer="head")
    state = Clusters(fed.new_models(2), torch.zeros(6, dtype=torch.int64))
    replies = at_round(fed).run(train, each=state.start(fed, fed.clients), local=head.local)
    found = head._nearest(fed, state, replies)
    away = torch.cdist(replies.model.part("head"), state.models.part("head"))
    assert found.tolist() == away.argmin(dim=1).tolist()


def test_opposed_groups_are_told_apart_and_served_better():
    fed = opposed(samples=480)
    result = FeSEM(rounds=12, clusters=2, rate=0.3, epochs=5).fit(fed)
    plain = coterie.FedAvg(rounds=12, rate=0.3, epochs=5).fit(fed)
    assert result.summary["ari"] == 1
    assert result.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.2


class TestLate:
    """Clients that have not taken part yet."""

    def test_they_start_from_the_mean_of_the_centres_and_join_the_nearest(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*BUNDLES, (4, 1))
        made = FeSEM(clusters=2, **AT_ONCE)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 5), made.begin(fed))
        assert state.labels.tolist() == [0, 0, 0, 1, 1, -1]
        served = made.serve(fed, state)
        middle = (3 * np.mean(BUNDLES[:3], axis=0) + 2 * np.mean(BUNDLES[3:], axis=0)) / 5
        assert served.models.parameters[served.index[5]].tolist() == pytest.approx(middle.tolist(), abs=1e-6)
        fed._engine.run = run
        assert made.round(at_round(fed, 2), state).labels.tolist() == [0, 0, 0, 1, 1, 0]

    def test_names_may_be_appended_in_mid_run(self, monkeypatch):
        pulling(monkeypatch)
        few, more = pulled(*BUNDLES), pulled(*BUNDLES, (-4, 1))
        made = FeSEM(clusters=2, **AT_ONCE)
        state = made.round(at_round(few), made.begin(few))
        assert made.round(at_round(more, 2), state).labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("clients", [1, 2])
def test_more_centres_than_clients(clients):
    result = FeSEM(rounds=3, clusters=4).fit(uneven(clients=clients))
    assert 1 <= result.summary["groups"] <= clients


def test_identical_clients_share_a_centre(monkeypatch):
    pulling(monkeypatch)
    assert len(set(FeSEM(rounds=2, clusters=3, **AT_ONCE).fit(pulled(*[(1, 2)] * 5)).state.labels.tolist())) == 1


def test_one_model_travels_each_way():
    fed = uneven()
    ledger = FeSEM(rounds=2, clusters=3).fit(fed).summary["ledger"]
    assert ledger["down"] == ledger["up"] == {"model": 2 * 6 * fed.net.parameters.total * 8}


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="clusters=0: at least 1"):
        coterie.methods.make("fesem", clusters=0)
