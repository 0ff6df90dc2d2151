"""Run folders: what is in them, and that a run that was killed goes on as if nothing had happened."""

import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.nets import codec
from coterie.runs.experiment import run
from coterie.runs.folder import FinishedError, RunFolder, StoredRun, load_result, models_in, read_lines, require_empty
from coterie.runs.settings import Settings

TINY = {"clients": 5, "net": "logistic", "limit": 400, "rounds": 7, "epochs": 0.5}

VARIANTS = {
    "local": ("local", {}),
    "momentum": ("fedavg", {"server_momentum": 0.9}),
    "some clients": ("fedavg", {"participation": 0.4}),
    "some clients alone": ("local", {"participation": 0.4, "momentum": 0.5}),
    "rarely evaluated": ("fedavg", {"evaluate_every": 3}),
    "never evaluated before the end": ("local", {"evaluate_every": 100}),
    "schedule": ("fedprox", {"schedule": "cosine", "mu": 0.1}),
    "all views": ("fedavg", {"views": ("served", "adapted", "last"), "global_test": True}),
    "late": ("fedavg", {"arrivals": "1:3,2:6"}),
    "insights": ("autocfl", {"insights": True, "evaluate_every": 2}),
    "a net with buffers": ("fedavg", {"net": "coterie_test_nets:normed"}),
}


@pytest.fixture(autouse=True)
def normed_net(tmp_path, monkeypatch):
    """A net with batch normalisation, under a name that can be imported."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/coterie_test_nets.py").write_text(
        "from torch import nn\n"
        "def normed(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "path")


def settings_of(variant):
    method, options = VARIANTS[variant]
    return Settings.of({**TINY, **options}, method)[0]


def timeless(value):
    """The same without what the clock decides."""
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if not name.endswith("seconds")}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def content(folder):
    """Everything in a run folder, byte by byte but for keys that end in `seconds`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "checksums.json":  # also of what the clock decides
            continue
        if path.suffix == ".jsonl":
            found[path.name] = [json.dumps(timeless(json.loads(line))) for line in path.read_text().splitlines()]
        elif path.suffix == ".json":
            found[path.name] = json.dumps(timeless(json.loads(path.read_text())))
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found


class InterruptError(Exception):
    """What stops a run in these tests."""


class StopAfter:
    """Stops a run when its folder has written a round: before it hears of the next one, or of the end."""

    def __init__(self, number):
        self.number = number

    def round_done(self, checkpoint, record, groups):
        if checkpoint.federation["round"] > self.number:
            raise InterruptError

    def run_done(self, checkpoint, result):
        raise InterruptError


def interrupted(settings, folder, after, resume=False, **more):
    """A run that stops after a round."""
    with pytest.raises(InterruptError):
        run(settings, folder, resume, observers=[StopAfter(after)], **more)


# What is in a folder


@pytest.fixture
def finished(tmp_path):
    run(Settings.of({**TINY, "split": "autocfl-label", "views": ("adapted", "last")}, "fedavg")[0], tmp_path / "run")
    return tmp_path / "run"


def test_a_run_is_these_files(finished):
    files = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    assert files == {
        "settings.toml",
        "origin.jsonl",
        "rounds.jsonl",
        "groups.jsonl",
        "clients.jsonl",
        "summary.json",
        "models.safetensors",
        "checksums.json",
        "state/checkpoint.safetensors",
        "state/clock.json",
    }


def test_settings_are_complete_and_say_their_format(finished):
    settings = tomllib.loads((finished / "settings.toml").read_text())
    assert settings["format"] == 1
    assert settings["coterie"] == coterie.__version__
    assert settings["net"] == "logistic"
    assert settings["data"]["labels"] == list("0123456789")
    assert settings["method"]["rate"] == 0.1
    assert set(settings) >= {"seed", "split", "division", "scoring", "computing"}


