"""What a method is worth to every single client: accuracy and loss of what it is served, under three views.

Clients are scored by programs that may read test data; a federation refuses them while a method's code runs. The global
test set is cut into parts that are scored like clients, so that worker processes share it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, Count, Effect, Positive, known_keywords
from coterie.moves import mixing
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

_EM_STEPS = 20
"""Steps of the EM algorithm with which a new client finds its share of every model of a mixture."""

View = Literal["served", "adapted", "last"]


@known_keywords
@dataclass(frozen=True)
class Scoring(Checked):
    """What is measured, and how often.

    >>> scoring = coterie.Scoring(views=("served", "last"), evaluate_every=2)
    >>> result = coterie.FedAvg(rounds=2).fit(coterie.simulate(clients=3, net="mlp"), scoring=scoring)
    >>> [record["round"] for record in result.rounds], "accuracy_last_mean" in result.summary
    ([2], True)
    """

    evaluate_every: Count = 1
    """Rounds between evaluations; the last round is always evaluated."""

    views: tuple[View, ...] = ("served",)
    """What is scored, with commas between: what clients are `served` (always), that model `adapted` by a little local
    training, and the model that each client trained `last`. Where clients mix several models, as in FedEM, there is no
    such model, and only what they are served is scored."""

    adapt_epochs: Positive = 1.0
    """Local epochs of the view `adapted`."""

    global_test: bool | None = None
    """Whether models are also scored on the published test set. By default they are where the server holds them;
    models that clients keep are scored there only if asked, because it takes long."""

    top: Literal[1, 5] = 1
    """A prediction is right if the label is the likeliest class (1), or among the five likeliest."""

    insights: Annotated[bool, Effect.RECORD] = False
    """Whether what a method has found out (distances, clusters, opinions ...) is recorded with every evaluation, for
    figures. It changes no result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for view in self.views:
            if view not in ("served", "adapted", "last"):
                raise SettingsError(f"views={view!r}: served, adapted or last")

    def check(self, fed: Federation) -> None:
        """Refuse a federation in which every prediction would be right, before anything is written or sent."""
        classes = fed.net.classes if fed.net.task.one_class else 0  # 0 also where only the clients know
        if classes == 1:
            raise SettingsError("the data has only one class: every prediction would be right")
        if 0 < classes <= self.top:
            raise SettingsError(f"top={self.top}: with {classes} classes every prediction would be right")


@dataclass(frozen=True)
class ClientScores:
    """Scores of all clients that are there, one row each; NaN where a client has no samples of that kind."""

    clients: np.ndarray
    accuracy: np.ndarray
    loss: np.ndarray
    validation: np.ndarray
    steps: np.ndarray
    rounds: np.ndarray
    more: Mapping[str, np.ndarray]
    """What is measured only if asked: `global_accuracy`, `accuracy_adapted`, `accuracy_last`."""
    groups: np.ndarray | None
    """Which of the server's models each client is served, by position among all clients; -1 if it is not there."""


def score(fed: Federation, served: Served, scoring: Scoring, local: LocalTraining) -> ClientScores:
    """Score what is served to every client that is there."""
    each, shared = _inputs(served, fed.clients)
    views = () if served.mixed else scoring.views
    adapt = replace(local, epochs=scoring.adapt_epochs, steps=None) if "adapted" in views else None
    replies = fed.score(
        score_client,
        fed.clients,
        each,
        shared,
        kept=served.kept,
        on=served.on,
        shares=served.shares,
        part=served.part,
        personal=served.adapt,
        adapt=adapt,
        last="last" in views,
        everywhere=bool(scoring.global_test) and served.personal,
        top=scoring.top,
    )
    clients = replies.clients
    rows = {name: value.cpu().numpy() for name, value in replies.outputs.items()}
    asked = ("global_accuracy", "accuracy_adapted", "accuracy_last")
    more: dict[str, np.ndarray] = {name: rows[name] for name in asked if name in rows}
    groups = known_groups(fed, served, clients, rows.get("choice"))
    if groups is not None and not served.personal and len(fed.global_test) and scoring.global_test is not False:
        inputs = {"models": served.models}
        parts = fed.score(score_globally, np.array(fed.global_test), each={}, shared=inputs, top=scoring.top)
        accuracy = parts.correct.sum(dim=0) / parts.samples.sum()  # [model]
        more["global_accuracy"] = accuracy.cpu().numpy()[groups[clients]]
    return ClientScores(
        clients, rows["accuracy"], rows["loss"], rows["validation"], rows["steps"], rows["rounds"], more, groups
    )


