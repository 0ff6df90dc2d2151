"""Tables: figures in the units that read best, the best first."""

import io

import pytest
from rich.console import Console

from coterie.report.tables import (
    best_cells,
    compared,
    comparison_cells,
    comparison_table,
    megabytes,
    percent,
    run_table,
    worlds_of,
)


def summary(method="fedavg", seed=0, accuracy=0.5, **more):
    """A summary as runs write it, with what a table reads."""
    figures = {
        "accuracy_mean": accuracy,
        "accuracy_std": 0.1,
        "accuracy_worst_tenth": 0.25,
        "accuracy_min": 0.2,
        "accuracy_max": 0.9,
        "validation_accuracy": 0.4,
        "groups": 1,
        "seconds": 12.34,
    }
    traffic = {"bytes_up": 500, "bytes_down": 1500, "bytes_peer": 0}
    world = {"data": "digits", "split": "iid", "net": "mlp", "clients": 4, "parameters": 1234}
    best = {**figures, "round": 7, "accuracy_mean": 0.6}
    return {"method": method, "seed": seed, **world, **figures, **traffic, "best_round": best, **more}


def printed(table, width=80):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "12.3"), (0.0, "0.0"), (1.0, "100.0"), (None, "–"), (float("nan"), "–")]
)
def test_shares_are_percentages(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (949, "949 B"),
        (999, "1.0 kB"),
        (1_500, "1.5 kB"),
        (999_999, "1.0 MB"),
        (2_340_000, "2.3 MB"),
        (7.8e9, "7.8 GB"),
        (4.4e12, "4.4 TB"),
    ],
)
def test_bytes_have_the_unit_that_reads_best(amount, text):
    assert megabytes(amount) == text


# One run


def test_a_run_has_its_last_round_beside_its_best():
    lines = {line[:23].strip(): line[23:].split() for line in printed(run_table(summary())).splitlines()}
    assert lines["accuracy"] == ["50.0", "±", "10.0", "60.0", "±", "10.0"]
    assert lines["worst tenth of clients"] == ["25.0", "25.0"]
    assert lines["sent to / by clients"] == ["1.5", "kB", "/", "500", "B"]
    assert lines["time"] == ["12.3", "s"]
    assert "best on validation (round 7)" in printed(run_table(summary()))
    assert "fedavg · digits · iid · 4 clients · mlp · 1,234 parameters" in printed(run_table(summary()))
    words = printed(run_table(summary(frozen_parameters=5678))).split()
    assert "1,234 parameters and 5,678 frozen" in " ".join(words)


def test_a_run_has_no_rows_for_what_was_not_measured():
    said = printed(run_table(summary()))
    assert "global test set" not in said
    assert "adaptation" not in said
    assert "between clients" not in said
    assert "truth" not in said


def test_a_run_has_rows_for_what_was_measured():
    more = {"global_accuracy_mean": 0.3, "accuracy_adapted_mean": 0.7, "accuracy_last_mean": 0.8}
    run = summary(**more, bytes_peer=10, ari=0.5, placed_right=3)
    run["best_round"] |= more
    said = printed(run_table(run))
    for text in ("global test set", "after local adaptation", "last trained model", "between clients"):
        assert text in said
    assert "ARI 0.50" in said
    assert "3 of 4" in said


def test_a_run_without_test_and_validation_data_has_a_table():
    nothing = dict.fromkeys(("accuracy_mean", "accuracy_std", "accuracy_worst_tenth", "accuracy_min", "accuracy_max"))
    said = printed(run_table(summary(**nothing, validation_accuracy=None, best_round=None, groups=None)))
    assert "best on validation" in said
    assert "accuracy" not in said


def test_a_table_of_a_run_fits_eighty_columns_whatever_names_are_in_it():
    said = printed(
        run_table(summary(data="[/fashion]", split="autocfl-motivation", bytes_up=10**12, bytes_down=10**12))
    )
    assert max(map(len, said.splitlines())) <= 80
    assert "[/fashion]" in said


# Several runs


def test_methods_are_sorted_by_accuracy():
    rows = compared([summary("b", accuracy=0.5), summary("c", accuracy=None), summary("a", accuracy=0.9)])
    assert [row.name for row in rows] == ["a", "b", "c"]


def test_seeds_have_a_mean_and_the_deviation_of_a_sample():
    (row,) = compared([summary(seed=seed, accuracy=value) for seed, value in enumerate((0.1, 0.2, 0.6))])
    assert row.seeds == 3
    mean, deviation = row.figures["accuracy_mean"]
    assert mean == pytest.approx(0.3)
    # Squared distances to the mean: 0.04 + 0.01 + 0.09 = 0.14, over three less one.
    assert deviation == pytest.approx((0.14 / 2) ** 0.5)


def test_the_same_seed_twice_counts_once():
    (row,) = compared([summary(seed=1), summary(seed=1)])
    assert row.seeds == 1
    assert comparison_cells([row])[1][0][1] == "50.0"


