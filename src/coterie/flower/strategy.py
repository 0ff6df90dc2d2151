"""Runs a method as the strategy of any Flower app: the server's side of `coterie.flower.strategy`.

Flower's own strategies configure one phase of a round at a time, and average what comes back. A method of Coterie may
need several phases, several models, and clients that keep something, so this strategy replaces all of `start`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from logging import INFO
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore.logger import FLOWER_LOGGER, log

from coterie._version import __version__
from coterie.core.errors import CoterieError, ProgramError, SettingsError
from coterie.deploy.server import Store, carry_through, logged
from coterie.deploy.site import PARTS
from coterie.engines.flower.arrays import STATISTICS, ArrayNet
from coterie.engines.flower.engine import FederatedTask, FlowerEngine, RoundLostError, Waiting
from coterie.engines.flower.messages import GridTransport
from coterie.flower.apps import APP_MESSAGE, AppFacts, digest_of
from coterie.nets import codec
from coterie.nets.net import Net
from coterie.runs.folder import RunFolder
from coterie.runs.settings import FORMAT, as_toml
from coterie.server import fitting
from coterie.server.federation import Federation
from coterie.server.fitting import Checkpoint, Record
from coterie.server.method import Method
from coterie.server.metrics import first_metric
from coterie.server.scoring import Scoring
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

_APPS_OWN = {"rounds", *(field.name for field in fields(LocalTraining))}
"""Fields of a method that an app is free to follow: its train handler finds them as wishes in its configuration."""

_SPREAD = ("mean", "std", "min", "max", "worst_tenth")
"""The statistics of clients' accuracy that Flower's log and result show."""


@dataclass
class CoterieStrategy(Strategy):
    """Runs a method with `start`, over apps whose `ClientApp` is `coterie.flower.ClientApp`."""

    method: Method
    """The method. It runs as many rounds as `start` is told, otherwise as many as its own `rounds` say."""

    sites: int = 0
    """Nodes to wait for before the first round; 0 waits for `min_sites`. Methods that group clients need them all."""

    min_sites: int = 2
    """How many nodes must answer for a round to count."""

    patience: float = 600.0
    """Seconds to wait for nodes that are missing, before the run stops."""

    parts: Sequence[str] = ("test",)
    """Parts of its data that the app's evaluate handler tells apart, by `coterie-part` in its configuration (`train`,
    `validation` or `test`). An app that does not look there has one evaluation set: it stands for `test`, and for
    `train` where a method chooses by the loss on it. Give none if the app has no evaluate handler."""

    further: Sequence[ArrayRecord] = ()
    """Where further models start, for methods that keep several. By default the initial arrays, each array's numbers in
    a new order; give some if the initial arrays were trained before."""

    statistics: Sequence[str] = STATISTICS
    """Names of arrays that are running statistics, with `*` as a wildcard: they are averaged, never stepped on."""

    out: Path | str | None = None
    """The run folder. If it holds a run that was begun, that run goes on."""

    seed: int = 0
    """Seed of the server's draws: who takes part, where further models start."""

    evaluate_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""

    weighted_by_key: str = "num-examples"
    """What the app calls the number of samples among its metrics."""

    arrayrecord_key: str = "arrays"
    """What the app calls the record of arrays in a message."""

    configrecord_key: str = "config"
    """What the app calls the record of its configuration in a message."""

    result: fitting.Result | None = field(default=None, init=False)
    """After `start`: everything that was measured, per round and per client."""

    models: tuple[ArrayRecord, ...] = field(default=(), init=False)
    """After `start`: the server's models. A method whose clients keep their own may have none."""

    groups: dict[str, int] = field(default_factory=dict, init=False)
    """After `start`: for each client, by its name, the place in `models` of the model that it is served."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise SettingsError(f"a method is needed, such as coterie.FedAvg(), not {type(self.method).__name__}")
        if self.method.reads_test_data:
            raise SettingsError(f"{self.method.name} reads test data with these settings: no client allows that")
        for part in self.parts:
            if part not in PARTS:
                raise SettingsError(f"parts={part!r}: some of {', '.join(PARTS)}")
        self.out = None if self.out is None else Path(self.out)
        self._waiting(1.0)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Wait for nodes, run all rounds, and return a result like that of Flower's own strategies.

        `arrays` of the result is the model that most clients are served. All models are in `models`, and `groups` says
        which client is served which.
        """
        method = self.method if num_rounds is None else replace(self.method, rounds=num_rounds)
        log(INFO, "Starting %s (Coterie %s):", type(method).__name__, __version__)
        log_strategy_start_info(method.rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        net = ArrayNet.of([initial_arrays, *self.further], self.statistics)
        about = AppFacts(
            net.arrays,
            net.new(self.seed, 0),
            tuple(self.parts),
            dict(train_config or {}),
            dict(evaluate_config or {}),
            self.arrayrecord_key,
            self.configrecord_key,
            self.weighted_by_key,
        )
        transport = AppTransport(grid, 2 * timeout, codec.dump(about))
        advice = "start the app again when they are back" + (", and it goes on" if self.out else "")
        engine = FlowerEngine(net, FederatedTask((), (), net.name), transport, self._waiting(timeout), advice=advice)
        fed = Federation(engine, self.seed)
        method.check(fed)
        outcome = Result()
        follower = _FlowerObserver(method, fed, net, transport, outcome, evaluate_fn)
        follower.evaluate(0, initial_arrays)
        scoring = Scoring(evaluate_every=self.evaluate_every)
        out = None if self.out is None else Path(self.out)
        store: Store = _Remembered() if out is None else RunFolder(out, self._table(method, net), every_round=True)
        describe = {"data": "app", "split": "nodes", "net": "app"}
        try:
            with logged(out, *FLOWER_LOGGER.handlers):
                result = carry_through(method, fed, engine, store, scoring, [follower], describe)
        except (ProgramError, RoundLostError) as error:
            raise type(error)(f"{method.name}: {error}") from error
        self.result = result
        self.models = _models(net, result.served)
        self.groups = _groups(fed, result.groups)
        if self.models:
            outcome.arrays = self.models[_commonest(result.groups)]
        for line in str(outcome).splitlines():
            log(INFO, "\t%s", line)
        return outcome

    def _waiting(self, timeout: float) -> Waiting:
        return Waiting(self.sites, self.min_sites, timeout, self.patience)

    def _table(self, method: Method, net: ArrayNet) -> dict[str, Any]:
        """What decides the run, as far as the server knows it, as the content of a settings file."""
        top = {"format": FORMAT, "coterie": __version__, "seed": self.seed}
        app = {"parts": self.parts, "arrays": digest_of(codec.dump(net.arrays))}
        sites = {"sites": self.sites, "min_sites": self.min_sites, "patience": self.patience}
        scoring = {"evaluate_every": self.evaluate_every}
        return as_toml(
            {**top, "method": {"name": method.name, **vars(method)}, "app": app, "sites": sites, "scoring": scoring}
        )

    def summary(self) -> None:
        """Log what the strategy does."""
        own = {name: value for name, value in vars(self.method).items() if name not in _APPS_OWN}
        log(INFO, "\t├──> Method: %s %s", self.method.name, own)
        log(INFO, "\t├──> Nodes: waits for %d; a round counts with %d", self.sites or self.min_sites, self.min_sites)
        log(INFO, "\t└──> The evaluate handler tells apart: %s", ", ".join(self.parts) or "(there is none)")
        if self.parts and "train" not in self.parts:
            log(
                INFO, "\t\t└── where clients choose a model by its loss, they do so on the data that they are scored on"
            )

    # Flower's phases

    def configure_train(self, *arguments: Any, **more: Any) -> NoReturn:
        """Refuse to run one phase of a round by itself."""
        raise CoterieError(
            f"{self.method.name} drives whole rounds: call the strategy's start, and wrap no other strategy around it"
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


class AppTransport(GridTransport):
    """Carries messages to apps: it tells each node the facts about the app first, and gathers what apps measure."""

    def __init__(self, grid: Grid, lifetime: float, about: bytes) -> None:
        super().__init__(grid, lifetime, APP_MESSAGE)
        self._about, self._name = about, digest_of(about).encode()
        self._told: set[int] = set()
        self._metrics: list[_Measured] = []

    def nodes(self) -> set[int]:
        """The nodes that are connected now. One that was away is told the facts again: it may have lost them."""
        there = super().nodes()
        self._told &= there
        return there

    def send(self, messages: Mapping[int, Mapping[str, bytes]]) -> dict[int, str]:
        """Send each node its message, and with it the facts about the app if it has not been told them."""
        about = {"app": self._name, "about": self._about}
        known = {"app": self._name}
        return super().send(
            {node: {**parts, **(known if node in self._told else about)} for node, parts in messages.items()}
        )

    def _answer(self, node: int, parts: Mapping[str, bytes]) -> bytes | None:
        self._told.discard(node)
        if "metrics" in parts:
            self._told.add(node)
            self._metrics.append(_sound(codec.load(parts["metrics"], {})))
        return super()._answer(node, parts)

    def measured(self, kind: str) -> dict[str, float]:
        """What apps have measured for messages of this kind since the last call, as means over their samples."""
        sums: defaultdict[str, float] = defaultdict(float)
        weights: defaultdict[str, int] = defaultdict(int)
        for metrics in self._metrics:
            samples, values = metrics.pop(kind, (0, {}))
            for name, value in values.items():
                sums[name] += samples * value
                weights[name] += samples
        self._metrics = [metrics for metrics in self._metrics if metrics]
        return {name: total / weights[name] for name, total in sums.items() if weights[name]}


_Measured = dict[str, tuple[int, dict[str, float]]]
"""For each kind of message on how many samples an app has measured, and what."""


def _sound(told: Any) -> _Measured:
    """What an app says that it has measured, without entries that cannot be right."""
    sound: _Measured = {}
    for kind, entry in told.items() if isinstance(told, dict) else ():
        samples, values = entry if isinstance(entry, list) and len(entry) == 2 else (0, None)
        if isinstance(samples, int) and samples > 0 and isinstance(values, dict):
            numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
            sound[kind] = (samples, numbers)
    return sound


class _Remembered:
    """Keeps the newest checkpoint of a run that has no folder in memory."""

    def __init__(self) -> None:
        self._checkpoint: Checkpoint | None = None

    def open(self, net: Net, resume: bool, origin: Mapping[str, str]) -> Checkpoint | None:
        return self._checkpoint

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        self._checkpoint = replace(checkpoint, rounds=list(checkpoint.rounds), groups=list(checkpoint.groups))

    def run_done(self, checkpoint: Checkpoint, result: fitting.Result) -> None:
        self._checkpoint = checkpoint

    def close(self) -> None:
        pass


@dataclass
class _FlowerObserver:
    """Writes how a run goes into Flower's log and Flower's result."""

    method: Method
    fed: Federation
    net: ArrayNet
    transport: AppTransport
    outcome: Result
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """Log the round, and evaluate the commonest model on the server if the user has given a function for that."""
        number = self.fed.round
        trained, evaluated = self.transport.measured("train"), self.transport.measured("evaluate")
        log(INFO, "[ROUND %s/%s]", number, self.method.rounds)
        if trained:
            self.outcome.train_metrics_clientapp[number] = MetricRecord(dict(trained))
            log(INFO, "\t└──> Trained: %s", self.outcome.train_metrics_clientapp[number])
        if record is not None:
            metrics = MetricRecord({**evaluated, **_spread_of(record)})
            self.outcome.evaluate_metrics_clientapp[number] = metrics
            log(INFO, "\t└──> Evaluated: %s", metrics)
        if self.evaluate_fn is not None:
            with self.fed.method_at_work():
                served = self.method.serve(self.fed, checkpoint.state)
            models = _models(self.net, served)
            if models:
                self.evaluate(number, models[_commonest(checkpoint.groups)])

    def run_done(self, checkpoint: Checkpoint, result: fitting.Result) -> None:
        """Add the rounds that an earlier start has run to the result."""
        for record in result.rounds:
            self.outcome.evaluate_metrics_clientapp.setdefault(record["round"], MetricRecord(_spread_of(record)))

    def evaluate(self, number: int, arrays: ArrayRecord) -> None:
        """Evaluate arrays on the server if the user has given a function for that."""
        metrics = None if self.evaluate_fn is None else self.evaluate_fn(number, arrays)
        if metrics is not None:
            log(INFO, "\t└──> Evaluated on the server: %s", metrics)
            self.outcome.evaluate_metrics_serverapp[number] = metrics


def _spread_of(record: Record) -> dict[str, Any]:
    """What a round's record says about clients' accuracy and loss."""
    names = [*(f"{first_metric(record)}_{name}" for name in _SPREAD), "loss_mean"]
    return {name: record[name] for name in names if record[name] is not None}


def _models(net: ArrayNet, served: Served | None) -> tuple[ArrayRecord, ...]:
    """All models that clients are served, as the app's arrays."""
    models = None if served is None else served.models
    return () if models is None else tuple(net.arrays_of(models[place]) for place in range(len(models)))


def _groups(fed: Federation, groups: Sequence[Record]) -> dict[str, int]:
    """For each client that is in a group, by its name, the place of the model that it is served."""
    found = groups[-1]["groups"] if groups else []
    return {name: place for name, place in zip(fed.names, found, strict=False) if place >= 0}


def _commonest(groups: Sequence[Record]) -> int:
    """The place of the model that most clients are served: the first of several equals, or of all if none is known."""
    counted = Counter(place for place in (groups[-1]["groups"] if groups else []) if place >= 0)
    return min(counted, key=lambda place: (-counted[place], place), default=0)
