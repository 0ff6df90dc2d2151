"""The course of a run: rounds, scoring, records, checkpoints."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from coterie.core.display import Records, html_table
from coterie.core.errors import CoterieError
from coterie.core.links import linked
from coterie.moves.agreement import agreement
from coterie.nets.predictor import Predictor
from coterie.server.federation import Federation
from coterie.server.metrics import facts_of, metric_named, shown
from coterie.server.progress import ProgressBar, in_notebook
from coterie.server.scoring import ClientScores, Scoring, known_groups, pooled_scores, score, spread
from coterie.server.served_models import ServedModels
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

log = logging.getLogger("coterie")

Record = dict[str, Any]
"""Figures of one round or one client, as they stand in a run folder's files."""


@dataclass
class Checkpoint:
    """A run between two rounds: everything that is needed to go on, to the last bit."""

    state: Any
    federation: dict[str, Any]
    seconds: float
    rounds: list[Record] = field(default_factory=list)
    groups: list[Record] = field(default_factory=list)
    insights: list[Record] = field(default_factory=list)
    findings: Record = field(default_factory=dict)
    """What the method has noted last under each name, if insights are recorded."""


@dataclass(frozen=True)
class Noted:
    """A method's state, and what figures show of how it came about: arrays with the client as first axis, by name.

    `begin` and `round` may give it instead of the bare state. What was noted last under a name is recorded with every
    evaluated round, if `Scoring.insights` asks for that; nothing of it is carried in the state.
    """

    state: Any
    findings: Mapping[str, Any]


class Procedure(Protocol):
    """What `fit` needs of a method."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def rounds(self) -> int:
        """How many rounds there are."""

    @property
    def local(self) -> LocalTraining:
        """How clients train."""

    @property
    def reads_test_data(self) -> bool:
        """Whether it looks at test data."""

    def check(self, fed: Federation) -> None:
        """Refuse a federation that it cannot run on."""

    def begin(self, fed: Federation) -> Any:
        """The state before the first round."""

    def round(self, fed: Federation, state: Any) -> Any:
        """The state after another round."""

    def serve(self, fed: Federation, state: Any) -> Served:
        """What each client predicts with."""

    def insight(self, fed: Federation, state: Any) -> Mapping[str, Any]:
        """What the method has found out, for figures."""


class Observer(Protocol):
    """Somebody who follows a run: a progress bar, a run folder."""

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """A round is done; the record is there if it was evaluated, the groups if they changed."""

    def run_done(self, checkpoint: Checkpoint, result: "Result") -> None:
        """All rounds are done."""


@dataclass(frozen=True)
class Beginning:
    """A run before its first round, or before the next one if it goes on."""

    method: str
    seed: int
    clients: Sequence[str]
    """What the clients are called."""
    settings: Record | None
    """Everything that decides the run, as a settings file has it, if that is known."""
    folder: "Path | None"
    """Where the run is written, if it is."""
    rounds: Sequence[Record]
    """The records of the rounds that are done already."""
    groups: Sequence[Record]
    """Who was grouped with whom in these."""

    @property
    def name(self) -> str:
        """What to call the run."""
        return f"{self.method}-seed{self.seed}" if self.folder is None else self.folder.absolute().name


@runtime_checkable
class CloseObserver(Observer, Protocol):
    """An observer who is told more: how a run begins, every client's scores, and that the run was stopped."""

    def run_begun(self, beginning: Beginning) -> None:
        """The first round is about to begin, or the next one of a run that goes on."""

    def clients_scored(self, number: int, scores: ClientScores) -> None:
        """The clients have been scored after the round of this number; its record follows."""

    def run_left(self) -> None:
        """The run was stopped or has failed, and may go on later."""


def _close(observers: Sequence[Observer]) -> list[CloseObserver]:
    return [observer for observer in observers if isinstance(observer, CloseObserver)]


@contextmanager
def _attended(observers: Sequence[Observer], beginning: Beginning) -> Iterator[None]:
    """While a run goes on: close observers are told how it begins, and if it is left before its end."""
    try:
        for observer in _close(observers):
            observer.run_begun(beginning)
        yield
    except BaseException:
        for observer in _close(observers):
            observer.run_left()
        raise


_WORLD = {"data": "", "split": " split", "net": ""}
"""What a summary may say of where a method was run, and the word behind it."""


