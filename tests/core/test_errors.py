"""Errors name the thing, the value and the way out: wrong types and unknown names, wherever they are given."""

import inspect
import pickle
from pathlib import Path

import pytest

import coterie
from coterie.core.errors import CALLED_HERE, CoterieError, SettingsError, called_here, unknown
from coterie.data.splits import split_rules
from coterie.runs.options import GENERAL, SECTIONS
from coterie.studies.study import Study

TINY = {"clients": 3, "net": "logistic", "limit": 200}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: coterie.simulate(clients="ten"), "clients='ten': expected a whole number"),
        (lambda: coterie.simulate(5), "data of type int: expected the name of a data set, a path, a data frame"),
        (lambda: coterie.simulate(split=3), "split=3: expected the name of a split or a coterie.Split"),
        (lambda: coterie.simulate(net=7), r"net=7: expected the name of a net, or a function of \(shape, classes\)"),
        (lambda: coterie.simulate(seed="x"), "seed='x': expected a whole number"),
        (lambda: coterie.simulate(seed=1.5), "seed=1.5: expected a whole number"),
        (lambda: coterie.simulate(split_seed="x"), "split_seed='x': expected a whole number or nothing"),
        (lambda: coterie.simulate(arrivals="3:4"), "arrivals='3:4': expected a table"),
        (lambda: coterie.simulate(arrivals={1: "x"}), r"arrivals\[1\]='x': expected a whole number"),
        (lambda: coterie.FedProx(mu="x"), "mu='x': expected a number"),
        (lambda: coterie.FedProx(rounds=2.5), "rounds=2.5: expected a whole number"),
        (lambda: coterie.FedProx(optimizer="sgdd"), "unknown optimizer 'sgdd': did you mean sgd"),
        (lambda: coterie.FedAvg(milestones=0.5), "milestones=0.5: expected a list"),
        (lambda: coterie.LocalTraining(rate=None), "rate=None: expected a number"),
        (lambda: coterie.LocalTraining(batch=True), "batch=True: expected a whole number"),
        (lambda: coterie.Division(validation="a"), "validation='a': expected a number"),
        (lambda: coterie.Computing(device=3), "device=3: expected a text"),
        (lambda: coterie.Scoring(evaluate_every="x"), "evaluate_every='x': expected a whole number"),
        (lambda: split_rules["dirichlet"](alpha="x"), "alpha='x': expected a number"),
        (lambda: coterie.load(3), "data=3: expected a text or a path"),
        (lambda: coterie.load("digits", limit="x"), "limit='x': expected a whole number or nothing"),
        (lambda: coterie.Split(3), "indices: 3 is no list of samples"),
        (lambda: coterie.Split("ab"), "indices: 'a' is no list of samples"),
        (lambda: coterie.Split([[0.5, 1]]), r"indices: \[0.5, 1\] is no list of samples"),
        (lambda: coterie.FedAvg().fit("x"), "fed='x': expected a federation"),
    ],
)
def test_wrong_types_are_named(make, message):
    with pytest.raises(CoterieError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: coterie.simulate(n_clients=10), "unknown option 'n_clients': it is called clients here"),
        (lambda: coterie.simulate(model="mlp"), "unknown option 'model': it is called net here"),
        (
            lambda: coterie.simulate(lr=0.1),
            r"'lr' \(here rate\): belongs to the method, e.g. coterie.FedAvg\(rate=...\)",
        ),
        (lambda: coterie.FedProx(lr=0.1), "unknown option of FedProx 'lr': it is called rate here"),
        (lambda: coterie.FedProx(ratee=0.1), "unknown option of FedProx 'ratee': did you mean rate"),
        (
            lambda: coterie.LocalTraining(batch_size=8),
            "unknown option of LocalTraining 'batch_size': it is called batch",
        ),
        (lambda: coterie.Dataset([[0.0]], [0], class_names=["a"]), "'class_names': it is called labels here"),
        (lambda: coterie.Settings.of({"lr": 0.1}, "fedavg"), "unknown option 'lr': it is called rate here"),
        (lambda: coterie.Settings.of({"method.lr": 0.1}, "fedavg"), "it is called method.rate here"),
        (lambda: coterie.methods.make("fedavg", batch_size=8), "'batch_size': it is called batch here"),
        (
            lambda: coterie.FedAvg().fit(coterie.simulate(**TINY), scorings=3),
            "unknown option of fit 'scorings': did you",
        ),
        (lambda: coterie.load("digits", subset=3), "unknown option of the data set digits 'subset': there are none"),
    ],
)
def test_unknown_keywords_are_answered_with_the_right_name(make, message):
    with pytest.raises(SettingsError, match=message):
        make()


@pytest.mark.parametrize("given", ["--lr 0.1", "--lr=0.1", "--method.lr 0.1"])
def test_the_command_line_answers_with_the_right_name(refused, given):
    refused(f"run fedavg {given}", "unknown option --(method.)?lr: it is called --(method.)?rate here")


def test_a_study_file_answers_with_the_right_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("title = 'x'\n[axes.method.Mine]\nmethod = 'fedavg'\nlearning_rate = 0.1\n")
    with pytest.raises(SettingsError, match=r"mine.toml: Mine: unknown option 'learning_rate': it is called rate here"):
        Study.read(path)


def test_what_things_are_called_here_exists_and_what_they_are_called_elsewhere_does_not():
    methods = {option.name for name in coterie.methods for option in coterie.methods.options(name)}
    splits = {option.name for name in split_rules for option in split_rules.options(name)}
    sections = {option.name for part in SECTIONS.values() for option in part}
    known = {option.name for option in GENERAL} | methods | splits | sections
    assert {*CALLED_HERE.values()} - known == {"labels"}  # of a data set
    assert not CALLED_HERE.keys() & known


def test_a_name_that_is_right_or_that_nobody_knows_stays():
    assert [called_here(name) for name in ("rate", "split.lr", "batch-size", "xyz")] == [
        "rate",
        "split.rate",
        "batch",
        "xyz",
    ]
    assert "did you mean rate" in str(unknown("option", "rat", ["rate"]))


def test_whole_numbers_lists_and_paths_become_what_the_field_is():
    made = coterie.FedProx(mu=1, milestones=[0.5])
    assert (type(made.mu), made.milestones) == (float, (0.5,))
    assert coterie.load(str(Path("digits"))).name == "digits"


def test_a_class_that_refuses_unknown_keywords_is_otherwise_as_before():
    assert str(inspect.signature(coterie.FedProx)).startswith("(epochs:")
    assert pickle.loads(pickle.dumps(coterie.LocalTraining(rate=0.5))) == coterie.LocalTraining(rate=0.5)
    with pytest.raises(TypeError, match="positional"):
        coterie.LocalTraining(*range(99))
