"""StoCFL: directions, unions and a round by hand, newcomers, reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.stocfl import StoCFL, StoCFLState, find_direction
from coterie.nets.stacks import Changes
from coterie.server.clusters import Clusters
from support.federations import at_round, lost, opposed, pulled, pulling, same, uneven
from support.worked_examples import of_sizes

ALL, NOBODY = -1.0, 1.5
"""Thresholds at which all clients are united, and at which nobody is."""


def points(fed, *places):
    """Models of a plane's points at these places."""
    return fed.new_model().expand(len(places)) + Changes(fed.net, torch.tensor(places).double())


def state_of(fed, models, labels, directions, model=(0.0, 0.0)):
    changes = Changes(fed.net, torch.tensor(directions).double())
    return StoCFLState(points(fed, model)[0], Clusters(points(fed, *models), torch.tensor(labels)), changes)


def test_a_direction_is_the_gradient_of_all_data_at_the_initial_model():
    fed = at_round(uneven())
    passes = coterie.LocalTraining(epochs=1, batch=0, rate=0.3)
    found = fed.run(find_direction, local=passes).direction
    site, module = fed._engine._host, fed.new_model().module()
    for client in range(6):
        index = torch.from_numpy(site.shards[client].train)
        loss = torch.nn.functional.cross_entropy(module(site.pool.inputs(index)), site.pool.y[index])
        gradient = torch.autograd.grad(loss, list(module.parameters()))
        flat = fed.net.parameters.flatten(dict(zip(fed.net.parameters.names, gradient, strict=True)))
        torch.testing.assert_close(found.parameters[client], -0.3 * flat, atol=1e-12, rtol=0)


class TestUnions:
    """Clusters whose directions have a cosine of tau or more."""

    def united(self, threshold):
        # Cosines: 0.6 between the first and the second, 0.8 between the second and the third, 0 between the outer two.
        fed = pulled(*[(0, 0)] * 6)
        directions = [(1.0, 0.0), (1.2, 1.6), (0.0, 3.0)]
        state = state_of(fed, [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)], [0, 0, 1, 2, 2, 2], directions)
        return StoCFL(threshold=threshold)._united(state)

    def test_the_larger_cluster_s_model_goes_on_and_directions_are_averaged_by_members(self):
        state = self.united(0.7)
        assert state.clusters.labels.tolist() == [0, 0, 1, 1, 1, 1]
        assert state.clusters.models.parameters.tolist() == [[1, 1], [3, 3]]
        mean = [1.2 / 4, (1.6 + 3 * 3.0) / 4]
        np.testing.assert_allclose(state.directions.parameters, [[1, 0], mean], atol=1e-12)

    def test_who_is_linked_through_others_is_united_too(self):
        state = self.united(0.6)
        assert state.clusters.labels.tolist() == [0] * 6
        assert state.clusters.models.parameters.tolist() == [[3, 3]]

    @pytest.mark.parametrize(("threshold", "clusters"), [(ALL, 1), (0.81, 3), (1.0, 3), (NOBODY, 3)])
    def test_the_threshold_can_unite_all_or_nobody(self, threshold, clusters):
        assert len(self.united(threshold).clusters.models) == clusters

    def test_of_equally_large_clusters_the_oldest_one_s_model_goes_on(self):
        fed = pulled(*[(0, 0)] * 3)
        state = state_of(fed, [(1.0, 1.0), (2.0, 2.0)], [0, 1, -1], [(1.0, 0.0), (2.0, 0.0)])
        after = StoCFL()._united(state)
        assert after.clusters.labels.tolist() == [0, 0, -1]
        assert after.clusters.models.parameters.tolist() == [[1, 1]]


def test_a_round_by_hand(monkeypatch):
    # F_i(w) = |w - p_i|^2 / 2, rate 1/2, lambda 1/2, omega (2, 2). The global model goes to the mean of
    # (p + omega) / 2, a cluster's theta to that of theta - (theta - p) / 2 - (theta - omega) / 4, which is
    # theta / 4 + p / 2 + omega / 4.
    pulling(monkeypatch)
    places, omega, theta = np.array([(4, 0), (8, 0), (0, 6)]), np.array([2.0, 2.0]), np.array([(6.0, 0.0), (0.0, 4.0)])
    fed, made = pulled(*places), StoCFL(threshold=NOBODY, mu=0.5, steps=1, batch=0, rate=0.5)
    state = state_of(fed, theta.tolist(), [0, 0, 1], [(1.0, 0.0), (0.0, 1.0)], model=omega.tolist())
    after = made.round(at_round(fed), state)
    np.testing.assert_allclose(after.model.parameters, (places.mean(axis=0) + omega) / 2, atol=1e-6)
    expected = theta / 4 + np.array([(6, 0), (0, 6)]) / 2 + omega / 4
    np.testing.assert_allclose(after.clusters.models.parameters, expected, atol=1e-6)


