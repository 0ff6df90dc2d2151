"""Several runs at once: what they train at the same time becomes lanes of the same steps.

Every run goes on in a thread of its own, as ordinary code that knows nothing of the others, and only one thread is ever
at work. A run that wants to train waits until all others want to, or have ended; then what fits together is trained
together. On a GPU five small runs so take little longer than one. The outcome of a run is what it is alone, but for
the rounding of sums.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.data.population import Pool
from coterie.forms import Form
from coterie.graphs import objective_key
from coterie.training import Lane, Objective, Terms
from coterie.weights import Models

__all__ = ["Meeting"]

T = TypeVar("T")
Trained = tuple[Models, Tensor]


@dataclass(eq=False)
class _Request:
    """What one run wants to train."""

    pool: Pool
    lanes: Sequence[Lane]
    start: Models
    terms: Terms
    objective: Objective
    sample_weights: Tensor | None
    result: Trained | None = None
    error: Exception | None = None

    def kind(self) -> Hashable:
        """What must be the same for requests to be trained together."""
        terms = self.terms
        trains = None if terms.trains is None else terms.trains.cpu().numpy().tobytes()
        there = tuple(part is None for part in (terms.pull, terms.anchor, terms.push, self.sample_weights))
        optimizer = self.lanes[0].local.optimizer
        return id(self.pool), id(self.start.net), objective_key(self.objective), optimizer, trains, there


class _Stopped(BaseException):
    """Ends a run because another has failed or the user has stopped all."""


class Meeting:
    """Runs that go on in turns and train together."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._live, self._stopped = 0, False
        self._waiting: dict[int, tuple[Form, _Request]] = {}
        self.batches: list[int] = []
        """How many runs each training served so far."""

    def form(self, inner: Form, number: int) -> Form:
        """The form for the run with this number: it meets the others for training."""
        return _Joined(inner, self, number)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """What the tasks give; the first error that occurs in one of them stops the others."""
        results: dict[int, T] = {}
        errors: list[BaseException] = []
        self._live = len(tasks)

        def work(number: int, task: Callable[[], T]) -> None:
            with self._turn:
                try:
                    if not self._stopped:
                        results[number] = task()
                except _Stopped:
                    pass
                except BaseException as error:
                    errors.append(error)
                    self._stop()
                finally:
                    self._live -= 1
                    self._compute_if_all_wait()

        threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(tasks)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # the user stops it: every run ends where it would train next
            with self._turn:
                self._stop()
            for thread in threads:
                thread.join()
            raise
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(tasks))]

    def _stop(self) -> None:
        self._stopped = True
        self._turn.notify_all()

    def train(self, number: int, inner: Form, request: _Request) -> Trained:
        """Wait for the others, and train with them. Called in a run's thread, whose turn it is."""
        self._waiting[number] = (inner, request)
        self._compute_if_all_wait()
        while request.result is None and request.error is None:
            if self._stopped:
                raise _Stopped
            self._turn.wait()
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def _compute_if_all_wait(self) -> None:
        if self._stopped or not self._waiting or len(self._waiting) < self._live:
            return
        # In the order of the runs, so that nothing depends on which thread came first.
        waiting = [self._waiting[number] for number in sorted(self._waiting)]
        self._waiting.clear()
        groups: dict[Hashable, list[_Request]] = {}
        for _, request in waiting:
            groups.setdefault(request.kind(), []).append(request)
        for group in groups.values():
            self._answer(waiting[0][0], group)
        self._turn.notify_all()

    def _answer(self, inner: Form, group: list[_Request]) -> None:
        self.batches.append(len(group))
        try:
            _train_together(inner, group)
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
                return
            # Alone, so that only the run that is to blame fails; or because memory does not suffice for all together.
            inner.forget()
            for request in group:
                self._answer(inner, [request])


def _train_together(inner: Form, group: Sequence[_Request]) -> None:
    first = group[0]
    lanes = [lane for request in group for lane in request.lanes]
    start = Models.cat([request.start for request in group])
    weights = [request.sample_weights for request in group if request.sample_weights is not None]
    most = max((weight.shape[1] for weight in weights), default=0)
    joined = torch.cat([pad(weight, (0, most - weight.shape[1])) for weight in weights]) if weights else None
    terms = _joined_terms([request.terms for request in group])
    models, losses = inner.train(first.pool, lanes, start, terms, first.objective, joined)
    counts = [len(request.lanes) for request in group]
    parts = zip(*(tensor.split(counts) for tensor in (*models.tensors, losses)), strict=True)
    for request, (parameters, buffers, loss) in zip(group, parts, strict=True):
        request.result = Models(request.start.net, parameters, buffers), loss


def _joined_terms(terms: Sequence[Terms]) -> Terms:
    def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    pull, anchor, push = (joined([getattr(one, name) for one in terms]) for name in ("pull", "anchor", "push"))
    return Terms(pull, anchor, push, terms[0].trains)


class _Joined(Form):
    """A form whose training is done together with other runs."""

    def __init__(self, inner: Form, meeting: Meeting, number: int) -> None:
        super().__init__(inner.half)
        self._inner, self._meeting, self._number = inner, meeting, number
        self.name, self.about, self.together, self.stacked = inner.name, inner.about, inner.together, inner.stacked

    def train(
        self,
        pool: Pool,
        lanes: Sequence[Lane],
        start: Models,
        terms: Terms,
        objective: Objective,
        sample_weights: Tensor | None = None,
    ) -> Trained:
        """Train when all runs want to."""
        request = _Request(pool, lanes, start, terms, objective, sample_weights)
        return self._meeting.train(self._number, self._inner, request)

    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """Run the models at once, without the others."""
        return self._inner.outputs(models, x, shared)

    def forget(self) -> None:
        """Give back memory that is held for the next call."""
        self._inner.forget()
