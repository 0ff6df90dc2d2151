"""Samples and targets, as arrays."""

import hashlib
import logging
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from coterie.core.display import html_table
from coterie.core.errors import DataError, unknown
from coterie.core.fields import known_keywords
from coterie.core.randomness import generator
from coterie.data.schema import Schema
from coterie.data.tasks import Task, inferred, task_named

log = logging.getLogger("coterie")

Kind = Literal["features", "image", "series", "tokens"]
"""What an input is: numbers in columns, an image, a series of measurements, or a row of ids such as those of words."""

_FORMS = {
    "features": "[sample, column]",
    "image": "[sample, height, width] or [sample, channel, height, width]",
    "series": "[sample, time, channel]",
    "tokens": "[sample, time]",
}
"""The axes that inputs of each kind have."""

_AXES = {"image": (3, 4), "series": (3,), "tokens": (2,)}
"""How many axes inputs of a kind may have, where that is settled."""


@known_keywords
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples with what is to be predicted of them, and a test part where one is published.

    `Dataset(x, y)` takes anything that NumPy takes. Images may be [sample, height, width], [sample, height, width,
    channel] or [sample, channel, height, width]; they are kept as the last. Whole-number pixels are kept as bytes.

    >>> data = coterie.Dataset([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0, 1, 1], labels=("no", "yes"))
    >>> len(data), data.classes, data.shape
    (3, 2, (2,))
    """

    x: np.ndarray
    """Inputs, [sample, ...]: uint8 (0 to 255) or float32; ids are int32."""

    y: np.ndarray
    """Targets: classes [sample], whole numbers from 0 on, which are places in `labels`; where a task has no classes,
    numbers [sample, output]."""

    test: "Dataset | None" = None
    """The published test part, if there is one."""

    labels: tuple[str, ...] = ()
    """The names of the classes, or of whatever else is predicted. Their number is that of a net's outputs, whatever
    labels a client happens to have."""

    users: np.ndarray | None = None
    """The user that each sample is from, [sample], for the split `natural`."""

    name: str = "own"
    """Its name in tables."""

    task: str = ""
    """What is to be predicted: `classification`, `binary`, `multi-label` or `regression`. If nobody says, it is what
    the targets look like. Words and whole numbers are classes; fractions are amounts, and so are whole numbers of more
    than 20 different values that do not count from 0 on."""

    kind: str = ""
    """What an input is: `features` [column], an `image` [channel, height, width], a `series` [time, channel], or
    `tokens` [time], which are ids from 0 on. If nobody says, numbers in two axes are features, and bytes in three or
    any numbers in four are images."""

    schema: Schema | None = None
    """What the columns of the table are from which the data is, if it is from one. Then not-a-number stands for a value
    that is missing, until it is filled in with a mean over those samples that clients train on."""

    vocabulary: int = 0
    """How many ids there are, if inputs are tokens; by default those up to the highest that occurs."""

    def __post_init__(self) -> None:
        x, y = _array(self.name, self.x), np.atleast_1d(_array(self.name, self.y))
        if y.dtype.kind in "OU" and isinstance(self.y, list | tuple):  # of not-a-number NumPy makes the word nan
            _present(self.name, "targets", np.array([*self.y], dtype=object))
        elif y.dtype == object:
            _present(self.name, "targets", y)
        if y.dtype.kind in "mM":
            raise DataError(f"{self.name}: targets are dates such as {y.reshape(-1)[0]}; write amounts, such as days")
        if x.ndim < 2:
            raise DataError(f"{self.name}: inputs of shape {x.shape}; expected {', '.join(_FORMS.values())}")
        if len(x) != len(y):
            raise DataError(f"{self.name}: {len(x)} inputs but {len(y)} labels")
        if len(x) == 0:
            raise DataError(f"{self.name}: no samples")
        named = len(self.labels) > 0
        task = self.task or _told(self.name, y, inferred(y, named))
        labels, y = _encoded(self.name, y, self.labels, task_named(task))
        users = None if self.users is None else _present(self.name, "users", np.asarray(self.users).reshape(-1))
        if users is not None and len(users) != len(y):
            raise DataError(f"{self.name}: {len(y)} samples but {len(users)} users")
        kind = _kind(self.name, x, self.kind)
        x = inputs_of(self.name, x, kind, self.schema is not None)
        made = {"x": x, "y": y, "labels": labels, "users": users, "task": task, "kind": kind}
        made["vocabulary"] = self._count_ids(x, kind)
        for field, value in made.items():
            object.__setattr__(self, field, value)
        if self.test is not None:
            self._check_test(self.test, named)

    def _count_ids(self, x: np.ndarray, kind: str) -> int:
        """How many ids there are: as many as is said, which must be enough for all that occur."""
        if kind != "tokens":
            if self.vocabulary:
                raise DataError(f"{self.name}: vocabulary={self.vocabulary}, but inputs are no tokens; say kind=tokens")
            return 0
        parts = [x] if self.test is None or self.test.kind != kind else [x, self.test.x]
        highest = max(int(part.max()) for part in parts)
        if 0 < self.vocabulary <= highest:
            raise DataError(f"{self.name}: id {highest}, but vocabulary={self.vocabulary} has ids below that only")
        return self.vocabulary or highest + 1

    def _check_test(self, test: "Dataset", named: bool) -> None:
        if test.shape != self.shape:
            raise DataError(f"{self.name}: test samples have shape {test.shape}, the others {self.shape}")
        if test.kind != self.kind:
            raise DataError(f"{self.name}: test samples are {test.kind}, the others {self.kind}; say kind= for both")
        if test.x.dtype != self.x.dtype:
            raise DataError(f"{self.name}: test samples are {test.x.dtype}, the others {self.x.dtype}")
        if test.labels != self.labels or test.task != self.task:
            # The test part was made on its own, and so its labels were numbered on their own: here they get the numbers
            # of the training part. If names are given, whole numbers from 0 on are places among these already.
            places = named and test.labels == tuple(map(str, range(test.classes)))
            y = test.y if places or not test.kind_of_task.one_class else np.asarray(test.labels)[test.y]
            if self.task == "regression" and all(label.lstrip("-").isdecimal() for label in test.labels):
                y = y.astype(np.float64)  # whole numbers, which look like classes if they are few
            test = replace(test, y=y, labels=self.labels, task=self.task)
        if test.vocabulary != self.vocabulary:
            test = replace(test, vocabulary=self.vocabulary)
        object.__setattr__(self, "test", test)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Dataset({self._told})"

    def _repr_html_(self) -> str:
        """What a notebook shows: how often classes occur, or which numbers are predicted."""
        parts = {"to train on": self} | ({} if self.test is None else {"to test with": self.test})
        if self.kind_of_task.one_class:
            counts = [np.bincount(part.y, minlength=self.classes).tolist() for part in parts.values()]
            return html_table(self._told, ["class", *parts], zip(self.labels, *counts, strict=True))
        figures = (self.y.mean(axis=0).tolist(), self.y.min(axis=0).tolist(), self.y.max(axis=0).tolist())
        found = zip(self.labels, *figures, strict=True)
        return html_table(self._told, ["predicted", "mean", "least", "most"], found)

    @property
    def _told(self) -> str:
        """What it is, in a line."""
        samples = f"{len(self):,} samples" + ("" if self.test is None else f" and {len(self.test):,} to test with")
        some = ", ".join(self.labels[:5]) + (", ..." if self.classes > 5 else "")
        users = "" if self.users is None else f", from {len(np.unique(self.users)):,} users"
        what = f"{self.classes} classes ({some})" if self.kind_of_task.one_class else some
        return f"{self.name}: {samples}{users}; {self.kind} {'x'.join(map(str, self.shape))}; {self.task}: {what}"

    @property
    def kind_of_task(self) -> Task:
        """What is to be predicted."""
        return task_named(self.task)

    @property
    def classes(self) -> int:
        """How many classes there are, or how many other things are predicted."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.x.shape[1:]

    @property
    def channels(self) -> int:
        """How many channels an input has, which are scaled one by one; columns are channels too."""
        return self.shape[-1] if self.kind == "series" else self.shape[0]

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the inputs, per channel."""
        channel = self.x.ndim - 1 if self.kind == "series" else 1
        if self.x.dtype == np.uint8:
            values = np.arange(256.0)
            hits = [_histogram(self.x.take(place, axis=channel)) for place in range(self.channels)]
            mean = np.array([hit @ values / hit.sum() for hit in hits])
            spread = [np.sqrt(hit @ (values - m) ** 2 / hit.sum()) for hit, m in zip(hits, mean, strict=True)]
            return mean, np.array(spread)
        axes = tuple(axis for axis in range(self.x.ndim) if axis != channel)
        return self.x.mean(axes, dtype=np.float64), self.x.std(axes, dtype=np.float64)

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of all samples and labels, by which a run knows its data again."""
        found = hashlib.sha256("\0".join((self.task, self.kind, *self.labels)).encode())
        for part in (self,) if self.test is None else (self, self.test):
            for array in (part.x, part.y):
                found.update(f"{array.shape} {array.dtype}".encode())
                found.update(np.ascontiguousarray(array).data)
        if self.users is not None:
            found.update("\0".join(map(str, self.users.tolist())).encode())
        return found.hexdigest()

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
        """The data set with a random share of every class, or of all samples, set aside as its test part."""
        if not 0 < share < 1:
            raise DataError(f"hold_out={share}: a share in (0, 1)")
        rng = generator(seed, "hold out")
        mask = np.zeros(len(self), dtype=bool)
        classes = self.y if self.kind_of_task.one_class else np.zeros(len(self), dtype=np.int64)
        for label in range(classes.max() + 1):
            members = rng.permutation(np.flatnonzero(classes == label))
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
    if hasattr(values, "toarray"):
        raise DataError(f"{name}: a sparse matrix; give its .toarray()")
    if np.ma.is_masked(values):
        raise DataError(f"{name}: {np.ma.getmaskarray(values).sum()} values are masked; fill them in, or give a table")
    try:
        return np.asarray(values)
    except (ValueError, RuntimeError) as error:  # lists of unequal length, tensors with gradients
        raise DataError(f"{name}: cannot be made an array ({error})") from error


