"""A site's settings and data: what its owner decides in `site.toml`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie.clients.guard import Limits
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.core.modules import own_module, own_thing
from coterie.core.registry import checked, options
from coterie.data.dataset import Dataset
from coterie.data.division import Division
from coterie.data.loading import load
from coterie.data.own import NPZ, kind_in
from coterie.data.population import Pool, Population, Scales, Shard, populate
from coterie.data.preparation import Preparation
from coterie.data.readers import read_npz
from coterie.data.schema import Schema
from coterie.data.split import Split
from coterie.data.tables import from_table
from coterie.data.tasks import task_named
from coterie.engines.chunk import ClientHost
from coterie.engines.flower.leaving import Leaving
from coterie.engines.flower.site import RemoteSite, Rules
from coterie.engines.simulation import Computing
from coterie.methods import methods
from coterie.nets import make_net
from coterie.runs.options import section_of
from coterie.runs.settings import check_format, made_of, read_table
from coterie.server.method import Method
from coterie.training.forms import form_named
from coterie.training.losses import task_with

ALLOWED = ("coterie.*",)
"""Programs that run unless the site says otherwise: those that come with Coterie."""

MODEL = "model.safetensors"
"""The file of a site's own model, if the site does not say another."""

PARTS = ("train", "validation", "test")
"""The parts of a site's data. An array `part` in its .npz file has 0, 1 or 2 for them."""

