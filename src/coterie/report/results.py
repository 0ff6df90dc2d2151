"""What a study found, beside what the paper printed: tables whose cells know their runs, and a verdict on each number.

A `ResultTable` is only the content; `coterie.report.printing` writes it for terminals, Markdown, LaTeX and CSV.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product
from math import hypot, sqrt
from typing import Any, Literal

from coterie.runs.folder import StoredRun
from coterie.studies.campaign import Results
from coterie.studies.patterns import fitting
from coterie.studies.statistics import Estimate, PairedTest, Statistic, estimate, holm, over_clients, paired, statistic
from coterie.studies.study import Study, TableSpec

Labels = tuple[str, ...]
"""Labels of axes, in their order."""

METHOD = "method"
"""The axis whose entries are compared with each other."""

SIGNIFICANT = 0.05
"""Probability below which a difference counts as clear, after correction for many comparisons."""

_ERRORS = 2.0
_POINTS = 1.5
"""How far, in standard errors of the difference or in points of a percentage, a number may be from the paper's and
still reproduce it."""


class Verdict(StrEnum):
    """What our runs make of a number of the paper."""

    REPRODUCES = "reproduces"
    DIFFERS = "differs"
    INCOMPARABLE = "not comparable"
    SCALED = "scaled"
    NOT_RUN = "not run"
    LEFT_OUT = "left out"
    NOT_MEASURED = "not measured"
    UNPUBLISHED = "not published"


@dataclass(frozen=True)
class Published:
    """A number as it is printed; without a mean the paper says that it never came to it."""

    mean: float | None
    deviation: float | None = None


@dataclass(frozen=True)
class ResultCell:
    """One number of a table: ours, the paper's, and how they compare. All in the unit of the table."""

    place: Mapping[str, str]
    """The label on each axis."""
    value: str
    """The label of the statistic."""
    ours: Estimate
    published: Published | None
    verdict: Verdict
    mean: float | None
    deviation: float | None
    never: bool = False
    """Whether there are runs, and none of them reached the target whose rounds or bytes are counted."""
    resolution: float = 0.0
    """How finely ours is measured; 0 if it is exact."""
    difference: float | None = None
    """Ours less the paper's, where the two can be compared."""
    within_deviations: bool = False
    """Whether it is as near to the paper's as single runs may be: that wide a spread says little about the means."""
    notes: tuple[str, ...] = ()
    """What must be known about our number."""
    paper_notes: tuple[str, ...] = ()
    """What must be known about the paper's."""
    best: bool = False
    """Whether it is the best of ours among the methods compared."""
    best_published: bool = False
    """Whether the paper's is the best of the paper's among the methods compared."""
    test: PairedTest | None = None
    """Against the reference of the table."""
    probability: float | None = None
    """Of the t-test, corrected for all comparisons of the table."""

    @property
    def clear(self) -> bool:
        """Whether it differs from the reference by more than chance."""
        return self.probability is not None and self.probability < SIGNIFICANT

    @property
    def labels(self) -> Labels:
        """The labels of its place, in the order of the axes."""
        return tuple(self.place.values())


