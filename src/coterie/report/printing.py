"""Tables of results as text: for terminals of any width, Markdown, LaTeX (booktabs), HTML and CSV.

All but CSV show the same layout: for each column our number, the paper's and the difference, with signs for how they
compare, letters for footnotes, and remarks below.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise, takewhile
from string import ascii_lowercase

from markupsafe import Markup
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from coterie.report.page import parts
from coterie.report.results import SIGNIFICANT, Labels, Published, ResultCell, ResultTable, Summary, Verdict
from coterie.report.tables import ruled
from coterie.report.words import axis_and_label
from coterie.studies.study import COLUMNS, OF_PAPERS

_SIGNS = {Verdict.REPRODUCES: "≈", Verdict.DIFFERS: "≠", Verdict.INCOMPARABLE: "n/c"}


_FIELDS = 12
"""How many numbers a line of a document has room for; a wider table is continued below."""


@dataclass(frozen=True)
class Entry:
    """One field of a table as it is shown."""

    text: str
    bold: bool = False
    notes: str = ""
    """Letters of footnotes, with commas between."""
    star: bool = False
    """Whether it differs from the reference by more than chance."""


@dataclass(frozen=True)
class TableLayout:
    """A table as it is shown, whatever it is written in."""

    stub: tuple[str, ...]
    """The names of the axes whose labels name the rows."""
    head: tuple[Labels, ...]
    """What each field's column is called, outermost first."""
    blocks: tuple[range, ...]
    """Which fields belong together: our number, the paper's and the difference."""
    rows: tuple[tuple[Labels, tuple[Entry, ...]], ...]
    footnotes: tuple[tuple[str, str], ...]
    """Letters and what they stand for."""
    remarks: tuple[str, ...]
    """What holds for the whole table."""

    @property
    def levels(self) -> int:
        """How many lines the header has."""
        return len(self.head[0]) if self.head else 0

    def lines(self) -> Iterator[tuple[Labels, tuple[Entry, ...]]]:
        """The rows, without the labels that are the same as in the row above."""
        labels, entries = zip(*self.rows, strict=True) if self.rows else ((), ())
        return zip(_said_once(labels), entries, strict=True)

    def spans(self, level: int) -> list[tuple[str, int]]:
        """The labels of a level of the header, and how many fields each is above."""
        groups = groupby(self.head, key=lambda labels: labels[: level + 1])
        return [(labels[-1], len([*fields])) for labels, fields in groups]

    def headings(self) -> list[Labels]:
        """What each field is called, without the labels that the field to its left has too."""
        return [*_said_once(self.head)]

    def part(self, fields: range) -> "TableLayout":
        """This table with only some of its fields."""
        rows = tuple((labels, entries[fields.start : fields.stop]) for labels, entries in self.rows)
        blocks = tuple(
            range(max(block.start, fields.start) - fields.start, min(block.stop, fields.stop) - fields.start)
            for block in self.blocks
            if block.start < fields.stop and block.stop > fields.start
        )
        return replace(self, head=self.head[fields.start : fields.stop], rows=rows, blocks=blocks)

    def parts(self) -> "list[TableLayout]":
        """Parts that are narrow enough for a page; fields with the same outermost label stay together if possible."""
        outermost = [len([*fields]) for _, fields in groupby(self.head, key=lambda labels: labels[0])]
        pieces: list[range] = []
        for start, count in zip(accumulate(outermost, initial=0), outermost, strict=False):
            inside = [block for block in self.blocks if start <= block.start < start + count]
            pieces += [range(start, start + count)] if count <= _FIELDS else inside
        return [self.part(fields) for fields in _joined(pieces, lambda fields: len(fields) <= _FIELDS)]

    def begins_group(self, number: int) -> bool:
        """Whether a row is the first of the next group of rows."""
        return len(self.stub) > 1 and number > 0 and self.rows[number][0][0] != self.rows[number - 1][0][0]


