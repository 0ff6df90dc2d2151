"""CFIC: the worked example, the ablations as reductions to FedAvg, clients that are new."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import CFIC, Clients, FedAvg, evidence, sampling
from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.methods.cfic import CFICState, dominant_label
from coterie.moves.grouping import by_key
from support.worlds import close


class Pair(nn.Module):
    """Two trained numbers, given back for every sample."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.w.expand(len(x), 2)


@pytest.fixture
def landing(monkeypatch):
    """Makes a full step of rate 1 land on the mean of the client's inputs: it lowers |w - x|^2 / 2."""

    def objective(model, batch, key):
        return batch.mean(0.5 * (model.parameters - batch.x).square().sum(dim=1))

    original = Clients.train
    monkeypatch.setattr(Clients, "train", lambda self, *a, **k: original(self, *a, **k, objective=objective))


def test_the_worked_example(landing):
    # From w = 0 clients land on (1, 0), (3, 0) of label 0 and on (0, 2) of label 1, which has twice the samples:
    # g = (2, 0) and (0, 2), u = (.5, .5), h = (-.05, -.05), and the mean (1, 1) becomes (1.05, 1.05).
    x = np.array([[1, 0]] * 6 + [[3, 0]] * 6 + [[0, 2]] * 12, dtype=np.float32)
    data = coterie.Dataset(x, np.repeat([0, 1], 12), labels=("a", "b"))
    split = Split((np.arange(6), np.arange(6, 12), np.arange(12, 24)))
    options = {"precision": "float64", "scaling": "none", "validation": 0, "test_share": 1 / 6}
    fed = coterie.simulate(data, split, lambda shape, classes: Pair(), **options)
    assert fed.sizes.tolist() == [5, 5, 10]
    state = CFIC(rounds=1, epochs=1, batch=0, rate=1.0, inertia=0.5, strength=0.1).fit(fed).state
    assert state.labels.tolist() == [0, 0, 1]
    close(state.average.parameters, torch.tensor([1.0, 1.0], dtype=torch.float64))
    close(state.correction.parameters, torch.tensor([-0.05, -0.05], dtype=torch.float64))
    close(state.model.parameters, torch.tensor([1.05, 1.05], dtype=torch.float64))