@dataclass(frozen=True)
class ResultTable:
    """A table of a study with its numbers."""

    spec: TableSpec
    axes: tuple[str, ...]
    """All axes of the study."""
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    rows: tuple[Labels, ...]
    columns: tuple[Labels, ...]
    idle: Labels
    """Entries, such as data sets, that are left out because none of their runs is there, while others have runs."""
    hidden: tuple[Labels, ...]
    """Further columns that are left out: none of their runs is there, and the paper has no number in them."""
    cells: Mapping[tuple[Labels, Labels], ResultCell]
    """All cells by the labels of row and column, also those that are not shown."""
    values: Mapping[str, Statistic]
    comparisons: int
    """How many tests were made, and corrected for."""
    pairs: Literal["seeds", "clients"] = "seeds"

    @property
    def shown(self) -> list[ResultCell]:
        """The cells of the rows and columns that are shown."""
        return [self.cells[row, column] for row in self.rows for column in self.columns]

    @property
    def begun(self) -> bool:
        """Whether anything of it was run."""
        return any(cell.ours.tried for cell in self)

    @property
    def has_published(self) -> bool:
        """Whether the paper has any of the numbers that are shown."""
        return any(cell.published for cell in self.shown)

    @property
    def tolerance(self) -> str:
        """When a number reproduces the paper's, in words."""
        errors, least = (
            f"{_ERRORS:g} standard errors of the difference",
            f"{_POINTS:g} points" if self.spec.percent else "rounding",
        )
        judged = [cell for cell in self.shown if cell.verdict in (Verdict.REPRODUCES, Verdict.DIFFERS)]
        steps = sorted(cell.resolution for cell in judged if cell.resolution)
        if not steps:
            return f"within {errors} or {least}"
        ends = dict.fromkeys(f"{step:.{self.spec.digits}f}" for step in (steps[0], steps[-1]))
        return f"within {errors}, {least} or a step between evaluations ({' to '.join(ends)})"

    def __iter__(self) -> Iterator[ResultCell]:
        """All cells, in the order of the study."""
        return iter(self.cells.values())


