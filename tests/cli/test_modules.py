"""Users' own methods, splits, nets, losses and metrics on every command, and runs that say which modules they need."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

import coterie
from coterie.cli.arguments import split_off
from coterie.core.errors import SettingsError
from coterie.core.modules import homes_of
from coterie.data.splits import split_rules
from coterie.methods import methods
from coterie.nets import nets
from coterie.runs.settings import Settings
from coterie.server.metrics import metrics
from coterie.training.losses import losses

TINY = "--clients 4 --rounds 2 --limit 400 --net own-net --split own-split --loss own-loss --metrics own_metric"

MODULE = '''
import coterie
from torch import nn
from coterie.data import Split
from coterie.data.split import SplitRule
from coterie.data.splits import split_rules
from coterie.methods.fedavg import FedAvg
from coterie.nets.zoo import net
from coterie.server.method import method


@method("own-method")
class Mine(FedAvg):
    """FedAvg by another name."""

    pull: float = 0.5
    """How hard."""


@split_rules.register("own-split")
class Stripes(SplitRule):
    """Every n-th sample."""

    def divide(self, data, rng):
        return Split(tuple(range(client, len(data), self.clients) for client in range(self.clients)))


@net("own-net")
def linear(shape, classes):
    """One layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


@coterie.loss("own-loss")
def missing(outputs, targets):
    """How much of the probability the label lacks."""
    return 1 - outputs.softmax(dim=-1).gather(-1, targets[:, None])[:, 0]


@coterie.metric("own_metric", higher=True)
def certain(y, predicted):
    """How much of the probability the likeliest class has."""
    return predicted.max(axis=1).mean()


@coterie.loss("own-mean")
def mean(outputs, targets):
    """A mean over the batch."""
    return missing(outputs, targets).mean()
