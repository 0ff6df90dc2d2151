"""The networks of the papers, and how users bring their own. Importing this takes no torch; asking for a net does."""

from collections import UserDict
from functools import cached_property
from typing import TYPE_CHECKING

from coterie.core.links import when_asked

if TYPE_CHECKING:
    from coterie.nets.layers import BatchNorm, Dropout
    from coterie.nets.making import factory_named, make_net
    from coterie.nets.net import Factory, Net

__all__ = ["BatchNorm", "Dropout", "Factory", "Net", "factory_named", "make_net", "nets"]


class Nets(UserDict[str, "Factory"]):
    """The nets of `coterie.nets.zoo`, which is imported when one is asked for."""

    def __init__(self) -> None:
        pass

    @cached_property
    def data(self) -> "dict[str, Factory]":  # type: ignore[override]
        """The nets themselves."""
        from coterie.nets import zoo

        return zoo.nets


nets = Nets()
"""All nets by name: functions of the input's shape and the number of classes."""

_HOMES = {
    "BatchNorm": "coterie.nets.layers",
    "Dropout": "coterie.nets.layers",
    "Factory": "coterie.nets.net",
    "Net": "coterie.nets.net",
    "factory_named": "coterie.nets.making",
    "make_net": "coterie.nets.making",
}

__getattr__ = when_asked(__name__, _HOMES)