Places = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Which samples are for training, for validation and for testing."""


@dataclass(frozen=True)
class SiteSettings:
    """What a site decides for itself, in its `site.toml`."""

    name: str
    """What the site is called, here and in the list of pinned identities."""

    labels: tuple[str, ...]
    """The label set of the task, the same at every site."""

    net: str
    """The net: one of ours by name, or `package.module:function`."""

    data: str
    """A table, an .npz file, a folder of images per class, or `package.module:function` that gives a `coterie.Dataset`.
    An array `part` in an .npz file (0 train, 1 validation, 2 test) replaces the division."""

    state: Path
    """Folder for what the client keeps between rounds."""

    seed: int = 0
    """Seed of the division into training, validation and test data."""

    size: int | None = None
    """Side in pixels to which the images of a folder are scaled."""

    shift: tuple[float, ...] = ()
    """What is subtracted from inputs, per channel; all sites must scale alike. By default this site's own mean."""

    scale: tuple[float, ...] = ()
    """What inputs are divided by then, per channel. By default this site's own deviation."""

    schema: Path | None = None
    """What the columns of the site's table are, the same at every site (see `coterie schema`). Then `data` is a CSV or
    Parquet file; how to fill in and to scale is what the server says, from sums and counts that all sites send."""

    vocabulary: int = 0
    """How many ids there are, if inputs are tokens."""

    task: str = "classification"
    """What is predicted, the same at every site; a schema says it itself."""

    loss: str = ""
    """What training lowers, the same at every site: a loss by name, or `package.module:function`; by default the
    task's own."""

    target_shift: tuple[float, ...] = ()
    """What is subtracted from numbers that are predicted, the same at every site. By default this site's own mean."""

    target_scale: tuple[float, ...] = ()
    """What they are divided by then. By default this site's own deviation."""

    model: Path | None = None
    """The file into which this site's own model goes at the end of a run; by default `model.safetensors` beside the
    folder `state`. `coterie predict` reads it."""

    method: Method | None = None
    """The method that the site takes part in, with its settings: `name`, `rounds` and all others under [method]. A
    server can ask for what this method asks for, set as it is here, and for nothing else."""

    allow: tuple[str, ...] = ALLOWED
    """Programs that the server may ask for, with `*` as a wildcard; of these, the method's own."""

    modules: tuple[str, ...] = ()
    """Modules to import at the start, so that their programs are known."""

    superlink: str = "127.0.0.1:8000"
    """Address of the federation's SuperLink."""

    ca: Path | None = None
    """Certificate of the federation's authority, with which the SuperLink must identify itself."""

    key: Path | None = None
    """This site's private node key, with which it identifies itself to the SuperLink."""

    identity: Path | None = None
    """This site's private identity for letters, made by `coterie deploy certs`."""

    peers: Path | None = None
    """The pinned public identities of all sites."""

    division: Division = field(default_factory=Division)
    """How the data becomes training, validation and test data."""

    computing: Computing = field(default_factory=Computing)
    """Where and how the site computes."""

    limits: Limits = field(default_factory=Limits)
    """Bounds on what the site does for others, whatever a server asks."""

    leaving: Leaving = field(default_factory=Leaving)
    """What is done to the site's answers before they leave: clipping and noise."""

    @property
    def audit(self) -> Path:
        """The file that says what the site was asked and what left it."""
        return self.state / "audit.jsonl"

    @classmethod
    def read(cls, path: Path) -> "SiteSettings":
        """The settings in a file; paths in it are relative to the file's folder."""
        table = read_table(path)
        check_format(table)
        known = {option.name: option.type for option in options(cast(type, cls))}
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name == "format":
                continue
            if name not in known:
                raise SettingsError(f"{path}: unknown entry {name!r}; known are {', '.join(known)}")
            if name == "method":
                values[name] = section_of(table, name)
            elif name in ("division", "computing", "limits", "leaving"):
                values[name] = made_of(known[name], section_of(table, name))
            elif name in ("schema", "state", "model", "ca", "key", "identity", "peers"):
                values[name] = path.parent / checked(name, value, str)
            else:
                values[name] = checked(name, value, known[name])
        missing = [name for name in ("name", "labels", "net", "data", "state") if name not in values]
        if missing:
            raise SettingsError(f"{path}: missing {', '.join(missing)}")
        if ":" not in values["data"]:
            values["data"] = str(path.parent / values["data"])
        if "schema" in values and ("shift" in values or "scale" in values):
            raise SettingsError(f"{path}: with a schema the server says how to scale; leave out shift and scale")
        if "method" in values:
            values["method"] = cls._method(path, values["method"], values.get("modules", ()))
        return cls(**values)

    @staticmethod
    def _method(path: Path, table: dict[str, Any], modules: Sequence[str]) -> Method:
        """The method that a site takes part in."""
        if "name" not in table:
            raise SettingsError(f"{path}: [method] does not say its name")
        for module in modules:
            own_module(module)
        made = methods.make(table.pop("name"), **table)
        if made.reads_test_data:
            raise SettingsError(f"{path}: {made.name} reads test data with these settings: no site allows that")
        return made

    def open(self) -> RemoteSite:
        """The site with its data and its net in memory, ready to answer."""
        for module in self.modules:
            own_module(module)
        device, dtype = self.computing.find_device(), self.computing.dtype
        population = self.population()
        if not len(population.shards[0].train):
            raise DataError(f"site {self.name}: no training samples in {self.data}")
        self._check_bounds(len(population.shards[0].train))
        task = task_with(population.task, self.loss, population.classes, device)
        net = make_net(self.net, population.shape, population.classes, device, dtype, task, population.vocabulary)
        form = form_named("loop", half=self.computing.precision == "bf16")

        def host(shown: Population) -> ClientHost:
            pool, preparation = Pool.of(shown, device, dtype), Preparation.of(shown)
            return ClientHost(net, pool, shown.shards, shown.server.test, form, preparation)

        def host_with(scales: Scales) -> ClientHost:
            if not len(scales.shift) == len(scales.scale) == len(scales.filling) == population.shape[0]:
                raise CoterieError(f"scales of {len(scales.shift)} inputs, but there are {population.shape[0]}")
            if min((*scales.scale, *scales.target_scale)) <= 0:
                raise CoterieError("scales: above 0")
            return host(population.scaled(scales))

        rules = Rules(
            self.name,
            self.labels,
            self.state,
            self.allow,
            shift=self.shift,
            scale=self.scale,
            target_shift=self.target_shift,
            target_scale=self.target_scale,
            precision=self.computing.precision,
            identity=self.identity,
            peers=self.peers,
            ca=self.ca,
            model=self.model or self.state.parent / MODEL,
            limits=self.limits,
            method=self.method,
            audit=self.audit,
            leaving=self.leaving,
        )
        return RemoteSite(rules, host(population), None if self.schema is None else host_with)

    def _check_bounds(self, samples: int) -> None:
        """Refuse a method that this site's own bounds would keep it from, before any server asks for it."""
        method, limits = self.method, self.limits
        if method is None:
            return
        for name, has, wrong, bound in (
            ("rounds", method.rounds, method.rounds > limits.rounds, f"rounds={limits.rounds}"),
            ("steps", method.steps, (method.steps or 0) > limits.steps, f"steps={limits.steps}"),
            ("batch", method.batch, 0 < method.batch < min(limits.batch, samples), f"batch={limits.batch}"),
            ("training samples", samples, samples < limits.samples, f"samples={limits.samples}"),
        ):
            if wrong:
                raise SettingsError(f"site {self.name}: {has} {name}, outside of its [limits] {bound}: change either")

    def population(self) -> Population:
        """This site's data as a population of one client, with the task's label set; a table is not scaled yet."""
        return scaled(self._divided(), self.shift, self.scale, self.target_shift, self.target_scale)

    def _divided(self) -> Population:
        data, given = load_own(self.data, self.labels, self.size, self.vocabulary, self.schema, self.task)
        everything = Split((np.arange(len(data)),), names=(self.name,))
        population = populate(data, everything, self.division, self.seed, fit=self.schema is None)
        return population if given is None else replace(population, shards=(Shard(self.name, *given),))