def _shared(labels: Labels, others: Labels) -> int:
    """How many labels are the same from the first on."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(labels, others, strict=False))])


def _said_once(several: Iterable[Labels]) -> Iterator[Labels]:
    """Each of several labellings, with blanks for what it shares with the one before; the last label always stands."""
    above: Labels = ()
    for labels in several:
        same = _shared(labels[:-1], above)
        yield ("",) * same + labels[same:]
        above = labels


def _joined(pieces: Sequence[range], fits: Callable[[range], bool]) -> Iterator[range]:
    """Neighbouring pieces joined, as many as fit together, and at least one."""
    start = 0
    for piece, following in pairwise([*pieces, None]):
        assert piece is not None
        if following is None or not fits(range(start, following.stop)):
            yield range(start, piece.stop)
            start = piece.stop


def layout(table: ResultTable) -> TableLayout:
    """A table of results as it is shown."""
    common = _common_notes(table)
    listed = [note for cell in table.shown for note in (*cell.notes, *cell.paper_notes) if note not in common]
    letters = {note: _letter(number) for number, note in enumerate(dict.fromkeys(listed))}
    fields = [(column, part) for column in table.columns for part in _parts(table, column)]
    rows = []
    for row in table.rows:
        shown = ((table.cells[row, column], part) for column, part in fields)
        rows.append((row, tuple(_entry(table, cell, part, letters) for cell, part in shown)))
    head = [_heading(table, column, part) for column, part in fields]
    counted = groupby(range(len(fields)), key=lambda number: fields[number][0])
    blocks = [[*numbers] for _, numbers in counted]
    return TableLayout(
        stub=table.row_axes,
        head=tuple(head),
        blocks=tuple(range(block[0], block[-1] + 1) for block in blocks),
        rows=tuple(rows),
        footnotes=tuple((letter, note) for note, letter in letters.items()),
        remarks=tuple(_remarks(table, common)),
    )


def _letter(number: int) -> str:
    """a to z, then aa, ab ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


def _common_notes(table: ResultTable) -> list[str]:
    """The notes that hold for all of our numbers: they are said once, below the table."""
    ours = [cell.notes for cell in table if cell.mean is not None or cell.never]
    return [note for note in ours[0] if all(note in notes for notes in ours)] if len(ours) > 1 else []


def _parts(table: ResultTable, column: Labels) -> tuple[str, ...]:
    published = any(table.cells[row, column].published for row in table.rows)
    return ("ours", "paper", "difference") if published else ("ours",)


def _heading(table: ResultTable, column: Labels, part: str) -> Labels:
    named = tuple(map(axis_and_label, table.column_axes, column))
    labels = named or tuple(table.values)[:1]
    return (*labels, part) if table.has_published else labels


def _entry(table: ResultTable, cell: ResultCell, part: str, letters: dict[str, str]) -> Entry:
    notes = ",".join(
        letters[note] for note in {"ours": cell.notes, "paper": cell.paper_notes}.get(part, ()) if note in letters
    )
    if part == "ours":
        unfinished = (Verdict.NOT_RUN, Verdict.LEFT_OUT, Verdict.NOT_MEASURED)
        text = (
            cell.verdict.value if cell.verdict in unfinished else _figure(cell.mean, cell.deviation, table.spec.digits)
        )
        return Entry(text, cell.best, notes, cell.clear)
    if part == "paper":
        paper = cell.published
        text = "–" if paper is None else _figure(paper.mean, paper.deviation, table.spec.digits)
        return Entry(text, cell.best_published, notes)
    signed = "" if cell.difference is None else _signed(cell.difference, table.spec.digits)
    return Entry(" ".join(part for part in (signed, _SIGNS.get(cell.verdict, "")) if part) or "–")


def _figure(mean: float | None, deviation: float | None, digits: int) -> str:
    if mean is None:
        return "never"
    text = _signed(mean, digits).removeprefix("+")
    return text if deviation is None else f"{text} ± {deviation:.{digits}f}"


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits) + 0.0  # no negative zero
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0.0:.{digits}f}"


