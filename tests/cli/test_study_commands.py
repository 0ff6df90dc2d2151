"""`coterie reproduce` and `coterie study`, as a user meets them."""

import json
import shlex

import pytest
import tomli_w

from coterie.cli.main import main
from coterie.papers import recipes

STUDY = {
    "title": "Small",
    "seeds": 2,
    "options": {"clients": 4, "net": "logistic", "limit": 300, "rounds": 2, "workers": 0, "device": "cpu"},
    "axes": {"method": {"Alone": {"method": "local"}, "Mean": {"method": "fedavg"}}},
    "tables": [
        {
            "title": "Accuracy, %",
            "rows": ["method"],
            "percent": True,
            "better": "higher",
            "values": {"accuracy": "accuracy_mean"},
            "published": {"Mean": [50.0, 1.0]},
        }
    ],
    "figures": [{"title": "Accuracy over rounds", "kind": "curves"}],
}


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder; gives what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))

    def run(line, code=0):
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line))
        assert ended.value.code == code
        return capsys.readouterr()

    return run


def write(path, **more):
    path.write_text(tomli_w.dumps({**STUDY, **more}))


def test_every_recipe_is_listed_with_its_data_and_cost(call):
    said = call("reproduce").out
    for name in recipes.names():
        assert name in said
    line = next(line for line in said.splitlines() if line.startswith("autocfl/table1"))
    assert "cifar10, mnist, fashion-mnist" in line
    assert " 450 " in line


def test_a_study_ends_in_tables_figures_and_a_page(call, tmp_path):
    write(tmp_path / "small.toml")
    said = call("study run small.toml").out
    assert "4 of 4 are done" in said
    assert "50.0 ± 1.0" in said
    assert "1 published number" in said
    out = tmp_path / "results"
    assert {path.name for path in (out / "tables").iterdir()} == {"small.csv", "small.md", "small.tex"}
    assert {path.name for path in (out / "figures").iterdir()} == {"small-1.pdf", "small-1.png", "small-1.svg"}
    page = (out / "small.html").read_text()
    assert "Accuracy over rounds" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    lines = (out / "tables" / "small.csv").read_text().splitlines()
    assert len(lines) == 3
    assert "published_mean" in lines[0]
    assert "\\label{tab:" in (out / "tables" / "small.tex").read_text()
    summary = json.loads(next((out / "runs").glob("fedavg-*-seed0-*/summary.json")).read_text())
    assert summary["method"] == "fedavg"


def test_a_study_of_ones_own_has_no_columns_about_papers(call, tmp_path):
    (plain,) = STUDY["tables"]
    write(tmp_path / "mine.toml", tables=[{key: value for key, value in plain.items() if key != "published"}])
    call("study run mine.toml")
    text = "".join(path.read_text() for path in (tmp_path / "results" / "tables").iterdir())
    head = (tmp_path / "results" / "tables" / "mine.csv").read_text().splitlines()[0].split(",")
    assert head[:7] == ["table", "method", "value", "statistic", "mean", "std", "seeds"]
    assert not [word for word in ("publish", "paper", "reproduce") if word in text]


def test_a_figure_without_its_options_is_refused_before_anything_is_run(call, tmp_path):
    write(tmp_path / "small.toml", figures=[{"title": "Over alpha", "kind": "sweep"}])
    said = call("study run small.toml", code=2).err
    assert "figure 'Over alpha': the kind of figure sweep needs x (x: The option" in said
    assert not (tmp_path / "results").exists()


def test_a_figure_that_cannot_be_drawn_says_so(call, tmp_path):
    write(tmp_path / "small.toml", figures=[{"title": "Distances", "kind": "matrix"}])
    said = " ".join(call("study run small.toml").err.split())
    assert "Distances: not drawn (" in said


def test_figures_that_a_study_no_longer_has_are_deleted_and_those_of_others_are_not(call, tmp_path):
    write(tmp_path / "small.toml")
    figures = tmp_path / "results" / "figures"
    figures.mkdir(parents=True)
    for name in ("small-1.png", "small-2.png", "small-2-1.png", "smaller-2.svg"):
        (figures / name).touch()
    call("study run small.toml --show")
    assert {path.name for path in figures.iterdir()} == {"small-2-1.png", "smaller-2.svg"}


def test_the_title_is_text_in_markdown(call, tmp_path):
    write(tmp_path / "small.toml", title="a_b_c <i>d</i> *e*", paper="P_1_")
    call("study run small.toml --show")
    first = (tmp_path / "results" / "tables" / "small.md").read_text().splitlines()[0]
    assert first == r"# P\_1\_: a\_b\_c \<i\>d\</i\> \*e\*"


