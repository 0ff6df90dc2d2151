"""One self-contained page: a table, figures and settings, readable on a phone and without a network.

Templates, style sheet and script are in `templates/`. What is put into a template is text, and escaped, unless it is
`Markup`: what another template or a figure has given. A page forbids the browser to load anything else. Figures scroll
by themselves on a narrow screen: shrunk to a phone's width, nobody could read their labels.
"""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup
from matplotlib.figure import Figure

from coterie.core.files import write_whole
from coterie.report.figures import pointer, svg


class Section(NamedTuple):
    """A part of a page."""

    heading: str
    content: Markup
    folded: bool = False
    """Whether the content is shown only when one asks for it."""

    @property
    def anchor(self) -> str:
        """By what links find it."""
        return re.sub(r"[^a-z0-9]+", "-", self.heading.lower()).strip("-")


_GENERATOR = "coterie"

_NOTHING = Markup()

_SMALLEST = 0.68
"""How much a figure may shrink: below, it scrolls, because nobody could read its labels."""

_SMALLEST_BROAD = 0.85
"""The same for figures of panels side by side, whose labels are small."""

_PIXELS = 96
"""Of an inch, as browsers count."""


class _Dense(Extension):
    """Templates are indented for those who read them; a page has nothing between its elements."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return re.sub(r"\n\s*", "", source) if name is not None and name.endswith(".html") else source


def _text(value: Any) -> Markup:
    """A value as it stands on a page, with the signs escaped as Python's `html` does; nothing is a blank."""
    return value if isinstance(value, Markup) else Markup(html.escape("" if value is None else str(value)))


def prose(text: str) -> Markup:
    """Plain text, in which names may stand between backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)))


_templates = Environment(
    loader=PackageLoader("coterie.report"),
    extensions=[_Dense],
    autoescape=True,
    finalize=_text,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
_templates.filters["prose"] = prose

parts: Any = _templates.get_template("parts.html").module
"""The parts of a page, such as `parts.table(header, rows)`; the template says what there is."""


def write_page(
    path: Path, title: str, lead: str, sections: Sequence[Section], said: Sequence[str] = (), main: Markup = _NOTHING
) -> None:
    """Write the page; `title` is plain text, `lead` prose. Empty sections are left out.

    `said` are sentences of prose that say what it comes to, the most important one first, and `main` is what to look at
    before all else.
    """
    shown = [section for section in sections if section.content]
    told = {"title": title, "lead": lead, "said": said, "main": main, "sections": shown, "generator": _GENERATOR}
    write_whole(path, _templates.get_template("page.html").render(told))


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours, which a newer one may replace."""
    with path.open("rb") as file:
        return f"<meta name=generator content={_GENERATOR}>".encode() in file.read(1000)


def figure(drawn: Figure, caption: str) -> Markup:
    """A figure as inline SVG.

    On a screen that is too narrow for its labels it scrolls, and on a wide one it does not grow without bounds.
    """
    # Captions differ, and so do the identifiers of what different figures on a page consist of.
    found = pointer.identify(drawn, f"f{crc32(caption.encode()):x}-")
    picture = Markup(svg(drawn).removeprefix("<svg"))
    pointer.locate(drawn, found)
    width = _PIXELS * drawn.get_size_inches()[0]
    broad = any(place.get_gridspec().ncols > 1 for axes in drawn.axes if (place := axes.get_subplotspec()))
    smallest = _SMALLEST_BROAD if broad else _SMALLEST
    bounds = f"min-width:{smallest * width:.0f}px;max-width:{1.3 * width:.0f}px"
    return parts.figure(picture, caption, bounds, broad, json.dumps(found.as_json(), separators=(",", ":")))