def load_own(
    data: str,
    labels: tuple[str, ...],
    size: int | None = None,
    vocabulary: int = 0,
    schema: Path | None = None,
    task: str = "classification",
) -> tuple[Dataset, Places | None]:
    """The data of a site or a server with the task's labels, from an .npz file, a folder of images or a function.

    If the file has an array `part`, which says what each sample is for, then also the places of these samples.
    """
    if ":" in data:
        loaded = own_thing("data", data)()
        if not isinstance(loaded, Dataset):
            raise SettingsError(f"data={data}: gives {type(loaded).__name__}, not a coterie.Dataset")
        if schema is not None and loaded.schema != Schema.read(schema):
            raise SettingsError(f"data={data}: gives no table with the schema in {schema}; read it with schema=...")
        if schema is not None:
            return loaded, None
        return relabelled(loaded, labels, vocabulary, task), None
    if schema is not None:
        table = from_table(data, schema=schema)
        if table.labels != labels:
            raise SettingsError(f"{schema}: labels {', '.join(table.labels)}, but the settings say {', '.join(labels)}")
        return table, None
    path = Path(data)
    if path.suffix.lower() == ".npz" and path.is_file():
        arrays = read_npz(path, ("x", "y"), ("part", *NPZ))
        if "part" in arrays:
            return _parted(path, arrays, labels, vocabulary, task)
    told: dict[str, Any] = {} if size is None else {"size": size}
    if not task_named(task).one_class:  # numbers that look like classes, as the few of one site may, are none
        told["task"] = task
    return relabelled(load(data, **told), labels, vocabulary, task), None


def _parted(
    path: Path, arrays: Mapping[str, np.ndarray], labels: tuple[str, ...], vocabulary: int, task: str
) -> tuple[Dataset, Places]:
    """The data of a file that has an array `part`."""
    names = tuple(map(str, arrays.get("labels", ())))
    first = "classification" if task_named(task).one_class else task  # a site may lack one of two classes
    data = Dataset(arrays["x"], arrays["y"], labels=names, name=path.stem, kind=kind_in(arrays), task=first)
    data = relabelled(data, labels, vocabulary, task)
    part = arrays["part"].reshape(-1)
    if len(part) != len(data) or not np.isin(part, range(len(PARTS))).all():
        raise DataError(f"{path}: part must say 0, 1 or 2 for each of {len(data)} samples")
    train, validation, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
    return data, (train, validation, test)


def relabelled(data: Dataset, labels: tuple[str, ...], vocabulary: int = 0, task: str = "classification") -> Dataset:
    """The data with the task's labels and ids; a label or an id that the task does not have is an error."""
    test = None if data.test is None else relabelled(data.test, labels, vocabulary, task)
    if not task_named(task).one_class:
        return replace(data, labels=labels, test=test, vocabulary=vocabulary, task=task)
    # Labels without names are places in the task's label set; names are looked up in it.
    numbered = data.labels == tuple(map(str, range(data.classes)))
    y = data.y if numbered else np.asarray(data.labels)[data.y]
    return replace(data, y=y, labels=labels, test=test, vocabulary=vocabulary, task=task)


def scaled(
    population: Population,
    shift: Sequence[float],
    scale: Sequence[float],
    target_shift: Sequence[float] = (),
    target_scale: Sequence[float] = (),
) -> Population:
    """The population with this shift and scale of inputs and of targets, where one is given, in place of its own."""
    given = {"shift": shift, "scale": scale, "target_shift": target_shift, "target_scale": target_scale}
    made: dict[str, Any] = {}
    for name, numbers in given.items():
        own = getattr(population, name)
        if len(numbers) not in (0, len(own)):
            parts = "targets" if name.startswith("target") else "channels"
            raise SettingsError(f"{name}: {len(numbers)} numbers for {len(own)} {parts}")
        if name.endswith("scale") and any(factor <= 0 for factor in numbers):
            raise SettingsError(f"{name}={list(numbers)}: above 0")
        made[name] = np.array(numbers, dtype=float) if len(numbers) else own
    return replace(population, **made)
