"""Several methods and seeds in the same world."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.runs.batch import Entry, RunBatch
from coterie.runs.experiment import NewFolder
from coterie.runs.settings import Settings
from coterie.server.fitting import Observer
from coterie.server.method import Method


def run_folder(parent: Path, settings: Settings) -> Path:
    """The folder of a run of a comparison."""
    return parent / f"{settings.method.name}-seed{settings.world.seed}"


def compare(
    settings: Sequence[Settings],
    seeds: int = 1,
    out: Path | NewFolder | None = None,
    resume: bool = False,
    watch: Callable[[Method, int], Sequence[Observer]] = lambda method, seed: (),
    together: bool | None = None,
    keep_models: bool = True,
) -> list[Entry]:
    """Run each of the settings, which share a world, with each of `seeds` seeds; each run gets a folder below `out`.

    With `resume`, a run that is finished is not run again. `watch` gives the observers of a run. With `together`, all
    runs go on at the same time; by default small nets on a GPU do.
    """
    first = settings[0].world
    worlds = [first.reseeded(first.seed + number) for number in range(seeds)]
    # Whatever can be wrong with the settings must show before a folder is made.
    batch = RunBatch([replace(one, world=world) for world in worlds for one in settings], together)
    parent = out.make() if isinstance(out, NewFolder) else out

    def folder(one: Settings) -> Path | None:
        return None if parent is None else run_folder(parent, one)

    entries = batch.run(folder, resume, lambda one: watch(one.method, one.world.seed), keep_models=keep_models)
    return [entry for entry in entries if entry is not None]
