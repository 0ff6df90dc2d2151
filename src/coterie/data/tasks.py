"""What is to be predicted: one of several classes, yes or no, several labels at once, or numbers.

A task says how targets are written down, how many numbers a net gives for a sample, what training lowers, and what
becomes of a net's outputs when somebody asks for a prediction. All tasks are in `TASKS`, by name. Nothing else asks
which task it is.

Tensors come with all that is needed here: so data sets and splits can be listed without waiting for torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coterie.core.errors import DataError, unknown

if TYPE_CHECKING:
    from torch import Tensor

_MANY = 20
"""Numbers with more different values than this are amounts to predict, unless they count classes from 0 on."""


class Task(ABC):
    """What is to be predicted. Outputs are [..., output], one row for each sample."""

    name: ClassVar[str]
    about: ClassVar[str]
    one_class: ClassVar[bool] = False
    """Whether each sample is of one class, so that samples can be divided by classes, and classes be counted."""
    score: ClassVar[str]
    """The metric by which methods are compared if nobody names one."""
    own_loss: ClassVar[str] = ""
    """The name of what training lowers, if that is another loss than the task's (see `coterie.training.losses`)."""
    own_function: ClassVar[Callable[..., Any] | None] = None
    """The function with this name."""

    @abstractmethod
    def encoded(self, name: str, y: np.ndarray, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """What the outputs of a net are called, and the targets as they are kept; `name` is the data's, for errors."""

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What training lowers, for each sample [...]."""

    @abstractmethod
    def ranks(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How far each prediction is from right, [...]: 0 is right; not a number where that means nothing."""

    @abstractmethod
    def predicted(self, outputs: Tensor) -> Tensor:
        """What a user wants to know of a sample: probabilities, or the numbers themselves."""

    def blended(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of outputs [model, ..., output] with weights [model, ...], before any softmax."""
        return (outputs * weights.to(outputs).unsqueeze(-1)).sum(dim=0)

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The predictions of several models as one, from outputs [model, ..., output] and weights [model, ...]."""
        return self.blended(outputs, weights)


class Classification(Task):
    """One of several classes. Targets are places in the list of labels, and a net has an output for each of them."""

    name = "classification"
    about = "one of several classes"
    one_class = True
    score = "accuracy"

    def encoded(self, name: str, y: np.ndarray, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """The names of the classes, and for each sample the place of its label among them.

        Labels that are whole numbers are places already, if names are given or if all numbers from 0 on occur; other
        labels are numbered in sorted order.
        """
        names, y = tuple(labels), y.reshape(-1)
        if _whole(y):
            y = y.astype(np.int64)
            if y.min() >= 0 and (names or len(np.unique(y)) == y.max() + 1):
                names = names or tuple(map(str, range(y.max() + 1)))
                if y.max() >= len(names):
                    known = f"there are {len(names)} classes (0 to {len(names) - 1})"
                    raise DataError(f"{name}: label {y.max()}, but {known}")
                return names, y
        words = y.astype(str)
        names = names or tuple(np.unique(y).astype(str).tolist())
        place = {word: index for index, word in enumerate(names)}
        strange = sorted(set(words.tolist()) - set(place))
        if strange:
            known = ", ".join(names[:20])
            raise DataError(f"{name}: labels {', '.join(strange[:5])} are not among the classes {known}")
        return names, np.array([place[word] for word in words], dtype=np.int64)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy."""
        # Not F.cross_entropy: under vmap that is written in Python, is slower and imports much of torch's compiler.
        return -outputs.log_softmax(dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def ranks(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many classes are likelier than the label."""
        own = outputs.gather(-1, y.unsqueeze(-1))
        # A class comes before the label if its output is greater, or equal and its number lower, as argmax has it. NaN,
        # on either side, counts against the label.
        earlier = y.new_ones(outputs.shape[-1]).cumsum(dim=0) - 1 < y.unsqueeze(-1)
        return (~(outputs <= own) | ((outputs == own) & earlier)).sum(dim=-1)

    def predicted(self, outputs: Tensor) -> Tensor:
        """The probability of each class."""
        return outputs.softmax(dim=-1)

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The logarithm of the models' mean probabilities."""
        shares = weights.to(outputs).clamp(min=1e-30).log().unsqueeze(-1)
        return (outputs.log_softmax(dim=-1) + shares).logsumexp(dim=0)


class Binary(Classification):
    """Yes or no: two classes, of which metrics such as F1 look at the second."""

    name = "binary"
    about = "yes or no: two classes, the second is what metrics look for"

    def encoded(self, name: str, y: np.ndarray, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """The names of the two classes, and for each sample the place of its label among them."""
        names, y = super().encoded(name, y, labels)
        if len(names) != 2:
            raise DataError(f"{name}: task=binary, but there are {len(names)} classes; use task=classification")
        return names, y


class MultiLabel(Task):
    """Several labels at once, each of which a sample has (1) or has not (0)."""

    name = "multi-label"
    about = "several labels at once, each there or not"
    score = "accuracy"

    def encoded(self, name: str, y: np.ndarray, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """The names of the labels, and the targets as [sample, label] of 0 and 1."""
        table = _numbers(name, y)
        if not np.isin(table, (0, 1)).all():
            raise DataError(f"{name}: task=multi-label takes 0 and 1 for each label, not {_odd(table):g}")
        return _named(name, labels, table.shape[1], "label"), table

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The binary cross-entropy, as a mean over labels."""
        # log(1 + exp(output)) - y * output, written so that no exponential overflows.
        return (outputs.clamp(min=0) - outputs * y + (-outputs.abs()).exp().log1p()).mean(dim=-1)

    def ranks(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many labels are predicted wrongly."""
        return ((outputs > 0) != (y > 0.5)).sum(dim=-1)

    def predicted(self, outputs: Tensor) -> Tensor:
        """The probability of each label."""
        return outputs.sigmoid()

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """What gives the models' mean probabilities."""
        return super().mixed(outputs.sigmoid(), weights).logit(eps=1e-7)


class Regression(Task):
    """One or several numbers. A net learns them with mean 0 and deviation 1; users see them in the data's own units."""

    name = "regression"
    about = "one or several numbers"
    score = "rmse"

    def encoded(self, name: str, y: np.ndarray, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """The names of the numbers, and the targets as [sample, number]."""
        table = _numbers(name, y)
        return _named(name, labels, table.shape[1], "target"), table

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The squared error, as a mean over the numbers of a sample."""
        return (outputs - y.to(outputs.dtype)).square().mean(dim=-1)

    def ranks(self, outputs: Tensor, y: Tensor) -> Tensor:
        """No number is right or wrong."""
        return outputs.new_full(outputs.shape[:-1], float("nan"))

    def predicted(self, outputs: Tensor) -> Tensor:
        """The numbers."""
        return outputs


TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Binary(), MultiLabel(), Regression())}


def task_named(name: str) -> Task:
    """A task by name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def inferred(y: np.ndarray, named: bool) -> str:
    """The name of the task that targets look like; `named` says whether names of classes are given."""
    if y.ndim > 1 and y.shape[1] > 1:
        return "multi-label" if y.dtype.kind in "biuf" and np.isin(y, (0, 1)).all() else "regression"
    if y.dtype.kind in "iuf" and not named:
        values = np.unique(y)
        counts = _whole(y) and values[0] == 0 and values[-1] == len(values) - 1
        if not counts and (len(values) > _MANY or not _whole(y)):
            return "regression"
    return "binary" if len(np.unique(y)) == 2 and not named else "classification"


def _whole(y: np.ndarray) -> bool:
    """Whether targets are whole numbers, of whatever type."""
    return y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))


def _numbers(name: str, y: np.ndarray) -> np.ndarray:
    """Targets as a table [sample, number] of single precision."""
    if y.dtype.kind not in "biuf":
        raise DataError(f"{name}: targets such as {y.reshape(-1)[0]} are no numbers; use task=classification")
    return np.ascontiguousarray(y.reshape(len(y), -1), dtype=np.float32)


def _odd(table: np.ndarray) -> float:
    return float(table[~np.isin(table, (0, 1))][0])


def _named(name: str, labels: Sequence[str], count: int, noun: str) -> tuple[str, ...]:
    """The given names of the outputs, which must be as many as there are; without any, numbered ones."""
    if labels and len(labels) != count:
        raise DataError(f"{name}: {len(labels)} names for {count} {noun}s")
    return tuple(labels) or ((noun,) if count == 1 else tuple(f"{noun} {number}" for number in range(1, count + 1)))
