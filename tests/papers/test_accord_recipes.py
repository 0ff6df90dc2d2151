"""The recipes that compare Accord: in the papers' own settings, beside the rivals that use a part of the same idea."""

import pytest

from coterie.papers.recipes import names, recipe

EXTENDED = {"accord/flis-table1": "flis/table1", "accord/flis-table2": "flis/table2"}
"""The recipes, and those of papers whose settings they have."""

RIVALS = {"fedlc", "fedrod", "fedala", "feddbe", "fedpac", "fedavg-ft", "local"}
"""What must be in every table: what uses a part of the same idea, and to train alone."""


def test_every_recipe_is_known_here():
    assert {*EXTENDED} == {name for name in names() if name.startswith("accord/")}


@pytest.mark.parametrize(("ours", "paper"), EXTENDED.items())
def test_methods_of_the_paper_run_as_in_its_own_recipe_but_for_what_is_scored(ours, paper):
    theirs = {cell.title: cell for cell in recipe(paper).cells()}
    shared = [cell for cell in recipe(ours).cells() if cell.title in theirs]
    assert shared
    for cell in shared:
        one, other = (each.task(1).settings.table() for each in (cell, theirs[cell.title]))
        assert one.pop("scoring") != other.pop("scoring")
        assert one == other, cell.title


@pytest.mark.parametrize(("ours", "paper"), EXTENDED.items())
def test_all_rivals_train_in_the_same_worlds(ours, paper):
    study = recipe(ours)
    for cell in study.cells("method=accord,method=FedRoD,method=Accord on SCAFFOLD,method=IFCA, prior-free"):
        there = {label: cell.place[label] for label in study.axes if label != "method"}
        only = ",".join(f"{axis}={label}" for axis, label in there.items())
        world = study.cells(f"{only},method=FedAvg")[0].task(0).settings
        own = cell.task(0).settings
        assert own.world == world.world
        assert own.method.local.steps_for(100) == world.method.local.steps_for(100)
        assert (own.method.rounds, own.method.participation) == (world.method.rounds, world.method.participation)


@pytest.mark.parametrize("name", EXTENDED)
def test_the_comparison_is_with_those_that_use_the_same_idea_in_part(name):
    study = recipe(name)
    assert set(study.methods) >= RIVALS
    assert study.own == ("Accord",)
    variants = {label for label, told in study.axes["method"].items() if told["method"] == "accord"} - {"Accord"}
    assert set(study.variants) == variants, "parts left out are no rivals"
    assert study.seeds >= 3
    assert study.about
    assert study.cost


@pytest.mark.parametrize("name", EXTENDED)
def test_tables_say_how_the_worst_fare_and_who_is_worse_off_than_alone(name):
    shown = [text for table in recipe(name).tables for text in table.values.values()]
    alone = "SOLO"
    assert recipe(name).axes["method"][alone]["method"] == "local"
    asked = ("accuracy_mean", "equal_steps(accuracy_mean)", "accuracy_worst_tenth", "megabytes_each(bytes)")
    assert {*asked, f"worse_off(accuracy, {alone})", f"clearly_worse_off(accuracy, {alone})"} <= {*shown}
