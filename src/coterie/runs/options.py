"""What can be said of a run by name, and which part of its settings each option belongs to.

Options are known without importing the methods that have them, so a command line can be read, and refused, without the
second that torch takes.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from coterie.core.declarations import declaration
from coterie.core.errors import SettingsError, called_here, unknown
from coterie.core.fields import WITHOUT_EFFECT, check_range
from coterie.core.modules import own_module
from coterie.core.registry import Option, Registry, checked, options
from coterie.data.dataset import Kind
from coterie.data.division import Division
from coterie.data.sources import sources
from coterie.data.split import SplitRule
from coterie.data.splits import split_rules
from coterie.data.tables import is_table
from coterie.data.tasks import TASKS, task_named
from coterie.methods import methods

GENERAL = (
    Option(
        "data",
        str,
        "digits",
        "Name of a data set (see `coterie data`), or own data: a table, an .npz file, a folder.",
    ),
    Option(
        "data_dir",
        str,
        None,
        "Folder of published data files; else COTERIE_DATA, else the user's cache.",
        WITHOUT_EFFECT,
    ),
    Option("limit", int, None, "Use only so many training samples."),
    Option("hold_out", float, None, "Share of own data that becomes the test part."),
    Option("split", str, "dirichlet", "How samples are divided among clients (see `coterie splits`)."),
    Option(
        "net",
        str,
        None,
        "Network (see `coterie nets`) or `package.module:function`; by default one that fits the data.",
    ),
    Option(
        "loss",
        str,
        None,
        "Loss that training lowers (see `coterie losses`) or `package.module:function`; by default that of the task.",
    ),
    Option("seed", int, 0, "Seed of everything that is random."),
    Option("split_seed", int, None, "Seed of the data's division, if that is to be another."),
    Option("arrivals", str, None, "Clients that arrive late, and in which round: `3:10,7:20`."),
)
"""Options that no class declares."""

OWN = (
    Option("size", int, None, "Side in pixels to which the images of an own folder are scaled."),
    Option("kind", Kind | None, None, "What inputs of own data are, if their axes do not show it."),
    Option("target", str | None, None, "Column of an own table that is predicted."),
    Option("client", str | None, None, "Column of an own table that tells clients apart; in a folder files do."),
    Option("drop", tuple[str, ...], (), "Columns of an own table that are left out."),
    Option("schema", str | None, None, "File that says all that of an own table (see `coterie schema`)."),
    Option("task", Literal[tuple(TASKS)] | None, None, "What is predicted, if targets of own data do not show it."),
)
"""The options of own data."""

SECTIONS = {
    "division": options(Division),
    "computing": declaration("coterie.engines.simulation.engine", "Computing").options,
    "scoring": declaration("coterie.server.scoring", "Scoring").options,
}
"""The options of every section of the settings that one class declares."""

DEFAULTS = {"data": "digits", "split": "dirichlet", "method": None}
"""The name in each section that is used if none is given; there is no method by default."""

TOP = ("data", "split", "split_seed", "net", "loss", "seed", "arrivals")
"""Options that stand for a whole section, or above all sections, and so belong to none."""

_COMMON = {
    "data": tuple(option for option in GENERAL if option.name in ("data_dir", "limit", "hold_out")),
    "split": options(SplitRule),
    "method": declaration("coterie.server.method", "Method").options,
}
"""The options that all data sets, all splits and all methods have."""


def data_options(data: str) -> tuple[Option, ...]:
    """The options that only this data set has, without its `seed`, which is the seed of the run."""
    if data not in sources:
        return OWN
    return tuple(option for option in sources.options(data) if option.name != "seed")


def table_of(
    given: Mapping[str, Any],
    method: str | None = None,
    base: Mapping[str, Any] | None = None,
    others: Iterable[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """A settings file's content from options by name, on top of another's, and what a user should know about them.

    A plain name belongs to the first of split, data set and method that has such an option; `split.alpha`,
    `data.classes` and `method.alpha` say which. `others` are methods for the same world: an option that only they
    have is theirs.
    """
    table = dict(base or {})
    import_modules(table)
    given = _with_split(given, table)
    for part, name in {"data": given.get("data"), "split": given.get("split"), "method": method}.items():
        section = table[part] = section_of(table, part)
        if name is not None and section.get("name", DEFAULTS[part]) != name:
            # Options of another data set, split or method are not for this one, unless all have them.
            shared = {option.name for option in _COMMON[part]}
            table[part] = {key: value for key, value in section.items() if key in shared} | {"name": name}
    if "name" not in table["method"]:
        raise SettingsError("no method: name one, or a settings file that does")
    known = owners(*(table[part].get("name", default) for part, default in DEFAULTS.items()))
    elsewhere = {option.name for other in others for option in methods.options(other)}
    parts, notes = routed(given, known, apart=TOP, elsewhere=elsewhere)
    if parts["data"] or any(given.get(name) is not None for name in ("seed", "split_seed")):
        table["data"].pop("labels", None)  # what is given may pick other classes
    for part, values in parts.items():
        table[part] = section_of(table, part) | values
    table |= {name: given[name] for name in ("net", "loss", "seed", "split_seed") if given.get(name) is not None}
    if given.get("arrivals") is not None:
        table["arrivals"] = {str(client): at for client, at in parse_arrivals(given["arrivals"]).items()}
    return table, notes


def _with_split(given: Mapping[str, Any], base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, with a split that suits the data if nobody names one and the usual one does not."""
    data = section_of(base, "data")
    name = given.get("data") or data.get("name", DEFAULTS["data"])
    client = given.get("client") or given.get("data.client") or data.get("client")
    named = given.get("split") or section_of(base, "split").get("name")
    task = given.get("task") or given.get("data.task") or data.get("task")
    suits = suitable_split(str(name), client, task)
    return given if named or suits == DEFAULTS["split"] else {**given, "split": suits}


