"""Measures: what the tables and figures of papers look at besides accuracy."""

import json
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie import Scoring
from coterie.core.errors import SettingsError
from coterie.core.registry import first_line, options
from coterie.engines.simulation import Simulation
from coterie.papers.autocfl.measures import LocalModels, clusterings, first_rise
from coterie.papers.cafa.measures import LabelClusters, classification
from coterie.runs.settings import Settings
from coterie.studies.measures import measures

TRAINED = {"rounds": 3, "rate": 0.1, "batch": 16, "adjust": True}

BLOCKS = np.array([[0, 1, 9, 10], [1, 0, 8, 9], [9, 8, 0, 1], [10, 9, 1, 0]], dtype=float)
"""Two groups of two, far apart."""


def world(**given):
    return Settings.of({"workers": 0, **given}, "fedavg")[0].world


def labels_of_cifar(**given):
    return world(data="balanced-labels", split="cafa-mixed", validation=0, **given)


def digits(**given):
    return world(data="digits", split="autocfl-label", clients=8, net="logistic", validation=0, **given)


@pytest.mark.parametrize("name", list(measures))
def test_every_measure_documents_itself_and_its_options(name):
    assert first_line(measures[name])
    assert all(option.help for option in options(measures[name]))


# Labels alone


def test_flags_are_scored_as_published():
    # CAFA, Table II, case 1: 5 IID clients of 20, all flagged, and one more.
    truth = np.arange(20) < 5
    flagged = np.arange(20) < 6
    found = classification(flagged, truth)
    assert {name: round(value, 2) for name, value in found.items()} == {
        "accuracy": 0.95,
        "precision": 0.83,
        "recall": 1.0,
        "f1": 0.91,
    }


def test_a_share_of_nothing_is_not_a_number():
    nobody, all_clients = np.zeros(3, dtype=bool), np.ones(3, dtype=bool)
    assert classification(nobody, nobody) == {"accuracy": 1.0, "precision": None, "recall": None, "f1": None}
    assert classification(nobody, all_clients) == {"accuracy": 0.0, "precision": None, "recall": 0.0, "f1": 0.0}


def test_the_largest_cluster_is_that_of_iid_clients():
    summary, details = LabelClusters(clusters=7).run(labels_of_cifar(clients=20, iid=0.5))
    assert summary["k"] == 7
    assert summary["accuracy"] >= 0.8
    assert summary["recall"] == 1
    largest, truth = np.array(details["iid"]), np.array(details["true_groups"]) == 0
    assert classification(largest, truth)["accuracy"] == summary["accuracy"]
    assert np.array(details["label_shares"]).shape == (20, 10)
    assert np.allclose(np.sum(details["label_shares"], axis=1), 1)
    assert not details["silhouette"]


def test_the_silhouette_chooses_k_where_nobody_does():
    summary, details = LabelClusters().run(labels_of_cifar(clients=8, iid=0.5))
    tried = dict(details["silhouette"])
    assert list(tried) == list(range(2, 8))
    assert summary["silhouette"] == tried[summary["k"]] == max(tried.values())
    assert set(summary) == set(LabelClusters.gives)


def test_a_split_without_true_groups_has_clusters_but_no_score():
    summary, details = LabelClusters().run(world(data="balanced-labels", split="cafa", clients=6))
    assert "accuracy" not in summary
    assert details["true_groups"] is None
    assert len(details["clusters"]) == 6


def test_labels_need_neither_net_nor_engine(monkeypatch):
    monkeypatch.setattr(Simulation, "__init__", lambda *_: pytest.fail("an engine was made"))
    LabelClusters(clusters=2).run(labels_of_cifar(clients=6))


def test_the_seed_decides_on_the_clients():
    some, same, other = (
        LabelClusters(clusters=4).run(labels_of_cifar(clients=10, seed=seed))[1]["label_shares"] for seed in (1, 1, 2)
    )
    assert some == same != other