def _remarks(table: ResultTable, common: Sequence[str]) -> Iterator[str]:
    """What is written below a table."""
    cells = table.shown
    seeds = max((cell.ours.count for cell in cells), default=0)
    if seeds > 1:
        yield f"Mean ± standard deviation over {seeds} seeds."
    elif seeds:
        yield "One seed."
    verdicts = {cell.verdict for cell in cells if cell.published}
    if verdicts & {Verdict.REPRODUCES, Verdict.DIFFERS}:
        yield f"≈ {table.tolerance} of the paper's number; ≠ further from it."
    if Verdict.INCOMPARABLE in verdicts:
        yield "n/c not comparable."
    if table.comparisons:
        reference = ", ".join(table.spec.reference.values())
        said = f"* differs from {reference}" if any(cell.clear for cell in cells) else f"None differs from {reference}"
        yield (
            f"{said} by more than chance: paired t-test over {table.pairs}, p < {SIGNIFICANT:g} "
            f"after Holm's correction for {table.comparisons} comparisons."
        )
    if any(cell.best or cell.best_published for cell in cells):
        yield "Bold: the best of the methods compared" + (
            ", among ours and among the paper's." if table.has_published else "."
        )
    if table.idle:
        yield f"Not run: {', '.join(table.idle)}."
    if table.hidden and table.begun:
        yield f"Not run and not in the paper: {', '.join('/'.join(labels) for labels in table.hidden)}."
    for note in common:
        yield f"All of ours: {note}."


# Terminals


def terminal(table: ResultTable, width: int) -> Group:
    """The table for a terminal of `width` characters.

    Columns that do not fit are continued in further tables below; numbers are never cut.
    """
    shown = layout(table)
    parts = [_terminal_table(shown, compact=False)]
    if not _fits(parts[0], width):
        parts = [_terminal_table(shown.part(fields), compact=True) for fields in _fitting_fields(shown, width)]
    parts[0].title = Text(table.spec.title)
    below = [Text(f"{letter}  {note}", style="dim") for letter, note in shown.footnotes]
    return Group(*parts, *below, *(Text(remark, style="dim") for remark in shown.remarks))


def _fitting_fields(shown: TableLayout, width: int) -> Iterator[range]:
    """Which fields go into one table: as many blocks as fit; a block that does not fit alone goes field by field."""

    def fits(fields: range) -> bool:
        return _fits(_terminal_table(shown.part(fields), compact=True), width)

    blocks = [[block] if fits(block) else [range(field, field + 1) for field in block] for block in shown.blocks]
    return _joined([piece for block in blocks for piece in block], fits)


def _fits(table: Table, width: int) -> bool:
    unbounded = Console(width=10_000, file=io.StringIO())
    return unbounded.measure(table).maximum <= width


def _terminal_table(shown: TableLayout, compact: bool) -> Table:
    """A table of what is shown; a compact one has the outer labels of rows in lines of their own."""
    drawn = ruled("")
    drawn.title = None
    for name in shown.stub[-1:] if compact else shown.stub:
        drawn.add_column(Text(name), overflow="fold")
    for labels in shown.headings():
        if compact and labels[-1] == "difference":
            labels = (*labels[:-1], "diff.")
        drawn.add_column(Text("\n".join(labels)), justify="right", overflow="fold")
    above: Labels = ()
    for number, ((labels, _), (short, entries)) in enumerate(zip(shown.rows, shown.lines(), strict=True)):
        if shown.begins_group(number):
            drawn.add_section()
        if compact:
            for depth in range(_shared(labels[:-1], above), len(labels) - 1):
                drawn.add_row(Text("  " * depth + labels[depth]))
            short = tuple("  " * (len(labels) - 1) + label for label in labels[-1:])
        drawn.add_row(*map(Text, short), *map(_styled, entries))
        above = labels
    return drawn


def _styled(entry: Entry) -> Text:
    text = Text(entry.text + ("*" if entry.star else ""), style="bold" if entry.bold else "")
    return text.append(f" {entry.notes}", style="dim not bold") if entry.notes else text


# Markdown


def markdown(table: ResultTable) -> str:
    """The table in Markdown, as GitHub shows it."""
    shown = layout(table)
    lines = [f"**{markdown_text(table.spec.title)}**"]
    for part in shown.parts():
        names = ["<br>".join(markdown_text(label) for label in labels if label) for labels in part.headings()]
        lines += ["", _line([*map(markdown_text, part.stub), *names])]
        lines.append(_line([*(":---" for _ in part.stub), *("---:" for _ in part.head)]))
        for labels, entries in part.lines():
            lines.append(_line([*map(markdown_text, labels), *map(_markdown_entry, entries)]))
    notes = [f"<sup>{letter}</sup> {markdown_text(note)}" for letter, note in shown.footnotes]
    below = [*notes, *map(markdown_text, shown.remarks)]
    return "\n".join([*lines, *(["", "<br>\n".join(below)] if below else [])]) + "\n"


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(fields)} |"


