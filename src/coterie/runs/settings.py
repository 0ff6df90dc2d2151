"""Everything that decides a run, from options on a command line, from Python, or from a settings file."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from coterie._version import __version__
from coterie.core.errors import SettingsError, unknown
from coterie.core.fields import known_keywords
from coterie.core.modules import homes_of
from coterie.core.registry import Option, checked, options
from coterie.data.dataset import Dataset
from coterie.data.division import Division
from coterie.data.hugging_face import is_hugging_face
from coterie.data.loading import load
from coterie.data.population import Population, populate
from coterie.data.sources import sources
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits import by_samples
from coterie.data.tables import is_frame
from coterie.engines.simulation import Computing, Simulation
from coterie.methods import methods
from coterie.nets import nets
from coterie.nets.net import Factory
from coterie.runs.options import (
    DEFAULTS,
    TOP,
    import_modules,
    owners,
    routed,
    section_of,
    suitable_split,
    table_of,
)
from coterie.server.federation import Federation
from coterie.server.method import Method
from coterie.server.metrics import metric_named
from coterie.server.scoring import Scoring
from coterie.training.losses import LossFunction, losses

FORMAT = 1
"""The version of settings files and run folders."""

_SECTIONS: dict[str, type] = {"division": Division, "computing": Computing, "scoring": Scoring}


@known_keywords
@dataclass(frozen=True)
class World:
    """The clients of an experiment: data, split, net and how to compute; everything but the method."""

    data: str = "digits"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    split: SplitRule = field(default_factory=lambda: split_rules["dirichlet"]())
    net: str | None = None
    loss: str | None = None
    seed: int = 0
    split_seed: int | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    division: Division = field(default_factory=Division)
    computing: Computing = field(default_factory=Computing)
    labels: tuple[str, ...] = ()
    """The label set that the settings were made with; data with another one is refused."""

    def __post_init__(self) -> None:
        _check_arrivals(self.arrivals)

    @cached_property
    def dataset(self) -> Dataset:
        """The data, read once."""
        data = _loaded(self.data, self.data_options, self._world_seed)
        if self.labels and data.labels != self.labels:
            raise SettingsError(f"{data.name} has the labels {_some(data.labels)}, the settings {_some(self.labels)}")
        return data

    @property
    def _world_seed(self) -> int:
        return self.seed if self.split_seed is None else self.split_seed

    @cached_property
    def population(self) -> Population:
        """The clients with their data."""
        return populate(self.dataset, self.split, self.division, self._world_seed)

    @property
    def net_name(self) -> str:
        """The net that was asked for, or one that suits the data."""
        return self.net or default_net(self.data, self.dataset)

    def federation(self, engine: Simulation | None = None) -> Federation:
        """The clients, ready to run programs; on an engine of this world, if there is one already."""
        _check_arrivals(self.arrivals, len(self.population))
        engine = engine or self.engine()
        checksum = "" if self.data in sources else self.dataset.checksum
        return Federation(engine, self.seed, self.arrivals, self.population.groups, self.table(), checksum)

    def table(self) -> dict[str, Any]:
        """The entries of a settings file that are about the clients."""
        return {
            "format": FORMAT,
            "coterie": __version__,
            "seed": self.seed,
            "split_seed": self.split_seed,
            "net": self.net,
            "loss": self.loss,
            "data": {"name": self.data, **self.data_options, "labels": self.labels or None},
            "split": {"name": self.split.name, **_fields(self.split)},
            "division": _fields(self.division),
            "computing": _fields(self.computing),
            "arrivals": {str(client): arrival for client, arrival in self.arrivals.items()},
        }

    def engine(self, beside: Simulation | None = None) -> Simulation:
        """An engine for the clients. It shares what it can with the engine `beside`, of the same samples and net."""
        return Simulation(self.population, self.net_name, self.computing, beside, self.loss)

    def beside(self, other: "World") -> "World":
        """A copy of this world that takes over the data of another one, where both have the same data."""
        made = replace(self)
        same = (self.data, self.data_options, self.labels) == (other.data, other.data_options, other.labels)
        if same and (self._world_seed == other._world_seed or not self._draws_samples):
            made.__dict__["dataset"] = other.dataset
        return made

    @property
    def _draws_samples(self) -> bool:
        """Whether the seed decides which samples the data set has."""
        if self.data not in sources:
            return True
        return "limit" in self.data_options or "hold_out" in self.data_options or hasattr(sources[self.data], "seed")

    def reseeded(self, seed: int) -> "World":
        """This world with another seed; its labels are dropped, as the seed may decide which classes are picked."""
        return self if seed == self.seed else replace(self, seed=seed, labels=())

    def resolved(self) -> "World":
        """This world with its net and its labels named, and with full paths to its files."""
        places = {name: _full(value) for name, value in self.data_options.items() if name in ("data_dir", "schema")}
        paths = [option.name for option in options(type(self.split)) if Path in get_args(option.type)]
        named = {name: getattr(self.split, name) for name in paths}
        files = {name: _full(value) for name, value in named.items() if isinstance(value, str | Path) and str(value)}
        return replace(
            self,
            data=self.data if self.data in sources else _full(self.data),
            data_options={**self.data_options, **places},
            split=replace(self.split, **files),  # type: ignore[arg-type]  # only options that take paths
            net=self.net_name,
            labels=self.dataset.labels,
        )


@known_keywords
@dataclass(frozen=True)
class Settings:
    """A method in a world, and what is measured.

    >>> settings, notes = coterie.Settings.of({"clients": 10, "alpha": 0.3, "rounds": 5}, "fedavg")
    >>> settings.world.split.name, settings.method.rounds
    ('dirichlet', 5)
    >>> settings.table()["method"]["rate"]  # as a settings file has it
    0.1
    """

    method: Method
    world: World = field(default_factory=World)
    scoring: Scoring = field(default_factory=Scoring)

    def __post_init__(self) -> None:
        for client, arrival in self.world.arrivals.items():
            if arrival > self.method.rounds:
                raise SettingsError(
                    f"arrivals: client {client} comes in round {arrival}, after the last of {self.method.rounds}"
                )

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any],
        method: str | None = None,
        base: Mapping[str, Any] | None = None,
        others: Iterable[str] = (),
    ) -> "tuple[Settings, list[str]]":
        """Settings from options by name, as `table_of` understands them, and what a user should know about them."""
        return cls.complete(*table_of(given, method, base, others))

    @classmethod
    def complete(cls, content: Mapping[str, Any], notes: Iterable[str] = ()) -> "tuple[Settings, list[str]]":
        """Settings from a table. If the method needs samples at the server, they are set, and a note says so."""
        made = cls.from_table(content)
        wanted = made.method.server_samples
        if not wanted or "server_samples" in section_of(content, "division"):
            return made, list(notes)
        told = f"the server holds {wanted} samples, which {made.method.name} needs: server_samples"
        return made.with_server_samples(wanted), [*notes, told]

    def with_server_samples(self, count: int) -> "Settings":
        """These settings, with `count` samples that the server holds."""
        division = replace(self.world.division, server_samples=count)
        return replace(self, world=replace(self.world, division=division))

    def resolved(self) -> "Settings":
        """These settings with everything spelled out: read from a file, they give the same run in any folder."""
        return replace(self, world=self.world.resolved())

    @property
    def modules(self) -> tuple[str, ...]:
        """The users' modules that its method, split, data set, net, loss and metrics come from, if not ours."""
        data, net, loss = self.world.data, self.world.net or "", self.world.loss or ""
        named = [*([sources[data]] if data in sources else []), *([nets[net]] if net in nets else [])]
        named += [losses[loss].function] if loss in losses else []
        named += [metric_named(name).function for name in self.scoring.metrics]
        return homes_of([type(self.method), type(self.world.split), *named])

    def table(self) -> dict[str, Any]:
        """Everything, as a settings file has it. What is not set is left out."""
        world = self.world.table()
        own = {
            "modules": self.modules or None,
            "method": {"name": self.method.name, **_fields(self.method)},
            "scoring": _fields(self.scoring),
        }
        order = "format coterie seed split_seed modules net loss data split method division scoring computing arrivals"
        return as_toml({name: (world | own)[name] for name in order.split()})

    @classmethod
    def from_table(cls, content: Mapping[str, Any]) -> "Settings":
        """Settings from a settings file's content."""
        if "task" in content:
            raise SettingsError("these are the settings of a run over real sites: go on with `coterie deploy resume`")
        known = {"format", "coterie", "modules", "net", "loss", "seed", "split_seed", "arrivals", *DEFAULTS, *_SECTIONS}
        for name in content:
            if name not in known:
                raise unknown("entry of the settings", name, known)
        check_format(content)
        import_modules(content)
        parts = {name: section_of(content, name) for name in (*DEFAULTS, "arrivals", *_SECTIONS)}
        data, split, method = (parts[name].pop("name", default) for name, default in DEFAULTS.items())
        if method is None:
            raise SettingsError("the settings name no method: write [method] with name = ... in it")
        labels = checked("data.labels", parts["data"].pop("labels", ()), tuple[str, ...])
        made = {name: made_of(kind, parts[name]) for name, kind in _SECTIONS.items()}
        world = World(
            data=data,
            data_options=_checked_all(parts["data"], owners(data=data)["data"], "[data]"),
            split=split_rules.make(split, **parts["split"]),
            net=checked("net", content.get("net"), str | None),
            loss=checked("loss", content.get("loss"), str | None),
            seed=checked("seed", content.get("seed", 0), int),
            split_seed=checked("split_seed", content.get("split_seed"), int | None),
            arrivals=dict(_arrival(client, arrival) for client, arrival in parts["arrivals"].items()),
            division=made["division"],
            computing=made["computing"],
            labels=labels,
        )
        return cls(methods.make(method, **parts["method"]), world, made["scoring"])

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Settings from a file."""
        return cls.from_table(read_table(path))


def read_table(path: Path) -> dict[str, Any]:
    """The content of a settings file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a TOML file ({error})") from error