@dataclass(frozen=True)
class Findings:
    """The runs of a study by cell, as tables look at them."""

    axes: Mapping[str, Sequence[str]]
    """The labels of each axis."""
    runs: Mapping[Labels, Sequence[StoredRun]]
    """The finished runs of each cell, one per seed."""
    seeds: int = 1
    """How many runs a cell should have."""
    left_out: Mapping[Labels, str] = field(default_factory=dict)
    """Cells that the study does not run, and why."""

    @classmethod
    def of(cls, results: Results) -> "Findings":
        """The findings of a campaign."""
        # Where only some cells were asked for, only their entries are shown.
        places = (*results.runs, *results.skipped)
        axes = {
            axis: tuple(label for label in entries if any(place[number] == label for place in places))
            for number, (axis, entries) in enumerate(results.study.axes.items())
        }
        return cls(axes, results.runs, results.seeds, results.skipped)

    def places(self, where: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Every combination of labels that fit the patterns of their axes."""
        for labels in product(*fitting(self.axes, where).values()):
            yield dict(zip(self.axes, labels, strict=True))

    def beside(
        self, place: Mapping[str, str], where: Mapping[str, str], what: Statistic
    ) -> dict[str, Sequence[StoredRun]]:
        """The runs in a place of the methods that fit, and of the one that the statistic names, by their labels."""
        methods = {*fitting(self.axes, where).get(METHOD, ()), what.other}
        labels = [label for label in self.axes.get(METHOD, ()) if label in methods]
        places = {label: tuple({**place, METHOD: label}.values()) for label in labels}
        return {label: self.runs[at] for label, at in places.items() if at in self.runs}


def study_tables(results: Results, pairs: Literal["seeds", "clients"] = "seeds") -> list[ResultTable]:
    """All tables of a study that have any of the cells that were asked for."""
    findings = Findings.of(results)
    return [
        result_table(spec, findings, pairs)
        for spec in results.study.tables
        if all(fitting(findings.axes, spec.where).values())
    ]


def result_table(spec: TableSpec, findings: Findings, pairs: Literal["seeds", "clients"] = "seeds") -> ResultTable:
    """A table of a study. Tests against the reference pair seeds, or clients under the same seed."""
    values = _statistics(spec)
    cells = [
        _cell(spec, findings, place, label, what)
        for place in findings.places(spec.where)
        for label, what in values.items()
    ]
    cells = _tested(spec, findings, _marked(spec, cells), values, pairs)
    row_axes, column_axes = _shown_axes(spec, fitting(findings.axes, spec.where))
    placed = {(_position(cell, row_axes), _position(cell, column_axes)): cell for cell in cells}
    idle = _idle(findings, cells)
    asked = {at: cell for at, cell in placed.items() if _asked(cell) and not idle & {*cell.place.items()}}
    rows = {row for row, _ in asked}
    columns = {column for _, column in asked}
    # Width is scarce: columns without a number are only named, unless there is none anywhere.
    filled = {column for (_, column), cell in asked.items() if _filled(cell)} or columns
    by_column = _order(findings, values, column_axes)
    return ResultTable(
        spec=spec,
        axes=tuple(findings.axes),
        row_axes=row_axes,
        column_axes=column_axes,
        rows=tuple(sorted(rows, key=_order(findings, values, row_axes))),
        columns=tuple(sorted(filled, key=by_column)),
        idle=tuple(label for axis, labels in findings.axes.items() for label in labels if (axis, label) in idle),
        hidden=tuple(sorted(columns - filled, key=by_column)),
        cells=placed,
        values=values,
        comparisons=sum(cell.probability is not None for cell in cells),
        pairs=pairs,
    )


def _asked(cell: ResultCell) -> bool:
    """Whether a cell is part of its study: there is a number to be run or in the paper."""
    return bool(cell.published) or cell.verdict is not Verdict.LEFT_OUT


def _filled(cell: ResultCell) -> bool:
    """Whether a cell shows a number, ours or the paper's."""
    return bool(cell.published) or cell.verdict not in (Verdict.NOT_RUN, Verdict.LEFT_OUT)


def _idle(findings: Findings, cells: Sequence[ResultCell]) -> set[tuple[str, str]]:
    """The axes and entries of which nothing was run, although something was run of other entries.

    Methods are never among them: a table is there to compare them.
    """
    entries = {item for cell in cells for item in cell.place.items() if item[0] != METHOD}
    busy = {item for cell in cells for item in cell.place.items() if findings.runs.get(cell.labels)}
    waiting = {item for cell in cells for item in cell.place.items() if cell.verdict is Verdict.NOT_RUN}
    return (entries & waiting) - busy if busy else set()


def _statistics(spec: TableSpec) -> dict[str, Statistic]:
    """What a table shows, by label."""
    return {label: statistic(text) for label, text in spec.values.items()}


def _shown_axes(spec: TableSpec, axes: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of rows and of columns. Several values are columns by default; an axis that is not named is a row."""
    rows, columns = tuple(spec.rows), tuple(spec.columns)
    shown = {*rows, *columns}
    if len(spec.values) > 1 and "value" not in shown:
        columns += ("value",)
    missing = tuple(axis for axis, labels in axes.items() if axis not in shown and len(labels) > 1)
    return missing + rows, columns


def _position(cell: ResultCell, shown: Sequence[str]) -> Labels:
    return tuple(cell.value if axis == "value" else cell.place[axis] for axis in shown)


def _order(
    findings: Findings, values: Mapping[str, Statistic], shown: Sequence[str]
) -> Callable[[Labels], tuple[int, ...]]:
    """Where labels stand in the study, for sorting."""
    entries = {**findings.axes, "value": tuple(values)}
    ranks = [{label: number for number, label in enumerate(entries[axis])} for axis in shown]
    return lambda labels: tuple(rank[label] for rank, label in zip(ranks, labels, strict=True))


def _name(spec: TableSpec, place: Mapping[str, str], value: str) -> str:
    """What a number is called in the study: the labels, and the value's if there are several."""
    return "/".join((*place.values(), value) if len(spec.values) > 1 else place.values())


def _cell(spec: TableSpec, findings: Findings, place: Mapping[str, str], value: str, what: Statistic) -> ResultCell:
    """A cell of the table, without the marks and tests that depend on other cells."""
    labels, name = tuple(place.values()), _name(spec, place, value)
    printed = spec.published.get(name)
    published = None if printed is None else Published(*printed[:2]) if printed else Published(None)
    runs, left_out = findings.runs.get(labels, ()), findings.left_out.get(labels)
    ours = estimate(what, runs, findings.beside(place, spec.where, what))
    unit = 100.0 if spec.percent else 1.0
    mean, deviation = (None if figure is None else figure * unit for figure in (ours.mean, ours.deviation))
    scaled = _fitting(spec.scaled, name)
    cell = ResultCell(
        place=place,
        value=value,
        ours=ours,
        published=published,
        verdict=Verdict.LEFT_OUT if left_out is not None else Verdict.NOT_RUN,
        mean=mean,
        deviation=deviation,
        never=not ours.count and bool(ours.never),
        resolution=ours.resolution * unit,
        notes=_notes(ours, runs, findings.seeds, scaled) if runs else (left_out,) if left_out else (),
        paper_notes=_fitting(spec.incomparable, name) if published else (),
    )
    return _judged(spec, cell, bool(scaled)) if runs else cell


def _fitting(patterns: Mapping[str, str], name: str) -> tuple[str, ...]:
    found = (why for pattern, why in patterns.items() if name == pattern or fnmatchcase(name, pattern))
    return tuple(dict.fromkeys(found))


def _notes(ours: Estimate, runs: Sequence[StoredRun], seeds: int, scaled: Sequence[str]) -> tuple[str, ...]:
    """What must be known about a number that was run."""
    notes = [f"scaled: {how}" for how in scaled]
    if any((run.summary or {}).get("reads_test_data") for run in runs):
        notes.append("reads test data")
    if ours.tried < seeds:
        notes.append(f"{ours.tried} of {seeds} seeds")
    # If it holds for all runs, the cell itself says so.
    for word, some in {"never": ours.never, "not measured": ours.without}.items():
        if 0 < len(some) < ours.tried:
            notes.append(f"{word} in {len(some)} of {ours.tried} runs")
    return tuple(notes)


def _judged(spec: TableSpec, cell: ResultCell, scaled: bool) -> ResultCell:
    """A cell that was run with its verdict, and with the difference where the two numbers can be compared."""
    paper = cell.published
    if cell.mean is None and not cell.never:
        return replace(cell, verdict=Verdict.NOT_MEASURED)
    if paper is None or cell.paper_notes:
        return replace(cell, verdict=Verdict.UNPUBLISHED if paper is None else Verdict.INCOMPARABLE)
    if cell.mean is None or paper.mean is None:  # one of the two says never, or both
        difference, agree = None, cell.mean is None and paper.mean is None
        loosely = agree
    else:
        difference = cell.mean - paper.mean
        # The deviation of the difference between a run of ours and one of theirs.
        spread = hypot(cell.deviation or 0.0, paper.deviation or 0.0)
        # What is no percentage is allowed what rounding took from the printed number.
        least = max(_POINTS if spec.percent else 0.5 * 10.0**-spec.digits, cell.resolution)
        # Papers rarely say of how many runs their means are: of as many as ours, it is assumed.
        agree, loosely = (
            abs(difference) <= max(_ERRORS * width, least) + 1e-9 for width in (spread / sqrt(cell.ours.count), spread)
        )
    verdict = Verdict.SCALED if scaled else Verdict.REPRODUCES if agree else Verdict.DIFFERS
    return replace(cell, verdict=verdict, difference=difference, within_deviations=loosely)


def _group(cell: ResultCell) -> tuple[Labels, str]:
    """The group in which a cell is compared: all methods in one place, by one value."""
    return tuple(label for axis, label in cell.place.items() if axis != METHOD), cell.value


def _marked(spec: TableSpec, cells: Sequence[ResultCell]) -> list[ResultCell]:
    """The cells with the best of each comparison marked, separately for ours and for the paper's."""
    if not spec.better:
        return list(cells)
    sign = 1.0 if spec.better == "higher" else -1.0

    def best(of: Callable[[ResultCell], float | None], reached: Callable[[ResultCell], float]) -> set[int]:
        found: dict[tuple[Labels, str], dict[int, tuple[float, float]]] = {}
        for number, cell in enumerate(cells):
            figure = of(cell)
            if figure is not None:
                # Numbers that look the same in print are equal.
                found.setdefault(_group(cell), {})[number] = (reached(cell), sign * round(figure, spec.digits))
        compared = [ranks for ranks in found.values() if len(ranks) > 1]
        return {number for ranks in compared for number, rank in ranks.items() if rank == max(ranks.values())}

    # A mean is only over runs that got there: who got there in more of them comes first.
    ours = best(lambda cell: cell.mean, lambda cell: cell.ours.count / (cell.ours.count + len(cell.ours.never)))
    papers = best(lambda cell: cell.published.mean if cell.published else None, lambda cell: 1.0)
    return [replace(cell, best=n in ours, best_published=n in papers) for n, cell in enumerate(cells)]


def _tested(
    spec: TableSpec,
    findings: Findings,
    cells: Sequence[ResultCell],
    values: Mapping[str, Statistic],
    pairs: Literal["seeds", "clients"],
) -> list[ResultCell]:
    """The cells with their tests against the reference, corrected for being many."""
    if not spec.reference:
        return list(cells)
    by_place = {(cell.labels, cell.value): cell for cell in cells}

    def figures(cell: ResultCell) -> Mapping[Any, float]:
        if pairs == "seeds":
            return cell.ours.values
        return over_clients(values[cell.value], findings.runs.get(cell.labels, ()))

    tests = []
    for cell in cells:
        other = by_place.get((tuple({**cell.place, **spec.reference}.values()), cell.value))
        tests.append(None if other is None or other is cell else paired(figures(cell), figures(other)))
    corrected = holm([None if test is None else test.t_test for test in tests])
    return [replace(c, test=t, probability=p) for c, t, p in zip(cells, tests, corrected, strict=True)]


# Whether a study's claim holds


@dataclass(frozen=True)
class Ordering:
    """Whether the paper's method is ahead of a baseline in one place."""

    table: str
    place: Labels
    """The labels of the other axes."""
    value: str
    method: str
    baseline: str
    published: bool | None
    """In the paper; nothing if it does not have both numbers."""
    at_equal_rounds: bool | None
    """In our runs, each with all its rounds."""
    at_equal_steps: bool | None
    """In our runs, where no method had taken more local steps than another."""
    probabilities: tuple[float | None, float | None] = (None, None)
    """Of paired t-tests over seeds, at equal rounds and at equal steps, corrected for all orderings of the table."""


def orderings(spec: TableSpec, findings: Findings, own: Sequence[str], variants: Sequence[str] = ()) -> list[Ordering]:
    """The paper's `own` methods against each other method, but for `variants`, of a table that says what is better.

    A figure of the last round is taken at equal steps too, whether or not the table shows it.
    """
    if not spec.better:
        return []
    sign = 1.0 if spec.better == "higher" else -1.0
    methods = fitting(findings.axes, spec.where).get(METHOD, ())
    compared = [*product((m for m in methods if m in own), (m for m in methods if m not in (*own, *variants)))]
    found: list[Ordering] = []
    raw: list[tuple[float | None, float | None]] = []
    for place in findings.places(spec.where):
        # Each place once, whatever the method in it.
        if not methods or place[METHOD] != methods[0]:
            continue
        others = tuple(label for axis, label in place.items() if axis != METHOD)
        for value, what in _statistics(spec).items():
            if what.name == "equal_steps":
                continue
            beside = findings.beside(place, spec.where, what)
            at_rounds, at_steps = (
                {name: estimate(one, beside[name], beside) for name in beside} if one else {}
                for one in (what, what.at_equal_steps)
            )
            for method, baseline in compared:
                ours, theirs = (
                    spec.published.get(_name(spec, {**place, METHOD: name}, value)) for name in (method, baseline)
                )
                paper = _printed_ahead(ours, theirs, sign)
                rounds, steps = (_ahead(at, method, baseline, sign) for at in (at_rounds, at_steps))
                if paper is not None or rounds[0] is not None:
                    found.append(Ordering(spec.title, others, value, method, baseline, paper, rounds[0], steps[0]))
                    raw.append((rounds[1], steps[1]))
    return _corrected(found, raw)


def _printed_ahead(ours: Sequence[float] | None, theirs: Sequence[float] | None, sign: float) -> bool | None:
    """Whether a printed number is ahead of another; an empty one says never, which is behind every number."""
    if ours is None or theirs is None or not (ours or theirs):
        return None
    return sign * (ours[0] - theirs[0]) > 0 if ours and theirs else bool(ours)


def _ahead(
    figures: Mapping[str, Estimate], method: str, baseline: str, sign: float
) -> tuple[bool | None, float | None]:
    """Whether a method is ahead of a baseline under the seeds that both have, and how likely so by chance.

    Where some runs never get there, who gets there with more of as many seeds is ahead.
    """
    if method not in figures or baseline not in figures:
        return None, None
    ours, theirs = figures[method], figures[baseline]
    equally_many = ours.count + len(ours.never) == theirs.count + len(theirs.never)
    if equally_many and ours.count != theirs.count:
        return ours.count > theirs.count, None
    test = paired(ours.values, theirs.values)
    return (None, None) if test is None else (sign * test.difference > 0, test.t_test)


def _corrected(found: Sequence[Ordering], raw: Sequence[tuple[float | None, float | None]]) -> list[Ordering]:
    columns = [holm([pair[side] for pair in raw]) for side in (0, 1)]
    return [replace(one, probabilities=(rounds, steps)) for one, rounds, steps in zip(found, *columns, strict=True)]


@dataclass(frozen=True)
class Tally:
    """How often a method is ahead of its baselines."""

    ahead: int
    of: int
    clearly: int | None = None
    """How often by more than chance; nothing if there were too few seeds to test."""
    clearly_behind: int | None = None

    def __str__(self) -> str:
        if not self.of:
            return "–"
        tested = "" if self.clearly is None else f" (clearly {self.clearly}, clearly behind {self.clearly_behind})"
        return f"{self.ahead} of {self.of}{tested}"


@dataclass(frozen=True)
class Claim:
    """Whether one of the paper's methods is ahead of its baselines, by one value of a table."""

    table: str
    value: str
    method: str
    published: Tally
    at_equal_rounds: Tally
    at_equal_steps: Tally


@dataclass(frozen=True)
class Summary:
    """What a study comes to."""

    name: str
    verdicts: Mapping[Verdict, int]
    """How many published numbers came to what."""
    unpublished_not_run: int
    """Cells without a published number that were not run either."""
    orderings: tuple[Ordering, ...]
    not_begun: tuple[str, ...] = ()
    """Titles of tables of which nothing was run, though something of others was."""
    within_deviations: int = 0
    """How many published numbers would be reproduced if it were enough to be as near as single runs may be."""

    @property
    def published(self) -> int:
        """How many numbers the paper has."""
        return sum(self.verdicts.values())

    @property
    def claims(self) -> list[Claim]:
        """The orderings, counted by value and method."""
        groups: dict[tuple[str, str, str], list[Ordering]] = {}
        for one in self.orderings:
            groups.setdefault((one.table, one.value, one.method), []).append(one)
        return [
            Claim(
                *key,
                _tally([(one.published, None) for one in group]),
                _tally([(one.at_equal_rounds, one.probabilities[0]) for one in group]),
                _tally([(one.at_equal_steps, one.probabilities[1]) for one in group]),
            )
            for key, group in groups.items()
        ]

    def lines(self) -> list[str]:
        """What became of the published numbers, in sentences."""
        said = []
        if self.published:
            counts = ", ".join(f"{count} {_WORDS[verdict]}" for verdict, count in self.verdicts.items() if count)
            said.append(f"{self.published} published numbers: {counts}.")
        if self.verdicts.get(Verdict.REPRODUCES, 0) + self.verdicts.get(Verdict.DIFFERS, 0):
            said.append(
                f"Reproduced is within {_ERRORS:g} standard errors of the difference of means; "
                f"within {_ERRORS:g} standard deviations of it are {self.within_deviations}."
            )
        if self.unpublished_not_run:
            said.append(f"{self.unpublished_not_run} further cells were not run.")
        if self.not_begun:
            said.append(f"Tables without a run: {'; '.join(self.not_begun)}.")
        return said

    def reversals(self) -> list[str]:
        """Where the paper has its method ahead and our runs have the baseline ahead or level."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for one in self.orderings:
            ours = {"at equal rounds": one.at_equal_rounds, "at equal steps": one.at_equal_steps}
            at = [words for words, ahead in ours.items() if ahead is False]
            if one.published and at:
                where = "/".join((*one.place, one.value))
                found.setdefault((where, one.method, " and ".join(at)), []).append(one.baseline)
        return [
            f"{where}: {method} is not ahead of {', '.join(baselines)} {at}"
            for (where, method, at), baselines in found.items()
        ]


def _tally(states: Sequence[tuple[bool | None, float | None]]) -> Tally:
    known = [(ahead, probability) for ahead, probability in states if ahead is not None]
    clear = [ahead for ahead, probability in known if probability is not None and probability < SIGNIFICANT]
    tested = any(probability is not None for _, probability in known)
    counts = (sum(clear), len(clear) - sum(clear)) if tested else (None, None)
    return Tally(sum(ahead for ahead, _ in known), len(known), *counts)


_WORDS = {
    Verdict.REPRODUCES: "reproduced",
    Verdict.DIFFERS: "different",
    Verdict.INCOMPARABLE: "not comparable",
    Verdict.SCALED: "beside scaled runs",
    Verdict.NOT_RUN: "not run",
    Verdict.LEFT_OUT: "left out",
    Verdict.NOT_MEASURED: "not measured",
}
"""What can become of a published number."""


def own_methods(study: Study) -> tuple[str, ...]:
    """The labels of the methods that are the paper's own: as the study says, or those named like the paper, such as
    `flis-dc` of FLIS, that are no variants."""
    if study.own:
        return study.own
    named = {label: str(options.get("method", "")) for label, options in study.axes[METHOD].items()}
    paper = study.paper.lower()
    like = [label for label, name in named.items() if paper and (name == paper or name.startswith(f"{paper}-"))]
    return tuple(label for label in like if label not in study.variants)


def study_summary(results: Results) -> Summary:
    """What a study comes to: its numbers beside the paper's, and whether the paper's methods are ahead."""
    findings, study = Findings.of(results), results.study
    own = own_methods(study)
    found = [one for spec in study.tables for one in orderings(spec, findings, own, study.variants)]
    return summarised(study.name, study_tables(results), found)


def summarised(name: str, tables: Sequence[ResultTable], found: Sequence[Ordering] = ()) -> Summary:
    """What tables come to."""
    cells = [cell for table in tables for cell in table]
    verdicts = Counter(cell.verdict for cell in cells if cell.published)
    idle = sum(cell.verdict is Verdict.NOT_RUN for cell in cells if not cell.published)
    later = [table.spec.title for table in tables if not table.begun] if any(table.begun for table in tables) else []
    judged = (Verdict.REPRODUCES, Verdict.DIFFERS)
    near = sum(cell.within_deviations for cell in cells if cell.verdict in judged)
    return Summary(name, {verdict: verdicts[verdict] for verdict in _WORDS}, idle, tuple(found), tuple(later), near)
