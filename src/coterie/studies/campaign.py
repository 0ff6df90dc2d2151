"""Carrying out studies: which runs are needed, which are there, and doing the rest.

Every run has a folder whose name says what decides its outcome, so that studies share runs, several processes and
machines can work on one study, and whatever was interrupted goes on where it stopped. A run folder is locked while
somebody is at work in it. A run counts as finished if its summary and all of its rounds are there, and then keeps no
checkpoint. Measures are done first, one after another, then runs in batches with the same data, net and way of
computing.
"""

import json
import logging
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole
from coterie.runs.batch import RunBatch
from coterie.runs.folder import BusyError, FinishedError, StoredRun, is_finished
from coterie.runs.identity import changes_results
from coterie.runs.settings import Settings, World, read_table
from coterie.server.fitting import Checkpoint, Observer, Record, Result
from coterie.studies.study import Measuring, Place, Study, StudyTask

log = logging.getLogger("coterie")

_CLIENTS_AT_ONCE = 640
"""Clients that take part in a round, over all runs that are computed together. It bounds memory, and how long it takes
until the first runs of a large study have ended; other bounds were not tried."""

_CLIENTS_UNKNOWN = 100
"""How many clients are assumed for a split that only knows from its data how many it makes."""


class _TimeUpError(BaseException):
    """There is no time left. It is no `Exception`, so that nothing takes it for an error of a run."""


@dataclass
class Outcome:
    """How a campaign ended."""

    done: int = 0
    """Runs that were finished in it."""
    failed: dict[str, str] = field(default_factory=dict)
    """Runs that failed, and why."""
    elsewhere: list[StudyTask] = field(default_factory=list)
    """Runs that another process was working on."""
    busy: int = 0
    """How many of these were still not finished when the campaign ended."""
    time_up: bool = False


@dataclass(frozen=True)
class Results:
    """The finished runs of a study, and the places that it leaves out."""

    study: Study
    seeds: int
    runs: Mapping[Place, list[StoredRun]]
    """Finished runs by place, in the order of their seeds."""
    skipped: Mapping[Place, str]
    """Places that the study leaves out, and why."""

    @property
    def missing(self) -> list[Place]:
        """Places without any finished run."""
        return [place for place, runs in self.runs.items() if not runs]


