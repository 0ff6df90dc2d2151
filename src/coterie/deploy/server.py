"""The server's side of a deployment: its settings, and a run over the sites that are connected.

A checkpoint is written after every round. A round that too few sites answer is lost: then `carry_through` goes on from
the last checkpoint as a resumed run would. It tries a round `_ATTEMPTS` times at most.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie._version import __version__
from coterie.core.errors import SettingsError, unknown
from coterie.core.logs import OneLineFormatter
from coterie.core.modules import homes_of
from coterie.core.registry import checked
from coterie.data.division import Division
from coterie.data.population import Pool, Population, Shard, populate
from coterie.data.schema import Schema
from coterie.data.split import Split
from coterie.data.tasks import task_named
from coterie.deploy.site import load_own, scaled
from coterie.engines.chunk import ClientHost
from coterie.engines.flower.engine import FederatedTask, FlowerEngine, RoundLostError, Transport, Waiting
from coterie.engines.simulation.engine import Computing, server_parts
from coterie.methods import methods
from coterie.nets import make_net, nets
from coterie.nets.net import Net
from coterie.runs.folder import RunFolder
from coterie.runs.options import import_modules, section_of
from coterie.runs.settings import FORMAT, as_toml, check_format, made_of, read_table
from coterie.server.federation import Federation
from coterie.server.fitting import Checkpoint, Observer, Record, Result, fit
from coterie.server.method import Method
from coterie.server.metrics import metric_named
from coterie.server.scoring import Scoring
from coterie.training.forms import form_named
from coterie.training.losses import losses, task_with

log = logging.getLogger("coterie")

_SECTIONS: dict[str, tuple[str, type]] = {
    "task": ("task", FederatedTask),
    "sites": ("waiting", Waiting),
    "scoring": ("scoring", Scoring),
    "computing": ("computing", Computing),
}
"""For each section of the settings file: the field of `Deployment` that it becomes, and the class of that field."""

_ATTEMPTS = 3
"""After how many attempts at one round, each with too few answers, the run stops."""


@dataclass(frozen=True)
class Deployment:
    """Everything that decides a run over real sites, on the server's side; sites have settings of their own."""

    method: Method
    task: FederatedTask
    """What the server and all sites must agree on."""
    seed: int = 0
    """Seed of the server's draws."""
    server: str | None = None
    """What the server itself holds: an .npz file, or `package.module:function` that gives a `coterie.Dataset`. Its
    samples are for methods that need some, its test part is the global test set."""
    schema: Schema | None = None
    """The columns of the sites' tables, if they have tables."""
    waiting: Waiting = field(default_factory=Waiting)
    scoring: Scoring = field(default_factory=Scoring)
    computing: Computing = field(default_factory=Computing)

    def __post_init__(self) -> None:
        if self.method.reads_test_data:
            raise SettingsError(f"{self.method.name} reads test data with these settings: no site allows that")
        if self.schema is not None and self.server is not None:
            raise SettingsError("server.data: what the server holds cannot be scaled with tables of sites yet")

    @classmethod
    def from_table(cls, table: Mapping[str, Any], folder: Path) -> "Deployment":
        """The settings that a file contains; paths in them are relative to the file's folder."""
        check_format(table)
        known = {"format", "coterie", "modules", "seed", "method", "server", "schema", *_SECTIONS}
        for name in table:
            if name not in known:
                raise unknown("entry of the settings", name, known)
        import_modules(table)
        method, server = section_of(table, "method"), section_of(table, "server")
        if "name" not in method:
            raise SettingsError("the settings name no method: write [method] with name = ... in it")
        held = checked("server.data", server.pop("data", None), str | None)
        if server:
            raise unknown("entry of [server]", next(iter(server)), ["data"])
        for name in ("labels", "shape", "net"):
            if name not in section_of(table, "task"):
                raise SettingsError(f"the settings do not say the task's {name}: write {name} = ... into [task]")
        parts = {field: made_of(kind, section_of(table, name), name) for name, (field, kind) in _SECTIONS.items()}
        return cls(
            methods.make(method.pop("name"), **method),
            seed=checked("seed", table.get("seed", 0), int),
            schema=Schema.from_table(section_of(table, "schema")) if "schema" in table else None,
            server=held if held is None or ":" in held else str(folder / held),
            **parts,
        )

    @classmethod
    def read(cls, path: Path) -> "Deployment":
        """The settings in a file."""
        return cls.from_table(read_table(path), path.parent)

    @property
    def modules(self) -> tuple[str, ...]:
        """The users' modules that its method, net, loss and metrics come from, if not ours; sites need them, too."""
        named = [nets[self.task.net]] if self.task.net in nets else []
        named += [losses[self.task.loss].function] if self.task.loss in losses else []
        named += [metric_named(name).function for name in self.scoring.metrics]
        return homes_of([type(self.method), *named])

    def table(self) -> dict[str, Any]:
        """All settings, as the content of a settings file."""
        sections = {name: vars(getattr(self, field)) for name, (field, _) in _SECTIONS.items()}
        top = {"format": FORMAT, "coterie": __version__, "modules": self.modules or None, "seed": self.seed}
        method = {"name": self.method.name, **vars(self.method)}
        made = as_toml({**top, "method": method, "server": {"data": self.server}, **sections})
        return made if self.schema is None else made | {"schema": self.schema.table()}

    def engine(self, transport: Transport) -> FlowerEngine:
        """The engine for the sites behind a transport."""
        device, dtype = self.computing.find_device(), self.computing.dtype
        kind = task_named(self.task.task if self.schema is None else self.schema.task)
        net = make_net(
            *(self.task.net, self.task.shape, len(self.task.labels), device, dtype),
            task=task_with(kind, self.task.loss, len(self.task.labels), device),
            vocabulary=self.task.vocabulary,
        )
        held = self._server_population()
        own = None
        if held is not None:
            shards = [held.server, *server_parts(held.server)]
            form = form_named("loop", half=self.computing.precision == "bf16")
            own = ClientHost(net, Pool.of(held, device, dtype), shards, held.server.test, form)
        return FlowerEngine(net, self.task, transport, self.waiting, self.schema, own)

    def _server_population(self) -> Population | None:
        """The server as a population without clients: its own samples, and the global test set."""
        if self.server is None:
            return None
        told = {"vocabulary": self.task.vocabulary, "task": self.task.task}
        data, given = load_own(self.server, self.task.labels, **told)  # type: ignore[arg-type]
        if data.shape != self.task.shape:
            expected = f"the task's are {self.task.shape}"
            raise SettingsError(f"server data {self.server}: inputs of shape {data.shape}, {expected}")
        everything = np.arange(len(data))
        population = populate(data, Split((everything,), names=("server",)), Division(test_share=0, validation=0))
        samples, test = (everything, population.server.test) if given is None else (given[0], given[2])
        server = Shard("server", samples, np.empty(0, np.int64), test)
        task = self.task
        scales = (task.shift, task.scale, task.target_shift, task.target_scale)
        return replace(scaled(population, *scales), server=server)


