"""The page of a comparison: one file, readable by everyone, safe whatever the data is called."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from coterie.report import page
from coterie.report.comparison import write_comparison
from coterie.report.figures import style
from coterie.report.page import Section
from coterie.runs.comparison import compare
from coterie.runs.settings import Settings

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and remembers what there is."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def read(path):
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison with two seeds, in a world whose names are an attack."""
    folder = tmp_path_factory.mktemp("page")
    x = np.random.default_rng(0).normal(size=(120, 3))
    labels = np.array(["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "&amp;"])
    path = folder / "<script>.npz"
    np.savez(path, x=x, y=np.arange(120) % 3, labels=labels)
    given = {"data": str(path), "clients": 4, "rounds": 2}
    entries = compare([Settings.of(given, name)[0] for name in ("local", "fedavg")], seeds=2)
    rows = write_comparison(folder / "index.html", "Comparison of <b>things</b>", entries)
    return read(folder / "index.html"), (folder / "index.html").read_text(), rows


def test_a_page_is_closed_in_order_and_says_its_language(compared):
    reader, text, _ = compared
    assert text.startswith("<!doctype html>")
    assert reader.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in reader.all("meta")
    assert len(reader.all("h1")) == len(reader.all("title")) == 1


def test_a_page_asks_for_nothing_from_elsewhere(compared):
    reader, text, _ = compared
    for tag, attributes in reader.elements:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("#", "data:image/png")), (tag, value)
    assert "default-src 'none'" in reader.all("meta")[-1]["content"]  # and a browser holds it to that
    assert not re.search(r"url\((?!#)|@import", text)
    # The only addresses are the names of SVG's vocabularies, which no browser asks for.
    assert {*re.findall(r"https?://[^\"'<> ]+", text)} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_names_are_text_whatever_they_are(compared):
    reader, text, _ = compared
    assert text.count("<script") == 1  # the one that sorts
    assert "alert(1)" not in text[text.index("<script") : text.index("</script>")]
    assert "<img" not in text
    assert "<b>" not in text
    said = "".join(reader.text)
    assert "Comparison of <b>things</b>" in said
    assert "<script>, dirichlet split, 4 clients, net mlp, 2 rounds; 2 seeds" in said
    assert '"><img src=x onerror=alert(2)>' in said


def test_a_page_has_the_table_the_figures_and_the_settings(compared):
    reader, text, rows = compared
    said = "".join(reader.text)
    for heading in ("Methods", "Every client", "Figures", "The split", "What it cost", "Settings"):
        assert f"<h2>{heading}</h2>" in text
    # What clients gain, sorted, and side by side; their accuracies, two curves, the spread over them, and the split.
    assert len(reader.all("figure")) == len(reader.all("svg")) == 7
    assert text.index("<table>") < text.index("<tbody>") < text.index("</tbody>")
    first = text[text.index("<table>") : text.index("</table>")]
    assert first.count("<tr>") == 1 + len(rows)
    assert text.count("<pre>") == 2
    assert 'name = "fedavg"' in said
    assert "±" in said


def test_those_who_cannot_see_know_what_is_shown(compared):
    reader, _, _ = compared
    for attributes in reader.all("svg"):
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20
    assert len(reader.all("figcaption")) == len(reader.all("svg"))
    assert all(attributes == {"scope": "col"} for attributes in reader.all("th"))


def test_rows_are_those_of_the_table(compared):
    _, _, rows = compared
    assert {row.name for row in rows} == {"local", "fedavg"}
    assert [row.seeds for row in rows] == [2, 2]


def test_the_best_cells_of_a_table_are_marked():
    text = page.parts.table(["a", "b"], [["x", "1"], ["y", "2"]], [[False, False], [False, True]])
    assert re.findall(r"<td class=best>(.*?)</td>", text) == ["2"]
    assert "class=best" not in page.parts.table(["a"], [["x"]])


@pytest.mark.parametrize(
    "made",
    [
        lambda text: page.parts.paragraphs(text),
        lambda text: page.parts.heading(text),
        lambda text: page.parts.code(text),
        lambda text: page.parts.listed([text]),
        lambda text: page.parts.folded(text, text),
        lambda text: page.parts.table([text], [[text]], values=[[text]]),
        lambda text: page.parts.figure("", text, text, False, text),
        page.prose,
    ],
)
def test_text_is_escaped_once_wherever_it_goes(made):
    attack = """<b a="'">&amp;"""
    content = made(attack)
    escaped = "&lt;b a=&quot;&#x27;&quot;&gt;&amp;amp;"
    assert escaped in content
    assert not re.search(r"<b|a=\"|'|&amp;(?!amp;)", content)
    assert page.parts.folded("x", content).count(escaped) == content.count(escaped)


def test_names_between_backticks_are_code_and_nothing_else_is():
    assert page.prose("`a<b`: 1 < 2, a `lone one") == "<code>a&lt;b</code>: 1 &lt; 2, a `lone one"


def test_a_page_replaces_an_older_one_whole(tmp_path):
    for title in ("first", "second"):
        page.write_page(tmp_path / "x.html", title, "", [Section("A & B", page.parts.paragraphs("1 < 2"))])
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    assert "".join(read(tmp_path / "x.html").text).count("second") == 2
    assert "A & B" in read(tmp_path / "x.html").text


@pytest.mark.parametrize(("columns", "mark", "least"), [(1, "<figure data", 457), (3, "<figure class=broad data", 571)])
def test_panels_side_by_side_have_the_whole_width_and_shrink_less(columns, mark, least):
    drawn, _ = style.figure(7, 2, columns)
    text = page.figure(drawn, "Small")
    assert text.startswith(mark)
    assert f"min-width:{least}px" in text  # of 672


def test_methods_have_the_same_look_in_every_figure_of_a_page(monkeypatch, tmp_path):
    figures, original = [], page.figure
    monkeypatch.setattr(page, "figure", lambda drawn, caption: figures.append(drawn) or original(drawn, caption))
    given = {"clients": 4, "rounds": 2, "limit": 200, "net": "logistic"}
    names = ("fedavg", "ditto", "local", "ifca")
    write_comparison(tmp_path / "x.html", "x", compare([Settings.of(given, name, others=names)[0] for name in names]))
    looks = {name: set() for name in names}
    for figure in figures:
        for axes in figure.axes:
            for line in axes.get_lines():
                if line.get_label() in looks:
                    looks[line.get_label()].add((line.get_color(), line.get_marker()))
    assert {name: len(found) for name, found in looks.items()} == dict.fromkeys(names, 1)
    assert len(set.union(*looks.values())) == 4
