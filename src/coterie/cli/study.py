"""`coterie reproduce` and `coterie study`: experiments of papers and own ones, from a file to tables and figures."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from rich.console import Console

from coterie.cli.arguments import behind
from coterie.cli.console import console, errors, following, plain_table, print_table, tell
from coterie.cli.options import ask, methods_options, needed, world_options
from coterie.cli.parameters import KeepModels, Shown, command, flag, several, whole
from coterie.cli.run import Track
from coterie.core.errors import SettingsError
from coterie.core.fields import WITHOUT_EFFECT, at_least, check_range
from coterie.core.files import write_whole
from coterie.report.trackers import trackers_of

if TYPE_CHECKING:
    from coterie.report.studies import Report
    from coterie.server.fitting import Observer
    from coterie.studies.campaign import Campaign, Outcome
    from coterie.studies.study import Study, StudyTask

RESULTS = Path("results")
"""Where results go if nobody says where."""

_WIDE = 200
"""Characters in a line where there is no terminal."""

_ABOUT_STUDY = """Your own experiments, run as those of papers are: axes, tables and figures in a TOML file.

`coterie study new FILE` writes one to start from, `coterie study run FILE` runs it.
"""


def add_reproduce(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add `coterie reproduce`, with the options that the arguments behind it need."""
    text = "Recipes (`autocfl/table1`), papers (`autocfl`) or patterns; without any they are listed."
    made = command(_reproduce, _options(arguments, _reproduce), [several("names", "NAMES", text)])
    usage = "Usage: coterie reproduce [RECIPE...] [OPTIONS]"
    app.command(made, name="reproduce", usage=usage, group=group, sort_key=sort_key)


