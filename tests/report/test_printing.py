"""Tables of results in print: the same content everywhere, nothing cut, nothing that breaks a document."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from coterie.report.printing import (
    csv_text,
    html,
    latex,
    layout,
    markdown,
    summary_html,
    summary_markdown,
    summary_terminal,
    terminal,
)
from coterie.report.results import Findings, Verdict, orderings, result_table, summarised
from support.study_tables import AXES, example, seeds, table_of


@pytest.fixture
def table():
    return result_table(*example())


def bare(axes, runs, **spec):
    """A table without anything published."""
    return result_table(table_of(**{"reference": {}, **spec}), Findings(axes, runs))


def printed(table, width):
    out = io.StringIO()
    Console(file=out, width=width).print(terminal(table, width))
    return out.getvalue()


EXPECTED = Path(__file__).parent / "expected"


@pytest.mark.parametrize(("name", "write"), [("table.md", markdown), ("table.tex", latex), ("table.csv", None)])
def test_documents_are_as_they_should_be(table, name, write):
    """The expected ones are checked in, and were read line by line."""
    said = csv_text([table]) if write is None else write(table)
    assert said == (EXPECTED / name).read_text(encoding="utf-8")


def test_a_number_above_a_column_says_of_which_axis():
    axes = {"alpha": ("0.1", "0.5"), "method": ("a", "b")}
    runs = {(alpha, method): seeds(0.5) for alpha in axes["alpha"] for method in axes["method"]}
    made = bare(axes, runs, rows=("method",), columns=("alpha",))
    for document in (markdown(made), latex(made), printed(made, 80)):
        assert "alpha = 0.1" in document
    turned = bare(axes, runs, rows=("alpha",), columns=("method",))  # the axis stands above its entries already
    assert "alpha = " not in markdown(turned)


# Terminals


def test_a_wide_terminal_has_all_columns_beside_each_other(table):
    lines = printed(table, 120).splitlines()
    (row,) = (line for line in lines if "IFCA" in line and "±" in line)
    assert row.split() == ["IFCA", *["41.1", "±", "0.2*", "c", "44.6", "±", "0.5", "−3.5", "≠", "not", "run", "–", "–"]]
    assert sum("method" in line.split() and "setting" in line.split() for line in lines) == 1


@pytest.mark.parametrize("width", [200, 120, 90, 89, 70, 60, 50, 46])
def test_no_number_is_lost_or_cut_in_a_narrow_terminal(table, width):
    said = printed(table, width)
    assert max(map(len, said.splitlines())) <= width
    for numbers in ("45.1 ± 0.3", "44.7 ± 0.4", "+0.4 ≈", "90.2 ± 0.3 a", "95.2 b", "n/c", "60.0 e,f", "48.0 ± 0.3*"):
        assert numbers in said, numbers
    assert said.count("CIFAR10") == said.count("MNIST") == 1
    assert said.count("not run") == 6


def test_a_tiny_terminal_has_one_number_beside_each_method(table):
    said = printed(table, 26)
    assert max(map(len, said.splitlines())) <= 26
    for numbers in ("45.1 ± 0.3", "44.7 ± 0.4", "−3.5 ≠", "90.2 ± 0.3 a", "95.2 b", "48.0 ± 0.3*"):
        assert numbers in said, numbers
    assert said.count("CIFAR10") == 3
    assert max(map(len, printed(table, 12).splitlines())) <= 12


def test_a_narrow_table_says_in_each_part_what_its_rows_are(table):
    said = printed(table, 50)
    assert said.count("AutoCFL") == 4
    assert said.count("IID-Im") == 2
    assert said.count("Accuracy, %") == 1


def test_bold_is_for_the_best_in_a_terminal(table):
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="standard").print(terminal(table, 120))
    assert re.findall(r"\x1b\[1m *([^\x1b]*\d)[^\x1b]*\x1b", out.getvalue()) == ["48.0 ± 0.3", "47.2 ± 0.3"]


# Wide tables


def wide(**more):
    """A table with 2 times 7 columns."""
    axes = {"data": ("CIFAR10", "MNIST"), "beta": tuple("1234567"), "method": ("a", "b")}
    spec = table_of(rows=("method",), columns=("data", "beta"), reference={}, **more)
    runs = {(data, beta, "a"): seeds(0.5) for data in axes["data"] for beta in axes["beta"]}
    return result_table(spec, Findings(axes, runs))


def test_what_is_too_wide_for_a_page_is_continued_below():
    published = {f"CIFAR10/{beta}/a": [1.0] for beta in "1234567"} | {f"MNIST/{beta}/b": [1.0] for beta in "1234567"}
    made = wide(published=published)
    heads = [[labels[:2] for labels in part.head] for part in layout(made).parts()]
    # 42 fields, of which 12 fit; a number stays beside the paper's.
    assert [len(head) for head in heads] == [12, 12, 12, 6]
    assert [field for head in heads for field in head] == [labels[:2] for labels in layout(made).head]
    check_latex(latex(made))
    assert latex(made).count("\\begin{tabular}") == markdown(made).count("| :--- |") == 4
    assert latex(made).count("\\begin{table}") == latex(made).count("\\end{table}") == 1


def test_a_table_is_parted_between_its_outermost_labels():
    made = result_table(
        table_of(rows=("method",), columns=("data", "beta"), reference={}),
        Findings({"data": ("A", "B"), "beta": tuple("1234567"), "method": ("a",)}, {}),
    )
    assert [{labels[0] for labels in part.head} for part in layout(made).parts()] == [{"A"}, {"B"}]


def test_hidden_columns_are_named():
    axes = {"data": ("CIFAR10", "MNIST"), "beta": tuple("123"), "method": ("a", "b")}
    places = [("MNIST", "1", "a"), ("MNIST", "2", "a"), ("MNIST", "3", "a"), ("CIFAR10", "2", "a")]
    spec = {"rows": ("method",), "columns": ("data", "beta")}
    made = bare(axes, {place: seeds(0.5) for place in places}, **spec)
    assert len(layout(made).head) == 4
    assert "Not run and not in the paper: CIFAR10/1, CIFAR10/3." in layout(made).remarks
    some = bare(axes, {("MNIST", "2", "a"): seeds(0.5)}, **spec)
    assert layout(some).remarks == ("One seed.", "Not run: CIFAR10, 1, 3.")


def test_a_step_between_evaluations_is_said_in_every_document():
    runs = {("a",): seeds(0.9, rounds=20), ("b",): seeds(0.9, rounds=40)}
    for run in (run for some in runs.values() for run in some):
        run.rounds[:] = [record for record in run.rounds if record["round"] % 10 == 0]

    def made(value, digits, **published):
        spec = table_of(rows=("method",), columns=(), percent=False, digits=digits, values={"x": value}, reference={})
        return result_table(replace(spec, published=published), Findings({"method": ("a", "b")}, runs))

    rounds = made("rounds_to(accuracy_mean, 0.9)", 0, a=[13], b=[29])
    said = "≈ within 2 standard errors of the difference, rounding or a step between evaluations (10)"
    assert f"{said} of the paper's number; ≠ further from it." in layout(rounds).remarks
    for text in (markdown(rounds), html(rounds), " ".join(printed(rounds, 60).split())):
        assert "a step between evaluations (10)" in text
    assert "or a step between evaluations (10) of" in latex(rounds)
    assert [line["resolution"] for line in csv.DictReader(io.StringIO(csv_text([rounds])))] == ["10", "10"]
    assert [entries[2].text for _, entries in layout(rounds).rows] == ["+7 ≈", "+11 ≠"]
    # All that the two clients send after the first ten rounds is this.
    runs["a",][0].rounds[-1]["bytes_up"] += 250_000
    runs["b",][0].rounds[-1]["bytes_up"] += 500
    megabits = made("megabits_to(accuracy_mean, 0.9)", 3, a=[2.0], b=[0.007])
    assert "or a step between evaluations (0.002 to 1.000)" in markdown(megabits)


# Summaries


def test_a_summary_is_printed():
    spec, findings = example()
    summary = summarised("x", [result_table(spec, findings)], orderings(spec, findings, ["AutoCFL"]))
    assert summary_markdown(summary).split("\n\n") == [
        "5 published numbers: 2 reproduced, 1 different, 1 not comparable, 1 beside scaled runs. "
        "Reproduced is within 2 standard errors of the difference of means; within 2 standard deviations of it are 2. "
        "6 further cells were not run.",
        "| table | value | method | ahead in the paper | ours, equal rounds | ours, equal steps |\n"
        "| :--- | :--- | :--- | :--- | :--- | :--- |\n"
        "| Accuracy, % | accuracy | AutoCFL | 2 of 2 | 2 of 2 (clearly 2, clearly behind 0) | "
        "0 of 2 (clearly 0, clearly behind 2) |",
        "- CIFAR10/IID-Im/accuracy: AutoCFL is not ahead of FedAvg, IFCA at equal steps\n",
    ]
    out = io.StringIO()
    Console(file=out, width=60).print(summary_terminal(summary))
    assert max(map(len, out.getvalue().splitlines())) <= 60
    assert "2 of 2" in out.getvalue()
    on_a_page = summary_html(summary)
    assert "<td>2 of 2 (clearly 2, clearly behind 0)</td>" in on_a_page
    assert "<li>CIFAR10/IID-Im/accuracy: AutoCFL is not ahead of FedAvg, IFCA at equal steps</li>" in on_a_page
    assert (summary_markdown(summarised("x", [])), summary_html(summarised("x", []))) == ("\n", "")


# What is in a layout


def test_a_table_without_published_numbers_has_only_ours():
    made = bare({"method": ("a", "b")}, {("a",): seeds(0.5)}, rows=("method",), columns=())
    shown = layout(made)
    assert shown.head == (("accuracy",),)
    assert [entry.text for _, (entry,) in shown.rows] == ["50.0", "not run"]
    assert shown.remarks == ("One seed.",)
    assert shown.footnotes == ()


def test_only_columns_that_the_paper_has_are_beside_the_papers():
    spec, findings = example()
    spec = replace(
        spec,
        values={"last": "accuracy_mean", "equal steps": "equal_steps(accuracy_mean)"},
        columns=("value",),
        rows=("data", "setting", "method"),
        published={"CIFAR10/IID-Im/IFCA/last": [40.0]},
        incomparable={},
    )
    assert layout(result_table(spec, findings)).head == (
        ("last", "ours"),
        ("last", "paper"),
        ("last", "difference"),
        ("equal steps", "ours"),
    )


def test_a_note_on_all_of_ours_is_said_once():
    spec, findings = example()
    shown = layout(result_table(replace(spec, scaled={"*": "15 rounds instead of 100"}), findings))
    assert "All of ours: scaled: 15 rounds instead of 100." in shown.remarks
    assert not any("15 rounds" in note for _, note in shown.footnotes)


def test_there_are_more_than_26_footnotes():
    axes = {"method": tuple(f"m{number}" for number in range(30))}
    spec = table_of(rows=("method",), columns=(), reference={}, published={name: [1.0] for name in axes["method"]})
    spec = replace(spec, incomparable={name: f"reason {name}" for name in axes["method"]})
    letters = [letter for letter, _ in layout(result_table(spec, Findings(axes, {}))).footnotes]
    assert letters[:2] + letters[25:28] == ["a", "b", "z", "aa", "ab"]
    assert len(set(letters)) == 30


@pytest.mark.parametrize(
    ("ours", "published", "text"),
    [(0.5, 50.04, "0.0 ≈"), (0.5, 49.96, "0.0 ≈"), (0.5, 49.9, "+0.1 ≈"), (0.5, 52.0, "−2.0 ≠")],
)
def test_differences_have_a_sign_and_zero_has_none(ours, published, text):
    spec = table_of(rows=("method",), columns=(), published={"a": [published]})
    ((_, entries),) = layout(result_table(spec, Findings({"method": ("a",)}, {("a",): seeds(ours)}))).rows
    assert entries[2].text == text


def test_never_is_said():
    spec = table_of(
        rows=("method",),
        columns=(),
        percent=False,
        digits=0,
        published={"a": [], "b": [12.0]},
        values={"rounds": "rounds_to(accuracy_mean, 0.9)"},
    )
    runs = {("a",): seeds(0.5), ("b",): seeds(0.5)}
    first, second = layout(result_table(spec, Findings({"method": ("a", "b")}, runs))).rows
    assert [entry.text for entry in first[1]] == ["never", "never", "≈"]
    assert [entry.text for entry in second[1]] == ["never", "12", "≠"]


# Documents


AWKWARD = (
    "50 % & more",
    "a_b^c~d",
    "{x}\\y",
    "[0, 1]",
    "* star",
    "β = 0.5",
    "Δ ≥ 1 × 2 → |x|",
    "<b>#1</b>",
    "$5",
    "`c`",
    'a "b"',
    "&lt; and &#36;",
    "$x$",
)


@pytest.mark.parametrize("label", AWKWARD)
def test_labels_are_text_in_every_document(label):
    axes = {"setting": (label, "other"), "method": (label, "b")}
    made = bare(axes, {(label, label): seeds(0.5, 0.6)}, title=label, columns=())
    source = latex(made)
    check_latex(source)
    assert "β" not in source
    assert f">{label}<" in unescaped(html(made))
    assert "<b>" not in html(made)
    rows = [line for line in markdown(made).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert next(csv.DictReader(io.StringIO(csv_text([made]))))["setting"] == label
    assert label in " ".join(printed(made, 120).split())


def test_nothing_in_a_label_means_anything_to_markdown():
    label = "&lt; a & b $x$ `c` *d* <i>"
    said = markdown(bare({"method": (label,)}, {}, title=label, rows=("method",), columns=()))
    assert said.count(r"\&lt; a & b \$x\$ \`c\` \*d\* \<i\>") == 2


def test_latex_needs_no_package_but_booktabs():
    said = latex(bare({"method": ('a "b" c',)}, {}, rows=("method",), columns=()))
    assert "a ''b'' c" in said
    assert "textquotedbl" not in said


def unescaped(text):
    """The text of a page with its marks, and entities as the signs that they stand for."""

    class Reader(HTMLParser):
        said = ""

        def handle_starttag(self, tag, attributes):
            self.said += ">"

        def handle_endtag(self, tag):
            self.said += "<"

        def handle_data(self, data):
            self.said += data

    reader = Reader()
    reader.feed(str(text))
    return reader.said


def check_latex(source):
    """Braces and dollars in pairs, as many fields in each line as there are columns, no argument for an end of line."""
    plain = re.sub(r"\\[\\{}$&%#_]", "", source)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", source)[1])
    body = source[source.index("\\toprule") : source.index("\\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert lines
    for line in lines:
        fields = len(re.findall(r"(?<!\\)&", line)) + 1
        wide = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", line))
        assert fields + wide == columns
        assert not line.lstrip().startswith(("[", "*"))
    for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", source):
        assert 1 <= int(first) < int(last) <= columns


@pytest.mark.parametrize("columns", [(), ("data",), ("data", "setting"), ("setting", "data", "method")])
def test_latex_has_rules_and_spans_that_fit(columns):
    spec, findings = example()
    rows = tuple(axis for axis in AXES if axis not in columns)
    source = latex(result_table(replace(spec, rows=rows, columns=columns), findings))
    check_latex(source)
    assert "multirow" not in source
    # One below each label that is above several fields; a column without published numbers is a single field,
    # and one without any number is none.
    assert source.count("\\cmidrule") == {0: 1, 1: 2, 2: 2 + 3, 3: 2 + 3 + 5}[len(columns)]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
@pytest.mark.slow
def test_latex_compiles(table, tmp_path):
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    made = [table, *(bare({"method": (label,)}, {}, title=label, rows=("method",), columns=()) for label in AWKWARD)]
    (tmp_path / "x.tex").write_text(head + "\n".join(map(latex, made)) + "\\end{document}\n")
    done = subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_page_has_the_table_with_its_notes(table):
    text = html(table)
    assert text.count("<tr>") == 2 + 2 + 6  # the head, the settings and the methods in them
    assert text.count("<th scope=rowgroup") == 2
    assert "<th scope=col colspan=3><span>CIFAR10</span></th>" in text
    assert "<td class=best>48.0 ± 0.3*</td>" in text
    assert "<td>95.2<sup>b</sup></td>" in text
    assert "<sup>b</sup> copied from elsewhere" in text


# CSV


def test_csv_has_every_number_in_full(table):
    lines = [*csv.DictReader(io.StringIO(csv_text([table, table])))]
    assert len(lines) == 24
    assert lines[0] == {
        "table": "Accuracy, %",
        "data": "CIFAR10",
        "setting": "IID-Im",
        "method": "FedAvg",
        "value": "accuracy",
        "statistic": "accuracy_mean",
        "mean": "45.06666667",
        "std": "0.3055050463",
        "seeds": "3",
        "published_mean": "44.68",
        "published_std": "0.36",
        "difference": "0.3866666667",
        "resolution": "",
        "mark": "reproduces",
        "p": "",
        "p_corrected": "",
        "p_wilcoxon": "",
        "notes": "",
        "runs": "fedavg-seed0;fedavg-seed1;fedavg-seed2",
    }
    own = next(line for line in lines if line["method"] == "AutoCFL")
    assert 0 < float(own["p"]) <= float(own["p_corrected"]) < 0.05
    assert own["p_wilcoxon"] == "0.25"  # the least that three pairs can give
    missing = next(line for line in lines if line["mark"] == "not run")
    assert (missing["mean"], missing["seeds"], missing["runs"]) == ("", "0", "")


def test_csv_of_nothing_is_a_header():
    assert csv_text([]).startswith("table,value,")


@settings(max_examples=20)
@given(st.sets(st.sampled_from([(d, s, m) for d in AXES["data"] for s in AXES["setting"] for m in AXES["method"]])))
def test_whatever_is_missing_a_table_is_printed(there):
    spec, _ = example()
    made = result_table(spec, Findings(AXES, {labels: seeds(0.5, 0.6) for labels in there}, 2))
    check_latex(latex(made))
    shown = sum(cell.verdict is Verdict.NOT_RUN for cell in made.shown)
    assert markdown(made).count("not run") == printed(made, 100).count("not run") == shown
    assert csv_text([made]).count(",not run,") == 12 - len(there)
    for number, axis in enumerate(("data", "setting")):
        idle = {*AXES[axis]} - {place[number] for place in there} if there else set()
        assert {*made.idle} & {*AXES[axis]} == idle
        assert not idle & {cell.place[axis] for cell in made.shown}
