"""Runs told to MLflow, TensorBoard and W&B, with their real libraries and stores on this machine."""

import importlib.util
import json
import logging
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.errors import CoterieError
from coterie.report import trackers
from coterie.report.trackers import MLflow, TensorBoard, Tracker, WandB, trackers_of
from coterie.runs.experiment import run
from coterie.runs.folder import StoredRun, read_lines
from coterie.runs.settings import Settings

TINY = {"clients": 4, "net": "logistic", "limit": 400, "rounds": 3, "clusters": 2}
FILES = {"report.html", "course.png", "clients.png"}
RECORDS = {"settings.toml", "summary.json", "rounds.jsonl", "clients.jsonl", "groups.jsonl"}


@dataclass
class Seen:
    """What a service knows of a run."""

    settings: dict[str, str]
    figures: dict[str, list[tuple[int, float]]]
    """For each name the rounds and the values, in the order of the rounds."""
    spreads: dict[str, set[int]]
    """For each name that is spread over clients, the rounds that it is known of."""
    groups: dict[int, str]
    """Who was grouped with whom in a round, as text."""
    files: set[str]


def seen_by_mlflow(folder: Path) -> Seen:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "tests"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    courses = {name: sorted((one.step, one.value) for one in own) for name, own in history.items()}
    spreads = {name.split("/")[1]: {step for step, _ in own} for name, own in courses.items() if name[:8] == "clients/"}
    there = Path(client.download_artifacts(found.info.run_id, ""))
    groups = {int(file.stem.split("-")[1]): file.read_text() for file in (there / "groups").iterdir()}
    files = {file.name for file in there.iterdir()}
    return Seen(found.data.params, courses, spreads, groups, files)


def seen_by_tensorboard(folder: Path) -> Seen:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    (place,) = {file.parent for file in folder.rglob("*tfevents*")}
    everything = EventAccumulator(str(place), dict.fromkeys(("histograms", "images", "scalars", "tensors"), 0))
    everything.Reload()
    tags = everything.Tags()
    figures = {name: [(event.step, event.value) for event in everything.Scalars(name)] for name in tags["scalars"]}
    spreads = {
        name.removeprefix("clients/"): {event.step for event in everything.Histograms(name)}
        for name in tags["histograms"]
    }

    def texts(name):
        return {event.step: str(make_ndarray(event.tensor_proto)[0].decode()) for event in everything.Tensors(name)}

    rows = (line.strip("| ").split(" | ") for line in texts("settings/text_summary")[0].splitlines()[2:])
    assert set(tags["images"]) == {"course", "clients"}
    files = {file.name for file in place.iterdir() if "tfevents" not in file.name}
    return Seen(dict(map(tuple, rows)), figures, spreads, texts("groups/text_summary"), files)


def seen_by_wandb(folder: Path) -> Seen:
    """What several offline folders of one run say together."""
    sys.modules["wandb"].teardown()  # only now is everything on the disk
    places = sorted((folder / "wandb").glob("offline-run-*"))
    assert len({place.name.split("-")[3] for place in places}) == 1
    figures, spreads, groups, settings = defaultdict(list), defaultdict(set), {}, {}
    for place in places:
        for record in _wandb_records(next(place.glob("*.wandb"))):
            settings |= {item.key: item.value_json.strip('"') for item in record.run.config.update}
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                if name.startswith("clients/"):
                    spreads[name.split("/")[1].split(".")[0]].add(row["round"])
                elif name == "members.path":
                    groups[row["round"]] = (place / "files" / value).read_text()
                elif isinstance(value, int | float) and name != "round" and name[0] != "_":
                    figures[name].append((row["round"], value))
    files = {file.name for file in (places[-1] / "files").iterdir()}
    return Seen(settings, dict(figures), dict(spreads), groups, files)