def run_over(deployment: Deployment, transport: Transport, out: Path, observers: Sequence[Observer] = ()) -> Result:
    """Run a method over real sites and store it in a run folder; if the folder has begun this run, go on with it.

    A round that too few sites answer is tried again when they are back. What goes wrong on the way is in `log.txt`.
    """
    folder = RunFolder(out, deployment.table(), every_round=True)
    engine = deployment.engine(transport)
    fed = Federation(engine, deployment.seed)
    deployment.method.check(fed)
    deployment.scoring.check(fed)
    describe = {"data": deployment.task.name, "split": "sites", "net": deployment.task.net}
    with logged(out):
        return carry_through(deployment.method, fed, engine, folder, deployment.scoring, observers, describe)


class Store(Observer, Protocol):
    """An observer that keeps the newest checkpoint of a run."""

    def open(self, net: Net, resume: bool, origin: Mapping[str, str]) -> Checkpoint | None:
        """The checkpoint to go on from, if there is one."""

    def close(self) -> None:
        """Give back what the store holds: the run has ended, or stopped."""


def carry_through(
    method: Method,
    fed: Federation,
    engine: FlowerEngine,
    store: Store,
    scoring: Scoring,
    observers: Sequence[Observer] = (),
    describe: Record | None = None,
) -> Result:
    """Run a method to its end. A round that too few sites answer is run again, from the store's newest checkpoint."""
    lost, attempts, watching = 0, 0, [*observers, store]
    with closing(store):
        while True:
            checkpoint = store.open(fed.net, resume=True, origin=fed.origin)
            try:
                engine.gather(first=checkpoint is None)
                log.info("%s", fed.explain())
                return fit(method, fed, scoring=scoring, observers=watching, resume=checkpoint, describe=describe)
            except RoundLostError as error:
                attempts = attempts + 1 if fed.round == lost else 1
                lost = fed.round
                if attempts >= _ATTEMPTS:
                    log.error("%s; tried %d times", error, attempts)
                    raise
                log.warning("%s; the round is tried again", error)
            except Exception as error:
                log.error("stopped: %s", error)
                raise


@contextmanager
def logged(out: Path | None, *handlers: logging.Handler) -> Iterator[None]:
    """Write what Coterie logs meanwhile into `log.txt` in a run's folder, if it has one, and to these handlers."""
    with ExitStack() as stack:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(out / "log.txt", encoding="utf-8")
            file.setFormatter(OneLineFormatter())
            stack.callback(file.close)
            handlers = (*handlers, file)
        for handler in handlers:
            log.addHandler(handler)
            stack.callback(log.removeHandler, handler)
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.INFO)
        yield
