"""The part of a page about every client: its score, and what it gained over training alone and over one common model.

A score from few test samples says little, and so does a gain: both stand beside their 95 % confidence intervals. Of
more clients than anybody reads there are the distribution and its two ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from coterie.report import page
from coterie.report.figures import Runs, clients_figure
from coterie.report.figures.records import MANY_CLIENTS, Gained, fewest
from coterie.report.figures.scores import gained_over
from coterie.report.page import parts
from coterie.report.score import Score, metrics_of
from coterie.report.sections import drawn
from coterie.runs.folder import StoredRun
from coterie.studies.statistics import Ends

_MANY = 30
"""A table of more clients than this is folded up."""

_AT_ENDS = 20
"""How many clients are shown at either end where there are too many for a table."""

_EQUAL = 1e-9
"""Smaller gains count as none: rounding alone leaves that much."""

_FEW_SHARES = {"least": 0, "most": 100}
_ALL_SHARES = {"least": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "most": 100}
"""What is told of a distribution: below which value how many per cent of the clients are."""

_INTERVALS = (
    "In brackets: the 95 % confidence interval by the number of the client's test samples (Wilson's, and Newcombe's "
    "for gains); with several seeds, by those of one seed. A gain is clear, and bold, if its interval leaves out zero. "
    "Of a hundred clients that gain nothing, up to five have a clear gain or loss by chance."
)

_REDRAWN = (
    "Not all runs have the same split, so a client's name stands for other samples in another one. Gains are taken "
    "inside of a split, and are means over those with the same name."
)

Figures = Mapping[str, tuple[float, Ends | None]]
"""A figure of each client, by name, and its confidence interval if that is known."""

Clients = Mapping[str, Mapping[str, Any]]
"""What is known of each client, by name: `group`, and the least and the most of `samples` and of `test_samples`."""


def every_client(runs: Runs) -> Markup:
    """What each client gets and what it gained over training alone and over FedAvg, if these are among the runs.

    Gains are of the metric by which runs are compared; of the others there is what each client gets.
    """
    first, *others = metrics_of(run.summary for some in runs.values() for run in some if run.summary) or ["accuracy"]
    return _by_score(runs, Score(first)) + Markup().join(_of_other_metric(runs, Score(name)) for name in others)


def _of_other_metric(runs: Runs, score: Score) -> Markup:
    """What each client gets by another metric than the first, folded up."""
    figures = {name: _scores(some, score) for name, some in runs.items()}
    table = _client_table(_clients(runs), figures, score, signed=False)
    return parts.folded(f"{score.title}: every client", table) if table else Markup()


def _by_score(runs: Runs, score: Score) -> Markup:
    """What each client gets by a score, and what it gained."""
    known = _clients(runs)
    many = len(known) > MANY_CLIENTS
    content, bounded = Markup(), False
    for method, words in (("local", "training alone"), ("fedavg", "one model for all")):
        for reference, gained in gained_over(runs, method, score).items():
            figures = {name: {c: (one.value, one.ends) for c, one in each.items()} for name, each in gained.items()}
            bounded = bounded or any(one.ends for each in gained.values() for one in each.values())
            content += parts.heading(f"Gain over {words} ({reference}), in {score.points}")
            content += _verdict(gained, score, many) + _client_table(known, figures, score, signed=True)
    if content:
        content = drawn("gain", runs, _caption(score, many, bounded), key=score.key) + content
    figures = {name: _scores(some, score) for name, some in runs.items()}
    table = _client_table(known, figures, score, signed=False)
    if table:
        heading = f"{score.title.removesuffix(score.unit)} of every client{score.unit}"
        if many:
            content += parts.heading(heading) + _distribution(runs, figures, score) + table
        else:
            content += parts.folded(heading, table) if content else parts.heading(heading) + table
    notes = [_INTERVALS] if bounded else []
    return content + parts.paragraphs(*notes, *([_REDRAWN] if content and _differ(known) else []))


def _caption(score: Score, many: bool, bounded: bool) -> str:
    caption = f"What each client gained over other methods, in {score.points}."
    if many:
        return f"What clients gained over other methods, in {score.points}, from those that gained least to the others."
    return f"{caption} Hollow: its 95 % confidence interval has zero in it, it may be chance." if bounded else caption


def _clients(runs: Runs) -> dict[str, dict[str, Any]]:
    """What all runs say of every client; its true group only if it is the same in all."""
    found: dict[str, dict[str, Any]] = {}
    for client in (client for some in runs.values() for run in some for client in run.clients):
        seen = found.setdefault(client["client"], {"group": client["true_group"]})
        seen["group"] = seen["group"] if seen["group"] == client["true_group"] else None
        for key in ("samples", "test_samples"):
            if (count := client.get(key)) is not None:
                low, high = seen.get(key, (count, count))
                seen[key] = min(low, count), max(high, count)
    return found


def _differ(known: Clients) -> bool:
    """Whether some client has not the same number of samples in all runs."""
    return any(client["samples"][0] < client["samples"][1] for client in known.values())


def _scores(some: Sequence[StoredRun], score: Score) -> dict[str, tuple[float, Ends | None]]:
    """Each client's score, mean over seeds."""
    values: dict[str, list[float]] = {}
    samples: dict[str, list[int | None]] = {}
    for client in (client for run in some for client in run.clients if client.get(score.key) is not None):
        values.setdefault(client["client"], []).append(client[score.key])
        samples.setdefault(client["client"], []).append(client.get("test_samples"))
    means = {name: float(np.mean(found)) for name, found in values.items()}
    return {name: (mean, score.ends(mean, fewest(samples[name]))) for name, mean in means.items()}


