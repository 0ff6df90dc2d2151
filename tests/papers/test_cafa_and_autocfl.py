"""The recipes of CAFA and AutoCFL: that they can be run, what they share, and that numbers were copied rightly."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coterie.papers.recipes import names, recipe
from coterie.report.figures import kinds
from coterie.runs.folder import StoredRun
from coterie.runs.identity import world_of
from coterie.studies.campaign import Campaign
from coterie.studies.statistics import Smoothed, statistic

OURS = [name for name in names() if name.startswith(("cafa/", "autocfl/"))]
"""What this file is about."""

TINY = {
    "data": "digits",
    "limit": 400,
    "net": "logistic",
    "rounds": 3,
    "batch": 16,
    "samples": 40,
    "precision": "float32",
}
"""Options in place of a recipe's own, where it has them."""


@cache
def read(name):
    """A recipe, read once."""
    return recipe(name)


def runs_of(name, methods=None):
    """The names of the runs of a recipe with one seed, of all methods or of those with these labels."""
    study = read(name)
    cells = [cell for cell in study.cells() if methods is None or cell.place["method"] in methods]
    return {cell.task(0, others=study.methods).name for cell in cells}


def published(name, title):
    """The published numbers of the table whose title begins so, by place."""
    (table,) = (table for table in read(name).tables if table.title.startswith(title) and table.published)
    return {tuple(place.split("/")): numbers for place, numbers in table.published.items()}


def test_every_experiment_has_a_recipe():
    assert {name for name in OURS if name.startswith("cafa/")} == {
        *(f"cafa/fig{number}" for number in (2, 4, 5, 6)),
        *(f"cafa/table{place}" for place in ("2", "3", "4", "4-scaled", "5")),
    }
    tables, figures = range(1, 6), (2, 3, 4, 5, 7, 8, 9, 10)
    assert {name for name in OURS if name.startswith("autocfl/")} == {
        *(f"autocfl/table{number}" for number in tables),
        *(f"autocfl/fig{number}" for number in figures),
    }


@pytest.mark.parametrize("name", OURS)
def test_a_recipe_says_what_it_is_and_where_choices_come_from(name):
    study = read(name)
    assert study.paper.lower() == name.partition("/")[0]
    assert all((study.title, study.place, study.about, study.cost))
    assert study.tables or study.figures
    given = {option for cell in study.cells() for option in cell.options}
    open_choices = given & {"rate", "batch", "epochs", "rounds", "participation", "samples", "augment", "precision"}
    assert open_choices <= study.sources.keys()


def groupless(run):
    """The statistics about groups that say nothing of a run: it never had several, or there were none to find."""
    if "groups" not in run.summary:
        return set()
    never_parted = run.summary["groups"] == len(run.groups) == 1
    none_to_find = len({client["true_group"] for client in run.clients}) == 1
    return ({"stable_since"} if never_parted else set()) | ({"placed_right"} if none_to_find else set())


@pytest.mark.parametrize("name", OURS)
def test_every_method_of_a_recipe_runs_and_gives_what_its_tables_and_figures_show(name, tmp_path):
    study = read(name)
    campaign = Campaign(tmp_path, {"workers": 0})
    first = {cell.place["method"]: cell for cell in reversed(study.cells())}
    for label, cell in first.items():
        tiny = replace(cell, options={key: TINY.get(key, value) for key, value in cell.options.items()})
        task = tiny.task(0, {"workers": 0}, study.methods)
        outcome = campaign.carry_out([task])
        assert not outcome.failed, label
        run = StoredRun.read(campaign.folder(task))
        for table in study.tables:
            for text in table.values.values():
                if statistic(text).name in ("key", "few_samples_mean"):
                    assert (statistic(text)(run) is None) == (text in groupless(run)), (label, text)
        for figure in study.figures:
            kind = kinds.make(figure.kind, **figure.options)
            if "measure" in cell.options:
                kind.draw({label: [run]}, figure.title)


# What recipes share


@pytest.mark.parametrize(
    ("part", "methods", "whole"),
    [
        ("autocfl/table3", None, "autocfl/table1"),
        ("autocfl/fig7", None, "autocfl/table1"),
        ("autocfl/table2", ("FedAvg", "AutoCFL"), "autocfl/table1"),
        ("autocfl/fig9", ("AutoCFL", "FL+HC"), "autocfl/table1"),
        ("autocfl/table4", None, "autocfl/fig8"),
        ("autocfl/fig4", None, "autocfl/fig2"),
        ("cafa/table5", None, "cafa/table4"),
        ("cafa/fig6", None, "cafa/table4"),
        ("cafa/fig2", None, "cafa/table3"),
        ("cafa/fig5", None, "cafa/table3"),
    ],
)
def test_runs_are_shared(part, methods, whole):
    needed = runs_of(part, methods)
    assert needed
    assert needed <= runs_of(whole)


def test_other_runs_are_not_shared():
    assert not runs_of("autocfl/fig9", ("AutoCFL without adjustment", "FL+HC with adjustment")) & runs_of(
        "autocfl/table1"
    )
    assert not runs_of("autocfl/fig2") & runs_of("autocfl/fig3")
    assert not runs_of("cafa/table2") & runs_of("cafa/table3")


def test_ifca_is_told_the_true_number_of_groups():
    study = read("autocfl/table1")
    for cell in study.cells("method=ifca"):
        given = {"data": "digits", "net": "logistic", "samples": 40}
        settings = cell.task(0, given, study.methods).settings
        assert settings.method.clusters == len(np.unique(settings.world.population.groups)), cell.title