@dataclass(frozen=True, repr=False)
class Result:
    """What a run gave.

    >>> result = coterie.FedAvg(rounds=2).fit(coterie.simulate(clients=3, net="mlp"))
    >>> len(result.rounds), len(result.clients)
    (2, 3)
    >>> sorted(result.summary["ledger"])  # what crossed, by direction
    ['down', 'evaluation', 'up']
    """

    summary: Record
    """The figures of the last and of the best round, and what it cost."""
    rounds: Records
    """One record per evaluated round."""
    clients: Records
    """One record per client; `result.clients.to_pandas()` is a data frame."""
    groups: Records
    """Who was grouped with whom, each time that changed."""
    insights: Records
    """What the method found out, a record per evaluated round, if that was asked for."""
    state: Any
    """The method's last state."""
    served: Served | None
    """What each client predicts with, as the method handed it out; None if the result was loaded."""
    models: ServedModels | None = None
    """The models that clients predict with, to take home; None if they were not kept, or are at the clients alone."""
    settings: Record | None = None
    """Everything that decided the run, as a settings file has it."""
    origin: Record = field(default_factory=dict)
    """Which versions, device and data it is from."""

    def __repr__(self) -> str:
        name = next(iter(facts_of(self.summary)))
        scores = (shown(name, self.summary.get(f"{name}_{end}")) for end in ("mean", "min", "max"))
        return f"Result({self._course}: {name.replace('_', ' ')} {'{} of {} to {}'.format(*scores)} over clients)"

    def _repr_html_(self) -> str:
        """What a notebook shows: each metric over the clients."""
        ends = {"mean": "mean", "worst tenth": "worst_tenth", "least": "min", "most": "max"}
        rows = [
            [name.replace("_", " "), *(shown(name, self.summary.get(f"{name}_{end}")) for end in ends.values())]
            for name in facts_of(self.summary)
        ]
        return html_table(self._course, ["over clients", *ends], rows)

    @property
    def _course(self) -> str:
        """What was run, in words."""
        world = [f"{self.summary[key]}{more}" for key, more in _WORLD.items() if self.summary.get(key)]
        run = [f"{self.summary['clients']} clients", f"{self.summary['rounds']} rounds"]
        return ", ".join([self.summary["method"], *world, *run])

    def model(self, client: str) -> Predictor:
        """What a client predicts with: a module that takes inputs as the data has them.

        >>> data = coterie.load("digits")
        >>> result = coterie.IFCA(rounds=2).fit(coterie.simulate(data, clients=3, net="mlp"))
        >>> result.model("0")(torch.from_numpy(data.test.x[:5])).shape
        torch.Size([5, 10])
        """
        return self._kept().model(client)

    def predict(self, client: str, x: Any) -> np.ndarray:
        """What a client's model predicts for inputs as the data has them: names of classes, or numbers."""
        return self.model(client).predict(x)

    def export(self, client: str, path: "str | Path") -> None:
        """Write what a client predicts with into a file: `.safetensors`, `.pt2` (`torch.export`) or `.onnx`."""
        self._kept().export(client, path)

    def _kept(self) -> ServedModels:
        if self.models is None:
            raise CoterieError("this result has no models: they were not kept, or are at the clients alone")
        return self.models

    def save(self, folder: "str | Path") -> "Path":
        """Write the result as the folder of a finished run, which `coterie show`, `report` and `export` read."""
        return linked("Result.save")(self, folder)

    @classmethod
    def load(cls, folder: "str | Path") -> "Result":
        """The result of a finished run, as its folder has it; what the method carried is not in it."""
        return linked("Result.load")(folder)

    def plot(self) -> "Figure":
        """A figure of the accuracy over rounds and of every client's accuracy at the end."""
        return linked("Result.plot")(self)


def fit(
    method: Procedure,
    fed: Federation,
    *,
    scoring: Scoring | None = None,
    true_groups: Sequence[int] | None = None,
    observers: Sequence[Observer] = (),
    resume: Checkpoint | None = None,
    describe: Record | None = None,
    keep_models: bool = True,
    folder: "Path | None" = None,
    progress: bool | None = None,
) -> Result:
    """Run a method on a federation from the beginning, or on from a checkpoint.

    With `keep_models` the result has the models that clients predict with at the end. Real sites have their own anyway.
    `folder` tells observers where the run is written. `progress` says whether a bar shows the rounds that are done; by
    default one does in a notebook.

    Two fits with the same settings give the same numbers to the last bit, and so does one that was resumed; only keys
    that end in `seconds` differ.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> result = coterie.fit(coterie.FedAvg(rounds=2), fed, scoring=coterie.Scoring(evaluate_every=2))
    >>> [record["round"] for record in result.rounds]
    [2]
    """
    scoring = scoring or Scoring()
    if in_notebook() if progress is None else progress:
        observers = [*observers, ProgressBar(method.rounds)]
    method.check(fed)
    scoring.check(fed)
    truth = fed.true_groups if true_groups is None else np.asarray(true_groups)
    keep_last, prior = "last" in scoring.views, method.local.own_prior
    fed.begin(method.rounds, keep_last, method.reads_test_data, prior, getattr(method, "counts_on_memory", ""))
    now = Checkpoint(None, {}, 0.0) if resume is None else replace(resume)
    course = _Course(fed, scoring, observers, now, time.perf_counter())
    settings = None
    if fed.world is not None:
        settings = {**fed.world, "method": {"name": method.name, **vars(method)}, "scoring": vars(scoring)}
    beginning = Beginning(method.name, fed.seed, fed.names, settings, folder, [*now.rounds], [*now.groups])
    with _attended(observers, beginning):
        scores, served, models = _all_rounds(method, course, resume, keep_models)
        sizes = fed.sizes.tolist()
        clients = [_client_record(fed, sizes, scores, row, truth) for row in range(len(scores.clients))]
        pooled = pooled_scores(fed, served, scoring, scores)
        summary = _summary(method, fed, now, scores, pooled, truth, _described(fed) if describe is None else describe)
        records = (Records(now.rounds), Records(clients), Records(now.groups), Records(now.insights))
        result = Result(summary, *records, now.state, served, models, settings, fed.origin)
        last = course.checkpoint()
        for observer in observers:
            observer.run_done(last, result)
        return result


