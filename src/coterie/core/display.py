"""How things show themselves in a notebook: small tables in HTML, and records that are tables of pandas on request."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from coterie.core.errors import CoterieError

MOST = 20
"""Rows that are shown of a longer table."""


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table below a title; of more than 20 rows the first ones, and how many others there are.

    >>> from coterie.core.display import html_table
    >>> html_table("<b>", ["n"], [[1]])
    '<p>&lt;b&gt;</p><table><thead><tr><th>n</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>'
    """
    shown = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in shown[:MOST])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(shown) - MOST:,} more</p>" if len(shown) > MOST else ""
    told = f"<p>{escape(title)}</p>" if title else ""
    return f"{told}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))


class Records(list[dict[str, Any]]):
    """Records, such as those of a run's clients: a list of dictionaries that a notebook shows as a table.

    >>> from coterie.core.display import Records
    >>> Records([{"client": "north", "accuracy": 0.5}])[0]["client"]
    'north'
    """

    def to_pandas(self) -> Any:
        """The same as a data frame of pandas, with a row per record.

        >>> Records([{"client": "north", "accuracy": 0.5}]).to_pandas().shape
        (1, 2)
        """
        try:
            import pandas
        except ImportError as error:
            raise CoterieError("to_pandas: needs pandas: pip install pandas") from error
        return pandas.DataFrame(list(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        names = list(dict.fromkeys(name for record in self for name in record))
        plain = [name for name in names if not any(isinstance(one.get(name), Mapping | list) for one in self)]
        return html_table("", plain, ([record.get(name) for name in plain] for record in self))


def span(numbers: Iterable[int]) -> str:
    """The least and the most of some numbers, in words.

    >>> from coterie.core.display import span
    >>> span([3, 1200]), span([5, 5])
    ('3 to 1,200', '5')
    """
    known = list(numbers)
    return f"{min(known):,} to {max(known):,}" if min(known) < max(known) else f"{known[0]:,}"