def markdown_text(text: str) -> str:
    """Text in which no sign means anything to Markdown, to HTML in it, or to GitHub, which sets `$x$` as a formula."""
    return re.sub(r"([\\`*_\[\]|<>~#$]|&(?=#?\w+;))", r"\\\1", text).replace("\n", " ")


def _markdown_entry(entry: Entry) -> str:
    text = markdown_text(entry.text)
    raised = f"<sup>{entry.notes}</sup>" if entry.notes else ""
    return (f"**{text}**" if entry.bold else text) + "\\*" * entry.star + raised


# LaTeX


def latex(table: ResultTable) -> str:
    """The table in LaTeX; the document needs `\\usepackage{booktabs}`."""
    shown = layout(table)
    tabulars = "\n\n\\medskip\n".join("\n".join(_latex_tabular(part)) for part in shown.parts())
    below = [f"\\textsuperscript{{{letter}}} {_latex_text(note)}" for letter, note in shown.footnotes]
    below += [_latex_text(remark) for remark in shown.remarks]
    lines = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
    lines += [f"\\caption{{{_latex_text(table.spec.title)}}}", f"\\label{{{_latex_label(table.spec.title)}}}", tabulars]
    if below:
        lines += ["", "\\smallskip", "\\footnotesize\\raggedright", " \\\\\n".join(below)]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_label(title: str) -> str:
    """What text refers to a table by: of its title only what LaTeX takes in a label."""
    return "tab:" + "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _latex_tabular(shown: TableLayout) -> Iterator[str]:
    yield f"\\begin{{tabular}}{{{'l' * len(shown.stub)}{'r' * len(shown.head)}}}"
    yield "\\toprule"
    yield from _latex_head(shown)
    yield "\\midrule"
    for number, (labels, entries) in enumerate(shown.lines()):
        if shown.begins_group(number):
            yield "\\midrule"
        yield _row([*map(_latex_text, labels), *map(_latex_entry, entries)])
    yield "\\bottomrule"
    yield "\\end{tabular}"


def _latex_head(shown: TableLayout) -> Iterator[str]:
    """The lines of the header: labels above what they hold for, and rules below those above several fields."""
    before = len(shown.stub)
    for level in range(shown.levels):
        last = level == shown.levels - 1
        stub = [_latex_text(name) if last else "" for name in shown.stub]
        labels, rules, column = [], [], before + 1
        for label, count in shown.spans(level):
            text = _latex_text(label)
            labels.append(text if count == 1 else f"\\multicolumn{{{count}}}{{c}}{{{text}}}")
            if count > 1:
                rules.append(f"\\cmidrule(lr){{{column}-{column + count - 1}}}")
            column += count
        yield _row([*stub, *labels])
        if rules:
            yield "".join(rules)


def _row(fields: Sequence[str]) -> str:
    return " & ".join(fields) + " \\\\"


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # these would be arguments of the end of the line before
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "''",  # a straight one needs another encoding of fonts
    "–": "--",
    "…": "\\dots{}",
    "\n": " ",
    **{sign: f"${name}$" for sign, name in {"−": "-", "±": "\\pm", "≈": "\\approx", "≠": "\\neq"}.items()},
    **{sign: f"${name}$" for sign, name in {"×": "\\times", "≤": "\\leq", "≥": "\\geq", "·": "\\cdot"}.items()},
    "→": "$\\rightarrow$",
}


def _latex_text(text: str) -> str:
    """Text in which no sign means anything to LaTeX; Greek letters are set as in mathematics."""
    return "".join(_LATEX.get(sign) or _greek(sign) for sign in text)


def _greek(sign: str) -> str:
    words = unicodedata.name(sign, "").split()
    if words[:1] != ["GREEK"] or words[2:3] != ["LETTER"] or len(words) != 4:
        return sign
    name = words[3].replace("LAMDA", "LAMBDA").lower()
    if name == "omicron" or (words[1] == "CAPITAL" and name not in _GREEK_CAPITALS):
        return sign
    return f"$\\{name if words[1] == 'SMALL' else name.capitalize()}$"


