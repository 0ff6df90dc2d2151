"""Carrying out studies: nothing twice, nothing lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial

import pytest
import tomli_w

import coterie.papers  # noqa: F401  registers its measures
from coterie.core.errors import CoterieError, SettingsError
from coterie.methods.fedavg import FedAvg
from coterie.runs import settings as settings_module
from coterie.runs.batch import RunBatch
from coterie.runs.experiment import run
from coterie.runs.folder import BusyError, RunFolder
from coterie.studies import campaign as module
from coterie.studies.campaign import Campaign
from coterie.studies.study import Study

OPTIONS = {"clients": 4, "net": "logistic", "limit": 300, "rounds": 3, "workers": 0, "device": "cpu"}
METHODS = {"Alone": {"method": "local"}, "Mean": {"method": "fedavg"}}


def content(**more):
    values = {"mean": "accuracy_mean"}
    table = {"title": "Accuracy", "rows": ["method"], "columns": ["split"], "values": values}
    splits = {"even": {"split": "iid"}, "skewed": {"split": "dirichlet"}}
    return {
        "title": "Small",
        "seeds": 2,
        "options": OPTIONS,
        "axes": {"split": splits, "method": METHODS},
        "tables": [table],
        **more,
    }


def study(**more):
    return Study.of(content(**more), "small")


def summaries(folder):
    """What all runs of a folder say, but for the time they took."""
    found = {}
    for path in sorted((folder / "runs").iterdir()):
        summary = json.loads((path / "summary.json").read_text())
        for part in (summary, summary.get("best_round") or {}):
            part.pop("seconds", None)
        found[path.name] = summary
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The results of the small study."""
    out = tmp_path_factory.mktemp("undisturbed")
    campaign = Campaign(out)
    outcome = campaign.carry_out(campaign.tasks(study()))
    assert (outcome.done, outcome.failed, outcome.busy, outcome.time_up) == (8, {}, 0, False)
    return out


def test_results_stand_in_their_places(undisturbed):
    results = Campaign(undisturbed).results(study())
    assert {place: [run.summary["seed"] for run in runs] for place, runs in results.runs.items()} == {
        (split, method): [0, 1] for split in ("even", "skewed") for method in ("Alone", "Mean")
    }
    for (split, method), runs in results.runs.items():
        assert {run.summary["method"] for run in runs} == {METHODS[method]["method"]}
        assert {run.summary["split"] for run in runs} == {"iid" if split == "even" else "dirichlet"}
    assert results.missing == []
    assert Campaign(undisturbed).results(study(), seeds=3).missing == []
    assert results.study.tables[0].scaled == {}


def test_a_finished_run_keeps_no_state(undisturbed):
    folders = list((undisturbed / "runs").iterdir())
    assert len(folders) == 8
    assert not any((folder / "state").exists() for folder in folders)


def test_nothing_is_run_twice(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "r")
    campaign = Campaign(tmp_path / "r")
    other = study(seeds=3, axes={"split": {"flat": {"split": "iid"}}, "method": METHODS})
    assert [task.settings.world.seed for task in campaign.pending(campaign.tasks(other))] == [2, 2]
    assert campaign.carry_out([*campaign.tasks(study()), *campaign.tasks(other)]).done == 2
    changed = Campaign(tmp_path / "r", {"rounds": 2})
    assert len(changed.pending(changed.tasks(study()))) == 8
    assert changed.results(study()).study.tables[0].scaled == {"*": "with rounds=2"}


def test_what_changes_no_result_starts_nothing(undisturbed):
    campaign = Campaign(undisturbed, {"device": "cpu", "workers": 2, "data_dir": "elsewhere"})
    assert campaign.pending(campaign.tasks(study())) == []
    assert campaign.results(study()).study.tables[0].scaled == {}


def test_folders_of_two_machines_are_merged_by_copying(undisturbed, tmp_path):
    for machine, only in (("a", "method=local"), ("b", "method=fedavg")):
        campaign = Campaign(tmp_path / machine)
        campaign.carry_out(campaign.tasks(study(), only=only))
    shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)
    assert summaries(tmp_path / "b") == summaries(undisturbed)


class Stopping:
    """Ends whatever is going on after so many rounds, as an error from outside would."""

    def __init__(self, rounds):
        self.left = rounds

    def round_done(self, checkpoint, record, groups):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def run_done(self, checkpoint, result):
        pass


