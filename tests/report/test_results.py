"""Results beside a paper's: what counts as the same number, what is best, what is clear, and whether claims hold."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.report.results import (
    Claim,
    Findings,
    Tally,
    Verdict,
    orderings,
    own_methods,
    result_table,
    study_summary,
    study_tables,
    summarised,
)
from coterie.studies.campaign import Campaign
from coterie.studies.study import Study
from support.study_tables import AXES, example, seeds, stored, table_of


def cell(table, *labels, value=None):
    """The cell with these labels of all axes."""
    (found,) = (one for one in table if one.labels == labels and value in (None, one.value))
    return found


def single(ours, published, *, percent=True, digits=1, **more):
    """The cell of a table with one number."""
    spec = table_of(percent=percent, digits=digits, published={"a": published}, rows=("method",), columns=(), **more)
    runs = {("a",): seeds(*ours)} if ours else {}
    (found,) = result_table(spec, Findings({"method": ("a",)}, runs, len(ours)))
    return found


# One number


def test_ours_and_the_papers_are_in_the_same_unit():
    found = single([0.50, 0.52], [50.5, 0.3])
    assert found.mean == pytest.approx(51)
    assert found.deviation == pytest.approx(100 * 0.02 / 2**0.5)
    assert found.difference == pytest.approx(0.5)
    assert (found.published.mean, found.published.deviation) == (50.5, 0.3)


@pytest.mark.parametrize(
    ("ours", "published", "verdict"),
    [
        ([0.5], [51.5], Verdict.REPRODUCES),  # 1.5 points
        ([0.5], [51.51], Verdict.DIFFERS),
        ([0.5], [48.5], Verdict.REPRODUCES),
        ([0.5], [52.0, 1.0], Verdict.REPRODUCES),  # two deviations of theirs
        ([0.5], [52.01, 1.0], Verdict.DIFFERS),
        ([0.45, 0.50, 0.55], [55.7], Verdict.REPRODUCES),  # two errors of ours: 2 * 5 / 3^0.5 = 5.77
        ([0.45, 0.50, 0.55], [55.8], Verdict.DIFFERS),
        ([0.45, 0.50, 0.55], [58.1, 5.0], Verdict.REPRODUCES),  # two of the difference: 5.77 * 2^0.5 = 8.16
        ([0.45, 0.50, 0.55], [58.2, 5.0], Verdict.DIFFERS),
        ([0.49, 0.50, 0.51], [51.5], Verdict.REPRODUCES),  # two errors are 1.15 points, less than 1.5
        ([], [50.0], Verdict.NOT_RUN),
    ],
)
def test_numbers_reproduce_within_two_standard_errors_or_one_and_a_half_points(ours, published, verdict):
    assert single(ours, published).verdict is verdict


@pytest.mark.parametrize(("published", "verdict", "near"), [(55.7, 1, 1), (58.0, 0, 1), (60.1, 0, 0)])
def test_a_wide_spread_of_runs_reproduces_nothing_and_is_counted_apart(published, verdict, near):
    # Deviation 5, so that two of it are 10 points, and two standard errors 5.77.
    spec = table_of(percent=True, published={"a": [published]}, rows=("method",), columns=())
    table = result_table(spec, Findings({"method": ("a",)}, {("a",): seeds(0.45, 0.50, 0.55)}, 3))
    found = summarised("x", [table])
    assert (found.verdicts[Verdict.REPRODUCES], found.within_deviations) == (verdict, near)
    assert f"within 2 standard deviations of it are {near}." in found.lines()[1]


def test_what_is_no_percentage_has_no_points():
    assert single([15.0], [15], percent=False).verdict is Verdict.REPRODUCES
    assert single([16.0], [15], percent=False).verdict is Verdict.DIFFERS
    assert single([0.954], [0.95], percent=False, digits=2).verdict is Verdict.REPRODUCES  # printed as 0.95
    assert single([0.956], [0.95], percent=False, digits=2).verdict is Verdict.DIFFERS


def test_numbers_reproduce_within_what_lies_between_two_evaluations():
    def verdict(rounds, published, digits=0, value="rounds_to(accuracy_mean, 0.9)"):
        spec = table_of(rows=("method",), columns=(), percent=False, digits=digits, values={"x": value}, reference={})
        run = stored(0.9, rounds=20)
        course = [record for record in run.rounds if record["round"] in rounds]
        for record in course:
            record["bytes_up"] = 1e6 * record["round"]
        findings = Findings({"method": ("a",)}, {("a",): [replace(run, rounds=course)]})
        (found,) = result_table(replace(spec, published={"a": published}), findings)
        return found.verdict

    assert verdict((10, 20), [12]) is Verdict.REPRODUCES
    assert verdict((10, 20), [30]) is Verdict.REPRODUCES
    assert verdict((10, 20), [31]) is Verdict.DIFFERS
    assert verdict((10, 20), []) is Verdict.DIFFERS
    assert verdict((10, 18, 20), [17]) is Verdict.DIFFERS  # two rounds between the last two
    assert verdict(range(21), [20]) is Verdict.REPRODUCES
    assert verdict(range(21), [19]) is Verdict.DIFFERS  # every round was evaluated: it is exact
    # Two clients: 4 megabits each in a round.
    megabits = "megabits_to(accuracy_mean, 0.9)"
    assert verdict((10, 20), [41], 2, megabits) is Verdict.REPRODUCES
    assert verdict((10, 20), [39], 2, megabits) is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("ours", "published", "verdict", "difference"),
    [
        ([0.5, 0.6], [3], Verdict.DIFFERS, None),
        ([0.5, 0.6], [], Verdict.REPRODUCES, None),
        ([0.9, 0.9], [], Verdict.DIFFERS, None),
        ([0.9, 0.9], [3], Verdict.REPRODUCES, 0),
    ],
)
def test_never_is_a_result(ours, published, verdict, difference):
    found = single(ours, published, percent=False, values={"rounds": "rounds_to(accuracy_mean, 0.9)"})
    assert (found.verdict, found.difference) == (verdict, difference)
    assert found.never == (ours[0] < 0.9)


def test_seeds_in_which_it_never_came_are_said():
    found = single([0.9, 0.5, 0.9], [3], percent=False, values={"rounds": "rounds_to(accuracy_mean, 0.9)"})
    assert found.mean == 3
    assert found.notes == ("never in 1 of 3 runs",)


def test_what_old_runs_did_not_measure_is_not_taken_for_a_result():
    found = single([0.5], [50], values={"accuracy": "global_accuracy_mean"})
    assert (found.verdict, found.mean, found.never) == (Verdict.NOT_MEASURED, None, False)


@pytest.mark.parametrize("published", [[], [3]])
def test_what_was_not_measured_is_not_taken_for_never(published):
    found = single([0.9], published, percent=False, values={"rounds": "rounds_to(accuracy_adapted_mean, 0.1)"})
    assert (found.verdict, found.mean, found.never) == (Verdict.NOT_MEASURED, None, False)


def test_runs_that_never_came_there_are_told_from_those_not_measured():
    spec = table_of(rows=("method",), columns=(), percent=False, values={"rounds": "rounds_to(accuracy_mean, 0.9)"})

    def found(*runs):
        (only,) = result_table(replace(spec, reference={}), Findings({"method": ("a",)}, {("a",): runs}, len(runs)))
        return only

    there, never, unknown = stored(0.9, 0), stored(0.5, 1), replace(stored(0.9, 2), rounds=[])
    some = found(there, never, unknown)
    assert (some.mean, some.notes) == (3, ("never in 1 of 3 runs", "not measured in 1 of 3 runs"))
    none = found(never, unknown)
    assert (none.mean, none.never) == (None, True)
    assert none.notes == ("never in 1 of 2 runs", "not measured in 1 of 2 runs")
    assert (found(never).notes, found(unknown).notes) == ((), ())


def test_who_is_measured_by_a_method_without_runs_is_not_measured():
    values = {"rounds": "rounds_to_final(accuracy_mean, b)"}
    spec = table_of(rows=("method",), columns=(), percent=False, values=values, published={"a": []}, reference={})
    findings = Findings({"method": ("a", "b")}, {("a",): seeds(0.9), ("b",): seeds(0.5)})
    assert cell(result_table(spec, findings), "a").mean == 2
    # A method that is named counts, whether or not it is shown.
    assert cell(result_table(replace(spec, where={"method": "a"}), findings), "a").mean == 2
    for runs in ({}, {("b",): []}):
        without = replace(findings, runs={("a",): seeds(0.9), **runs})
        found = cell(result_table(spec, without), "a")
        assert (found.verdict, found.mean, found.never) == (Verdict.NOT_MEASURED, None, False)


def test_numbers_know_their_runs():
    spec, findings = example()
    found = cell(result_table(spec, findings), "CIFAR10", "IID-Im", "IFCA")
    assert [path.name for path in found.ours.runs] == ["ifca-seed0", "ifca-seed1", "ifca-seed2"]


# A whole table


def test_a_table_has_every_kind_of_mark():
    spec, findings = example()
    table = result_table(spec, findings)
    verdicts = {
        ("CIFAR10", "IID-Im", "FedAvg"): Verdict.REPRODUCES,
        ("CIFAR10", "IID-Im", "IFCA"): Verdict.DIFFERS,
        ("CIFAR10", "IID-Im", "AutoCFL"): Verdict.REPRODUCES,
        ("CIFAR10", "NonIID_La", "AutoCFL"): Verdict.SCALED,
        ("MNIST", "IID-Im", "FedAvg"): Verdict.INCOMPARABLE,
        ("MNIST", "NonIID_La", "IFCA"): Verdict.LEFT_OUT,
    }
    assert {one.labels: one.verdict for one in table if one.verdict is not Verdict.NOT_RUN} == verdicts
    assert len([*table]) == 12
    assert cell(table, "CIFAR10", "NonIID_La", "AutoCFL").notes == ("scaled: 15 rounds instead of 100", "1 of 3 seeds")
    assert cell(table, "CIFAR10", "NonIID_La", "AutoCFL").difference == pytest.approx(-9.1)
    assert cell(table, "MNIST", "IID-Im", "FedAvg").paper_notes == ("copied from elsewhere",)
    assert cell(table, "MNIST", "IID-Im", "FedAvg").difference is None
    assert cell(table, "MNIST", "NonIID_La", "IFCA").notes == ("needs 50 % more memory",)
    assert cell(table, "CIFAR10", "IID-Im", "IFCA").notes == ("reads test data",)


def test_rows_and_columns_stand_in_the_order_of_the_study():
    spec, findings = example()
    table = result_table(spec, findings)
    assert table.rows == tuple((setting, method) for setting in AXES["setting"] for method in AXES["method"])
    assert table.columns == (("CIFAR10",), ("MNIST",))


def test_several_values_are_columns_unless_told_otherwise():
    spec, findings = example()
    values = {"last": "accuracy_mean", "rounds": "rounds_to(accuracy_mean, 0.4)"}
    spec = replace(spec, values=values, published={"MNIST/IID-Im/FedAvg/last": [90.0]}, incomparable={})
    table = result_table(spec, findings)
    assert table.columns == (("CIFAR10", "last"), ("CIFAR10", "rounds"), ("MNIST", "last"), ("MNIST", "rounds"))
    assert cell(table, "MNIST", "IID-Im", "FedAvg", value="last").verdict is Verdict.REPRODUCES
    assert cell(table, "MNIST", "IID-Im", "FedAvg", value="rounds").verdict is Verdict.UNPUBLISHED
    table = result_table(replace(spec, rows=("value", "setting"), columns=("data", "method")), findings)
    assert table.rows[0] == ("last", "IID-Im")
    assert table.columns == (*(("CIFAR10", name) for name in AXES["method"]), ("MNIST", "FedAvg"))


def test_an_axis_that_a_table_forgets_is_a_row_if_it_has_several_entries():
    spec, findings = example()
    assert result_table(replace(spec, rows=("method",)), findings).row_axes == ("setting", "method")
    one = Findings({"beta": ("0.5",), **AXES}, {}, 1)
    assert result_table(replace(spec, published={}), one).row_axes == ("setting", "method")


def test_columns_without_a_number_are_named_and_not_shown():
    left_out = {(data, "IID-Im", "IFCA"): "why" for data in AXES["data"]}
    findings = Findings(AXES, {}, 1, left_out)
    nothing = result_table(table_of(), findings)  # all is missing, and shown, but for what is left out on purpose
    assert len(nothing.rows) == 5
    assert ("IID-Im", "IFCA") not in nothing.rows
    assert (len(nothing.columns), nothing.hidden) == (2, ())
    run = {("CIFAR10", "IID-Im", "FedAvg"): seeds(0.5), ("MNIST", "NonIID_La", "FedAvg"): seeds(0.5)}
    spec = table_of(rows=("method",), columns=("data", "setting"))
    some = result_table(spec, Findings(AXES, run, 1, left_out))
    assert some.columns == (("CIFAR10", "IID-Im"), ("MNIST", "NonIID_La"))
    assert some.hidden == (("CIFAR10", "NonIID_La"), ("MNIST", "IID-Im"))
    assert len([*some]) == 12
    kept = result_table(table_of(published={"MNIST/IID-Im/IFCA": [1]}), findings)
    assert cell(kept, "MNIST", "IID-Im", "IFCA").verdict is Verdict.LEFT_OUT


def test_what_nothing_was_run_of_is_named_and_not_shown():
    """Also if the paper has it: the table is about what was run, the summary counts the rest."""
    published = {"MNIST/IID-Im/FedAvg": [95.2], "CIFAR10/NonIID_La/IFCA": [50.0]}
    findings = Findings(AXES, {("CIFAR10", "IID-Im", "FedAvg"): seeds(0.5)}, 1)
    table = result_table(table_of(published=published), findings)
    assert (table.idle, table.hidden) == (("MNIST", "NonIID_La"), ())
    assert table.rows == tuple(("IID-Im", method) for method in AXES["method"])
    assert table.columns == (("CIFAR10",),)
    assert not table.has_published
    assert summarised("x", [table]).lines() == ["2 published numbers: 2 not run.", "9 further cells were not run."]
    assert result_table(table_of(published=published), Findings(AXES, {}, 1)).idle == ()


def test_what_is_left_out_on_purpose_is_not_called_not_run():
    left_out = {("MNIST", setting, method): "why" for setting in AXES["setting"] for method in AXES["method"]}
    findings = Findings(AXES, {("CIFAR10", "IID-Im", "FedAvg"): seeds(0.5)}, 1, left_out)
    table = result_table(table_of(published={"MNIST/IID-Im/FedAvg": [95.2]}), findings)
    assert table.idle == ("NonIID_La",)
    assert table.columns == (("CIFAR10",), ("MNIST",))


def test_tables_without_a_run_are_named_by_the_summary():
    spec, findings = example()
    later = result_table(replace(spec, title="Later"), Findings(AXES, {}, 3))
    assert not later.begun
    assert summarised("x", [result_table(spec, findings), later]).lines()[-1] == "Tables without a run: Later."
    assert summarised("x", [later]).not_begun == ()


def test_a_table_is_of_what_fits():
    spec, findings = example()
    spec = replace(spec, where={"data": "cifar*", "method": "*F*"}, published={}, incomparable={})
    table = result_table(spec, findings)
    assert table.rows == tuple((setting, method) for setting in AXES["setting"] for method in AXES["method"])
    assert table.columns == (("CIFAR10",),)
    spec = replace(spec, where={"data": "MNIST", "setting": "IID-*"}, rows=("method",), columns=())
    table = result_table(spec, findings)
    assert table.rows == tuple((method,) for method in AXES["method"])
    assert {one.labels[:2] for one in table} == {("MNIST", "IID-Im")}
    assert summarised("x", [table]).lines() == ["2 further cells were not run."]


def test_only_what_fits_is_compared():
    spec, findings = example()
    assert orderings(replace(spec, where={"data": "MNIST"}), findings, ["AutoCFL"]) == []
    found = orderings(replace(spec, where={"method": "[AF]*"}), findings, ["AutoCFL", "IFCA"])
    assert [(one.place, one.method, one.baseline) for one in found] == [(("CIFAR10", "IID-Im"), "AutoCFL", "FedAvg")]


def test_steps_are_equal_to_the_fewest_of_the_methods_that_a_table_has():
    spec, findings = example()
    equal = replace(spec, values={"equal": "equal_steps(accuracy_mean)"}, published={}, reference={})
    place = ("CIFAR10", "IID-Im", "AutoCFL")
    # With 15 steps a round AutoCFL is in its second round of three where FedAvg ends, and by itself in its last.
    assert cell(result_table(equal, findings), *place).mean == pytest.approx(100 * 1.441 / 3 * 2 / 3)
    alone = replace(equal, where={"method": "AutoCFL"})
    assert cell(result_table(alone, findings), *place).mean == pytest.approx(100 * 1.441 / 3)
    few = replace(findings, runs={**findings.runs, ("CIFAR10", "IID-Im", "IFCA"): seeds(0.4, 0.4, 0.4, steps=5)})
    (all_three,) = orderings(spec, few, ["AutoCFL"], variants=["IFCA"])
    (without,) = orderings(replace(spec, where={"method": "[AF]*"}), few, ["AutoCFL"])
    # IFCA takes 15 steps in all: both are in their first round, with a third of 48 % and of 45 %.
    assert (all_three.at_equal_steps, without.at_equal_steps) == (True, False)


def test_a_mean_at_equal_steps_is_over_seeds_that_all_begun_methods_have():
    spec, findings = example()
    spec = replace(spec, values={"equal": "equal_steps(accuracy_mean)"}, published={})
    place = ("CIFAR10", "IID-Im")
    late = replace(findings, runs={**findings.runs, (*place, "FedAvg"): seeds(0.45), (*place, "IFCA"): []})
    found = cell(result_table(spec, late), *place, "AutoCFL")
    assert found.ours.values == {0: pytest.approx(0.48 * 2 / 3)}
    assert found.notes == ("not measured in 2 of 3 runs",)


def test_variants_are_neither_own_nor_others():
    spec, findings = example()
    (one,) = orderings(spec, findings, ["AutoCFL"], variants=["IFCA"])
    assert (one.method, one.baseline) == ("AutoCFL", "FedAvg")


def test_the_best_is_marked_among_ours_and_among_the_papers():
    spec, findings = example()
    table = result_table(replace(spec, published={**spec.published, "CIFAR10/IID-Im/IFCA": [49.0]}), findings)
    assert [one.labels for one in table if one.best] == [("CIFAR10", "IID-Im", "AutoCFL")]
    assert [one.labels for one in table if one.best_published] == [("CIFAR10", "IID-Im", "IFCA")]
    table = result_table(replace(spec, better="lower"), findings)
    assert [one.labels for one in table if one.best] == [("CIFAR10", "IID-Im", "IFCA")]
    assert not any(one.best or one.best_published for one in result_table(replace(spec, better=""), findings))


def test_what_looks_the_same_is_equally_good():
    runs = {("a",): seeds(0.5001), ("b",): seeds(0.4999), ("c",): seeds(0.4)}
    table = result_table(
        table_of(rows=("method",), columns=(), reference={}), Findings({"method": ("a", "b", "c")}, runs)
    )
    assert [one.best for one in table] == [True, True, False]


def test_who_never_gets_there_in_more_runs_is_not_best():
    def best(better="lower", **runs):
        spec = table_of(rows=("method",), columns=(), percent=False, better=better, reference={})
        spec = replace(spec, values={"rounds": "rounds_to(accuracy_mean, 0.5)"})
        table = result_table(spec, Findings({"method": tuple(runs)}, {(name,): some for name, some in runs.items()}, 3))
        return [one.place["method"] for one in table if one.best]

    fast_once, slow = [stored(1.5), *seeds(0.4, 0.4, 0.4)[1:]], seeds(0.75, 0.75, 0.75)  # in round 1, in round 2
    assert best(a=fast_once, b=slow) == ["b"]
    assert best(a=fast_once, b=slow, better="higher") == ["b"]
    assert best(a=fast_once, b=seeds(0.75, 0.4, 0.4)) == ["a"], "as often"
    assert best(a=fast_once, b=slow[:1]) == ["b"], "in one of one, not in one of three"
    # It is not behind for runs that were not measured.
    assert best(a=[stored(1.5), *(replace(run, rounds=[]) for run in slow[1:])], b=slow) == ["a"]


def test_tests_are_against_the_reference_and_corrected():
    spec, findings = example()
    table = result_table(spec, findings)
    reference, other, own = (cell(table, "CIFAR10", "IID-Im", name) for name in AXES["method"])
    assert reference.test is None
    assert table.comparisons == 2
    assert own.test.difference == pytest.approx(0.48 + 0.001 / 3 - (0.45 + 0.002 / 3))
    assert other.probability == pytest.approx(max(2 * min(other.test.t_test, own.test.t_test), other.test.t_test))
    assert other.clear
    assert own.clear
    # One seed, or none that both have, is no test.
    assert cell(table, "CIFAR10", "NonIID_La", "AutoCFL").test is None
    assert not any(one.test for one in result_table(replace(spec, reference={}), findings))


def test_pairs_can_be_clients():
    def clients(*accuracies):
        return [{"client": str(number), "accuracy": accuracy} for number, accuracy in enumerate(accuracies)]

    runs = {
        ("FedAvg",): [stored(0.5, clients=clients(0.4, 0.5, 0.6))],
        ("a",): [stored(0.6, clients=clients(0.52, 0.6, 0.7))],
    }
    findings = Findings({"method": ("FedAvg", "a")}, runs)
    spec = table_of(rows=("method",), columns=())
    assert cell(result_table(spec, findings), "a").test.pairs == 1
    test = cell(result_table(spec, findings, pairs="clients"), "a").test
    assert test.pairs == 3
    assert test.t_test < 0.05


@settings(max_examples=30)
@given(st.sets(st.sampled_from([(d, s, m) for d in AXES["data"] for s in AXES["setting"] for m in AXES["method"]])))
def test_whatever_is_missing_a_table_is_whole(there):
    spec, _ = example()
    table = result_table(spec, Findings(AXES, {labels: seeds(0.5, 0.6) for labels in there}, 2))
    assert {one.labels for one in table if one.verdict is not Verdict.NOT_RUN} == there
    assert len([*table]) == 12
    found = summarised("x", [table])
    assert found.published == len(spec.published)
    assert found.verdicts[Verdict.NOT_RUN] + found.unpublished_not_run == 12 - len(there)


# Claims


def test_orderings_are_those_of_paper_and_runs():
    spec, findings = example()
    found = {(one.place, one.baseline): one for one in orderings(spec, findings, ["AutoCFL"])}
    first = found[("CIFAR10", "IID-Im"), "FedAvg"]
    assert first.published
    assert first.at_equal_rounds
    # At 30 steps AutoCFL, with 15 a round, is in its second round of three: two thirds of 48 %.
    assert not first.at_equal_steps
    assert found.keys() == {(("CIFAR10", "IID-Im"), name) for name in ("FedAvg", "IFCA")}
    assert first.probabilities[0] < 0.05


def test_orderings_mind_what_is_better():
    spec, findings = example()
    assert orderings(replace(spec, better=""), findings, ["AutoCFL"]) == []
    lower = orderings(replace(spec, better="lower"), findings, ["AutoCFL"])
    assert [one.published for one in lower] == [False, False]
    assert [one.at_equal_rounds for one in lower] == [False, False]
    assert orderings(spec, findings, []) == []


def test_a_tie_is_not_ahead():
    runs = {("a",): seeds(0.5, 0.5, 0.5), ("b",): seeds(0.5, 0.5, 0.5)}
    spec = table_of(rows=("method",), columns=(), published={"a": [50.0], "b": [50.0]})
    (found,) = orderings(spec, Findings({"method": ("a", "b")}, runs), ["a"])
    assert (found.published, found.at_equal_rounds, found.at_equal_steps) == (False, False, False)


@pytest.mark.parametrize(
    ("ours", "theirs", "ahead"),
    [
        ([0.9, 0.9], [0.5, 0.5], True),
        ([0.5, 0.5], [0.9, 0.9], False),
        ([0.9, 0.9], [0.5, 0.9], True),
        ([0.9, 0.5], [0.5, 0.9], None),
        ([0.5, 0.5], [0.5, 0.5], None),
        ([0.9, 0.9], [0.5], None),
        ([0.9, 0.9, 0.9], [0.9, 0.9, None], False),  # two seeds that both have, and a tie
    ],
)
def test_who_gets_there_with_more_seeds_is_ahead_of_who_does_not(ours, theirs, ahead):
    def runs_of(accuracies):
        runs = seeds(*(accuracy or 0.0 for accuracy in accuracies))
        return [
            replace(run, rounds=run.rounds if accuracy else []) for run, accuracy in zip(runs, accuracies, strict=True)
        ]

    runs = {("a",): runs_of(ours), ("b",): runs_of(theirs)}
    rounds = {"values": {"rounds": "rounds_to(accuracy_mean, 0.9)"}, "percent": False, "better": "lower"}
    spec = table_of(rows=("method",), columns=(), published={"a": [3], "b": []}, **rounds)
    (found,) = orderings(spec, Findings({"method": ("a", "b")}, runs), ["a"])
    assert (found.published, found.at_equal_rounds) == (True, ahead)
    (turned,) = orderings(replace(spec, published={"a": [], "b": [3]}), Findings({"method": ("a", "b")}, runs), ["a"])
    assert turned.published is False


def test_two_that_are_printed_as_never_are_not_compared():
    runs = {("a",): seeds(0.5), ("b",): seeds(0.5)}
    rounds = {"values": {"rounds": "rounds_to(accuracy_mean, 0.9)"}, "percent": False, "better": "lower"}
    spec = table_of(rows=("method",), columns=(), published={"a": [], "b": []}, **rounds)
    assert orderings(spec, Findings({"method": ("a", "b")}, runs), ["a"]) == []


def test_equal_steps_in_the_table_are_no_claim_of_their_own():
    spec, findings = example()
    spec = replace(
        spec, values={"equal rounds": "accuracy_mean", "equal steps": "equal_steps(accuracy_mean)"}, published={}
    )
    table = result_table(spec, findings)
    assert cell(table, "CIFAR10", "IID-Im", "AutoCFL", value="equal steps").mean == pytest.approx(
        100 * 1.441 / 3 * 2 / 3
    )
    assert {one.value for one in orderings(spec, findings, ["AutoCFL"])} == {"equal rounds"}


def test_a_summary_counts_and_says_what_holds():
    spec, findings = example()
    found = summarised("autocfl/table1", [result_table(spec, findings)], orderings(spec, findings, ["AutoCFL"]))
    assert found.lines() == [
        "5 published numbers: 2 reproduced, 1 different, 1 not comparable, 1 beside scaled runs.",
        "Reproduced is within 2 standard errors of the difference of means; within 2 standard deviations of it are 2.",
        "6 further cells were not run.",
    ]
    assert found.claims == [
        Claim("Accuracy, %", "accuracy", "AutoCFL", Tally(2, 2), Tally(2, 2, 2, 0), Tally(0, 2, 0, 2)),
    ]
    assert found.reversals() == ["CIFAR10/IID-Im/accuracy: AutoCFL is not ahead of FedAvg, IFCA at equal steps"]


def test_tallies_in_words():
    assert str(Tally(0, 0)) == "–"
    assert str(Tally(1, 3)) == "1 of 3"
    assert str(Tally(2, 3, 1, 0)) == "2 of 3 (clearly 1, clearly behind 0)"


def test_a_summary_of_nothing_says_nothing():
    empty = summarised("x", [])
    assert empty.lines() == empty.claims == empty.reversals() == []


# A study from its file to its tables

STUDY = """
title = "Two splits"
paper = "flis"
seeds = 2
[options]
data = "digits"
net = "logistic"
limit = 200
clients = 3
rounds = 2
[axes.split.IID]
split = "iid"
[axes.split.skewed]
split = "dirichlet"
[axes.method.FedAvg]
method = "fedavg"
[axes.method."FLIS (DC)"]
method = "flis-dc"
[axes.method.Local]
method = "local"
[[exceptions]]
where = {split = "IID", method = "Local"}
skip = "nothing to learn"
[[tables]]
title = "Accuracy, %"
rows = ["split", "method"]
percent = true
better = "higher"
reference = {method = "FedAvg"}
values = {last = "accuracy_mean", "equal steps" = "equal_steps(accuracy_mean)"}
[tables.published]
"IID/FedAvg/last" = [0.0]
"IID/FLIS (DC)/last" = [1.0]
"""


def test_a_study_ends_in_its_tables(tmp_path):
    (tmp_path / "own.toml").write_text(STUDY)
    study = Study.read(tmp_path / "own.toml")
    campaign = Campaign(tmp_path)
    assert not campaign.carry_out(campaign.tasks(study, only="split=IID")).failed
    results = campaign.results(study)
    (table,) = study_tables(results)
    assert table.rows == (("IID", "FedAvg"), ("IID", "FLIS (DC)"))
    assert table.idle == ("skewed",)
    assert table.columns == (("last",), ("equal steps",))
    assert {one.verdict for one in table if one.place["split"] == "skewed"} == {Verdict.NOT_RUN}
    found = cell(table, "IID", "FedAvg", value="last")
    assert found.mean == pytest.approx(50 * sum(run.summary["accuracy_mean"] for run in results.runs["IID", "FedAvg"]))
    assert [path.parent for path in found.ours.runs] == [tmp_path / "runs"] * 2
    assert cell(table, "IID", "FedAvg", value="equal steps").ours.count == 2
    assert own_methods(study) == ("FLIS (DC)",)
    assert own_methods(replace(study, variants=("FLIS (DC)",))) == ()
    assert own_methods(replace(study, own=("Local",))) == ("Local",)
    assert study_summary(replace(results, study=replace(study, variants=("FedAvg",)))).orderings == ()
    summary = study_summary(results)
    assert (summary.name, summary.published) == ("own", 2)
    assert [(one.place, one.baseline) for one in summary.orderings] == [(("IID",), "FedAvg")]


def test_tables_without_a_cell_that_was_asked_for_are_left_out(tmp_path):
    even = STUDY.replace("values =", 'where = {split = "IID"}\nvalues =')
    (tmp_path / "own.toml").write_text(even)
    study, campaign = Study.read(tmp_path / "own.toml"), Campaign(tmp_path)
    assert len(study_tables(campaign.results(study, only="split=IID"))) == 1
    results = campaign.results(study, only="split=skewed")
    assert study_tables(results) == []
    assert study_summary(results).lines() == []