def test_no_clusters_are_refused():
    with pytest.raises(SettingsError, match="clusters=0: at least 1"):
        LabelClusters(clusters=0)


# Trained models


@pytest.fixture(scope="module")
def trained():
    return LocalModels(**TRAINED).run(digits(imbalanced=True))


def test_models_are_those_that_autocfl_clusters(trained):
    summary, details = trained
    given = digits(imbalanced=True)
    fed = given.federation()
    result = coterie.AutoCFL(**TRAINED).fit(fed, scoring=Scoring(evaluate_every=3))
    fed.close()
    assert details["clusterings"]["voting"] == result.groups[-1]["groups"]
    assert summary["voting_ari"] == result.summary["ari"]
    assert summary["voting_placed_right"] == result.summary["placed_right"]
    assert details["loss_variance"] == list(result.state.pace.variances)


def test_details_fit_each_other(trained):
    summary, details = trained
    assert set(summary) == set(LocalModels.gives)
    losses = np.array(details["losses"])
    assert losses.shape == np.array(details["epochs"]).shape == (3, 8)
    assert summary["local_loss_mean"] == losses[-1].mean()
    assert np.allclose(np.cumsum(losses, axis=0).var(axis=1), details["loss_variance"])
    distance = np.array(details["distance"])
    assert np.array_equal(distance, distance.T)
    same = np.equal.outer(details["true_groups"], details["true_groups"])
    inside = same & ~np.eye(8, dtype=bool)
    assert summary["contrast"] == pytest.approx(distance[~same].mean() / distance[inside].mean())
    assert json.loads(json.dumps(trained)) == list(trained)


def test_without_adjustment_all_train_alike():
    details = LocalModels(**TRAINED | {"adjust": False}).run(digits(imbalanced=True))[1]
    assert np.unique(details["epochs"]).tolist() == [2]


def test_all_weights_are_more_than_the_last_layer():
    given = world(data="digits", split="autocfl-label", clients=4, net="mlp")
    last, every = (LocalModels(rounds=1, layer=layer).run(given)[1]["distance"] for layer in ("last", "all"))
    assert not np.allclose(last, every)


def test_clusterings_agree_on_clear_groups():
    found = clusterings(BLOCKS, np.array([100, 300, 200, 50]), np.array([0, 0, 1, 1]))
    assert {name: groups.labels.tolist() for name, groups in found.items()} == {
        name: [0, 0, 1, 1] for name in ("voting", "unweighted", "kmeans", "linkage", "dbscan")
    }


def test_identical_clients_are_one_group():
    found = clusterings(np.zeros((4, 4)), np.ones(4), np.zeros(4, dtype=int))
    assert all(groups.labels.tolist() == [0] * 4 for groups in found.values())


def test_one_client_has_a_loss_and_nobody_to_be_compared_with():
    given = world(data="digits", split="iid", clients=1, samples=100, net="logistic")
    summary, details = LocalModels(rounds=2).run(given)
    assert summary["local_loss_mean"] > 0
    assert summary["local_loss_std"] == 0
    assert summary["contrast"] is None
    assert details["distance"] == [[0.0]]


def test_clients_without_true_groups_are_not_scored():
    summary, details = LocalModels(rounds=1).run(world(data="digits", clients=3, net="logistic"))
    assert "voting_ari" not in summary
    assert "clusterings" not in details


def test_the_first_rise_is_the_round_to_stop():
    assert first_rise((3.0, 2.0, 1.0, 1.5, 0.5)) == 4
    assert first_rise((1.0, 2.0)) == 2
    assert first_rise((3.0, 2.0)) == 2
    assert first_rise((1.0,)) == 1


def test_options_are_checked_by_what_uses_them():
    for wrong in ({"rounds": 0}, {"growth": -1.0}, {"guard": -0.1}, {"rate": 0.0}, {"steps": 3}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            replace(LocalModels(), **wrong)
