"""The forms of one computation: `loop`, one client after another in plain PyTorch, and others that are faster.

The loop is the reference, and the fastest for larger nets on a CPU. `vectorised` puts the clients along a new axis with
`vmap`, which is faster for small nets and on a GPU. `branch` is the loop with clients side by side on a GPU, for large
nets. On a GPU both replay recorded steps (`coterie.graphs`). All agree in float64 to the rounding of sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from coterie.data.population import Pool
from coterie.errors import unknown
from coterie.graphs import Recorder
from coterie.nets.layers import Pass
from coterie.nets.net import Net
from coterie.training import Batch, Bundle, GradientFunction, Lane, LocalModel, Objective, Terms, train_lanes
from coterie.weights import Models

__all__ = ["FORMS", "Branch", "Form", "Loop", "Vectorised", "form_named"]

BatchTensors = dict[str, Tensor]


class Form(ABC):
    """How models of many clients are run and differentiated."""

    name: str
    about: str
    together: bool
    """Whether clients are computed together, as many as memory allows."""
    stacked: bool = False
    """Whether that is done under `vmap`."""

    def __init__(self, half: bool = False, recorder: Recorder | None = None) -> None:
        self.half, self._recorder = half, recorder

    def casting(self, net: Net) -> AbstractContextManager[object]:
        """Runs nets in bfloat16 where that was asked for; parameters and sums stay as they are."""
        if not self.half:
            return nullcontext()
        # Copies that are kept from one use of a weight to the next would be recorded with the step.
        return torch.autocast(net.device.type, torch.bfloat16, cache_enabled=False)

    @abstractmethod
    def train(
        self,
        pool: Pool,
        lanes: Sequence[Lane],
        start: Models,
        terms: Terms,
        objective: Objective,
        sample_weights: Tensor | None = None,
    ) -> tuple[Models, Tensor]:
        """The trained models [lane] and their losses in the last epoch [lane]."""

    @abstractmethod
    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """What models [n] give for inputs [n, row, ...], or for the same inputs [row, ...] if they are shared."""

    def forget(self) -> None:
        """Give back memory that is held for the next call."""
        if self._recorder is not None:
            self._recorder.forget()

    def recorder_on(self, device: torch.device) -> Recorder | None:
        """What records steps, where that can be done."""
        if self._recorder is None and device.type == "cuda":
            self._recorder = Recorder()
        return self._recorder

    def loss_function(self, net: Net, objective: Objective):  # type: ignore[no-untyped-def]
        """The objective of one client as a function of flat vectors, for autograd."""
        several = getattr(objective, "batches", 1) > 1

        def loss(
            parameters: Tensor, buffers: Tensor, batches: tuple[BatchTensors, ...], key: Tensor
        ) -> tuple[Tensor, Tensor]:
            model = LocalModel(net, parameters, buffers, Pass(training=True, key=key, stacked=self.stacked))
            given = tuple(Batch(**tensors) for tensors in batches)
            with self.casting(net):
                value = objective(model, given if several else given[0], key)
            return value.to(net.dtype), model.buffers

        return loss


class Loop(Form):
    """One client after another, with plain autograd."""

    name = "loop"
    about = "one client after another"
    together = False

    def train(
        self,
        pool: Pool,
        lanes: Sequence[Lane],
        start: Models,
        terms: Terms,
        objective: Objective,
        sample_weights: Tensor | None = None,
    ) -> tuple[Models, Tensor]:
        """Train the lanes one by one."""
        gradients = self.gradients(start.net, objective)
        results = []
        for row in range(len(lanes)):
            bundle = _one(row, pool, lanes, start, terms, gradients, objective, sample_weights)
            results += train_lanes([bundle])
        return _joined(results)

    def gradients(self, net: Net, objective: Objective) -> GradientFunction:
        """The gradient of one client alone, which stands in the first and only row."""
        loss = self.loss_function(net, objective)

        def gradients(
            parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            leaf = parameters[0].detach().requires_grad_()
            alone = tuple({name: tensor[0] for name, tensor in _tensors(batch).items()} for batch in batches)
            value, after = loss(leaf, buffers[0], alone, keys[0])
            (gradient,) = torch.autograd.grad(value, leaf)
            return value.detach()[None], gradient[None], after.detach()[None]

        return gradients

    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """Run the models one by one."""
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

    def train(
        self,
        pool: Pool,
        lanes: Sequence[Lane],
        start: Models,
        terms: Terms,
        objective: Objective,
        sample_weights: Tensor | None = None,
    ) -> tuple[Models, Tensor]:
        """Train the lanes in turns, a step of each."""
        recorder = self.recorder_on(pool.device)
        if recorder is None:
            return super().train(pool, lanes, start, terms, objective, sample_weights)
        gradients = self.gradients(start.net, objective)
        bundles = (
            _one(row, pool, lanes, start, terms, gradients, objective, sample_weights) for row in range(len(lanes))
        )
        return _joined(train_lanes([recorder.prepared(one, objective, slot) for slot, one in enumerate(bundles)]))


class Vectorised(Form):
    """Many clients at once, along a new first axis of every tensor. One alone is none: plain kernels are faster."""

    name = "vectorised"
    about = "many clients in every operation, in recorded steps on a GPU"
    together = stacked = True

    def train(
        self,
        pool: Pool,
        lanes: Sequence[Lane],
        start: Models,
        terms: Terms,
        objective: Objective,
        sample_weights: Tensor | None = None,
    ) -> tuple[Models, Tensor]:
        """Train all lanes together."""
        recorder = self.recorder_on(pool.device)
        if len(lanes) == 1:
            return Branch(self.half, recorder).train(pool, lanes, start, terms, objective, sample_weights)
        gradients = self.gradients(start.net, objective)
        streams = getattr(objective, "batches", 1)
        bundle = Bundle(pool, lanes, start, terms, gradients, streams, sample_weights)
        (result,) = train_lanes([bundle if recorder is None else recorder.prepared(bundle, objective)])
        return result

    def gradients(self, net: Net, objective: Objective) -> GradientFunction:
        """The gradients of many clients, each in its row."""
        loss = self.loss_function(net, objective)
        stacked, differentiated = vmap(loss), vmap(grad_and_value(loss, has_aux=True))

        def inside(
            parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            gradient, (value, after) = differentiated(parameters, buffers, tuple(map(_tensors, batches)), keys)
            return value, gradient, after

        def outside(
            parameters: Tensor, buffers: Tensor, batches: tuple[Batch, ...], keys: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            leaf = parameters.detach().requires_grad_()
            try:
                value, after = stacked(leaf, buffers, tuple(map(_tensors, batches)), keys)
            except RuntimeError:  # some layers, such as LSTM, `vmap` knows only if they are differentiated inside
                return inside(parameters, buffers, batches, keys)
            # No client's loss depends on another's parameters: the gradient of the sum has each one's own in its row.
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            return value.detach(), gradient, after.detach()

        # Outside is faster, and does not import torch's compiler; our kernels are differentiable only inside.
        return inside if net.device.type == "cuda" else outside

    def outputs(self, models: Models, x: Tensor, shared: bool) -> Tensor:
        """Run all models together."""
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


def form_named(name: str, half: bool = False) -> Form:
    """A form by name."""
    if name not in FORMS:
        raise unknown("form", name, FORMS)
    return FORMS[name](half)


def _tensors(batch: Batch) -> BatchTensors:
    """What the batch consists of, without what it does not have: vmap takes tensors only."""
    return {name: tensor for name, tensor in vars(batch).items() if tensor is not None}


def _one(
    row: int,
    pool: Pool,
    lanes: Sequence[Lane],
    start: Models,
    terms: Terms,
    gradients: GradientFunction,
    objective: Objective,
    sample_weights: Tensor | None,
) -> Bundle:
    """One lane of several, alone in its bundle."""
    only = slice(row, row + 1)
    weights = None if sample_weights is None else sample_weights[only]
    streams = getattr(objective, "batches", 1)
    return Bundle(pool, [lanes[row]], start[only], terms.rows(only), gradients, streams, weights)


def _joined(results: Sequence[tuple[Models, Tensor]]) -> tuple[Models, Tensor]:
    """The models and losses of lanes that were alone, as one stack."""
    return Models.cat([models for models, _ in results]), torch.cat([losses for _, losses in results])
