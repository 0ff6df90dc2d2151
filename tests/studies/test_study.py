"""Studies: what a file says, and what is wrong with one."""

import sys
import tomllib

import pytest
import tomli_w

from coterie.core.errors import SettingsError
from coterie.methods import methods
from coterie.papers.recipes import template
from coterie.report.printing import csv_text
from coterie.runs.settings import Settings
from coterie.studies.patterns import fitting
from coterie.studies.study import Cell, Study, StudyTask


def content(**more):
    """A small study of two methods in two splits."""
    return {
        "title": "Small",
        "seeds": 2,
        "options": {"clients": 4, "net": "logistic", "limit": 300, "rounds": 2},
        "axes": {
            "split": {"even": {"split": "iid"}, "skewed": {"split": "dirichlet", "alpha": 0.2}},
            "method": {"Alone": {"method": "local"}, "Mean": {"method": "fedavg"}},
        },
        "tables": [
            {"title": "Accuracy", "rows": ["method"], "columns": ["split"], "values": {"mean": "accuracy_mean"}}
        ],
        **more,
    }


def study(**more):
    return Study.of(content(**more), "small")


def name(method="fedavg", **given):
    return StudyTask(Settings.of({"clients": 4, **given}, method)[0]).name


def test_cells_are_all_combinations_in_the_order_of_the_file():
    assert [cell.title for cell in study().cells()] == ["even/Alone", "even/Mean", "skewed/Alone", "skewed/Mean"]


def test_axes_count_more_than_options_and_exceptions_more_than_axes():
    made = study(
        options={"clients": 4, "net": "logistic", "rounds": 2, "batch": 8},
        exceptions=[{"where": {"method": "m*", "split": "even"}, "options": {"batch": 4, "rounds": 7}}],
    )
    batches = {cell.title: (cell.options["batch"], cell.options["rounds"]) for cell in made.cells()}
    assert batches == {"even/Alone": (8, 2), "even/Mean": (4, 7), "skewed/Alone": (8, 2), "skewed/Mean": (8, 2)}


def test_a_cell_becomes_the_settings_of_a_run():
    cell = study().cells()[3]
    made = cell.task(1, {"rounds": 9}).settings
    assert (made.method.name, made.method.rounds, made.world.seed, made.world.split.alpha) == ("fedavg", 9, 1, 0.2)


def test_only_some_cells():
    def titles(only):
        return [cell.title for cell in study().cells(only)]

    assert titles("method=mean") == ["even/Mean", "skewed/Mean"]
    assert titles("method=fedavg,split=sk*") == ["skewed/Mean"], "a method goes by its own name too"
    with pytest.raises(SettingsError, match="split: even, skewed"):
        titles("split=other")
    with pytest.raises(SettingsError, match="did you mean method"):
        titles("methods=fedavg")
    with pytest.raises(SettingsError, match="axis=pattern"):
        titles("fedavg")
    with pytest.raises(SettingsError, match="unknown axis of small 'splt': did you mean split"):
        titles("method=fedavg,splt=sk*")


def test_patterns_of_the_same_axis_are_alternatives():
    titles = [cell.title for cell in study().cells("method=local,split=even, method=fedavg")]
    assert titles == ["even/Alone", "even/Mean"]


def test_a_label_that_is_a_methods_name_stands_for_that_entry_alone():
    entries = {"FedAvg": {"method": "fedavg"}, "FedAvg, slow": {"method": "fedavg", "rate": 0.01}}
    made = study(axes={"split": {"even": {}}, "method": entries})
    assert [cell.title for cell in made.cells("method=fedavg")] == ["even/FedAvg"]
    assert len(made.cells("method=fedavg*")) == 2


AWKWARD = ("IFCA [k=4]", "Mean, passed on", "a, k=4", "b,method", "x=y", "what?")


@pytest.mark.parametrize("label", AWKWARD)
def test_a_label_fits_itself_whatever_is_in_it(label):
    entries = {name: {"method": "local"} for name in AWKWARD}
    table = {"title": "T", "rows": ["method"], "values": {"mean": "accuracy_mean"}, "where": {"method": label}}
    leaving_out = [{"where": {"method": label}, "skip": "why"}]
    made = study(axes={"split": {"even": {}}, "method": entries}, tables=[table], exceptions=leaving_out)
    assert [cell.title for cell in made.cells(f"method={label},split=even")] == [f"even/{label}"]
    assert [cell.title for cell in made.cells() if cell.skip] == [f"even/{label}"]
    assert fitting(made.axes, made.tables[0].where)["method"] == (label,)


