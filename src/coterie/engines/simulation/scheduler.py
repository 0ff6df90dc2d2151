"""Several runs at once: what they train and what they ask of models at the same time is computed together.

Every run goes on in a thread of its own, as ordinary code that knows nothing of the others, and only one thread is at
work at a time. A run that wants to train, or to ask models about samples, hands the turn on. When no run can go on,
what they want is computed. Trainings that share pool, net, objective and kinds of terms become one bundle, up to what
memory holds, and questions to models of one net become one batch. Trainings of different kinds go on side by side: one
with few clients would leave most of a GPU idle. Questions are answered first, and trainings wait until every run wants
to train, so that a run which asks more than others still trains with them.

On a GPU five small runs so take little longer than one. The outcome of a run is what it is alone, but for the rounding
of sums. Strict runs share no stacks with others, and so give the same to the last bit.
"""

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.engines import torch_flags
from coterie.nets.stacks import Models
from coterie.training.evaluation import EvaluationJob, rows_at_once
from coterie.training.forms import Form
from coterie.training.graphs import objective_key
from coterie.training.loop import Terms, TrainingJob

log = logging.getLogger("coterie")

T = TypeVar("T")


@dataclass(eq=False)
class _Request(ABC):
    """What one run wants computed, and what came of it."""

    trains: ClassVar[bool] = False
    """Whether it is a training; otherwise it is a question to models."""

    result: Any = None
    error: Exception | None = None
    settings: Callable[[], AbstractContextManager[None]] = field(default_factory=torch_flags.current)
    """Applies torch's settings of the program that asks."""

    @abstractmethod
    def kind(self) -> Hashable:
        """A key; requests with the same key can be computed together, as one group."""

    @abstractmethod
    def count(self) -> int:
        """How many models are to be trained or asked."""

    @abstractmethod
    def answer(self, inner: Form, group: Sequence[Any]) -> Sequence[Any]:
        """The results of a group of requests of this kind, one for each."""


@dataclass(eq=False, kw_only=True)
class _Training(_Request):
    """Models to train."""

    trains = True

    job: TrainingJob

    def kind(self) -> Hashable:
        job, terms = self.job, self.job.terms
        trains = None if terms.trains is None else terms.trains.cpu().numpy().tobytes()
        there = tuple(part is None for part in (terms.pull, terms.anchor, terms.push, job.sample_weights))
        optimizer = job.tracks[0].local.optimizer
        shared = (id(job.pool), id(job.start.net), objective_key(job.objective))
        return *shared, optimizer, trains, there, job.extras

    def count(self) -> int:
        return len(self.job.tracks)

    def rows(self) -> int:
        """How many rows the largest batch has."""
        return max(track.local.batch or len(track.index) for track in self.job.tracks)

    def answer(self, inner: Form, group: Sequence["_Training"]) -> Sequence[tuple[Models, Tensor]]:
        (answers,) = self.answers(inner, [group])
        return answers

    @classmethod
    def answers(cls, inner: Form, groups: Sequence[Sequence["_Training"]]) -> list[list[tuple[Models, Tensor]]]:
        """The results of groups of different kinds, which are trained side by side."""
        found = []
        for group, (models, losses) in zip(groups, inner.train_all([cls._joined(g) for g in groups]), strict=True):
            parts = _split(group, *models.tensors, losses)
            found.append([(Models(models.net, parameters, buffers), loss) for parameters, buffers, loss in parts])
        return found

    @staticmethod
    def _joined(group: Sequence["_Training"]) -> TrainingJob:
        """The jobs of a group as one."""
        jobs = [request.job for request in group]
        weights = [job.sample_weights for job in jobs if job.sample_weights is not None]
        most = max((weight.shape[1] for weight in weights), default=0)
        return replace(
            jobs[0],
            tracks=[track for job in jobs for track in job.tracks],
            start=Models.cat([job.start for job in jobs]),
            terms=Terms.cat([job.terms for job in jobs]),
            sample_weights=torch.cat([pad(own, (0, most - own.shape[1])) for own in weights]) if weights else None,
        )


