"""The networks of the papers, and how users bring their own. Only asking for a net imports torch, not this package."""

from collections import UserDict
from functools import cached_property
from typing import TYPE_CHECKING

from coterie.core.links import offered, when_asked

if TYPE_CHECKING:
    from coterie.nets.layers import BatchNorm, Dropout
    from coterie.nets.making import factory_named, make_net
    from coterie.nets.net import Factory, Net


class Nets(UserDict[str, "Factory"]):
    """The nets of `coterie.nets.zoo`, a module that is imported when the first of them is asked for.

    >>> coterie.nets["mlp"]((64,), 10)(torch.zeros(1, 64)).shape
    torch.Size([1, 10])
    """

    def __init__(self) -> None:
        pass

    @cached_property
    def data(self) -> "dict[str, Factory]":  # type: ignore[override]
        """The nets by name."""
        from coterie.nets import zoo

        return zoo.nets


nets = Nets()
"""All nets by name: functions of the input's shape and the number of classes."""

__getattr__ = when_asked(__name__, offered(__file__))