def test_cells_that_are_left_out_say_why():
    made = study(exceptions=[{"where": {"method": "Alone"}, "skip": "not printed"}])
    assert [cell.skip for cell in made.cells()] == ["not printed", None] * 2
    assert made.methods == ("local", "fedavg")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"titel": "x"}, "unknown entry of the study 'titel': did you mean title"),
        ({"seeds": 0}, "seeds=0"),
        ({"axes": {"split": {"even": {}}}}, "must be called method"),
        ({"axes": {"method": {"A": 3}}}, "axes.method"),
        ({"axes": {"method": {"A": {"method": "fedavgg"}}}}, "A: unknown method 'fedavgg': did you mean fedavg"),
        ({"axes": {"method": {"A": {}}}}, "A: name a method or a measure"),
        ({"axes": {"method": {"A": {"method": ["local"]}}}}, "A: method=.'local'.: expected a text"),
        ({"axes": {"method": {"A": {"method": "local"}, "B": {"method": "fedavgg"}}}}, "^B: unknown method 'fedavgg'"),
        ({"axes": {"method": {"A": {"measure": 3}}}}, "A: measure=3: expected a text"),
        ({"axes": 3}, "axes=3: expected a TOML table, with entries name = value"),
        ({"axes": {"method": 3}}, "axes.method=3: expected a TOML table"),
        ({"axes": {"method": {}}}, r"axes.method: no entries; write \[axes.method.LABEL\] with options below it"),
        ({"axes": {"split": {}, "method": {"A": {"method": "local"}}}}, "axes.split: no entries"),
        ({"options": {"seed": "a"}}, "even/Alone: seed='a': expected a whole number"),
        ({"options": {"seed": True}}, "seed=True: expected a whole number"),
        ({"options": {"arrivals": 3}}, "arrivals=3: expected a text"),
        ({"sources": {"rate": 3}}, "sources.rate=3: expected a text"),
        ({"options": {"raet": 1}}, "did you mean rate"),
        ({"exceptions": [{"where": {"methods": "*"}}]}, "exception 1: unknown axis 'methods': did you mean method"),
        ({"exceptions": [{"where": {"split": 3}}]}, "exception 1: where.split=3: expected a text"),
        ({"exceptions": [{"where": {"split": "*"}}, {"skip": "why"}]}, "exception 2: where is missing"),
        ({"tables": [{"title": "T", "values": {}}]}, "no values"),
        ({"tables": [{"values": {"a": "accuracy_mean"}}]}, "table 1: title is missing"),
        ({"tables": [{"title": "T", "values": {"a": "acuracy_mean"}}]}, "table 'T': values.a: unknown .*accuracy_mean"),
        ({"tables": [{"title": "T", "rows": ["method"], "values": {"a": "accuracy_mean"}}]}, "split must be among"),
        ({"tables": "x"}, r"write \[\[tables\]\]"),
        ({"figures": [{"title": "F", "kind": "curves", "by": ["splits"]}]}, "did you mean split"),
        ({"figures": [{"title": "F", "kind": "curves", "where": {"split": "od*"}}]}, "no entry of split fits 'od"),
        ({"exceptions": [{"where": {"split": "odd"}}]}, "no entry of split fits 'odd'; there are even, skewed"),
        ({"own": ["Meen"]}, "did you mean Mean"),
        ({"variants": ["Alon"]}, "did you mean Alone"),
        (
            {"figures": [{"title": "F", "kind": "curves", "panels": ["splits"]}]},
            "figure 'F': unknown axis 'splits': did you",
        ),
        ({"figures": [{"title": "F", "kind": "curves", "panels": "split"}]}, "figure 'F': panels='split'"),
        ({"figures": [{"title": "F", "kind": "curves", "where": {"split": 3}}]}, "figure 'F': where.split=3: expected"),
        (
            {"figures": [{"title": "F", "kind": "curves", "by": ["split"], "panels": ["split"]}]},
            "figure 'F': split must be in by or in panels, once",
        ),
        ({"figures": [{"title": "F", "kind": "curves", "panels": ["split", "split"]}]}, "in panels, once"),
        (
            {"figures": [{"title": "F", "kind": "curves", "panels": ["split", "method", "split"]}]},
            "panels by split, method, split: at most two axes, rows and columns; others go into by",
        ),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    with pytest.raises(SettingsError, match=message):
        study(**wrong)


