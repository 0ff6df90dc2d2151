"""The command line."""

import inspect
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError
from rich.text import Text

from coterie._version import __version__
from coterie.cli.console import console, errors, following, print_table, tell
from coterie.cli.demo import demo_settings
from coterie.cli.deploy import deploy_app
from coterie.cli.listings import plain_table, show_data, show_methods, show_nets, show_splits
from coterie.cli.options import GROUPS, Shown, command, hidden, method_options, methods_options, whole, world_options
from coterie.cli.study import add_study_commands
from coterie.core.errors import CoterieError, ProgramError, SettingsError
from coterie.methods import methods
from coterie.runs.comparison import Entry, compare
from coterie.runs.experiment import NewFolder, free_path
from coterie.runs.experiment import run as run_experiment
from coterie.runs.folder import StoredRun, require_empty
from coterie.runs.identity import names_apart
from coterie.runs.settings import Settings, World, read_table

__all__ = ["main"]

RUNS = Path("runs")
"""Where runs go if nobody says where."""


def _flag(name: str | list[str], text: str, group: str = "Output", **more: Any) -> Any:
    return Parameter(name=name, negative="", help=text, group=GROUPS[group], show_default=False, **more)


SettingsFile = Annotated[
    Path | None,
    _flag("--settings", "A settings file (TOML), or the folder of a run; options given here go first.", "Experiment"),
]
Out = Annotated[Path | None, _flag("--out", "Folder of the run; by default a new one below `runs/`.")]
Resume = Annotated[bool, _flag("--resume", "Continue the run in `--out` exactly, or begin it if there is none.")]
Explain = Annotated[bool, _flag("--explain", "Say how this run would be computed, and why, instead of running it.")]
AsJson = Annotated[bool, _flag("--json", "Print the summary as JSON, and nothing else.")]

_DO, _CHOOSE, _HELP = (
    Group(title, sort_key=place) for place, title in enumerate(("Experiments", "What there is to choose from", "Help"))
)