ROUND = [
    *("round", "accuracy_mean", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_worst_tenth"),
    *("loss_mean", "validation_accuracy", "steps_mean", "groups"),
    *("bytes_up", "bytes_down", "bytes_peer", "bytes_evaluation", "seconds"),
    *("global_accuracy_mean", "global_accuracy_min", "global_accuracy_max"),
]


def test_a_line_of_rounds_has_these_keys(finished):
    for line in (finished / "rounds.jsonl").read_text().splitlines():
        assert list(json.loads(line)) == [*ROUND, "accuracy_adapted_mean", "accuracy_last_mean"]


def test_a_line_of_clients_has_these_keys(finished):
    lines = (finished / "clients.jsonl").read_text().splitlines()
    assert len(lines) == 5
    for line in lines:
        assert set(json.loads(line)) == {
            *("client", "samples", "test_samples", "true_group", "group_found", "accuracy", "loss"),
            *("global_accuracy", "accuracy_adapted", "accuracy_last", "steps", "rounds_taken_part"),
        }


def test_a_summary_has_these_keys(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary) == {
        *("method", "data", "split", "net", "clients", "rounds", "seed", "parameters", "best_round", "ledger"),
        *("ari", "nmi", "purity", "placed_right", "stable_since"),
        *ROUND[1:],
        *("accuracy_adapted_mean", "accuracy_last_mean", "metrics", "pooled_accuracy"),
    }
    assert list(summary["best_round"]) == [*ROUND, "accuracy_adapted_mean", "accuracy_last_mean"]


def test_times_are_only_under_keys_that_end_in_seconds(finished, tmp_path):
    run(Settings.from_table(tomllib.loads((finished / "settings.toml").read_text())), tmp_path / "again")
    assert content(finished) == content(tmp_path / "again")


def test_a_stored_run_is_what_was_written(finished):
    stored = StoredRun.read(finished)
    assert stored.summary["method"] == "fedavg"
    assert [record["round"] for record in stored.rounds] == list(range(1, 8))
    assert [record["client"] for record in stored.clients] == list("01234")
    assert stored.groups == [{"round": 1, "groups": [0] * 5}]
    assert stored.settings["method"]["rounds"] == 7


def test_a_run_says_what_made_it(finished):
    (origin,) = StoredRun.read(finished).origin
    assert origin["torch"] == torch.__version__
    assert origin["python"] == platform.python_version()
    assert origin["device"] == "cpu"
    assert "data" not in origin  # published data has a name
    assert load_result(finished).origin == origin


def test_a_run_that_goes_on_elsewhere_says_so_too(tmp_path, monkeypatch):
    interrupted(settings_of("local"), tmp_path / "run", after=2)
    monkeypatch.setattr("platform.python_version", lambda: "3.99")
    interrupted(settings_of("local"), tmp_path / "run", after=4, resume=True)
    run(settings_of("local"), tmp_path / "run", resume=True)
    first, second = StoredRun.read(tmp_path / "run").origin
    assert first["python"] != second["python"] == "3.99"


def test_a_run_does_not_go_on_with_other_data_than_it_was_begun_with(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    made = {"data": str(tmp_path / "own.npz"), "net": "mlp", "split": "iid", "clients": 3, "rounds": 5}
    interrupted(Settings.of(made, "local")[0], tmp_path / "run", after=2)
    (origin,) = StoredRun.read(tmp_path / "run").origin
    assert len(origin["data"]) == 64
    np.savez(tmp_path / "own.npz", x=x, y=(y + 1) % 3)
    before = content(tmp_path / "run")
    with pytest.raises(SettingsError, match="the data has changed since this run was begun"):
        run(Settings.of(made, "local")[0], tmp_path / "run", resume=True)
    assert content(tmp_path / "run") == before
    np.savez_compressed(tmp_path / "own.npz", x=x, y=y)  # another file, the same data
    run(Settings.of(made, "local")[0], tmp_path / "run", resume=True)


def test_what_was_not_measured_is_null(tmp_path):
    result = run(Settings.of({**TINY, "test_share": 0.0, "validation": 0.0}, "local")[0], tmp_path / "run")
    assert result.summary["accuracy_mean"] is None
    assert result.summary["best_round"] is None
    for path in (tmp_path / "run").glob("*.json*"):
        assert "NaN" not in path.read_text()
        assert "Infinity" not in path.read_text()


# Going on


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_unbroken_one(tmp_path, variant):
    settings = settings_of(variant)
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after=4)
    assert not (tmp_path / "broken/summary.json").exists()
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


@pytest.mark.parametrize("after", [1, 6, 7])
def test_it_does_not_matter_when_a_run_was_stopped(tmp_path, after):
    settings = settings_of("momentum")
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after)
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


