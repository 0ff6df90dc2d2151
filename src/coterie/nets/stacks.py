"""Stacks of models as one tensor, and stacks of changes.

`Models` holds trained parameters [..., P] and buffers [..., Q] (running statistics). Mixing covers both. The difference
of two stacks is `Changes`: of the trained part alone, so that no server step ever touches a buffer.
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
    """What models and changes have in common: values [..., P] with leading axes, e.g. [client] or [client, model]."""

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
        """What the stack consists of."""
        return (self.parameters,)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.parameters.device

    @property
    def size(self) -> int:
        """Bytes of everything in the stack."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def _with(self: S, *tensors: Tensor) -> S:
        return type(self)(self.net, *tensors)

    def __getitem__(self: S, index: Any) -> S:
        """Rows, as for a tensor. Places may lie on the host, wherever the stack is."""
        if not self.shape:
            raise TypeError("a single model has no rows")
        index = self._here(index)
        return self._with(*(tensor[index] for tensor in self.tensors))

    def _here(self, index: Any) -> Any:
        """An index with its tensors where the stack is."""
        if isinstance(index, tuple):
            return tuple(map(self._here, index))
        return index.to(self.device) if isinstance(index, Tensor) else index

    def chosen(self: S, choice: Tensor) -> S:
        """Of several per client, [client, model], the one at each client's place `choice` [client]."""
        return self[torch.arange(len(choice)), choice]

    def expand(self: S, *shape: int) -> S:
        """The same stack with leading axes added in front, without a copy."""
        return self._with(*(tensor.expand(*shape, *tensor.shape) for tensor in self.tensors))

    def inserted(self: S, axis: int) -> S:
        """The same stack with an axis of length one at this place among the leading ones."""
        return self._with(*(tensor.unsqueeze(axis) for tensor in self.tensors))

    def flattened(self: S) -> S:
        """The same stack with its leading axes as one."""
        return self._with(*(tensor.flatten(0, -2) for tensor in self.tensors))

    def to(self: S, device: torch.device | str, non_blocking: bool = False) -> S:
        """The stack on a device."""
        return self._with(*(tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors))

    def where(self: S, chosen: Tensor, others: S) -> S:
        """These rows where `chosen` [...] is true, the others elsewhere."""
        pairs = zip(self.tensors, others.tensors, strict=True)
        return self._with(*(torch.where(chosen.unsqueeze(-1).to(ours.device), ours, theirs) for ours, theirs in pairs))

    def layer(self, name: str) -> dict[str, Tensor]:
        """The tensors of a layer (or of everything below a name) as views with the leading axes in front."""
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
        """Single models, or stacks of one shape, along a new axis among the leading ones."""
        columns = zip(*(row.tensors for row in rows), strict=True)
        return rows[0]._with(*(torch.stack(tuple(column), dim=axis) for column in columns))

    @classmethod
    def cat(cls: type[S], stacks: Sequence[S]) -> S:
        """Stacks one after another along the first axis."""
        columns = zip(*(stack.tensors for stack in stacks), strict=True)
        return stacks[0]._with(*(torch.cat(tuple(column)) for column in columns))

    def _rowwise(self, number: Number) -> Number:
        """A number, or one number per row in the stack's own dtype."""
        if not np.ndim(number):
            return number
        return self._weights(number).unsqueeze(-1)

    def _weights(self, values: Any) -> Tensor:
        """Numbers in the stack's own dtype, without a detour that would round them."""
        return torch.as_tensor(values, dtype=self.parameters.dtype, device=self.device)

    def __rmatmul__(self: S, weights: Any) -> S:
        """Weighted sums of rows: [group, row] @ [row] gives [group]; [row] @ [row] gives a single one."""
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
        """What leads from other models to these, the trained part alone; or these models with a change taken back."""
        if isinstance(other, Changes):
            return self + -other
        return Changes(self.net, self.parameters - other.parameters)

    def __add__(self, change: "Changes") -> "Models":
        """These models after a change; the buffers stay."""
        if not isinstance(change, Changes):
            return NotImplemented  # a sum of models means nothing: mix them
        return Models(self.net, self.parameters + change.parameters, self.buffers)

    def zeros(self) -> "Changes":
        """No change, one per model."""
        return Changes(self.net, torch.zeros_like(self.parameters))

    def packed(self, part: str | Iterable[str]) -> Tensor:
        """A part (see `Net.part`) with its running statistics as one tensor [..., p + q]: what sharing it takes."""
        return torch.cat([self.part(part), self.buffers[..., self.net.statistics(part)]], dim=-1)

    def patched(self, part: str | Iterable[str], packed: Tensor) -> "Models":
        """These models with a part replaced by a packed one [..., p + q]."""
        trained, running = self.net.part(part), self.net.statistics(part)
        packed = packed.to(self.parameters)
        parameters, buffers = self.parameters.clone(), self.buffers.clone()
        parameters[..., trained] = packed[..., : int(trained.sum())]
        buffers[..., running] = packed[..., int(trained.sum()) :]
        return Models(self.net, parameters, buffers)

    def state_dict(self) -> dict[str, Tensor]:
        """A single model as PyTorch's state dict."""
        if self.shape:
            raise TypeError(f"a state dict is of a single model, not of {self.shape}: take a row first")
        views = self.net.parameters.views(self.parameters) | self.net.buffers.views(self.buffers)
        return {name: view.contiguous().cpu() for name, view in views.items()}

    def module(self) -> nn.Module:
        """A single model as an ordinary module in evaluation mode."""
        module = self.net.build(torch.Generator()).to(self.parameters.dtype)
        module.load_state_dict(self.state_dict(), strict=False)
        return module.eval()


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
        """Scaled, by one number or by one per row."""
        return Changes(self.net, self.parameters * self._rowwise(number))

    __rmul__ = __mul__

    def __truediv__(self, number: Number) -> "Changes":
        """Divided, by one number or by one per row."""
        return Changes(self.net, self.parameters / self._rowwise(number))


def distances(rows: Tensor) -> Tensor:
    """Euclidean distances between rows, [row, row], from the Gram matrix in float64; equal rows are at exactly 0."""
    rows = rows.double()
    rows = rows - rows.mean(dim=0)  # near the origin less is lost to cancellation
    gram = rows @ rows.mT
    gram = (gram + gram.mT) / 2  # a product need not be symmetric in the last digit
    squares = gram.diagonal()
    sums = squares[:, None] + squares[None, :]
    result = (sums - 2 * gram).clamp(min=0)
    # What is left of rows this close is mostly rounding: their difference itself says how far apart they are.
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
    """Angles between rows, [row, row]. Rows of zeros are alike, and at a right angle to all others."""
    zero = (rows == 0).all(dim=1)
    result = cosines(rows).acos()
    result[zero[:, None] & zero] = 0
    return result.fill_diagonal_(0)
