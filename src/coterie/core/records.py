"""Classes and functions that are named in files and messages.

Run folders, worker processes and real sites name classes and programs, and never bring code along. A name lasts: a
file that was written before code moved to another folder can still be read, and a site with the older code still
understands what it is asked.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

records: dict[str, type] = {}
"""All classes whose instances can be made from bytes, by the name that stands there."""

_LASTING = {
    "coterie.flower.apps.AppFacts": "coterie.engines.flower.apps.About",
    "coterie.methods.flis.NewestClusters": "coterie.methods.flis.Clusters",
    "coterie.clients.programs": "coterie.programs",
    "coterie.clients.letters": "coterie.letters",
    "coterie.moves.encounters": "coterie.methods.slfed",
    "coterie.moves.pacing": "coterie.adjustment",
    "coterie.server.clusters": "coterie.clusters",
    "coterie.server.scoring": "coterie.scoring",
    "coterie.training.local": "coterie.training",
}
"""Classes and modules that had another name when the first files and messages were written, and that name."""


def stored_name(thing: Any) -> str:
    """The name of a class or a function in files and messages."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    return _LASTING.get(name) or f"{_LASTING.get(thing.__module__, thing.__module__)}.{thing.__qualname__}"


def record(cls: type[T]) -> type[T]:
    """Let instances of a dataclass travel and be stored."""
    records[stored_name(cls)] = cls
    return cls


@dataclass_transform(frozen_default=True)
def state(cls: type[T]) -> type[T]:
    """Make a class a method's state: a frozen dataclass of tensors, models and numbers that can be stored.

    >>> @coterie.state
    ... class TwoModels:
    ...     fast: coterie.Models
    ...     slow: coterie.Models
    >>> model = coterie.simulate(clients=3, net="mlp").new_model()
    >>> TwoModels(model, model).fast.shape
    ()
    """
    return record(dataclasses.dataclass(frozen=True, eq=False)(cls))
