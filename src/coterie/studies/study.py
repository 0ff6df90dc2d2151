"""Studies: runs that stand somewhere in a table or a figure, described in one file.

A study has axes (data, setting, method ...), and a run for every combination of their entries and every seed. Tables
and figures say what is to be made of the runs, and which numbers a paper has printed in the same places.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from coterie.core.errors import CoterieError, SettingsError, unknown
from coterie.core.registry import checked, options
from coterie.methods import methods
from coterie.runs.identity import deciding, decisive
from coterie.runs.options import GENERAL
from coterie.runs.settings import Settings, World, as_toml
from coterie.server.metrics import known_facts, metric_in
from coterie.studies.extending import extended
from coterie.studies.measures import Measure, measures
from coterie.studies.patterns import fitting, matches
from coterie.studies.statistics import statistic

Place = tuple[str, ...]
"""Where a run stands: the labels of the axes, in their order."""

COLUMNS = (
    *("value", "statistic", "mean", "std", "seeds", "published_mean", "published_std"),
    *("difference", "resolution", "mark", "p", "p_corrected", "p_wilcoxon", "notes", "runs"),
)
"""What a CSV file of tables says of every number, besides the table and the axes. No axis can have such a name."""

OF_PAPERS = ("published_mean", "published_std", "difference", "mark")
"""The columns that compare a number with a published one."""


@dataclass(frozen=True)
class TableSpec:
    """A table of a study."""

    title: str
    values: Mapping[str, str]
    """What is shown: labels, and statistics of a run (`coterie.studies.statistics`). Several are an axis, `value`."""
    rows: tuple[str, ...] = ()
    """Axes whose entries are rows, outermost first."""
    columns: tuple[str, ...] = ()
    """Axes whose entries are columns, outermost first."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the entries that are shown, counted and compared, by axis; of an axis that is not named, all."""
    percent: bool = False
    """Whether values are shares, shown as percentages."""
    better: Literal["higher", "lower", ""] = ""
    """What is best, and bold."""
    reference: Mapping[str, str] = field(default_factory=dict)
    """The entry of an axis with which the others are compared by paired tests."""
    digits: int = 1
    """Decimals."""
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the paper has printed: mean, and deviation if there is one, by place (`CIFAR10/IID-B/FedAvg`)."""
    incomparable: Mapping[str, str] = field(default_factory=dict)
    """Patterns of places, and why the paper's number is not comparable with ours."""
    scaled: Mapping[str, str] = field(default_factory=dict)
    """Patterns of places, and how our runs are smaller than the paper's."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a study."""

    title: str
    kind: str
    """What it shows; see `coterie.report.figures`."""
    by: tuple[str, ...] = ()
    """Axes of which every combination of entries gets a figure of its own."""
    panels: tuple[str, ...] = ()
    """Axes of which every combination of entries is a panel of the figure: one, in reading order, or two, rows and
    columns."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the entries that are shown, by axis."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What this kind of figure can be told."""


@dataclass(frozen=True)
class Exemption:
    """Cells that have other options than their axes say, or are left out."""

    where: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: str | None = None


@dataclass(frozen=True)
class Measuring:
    """A measure in a world, as `Settings` are a method in a world."""

    measure: Measure
    world: World

    def table(self) -> dict[str, Any]:
        """Everything that decides the outcome, as a settings file has it."""
        content = Settings(methods.make("local"), self.world).table()
        for name in ("method", "scoring"):
            del content[name]
        return content | as_toml({"measure": {"name": self.measure.name, **vars(self.measure)}})


