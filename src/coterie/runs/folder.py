"""A run is a folder that anyone can read with a text editor, and that a killed run goes on from.

settings.toml   everything that decides the run
origin.jsonl    which versions, device, commit and own data made it, a line more if a run went on with others
rounds.jsonl    one line per evaluated round, appended as it goes
groups.jsonl    who was grouped with whom, a line each time that changed
insights.jsonl  what the method found out, a line per evaluated round, if that was asked for
clients.jsonl   one line per client, at the end
summary.json    the last and the best round, at the end
models.safetensors  what clients predict with, at the end (see `coterie.server.served_models`)
checksums.json  checksums of the files above (see `coterie.runs.checksums`)
trackers.json   which runs of other services this one is told to, if it is (see `coterie.report.trackers`)
state/          the newest checkpoint
log.txt         over real sites: who came and went, and what went wrong
deployment/     over real sites: what is needed to go on

Checkpoints hold no clock, so that equal runs have equal checkpoints byte for byte; the time is in `state/clock.json`.
Records are appended before the checkpoint is written: when a run goes on, lines of later rounds are dropped. What is
damaged, and a checkpoint of a later round than there are records of, is refused.
"""

import hashlib
import json
import logging
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from coterie.core.display import Records
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.core.files import PART, StorageError, lock_folder, write_whole
from coterie.nets import codec
from coterie.nets.net import Net
from coterie.runs.checksums import CHECKSUMS, Checksums, check_folder
from coterie.runs.identity import differences
from coterie.runs.settings import as_toml, check_format, read_table
from coterie.server.fitting import Checkpoint, Record, Result
from coterie.server.metrics import remember
from coterie.server.served_models import ServedModels

MODELS = "models.safetensors"
"""The file of the models that clients predict with."""

ORIGIN = "origin.jsonl"
"""The file that says what has made a run."""

log = logging.getLogger("coterie")

SAVING = 0.1
"""Share of the time that saving checkpoints may take."""


class BusyError(SettingsError):
    """Somebody else is at work in a run folder."""


class FinishedError(SettingsError):
    """A run has come to its end, and nothing is kept that it could go on from."""


@dataclass(frozen=True)
class StoredRun:
    """What a run folder says."""

    path: Path
    settings: dict[str, Any]
    summary: Record | None
    rounds: list[Record]
    clients: list[Record]
    groups: list[Record]
    insights: list[Record] = field(default_factory=list)
    origin: list[Record] = field(default_factory=list)
    """Which versions, device and data made it; several if it went on with others."""

    @classmethod
    def read(cls, path: Path) -> "StoredRun":
        """The run in a folder, finished or not."""
        if not (path / "settings.toml").is_file():
            raise SettingsError(f"{path}: not a run folder (it has no settings.toml)")
        check_folder(path)
        return cls._as_it_is(path)

    @classmethod
    def _as_it_is(cls, path: Path) -> "StoredRun":
        settings = read_table(path / "settings.toml")
        check_format(settings)
        names = ("rounds", "clients", "groups", "insights", "origin")
        records = {name: read_lines(path / f"{name}.jsonl") for name in names}
        summary = _read_summary(path / "summary.json")
        remember(summary or {})
        return cls(path, settings, summary, **records)


