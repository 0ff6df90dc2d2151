"""What makes two runs the same or different. Each option says at its declaration what it changes (`core.fields`).

Everything here takes settings as they stand in `settings.toml`. An option that is not in them counts as if it had its
default, so options can be added to a method, or moved to a variant of it, without changing what stored runs are.

Names of folders, and whether a stored run counts, depend on what changes results or what is written down of a run.
Going on with a run depends also on what it keeps to its end (`strict`). What runs are called, and whether their clients
can be compared, depends only on what changes results.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from coterie.core.fields import Effect
from coterie.core.registry import Option, Registry, options
from coterie.data.split import split_rules
from coterie.methods import methods
from coterie.runs.options import GENERAL, SECTIONS
from coterie.runs.settings import as_toml

REGISTRIES: dict[str, Registry[Any]] = {"split": split_rules, "method": methods}
"""Sections for things that are chosen by name, and where these are registered. Studies add their measures."""

_GENERAL = {"": ("split_seed", "net", "loss", "seed"), "data": ("data_dir", "limit", "hold_out")}
"""The options that no class declares, by their section of the settings; those under "" stand above all sections."""

_NAME = Option("name", str, None, "")

_UNDECLARED = {
    **dict.fromkeys(("coterie", "format", "modules", "server.data"), Effect.NOTHING),
    "data.labels": Effect.COURSE,
}
"""Entries that are no options: who wrote the settings, the users' modules that they need, where a server has its data,
the labels that the data has."""

_UNSET = (None, None)


def changes_results(name: str) -> bool:
    """Whether an option, by its name on the command line, changes results or what is written down of a run."""
    known = [*GENERAL, *(option for known in SECTIONS.values() for option in known)]
    return all(option.decides for option in known if option.name == name)


def deciding(table: Mapping[str, Any]) -> dict[str, Any]:
    """All values that decide a run, by names such as `split.alpha`; None for what is neither set nor has a default."""
    return {key: value for key, (value, _) in _entries(table, Effect.RECORD).items()}


def decisive(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values that decide a run and are not the defaults, by section. Names of run folders are made of them."""
    found: dict[str, Any] = {}
    for key, (value, usual) in _entries(table, Effect.RECORD).items():
        part, _, name = key.rpartition(".")
        if value != usual:
            (found.setdefault(part, {}) if part else found)[name] = value
    return found


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Why a run with our settings cannot go on with theirs, in words.

    Where the method, the split or the data set is another one, only that is said, and nothing of its options.
    """
    runs = [_entries(ours, Effect.COURSE), _entries(theirs, Effect.COURSE)]
    found = []
    for key in sorted({*runs[0], *runs[1]}):
        part, _, name = key.rpartition(".")
        mine, other = (run.get(key, _UNSET)[0] for run in runs)
        kind, its_kind = (run.get(f"{part}.name", _UNSET)[0] for run in runs)
        if mine != other and (kind == its_kind or name == "name"):
            found.append(f"{key if kind == its_kind else part} is {other} there, {mine} here")
    return found


def world_of(table: Mapping[str, Any]) -> Hashable:
    """A key that is equal for runs with the same clients, data, net and seed: their clients can be compared."""
    world = {name: part for name, part in table.items() if name not in ("method", "scoring", "computing")}
    return _hashable({key: value for key, (value, usual) in _entries(world).items() if value != usual})


def names_apart(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to call runs with these settings: the method, and the options in which a run differs from others.

    The seed is not named. An option counts only between runs that could both have it: `mu` does not tell FedProx from
    FedAvg, and two methods with different defaults are not told apart by these.
    """
    runs = [_entries(table) for table in settings]
    chosen = {key: {_choice(key, run) for run in runs} for key in {key for run in runs for key in run}}
    apart = {key: {one for one in found if any(_apart(one, other) for other in found)} for key, found in chosen.items()}
    names = []
    for run in runs:
        telling = [key for key in run if key not in ("seed", "method.name") and _choice(key, run) in apart[key]]
        words = [f"{key.rpartition('.')[2]}={run[key][0]}".removeprefix("name=") for key in telling]
        names.append(", ".join([str(run.get("method.name", _UNSET)[0]), *words]))
    return names


def _choice(key: str, run: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Hashable, bool]:
    """Of a run's option: the method, split or data set that has it, its value, and if that is a method's default."""
    part, (value, usual) = key.rpartition(".")[0], run.get(key, _UNSET)
    return run.get(f"{part}.name", _UNSET)[0], _hashable(value), part == "method" and value == usual


def _apart(one: tuple[Any, Hashable, bool], other: tuple[Any, Hashable, bool]) -> bool:
    """Whether one run has a value that the other could have too, but does not have."""
    (kind, value, own), (its_kind, its_value, its_own) = one, other
    possible = kind == its_kind or (its_value is not None and not (own and its_own))
    return value is not None and value != its_value and possible


def _entries(table: Mapping[str, Any], least: Effect = Effect.RESULTS) -> dict[str, tuple[Any, Any]]:
    """The value and the default of every entry with at least this effect, by names such as `split.alpha`."""
    sections = {name: section for name, section in table.items() if isinstance(section, Mapping)}
    if "split" in sections:  # a simulation has all of these, but what is stored of it may be older
        sections |= {name: {} for name in SECTIONS if name not in sections}
    found = {}
    for part, section in {"": {name: table[name] for name in table if name not in sections}, **sections}.items():
        known = {option.name: option for option in _declared(part, str(section.get("name")))}
        # Settings say of a data set only what it was told, and names of folders count that even if it is the default.
        defaults = {name: option.default for name, option in known.items() if part != "data"}
        usual = as_toml({name: value for name, value in defaults.items() if value is not MISSING})
        for name in {**known, **section}:
            key = f"{part}.{name}".lstrip(".")
            declared = known[name].effect if name in known else Effect.RESULTS
            if _UNDECLARED.get(key, declared) >= least:
                found[key] = section.get(name, usual.get(name)), usual.get(name)
    return found


def _declared(part: str, name: str) -> tuple[Option, ...]:
    """The options of a section with this name in it, as far as they are known."""
    if part in SECTIONS:
        return SECTIONS[part]
    if part in _GENERAL:
        return (_NAME, *(option for one in _GENERAL[part] for option in GENERAL if option.name == one))
    if part in ("task", "sites"):  # of a deployment
        from coterie.engines.flower.engine import FederatedTask, Waiting

        return options(FederatedTask if part == "task" else Waiting)
    known = REGISTRIES.get(part)
    return (_NAME, *known.options(name)) if known is not None and name in known else ()


def _hashable(value: Any) -> Hashable:
    value = sorted(value.items()) if isinstance(value, Mapping) else value
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
