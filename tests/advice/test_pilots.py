"""Pilots: no test data, fair comparisons, halving, the time that is given, and simple methods where as good."""

import numpy as np
import pytest

import coterie
from coterie.advice import pilots
from coterie.advice.pilots import Pilot, candidates, try_out, without_test_data
from coterie.core.errors import SettingsError


@pytest.fixture(scope="module")
def fed():
    return coterie.simulate("digits", split="iid", clients=4, net="logistic", limit=400, seed=3)


def pilot(name, scores, place=0, **settings):
    made = Pilot(coterie.methods.make(name, rounds=8, **settings), place)
    made.scores, made.rounds = np.array(scores, dtype=float), 8
    return made


def test_pilots_run_on_clients_without_test_data(fed):
    hidden = {place for shard in fed._engine.population.shards for place in shard.test.tolist()}
    apart = without_test_data(fed, 0)._engine.population
    used = {place for shard in apart.shards for part in ("train", "validation", "test") for place in shard.part(part)}
    assert not hidden & used
    assert not len(apart.server.test)
    for before, after in zip(fed._engine.population.shards, apart.shards, strict=True):
        every = np.concatenate([after.train, after.validation, after.test])
        assert sorted(every) == sorted(np.concatenate([before.train, before.validation]))


def test_a_pilot_that_went_on_is_where_one_is_that_never_paused(fed):
    apart = without_test_data(fed, 0)
    paused, straight = (Pilot(coterie.methods.make("ifca", rounds=8, clusters=2), 0) for _ in range(2))
    for until in (2, 4, 8):
        paused.go_on(apart, until)
        assert paused.rounds == until
    straight.go_on(apart, 8)
    np.testing.assert_array_equal(paused.scores, straight.scores)


def test_all_settings_of_all_methods_that_fit_are_candidates(fed):
    found = candidates(fed, 8)
    assert {one.method.rounds for one in found} == {8}
    named = [one.method.name for one in found]
    assert named.count("ifca") == len(pilots.RATES) * 2
    assert named.count("local") == len(pilots.RATES)


def test_where_labels_are_private_nobody_is_tried_who_tells_of_them(fed, monkeypatch):
    monkeypatch.setattr(pilots, "PORTFOLIO", (("local", {}), ("cafa", {}), ("fedavg", {})))
    assert {one.method.name for one in candidates(fed, 8)} == {"local", "cafa", "fedavg"}
    assert {one.method.name for one in candidates(fed, 8, private="labels")} == {"local", "fedavg"}


def test_the_better_half_goes_on_and_references_always():
    going = [
        pilot("local", [0.1], 0),
        pilot("fedavg", [0.2], 1),
        pilot("ifca", [0.9], 4),
        pilot("ifca", [0.8], 4),
        pilot("ditto", [0.5], 6),
        pilot("fedrep", [0.3], 7),
    ]
    kept = [(one.method.name, one.mean) for one in pilots._better_half(going)]
    assert kept == [
        ("local", 0.1),
        ("fedavg", 0.2),
        ("ifca", 0.9),
        ("ditto", 0.5),
        ("fedrep", 0.3),
    ]  # three of five, and the references


def test_a_simple_method_is_chosen_where_the_lead_is_within_a_standard_error():
    simple, better = pilot("fedavg", [0.5, 0.6, 0.5, 0.6], 1), pilot("ifca", [0.7, 0.4, 0.7, 0.42], 4)
    assert pilots._simplest([simple, better]) is simple  # a lead of 0.005, with a deviation of 0.22
    clear = pilot("ifca", [0.6, 0.7, 0.6, 0.72], 4)
    assert pilots._simplest([simple, clear]) is clear


def test_sureness_is_the_share_of_redraws_with_the_same_choice():
    sure = [pilot("local", [0.1] * 6, 0), pilot("ifca", [0.9] * 6, 4)]
    assert pilots._sureness(sure, sure[1]) == 1.0
    torn = [pilot("local", [0.9, 0.1, 0.9, 0.1], 0), pilot("ifca", [0.1, 0.9, 0.1, 0.92], 4)]
    assert 0.2 < pilots._sureness(torn, torn[0]) < 0.95


def test_what_is_expected_is_the_mean_gain_with_a_prediction_interval():
    alone, chosen = pilot("local", [0.5, 0.6, 0.7, 0.8], 0), pilot("ifca", [0.6, 0.8, 0.8, 1.0], 4)
    mean, low, high = pilots._expected([alone, chosen], chosen)
    gained = np.array([0.1, 0.2, 0.1, 0.2])
    reach = 2.3534 * gained.std(ddof=1) * np.sqrt(2 / 4)  # Student's t with three degrees of freedom
    assert (mean, low, high) == pytest.approx((0.15, 0.15 - reach, 0.15 + reach), abs=1e-4)
    assert pilots._expected([alone, chosen], alone) is None


def test_without_time_the_first_stage_decides(fed):
    apart = without_test_data(fed, 0)
    trial = try_out(apart, candidates(apart, 8)[:6], 8, seconds=0.0)
    assert not trial.complete
    assert trial.rounds == 2
    assert {one.rounds for one in trial.pilots} == {2}


def test_with_time_the_best_go_all_the_way(fed):
    apart, said = without_test_data(fed, 0), []
    trial = try_out(apart, candidates(apart, 8)[:6], 8, seconds=1e9, told=said.append)
    assert trial.complete
    assert trial.rounds == 8
    assert trial.chosen.rounds == 8
    assert len({one.method.name for one in trial.pilots if one.rounds == 8}) == 2  # one setting of each
    assert said[0].startswith("local rate=0.03: to round 2 of 8 (1/6)")


def test_a_method_that_fails_is_left_out_and_said_to_have_failed(fed, monkeypatch):
    apart = without_test_data(fed, 0)
    found = candidates(apart, 8)[:4]

    def fails(*_, **__):
        raise SettingsError("not here")

    monkeypatch.setattr(type(found[3].method), "round", fails)
    trial = try_out(apart, found, 8, seconds=1e9)
    assert [one.failed for one in trial.pilots if one.failed] == ["not here"]
    assert trial.chosen.method.name == "local"