def _app(arguments: Sequence[str]) -> App:
    """All commands. The arguments decide which of many options are made, and which of them the help shows."""
    app = App(
        name="coterie",
        help=_ABOUT,
        version=__version__,
        help_format="markdown",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    world = world_options(arguments)
    unneeded = ("Scoring", "Computing")
    split = [item for item in world if item.group.name not in unneeded and item.name not in ("net", "arrivals")]
    app.command(demo, group=_DO, sort_key=0)
    app.command(_run_app(world, arguments))
    comparing = command(_compare, world + methods_options(world, arguments), [_METHODS])
    app.command(comparing, name="compare", usage="Usage: coterie compare METHOD... [OPTIONS]", group=_DO, sort_key=2)
    app.command(show, usage="Usage: coterie show RUN... [OPTIONS]", group=_DO, sort_key=3)
    app.command(report, usage="Usage: coterie report RUN... [OPTIONS]", group=_DO, sort_key=3.5)
    app.command(command(_split, split, [_SPLIT]), name="split", group=_DO, sort_key=4)
    add_study_commands(app, world, _DO, 5)
    app.command(deploy_app(world, _DO, 7, arguments))
    for place, function in enumerate((show_methods, show_data, show_splits, show_nets)):
        app.command(function, name=function.__name__.removeprefix("show_"), group=_CHOOSE, sort_key=place)
    for flag in ("--help", "--version"):
        app[flag].group = _HELP
    return app


_ABOUT = """Federated learning when clients' data differ: who belongs together, and what is it worth to each?

Start with `coterie demo`, then `coterie run fedavg`. Every command explains itself with `--help`.
"""


# Running


def _run_app(world: list[Shown], arguments: Sequence[str]) -> App:
    """A command for each method, and one for settings files."""
    app = App(
        name="run",
        usage="Usage: coterie run METHOD [OPTIONS]",
        help=_ABOUT_RUN,
        help_format="markdown",
        group=_DO,
        group_commands=Group("Methods", sort_key=-1),
        sort_key=1,
    )
    every = methods_options(world)
    for name in methods:
        shown: list[Shown] = []
        if name in arguments:  # the options of all others would take a while to make
            shown = world + method_options(name, world)
            # An option of another method is read too, for an error that says whose it is.
            shown += hidden(every, but=shown)
        app.command(_run_command(name, shown), name=name, help=inspect.getdoc(methods[name]))
    app.default(_run_command(None, hidden(world + every)))
    return app


_ABOUT_RUN = """Run one method: `coterie run fedavg --split dirichlet --alpha 0.1 --rounds 50`.

`coterie run METHOD --help` shows all options of a method, with `--split` or `--data` also those of a split or a data
set. A run becomes a folder; `coterie run --settings FOLDER` does the same again, `coterie run --resume --out FOLDER`
goes on where it was stopped.
"""


def _run_command(method: str | None, shown: list[Shown]) -> Any:
    def run(
        given: dict[str, Any],
        name: str | None = method,
        *,
        settings: SettingsFile = None,
        out: Out = None,
        resume: Resume = False,
        explain: Explain = False,
        as_json: AsJson = False,
    ) -> None:
        base = _base(settings, out, resume)
        if name is None and base is None and resume:
            raise SettingsError(f"out={out}: there is no run to continue; to begin one, name a method")
        if name is None and base is None:
            raise SettingsError(f"no method: name one ({', '.join(methods)}) or a settings file")
        made, notes = Settings.of(given, name, base)
        if explain:
            _explain(made, notes)
        else:
            _run(made, notes, out, resume, as_json)

    # A name that is no method's is no command's: it arrives here, and the error names the nearest ones.
    return command(run, shown, [_METHOD] if method is None else [])


_METHOD = inspect.Parameter(
    "name", inspect.Parameter.POSITIONAL_ONLY, default=None, annotation=Annotated[str | None, Parameter(show=False)]
)


def _base(settings: Path | None, out: Path | None, resume: bool) -> dict[str, Any] | None:
    """The settings to start from: a file's, or those of the run that is continued."""
    if resume and out is None:
        raise SettingsError("resume: say which run with --out")
    if settings is not None:
        return read_table(settings / "settings.toml" if settings.is_dir() else settings)
    if resume and out is not None and (out / "settings.toml").is_file():
        return read_table(out / "settings.toml")
    return None


def _explain(settings: Settings, notes: Iterable[str]) -> None:
    """Say how a run would be computed."""
    _say(notes)
    fed = settings.world.federation()
    try:
        sys.stdout.write(fed.explain().replace("; ", "\n") + "\n")
    finally:
        fed.close()


def _run(settings: Settings, notes: Iterable[str], out: Path | None, resume: bool, as_json: bool) -> None:
    from coterie.report.tables import run_table

    _say(notes)
    world, method = settings.world, settings.method
    place = out or NewFolder(RUNS, f"{method.name}-{_short(world)}-{world.split.name}")
    with _stoppable(place, "coterie run --resume --out FOLDER"), following(quiet=as_json) as follower:
        result = run_experiment(settings, place, resume, follower.watch(method, world.seed))
    if as_json:
        _print_json(result.summary)
        return
    print_table(run_table(result.summary))
    tell("written to", _made(place))


def _short(world: World) -> str:
    """The data of a world in a word, for names of folders."""
    return Path(world.data).stem


def _made(place: Path | NewFolder) -> Path | None:
    return place.made if isinstance(place, NewFolder) else place


@contextmanager
def _stoppable(place: Path | NewFolder, again: str) -> Iterator[None]:
    """Tell how to go on when the user stops what runs inside; `FOLDER` in that is where it has been written to."""
    try:
        yield
    except KeyboardInterrupt:
        folder = _made(place)
        if folder is None or not folder.exists():
            tell("stopped:", "nothing was written", errors)
        else:
            tell("stopped; to go on:", again.replace("FOLDER", shlex.quote(str(folder))), errors)
        sys.exit(130)


_METHODS = inspect.Parameter(
    "names",
    inspect.Parameter.VAR_POSITIONAL,
    annotation=Annotated[
        str,
        Parameter(
            name="METHODS", help="Methods, or `all` for every one.", group=GROUPS["Experiment"], show_default=False
        ),
    ],
)


def _compare(
    given: dict[str, Any],
    *names: str,
    seeds: Annotated[
        int,
        _flag("--seeds", "How often each method is run, with a seed of its own. [1]", "Experiment", converter=whole),
    ] = 1,
    settings: SettingsFile = None,
    out: Annotated[Path | None, _flag("--out", "Folder of all runs; by default a new one below `runs/`.")] = None,
    resume: Annotated[bool, _flag("--resume", "Continue the comparison in `--out`, or begin it.")] = False,
    as_json: Annotated[bool, _flag("--json", "Print the summaries as a list in JSON, and nothing else.")] = False,
) -> None:
    """Run methods in the same world and put them side by side: `coterie compare local fedavg --seeds 3`.

    An option of a method goes to every method that has it.
    """
    chosen = list(methods) if "all" in names else list(dict.fromkeys(names))
    if not chosen:
        raise SettingsError(f"no methods: name some of {', '.join(methods)}, or all")
    if seeds < 1:
        raise SettingsError(f"seeds={seeds}: at least 1")
    if resume and out is not None and (out / "settings.toml").is_file():
        raise SettingsError(f"out={out}: holds a single run, not a comparison; choose another folder")
    base = _base(settings, out, resume)
    made = [Settings.of(given, name, base, others=chosen) for name in chosen]
    # All are compared in one world: what the server must hold for one method, it holds for all.
    held = max(one.world.division.server_samples for one, _ in made)
    made = [(one.with_server_samples(held), notes) for one, notes in made]
    _say(dict.fromkeys(note for _, notes in made for note in notes))
    world = made[0][0].world
    if out is not None and not resume:
        require_empty(out)
    place = out or NewFolder(RUNS, f"compare-{_short(world)}-{world.split.name}")
    again = "the same command with --resume --out FOLDER"
    with _stoppable(place, again), following(quiet=as_json) as follower:
        entries = compare([one for one, _ in made], seeds, place, resume, follower.watch)
    first, _ = entries[0]
    _present(place, _title(first.world, len(first.world.population)), entries, as_json)


def _title(world: World, clients: int) -> str:
    return f"{_short(world)}, {world.split.name} split, {clients} clients"


def _present(place: Path | NewFolder, title: str, entries: Sequence[Entry], as_json: bool = False) -> None:
    """Write the page of a comparison and print its table."""
    from coterie.report.comparison import write_comparison
    from coterie.report.tables import comparison_table

    page = (_made(place) or Path()) / "index.html"
    rows = write_comparison(page, title, entries)
    if as_json:
        _print_json([result.summary for _, result in entries])
        return
    title += f", {rows[0].seeds} seeds" if rows[0].seeds > 1 else ""
    print_table(comparison_table(rows, title, console.width if console.is_terminal else None))
    tell("look at", page)


def demo(
    *, out: Annotated[Path | None, _flag("--out", "Folder of the demo; by default a new one called `demo`.")] = None
) -> None:
    """See federated learning on non-IID data happen: 20 clients in 4 hidden groups, methods side by side."""
    if out is not None:
        require_empty(out)
    place = out or NewFolder(Path(), "demo")
    console.print(
        "20 clients hold scanned digits. What nobody tells the methods: there are four groups of clients, "
        "with the digits 0-2, 3-6, 4-9 and 0-9.\n",
        highlight=False,
    )
    with _stoppable(place, "coterie demo, which begins anew"), following() as follower:
        entries = compare(demo_settings(), out=place, watch=follower.watch)
    _present(place, "Digits, 20 clients in 4 hidden groups", entries)


# Looking


def show(
    *runs: Annotated[Path, Parameter(help="Run folders, or folders that hold some, such as `runs`.", json_list=False)],
    as_json: AsJson = False,
) -> None:
    """Print the tables of runs again: of one run, or of several side by side."""
    if not runs:
        raise SettingsError("no runs: name run folders, or folders that hold some")
    stored = [StoredRun.read(folder) for path in runs for folder in _run_folders(path)]
    finished = [run for run in stored if run.summary is not None]
    for run in stored:
        if run.summary is None:
            done, total = run.rounds[-1]["round"] if run.rounds else 0, run.settings["method"].get("rounds", "?")
            place = shlex.quote(str(run.path))
            again = f"to go on: coterie run --resume --out {place}"
            if "task" in run.settings:
                again = f"to go on: coterie deploy resume {place}"
            elif "app" in run.settings:
                again = "it goes on when its Flower app is started again"
            tell(f"{run.path}:", f"{done} of {total} rounds done; {again}", errors if as_json else console)
    if as_json:
        summaries = [run.summary for run in finished]
        _print_json(summaries[0] if len(stored) == 1 and summaries else summaries)
    elif finished:
        _print_runs(finished)


def _print_runs(finished: Sequence[StoredRun]) -> None:
    from coterie.report.tables import compared, comparison_table, run_table, worlds_of

    summaries = [run.summary for run in finished if run.summary is not None]
    if len(summaries) == 1:
        print_table(run_table(summaries[0]))
        return
    tables = [run.settings for run in finished]
    rows = compared(summaries, names_apart(tables), worlds_of(tables))
    width = console.width if console.is_terminal else None
    print_table(comparison_table(rows, f"{len(summaries)} runs", width))


def report(
    *runs: Annotated[Path, Parameter(help="Run folders, or folders that hold some, such as `runs`.", json_list=False)],
    out: Annotated[Path, _flag(["--out", "-o"], "File of the page; an older page is replaced. [report.html]")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, _flag("--title", "What stands at its head.")] = None,
) -> None:
    """Write one page about runs: table, figures, cost, settings, and what each client gained.

    It needs no network, and can be sent to others. More figures are there for runs that were made with `--insights`.
    """
    from coterie.report.page import is_page
    from coterie.report.runs import write_report

    if not runs:
        raise SettingsError("no runs: name run folders, or folders that hold some")
    if out.is_dir() or (out.exists() and not is_page(out)):
        raise SettingsError(f"out={out}: is there already and no page of ours; choose another file")
    stored = [StoredRun.read(folder) for path in runs for folder in _run_folders(path)]
    try:
        names = list(dict.fromkeys(path.absolute().name for path in runs))
        write_report(out, title or (", ".join(names) if len(names) <= 3 else f"{len(stored)} runs"), stored)
    except OSError as error:
        raise SettingsError(f"out={out}: cannot be written ({error.strerror})") from error
    tell("look at", out)


def _run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it and in comparisons in it."""
    if (path / "settings.toml").is_file() or not path.is_dir():
        return [path]
    found = [file.parent for pattern in ("*/settings.toml", "*/*/settings.toml") for file in path.glob(pattern)]
    if not found:
        raise SettingsError(f"{path}: neither a run folder nor a folder that holds some")
    return sorted(found)


_SPLIT = inspect.Parameter(
    "name",
    inspect.Parameter.POSITIONAL_ONLY,
    default=None,
    annotation=Annotated[
        str | None, Parameter(help="The split; `--split` says the same.", group=GROUPS["Split"], show_default=False)
    ],
)


def _split(
    given: dict[str, Any],
    name: str | None = None,
    *,
    out: Annotated[
        Path | None, _flag("--out", "File of the figure (png, svg or pdf); by default `split-NAME.png`.")
    ] = None,
    as_json: Annotated[bool, _flag("--json", "Print the counts as JSON, and draw nothing.")] = False,
) -> None:
    """Show and draw a split before anything is trained: `coterie split dirichlet --alpha 0.1`."""
    if name is not None and given.setdefault("split", name) != name:
        raise SettingsError(f"split: {name} or {given['split']}? Name one")
    if out is not None and out.exists():
        raise SettingsError(f"out={out}: exists already; choose another file")
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise SettingsError(f"out={out}: a file that ends in .png, .svg or .pdf")
    settings, notes = Settings.of(given, "local")
    _say(notes)
    world = settings.world
    with following(quiet=as_json):  # a split may have something to say, e.g. that it is scaled to fit the data
        population = world.population
    if as_json:
        clients = dict(zip(population.names, population.label_counts().tolist(), strict=True))
        groups = None if population.groups is None else population.groups.tolist()
        _print_json({"labels": population.labels, "clients": clients, "groups": groups})
        return
    _draw_split(world, out or free_path(Path(), f"split-{world.split.name}", ".png"))


def _draw_split(world: World, path: Path) -> None:
    from coterie.report.figures import save, split_figure

    population = world.population
    figure = split_figure(population.label_counts(), population.labels, population.names, population.groups)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
    except OSError as error:
        raise SettingsError(f"out={path}: cannot be written ({error.strerror})") from error
    _print_split(world)
    tell("drawn in", path)


def _print_split(world: World) -> None:
    population = world.population
    counts, few = population.label_counts(), population.classes <= 20
    groups = [] if population.groups is None else ["group"]
    labels = list(population.labels) if few else ["labels"]
    sizes = ["train", "validation", "test"]
    title = f"{_title(world, len(population))}, {counts.sum():,} training samples"
    console.print(Text(title, style="bold"))
    table = plain_table(["client", *groups, *sizes, *labels], numeric=[*groups, *sizes, *labels])
    for client, shard in enumerate(population.shards):
        group = [] if population.groups is None else [str(population.groups[client])]
        held = [str(len(part)) for part in (shard.train, shard.validation, shard.test)]
        cells = [str(count or "·") for count in counts[client]] if few else [str(int((counts[client] > 0).sum()))]
        table.add_row(Text(shard.name), *group, *held, *cells)
    print_table(table)


def _say(notes: Iterable[str]) -> None:
    for note in notes:
        tell("note:", note, errors)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error that the user can mend is one message and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _terminable():
            _app(given)(given)
    except (CoterieError, CycloptsError) as error:
        tell("error:", _message(error), errors, style="bold red")
        sys.exit(1 if isinstance(error, ProgramError) else 2)
    except KeyboardInterrupt:
        tell("stopped", "", errors)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has enough of it, e.g. `head`; Python must not try to write the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, by which schedulers end a job, do what Ctrl-C does."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others may not decide about signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _message(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {' '.join(error.unused_tokens or ())!r}: options begin with --, see --help"
    text = str(error)
    return text[:1].lower() + " ".join(text[1:].split()) if isinstance(error, CycloptsError) else text
