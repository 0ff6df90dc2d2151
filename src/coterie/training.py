"""The one local training loop, and what can be said to it.

The loop trains a stack of models, one per client, each on its own client's samples. It knows nothing of methods:
FedProx, SCAFFOLD, FedDyn and others differ in a *pull* towards an anchor and a *push*, two terms of the gradient;
others in the *objective*, a function written for one client. How a gradient is computed, for one client alone or for
many at once, is the business of the *form* (`coterie.forms`); everything else happens here, once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, cos, inf, pi
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.data.population import Pool
from coterie.errors import SettingsError
from coterie.nets.layers import Pass
from coterie.nets.net import Net
from coterie.randomness import draw_key, generator
from coterie.weights import Changes, Models

__all__ = [
    "Batch",
    "Lane",
    "LocalModel",
    "LocalTraining",
    "Objective",
    "Terms",
    "Trained",
    "cross_entropy",
    "train_lanes",
]


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains."""

    epochs: float = 2.0
    """Passes over the client's own data in a round; a fraction ends in the middle of one."""

    steps: int | None = None
    """A fixed number of steps in a round, instead of epochs."""

    batch: int = 32
    """Samples in a step; 0 takes all of a client's samples at once."""

    rate: float = 0.1
    """Learning rate."""

    momentum: float = 0.0
    """Momentum of SGD. Starts from zero in every round."""

    decay: float = 0.0
    """Weight decay."""

    clip: float = 0.0
    """Longest gradient of a step (Euclidean norm); 0 does not clip."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """What turns a gradient into a step."""

    schedule: Literal["constant", "exponential", "cosine", "steps"] = "constant"
    """How the learning rate changes over rounds: not at all, by `rate_decay` every round, along a half cosine to zero,
    or by `rate_decay` after each of `milestones`."""

    rate_decay: float = 0.99
    """Factor of the schedules `exponential` and `steps`."""

    milestones: tuple[float, ...] = (0.5, 0.75)
    """Parts of all rounds after which the schedule `steps` lowers the rate."""

    def __post_init__(self) -> None:
        checks = {
            "epochs": (0 <= self.epochs < inf, "0 or more"),
            "steps": (self.steps is None or self.steps >= 1, "at least 1"),
            "batch": (self.batch >= 0, "at least 1, or 0 for all samples at once"),
            "rate": (0 < self.rate < inf, "above 0"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "decay": (0 <= self.decay < inf, "0 or more"),
            "clip": (self.clip >= 0, "above 0, or 0 for no clipping"),
            "rate_decay": (0 < self.rate_decay <= 1, "in (0, 1]"),
            "milestones": (all(0 <= part <= 1 for part in self.milestones), "parts of all rounds, in [0, 1]"),
        }
        for name, (fine, allowed) in checks.items():
            if not fine:
                raise SettingsError(f"{name}={getattr(self, name)}: {allowed}")
        if self.optimizer == "adam" and self.momentum:
            raise SettingsError(f"momentum={self.momentum}: belongs to sgd; adam has its own")

    def at(self, round: int, rounds: int) -> "LocalTraining":  # noqa: A002
        """The same with the learning rate of a round (counted from 1) and no schedule."""
        past = max(round - 1, 0)
        factor = 1.0
        if self.schedule == "exponential":
            factor = self.rate_decay**past
        elif self.schedule == "cosine":
            factor = 0.5 * (1 + cos(pi * past / max(rounds, 1)))
        elif self.schedule == "steps":
            factor = self.rate_decay ** sum(past >= milestone * rounds for milestone in self.milestones)
        return replace(self, rate=self.rate * factor, schedule="constant")

    def steps_for(self, samples: int, epochs: float | None = None) -> int:
        """How many steps a client with so many samples takes."""
        if self.steps is not None and epochs is None:
            return self.steps
        epochs = self.epochs if epochs is None else epochs
        return max(1, round(epochs * self.steps_per_epoch(samples))) if epochs > 0 else 0

    def steps_per_epoch(self, samples: int) -> int:
        """How many steps a pass over so many samples takes."""
        return ceil(samples / (self.batch or samples))


@dataclass(frozen=True)
class Batch:
    """Some samples of one client; padded rows have weight 0."""

    x: Tensor
    """Inputs, [row, ...]."""
    y: Tensor
    """Classes, [row]."""
    index: Tensor
    """Places of the samples among the client's own, [row]."""
    weight: Tensor | None = None
    """1 for real rows and 0 for padding, [row]; nothing means that all are real."""
    sample_weight: Tensor | None = None
    """What the method weighs the samples with, [row]."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean of [row] over real rows, with the samples' weights applied."""
        if self.sample_weight is not None:
            values = values * self.sample_weight
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum()


