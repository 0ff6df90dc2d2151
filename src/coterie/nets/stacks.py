"""Many models of one net as a few tensors, and the differences between models.

`Models` holds trained parameters [..., P] and buffers [..., Q] such as running statistics. Mixing models mixes both.
The difference of two stacks of models is `Changes`. These have parameters only, so no server step can touch a buffer;
they are a class of their own so that a type checker knows what has buffers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from coterie.nets.net import Net

S = TypeVar("S", bound="Stack")
Number = float | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """What models and changes have in common: rows [..., P] with leading axes, such as [client] or [client, model]."""

    net: Net
    parameters: Tensor

    # NumPy must leave `array @ models` to `__rmatmul__` instead of taking a stack apart.
    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.net.name}, {list(self.shape)} of {self.net.parameters.total} parameters)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes: () for a single model."""
        return tuple(self.parameters.shape[:-1])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single model has no length")
        return self.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the stack consists of."""
        return (self.parameters,)

    @property
    def device(self) -> torch.device:
        """The device on which the tensors are."""
        return self.parameters.device

    @property
    def size(self) -> int:
        """How many bytes all tensors take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def _with(self: S, *tensors: Tensor) -> S:
        return type(self)(self.net, *tensors)

    def __getitem__(self: S, index: Any) -> S:
        """Rows, by an index as for a tensor. The index may be on another device than the stack."""
        if not self.shape:
            raise TypeError("a single model has no rows")
        index = self._here(index)
        return self._with(*(tensor[index] for tensor in self.tensors))

    def _here(self, index: Any) -> Any:
        """An index with its tensors moved to the device of the stack."""
        if isinstance(index, tuple):
            return tuple(map(self._here, index))
        return index.to(self.device) if isinstance(index, Tensor) else index

    def chosen(self: S, choice: Tensor) -> S:
        """One row for each client out of a stack [client, model]: the one at the place that `choice` [client] says."""
        return self[torch.arange(len(choice)), choice]

    def expand(self: S, *shape: int) -> S:
        """The stack repeated along new axes in front, without a copy."""
        return self._with(*(tensor.expand(*shape, *tensor.shape) for tensor in self.tensors))

    def inserted(self: S, axis: int) -> S:
        """The stack with an axis of length one at this place among the leading axes."""
        return self._with(*(tensor.unsqueeze(axis) for tensor in self.tensors))

    def flattened(self: S) -> S:
        """The stack with all its leading axes made one."""
        return self._with(*(tensor.flatten(0, -2) for tensor in self.tensors))

    def to(self: S, device: torch.device | str, non_blocking: bool = False) -> S:
        """The stack on a device."""
        return self._with(*(tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors))

    def where(self: S, chosen: Tensor, others: S) -> S:
        """The rows of this stack where `chosen` [...] is true, and the rows of `others` elsewhere."""
        pairs = zip(self.tensors, others.tensors, strict=True)
        return self._with(*(torch.where(chosen.unsqueeze(-1).to(ours.device), ours, theirs) for ours, theirs in pairs))

    def layer(self, name: str) -> dict[str, Tensor]:
        """The tensors of a layer and of all layers inside of it, as views that have the leading axes in front."""
        views = self.net.parameters.views(self.parameters)
        return {key: views[key] for key in self.net.below(name)}

    def part(self, part: str | Iterable[str]) -> Tensor:
        """The parameters of a part (see `Net.part`) as one tensor [..., p]."""
        return self.parameters[..., self.net.part(part)]

    def norm(self) -> Tensor:
        """The Euclidean length of each row, [...]."""
        return self.parameters.norm(dim=-1)

    @classmethod
    def stack(cls: type[S], rows: Sequence[S], axis: int = 0) -> S:
        """Join single rows, or stacks of one shape, along a new leading axis."""
        columns = zip(*(row.tensors for row in rows), strict=True)
        return rows[0]._with(*(torch.stack(tuple(column), dim=axis) for column in columns))

    @classmethod
    def cat(cls: type[S], stacks: Sequence[S]) -> S:
        """Join stacks along their first axis."""
        columns = zip(*(stack.tensors for stack in stacks), strict=True)
        return stacks[0]._with(*(torch.cat(tuple(column)) for column in columns))

    def _rowwise(self, number: Number) -> Number:
        """One number as it is, or one number for each row as a tensor [..., 1] of the stack's dtype."""
        if not np.ndim(number):
            return number
        return self._weights(number).unsqueeze(-1)

    def _weights(self, values: Any) -> Tensor:
        """Numbers as a tensor of the stack's dtype, made directly so that they are rounded only once."""
        return torch.as_tensor(values, dtype=self.parameters.dtype, device=self.device)

    def __rmatmul__(self: S, weights: Any) -> S:
        """Weighted sums of rows: weights [group, row] @ stack [row] is a stack [group]; weights [row] give one row."""
        weights = self._weights(weights)
        return self._with(*(weights @ tensor for tensor in self.tensors))