def test_a_run_may_be_stopped_again_and_again(tmp_path):
    settings = settings_of("some clients alone")
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after=2)
    for after in (3, 6):
        interrupted(settings, tmp_path / "broken", after, resume=True)
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


LONGER = ["local", "momentum", "some clients", "some clients alone", "all views", "late", "a net with buffers"]


@pytest.mark.parametrize("variant", LONGER)
def test_a_run_that_is_made_longer_is_the_one_that_was_so_long_from_its_beginning(tmp_path, variant):
    method, options = VARIANTS[variant]
    for rounds in (6, 9):  # the longest is the one that the folder `whole` has
        longer = Settings.of({**TINY, **options, "rounds": rounds}, method)[0]
        run(longer, tmp_path / "made", resume=True)
    run(longer, tmp_path / "whole")
    assert content(tmp_path / "made") == content(tmp_path / "whole")


def test_a_run_that_was_stopped_may_be_made_longer_too(tmp_path):
    settings = settings_of("momentum")
    with pytest.raises(InterruptError):
        run(settings, tmp_path / "made", observers=[StopAfter(4)])
    longer = Settings.of({**TINY, **VARIANTS["momentum"][1], "rounds": 9}, "fedavg")[0]
    run(longer, tmp_path / "made", resume=True)
    run(longer, tmp_path / "whole")
    assert content(tmp_path / "made") == content(tmp_path / "whole")


def test_a_run_that_is_made_longer_keeps_the_score_of_the_round_that_was_its_last(tmp_path, caplog):
    rarely = {**TINY, "evaluate_every": 3}
    run(Settings.of(rarely, "fedavg")[0], tmp_path / "made")
    made = run(Settings.of({**rarely, "rounds": 10}, "fedavg")[0], tmp_path / "made", resume=True)
    whole = run(Settings.of({**rarely, "rounds": 10}, "fedavg")[0], tmp_path / "whole")
    assert [record["round"] for record in made.rounds] == [3, 6, 7, 9, 10]
    assert made.rounds[-1]["loss_mean"] == whole.rounds[-1]["loss_mean"]
    assert "round 7 was the last and so was scored; it stays between those of every 3" in caplog.text


@pytest.mark.parametrize(
    ("options", "rounds", "message"),
    [
        ({}, 5, "rounds=5: the run in .* was begun with 7; it can get more, not fewer"),
        (
            {"schedule": "cosine"},
            9,
            "was begun with 7, and schedule=cosine lowers the rate to zero until the last round",
        ),
        ({"schedule": "steps"}, 9, "schedule=steps lowers the rate after parts of all rounds: with more it is another"),
    ],
)
def test_a_run_that_is_tied_to_its_rounds_is_not_made_longer(tmp_path, options, rounds, message):
    run(Settings.of({**TINY, **options}, "fedavg")[0], tmp_path / "made")
    before = content(tmp_path / "made")
    with pytest.raises(SettingsError, match=message):
        run(Settings.of({**TINY, **options, "rounds": rounds}, "fedavg")[0], tmp_path / "made", resume=True)
    assert content(tmp_path / "made") == before


def test_a_finished_run_of_which_no_state_was_kept_is_not_made_longer(tmp_path):
    run(Settings.of(TINY, "fedavg")[0], tmp_path / "made", keep_state=False)
    with pytest.raises(FinishedError, match="this run is finished"):
        run(Settings.of({**TINY, "rounds": 9}, "fedavg")[0], tmp_path / "made", resume=True)