def add_study(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add all commands of `coterie study`."""
    study = App(name="study", help=_ABOUT_STUDY, help_format="markdown", group=group, sort_key=sort_key)
    shown = _options(behind("run", arguments or ()), _run_study)
    study.command(command(_run_study, shown, [several("files", "FILES", "Study files.")]), name="run")
    study.command(new)
    app.command(study)


def _options(arguments: Sequence[str] | None, function: Callable[..., Any]) -> list[Shown]:
    """The options of runs that the arguments behind a command need, and those that the help shows."""
    if arguments is None:
        return []
    world = world_options()
    every = world + methods_options(world)
    # Any option can be given to try something else; shown are those that change no result.
    shown = [replace(item, visible=item.option.effect is WITHOUT_EFFECT) for item in every]
    return needed(shown, ask(arguments, function), function)


Seeds = Annotated[int | None, flag("How often every cell is run; by default as the study says.", converter=whole)]
Only = Annotated[
    str | None,
    flag(
        "Only some cells: `method=flis-dc,setting=*`, patterns by axis. Several of one axis are alternatives: "
        "`method=local,method=fedavg`. A comma is part of a label unless an axis and `=` follow.",
    ),
]
TimeLimit = Annotated[float | None, flag("Minutes after which it stops; the same command goes on where it stopped.")]
Out = Annotated[Path, flag("Folder of all results, shared by all studies. [results]", "Output")]
Show = Annotated[bool, flag("Run nothing: tables and figures of what there is.", "Output")]


def _reproduce(
    given: dict[str, Any],
    *names: str,
    seeds: Seeds = None,
    only: Only = None,
    time_limit: TimeLimit = None,
    out: Out = RESULTS,
    show: Show = False,
    keep_models: KeepModels = False,
    track: Track = None,
) -> None:
    """Run the experiments of the papers and put the numbers beside theirs: `coterie reproduce autocfl/table1`.

    Without names, all recipes are listed. What is interrupted goes on when the same command is given again, and runs
    that are finished are not repeated; the same command in several processes shares the work. Folders of results from
    several machines are merged by copying them into each other. Options of runs, such as `--rounds`, count more than
    those of the recipes; tables say so then.
    """
    if not names:
        _list()
        return
    _check(seeds, time_limit)

    from coterie.papers import recipes

    _carry_out(recipes.find(names), given, seeds, only, time_limit, out, show, keep_models, track)


def _run_study(
    given: dict[str, Any],
    *files: str,
    seeds: Seeds = None,
    only: Only = None,
    time_limit: TimeLimit = None,
    out: Out = RESULTS,
    show: Show = False,
    keep_models: KeepModels = False,
    track: Track = None,
) -> None:
    """Run studies from files: `coterie study run mine.toml`. It goes on where it stopped, as `coterie reproduce`."""
    if not files:
        raise SettingsError("no study: name study files; `coterie study new FILE` writes one to start from")
    _check(seeds, time_limit)

    from coterie.papers import recipes

    studies = [recipes.study(Path(file)) for file in files]
    _carry_out(studies, given, seeds, only, time_limit, out, show, keep_models, track)


def _check(seeds: int | None, time_limit: float | None) -> None:
    """Refuse numbers out of range before torch is imported."""
    check_range("seeds", seeds, at_least(1))
    if time_limit is not None and time_limit <= 0:
        raise SettingsError(f"time_limit={time_limit}: minutes, above 0")


def new(file: Annotated[Path, Parameter(help="The file to write.")]) -> None:
    """Write a study to start from, with everything explained."""
    from coterie.papers import recipes

    try:
        if file.exists():
            raise SettingsError(f"{file}: exists already; choose another file")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, recipes.template())
    except OSError as error:
        raise SettingsError(f"{file}: cannot be written ({error.strerror}); choose another file") from error
    tell("written to", file)
    tell("run it with", f"coterie study run {file}")


def _list() -> None:
    from coterie.papers import recipes

    table = plain_table(["recipe", "what", "data", "runs", "cost"], numeric=["runs"])
    for name in recipes.names():
        study = recipes.recipe(name)
        runs = study.seeds * sum(not cell.skip for cell in study.cells())
        table.add_row(name, f"{study.place}: {study.title}", ", ".join(study.data), f"{runs:,}", study.cost)
    print_table(table)


def _carry_out(
    studies: "Sequence[Study]",
    given: dict[str, Any],
    seeds: int | None,
    only: str | None,
    time_limit: float | None,
    out: Path,
    show: bool,
    keep_models: bool,
    track: str | None,
) -> None:
    """Run what is missing, and show what there is."""
    from coterie.report.studies import check_figures, check_folder, write_study
    from coterie.studies.campaign import Campaign, Outcome

    trackers = trackers_of(track)
    studies = _with_cells(_distinct(studies), only)
    for study in studies:
        check_figures(study)
    campaign = Campaign(out, given, keep_models)
    tasks = [task for study in studies for task in campaign.tasks(study, seeds, only)]
    check_folder(out)
    pending = campaign.pending(tasks)
    distinct = len({task.name for task in tasks})
    outcome = Outcome()
    stopped = False
    try:
        if not show:
            outcome = _run(campaign, pending, time_limit, trackers)
    except KeyboardInterrupt:
        stopped = True
    for study in studies:
        with following(quiet=True):  # a figure that cannot be drawn says so
            report = write_study(campaign.results(study, seeds, only), out)
        _show(report)
    left = len(campaign.pending(tasks))
    tell("runs:", f"{distinct - left} of {distinct} are done; tables and figures are in {out}")
    for name, why in outcome.failed.items():
        tell(f"{name}:", f"failed: {why}", errors, style="bold red")
    if outcome.busy:
        tell("busy:", f"other processes are at work on {outcome.busy} runs", errors)
    if stopped or outcome.time_up:
        tell("stopped:", "the same command goes on from here", errors)
    if stopped or outcome.failed:
        sys.exit(130 if stopped else 1)


def _distinct(studies: "Sequence[Study]") -> "list[Study]":
    """Each study once; an error if one would overwrite what another has written."""
    from coterie.report.studies import stem

    found: dict[str, Study] = {}
    for study in studies:
        name = stem(study)
        if found.setdefault(name, study) != study:
            raise SettingsError(
                f"two studies are called {name}: their tables and pages would overwrite each other; "
                "rename one, or run each with an --out of its own"
            )
    return list(found.values())


def _with_cells(studies: "Sequence[Study]", only: str | None) -> "list[Study]":
    """The studies that have some of the cells that are asked for; the others are named. An error if there is none."""
    without: dict[str, SettingsError] = {}
    for study in studies:
        try:
            study.cells(only)
        except SettingsError as error:
            without[study.name] = error
    if len(without) == len(studies):
        raise next(iter(without.values()))
    if without:
        tell("skipped:", f"{', '.join(without)}: no cell fits --only {only}", errors)
    return [study for study in studies if study.name not in without]


def _show(report: "Report") -> None:
    from coterie.report.printing import summary_terminal, terminal

    wide = console if console.is_terminal else Console(width=_WIDE)
    for table in report.shown:
        wide.print(terminal(table, wide.width))
    if report.tables:
        wide.print(summary_terminal(report.summary))


def _run(
    campaign: "Campaign",
    pending: "Sequence[StudyTask]",
    time_limit: float | None,
    trackers: "Callable[[], Sequence[Observer]]",
) -> "Outcome":
    from coterie.runs.folder import StoredRun
    from coterie.runs.settings import Settings

    rounds = [task.settings.method.rounds for task in pending if isinstance(task.settings, Settings)]
    with following() as follower:
        line = follower.together(len(rounds), sum(rounds))

        def watch(task: "StudyTask") -> "Sequence[Observer]":
            folder = campaign.folder(task)
            begun = StoredRun.read(folder).rounds if (folder / "settings.toml").is_file() else []
            return [*line.watch(begun[-1]["round"] if begun else 0), *trackers()]

        return campaign.carry_out(pending, None if time_limit is None else 60 * time_limit, watch)
