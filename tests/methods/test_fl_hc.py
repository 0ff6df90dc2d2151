"""FL+HC: the worked clusters, every metric and linkage, late clients, reductions."""

from itertools import product

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fl_hc import FLHC
from support.federations import AT_ONCE, at_round, lost, opposed, pulled, pulling, same, uneven

CORNERS = [(0, 0), (0, 1), (5, 0), (5, 1)]


@pytest.mark.parametrize(
    ("threshold", "labels"), [(0.5, [0, 1, 2, 3]), (1.5, [0, 0, 1, 1]), (6.0, [0, 0, 0, 0])], ids=str
)
def test_the_worked_clusters(threshold, labels, monkeypatch):
    # Complete linkage joins pairs at distance 1 and everything at sqrt(26) = 5.1.
    pulling(monkeypatch)
    made = FLHC(rounds=1, cluster_round=1, relative=False, threshold=threshold, **AT_ONCE)
    state = made.fit(pulled(*CORNERS)).state
    assert state.clusters.labels.tolist() == labels
    for cluster in set(labels):
        mean = np.mean([place for place, label in zip(CORNERS, labels, strict=True) if label == cluster], axis=0)
        assert state.clusters.models.parameters[cluster].tolist() == pytest.approx(mean.tolist(), abs=1e-9)
        assert state.updates.parameters[cluster].tolist() == pytest.approx(mean.tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("distance", "linkage"), [*product(["l1", "l2", "cosine"], ["single", "complete", "average"]), ("l2", "ward")]
)
def test_every_distance_with_every_linkage_finds_two_groups(distance, linkage):
    made = FLHC(rounds=4, cluster_round=3, clusters=2, distance=distance, linkage=linkage, rate=0.3)
    result = made.fit(opposed(samples=480))
    assert result.summary["ari"] == 1
    assert result.summary["groups"] == 2


def test_updates_are_compared_and_not_models(monkeypatch):
    # From w = (10, 0), clients go by (0, 1) and by (0, -1): opposite updates of models that are 11 degrees apart.
    pulling(monkeypatch)
    fed = pulled((10, 1), (10, -1), (10, 1), (10, -1))
    made = FLHC(rounds=2, cluster_round=2, distance="cosine", relative=False, threshold=0.5, **AT_ONCE)
    assert made.fit(fed).state.clusters.labels.tolist() == [0, 1, 0, 1]


def test_a_relative_threshold_does_not_depend_on_the_scale(monkeypatch):
    pulling(monkeypatch)
    for scale in (1e-3, 1, 1e3):
        fed = pulled(*[(scale * x, scale * y) for x, y in CORNERS])
        state = FLHC(rounds=1, cluster_round=1, threshold=0.9, **AT_ONCE).fit(fed).state
        assert state.clusters.labels.tolist() == [0, 0, 1, 1]


def test_with_a_threshold_above_all_distances_it_is_fedavg_to_the_last_bit():
    fed = uneven()
    result = FLHC(rounds=5, cluster_round=3, threshold=1e9).fit(fed)
    plain = coterie.FedAvg(rounds=5).fit(fed)
    assert same(result.state.clusters.models[0], plain.state.model)


def test_before_the_clusters_it_is_fedavg_to_the_last_bit_with_sampling_too():
    fed = uneven()
    result = FLHC(rounds=3, cluster_round=9, participation=0.5).fit(fed)
    plain = coterie.FedAvg(rounds=3, participation=0.5).fit(fed)
    assert same(result.state.clusters.models[0], plain.state.model)


def test_with_a_threshold_of_zero_every_client_trains_on_alone_from_the_shared_model():
    fed = uneven()
    result = FLHC(rounds=4, cluster_round=3, threshold=0.0).fit(fed)
    start = coterie.FedAvg(rounds=2).fit(fed).state.model
    models = start.expand(6)
    for number in (3, 4):
        models = at_round(fed, number).run(coterie.programs.train, each=models, local=FLHC().local).model
    assert result.summary["groups"] == 6
    assert torch.allclose(result.state.clusters.models.parameters, models.parameters, atol=1e-14)


def test_all_take_part_in_the_round_of_clustering():
    result = FLHC(rounds=2, cluster_round=2, participation=0.34).fit(uneven())
    assert sorted(client["rounds_taken_part"] for client in result.clients) == [1, 1, 1, 1, 2, 2]


def test_clusters_go_on_apart():
    fed = opposed()
    result = FLHC(rounds=15, cluster_round=4, clusters=2, rate=0.3).fit(fed)
    plain = coterie.FedAvg(rounds=15, rate=0.3).fit(fed)
    assert result.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.15