class Campaign:
    """Runs of studies in one folder."""

    def __init__(self, out: Path, given: Mapping[str, Any] | None = None, keep_models: bool = False) -> None:
        """`given` are options that replace those of the studies. `keep_models` stores what clients predict with."""
        self.out, self._given, self.keep_models = out, dict(given or {}), keep_models

    def tasks(self, study: Study, seeds: int | None = None, only: str | None = None) -> list[StudyTask]:
        """The runs of a study, all methods of a seed before the next seed, so that what is there can be compared."""
        cells = [cell for cell in study.cells(only) if not cell.skip]
        return [cell.task(seed, self._given, study.methods) for seed in range(seeds or study.seeds) for cell in cells]

    def folder(self, task: StudyTask) -> Path:
        """Where a run is or will be."""
        return self.out / "runs" / task.name

    def pending(self, tasks: Iterable[StudyTask]) -> list[StudyTask]:
        """The tasks whose runs are not finished yet; tasks with the same run folder count once."""
        distinct = {task.name: task for task in tasks}
        return [task for task in distinct.values() if not self._finished(task)]

    def _finished(self, task: StudyTask) -> bool:
        folder = self.folder(task)
        if not (folder / "summary.json").is_file() or not is_finished(folder):
            return False
        try:
            return task.agrees(read_table(folder / "settings.toml"))
        except CoterieError:
            return False

    def results(self, study: Study, seeds: int | None = None, only: str | None = None) -> Results:
        """The finished runs of a study."""
        runs: dict[Place, list[StoredRun]] = {}
        skipped = {}
        for cell in study.cells(only):
            if cell.skip:
                skipped[cell.labels] = cell.skip
                continue
            tasks = [cell.task(seed, self._given, study.methods) for seed in range(seeds or study.seeds)]
            runs[cell.labels] = [run for task in tasks if (run := self._stored(task))]
        scaled = study.scaled({name: value for name, value in self._given.items() if changes_results(name)})
        return Results(scaled, seeds or study.seeds, runs, skipped)

    def _stored(self, task: StudyTask) -> StoredRun | None:
        """The run of a task if it is finished; one that is damaged or has other settings counts as not run."""
        folder = self.folder(task)
        try:
            if self._finished(task):
                return StoredRun.read(folder)
        except CoterieError as error:
            log.warning("%s: counts as not run (%s)", folder, error)
            return None
        if (folder / "summary.json").is_file():
            log.warning("%s: counts as not run: it is damaged, or was run with other settings", folder)
        return None

    def carry_out(
        self,
        tasks: Iterable[StudyTask],
        seconds: float | None = None,
        watch: "Callable[[StudyTask], Sequence[Observer]]" = lambda task: (),
    ) -> Outcome:
        """Run what is not finished yet, for at most `seconds`. A run that fails does not stop the others."""
        until = None if seconds is None else time.monotonic() + seconds
        outcome = Outcome()
        pending = self.pending(tasks)
        try:
            world: World | None = None
            for task in pending:
                # Another process may have measured it since.
                if isinstance(task.settings, Measuring) and not self._finished(task):
                    _check_time(until)
                    world = self._measure(task, world, outcome)
            for batch in _batches([task for task in pending if isinstance(task.settings, Settings)]):
                _check_time(until)
                # Another process may have finished some of it since.
                self._run(self.pending(batch), until, watch, outcome)
        except _TimeUpError:
            outcome.time_up = True
        outcome.busy = len(self.pending(outcome.elsewhere))
        return outcome

    def _measure(self, task: StudyTask, before: World | None, outcome: Outcome) -> World | None:
        """Measure in the task's world, and return this world: the next one takes over its data if they are the same."""
        assert isinstance(task.settings, Measuring)
        try:
            # A copy, so that the task does not keep the clients: there may be many tasks.
            world = task.settings.world.beside(before or task.settings.world)
            summary, details = task.settings.measure.run(world)
        except CoterieError as error:
            outcome.failed[task.name] = str(error)
            return before
        folder = self.folder(task)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "settings.toml", tomli_w.dumps(task.settings.table()))
        write_whole(folder / "details.json", json.dumps(details) + "\n")
        summary = {"measure": task.what, "seed": world.seed, **summary}
        write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        outcome.done += 1
        return world

    def _run(
        self,
        tasks: Sequence[StudyTask],
        until: float | None,
        watch: Callable[[StudyTask], Sequence[Observer]],
        outcome: Outcome,
    ) -> None:
        named = {task.name: task for task in tasks}

        def task_of(settings: Settings) -> StudyTask:
            return named[StudyTask(settings).name]

        def failed(settings: Settings, error: Exception) -> None:
            if isinstance(error, BusyError):
                outcome.elsewhere.append(task_of(settings))
            elif not isinstance(error, FinishedError):  # by another process, since it was last looked at
                outcome.failed[task_of(settings).name] = _told(error)

        if not tasks:
            return
        try:
            batch = RunBatch([task.settings for task in tasks if isinstance(task.settings, Settings)], failed=failed)
        except CoterieError as error:  # an error in the data that all of them need
            outcome.failed |= {task.name: str(error) for task in tasks}
            return
        batch.run(
            lambda settings: self.folder(task_of(settings)),
            resume=True,
            watch=lambda settings: [*watch(task_of(settings)), _Clock(until, outcome)],
            keep_state=False,
            keep_models=self.keep_models,
        )


@dataclass(frozen=True)
class _Clock:
    """Stops runs when there is no time left, and counts the runs that finished."""

    until: float | None
    outcome: Outcome

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        _check_time(self.until)

    def run_done(self, checkpoint: Checkpoint, result: Result) -> None:
        self.outcome.done += 1


def _told(error: Exception) -> str:
    """The message of an error; for one that is not ours, as from a user's method, also its type and its place."""
    if isinstance(error, CoterieError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


def _check_time(until: float | None) -> None:
    if until is not None and time.monotonic() > until:
        raise _TimeUpError


def _batches(tasks: Sequence[StudyTask]) -> Iterator[list[StudyTask]]:
    """Runs that share data, net and way of computing, as many as are worth computing at once, in order."""
    kinds: dict[Hashable, list[StudyTask]] = {}
    for task in tasks:
        world = task.settings.world
        same = world.data, tuple(sorted(world.data_options.items())), world.net, world.loss, world.computing
        kinds.setdefault(same, []).append(task)
    for alike in kinds.values():
        batch: list[StudyTask] = []
        clients = 0.0
        for task in alike:
            assert isinstance(task.settings, Settings)
            cohort = (task.settings.world.split.clients or _CLIENTS_UNKNOWN) * task.settings.method.participation
            if batch and clients + cohort > _CLIENTS_AT_ONCE:
                yield batch
                batch, clients = [], 0.0
            batch.append(task)
            clients += cohort
        if batch:
            yield batch
