"""What a method is worth to every single client: metrics and loss of what it is served, under three views.

Clients are scored by programs that may read test data; a federation refuses them while a method's code runs. The global
test set is cut into parts that are scored like clients, so that worker processes share it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import COUNT, NUMBER, SHARE, Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, Count, Effect, Positive, known_keywords
from coterie.data.tasks import Task
from coterie.moves import choosing, mixing
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.metrics import Metric, metric_named
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

_EM_STEPS = 20
"""Steps of the EM algorithm with which a new client finds its share of every model of a mixture."""

View = Literal["served", "adapted", "last"]

Stages = Sequence[tuple[str, LocalTraining]]
"""Local training that precedes predicting (see `Served.adapt`)."""


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

    metrics: tuple[str, ...] = ()
    """What predictions are judged by, besides the task's own metric (accuracy, or for numbers rmse), with commas
    between: see `coterie metrics`. By the first one runs are compared, and the best round is chosen. Other views than
    `served`, and the global test set, are judged by the task's own."""

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
        for name in self.metrics:
            metric_named(name)

    def judged_by(self, task: Task) -> dict[str, Metric]:
        """All metrics of a run, the one by which runs are compared first."""
        return {name: metric_named(name) for name in dict.fromkeys((*self.metrics, task.score))}

    def check(self, fed: Federation) -> None:
        """Refuse a federation in which every prediction would be right, before anything is written or sent."""
        classes = fed.net.classes if fed.net.task.one_class else 0  # 0 also where only the clients know
        if classes == 1:
            raise SettingsError("the data has only one class: every prediction would be right")
        if 0 < classes <= self.top:
            raise SettingsError(f"top={self.top}: with {classes} classes every prediction would be right")
        task = fed.net.task
        if self.top != 1 and not task.one_class:
            raise SettingsError(f"top={self.top}: task={task.name} has no likeliest classes")
        for name in self.metrics:
            if task.name not in (fitting := metric_named(name).tasks):
                raise SettingsError(f"metrics={name}: is for task={' or '.join(fitting)}; this is task={task.name}")


@dataclass(frozen=True)
class ClientScores:
    """Scores of all clients that are there, one row each; NaN where a client has no samples of that kind."""

    clients: np.ndarray
    samples: np.ndarray
    """How many test samples each client has."""
    values: Mapping[str, np.ndarray]
    """On test data, by metric; the first is the one by which runs are compared."""
    loss: np.ndarray
    validation: np.ndarray
    """The first metric on validation data."""
    steps: np.ndarray
    rounds: np.ndarray
    more: Mapping[str, np.ndarray]
    """What is measured only if asked, such as `global_accuracy`, `accuracy_adapted` and `accuracy_last`."""
    groups: np.ndarray | None
    """Which of the server's models each client is served, by position among all clients; -1 if it is not there."""


def score(
    fed: Federation, served: Served, scoring: Scoring, local: LocalTraining, take_home: bool = False
) -> ClientScores:
    """Score what is served to every client that is there; with `take_home` clients keep what they predict with."""
    task = fed.net.task
    judged, own = scoring.judged_by(task), task.score
    views = () if served.mixed else scoring.views
    adapt = replace(local, epochs=scoring.adapt_epochs, steps=None) if "adapted" in views else None
    replies = fed.score(
        score_client,
        fed.clients,
        *_inputs(served, fed.clients),
        **_rule(served),
        adapt=adapt,
        last="last" in views,
        everywhere=bool(scoring.global_test) and served.personal,
        top=scoring.top,
        metrics=list(judged),
        take_home=take_home,
    )
    clients = replies.clients
    rows = {name: value.cpu().numpy() for name, value in replies.outputs.items()}
    asked = (f"global_{own}", f"{own}_adapted", f"{own}_last")
    more: dict[str, np.ndarray] = {name: rows[name] for name in asked if name in rows}
    groups = known_groups(fed, served, clients, rows.get("choice"))
    if groups is not None and not served.personal and len(fed.global_test) and scoring.global_test is not False:
        inputs = {"models": served.models}
        parts = fed.score(score_globally, np.array(fed.global_test), each={}, shared=inputs, top=scoring.top)
        mean = parts.total.sum(dim=0) / parts.samples.sum()  # [model]
        more[f"global_{own}"] = (mean if own == "accuracy" else mean.sqrt()).cpu().numpy()[groups[clients]]
    values = {name: rows[f"test_{name}"] for name in judged}
    loss, validation, steps, rounds = (rows[name] for name in ("loss", "validation", "steps", "rounds"))
    return ClientScores(clients, rows["test_samples"], values, loss, validation, steps, rounds, more, groups)


