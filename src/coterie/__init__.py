"""Coterie: federated learning when clients' data differ.

    fed = coterie.simulate("digits", split="dirichlet", clients=20, alpha=0.3)
    result = coterie.FedAvg(rounds=20).fit(fed)
    print(result.summary["accuracy_mean"])

Every method is here under the name of its class.
"""

from importlib import import_module
from typing import Any

from coterie._version import __version__
from coterie.clients import programs, sharing
from coterie.clients.clients import Clients, Evaluation
from coterie.clients.programs import program
from coterie.core.errors import CoterieError
from coterie.core.links import links
from coterie.core.records import state
from coterie.data import Dataset, Split, load
from coterie.data.division import Division
from coterie.engines.simulation import Computing
from coterie.methods import methods
from coterie.moves import evidence, grouping, mixing, sampling, trust
from coterie.nets import Net, nets
from coterie.nets.stacks import Changes, Models
from coterie.runs.settings import Settings, simulate
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.fitting import Result, fit
from coterie.server.method import Method, method
from coterie.server.scoring import Scoring
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

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
    "__version__",
    "evidence",
    "fit",
    "grouping",
    "load",
    "method",
    "methods",
    "mixing",
    "nets",
    "program",
    "programs",
    "sampling",
    "serving",
    "sharing",
    "simulate",
    "state",
    "trust",
]


links["Result.plot"] = "coterie.report.figures:run_figure"
links["page_figures"] = "coterie.papers:page_figures"


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