def known_groups(
    fed: Federation, served: Served, clients: np.ndarray, choice: np.ndarray | None = None
) -> np.ndarray | None:
    """Which of the server's models each client of the federation is served; -1 for those not among `clients`.

    Where clients choose themselves, it is known only from their `choice` [client].
    """
    if served.index is not None:
        choice = served.index.numpy()[clients]
    if choice is None:
        return None
    groups = np.full(len(fed.names), -1, dtype=np.int64)
    groups[clients] = choice
    return groups


def _inputs(served: Served, clients: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is sent to the clients: one model to each, or all of them to choose from or to mix."""
    if served.models is None:
        return {}, {} if served.shared is None else {"shared_part": served.shared}
    index = torch.from_numpy(clients)
    if served.weights is not None:
        return {"weights": served.weights[index]}, {"models": served.models}
    if served.index is None:
        return {}, {"models": served.models}
    chosen = served.index[index]
    if len(torch.unique(chosen)) == 1:
        return {}, {"models": served.models[int(chosen[0])]}
    return {"models": served.models[chosen]}, {}


@program(scoring=True)
def score_client(
    clients: Clients,
    models: Models | None = None,
    weights: Tensor | None = None,
    shared_part: Tensor | None = None,
    kept: str | None = None,
    on: str = "train",
    shares: str | None = None,
    part: str = "none",
    personal: LocalTraining | None = None,
    adapt: LocalTraining | None = None,
    last: bool = False,
    everywhere: bool = False,
    top: int = 1,
) -> Outputs:
    """Score what the client is served on its own test and validation data."""
    outputs: dict[str, Tensor] = {}
    if models is None:
        models = clients.state(kept or "", otherwise=clients.initial())
        models = models if shared_part is None else models.patched(part, shared_part)
    elif shares is not None:
        weights = _own_shares(clients, models, shares)
    elif len(models.shape) > 1 and weights is None:
        choice = clients.best_fit(models, on)
        models = models.chosen(choice)
        outputs["choice"] = choice
    if personal is not None:
        models = clients.adapt(models, personal)
    test, validation = clients.evaluate_each(models, ("test", "validation"), weights)
    outputs |= {"accuracy": test.accuracy_of(top), "loss": test.loss, "validation": validation.accuracy_of(top)}
    if everywhere:
        outputs["global_accuracy"] = clients.evaluate(models, "global", weights).accuracy_of(top)
    if adapt is not None:
        outputs["accuracy_adapted"] = clients.evaluate(clients.adapt(models, adapt), "test").accuracy_of(top)
    if last:
        trained = clients.state("_last", otherwise=clients.initial())
        outputs["accuracy_last"] = clients.evaluate(trained, "test").accuracy_of(top)
    return outputs | {"steps": clients.steps_taken, "rounds": clients.rounds_taken}


def _own_shares(clients: Clients, models: Models, kept: str) -> Tensor:
    """How each client mixes models [client, model], as it keeps it; new ones fit it to their own training data."""
    even = torch.full(models.shape, 1 / models.shape[1], dtype=torch.float64, device=models.parameters.device)
    own: Tensor = clients.state(kept, otherwise=even * torch.nan)
    new = own.isnan().any(dim=1, keepdim=True)
    if not new.any():
        return own
    return torch.where(new, mixing.mixture_shares(clients.losses(models), even, _EM_STEPS), own)


@program(scoring=True)
def score_globally(clients: Clients, models: Models, top: int = 1) -> Outputs:
    """Score the server's models on a part of the global test set."""
    result = clients.evaluate(models, "test")
    return {"correct": result.correct if top == 1 else result.correct_top5, "samples": result.samples}


def spread(values: np.ndarray) -> dict[str, float | None]:
    """Mean, deviation, extremes and the mean of the worst tenth, over clients that have a value."""
    values = np.sort(values[np.isfinite(values)])
    if not len(values):
        return dict.fromkeys(("mean", "std", "min", "max", "worst_tenth"))
    worst = values[: ceil(len(values) / 10)]
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values[0]),
        "max": float(values[-1]),
        "worst_tenth": float(worst.mean()),
    }
