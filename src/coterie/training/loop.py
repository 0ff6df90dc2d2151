"""The one local training loop.

The loop trains a stack of models, one per client, each on its own client's samples. A client in the loop is a *track*,
and tracks that take their steps together are a *bundle*. The loop knows nothing of methods: FedProx, SCAFFOLD, FedDyn
and others differ in two terms of the gradient, a *pull* towards a model, the *anchor*, and a *push*, a constant vector;
others differ in the *objective*, a function written for one client. What an objective needs besides the model is in
*extras*: numbers that are trained beside it, such as a second head, and numbers that it carries from step to step.

How a gradient is computed, for one client alone or for many at once, is the business of the *form*
(`coterie.training.forms`). Everything else (the order of samples, terms, clipping, momentum) happens here, once, so
that all forms do the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.core.randomness import draw_key, generator, generators
from coterie.data.population import Pool
from coterie.nets.layers import Pass
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models
from coterie.training.local import LocalTraining


@dataclass(frozen=True)
class Batch:
    """Some samples of one client; padded rows have weight 0."""

    x: Tensor
    """Inputs, [row, ...]."""
    y: Tensor
    """Classes [row], or numbers [row, output]."""
    index: Tensor
    """Places of the samples among the client's own, [row]."""
    weight: Tensor | None = None
    """1 for real rows and 0 for padding, [row]; None means that all are real."""
    sample_weight: Tensor | None = None
    """The samples' weights in the objective, [row], if the method gives any."""
    prior: Tensor | None = None
    """What is added to a classifier's outputs, [class], if the client's prior is kept out of the model."""
    averaged: ClassVar[bool] = False
    """Whether `mean` has been asked for."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean of [row] over real rows, with the samples' weights applied."""
        object.__setattr__(self, "averaged", True)
        if self.sample_weight is not None:
            values = values * self.sample_weight
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum()


class LocalModel:
    """One client's model inside an objective: call it on a batch or on inputs.

    An objective may also look at the model at other parameters: `at`, `frozen`, `gradient`. Each such view draws
    dropout noise of its own. So the inner and the outer step of a meta-learner are independent, and a further look
    changes nothing else. `evaluated` says what another model makes of a batch when it predicts.
    """

    def __init__(
        self, net: Net, parameters: Tensor, buffers: Tensor, current: Pass, views: Iterator[int] | None = None
    ) -> None:
        self.net, self.parameters, self.buffers, self.current = net, parameters, buffers, current
        self.beside: dict[str, Tensor] = {}
        """Numbers that are trained beside the model, by name (see `Clients.train`)."""
        self.carried: dict[str, Tensor] = {}
        """Numbers that the objective reads and, if it puts others in their place, finds in its next step."""
        self._views = views or count(1)

    def __call__(self, inputs: Batch | Any, *more: Any) -> Any:
        """The net's output. A batch also says which of its rows are real, and which prior stands beside the model."""
        current, prior = self.current, None
        if isinstance(inputs, Batch):
            current.rows, prior, inputs = inputs.weight, inputs.prior, inputs.x
        else:
            current.rows = None
        output, self.buffers = self.net(self.parameters, self.buffers, (inputs, *more), current)
        return output if prior is None else output + prior

    def with_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the net's last layer gets [row, feature], and what it makes of it: the outputs, as a call gives them."""
        outputs = self(batch)
        assert self.current.features is not None
        return self.current.features, outputs

    def at(self, parameters: Tensor) -> "LocalModel":
        """A view of this model at other parameters; its noise, and what it does to buffers, are its own."""
        return self._view(parameters, next(self._views))

    def evaluated(self, parameters: Tensor, buffers: Tensor) -> "LocalModel":
        """A view of other numbers as a model in evaluation: with its running statistics, and without noise."""
        return LocalModel(self.net, parameters, buffers, Pass(stacked=self.current.stacked), self._views)

    def _view(self, parameters: Tensor, number: int) -> "LocalModel":
        # All views draw from one sequence. Each begins far behind the one before: no net has 2^16 layers that draw.
        view = LocalModel(self.net, parameters, self.buffers, replace(self.current, draws=number << 16), self._views)
        view.beside, view.carried = self.beside, self.carried
        return view

    def gradient(self, loss: Callable[["LocalModel"], Tensor]) -> Tensor:
        """The gradient of a loss at the current parameters, [P], itself differentiable. Buffers do not change."""
        return torch.func.grad(lambda parameters: loss(self.at(parameters)))(self.parameters)

    def curvature(self, loss: Callable[["LocalModel"], Tensor], direction: Tensor, step: float) -> Tensor:
        """The Hessian of a loss times a direction, [P], by a central difference of gradients. Buffers do not change.

        Both gradients draw the same noise: the difference between two draws, divided by a small step, would drown the
        rest.
        """
        number = next(self._views)
        gradient = torch.func.grad(lambda parameters: loss(self._view(parameters, number)))
        ahead, behind = gradient(self.parameters + step * direction), gradient(self.parameters - step * direction)
        return (ahead - behind) / (2 * step)

    def frozen(self, part: str | Iterable[str]) -> "LocalModel":
        """The same model with a part that no gradient reaches."""
        return self.at(torch.where(self.net.part(part), self.parameters.detach(), self.parameters))