def _wandb_records(path: Path) -> list[Any]:
    """The records in a file of W&B, which is a log as LevelDB has it: blocks of 32 kB, parts with a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, records, begun = path.read_bytes(), 7, [], b""
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        begun += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the whole of a record, or its last part
            records.append(Record.FromString(begun))
            begun = b""
    return records


def installed(library: str):
    """A mark for tests of a service that is too heavy for everybody to install."""
    there = importlib.util.find_spec(library) is not None
    return [pytest.mark.slow, pytest.mark.skipif(not there, reason=f"needs {library}: install coterie[trackers]")]


SERVICES = [
    pytest.param(MLflow, seen_by_mlflow, marks=installed("mlflow"), id="mlflow"),
    pytest.param(TensorBoard, seen_by_tensorboard, id="tensorboard"),
    pytest.param(WandB, seen_by_wandb, marks=installed("wandb"), id="wandb"),
]
# Libraries of others, which say more than our tests may.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder in which all services have their stores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield tmp_path
    if "wandb" in sys.modules:  # it reads its variables once
        sys.modules["wandb"].teardown()


def settings(**more):
    return Settings.of({**TINY, **more}, "ifca")[0]


class StopAfter:
    """An observer that stops a run after a round."""

    def __init__(self, number):
        self.number = number

    def round_done(self, checkpoint, record, groups):
        if checkpoint.federation["round"] == self.number:
            raise KeyboardInterrupt

    def run_done(self, checkpoint, result):
        pass


def check_complete(seen: Seen, folder: Path, rounds: int, spread: bool = True) -> None:
    """Assert that a service knows all of a finished run, each round once."""
    stored = StoredRun.read(folder)
    assert [record["round"] for record in stored.rounds] == list(range(1, rounds + 1))
    for name, value in stored.rounds[-1].items():
        if name not in ("round", "seconds") and value is not None:  # what is done again takes another time
            told = [(record["round"], pytest.approx(record[name], rel=1e-6)) for record in stored.rounds]
            assert seen.figures[name] == told, name
    if spread:
        assert seen.spreads["accuracy"] == seen.spreads["loss"] == set(range(1, rounds + 1))
    for change in stored.groups:
        assert all(client["client"] in seen.groups[change["round"]] for client in stored.clients)
    down = stored.summary["ledger"]["down"]["model"]
    assert seen.figures["bytes/down/model"][-1] == (rounds, pytest.approx(down, rel=1e-6))
    assert float(seen.settings["method.clusters"]) == 2
    assert seen.settings["data.name"] == "digits"


@pytest.mark.parametrize(("service", "look"), SERVICES)
def test_a_service_is_told_all_of_a_run(service, look, here):
    tracked = run(settings(), here / "a", observers=[service()])
    plain = run(settings())
    seen = look(here)
    check_complete(seen, here / "a", 3)
    assert FILES | (set() if service is TensorBoard else RECORDS) <= seen.files
    assert [{**one, "seconds": 0} for one in tracked.rounds] == [{**one, "seconds": 0} for one in plain.rounds]


@pytest.mark.parametrize(("service", "look"), SERVICES)
def test_a_run_that_goes_on_does_so_at_the_service(service, look, here):
    with pytest.raises(KeyboardInterrupt):
        run(settings(), here / "a", observers=[service(), StopAfter(2)])
    # The service knows two rounds, the last checkpoint may be of the first: what is done again is told once.
    run(settings(), here / "a", resume=True, observers=[service()])
    run(settings(rounds=4), here / "a", resume=True, observers=[service()])
    check_complete(look(here), here / "a", 4)


@pytest.mark.parametrize(("service", "look"), SERVICES)
def test_a_tracker_that_comes_later_gets_what_was_before(service, look, here):
    with pytest.raises(KeyboardInterrupt):
        run(settings(), here / "a", observers=[StopAfter(2)])
    run(settings(), here / "a", resume=True, observers=[service()])
    check_complete(look(here), here / "a", 3, spread=False)


@pytest.mark.parametrize(("service", "look"), SERVICES[:1])
def test_mlflow_is_told_that_a_run_was_stopped(service, look, here):
    from mlflow import MlflowClient

    with pytest.raises(KeyboardInterrupt):
        run(settings(), here / "a", observers=[service(), StopAfter(1)])
    (noted,) = json.loads((here / "a" / trackers.NOTES).read_text()).values()
    assert noted["round"] == 1
    found = MlflowClient().get_run(noted["run"])
    assert found.info.status == "KILLED"
    assert found.info.run_name == "a"
    assert found.data.tags["coterie.folder"] == str(here / "a")


@pytest.mark.parametrize(("service", "look"), SERVICES[1:])
def test_runs_in_python_need_no_folder(service, look, here):
    fed = coterie.simulate(clients=3, net="logistic", limit=300)
    tracker = service(folder=here / "tensorboard" if service is TensorBoard else None)
    result = coterie.IFCA(rounds=2, clusters=2).fit(fed, observers=[tracker])
    seen = look(here)
    accuracy = [(record["round"], pytest.approx(record["accuracy_mean"], rel=1e-6)) for record in result.rounds]
    assert seen.figures["accuracy_mean"] == accuracy
    assert seen.files >= FILES


def test_each_run_in_python_has_a_folder_of_its_own(here):
    fed = coterie.simulate(clients=3, net="logistic", limit=300)
    tracker = coterie.trackers.TensorBoard("events")
    for _ in range(2):
        coterie.FedAvg(rounds=1).fit(fed, observers=[tracker])
    assert sorted(path.name for path in (here / "events").iterdir()) == ["fedavg-seed0", "fedavg-seed0-2"]


# What holds for every service, seen with one that only remembers


class Remembering(Tracker):
    """Remembers what it is told, and fails at one step if asked."""

    name, library = "memory", "json"

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.told, self.fails = [], fails

    def _step(self, step, *what):
        self.told.append((step, *what))
        if step == self.fails:
            raise OSError("no network\nand more")

    def open(self, beginning, run):
        self._step("open", run)
        return run or "first"

    def tell(self, number, figures, spreads):
        self._step("tell", number, dict(figures), dict(spreads))

    def group(self, number, groups):
        self._step("group", number, dict(groups))

    def keep(self, file):
        self._step("keep", file.name)

    def close(self, finished):
        self._step("close", finished)

    def steps(self, step):
        return [told[1] for told in self.told if told[0] == step]


@pytest.mark.parametrize("step", ["open", "tell", "group", "keep", "close"])
def test_a_service_that_fails_costs_a_warning(step, caplog, tmp_path):
    tracker = Remembering(step)
    result = run(settings(), tmp_path / "a", observers=[tracker])
    assert [record["round"] for record in result.rounds] == [1, 2, 3]
    assert (tmp_path / "a/summary.json").is_file()
    assert tracker.told[-1][0] == step, "it is left alone from then on"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["memory fails (OSError: no network): the run goes on without it"]


def test_a_damaged_note_costs_a_warning(caplog, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(settings(), tmp_path / "a", observers=[Remembering(), StopAfter(1)])
    (tmp_path / "a" / trackers.NOTES).write_text("{")
    run(settings(), tmp_path / "a", resume=True, observers=[Remembering()])
    assert "memory fails (JSONDecodeError" in caplog.text


def test_what_failed_in_one_run_is_tried_in_the_next(tmp_path):
    tracker = Remembering("tell")
    run(settings(), observers=[tracker])
    tracker.fails = ""
    run(settings(), observers=[tracker])
    assert tracker.steps("open") == ["", ""]
    assert tracker.steps("tell")[1:] == [1, 2, 3, 3]


def test_spreads_are_the_scores_of_all_clients(tmp_path):
    tracker = Remembering()
    result = run(settings(), observers=[tracker])
    *_, last, end = [told for told in tracker.told if told[0] == "tell"]
    np.testing.assert_allclose(last[3]["accuracy"], [client["accuracy"] for client in result.clients])
    assert last[3]["global_accuracy"].shape == (4,)
    assert end[3] == {}
    assert end[2]["pooled_accuracy"] == result.summary["pooled_accuracy"]
    (first, *_) = [told for told in tracker.told if told[0] == "group"]
    assert first[2] == dict(zip("0123", result.groups[0]["groups"], strict=True))


def test_a_run_that_is_stopped_is_closed_and_goes_on(tmp_path):
    stopped, later = Remembering(), Remembering()
    with pytest.raises(KeyboardInterrupt):
        run(settings(), tmp_path / "a", observers=[stopped, StopAfter(2)])
    assert stopped.told[-1] == ("close", False)
    run(settings(), tmp_path / "a", resume=True, observers=[later])
    assert later.told[0] == ("open", "first")
    assert later.steps("tell") == [3, 3]
    assert later.told[-1] == ("close", True)
    finished = Remembering()
    run(settings(), tmp_path / "a", resume=True, observers=[finished])
    assert finished.steps("tell") == [3]
    assert finished.steps("keep") == later.steps("keep")


def test_rounds_that_are_not_scored_are_not_told(tmp_path):
    tracker = Remembering()
    run(settings(evaluate_every=2), observers=[tracker])
    assert tracker.steps("tell") == [2, 3, 3]


def test_a_federation_of_unknown_settings_is_told_without_files():
    fed = coterie.simulate(clients=3, net="logistic", limit=300)
    fed.world = None
    tracker = Remembering()
    coterie.FedAvg(rounds=1).fit(fed, observers=[tracker])
    assert tracker.steps("tell") == [1, 1]
    assert tracker.steps("keep") == []


# On the command line


def test_runs_of_a_comparison_are_tracked_each(call, here):
    outcome = call(
        "compare local fedavg --clients 3 --net logistic --limit 300 --rounds 1 --out c --track tensorboard --json"
    )
    assert outcome.code == 0, outcome.err
    for name in ("local-seed0", "fedavg-seed0"):
        folder = here / "c" / name
        assert {file.name for file in (folder / "tensorboard").iterdir()} >= FILES
        assert json.loads((folder / trackers.NOTES).read_text())["tensorboard"]["round"] == 1
    assert len(call("show c").out.splitlines()) > 3


def test_a_run_is_tracked_and_goes_on_with_more_rounds(call, here):
    line = "run fedavg --clients 3 --net logistic --limit 300 --out a --track tensorboard --json --rounds"
    assert call(f"{line} 1").code == 0
    assert call(f"{line} 2 --resume").code == 0
    seen = seen_by_tensorboard(here)
    records = read_lines(here / "a/rounds.jsonl")
    assert [step for step, _ in seen.figures["accuracy_mean"]] == [record["round"] for record in records] == [1, 2]


def test_runs_of_a_study_are_tracked(call, here):
    call("study new mine.toml")
    line = "study run mine.toml --seeds 1 --only method=fedavg --rounds 1 --clients 4 --net logistic --limit 300"
    outcome = call(f"{line} --track tensorboard")
    assert outcome.code == 0, outcome.err
    assert list(here.glob("results/runs/*/tensorboard/report.html"))


@pytest.mark.parametrize("command", ["run fedavg", "compare fedavg", "reproduce cafa/table2"])
def test_trackers_that_are_not_there_are_refused(refused, command, monkeypatch):
    refused(f"{command} --track tensorbord", r"unknown tracker 'tensorbord': did you mean tensorboard\?")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    refused(f"{command} --track tensorboard", r"needs tensorboard: pip install 'coterie\[trackers\]'")


def test_trackers_are_made_for_each_run_anew(monkeypatch):
    made = trackers_of("tensorboard, tensorboard")
    assert [type(one) for one in made()] == [TensorBoard]
    assert made()[0] is not made()[0]
    assert trackers_of(None)() == []
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(CoterieError, match="needs mlflow"):
        coterie.trackers.MLflow()