class TestReductions:
    """What it is at the ends of its settings."""

    @pytest.mark.parametrize("threshold", [ALL, 0.5, NOBODY])
    @pytest.mark.parametrize("weighting", ["samples", "uniform"])
    def test_the_global_model_is_fedavg_s_to_the_last_bit(self, threshold, weighting):
        fed = uneven()
        result = StoCFL(rounds=4, threshold=threshold, participation=0.5, weighting=weighting).fit(fed)
        plain = coterie.FedAvg(rounds=4, participation=0.5, weighting=weighting).fit(fed)
        assert same(result.state.model, plain.state.model)

    def test_if_nobody_is_united_it_is_ditto_to_the_last_bit(self):
        fed = uneven()
        result = StoCFL(rounds=3, threshold=NOBODY, mu=0.7, weighting="samples").fit(fed)
        ditto = coterie.Ditto(rounds=3, mu=0.7).fit(fed)
        assert result.summary["groups"] == 6
        assert [client["loss"] for client in result.clients] == [client["loss"] for client in ditto.clients]

    def test_if_all_are_united_and_nothing_pulls_both_levels_are_fedavg(self):
        fed = uneven()
        result = StoCFL(rounds=3, threshold=ALL, mu=0.0, batch=0).fit(fed)
        assert result.summary["groups"] == 1
        torch.testing.assert_close(
            result.state.clusters.models.parameters[0], result.state.model.parameters, atol=1e-12, rtol=0
        )


class TestNewcomers:
    """Clients that come later, or do not answer at first."""

    def test_one_joins_those_whose_data_pulls_alike_and_takes_their_model(self):
        fed = opposed(samples=480, arrivals={6: 3, 7: 3})
        result = StoCFL(rounds=4, rate=0.3).fit(fed)
        assert result.state.clusters.labels.tolist() == [0, 1] * 4
        assert result.summary["ari"] == 1

    def test_one_that_is_like_nobody_begins_at_the_global_model(self):
        fed, made = opposed(groups=(0, 0, 0, 1)), StoCFL(rate=0.3)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 3), made.begin(fed))
        assert state.clusters.labels.tolist() == [0, 0, 0, -1]
        served = made.serve(fed, state)
        assert same(served.models[served.index[3]], state.model)
        fed._engine.run = run
        founded = made._united(made._founded(at_round(fed, 2), state, np.arange(4)))
        assert founded.clusters.labels.tolist() == [0, 0, 0, 1]
        assert same(founded.clusters.models[1], state.model)
        assert same(founded.clusters.models[0], state.clusters.models[0])

    def test_who_does_not_answer_is_asked_again(self):
        fed, made = opposed(samples=480), StoCFL(rate=0.3)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 5), made.begin(fed))
        assert state.clusters.labels.tolist() == [0, 1, 0, 1, 0, -1, 0, 1]
        fed._engine.run = run
        assert made.round(at_round(fed, 2), state).clusters.labels.tolist() == [0, 1] * 4

    def test_names_may_be_appended_in_mid_run(self):
        few, more, made = opposed(groups=(0, 1, 0)), opposed(groups=(0, 1, 0, 1)), StoCFL(rate=0.3)
        state = made.round(at_round(few), made.begin(few))
        assert made.round(at_round(more, 2), state).clusters.labels.tolist() == [0, 1, 0, 1]

    def test_a_direction_is_told_once(self):
        fed = uneven()
        ledger = StoCFL(rounds=5, participation=0.4).fit(fed).summary["ledger"]
        drawn, model = 5 * 2, fed.new_model().size
        assert ledger["down"] == {"model": 2 * drawn * model}
        assert ledger["up"].pop("direction") <= 6 * model
        assert ledger["up"] == {"model": 2 * drawn * model}


def test_opposed_groups_are_told_apart_and_served_better():
    fed = opposed(samples=480)
    result = StoCFL(rounds=12, rate=0.3, epochs=5).fit(fed)
    plain = coterie.FedAvg(rounds=12, rate=0.3, epochs=5).fit(fed)
    assert result.summary["ari"] == 1
    assert result.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.2


def test_finding_a_direction_leaves_no_trace():
    fed = of_sizes([15] * 4)
    result = StoCFL(rounds=2, epochs=1, batch=0, anchor_epochs=7.0).fit(fed)
    assert [client["steps"] for client in result.clients] == [2 * 2] * 4  # two models in each round
    assert [client["rounds_taken_part"] for client in result.clients] == [2] * 4


def test_both_forms_agree():
    results = [StoCFL(rounds=2, anchor_batch=4).fit(uneven(engine=engine)) for engine in ("vectorised", "loop")]
    assert results[0].state.clusters.labels.tolist() == results[1].state.clusters.labels.tolist()
    for part in (lambda state: state.clusters.models, lambda state: state.model, lambda state: state.directions):
        one, other = (part(result.state).parameters for result in results)
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("threshold", [ALL, NOBODY])
def test_few_clients(clients, threshold):
    result = StoCFL(rounds=2, threshold=threshold).fit(uneven(clients=clients))
    assert result.summary["groups"] == (1 if threshold == ALL else clients)


@pytest.mark.parametrize(
    "options",
    [{"threshold": -1.1}, {"mu": -1.0}, {"anchor_epochs": 0.0}, {"anchor_batch": -1}],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("stocfl", **options)
