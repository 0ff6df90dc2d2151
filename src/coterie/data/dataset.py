"""Samples and labels, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.core.randomness import generator


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples, with a test part where one is published.

    `Dataset(x, y)` takes anything that NumPy takes. Images may be [sample, height, width], [sample, height, width,
    channel] or [sample, channel, height, width]; they are kept as the last. Whole-number pixels are kept as bytes.

    >>> data = coterie.Dataset([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0, 1, 1], labels=("no", "yes"))
    >>> len(data), data.classes, data.shape
    (3, 2, (2,))
    """

    x: np.ndarray
    """Inputs, [sample, ...]: uint8 (0 to 255) or float32."""

    y: np.ndarray
    """Classes, [sample]: whole numbers from 0 on, places in `labels`."""

    test: "Dataset | None" = None
    """The published test part, if there is one."""

    labels: tuple[str, ...] = ()
    """The names of the classes. Their number is that of a net's outputs, whatever labels a client happens to have."""

    users: np.ndarray | None = None
    """The user that each sample is from, [sample], for the split `natural`."""

    name: str = "own"
    """Its name in tables."""

    def __post_init__(self) -> None:
        x, y = _array(self.name, self.x), _array(self.name, self.y).reshape(-1)
        if x.ndim < 2:
            raise DataError(f"{self.name}: inputs of shape {x.shape}; expected [sample, feature] or images")
        if len(x) != len(y):
            raise DataError(f"{self.name}: {len(x)} inputs but {len(y)} labels")
        if len(x) == 0:
            raise DataError(f"{self.name}: no samples")
        labels, y = _encoded(self.name, y, self.labels)
        named = len(self.labels) > 0
        users = None if self.users is None else np.asarray(self.users).reshape(-1)
        if users is not None and len(users) != len(y):
            raise DataError(f"{self.name}: {len(y)} samples but {len(users)} users")
        for field, value in (("x", _inputs(self.name, x)), ("y", y), ("labels", labels), ("users", users)):
            object.__setattr__(self, field, value)
        if self.test is not None:
            self._check_test(self.test, named)

    def _check_test(self, test: "Dataset", named: bool) -> None:
        if test.shape != self.shape:
            raise DataError(f"{self.name}: test samples have shape {test.shape}, the others {self.shape}")
        if test.x.dtype != self.x.dtype:
            raise DataError(f"{self.name}: test samples are {test.x.dtype}, the others {self.x.dtype}")
        if test.labels != self.labels:
            # The test part was made on its own, and so its labels were numbered on their own: here they get the numbers
            # of the training part. If names are given, whole numbers from 0 on are places among these already.
            places = named and test.labels == tuple(map(str, range(test.classes)))
            y = test.y if places else np.asarray(test.labels)[test.y]
            object.__setattr__(self, "test", replace(test, y=y, labels=self.labels))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.x.shape[1:]

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the inputs, per channel."""
        if self.x.dtype == np.uint8:
            values = np.arange(256.0)
            hits = [_histogram(self.x[:, channel]) for channel in range(self.shape[0])]
            mean = np.array([hit @ values / hit.sum() for hit in hits])
            spread = [np.sqrt(hit @ (values - m) ** 2 / hit.sum()) for hit, m in zip(hits, mean, strict=True)]
            return mean, np.array(spread)
        axes = tuple(axis for axis in range(self.x.ndim) if axis != 1)
        return self.x.mean(axes, dtype=np.float64), self.x.std(axes, dtype=np.float64)

    def subset(self, index: Any) -> "Dataset":
        """The data set with only these samples to train on; the test part and the classes stay."""
        users = None if self.users is None else self.users[index]
        return replace(self, x=self.x[index], y=self.y[index], users=users)

    def limited(self, samples: int, seed: int = 0) -> "Dataset":
        """The data set with `samples` random samples to train on; the test part and the classes stay."""
        if not 0 < samples <= len(self):
            raise DataError(f"limit={samples}: {self.name} has {len(self)} training samples")
        return self.subset(np.sort(generator(seed, "limit").permutation(len(self))[:samples]))

    def held_out(self, share: float, seed: int = 0) -> "Dataset":
        """The data set with a random share of every class set aside as its test part."""
        if not 0 < share < 1:
            raise DataError(f"hold_out={share}: a share in (0, 1)")
        rng = generator(seed, "hold out")
        mask = np.zeros(len(self), dtype=bool)
        for label in range(self.classes):
            members = rng.permutation(np.flatnonzero(self.y == label))
            mask[members[: round(share * len(members))]] = True
        if not mask.any() or mask.all():
            raise DataError(f"hold_out={share}: leaves {(~mask).sum()} samples to train on, {mask.sum()} to test with")
        return replace(self.subset(~mask), test=replace(self.subset(mask), test=None))


def _histogram(values: np.ndarray) -> np.ndarray:
    """How often each byte occurs. Counted in parts: `bincount` makes eight bytes of one, too many for the caches."""
    flat, part = values.reshape(-1), 1 << 18
    hits = np.zeros(256, dtype=np.int64)
    for start in range(0, len(flat), part):
        hits += np.bincount(flat[start : start + part], minlength=256)
    return hits


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise DataError(f"{name}: cannot be made an array ({error})") from error


def _inputs(name: str, x: np.ndarray) -> np.ndarray:
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype == bool:
        return np.ascontiguousarray(x, dtype=np.float32)
    if np.issubdtype(x.dtype, np.integer):
        whole_bytes = x.ndim == 4 and x.min() >= 0 and x.max() <= 255
        return np.ascontiguousarray(x, dtype=np.uint8 if whole_bytes else np.float32)
    if not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{name}: inputs of type {x.dtype}; expected numbers")
    with np.errstate(over="ignore"):  # what does not fit is found below
        x = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(x).all():
        raise DataError(f"{name}: {(~np.isfinite(x)).sum()} input values are not finite numbers of single precision")
    return x


_MANY = 20
"""Labels with more different values than this, half of which occur but once, are no classes if they are fractions."""


def _encoded(name: str, y: np.ndarray, labels: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and for each sample the place of its label among them.

    Labels that are whole numbers are places already, if names are given or if all numbers from 0 on occur; other labels
    are numbered in sorted order.
    """
    names = tuple(map(str, labels))
    if len(set(names)) < len(names):
        raise DataError(f"{name}: a label name occurs twice in {', '.join(names[:20])}")
    if np.issubdtype(y.dtype, np.floating) and not np.isfinite(y).all():
        raise DataError(f"{name}: {(~np.isfinite(y)).sum()} labels are not finite numbers")
    if np.issubdtype(y.dtype, np.integer) or (np.issubdtype(y.dtype, np.floating) and (y == np.round(y)).all()):
        y = y.astype(np.int64)
        if y.min() >= 0 and (names or len(np.unique(y)) == y.max() + 1):
            names = names or tuple(map(str, range(y.max() + 1)))
            if y.max() >= len(names):
                raise DataError(f"{name}: label {y.max()}, but there are {len(names)} classes (0 to {len(names) - 1})")
            return names, y
    if np.issubdtype(y.dtype, np.floating) and len(np.unique(y)) > max(_MANY, len(y) / 2):
        raise DataError(f"{name}: {len(np.unique(y))} labels such as {y[0]:g}: numbers to predict, not classes")
    words = y.astype(str)
    names = names or tuple(np.unique(y).astype(str).tolist())
    place = {word: index for index, word in enumerate(names)}
    strange = sorted(set(words.tolist()) - set(place))
    if strange:
        raise DataError(f"{name}: labels {', '.join(strange[:5])} are not among the classes {', '.join(names[:20])}")
    return names, np.array([place[word] for word in words], dtype=np.int64)
