"""Several methods and seeds in the same world, and what to call runs that stand side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.methods import methods
from coterie.runs.batch import Batch, Entry
from coterie.runs.experiment import NewFolder
from coterie.runs.folder import WITHOUT_EFFECT
from coterie.runs.settings import Settings
from coterie.server.fitting import Observer
from coterie.server.method import Method

__all__ = ["Entry", "compare", "names_apart", "same_world"]


def compare(
    settings: Sequence[Settings],
    seeds: int = 1,
    out: Path | NewFolder | None = None,
    resume: bool = False,
    watch: Callable[[Method, int], Sequence[Observer]] = lambda method, seed: (),
    together: bool | None = None,
) -> list[Entry]:
    """Run each of the settings, which share a world, with so many seeds; each run gets a folder below `out`.

    What was finished before is not run again if `resume` is set. `watch` gives the observers of a run. All runs go on
    at the same time if they are computed `together`, as small nets are on a GPU by default.
    """
    first = settings[0].world
    worlds = [first.reseeded(first.seed + number) for number in range(seeds)]
    # Whatever can be wrong with the settings must show before a folder is made.
    batch = Batch([replace(one, world=world) for world in worlds for one in settings], together)
    parent = out.make() if isinstance(out, NewFolder) else out

    def folder(one: Settings) -> Path | None:
        return None if parent is None else parent / f"{one.method.name}-seed{one.world.seed}"

    entries = batch.run(folder, resume, lambda one: watch(one.method, one.world.seed))
    return [entry for entry in entries if entry is not None]


def names_apart(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to call runs with these settings: the method, and whatever sets a run apart from others but for its seed.

    An option sets runs apart that have it, or could have: `mu` does not set FedProx apart from FedAvg, nor do two
    methods' own defaults set these apart.
    """
    flat = [_flat(table) for table in settings]
    names = []
    for mine in flat:
        differences = []
        for key, value in mine.items():
            part, _, option = key.rpartition(".")
            kind = f"{part}.name"
            comparable = [other for other in flat if key in other or other.get(kind) == mine.get(kind)]
            if key != "method.name" and any(_differ(key, mine, other) for other in comparable):
                differences.append(str(value) if option == "name" else f"{option}={value}")
        names.append(", ".join([str(mine.get("method.name")), *differences]))
    return names


def _differ(key: str, mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an option has different values that somebody has chosen."""
    ours, theirs = mine.get("method.name"), other.get("method.name")
    if key.startswith("method.") and ours != theirs and _default(key, mine) and _default(key, other):
        return False
    return bool(mine.get(key) != other.get(key))


def _default(key: str, flat: Mapping[str, Any]) -> bool:
    """Whether a run's method has its own default for an option."""
    name = str(flat.get("method.name"))
    known = methods.options(name) if name in methods else ()
    defaults = {f"method.{option.name}": option.default for option in known}
    return key in defaults and defaults[key] == flat.get(key)


def same_world(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether runs with these settings have the same clients, data, net and seed, so that clients can be compared."""
    return _world(one) == _world(other)


def _world(table: Mapping[str, Any]) -> dict[str, Any]:
    elsewhere = ("method", "scoring", "computing")
    return {**_flat({name: part for name, part in table.items() if name not in elsewhere}), "seed": table.get("seed")}


_NO_DIFFERENCE = WITHOUT_EFFECT | {"format", "seed", "data.labels", "scoring.insights"}


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the outcome of a run besides its seed, by names such as `split.alpha`."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in flat.items() if name not in _NO_DIFFERENCE}
