"""Measures: what experiments look at besides the accuracy of a method.

A measure stands in a study where a method could stand, and runs in the same kind of world. It gives a summary, flat
numbers for tables, and details, lists for figures. What it trains, it trains through methods and programs. Those of a
paper are in `coterie.papers`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from coterie.core.fields import Checked
from coterie.core.registry import Registry
from coterie.runs.identity import REGISTRIES
from coterie.runs.settings import World
from coterie.server.fitting import Record


class Measure(Checked, ABC):
    """Base of all measures. A subclass declares its options as fields with a default and a docstring below."""

    name: ClassVar[str]

    gives: ClassVar[tuple[str, ...]] = ()
    """The numbers that may be in a summary: a study that asks for others is refused when it is read, and not after its
    runs."""

    @abstractmethod
    def run(self, world: World) -> tuple[Record, Record]:
        """Summary and details of a world; in the details, clients are in the order of `clients`."""


measures: Registry[Measure] = Registry("measure")
"""All measures by name."""

REGISTRIES["measure"] = measures