class LocalModel:
    """One client's model inside an objective: call it on a batch or on inputs."""

    def __init__(
        self, net: Net, parameters: Tensor, buffers: Tensor, current: Pass, views: Iterator[int] | None = None
    ) -> None:
        self.net, self.parameters, self.buffers, self.current = net, parameters, buffers, current
        self._views = views or count(1)

    def __call__(self, inputs: Batch | Any, *more: Any) -> Any:
        """The net's output. A batch brings the knowledge of which rows are real."""
        current = self.current
        if isinstance(inputs, Batch):
            current.rows, inputs = inputs.weight, inputs.x
        else:
            current.rows = None
        output, self.buffers = self.net(self.parameters, self.buffers, (inputs, *more), current)
        return output

    def at(self, parameters: Tensor) -> "LocalModel":
        """The same model at other parameters; what it does to its buffers stays its own, and so does its noise."""
        return self._view(parameters, next(self._views))

    def _view(self, parameters: Tensor, number: int) -> "LocalModel":
        # Views draw from far apart in one sequence: a net has far fewer layers that draw.
        return LocalModel(self.net, parameters, self.buffers, replace(self.current, draws=number << 16), self._views)

    def gradient(self, loss: Callable[["LocalModel"], Tensor]) -> Tensor:
        """The gradient of a loss at the current parameters, [P], itself differentiable. The buffers stay."""
        return torch.func.grad(lambda parameters: loss(self.at(parameters)))(self.parameters)

    def curvature(self, loss: Callable[["LocalModel"], Tensor], direction: Tensor, step: float) -> Tensor:
        """The Hessian of a loss times a direction, [P], by a central difference of gradients. The buffers stay.

        Both gradients are of the same noise: that of two draws, divided by a small step, would be all that is left.
        """
        number = next(self._views)
        gradient = torch.func.grad(lambda parameters: loss(self._view(parameters, number)))
        ahead, behind = gradient(self.parameters + step * direction), gradient(self.parameters - step * direction)
        return (ahead - behind) / (2 * step)

    def frozen(self, part: str | Iterable[str]) -> "LocalModel":
        """The same model with a part that no gradient reaches."""
        return self.at(torch.where(self.net.part(part), self.parameters.detach(), self.parameters))


class Objective(Protocol):
    """What a step lowers, written for one client and vectorised by the form.

    A function with an attribute `batches` above 1 gets that many independent batches as a tuple.
    """

    def __call__(self, model: LocalModel, batch: Any, key: Tensor) -> Tensor:
        """The loss of a batch; `key` is a scalar for keyed noise."""
        ...


