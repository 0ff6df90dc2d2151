"""Metrics, also users' own, reach tables, comparisons, pages and studies: each in its unit, and better its own way."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

import coterie
from coterie.core.errors import SettingsError
from coterie.report.comparison import write_comparison
from coterie.report.runs import write_report
from coterie.report.score import Score, is_share, word
from coterie.report.tables import best_cells, compared, comparison_table, figure_text, run_table
from coterie.runs.comparison import compare
from coterie.runs.folder import StoredRun
from coterie.runs.settings import Settings
from coterie.server import metrics as known
from coterie.server.metrics import metric_in, metrics
from coterie.studies.study import Study


@pytest.fixture
def table(tmp_path):
    """Amounts in a table, of three hospitals."""
    rng = np.random.default_rng(0)
    with (tmp_path / "stays.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "hospital", "stay"])
        for row in range(120):
            age = rng.normal(50, 10)
            writer.writerow([f"{age:.1f}", "abc"[row % 3], f"{age / 7 + rng.normal():.2f}"])
    return str(tmp_path / "stays.csv")


@pytest.fixture
def own_metric():
    """A metric of a user's module, of which less is better, and that is no share."""

    @coterie.metric("worst_error", higher=False, tasks=["regression"])
    def worst(y, predicted):
        return abs(y - predicted).max()

    yield
    del metrics["worst_error"]
    known._recorded.clear()


def settings(data, *methods, **more):
    given = {"data": data, "target": "stay", "client": "hospital", "net": "logistic", "rounds": 2, "rate": 0.01} | more
    return [Settings.of(given, method)[0] for method in methods]


def printed(table, width=120):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def row(text, label):
    (line,) = (line for line in text.splitlines() if line.strip().startswith(label))
    return line


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("accuracy", "accuracy"), ("balanced_accuracy_mean", "balanced_accuracy"), ("best_round.f1_mean", "f1")),
        *(("global_rmse_max", "rmse"), ("best(smoothed(auc_mean, 0.9))", "auc"), ("loss_mean", ""), ("ari", "")),
        *(("log_loss_mean", "log_loss"), ("pooled_r2", "r2"), ("f1x_mean", ""), ("mean_f1", "")),
    ],
)
def test_a_key_tells_its_metric(key, name):
    assert metric_in(key) == name


def test_metrics_have_their_own_words_units_and_sides():
    assert (word("rmse_mean"), word("accuracy_mean"), word("global_f1_mean")) == (
        *("mean RMSE of clients", "mean accuracy of clients", "F1 on the global test set"),
    )
    assert [is_share(key) for key in ("f1_mean", "rmse_mean", "log_loss_std", "rounds_to(f1_mean, 0.8)")] == [
        *(True, False, False, False),
    ]
    assert [Score(key).sign for key in ("auc", "rmse", "log_loss", "loss", "r2")] == [1, -1, -1, -1, 1]
    assert [Score("rmse").text(value) for value in (0.12345, 12.345, 123.45, 12345.6)] == [
        *("0.123", "12.35", "123.5", "12346"),
    ]


@pytest.mark.usefixtures("own_metric")
def test_a_run_of_amounts_shows_every_metric_in_its_own_unit(table):
    (one,) = settings(table, "fedavg", metrics=("worst_error", "r2"))
    result = coterie.FedAvg(rounds=2, rate=0.01).fit(one.world.federation(), scoring=one.scoring)
    shown = printed(run_table(result.summary))
    assert "%" not in shown
    for label, key in (("worst error", "worst_error"), ("R²", "r2"), ("RMSE", "rmse")):
        mean = figure_text(key, result.summary[f"{key}_mean"], result.summary[f"{key}_std"])
        assert mean in row(shown, f"{label}  ")
        assert figure_text(key, result.summary[f"pooled_{key}"]) in row(shown, f"{label} of all samples together")
    # Less is better: the worst client has the largest error.
    assert figure_text("worst_error", result.summary["worst_error_max"]) in row(shown, "worst client")
    assert figure_text("worst_error", result.summary["worst_error_min"]) in row(shown, "best client")


