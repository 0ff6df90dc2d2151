"""The clients of an experiment with everything they hold: data set and split become shards of one pool of samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.core.errors import DataError, SettingsError
from coterie.core.randomness import generator
from coterie.data.dataset import Dataset
from coterie.data.division import Division, Scaling
from coterie.data.moments import Moments
from coterie.data.schema import Schema
from coterie.data.split import TRANSFORMS, Split, SplitRule
from coterie.data.tasks import TASKS, Task

_CROP = 4
"""Pixels around an image that a random crop may reach into, as usual for 32x32 images."""


@dataclass(frozen=True, eq=False)
class Shard:
    """What one client holds, as places in the pool."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def part(self, part: str) -> np.ndarray:
        """The samples of a part: train, validation or test."""
        samples: np.ndarray = getattr(self, part)
        return samples


@dataclass(frozen=True)
class Scales:
    """What is known of training samples together, and used for all: how inputs and targets are scaled and filled in."""

    shift: tuple[float, ...]
    """What is subtracted from inputs, per channel."""
    scale: tuple[float, ...]
    """What the differences are divided by."""
    filling: tuple[float, ...]
    """What stands for a missing value, per channel."""
    target_shift: tuple[float, ...] = ()
    """What is subtracted from the numbers that are to be predicted, if any are."""
    target_scale: tuple[float, ...] = ()
    """What the differences are divided by then."""

    @classmethod
    def of(cls, schema: Schema, moments: Moments, scaling: Scaling = "channel") -> "Scales":
        """The scales of a table's inputs from the moments of these, behind which those of numbers to predict stand."""
        inputs = len(schema.inputs)
        own, targets = moments[:inputs], moments[inputs:]
        shift, scale = schema.scaling(own) if scaling == "channel" else (np.zeros(inputs), np.ones(inputs))
        numbers = [shift, scale, schema.filling(own)]
        if len(targets.count):
            numbers += [targets.mean, targets.deviation]
        return cls(*(tuple(values.tolist()) for values in numbers))


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, and what the server holds: its own samples to train on and the global test set."""

    x: np.ndarray
    y: np.ndarray
    shards: tuple[Shard, ...]
    server: Shard
    labels: tuple[str, ...]
    groups: np.ndarray | None
    shift: np.ndarray
    """What is subtracted from inputs, per channel."""
    scale: np.ndarray
    """What the differences are divided by, per channel."""
    augment: bool
    data: str
    """The name of the data set."""
    kind: str
    """What an input is; see `Dataset.kind`."""
    task: Task = TASKS["classification"]
    """What is to be predicted."""
    target_shift: np.ndarray = field(default_factory=lambda: np.zeros(1))
    """What is subtracted from the numbers that are to be predicted, for each of them."""
    target_scale: np.ndarray = field(default_factory=lambda: np.ones(1))
    """What the differences are divided by then."""
    vocabulary: int = 0
    """How many ids there are, if inputs are tokens."""
    copies: int = 0
    """How many samples of the pool are transformed copies of others; these come last."""
    schema: Schema | None = None
    """What the columns of the table are, if the data is from one."""
    filling: np.ndarray | None = None
    """What stands for a missing value, for each input; in `x` it is filled in. None where nothing is missing, or where
    nobody has said yet how to scale."""

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.x.shape[1:]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(shard.name for shard in self.shards)

    def scaled(self, scales: Scales) -> "Population":
        """The population with these scales, and nothing missing."""
        told: dict[str, Any] = {name: np.array(value) for name, value in vars(scales).items()}
        if not scales.target_scale:  # classes are not scaled, and amounts may be already
            del told["target_shift"], told["target_scale"]
        return replace(self, x=filled(self.x, told["filling"]), **told)

    def for_pilots(self, share: float, seed: int) -> "Population":
        """The clients without their test data: of all else they have, a share stands for it, and a tenth validates."""
        shards = []
        for shard in self.shards:
            own = generator(seed, "pilots", shard.name).permutation(np.concatenate([shard.train, shard.validation]))
            tests = _part(len(own), share, len(own) - 1)
            validation = _part(len(own), 0.1, len(own) - tests - 1)
            parts = own[tests + validation :], own[tests : tests + validation], own[:tests]
            shards.append(Shard(shard.name, *parts))
        nothing = replace(self.server, test=np.empty(0, np.int64))
        return replace(self, shards=tuple(shards), server=nothing)

    def label_counts(self, part: str = "train") -> np.ndarray:
        """How often each client has each label, [client, class]."""
        if not self.task.one_class:
            raise DataError(f"{self.data}: task={self.task.name} has no classes to count")
        return np.stack([np.bincount(self.y[shard.part(part)], minlength=self.classes) for shard in self.shards])


def populate(
    data: Dataset, split: SplitRule | Split, division: Division | None = None, seed: int = 0, fit: bool = True
) -> Population:
    """Divide a data set among clients and each client's part into training, validation and test data.

    Without `fit` a table stays as it is, until somebody says how to scale it.
    """
    if not isinstance(data, Dataset):
        raise SettingsError(
            f"data of type {type(data).__name__}: expected the name of a data set, a path, a data frame with "
            "target=... or a coterie.Dataset"
        )
    if not isinstance(split, SplitRule | Split):
        raise SettingsError(f"split={split!r}: expected the name of a split or a coterie.Split")
    division = division or Division()
    rng = generator(seed, "server samples")
    held = division.server_samples if division.server_from == "train" else 0
    if isinstance(split, SplitRule) and not split.whole_data:
        probe, rest = _set_aside(data, np.arange(len(data)), held, rng)
        made = split.split(data.subset(rest) if len(probe) else data, seed)
        indices = [rest[index] for index in made.indices]
    else:
        made = split.split(data, seed) if isinstance(split, SplitRule) else split.checked(data)
        unused = np.setdiff1d(np.arange(len(data)), np.concatenate(made.indices))
        probe, _ = _set_aside(data, unused, held, rng)
        indices = list(made.indices)
    kind = division.test
    if kind == "auto":
        kind = "own"
        if made.repeats:
            kind = "proportions" if data.kind_of_task.one_class else "global"
    if kind == "own" and made.repeats and division.test_share:
        raise SettingsError("test=own: clients of this split share samples, so one trains on what another is tested on")
    if kind != "own" and data.test is None:
        raise DataError(f"test={kind}: {data.name} has no test part; set one aside with hold_out, or use test=own")
    pool = _PoolUnderConstruction(data)
    shared = None
    if made.repeats and division.validation:
        shared = _nobody_trains_on(indices, division.validation, len(data), generator(seed, "shared validation"))
    shards = []
    for name, index, transform, relabel in zip(made.names, indices, made.transforms, made.relabels, strict=True):
        own = _divided(index, division, kind == "own", generator(seed, "division", name), shared)
        tests = own[2] if kind == "own" else _published(data, own[0], kind, generator(seed, "test", name))
        shards.append(Shard(name, *(pool.places(part, transform, relabel) for part in (own[0], own[1], tests))))
    if division.server_from == "test":
        probe = _last_of_each_class(data, division.server_samples)
    everything = np.arange(len(data), len(data) + (0 if data.test is None else len(data.test)))
    server = Shard("server", probe, np.empty(0, np.int64), everything)
    augment = division.augment == "crop-flip"
    if augment and data.kind != "image":
        raise SettingsError(f"augment=crop-flip: needs images; {data.name} has inputs of shape {data.shape}")
    x, y = pool.arrays()
    trained = np.concatenate([shard.train for shard in shards])
    shift, scale = scaling_of(data, "none" if data.schema else division.scaling)
    target_shift, target_scale = np.zeros(1), np.ones(1)
    if data.task == "regression" and fit:
        target_shift, target_scale = target_scaling(y[trained])
    copies = len(y) - len(pool.y[0])
    population = Population(
        x,
        y,
        tuple(shards),
        server,
        data.labels,
        made.groups,
        shift,
        scale,
        augment,
        data.name,
        data.kind,
        data.kind_of_task,
        target_shift,
        target_scale,
        data.vocabulary,
        copies,
        data.schema,
    )
    if data.schema is None or not fit:
        return population
    return population.scaled(Scales.of(data.schema, Moments.of(x[trained]), division.scaling))


def pooled(populations: Sequence[Population]) -> list[Population]:
    """Populations that divide the same samples, with one pool for all of them.

    Behind the samples it has the copies of each population, one after another: which samples are rotated, say, depends
    on the seed.
    """
    first = populations[0]
    originals = len(first.y) - first.copies
    if not any(one.copies for one in populations):
        return [replace(one, x=first.x, y=first.y) for one in populations]
    x, y = (
        np.concatenate([getattr(first, name)[:originals], *(getattr(one, name)[originals:] for one in populations)])
        for name in ("x", "y")
    )
    behind = np.cumsum([0, *(one.copies for one in populations)])
    return [_moved(one, x, y, originals, int(by)) for one, by in zip(populations, behind[:-1], strict=True)]


def same_samples(ours: Population, theirs: Population) -> bool:
    """Whether two populations divide the very same samples, prepared in the same way; copies may differ."""
    if ours is theirs:
        return True
    originals = len(ours.y) - ours.copies
    if len(theirs.y) - theirs.copies != originals or ours.augment != theirs.augment or ours.labels != theirs.labels:
        return False
    scaled = all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("shift", "scale"))
    return scaled and all(
        np.array_equal(getattr(ours, name)[:originals], getattr(theirs, name)[:originals]) for name in ("y", "x")
    )


def _moved(population: Population, x: np.ndarray, y: np.ndarray, originals: int, by: int) -> Population:
    """A population whose pool becomes this larger one, in which its copies stand `by` places further back."""

    def moved(shard: Shard) -> Shard:
        parts = (np.where(part < originals, part, part + by) for part in (shard.train, shard.validation, shard.test))
        return Shard(shard.name, *parts)

    shards = tuple(moved(shard) for shard in population.shards)
    return replace(population, x=x, y=y, shards=shards, server=moved(population.server), copies=len(y) - originals)


def _set_aside(
    data: Dataset, available: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Random samples that the server holds, and the others that are available."""
    if count > len(available) or (count and count == len(data)):
        raise SettingsError(f"server_samples={count}: only {len(available)} of {len(data)} samples are free")
    chosen = np.sort(rng.permutation(available)[:count])
    return chosen, np.setdiff1d(available, chosen)