def test_of_the_same_seed_twice_the_first_counts_and_others_are_told_of():
    (row,) = compared([summary(accuracy=0.5), summary(accuracy=0.6)])
    assert row.mean("accuracy_mean") == 0.5
    assert "not shown: 1 run of fedavg with a seed that is here already, and with other results" in " ".join(
        printed(comparison_table([row], "title")).split()
    )
    best = summary()["best_round"]
    (row,) = compared([summary(), summary(seconds=99.0, best_round={**best, "seconds": 3.0})])
    assert "not shown" not in printed(comparison_table([row], "title"))


def test_a_seed_without_a_figure_does_not_count_for_it():
    (row,) = compared([summary(seed=0, accuracy=0.4), summary(seed=1, accuracy=None)])
    assert row.mean("accuracy_mean") == 0.4


def test_runs_can_be_taken_together_by_other_names():
    rows = compared([summary(seed=0, accuracy=0.4), summary(seed=0, accuracy=0.8)], ["mild", "strong"])
    assert [(row.name, row.seeds) for row in rows] == [("strong", 1), ("mild", 1)]


def test_columns_that_nobody_has_are_left_out():
    header, cells = comparison_cells(compared([summary("a"), summary("b", ari=0.25)]))
    assert header == ["method", "accuracy %", "worst tenth %", "groups", "ARI", "traffic", "seconds"]
    assert cells[0] == ["a", "50.0", "25.0", "1", "–", "2.0 kB", "12.3"]
    assert cells[1][4] == "0.25"


def test_deviations_are_shown_where_there_are_seeds():
    rows = compared([summary(seed=seed, accuracy=value, groups=seed) for seed, value in enumerate((0.4, 0.6))])
    assert comparison_cells(rows)[1] == [["fedavg", "50.0 ± 14.1", "25.0 ± 0.0", "0.5", "2.0 kB", "12.3"]]


def test_the_best_of_each_accuracy_is_marked():
    rows = compared([summary("a", accuracy=0.9), summary("b", accuracy=0.8, ari=0.1, seconds=1.0)])
    header, _ = comparison_cells(rows)
    marks = best_cells(rows)
    marked = [[name for name, mark in zip(header, line, strict=True) if mark] for line in marks]
    assert marked == [["accuracy %", "worst tenth %"], ["worst tenth %", "ARI"]]


def test_the_best_is_that_of_a_world():
    told = [("a", "digits", 0.9), ("b", "digits", 0.8), ("a", "mnist", 0.5), ("b", "mnist", 0.6), ("a", "emnist", 0.95)]
    summaries = [summary(method, accuracy=value, data=data) for method, data, value in told]
    names = [f"{method}, {data}" for method, data, _ in told]
    rows = compared(summaries, names)
    marked = {row.name for row, marks in zip(rows, best_cells(rows), strict=True) if marks[1]}
    assert marked == {"a, digits", "b, mnist"}  # one that is alone is the best of nothing
    rows = compared(summaries[:2], names[:2], worlds=[0.1, 0.5])
    assert not any(mark for marks in best_cells(rows) for mark in marks)


def test_worlds_are_told_apart_by_data_and_split_alone():
    one = {"data": {"name": "digits", "data_dir": "x"}, "split": {"name": "iid"}, "method": {"name": "a"}, "seed": 1}
    same = {**one, "data": {"name": "digits", "data_dir": "y"}, "method": {"name": "b"}, "seed": 2, "net": "mlp"}
    other = {**one, "split": {"name": "dirichlet"}}
    assert worlds_of([one, other, same]) == [0, 1, 0]


MANY = compared(
    [
        summary(
            "clustered-sampling", seed, 0.4 + seed / 2, ari=0.9, accuracy_adapted_mean=0.5, global_accuracy_mean=0.1
        )
        for seed in range(2)
    ]
)


def test_a_wide_terminal_has_all_columns():
    said = printed(comparison_table(MANY, "title", width=140), width=140)
    assert "seconds" in said
    assert "no room" not in said


def test_a_narrow_terminal_lacks_columns_rather_than_parts_of_figures():
    said = printed(comparison_table(MANY, "title", width=80))
    for text in ("clustered-sampling", "65.0 ± 35.4", "0.90 ± 0.00", "traffic", "2.0 kB"):
        assert text in said
    assert max(map(len, said.splitlines())) <= 80
    assert "no room for: seconds, groups, adapted %" in said


def test_headers_are_broken_before_columns_are_left_out():
    rows = compared([summary(seed=seed, global_accuracy_mean=0.1) for seed in range(2)])
    said = printed(comparison_table(rows, "title", width=72))
    assert "no room" not in said
    assert "worst" in said
    assert "worst tenth" not in said
    assert "seconds" in said


def test_a_title_is_taken_as_it_is():
    assert "[/x] [bold]y" in printed(comparison_table(MANY, "[/x] [bold]y"), width=140)