def test_all_methods_of_cafa_train_on_the_same_samples():
    study = read("cafa/table4")
    worlds = {
        population: {
            world_of(cell.task(0, others=study.methods).settings.table())
            for cell in study.cells(f"population={population}")
            if not cell.skip
        }
        for population in study.axes["population"]
    }
    assert {len(some) for some in worlds.values()} == {1}
    assert len(set().union(*worlds.values())) == len(worlds) == 6


def test_all_clients_of_cafas_baselines_count_the_same():
    for cell in read("cafa/table4").cells("method=FedAvg,method=FedProx"):
        assert cell.task(0).settings.method.weighting == "uniform"


# Labels alone


def test_the_largest_cluster_is_that_of_iid_clients_as_published(tmp_path):
    campaign = Campaign(tmp_path)
    for name in ("cafa/table2", "cafa/table3"):
        study = read(name)
        outcome = campaign.carry_out(campaign.tasks(study, seeds=1))
        assert (outcome.done, outcome.failed) == (6, {})
        results = campaign.results(study, seeds=1)
        assert not results.missing
        for (case, method), runs in results.runs.items():
            summary = runs[0].summary
            printed = {value: study.tables[0].published[f"{case}/{method}/{value}"][0] for value in ("Acc", "Recall")}
            # The deviation of accuracy over seeds is .03 at most, and a client is 1/20 of 20.
            assert summary["accuracy"] == pytest.approx(printed["Acc"], abs=0.1), (name, case, method)
            assert summary["recall"] == printed["Recall"] == 1


# Whether published numbers were copied rightly: what the papers say of them must hold


@pytest.mark.parametrize("name", ["cafa/table2", "cafa/table3"])
def test_f1_is_that_of_precision_and_recall(name):
    numbers = published(name, "The largest cluster")
    places = {place[:2] for place in numbers}
    assert len(places) == 6
    for place in places:
        precision, recall, f1 = (numbers[*place, value][0] for value in ("Precision", "Recall", "F1"))
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=0.01)
    average = np.mean([numbers[*place, "Acc"][0] for place in places])
    assert f"{round(average, 2)} accuracy" in read(name).about


def test_cafa_leads_by_as_much_as_the_paper_says():
    windows = {place[1:]: numbers for place, numbers in published("cafa/table4", "Mean accuracy on").items()}
    assert len(windows) == 15
    for window in {value for _, value in windows}:
        assert max(("FedAvg", "FedProx", "CAFA"), key=lambda method: windows[method, window]) == "CAFA"
    best = {method: numbers[0] for (_, method, _), numbers in published("cafa/table5", "Accuracy").items()}
    assert best["CAFA"] - best["FedAvg"] == pytest.approx(1.35)
    assert best["CAFA"] - best["FedProx"] == pytest.approx(3.03)
    assert all(best[method] >= numbers[0] for (method, _), numbers in windows.items())


def test_windows_are_the_paper_s_rounds_counted_from_one():
    for table, smoothed in zip(read("cafa/table4").tables, (True, False), strict=True):
        for label, text in table.values.items():
            first, last = map(int, label.split("-"))
            course, *window = statistic(text).arguments
            assert course == (Smoothed("global_accuracy_mean", 0.9) if smoothed else "global_accuracy_mean")
            assert window == [first + 1, last + 1]


def test_autocfl_is_best_in_15_of_18_settings():
    numbers = published("autocfl/table1", "Accuracy, %")
    assert len(numbers) == 90
    assert all(len(both) == 2 for both in numbers.values())
    best = {}
    for (data, setting, method), (mean, _) in numbers.items():
        best[data, setting] = max(best.get((data, setting), (0, "")), (mean, method))
    assert sum(method == "AutoCFL" for _, method in best.values()) == 15


def test_autocfl_needs_fewest_rounds_and_ifca_knows_that_iid_is_one_cluster():
    rounds = published("autocfl/table3", "The round")
    assert len(rounds) == 54
    assert {place[2] for place in rounds} == {"IFCA", "MTCFL", "AutoCFL"}
    for data, setting in {place[:2] for place in rounds}:
        assert rounds[data, setting, "AutoCFL"] == min(
            rounds[data, setting, one] for one in ("AutoCFL", "IFCA", "MTCFL")
        )
    clusters, placed = (published("autocfl/table3", title) for title in ("Number of clusters", "Clients placed"))
    assert len(clusters) + len(placed) == 72
    assert {place[1].startswith("IID") for place in clusters} == {True}
    assert all(clusters[place] == [1] for place in clusters if place[2] in ("IFCA", "AutoCFL"))
    assert all(0 < number <= 20 for (number,) in placed.values())


def test_tables_3_and_5_of_autocfl_disagree_only_where_it_is_said():
    (table,) = (table for table in read("autocfl/table5").tables if table.title.startswith("Clients placed"))
    third = published("autocfl/table3", "Clients placed")
    for (data, setting, method), number in published("autocfl/table5", "Clients placed").items():
        if method == "weighted":
            said = f"{data}/{setting}/weighted" in table.incomparable
            assert (third[data, setting, "AutoCFL"] != number) == said
    assert len(published("autocfl/table5", "Number of clusters")) == 12


def test_small_clients_of_autocfl_gain_most():
    accuracy = published("autocfl/table2", "Accuracy")
    few, every = (
        [accuracy[method, value][0] for method in ("FedAvg", "Local", "AutoCFL")]
        for value in ("clients with few samples", "all clients")
    )
    assert few == sorted(few)
    assert every == sorted(every)
    assert all(one <= other for one, other in zip(few, every, strict=True))