@pytest.mark.parametrize("axis", csv_text([]).splitlines()[0].split(","))
def test_an_axis_is_not_called_like_a_column_of_every_table(axis):
    with pytest.raises(SettingsError, match=f"axes.{axis}: .*choose another name"):
        study(axes={**content()["axes"], axis: {"x": {"rounds": 1}, "y": {"rounds": 2}}})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"published": {"even/Meen": [1.0]}}, "did you mean even/Mean"),
        ({"incomparable": {"odd/*": "why"}}, "no place fits 'odd/"),
        ({"reference": {"method": "Mea"}}, "Mea"),
        ({"better": "more"}, "higher"),
        ({"where": {"splits": "even"}}, "did you mean split"),
        ({"where": {"split": "odd"}}, "no entry of split fits 'odd'; there are even, skewed"),
        ({"where": {"method": "Mean"}, "reference": {"method": "Alone"}}, "Alone"),
        (
            {"where": {"split": "even"}, "published": {"even/Mean": [1], "skewed/Mean": [1], "skewed/Alone": [2]}},
            "left out by its where: skewed/Mean, skewed/Alone",
        ),
        ({"where": {"split": "even"}, "scaled": {"skewed/*": "how"}}, "no place fits 'skewed/"),
        ({"digits": -1}, "digits=-1: from 0 to 9"),
        ({"digits": 99}, "digits=99: from 0 to 9"),
        ({"digits": 1.5}, "digits=1.5: expected a whole number"),
        ({"columns": ["split", "value", "value"]}, "value must be among its rows or columns, once"),
        ({"where": {"split": 3}}, "where.split=3: expected a text"),
        ({"where": 3}, "where=3: expected a TOML table"),
        ({"reference": {"method": 3}}, "reference.method=3: expected a text"),
        ({"values": {"m": 3}}, "values.m=3: expected a text"),
        ({"values": {"m": "rounds_to(accuracy_mean,\n0.8)"}}, "values.m: .* in one line"),
        ({"values": {"m": "rounds_to_final(accuracy_mean, Meen)"}}, "unknown method .* 'Meen': did you mean Mean"),
        ({"published": {"even/Mean": 3}}, "published.even/Mean=3: expected a list of numbers"),
        ({"published": {"even/Mean": ["x"]}}, "published.even/Mean='x': expected a number"),
        ({"published": {"even/Mean": [float("nan")]}}, "published.even/Mean=nan: expected a finite number"),
        ({"published": {"even/Mean": [1, 2, 3]}}, "published.even/Mean=.*: at most two numbers"),
        ({"incomparable": {"*": 3}}, r"incomparable\.\*=3: expected a text"),
        ({"scaled": {"*": 3}}, r"scaled\.\*=3: expected a text"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(wrong, message):
    with pytest.raises(SettingsError, match=f"^table 'Accuracy': .*{message}"):
        study(tables=[{**content()["tables"][0], **wrong}])


def test_published_numbers_of_several_values_have_the_value_in_their_place():
    table = {
        "title": "T",
        "rows": ["method"],
        "columns": ["split", "value"],
        "values": {"mean": "accuracy_mean", "worst": "accuracy_min"},
        "published": {"even/Mean/worst": [1.5, 0.1]},
    }
    assert study(tables=[table]).tables[0].published == {"even/Mean/worst": [1.5, 0.1]}


def test_an_axis_with_one_entry_that_fits_needs_neither_row_nor_column():
    table = {**content()["tables"][0], "columns": [], "where": {"split": "SKEW*"}, "published": {"skewed/Mean": [1.0]}}
    assert study(tables=[table]).tables[0].where == {"split": "SKEW*"}


def test_a_file_that_is_wrong_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("title = 'x'\n")
    with pytest.raises(SettingsError, match=r"mine.toml: .*axes is missing"):
        Study.read(path)
    path.write_text(tomli_w.dumps(content(tables=[{"title": "T", "values": {"mean": 3}}])))
    with pytest.raises(SettingsError, match=r"mine.toml: table 'T': values.mean=3: expected a text"):
        Study.read(path)


def test_the_template_is_a_study():
    made = Study.of(tomllib.loads(template()), "template")
    assert len(made.cells()) == 6
    assert {cell.options["clusters"] for cell in made.cells("method=IFCA")} == {2, 4}


# What decides a run


def test_what_decides_nothing_is_not_in_the_name():
    plain = name()
    assert name(workers=0) == name(memory=2.0) == name(data_dir="x") == name(device="cpu") == plain


def test_what_decides_the_outcome_is_in_the_name():
    names = [name(), name(seed=1), name(rounds=3), name(alpha=0.2), name(precision="float64"), name(method="local")]
    names.append(name(views=("served", "last")))
    assert len(set(names)) == len(names)


def test_what_is_by_default_is_not_in_the_name():
    assert name(rounds=20, validation=0.1, alpha=0.5, precision="float32", views=("served",)) == name()
    assert StudyTask(Settings.of({"clients": 4, "mu": 0.2}, "fedprox")[0]).decisive() == {
        "data": {"name": "digits"},
        "split": {"name": "dirichlet", "clients": 4},
        "method": {"name": "fedprox", "mu": 0.2},
    }


@pytest.mark.parametrize(
    ("method", "given", "called"),
    [
        ("fedavg", {}, "fedavg-digits-dirichlet-seed0-3a7222b623e2"),
        ("fedprox", {"mu": 0.2, "seed": 3, "split_seed": 0}, "fedprox-digits-dirichlet-seed3-001ce3f51f89"),
        (
            *("ifca", {"compat": True, "insights": True, "evaluate_every": 2}),
            "ifca-digits-dirichlet-seed0-6c6724bbf6d3",
        ),
        (
            *("local", {"data": "femnist", "test_part": True, "split": "iid", "net": "mlp"}),
            "local-femnist-iid-seed0-9ccd1d3d627a",
        ),
        (
            *("cfl", {"arrivals": "1:3,2:6", "precision": "float64", "strict": True, "device": "cpu"}),
            "cfl-digits-dirichlet-seed0-3f8f2824c414",
        ),
        (
            "fedavg",
            {
                "split": "given",
                "assignment": "a/who.csv",
                "clients": 0,
                "hold_out": 0.2,
                "limit": 300,
                "views": ("served", "last"),
            },
            "fedavg-digits-given-seed0-2ff95277c4a7",
        ),
    ],
)
def test_names_of_folders_never_change(method, given, called):
    assert StudyTask(Settings.of(given, method)[0]).name == called


def test_the_name_of_a_measure_never_changes():
    task = Cell({}, {"measure": "label-clusters", "clusters": 3, "clients": 4}).task(1)
    assert task.name == "label-clusters-digits-dirichlet-seed1-06d6598a3833"


def test_a_stored_run_is_another_if_defaults_have_changed():
    task = StudyTask(Settings.of({"clients": 4}, "fedprox")[0])
    stored = task.settings.resolved().table()
    assert task.agrees(stored)
    del stored["method"]["mu"], stored["scoring"]
    assert task.agrees(stored), "what was not there yet is as it is by default now"
    assert not task.agrees({**stored, "method": {**stored["method"], "mu": 7.0}})


def test_a_stored_run_is_the_same_whatever_it_was_computed_on_and_whatever_options_are_gone():
    task = StudyTask(Settings.of({"clients": 4, "device": "cpu", "workers": 0, "strict": True}, "fedprox")[0])
    stored = Settings.of({"clients": 4, "memory": 3.0, "data_dir": "x"}, "fedprox")[0].resolved().table()
    assert task.agrees(stored)
    assert task.agrees({**stored, "method": {**stored["method"], "gone": 1}}), "its name says it was as by default"
    assert not task.agrees({**stored, "method": {**stored["method"], "steps": 5}}), "no steps are by default now"
    assert not task.agrees({**stored, "computing": {**stored["computing"], "precision": "float64"}})
    assert not task.agrees({**stored, "method": {**stored["method"], "name": "fedavg"}})


def test_a_study_can_bring_methods_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_study_methods.py").write_text(
        "from coterie.server.method import method\nfrom coterie.methods.fedavg import FedAvg\n\n"
        '@method(\'my-average\')\nclass Mine(FedAvg):\n    """Mine."""\n'
    )
    path = tmp_path / "mine.toml"
    text = "title = 'x'\nmodules = ['my_study_methods']\n[axes.method.Mine]\nmethod = 'my-average'\n"
    path.write_text(text)
    assert Study.read(path).cells()[0].task(0).what == "my-average"
    del methods._classes["my-average"]
    path.write_text(text.replace("my_study_methods", "no_such_module"))
    with pytest.raises(SettingsError, match="'no_such_module' cannot be imported"):
        Study.read(path)