def check_format(content: Mapping[str, Any]) -> None:
    """Refuse settings of another version of the format."""
    if content.get("format", FORMAT) != FORMAT:
        raise SettingsError(f"format={content['format']}: this version of Coterie reads format {FORMAT}")


def default_net(data: str, dataset: Dataset) -> str:
    """A net that suits the data: the one that a known data set names, or one for the shape of the user's own data."""
    if data in sources:
        return sources[data].net
    if dataset.kind != "image":
        return {"series": "cnn-1d", "tokens": "embedding-bag"}.get(dataset.kind, "mlp")
    return "lenet5" if min(dataset.shape[1:]) >= 16 else "cnn"


def simulate(
    dataset: Any = "digits",
    split: str | SplitRule | Split | Sequence[Any] | Mapping[str, Any] | None = None,
    net: str | Factory | None = None,
    *,
    loss: str | LossFunction | None = None,
    seed: int = 0,
    split_seed: int | None = None,
    arrivals: Mapping[int, int] | None = None,
    **given: Any,
) -> Federation:
    """A simulated federation: a data set divided among clients, and a net for them to train.

    Data set, split and net are names or objects; data may also be a path, or whatever `coterie.load` takes, such as a
    data frame: `simulate(frame, target="outcome", client="hospital")`. A split may also be the samples of each client,
    as a list of lists or by the clients' names: `{"north": [0, 1], "south": [2, 3, 4]}`. Without one, a table that
    tells clients apart is split by these, data without classes by `iid`, other data by `dirichlet`. A `loss` that
    replaces the task's own is a name or a function, too (see `coterie.loss`). Other options are those of the split
    (`clients=50`, `alpha=0.1`), of the data set (`data_dir`, `limit`), of the clients' data (`test="labels"`, see
    `Division`) and of the computation (`device="cuda"`, see `Computing`).

    >>> fed = coterie.simulate("digits", split="label-skew", classes=2, clients=5, net="mlp")
    >>> len(fed.names)
    5
    """
    seed, split_seed = checked("seed", seed, int), checked("split_seed", split_seed, int | None)
    if isinstance(dataset, Path):
        dataset = str(dataset)
    own = isinstance(dataset, str) or is_frame(dataset) or is_hugging_face(dataset)
    if split is None:
        path = dataset if isinstance(dataset, str) else ""
        task = dataset.task if isinstance(dataset, Dataset) else given.get("task")
        split = suitable_split(path, given.get("client") if own else None, task)
        if isinstance(dataset, Dataset) and dataset.schema is not None and dataset.users is not None:
            split = "natural"
    names = {part: name for part, name in (("data", dataset), ("split", split)) if isinstance(name, str)}
    if own:
        names.setdefault("data", "")
    known = {part: found for part, found in owners(**names).items() if part != "scoring"}
    parts, _ = routed(given, known, apart=("dataset", *TOP[1:]))
    world_seed = seed if split_seed is None else split_seed
    data = _loaded(dataset, parts["data"], world_seed) if own else dataset
    if isinstance(split, str):
        rule: SplitRule | Split = split_rules.make(split, **parts["split"])
    else:
        rule = split if isinstance(split, SplitRule | Split) else by_samples(split)
    division, computing = Division(**parts["division"]), Computing(**parts["computing"])
    population = populate(data, rule, division, world_seed)
    _check_arrivals(arrivals or {}, len(population))
    engine = Simulation(population, net or default_net(names.get("data", ""), data), computing, loss=loss)
    # What objects were made of, a settings file cannot say: of these it has the name alone.
    world = World(
        names.get("data") or str(data.name),
        parts.get("data", {}),
        rule if isinstance(rule, SplitRule) else split_rules["given"](),
        engine.net.name,
        engine.net.task.own_loss or None,
        *(seed, split_seed, arrivals or {}, division, computing, data.labels),
    )
    checksum = "" if isinstance(dataset, str) and dataset in sources else data.checksum
    return Federation(engine, seed, arrivals, population.groups, world.table(), checksum)