class Objective(Protocol):
    """What training lowers: a function written for one client, which the form vectorises.

    A function with an attribute `batches` above 1 gets that many independent batches as a tuple. It must depend on its
    arguments alone, and find what it needs on the device: on a GPU it runs once, and what it did is replayed in every
    further step.
    """

    def __call__(self, model: LocalModel, batch: Any, key: Tensor) -> Tensor:
        """The loss of each sample of a batch [row], or one loss that `batch.mean` has made of them.

        Random numbers can be drawn from `key`, a scalar of this client and step.
        """


def task_loss(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The mean of what the task lowers, such as the cross-entropy of classes."""
    return batch.mean(model.net.task.losses(model(batch), batch.y))


Named = Mapping[str, Tensor]
"""Tensors by name, with a row for each client."""


@dataclass(frozen=True)
class Extras:
    """What the rows of a training hold besides a model: names, and the shapes of what each client has.

    In the loop they lengthen the rows: `beside` those of parameters, `carried` those of buffers.
    """

    beside: tuple[tuple[str, torch.Size], ...] = ()
    carried: tuple[tuple[str, torch.Size], ...] = ()

    @classmethod
    def of(cls, beside: Named, carried: Named) -> "Extras":
        """The names and shapes of these."""
        return cls(*(tuple((name, rows.shape[1:]) for name, rows in one.items()) for one in (beside, carried)))

    def __bool__(self) -> bool:
        return bool(self.beside or self.carried)

    @staticmethod
    def joined(start: Models, beside: Named, carried: Named) -> Models:
        """Rows of models [client], lengthened."""
        rows = ((start.parameters, beside), (start.buffers, carried))
        longer = [torch.cat([own, *(_flat(value, own) for value in more.values())], dim=1) for own, more in rows]
        return Models(start.net, *longer)

    def split(self, net: Net, parameters: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor, Any, Any]:
        """Parameters [..., P] and buffers [..., Q] of models, and by name what is beside them and what is carried."""
        own, beside = _cut(parameters, net.parameters.total, self.beside)
        running, carried = _cut(buffers, net.buffers.total, self.carried)
        return own, running, beside, carried


def _flat(rows: Tensor, like: Tensor) -> Tensor:
    return rows.to(like).reshape(len(like), -1)


def _cut(rows: Tensor, own: int, more: Sequence[tuple[str, torch.Size]]) -> tuple[Tensor, dict[str, Tensor]]:
    """The first numbers of rows [..., own], and those behind them by name."""
    first, *rest = rows.split([own, *(shape.numel() for _, shape in more)], dim=-1)
    named = {name: part.reshape((*part.shape[:-1], *shape)) for (name, shape), part in zip(more, rest, strict=True)}
    return first, named


@dataclass(frozen=True)
class Trained:
    """What local training gives."""

    models: Models
    """The trained models, [client]."""
    steps: Tensor
    """Steps taken, [client]."""
    loss: Tensor
    """Mean loss of the last epoch's batches, each before its step, [client]."""
    samples: Tensor
    """Training samples, [client]."""
    beside: Named = field(default_factory=dict)
    """What was trained beside the models, by name."""
    carried: Named = field(default_factory=dict)
    """What objectives have carried to the end, by name."""


@dataclass(frozen=True)
class Track:
    """One client in the loop: its samples, its random draws, how it trains.

    Tracks of a bundle may differ in everything but the optimizer, and may be of different runs.
    """

    index: np.ndarray
    """Its training samples, as places in the pool."""
    key: tuple[Any, ...]
    """The key of its random draws (see `coterie.core.randomness`)."""
    steps: int
    """How many steps it takes."""
    local: LocalTraining
    """Its batch size, rate, momentum, decay and clipping."""
    prior: Tensor | None = None
    """What is added to the model's outputs in training, [class]; None adds nothing."""

    @property
    def epoch(self) -> int:
        """How many steps a pass over its samples takes."""
        return self.local.steps_per_epoch(len(self.index))

    @property
    def width(self) -> int:
        """The most samples in one of its steps."""
        return min(self.local.batch or len(self.index), len(self.index))


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
    """Which parameters are trained, [P] of 1 and 0; None means all."""

    @classmethod
    def of(
        cls,
        start: Models,
        pull: float | Tensor,
        anchor: Models | None,
        push: Changes | None,
        trains: str | Iterable[str],
    ) -> "Terms":
        """The terms for a stack of models, one row per client. A pull of exactly 0 leaves no term at all."""
        target = start.parameters
        strength = centre = None
        if isinstance(pull, Tensor) or pull != 0:
            strength = torch.as_tensor(pull, dtype=target.dtype, device=target.device).expand(len(start)).unsqueeze(1)
            centre = (start if anchor is None else anchor).parameters.expand_as(target)
        return cls(
            strength,
            centre,
            None if push is None else push.parameters.expand_as(target),
            None if trains == "all" else start.net.part(trains).to(target.dtype),
        )

    @classmethod
    def cat(cls, terms: Sequence["Terms"]) -> "Terms":
        """The terms of several stacks, one after another. All must train the same part and have the same terms."""

        def joined(name: str) -> Tensor | None:
            there = [part for one in terms if (part := getattr(one, name)) is not None]
            return torch.cat(there) if there else None

        return cls(joined("pull"), joined("anchor"), joined("push"), terms[0].trains)

    def widened(self, more: int) -> "Terms":
        """The terms for rows that have so many numbers more, which are trained, and which no term touches."""
        if not more:
            return self

        def wider(part: Tensor | None, value: float = 0.0) -> Tensor | None:
            return None if part is None else pad(part, (0, more), value=value)

        pull = None if self.pull is None or self.anchor is None else self.pull.expand_as(self.anchor)
        return Terms(wider(pull), wider(self.anchor), wider(self.push), wider(self.trains, 1.0))

    def rows(self, chosen: Any) -> "Terms":
        """The terms of some clients."""
        pull, anchor, push = (None if part is None else part[chosen] for part in (self.pull, self.anchor, self.push))
        return Terms(pull, anchor, push, self.trains)


Gradients = tuple[Tensor, Tensor, Tensor]
"""Losses [n], gradients [n, P], and the buffers afterwards [n, Q]."""

GradientFunction = Callable[[Tensor, Tensor, tuple[Batch, ...], Tensor], Gradients]
"""Gives the gradients for parameters [n, P], buffers [n, Q], batches and keys [n]."""


class Stepping(Protocol):
    """Tracks that take their steps together: a `Bundle`, or one whose steps are replayed (`training.graphs`)."""

    @property
    def active(self) -> Sequence[int]:
        """For each step, how many tracks take it: these are the first ones."""

    def step(self, number: int) -> None:
        """Let the tracks that are still training take a step."""

    def result(self) -> tuple[Models, Tensor]:
        """The models and the losses of the last epoch, in the order in which the tracks were given."""


def train_tracks(bundles: Sequence[Stepping]) -> list[tuple[Models, Tensor]]:
    """The one loop: train every track for its own number of steps. Bundles take turns, step by step."""
    for number in range(max(len(bundle.active) for bundle in bundles)):
        for bundle in bundles:
            if number < len(bundle.active):
                bundle.step(number)
    return [bundle.result() for bundle in bundles]


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """What is to be trained: tracks, and for each of them a model to start from and terms of the gradient."""

    pool: Pool
    tracks: Sequence[Track]
    start: Models
    """The models that training starts from, [track]."""
    terms: Terms
    objective: Objective
    sample_weights: Tensor | None = None
    """The weights of a track's samples in the objective, [track, sample]; None means that all count alike."""
    extras: Extras = Extras()
    """What the rows of `start` hold besides models."""


class Bundle:
    """Tracks that take their steps together, and everything that a step reads and moves.

    Tracks are sorted by steps, longest first, so that those still training are always the first ones: a finished track
    is simply no longer in the slice, and neither momentum nor decay nor a term can move it.
    """

    def __init__(
        self, job: TrainingJob, gradients: GradientFunction, chosen: Sequence[int], rows: int | None = None
    ) -> None:
        """The tracks of a job that stand at the `chosen` places.

        With `rows`, all tracks compute in all steps, with batches of that many rows: then every operation has the same
        shape whatever the tracks are. Finished tracks compute along, and are not moved.
        """
        pool, net = job.pool, job.start.net
        ranked = sorted(range(len(chosen)), key=lambda place: -job.tracks[chosen[place]].steps)
        tracks = [job.tracks[chosen[place]] for place in ranked]
        self._back = torch.tensor(np.argsort(ranked), device=pool.device)
        self.rows = TrackRows.of(job, tracks, torch.tensor([chosen[place] for place in ranked], device=pool.device))
        draws = [_drawn(pool, tracks, stream, rows) for stream in range(getattr(job.objective, "batches", 1))]
        filled = draws[0][1]
        counted = torch.from_numpy(_last_epoch(tracks, filled)).to(pool.device, net.dtype)
        moving = None if rows is None else torch.from_numpy(filled > 0).to(pool.device).unsqueeze(2)
        tables = Schedule(tuple(table for table, _ in draws), counted, moving)
        self.extras = job.extras
        self.stepper = TrainingStep(pool, net, gradients, tables, job.terms.trains)
        self.active: list[int] = (filled > 0).sum(axis=1).tolist()
        self.width: list[int] = filled.max(axis=1, initial=0).tolist()
        if rows is not None:
            self.active, self.width = [len(tracks)] * len(filled), [rows] * len(filled)
        self.alone = len(tracks) == 1 and rows is None
        self.batch = max(track.local.batch for track in tracks) if all(track.local.batch for track in tracks) else 0

    def step(self, number: int) -> None:
        """Let the tracks that are still training take a step."""
        # A track alone has no padded rows: without a mask the layers may use faster kernels.
        self.stepper.step(self.rows, number, self.active[number], self.width[number], masked=not self.alone)

    def result(self) -> tuple[Models, Tensor]:
        """The models and the losses of the last epoch, in the order in which the tracks were given."""
        return self.sorted_back(self.rows)

    def sorted_back(self, rows: "TrackRows") -> tuple[Models, Tensor]:
        """The models and losses in these rows, in the order in which the tracks were given."""
        models = Models(self.stepper.net, rows.parameters[self._back], rows.buffers[self._back])
        return models, rows.losses[self._back]


@dataclass
class TrackRows:
    """What a step reads and moves, with a row per track.

    Rates and strengths are tensors too, so that tracks with different settings can share a step. What no track uses is
    None.
    """

    parameters: Tensor
    buffers: Tensor
    losses: Tensor
    keys: Tensor
    rate: Tensor
    momentum: Tensor | None
    decay: Tensor | None
    clip: Tensor | None
    pull: Tensor | None
    anchor: Tensor | None
    push: Tensor | None
    velocity: Tensor | None
    square: Tensor | None
    sample_weights: Tensor | None
    prior: Tensor | None

    @classmethod
    def of(cls, job: TrainingJob, tracks: Sequence[Track], places: Tensor) -> "TrackRows":
        """The rows of some tracks of a job, which stand at these places there."""
        start, terms = job.start[places], job.terms.rows(places)
        parameters = start.parameters

        def column(values: Iterable[float]) -> Tensor | None:
            listed = list(values)
            return parameters.new_tensor(listed).unsqueeze(1) if any(listed) else None

        momentum = column(track.local.momentum for track in tracks)
        adam = tracks[0].local.optimizer == "adam"
        return cls(
            parameters,
            start.buffers,
            parameters.new_zeros(len(tracks)),
            torch.tensor([draw_key(*track.key, "noise") for track in tracks], device=parameters.device),
            parameters.new_tensor([track.local.rate for track in tracks]).unsqueeze(1),
            momentum,
            column(track.local.decay for track in tracks),
            column(track.local.clip for track in tracks),
            terms.pull,
            terms.anchor,
            terms.push,
            torch.zeros_like(parameters) if adam or momentum is not None else None,
            torch.zeros_like(parameters) if adam else None,
            None if job.sample_weights is None else job.sample_weights[places],
            _priors(tracks),
        )

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "TrackRows":
        """Rows whose tensors are what a function makes of these."""
        mapped: dict[str, Any] = {n: None if value is None else function(value) for n, value in vars(self).items()}
        return TrackRows(**mapped)

    def first(self, active: int) -> "TrackRows":
        """The first rows, as views."""
        return self if active == len(self.parameters) else self.mapped(lambda tensor: tensor[:active])


@dataclass
class BatchIndices:
    """Which samples the tracks see in every step, [step, track, row]."""

    sources: Tensor
    """Places in the pool. Padding repeats a sample of the same client, so that no other's can do harm."""
    places: Tensor
    """Places among the client's own samples."""
    real: Tensor
    """1 for real rows and 0 for padding."""
    crops: Tensor | None
    """Where images are cropped, and whether they are flipped, [..., 3]."""


@dataclass
class Schedule:
    """Tables of what changes from step to step."""

    draws: tuple[BatchIndices, ...]
    """The batches, once for each stream of them that the objective asks for."""
    counted: Tensor
    """The weight of the step in the mean loss of the last epoch, [step, track]."""
    moving: Tensor | None = None
    """Which tracks the step moves, [step, track, 1]; None if finished tracks are not computed."""
    window: int | None = None
    """How many steps the tables have room for, if later steps overwrite earlier ones; None if all steps are there."""


@dataclass
class TrainingStep:
    """A training step. Nothing in it waits for the device, so it can be recorded once and replayed (`graphs`)."""

    pool: Pool
    net: Net
    gradients: GradientFunction
    tables: Schedule
    trains: Tensor | None
    """Which parameters are trained, [P] of 1 and 0; None means all."""

    def step(self, rows: TrackRows, number: int | Tensor, active: int, width: int, masked: bool) -> None:
        """Let the first `active` tracks take a step, with batches `width` rows wide.

        The number of the step may be a tensor on the device. `masked` says that rows of a batch may be padding.
        """
        tables, place = self.tables, number if self.tables.window is None else number % self.tables.window
        rows = rows.first(active)
        batches = tuple(self._batch(draws, rows, place, active, width, masked) for draws in tables.draws)
        loss, gradient, after = self.gradients(rows.parameters, rows.buffers, batches, rows.keys + number)
        rate, moving = rows.rate, None
        if tables.moving is not None:
            moving = _taken(tables.moving, place, active)
            loss, gradient = torch.where(moving[:, 0], loss, 0), torch.where(moving, gradient, 0)
            rate = rate * moving
        rows.losses.addcmul_(loss, _taken(tables.counted, place, active))
        direction = _direction(rows, gradient, self.trains, number, self.net.parameters.total)
        rows.parameters.addcmul_(direction, rate, value=-1)
        if rows.buffers.shape[1]:
            rows.buffers.copy_(after if moving is None else torch.where(moving, after, rows.buffers))

    def _batch(
        self, draws: BatchIndices, rows: TrackRows, place: int | Tensor, active: int, width: int, masked: bool
    ) -> Batch:
        """The samples of the first tracks in a step, [track, row]."""
        sources = _taken(draws.sources, place, active, width)
        places = _taken(draws.places, place, active, width)
        crops = None if draws.crops is None else _taken(draws.crops, place, active, width)
        real = _taken(draws.real, place, active, width) if masked else None
        weights = None if rows.sample_weights is None else rows.sample_weights.gather(1, places)
        return Batch(self.pool.inputs(sources, crops), self.pool.y[sources], places, real, weights, rows.prior)


def _priors(tracks: Sequence[Track]) -> Tensor | None:
    """What is added to the tracks' outputs, [track, class]; None if nothing is to any."""
    known = next((track.prior for track in tracks if track.prior is not None), None)
    if known is None:
        return None
    return torch.stack([torch.zeros_like(known) if track.prior is None else track.prior for track in tracks])


def _taken(table: Tensor, place: int | Tensor, *cut: int) -> Tensor:
    """A step's part of a table; its place may be a number, or a tensor [1] that is not read on the host."""
    table = table[place] if isinstance(place, int) else table.index_select(0, place)[0]
    return table[tuple(slice(size) for size in cut)]


def _last_epoch(tracks: Sequence[Track], filled: np.ndarray) -> np.ndarray:
    """The weight of each step in the mean loss of the last epoch, [step, track]: its share of the epoch's samples."""
    steps = np.array([track.steps for track in tracks])
    epoch = np.array([track.epoch for track in tracks])
    late = np.arange(len(filled))[:, None] >= steps - epoch
    return (filled * late) / np.maximum((filled * late).sum(axis=0), 1)


def _drawn(pool: Pool, tracks: Sequence[Track], stream: int, rows: int | None) -> tuple[BatchIndices, np.ndarray]:
    """A stream of batches for all steps, and how many samples each batch has, [step, track].

    A batch has room for `rows` samples, or else for as many as the largest one has.
    """
    shape = (tracks[0].steps, len(tracks), rows or max(track.width for track in tracks))
    places = np.full(shape, -1, dtype=np.int64)
    crops = np.zeros((*shape, 3), dtype=np.int64) if pool.augment else None
    drawing = generators(draw_key(*track.key, "batches", stream) for track in tracks)
    for number, (track, rng) in enumerate(zip(tracks, drawing, strict=True)):
        own = _places(track, rng)
        places[: track.steps, number, : own.shape[1]] = own
        if crops is not None:
            drawn = pool.draw_crops(generator(*track.key, "augment", stream), own.shape)
            crops[: track.steps, number, : own.shape[1]] = drawn
    real = places >= 0
    np.maximum(places, 0, out=places)
    # One look-up for all: in all tracks' samples, one after another, each track's begin at its `first`.
    first = np.cumsum([0, *(len(track.index) for track in tracks[:-1])])
    sources = np.concatenate([track.index for track in tracks])[places + first[:, None]]
    draws = BatchIndices(
        torch.from_numpy(sources).to(pool.device),
        torch.from_numpy(places).to(pool.device),
        torch.from_numpy(real).to(pool.device, pool.dtype),
        None if crops is None else torch.from_numpy(crops).to(pool.device),
    )
    return draws, real.sum(axis=2)


def _places(track: Track, rng: np.random.Generator) -> np.ndarray:
    """The client's own samples by step, [step, row]: a new order every pass, -1 where a batch is not full."""
    samples, batch = len(track.index), track.width
    steps = samples // batch if track.local.whole_batches else track.epoch
    orders = np.full((ceil(track.steps / steps), steps * batch), -1, dtype=np.int64)
    for order in orders:
        order[:samples] = rng.permutation(samples)[: steps * batch]
    return orders.reshape(-1, batch)[: track.steps]


def _direction(rows: TrackRows, gradient: Tensor, trains: Tensor | None, number: int | Tensor, own: int) -> Tensor:
    """Where a step goes: the gradient with pull and push, clipping and decay, through momentum or Adam.

    The first `own` numbers of a row are the model's. They are clipped for themselves, and so is what is beside them.
    """
    if rows.pull is not None and rows.anchor is not None:
        gradient = gradient + rows.pull * (rows.parameters - rows.anchor)
    if rows.push is not None:
        gradient = gradient + rows.push
    if trains is not None:
        gradient = gradient * trains
    if rows.clip is not None:
        # A track that does not clip has 0 here, which stands for no limit.
        limit = torch.where(rows.clip > 0, rows.clip, torch.inf)
        parts = gradient.split([own, gradient.shape[1] - own], dim=1)
        short = [part * (limit / (part.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1) for part in parts]
        gradient = torch.cat(short, dim=1) if parts[1].shape[1] else short[0]
    if rows.decay is not None:
        decayed = rows.parameters if trains is None else rows.parameters * trains
        gradient = gradient + rows.decay * decayed
    if rows.velocity is None:
        return gradient
    if rows.square is None:
        assert rows.momentum is not None
        return rows.velocity.mul_(rows.momentum).add_(gradient)
    # Adam (Kingma and Ba, ICLR 2015) with its usual constants. Where a gradient should be zero, such as that of a bias
    # in front of batch normalisation, it makes steps of full size out of rounding noise: no two devices agree there.
    mean = rows.velocity.lerp_(gradient, 1 - _FIRST) / (1 - _power(_FIRST, number, gradient))
    square = rows.square.lerp_(gradient.square(), 1 - _SECOND) / (1 - _power(_SECOND, number, gradient))
    return mean / (square.sqrt() + 1e-8)


_FIRST, _SECOND = 0.9, 0.999


def _power(base: float, number: int | Tensor, like: Tensor) -> float | Tensor:
    """The base to the power of how many steps have been taken with this one, where steps are numbered from 0."""
    return base ** (number + 1 if isinstance(number, int) else (number + 1).to(like.dtype))
