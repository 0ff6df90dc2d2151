"""The parts of a page about runs: their table, figures, what it cost, the settings; `clients` has one more."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w
from markupsafe import Markup

from coterie.core.links import linked
from coterie.methods import methods
from coterie.report import page
from coterie.report.figures import NotRecordedError, Runs, kinds
from coterie.report.figures.records import MANY_CLIENTS
from coterie.report.figures.relations import MOST_MIXED, mixed_over_time
from coterie.report.page import parts
from coterie.report.score import Score, first_score, metrics_of
from coterie.report.tables import best_cells, compared, comparison_cells, megabytes, worlds_of
from coterie.report.verdict import leader
from coterie.report.words import DIRECTIONS, KINDS
from coterie.runs.folder import StoredRun
from coterie.runs.identity import world_of

_EXPLANATION = (
    "{} is the mean over clients of what each is served, on its test data{}; the worst tenth is the mean of "
    "the tenth of the clients that fare worst. Traffic counts what all clients received and sent while training. ARI "
    "compares the groups that were found with the true ones: 1 is perfect, 0 is chance."
)


_APART = "Not all runs have the same data and split: the best are those among runs that have."


def methods_table(runs: Runs) -> Markup:
    """The runs side by side, the most accurate first."""
    known = [(name, run, run.summary) for name, some in runs.items() for run in some if run.summary is not None]
    worlds = worlds_of([run.settings for _, run, _ in known])
    rows = compared([summary for *_, summary in known], [name for name, *_ in known], worlds)
    header, cells = comparison_cells(rows)
    apart = [_APART] if len(set(worlds)) > 1 else []
    told = [Score(name) for name in metrics_of(summary for *_, summary in known)]
    lower = ", ".join(score.word for score in told if score.sign < 0)
    explained = _EXPLANATION.format(told[0].title.removesuffix(", %"), f" (lower is better: {lower})" if lower else "")
    return parts.table(header, cells, best_cells(rows)) + parts.paragraphs(explained, *apart)


# Figures


def main_figure(runs: Runs) -> Markup:
    """What each client gains with the method by which clients fare best, over training alone or one model for all."""
    best, score = leader(runs), first_score(run.summary for some in runs.values() for run in some if run.summary)
    for reference, words in (("local", "training alone"), ("fedavg", "one model for all")):
        told = f"What each client gains with {best} over {words}, in {score.points}, from the client that gains least."
        sure = (
            "Lines are 95 % confidence intervals by the number of a client's test samples; hollow dots may be chance."
        )
        caption = f"{told} {sure}" if score.counted else told
        shown = drawn("ranked", runs, caption, method=best, over=reference, key=score.key)
        if shown:
            return shown
    return Markup()


_MATRIX: tuple[str, dict[str, Any], str] = (
    "matrix",
    {},
    "How far clients are from each other, or how alike, as methods have found it.",
)


def _figures_of(runs: Runs) -> list[tuple[str, dict[str, Any], str]]:
    """The figures of the runs' metrics: kinds, options and captions."""
    summaries = [run.summary for some in runs.values() for run in some if run.summary]
    first, *others = metrics_of(summaries) or ["accuracy"]
    spread = [first, *([f"global_{first}"] if any(f"global_{first}_mean" in summary for summary in summaries) else [])]
    over_rounds = "Mean {} of all clients on test data; the area is a standard deviation over seeds."
    over_bytes = {"key": f"{first}_mean", "over": "bytes", "log": True}
    return [
        ("curves", {"key": f"{first}_mean"}, over_rounds.format(Score(first).word)),
        ("curves", over_bytes, "The same against what was sent while training."),
        ("spread", {"of": spread}, "From the worst client to the best at the end, with the mean; means over seeds."),
        *(("curves", {"key": f"{one}_mean"}, over_rounds.format(Score(one).word)) for one in others),
    ]


def figures(runs: Runs) -> Markup:
    """All figures for which the runs have records."""
    shown = [*_figures_of(runs), _MATRIX, *((kind.name, {}, kind.caption) for kind in linked("page_figures")())]
    content = [drawn(kind, runs, caption, **options) for kind, options, caption in shown]
    mixed = {name: some for name, some in runs.items() if some and _mixes(some[0])}
    content.append(drawn("mixing", mixed, "Whose models each client's is mixed of; a row for each client. First seed."))
    if any(len(run.clients) > MOST_MIXED for some in runs.values() for run in some):
        content.append(parts.paragraphs(f"Who mixes with whom is shown of at most {MOST_MIXED:,} clients."))
    return Markup().join(content)