def _present(name: str, what: str, values: np.ndarray) -> np.ndarray:
    """Values of which none is missing."""
    gone = np.array([value is None or value != value for value in values.reshape(-1).tolist()])
    if gone.any():
        raise DataError(f"{name}: {gone.sum()} {what} are missing, the first at place {gone.argmax()}; leave these out")
    return values


_ROUNDED = 1e-3
"""A part of a column's deviation; where single precision rounds by more, it is said."""


def tell_rounding(name: str, what: str, x: np.ndarray, kept: np.ndarray) -> None:
    """Warn where numbers, such as times in seconds, are too large for single precision to tell them apart."""
    if x.dtype.itemsize <= kept.dtype.itemsize and x.dtype.kind == "f":
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a column may have no value at all
        exact = x.astype(np.float64)
        error = np.nanmax(np.abs(exact - kept), axis=0, initial=0)
        if not (error > 0).any():
            return
        deviation, most = np.nanstd(exact, axis=0), np.nanmax(np.abs(exact), axis=0, initial=0)
    # What does not differ from row to row but for rounding says nothing that could be lost.
    coarse = (error > _ROUNDED * deviation) & (deviation > 1e-12 * most)
    if coarse.any():
        told = f"{coarse.sum()} of {coarse.size} {what} are rounded by up to {error[coarse].max():g}"
        log.warning("%s: %s (single precision); subtract what is common to all rows, such as a first day", name, told)


