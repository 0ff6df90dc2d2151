"""A whole federation on this machine, in processes of its own: the SuperLink, the sites and the run."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tomli_w

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.files import write_whole
from coterie.data.population import Population, Shard, scaling_of
from coterie.data.schema import Schema
from coterie.deploy.app import site_table, write_app
from coterie.deploy.control import Control
from coterie.deploy.processes import Process, Processes, flower_environment, free_port, start_superlink
from coterie.deploy.server import Deployment
from coterie.deploy.site import PARTS
from coterie.engines.flower.certs import ServerFiles, make_certificates
from coterie.engines.flower.engine import FederatedTask, Waiting
from coterie.runs.folder import StoredRun, read_lines
from coterie.runs.settings import Settings
from coterie.server.fitting import Record

_OWN = {"samples": 1, "batch": 1, "rounds": 10**9, "attempts": 10**6, "models": 10**6, "steps": 10**9, "seconds": 1e7}
"""Limits of sites whose server is of the same machine and user: none that a simulation does not have."""

_LOOK = 0.5
"""Seconds between looks at a run's folder."""


def deployment_of_schema(settings: Settings, schema: Schema, name: str) -> Deployment:
    """The deployment of a simulation's method over sites that have tables with a schema; nobody needs all of them."""
    task = FederatedTask(
        labels=schema.labels,
        shape=(len(schema.inputs),),
        net=settings.world.net or "mlp",
        name=name,
        task=schema.task,
        loss=settings.world.loss or "",
        kind="features",
    )
    return Deployment(
        settings.method,
        task,
        seed=settings.world.seed,
        schema=schema,
        scoring=settings.scoring,
        computing=replace(settings.world.computing, engine="loop", workers=0),
    )


def deployment_of(settings: Settings, waiting: Waiting | None = None) -> Deployment:
    """The deployment that runs the method and the task of a simulation's settings over real sites."""
    world = settings.world
    if world.arrivals:
        raise SettingsError("arrivals: real sites arrive when they connect")
    data = world.dataset
    if data.schema is None:
        shift, scale = scaling_of(data, world.division.scaling)
    else:
        shift, scale = world.population.shift, world.population.scale
    targets = {}
    if not data.kind_of_task.one_class:
        population = world.population
        targets["target_shift"] = tuple(population.target_shift.tolist())
        targets["target_scale"] = tuple(population.target_scale.tolist())
    task = FederatedTask(
        labels=data.labels,
        shape=data.shape,
        net=world.net_name,
        shift=tuple(shift.tolist()),
        scale=tuple(scale.tolist()),
        name=Path(world.data).stem,
        vocabulary=data.vocabulary,
        task=data.task,
        loss=world.loss or "",
        kind=data.kind,
        **targets,
    )
    return Deployment(
        settings.method,
        task,
        seed=world.seed,
        waiting=waiting or Waiting(),
        scoring=settings.scoring,
        computing=replace(world.computing, engine="loop", workers=0),
    )


def prepare(settings: Settings, folder: Path, waiting: Waiting) -> Deployment:
    """Write into a folder an app, keys, and for every client of a simulation's settings a site with its data."""
    deployment, population = deployment_of(settings, waiting), settings.world.population
    folder.mkdir(parents=True, exist_ok=True)
    if len(population.server.train) or len(population.server.test):
        _write_data(folder / "server.npz", population, population.server)
        deployment = replace(deployment, server=str((folder / "server.npz").absolute()))
    write_app(folder / "app", deployment)
    make_certificates(folder / "certs", population.names)
    for shard in population.shards:
        site = folder / "certs" / "sites" / shard.name
        _write_data(site / "data.npz", population, shard)
        division = {"augment": settings.world.division.augment}
        table = site_table(deployment, shard.name, "data.npz", division=division, limits=_OWN)
        write_whole(site / "site.toml", tomli_w.dumps(table))
    return deployment


def _write_data(path: Path, population: Population, shard: Shard) -> None:
    """Write the samples of one client into a file, with an array `part` that says what each sample is for."""
    places = [shard.part(part) for part in PARTS]
    index, part = np.concatenate(places), np.repeat(np.arange(len(PARTS)), [len(place) for place in places])
    np.savez(path, x=population.x[index], y=population.y[index], part=part, kind=population.kind)


@dataclass
class LocalFederation:
    """A SuperLink and its sites on this machine, over the files that `prepare` has written."""

    folder: Path

    def __post_init__(self) -> None:
        self.processes = Processes()
        self.sites: dict[str, Process] = {}
        self._port = free_port()

    @property
    def superlink(self) -> str:
        """The address at which the SuperLink listens."""
        return f"127.0.0.1:{self._port}"

    @property
    def state(self) -> Path:
        """The folder of the SuperLink's state."""
        return self.folder / "superlink"

    @property
    def files(self) -> ServerFiles:
        """The SuperLink's keys."""
        return ServerFiles(self.folder / "certs" / "server")

    def __enter__(self) -> "LocalFederation":
        sites = self.folder / "certs" / "sites"
        if not sites.is_dir():
            raise SettingsError(f"{sites}: no such folder; the keys and the data of the sites are missing")
        try:
            self.start_superlink()
            for site in sorted(sites.iterdir()):
                self.start_site(site.name)
        except BaseException:
            self.processes.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink, with the state that it had when it ended."""
        self.superlink_process = start_superlink(self.processes, self.files, self.state, port=self._port)

    def start_site(self, name: str) -> Process:
        """Start the process of a site."""
        settings = self.folder / "certs" / "sites" / name / "site.toml"
        command = [sys.executable, "-m", "coterie", "deploy", "site", str(settings), "--superlink", self.superlink]
        log = self.folder / "logs" / f"site-{name}.log"
        self.sites[name] = self.processes.start(f"site {name}", command, log, flower_environment(self.folder / "flwr"))
        return self.sites[name]

    def run(self, out: Path, watch: Callable[[Record], None]) -> StoredRun:
        """Run the app into a folder, or go on with the run in it."""
        with closing(Control(self.state)) as control:
            return follow(control, control.start(self.folder / "app", {"out": str(out.absolute())}), out, watch, self)


def follow(
    control: Control, run: int, out: Path, watch: Callable[[Record], None], federation: LocalFederation | None = None
) -> StoredRun:
    """Show a run's rounds to `watch` as they are written, until the run ends; returns the stored run.

    It is an error if the run does not finish, or if the SuperLink of a `federation` on this machine ends.
    """
    shown = 0
    while True:
        if federation is not None:
            federation.processes.check()
        try:
            status, details = control.status(run)
        except CoterieError as error:
            raise CoterieError(f"{error}; go on with `coterie deploy resume {out}`") from error
        rounds = read_lines(out / "rounds.jsonl")
        for record in rounds[min(shown, len(rounds)) :]:
            watch(record)
        shown = len(rounds)
        if status == "finished":
            break
        time.sleep(_LOOK)
    if not (out / "summary.json").is_file():
        raise CoterieError(f"{_reason(out) or details}; go on with `coterie deploy resume {out}`")
    return StoredRun.read(out)


def _reason(out: Path) -> str:
    """The last error in a run's log; an empty text if there is none."""
    path = out / "log.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    errors = [line.split(" ERROR ", 1)[1] for line in lines if " ERROR " in line]
    return errors[-1].removeprefix("stopped: ") if errors else ""