@pytest.mark.parametrize("rounds", [1, 5, 11])
def test_an_interrupted_campaign_goes_on_and_ends_with_the_same_numbers(undisturbed, tmp_path, rounds):
    campaign = Campaign(tmp_path)
    stopping = Stopping(rounds)
    with pytest.raises(KeyboardInterrupt):
        campaign.carry_out(campaign.tasks(study()), watch=lambda task: [stopping])
    left = len(campaign.pending(campaign.tasks(study())))
    assert 0 < left <= 8
    assert campaign.carry_out(campaign.tasks(study())).done == left
    assert summaries(tmp_path) == summaries(undisturbed)


def test_an_interrupted_campaign_goes_on_wherever_it_is_computed(tmp_path):
    """Runs that were begun go on from where they were, and none is refused or repeated."""
    begun = study(options={**OPTIONS, "device": "auto", "workers": None, "rounds": 4})
    first = Campaign(tmp_path, {"engine": "vectorised"})
    tasks = first.tasks(begun)
    for task in tasks[:3]:
        with pytest.raises(KeyboardInterrupt):
            first.carry_out([task], watch=lambda task: [Stopping(2)])
    assert first.carry_out(tasks[3:4]).done == 1
    again = Campaign(tmp_path, {"device": "cpu", "workers": 0, "memory": 0.5, "engine": "loop"})
    first_rounds = {}

    @dataclass
    class Watching:
        name: str

        def round_done(self, checkpoint, record, groups):
            first_rounds.setdefault(self.name, checkpoint.federation["round"])

        def run_done(self, checkpoint, result):
            pass

    outcome = again.carry_out(again.tasks(begun), watch=lambda task: [Watching(task.name)])
    assert (outcome.done, outcome.failed) == (7, {})
    assert [first_rounds.get(task.name, 0) > 1 for task in tasks] == [True] * 3 + [False] * 5
    assert tasks[3].name not in first_rounds
    assert again.results(begun).missing == []
    for task in tasks:
        lines = (again.folder(task) / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    assert len([*(tmp_path / "runs").iterdir()]) == 8


def test_a_changed_rate_is_another_run(tmp_path):
    campaign = Campaign(tmp_path)
    tasks = campaign.tasks(study(), seeds=1)
    with pytest.raises(KeyboardInterrupt):
        campaign.carry_out(tasks[:1], watch=lambda task: [Stopping(2)])
    changed = Campaign(tmp_path, {"rate": 0.2, "device": "cpu"})
    other = changed.tasks(study(), seeds=1)
    assert {task.name for task in other}.isdisjoint(task.name for task in tasks)
    with pytest.raises(SettingsError, match=r"method.rate is 0.1 there, 0.2 here"):
        run(other[0].settings, campaign.folder(tasks[0]), resume=True)
    assert changed.carry_out(changed.tasks(study(), seeds=1)).done == 4
    assert changed.results(study()).study.tables[0].scaled == {"*": "with rate=0.2"}


def test_there_is_an_end_when_time_is_up(undisturbed, tmp_path, monkeypatch):
    campaign = Campaign(tmp_path)
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    outcome = campaign.carry_out(campaign.tasks(study()), seconds=60)
    assert outcome.time_up
    assert 0 < outcome.done < 8
    assert len(campaign.pending(campaign.tasks(study()))) == 8 - outcome.done
    monkeypatch.undo()
    assert not campaign.carry_out(campaign.tasks(study())).time_up
    assert summaries(tmp_path) == summaries(undisturbed)


def test_a_run_that_fails_does_not_keep_others_from_ending(tmp_path, monkeypatch):
    def fail(self, fed, state):
        raise CoterieError("no more")

    monkeypatch.setattr(FedAvg, "round", fail)
    campaign = Campaign(tmp_path)
    outcome = campaign.carry_out(campaign.tasks(study()))
    assert outcome.done == 4
    assert set(outcome.failed.values()) == {"no more"}
    assert campaign.results(study()).missing == [("even", "Mean"), ("skewed", "Mean")]


def test_a_world_that_is_wrong_fails_its_own_runs_only(tmp_path):
    wrong = study(options={**OPTIONS, "limit": None, "data": "mnist", "data_dir": str(tmp_path)})
    campaign = Campaign(tmp_path / "r")
    outcome = campaign.carry_out([*campaign.tasks(wrong), *campaign.tasks(study(), seeds=1)])
    assert outcome.done == 4
    assert len(outcome.failed) == 8


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("splits", [("bad", "even"), ("even", "bad")])
def test_a_split_that_is_impossible_fails_its_own_runs_only(tmp_path, monkeypatch, splits, together):
    monkeypatch.setattr(module, "RunBatch", partial(RunBatch, together=together))
    entries = {"bad": {"split": "label-skew", "classes": 11}, "even": {"split": "iid"}}
    mixed = study(axes={"split": {name: entries[name] for name in splits}, "method": METHODS})
    campaign = Campaign(tmp_path)
    outcome = campaign.carry_out(campaign.tasks(mixed))
    assert outcome.done == 4
    assert len(outcome.failed) == 4
    assert all("label-skew" in name and "classes=11" in why for name, why in outcome.failed.items())


def test_whatever_goes_wrong_in_a_method_fails_its_own_runs_only(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "round", lambda self, fed, state: 1 / 0)
    campaign = Campaign(tmp_path)
    outcome = campaign.carry_out(campaign.tasks(study()))
    assert outcome.done == 4
    (why,) = set(outcome.failed.values())
    assert why.startswith("ZeroDivisionError: division by zero (")
    assert "test_campaign.py, line " in why


def test_what_another_process_has_finished_meanwhile_is_left_alone(undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed, tmp_path / "r")
    campaign = Campaign(tmp_path / "r")
    monkeypatch.setattr(campaign, "pending", list)  # as it was before the other had come to the end
    outcome = campaign.carry_out(campaign.tasks(study()))
    assert (outcome.done, outcome.busy, outcome.failed) == (0, 0, {})
    for folder in (undisturbed / "runs").iterdir():
        for file in folder.iterdir():
            assert (tmp_path / "r" / "runs" / folder.name / file.name).read_bytes() == file.read_bytes()


def test_an_unfinished_copy_over_a_finished_run_is_noticed(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "r")
    campaign = Campaign(tmp_path / "r")
    task = campaign.tasks(study())[0]
    rounds = campaign.folder(task) / "rounds.jsonl"
    rounds.write_text(rounds.read_text().splitlines(keepends=True)[0])
    assert campaign.pending(campaign.tasks(study())) == [task]
    assert campaign.carry_out(campaign.tasks(study())).done == 1
    assert summaries(tmp_path / "r") == summaries(undisturbed)


@pytest.mark.parametrize(
    ("file", "text"),
    [("summary.json", '{"rounds": 3'), ("summary.json", "null"), ("rounds.jsonl", "{\n{}\n"), ("settings.toml", "")],
)
def test_a_damaged_run_counts_as_not_run_and_keeps_nothing_else_from_being_shown(
    undisturbed, tmp_path, caplog, file, text
):
    shutil.copytree(undisturbed, tmp_path / "r")
    campaign = Campaign(tmp_path / "r")
    folder = campaign.folder(campaign.tasks(study())[0])
    (folder / file).write_text(text)
    assert sum(map(len, campaign.results(study()).runs.values())) == 7
    assert f"{folder.name}: counts as not run" in caplog.text
    outcome = campaign.carry_out(campaign.tasks(study()))
    assert outcome.done == 0
    assert [*outcome.failed] == [folder.name]
    if file != "settings.toml":
        assert f"delete {folder} to start this run over" in outcome.failed[folder.name]


def test_a_round_that_is_done_when_time_is_up_is_not_lost(tmp_path):
    campaign = Campaign(tmp_path)
    tasks = campaign.tasks(study(), seeds=1, only="split=even,method=Mean")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            campaign.carry_out(tasks, watch=lambda task: [Stopping(1)])
    assert len((campaign.folder(tasks[0]) / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_split_by_a_file_is_found_again_wherever_the_file_lies(tmp_path, monkeypatch):
    (tmp_path / "who.csv").write_text("".join(f"{number % 3}\n" for number in range(300)))
    monkeypatch.chdir(tmp_path)
    given = study(axes={"split": {"own": {"split": "given", "assignment": "who.csv", "clients": 0}}, "method": METHODS})
    campaign = Campaign(tmp_path / "r")
    assert campaign.carry_out(campaign.tasks(given)).done == 4
    assert campaign.pending(campaign.tasks(given)) == []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert campaign.pending(campaign.tasks(given)) == []


def test_the_seed_of_a_split_makes_another_run_even_if_it_is_zero():
    own = study(axes={"split": {"follows": {"seed": 1}, "fixed": {"seed": 1, "split_seed": 0}}, "method": METHODS})
    names = [task.name for task in Campaign(None).tasks(own, seeds=1)]
    assert len({*names}) == 4


def test_seeds_are_counted_from_the_one_that_is_given():
    tasks = Campaign(None, {"seed": 5}).tasks(study())
    assert {task.settings.world.seed for task in tasks} == {5, 6}


def test_a_run_that_another_process_is_at_work_on_is_left_to_it(tmp_path):
    campaign = Campaign(tmp_path)
    tasks = campaign.tasks(study(), seeds=1)
    other = RunFolder(campaign.folder(tasks[0]), tasks[0].settings.resolved().table())
    fed = tasks[0].settings.world.federation()
    other.open(fed.net, True, fed.origin)
    outcome = campaign.carry_out(tasks)
    assert (outcome.done, outcome.busy, outcome.failed) == (3, 1, {})
    other.close()
    assert campaign.carry_out(tasks).done == 1


def test_of_two_that_go_on_with_a_run_one_is_refused(tmp_path):
    settings = Campaign(tmp_path).tasks(study())[0].settings
    fed = settings.world.federation()
    first, second = (RunFolder(tmp_path / "x", settings.resolved().table()) for _ in range(2))
    first.open(fed.net, True, fed.origin)
    with pytest.raises(BusyError, match="somebody else is at work"):
        second.open(fed.net, True, fed.origin)
    first.close()
    second.open(fed.net, True, fed.origin)
    second.close()


def test_batches_share_data_and_net_and_are_not_too_large():
    many = study(
        seeds=40,
        axes={"net": {"a": {"net": "mlp"}, "b": {"net": "logistic"}}, "method": METHODS},
        tables=[],
        options={**OPTIONS, "limit": None, "clients": 30, "participation": 0.5},
    )
    batches = list(module._batches(Campaign(None).tasks(many)))
    assert sum(map(len, batches)) == 160
    for batch in batches:
        assert len({task.settings.world.net for task in batch}) == 1
        assert 15 * len(batch) <= module._CLIENTS_AT_ONCE


@pytest.mark.slow
def test_kill_9_at_any_moment(undisturbed, tmp_path):
    """Killed in the middle of importing, splitting, training or writing, it goes on and ends with the same numbers."""
    file = tmp_path / "small.toml"
    file.write_text(tomli_w.dumps(content()))
    command = [sys.executable, "-m", "coterie", "study", "run", str(file), "--out", str(tmp_path / "results")]
    for seconds in (4.5, 5, 5.5, 6, 6.5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert summaries(tmp_path / "results") == summaries(undisturbed)


def test_measures_read_the_same_data_once_and_keep_no_clients(tmp_path, monkeypatch):
    read, loaded = [], settings_module._loaded
    monkeypatch.setattr(settings_module, "_loaded", lambda *given: (read.append(given), loaded(*given))[1])
    # Without a limit, which would pick other samples for every seed.
    options = {"clients": 4, "net": "logistic", "workers": 0, "device": "cpu", "split": "cafa-mixed"}
    axes = {"method": {"Labels": {"measure": "label-clusters"}}}
    table = {"title": "Clusters", "rows": ["method"], "columns": [], "values": {"accuracy": "accuracy"}}
    small = Study.of({"title": "Labels", "seeds": 3, "options": options, "axes": axes, "tables": [table]}, "labels")
    campaign = Campaign(tmp_path)
    tasks = list(campaign.tasks(small))
    assert campaign.carry_out(tasks).done == 3
    assert len(read) == 1
    assert not any("population" in task.settings.world.__dict__ for task in tasks)


def test_worlds_that_are_done_are_given_back(tmp_path, monkeypatch):
    made = []
    begin = RunBatch.__init__
    monkeypatch.setattr(
        RunBatch, "__init__", lambda self, *given, **more: (begin(self, *given, **more), made.append(self))[0]
    )
    campaign = Campaign(tmp_path)
    campaign.carry_out(campaign.tasks(study()))
    assert [len(batch._settings) for batch in made] == [8]
    assert not any("population" in one.world.__dict__ for one in made[0]._settings)