@dataclass(frozen=True)
class StudyTask:
    """One run of a study: what it is, and what it is called."""

    settings: Settings | Measuring

    @property
    def what(self) -> str:
        """The method, or the measure."""
        settings = self.settings
        return settings.method.name if isinstance(settings, Settings) else settings.measure.name

    @cached_property
    def name(self) -> str:
        """The name of its folder: what it is, and a digest of everything that decides its outcome."""
        digest = sha256(json.dumps(self.decisive(), sort_keys=True).encode()).hexdigest()[:12]
        world = self.settings.world
        return f"{self.what}-{Path(world.data).stem}-{world.split.name}-seed{world.seed}-{digest}"

    def decisive(self) -> dict[str, Any]:
        """The options that decide the outcome and are not the defaults: one that is added later changes no name."""
        return decisive(self.settings.table())

    def agrees(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored run has the same settings, as far as they decide the outcome.

        Runs with the same name do, unless a default has changed since the stored one was run.
        """
        mine, its = deciding(self.settings.table()), deciding(stored)
        # A run stores its net, and data and files with full paths, which are others on another machine.
        files = {f"split.{one.name}" for one in options(type(self.settings.world.split)) if Path in get_args(one.type)}
        for run in (mine, its):
            run |= {key: Path(run[key]).name for key in files if isinstance(run.get(key), str)}
        return all(its.get(key) == value for key, value in mine.items() if key.partition(".")[0] not in ("data", "net"))


@dataclass(frozen=True)
class Cell:
    """A place in a study, with the options of its runs."""

    place: Mapping[str, str]
    """The label on each axis."""
    options: Mapping[str, Any]
    skip: str | None = None
    """Why it is left out, if it is."""

    @property
    def labels(self) -> Place:
        """The labels, in the order of the axes."""
        return tuple(self.place.values())

    @property
    def title(self) -> str:
        """The place in one line."""
        return "/".join(self.labels)

    def task(self, seed: int, given: Mapping[str, Any] | None = None, others: Iterable[str] = ()) -> StudyTask:
        """The run with this seed; options that are `given` replace those of the study.

        `others` are the study's other methods: an option that only they have is not for this one.
        """
        told = {**self.options, **(given or {})}
        told["seed"] = told.get("seed", 0) + seed
        method, measure = told.pop("method", None), told.pop("measure", None)
        if measure is None:
            return StudyTask(Settings.of(told, method, others=others)[0])
        own = {option.name for option in measures.options(measure)}
        rest = {name: value for name, value in told.items() if name not in own}
        world = Settings.of(rest, "local", others=others)[0].world
        return StudyTask(Measuring(measures.make(measure, **{k: told[k] for k in told if k in own}), world))


@dataclass(frozen=True)
class Study:
    """What a study file says."""

    name: str
    title: str
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    place: str = ""
    """Where in the paper it stands."""
    about: str = ""
    seeds: int = 1
    cost: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where choices come from that the paper leaves open."""
    own: tuple[str, ...] = ()
    """Which entries of the axis `method` are the paper's own, whose lead over all others is counted. If nothing is
    said, they are those whose methods are named like the paper."""
    variants: tuple[str, ...] = ()
    """Which are neither its own nor others to be ahead of, such as another reading of the paper."""
    modules: tuple[str, ...] = ()
    """Python modules that are imported first: they register own methods, splits or measures. They may lie beside the
    study's file."""
    exceptions: tuple[Exemption, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    figures: tuple[FigureSpec, ...] = ()

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> "Study":
        """A study from its file, with everything in it checked."""
        content = extended(path)
        with _inside(str(path)):
            return cls.of(content, name or path.stem)

    @classmethod
    def of(cls, content: Mapping[str, Any], name: str) -> "Study":
        """A study from the content of its file."""
        parts = dict(content)
        lists = {"exceptions": Exemption, "tables": TableSpec, "figures": FigureSpec}
        made = {
            part: tuple(
                _made(kind, one, _called(part, number, one.get("title")))
                for number, one in enumerate(_list(parts, part))
            )
            for part, kind in lists.items()
        }
        study = _made(cls, {"name": name, **parts, **made}, "the study")
        study.check()
        return study

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of all cells."""
        return tuple(dict.fromkeys(cell.options["method"] for cell in self.cells() if "method" in cell.options))

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets of all cells."""
        return tuple(dict.fromkeys(str(cell.options.get("data", "digits")) for cell in self.cells() if not cell.skip))

    def cells(self, only: str | None = None) -> list[Cell]:
        """All cells, or those that fit `axis=pattern,axis=pattern`; patterns of the same axis are alternatives."""
        wanted = self._wanted(only)
        known = {axis: {label.lower() for label in entries} for axis, entries in self.axes.items()}
        found = []
        for labels in product(*self.axes.values()):
            place = dict(zip(self.axes, labels, strict=True))
            given: dict[str, Any] = dict(self.options)
            for axis, label in place.items():
                given |= self.axes[axis][label]
            skip = None
            for exception in self.exceptions:
                if matches(place, exception.where):
                    given |= exception.options
                    skip = skip or exception.skip
            # A method goes by its own name, too, unless that is what one of several entries is called.
            also = {"method": str(given.get("method", given.get("measure")))}
            if all(
                any(matches(place, {axis: one}, None if one.lower() in known[axis] else also) for one in some)
                for axis, some in wanted.items()
            ):
                found.append(Cell(place, given, skip))
        if not found:
            raise self._nothing_fits(only, wanted)
        return found

    def _wanted(self, only: str | None) -> dict[str, list[str]]:
        """The patterns of each axis. Labels may have commas: one separates where an axis and `=` follow."""
        wanted: dict[str, list[str]] = {}
        axes = "|".join(map(re.escape, self.axes))
        for pair in re.split(rf",\s*(?=(?:{axes})\s*=)", only) if only else ():
            axis, equals, pattern = (part.strip() for part in pair.partition("="))
            if not equals:
                raise SettingsError(f"only={only!r}: write axis=pattern,axis=pattern, e.g. method=fedavg,setting=*")
            if axis not in self.axes:
                raise unknown(f"axis of {self.name}", axis, self.axes)
            wanted.setdefault(axis, []).append(pattern)
        return wanted

    def _nothing_fits(self, only: str | None, wanted: Mapping[str, Iterable[str]]) -> SettingsError:
        """The error for patterns that no cell fits; what follows a comma in one may have been meant as an axis."""
        for pattern in (pattern for some in wanted.values() for pattern in some):
            meant = re.search(r",\s*([^,=]+?)\s*=", pattern)
            if meant:
                return unknown(f"axis of {self.name}", meant[1], self.axes)
        entries = "; ".join(f"{axis}: {', '.join(entries)}" for axis, entries in self.axes.items())
        return SettingsError(f"only={only!r}: no cell of {self.name} fits; there are {entries}")

    def scaled(self, given: Mapping[str, Any]) -> "Study":
        """This study, whose tables say that runs were made with the given options instead of its own."""
        if not given:
            return self
        how = "with " + ", ".join(f"{name}={value}" for name, value in given.items())
        return replace(self, tables=tuple(replace(table, scaled={"*": how, **table.scaled}) for table in self.tables))

    def check(self) -> None:
        """Refuse a study with something in it that cannot be run or shown, before anything is run."""
        if self.seeds < 1:
            raise SettingsError(f"seeds={self.seeds}: at least 1")
        if "method" not in self.axes:
            raise SettingsError("axes: one of them must be called method, and name methods or measures")
        for axis, entries in self.axes.items():
            if axis in ("table", *COLUMNS):
                raise SettingsError(f"axes.{axis}: {axis} is something else in every table; choose another name")
            if not entries:
                raise SettingsError(f"axes.{axis}: no entries; write [axes.{axis}.LABEL] with options below it")
        for label in (*self.own, *self.variants):
            if label not in self.axes["method"]:
                raise unknown("entry of axes.method in own or variants", label, self.axes["method"])
        self._check_each("exceptions", lambda exception: self._check_where(exception.where))
        self._check_cells()
        self._check_each("tables", self._check_table)
        self._check_each("figures", self._check_figure)

    def _check_each(self, part: str, check: Callable[[Any], None]) -> None:
        for number, one in enumerate(getattr(self, part)):
            with _inside(_called(part, number, getattr(one, "title", None))):
                check(one)

    def _check_cells(self) -> None:
        cells = self.cells()
        for cell in cells:
            with _inside(cell.title):
                for name, kind in _KINDS.items():
                    if cell.options.get(name) is not None:
                        checked(name, cell.options[name], kind)
                if ("method" in cell.options) == ("measure" in cell.options):
                    raise SettingsError("name a method or a measure")
                if cell.options.get("method", "local") not in methods:
                    raise unknown("method", cell.options["method"], methods)
        others = self.methods
        for cell in cells:
            if not cell.skip:
                with _inside(cell.title):
                    cell.task(0, others=others)

    def _check_table(self, table: TableSpec) -> None:
        if not table.values:
            raise SettingsError("no values; write [tables.values] with label = statistic")
        for label, text in table.values.items():
            with _inside(f"values.{label}"):
                self._check_statistic(text)
                _check_metric(table, text)
        if not 0 <= table.digits <= 9:
            raise SettingsError(f"digits={table.digits}: from 0 to 9")
        shown = (*table.rows, *table.columns)
        self._check_axes(shown, more=("value",))
        self._check_where(table.where)
        entries = fitting(self.axes, table.where)
        for axis in (*self.axes, "value"):
            dispensable = axis == "value" or len(entries[axis]) == 1
            if shown.count(axis) > 1 or not (axis in shown or dispensable):
                raise SettingsError(f"{axis} must be among its rows or columns, once")
        for axis, label in table.reference.items():
            self._check_axes([axis])
            if label not in entries[axis]:
                raise unknown(f"{axis} in reference", label, entries[axis])
        self._check_places(table)

    def _check_statistic(self, text: str) -> None:
        other = statistic(text).other
        if other is not None and other not in self.axes["method"]:
            raise unknown(f"method in the statistic {text!r}", other, self.axes["method"])

    def _check_places(self, table: TableSpec) -> None:
        """Refuse numbers and remarks of places that are not in a table."""
        several = len(table.values) > 1
        every, known = set(), set()
        for cell in self.cells():
            names = {f"{cell.title}/{value}" for value in table.values} if several else {cell.title}
            every |= names
            known |= names if matches(cell.place, table.where) else set()
        outside = [place for place in table.published if place in every - known]
        if outside:
            raise SettingsError(f"published, but left out by its where: {', '.join(outside)}")
        for place, numbers in table.published.items():
            if place not in known:
                raise unknown("place of a published number", place, known)
            if len(numbers) > 2:
                raise SettingsError(f"published.{place}={numbers}: at most two numbers, mean and deviation")
        for pattern in (*table.incomparable, *table.scaled):
            if not any(place == pattern or fnmatchcase(place, pattern) for place in known):
                raise SettingsError(f"no place fits {pattern!r}")

    def _check_where(self, wanted: Mapping[str, str]) -> None:
        self._check_axes(wanted)
        for axis, found in fitting(self.axes, wanted).items():
            if not found:
                there = ", ".join(self.axes[axis])
                raise SettingsError(f"no entry of {axis} fits {wanted[axis]!r}; there are {there}")

    def _check_figure(self, figure: FigureSpec) -> None:
        self._check_axes((*figure.by, *figure.panels))
        self._check_where(figure.where)
        if len(figure.panels) > 2:
            told = ", ".join(figure.panels)
            raise SettingsError(f"panels by {told}: at most two axes, rows and columns; others go into by")
        if isinstance(figure.options.get("value"), str):
            self._check_statistic(figure.options["value"])
        for axis in figure.panels:
            if (*figure.by, *figure.panels).count(axis) > 1:
                raise SettingsError(f"{axis} must be in by or in panels, once")

    def _check_axes(self, named: Iterable[str], more: Sequence[str] = ()) -> None:
        for axis in named:
            if axis not in self.axes and axis not in more:
                raise unknown("axis", axis, [*self.axes, *more])


_KINDS = {option.name: option.type for option in GENERAL} | {"method": str, "measure": str}
"""The types of options that no class declares; settings do not check these."""


def _list(parts: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = parts.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise SettingsError(f"{name}: write [[{name}]] once for each")
    return value


def _called(part: str, number: int, title: Any = None) -> str:
    """What errors call a table, a figure or an exception: by its title, or else by its number."""
    return f"{part.removesuffix('s')} {repr(title) if title and isinstance(title, str) else number + 1}"


@contextmanager
def _inside(where: str) -> Iterator[None]:
    """Put in front of the message of every error where in the study it is."""
    try:
        yield
    except CoterieError as error:
        raise SettingsError(f"{where}: {error}") from error


def _made(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from a part of the file."""
    known = {option.name: option for option in options(kind)}
    for name in values:
        if name not in known:
            raise unknown(f"entry of {where}", name, known)
    for name, option in known.items():
        if option.default is MISSING and name not in values:
            raise SettingsError(f"{where}: {name} is missing")
    with _inside(where):
        return kind(**{name: _checked(name, value, known[name].type) for name, value in values.items()})


def _check_metric(table: TableSpec, text: str) -> None:
    """Refuse a table that says otherwise than a metric in it whether it is a share, and which side is better."""
    name = metric_in(text)
    plain = (f"{name}_mean", f"{name}_worst_tenth", f"global_{name}_mean", f"pooled_{name}")
    if not name or text.removeprefix("best_round.") not in plain:
        return
    facts = known_facts()[name]
    better = "higher" if facts["higher"] else "lower"
    if table.better and table.better != better:
        raise SettingsError(f"better={table.better}: of {name}, {better} is better")
    if table.percent and not facts["share"]:
        raise SettingsError(f"percent=true: {name} is no share; give it a table of its own, with percent = false")


def _checked(name: str, value: Any, hint: Any) -> Any:
    """An entry of the file, if it and all that is in it is of the declared kind."""
    if get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{name}={value!r}: expected a TOML table, with entries name = value")
        return {key: _checked(f"{name}.{key}", one, get_args(hint)[1]) for key, one in value.items()}
    if get_origin(hint) is Sequence:
        if not isinstance(value, list | tuple):
            raise SettingsError(f"{name}={value!r}: expected a list of numbers, mean and deviation")
        return [checked(name, one, get_args(hint)[0]) for one in value]
    return checked(name, value, hint)
