"""One self-contained page: a table, figures and settings, readable on a phone and without a network."""

import html
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from coterie.lab.folder import write_whole
from coterie.report.figures import svg

__all__ = ["Section", "code", "figure", "paragraph", "table", "write_page"]

Section = tuple[str, str]
"""A heading and its content, as HTML."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #0072b2; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.2rem; }
h1 { font-size: 1.7rem; margin: .6rem 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
p.lead { color: GrayText; margin-top: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 500; color: GrayText; } td:first-child, th:first-child { text-align: left; }
td.best { font-weight: 700; } tr:hover td { background: var(--soft); }
figure { margin: 0; padding: .4rem; background: #fff; border: 1px solid var(--line); border-radius: .4rem; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { color: #555; font-size: .9rem; padding: 0 .4rem .3rem; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .85rem; border-radius: .4rem; }
code { font-size: .92em; }
"""


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page; text in `title` and `lead` is escaped, sections are HTML already."""
    body = "".join(f"<section><h2>{html.escape(heading)}</h2>{content}</section>" for heading, content in sections)
    write_whole(
        path,
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class=lead>{html.escape(lead)}</p>{body}</body></html>\n",
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[Sequence[bool]] | None = None) -> str:
    """A table; cells marked as best are bold."""
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in header)
    lines = []
    for number, row in enumerate(rows):
        marks = best[number] if best else [False] * len(row)
        cells = (
            f"<td class=best>{html.escape(cell)}</td>" if mark else f"<td>{html.escape(cell)}</td>"
            for cell, mark in zip(row, marks, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def figure(drawn: Figure, caption: str) -> str:
    """A figure as inline SVG, with its caption as the text for those who cannot see it."""
    labelled = svg(drawn).replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
    return f"<figure>{labelled}<figcaption>{html.escape(caption)}</figcaption></figure>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def code(text: str) -> str:
    """Text as it is, e.g. a settings file."""
    return f"<pre>{html.escape(text)}</pre>"