def _kind(name: str, x: np.ndarray, told: str) -> str:
    """What inputs are: what is said, which must fit, or what their axes show."""
    if told:
        if told not in get_args(Kind):
            raise unknown("kind of inputs", told, get_args(Kind))
        if x.ndim not in _AXES.get(told, (x.ndim,)):
            raise DataError(f"{name}: kind={told} takes inputs {_FORMS[told]}, not of shape {x.shape}")
        return told
    if x.ndim == 3 and not _pixels(x):
        raise DataError(
            f"{name}: inputs of shape {x.shape} may be grey images [sample, height, width] or series "
            "[sample, time, channel]: say kind=image or kind=series"
        )
    if x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8 and x.size and x.min() >= 0:
        log.warning("%s: whole numbers in two axes: kind=features, amounts; or say kind=tokens, if they are ids", name)
    return "image" if x.ndim in (3, 4) else "features"


def _pixels(x: np.ndarray) -> bool:
    """Whether inputs are whole numbers that fit into bytes."""
    whole = x.dtype.kind in "iu" and x.size > 0
    return bool(x.dtype == np.uint8 or (whole and x.min() >= 0 and x.max() <= 255))


def inputs_of(name: str, x: np.ndarray, kind: str, missing: bool) -> np.ndarray:
    """Inputs of a kind as they are kept; with `missing` some of them may be not-a-number."""
    if kind == "tokens":
        return _ids(name, x)
    if kind == "image" and x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if kind == "series" and x.dtype.kind in "iu":
        x = x.astype(np.float32)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype == bool:
        return np.ascontiguousarray(x, dtype=np.float32)
    if np.issubdtype(x.dtype, np.integer):
        kept = np.ascontiguousarray(x, dtype=np.uint8 if x.ndim == 4 and _pixels(x) else np.float32)
        if kept.dtype != np.uint8:
            tell_rounding(name, "inputs", x, kept)
        return kept
    if not np.issubdtype(x.dtype, np.floating):
        way_out = "; columns of words are read by coterie.data.from_frame" if x.dtype == object else ""
        raise DataError(f"{name}: inputs of type {x.dtype}; expected numbers{way_out}")
    given = x
    with np.errstate(over="ignore"):  # what does not fit is found below
        x = np.ascontiguousarray(x, dtype=np.float32)
    strange = ~np.isfinite(x) & ~(np.isnan(x) & missing)
    if strange.any():
        raise DataError(f"{name}: {strange.sum()} input values are not finite numbers of single precision")
    tell_rounding(name, "inputs", given, x)
    return x


