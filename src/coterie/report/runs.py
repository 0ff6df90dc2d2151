"""A page about stored runs, whatever they are: `coterie report`."""

from collections.abc import Sequence
from pathlib import Path

from coterie.core.errors import SettingsError
from coterie.report import page, sections
from coterie.report.clients import every_client
from coterie.report.figures import style
from coterie.report.page import Section
from coterie.report.tables import same_outcome
from coterie.report.verdict import verdict
from coterie.runs.folder import StoredRun
from coterie.runs.identity import names_apart


def by_name(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Runs by what sets them apart but for their seed, each seed once, in the order given."""
    found: dict[str, dict[int, StoredRun]] = {}
    for name, run in zip(names_apart([run.settings for run in runs]), runs, strict=True):
        found.setdefault(name, {}).setdefault(run.settings.get("seed", 0), run)
    return {name: list(seeds.values()) for name, seeds in found.items()}


def write_report(path: Path, title: str, stored: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Write a page about the runs that are finished, and give these by name; it says which are not."""
    finished = [run for run in stored if run.summary is not None and "ledger" in run.summary]
    if not finished:
        raise SettingsError("no run is finished: there is nothing to report yet")
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = by_name(finished)
    open_ones = [
        f"{run.path.name} ({run.rounds[-1]['round'] if run.rounds else 0} rounds done)"
        for run in stored
        if run.summary is None
    ]
    notes = [f"Not finished, and not on this page: {', '.join(open_ones)}."] if open_ones else []
    notes += _differing(finished, runs)
    with style.same_looks(runs):
        table = sections.methods_table(runs) + page.parts.paragraphs(*notes)
        content = [
            Section("Methods" if len(runs) > 1 else "The run", table),
            Section("Every client", every_client(runs), folded=True),
            Section("Figures", sections.figures(runs)),
            Section("The split", sections.split(runs), folded=True),
            Section("What it cost", sections.costs(runs), folded=True),
            Section("Settings", sections.settings({name: some[0].settings for name, some in runs.items()})),
        ]
        page.write_page(path, title, _lead(runs), content, verdict(runs), sections.main_figure(runs))
    return runs


def _differing(finished: Sequence[StoredRun], shown: dict[str, list[StoredRun]]) -> list[str]:
    """What to say of runs that are not shown because another one has their settings and seed, but other results."""
    said = []
    for name, run in zip(names_apart([run.settings for run in finished]), finished, strict=True):
        first = next(one for one in shown[name] if one.settings.get("seed", 0) == run.settings.get("seed", 0))
        if not same_outcome(first.summary or {}, run.summary or {}):
            words = f"{run.path} has the settings and the seed of {first.path}, but other results"
            said.append(f"{words}: it is not on this page.")
    return said


def _lead(runs: dict[str, list[StoredRun]]) -> str:
    """What all runs have in common."""
    everything = [run.summary for some in runs.values() for run in some if run.summary is not None]
    facts = []
    for key, words in (
        ("data", "{}"),
        ("split", "{} split"),
        ("clients", "{} clients"),
        ("net", "net {}"),
        ("rounds", "{} rounds"),
    ):
        values = {summary.get(key) for summary in everything}
        if len(values) == 1 and None not in values:
            facts.append(words.format(*values))
    seeds = {len(some) for some in runs.values()}
    most = max(seeds)
    over = "one seed" if most == 1 else f"{most} seeds, mean ± standard deviation"
    return f"{', '.join(facts)}; {over if len(seeds) == 1 else f'up to {over}'}."
