"""FedGroup: its measure and a group's start by hand, newcomers, reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.methods.fedgroup import FedGroup
from coterie.moves import evidence, mixing
from support.federations import AT_ONCE, at_round, lost, opposed, pulled, pulling, same, uneven

BUNDLES = [(5, 0), (5.2, 0), (4.8, 0.1), (-5, 1), (-5.1, 1.2)]
"""Where clients pull their models to: two groups."""


def edc(updates, directions):
    rows = evidence.decomposed_cosines(updates, directions)
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)


class TestMeasure:
    """EDC: distances between clients' cosines with the leading directions of all updates."""

    def test_by_hand(self):
        # Squares along (1, 1)/sqrt(2) are 9/2 twice, and 2: 11; along (1, -1)/sqrt(2) they are 1/2 twice: 1. So the
        # first direction is (1, 1)/sqrt(2), with cosines 3/sqrt(10), the same, and 1; the second has +-1/sqrt(10), 0.
        updates = [[1, 2], [2, 1], [1, 1]]
        one = 3 / np.sqrt(10)
        np.testing.assert_allclose(evidence.decomposed_cosines(updates, 1)[:, 0], [one, one, 1], atol=1e-6)
        alone = [[0, 0, 1 - one], [0, 0, 1 - one], [1 - one, 1 - one, 0]]
        np.testing.assert_allclose(edc(updates, 1), alone, atol=2e-6)
        across = np.hypot(1 - one, 1 / np.sqrt(10))
        two = [[0, 2 / np.sqrt(10), across], [2 / np.sqrt(10), 0, across], [across, across, 0]]
        np.testing.assert_allclose(edc(updates, 2), two, atol=2e-6)

    def test_with_all_directions_it_is_the_distance_between_unit_updates(self):
        updates = np.random.default_rng(0).normal(size=(6, 9))
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        expected = np.linalg.norm(unit[:, None] - unit[None], axis=2)
        np.testing.assert_allclose(edc(updates, 6), expected, atol=1e-5)
        np.testing.assert_allclose(edc(updates, 99), expected, atol=1e-5)

    def test_it_turns_with_the_updates_and_knows_clients_by_their_rows(self):
        rng = np.random.default_rng(1)
        updates = rng.normal(size=(6, 5))
        turn, _ = np.linalg.qr(rng.normal(size=(5, 5)))
        order = rng.permutation(6)
        np.testing.assert_allclose(edc(updates @ turn, 3), edc(updates, 3), atol=1e-5)
        np.testing.assert_allclose(edc(updates[order], 3), edc(updates, 3)[np.ix_(order, order)], atol=1e-5)

    def test_who_did_not_move_has_no_direction_and_one_direction_is_the_least(self):
        assert evidence.decomposed_cosines([[0, 0], [3, 4]], 1).tolist() == [[0], [1]]
        with pytest.raises(SettingsError, match="directions=0: at least 1"):
            evidence.decomposed_cosines([[3, 4]], 0)


def test_groups_begin_at_their_founders_plain_means(monkeypatch):
    # A client with four times the samples counts no more among the founders; in rounds it does.
    pulling(monkeypatch)
    fed, made = pulled(*BUNDLES), FedGroup(clusters=2, **AT_ONCE)
    state = made._founded(at_round(fed), made.begin(fed))
    means = np.array([np.mean(BUNDLES[:3], axis=0), np.mean(BUNDLES[3:], axis=0)])
    assert state.clusters.labels.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_allclose(state.clusters.models.parameters, means, atol=1e-6)
    np.testing.assert_allclose(state.directions.parameters, means, atol=1e-6)  # from 0


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_with_one_group_it_is_fedavg_after_a_little_training_to_the_last_bit(mu):
    fed = uneven()
    result = FedGroup(rounds=3, clusters=1, mu=mu, participation=0.7).fit(fed)
    plain = coterie.FedProx(mu=mu, participation=0.7) if mu else FedAvg(participation=0.7)
    fed.begin(3)
    fed.start_round(1)
    first = fed.run(train, shared=fed.new_model(), local=coterie.LocalTraining(epochs=1))
    state = FedAvgState(first.average("uniform"))
    for number in (1, 2, 3):
        if number > 1:
            fed.start_round(number)
        state = plain.round(fed, state)
        fed.commit()
    assert same(result.state.clusters.models[0], state.model)


def test_a_group_for_each_client_is_everybody_alone(monkeypatch):
    pulling(monkeypatch)
    places = [(5.0, 0.0), (0.0, 3.0), (-4.0, 1.0)]
    result = FedGroup(rounds=2, clusters=3, **AT_ONCE).fit(pulled(*places))
    assert result.summary["groups"] == 3
    np.testing.assert_allclose(result.state.clusters.models.parameters, places, atol=1e-6)


