"""Statistics: read when a study is read, worked numbers, and tests that claim no more than the seeds can tell."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import coterie.papers  # noqa: F401  registers its measures
from coterie.core.errors import SettingsError
from coterie.runs.experiment import run as run_settings
from coterie.runs.folder import StoredRun
from coterie.runs.settings import Settings
from coterie.server.metrics import metrics
from coterie.studies.statistics import (
    Estimate,
    client_keys,
    difference_ends,
    estimate,
    functions,
    holm,
    over_clients,
    paired,
    round_keys,
    smooth,
    statistic,
    summary_keys,
    wilson,
)


def stored(accuracies=(0.2, 0.4, 0.6), *, seed=0, steps=10, every=1, clients=(), name="a", **summary):
    """A run whose clients take so many steps a round and send 1,000 bytes, receive 2,000."""
    rounds = []
    for number, accuracy in enumerate(accuracies, start=1):
        number *= every
        traffic = {"bytes_up": 1000 * number, "bytes_down": 2000 * number, "bytes_peer": 0}
        rounds.append({"round": number, "accuracy_mean": accuracy, "steps_mean": steps * number, **traffic})
    last = {key: value for key, value in rounds[-1].items() if key != "round"} if rounds else {}
    whole = {"clients": 10, "seed": seed, **last, "best_round": rounds[0] if rounds else None, **summary}
    return StoredRun(Path(f"runs/{name}-{seed}"), {"seed": seed}, whole, rounds, list(clients), [])


# Keys and functions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy_mean", 0.6),
        (" accuracy_mean ", 0.6),
        ("best_round.accuracy_mean", 0.2),
        ("best_round.round", 1),
        ("bytes", 9000),
        ("window(accuracy_mean, 1, 2)", 0.3),
        ("window(accuracy_mean, 2, 99)", 0.5),
        ("window(accuracy_mean, 4, 99)", None),
        ("best(accuracy_mean)", 0.6),
        ("least(accuracy_mean)", 0.2),
        # The past counts half: 0.2, (0.1 + 0.4) / 1.5, (0.05 + 0.2 + 0.6) / 1.75.
        ("best(smoothed(accuracy_mean, 0.5))", 0.85 / 1.75),
        ("at(smoothed(accuracy_mean, 0.5), 2)", 0.5 / 1.5),
        ("window(smoothed(accuracy_mean,0.5), 1, 2)", (0.2 + 0.5 / 1.5) / 2),
        ("rounds_to(smoothed(accuracy_mean, 0.5), 0.4)", 3),
        ("at(accuracy_mean, 2)", 0.4),
        ("at(accuracy_mean, 9)", None),
        ("rounds_to(accuracy_mean, 0.4)", 2),
        ("rounds_to(accuracy_mean, 0.61)", None),
        ("bytes_to(accuracy_mean, 0.4)", 6000),
        # 6,000 bytes are 0.048 megabits, of which each of ten clients has a tenth.
        ("megabits_to(accuracy_mean,0.4)", 0.0048),
        ("bytes_to(accuracy_mean, 0.9)", None),
        ("megabits_to(accuracy_mean, 0.9)", None),
        ("megabytes_each(bytes)", 0.0009),
        ("megabytes_each(bytes_up)", 0.0003),
        ("ari", None),
    ],
)
def test_statistics_of_a_run(text, expected):
    assert statistic(text)(stored()) == (None if expected is None else pytest.approx(expected))


def test_the_cost_that_flis_prints_is_found_again():
    """Table 3 of FLIS: 100 clients, ten a round, 62,006 parameters down and up; 200 rounds of FedAvg are 79.37 Mb."""
    exchanged = 10 * 62_006 * 4
    rounds = [
        {"round": n, "accuracy_mean": n / 250, "bytes_up": n * exchanged, "bytes_down": n * exchanged, "bytes_peer": 0}
        for n in range(1, 251)
    ]
    run = StoredRun(Path(), {}, {"clients": 100}, rounds, [], [])
    assert statistic("megabits_to(accuracy_mean, 0.8)")(run) == pytest.approx(79.37, abs=0.005)


def test_rounds_that_were_not_evaluated_do_not_count():
    run = stored(every=5)
    assert statistic("window(accuracy_mean, 1, 9)")(run) == 0.2
    assert statistic("at(accuracy_mean, 6)")(run) is None
    assert statistic("rounds_to(accuracy_mean, 0.3)")(run) == 10


def test_what_is_counted_at_evaluations_says_how_finely():
    run = stored(every=5)
    assert statistic("rounds_to(accuracy_mean, 0.3)").measured(run) == (10, 5)
    assert statistic("rounds_to(accuracy_mean, 0.2)").measured(run) == (5, 5), "from the start"
    assert statistic("bytes_to(accuracy_mean, 0.3)").measured(run) == (30_000, 15_000)
    assert statistic("rounds_to(accuracy_mean, 0.3)").measured(stored()) == (2, 0), "every round was evaluated"
    assert statistic("bytes_to(accuracy_mean, 0.3)").measured(stored()) == (6000, 0)
    assert statistic("accuracy_mean").measured(run)[1] == 0
    found = estimate(statistic("rounds_to(accuracy_mean, 0.3)"), [run, stored(seed=1), stored([0.1], seed=2)])
    assert found.resolution == pytest.approx(5 / 2), "of the runs that have a figure"


@pytest.mark.parametrize("name", ["rounds_to", "bytes_to", "megabits_to"])
def test_what_was_not_measured_is_not_what_never_happened(name):
    assert statistic(f"{name}(accuracy_mean, 0.9)").measured(stored()) == (inf, 0)
    assert statistic(f"{name}(accuracy_adapted_mean, 0.1)").measured(stored()) == (None, 0), "without that view"
    assert statistic(f"{name}(accuracy_mean, 0.9)").measured(stored([])) == (None, 0)
    found = estimate(statistic(f"{name}(accuracy_mean, 0.3)"), [stored([0.1]), stored(seed=1), stored([None], seed=2)])
    assert (found.never, found.without) == ((Path("runs/a-0"),), (Path("runs/a-2"),))
    assert (found.count, found.tried) == (1, 3)


def test_traffic_that_was_not_counted_is_not_measured():
    run = stored()
    for record in run.rounds:
        del record["bytes_up"]
    assert statistic("bytes_to(accuracy_mean, 0.4)").measured(run) == (None, 0)
    assert statistic("bytes_to(accuracy_mean, 0.9)").measured(run) == (inf, 0), "it never gets there, at any cost"


@pytest.mark.parametrize("value", [None, "fedavg", float("nan"), float("inf"), {}, []])
def test_what_is_no_number_is_no_figure(value):
    assert statistic("accuracy_mean")(stored(accuracy_mean=value)) is None
    assert statistic("best(accuracy_mean)")(stored([value, 0.1])) == 0.1


def test_an_unfinished_run_and_a_measure_have_what_they_have():
    unfinished = StoredRun(Path(), {}, None, stored().rounds, [], [])
    assert statistic("accuracy_mean")(unfinished) is None
    assert statistic("best(accuracy_mean)")(unfinished) == 0.6
    assert statistic("megabits_to(accuracy_mean, 0.4)")(unfinished) is None
    measure = StoredRun(Path(), {}, {"precision": 0.83}, [], [], [])
    assert statistic("precision")(measure) == 0.83
    for text in ("window(accuracy_mean, 1, 3)", "smoothed(accuracy_mean, 0.5)", "equal_steps(accuracy_mean)"):
        assert statistic(text)(measure) is None


def test_traffic_is_found_by_direction_and_kind():
    run = stored(ledger={"up": {"model": 7, "label histogram": 3, "a.b": 5}})
    assert statistic("ledger.up.model")(run) == 7
    assert statistic("ledger.up.label histogram")(run) == 3
    assert statistic("ledger.up.a.b")(run) == 5
    assert statistic("ledger.down.model")(run) is None


def test_figures_of_clients():
    clients = [{"client": "north, old", "accuracy": 0.5}, {"client": "b", "accuracy": 0.9}, {"client": "c"}]
    run = stored(clients=clients)
    assert statistic("client(b, accuracy)")(run) == 0.9
    assert statistic('client("north, old", accuracy)')(run) == 0.5
    assert statistic("client(nobody, accuracy)")(run) is None
    assert statistic("clients_mean(accuracy)")(run) == pytest.approx(0.7)
    assert statistic("clients_std(accuracy)")(run) == pytest.approx(0.2)
    assert statistic("clients_mean(loss)")(run) is None
    assert over_clients(statistic("accuracy_mean"), [run]) == {(0, "north, old"): 0.5, (0, "b"): 0.9}
    assert over_clients(statistic("clients_mean(accuracy)"), [run]).keys() == {(0, "north, old"), (0, "b")}
    assert over_clients(statistic("ari"), [run]) == {}


def test_clients_with_few_samples_are_those_below_the_mean():
    sizes, accuracies = {"a": 10, "b": 30, "c": 60, "d": 20}, {"a": 0.2, "b": 0.9, "c": 0.8, "d": 0.6}  # 30 on average
    clients = [{"client": name, "samples": sizes[name], "accuracy": accuracies[name]} for name in sizes]
    assert statistic("few_samples_mean(accuracy)")(stored(clients=clients)) == pytest.approx(0.4)
    assert statistic("few_samples_mean(accuracy)")(stored(clients=clients[:1])) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy_mean", "did you mean accuracy_mean"),
        ("windw(accuracy_mean, 1, 2)", "did you mean window"),
        ("key(accuracy_mean)", "unknown statistic 'key'"),
        ("window", "did you mean window"),
        ("window(accuracy_mean, 1)", r"takes 3 arguments, window\(key, first, last\), not 2"),
        ("best()", "takes 1 arguments"),
        ("best(accuracy_men)", "did you mean accuracy_mean"),
        ("best(best_round.accuracy_mean)", "unknown key"),
        ("at(accuracy_mean, last)", "number='last': expected a whole number"),
        ("at(accuracy_mean, 1.5)", "expected a whole number"),
        ("rounds_to(accuracy_mean, nan)", "target='nan': expected a number"),
        ("smoothed(accuracy_mean, 1)", "weight='1': expected a number from 0 to below 1"),
        ("best(smoothed(accuracy_mean))", r"takes 2 arguments, smoothed\(key, weight\), not 1"),
        ("best(smoothed(acuracy_mean, 0.5))", "did you mean accuracy_mean"),
        ("best(smoothed(accuracy_mean, 2))", "weight='2': expected a number from 0 to below 1"),
        ("best(least(accuracy_mean))", "unknown key"),
        ("window(accuracy_mean, 30, 1)", "ends before it begins"),
        ("client(a, acuracy)", "did you mean accuracy"),
        ("ledger.sideways.model", "unknown statistic"),
        ("precisoin", "did you mean precision"),
    ],
)
def test_slips_are_found_when_a_statistic_is_read(text, said):
    with pytest.raises(SettingsError, match=said):
        statistic(text)


def test_every_function_says_what_it_gives():
    listed = functions()
    assert "window(key, first, last)" in listed
    assert "key" not in listed
    assert all(said.endswith(".") for said in listed.values())


def test_runs_have_the_figures_that_are_known(tmp_path, monkeypatch):
    """Neither can the lists of keys lack one, nor have one that no run has."""
    monkeypatch.setattr("coterie.studies.statistics.known_facts", lambda: {"accuracy": metrics["accuracy"].facts})
    world = {"data": "digits", "split": "iid", "net": "logistic", "clients": 3, "rounds": 2, "limit": 200}
    chosen, _ = Settings.of({**world, "views": ("adapted", "last")}, "fedavg")
    run_settings(chosen, tmp_path / "run")
    run = StoredRun.read(tmp_path / "run")
    text = {"method", "data", "split", "net", "best_round", "ledger", "metrics"}
    grouped = {"ari", "nmi", "purity", "placed_right", "stable_since"}
    best = {f"best_round.{key}" for key in run.summary["best_round"]}
    assert {"bytes", "steps_mean", *run.rounds[0]} - {"round"} == round_keys()
    assert (
        run.summary.keys() - text
        | grouped
        | best
        | {"bytes", "best_round.bytes", *run.rounds[0]} - {"round"}
        | {
            "steps_mean",
            "best_round.steps_mean",
        }
        == summary_keys()
    )
    assert {*run.clients[0]} - {"client"} == client_keys()
    for key in summary_keys() - grouped - {"steps_mean", "best_round.steps_mean"}:
        assert statistic(key)(run) is not None, key


# Smoothing


def test_a_smoothed_curve_is_a_mean_of_the_past():
    # (0.5 * 1 + 0) / 1.5, then (0.25 * 1 + 0.5 * 0 + 4) / 1.75.
    assert smooth([1, 2, 3], [1, 0, 4], 0.5) == pytest.approx([1, 1 / 3, 17 / 7])
    assert statistic("smoothed(accuracy_mean, 0.5)")(stored([1, 0, 4])) == pytest.approx(17 / 7)


def test_smoothing_is_by_time_and_not_by_position():
    # Two rounds on, the first value counts a quarter.
    assert smooth([1, 3], [1, 0], 0.5)[-1] == pytest.approx(0.25 / 1.25)


@settings(max_examples=30)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0, 0.99))
def test_a_smoothed_curve_stays_between_its_extremes(values, weight):
    smoothed = smooth(range(len(values)), values, weight)
    assert np.all(smoothed >= min(values) - 1e-12)
    assert np.all(smoothed <= max(values) + 1e-12)


def test_no_smoothing_changes_nothing():
    assert smooth([1, 2, 5], [3, 1, 2], 0.0).tolist() == [3, 1, 2]


# Among peers


def test_equal_steps_compare_where_no_method_has_trained_longer():
    few, many = stored([0.1, 0.2, 0.3], steps=10), stored([0.3, 0.5, 0.7], steps=14)
    peers = {"few": few, "many": many}
    equal = statistic("equal_steps(accuracy_mean)")
    assert equal(few, peers) == 0.3
    assert equal(many, peers) == 0.5  # 28 steps are within 30, 42 are not
    assert equal(many, {"many": many}) == equal(many) == 0.7
    assert equal(many, {"short": stored([0.1], steps=1)}) is None  # its first round has 14 steps, above 1


def test_equal_steps_are_unknown_where_steps_were_not_counted():
    old = stored()
    for record in old.rounds:
        del record["steps_mean"]
    equal = statistic("equal_steps(accuracy_mean)")
    assert equal(old) is None
    assert equal(stored(), {"old": old}) is None
    measure = StoredRun(Path(), {}, {}, [], [], [])
    assert equal(stored(), {"measure": measure}) == 0.6  # what does not train takes no steps


def test_rounds_to_what_another_method_ends_with():
    fast, slow = stored([0.5, 0.7, 0.9]), stored([0.1, 0.3, 0.6])
    to = statistic("rounds_to_final(accuracy_mean, FedAvg)")
    assert to(fast, {"FedAvg": slow}) == 2
    assert to(slow, {"FedAvg": fast}) is None
    assert to.measured(slow, {"FedAvg": fast}) == (inf, 0)
    for peers in ({}, {"FedAvg": None}, {"FedAvg": stored([None])}):
        assert to.measured(fast, peers) == (None, 0), "nobody knows where it ends"
    assert to.other == "FedAvg"
    assert statistic("rounds_to(accuracy_mean, 1)").other is None


def test_peers_have_the_same_seed():
    runs = {"a": [stored([1, 2, 3], seed=s) for s in (0, 1)], "b": [stored([1, 2], seed=1), stored([1], seed=0)]}
    found = estimate(statistic("equal_steps(accuracy_mean)"), runs["a"], runs)
    assert found.values == {0: 1, 1: 2}


def test_equal_steps_are_unknown_under_seeds_that_a_peer_does_not_have_yet():
    """Its runs with other seeds show that it will count there too."""
    equal = statistic("equal_steps(accuracy_mean)")
    ours = [stored([1, 2, 3], seed=seed) for seed in (0, 1)]
    found = estimate(equal, ours, {"a": ours, "begun": [stored([1, 2], seed=1)], "not begun": []})
    assert (found.values, found.without) == ({1: 2}, (Path("runs/a-0"),))
    measure = replace(stored([], seed=1), summary={})
    assert estimate(equal, ours, {"a": ours, "measure": [measure]}).values == {0: 3, 1: 3}, "it takes no steps"


# One client beside itself


def of_clients(accuracies, **more):
    """A run whose clients have these accuracies on 100 test samples each."""
    names = "abcdefgh"
    found = [{"client": names[at], "accuracy": one, "test_samples": 100} for at, one in enumerate(accuracies)]
    return stored(clients=found, **more)


def test_clients_are_counted_that_another_method_serves_better():
    # Of 100 samples two fewer right may be chance, thirty fewer are none.
    alone = of_clients([0.9, 0.9, 0.5, 0.5])
    ours = of_clients([0.95, 0.88, 0.2, 0.5])
    peers = {"Ours": ours, "Alone": alone}
    assert statistic("worse_off(accuracy, Alone)")(ours, peers) == 2
    assert statistic("clearly_worse_off(accuracy, Alone)")(ours, peers) == 1
    assert statistic("most_lost(accuracy, Alone)")(ours, peers) == pytest.approx(0.3)
    assert statistic("most_lost(accuracy, Ours)")(ours, peers) == 0
    assert statistic("worse_off(accuracy, Alone)").other == "Alone"


def test_it_is_clear_where_the_interval_leaves_out_zero():
    for lost in (0.05, 0.09, 0.1, 0.12, 0.2):
        low, _ = difference_ends(0.9, 0.9 - lost, 100)
        peers = {"Alone": of_clients([0.9])}
        counted = statistic("clearly_worse_off(accuracy, Alone)")(of_clients([0.9 - lost]), peers)
        assert counted == (1 if low > 0 else 0)


def test_of_a_loss_less_is_better():
    run, other = ([{"client": "a", "loss": loss, "test_samples": 9}] for loss in (0.7, 0.2))
    peers = {"Alone": stored(clients=other)}
    assert statistic("worse_off(loss, Alone)")(stored(clients=run), peers) == 1
    assert statistic("most_lost(loss, Alone)")(stored(clients=run), peers) == pytest.approx(0.5)
    assert statistic("clearly_worse_off(loss, Alone)")(stored(clients=run), peers) is None, "it is no share of samples"


def test_who_is_not_in_both_runs_or_has_no_test_samples_is_not_compared():
    ours, alone = of_clients([0.1, 0.1]), of_clients([0.9, None])
    assert statistic("worse_off(accuracy, Alone)")(ours, {"Alone": alone}) == 1
    assert statistic("worse_off(accuracy, Alone)")(ours, {"Alone": stored()}) is None
    assert statistic("worse_off(accuracy, Alone)")(ours, {"Alone": None}) is None
    assert statistic("worse_off(accuracy, Alone)")(ours, {}) is None
    with pytest.raises(SettingsError, match=r"unknown key in the statistic .* 'samples'"):
        statistic("worse_off(samples, Alone)")


# Over seeds


def test_an_estimate_knows_its_runs():
    runs = [stored([value], seed=seed) for seed, value in enumerate((0.1, 0.3, None, 0.5))]
    found = estimate(statistic("accuracy_mean"), [*runs, runs[0]])
    assert found.count == 3
    assert found.mean == pytest.approx(0.3)
    assert found.deviation == pytest.approx(0.2)
    assert found.runs == (Path("runs/a-0"), Path("runs/a-1"), Path("runs/a-3"))
    assert found.without == (Path("runs/a-2"),)


def test_one_seed_has_no_deviation_and_none_no_mean():
    assert Estimate({4: 0.5}, (Path("x"),)).deviation is None
    empty = Estimate({}, ())
    assert (empty.count, empty.mean, empty.deviation) == (0, None, None)


def test_statistics_know_what_they_are():
    assert statistic("accuracy_mean").at_equal_steps == statistic("equal_steps(accuracy_mean)")
    assert statistic("best(accuracy_mean)").at_equal_steps is None
    assert statistic("ari").at_equal_steps is None


# One method against another


def test_paired_tests_are_scipys():
    left, right = [0.5, 0.62, 0.71, 0.55], [0.4, 0.6, 0.65, 0.56]
    test = paired(dict(enumerate(left)), dict(enumerate(right)))
    assert test.pairs == 4
    assert test.difference == pytest.approx(np.mean(left) - np.mean(right))
    assert test.t_test == pytest.approx(stats.ttest_rel(left, right).pvalue)
    assert test.wilcoxon == pytest.approx(stats.wilcoxon(left, right).pvalue)


def test_only_seeds_that_both_have_are_paired():
    test = paired({0: 1.0, 1: 2.0, 2: 4.0, 7: 9.0}, {2: 1.0, 1: 1.0, 0: 1.0, 8: 3.0})
    assert test.pairs == 3
    assert test.difference == pytest.approx(4 / 3)
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_seeds_are_not_tested(count):
    test = paired(dict.fromkeys(range(count), 1.0), dict.fromkeys(range(count), 0.0))
    assert (test.pairs, test.difference, test.t_test, test.wilcoxon) == (count, 1.0, None, None)


def test_equal_figures_do_not_differ():
    same = dict(enumerate([0.1, 0.2, 0.3]))
    test = paired(same, {key: value + 1e-17 for key, value in same.items()})
    assert (test.difference, test.t_test, test.wilcoxon) == (0.0, 1.0, 1.0)


def test_a_difference_without_spread_is_no_certainty():
    test = paired(dict(enumerate([0.2, 0.3, 0.4])), dict(enumerate([0.1, 0.2, 0.3])))
    assert test.difference == pytest.approx(0.1)
    assert test.t_test is None
    assert test.wilcoxon == pytest.approx(0.25)  # two of the eight signs of three equal ranks


@settings(max_examples=30)
@given(st.data())
def test_the_order_of_seeds_does_not_matter(data):
    pairs = data.draw(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
    order = data.draw(st.permutations(range(len(pairs))))
    first = paired({n: pairs[n][0] for n in range(len(pairs))}, {n: pairs[n][1] for n in range(len(pairs))})
    second = paired({n: pairs[n][0] for n in order}, {n: pairs[n][1] for n in reversed(order)})
    assert first.pairs == second.pairs
    for one, other in (
        (first.difference, second.difference),
        (first.t_test, second.t_test),
        (first.wilcoxon, second.wilcoxon),
    ):
        assert one is other is None or one == pytest.approx(other, rel=1e-6, abs=1e-12)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
def test_tests_are_two_sided(pairs):
    left, right = ({n: pair[side] for n, pair in enumerate(pairs)} for side in (0, 1))
    one, other = paired(left, right), paired(right, left)
    assert one.difference == pytest.approx(-other.difference)
    assert one.t_test == pytest.approx(other.t_test)
    assert one.wilcoxon == pytest.approx(other.wilcoxon)
    assert one.t_test is None or 0 <= one.t_test <= 1
    assert 0 < one.wilcoxon <= 1


def test_holms_correction_worked_by_hand():
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1 is 0.03, 0.06, 0.04; none may be below the one before.
    assert holm([0.03, None, 0.01, 0.04]) == [pytest.approx(0.06), None, pytest.approx(0.03), pytest.approx(0.06)]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([None]) == [None]


@settings(max_examples=30)
@given(st.lists(st.none() | st.floats(0, 1), max_size=10))
def test_holms_correction_only_raises_and_keeps_the_order(raw):
    corrected = holm(raw)
    both = [(before, after) for before, after in zip(raw, corrected, strict=True) if before is not None]
    assert [after is None for after in corrected] == [before is None for before in raw]
    assert all(before <= after <= 1 for before, after in both)
    afterwards = [after for _, after in sorted(both)]
    assert afterwards == sorted(afterwards)


@settings(max_examples=30)
@given(st.integers(1, 400).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_of_a_share_is_wilsons(pair):
    right, samples = pair
    low, high = stats.binomtest(right, samples).proportion_ci(method="wilson")
    assert wilson(right / samples, samples) == pytest.approx((low, high), abs=1e-12)


def test_the_interval_of_a_difference_is_that_of_newcombes_example():
    # 9 of 10 against 3 of 10: 0.1705 to 0.8090 (Newcombe 1998, Table II, method 10).
    assert difference_ends(0.9, 0.3, 10) == pytest.approx((0.1705, 0.8090), abs=5e-5)


@given(st.integers(0, 50), st.integers(0, 50))
def test_the_interval_of_a_difference_has_it_inside_and_turns_with_it(right, other):
    low, high = difference_ends(right / 50, other / 50, 50)
    assert -1 - 1e-9 <= low <= (right - other) / 50 <= high <= 1 + 1e-9
    assert difference_ends(other / 50, right / 50, 50) == pytest.approx((-high, -low))


def test_two_points_from_sixteen_samples_are_no_gain():
    low, high = difference_ends(13 / 16 + 0.021, 13 / 16, 16)
    assert low < -0.2
    assert high > 0.2
    low, _ = difference_ends(0.8125 + 0.021, 0.8125, 16_000)
    assert low > 0
