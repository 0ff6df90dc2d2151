"""Many runs: all at the same time where that is faster, else one after another.

What several runs need is made once: each distinct world, and on a GPU one engine for all worlds over the same samples,
which share a pool of samples (`coterie.data.population.pooled`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from coterie.core.errors import CoterieError
from coterie.data.population import pooled, same_samples
from coterie.engines.simulation import Simulation
from coterie.engines.simulation.scheduler import Scheduler
from coterie.runs.experiment import run
from coterie.runs.folder import SAVING
from coterie.runs.identity import world_of
from coterie.runs.settings import Settings, World
from coterie.server.federation import Federation
from coterie.server.fitting import Observer, Result

T = TypeVar("T")

Entry = tuple[Settings, Result]
"""A run and its settings."""


class RunBatch:
    """Runs with one net and one way of computing; each distinct world is made once."""

    def __init__(
        self,
        settings: Sequence[Settings],
        together: bool | None = None,
        failed: Callable[[Settings, Exception], None] | None = None,
    ) -> None:
        """An error in the first world is raised here, before any folder is made.

        With `together`, all runs go on at the same time; by default small nets on a GPU do. With `failed`, a run that
        raises an error is reported to this function and the others go on; without it, the error ends all of them.
        """
        worlds: dict[Hashable, World] = {}
        self._settings: list[Settings] = []
        for one in settings:
            # A world computes in its own way, and checks its data for the labels that it was made with.
            key = (world_of(one.table()), one.world.computing, one.world.labels)
            first = next(iter(worlds.values()), None)
            world = worlds.setdefault(key, one.world if first is None else one.world.beside(first))
            self._settings.append(replace(one, world=world))
        self._failed = failed
        self._worlds = self._by_world()
        """The distinct worlds, from the first on that can be made, and the numbers of the runs in each."""
        self._engine: Simulation | None = None
        """The engine of the first of these worlds."""
        while self._worlds and self._engine is None:
            world, numbers = self._worlds[0]
            self._engine = self._made(world.engine, numbers)
            if self._engine is None:
                del self._worlds[0]
        stacked = self._engine is not None and self._engine.form.stacked and self._engine.net.device.type == "cuda"
        self._together = stacked if together is None else together

    def _made(self, make: Callable[[], T], numbers: Sequence[int]) -> T | None:
        """What `make` gives; None if it raises an error, which then is the error of all runs with these numbers."""
        try:
            return make()
        except CoterieError as error:
            if self._failed is None:
                raise
            for number in numbers:
                self._failed(self._settings[number], error)
            return None

    def run(
        self,
        folder: Callable[[Settings], Path | None],
        resume: bool = False,
        watch: Callable[[Settings], Sequence[Observer]] = lambda settings: (),
        keep_state: bool = True,
        keep_models: bool = True,
    ) -> list[Entry | None]:
        """Run all, and give their results in the order of the settings; None for a run that failed."""
        at_once = len(self._settings) if self._together else 1

        def one_run(one: Settings, fed: Federation) -> Entry | None:
            try:
                kept = {"keep_state": keep_state, "keep_models": keep_models}
                return one, run(one, folder(one), resume, watch(one), fed, SAVING / at_once, **kept)
            except Exception as error:
                # A method of the user's own may fail in any way, which is no reason to lose the other runs.
                if self._failed is None:
                    raise
                self._failed(one, error)
                return None

        if self._together and len(self._settings) > 1:
            entries = self._run_together(one_run)
        else:
            entries = self._run_in_turn(one_run)
        return [entries.get(number) for number in range(len(self._settings))]

    def _run_in_turn(self, one_run: Callable[[Settings, Federation], Entry | None]) -> dict[int, Entry | None]:
        entries: dict[int, Entry | None] = {}
        for place, (world, numbers) in enumerate(self._worlds):
            # The world, and an engine with everything in it, is made once for all methods of a seed.
            engine = None if place else self._engine
            fed = self._made(partial(world.federation, engine), numbers)
            if fed is None:
                continue
            try:
                entries |= {number: one_run(self._settings[number], fed) for number in numbers}
            finally:
                fed.close()
                # A world that is done is not needed any more, and may have samples of its own.
                world.__dict__.pop("population", None)
        return entries

    def _run_together(self, one_run: Callable[[Settings, Federation], Entry | None]) -> dict[int, Entry | None]:
        """Runs over the same samples at the same time; then those over the next samples."""
        entries: dict[int, Entry | None] = {}
        for group in self._sharing_samples():
            engine = self._pooled_engine([world for world, _ in group])
            scheduler, numbers = Scheduler(engine.clients_at_once), []
            runs: list[Callable[[], Entry | None]] = []
            for world, own in group:
                for number in own:
                    beside = world.engine(engine)
                    beside.form = scheduler.form(engine.form, len(runs))
                    runs.append(partial(one_run, self._settings[number], world.federation(beside)))
                    numbers.append(number)
            entries |= dict(zip(numbers, scheduler.run(runs), strict=True))
        return entries

    def _pooled_engine(self, worlds: Sequence[World]) -> Simulation:
        """One engine for all these worlds: their clients then hold places in one pool of samples."""
        populations = pooled([world.population for world in worlds])
        unchanged = worlds[0] is self._worlds[0][0] and populations[0].x is worlds[0].population.x
        for world, population in zip(worlds, populations, strict=True):
            world.__dict__["population"] = population
        return self._engine if unchanged and self._engine else worlds[0].engine()

    def _sharing_samples(self) -> list[list[tuple[World, list[int]]]]:
        """The distinct worlds with their runs, in groups that divide the same samples."""
        groups: list[list[tuple[World, list[int]]]] = []
        for world, numbers in self._worlds:
            population = self._made(partial(getattr, world, "population"), numbers)
            if population is None:
                continue
            fitting = (group for group in groups if same_samples(group[0][0].population, population))
            group = next(fitting, [])
            if not group:
                groups.append(group)
            group.append((world, numbers))
        return groups

    def _by_world(self) -> list[tuple[World, list[int]]]:
        """The distinct worlds, and the numbers of the runs in each."""
        found: dict[int, tuple[World, list[int]]] = {}
        for number, one in enumerate(self._settings):
            found.setdefault(id(one.world), (one.world, []))[1].append(number)
        return list(found.values())
