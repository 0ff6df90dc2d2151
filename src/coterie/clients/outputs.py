"""What a program gives, declared, so that what comes from elsewhere can be held against it.

A declaration names every output of one client: what it is, how long it is, and between which bounds its numbers lie.
Where that depends on what the program is asked, the declaration is a function of the net and of what one client gets.
A program of ours always declares what it gives. One that does not is held to what most clients give.

>>> from coterie.clients.outputs import SHARE
>>> net = coterie.simulate(clients=3, net="mlp").net
>>> SHARE.misfit(torch.tensor([0.5]), net) is None
True
>>> SHARE.misfit(torch.tensor([[0.5, 0.1]]), net)
'torch.float32 of shape [2], not float of shape []'
>>> SHARE.beyond(torch.tensor([1.5]))
'a number that is not within 0 and 1'
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from coterie.clients.memory import Value
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models, Stack

_DTYPES: dict[type, tuple[torch.dtype, ...]] = {
    float: (torch.float64, torch.float32, torch.float16, torch.bfloat16),
    int: (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    bool: (torch.bool,),
}

_ANY_LENGTH = 1 << 16
"""As how long an axis of any length counts in the size of an answer."""


@dataclass(frozen=True)
class Output:
    """One output of a program, as one client gives it."""

    kind: type = float
    """`Models` or `Changes`, or for tensors `float`, `int` or `bool`."""
    shape: tuple[int | None, ...] = ()
    """The axes behind the client's, None for any length; of models those in front of their numbers."""
    least: float = -inf
    """No number is below this. One that is not a number stands for what there is not, and is within all bounds."""
    most: float = inf
    """No number is above this."""

    def misfit(self, value: Any, net: Net) -> str | None:
        """What of a value [client, ...] is not as declared, in words; None if all is. Its numbers are not looked at."""
        if self.kind in (Models, Changes):
            if type(value) is not self.kind or value.net.parameters != net.parameters:
                return f"{type(value).__name__}, not {self.kind.__name__}"
            return self._shape_misfit(tuple(value.shape[1:]), self.kind.__name__)
        if not isinstance(value, Tensor) or value.dtype not in _DTYPES[self.kind]:
            own = value.dtype if isinstance(value, Tensor) else type(value).__name__
            return f"{own}, not {self.kind.__name__}"
        return self._shape_misfit(tuple(value.shape[1:]), str(value.dtype))

    def _shape_misfit(self, shape: tuple[int, ...], called: str) -> str | None:
        fits = len(shape) == len(self.shape)
        if fits and all(length in (own, None) for own, length in zip(shape, self.shape, strict=True)):
            return None
        return f"{called} of shape {list(shape)}, not {self.kind.__name__} of shape {list(self.shape)}"

    def beyond(self, value: Value) -> str | None:
        """Which bounds a value of the declared kind breaks, in words; None if it is within them."""
        if isinstance(value, Stack) or (self.least, self.most) == (-inf, inf):
            return None
        if bool(((value < self.least) | (value > self.most)).any()):
            return f"a number that is not within {self.least:g} and {self.most:g}"
        return None

    def of_each(self, things: Sized) -> "Output":
        """This once for each of several things."""
        return replace(self, shape=(len(things), *self.shape))

    def size(self, net: Net) -> int:
        """How many bytes one client's value takes at most."""
        numbers = prod(_ANY_LENGTH if length is None else length for length in self.shape)
        if self.kind in (Models, Changes):
            numbers *= net.parameters.total + net.buffers.total
        return 8 * numbers


Declared = Mapping[str, Output]
"""All outputs of a program for one client, by name."""

Gives = Declared | Callable[[Net, Mapping[str, Any]], Declared]
"""What a program declares; a function is given the net, and inputs and settings by name as one client gets them."""

MODEL = Output(Models)
"""A model."""

CHANGES = Output(Changes)
"""The difference of two models."""

NUMBER = Output(float)
"""A number."""

SHARE = Output(float, least=0, most=1)
"""A share, such as an accuracy."""

COUNT = Output(int, least=0)
"""How many there are of something, or the place of something in a row."""


def unlike(outputs: Mapping[str, Any], declared: Declared, net: Net) -> str | None:
    """What of outputs [client, ...] by name is not as declared, in words; None if all is."""
    if outputs.keys() != declared.keys():
        return f"outputs {', '.join(map(repr, outputs)) or 'none'}, not {', '.join(map(repr, declared)) or 'none'}"
    for name, output in declared.items():
        if (problem := output.misfit(outputs[name], net)) is not None:
            return f"{name} is {problem}"
    return None


def like_input(name: str) -> Callable[[Net, Mapping[str, Any]], Declared]:
    """The declaration of a program that gives one tensor, of the name and the shape of one of its inputs."""
    return lambda net, asked: {name: Output(float, tuple(asked[name].shape))}


def place_among(name: str) -> Callable[[Net, Mapping[str, Any]], Declared]:
    """The declaration of a program that trains the one that it chooses of several models, and says which."""
    return lambda net, asked: {"model": MODEL, "choice": Output(int, least=0, most=len(asked[name]) - 1)}