def _last_of_each_class(data: Dataset, count: int) -> np.ndarray:
    """The last published test samples of each class, as many of one as of another, as places in the pool."""
    available = 0 if data.test is None else len(data.test)
    if count > available:
        raise SettingsError(f"server_samples={count}: {data.name} has {available} published test samples")
    labels = np.empty(0, dtype=np.int64) if data.test is None else data.test.y
    if not data.kind_of_task.one_class:
        labels = np.zeros(available, dtype=np.int64)
    # How many of the same class come after each sample: the lowest are taken first, in turns over the classes.
    after = np.zeros(available, dtype=np.int64)
    for label in range(data.classes):
        own = np.flatnonzero(labels == label)
        after[own] = np.arange(len(own))[::-1]
    return len(data) + np.sort(np.argsort(after, kind="stable")[:count])


def _nobody_trains_on(
    indices: Sequence[np.ndarray], share: float, samples: int, rng: np.random.Generator
) -> np.ndarray:
    """Which samples are kept for validation by all clients that have them, [sample]; each has one left to train on.

    Where clients share samples, these are drawn instead of places in each client's data: what validates one client's
    model would otherwise be trained on by others, whose models it gets.
    """
    used = np.unique(np.concatenate(indices))
    kept = np.zeros(samples, dtype=bool)
    kept[rng.permutation(used)[: round(share * len(used))]] = True
    for index in indices:
        if kept[index].all():
            kept[rng.choice(index)] = False
    return kept


