"""Tables for the terminal."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from coterie.report.score import called_as, decimals, is_lower_better, is_share, metric_word, metrics_of
from coterie.report.words import COLUMNS
from coterie.runs.identity import world_of
from coterie.server.metrics import metric_in

Summary = Mapping[str, Any]


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.{digits}f}"


def megabytes(amount: float) -> str:
    """Bytes, in the unit that reads best."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if round(amount / size, 1) >= 1:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B"


def run_table(summary: Summary) -> Table:
    """One run: its last round beside its best."""
    best, (first, *others) = summary["best_round"], metrics_of([summary])
    percents = all(map(is_share, (first, *others)))
    table = ruled(_title(summary))
    table.add_column("over clients, %" if percents else "over clients")
    table.add_column("last round", justify="right", style="bold")
    table.add_column(f"best on validation (round {best['round']})" if best else "best on validation", justify="right")
    worst, top = ("max", "min") if is_lower_better(first) else ("min", "max")
    rows = [
        (metric_word(first), f"{first}_mean", f"{first}_std"),
        ("worst tenth of clients", f"{first}_worst_tenth", None),
        ("worst client", f"{first}_{worst}", None),
        ("best client", f"{first}_{top}", None),
    ]
    # Other views and the global test set are judged by the task's own metric.
    for one in (first, *others):
        of = "" if one == first else f", {metric_word(one)}"
        rows += [
            (f"after local adaptation{of}", f"{one}_adapted_mean", None),
            (f"last trained model{of}", f"{one}_last_mean", None),
            (f"global test set{of}", f"global_{one}_mean", None),
        ]
    rows.append(("validation", f"validation_{first}", None))
    rows += [(metric_word(one), f"{one}_mean", f"{one}_std") for one in others]
    if others or first != "accuracy":
        rows += [(f"{metric_word(one)} of all samples together", f"pooled_{one}", None) for one in (first, *others)]
    for label, key, deviation in rows:
        if summary.get(key) is not None:
            label += ", %" if is_share(key) and not percents else ""
            there = best is not None and key in best
            table.add_row(label, _cell(summary, key, deviation), _cell(best, key, deviation) if there else "–")
    table.add_section()
    for label, value in _facts(summary):
        table.add_row(label, value, "")
    return table


def ruled(title: str) -> Table:
    """A table with rules only above, below the header and below, as in print: narrow, and calm to look at."""
    style = {"title_justify": "left", "title_style": "bold", "header_style": "dim", "padding": (0, 1, 0, 0)}
    return Table(title=Text(title), box=box.HORIZONTALS, pad_edge=False, **style)  # type: ignore[arg-type]


def _title(summary: Summary) -> str:
    parts = [
        summary["method"] + _warning(summary),
        summary.get("data"),
        summary.get("split"),
        f"{summary['clients']} clients",
    ]
    frozen = f" and {summary['frozen_parameters']:,} frozen" if "frozen_parameters" in summary else ""
    parts += [summary.get("net"), f"{summary['parameters']:,} parameters{frozen}"]
    return " · ".join(str(part) for part in parts if part)


def _warning(summary: Summary) -> str:
    """What must stand beside the name of a method that looks at test data."""
    return " (reads test data)" if summary.get("reads_test_data") else ""


def _cell(record: Summary, key: str, deviation: str | None) -> str:
    spread = record[deviation] if deviation else None
    return figure_text(key, record[key], spread)


def figure_text(key: str, value: float | None, deviation: float | None = None) -> str:
    """A figure as it is printed, with its deviation if there is one, both with as many decimals."""
    if value is None or not np.isfinite(value):
        return "–"
    digits, factor = (1, 100) if is_share(key) else (decimals(value), 1)
    return " ± ".join(f"{factor * one:.{digits}f}" for one in (value, deviation) if one is not None)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    facts = []
    if idle := summary.get("never_took_part"):
        first, *_ = metrics_of([summary])
        unit = " %" if is_share(first) else ""
        own, others = (figure_text(first, idle[key]) + unit for key in (f"{first}_mean", f"others_{first}_mean"))
        facts.append(("clients that never took part", f"{idle['clients']}: {own}, others {others}"))
    if summary.get("groups") is not None:
        facts.append(("groups", str(summary["groups"])))
    if summary.get("ari") is not None:
        facts.append(("agreement with the truth", f"ARI {summary['ari']:.2f}"))
        facts.append(("clients placed right", f"{summary['placed_right']} of {summary['clients']}"))
    facts.append(("sent to / by clients", f"{megabytes(summary['bytes_down'])} / {megabytes(summary['bytes_up'])}"))
    if summary["bytes_peer"]:
        facts.append(("between clients", megabytes(summary["bytes_peer"])))
    facts.append(("time", f"{summary['seconds']:.1f} s"))
    return facts


