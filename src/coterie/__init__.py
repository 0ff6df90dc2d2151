"""Coterie: federated learning when clients' data differ.

    fed = coterie.simulate("digits", split="dirichlet", clients=20, alpha=0.3)
    result = coterie.FedAvg(rounds=20).fit(fed)
    print(result.summary["accuracy_mean"])

Every method is here under the name of its class. What is here is imported when it is asked for: torch takes a while.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie._version import __version__
from coterie.core.links import links, when_asked
from coterie.methods import methods
from coterie.nets import nets

if TYPE_CHECKING:
    from coterie.clients import programs, sharing
    from coterie.clients.clients import Clients, Evaluation
    from coterie.clients.programs import program
    from coterie.core.errors import CoterieError
    from coterie.core.records import state
    from coterie.data import Dataset, Split, load
    from coterie.data.division import Division
    from coterie.engines.simulation import Computing
    from coterie.moves import evidence, grouping, mixing, sampling, trust
    from coterie.nets import Net
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

_HOMES = {
    "Changes": "coterie.nets.stacks",
    "Clients": "coterie.clients.clients",
    "Computing": "coterie.engines.simulation",
    "CoterieError": "coterie.core.errors",
    "Dataset": "coterie.data",
    "Division": "coterie.data.division",
    "Evaluation": "coterie.clients.clients",
    "Federation": "coterie.server.federation",
    "LocalTraining": "coterie.training.local",
    "Method": "coterie.server.method",
    "Models": "coterie.nets.stacks",
    "Net": "coterie.nets",
    "Replies": "coterie.server.federation",
    "Result": "coterie.server.fitting",
    "Scoring": "coterie.server.scoring",
    "Served": "coterie.server.serving",
    "Settings": "coterie.runs.settings",
    "Split": "coterie.data",
    "evidence": "coterie.moves",
    "fit": "coterie.server.fitting",
    "grouping": "coterie.moves",
    "load": "coterie.data",
    "method": "coterie.server.method",
    "mixing": "coterie.moves",
    "program": "coterie.clients.programs",
    "programs": "coterie.clients",
    "sampling": "coterie.moves",
    "serving": "coterie.server",
    "sharing": "coterie.clients",
    "simulate": "coterie.runs.settings",
    "state": "coterie.core.records",
    "trust": "coterie.moves",
}
"""The modules of these names, as above for type checkers."""

_public = when_asked(__name__, _HOMES)

links["Result.plot"] = "coterie.report.figures:run_figure"
links["page_figures"] = "coterie.papers:page_figures"


def __getattr__(name: str) -> Any:
    """A public name, or a method by the name of its class: adding one takes a file in `coterie.methods` only."""
    if name in ("data", "flower"):
        return import_module(f"coterie.{name}")
    if name not in _HOMES:
        for key in methods:
            if methods.class_name(key) == name:
                return methods[key]
    return _public(name)


def __dir__() -> list[str]:
    return [*__all__, *(methods.class_name(key) for key in methods)]
