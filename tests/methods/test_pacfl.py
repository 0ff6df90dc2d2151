"""PACFL: subspaces of clients' data, clusters before training, late clients, reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.methods.pacfl import PACFL, describe
from coterie.moves.evidence import leading_vectors, subspace_angle
from support.federations import at_round, lost, same, uneven


def planes(groups=(0, 1) * 3, samples=12, **options):
    """Clients whose data lies in one of two planes, at right angles to each other, with two classes each."""
    rng = np.random.default_rng(0)
    bases = np.eye(8)[[[0, 1], [2, 3], [4, 5], [6, 7]]]  # [plane, 2, 8]; a group has a plane for each class
    x, y = [], []
    for group in groups:
        for label in (0, 1):
            x.append(rng.normal(1, 0.5, size=(samples // 2, 2)) @ bases[2 * group + label])
            y.extend([label] * (samples // 2))
    data = coterie.Dataset(np.concatenate(x).astype(np.float32), np.array(y), labels=("a", "b"))
    split = Split(tuple(np.split(np.arange(len(y)), len(groups))), groups=np.array(groups))
    return coterie.simulate(data, split, "mlp", precision="float64", scaling="none", **options)


@pytest.mark.parametrize("by_class", [True, False])
def test_clients_tell_the_directions_of_their_data(by_class):
    fed = planes()
    told = fed.run(describe, vectors=2, by_class=by_class).singular_vectors
    assert told.shape == ((6, 2, 8, 2) if by_class else (6, 8, 2))
    products = told.mT @ told
    assert torch.allclose(products, torch.eye(2, dtype=torch.float64).expand_as(products), atol=1e-12)
    angle = subspace_angle(told)
    group = np.array([0, 1] * 3)
    assert np.allclose(angle[group[:, None] != group], 90)
    assert angle[group[:, None] == group].max() < (1e-5 if by_class else 45)


def test_a_class_that_a_client_does_not_have_has_no_directions():
    x = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = leading_vectors(x, 3)
    assert torch.allclose(found[:, :2].T @ found[:, :2], torch.eye(2, dtype=torch.float64), atol=1e-12)
    assert not found[:, 2].any()
    assert not leading_vectors(x[:0], 3).any()
    assert not leading_vectors(0 * x, 3).any()
    assert not leading_vectors(x[[0, 0]], 3)[:, 1:].any()


def test_clusters_are_found_before_training():
    fed = planes()
    result = PACFL(rounds=1, vectors=2).fit(fed)
    assert result.state.clusters.labels.tolist() == [0, 1] * 3
    assert result.summary["ari"] == 1


def test_a_large_threshold_is_fedavg_to_the_last_bit():
    fed = uneven()
    result = PACFL(rounds=4, threshold=90.0, participation=0.5).fit(fed)
    plain = coterie.FedAvg(rounds=4, participation=0.5).fit(fed)
    assert same(result.state.clusters.models[0], plain.state.model)


def test_a_threshold_of_zero_is_local():
    fed = uneven()  # of 5 features: two subspaces of 3 vectors would always share a direction
    alone = PACFL(rounds=3, threshold=0.0, vectors=1).fit(fed)
    local = coterie.Local(rounds=3).fit(fed)
    assert alone.summary["groups"] == 6
    assert [client["loss"] for client in alone.clients] == pytest.approx([c["loss"] for c in local.clients], abs=1e-12)


def test_the_number_of_clusters_can_be_given():
    for clusters in (1, 2, 3):
        assert PACFL(rounds=1, clusters=clusters).fit(planes()).summary["groups"] == clusters


def test_the_ledger_says_what_is_given_away():
    fed = planes()
    ledger = PACFL(rounds=2, vectors=2).fit(fed).summary["ledger"]
    assert ledger["up"]["singular vectors"] == 6 * 2 * 8 * 2 * 8  # clients, classes, features, vectors, bytes; once
    assert ledger["down"] == {"model": 2 * 6 * fed.net.parameters.total * 8}


class TestLate:
    """Clients that come later, or do not answer at first."""

    def test_one_joins_the_cluster_with_the_smallest_angle(self):
        result = PACFL(rounds=4, vectors=2).fit(planes(groups=(0, 1, 0, 1, 1), arrivals={4: 3}))
        assert result.state.clusters.labels.tolist() == [0, 1, 0, 1, 1]

    def test_one_that_is_like_nobody_founds_a_cluster_unless_their_number_is_given(self):
        fed = planes(groups=(0, 0, 0, 1, 1), arrivals={3: 3, 4: 3})
        assert PACFL(rounds=4).fit(fed).state.clusters.labels.tolist() == [0, 0, 0, 1, 1]
        assert PACFL(rounds=4, clusters=1).fit(fed).state.clusters.labels.tolist() == [0] * 5

    def test_one_that_did_not_answer_is_asked_again(self):
        fed, made = planes(), PACFL()
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 5), made.begin(fed))
        assert state.clusters.labels.tolist() == [0, 1, 0, 1, 0, -1]
        assert same(made.serve(fed, state).models[2], fed.new_model())
        fed._engine.run = run
        assert made.round(at_round(fed, 2), state).clusters.labels.tolist() == [0, 1, 0, 1, 0, 1]

    def test_names_may_be_appended_in_mid_run(self):
        few, more, made = planes(groups=(0, 1, 0)), planes(groups=(0, 1, 0, 1)), PACFL()
        state = made.round(at_round(few), made.begin(few))
        assert made.round(at_round(more, 2), state).clusters.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("options", [{}, {"by_class": False, "measure": "sum"}, {"clusters": 4}], ids=str)
def test_few_clients(clients, options):
    result = PACFL(rounds=2, **options).fit(uneven(clients=clients))
    assert 1 <= result.summary["groups"] <= clients


@pytest.mark.parametrize(
    "options", [{"vectors": 0}, {"threshold": -1.0}, {"clusters": 0}], ids=lambda options: next(iter(options))
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("pacfl", **options)