class TestLate:
    """Clients that were away when the others were clustered, or came later."""

    def test_one_that_was_away_joins_the_cluster_with_the_nearest_mean_update(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*CORNERS, (4, 2))
        made = FLHC(cluster_round=1, clusters=2, **AT_ONCE)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 4), made.begin(fed))
        assert state.clusters.labels.tolist() == [0, 0, 1, 1, -1]
        assert made.serve(fed, state).index.tolist() == [0, 0, 1, 1, 2]
        fed._engine.run = run
        state = made.round(fed, state)
        assert state.clusters.labels.tolist() == [0, 0, 1, 1, 1]

    @pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
    def test_one_that_comes_later_does_too(self, distance, monkeypatch):
        pulling(monkeypatch)
        fed = pulled((1, 0), (1, 0.1), (0, 1), (0, 1.2), (0.1, 1), arrivals={4: 4})
        result = FLHC(rounds=4, cluster_round=2, clusters=2, distance=distance, **AT_ONCE).fit(fed)
        assert result.state.clusters.labels.tolist() == [0, 0, 1, 1, 1]

    def test_one_that_comes_before_the_clusters_is_in_them(self, monkeypatch):
        pulling(monkeypatch)
        result = FLHC(rounds=3, cluster_round=3, clusters=2, **AT_ONCE).fit(pulled(*CORNERS, arrivals={3: 2}))
        assert result.state.clusters.labels.tolist() == [0, 0, 1, 1]

    def test_names_may_be_appended_in_mid_run(self, monkeypatch):
        pulling(monkeypatch)
        few, more = pulled(*CORNERS), pulled(*CORNERS, (6, 0))
        made = FLHC(cluster_round=1, clusters=2, **AT_ONCE)
        state = made.round(at_round(few), made.begin(few))
        assert made.round(at_round(more, 2), state).clusters.labels.tolist() == [0, 0, 1, 1, 1]


class TestAdjustment:
    """AutoCFL's adjustment of epochs in front of the clustering."""

    def test_lagging_clients_get_the_epochs_that_autocfl_gives_them(self):
        # Until clients are clustered, the two methods are the same with everybody there.
        fed = uneven()
        ours = FLHC(rounds=3, cluster_round=9, adjust=True, growth=0.7).fit(fed).state
        theirs = coterie.AutoCFL(rounds=3, cluster_round=9, growth=0.7).fit(fed).state
        assert torch.equal(ours.pace.epochs, theirs.pace.epochs)
        assert (ours.pace.epochs > 2).any()
        assert torch.allclose(ours.clusters.models.parameters, theirs.clusters.models.parameters, atol=1e-12)

    def test_epochs_stay_as_they_are_once_there_are_clusters(self):
        fed = uneven()
        at, after = (FLHC(rounds=rounds, cluster_round=3, adjust=True).fit(fed) for rounds in (3, 5))
        assert torch.equal(at.state.pace.epochs, after.state.pace.epochs)
        assert len(after.state.pace.variances) == 2
        steps = [other["steps"] - one["steps"] for one, other in zip(at.clients, after.clients, strict=True)]
        local = FLHC().local
        pairs = zip(fed.sizes.tolist(), after.state.pace.epochs.tolist(), strict=True)
        assert steps == [2 * local.steps_for(samples, epochs) for samples, epochs in pairs]

    def test_without_it_nothing_but_models_travels(self):
        ledger = FLHC(rounds=4, cluster_round=2).fit(uneven()).summary["ledger"]
        assert set(ledger["down"]) == set(ledger["up"]) == {"model"}
        adjusted = FLHC(rounds=4, cluster_round=2, adjust=True).fit(uneven()).summary["ledger"]
        assert set(adjusted["down"]) == {"epochs", "model"}
        assert set(adjusted["up"]) == {"loss", "model"}


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("clusters", [None, 3])
def test_few_clients(clients, clusters):
    result = FLHC(rounds=3, cluster_round=2, clusters=clusters).fit(uneven(clients=clients))
    assert 1 <= result.summary["groups"] <= clients


def test_identical_clients_are_one_cluster(monkeypatch):
    pulling(monkeypatch)
    for options in ({}, {"threshold": 0.0}, {"clusters": 1}):
        result = FLHC(rounds=2, cluster_round=1, **options, **AT_ONCE).fit(pulled(*[(2, 1)] * 4))
        assert result.summary["groups"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"cluster_round": 0},
        {"threshold": -1.0},
        {"clusters": 0},
        {"distance": "l1", "linkage": "ward"},
        {"growth": -1.0},
        {"steps": 3, "adjust": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fl-hc", **options)