class RunFolder:
    """Writes a run to its folder while it goes on. No other run is overwritten, and no file is ever half-written."""

    def __init__(
        self,
        path: Path,
        table: Mapping[str, Any],
        every_round: bool = False,
        saving: float = SAVING,
        keep_state: bool = True,
        tied_to_rounds: str = "this kind of run keeps to their number",
    ) -> None:
        """A folder for a run with these settings, as a table.

        A checkpoint is saved after every round with `every_round`, else as often as takes the share `saving` of the
        time. Without `keep_state` the last one is deleted when the run is finished. A run that is in the folder may get
        more rounds if nothing ties it to their number, of which the errors that refuse it say the reason.
        """
        self.path, self._table, self._every_round = path, dict(table), every_round
        self._saving, self._keep_state, self._tied_to_rounds = saving, keep_state, tied_to_rounds
        self._saved, self._cost = time.monotonic(), 0.0
        self._unlock: Callable[[], None] | None = None
        self._sums = Checksums(path)

    @property
    def _state(self) -> Path:
        return self.path / "state" / "checkpoint.safetensors"

    @property
    def _clock(self) -> Path:
        # Apart from the state: two runs with the same settings have the same state, but took different time.
        return self.path / "state" / "clock.json"

    def open(self, net: Net, resume: bool, origin: Mapping[str, str]) -> Checkpoint | None:
        """Make the folder, or with `resume` take up the run that is in it: its newest checkpoint, if there is one.

        `origin` is what computes now, and from which data (see `coterie.core.origin`).
        """
        if resume and (self.path / "settings.toml").is_file():
            self._claim()
            self._check_origin(origin)
            with self._writable():
                checkpoint = self._resume(net)
                self._note_origin(origin)
                self._sums.settle()
            return checkpoint
        # A run that was killed while it made its folder leaves these behind: another try may still begin.
        require_empty(self.path, but={"state", "log.txt", "deployment", CHECKSUMS} if resume else set())
        with self._writable():
            # This fails if the folder is there already: so of two runs that are started at once, one gets it.
            (self.path / "state").mkdir(parents=True, exist_ok=resume)
            write_whole(self.path / "settings.toml", tomli_w.dumps(self._table))
            write_whole(self.path / ORIGIN, _lines([dict(origin)]))
            for name in ("rounds.jsonl", "groups.jsonl"):
                write_whole(self.path / name, "")
            self._sums.settle()
        self._claim()
        return None

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """While the folder is made or taken up: what cannot be written is an error of one sentence."""
        try:
            yield
        except FileExistsError as error:
            raise SettingsError(f"out={self.path}: another run has just taken it") from error
        except StorageError:
            raise
        except OSError as error:
            raise SettingsError(f"out={self.path}: cannot be written ({error.strerror})") from error

    def _check_origin(self, origin: Mapping[str, str]) -> None:
        """Refuse to go on with other data than the run was begun with."""
        before = [made["data"] for made in read_lines(self.path / ORIGIN) if "data" in made]
        if before and before[-1] != origin.get("data"):
            raise SettingsError(
                f"out={self.path}: the data has changed since this run was begun; begin another in a new folder"
            )

    def _claim(self) -> None:
        """Keep other processes, and other runs of this one, out of the folder until it is closed."""
        self._unlock = self._unlock or lock_folder(self.path)
        if self._unlock is None:
            raise BusyError(f"out={self.path}: somebody else is at work on this run")

    def close(self) -> None:
        """Let others go on with the run."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _note_origin(self, origin: Mapping[str, str]) -> None:
        """Write down what computes, unless it is what did so before."""
        known = read_lines(self.path / ORIGIN)
        if not known or known[-1] != origin:
            self._sums.replace({ORIGIN: _lines([*known, dict(origin)])})

    def _resume(self, net: Net) -> Checkpoint | None:
        try:
            # Without a checkpoint the run starts over, with nothing but its settings.
            check_folder(self.path, None if self._state.is_file() else ["settings.toml"])
            stored = StoredRun._as_it_is(self.path)
            self._sums = Checksums.read(self.path) or self._sums
        except DataError as error:
            raise DataError(f"{error}; delete {self.path} to start this run over") from error
        begun_with = {**self._table, "method": {**self._table.get("method", {}), **_rounds_of(stored.settings)}}
        found = differences(begun_with, stored.settings)
        if found:
            more = "; ..." if len(found) > 3 else ""
            raise SettingsError(
                f"out={self.path}: holds a run with other settings ({'; '.join(found[:3])}{more}); "
                "continue it with its own, or choose another folder"
            )
        if not is_finished(self.path):  # an unfinished copy may have been written over a finished run
            self._reopen()
        elif not self._state.is_file():
            raise FinishedError(f"out={self.path}: this run is finished")
        if begun_with != self._table:
            self._lengthen(stored)
        (self.path / "state").mkdir(exist_ok=True)
        if not self._state.is_file():
            self._rewrite({name: [] for name in _written(stored)})
            return None
        try:
            content = codec.read(self._state, {net.name: net})
        except CoterieError as error:
            raise DataError(f"{error}; without this file the run starts over") from error
        last = content["federation"]["round"]
        records = {name: self._sound_lines(f"{name}.jsonl") for name in _written(stored)}
        self._check_records(stored.settings, records["rounds"], last)
        kept = {name: [record for record in found if record["round"] <= last] for name, found in records.items()}
        self._rewrite(kept)
        seconds = _read_clock(self._clock)
        found = content.get("findings", {})
        return Checkpoint(content["state"], content["federation"], seconds, **kept, findings=found)

    def _reopen(self) -> None:
        """Delete what is only written at the end."""
        self._sums.replace(dict.fromkeys(("summary.json", "clients.jsonl")))

    def _sound_lines(self, name: str) -> list[Record]:
        """The records of a file, as far as its checksum covers them: a checkpoint counts on no others."""
        return read_lines(self.path / name, self._sums.known(name))

    def _check_records(self, settings: Mapping[str, Any], rounds: Sequence[Record], last: int) -> None:
        """Refuse records that do not reach up to the round of the checkpoint: they are not of the same run any more."""
        every = settings.get("scoring", {}).get("evaluate_every", 1)
        there = {record.get("round") for record in rounds}
        if missing := [number for number in range(every, last + 1, every) if number not in there]:
            raise DataError(
                f"{self.path}: the checkpoint is of round {last}, and rounds.jsonl has nothing of round {missing[0]}; "
                f"restore both from one copy, or delete {self._state} to start this run over"
            )

    def _lengthen(self, stored: StoredRun) -> None:
        """Give the run in the folder as many rounds as these settings have; an error if it cannot go on to them."""
        ours, theirs = (_rounds_of(table).get("rounds", 0) for table in (self._table, stored.settings))
        begun = f"rounds={ours}: the run in {self.path} was begun with {theirs}"
        if ours < theirs:
            raise SettingsError(f"{begun}; it can get more, not fewer")
        if self._tied_to_rounds:
            raise SettingsError(
                f"{begun}, and {self._tied_to_rounds}: with more it is another run from its first round"
            )
        every = stored.settings.get("scoring", {}).get("evaluate_every", 1)
        if stored.summary is not None and theirs % every:
            log.warning("round %d was the last and so was scored; it stays between those of every %d", theirs, every)
        self._reopen()
        longer = {**stored.settings, "method": {**stored.settings["method"], "rounds": ours}}
        self._sums.replace({"settings.toml": tomli_w.dumps(longer)})

    def _rewrite(self, records: Mapping[str, Iterable[Record]]) -> None:
        """Drop lines of rounds that are not in the checkpoint: they will be run again, and written again."""
        files = {f"{name}.jsonl": _lines(lines) for name, lines in records.items()}
        self._sums.replace(
            {name: text for name, text in files.items() if name != "insights.jsonl" or (self.path / name).exists()}
        )

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """Append what is new, and save a checkpoint: after every round if told, else unless it takes too much time."""
        insight = checkpoint.insights[-1] if record is not None and checkpoint.insights else None
        for name, line in (("rounds.jsonl", record), ("groups.jsonl", groups), ("insights.jsonl", insight)):
            if line is not None:
                self._sums.append(name, _lines([line]))
        if self._every_round or (time.monotonic() - self._saved) * self._saving >= self._cost:
            self._save(checkpoint)

    def run_done(self, checkpoint: Checkpoint, result: Result) -> None:
        """Write what is known at the end."""
        self._save(checkpoint)
        _write_end(self.path, result, self._sums)
        if not self._keep_state:
            shutil.rmtree(self.path / "state")
        for folder in (self.path, self.path / "state"):
            for left in folder.glob(f"*{PART}"):  # by a process that was killed while it wrote
                left.unlink()

    def _save(self, checkpoint: Checkpoint) -> None:
        started = time.monotonic()
        self._sums.settle()
        content = {"state": checkpoint.state, "federation": checkpoint.federation}
        codec.write(self._state, content | ({"findings": checkpoint.findings} if checkpoint.findings else {}))
        seconds = round(checkpoint.seconds, 3)
        told = {"seconds": seconds, "sha256_of_seconds": _checksum_of(seconds)}
        write_whole(self._clock, json.dumps(told) + "\n", lasting=False)
        self._saved = time.monotonic()
        self._cost = self._saved - started


def _read_clock(path: Path) -> float:
    """How long the run had taken at its checkpoint; 0, and a word in the log, if that is lost."""
    try:
        told = json.loads(path.read_bytes())
        seconds = float(told["seconds"])
        if told.get("sha256_of_seconds", _checksum_of(seconds)) != _checksum_of(seconds):
            raise ValueError("it is not as it was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: cannot be used (%s); the time is counted anew", path, error)
        return 0.0
    return seconds


def _checksum_of(seconds: float) -> str:
    return hashlib.sha256(repr(seconds).encode()).hexdigest()


def _write_end(path: Path, result: Result, sums: Checksums) -> None:
    """Write what is known of a run at its end. The summary comes last: with it the run counts as finished."""
    if result.models is not None:
        result.models.write(path / MODELS)
    summary = json.dumps(result.summary, indent=2) + "\n"
    sums.replace({"clients.jsonl": _lines(result.clients), "summary.json": summary})


def save_result(result: Result, folder: str | Path) -> Path:
    """Write a result as the folder of a finished run, which `coterie show`, `report` and `export` read."""
    path = Path(folder)
    require_empty(path)
    if result.settings is None:
        raise SettingsError("this result does not know its settings: it was not made by `fit`")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / "settings.toml", tomli_w.dumps(as_toml(result.settings)))
        write_whole(path / ORIGIN, _lines([result.origin]))
        for name in ("rounds", "groups", "insights"):
            if name != "insights" or result.insights:
                write_whole(path / f"{name}.jsonl", _lines(getattr(result, name)))
        _write_end(path, result, Checksums(path))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, as its folder has it; what the method carried is not in it."""
    stored = StoredRun.read(Path(folder))
    if stored.summary is None:
        raise SettingsError(f"{folder}: this run is not finished; go on with `coterie run --resume --out {folder}`")
    models = models_in(stored) if (stored.path / MODELS).is_file() else None
    records = (Records(stored.rounds), Records(stored.clients), Records(stored.groups), Records(stored.insights))
    origin = next(reversed(stored.origin), {})
    return Result(
        stored.summary, *records, state=None, served=None, models=models, settings=stored.settings, origin=origin
    )


