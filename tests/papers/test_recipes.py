"""All recipes: that the folders of their runs are found again."""

import tomllib
from pathlib import Path

import pytest

from coterie.papers.recipes import names, recipe
from coterie.studies.campaign import Campaign

PINNED = tomllib.loads((Path(__file__).parent / "names_of_runs.toml").read_text())


def test_some_runs_of_every_recipe_are_known_by_name():
    assert {*PINNED} == {*names()}


@pytest.mark.parametrize("name", PINNED)
def test_runs_of_recipes_are_called_what_they_always_were(name):
    tasks = Campaign(Path()).tasks(recipe(name))
    assert set(PINNED[name]) <= {task.name for task in tasks}
