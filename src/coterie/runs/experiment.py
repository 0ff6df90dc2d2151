"""One run from its settings to its folder."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import SettingsError
from coterie.runs.folder import SAVING, RunFolder
from coterie.runs.settings import Settings
from coterie.server.federation import Federation
from coterie.server.fitting import Observer, Result, fit

log = logging.getLogger("coterie")


@dataclass
class NewFolder:
    """A folder that is made below `parent` when it is first needed, with a number added if the name is taken then."""

    parent: Path
    name: str
    made: Path | None = None
    """Where it is, as soon as it has been made."""

    def make(self) -> Path:
        """The path of the folder, which is made if need be; several programs that ask at once get one folder each."""
        while self.made is None:
            path = free_path(self.parent, self.name)
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise SettingsError(f"{path}: cannot be made ({error.strerror})") from error
            self.made = path
        return self.made


def free_path(parent: Path, name: str, ending: str = "") -> Path:
    """A path below `parent` that does not exist yet: the name, with a number behind it if the name is taken."""
    number, path = 1, parent / (name + ending)
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}{ending}"
    return path


def run(
    settings: Settings,
    out: Path | NewFolder | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    federation: Federation | None = None,
    saving: float = SAVING,
    keep_state: bool = True,
    keep_models: bool = True,
) -> Result:
    """Run a method in its world.

    With `out`, everything is written to that folder; with `resume`, a run that was begun there goes on, also to more
    rounds than it had, unless the method or its schedule looked at their number from the beginning. Runs in the same
    world can share a `federation`. Saving checkpoints takes at most the share `saving` of the time; without
    `keep_state` the last checkpoint is deleted when the run is finished. `keep_models` keeps what clients predict with.
    """
    world = settings.world
    # Whatever can be wrong with the settings must show before a folder is made.
    fed = federation or world.federation()
    folder = None
    try:
        settings.method.check(fed)
        settings.scoring.check(fed)
        checkpoint = None
        if out is not None:
            path = out.make() if isinstance(out, NewFolder) else out
            table, tied = settings.resolved().table(), settings.method.tied_to_rounds
            folder = RunFolder(path, table, saving=saving, keep_state=keep_state, tied_to_rounds=tied)
            checkpoint = folder.open(fed.net, resume, fed.origin)
            # First: an observer that stops the run does not lose the round that is done.
            observers = [folder, *observers]
        log.info("%s", fed.explain())
        describe = {"data": world.dataset.name, "split": world.split.name, "net": world.net_name}
        return fit(
            settings.method,
            fed,
            scoring=settings.scoring,
            observers=observers,
            resume=checkpoint,
            describe=describe,
            keep_models=keep_models,
            folder=None if folder is None else folder.path,
        )
    finally:
        if folder is not None:
            folder.close()
        if federation is None:
            fed.close()
