"""The forms of one computation: `loop`, one client after another in plain PyTorch, and others that are faster.

The loop is the reference, and the fastest for larger nets on a CPU. `vectorised` puts the clients along a new axis with
`vmap`, which is faster for small nets and on a GPU. `branch` is the loop with clients side by side on a GPU, for large
nets; its results are the loop's to the last bit. On a GPU the latter two replay recorded steps
(`coterie.training.graphs`).

A form gives models' outputs, and the function from parameters and batches to gradients that the one training loop
(`coterie.training.loop`) calls. Everything else is shared, so all forms agree in float64 to the rounding of sums: about
1e-12.

**Strict forms.** Libraries choose their kernels by shape, so a client's last bits depend on how many others are
computed with it. A strict form therefore always computes stacks of one shape: 16 tracks, filled up where there are
fewer, with batches as wide as the client's own setting says. Finished tracks compute along. It evaluates 16 models at a
time, with 128 samples each. On a GPU even the place in a stack can decide the last bits, so runs that compute together
share no strict stacks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from coterie.core.errors import CoterieError, unknown
from coterie.nets.layers import Pass
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.training.evaluation import EvaluationJob, evaluate
from coterie.training.graphs import Recorder
from coterie.training.loop import (
    Batch,
    Bundle,
    Extras,
    GradientFunction,
    Gradients,
    LocalModel,
    Objective,
    Track,
    TrainingJob,
    train_tracks,
)

BatchTensors = dict[str, Tensor]

_STRICT_TRACKS, _STRICT_ROWS = 16, 128
"""How many models a strict form always computes together, and how many samples each sees at once in evaluation."""


class Form(ABC):
    """How models of many clients are run and differentiated."""

    name: str
    about: str
    together: bool
    """Whether clients are computed together, as many as memory allows."""
    stacked: bool = False
    """Whether clients are computed under `vmap`."""

    def __init__(self, half: bool = False, recorder: Recorder | None = None, strict: bool = False) -> None:
        """A form that runs nets in bfloat16 if `half`, and if `strict` always computes in the same shapes."""
        self.half, self._recorder, self.strict = half, recorder, strict

    def casting(self, net: Net) -> AbstractContextManager[object]:
        """A context in which nets run in bfloat16 if the form is `half`; parameters and sums stay as they are."""
        if not self.half:
            return nullcontext()
        # The copies of weights that autocast keeps from one use to the next must not be recorded with a step.
        return torch.autocast(net.device.type, torch.bfloat16, cache_enabled=False)

    @abstractmethod
    def train(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """The trained models [track] and their losses in the last epoch [track]."""

    def train_all(self, jobs: Sequence[TrainingJob]) -> list[tuple[Models, Tensor]]:
        """Train several jobs that cannot share steps, as `train` does each; side by side where that is faster."""
        return [self.train(job) for job in jobs]

    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """What models [n] give for inputs [n, row, ...], or for the same inputs [row, ...] if they are shared."""
        return self._in_tiles(models, x, shared) if self.strict and x.numel() else self._outputs(models, x, shared)

    @abstractmethod
    def _outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """What `outputs` gives, computed in one go."""

    def _in_tiles(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """What `outputs` gives, computed in pieces of one shape: always as many models, with as many rows each."""
        rows = x.shape[0 if shared else 1]
        each = ceil(rows / _STRICT_ROWS)
        tiles, device = len(models) * each, x.device
        whose = torch.arange(len(models), device=device).repeat_interleave(each)
        # The last tile of a model is filled up with its last row, and the last piece with the last tile.
        places = torch.arange(each * _STRICT_ROWS, device=device).clamp(max=rows - 1).reshape(each, -1)
        places = places.repeat(len(models), 1)
        found = []
        for some in torch.arange(ceil(tiles / _STRICT_TRACKS) * _STRICT_TRACKS, device=device).split(_STRICT_TRACKS):
            some = some.clamp(max=tiles - 1)
            inputs = x[places[some]] if shared else x[whose[some, None], places[some]]
            found.append(self._outputs(models[whose[some]], inputs.contiguous(), shared=False))
        return torch.cat(found)[:tiles].unflatten(0, (len(models), each)).flatten(1, 2)[:, :rows]

    def evaluate(self, job: EvaluationJob) -> Tensor:
        """Rank and loss of the samples that a job names, [2, model, sample], on the host."""
        return evaluate(self.outputs, job)

    def forget(self) -> None:
        """Give back the memory that is held for later calls."""
        if self._recorder is not None:
            self._recorder.forget()

    def recorder_on(self, device: torch.device) -> Recorder | None:
        """What records steps on this device; None where steps cannot be recorded."""
        if self._recorder is None and device.type == "cuda":
            self._recorder = Recorder()
        return self._recorder

    def loss_function(self, net: Net, objective: Objective, extras: Extras):  # type: ignore[no-untyped-def]
        """The objective of one client as a function of flat vectors, which `extras` lengthen, for autograd."""
        several = getattr(objective, "batches", 1) > 1

        def loss(
            parameters: Tensor, buffers: Tensor, batches: tuple[BatchTensors, ...], key: Tensor
        ) -> tuple[Tensor, Tensor]:
            current = Pass(training=True, key=key, stacked=self.stacked)
            if extras:
                parameters, buffers, beside, carried = extras.split(net, parameters, buffers)
                model = LocalModel(net, parameters, buffers, current)
                model.beside, model.carried = beside, carried
            else:
                model = LocalModel(net, parameters, buffers, current)
            given = tuple(Batch(**tensors) for tensors in batches)
            with self.casting(net):
                value = _averaged(objective(model, given if several else given[0], key), given)
            after = [model.carried[name].detach().reshape(-1) for name, _ in extras.carried]
            return value.to(net.dtype), torch.cat([model.buffers, *after]) if after else model.buffers

        return loss


class Loop(Form):
    """One client after another, with plain autograd."""

    name = "loop"
    about = "one client after another"
    together = False

    def train(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """Train the tracks one by one."""
        return _joined([result for bundle in self._alone(job) for result in train_tracks([bundle])])

    def _alone(self, job: TrainingJob) -> Iterator[Bundle]:
        """Each track as a bundle of its own, made when it is asked for."""
        gradients = self.gradients(job.start.net, job.objective, job.extras)
        return (Bundle(job, gradients, [track]) for track in range(len(job.tracks)))

    def gradients(self, net: Net, objective: Objective, extras: Extras) -> GradientFunction:
        """The gradient of one client alone, which stands in the first and only row."""
        loss = self.loss_function(net, objective, extras)

        def gradients(parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor) -> Gradients:
            leaf = parameters[0].detach().requires_grad_()
            alone = tuple({name: tensor[0] for name, tensor in _tensors(batch).items()} for batch in batches)
            value, after = loss(leaf, buffers[0], alone, keys[0])
            (gradient,) = torch.autograd.grad(value, leaf)  # 0.2 to 0.4 ms faster than torch.func.grad
            return value.detach()[None], gradient[None], after.detach()[None]

        return gradients

    def _outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        net = models.net
        with torch.no_grad(), self.casting(net):
            rows = [
                net(models.parameters[row], models.buffers[row], (x if shared else x[row],), Pass())[0]
                for row in range(len(models))
            ]
        return torch.stack(rows).to(net.dtype)


class Branch(Loop):
    """The loop with its clients side by side: each replays its own recorded steps, in a stream of its own."""

    name = "branch"
    about = "clients side by side, each replaying its own recorded steps on a GPU"
    together = True

    def train(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """Train the tracks in turns, a step of each."""
        recorder = self.recorder_on(job.pool.device)
        if recorder is None:
            return super().train(job)
        return _joined(train_tracks(recorder.prepared((bundle, job.objective) for bundle in self._alone(job))))


class Vectorised(Form):
    """Many clients at once, along a new first axis of every tensor; a single client as in the loop, which is faster."""

    name = "vectorised"
    about = "many clients in every operation, in recorded steps on a GPU"
    together = stacked = True

    def train(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """Train all tracks together."""
        return self.train_all([job])[0]

    def train_all(self, jobs: Sequence[TrainingJob]) -> list[tuple[Models, Tensor]]:
        """Train all tracks of a job together; on a GPU jobs go on side by side, a step of each in turn."""
        if self.strict:
            return [self._in_stacks(job) for job in jobs]
        bundles = ((self._whole(job), job.objective) for job in jobs)
        recorder = self.recorder_on(jobs[0].pool.device)
        if recorder is None:
            return [result for bundle, _ in bundles for result in train_tracks([bundle])]
        return train_tracks(recorder.prepared(bundles))

    def _whole(self, job: TrainingJob) -> Bundle:
        """All tracks as one bundle; a track alone takes plain kernels, which are faster."""
        form = Loop(self.half) if len(job.tracks) == 1 else self
        return Bundle(job, form.gradients(job.start.net, job.objective, job.extras), range(len(job.tracks)))

    def _in_stacks(self, job: TrainingJob) -> tuple[Models, Tensor]:
        """Train the tracks in stacks of 16, one after another, as a strict form does."""
        recorder = self.recorder_on(job.pool.device)
        gradients = self.gradients(job.start.net, job.objective, job.extras)
        stacks = _stacks(job.tracks)
        found = []
        for stack in stacks:
            bundle = Bundle(job, gradients, *stack)
            found += train_tracks([bundle] if recorder is None else recorder.prepared([(bundle, job.objective)]))
        models, losses = _joined(found)
        # Where the result of each track is. A track that fills a stack up has several results, which are all the same.
        where = torch.empty(len(job.tracks), dtype=torch.int64)
        where[[track for chosen, _ in stacks for track in chosen]] = torch.arange(len(losses))
        return models[where.to(losses.device)], losses[where.to(losses.device)]

    def gradients(self, net: Net, objective: Objective, extras: Extras) -> GradientFunction:
        """The gradients of many clients, each in its row."""
        loss = self.loss_function(net, objective, extras)
        stacked, differentiated = vmap(loss), vmap(grad_and_value(loss, has_aux=True))

        def inside(parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor) -> Gradients:
            gradient, (value, after) = differentiated(parameters, buffers, tuple(map(_tensors, batches)), keys)
            return value, gradient, after

        def outside(parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor) -> Gradients:
            leaf = parameters.detach().requires_grad_()
            try:
                value, after = stacked(leaf, buffers, tuple(map(_tensors, batches)), keys)
            except RuntimeError:  # some layers, such as LSTM, `vmap` knows only if they are differentiated inside
                return inside(parameters, buffers, batches, keys)
            # No client's loss depends on another's parameters: the gradient of the sum has each one's own in its row.
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            return value.detach(), gradient, after.detach()

        # To differentiate outside of `vmap` is faster, and does not import torch's compiler, which takes a second. Our
        # kernels for GPUs are differentiable only inside.
        return inside if net.device.type == "cuda" else outside

    def _outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        if len(models) == 1:
            return Loop(self.half).outputs(models, x, shared)
        net = models.net

        def run(parameters: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
            return net(parameters, buffers, (inputs,), Pass(stacked=True))[0]

        try:
            with torch.no_grad(), self.casting(net):
                result = vmap(run, in_dims=(0, 0, None if shared else 0))(models.parameters, models.buffers, x)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # `vmap` does not know some layers, such as LSTM
            return Loop(self.half).outputs(models, x, shared)
        return result.to(net.dtype)


FORMS: dict[str, type[Form]] = {form.name: form for form in (Loop, Vectorised, Branch)}


def form_named(name: str, half: bool = False, strict: bool = False) -> Form:
    """A form by name."""
    if name not in FORMS:
        raise unknown("form", name, FORMS)
    return FORMS[name](half, strict=strict)


def _averaged(loss: Tensor, batches: Sequence[Batch]) -> Tensor:
    """The mean of losses [row] over the real rows of the first batch, or a single loss in which they were averaged."""
    if loss.dim():
        return batches[0].mean(loss)
    if not any(batch.averaged for batch in batches):
        raise CoterieError(
            "the objective averages over rows that may be padding: return one loss for each sample, without taking "
            "the mean, or take it with batch.mean(losses)"
        )
    return loss


def _tensors(batch: Batch) -> BatchTensors:
    """The tensors of a batch by name, without what is None: `vmap` takes tensors only."""
    return {name: tensor for name, tensor in vars(batch).items() if tensor is not None}


def _stacks(tracks: Sequence[Track]) -> list[tuple[list[int], int]]:
    """Tracks, by their places, in stacks of 16, and how many rows a batch has in each stack.

    Tracks are in one stack only if their own settings give batches of as many rows: no other track may decide that. A
    stack that is not full is filled up with its first track.
    """
    by_rows: dict[int, list[int]] = {}
    for number in sorted(range(len(tracks)), key=lambda track: -tracks[track].steps):
        track = tracks[number]
        by_rows.setdefault(track.local.batch or len(track.index), []).append(number)
    stacks = []
    for rows, chosen in by_rows.items():
        for first in range(0, len(chosen), _STRICT_TRACKS):
            some = chosen[first : first + _STRICT_TRACKS]
            stacks.append((some[:1] * (_STRICT_TRACKS - len(some)) + some, rows))
    return stacks


def _joined(results: Sequence[tuple[Models, Tensor]]) -> tuple[Models, Tensor]:
    """The models and losses of several results, one after another."""
    return Models.cat([models for models, _ in results]), torch.cat([losses for _, losses in results])