_GREEK_CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}
"""Those that do not look like Latin letters; the others have no command."""


def _latex_entry(entry: Entry) -> str:
    text = _latex_text(entry.text)
    text = f"\\textbf{{{text}}}" if entry.bold else text
    raised = "*" * entry.star + entry.notes
    return text + (f"\\textsuperscript{{{raised}}}" if raised else "")


# HTML


def html(table: ResultTable) -> Markup:
    """The table as a part of a page, with its notes."""
    return parts.results(table.spec.title, layout(table))


# Summaries


_CLAIMS = ("table", "value", "method", "ahead in the paper", "ours, equal rounds", "ours, equal steps")


def _claims(summary: Summary) -> list[list[str]]:
    return [
        [one.table, one.value, one.method, *map(str, (one.published, one.at_equal_rounds, one.at_equal_steps))]
        for one in summary.claims
    ]


def summary_terminal(summary: Summary) -> Group:
    """What a study comes to, for a terminal."""
    drawn = ruled("Comparisons with baselines in which a method is ahead")
    for name in _CLAIMS:
        drawn.add_column(Text(name), overflow="fold")
    for line in _claims(summary):
        drawn.add_row(*map(Text, line))
    return Group(*map(Text, summary.lines()), *([drawn] if summary.claims else []), *map(Text, summary.reversals()))


def summary_markdown(summary: Summary) -> str:
    """What a study comes to, in Markdown: counts, a table of claims, and a list of what is the other way round."""
    parts = [" ".join(map(markdown_text, summary.lines()))]
    if summary.claims:
        lines = [_line(_CLAIMS), _line([":---"] * len(_CLAIMS))]
        parts.append("\n".join([*lines, *(_line([*map(markdown_text, line)]) for line in _claims(summary))]))
    if summary.reversals():
        parts.append("\n".join(f"- {markdown_text(said)}" for said in summary.reversals()))
    return "\n\n".join(part for part in parts if part) + "\n"


def summary_html(summary: Summary) -> Markup:
    """What a study comes to, as a part of a page."""
    claims = parts.table(_CLAIMS, _claims(summary), kind="claims") if summary.claims else ""
    reversals = parts.listed(summary.reversals()) if summary.reversals() else ""
    return parts.paragraphs(*summary.lines()) + claims + reversals


# CSV


def csv_text(tables: Sequence[ResultTable]) -> str:
    """All numbers of tables of one study, one to a line, in full and with the runs that they come from.

    Only a study with published numbers has columns about these.
    """
    axes = tables[0].axes if tables else ()
    papers = any(table.spec.published for table in tables)
    columns = [name for name in COLUMNS if papers or name not in OF_PAPERS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", *axes, *columns])
    for table in tables:
        for cell in table:
            known = _csv_cell(table, cell)
            writer.writerow([table.spec.title, *cell.labels, *(known[name] for name in columns)])
    return out.getvalue()


def _csv_cell(table: ResultTable, cell: ResultCell) -> dict[str, str | int]:
    """What is said of a number, by the name of the column."""
    paper, test = cell.published or Published(None), cell.test
    return {
        "value": cell.value,
        "statistic": table.values[cell.value].text,
        "mean": _plain(cell.mean),
        "std": _plain(cell.deviation),
        "seeds": cell.ours.count,
        "published_mean": _plain(paper.mean),
        "published_std": _plain(paper.deviation),
        "difference": _plain(cell.difference),
        "resolution": _plain(cell.resolution or None),
        "mark": cell.verdict.value,
        "p": _plain(test.t_test if test else None),
        "p_corrected": _plain(cell.probability),
        "p_wilcoxon": _plain(test.wilcoxon if test else None),
        "notes": "; ".join((*cell.notes, *cell.paper_notes)),
        "runs": ";".join(path.name for path in cell.ours.runs),
    }


def _plain(figure: float | None) -> str:
    """A number in full, without the noise of the last bits."""
    return "" if figure is None else f"{figure:.10g}"