@pytest.mark.usefixtures("own_metric")
def test_a_comparison_is_by_the_first_metric_and_the_lowest_error_is_best(table, tmp_path):
    entries = compare(settings(table, "local", "fedavg", metrics=("worst_error", "r2")), 3, tmp_path / "c")
    rows = write_comparison(tmp_path / "c" / "index.html", "stays", entries)
    means = [row.mean("worst_error_mean") for row in rows]
    assert means == sorted(means)
    header = printed(comparison_table(rows, "stays")).splitlines()[2].split("  ")
    assert [name.strip() for name in header if name.strip()][:5] == [
        *("method", "worst error", "worst tenth", "R²", "RMSE"),
    ]
    text = (tmp_path / "c" / "tables" / "comparison.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        *("**Worst error: stays**", "**R²: stays**", "**RMSE: stays**"),
    ]
    best = min(rows, key=lambda row: row.mean("worst_error_mean"))
    assert f"**{best.mean('worst_error_mean'):.3f}" in text
    page = (tmp_path / "c" / "index.html").read_text()
    for words in ("Worst error of every client", "RMSE: every client", "Gain over training alone", "lower is better"):
        assert words in page
    # Who gains is who has the lower error.
    runs = {run.settings["method"]["name"]: run for run in stored(tmp_path / "c", seed=0)}
    errors = {name: [client["worst_error"] for client in run.clients] for name, run in runs.items()}
    assert len(errors["local"]) == 3


def stored(folder, seed):
    return [StoredRun.read(path) for path in sorted(folder.glob(f"*-seed{seed}"))]


@pytest.mark.usefixtures("own_metric")
def test_runs_are_reported_where_the_users_module_is_not(table, tmp_path):
    compare(settings(table, "local", "fedavg", metrics=("worst_error",)), 1, tmp_path / "c")
    del metrics["worst_error"]
    try:
        assert metric_in("worst_error_mean") == ""
        runs = stored(tmp_path / "c", 0)
        assert not is_share("worst_error_mean")
        assert Score("worst_error").sign == -1
        write_report(tmp_path / "page.html", "stays", runs)
        assert "Worst error of every client" in (tmp_path / "page.html").read_text()
    finally:
        metrics["worst_error"] = None


def test_a_better_client_is_one_with_less_error():
    def summary(method, value):
        more = {"rmse_mean": value, "rmse_worst_tenth": value, "metrics": {"rmse": {"higher": False, "share": False}}}
        return {"method": method, "seed": 0, "bytes_up": 0, "bytes_down": 0, "bytes_peer": 0, **more}

    rows = compared([summary("worse", 2.0), summary("better", 1.0)])
    assert [row.name for row in rows] == ["better", "worse"]
    assert [[*cells[:3]] for cells in best_cells(rows)] == [[False, True, True], [False, False, False]]


def test_no_room_drops_other_metrics_and_never_the_first():
    names = ["f1", "auc", "accuracy", "log_loss"]
    values = {f"{name}_mean": 0.5 for name in names} | {"f1_worst_tenth": 0.4}
    told = {name: metrics[name].facts for name in names}
    run = {"method": "m", "seed": 0, "bytes_up": 0, "bytes_down": 0, "bytes_peer": 0, "metrics": told}
    rows = compared([run | values])
    text = printed(comparison_table(rows, "", 26), 60)
    shown, left_out = text.split("no room for")
    assert "F1" in shown
    assert all(name in " ".join(left_out.split()) for name in ("AUC", "log loss", "accuracy"))


STUDY = """
title = "t"
[options]
data = "digits"
rounds = 1
[axes.method."FedAvg"]
method = "fedavg"
[[tables]]
title = "t"
{}
[tables.values]
"mean" = "{}"
"""


@pytest.mark.parametrize(
    ("told", "value", "message"),
    [
        ('better = "higher"', "rmse_mean", "better=higher: of rmse, lower is better"),
        ('better = "lower"', "best_round.f1_worst_tenth", "better=lower: of f1, higher is better"),
        ("percent = true", "log_loss_mean", "percent=true: log_loss is no share"),
    ],
)
def test_a_study_cannot_turn_a_metric_round(told, value, message, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY.format(told, value))
    with pytest.raises(SettingsError, match=message):
        Study.read(tmp_path / "mine.toml").check()


@pytest.mark.parametrize(
    ("told", "value"),
    [('better = "lower"', "rounds_to(accuracy_mean, 0.5)"), ('better = "lower"', "accuracy_std"), ("", "rmse_mean")],
)
def test_a_study_says_what_is_better_of_what_is_no_plain_metric(told, value, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY.format(told, value))
    Study.read(tmp_path / "mine.toml").check()