@dataclass(frozen=True, eq=False, repr=False)
class Models(Stack):
    """A stack of models of one net.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(3)
    >>> models.shape, models[0].shape
    ((3,), ())
    >>> mean = torch.full((3,), 1 / 3) @ models  # weighted sums of rows: mixing
    >>> (models[0] - mean).norm() > 0  # a difference is `Changes`
    tensor(True)
    """

    buffers: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Parameters and buffers."""
        return (self.parameters, self.buffers)

    @overload
    def __sub__(self, other: "Models") -> "Changes": ...

    @overload
    def __sub__(self, other: "Changes") -> "Models": ...

    def __sub__(self, other: "Models | Changes") -> "Models | Changes":
        """The changes that lead from other models to these; or these models with changes taken back."""
        if isinstance(other, Changes):
            return self + -other
        return Changes(self.net, self.parameters - other.parameters)

    def __add__(self, change: "Changes") -> "Models":
        """These models after changes of their parameters; buffers stay."""
        if not isinstance(change, Changes):
            return NotImplemented  # a sum of models means nothing: mix them
        return Models(self.net, self.parameters + change.parameters, self.buffers)

    def zeros(self) -> "Changes":
        """For each model a change that changes nothing."""
        return Changes(self.net, torch.zeros_like(self.parameters))

    def packed(self, part: str | Iterable[str]) -> Tensor:
        """A part (see `Net.part`) with its buffers as one tensor [..., p + q]: what must be sent to share it."""
        return torch.cat([self.part(part), self.buffers[..., self.net.statistics(part)]], dim=-1)

    def patched(self, part: str | Iterable[str], packed: Tensor) -> "Models":
        """These models with a part replaced by one that `packed` has given, [..., p + q]."""
        trained, running = self.net.part(part), self.net.statistics(part)
        packed = packed.to(self.parameters)
        parameters, buffers = self.parameters.clone(), self.buffers.clone()
        parameters[..., trained] = packed[..., : int(trained.sum())]
        buffers[..., running] = packed[..., int(trained.sum()) :]
        return Models(self.net, parameters, buffers)

    def shifted(self, offset: Tensor) -> "Models":
        """These models as they are if an offset [..., feature] is added to what their last layer, linear, gets."""
        parameters = self.parameters.clone()
        bias = self.net.parameters.views(parameters)[self.net.head_names[1]]
        bias += self.net.shift(self.parameters, offset.to(parameters))
        return Models(self.net, parameters, self.buffers)

    def state_dict(self) -> dict[str, Tensor]:
        """A single model as a state dict of PyTorch."""
        if self.shape:
            raise TypeError(f"a state dict is of a single model, not of {self.shape}: take a row first")
        views = self.net.parameters.views(self.parameters) | self.net.buffers.views(self.buffers)
        given = {name: view.contiguous().cpu() for name, view in views.items()}
        # Copies: whoever changes them must not change all other models of the net.
        return given | {name: tensor.detach().cpu().clone() for name, tensor in self.net.constants.items()}

    def module(self) -> nn.Module:
        """A single model as a module of PyTorch's own layers, in evaluation mode. It takes prepared inputs."""
        return self.net.plain(self.state_dict())


@dataclass(frozen=True, eq=False, repr=False)
class Changes(Stack):
    """A stack of changes of trained parameters: updates, momenta, control variates.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> change = models[1] - models[0]
    >>> torch.equal((models[0] + change * 0.0).parameters, models[0].parameters)
    True
    """

    def __add__(self, other: "Changes") -> "Changes":
        return Changes(self.net, self.parameters + other.parameters)

    def __sub__(self, other: "Changes") -> "Changes":
        return Changes(self.net, self.parameters - other.parameters)

    def __neg__(self) -> "Changes":
        return Changes(self.net, -self.parameters)

    def __mul__(self, number: Number) -> "Changes":
        """All rows times one number, or each row times its own."""
        return Changes(self.net, self.parameters * self._rowwise(number))

    __rmul__ = __mul__

    def __truediv__(self, number: Number) -> "Changes":
        """All rows divided by one number, or each row by its own."""
        return Changes(self.net, self.parameters / self._rowwise(number))


def distances(rows: Tensor) -> Tensor:
    """Euclidean distances between rows, [row, row], from products in float64; between equal rows it is exactly 0."""
    rows = rows.double()
    rows = rows - rows.mean(dim=0)  # less is lost to rounding when numbers are small
    gram = rows @ rows.mT
    gram = (gram + gram.mT) / 2  # the last digits of a product need not be symmetric
    squares = gram.diagonal()
    sums = squares[:, None] + squares[None, :]
    result = (sums - 2 * gram).clamp(min=0)
    # For rows that are this close the result is mostly rounding: take the distance from their difference itself.
    for left, right in (result < 1e-6 * sums).triu(1).nonzero().tolist():
        result[left, right] = result[right, left] = (rows[left] - rows[right]).square().sum()
    return result.sqrt().fill_diagonal_(0)


def cosines(rows: Tensor) -> Tensor:
    """Cosines between rows, [row, row]; 0 where a row is zero."""
    rows = rows.double()
    lengths = rows.norm(dim=1, keepdim=True)
    unit = rows / torch.where(lengths > 0, lengths, 1)
    return (unit @ unit.mT).clamp(-1, 1)


def angles(rows: Tensor) -> Tensor:
    """Angles between rows, [row, row]: 0 between two rows of zeros, and a right angle between these and all others."""
    zero = (rows == 0).all(dim=1)
    result = cosines(rows).acos()
    result[zero[:, None] & zero] = 0
    return result.fill_diagonal_(0)