def suitable_split(data: str, client: str | None, task: str | None) -> str:
    """The split if nobody names one: by clients that the data tells apart, and without classes by no labels."""
    if tells_clients(data, client) if data else client:
        return "natural"
    task = sources[data].task if data in sources else task
    return str(DEFAULTS["split"]) if task is None or task_named(task).one_class else "iid"


def tells_clients(data: str, client: str | None) -> bool:
    """Whether own data says which client a sample is from: by a column, or as a folder with a table per client."""
    return data not in sources and (bool(client) or (Path(data).is_dir() and is_table(Path(data))))


def owners(
    data: str | None = None, split: str | None = None, method: str | None = None
) -> dict[str, dict[str, Option]]:
    """The options of each part, by name. A name without a part means the first part that has such an option."""
    known: dict[str, Iterable[Option]] = dict(SECTIONS)
    if split is not None:
        known["split"] = split_rules.options(split)
    if data is not None:
        known["data"] = _COMMON["data"] + data_options(data)
    if method is not None:
        known["method"] = methods.options(method)
    return {part: {option.name: option for option in found} for part, found in known.items()}


def routed(
    given: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Option]],
    apart: Collection[str] = (),
    elsewhere: Collection[str] = (),
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The given options by the part that they belong to, and notes about names that several parts have.

    Names in `apart` are passed over, as they belong to no part. Names in `elsewhere` are options of other methods: they
    are passed over too where no part has them.
    """
    parts: dict[str, dict[str, Any]] = {part: {} for part in known}
    notes = []
    for name, value in given.items():
        if value is None or name in apart:
            continue
        prefix, _, option = name.rpartition(".")
        takers = [part for part, found in known.items() if option in found and prefix in ("", part)]
        if takers:
            parts[takers[0]][option] = checked(name, value, known[takers[0]][option].type)
            notes += [f"{name} is the {takers[0]}'s; the {other} has one too: {other}.{name}" for other in takers[1:]]
        elif option not in elsewhere or prefix not in ("", "method"):
            raise _homeless(name, known, apart)
    for part, values in parts.items():
        for option, value in values.items():
            check_range(option, value, known[part][option].allowed)
    return parts, notes


def _homeless(name: str, known: Mapping[str, Mapping[str, Option]], apart: Collection[str]) -> SettingsError:
    """The error for an option that nothing takes: another split, data set or method may have it, or none at all."""
    called = called_here(name)
    prefix, _, option = called.rpartition(".")
    if any(option in found and prefix in ("", part) for part, found in known.items()) or called in apart:
        return unknown("option", name, [*apart, called])
    registries: dict[str, Registry[Any]] = {"split": split_rules, "data": sources, "method": methods}
    homes = [
        f"{registry.kind} {key}"
        for part, registry in registries.items()
        for key in registry
        if prefix in ("", part) and option in owners(**{part: key})[part]
    ]
    if homes:
        some = ", ".join(homes[:5]) + (", ..." if len(homes) > 5 else "")
        also = f" (here {called})" if called != name else ""
        if option in {one.name for one in _COMMON["method"]}:
            return SettingsError(f"option {name!r}{also}: belongs to the method, e.g. coterie.FedAvg({option}=...)")
        return SettingsError(f"option {name!r}{also}: nothing that is used here has it, only {some}")
    if "." in name:
        return unknown("option", name, [f"{part}.{option}" for part, found in known.items() for option in found])
    return unknown("option", name, [*apart, *(option for found in known.values() for option in found)])


def import_modules(content: Mapping[str, Any]) -> None:
    """Import the users' modules that settings name, so that the methods, splits and nets in them are known."""
    for name in checked("modules", content.get("modules", ()), tuple[str, ...]):
        own_module(name)


def section_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of the settings, empty if it is not there."""
    section = content.get(name, {})
    if not isinstance(section, Mapping):
        more = f" with name = {section!r} in it" if name in DEFAULTS else ""
        raise SettingsError(f"{name} = {section!r}: expected a section [{name}]{more}")
    checked(f"{name}.name", section.get("name", ""), str)
    return dict(section)


def parse_arrivals(text: str) -> dict[int, int]:
    """`3:10,7:20` as {3: 10, 7: 20}; nothing if nobody arrives late."""
    pairs = [pair.split(":") for pair in text.split(",")] if text.strip() else []
    try:
        arrivals = {int(client): int(arrival) for client, arrival in pairs}
    except ValueError:
        raise SettingsError(f"arrivals={text!r}: write client:round,client:round, e.g. 3:10,7:20") from None
    if len(arrivals) < len(pairs):
        raise SettingsError(f"arrivals={text!r}: a client arrives once")
    return arrivals