@dataclass(frozen=True)
class Comparison:
    """One method, or one kind of run, over its seeds."""

    name: str
    seeds: int
    figures: Mapping[str, tuple[float, float] | None]
    """Mean and deviation over seeds, by key of the summary."""
    world: Any = None
    """Where it was run: only rows of the same world are compared, so each world has a best one."""
    left_out: int = 0
    """How many runs are not counted because another run has their seed, with other results."""

    def mean(self, key: str) -> float | None:
        """The mean over seeds, if it was measured."""
        figure = self.figures.get(key)
        return None if figure is None else figure[0]


def compared(
    summaries: Sequence[Summary], names: Sequence[str] | None = None, worlds: Sequence[Any] | None = None
) -> list[Comparison]:
    """Methods with their figures over seeds, the best by their first metric first.

    With `names`, one for each summary, runs of the same name are taken together instead of those of the same method.
    With `worlds`, also one for each, only runs of the same one can be compared (see `worlds_of`), by default those with
    data and split of the same name. Of the same seed given twice, the first counts: it is the same run.
    """
    by_name: dict[str, dict[int, Summary]] = {}
    where: dict[str, Any] = {}
    left_out: Counter[str] = Counter()
    names = names or [summary["method"] for summary in summaries]
    worlds = worlds or [(summary.get("data"), summary.get("split")) for summary in summaries]
    for name, summary, world in zip(names, summaries, worlds, strict=True):
        name += _warning(summary)
        first = by_name.setdefault(name, {}).setdefault(summary["seed"], summary)
        left_out[name] += not same_outcome(first, summary)
        where.setdefault(name, world)
    rows, columns = [], _columns(metrics_of(summaries) or ["accuracy"])
    for name, seeds in by_name.items():
        runs = [{**run, "bytes": run["bytes_down"] + run["bytes_up"] + run["bytes_peer"]} for run in seeds.values()]
        figures = {key: over_seeds([run.get(key) for run in runs]) for key in columns}
        rows.append(Comparison(name, len(runs), figures, where[name], left_out[name]))
    leading, sign = columns[0], 1 if is_lower_better(columns[0]) else -1
    return sorted(rows, key=lambda row: (row.mean(leading) is None, sign * (row.mean(leading) or 0)))


def _columns(metrics: Sequence[str]) -> list[str]:
    """The keys of all columns: what there is of the first metric, the means of the others, and what is no score."""
    scores = [key for key in COLUMNS if metric_in(key)]
    (mean, tenth), views = scores[:2], scores[2:]
    own = [key.replace("accuracy", name, 1) for name in metrics for key in views]
    of_first = [key.replace("accuracy", metrics[0], 1) for key in (mean, tenth)]
    others = [mean.replace("accuracy", name, 1) for name in metrics[1:]]
    return [*of_first, *others, *own, *(key for key in COLUMNS if key not in scores)]


def _headers(rows: Sequence[Comparison], keys: Sequence[str]) -> list[str]:
    """What columns are called; those that are not of the first metric say of which."""
    first = metric_in(next(iter(rows[0].figures), "")) if rows else ""
    headers = []
    for key in keys:
        text, name = called_as(key, COLUMNS) or key, metric_in(key)
        if name and not is_share(key):
            text = text.removesuffix(" %")
        if name != first and metric_word(name) not in text:
            text = f"{text.removesuffix(' %')} {metric_word(name)}" + (" %" if is_share(key) else "")
        headers.append(text)
    return headers


def same_outcome(one: Summary, other: Summary) -> bool:
    """Whether two runs have the same results, whatever time they took."""
    return _outcome(one) == _outcome(other)


def _outcome(summary: Summary) -> dict[str, Any]:
    return {
        key: _outcome(value) if isinstance(value, Mapping) else value
        for key, value in summary.items()
        if key != "seconds"
    }


def worlds_of(settings: Sequence[Mapping[str, Any]]) -> list[int]:
    """The number of each run's data and split among those that there are."""
    found: dict[Hashable, int] = {}
    return [found.setdefault(world_of({**table, "seed": None, "net": None}), len(found)) for table in settings]