def cross_entropy(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The mean cross-entropy of the batch."""
    return batch.mean(F.cross_entropy(model(batch), batch.y, reduction="none"))


@dataclass(frozen=True)
class Trained:
    """What local training gives."""

    models: Models
    """The trained models, [client]."""
    steps: Tensor
    """Steps taken, [client]."""
    loss: Tensor
    """Mean loss over the last epoch, as it was while training, [client]."""
    samples: Tensor
    """Training samples, [client]."""


@dataclass(frozen=True)
class Lane:
    """One client in the loop: its samples, its draws, how it trains. Lanes may differ in all but the optimizer."""

    index: np.ndarray
    """Its training samples, as places in the pool."""
    key: tuple[Any, ...]
    """What its draws are keyed by."""
    steps: int
    """How many steps it takes."""
    local: LocalTraining
    """Its batch size, rate, momentum, decay and clipping."""


@dataclass(frozen=True)
class Terms:
    """What is added to the gradient, per client, and what is trained."""

    pull: Tensor | None = None
    """Strength of the pull, [client, 1]."""
    anchor: Tensor | None = None
    """Where it pulls to, [client, P]."""
    push: Tensor | None = None
    """A constant vector, [client, P]."""
    trains: Tensor | None = None
    """Which parameters are trained, [P] of 1 and 0; nothing means all."""

    @classmethod
    def of(
        cls,
        start: Models,
        pull: float | Tensor,
        anchor: Models | None,
        push: Changes | None,
        trains: str | Iterable[str],
    ) -> "Terms":
        """The terms for a stack of models, one row per client. A pull of exactly 0 is none, to the last bit."""
        target = start.parameters
        pulls = isinstance(pull, Tensor) or pull != 0
        strength = torch.as_tensor(pull, dtype=target.dtype, device=target.device)
        return cls(
            strength.expand(len(start)).unsqueeze(1) if pulls else None,
            (start if anchor is None else anchor).parameters.expand_as(target) if pulls else None,
            None if push is None else push.parameters.expand_as(target),
            None if trains == "all" else start.net.part(trains).to(target.dtype),
        )

    def rows(self, chosen: Any) -> "Terms":
        """The terms of some clients."""
        pull, anchor, push = (None if part is None else part[chosen] for part in (self.pull, self.anchor, self.push))
        return Terms(pull, anchor, push, self.trains)


GradientFunction = Callable[[Tensor, Tensor, tuple[Batch, ...], Tensor], tuple[Tensor, Tensor, Tensor]]
"""(parameters [n, P], buffers [n, Q], batches, keys [n]) to (losses [n], gradients [n, P], buffers [n, Q])."""


def train_lanes(
    pool: Pool,
    lanes: Sequence[Lane],
    start: Models,
    terms: Terms,
    gradients: GradientFunction,
    streams: int = 1,
    sample_weights: Tensor | None = None,
) -> tuple[Models, Tensor]:
    """Train all lanes together, each for its own number of steps: the models and the losses of the last epoch.

    Lanes are sorted by steps, longest first, so that those still training are always the first ones: a finished lane is
    simply no longer in the prefix, and neither momentum nor decay nor a term can move it.
    """
    net, device = start.net, pool.device
    ranked = sorted(range(len(lanes)), key=lambda lane: -lanes[lane].steps)
    lanes = [lanes[lane] for lane in ranked]
    order = torch.tensor(ranked, device=device)
    parameters, buffers = start.parameters[order].clone(), start.buffers[order].clone()
    weights = None if sample_weights is None else sample_weights[order]
    tables = [_Table(pool, lanes, stream, weights) for stream in range(streams)]
    keys = torch.tensor([draw_key(*lane.key, "noise") for lane in lanes], device=device)
    counted = torch.from_numpy(_last_epoch(lanes, tables[0].rows)).to(device, net.dtype)
    losses = torch.zeros(len(lanes), device=device, dtype=net.dtype)
    optimizer = _Optimizer(lanes, parameters, terms.rows(order))
    for step, active in enumerate(tables[0].active):
        now = slice(active)
        batches = tuple(table.batch(step) for table in tables)
        loss, gradient, after = gradients(parameters[now], buffers[now], batches, keys[now] + step)
        losses[now].addcmul_(loss, counted[step, now])
        optimizer.step(parameters, gradient, active)
        if net.buffers.names:
            buffers[now] = after
    back = torch.tensor(np.argsort(ranked), device=device)
    return Models(net, parameters[back], buffers[back]), losses[back]


def _last_epoch(lanes: Sequence[Lane], rows: np.ndarray) -> np.ndarray:
    """The weight of each step in the mean loss of the last epoch, [step, lane]: its share of the epoch's samples."""
    steps = np.array([lane.steps for lane in lanes])
    epoch = np.array([lane.local.steps_per_epoch(len(lane.index)) for lane in lanes])
    late = np.arange(len(rows))[:, None] >= steps - epoch
    return (rows * late) / np.maximum((rows * late).sum(axis=0), 1)


class _Table:
    """Which sample of which client is in which row of which step."""

    def __init__(self, pool: Pool, lanes: Sequence[Lane], stream: int, weights: Tensor | None) -> None:
        self.pool, self.weights, self.alone = pool, weights, len(lanes) == 1
        longest = max(min(lane.local.batch or len(lane.index), len(lane.index)) for lane in lanes)
        shape = (lanes[0].steps, len(lanes), longest)
        places = np.full(shape, -1, dtype=np.int64)
        sources = np.empty(shape, dtype=np.int64)
        crops = np.zeros((*shape, 3), dtype=np.int64) if pool.augment else None
        for number, lane in enumerate(lanes):
            own = _places(lane, stream)
            cut = (slice(lane.steps), number, slice(own.shape[1]))
            sources[:, number] = lane.index[0]  # padding is of the client's own data: it cannot suffer from another's
            places[cut] = own
            sources[cut] = lane.index[np.maximum(own, 0)]
            if crops is not None:
                crops[cut] = pool.draw_crops(generator(*lane.key, "augment", stream), own.shape)
        self.rows = (places >= 0).sum(axis=2)
        self.active = (self.rows > 0).sum(axis=1).tolist()
        self.width = self.rows.max(axis=1, initial=0).tolist()
        self.real = torch.from_numpy(places >= 0).to(pool.device, pool.dtype)
        self.places = torch.from_numpy(np.maximum(places, 0)).to(pool.device)
        self.sources = torch.from_numpy(sources).to(pool.device)
        self.crops = None if crops is None else torch.from_numpy(crops).to(pool.device)

    def batch(self, step: int) -> Batch:
        """The rows of the lanes that are still training, [lane, row], cut to the fullest of them."""
        active = self.active[step]
        cut = (step, slice(active), slice(self.width[step]))
        sources, places = self.sources[cut], self.places[cut]
        x = self.pool.inputs(sources, None if self.crops is None else self.crops[cut])
        weights = None if self.weights is None else self.weights[:active].gather(1, places)
        # A lane alone has no padded rows: without a mask the layers may use faster kernels.
        return Batch(x, self.pool.y[sources], places, None if self.alone else self.real[cut], weights)


def _places(lane: Lane, stream: int) -> np.ndarray:
    """The client's own samples by step, [step, row]: a new order every epoch, -1 where a batch is not full."""
    samples, epoch = len(lane.index), lane.local.steps_per_epoch(len(lane.index))
    batch = min(lane.local.batch or samples, samples)
    rng = generator(*lane.key, "batches", stream)
    orders = np.full((ceil(lane.steps / epoch), epoch * batch), -1, dtype=np.int64)
    for order in orders:
        order[:samples] = rng.permutation(samples)
    return orders.reshape(-1, batch)[: lane.steps]


class _Optimizer:
    """Turns gradients into steps: pull and push, clipping, decay, then SGD with momentum or Adam.

    Rates and strengths are tensors with a row per lane, so that lanes with different settings can share a step.
    """

    def __init__(self, lanes: Sequence[Lane], parameters: Tensor, terms: Terms) -> None:
        def column(values: Iterable[float]) -> Tensor | None:
            listed = list(values)
            return parameters.new_tensor(listed).unsqueeze(1) if any(listed) else None

        self.terms, self.taken = terms, 0
        self.rate = parameters.new_tensor([lane.local.rate for lane in lanes]).unsqueeze(1)
        self.momentum = column(lane.local.momentum for lane in lanes)
        self.decay = column(lane.local.decay for lane in lanes)
        self.clip = column(lane.local.clip for lane in lanes)
        adam = lanes[0].local.optimizer == "adam"
        self.velocity = torch.zeros_like(parameters) if adam or self.momentum is not None else None
        self.square = torch.zeros_like(parameters) if adam else None

    def step(self, parameters: Tensor, gradient: Tensor, active: int) -> None:
        """Move the first `active` rows of the parameters, in place."""
        now, terms = slice(active), self.terms
        parameters = parameters[now]
        if terms.pull is not None and terms.anchor is not None:
            gradient = gradient + terms.pull[now] * (parameters - terms.anchor[now])
        if terms.push is not None:
            gradient = gradient + terms.push[now]
        if terms.trains is not None:
            gradient = gradient * terms.trains
        if self.clip is not None:
            # A lane that does not clip has 0 here, which stands for no limit.
            limit = torch.where(self.clip[now] > 0, self.clip[now], torch.inf)
            gradient = gradient * (limit / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
        if self.decay is not None:
            decayed = parameters if terms.trains is None else parameters * terms.trains
            gradient = gradient + self.decay[now] * decayed
        parameters.addcmul_(self._direction(gradient, now), self.rate[now], value=-1)

    def _direction(self, gradient: Tensor, now: slice) -> Tensor:
        self.taken += 1
        if self.velocity is None:
            return gradient
        if self.square is None:
            assert self.momentum is not None
            return self.velocity[now].mul_(self.momentum[now]).add_(gradient)
        # Adam (Kingma and Ba, ICLR 2015) with its usual constants.
        first, second = 0.9, 0.999
        mean = self.velocity[now].lerp_(gradient, 1 - first) / (1 - first**self.taken)
        square = self.square[now].lerp_(gradient.square(), 1 - second) / (1 - second**self.taken)
        return mean / (square.sqrt() + 1e-8)
