"""The names that classes and functions have in files and messages.

Files of a run, and messages to worker processes and real sites, name classes and programs, and never bring code along.
Such a name never changes, also where the code moves to another folder: files that were written before can still be
read, and a site with the older code still understands what it is asked.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

records: dict[str, type] = {}
"""All classes whose instances can be stored and sent, by their names in files and messages."""

_CALLED_STATE = (
    "autocfl.AutoCFL cafa.CAFA cfic.CFIC cfl.CFL clustered_sampling.ClusteredSampling compose.Compose fedavg.FedAvg "
    "fedbabu.FedBABU feddc.FedDC feddyn.FedDyn fedem.FedEM fedfa.FedFa fedmgda.FedMGDA fedopt.FedOpt fedrep.FedRep "
    "fl_hc.FLHC hdbscan.HDBSCAN ifca.IFCA lg_fedavg.LGFedAvg local.Local pacfl.PACFL scaffold.Scaffold slfed.SLFed"
)
"""The methods, with the names of their classes, whose states were all called `State` first."""

_LASTING = {
    **{
        f"coterie.methods.{called}State": f"coterie.methods.{called.partition('.')[0]}.State"
        for called in _CALLED_STATE.split()
    },
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
"""The first names of classes and modules that are called otherwise today: files and messages keep to these."""


def stored_name(thing: Any) -> str:
    """The name of a class or a function in files and messages."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    return _LASTING.get(name) or f"{_LASTING.get(thing.__module__, thing.__module__)}.{thing.__qualname__}"


def record(cls: type[T]) -> type[T]:
    """Decorate a dataclass whose instances can be stored in files and sent in messages."""
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
