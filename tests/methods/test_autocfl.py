"""AutoCFL: the worked vote, reductions to FedAvg, the ablations, clients that come late."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch

import coterie
from coterie import AutoCFL, FedAvg, evidence, grouping
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.server.federation import Answers
from support.federations import state_of
from support.worlds import close

DISTANCES = np.array([[0, 1, 9, 10], [1, 0, 8, 9], [9, 8, 0, 1], [10, 9, 1, 0]])
SAMPLES = [100, 300, 200, 50]


class TestVote:
    """Demarcation, voting and representatives on a matrix of distances."""

    def test_the_worked_example(self):
        # Widest gaps: 1 | 9, 1 | 8, 1 | 8, 1 | 9. Representatives 1, 1, 2, 2. In {0, 1} client 0 has 100 of 400
        # samples, twice; in {2, 3} client 3 has 50 of 250, twice.
        found = grouping.vote(DISTANCES, SAMPLES)
        assert found.labels.tolist() == [0, 0, 1, 1]
        expected = [[0, 0.5, 0, 0], [0, 1.5, 0, 0], [0, 0, 1.6, 0], [0, 0, 0.4, 0]]
        np.testing.assert_allclose(found.scores, expected, atol=1e-12)

    def test_unweighted_all_votes_are_alike(self):
        found = grouping.vote(DISTANCES, SAMPLES, weighted=False)
        np.testing.assert_allclose(found.scores, [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]], atol=1e-12)

    @pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
    def test_the_scale_of_distances_does_not_matter(self, factor):
        assert grouping.vote(DISTANCES * factor, SAMPLES).labels.tolist() == [0, 0, 1, 1]

    def test_permuting_clients_permutes_the_partition(self):
        rng = np.random.default_rng(0)
        points = np.concatenate([rng.normal(size=(6, 8)), rng.normal(size=(5, 8)) + 9])
        distance = evidence.weight_distance(points)
        samples = rng.permutation(11) + 5
        plain = grouping.vote(distance, samples)
        order = rng.permutation(11)
        permuted = grouping.vote(distance[np.ix_(order, order)], samples[order])
        together = plain.labels[:, None] == plain.labels
        assert (together[np.ix_(order, order)] == (permuted.labels[:, None] == permuted.labels)).all()
        assert plain.matrix.sum(axis=0).tolist() == [1] * 11

    def test_equal_distances_are_one_cluster(self):
        assert len(grouping.vote(1 - np.eye(7), np.arange(1, 8))) == 1


def labelled(samples=480, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % 4
    x = rng.normal(size=(samples, 6)) + 1.5 * np.eye(4, 6)[y]
    return coterie.Dataset(x.astype(np.float32), y, labels=tuple("abcd"))


def two_groups(sizes=(40, 40, 40, 40, 40, 40), names=None, chosen=None, **options):
    """Three clients with the labels 0 and 1, and three with 2 and 3; or only some of them, under their own names."""
    data = labelled()
    pools = [np.flatnonzero(data.y < 2), np.flatnonzero(data.y >= 2)]
    parts = [pools[client // 3][40 * (client % 3) :][:40][: sizes[client]] for client in range(6)]
    chosen = range(6) if chosen is None else chosen
    split = Split(tuple(parts[client] for client in chosen), names=tuple(f"c{client}" for client in chosen))
    return coterie.simulate(data, split, "mlp", precision="float64", **options)


def fit(fed, **options):
    return AutoCFL(**({"batch": 8, "rate": 0.1} | options)).fit(fed)


class TestReductions:
    """What it is without clusters, and what it is inside one."""

    def test_until_clients_are_clustered_it_is_fedavg(self):
        fed = two_groups()
        plain = FedAvg(rounds=3, batch=8).fit(fed)
        result = fit(fed, rounds=3, cluster_round=4, adjust=False)
        assert torch.equal(result.state.clusters.models.parameters[0], plain.state.model.parameters)
        assert result.state.origin is None
        assert result.summary["groups"] == 1

    def test_with_a_single_cluster_it_stays_fedavg(self):
        fed = two_groups()
        plain = FedAvg(rounds=5, batch=8).fit(fed)
        result = fit(fed, rounds=5, adjust=False, guard=1e9)
        assert result.summary["groups"] == 1
        close(result.state.clusters.models.parameters[0], plain.state.model.parameters, 1e-10)

    def test_each_cluster_is_fedavg_of_its_own_clients(self):
        # Clustered in the first round, a group's model is what its clients would have had without the others.
        result = fit(two_groups(), rounds=4, cluster_round=1, adjust=False)
        assert result.state.clusters.labels.tolist() == [0, 0, 0, 1, 1, 1]
        for cluster, members in enumerate(([0, 1, 2], [3, 4, 5])):
            alone = FedAvg(rounds=4, batch=8).fit(two_groups(chosen=members))
            close(result.state.clusters.models.parameters[cluster], alone.state.model.parameters, 1e-10)

    def test_once_clustered_clients_stay_where_they_are(self):
        result = fit(two_groups(), rounds=6)
        assert [record["round"] for record in result.groups] == [1, 3]
        assert result.groups[-1]["groups"] == [0, 0, 0, 1, 1, 1]


class TestAdjustment:
    """Epochs before clustering, when it happens, and epochs after it."""

    def test_clients_with_few_samples_catch_up_before_clustering(self):
        fed = two_groups(sizes=(40, 40, 10, 40, 40, 10))
        adjusted, plain = (fit(fed, rounds=3, adjust=adjust) for adjust in (True, False))
        assert plain.state.pace.epochs.tolist() == [2.0] * 6
        assert (adjusted.state.pace.epochs >= 2).all()
        assert (adjusted.state.pace.epochs[[2, 5]] > 2).all()
        assert adjusted.state.pace.epochs[0] == 2  # the benchmark: most samples, and the first of equals
        assert adjusted.clients[5]["steps"] > plain.clients[5]["steps"]

    def test_epochs_follow_the_losses_of_earlier_rounds_by_the_paper_s_rule(self):
        from coterie.moves.pacing import more_epochs

        fed = two_groups(sizes=(40, 40, 10, 40, 40, 10))
        made = AutoCFL(batch=8, growth=0.7, cluster_round=9)
        fed.begin(3)
        state, expected, total = state_of(made.begin(fed)), torch.full((6,), 2.0, dtype=torch.float64), 0
        for number in (1, 2, 3):
            fed.start_round(number)
            state = state_of(made.round(fed, state))
            total = total + state.pace.last
            expected = more_epochs(expected, fed.sizes, state.pace.last, total, growth=0.7)
            close(state.pace.epochs, expected)

    def test_the_printed_rule_clusters_when_the_variance_rises(self):
        fed = two_groups(sizes=(40, 40, 10, 40, 40, 10))
        made = AutoCFL(batch=8, stop="variance")
        fed.begin(6)
        state = state_of(made.begin(fed))
        for number in range(1, 7):
            fed.start_round(number)
            state = state_of(made.round(fed, state))
            if state.origin is not None:
                break
        variances = state.pace.variances
        assert number == len(variances) <= 6
        assert all(later <= earlier for earlier, later in pairwise(variances[:-1]))
        assert variances[-1] > variances[-2] or number == 6

    def test_the_printed_rule_has_a_last_round(self):
        assert fit(two_groups(), rounds=2, stop="variance", last_round=1).state.origin is not None

    @pytest.mark.parametrize("keep", [True, False])
    def test_epochs_after_clustering_are_kept_or_reset(self, keep):
        fed = two_groups(sizes=(40, 40, 10, 40, 40, 10))
        before, after = (fit(fed, rounds=rounds, keep_epochs=keep) for rounds in (3, 4))
        steps = np.subtract(*([client["steps"] for client in result.clients] for result in (after, before)))
        epochs = after.state.pace.epochs if keep else torch.full((6,), 2.0)
        expected = [AutoCFL(batch=8).local.steps_for(int(n), float(e)) for n, e in zip(fed.sizes, epochs, strict=True)]
        assert steps.tolist() == expected

    def test_epochs_and_losses_travel_with_the_models(self):
        fed = two_groups()
        ledger = fit(fed, rounds=3).summary["ledger"]
        models = 3 * 6 * fed.net.parameters.total * 8
        assert ledger["down"] == {"model": models, "epochs": 3 * 6 * 8}
        assert ledger["up"] == {"model": models, "loss": 3 * 6 * 8}


class TestComingAndGoing:
    """Clients that arrive late, drop out, or are not drawn."""

    @pytest.mark.parametrize("late", [1, 4])
    def test_a_late_client_joins_the_cluster_of_its_like(self, late):
        fed = two_groups(arrivals={late: 5})
        result = fit(fed, rounds=6)
        assert result.state.clusters.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert result.clients[late]["rounds_taken_part"] == 2
        steps = AutoCFL(batch=8).local.steps_for(int(fed.sizes[late]))
        assert result.clients[late]["steps"] == 2 * steps  # once to find its cluster, then once with it

    def test_before_it_arrives_it_is_in_no_cluster(self):
        state = fit(two_groups(arrivals={4: 6}), rounds=5).state
        assert state.clusters.labels.tolist() == [0, 0, 0, 1, -1, 1]

    def test_who_is_away_when_the_others_are_clustered_joins_later(self, monkeypatch):
        fed = two_groups()
        _without(monkeypatch, fed, client=2, rounds=(3, 4))
        made = AutoCFL(batch=8, rate=0.1)
        fed.begin(5)
        state, seen = state_of(made.begin(fed)), []
        for number in range(1, 6):
            fed.start_round(number)
            state = state_of(made.round(fed, state))
            if state.origin is not None:
                seen.append(state.clusters.labels.tolist())
                served = made.serve(fed, state)
                assert served.index[2] == (2 if seen[-1][2] < 0 else 0)
                model = served.models.parameters[served.index[2]]
                assert torch.equal(model, (state.origin if seen[-1][2] < 0 else state.clusters.models[0]).parameters)
        assert seen == [[0, 0, -1, 1, 1, 1]] * 2 + [[0, 0, 0, 1, 1, 1]]

    def test_a_cluster_of_which_nobody_answers_keeps_its_model(self, monkeypatch):
        fed = two_groups()
        made = AutoCFL(batch=8, rate=0.1)
        fed.begin(4)
        state = state_of(made.begin(fed))
        for number in (1, 2, 3):
            fed.start_round(number)
            state = state_of(made.round(fed, state))
        run = fed._engine.run

        def only_the_second_group(call):
            return _kept(run(call), lambda clients: clients >= 3)

        monkeypatch.setattr(fed._engine, "run", only_the_second_group)
        fed.start_round(4)
        after = state_of(made.round(fed, state))
        before, after = state.clusters.models.parameters, after.clusters.models.parameters
        assert torch.equal(after[0], before[0])
        assert not torch.equal(after[1], before[1])

    def test_before_clustering_all_take_part_and_then_a_share_of_every_cluster(self):
        result = fit(two_groups(), rounds=5, participation=0.34)
        rounds = np.array([client["rounds_taken_part"] for client in result.clients])
        assert (rounds >= 3).all()
        assert rounds[:3].sum() == rounds[3:].sum() == 3 * 3 + 2  # one of three, in two rounds

    def test_the_federation_may_grow_in_mid_run(self):
        fed = two_groups()
        state = fit(fed, rounds=3).state
        short = dataclasses.replace(
            state,
            clusters=dataclasses.replace(state.clusters, labels=state.clusters.labels[:5]),
            pace=dataclasses.replace(
                state.pace, **{name: getattr(state.pace, name)[:5] for name in ("epochs", "total", "taken", "last")}
            ),
        )
        fed.start_round(4)
        grown = state_of(AutoCFL(batch=8, rate=0.1).round(fed, short))
        assert grown.clusters.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert grown.pace.epochs[5] == 2


def _kept(answers, chosen):
    stay = chosen(answers.clients)
    rows = {name: value[torch.from_numpy(stay)] for name, value in answers.outputs.items()}
    return Answers(answers.clients[stay], rows, answers.letters)


def _without(monkeypatch, fed, client, rounds):
    """Let a client not answer in some rounds."""
    run = fed._engine.run

    def dropping(call):
        answers = run(call)
        return _kept(answers, lambda clients: clients != client) if call.at.number in rounds else answers

    monkeypatch.setattr(fed._engine, "run", dropping)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster_round": 0}, "cluster_round=0"),
        ({"last_round": 0}, "last_round=0"),
        ({"growth": -0.5}, "growth=-0.5"),
        ({"guard": -1.0}, "guard=-1.0"),
        ({"steps": 5}, "set epochs instead"),
        ({"stop": "elbow"}, "stop"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        coterie.methods.make("autocfl", **options)