@dataclass(eq=False, kw_only=True)
class _Evaluating(_Request):
    """Models that are asked how they do on samples."""

    job: EvaluationJob

    def kind(self) -> Hashable:
        # What clients add to outputs is of one run's samples: such a question is answered alone.
        alone = None if self.job.prior is None else id(self)
        return "evaluate", id(self.job.pool), id(self.job.models.net), alone

    def count(self) -> int:
        return len(self.job.places)

    def answer(self, inner: Form, group: Sequence["_Evaluating"]) -> Sequence[Tensor]:
        asked = [request.job for request in group]
        if len(asked) == 1:
            return [inner.evaluate(asked[0])]
        first = asked[0].places[0]
        if all(one.shared and np.array_equal(one.places[0], first) for one in asked):
            # Runs of the same world ask about the same samples, which are prepared once.
            places = [first] * sum(len(one.places) for one in asked)
        else:
            places = [own for one in asked for own in one.places]
        found = inner.evaluate(EvaluationJob(self.job.pool, Models.cat([one.models for one in asked]), places))
        # The rows are as long as the longest question of all runs: each run gets them as long as its own longest one.
        parts = _split(group, found.transpose(0, 1))
        return [part.transpose(0, 1)[..., : one.longest] for one, (part,) in zip(asked, parts, strict=True)]


@dataclass(eq=False, kw_only=True)
class _Predicting(_Request):
    """Models that are run on inputs."""

    models: Models
    x: Tensor

    def kind(self) -> Hashable:
        return "predict", id(self.models.net), self.x.shape[1:]

    def count(self) -> int:
        return len(self.models)

    def answer(self, inner: Form, group: Sequence["_Predicting"]) -> Sequence[Tensor]:
        models = Models.cat([request.models for request in group])
        x = torch.cat([request.x for request in group])
        blocks = x.split(rows_at_once(models.net, len(models)), dim=1)
        found = torch.cat([inner.outputs(models, block, shared=False) for block in blocks], dim=1)
        return [part for (part,) in _split(group, found)]