def _all_rounds(
    method: Procedure, course: "_Course", resume: Checkpoint | None, keep_models: bool
) -> tuple[ClientScores, Served, ServedModels | None]:
    """Do the rounds that are left, and give how clients do at the end, with what, and their models if they are kept."""
    fed, now, scoring = course.fed, course.now, course.scoring
    if resume is None:
        with fed.method_at_work():
            fed.agree_on_scales()
            course.move(method.begin(fed))
        fed.commit()
    else:
        fed.restore(resume.federation)
    scores, served, models = None, None, None
    for number in range(fed.round + 1, method.rounds + 1):
        fed.start_round(number)
        with fed.method_at_work():
            course.move(method.round(fed, now.state))
            served = method.serve(fed, now.state)
        fed.commit()
        record, change = None, _group_change(number, known_groups(fed, served, fed.clients), now.groups)
        if number % scoring.evaluate_every == 0 or number == method.rounds:
            missing = [view for view in scoring.views if view != "served"] if served.mixed else []
            if missing and not now.rounds:
                log.warning("%s: clients mix several models: there is no view %s", method.name, ", ".join(missing))
            at_home = number == method.rounds and _take_home(fed, served, keep_models)
            scores = score(fed, served, scoring, method.local, at_home)
            if number == method.rounds and keep_models:
                models = ServedModels.of(fed, served, scores.groups)
            change = change if served.index is not None else _group_change(number, scores.groups, now.groups)
            for close in _close(course.observers):
                close.clients_scored(number, scores)
            record = _round_record(fed, scores, course.seconds)
            now.rounds.append(record)
            if scoring.insights:
                with fed.method_at_work():
                    found = now.findings | _plain(method.insight(fed, now.state))
                now.insights.append({"round": number} | found)
        checkpoint = course.checkpoint()
        for observer in course.observers:
            observer.round_done(checkpoint, record, change)
        del checkpoint  # what clients keep is copied for it only if an observer holds on to it
    if scores is None or served is None:  # resumed after the last round
        with fed.method_at_work():
            served = method.serve(fed, now.state)
        scores = score(fed, served, scoring, method.local, _take_home(fed, served, keep_models))
        models = ServedModels.of(fed, served, scores.groups) if keep_models else None
        fed.restore(resume.federation)  # type: ignore[union-attr]  # scoring again must not count twice
    return scores, served, models


def _never_trained(scores: ClientScores) -> Record:
    """How many clients never took part, and how they and the others fare; nothing if all did."""
    idle, (name, values) = scores.rounds == 0, next(iter(scores.values.items()))
    if not idle.any():
        return {}
    told = {"clients": int(idle.sum()), f"{name}_mean": spread(values[idle])["mean"]}
    return {**told, f"others_{name}_mean": spread(values[~idle])["mean"]}


def _described(fed: Federation) -> Record:
    """The names of a simulation's data, split and net, as tables show them."""
    if fed.world is None or fed.preparation is None:
        return {}
    return {"data": fed.preparation.data, "split": fed.world["split"]["name"], "net": fed.net.name}


def _take_home(fed: Federation, served: Served, keep_models: bool) -> bool:
    """Whether clients are to have what they predict with: real ones always, others if the server has it not."""
    return fed.real or (keep_models and served.personal and served.weights is None)