_SPLITS = 6
"""How many splits a page has room for."""


def split(runs: Runs) -> Markup:
    """The splits of the first seed, each once."""
    shown: dict[str, Sequence[StoredRun]] = {}
    worlds: set[Hashable] = set()
    for name, some in runs.items():
        # Only to save work: the figure draws equal splits once, but has to make each of them to compare them.
        own = [world_of(run.settings) for run in some]
        if worlds.isdisjoint(own):
            shown[name] = some
            worlds.update(own[:1])
    several = " A split that several runs have is called by the first of them." if len(shown) > 1 else ""
    if len(shown) > _SPLITS:
        several += f" Of {len(shown)} splits, {_SPLITS} are shown."
        shown = dict(list(shown.items())[:_SPLITS])
    return drawn("labels", shown, f"{split_caption(runs)}{several}")


def split_caption(runs: Runs) -> str:
    """What is shown of the split: of many clients distributions."""
    if any(len(run.clients) > MANY_CLIENTS for some in runs.values() for run in some):
        return "How many training samples clients have, and how many labels occur in them."
    return "How much each client has of each label in its training data."


def drawn(kind: str, runs: Runs, caption: str, **options: Any) -> Markup:
    """A figure with its caption, or nothing where the runs have no record for it."""
    try:
        return page.figure(kinds.make(kind, **options).draw(runs), caption)
    except NotRecordedError:
        return Markup()


def _mixes(run: StoredRun) -> bool:
    """Whether in some round clients got different mixes, other than each its own model."""
    for _, matrix in mixed_over_time(run):
        known = matrix[~np.isnan(matrix).any(axis=1)]
        alone = len(known) == len(matrix) and np.array_equal(known, np.eye(len(known)))
        if len(known) and not alone and not np.allclose(known, known[0]):
            return True
    return False


# What it cost


def costs(runs: Runs) -> Markup:
    """What was sent by direction and kind, and what clients gave away by that."""
    rows = []
    for name, some in runs.items():
        ledgers = [run.summary["ledger"] for run in some if run.summary is not None]
        steps = np.mean([run.summary["clients"] * run.summary["rounds"] for run in some if run.summary is not None])
        for direction, words in DIRECTIONS.items():
            for kind in sorted({kind for ledger in ledgers for kind in ledger.get(direction, {})}):
                mean = float(np.mean([ledger.get(direction, {}).get(kind, 0) for ledger in ledgers]))
                if direction != "evaluation":
                    what = f"{words}: {KINDS.get(kind, kind)}"
                    rows.append([name, what, megabytes(mean), megabytes(mean / steps)])
        scoring = float(np.mean([sum(ledger.get("evaluation", {}).values()) for ledger in ledgers]))
        rows.append([name, f"{DIRECTIONS['evaluation']}, which is no part of the method", megabytes(scoring), ""])
    if not rows:
        return Markup()
    told = [f"{name}: {words}" for name, some in runs.items() if (words := _given_away(some))]
    table = parts.table(["method", "what was sent", "in all", "per client and round"], _once(rows), kind="few")
    away = parts.heading("What a client gives away") + parts.paragraphs(*told) if told else ""
    return table + away + parts.paragraphs("All about a method, also who learns what: coterie methods NAME.")


def _once(rows: Iterable[list[str]]) -> list[list[str]]:
    """The rows, with an empty first cell where it would repeat that of the row above."""
    shown, last = [], None
    for first, *rest in rows:
        shown.append(["" if first == last else first, *rest])
        last = first
    return shown


def _given_away(some: Sequence[StoredRun]) -> str:
    """What a client gives away: as the method declares it, or else what it sent."""
    name = some[0].settings.get("method", {}).get("name", "") if some else ""
    if name in methods and methods[name].gives_away:
        return f"A client gives away {methods[name].gives_away}."
    sent = (some[0].summary or {}).get("ledger", {}) if some else {}
    kinds_sent = [KINDS.get(kind, kind) for direction in ("up", "peer") for kind in sent.get(direction, {})]
    return f"it sends {', '.join(dict.fromkeys(kinds_sent))}." if kinds_sent else "nothing: it sends nothing."


# Settings


def settings(tables: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Everything that decides the runs, folded up."""
    folded = (parts.folded(name, parts.code(tomli_w.dumps(dict(table)))) for name, table in tables.items())
    return Markup().join(folded)
