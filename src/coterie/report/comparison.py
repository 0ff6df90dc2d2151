"""A page that shows methods side by side."""

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from coterie.lab.comparison import Entry
from coterie.report import page
from coterie.report.figures import clients_figure, curves_figure, split_figure
from coterie.report.tables import Comparison, best_cells, compared, comparison_cells
from coterie.settings import Settings

__all__ = ["write_comparison"]


def write_comparison(path: Path, title: str, entries: Sequence[Entry]) -> list[Comparison]:
    """Write the page of a comparison, and give its rows."""
    rows = compared([result.summary for _, result in entries])
    first, _ = entries[0]
    world = first.world
    curves = {row.name: [r.rounds for s, r in entries if s.method.name == row.name] for row in rows}
    clients = {row.name: next(r.clients for s, r in entries if s.method.name == row.name) for row in rows}
    population = world.population
    header, cells = comparison_cells(rows)
    seeds = f"{rows[0].seeds} seeds, mean ± standard deviation" if rows[0].seeds > 1 else "one seed"
    split = split_figure(population.label_counts(), population.labels, population.names, population.groups)
    lead = (
        f"{world.dataset.name}, {world.split.name} split, {len(population)} clients, net {world.net_name}, "
        f"{first.method.rounds} rounds; {seeds}."
    )
    of_clients = "Each client's accuracy at the end" + (", with the first seed." if rows[0].seeds > 1 else ".")
    page.write_page(
        path,
        title,
        lead,
        [
            ("Methods", page.table(header, cells, best_cells(rows)) + page.paragraph(_EXPLANATION)),
            ("Accuracy over rounds", page.figure(curves_figure(curves), "Mean accuracy of all clients on test data.")),
            ("Every client", page.figure(clients_figure(clients), of_clients)),
            ("The split", page.figure(split, "How many training samples of each label each client has.")),
            ("Settings", "".join(page.code(tomli_w.dumps(s.resolved().table())) for s in _distinct(entries))),
        ],
    )
    return rows


_EXPLANATION = (
    "Accuracy is the mean over clients of what each is served, on its test data; the worst tenth is the mean of "
    "the tenth of the clients that fare worst. Traffic counts what all clients received and sent while training. ARI "
    "compares the groups that were found with the true ones: 1 is perfect, 0 is chance."
)


def _distinct(entries: Sequence[Entry]) -> list[Settings]:
    found = {settings.method.name: settings for settings, _ in reversed(entries)}
    return list(found.values())[::-1]