'''


def forget():
    """Make this process as if it had never imported the module."""
    sys.modules.pop("own_things", None)
    for known, name in (
        (methods._classes, "own-method"),
        (split_rules._classes, "own-split"),
        (nets.data, "own-net"),
        (losses, "own-loss"),
        (losses, "own-mean"),
        (metrics, "own_metric"),
    ):
        known.pop(name, None)


@pytest.fixture
def own_things(tmp_path, monkeypatch):
    """A module in the current folder, which nothing has imported before or after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_things.py").write_text(MODULE)
    forget()
    yield tmp_path / "own_things.py"
    forget()


def test_a_run_takes_own_methods_splits_and_nets(call, own_things):
    outcome = call(f"--modules own_things run own-method {TINY} --pull 0.25 --out a")
    assert outcome.code == 0, outcome.err
    settings = tomllib.loads(Path("a/settings.toml").read_text())
    assert settings["modules"] == ["own_things"]
    assert settings["method"]["pull"] == 0.25
    assert settings["loss"] == "own-loss"
    summary = json.loads(Path("a/summary.json").read_text())
    assert 0.1 < summary["own_metric_mean"] < 1
    assert 0 < summary["loss_mean"] < 1  # a cross-entropy would begin at log 10


@pytest.mark.parametrize("part", ["method", "loss", "metric"])
def test_a_run_remembers_the_module_of_each_of_its_own_things(call, own_things, part):
    lines = {
        "method": "run own-method",
        "loss": "run fedavg --loss own-loss",
        "metric": "run fedavg --metrics own_metric",
    }
    tiny = "--clients 3 --rounds 1 --limit 300 --net mlp --out a"
    assert call(f"{lines[part]} {tiny} --modules own_things").code == 0
    forget()
    assert call("run --settings a --out b").code == 0


def test_a_loss_by_its_import_path_comes_from_the_current_folder(call, own_things):
    assert call("run fedavg --clients 3 --rounds 1 --net mlp --loss own_things:missing --out a").code == 0
    sys.modules.pop("own_things")
    assert call("run --settings a --out b").code == 0
    same = [json.loads(Path(f"{folder}/summary.json").read_text())["loss_mean"] for folder in "ab"]
    assert same[0] == same[1]


def test_a_run_cannot_go_on_with_another_loss(call, refused, own_things):
    call("run fedavg --clients 3 --rounds 1 --net mlp --loss focal --out a")
    message = "loss is focal there, label-smoothing here"
    refused("run fedavg --resume --out a --rounds 2 --loss label-smoothing", message)


def test_a_loss_that_takes_the_mean_is_refused_and_nothing_is_left(refused, own_things):
    message = "loss own-mean: gives one number .* leave out .mean()"
    refused("run fedavg --clients 3 --net mlp --loss own-mean --modules own_things --out a", message)


@pytest.mark.parametrize("line", ["methods", "splits", "nets", "losses", "metrics"])
def test_lists_have_own_things(call, own_things, line):
    name = {"losses": "own-loss", "metrics": "own_metric"}.get(line, f"own-{line.removesuffix('s')}")
    assert name in call(f"{line} --modules=own_things").out
    told = call(f"{line} {name} --modules=own_things")
    assert told.code == 0, told.err


def test_the_variable_names_modules_for_all_commands(call, own_things, monkeypatch):
    monkeypatch.setenv("COTERIE_MODULES", "own_things,")
    told = call("methods own-method").out
    assert "FedAvg by another name." in told
    assert "--pull" in told
    assert call("split own-split --clients 4 --limit 400 --json").code == 0


def test_later_commands_need_not_be_told_the_module_again(call, own_things):
    call(f"run own-method {TINY} --modules own_things --out a")
    before = Path("a/summary.json").read_text()
    more = ("run --settings a --out b", "compare fedavg --settings a --out c")
    for line in ("show a", "report a -o a.html", *more):
        forget()
        outcome = call(line)
        assert (outcome.code, "own_things" in outcome.err) == (0, False), outcome.err
    again = json.loads(Path("b/summary.json").read_text())
    assert again["accuracy_mean"] == json.loads(before)["accuracy_mean"]


def test_a_run_that_was_stopped_goes_on_without_being_told_the_module(call, own_things):
    call(f"run own-method {TINY} --modules own_things --out a")
    Path("a/summary.json").unlink()
    forget()
    assert call("run --resume --out a").code == 0
    assert Path("a/summary.json").is_file()


def test_a_report_does_without_a_module_that_is_gone_and_says_so(call, own_things):
    call(f"run own-method {TINY} --modules own_things --out a")
    own_things.unlink()
    forget()
    for line in ("show a", "report a -o a.html"):
        outcome = call(line)
        assert outcome.code == 0
        told = (
            "note: a: what its own method or split is by default is not known: module 'own_things' cannot be imported"
        )
        assert told in outcome.err
    assert "own-method" in Path("a.html").read_text()


def test_a_run_cannot_go_on_without_its_module(call, refused, own_things):
    call(f"run own-method {TINY} --modules own_things --out a")
    own_things.unlink()
    forget()
    refused("run --resume --out a", "module 'own_things' cannot be imported .* put it into the current folder")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("methods --modules", "--modules: names are missing; write --modules NAME,NAME"),
        ("methods --modules --write a", "--modules: names are missing"),
        ("methods --modules no_such_module", "module 'no_such_module' cannot be imported"),
    ],
)
def test_modules_that_cannot_be_had_are_refused(refused, line, message):
    refused(line, message)


@pytest.mark.slow
def test_real_sites_take_an_own_method(call, own_things):
    line = "deploy local own-method --modules own_things --sites 2 --net own-net --rounds 2 --out real --json"
    outcome = call(line)
    logs = "".join(path.read_text() for path in Path("real").rglob("*.log"))
    assert outcome.code == 0, outcome.err + logs
    call("run own-method --clients 2 --net own-net --rounds 2 --out simulated")
    simulated = json.loads(Path("simulated/summary.json").read_text())
    assert outcome.json["accuracy_mean"] == pytest.approx(simulated["accuracy_mean"])


def test_what_stands_behind_two_dashes_is_no_option():
    assert split_off("--modules", ["a", "--modules=b, c", "--", "--modules"]) == (["b", "c"], ["a", "--", "--modules"])


def test_settings_name_no_module_for_what_is_ours_or_cannot_be_imported():
    class Inside(coterie.FedAvg):
        pass

    assert homes_of([coterie.FedAvg, Inside]) == ()
    assert "modules" not in Settings(coterie.FedAvg()).table()


def test_settings_from_a_file_name_whatever_cannot_be_imported():
    with pytest.raises(SettingsError, match="modules=3: expected a list"):
        Settings.from_table({"modules": 3, "method": {"name": "fedavg"}})
