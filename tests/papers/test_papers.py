"""What a paper's own is found by those who ask for it, and costs nothing to those who do not."""

import subprocess
import sys
from importlib import resources

import pytest

from coterie.papers import recipes
from coterie.report.figures import kinds
from coterie.studies.measures import measures

STUDY = """
title = "Clusters by labels"

[options]
data = "balanced-labels"
split = "cafa-mixed"
clients = 4
validation = 0

[axes.method.CBCC]
measure = "label-clusters"

[[figures]]
title = "Trust"
kind = "trust"
"""


def python(code, *arguments):
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_names_the_module_of_what_only_papers_have(name):
    study = recipes.recipe(name)
    used = [kinds[figure.kind] for figure in study.figures]
    used += [measures[cell.options["measure"]] for cell in study.cells() if "measure" in cell.options]
    modules = {one.__module__.rpartition(".")[0] for one in used if one.__module__.startswith("coterie.papers.")}
    assert {*study.modules} == modules


def test_a_recipe_is_a_study_like_any_other_and_leaves_the_way_to_modules_as_it_is():
    code = (
        "import sys; from pathlib import Path; from coterie.studies.study import Study\n"
        "before = list(sys.path)\n"
        "study = Study.read(Path(sys.argv[1]))\n"
        "print(len(study.cells()), sys.path == before)"
    )
    assert python(code, resources.files("coterie.papers") / "cafa" / "fig4.toml") == ["2", "True"]


def test_an_own_study_need_not_say_where_a_measure_is_from(tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY)
    command = [sys.executable, "-m", "coterie", "study", "run", "mine.toml", "--out", "results"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "results/mine.html").is_file()


def test_a_page_about_runs_knows_the_figures_of_papers():
    code = "from coterie.report import sections\nsections.figures({})\nprint(*sections.kinds)"
    assert {"silhouette", "trust"} <= {*python(code)}


def test_the_command_line_draws_nothing_unless_it_must():
    assert python("import sys, coterie.cli.main; print('matplotlib' in sys.modules)") == ["False"]