def _divided(
    index: np.ndarray,
    division: Division,
    own_test: bool,
    rng: np.random.Generator,
    kept: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test samples of one client; every part gets a sample before any gets a second.

    Where clients share samples, `kept` says which are for validation.
    """
    index = rng.permutation(index)
    if kept is not None:
        return index[~kept[index]], index[kept[index]], index[:0]
    others = 2 if division.validation and len(index) > 2 else 1
    tests = _part(len(index), division.test_share if own_test else 0, len(index) - others)
    validation = _part(len(index), division.validation, len(index) - tests - 1)
    return index[tests + validation :], index[tests : tests + validation], index[:tests]


def _part(samples: int, share: float, most: int) -> int:
    """The size of a part with this share of a client's samples: at least one unless the share is 0, at most `most`."""
    return min(max(1, round(share * samples)), most) if share > 0 else 0


def _published(data: Dataset, train: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The published test samples on which a client is tested, as places in the pool."""
    assert data.test is not None
    labels = data.test.y
    if kind == "global":
        return np.arange(len(labels)) + len(data)
    if not data.kind_of_task.one_class:
        raise DataError(f"test={kind}: task={data.task} has no classes; use test=own or test=global")
    counts = np.bincount(data.y[train], minlength=data.classes)
    if kind == "labels":
        chosen = np.flatnonzero(counts[labels] > 0)
    else:
        shares = counts / counts.sum()
        available = np.bincount(labels, minlength=data.classes)
        has = shares > 0
        if (available[has] == 0).any():
            raise DataError(f"test=proportions: {data.name} has no test samples of some labels that clients train on")
        # As many as the scarcest class allows without taking a sample twice.
        total = (available[has] / shares[has]).min()
        wanted = np.minimum(np.round(shares * total).astype(int), available)
        picks = [rng.permutation(np.flatnonzero(labels == label))[: wanted[label]] for label in np.flatnonzero(has)]
        chosen = np.sort(np.concatenate(picks))
    return chosen + len(data)


class _PoolUnderConstruction:
    """Puts a pool together: training samples, test samples, and copies of those that some client has changed."""

    def __init__(self, data: Dataset) -> None:
        parts = [data] if data.test is None else [data, data.test]
        self.x = [np.concatenate([part.x for part in parts]) if len(parts) > 1 else data.x]
        self.y = [np.concatenate([part.y for part in parts])]
        self.total = len(self.y[0])
        self.copies: dict[tuple[str | None, tuple[int, ...] | None], np.ndarray] = {}

    def places(self, index: np.ndarray, transform: str | None, relabel: tuple[int, ...] | None) -> np.ndarray:
        """The places of samples in the pool, those of their copies if a client changes them; each copy is made once.

        Inputs are changed by a transform, and `relabel` [class] says what labels are called.
        """
        if transform is None and relabel is None:
            return index
        known = self.copies.setdefault((transform, relabel), np.full(len(self.y[0]), -1, dtype=np.int64))
        new = index[known[index] < 0]
        if len(new):
            known[new] = np.arange(self.total, self.total + len(new))
            self.total += len(new)
            x, y = self.x[0][new], self.y[0][new]
            self.x.append(x if transform is None else np.ascontiguousarray(TRANSFORMS[transform](x)))
            self.y.append(y if relabel is None else np.array(relabel, dtype=y.dtype)[y])
        return known[index]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All samples and labels."""
        if len(self.x) == 1:
            return self.x[0], self.y[0]
        return np.concatenate(self.x), np.concatenate(self.y)


def scaling_of(data: Dataset, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from a data set's inputs, and what they are divided by then, per channel.

    Ids are no amounts, and nothing is done to them.
    """
    channels = 1 if data.kind == "tokens" else data.channels
    if scaling == "none" or data.kind == "tokens":
        return np.zeros(channels), np.ones(channels)
    if scaling == "unit":
        return np.zeros(channels), np.full(channels, 255.0 if data.x.dtype == np.uint8 else 1.0)
    mean, deviation = data.moments
    return mean, np.where(deviation > 1e-8, deviation, 1.0)


def filled(x: np.ndarray, filling: np.ndarray) -> np.ndarray:
    """Inputs [sample, input] with these numbers in place of missing ones."""
    return np.where(np.isnan(x), filling.astype(x.dtype), x)


def target_scaling(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from numbers that are to be predicted, and what they are divided by then.

    It is mean and deviation of the `targets` [sample, number] that clients train on.
    """
    deviation = targets.std(axis=0, dtype=np.float64)
    return targets.mean(axis=0, dtype=np.float64), np.where(deviation > 1e-8, deviation, 1.0)


class Pool:
    """The samples of a population on the device that computes with them; inputs are scaled when a batch is gathered.

    Images lie channels-last, so that a gathered batch has the memory format in which convolutions are fastest on a CPU.
    Ids of tokens are whole numbers, and stay so.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        factor: Tensor,
        offset: Tensor,
        augment: bool,
        target_shift: Tensor | None = None,
        target_scale: Tensor | None = None,
    ) -> None:
        self.x, self.y, self.factor, self.offset, self.augment = x, y, factor, offset, augment
        self.target_shift = torch.zeros(1) if target_shift is None else target_shift
        self.target_scale = torch.ones(1) if target_scale is None else target_scale
        self.images, self.tokens = x.dim() == 4, x.dtype == torch.int32

    @classmethod
    def of(cls, population: Population, device: torch.device | str, dtype: torch.dtype) -> "Pool":
        """The pool of a population on a device, with inputs in this precision."""
        x = population.x
        channel = (-1,) if population.kind == "series" else (-1,) + (1,) * (x.ndim - 2)
        if x.ndim == 4:
            x, channel = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), (-1,)
        factor = torch.from_numpy(1 / population.scale).to(device, dtype).reshape(channel)
        offset = torch.from_numpy(-population.shift / population.scale).to(device, dtype).reshape(channel)
        y = torch.from_numpy(population.y).to(device)
        if y.is_floating_point():
            targets = (population.y - population.target_shift) / population.target_scale
            y = torch.from_numpy(targets).to(device, dtype)
        units = (torch.from_numpy(value) for value in (population.target_shift, population.target_scale))
        return cls(torch.from_numpy(x).to(device), y, factor, offset, population.augment, *units)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by the name of the argument that takes them."""
        names = ("x", "y", "factor", "offset", "target_shift", "target_scale")
        return {name: getattr(self, name) for name in names}

    def in_units(self, numbers: Tensor) -> Tensor:
        """Targets that are numbers, or predictions of them, [..., number], in the data's own units."""
        return numbers.double().cpu() * self.target_scale + self.target_shift

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.x.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of prepared inputs, unless these are ids."""
        return self.factor.dtype

    def inputs(self, index: Tensor, crops: Tensor | None = None) -> Tensor:
        """Prepared inputs [..., row, *shape] of the samples at these places."""
        x = self.x[index]
        if crops is not None:
            x = _cropped(x, crops)
        if self.tokens:
            return x.long()
        x = torch.addcmul(self.offset, x.to(self.dtype), self.factor)
        return x.movedim(-1, -3) if self.images else x

    def draw_crops(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        """Random places to crop at and whether to flip, [*shape, 3]."""
        return rng.integers(0, (2 * _CROP + 1, 2 * _CROP + 1, 2), (*shape, 3))


def _cropped(x: Tensor, crops: Tensor) -> Tensor:
    """Windows of padded images [..., height, width, channel] at [..., (top, left, flip)]."""
    lead, (height, width, _) = x.shape[:-3], x.shape[-3:]
    x = F.pad(x.flatten(0, len(lead) - 1), (0, 0, _CROP, _CROP, _CROP, _CROP))
    top, left, flip = crops.reshape(-1, 3).unbind(1)
    rows = torch.arange(height, device=x.device)[None, :] + top[:, None]
    columns = torch.arange(width, device=x.device)[None, :]
    columns = torch.where(flip[:, None] > 0, width - 1 - columns, columns) + left[:, None]
    picture = torch.arange(len(x), device=x.device)[:, None, None]
    return x[picture, rows[:, :, None], columns[:, None, :]].unflatten(0, lead)
