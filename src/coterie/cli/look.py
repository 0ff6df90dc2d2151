"""What there is: `coterie show` and `coterie report` for runs, `coterie split` for the data of clients."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from rich.text import Text

from coterie.cli.console import console, errors, following, note, plain_table, print_json, print_table, tell
from coterie.cli.options import ask, needed, world_options
from coterie.cli.parameters import GROUPS, Shown, argument, command, flag
from coterie.cli.run import AsJson, headline, settings_of
from coterie.core.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np

    from coterie.data.population import Population
    from coterie.runs.folder import StoredRun
    from coterie.runs.settings import World


def show(
    *runs: Annotated[Path, Parameter(help="Run folders, or folders that hold some, such as `runs`.", json_list=False)],
    as_json: AsJson = False,
) -> None:
    """Print the tables of runs again: of one run, or of several side by side."""
    _require_some(runs)
    stored = _stored(runs)
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
        print_json(summaries[0] if len(stored) == 1 and summaries else summaries)
    elif finished:
        _print_runs(finished)


def _print_runs(finished: "Sequence[StoredRun]") -> None:
    from coterie.report.tables import compared, comparison_table, run_table, worlds_of
    from coterie.runs.identity import names_apart

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
    out: Annotated[
        Path, flag("File of the page; an older page is replaced. [report.html]", "Output", ["--out", "-o"])
    ] = Path("report.html"),
    title: Annotated[str | None, flag("What stands at its head.", "Output")] = None,
) -> None:
    """Write one page about runs: table, figures, cost, settings, and what each client gained.

    It needs no network, and can be sent to others. More figures are there for runs that were made with `--insights`.
    """
    _require_some(runs)

    from coterie.report.page import is_page
    from coterie.report.runs import write_report

    if out.is_dir() or (out.exists() and not is_page(out)):
        raise SettingsError(f"out={out}: is there already and no page of ours; choose another file")
    stored = _stored(runs)
    try:
        names = list(dict.fromkeys(path.absolute().name for path in runs))
        write_report(out, title or (", ".join(names) if len(names) <= 3 else f"{len(stored)} runs"), stored)
    except OSError as error:
        raise SettingsError(f"out={out}: cannot be written ({error.strerror})") from error
    tell("look at", out)


def schema(
    data: Annotated[Path, Parameter(help="A table (CSV or Parquet), or a folder with one per client.")],
    *,
    target: Annotated[str, flag("Column that is predicted.")],
    client: Annotated[str, flag("Column that tells clients apart.")] = "",
    drop: Annotated[str, flag("Columns that are left out, with commas between.")] = "",
    task: Annotated[str, flag("What is predicted, if the targets do not show it.")] = "",
    out: Annotated[Path | None, flag("File of the schema; by default called as the data.", "Output")] = None,
) -> None:
    """Write down what the columns of a table are, for sites that have such tables and for `coterie deploy init`.

    The file names columns, categories and labels, and holds no row.
    """
    from coterie.data.tables import from_table

    place = out or Path(f"{data.stem}.toml")
    if place.exists():
        raise SettingsError(f"out={place}: exists already; choose another file")
    made = from_table(data, target, client, [name.strip() for name in drop.split(",") if name.strip()], task).schema
    assert made is not None
    table = plain_table(("column", "type", "categories", "missing values"))
    for column in made.columns:
        words = (column.name, column.type, ", ".join(column.categories), "marked by an input" if column.missing else "")
        table.add_row(*map(Text, words))
    print_table(table)
    tell("target:", f"{made.target}, {made.task} ({', '.join(made.labels)})")
    try:
        made.write(place)
    except OSError as error:
        raise SettingsError(f"out={place}: cannot be written ({error.strerror})") from error
    tell("written to", place)


def _require_some(runs: Sequence[Path]) -> None:
    if not runs:
        raise SettingsError("no runs: name run folders, or folders that hold some")


def _stored(paths: Sequence[Path]) -> "list[StoredRun]":
    """The runs in folders, or in folders that hold some."""
    from coterie.runs.folder import StoredRun
    from coterie.runs.options import import_modules

    stored = [StoredRun.read(folder) for path in paths for folder in _run_folders(path)]
    for run in stored:
        try:
            import_modules(run.settings)
        except SettingsError as error:  # then what it says of itself must do
            note([f"{run.path}: what its own method or split is by default is not known: {error}"])
    return stored


def _run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it and in comparisons in it."""
    if (path / "settings.toml").is_file() or not path.is_dir():
        return [path]
    found = [file.parent for pattern in ("*/settings.toml", "*/*/settings.toml") for file in path.glob(pattern)]
    if not found:
        raise SettingsError(f"{path}: neither a run folder nor a folder that holds some")
    return sorted(found)


