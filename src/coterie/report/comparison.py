"""A page that shows methods side by side."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from coterie.report import page, sections
from coterie.report.clients import every_client
from coterie.report.figures import clients_figure, split_figure
from coterie.report.figures.records import MANY_CLIENTS
from coterie.report.tables import Comparison, compared
from coterie.runs.comparison import Entry
from coterie.runs.folder import StoredRun


def write_comparison(path: Path, title: str, entries: Sequence[Entry]) -> list[Comparison]:
    """Write the page of a comparison, and give its rows."""
    rows = compared([result.summary for _, result in entries])
    first, _ = entries[0]
    world, population = first.world, first.world.population
    runs: dict[str, list[StoredRun]] = {}
    for settings, result in entries:
        table = settings.resolved().table()
        records = (result.summary, result.rounds, result.clients, result.groups, result.insights)
        runs.setdefault(settings.method.name, []).append(StoredRun(path.parent, table, *records))
    runs = {name: runs[name] for row in rows if (name := row.name.removesuffix(" (reads test data)"))}
    seeds = f"{rows[0].seeds} seeds, mean ± standard deviation" if rows[0].seeds > 1 else "one seed"
    split = split_figure(population.label_counts(), population.labels, population.names, population.groups)
    lead = (
        f"{world.dataset.name}, {world.split.name} split, {len(population)} clients, net {world.net_name}, "
        f"{first.method.rounds} rounds; {seeds}."
    )
    of_clients = "Each client's accuracy at the end" + (", with the first seed." if rows[0].seeds > 1 else ".")
    of_each = clients_figure({name: some[0].clients for name, some in runs.items()})
    every = page.figure(of_each, of_clients) if len(population) <= MANY_CLIENTS else Markup()
    page.write_page(
        path,
        title,
        lead,
        [
            ("Methods", sections.methods_table(runs)),
            ("Every client", every + every_client(runs)),
            ("Figures", sections.figures(runs)),
            ("The split", page.figure(split, sections.split_caption(runs))),
            ("What it cost", sections.costs(runs)),
            ("Settings", sections.settings({name: some[0].settings for name, some in runs.items()})),
        ],
    )
    return rows