@dataclass
class _Course:
    """A run in progress: the method's state, and what is recorded of it."""

    fed: Federation
    scoring: Scoring
    observers: Sequence[Observer]
    now: Checkpoint
    """Where the run is; `federation` and `seconds` are still those with which it began or went on."""
    started: float

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return self.now.seconds + time.perf_counter() - self.started

    def move(self, outcome: Any) -> None:
        """Go on from what the method gave: a state, perhaps with what it has noted."""
        noted = outcome if isinstance(outcome, Noted) else Noted(outcome, {})
        self.now.state = noted.state
        if self.scoring.insights:
            self.now.findings = self.now.findings | _plain(noted.findings)

    def checkpoint(self) -> Checkpoint:
        """Everything that is needed to go on from here."""
        return replace(self.now, federation=self.fed.checkpoint(), seconds=self.seconds)


def _group_change(number: int, labels: np.ndarray | None, groups: list[Record]) -> Record | None:
    """Record this round's groups in `groups`, if they are known and differ from the last ones, and give the record."""
    if labels is None:
        return None
    found = labels.tolist()
    if groups and groups[-1]["groups"] == found:
        return None
    groups.append({"round": number, "groups": found})
    return groups[-1]


def _round_record(fed: Federation, scores: ClientScores, seconds: float) -> Record:
    record: Record = {"round": fed.round}
    for name, values in scores.values.items():
        record |= {f"{name}_{key}": value for key, value in spread(values, metric_named(name).higher).items()}
    record["loss_mean"] = spread(scores.loss)["mean"]
    record[f"validation_{next(iter(scores.values))}"] = spread(scores.validation)["mean"]
    record["steps_mean"] = float(scores.steps.mean())
    record["groups"] = None if scores.groups is None else len(set(scores.groups[scores.clients].tolist()))
    for direction in ("up", "down", "peer", "evaluation"):
        record[f"bytes_{direction}"] = fed.ledger.total(direction)
    record["seconds"] = round(seconds, 3)
    # The global test set first, then the views.
    for name, values in sorted(scores.more.items(), key=lambda item: not item[0].startswith("global_")):
        kinds = ("mean", "min", "max") if name.startswith("global_") else ("mean",)
        record |= {f"{name}_{kind}": spread(values)[kind] for kind in kinds}
    return record


def _client_record(
    fed: Federation, sizes: Sequence[int], scores: ClientScores, row: int, truth: np.ndarray | None
) -> Record:
    client = int(scores.clients[row])
    record: Record = {
        "client": fed.names[client],
        "samples": sizes[client],
        "test_samples": int(scores.samples[row]),
        "true_group": None if truth is None else int(truth[client]),
        "group_found": None if scores.groups is None else int(scores.groups[client]),
    }
    record |= {name: _number(values[row]) for name, values in scores.values.items()}
    record["loss"] = _number(scores.loss[row])
    record |= {name: _number(values[row]) for name, values in scores.more.items()}
    return record | {"steps": int(scores.steps[row]), "rounds_taken_part": int(scores.rounds[row])}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    """A value as JSON has it: arrays as nested lists, numbers to six digits, None for NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def _summary(
    method: Procedure,
    fed: Federation,
    now: Checkpoint,
    scores: ClientScores,
    pooled: Mapping[str, float | None],
    truth: np.ndarray | None,
    describe: Record,
) -> Record:
    first = metric_named(next(iter(scores.values)))
    by, sign = f"validation_{first.name}", 1 if first.higher else -1
    judged = [record for record in now.rounds if record[by] is not None]
    # The best round is the best on validation data, and the earliest of equals.
    best = max(judged, key=lambda record: (sign * record[by], -record["round"]), default=None)
    last = {name: value for name, value in now.rounds[-1].items() if name != "round"}
    summary: Record = {"method": method.name, "clients": len(fed.names), "rounds": method.rounds, "seed": fed.seed}
    if method.reads_test_data:
        summary["reads_test_data"] = True
    size = {"parameters": fed.net.parameters.total}
    if fed.net.frozen:
        size["frozen_parameters"] = fed.net.frozen
    summary |= describe | size
    summary["metrics"] = {name: metric_named(name).facts for name in scores.values}
    summary |= last | {f"pooled_{name}": value for name, value in pooled.items()} | {"best_round": best}
    if idle := _never_trained(scores):
        summary["never_took_part"] = idle
    there = scores.clients
    if truth is not None and scores.groups is not None:
        if len({*truth[there].tolist()}) > 1:  # where all belong together there are no groups to find
            summary |= agreement(scores.groups[there], truth[there])
        # Who never had more than one group has found nothing that could be stable.
        parted = any(len({*change["groups"]}) > 1 for change in now.groups)
        summary["stable_since"] = now.groups[-1]["round"] if parted else None
    if fed.went_on_without:
        summary["went_on_without"] = fed.went_on_without
    return summary | {"ledger": fed.ledger.by_kind()}
