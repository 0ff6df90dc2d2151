"""What is written of methods side by side: a page, and the tables with their tests that studies have too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from coterie.report import page, printing, sections
from coterie.report.clients import every_client
from coterie.report.figures import clients_figure, split_figure, style
from coterie.report.figures.records import MANY_CLIENTS
from coterie.report.page import Section
from coterie.report.score import Score, called_as, first_score, is_lower_better, is_share, metrics_of
from coterie.report.studies import write_tables
from coterie.report.tables import Comparison, compared
from coterie.report.verdict import verdict
from coterie.report.words import COLUMNS
from coterie.runs.comparison import Entry, run_folder
from coterie.runs.folder import StoredRun
from coterie.studies.campaign import Results
from coterie.studies.study import Study, TableSpec

TABLES = "tables"
"""The folder of the tables, beside the page."""

_NAME = "comparison"
"""What the tables' files are called."""


def write_comparison(path: Path, title: str, entries: Sequence[Entry]) -> list[Comparison]:
    """Write the page of a comparison and the tables beside it, and give the rows of the page's table."""
    rows = compared([result.summary for _, result in entries])
    first, _ = entries[0]
    world, population = first.world, first.world.population
    runs: dict[str, list[StoredRun]] = {}
    for settings, result in entries:
        table = settings.resolved().table()
        records = (result.summary, result.rounds, result.clients, result.groups, result.insights)
        folder = run_folder(path.parent, settings)
        runs.setdefault(settings.method.name, []).append(StoredRun(folder, table, *records))
    tables = write_tables(_results(title, runs), path.parent / TABLES).tables
    runs = {name: runs[name] for row in rows if (name := row.name.removesuffix(" (reads test data)"))}
    seeds = f"{rows[0].seeds} seeds, mean ± standard deviation" if rows[0].seeds > 1 else "one seed"
    score = first_score(result.summary for _, result in entries)
    split = Markup()
    if population.task.one_class:
        drawn = split_figure(population.label_counts(), population.labels, population.names, population.groups)
        split = page.figure(drawn, sections.split_caption(runs))
    lead = (
        f"{world.dataset.name}, {world.split.name} split, {len(population)} clients, net {world.net_name}, "
        f"{first.method.rounds} rounds; {seeds}."
    )
    tested = Markup().join(printing.html(table) for table in tables if table.comparisons)
    with style.same_looks(runs):
        of_clients = f"Each client's {score.word} at the end" + (", with the first seed." if rows[0].seeds > 1 else ".")
        of_each = clients_figure({name: some[0].clients for name, some in runs.items()}, score)
        every = page.figure(of_each, of_clients) if len(population) <= MANY_CLIENTS else Markup()
        content = [
            Section("Methods", sections.methods_table(runs)),
            Section("More than chance?", tested),
            Section("Every client", every + every_client(runs), folded=True),
            Section("Figures", sections.figures(runs)),
            Section("The split", split, folded=True),
            Section("What it cost", sections.costs(runs), folded=True),
            Section("Settings", sections.settings({name: some[0].settings for name, some in runs.items()})),
        ]
        page.write_page(path, title, lead, content, verdict(runs), sections.main_figure(runs))
    return rows


def _results(title: str, runs: Mapping[str, Sequence[StoredRun]]) -> Results:
    """A comparison as the results of a study with methods as its only axis; FedAvg is what others are tested against.

    It needs no check: its methods have been run.
    """
    summaries = [run.summary or {} for some in runs.values() for run in some]
    reference = {"method": "fedavg"} if "fedavg" in runs and len(runs) > 1 else {}
    tables = [table for name in metrics_of(summaries) if (table := _table(name, title, summaries, reference))]
    axes = {"method": {name: {"method": name} for name in runs}}
    seeds = max(map(len, runs.values()))
    study = Study(_NAME, title, axes, seeds=seeds, tables=tuple(tables))
    return Results(study, seeds, {(name,): list(some) for name, some in runs.items()}, {})


def _table(
    metric: str, title: str, summaries: Sequence[Mapping[str, Any]], reference: Mapping[str, str]
) -> TableSpec | None:
    """The table of a metric, if runs have it: its mean, and whatever else of it they have."""
    keys = [key.replace("accuracy", metric, 1) for key in COLUMNS if "accuracy" in key]
    measured = [key for key in keys if any(one.get(key) is not None for one in summaries)]
    values = {(called_as(key, COLUMNS) or key).removesuffix(" %"): key for key in measured}
    if not values:
        return None
    percent = is_share(metric)
    better: Literal["higher", "lower"] = "lower" if is_lower_better(metric) else "higher"
    return TableSpec(
        f"{Score(metric).title}: {title}",
        values,
        ("method",),
        ("value",),
        percent=percent,
        better=better,
        reference=reference,
        digits=1 if percent else 3,
    )
