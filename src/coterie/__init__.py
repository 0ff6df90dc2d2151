"""Coterie: federated learning when clients' data differ.

    fed = coterie.simulate("digits", split="dirichlet", clients=20, alpha=0.3)
    result = coterie.FedAvg(rounds=20).fit(fed)
    print(result.summary["accuracy_mean"])

What is public stands below, under TYPE_CHECKING, and is imported when it is asked for: torch takes a while. Every
method is here, too, under the name of its class.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie._version import __version__
from coterie.core.links import links, offered, when_asked
from coterie.methods import methods
from coterie.nets import nets

if TYPE_CHECKING:
    from coterie.advice.advised import Advice
    from coterie.advice.advising import advise
    from coterie.clients import programs, sharing
    from coterie.clients.clients import Clients, Evaluation
    from coterie.clients.programs import program
    from coterie.core.errors import CoterieError
    from coterie.core.records import state
    from coterie.data import Dataset, Split, load
    from coterie.data.division import Division
    from coterie.engines.simulation import Computing
    from coterie.moves import evidence, grouping, mixing, robust, sampling, trust
    from coterie.nets import Net
    from coterie.nets.stacks import Changes, Models
    from coterie.report import trackers
    from coterie.runs.settings import Settings, simulate
    from coterie.server import serving
    from coterie.server.federation import Federation, Replies
    from coterie.server.fitting import Result, fit
    from coterie.server.method import Method, method
    from coterie.server.metrics import metric
    from coterie.server.scoring import Scoring
    from coterie.server.served_models import load_model
    from coterie.server.serving import Served
    from coterie.training.local import LocalTraining
    from coterie.training.losses import loss

_HOMES = offered(__file__)

__all__ = sorted([*_HOMES, "__version__", "methods", "nets"])

_public = when_asked(__name__, _HOMES)

links["Advice.record"] = "coterie.advice.files:record"
links["Advice.save"] = "coterie.advice.files:save"
links["Advice.sentences"] = "coterie.advice.words:sentences"
links["Result.plot"] = "coterie.report.figures:run_figure"
links["Result.save"] = "coterie.runs.folder:save_result"
links["Result.load"] = "coterie.runs.folder:load_result"
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