def labelled(samples=240, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    x = rng.normal(size=(samples, 5)) + 2 * np.eye(classes, 5)[y]
    return coterie.Dataset(x.astype(np.float32), y, labels=tuple("abcd"[:classes]))


def by_label(*labels, each=20):
    """A split in which every client has one label only."""
    data = labelled()
    places = {label: iter(np.flatnonzero(data.y == label).reshape(-1, each)) for label in range(4)}
    return data, Split(tuple(next(places[label]) for label in labels))


LABELS = (0, 0, 0, 1, 1, 2, 3, 3)


def federation(labels=LABELS, net="mlp", **options):
    return coterie.simulate(*by_label(*labels), net, precision="float64", **options)


def took_part(result):
    return [row for row, client in enumerate(result.clients) if client["rounds_taken_part"]]


class TestReductions:
    """What is left of CFIC without one of its parts."""

    def test_without_strength_it_is_fedavg_with_stratified_sampling(self):
        fed = federation()
        result = CFIC(rounds=4, participation=0.5, strength=0.0).fit(fed)
        fed.begin(4)
        model = fed.new_model()
        for number in range(1, 5):
            fed.start_round(number)
            cohort = sampling.stratified(by_key(LABELS), 4, "max", fed.generator("sample"), fed.clients)
            model = fed.run(train, cohort, shared=model, local=FedAvg().local).average()
        assert torch.equal(result.state.model.parameters, model.parameters)

    def test_without_correction_and_stratified_sampling_it_is_fedavg(self):
        fed = federation()
        options = {"rounds": 3, "participation": 0.5}
        plain = FedAvg(**options).fit(fed).state.model
        bare = CFIC(**options, correct=False, stratify=False).fit(fed).state.model
        assert torch.equal(bare.parameters, plain.parameters)

    def test_each_ablation_changes_something(self):
        fed = federation()
        options = {"rounds": 2, "participation": 0.5}
        whole, unsampled, uncorrected = (
            CFIC(**options, **ablation).fit(fed).state.model.parameters
            for ablation in ({}, {"stratify": False}, {"correct": False})
        )
        assert not torch.equal(whole, unsampled)
        assert not torch.equal(whole, uncorrected)
        assert not torch.equal(unsampled, uncorrected)


class TestCorrection:
    """h, the momentum in the direction of the clusters."""

    def test_clients_that_do_not_move_leave_only_what_is_left_of_the_last_correction(self):
        fed = federation()
        fed.begin(1)
        made = CFIC(epochs=0, inertia=0.5, strength=1.0)
        start = made.begin(fed)
        earlier = start.model.zeros()
        earlier.parameters[0] = 0.25
        state = made.round(fed, CFICState(start.model, earlier, start.model, start.labels))
        close(state.correction.parameters, 0.5 * earlier.parameters)
        close(state.model.parameters, start.model.parameters - 0.5 * earlier.parameters)

    def test_it_is_never_longer_than_strength_over_what_inertia_leaves(self):
        fed = federation()
        made = CFIC(inertia=0.8, strength=0.3, rate=0.3)
        fed.begin(8)
        state, lengths = made.begin(fed), []
        for number in range(1, 9):
            fed.start_round(number)
            state = made.round(fed, state)
            lengths.append(float(state.correction.norm()))
        assert 0 < lengths[0] <= 0.3
        assert lengths[0] < lengths[1] < lengths[2]  # it adds up
        assert max(lengths) <= 0.3 / (1 - 0.8)

    def test_running_statistics_are_averaged_and_never_corrected(self):
        def normed(shape, classes):
            return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

        state = CFIC(rounds=2).fit(federation(net=normed)).state
        assert torch.equal(state.model.buffers, state.average.buffers)
        assert not torch.equal(state.model.parameters, state.average.parameters)

    def test_the_mean_before_the_correction_can_be_served_instead(self):
        fed = federation()
        corrected, average = (CFIC(rounds=3, serves=what).fit(fed) for what in ("corrected", "average"))
        assert torch.equal(corrected.state.model.parameters, average.state.model.parameters)
        assert torch.equal(corrected.served.models.parameters[0], corrected.state.model.parameters)
        assert torch.equal(average.served.models.parameters[0], average.state.average.parameters)


class TestClusters:
    """Who is known by which label, and who takes part."""

    @pytest.mark.parametrize(("participation", "size"), [(0.5, 4), (0.8, 6), (1.0, 8)])
    def test_a_cohort_has_its_size_and_somebody_of_every_cluster(self, participation, size):
        for seed in range(5):
            cohort = took_part(CFIC(rounds=1, participation=participation).fit(federation(seed=seed)))
            assert len(cohort) == size
            assert {LABELS[client] for client in cohort} == {0, 1, 2, 3}

    def test_the_first_cohort_can_be_drawn_as_that_of_fedavg_while_the_next_are_not(self):
        fed = federation()
        uniform, clusters = (
            CFIC(rounds=1, participation=0.5, first=first).fit(fed) for first in ("uniform", "clusters")
        )
        assert took_part(uniform) == took_part(FedAvg(rounds=1, participation=0.5).fit(fed)) != took_part(clusters)
        assert uniform.state.labels.tolist() == clusters.state.labels.tolist() == list(LABELS)
        later = CFIC(rounds=2, participation=0.5, first="uniform").fit(fed)
        second = [
            after["rounds_taken_part"] - (client in took_part(uniform)) for client, after in enumerate(later.clients)
        ]
        assert {label for label, times in zip(LABELS, second, strict=True) if times} == {0, 1, 2, 3}

    def test_the_printed_quota_takes_one_of_every_cluster_and_draws_the_rest(self):
        # 4 places for 2 clusters of 3: an even share is 2 of each; one of each leaves 2 places, so 3 and 1 come up too.
        shares = {"max": set(), "min": set()}
        for seed in range(30):
            fed = federation((0, 0, 0, 1, 1, 1), seed=seed)
            for quota, seen in shares.items():
                cohort = took_part(CFIC(rounds=1, participation=0.67, quota=quota, epochs=0.1).fit(fed))
                seen.add((sum(client < 3 for client in cohort), len(cohort)))
        assert shares["max"] == {(2, 4)}
        assert shares["min"] == {(1, 4), (2, 4), (3, 4)}

    def test_with_fewer_places_than_clusters_nobody_is_taken_twice(self):
        for seed in range(5):
            cohort = took_part(CFIC(rounds=1, participation=0.25).fit(federation(seed=seed)))
            assert len(cohort) == 2
            assert len({LABELS[client] for client in cohort}) == 2

    def test_there_are_no_more_clusters_than_classes(self):
        data = labelled()
        fed = coterie.simulate(data, "dirichlet", "mlp", clients=20, alpha=0.3, min_size=3)
        labels = CFIC(rounds=1).fit(fed).state.labels
        assert set(labels.tolist()) <= {0, 1, 2, 3}
        assert len(labels) == 20

    def test_a_client_works_out_its_label_itself_and_sends_nothing_else_of_its_data(self):
        fed = federation()
        result = CFIC(rounds=3, participation=0.5).fit(fed)
        plain = FedAvg(rounds=3, participation=0.5).fit(fed)
        ledger, expected = result.summary["ledger"], plain.summary["ledger"]
        assert ledger["down"] == expected["down"]
        assert ledger["up"] == expected["up"] | {"dominant label": 8 * 8}  # an integer of 8 bytes, once per client
        counts = [[20, 0, 0, 0]]
        assert (
            fed.run(dominant_label, [0]).dominant_label.tolist()
            == evidence.dominant_label(evidence.label_shares(counts)).tolist()
        )

    def test_asked_only_when_they_take_part_clients_are_unknown_until_then(self):
        fed = federation()
        made = CFIC(rounds=1, participation=0.5, ask="cohort")
        first = made.fit(fed)
        cohort = took_part(first)
        # With nobody known the first cohort is drawn as FedAvg's is (Algorithm 1, line 3).
        assert cohort == took_part(FedAvg(rounds=1, participation=0.5).fit(fed))
        assert [client for client, label in enumerate(first.state.labels) if label >= 0] == cohort
        assert first.summary["ledger"]["up"]["dominant label"] == 4 * 8
        later = CFIC(rounds=12, participation=0.5, ask="cohort", quota="min").fit(fed)
        assert (later.state.labels >= 0).sum() > 4  # the printed quota leaves places for those unknown

    def test_a_client_that_joins_in_mid_run_is_asked_and_clustered_anew(self):
        # Client 5 is the only one of label 2 and comes in round 3: then there are four clusters, and it takes part.
        fed = federation(arrivals={5: 3})
        made = CFIC(rounds=3, participation=0.6)
        fed.begin(3)
        state, known = made.begin(fed), []
        for number in (1, 2, 3):
            fed.start_round(number)
            state = made.round(fed, state)
            known.append(state.labels.tolist())
        unknown = [0, 0, 0, 1, 1, -1, 3, 3]
        assert known == [unknown, unknown, list(LABELS)]
        assert fed.ledger.by_kind()["up"]["dominant label"] == 8 * 8  # nobody was asked twice
        assert fed._engine._memory.values["_rounds"][5] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"strength": -0.1}, "strength=-0.1"), ({"inertia": 1.0}, "inertia=1.0"), ({"quota": "even"}, "quota")],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        coterie.methods.make("cfic", **options)