def over_seeds(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and deviation of a sample, of what was measured: 0 is the deviation of one value, None both of no value."""
    known = [value for value in values if value is not None]
    return (float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else 0.0) if known else None


_EXPENDABLE = (
    *("seconds", "groups", "accuracy_last_mean", "accuracy_adapted_mean"),
    *("bytes", "ari", "global_accuracy_mean", "accuracy_worst_tenth"),
)
"""Columns that are left out, in this order, where the terminal is too narrow for all."""

_BEFORE_OTHERS = 4
"""After so many of them means of other metrics than the first are left out, the last one first."""


def comparison_cells(rows: Sequence[Comparison], without: Collection[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a comparison, as text."""
    columns = [key for key in _shown(rows) if key not in without]
    cells = [[row.name, *(_comparison_cell(row, key) for key in columns)] for row in rows]
    return ["method", *_headers(rows, columns)], cells


def _shown(rows: Sequence[Comparison]) -> list[str]:
    """The columns that at least one method has a figure for."""
    return [key for key in (rows[0].figures if rows else ()) if any(row.mean(key) is not None for row in rows)]


def _comparison_cell(row: Comparison, key: str) -> str:
    """One figure of a method, with its deviation over seeds if there are several."""
    figure = row.figures.get(key)
    if figure is None:
        return "–"
    mean, deviation = figure
    if key == "bytes":
        return megabytes(mean)
    if key == "seconds":
        return f"{mean:.1f}"
    if key == "groups":
        return f"{mean:.1f}".removesuffix(".0")
    if key == "ari":
        return f"{mean:.2f}" + (f" ± {deviation:.2f}" if row.seeds > 1 else "")
    return figure_text(key, mean, deviation if row.seeds > 1 else None)


def comparison_table(rows: Sequence[Comparison], title: str, width: int | None = None) -> Table:
    """Methods side by side, the most accurate first; the best of each accuracy in a world is bold.

    Where that is wider than `width`, headers are broken and columns left out, but no figure is; the caption says what
    is missing.
    """
    layouts = list(_layouts(rows))
    fitting = [layout for layout in layouts if width is None or _width(*layout[1:]) <= width]
    without, header, cells = (fitting or layouts[-1:])[0]
    table = ruled(title)
    notes = [f"no room for: {', '.join(_headers(rows, without))}"] if without else []
    notes += [
        f"not shown: {row.left_out} run{'s' if row.left_out > 1 else ''} of {row.name} "
        f"with a seed that is here already, and with other results"
        for row in rows
        if row.left_out
    ]
    if notes:
        table.caption = Text("\n".join(notes))
        table.caption_justify = "left"
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for line, marks in zip(cells, best_cells(rows, without), strict=True):
        table.add_row(*(Text(cell, style="bold" if mark else "") for cell, mark in zip(line, marks, strict=True)))
    return table


def _layouts(rows: Sequence[Comparison]) -> Iterator[tuple[list[str], list[str], list[list[str]]]]:
    """Columns that are left out, header and cells of a comparison: as it is, and in narrower and narrower forms."""
    yield [], *comparison_cells(rows)
    expendable = _expendable(_shown(rows))
    for count in range(len(expendable) + 1):
        header, cells = comparison_cells(rows, expendable[:count])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        broken = [wrap(name, width, break_long_words=False) for name, width in zip(header, widths, strict=True)]
        yield expendable[:count], ["\n".join(lines) for lines in broken], cells


def _expendable(shown: Sequence[str]) -> list[str]:
    """The columns that may be left out, in the order in which they are: all but the mean of the first metric."""
    like = {key: key.replace(metric_in(key), "accuracy", 1) if metric_in(key) else key for key in shown}
    others = [key for key in shown[1:] if like[key] == "accuracy_mean"]
    ordered = [key for least in _EXPENDABLE for key in shown if like[key] == least]
    place = sum(like[key] in _EXPENDABLE[:_BEFORE_OTHERS] for key in ordered)
    return [*ordered[:place], *reversed(others), *ordered[place:]]


def _width(header: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """How wide a table is, with two spaces between columns and one at either side."""
    columns = zip(header, *cells, strict=True)
    return sum(max(len(line) for cell in column for line in cell.split("\n")) + 2 for column in columns)


def best_cells(rows: Sequence[Comparison], without: Collection[str] = ()) -> list[list[bool]]:
    """Which cells are the best of their column in their world, if others are in it, by what its metric calls better."""
    columns = [key for key in _shown(rows) if key not in without]
    return [[False, *(_is_best(row, key, rows) for key in columns)] for row in rows]


def _is_best(row: Comparison, key: str, rows: Sequence[Comparison]) -> bool:
    if not (metric_in(key) or key == "ari"):
        return False
    beside = [other for other in rows if other.world == row.world]
    means = [mean for other in beside if (mean := other.mean(key)) is not None]
    if len(beside) < 2 or not means:
        return False
    lower = is_lower_better(key)
    best = min(means) if lower else max(means)
    return (lower or bool(best)) and row.mean(key) == best
