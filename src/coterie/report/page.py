"""One self-contained page: a table, figures and settings, readable on a phone and without a network."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from coterie.core.files import write_whole
from coterie.report.figures import svg

__all__ = ["Section", "code", "figure", "folded", "heading", "is_page", "paragraph", "prose", "table", "write_page"]

Section = tuple[str, str]
"""A heading and its content, as HTML."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --grey: #5c5c5c; }
@media (prefers-color-scheme: dark) { :root { --grey: #a3a3a3; } figure { filter: brightness(.9); } }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.2rem; }
h1 { font-size: 1.7rem; margin: .6rem 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
p.lead { color: var(--grey); margin-top: 0; }
.wide { overflow-x: auto; margin-bottom: 1rem; } figure .wide { margin: 0; }
td:first-child, th:first-child { position: sticky; left: 0; background: Canvas; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; min-width: 100%; }
/* Rows of whole pixels: the first column is a layer of its own, and its lines would be off by one. */
th, td { line-height: 24px; padding: 6px .7rem; border-bottom: 1px solid var(--line); }
th, td { text-align: right; white-space: nowrap; }
th { font-weight: 500; color: var(--grey); } td:first-child, th:first-child { text-align: left; }
td.best { font-weight: 700; } tr:hover td { background: var(--soft); }
figure { margin: 0 0 1rem; padding: .4rem; background: #fff; border: 1px solid var(--line); border-radius: .4rem; }
figure svg { width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: #555; font-size: .9rem; padding: 0 .4rem .3rem; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .85rem; border-radius: .4rem; }
code { font-size: .92em; } sup { line-height: 0; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
details { margin: .4rem 0; } summary { cursor: pointer; padding: .3rem 0; overflow-wrap: anywhere; }
h1, h2, p, li { overflow-wrap: anywhere; }
.sortable th { cursor: pointer; } .sortable th:focus-visible { outline: 2px solid currentColor; }
.sortable th[aria-sort=ascending]::after { content: " ▲"; } .sortable th[aria-sort=descending]::after { content: " ▼"; }
.few td { white-space: normal; text-align: left; vertical-align: top; } .few th { text-align: left; }
.results caption { position: absolute; clip-path: inset(50%); }
.results .stub { z-index: 1; } .results { --stub: 13rem; } @media (max-width: 40rem) { .results { --stub: 9.5rem; } }
.results th { vertical-align: bottom; }
.results .stub, .results tbody th { text-align: left; white-space: normal; }
.results .stub, .results tbody th { box-sizing: border-box; min-width: var(--stub); max-width: var(--stub); }
.results thead tr + tr th:first-child { position: static; text-align: right; }
.results th[scope=col]:not([colspan="1"]) { text-align: left; }
/* A heading of several columns stays in sight as long as one of them does. */
.results th:not([colspan="1"]) span { display: inline-block; position: sticky; left: calc(var(--stub) + .7rem); }
.claims td, .claims th { white-space: normal; text-align: left; vertical-align: top; }
.claims td:nth-child(3) { white-space: nowrap; }
p.notes { color: var(--grey); font-size: .9rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); gap: 0 1rem; }
.figures .broad { grid-column: 1 / -1; }
.few td:nth-child(1), .few td:nth-child(3), .few td:nth-child(4) { white-space: nowrap; }
"""

_SCRIPT = """
const value = cell => cell.dataset.value ?? cell.textContent;
const sort = (header, table) => {
  const column = [...header.parentNode.children].indexOf(header);
  const down = header.getAttribute("aria-sort") !== "descending";
  const rows = [...table.tBodies[0].rows];
  const numbers = rows.every(row => !isNaN(value(row.cells[column])));
  rows.sort((a, b) => {
    const [x, y] = [a, b].map(row => value(row.cells[column]));
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (numbers ? x - y : x.localeCompare(y, undefined, {numeric: true}));
  });
  table.tBodies[0].append(...rows);
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
};
for (const table of document.querySelectorAll("table.sortable"))
  for (const header of table.tHead.rows[0].cells) {
    header.tabIndex = 0;
    header.onclick = () => sort(header, table);
    header.onkeydown = event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(header, table);
    };
  }
"""

_GENERATOR = "coterie"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser may load for the page: nothing but what is in it."""

_SMALLEST = 0.68
"""How much a figure may shrink: below, it scrolls, because nobody could read its labels."""

_SMALLEST_BROAD = 0.85
"""The same for figures of panels side by side, whose labels are small."""

_PIXELS = 96
"""Of an inch, as browsers count."""


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page; `title` is plain text, `lead` prose, sections are HTML already. Empty sections are left out."""
    sections = [(heading, content) for heading, content in sections if content]
    body = "".join(f"<section><h2>{html.escape(heading)}</h2>{content}</section>" for heading, content in sections)
    script = f"<script>{_SCRIPT}</script>" if "class=sortable" in body else ""
    write_whole(
        path,
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<meta name=generator content={_GENERATOR}>"
        f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class=lead>{prose(lead)}</p>{body}{script}</body></html>\n",
    )


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours, which a newer one may replace."""
    with path.open("rb") as file:
        return f"<meta name=generator content={_GENERATOR}>".encode() in file.read(1000)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Sequence[Sequence[bool]] | None = None,
    values: Sequence[Sequence[Any]] | None = None,
    kind: str = "",
) -> str:
    """A table; cells marked as best are bold.

    With `values`, what cells stand for, a click on a header sorts by it; nothing comes last. `kind` is a class of the
    page's style: `few` and `claims` for cells of running text.
    """
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in header)
    lines = []
    for number, row in enumerate(rows):
        marks = best[number] if best else [False] * len(row)
        meant = values[number] if values else [None] * len(row)
        cells = (_cell(*one, sorted_by=values is not None) for one in zip(row, marks, meant, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    name = "sortable" if values else kind
    opening = f"<table class={name}>" if name else "<table>"
    return f"<div class=wide>{opening}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _cell(text: str, best: bool, meant: Any, sorted_by: bool) -> str:
    mark = " class=best" if best else ""
    if sorted_by:
        mark += f' data-value="{html.escape("" if meant is None else str(meant))}"'
    return f"<td{mark}>{html.escape(text)}</td>"


def figure(drawn: Figure, caption: str) -> str:
    """A figure as inline SVG, with its caption as the text for those who cannot see it.

    On a screen that is too narrow for its labels it scrolls, and on a wide one it does not grow without bounds.
    """
    width = _PIXELS * drawn.get_size_inches()[0]
    broad = any(place.get_gridspec().ncols > 1 for axes in drawn.axes if (place := axes.get_subplotspec()))
    smallest = _SMALLEST_BROAD if broad else _SMALLEST
    bounds = f"min-width:{smallest * width:.0f}px;max-width:{1.3 * width:.0f}px"
    opening = f'<svg role="img" aria-label="{html.escape(caption)}" style="{bounds}"'
    labelled = svg(drawn).replace("<svg", opening, 1)
    mark = " class=broad" if broad else ""
    return f"<figure{mark}><div class=wide>{labelled}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def prose(text: str) -> str:
    """Plain text, in which names may stand between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def code(text: str) -> str:
    """Text as it is, e.g. a settings file."""
    return f"<pre>{html.escape(text)}</pre>"


def folded(summary: str, content: str) -> str:
    """Content, HTML already, that is shown when one asks for it."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def heading(text: str) -> str:
    """A heading inside of a section."""
    return f"<h3>{html.escape(text)}</h3>"