def add_split(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add `coterie split`, with the options that the arguments behind it need."""
    shown = [] if arguments is None else split_options(arguments)
    said = {"help": "The split; `--split` says the same.", "group": GROUPS["Split"], "show_default": False}
    name = argument("name", str | None, None, **said)
    app.command(command(_split, shown, [name]), name="split", group=group, sort_key=sort_key)


def split_options(arguments: Sequence[str]) -> list[Shown]:
    """The options that `coterie split` needs; a word names the split."""
    asked = ask(arguments, _split)
    if asked.words:
        asked = replace(asked, values={"split": asked.words[0], **asked.values})
    unneeded = ("Scoring", "Computing")
    world = world_options(asked)
    world = [item for item in world if item.group.name not in unneeded and item.name not in ("net", "arrivals")]
    return needed(world, asked, _split)


def _split(
    given: dict[str, Any],
    name: str | None = None,
    *,
    out: Annotated[
        Path | None, flag("File of the figure (png, svg or pdf); by default `split-NAME.png`.", "Output")
    ] = None,
    as_json: Annotated[bool, flag("Print the counts as JSON, and draw nothing.", "Output", "--json")] = False,
) -> None:
    """Show and draw a split before anything is trained: `coterie split dirichlet --alpha 0.1`."""
    if name is not None and given.setdefault("split", name) != name:
        raise SettingsError(f"split: {name} or {given['split']}? Name one")
    if out is not None and out.exists():
        raise SettingsError(f"out={out}: exists already; choose another file")
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise SettingsError(f"out={out}: a file that ends in .png, .svg or .pdf")
    world = settings_of(given, "local").world

    from coterie.runs.experiment import free_path

    with following(quiet=as_json):  # a split may have something to say, e.g. that it is scaled to fit the data
        population = world.population
    labels, counts = _label_counts(population)
    if as_json:
        clients = dict(zip(population.names, counts.tolist(), strict=True))
        groups = None if population.groups is None else population.groups.tolist()
        print_json({"labels": labels, "clients": clients, "groups": groups})
        return
    _draw_split(world, out or free_path(Path(), f"split-{world.split.name}", ".png"))


def _draw_split(world: "World", path: Path) -> None:
    from coterie.report.figures import save, split_figure

    population = world.population
    labels, counts = _label_counts(population)
    figure = split_figure(counts, labels, population.names, population.groups)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
    except OSError as error:
        raise SettingsError(f"out={path}: cannot be written ({error.strerror})") from error
    _print_split(world)
    tell("drawn in", path)


def _label_counts(population: "Population") -> "tuple[Sequence[str], np.ndarray]":
    """Labels, and how often each client has each; without classes to count, how many samples it trains on."""
    import numpy as np

    if population.task.one_class:
        return population.labels, population.label_counts()
    return ("samples",), np.array([[len(shard.train)] for shard in population.shards])


def _print_split(world: "World") -> None:
    population = world.population
    names, counts = _label_counts(population)
    few, groups = len(names) <= 20, [] if population.groups is None else ["group"]
    labels = (list(names) if few else ["labels"]) if population.task.one_class else []
    sizes = ["train", "validation", "test"]
    title = f"{headline(world, len(population))}, {counts.sum():,} training samples"
    console.print(Text(title, style="bold"))
    table = plain_table(["client", *groups, *sizes, *labels], numeric=[*groups, *sizes, *labels])
    for client, shard in enumerate(population.shards):
        group = [] if population.groups is None else [str(population.groups[client])]
        held = [str(len(part)) for part in (shard.train, shard.validation, shard.test)]
        cells = [str(count or "·") for count in counts[client]] if few else [str(int((counts[client] > 0).sum()))]
        table.add_row(Text(shard.name), *group, *held, *cells[: len(labels)])
    print_table(table)
