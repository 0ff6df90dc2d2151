"""`coterie run`: one method, from options or a settings file to the folder of a run."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group

from coterie.cli.console import errors, following, note, print_json, print_table, tell
from coterie.cli.options import ask, hidden, methods_options, needed, world_options
from coterie.cli.parameters import KeepModels, argument, command, flag
from coterie.core.errors import SettingsError
from coterie.methods import methods
from coterie.report.trackers import trackers_of

if TYPE_CHECKING:
    from coterie.runs.experiment import NewFolder
    from coterie.runs.settings import Settings, World
    from coterie.server.fitting import Observer

RUNS = Path("runs")
"""Where runs go if nobody says where."""

SettingsFile = Annotated[
    Path | None, flag("A settings file (TOML), or the folder of a run; options given here go first.")
]
Out = Annotated[Path | None, flag("Folder of the run; by default a new one below `runs/`.", "Output")]
Resume = Annotated[
    bool,
    flag(
        "Continue the run in `--out` exactly, or begin it if there is none. With more `--rounds` it trains longer.",
        "Output",
    ),
]
Explain = Annotated[bool, flag("Say how this run would be computed, and why, instead of running it.", "Output")]
Track = Annotated[
    str | None,
    flag(
        "Follow the run in `mlflow`, `tensorboard` or `wandb`, several with commas between: settings, records, scores "
        "of clients, groups, figures and the page.",
        "Output",
    ),
]
AsJson = Annotated[bool, flag("Print the summary as JSON, and nothing else.", "Output", "--json")]

_ABOUT = """Run one method: `coterie run fedavg --split dirichlet --alpha 0.1 --rounds 50`.

`coterie run METHOD --help` shows all options of a method, with `--split` or `--data` also those of a split or a data
set. A run becomes a folder; `coterie run --settings FOLDER` does the same again, `coterie run --resume --out FOLDER`
goes on where it was stopped.
"""


def add_run(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add `coterie run`: a command for each method, and one for settings files. Only what is chosen has options."""
    runs = App(
        name="run",
        usage="Usage: coterie run METHOD [OPTIONS]",
        help=_ABOUT,
        help_format="markdown",
        group=group,
        group_commands=Group("Methods", sort_key=-1),
        sort_key=sort_key,
    )
    app.command(runs)
    if arguments is None:
        return
    asked = ask(arguments, _command(None))
    world = world_options(asked)
    named = [word for word in asked.words[:1] if word in methods]
    shown = world + methods_options(world, named)
    shown = needed(shown if named else hidden(shown), asked, _command(None))
    for name in methods:
        runs.command(command(_command(name), shown if [name] == named else []), name=name, help=methods.doc(name))
    # What is no command arrives here: a method behind options, or a name that is no method's, which an error explains.
    behind_options = [] if named == list(arguments[:1]) else hidden(shown)
    runs.default(command(_command(None), behind_options, [argument("name", str | None, None, show=False)]))


def _command(method: str | None) -> Callable[..., None]:
    """A command that runs a method; without one here, that which a word or the settings file names."""

    def run(
        given: dict[str, Any],
        name: str | None = method,
        *,
        settings: SettingsFile = None,
        out: Out = None,
        resume: Resume = False,
        explain: Explain = False,
        keep_models: KeepModels = True,
        track: Track = None,
        as_json: AsJson = False,
    ) -> None:
        trackers = trackers_of(track)
        base = base_of(settings, out, resume)
        if name is None and base is None and resume:
            raise SettingsError(f"out={out}: there is no run to continue; to begin one, name a method")
        if name is None and base is None:
            raise SettingsError(f"no method: name one ({', '.join(methods)}) or a settings file")
        understood = settings_of(given, name, base)
        if explain:
            _explain(understood)
        else:
            _run(understood, out, resume, keep_models, as_json, trackers())

    return run


def settings_of(given: dict[str, Any], method: str | None, base: Mapping[str, Any] | None = None) -> "Settings":
    """The settings that given options make; what a user should know about them is told."""
    from coterie.runs.options import table_of

    understood = table_of(given, method, base)  # refuses what is wrong before torch is imported

    from coterie.runs.settings import Settings

    made, notes = Settings.complete(*understood)
    note(notes)
    return made


def base_of(settings: Path | None, out: Path | None, resume: bool) -> dict[str, Any] | None:
    """The settings to start from: a file's, or those of the run that is continued."""
    if resume and out is None:
        raise SettingsError("resume: say which run with --out")
    if settings is None and resume and out is not None and (out / "settings.toml").is_file():
        settings = out
    if settings is None:
        return None
    from coterie.runs.settings import read_table

    return read_table(settings / "settings.toml" if settings.is_dir() else settings)


def _explain(settings: "Settings") -> None:
    """Say how a run would be computed."""
    fed = settings.world.federation()
    try:
        sys.stdout.write(fed.explain().replace("; ", "\n") + "\n")
    finally:
        fed.close()


def _run(
    settings: "Settings",
    out: Path | None,
    resume: bool,
    keep_models: bool,
    as_json: bool,
    trackers: "Sequence[Observer]",
) -> None:
    from coterie.report.tables import run_table
    from coterie.runs.experiment import NewFolder, run

    world, method = settings.world, settings.method
    place = out or NewFolder(RUNS, f"{method.name}-{short(world)}-{world.split.name}")
    with stoppable(place, "coterie run --resume --out FOLDER"), following(quiet=as_json) as follower:
        watching = [*follower.watch(method, world.seed), *trackers]
        result = run(settings, place, resume, watching, keep_models=keep_models)
    if as_json:
        print_json(result.summary)
        return
    print_table(run_table(result.summary))
    tell("written to", made(place))


def short(world: "World") -> str:
    """The data of a world in a word, for names of folders."""
    return Path(world.data).stem


def headline(world: "World", clients: int) -> str:
    """A world in a line."""
    return f"{short(world)}, {world.split.name} split, {clients} clients"


def place_of(out: Path | None, parent: Path, name: str, resume: bool = False) -> "Path | NewFolder":
    """The folder that is asked for, which must be empty unless a run is to be continued there, or else a new one."""
    from coterie.runs.experiment import NewFolder
    from coterie.runs.folder import require_empty

    if out is not None and not resume:
        require_empty(out)
    return out or NewFolder(parent, name)


def made(place: "Path | NewFolder") -> Path | None:
    """The folder of a run; None if it has not been made."""
    return place if isinstance(place, Path) else place.made


@contextmanager
def stoppable(place: "Path | NewFolder", again: str) -> Iterator[None]:
    """If the user stops what runs inside, tell how to go on: `again`, with the folder of the run for `FOLDER`."""
    try:
        yield
    except KeyboardInterrupt:
        folder = made(place)
        if folder is None or not folder.exists():
            tell("stopped:", "nothing was written", errors)
        else:
            tell("stopped; to go on:", again.replace("FOLDER", shlex.quote(str(folder))), errors)
        sys.exit(130)