def pooled_scores(fed: Federation, served: Served, scoring: Scoring, scores: ClientScores) -> dict[str, float | None]:
    """Each metric for the test samples of all clients together; None if real sites would have to show their samples."""
    judged = scoring.judged_by(fed.net.task)
    found = {name: metric.combined(scores.values[name], scores.samples) for name, metric in judged.items()}
    open_ones = [name for name, metric in judged.items() if metric.pooled == "samples"]
    if not open_ones or fed.real or not scores.samples.any():
        return found
    parts = []
    longest = int(scores.samples.max())
    at_once = max(1, _PREDICTIONS // (longest * (fed.net.classes + 1)))
    for first in range(0, len(scores.clients), at_once):
        some = scores.clients[first : first + at_once]
        inputs, rule = _inputs(served, some), _rule(served)
        replies = fed.score(predictions_of_client, some, *inputs, **rule, longest=longest, counted=False)
        there = replies.there.cpu().numpy()
        parts.append([replies.truth.cpu().numpy()[there], replies.predicted.cpu().numpy()[there]])
    truth, predicted = (np.concatenate(part) for part in zip(*parts, strict=True))
    for name in open_ones:
        value = judged[name](truth, predicted)
        found[name] = value if np.isfinite(value) else None
    return found


_PREDICTIONS = 50_000_000
"""How many numbers clients may predict together, for memory's sake."""


def _rule(served: Served) -> dict[str, Any]:
    """What clients are told of the rule by which they find the model that they predict with."""
    blend = served.blend
    blending = {} if blend is None else {"candidates": blend.own, "adapting": blend.local, "parts": blend.parts}
    rule = {
        **blending,
        "kept": served.kept,
        "on": served.on,
        "shares": served.shares,
        "part": served.part,
        "personal": served.adapt,
    }
    # Sites with code from before there was anything to add need not hear of it where there is nothing.
    more = {"added": served.added, "offset": served.offset}
    return rule | {name: value for name, value in more.items() if value is not None}


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
    """What is sent to the clients: one model to each, or all of them to choose from or to mix; and how they blend."""
    if served.blend is not None:
        own, shared = _inputs(replace(served, blend=None), clients)
        return own, {**shared, "found": served.blend.found}
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


def _scores(net: Net, asked: Mapping[str, Any]) -> Declared:
    """What `score_client` gives, which depends on what is asked."""
    metrics, own = asked.get("metrics", ("accuracy",)), net.task.score
    given = {"loss": NUMBER, "test_samples": COUNT, "steps": COUNT, "rounds": COUNT}
    given |= {f"test_{name}": _bounds(name) for name in metrics} | {"validation": _bounds(metrics[0])}
    mixed = "weights" in asked or asked.get("shares") is not None
    if "models" in asked and asked["models"].shape and not mixed:
        given["choice"] = Output(int, least=0, most=len(asked["models"]) - 1)
    for name, wanted in ((f"global_{own}", "everywhere"), (f"{own}_adapted", "adapt"), (f"{own}_last", "last")):
        if asked.get(wanted):
            given[name] = _bounds(own)
    return given


def _bounds(name: str) -> Output:
    """What a metric gives for one client. A share may be below 0, as a correlation is."""
    return SHARE if name == "accuracy" else Output(float, least=-1, most=1) if metric_named(name).share else NUMBER


@program(scoring=True, gives=_scores)
def score_client(
    clients: Clients,
    models: Models | None = None,
    weights: Tensor | None = None,
    shared_part: Tensor | None = None,
    kept: str | None = None,
    on: str = "train",
    shares: str | None = None,
    part: str = "none",
    added: Sequence[str] | None = None,
    offset: str | None = None,
    personal: Stages = (),
    found: Tensor | None = None,
    candidates: Sequence[str] = (),
    adapting: LocalTraining | None = None,
    parts: int = 1,
    adapt: LocalTraining | None = None,
    last: bool = False,
    everywhere: bool = False,
    top: int = 1,
    metrics: Sequence[str] = ("accuracy",),
    take_home: bool = False,
) -> Outputs:
    """Score what the client is served on its own test and validation data."""
    own = clients.net.task.score
    models, weights, outputs = _predicting(
        clients, models, weights, shared_part, kept, on, shares, part, added, offset, personal
    )
    first_model, blend = models, found is not None
    if found is not None:
        models, weights = _blended(clients, models, found, candidates, adapting, parts)
    if take_home:
        clients.take_home(models, weights, blend)
    test, validation = clients.evaluate_each(models, ("test", "validation"), weights, blend)
    outputs |= {"loss": test.loss, "test_samples": test.samples}
    for name in metrics:
        if name == "accuracy":
            outputs["test_accuracy"] = test.accuracy_of(top)
        else:
            outputs[f"test_{name}"] = _values(clients, name, models, "test", weights, blend)
    first = metrics[0]
    by_hits = first == "accuracy"
    outputs["validation"] = (
        validation.accuracy_of(top) if by_hits else _values(clients, first, models, "validation", weights, blend)
    )

    def own_score(models: Models, part: str, weights: Tensor | None = None, blend: bool = False) -> Tensor:
        if own == "accuracy":
            return clients.evaluate(models, part, weights, blend).accuracy_of(top)
        return _values(clients, own, models, part, weights, blend)

    if everywhere:
        outputs[f"global_{own}"] = own_score(models, "global", weights, blend)
    if adapt is not None:
        outputs[f"{own}_adapted"] = own_score(clients.adapt(first_model, adapt), "test")
    if last:
        outputs[f"{own}_last"] = own_score(clients.state("_last", otherwise=clients.initial()), "test")
    return outputs | {"steps": clients.steps_taken, "rounds": clients.rounds_taken}


@program(scoring=True, simulated=True)
def predictions_of_client(
    clients: Clients,
    models: Models | None = None,
    weights: Tensor | None = None,
    shared_part: Tensor | None = None,
    kept: str | None = None,
    on: str = "train",
    shares: str | None = None,
    part: str = "none",
    added: Sequence[str] | None = None,
    offset: str | None = None,
    personal: Stages = (),
    found: Tensor | None = None,
    candidates: Sequence[str] = (),
    adapting: LocalTraining | None = None,
    parts: int = 1,
    longest: int = 0,
) -> Outputs:
    """What is predicted for the client's test data, for metrics that need all samples in one place.

    Only simulations ask for it: at a real site both targets and predictions are the client's own.
    """
    models, weights, _ = _predicting(
        clients, models, weights, shared_part, kept, on, shares, part, added, offset, personal
    )
    if found is not None:
        models, weights = _blended(clients, models, found, candidates, adapting, parts)
    predicted = clients.predictions(models, "test", weights, found is not None)
    there = torch.arange(longest) < torch.tensor([len(y) for y, _ in predicted])[:, None]
    padded = []
    for values in zip(*predicted, strict=True):
        some = next(value for value in values if len(value))
        padded.append(torch.zeros(len(clients), longest, *some.shape[1:], dtype=torch.from_numpy(some).dtype))
        for row, value in enumerate(values):
            padded[-1][row, : len(value)] = torch.from_numpy(value)
    return {"truth": padded[0], "predicted": padded[1], "there": there}


def _values(
    clients: Clients, name: str, models: Models, on: str, weights: Tensor | None, blend: bool = False
) -> Tensor:
    """A metric of each client's predictions, [client]."""
    judge = metric_named(name)
    return torch.tensor([judge(y, predicted) for y, predicted in clients.predictions(models, on, weights, blend)])


def _predicting(
    clients: Clients,
    models: Models | None,
    weights: Tensor | None,
    shared_part: Tensor | None,
    kept: str | None,
    on: str,
    shares: str | None,
    part: str,
    added: Sequence[str] | None,
    offset: str | None,
    personal: Stages,
) -> tuple[Models, Tensor | None, dict[str, Tensor]]:
    """The model [client] with which each client predicts, or models [client, model] and their weights, and a choice."""
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
    if added is not None:
        below = models.packed(added[0])
        models = models.patched(added[0], below + clients.state(added[1], otherwise=torch.zeros_like(below)))
    if offset is not None:
        none = models.parameters.new_zeros(len(clients), clients.net.features)
        models = models.shifted(clients.state(offset, otherwise=none))
    for stage, (trains, local) in enumerate(personal):
        models = clients.adapt(models, local, trains, stage)
    return models, weights, outputs


def _blended(
    clients: Clients,
    served: Models,
    found: Tensor,
    candidates: Sequence[str],
    adapting: LocalTraining | None,
    parts: int,
) -> tuple[Models, Tensor]:
    """The candidates [client, model] of each client beside what it is served, and the weights of its own blend."""
    assert adapting is not None
    own = [clients.state(name, otherwise=served) for name in candidates]
    models = Models.stack([served, clients.adapt(served, adapting), *own], axis=1)
    # Inputs that are the same for all clients reach a program once for each.
    return models, choosing.chosen(clients, models, parts, found[0])


def _own_shares(clients: Clients, models: Models, kept: str) -> Tensor:
    """How each client mixes models [client, model], as it keeps it; new ones fit it to their own training data."""
    even = torch.full(models.shape, 1 / models.shape[1], dtype=torch.float64, device=models.parameters.device)
    own: Tensor = clients.state(kept, otherwise=even * torch.nan)
    new = own.isnan().any(dim=1, keepdim=True)
    if not new.any():
        return own
    return torch.where(new, mixing.mixture_shares(clients.losses(models), even, _EM_STEPS), own)


@program(
    scoring=True, gives=lambda net, asked: {"total": Output(float, tuple(asked["models"].shape)), "samples": COUNT}
)
def score_globally(clients: Clients, models: Models, top: int = 1) -> Outputs:
    """Score the server's models on a part of the global test set."""
    result = clients.evaluate(models, "test")
    if clients.net.task.score == "accuracy":
        return {"total": result.correct if top == 1 else result.correct_top5, "samples": result.samples}
    # Sums of squared errors, so that the parts' add up.
    errors = [_values(clients, "rmse", models[:, column], "test", None) for column in range(models.shape[1])]
    return {"total": torch.stack(errors, dim=1).square() * result.samples[:, None], "samples": result.samples}


def spread(values: np.ndarray, higher: bool = True) -> dict[str, float | None]:
    """Mean, deviation, extremes and the mean of the worst tenth, over clients that have a value."""
    values = np.sort(values[np.isfinite(values)])
    if not len(values):
        return dict.fromkeys(("mean", "std", "min", "max", "worst_tenth"))
    tenth = ceil(len(values) / 10)
    worst = values[:tenth] if higher else values[-tenth:]
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values[0]),
        "max": float(values[-1]),
        "worst_tenth": float(worst.mean()),
    }