def test_a_finished_run_stays_as_it_is(tmp_path):
    settings = settings_of("local")
    first = run(settings, tmp_path / "run")
    before = content(tmp_path / "run")
    lines = (tmp_path / "run/rounds.jsonl").read_bytes()
    again = run(settings, tmp_path / "run", resume=True)
    assert content(tmp_path / "run") == before
    assert (tmp_path / "run/rounds.jsonl").read_bytes() == lines
    assert again.summary == first.summary


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_that_was_cut_off_is_written_again(tmp_path, cut):
    settings = settings_of("momentum")
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after=4)
    rounds = tmp_path / "broken/rounds.jsonl"
    rounds.write_bytes(rounds.read_bytes() + (tmp_path / "unbroken/rounds.jsonl").read_bytes().splitlines()[4][:cut])
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


def test_rounds_after_the_checkpoint_are_run_again(tmp_path):
    settings = settings_of("momentum")
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after=2)
    checkpoint = (tmp_path / "broken/state/checkpoint.safetensors").read_bytes()
    interrupted(settings, tmp_path / "later", after=5)
    (tmp_path / "later/state/checkpoint.safetensors").write_bytes(checkpoint)
    run(settings, tmp_path / "later", resume=True)
    assert content(tmp_path / "later") == content(tmp_path / "unbroken")


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(tmp_path):
    settings = settings_of("local")
    run(settings, tmp_path / "unbroken")
    interrupted(settings, tmp_path / "broken", after=2)
    state = tmp_path / "broken/state"
    (state / "checkpoint.safetensors").rename(state / "checkpoint.safetensors.part")
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


def test_a_run_that_was_killed_while_it_made_its_folder_starts_over(tmp_path):
    settings = settings_of("local")
    (tmp_path / "broken/state").mkdir(parents=True)
    (tmp_path / "broken/settings.toml.123.part").write_text("format = ")
    (tmp_path / "broken/state/clock.json.123.part").touch()
    run(settings, tmp_path / "broken", resume=True)
    run(settings, tmp_path / "unbroken")
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")


def test_many_may_write_one_file(tmp_path):
    code = "import pathlib, sys; from coterie.runs.folder import write_whole\n"
    code += "for _ in range(300): write_whole(pathlib.Path(sys.argv[1]), sys.argv[2])"
    words = ["one " * 500, "two " * 500]
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "x"), word]) for word in words]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert (tmp_path / "x").read_text() in words
    assert not [*tmp_path.glob("*.part")]