def _ids(name: str, x: np.ndarray) -> np.ndarray:
    """Tokens as they are kept."""
    if x.dtype.kind not in "iu":
        raise DataError(f"{name}: kind=tokens takes ids, which are whole numbers, not {x.dtype}")
    most = np.iinfo(np.int32).max
    if x.min() < 0 or x.max() > most:
        raise DataError(f"{name}: ids from {x.min()} to {x.max()}; expected 0 to {most}")
    return np.ascontiguousarray(x, dtype=np.int32)


def _told(name: str, y: np.ndarray, task: str) -> str:
    """The task that was inferred from targets, after a word about it: a warning where numbers could mean either."""
    if y.dtype.kind in "iuf":
        values = np.unique(y)
        classes = task_named(task).one_class
        other = "regression, if they are amounts" if classes else "classification, if they are classes"
        clear = (classes and values[-1] - values[0] == len(values) - 1) or (not classes and (y != np.round(y)).any())
        told = (
            f"targets {values[0]:g} to {values[-1]:g}, {len(values)} different ones: task={task}; or say task={other}"
        )
        log.log(logging.INFO if clear else logging.WARNING, "%s: %s", name, told)
    return task


def _encoded(name: str, y: np.ndarray, labels: Any, task: Task) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of what is predicted, and the targets as the task keeps them."""
    names = tuple(map(str, labels))
    if len(set(names)) < len(names):
        raise DataError(f"{name}: a label name occurs twice in {', '.join(names[:20])}")
    if np.issubdtype(y.dtype, np.floating) and not np.isfinite(y).all():
        raise DataError(f"{name}: {(~np.isfinite(y)).sum()} labels are not finite numbers")
    encoded = task.encoded(name, y, names)
    if task.name == "regression":
        tell_rounding(name, "targets", y.reshape(encoded[1].shape), encoded[1])
    return encoded