def _split(group: Sequence[_Request], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """For each request its rows of tensors that have a row for each model of the whole group."""
    counts = [request.count() for request in group]
    return list(zip(*(tensor.split(counts) for tensor in tensors), strict=True))


class _Stopped(BaseException):
    """Ends a run because another one has failed, or because the user has stopped all."""


class Scheduler:
    """Lets runs go on in turns, and computes together what they want computed at the same time."""

    def __init__(self, fits: Callable[[int], int] = lambda rows: sys.maxsize) -> None:
        """A scheduler; `fits` says how many tracks fit into memory together if their batches have this many rows."""
        self._fits, self._most = fits, sys.maxsize
        self._stopped = False
        self._turns: list[threading.Semaphore] = []
        """One for each run: releasing it is the run's turn. Only the run whose turn it is touches what stands below."""
        self._ready: deque[int] = deque()
        """The runs that can go on, by their numbers."""
        self._waiting: dict[int, tuple[Form, _Request]] = {}
        """The runs that want something computed, with the form that would compute it for them alone."""
        self.batches: list[int] = []
        """For each training so far, how many runs it served."""
        self.answers: list[int] = []
        """For each batch of questions so far, how many runs it served."""

    def form(self, inner: Form, number: int) -> Form:
        """A form for the run with this number, which computes with other runs what `inner` would compute alone."""
        return _ScheduledForm(inner, self, number)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run each task in a thread of its own: the results of all. The first error in one of them stops the others."""
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def job(number: int, task: Callable[[], T]) -> None:
            self._turns[number].acquire()
            try:
                if not self._stopped:
                    results[number] = task()
            except _Stopped:
                pass
            except BaseException as error:
                errors.append(error)
                self._stopped = True
            finally:
                self._pass_on()

        self._turns = [threading.Semaphore(0) for _ in tasks]
        self._ready = deque(range(len(tasks)))
        threads = [threading.Thread(target=job, args=pair, daemon=True) for pair in enumerate(tasks)]
        for thread in threads:
            thread.start()
        self._pass_on()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # the user stops all runs: each ends when it next wants something computed
            self._stopped = True
            for thread in threads:
                thread.join()
            raise
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(tasks))]

    def ask(self, number: int, inner: Form, request: _Request) -> Any:
        """Hand the turn on until this request is computed. Called in the thread of the run whose turn it is."""
        self._waiting[number] = (inner, request)
        with torch_flags.lifted():
            self._pass_on()
            self._turns[number].acquire()
        if request.error is not None:
            raise request.error
        if request.result is None:
            raise _Stopped
        return request.result

    def _pass_on(self) -> None:
        """Give the turn to the next run that can go on. If there is none, first compute what the runs wait for."""
        if self._stopped:
            self._ready.extend(self._waiting)
            self._waiting.clear()
        elif not self._ready:
            self._compute()
        if self._ready:
            self._turns[self._ready.popleft()].release()

    def _compute(self) -> None:
        """Compute what runs wait for: all questions if there are any, otherwise all trainings."""
        asking = [number for number, (_, request) in self._waiting.items() if not request.trains]
        # In the order of the runs: nothing may depend on which thread was faster.
        numbers = sorted(asking or self._waiting)
        taken = [self._waiting.pop(number) for number in numbers]
        groups: dict[Hashable, list[Any]] = {}
        try:
            for number, (inner, request) in zip(numbers, taken, strict=True):
                # A model's place in a stack may decide its last bits on a GPU: strict runs share none with others.
                groups.setdefault((number if inner.strict else None, request.kind()), []).append(request)
            if asking:
                for group in groups.values():
                    self._answer(taken[0][0], group)
            else:
                for some in self._fitting(groups.values()):
                    self._train(taken[0][0], some)
        finally:
            self._ready.extend(numbers)

    def _fitting(self, groups: Iterable[Sequence[_Training]]) -> list[list[list[_Training]]]:
        """Sets of groups that fit into memory side by side, from all groups; a group may be cut into several sets."""
        sets: list[list[list[_Training]]] = [[]]
        tracks, most = 0, sys.maxsize
        for group in groups:
            sets[-1].append([])
            for request in group:
                fitting = min(self._fits(request.rows()), self._most)
                tracks, most = tracks + request.count(), min(most, fitting)
                if tracks > most and tracks > request.count():
                    sets.append([[]])
                    tracks, most = request.count(), fitting
                sets[-1][-1].append(request)
        # A set that was full when the next group began has an empty group at its end.
        return [[group for group in some if group] for some in sets if any(some)]

    def _train(self, inner: Form, groups: Sequence[list[_Training]]) -> None:
        """Train groups side by side. If that fails, train one after another: then only a run that is to blame fails."""
        if len(groups) > 1:
            try:
                with groups[0][0].settings():
                    found = _Training.answers(inner, groups)
                for group, results in zip(groups, found, strict=True):
                    self._serve(group, results)
                return
            except torch.OutOfMemoryError:
                self._most = sum(request.count() for group in groups for request in group) // 2
            except Exception as error:
                log.debug("%d groups failed side by side: %s", len(groups), error)
            self._clear(inner)
        for group in groups:
            self._answer(inner, group)

    def _answer(self, inner: Form, group: Sequence[_Request]) -> None:
        """Compute a group together. If that fails, compute it in halves."""
        try:
            with group[0].settings():
                self._serve(group, group[0].answer(inner, group))
            return
        except torch.OutOfMemoryError as error:
            group[0].error = error if len(group) == 1 else None
            if group[0].trains:
                self._most = sum(request.count() for request in group) // 2
        except Exception as error:
            group[0].error = error if len(group) == 1 else None
        if len(group) > 1:
            # In halves: in the end all fit into memory, or only the run fails that is to blame. Not inside of
            # `except`: there the error's traceback still holds the tensors of the failed attempt.
            self._clear(inner)
            for half in (group[: len(group) // 2], group[len(group) // 2 :]):
                self._answer(inner, half)

    def _serve(self, group: Sequence[_Request], results: Sequence[Any]) -> None:
        """Hand each request of a group its result."""
        (self.batches if group[0].trains else self.answers).append(len(group))
        for request, result in zip(group, results, strict=True):
            request.result = result

    def _clear(self, inner: Form) -> None:
        """Give back the memory that a failed attempt holds."""
        inner.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class _ScheduledForm(Form):
    """A form that computes what it is asked together with what other runs ask."""

    def __init__(self, inner: Form, scheduler: Scheduler, number: int) -> None:
        super().__init__(inner.half, strict=inner.strict)
        self._inner, self._scheduler, self._number = inner, scheduler, number
        self.name, self.about, self.together, self.stacked = inner.name, inner.about, inner.together, inner.stacked

    def train(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """Train as soon as all other runs want to train too, or have ended."""
        return self._scheduler.ask(self._number, self._inner, _Training(job=job))

    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """Run the models as soon as all other runs wait for something too."""
        if shared:
            return self._outputs(models, x, shared)
        return self._scheduler.ask(self._number, self._inner, _Predicting(models=models, x=x))

    def _outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        return self._inner.outputs(models, x, shared)

    def evaluate(self, job: EvaluationJob) -> Tensor:
        """Ask the models as soon as all other runs wait for something too."""
        return self._scheduler.ask(self._number, self._inner, _Evaluating(job=job))

    def forget(self) -> None:
        """Give back the memory that is held for the next call."""
        self._inner.forget()