def _loaded(data: Any, given: Mapping[str, Any], seed: int) -> Dataset:
    more = dict(given)
    return load(data, more.pop("data_dir", None), seed=seed, **more)


def _arrival(client: str, arrival: Any) -> tuple[int, int]:
    """An entry of the settings' arrivals."""
    if not client.strip().isdecimal():
        raise SettingsError(f"arrivals: {client!r} is not the number of a client, counted from 0")
    return int(client), checked(f"arrivals.{client}", arrival, int)


def _check_arrivals(arrivals: Mapping[int, int], clients: int | None = None) -> None:
    """Refuse rounds that do not exist and, if the number of clients is known, a first round with nobody there."""
    checked("arrivals", arrivals, Mapping)
    for client, arrival in arrivals.items():
        if checked(f"arrivals[{client!r}]", arrival, int) < 1:
            raise SettingsError(f"arrivals: client {client} in round {arrival}; rounds are counted from 1")
    if clients is not None and sum(arrival > 1 for arrival in arrivals.values()) >= clients:
        raise SettingsError("arrivals: nobody is there in the first round; let a client arrive in round 1")


def _fields(thing: Any) -> dict[str, Any]:
    return {item.name: getattr(thing, item.name) for item in dataclasses.fields(thing)}


def made_of(kind: type, values: Mapping[str, Any], section: str = "") -> Any:
    """An instance of a class from the content of its section, which is called like the class unless it is named."""
    known = {option.name: option for option in options(kind)}
    return kind(**_checked_all(values, known, f"[{section or kind.__name__.lower()}]"))


def _checked_all(values: Mapping[str, Any], known: Mapping[str, Option], where: str) -> dict[str, Any]:
    for name in values:
        if name not in known:
            raise unknown(f"entry of {where}", name, known)
    return {name: checked(name, value, known[name].type) for name, value in values.items()}


def _full(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def _some(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:10]) + (f" ... ({len(labels)} in all)" if len(labels) > 10 else "")


def as_toml(content: Mapping[str, Any]) -> dict[str, Any]:
    """A table in the types of TOML. Entries that are None are left out, as TOML cannot express them."""
    kept = {}
    for name, value in content.items():
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        elif isinstance(value, Mapping):
            value = as_toml(value) or None
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        if value is not None:
            kept[name] = value
    return kept
