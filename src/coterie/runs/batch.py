"""Many runs: together where that is faster, else one after another, with as little as possible made twice."""

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
        """What can be wrong with the first world shows here, before a folder is made.

        All runs go on at the same time if they are computed `together`, as small nets are on a GPU by default. With
        `failed`, which is told of it, a run may fail while the others go on.
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
        """What all these runs need; nothing if they fail for want of it."""
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
    ) -> list[Entry | None]:
        """All runs, in their order; nothing for those that failed."""

        at_once = len(self._settings) if self._together else 1

        def one_run(one: Settings, fed: Federation) -> Entry | None:
            try:
                return one, run(one, folder(one), resume, watch(one), fed, SAVING / at_once, keep_state)
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
        """All that share their samples at the same time; those of other samples afterwards."""
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
        """An engine with the samples of all these worlds, which then are places in its pool."""
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
