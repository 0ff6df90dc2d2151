"""Coterie: federated learning when clients' data differ.

    fed = coterie.simulate("digits", split="dirichlet", clients=20, alpha=0.3)
    result = coterie.FedAvg(rounds=20).fit(fed)
    print(result.summary["accuracy_mean"])

Every method is here under the name of its class.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"  # before the imports: run folders say which version wrote them

from coterie.clients import Clients, Evaluation
from coterie.data import Dataset, Split, load
from coterie.data.population import Division
from coterie.engines.simulation import Computing
from coterie.errors import CoterieError
from coterie.federation import Federation, Replies
from coterie.fitting import Result, fit
from coterie.method import Method, method
from coterie.methods import methods
from coterie.nets import Net, nets
from coterie.programs import program
from coterie.scoring import Scoring
from coterie.serving import Served
from coterie.settings import Settings, simulate
from coterie.training import LocalTraining
from coterie.weights import Changes, Models
from coterie.wire import state

__all__ = [
    "Changes",
    "Clients",
    "Computing",
    "CoterieError",
    "Dataset",
    "Division",
    "Evaluation",
    "Federation",
    "LocalTraining",
    "Method",
    "Models",
    "Net",
    "Replies",
    "Result",
    "Scoring",
    "Served",
    "Settings",
    "Split",
    "fit",
    "load",
    "method",
    "methods",
    "nets",
    "program",
    "simulate",
    "state",
]


def __getattr__(name: str) -> Any:
    """A method by the name of its class: adding one takes a file in `coterie.methods` and nothing here."""
    if name == "flower":  # needs Flower, and takes a while
        return import_module("coterie.flower")
    for key in methods:
        if methods[key].__name__ == name:
            return methods[key]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(methods[key].__name__ for key in methods)]