def _client_table(known: Clients, columns: Mapping[str, Figures], score: Score, signed: bool) -> Markup:
    """A row for every client, or of many for those at the ends, and figures by method; a click on a header sorts."""
    columns = {name: figures for name, figures in columns.items() if figures}
    if not columns:
        return Markup()
    if len(known) <= MANY_CLIENTS:
        table = _rows(known, known, columns, score, signed)
        return parts.folded(f"All {len(known)} clients", table) if signed and len(known) > _MANY else table
    values = {name: [found[name][0] for found in columns.values() if name in found] for name in known}
    order = sorted((name for name in known if values[name]), key=lambda name: score.sign * np.mean(values[name]))
    by = " by the mean over methods" if len(columns) > 1 else ""
    ends = {"worst": order[:_AT_ENDS], "best": order[: -_AT_ENDS - 1 : -1]}
    return Markup().join(
        parts.folded(f"The {len(names)} clients that fare {end}{by}", _rows(known, names, columns, score, signed))
        for end, names in ends.items()
    )


def _rows(
    known: Clients, names: Sequence[str] | Clients, columns: Mapping[str, Figures], score: Score, signed: bool
) -> Markup:
    counts = {"samples": "samples", "test_samples": "test samples"}
    counts = {key: words for key, words in counts.items() if any(key in client for client in known.values())}
    grouped = any(client["group"] is not None for client in known.values())
    rows, meant, clear = [], [], []
    for name in names:
        client, figures = known[name], [found.get(name) for found in columns.values()]
        group = client["group"]
        numbers = [client.get(key) for key in counts]
        rows.append([name, *(["–" if group is None else str(group)] if grouped else []), *map(_span, numbers)])
        rows[-1] += [_bounded(figure, score, signed) for figure in figures]
        meant.append([name, *([group] if grouped else []), *(span and span[1] for span in numbers)])
        meant[-1] += [figure and figure[0] for figure in figures]
        clear.append([False] * (len(rows[-1]) - len(figures)) + [signed and _is_clear(figure) for figure in figures])
    header = ["client", *(["group"] if grouped else []), *counts.values(), *columns]
    return parts.table(header, rows, clear, values=meant)


def _span(ends: tuple[int, int] | None) -> str:
    return "–" if ends is None else str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def _bounded(figure: tuple[float, Ends | None] | None, score: Score, signed: bool) -> str:
    """A figure with its interval in brackets."""
    if figure is None or figure[1] is None:
        return score.text(figure and figure[0], signed)
    low, high = (score.text(end, signed) for end in figure[1])
    return f"{score.text(figure[0], signed)} ({low} to {high})"


def _is_clear(figure: tuple[float, Ends | None] | None) -> bool:
    return figure is not None and Gained(*figure).clear


def _verdict(gained: Mapping[str, Mapping[str, Gained]], score: Score, many: bool) -> Markup:
    """How many clients are better and worse off with each method, and how many of them clearly."""
    rows, meant = [], []
    bounded = any(one.ends for values in gained.values() for one in values.values())
    shares = _ALL_SHARES if many else _FEW_SHARES
    for name, values in gained.items():
        figures = np.array([one.value for one in values.values()])
        clear = np.array([one.clear for one in values.values()])
        shown, counts = [], []
        for side in (score.sign, -score.sign):
            among = side * figures > _EQUAL
            told = f"{among.sum()} of {len(figures)}" if side == score.sign else f"{among.sum()}"
            shown += [told, *([str((among & clear).sum())] if bounded else [])]
            counts += [int(among.sum()), *([int((among & clear).sum())] if bounded else [])]
        last = [float(figures.mean()), *map(float, np.percentile(figures, [*shares.values()]))]
        rows.append([name, *shown, *(score.text(value, signed=True) for value in last)])
        meant.append([name, *counts, *last])
    sides = ["better off", *(["clearly"] if bounded else []), "worse off", *(["clearly"] if bounded else [])]
    return parts.table(["method", *sides, "mean", *shares], rows, values=meant)


def _distribution(runs: Runs, scores: Mapping[str, Figures], score: Score) -> Markup:
    """The scores of many clients, as a curve and as a table for each method."""
    rows = []
    for name, figures in scores.items():
        values = [figure for figure, _ in figures.values()]
        ends = [np.mean(values), *np.percentile(values, [*_ALL_SHARES.values()])] if values else []
        rows.append([name, *(score.text(float(end)) for end in ends)])
    curves = clients_figure({name: some[0].clients for name, some in runs.items()}, score)
    caption = f"The {score.word} of all clients at the end, from the lowest to the highest. First seed."
    return page.figure(curves, caption) + parts.table(["method", "mean", *_ALL_SHARES], rows)
