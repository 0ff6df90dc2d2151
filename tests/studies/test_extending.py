"""Studies that extend others: what they take over, what they say themselves, and what is wrong with one."""

import pytest
import tomli_w

from coterie.core.errors import SettingsError
from coterie.papers.recipes import names, recipe
from coterie.studies.campaign import Campaign
from coterie.studies.study import Study

BASE = {
    "title": "Base",
    "paper": "A paper",
    "options": {"clients": 4, "net": "logistic", "rounds": 2},
    "sources": {"rounds": "theirs", "fedprox.mu": "theirs, too", "batch": "theirs"},
    "axes": {
        "split": {"even": {"split": "iid"}, "skewed": {"split": "dirichlet", "alpha": 0.2}},
        "method": {"Alone": {"method": "local"}, "Mean": {"method": "fedavg"}, "Near": {"method": "fedprox"}},
    },
    "exceptions": [
        {"where": {"method": "Near"}, "options": {"mu": 0.3}},
        {"where": {"method": "Mean", "split": "even"}, "options": {"rounds": 7}},
    ],
    "tables": [{"title": "T", "rows": ["method"], "columns": ["split"], "values": {"mean": "accuracy_mean"}}],
}


@pytest.fixture
def written(tmp_path):
    """A function that writes studies by name and returns the path of the last."""

    def write(**studies):
        for name, content in studies.items():
            path = tmp_path / f"{name}.toml"
            path.write_text(content if isinstance(content, str) else tomli_w.dumps(content))
        return path

    return write


def extending(**more):
    return {"title": "Mine", "extends": [{"study": "base.toml"}], **more}


def titles(study):
    return [cell.title for cell in study.cells()]


def runs(study):
    return [task.name for task in Campaign("results").tasks(study)]


def test_runs_that_are_taken_over_are_the_same_runs(written):
    base = Study.read(written(base=BASE))
    mine = Study.read(written(mine=extending()))
    assert runs(mine) == runs(base)
    assert (mine.title, mine.paper, mine.tables, mine.name) == ("Mine", "", (), "mine")


def test_what_a_study_says_itself_counts_most(written):
    own = extending(
        options={"rounds": 3},
        sources={"rounds": "ours"},
        axes={"method": {"Mean": {"method": "fedavg", "batch": 4}, "Groups": {"method": "ifca"}}, "rate": {"fast": {}}},
        exceptions=[{"where": {"split": "skewed"}, "options": {"batch": 5}}],
    )
    mine = Study.read(written(base=BASE, mine=own))
    assert mine.options == {"clients": 4, "net": "logistic", "rounds": 3}
    assert mine.sources == {"rounds": "ours", "fedprox.mu": "theirs, too", "batch": "theirs"}
    assert [*mine.axes] == ["split", "method", "rate"]
    assert [*mine.axes["method"]] == ["Alone", "Mean", "Near", "Groups"]
    batches = {cell.title: (cell.options.get("batch"), cell.options["rounds"]) for cell in mine.cells("method=Mean")}
    assert batches == {"even/Mean/fast": (4, 7), "skewed/Mean/fast": (5, 3)}


def test_only_some_entries_are_taken_over_with_what_is_said_of_them(written):
    own = extending(extends=[{"study": "base.toml", "only": {"method": ["Mean", "Alone"], "split": ["skewed"]}}])
    mine = Study.read(written(base=BASE, mine=own))
    assert titles(mine) == ["skewed/Alone", "skewed/Mean"]
    assert mine.exceptions == ()
    assert mine.sources == {"rounds": "theirs", "batch": "theirs"}


def test_a_study_may_extend_several_and_those_that_extend_others(written):
    more = {"options": {"rounds": 9}, "axes": {"method": {"Groups": {"method": "ifca"}}}}
    between = {"extends": [{"study": "base.toml", "only": {"method": ["Alone"]}}, {"study": "more.toml"}]}
    path = written(base=BASE, more=more, between=between, mine=extending(extends=[{"study": "between.toml"}]))
    mine = Study.read(path)
    assert titles(mine) == ["even/Alone", "even/Groups", "skewed/Alone", "skewed/Groups"]
    assert mine.options["rounds"] == 9


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("base.toml", r"extends: write \[\[extends\]\] once for each study"),
        ([{"only": {}}], r"extends: write \[\[extends\]\] once for each study"),
        ([{"study": "base.toml", "data": []}], r"extends: write \[\[extends\]\] once for each study"),
        ([{"study": 3}], "extends.study=3: expected a text"),
        ([{"study": "base.toml", "only": 3}], "extends.only=3: expected a table"),
        ([{"study": "base.toml", "only": {"method": "Alone"}}], "extends.only.method='Alone': expected a list"),
        ([{"study": "base.toml", "only": {"methods": []}}], "unknown axis in extends.only 'methods': did you mean met"),
        ([{"study": "base.toml", "only": {"method": ["Meen"]}}], "entry of extends.only.method 'Meen': did you mean M"),
        ([{"study": "nowhere.toml"}], r"mine.toml: .*nowhere.toml: cannot be read"),
        ([{"study": "mine.toml"}], r"mine.toml: .*mine.toml: extends itself"),
        ([{"study": "broken.toml"}], r"mine.toml: axes=3: expected a table"),
        ([{"study": "odd.toml"}], r"mine.toml: axes.method.A=3: expected a table"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(written, extends, message):
    path = written(base=BASE, broken="axes = 3\n", odd="axes.method.A = 3\n", mine=extending(extends=extends))
    with pytest.raises(SettingsError, match=message):
        Study.read(path)


def test_parts_that_are_only_there_to_be_extended_are_no_recipes():
    assert not any("/_" in name for name in names())
    with pytest.raises(SettingsError, match="unknown recipe"):
        recipe("accord/_rivals")
