"""`coterie compare`: methods in the same world, side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group

from coterie.cli.console import console, following, note, print_json, print_table, tell
from coterie.cli.options import of_methods
from coterie.cli.parameters import KeepModels, command, flag, several, whole
from coterie.cli.run import RUNS, SettingsFile, Track, base_of, headline, made, place_of, short, stoppable
from coterie.core.errors import SettingsError
from coterie.core.fields import at_least, check_range
from coterie.methods import methods
from coterie.report.trackers import trackers_of

if TYPE_CHECKING:
    from coterie.runs.comparison import Entry
    from coterie.runs.experiment import NewFolder
    from coterie.server.fitting import Observer
    from coterie.server.method import Method


def add_compare(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add `coterie compare`, with the options that the arguments behind it need."""
    shown = of_methods(arguments, _compare, slice(None))
    names = several("names", "METHODS", "Methods, or `all` for every one.")
    usage = "Usage: coterie compare METHOD... [OPTIONS]"
    app.command(command(_compare, shown, [names]), name="compare", usage=usage, group=group, sort_key=sort_key)


def _compare(
    given: dict[str, Any],
    *names: str,
    seeds: Annotated[int, flag("How often each method is run, with a seed of its own. [1]", converter=whole)] = 1,
    settings: SettingsFile = None,
    out: Annotated[Path | None, flag("Folder of all runs; by default a new one below `runs/`.", "Output")] = None,
    resume: Annotated[bool, flag("Continue the comparison in `--out`, or begin it.", "Output")] = False,
    keep_models: KeepModels = True,
    track: Track = None,
    as_json: Annotated[
        bool, flag("Print the summaries as a list in JSON, and nothing else.", "Output", "--json")
    ] = False,
) -> None:
    """Run methods in the same world and put them side by side: `coterie compare local fedavg --seeds 3`.

    An option of a method goes to every method that has it. The folder has a page, and the tables in Markdown, LaTeX
    and CSV; from three seeds on with paired tests against FedAvg, if it is among the methods.
    """
    from coterie.runs.options import table_of

    trackers = trackers_of(track)
    chosen = list(methods) if "all" in names else list(dict.fromkeys(names))
    if not chosen:
        raise SettingsError(f"no methods: name some of {', '.join(methods)}, or all")
    check_range("seeds", seeds, at_least(1))
    if resume and out is not None and (out / "settings.toml").is_file():
        raise SettingsError(f"out={out}: holds a single run, not a comparison; choose another folder")
    base = base_of(settings, out, resume)
    understood = [table_of(given, name, base, others=chosen) for name in chosen]  # before torch is imported

    from coterie.runs.comparison import compare
    from coterie.runs.settings import Settings

    complete = [Settings.complete(table, notes) for table, notes in understood]
    # All are compared in one world: what the server must hold for one method, it holds for all.
    held = max(one.world.division.server_samples for one, _ in complete)
    ready = [one.with_server_samples(held) for one, _ in complete]
    note(dict.fromkeys(told for _, notes in complete for told in notes))
    world = ready[0].world
    place = place_of(out, RUNS, f"compare-{short(world)}-{world.split.name}", resume)
    again = "the same command with --resume --out FOLDER"
    with stoppable(place, again), following(quiet=as_json) as follower:
        line = follower.one_line(seeds * len(ready), seeds * sum(one.method.rounds for one in ready))

        def watch(method: "Method", seed: int) -> "Sequence[Observer]":
            return [*line.watch(method, seed), *trackers()]

        entries = compare(ready, seeds, place, resume, watch, keep_models=keep_models)
    first, _ = entries[0]
    present(place, headline(first.world, len(first.world.population)), entries, as_json)


def present(place: "Path | NewFolder", title: str, entries: "Sequence[Entry]", as_json: bool = False) -> None:
    """Write the page and the tables of a comparison, print one of them, and say where the others are."""
    from coterie.report.comparison import TABLES, write_comparison
    from coterie.report.tables import comparison_table

    page = (made(place) or Path()) / "index.html"
    rows = write_comparison(page, title, entries)
    if as_json:
        print_json([result.summary for _, result in entries])
        return
    title += f", {rows[0].seeds} seeds" if rows[0].seeds > 1 else ""
    print_table(comparison_table(rows, title, console.width if console.is_terminal else None))
    tables = page.with_name(TABLES)
    if tables.is_dir():
        tell("tables, tests, LaTeX and CSV:", tables)
    tell("look at", page)
