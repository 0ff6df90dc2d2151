"""Splits: which samples each client has, how its inputs are transformed, and which clients truly belong together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coterie.core.display import html_table, span
from coterie.core.errors import DataError, unknown
from coterie.core.fields import Checked, Count, known_keywords
from coterie.core.randomness import generator
from coterie.core.registry import Registry
from coterie.data.dataset import Dataset

TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rotate-90": lambda x: np.rot90(x, 1, axes=(-2, -1)),
    "rotate-180": lambda x: np.rot90(x, 2, axes=(-2, -1)),
    "rotate-270": lambda x: np.rot90(x, 3, axes=(-2, -1)),
}
"""What can be done to all inputs of a client, by name: functions of images [sample, channel, height, width]."""


@known_keywords
@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """The clients of a population, before their data is divided into training, validation and test data.

    >>> split = coterie.Split(([0, 1, 2], [3, 4]), groups=[0, 1], names=("north", "south"))
    >>> split.sizes
    array([3, 2])
    """

    indices: tuple[np.ndarray, ...]
    """The samples of each client, as places in the data set."""

    groups: np.ndarray | None = None
    """The true group of each client, [client], where the definition has groups."""

    transforms: tuple[str | None, ...] = ()
    """What is done to the inputs of each client: a name in `TRANSFORMS`, or None."""

    relabels: tuple[tuple[int, ...] | None, ...] = ()
    """What each client calls the labels, [class], or None where it calls them as the data does."""

    names: tuple[str, ...] = ()
    """The names of the clients; by default their numbers."""

    repeats: bool = False
    """Whether the split may give a sample to several clients."""

    def __post_init__(self) -> None:
        indices = tuple(map(_places, self.indices if isinstance(self.indices, Iterable) else [self.indices]))
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "transforms", tuple(self.transforms) or (None,) * len(indices))
        told = (None if names is None else tuple(map(int, names)) for names in self.relabels)
        object.__setattr__(self, "relabels", tuple(told) or (None,) * len(indices))
        object.__setattr__(self, "names", tuple(map(str, self.names)) or tuple(map(str, range(len(indices)))))
        if self.groups is not None:
            object.__setattr__(self, "groups", np.asarray(self.groups, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Split({self._told})"

    def _repr_html_(self) -> str:
        """What a notebook shows: each client with what it has."""
        columns: dict[str, Sequence[Any]] = {"client": self.names, "samples": self.sizes.tolist()}
        more = {"true group": self.groups, "inputs": self.transforms, "labels called": self.relabels}
        columns |= {name: [*values] for name, values in more.items() if values is not None and any(_there(values))}
        return html_table(self._told, [*columns], zip(*columns.values(), strict=False))

    @property
    def _told(self) -> str:
        """What it is, in a line."""
        if not len(self):
            return "no clients"
        groups = "" if self.groups is None else f" in {len(np.unique(self.groups))} true groups"
        return f"{len(self):,} clients{groups} with {span(self.sizes.tolist())} samples"

    @property
    def sizes(self) -> np.ndarray:
        """How many samples each client has, [client]."""
        return np.array([len(index) for index in self.indices], dtype=np.int64)

    def label_counts(self, data: Dataset) -> np.ndarray:
        """How often each client has each label, [client, class]."""
        if not data.kind_of_task.one_class:
            raise DataError(f"{data.name}: task={data.task} has no classes to count")
        known = [np.arange(data.classes) if names is None else np.array(names) for names in self.relabels]
        called = (names[data.y[index]] for names, index in zip(known, self.indices, strict=True))
        return np.stack([np.bincount(labels, minlength=data.classes) for labels in called])

    def checked(self, data: Dataset) -> "Split":
        """The split itself, if it fits this data; otherwise an error that says what is wrong."""
        count = len(self)
        if count == 0:
            raise DataError("the split has no clients")
        lengths = {"names": len(self.names), "transforms": len(self.transforms), "relabels": len(self.relabels)}
        if self.groups is not None:
            lengths["groups"] = len(self.groups)
        for field, length in lengths.items():
            if length != count:
                raise DataError(f"the split has {count} clients but {length} {field}")
        if len(set(self.names)) != count:
            raise DataError("two clients of the split have the same name")
        empty = [name for name, index in zip(self.names, self.indices, strict=True) if len(index) == 0]
        if empty:
            raise DataError(f"{_some('client', empty)} without samples: use fewer clients or a milder split")
        everything = np.concatenate(self.indices)
        owners = np.repeat(np.arange(count), self.sizes)
        strange = np.flatnonzero((everything < 0) | (everything >= len(data)))
        if len(strange):
            found = f"client {self.names[owners[strange[0]]]} has sample {everything[strange[0]]}"
            raise DataError(f"the split names samples that {data.name} does not have (0 to {len(data) - 1}): {found}")
        if not self.repeats:
            self._refuse_repeats(everything, owners)
        for transform in filter(None, set(self.transforms)):
            if transform not in TRANSFORMS:
                raise unknown("transform", transform, TRANSFORMS)
            if data.kind != "image":
                raise DataError(f"{transform} needs images; {data.name} has inputs of shape {data.shape}")
            if transform in ("rotate-90", "rotate-270") and data.shape[-1] != data.shape[-2]:
                raise DataError(f"{transform} needs square images; {data.name} has {data.shape[-2]}x{data.shape[-1]}")
        for names in filter(None, set(self.relabels)):
            if not data.kind_of_task.one_class:
                raise DataError(f"relabels: {data.name} has no classes (task={data.task})")
            if len(names) != data.classes or not all(0 <= name < data.classes for name in names):
                raise DataError(f"relabels={names}: expected for each of {data.classes} classes the one it is called")
        return self

    def _refuse_repeats(self, samples: np.ndarray, owners: np.ndarray) -> None:
        """Refuse a split that gives a sample twice; `owners` are the clients that the samples are given to."""
        order = np.argsort(samples, kind="stable")
        again = np.flatnonzero(np.diff(samples[order]) == 0)
        if not len(again):
            return
        first, second = (self.names[owner] for owner in owners[order[again[0] : again[0] + 2]])
        told = f"sample {samples[order[again[0]]]} is twice with client {first}"
        if first != second:
            told = f"sample {samples[order[again[0]]]} is with {first} and with {second}"
            told = f"the split gives a sample to several clients: {told}; if that is meant, say repeats=True"
        raise DataError(told)


@dataclass(frozen=True)
class SplitRule(Checked, ABC):
    """How samples are divided among clients. Subclasses declare their options as fields and define `divide`."""

    name: ClassVar[str]
    whole_data: ClassVar[bool] = False
    """Whether the rule names samples by their places in the whole data set, so that none can be set aside before it."""

    clients: Count = 20
    """How many clients there are."""

    @abstractmethod
    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """The split of this data; every draw comes from `rng`."""

    def split(self, data: Dataset, seed: int = 0) -> Split:
        """The split of this data for a seed, checked."""
        return self.divide(data, generator(seed, "split", self.name)).checked(data)


split_rules: Registry[SplitRule] = Registry("split")
"""All split rules by name; `coterie.data.splits` fills it."""


def _places(index: Any) -> np.ndarray:
    """The samples of a client as an array of places in the data set."""
    places = np.asarray(index)
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
        raise DataError(
            f"indices: {index!r} is no list of samples; expected for each client their places in the data set"
        )
    return places.astype(np.int64)


def _there(values: Iterable[Any]) -> list[bool]:
    return [value is not None for value in values]


def _some(noun: str, names: Sequence[str]) -> str:
    """The first five names and the number of the others, behind the noun in singular or plural."""
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{noun}{'s' if len(names) > 1 else ''} {listed}"