class TestMixing:
    """What groups take over from each other after a round."""

    def test_by_hand(self, monkeypatch):
        # Groups end their round at (3, 4) and (-2, 0), of lengths 5 and 2. With rate 1 the first becomes
        # ((3, 4) + (-2, 0)/2) / (1 + 1/2) = (4/3, 8/3), the second ((-2, 0) + (3, 4)/5) / (1 + 1/5) = (-7/6, 2/3).
        pulling(monkeypatch)
        fed = pulled((3, 4), (3, 4), (-2, 0), (-2, 0))
        state = FedGroup(rounds=1, clusters=2, group_rate=1.0, **AT_ONCE).fit(fed).state
        np.testing.assert_allclose(state.clusters.models.parameters, [[4 / 3, 8 / 3], [-7 / 6, 2 / 3]], atol=1e-6)

    def test_a_rate_of_zero_mixes_nothing_and_a_high_one_leaves_little_of_ones_own(self):
        assert mixing.among([2.0, 7.0], rate=0).tolist() == [[1, 0], [0, 1]]
        assert mixing.among([2.0, 7.0], rate=1e9).diagonal().max() < 1e-7
        assert mixing.among([0.0, 2.0], rate=1).tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)], [0, 1]]
        with pytest.raises(SettingsError, match="rate=-1: 0 or more"):
            mixing.among([1.0], rate=-1)


class TestNewcomers:
    """Clients that have founded no group."""

    def test_one_joins_the_group_whose_founders_went_its_way_wherever_that_is_now(self, monkeypatch):
        # The groups' models are exchanged after the first round: what counts are directions from the initial model.
        pulling(monkeypatch)
        made, few, more = FedGroup(clusters=2, **AT_ONCE), pulled(*BUNDLES), pulled(*BUNDLES, (1, 0), (-0.1, 0.02))
        state = made.round(at_round(few), made.begin(few))
        state.clusters.models.parameters.copy_(state.clusters.models.parameters.flip(0))
        assert made.round(at_round(more, 2), state).clusters.labels.tolist() == [0, 0, 0, 1, 1, 0, 1]

    def test_it_trains_twice_in_its_first_round_and_counts_in_its_group(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*BUNDLES, (1, 0), arrivals={5: 2})
        result = FedGroup(rounds=2, clusters=2, **AT_ONCE).fit(fed)
        mean = np.mean([*BUNDLES[:3], (1, 0)], axis=0)
        np.testing.assert_allclose(result.state.clusters.models.parameters[0], mean, atol=1e-6)
        assert [client["rounds_taken_part"] for client in result.clients] == [2] * 5 + [1]
        assert [client["steps"] for client in result.clients] == [3] * 5 + [2]

    def test_who_does_not_answer_is_asked_again_and_gets_the_mean_of_the_groups(self, monkeypatch):
        pulling(monkeypatch)
        fed, made = pulled(*BUNDLES, (1, 0)), FedGroup(clusters=2, **AT_ONCE)
        run = fed._engine.run
        state = made.round(lost(at_round(fed), 5), made.begin(fed))
        assert state.clusters.labels.tolist() == [0, 0, 0, 1, 1, -1]
        served = made.serve(fed, state)
        middle = (np.mean(BUNDLES[:3], axis=0) + np.mean(BUNDLES[3:], axis=0)) / 2
        np.testing.assert_allclose(served.models.parameters[served.index[5]], middle, atol=1e-6)
        fed._engine.run = run
        assert made.round(at_round(fed, 2), state).clusters.labels.tolist() == [0, 0, 0, 1, 1, 0]

    def test_a_few_found_the_groups_and_the_others_join_when_they_are_drawn(self):
        fed = uneven(clients=8)
        result = FedGroup(rounds=3, clusters=2, founders=1, participation=0.3).fit(fed)
        down = result.summary["ledger"]["down"]["model"] / fed.new_model().size
        drawn = sum(client["rounds_taken_part"] for client in result.clients)
        asked = sum(client["rounds_taken_part"] > 0 for client in result.clients)
        assert 3 * 2 <= drawn <= 3 * 2 + 2  # founders take part in the first round, drawn or not
        assert 6 + asked <= down <= 6 + asked + 2


def test_opposed_groups_are_told_apart_and_served_better():
    fed = opposed(samples=480)
    result = FedGroup(rounds=12, clusters=2, rate=0.3, pretrain_epochs=5, epochs=5).fit(fed)
    plain = FedAvg(rounds=12, rate=0.3, epochs=5).fit(fed)
    assert result.summary["ari"] == 1
    assert result.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.2


def test_pretraining_costs_a_model_each_way_once():
    fed = uneven()
    ledger = FedGroup(rounds=3, clusters=2).fit(fed).summary["ledger"]
    assert ledger["down"] == ledger["up"] == {"model": (1 + 3) * 6 * fed.net.parameters.total * 8}


def test_both_forms_agree():
    results = [FedGroup(rounds=2, clusters=2).fit(uneven(engine=engine)) for engine in ("vectorised", "loop")]
    assert results[0].state.clusters.labels.tolist() == results[1].state.clusters.labels.tolist()
    one, other = (result.state.clusters.models.parameters for result in results)
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize("clients", [1, 2])
def test_more_groups_than_clients(clients):
    assert 1 <= FedGroup(rounds=2, clusters=4).fit(uneven(clients=clients)).summary["groups"] <= clients


@pytest.mark.parametrize(
    "options",
    [{"clusters": 0}, {"founders": 0}, {"pretrain_epochs": 0.0}, {"group_rate": -1.0}, {"mu": -1.0}],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedgroup", **options)