def test_checkpoints_take_no_more_than_a_tenth_of_the_time(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("coterie.runs.folder.time.monotonic", lambda: next(clock))
    saved = []
    original = RunFolder._save

    def save(self, checkpoint):
        saved.append(checkpoint.federation["round"])
        original(self, checkpoint)

    monkeypatch.setattr(RunFolder, "_save", save)
    run(Settings.of({**TINY, "rounds": 30}, "local")[0], tmp_path / "run")
    # Every look at the clock takes ten seconds here, and so does saving: it waits a hundred, ten looks, each time.
    assert saved == [1, 11, 21, 30]


# Bad folders


def test_a_run_from_before_a_setting_was_there_goes_on(tmp_path):
    settings = settings_of("momentum")
    run(settings, tmp_path / "whole")
    interrupted(settings, tmp_path / "broken", 3)
    file = tmp_path / "broken" / "settings.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("strict", "insights"))]
    assert len(lines) == len(file.read_text().splitlines()) - 2
    file.write_text("\n".join(lines))
    (tmp_path / "broken" / "checksums.json").unlink()  # there were none then, either
    stricter = Settings.of({**TINY, "server_momentum": 0.9, "strict": True}, "fedavg")[0]
    with pytest.raises(SettingsError, match=r"computing.strict is False there, True here"):
        run(stricter, tmp_path / "broken", resume=True)
    run(settings, tmp_path / "broken", resume=True)
    assert timeless(StoredRun.read(tmp_path / "broken").summary) == timeless(StoredRun.read(tmp_path / "whole").summary)


def test_a_run_goes_on_in_another_way_of_computing(tmp_path):
    method, given = VARIANTS["momentum"]
    begun, other = (
        Settings.of({**TINY, **given, **computing}, method)[0]
        for computing in ({"device": "auto"}, {"device": "cpu", "workers": 0, "engine": "loop"})
    )
    interrupted(begun, tmp_path / "broken", 3)
    result = run(other, tmp_path / "broken", resume=True)
    assert [record["round"] for record in result.rounds] == [*range(1, 8)]
    faster = Settings.of({**TINY, **given, "rate": 0.7, "device": "cpu"}, method)[0]
    with pytest.raises(SettingsError, match=r"other settings \(method.rate is 0.1 there, 0.7 here\)"):
        run(faster, tmp_path / "broken", resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path):
    interrupted(settings_of("local"), tmp_path / "a", after=3)
    (tmp_path / "a/state/checkpoint.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"checkpoint.safetensors: .*; without this file the run starts over"):
        run(settings_of("local"), tmp_path / "a", resume=True)
    (tmp_path / "a/state/checkpoint.safetensors").unlink()
    run(settings_of("local"), tmp_path / "a", resume=True)
    run(settings_of("local"), tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def flipped(folder, rng):
    """Flip one bit somewhere in a folder; gives the file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    file = files[rng.integers(len(files))]
    held = bytearray(file.read_bytes())
    held[rng.integers(len(held))] ^= 1 << rng.integers(8)
    file.write_bytes(held)
    return file


@pytest.mark.parametrize("after", [3, None])
def test_every_bit_that_flips_is_noticed_or_without_effect(tmp_path, caplog, after):
    settings = Settings.of({**TINY, "rounds": 4, "insights": True}, "ifca")[0]
    run(settings, tmp_path / "whole")
    if after is None:
        shutil.copytree(tmp_path / "whole", tmp_path / "made")
    else:
        interrupted(settings, tmp_path / "made", after=after)
    expected, stored = content(tmp_path / "whole"), StoredRun.read(tmp_path / "made")
    rng, noticed = np.random.default_rng(0), 0
    for trial in range(60):
        folder = tmp_path / f"trial {trial}"
        shutil.copytree(tmp_path / "made", folder)
        file = flipped(folder, rng)
        caplog.clear()
        if after is None:  # of a run that goes on, records since the last checkpoint are not covered yet
            try:
                assert vars(StoredRun.read(folder)) | {"path": stored.path} == vars(stored), file
            except CoterieError:
                noticed += 1
            if file.name == "models.safetensors":
                with pytest.raises(DataError):
                    models_in(StoredRun.read(folder))
        try:
            run(settings, folder, resume=True)
        except CoterieError:
            noticed += 1
        else:
            assert content(folder) == expected, file
    assert noticed > 20


def test_a_checkpoint_that_is_newer_than_its_records_is_refused(tmp_path):
    settings = settings_of("momentum")
    interrupted(settings, tmp_path / "older", after=2, saving=1e9)
    interrupted(settings, tmp_path / "newer", after=5, saving=1e9)
    shutil.copytree(tmp_path / "newer/state", tmp_path / "older/state", dirs_exist_ok=True)
    with pytest.raises(DataError, match=r"the checkpoint is of round \d, and rounds.jsonl has nothing of round 4;"):
        run(settings, tmp_path / "older", resume=True)
    (tmp_path / "older/state/checkpoint.safetensors").unlink()
    run(settings, tmp_path / "older", resume=True)
    run(settings, tmp_path / "whole")
    assert content(tmp_path / "older") == content(tmp_path / "whole")


def test_a_folder_from_before_there_were_checksums_is_read_and_goes_on(tmp_path):
    settings = settings_of("momentum")
    run(settings, tmp_path / "whole")
    interrupted(settings, tmp_path / "broken", after=4)
    state = tmp_path / "broken/state/checkpoint.safetensors"
    state.write_bytes(codec.dump(codec.read(state, {settings.world.net_name: settings.world.federation().net})))
    (tmp_path / "broken/checksums.json").unlink()
    (tmp_path / "broken/state/clock.json").write_text('{"seconds": 1.0}\n')
    assert len(StoredRun.read(tmp_path / "broken").rounds) >= 3
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_a_disk_that_is_full_at_any_write_is_an_error_of_one_sentence_and_nothing_is_lost(
    tmp_path, monkeypatch, number
):
    settings = Settings.of({**TINY, "rounds": 3}, "fedavg")[0]
    run(settings, tmp_path / "whole")
    count, sync = iter(range(1000)), os.fsync

    def full(descriptor):
        if next(count) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CoterieError, match=r"cannot be written \(No space left on device\)$"):
        run(settings, tmp_path / "broken")
    monkeypatch.setattr(os, "fsync", sync)
    run(settings, tmp_path / "broken", resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_a_folder_that_became_read_only_is_an_error_of_one_sentence(tmp_path, monkeypatch):
    settings = settings_of("local")
    interrupted(settings, tmp_path / "run", after=3)

    def refused(path, mode="r", *arguments, **more):
        if set(mode) & set("wa+x"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, mode, *arguments, **more)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CoterieError, match=r"^[^\n]*cannot be written \(Read-only file system\)$"):
        run(settings, tmp_path / "run", resume=True)


def test_records_are_on_the_disk_before_the_checkpoint_that_counts_on_them(tmp_path, monkeypatch):
    done, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda one: (done.append(Path(f"/proc/self/fd/{one}").readlink()), sync(one)))
    run(Settings.of({**TINY, "rounds": 1}, "fedavg")[0], tmp_path / "run")
    names = [path.name.split(f".{os.getpid()}")[0] for path in done]
    assert names.index("rounds.jsonl") < names.index("checksums.json") < names.index("checkpoint.safetensors")
    assert names[names.index("checkpoint.safetensors") + 1] == "state"  # the folder, with the file's name in it


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(SettingsError, match="is not empty; choose another folder"):
            run(settings_of("local"), tmp_path / "mine", resume=resume)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_of_two_runs_that_want_a_folder_one_gets_it(tmp_path, monkeypatch):
    settings = settings_of("local")
    monkeypatch.setattr("coterie.runs.folder.require_empty", lambda folder, but: None)  # both looked at the same time
    (tmp_path / "a/state").mkdir(parents=True)
    with pytest.raises(SettingsError, match="another run has just taken it"):
        run(settings, tmp_path / "a")


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "new").mkdir()
    require_empty(tmp_path / "new")
    require_empty(tmp_path / "not there")
    run(settings_of("local"), tmp_path / "new")
    assert StoredRun.read(tmp_path / "new").summary is not None


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"round": 1}\n\xff\n{"round": 3}\n')
    with pytest.raises(DataError, match=r"x.jsonl: line 2 is damaged"):
        read_lines(tmp_path / "x.jsonl")


# kill -9


def kill_in_the_middle(folder, lines, options):
    """Run the command line as a program of its own and kill it when so many rounds have been written."""
    program = subprocess.Popen(
        [sys.executable, "-m", "coterie", "run", *options, "--out", folder],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    rounds = folder / "rounds.jsonl"
    until = time.monotonic() + 60
    while not rounds.exists() or rounds.read_bytes().count(b"\n") < lines:
        assert program.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.001)
    program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "options",
    [
        ["local", "--participation", "0.5"],
        ["fedavg", "--server-momentum", "0.9", "--evaluate-every", "2"],
    ],
    ids=["local", "fedavg"],
)
def test_a_killed_run_goes_on_to_the_last_bit(tmp_path, call, options):
    options = [*options, "--rounds", "40", "--batch", "8", "--clients", "5", "--net", "mlp", "--split", "autocfl-label"]
    kill_in_the_middle(tmp_path / "killed", 5, options)
    assert not (tmp_path / "killed/summary.json").exists()
    assert call("run --resume --out killed").code == 0
    assert call(f"run {' '.join(options)} --out unbroken").code == 0
    assert content(tmp_path / "killed") == content(tmp_path / "unbroken")