def test_showing_runs_nothing(call, tmp_path):
    write(tmp_path / "small.toml")
    assert "0 of 4 are done" in call("study run small.toml --show").out
    assert not (tmp_path / "results" / "runs").exists()
    assert "2 of 2 are done" in call("study run small.toml --only method=local").out
    said = call("study run small.toml --show").out
    assert "2 of 4 are done" in said
    assert "not run" in said


def test_recipes_without_any_of_the_cells_are_skipped_and_named(call, tmp_path):
    write(tmp_path / "small.toml")
    write(tmp_path / "other.toml", axes={"method": {"Prox": {"method": "fedprox"}}}, tables=[], figures=[])
    told = call("study run small.toml other.toml --only method=fedprox --show")
    assert "skipped: small: no cell fits --only method=fedprox" in " ".join(told.err.split())
    assert "0 of 2 are done" in told.out
    assert not (tmp_path / "results" / "small.html").exists()
    assert "no cell of small fits" in call("study run small.toml other.toml --only method=x", code=2).err
    assert "skipped" not in call("study run small.toml other.toml --show").err


def test_a_label_with_a_comma_can_be_asked_for(call):
    said = call("reproduce slfed/table1-scaled --only 'method=SLFed, opinions passed on' --show").out
    assert "SLFed, opinions passed on" in said
    assert "FedAvg" not in said


def test_studies_with_the_same_name_are_refused(call, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "small.toml", title=folder)
    write(tmp_path / "cafa-table2.toml")
    for line in ("study run a/small.toml b/small.toml", "reproduce cafa/table2 cafa-table2.toml"):
        told = call(line, code=2)
        assert "would overwrite each other" in " ".join(told.err.split())
    assert not (tmp_path / "results").exists()
    assert "0 of 4 are done" in call("study run a/small.toml ./a/small.toml --show").out, "the same one twice is one"


@pytest.mark.parametrize("taken", ["out", "out/tables", "out/figures"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_run(call, tmp_path, taken):
    write(tmp_path / "small.toml")
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("something else")
    told = " ".join(call("study run small.toml --out out", code=2).err.split())
    assert f"{taken}: cannot be written" in told
    assert "--out" in told
    assert not (tmp_path / "out" / "runs").exists()


def test_results_that_cannot_be_written_are_told(call, tmp_path):
    write(tmp_path / "small.toml")
    (tmp_path / "results" / "small.html").mkdir(parents=True)
    told = " ".join(call("study run small.toml --show", code=2).err.split())
    assert "results/small.html" in told
    assert "cannot be written" in told


def test_an_option_counts_more_than_the_study_and_the_table_says_so(call, tmp_path):
    write(tmp_path / "small.toml")
    said = call("study run small.toml --seeds 1 --rounds 1").out
    assert "2 of 2 are done" in said
    assert "with rounds=1" in said


def test_what_fails_is_told_and_the_rest_is_done(call, tmp_path):
    axes = {"method": {"Alone": {"method": "local"}, "Mean": {"method": "fedavg", "data": "mnist", "limit": 20}}}
    write(tmp_path / "small.toml", axes=axes, seeds=1)
    told = call("study run small.toml", code=1)
    assert "1 of 2 are done" in told.out
    assert "failed:" in told.err


def test_a_study_to_start_from(call, tmp_path):
    call("study new mine.toml")
    assert (tmp_path / "mine.toml").read_text() == recipes.template()
    assert "exists already" in call("study new mine.toml", code=2).err
    assert "2 of 2 are done" in call("study run mine.toml --only method=local --seeds 1 --rounds 1").out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("reproduce autocfl/tabel1", "did you mean autocfl/table1"),
        ("reproduce cafa/table2 --only case=9", "no cell of cafa/table2 fits"),
        ("reproduce cafa/table2 --seeds 0", "seeds=0"),
        ("reproduce cafa/table2 --time-limit 0", "time_limit"),
        ("study run", "no study"),
        ("study run nothing.toml", "nothing.toml: cannot be read"),
        ("study new taken/mine.toml", "taken/mine.toml: cannot be written"),
        ("study new /proc/mine.toml", "/proc/mine.toml: cannot be written"),
        (f"study new {'x' * 300}.toml", "cannot be written"),
        ("study run figure.toml", "figure: figure 'F': unknown kind of figure 'curve': did you mean curves"),
    ],
)
def test_mistakes_are_told(call, tmp_path, line, message):
    (tmp_path / "taken").touch()
    write(tmp_path / "figure.toml", figures=[{"title": "F", "kind": "curve"}])
    assert message in " ".join(call(line, code=2).err.split())


@pytest.mark.parametrize("line", ["reproduce --help", "study run --help"])
def test_the_help_shows_what_changes_nothing_about_a_run(call, line):
    words = set(call(line).out.split())
    assert {"--data-dir", "--device", "--workers", "--memory", "--engine"} <= words
    assert not words & {"--strict", "--insights", "--precision", "--rounds", "--clients", "--seed"}
