"""Clusters by density of output layers: bundles, outliers, late clients, reductions."""

import numpy as np
import pytest

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.hdbscan import HDBSCAN
from support.federations import AT_ONCE, at_round, lost, opposed, pulled, pulling, same, uneven

BUNDLES = [(1, 0.02 * n) for n in range(5)] + [(0.02 * n, 1) for n in range(5)]
"""Two bundles of five, at right angles to each other."""

OUTLIER = (-1.0, -0.3)

AT_FIRST = {"cluster_round": 1, **AT_ONCE}


def labels_of(*places, **options):
    return HDBSCAN(rounds=1, **AT_FIRST | options).fit(pulled(*places)).state.clusters.labels.tolist()


def test_two_orthogonal_bundles_are_two_clusters(monkeypatch):
    pulling(monkeypatch)
    for min_size in (2, 3, 5):
        assert labels_of(*BUNDLES, min_size=min_size, single=False) == [0] * 5 + [1] * 5


def test_length_does_not_matter_only_the_angle_does(monkeypatch):
    pulling(monkeypatch)
    scales = np.linspace(0.1, 5, 10)
    scaled = [(scale * x, scale * y) for scale, (x, y) in zip(scales, BUNDLES, strict=True)]
    assert labels_of(*scaled, single=False, min_size=3) == [0] * 5 + [1] * 5


def test_duplicated_clients_are_together(monkeypatch):
    pulling(monkeypatch)
    labels = labels_of(*[place for place in BUNDLES for _ in range(2)])
    assert labels[::2] == labels[1::2]


def test_permuting_clients_permutes_the_clusters(monkeypatch):
    pulling(monkeypatch)
    order = np.random.default_rng(0).permutation(11)
    places = [*BUNDLES, OUTLIER]
    plain, permuted = labels_of(*places, min_size=3), labels_of(*[places[client] for client in order], min_size=3)
    again = np.array(plain)[order]
    assert [set(again[np.array(permuted) == cluster]) for cluster in set(permuted)] == [
        {again[permuted.index(cluster)]} for cluster in set(permuted)
    ]


@pytest.mark.parametrize("noise", ["alone", "nearest", "global"])
def test_every_client_is_served_one_model_outliers_too(noise, monkeypatch):
    pulling(monkeypatch)
    places = [*BUNDLES, OUTLIER]
    result = HDBSCAN(rounds=1, noise=noise, min_size=3, single=False, **AT_FIRST).fit(pulled(*places))
    index, models = result.served.index.tolist(), result.served.models.parameters
    assert index[:10] == [0] * 5 + [1] * 5
    expected = {"alone": OUTLIER, "nearest": None, "global": np.mean(places, axis=0)}[noise]
    if expected is None:
        assert index[10] in (0, 1)
    else:
        assert index[10] == 2
        assert models[2].tolist() == pytest.approx(list(expected), abs=1e-6)


def test_outliers_go_on_with_the_mean_of_all(monkeypatch):
    pulling(monkeypatch)
    places = [*BUNDLES, OUTLIER]
    half = {**AT_FIRST, "rate": 0.5}
    made = HDBSCAN(rounds=3, noise="global", min_size=3, single=False, **half)
    state = made.fit(pulled(*places)).state
    assert state.outliers
    assert state.clusters.labels[10] == 2
    assert same(state.clusters.models[2], state.model)
    assert not same(state.clusters.models[0], state.clusters.models[1])


def test_all_may_be_outliers(monkeypatch):
    pulling(monkeypatch)
    apart = [(np.cos(angle), np.sin(angle)) for angle in (0, 1.3, 2.9)]
    for noise, groups in (("alone", 3), ("global", 1), ("nearest", 3)):
        assert len(set(labels_of(*apart, noise=noise, min_size=4))) == groups


def test_as_one_cluster_it_is_fedavg_to_the_last_bit():
    fed = uneven()
    late = HDBSCAN(rounds=4, cluster_round=9, participation=0.5).fit(fed)
    plain = coterie.FedAvg(rounds=4, participation=0.5).fit(fed)
    assert same(late.state.clusters.models[0], plain.state.model)


def test_clusters_are_found_once_or_anew(monkeypatch):
    pulling(monkeypatch)
    found = []
    density = coterie.moves.grouping.density
    monkeypatch.setattr(
        coterie.moves.grouping, "density", lambda *a, **k: (found.append(len(a[0])), density(*a, **k))[1]
    )
    for every, times in ((0, 1), (1, 4), (2, 2), (3, 2)):
        found.clear()
        HDBSCAN(rounds=5, cluster_round=2, recluster_every=every, participation=0.5, **AT_ONCE).fit(pulled(*BUNDLES))
        assert found == [10] * times  # all clients are asked


class TestLate:
    """Clients that were away when the others were clustered, or came later."""

    def test_one_that_was_away_joins_the_cluster_at_the_smallest_angle(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*BUNDLES, (0.1, 3))
        made = HDBSCAN(single=False, **AT_FIRST)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 10), made.begin(fed))
        assert state.clusters.labels[10] == -1
        fed._engine.run = run
        state = made.round(at_round(fed, 2), state)
        assert state.clusters.labels[10] == state.clusters.labels[9]

    def test_one_that_comes_later_does_too(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*BUNDLES, (3, 0.1), arrivals={10: 3})
        labels = HDBSCAN(rounds=4, single=False, **AT_FIRST).fit(fed).state.clusters.labels
        assert labels[10] == labels[0] != labels[9]


def test_two_opposed_groups_are_told_apart():
    result = HDBSCAN(rounds=12, cluster_round=8, rate=0.3, min_size=3, noise="nearest").fit(opposed(samples=960))
    assert result.summary["ari"] == 1


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("noise", ["alone", "nearest", "global"])
def test_few_clients(clients, noise):
    result = HDBSCAN(rounds=3, cluster_round=2, noise=noise).fit(uneven(clients=clients))
    assert 1 <= result.summary["groups"] <= clients


def test_identical_clients_are_one_cluster(monkeypatch):
    pulling(monkeypatch)
    assert labels_of(*[(2, 1)] * 6) == [0] * 6


@pytest.mark.parametrize(
    "options",
    [{"cluster_round": 0}, {"recluster_every": -1}, {"min_size": 1}],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("hdbscan", **options)