def models_in(stored: StoredRun) -> ServedModels:
    """The models that the clients of a stored run predict with."""
    path = stored.path / MODELS
    if path.is_file():
        return ServedModels.read(path)
    if stored.summary is None:
        place = shlex.quote(str(stored.path))
        raise SettingsError(f"{place}: this run is not finished; go on with `coterie run --resume --out {place}`")
    if "task" in stored.settings:
        raise SettingsError(f"{stored.path}: has no models; those of a run over real sites are at the sites")
    raise SettingsError(f"{stored.path}: its models were not kept (keep_models=false)")


def require_empty(folder: Path, but: Collection[str] = ()) -> None:
    """Refuse a folder in which there is something already."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"out={folder}: a file; choose a folder")
    if folder.exists() and any(child.name not in but and child.suffix != PART for child in folder.iterdir()):
        if (folder / "settings.toml").exists():
            raise SettingsError(f"out={folder}: holds another run; choose another folder, or go on with `run --resume`")
        raise SettingsError(f"out={folder}: is not empty; choose another folder")


def is_finished(path: Path) -> bool:
    """Whether the run in a folder has come to its end, and all of its rounds are there."""
    try:
        check_folder(path)
        summary = _read_summary(path / "summary.json")
        rounds = read_lines(path / "rounds.jsonl")
    except DataError:
        return False
    if summary is None or "rounds" not in summary:
        return summary is not None  # a measure has no rounds
    return bool(rounds) and rounds[-1].get("round") == summary["rounds"]


def read_lines(path: Path, size: int | None = None) -> list[Record]:
    """The records of a file, or of its first bytes, without a last line that was cut off when its writer was killed."""
    if not path.is_file():
        return []
    records = []
    lines = path.read_bytes()[:size].split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:
                break
            raise DataError(f"{path}: line {number + 1} is damaged ({error})") from error
    return records


def _written(stored: StoredRun) -> dict[str, list[Record]]:
    """The records that are written as a run goes, by the name of their file."""
    return {"rounds": stored.rounds, "groups": stored.groups, "insights": stored.insights}


def _rounds_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The number of rounds in settings, as an entry of a method's section; nothing if they do not say it."""
    return {name: value for name, value in settings.get("method", {}).items() if name == "rounds"}


def _read_summary(path: Path) -> Record | None:
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error})") from error
    if not isinstance(summary, dict):
        raise DataError(f"{path}: damaged (no table)")
    return summary


def _lines(records: Iterable[Record]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
