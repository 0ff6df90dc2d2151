"""Tables as data: CSV and Parquet files, a folder with one file per client, data frames.

Each column becomes one or several inputs, which the `Schema` says. Without one, the types of columns are what their
values look like: numbers, true and false, or words, which are categories. Nothing is guessed in silence: what was made
of which column is logged, and what is none of these is refused, with file, column and row. Missing values stay missing
here; they are filled in when it is known who trains on which rows (`Population`).
"""

import csv
import datetime
import logging
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import accumulate
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import CoterieError, DataError, SettingsError, unknown
from coterie.data.dataset import Dataset
from coterie.data.readers import reading
from coterie.data.schema import Column, Schema

log = logging.getLogger("coterie")

SUFFIXES = (".csv", ".tsv", ".parquet")
"""How the names of files end that are tables."""

_MANY = 100
"""Words with more different values than this are no categories."""

_MONTH = r"(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]*\.?"
_DAY = (
    r"\d{4}(?P<mark>[-/.])\d{1,2}(?P=mark)\d{1,2}"  # 2024-03-01
    r"|\d{1,2}(?P<sign>[-/.])\d{1,2}(?P=sign)\d{2,4}"  # 1.3.24
    rf"|\d{{1,2}}\.?[ -]?{_MONTH}[ -]?,?\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}"  # 1 March 2024, Mar 1, 2024
)
_DATE = re.compile(rf"({_DAY})([T ].*)?|\d{{1,2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?", re.IGNORECASE)
"""A date, with or without the time of day, or a time of day."""
_CODE = re.compile(r"0\d+")
"""What is written like that is no amount: its zero in front would be lost."""

_COMMA = re.compile(r"[-+]?\d+,\d+")
_TRUTH = {"true": True, "false": False}


class _Category(str):
    """A text that is the name of a category, even if it looks like a number."""


@dataclass(frozen=True)
class _Table:
    """Columns by name. Values are texts, numbers, truth values or dates; None where one is missing."""

    name: str
    columns: dict[str, list[Any]]
    files: tuple[str, ...]
    """The files from which the rows are."""
    sizes: tuple[int, ...]
    """How many rows each file has."""
    first: int
    """How the first row of a file is called: 2 behind a head, as in a spreadsheet, 0 in Python."""

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def called(self) -> str:
        """What errors call it."""
        return self.files[0] if len(self.files) == 1 else self.name

    def wrong(self, column: str, row: int, told: str) -> DataError:
        """The error for a value, which names file, column and row."""
        starts = [0, *accumulate(self.sizes)]
        file = bisect_right(starts, row) - 1
        return DataError(f"{self.files[file]}: column {column}, row {row - starts[file] + self.first}: {told}")


def is_frame(data: Any) -> bool:
    """Whether something is a data frame, of pandas or Polars."""
    return hasattr(data, "columns") and hasattr(data, "__getitem__")


def is_table(path: Path) -> bool:
    """Whether a path is that of a table, or of a folder with tables in it."""
    return bool(_files(path)) if path.is_dir() else path.suffix.lower() in SUFFIXES


def _files(folder: Path) -> list[Path]:
    """The tables in a folder."""
    found = (file for file in folder.iterdir() if not file.name.startswith("."))
    return sorted(file for file in found if file.is_file() and file.suffix.lower() in SUFFIXES)


def from_table(
    path: str | Path,
    target: str = "",
    client: str = "",
    drop: Sequence[str] = (),
    task: str = "",
    schema: str | Path | Schema | None = None,
) -> Dataset:
    """Data from a CSV or Parquet file with a row per sample, or from a folder with one such file per client.

    The column `target` is predicted; those of `drop` are left out, and all others are inputs. The column `client` tells
    clients apart; in a folder the files' names do. `task` says what is predicted, if the targets do not show it (see
    `Dataset`). A `schema`, or a file that holds one, says all that instead.
    """
    path = Path(path)
    schema = Schema.read(path=schema) if isinstance(schema, str | Path) else schema
    if not path.is_dir():
        return _dataset(_read(path), target, client, drop, task, schema)
    with reading(path, "a folder of tables"):
        files = _files(path)
    if not files:
        raise DataError(f"{path}: no tables ({', '.join(SUFFIXES)})")
    if twice := {file.stem for file in files if [other.stem for other in files].count(file.stem) > 1}:
        raise DataError(f"{path}: {min(twice)} is there in two formats, but a file is a client")
    table = _joined(path.name, [_read(file) for file in files])
    users = np.repeat([file.stem for file in files], table.sizes)
    return _dataset(table, target, client, drop, task, schema, users)


def from_frame(
    frame: Any,
    target: str = "",
    client: str = "",
    drop: Sequence[str] = (),
    task: str = "",
    schema: str | Path | Schema | None = None,
    name: str = "table",
) -> Dataset:
    """Data from a data frame of pandas or Polars with a row per sample; otherwise as `from_table`.

    A column of pandas' type `category` is one, also where its values are numbers.
    """
    schema = Schema.read(schema) if isinstance(schema, str | Path) else schema
    return _dataset(_table_of(frame, name), target, client, drop, task, schema)


def from_columns(
    columns: Mapping[str, Sequence[Any]], target: str, client: str, drop: Sequence[str], task: str, name: str
) -> Dataset:
    """Data from columns by name, which are of the same length; otherwise as `from_table`."""
    known = {key: [None if _missing(value) else value for value in values] for key, values in columns.items()}
    size = len(next(iter(known.values()), []))
    return _dataset(_checked(_Table(name, known, (name,), (size,), 0)), target, client, drop, task, None)


def encoded_rows(rows: Any, schema: Schema) -> np.ndarray:
    """The inputs [row, input] of a data frame, or of the table at a path, that a schema describes; it needs no targets.

    Where a value is missing it is not-a-number.
    """
    table = _table_of(rows, "table") if is_frame(rows) else _read(Path(rows))
    _require_columns(table, [column.name for column in schema.columns])
    return _encoded(table, schema).astype(np.float32)


def _table_of(frame: Any, name: str) -> _Table:
    """The table that a data frame holds."""
    columns: dict[str, list[Any]] = {}
    for column in frame.columns:
        values = frame[column]
        known = [None if _missing(value) else value for value in values.to_list()]
        if str(getattr(values, "dtype", "")) == "category":
            known = [None if value is None else _Category(value) for value in known]
        if str(column) in columns:
            raise DataError(f"{name}: two columns are called {column}")
        columns[str(column)] = known
    size = len(next(iter(columns.values()), []))
    return _Table(name, columns, (name,), (size,), 0)


def _require_columns(table: _Table, names: Iterable[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise DataError(f"{table.files[0]}: no column {name}, which the schema has")


def _missing(value: Any) -> bool:
    """Whether a value of a data frame stands for a missing one."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def _read(path: Path) -> _Table:
    """The table in a file."""
    if path.suffix.lower() == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise CoterieError(f"{path}: needs pyarrow: pip install 'coterie[tables]', or save it as CSV") from error
        with reading(path, "a Parquet file", Exception):
            columns = {str(name): values for name, values in parquet.read_table(path).to_pydict().items()}
        known = {name: [None if _missing(value) else value for value in values] for name, values in columns.items()}
        return _checked(_Table(path.stem, known, (str(path),), (len(next(iter(known.values()), [])),), 2))
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a table is a file that ends in {', '.join(SUFFIXES)}")
    with reading(path, "a table", csv.Error), path.open(encoding="utf-8-sig", newline="") as stream:
        head = stream.readline()
        stream.seek(0)
        # Spreadsheets write semicolons where the comma is for decimals.
        mark = max("\t,;", key=head.count)
        rows = list(csv.reader(stream, delimiter=mark))
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    names = [name.strip() for name in rows[0]] if rows else []
    if not all(names) or not names:
        raise DataError(f"{path}: the first row must name the columns; found {', '.join(names)!r:.80}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise DataError(f"{path}: row {number} has {len(row)} values for {len(names)} columns")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]}")
    cells = (_with_points([cell.strip() or None for cell in column], mark) for column in zip(*rows[1:], strict=True))
    columns = dict(zip(names, cells, strict=False)) or {name: [] for name in names}
    return _checked(_Table(path.stem, columns, (str(path),), (len(rows) - 1,), 2))


def _with_points(values: list[str | None], mark: str) -> list[str | None]:
    """A column whose decimal commas, which stand there if no comma stands between columns, have become points."""
    told = [value for value in values if value is not None]
    if mark == "," or not any(map(_COMMA.fullmatch, told)):
        return values
    if not all(_COMMA.fullmatch(value) or _number(value) is not None for value in told):
        return values
    return [None if value is None else value.replace(",", ".") for value in values]


def _checked(table: _Table) -> _Table:
    if not len(table):
        raise DataError(f"{table.files[0]}: no rows")
    return table


def _joined(name: str, tables: Sequence[_Table]) -> _Table:
    """The rows of several files, which must have the same columns, one after another."""
    first = tables[0]
    for table in tables[1:]:
        for one, other in ((first, table), (table, first)):
            if lacking := [column for column in one.columns if column not in other.columns]:
                raise DataError(f"{other.files[0]}: no column {lacking[0]}, which {one.files[0]} has")
    columns = {column: [value for table in tables for value in table.columns[column]] for column in first.columns}
    files = tuple(table.files[0] for table in tables)
    return _Table(name, columns, files, tuple(map(len, tables)), first.first)


def _dataset(
    table: _Table,
    target: str,
    client: str,
    drop: Sequence[str],
    task: str,
    schema: Schema | None,
    users: np.ndarray | None = None,
) -> Dataset:
    if isinstance(drop, str):
        drop = tuple(part.strip() for part in drop.split(","))
    if schema is None:
        x, schema = _found(table, target, client, tuple(drop), task)
        y = _targets(table, schema.target)
    else:
        for name, given in (("target", target), ("client", client), ("drop", drop), ("task", task)):
            if given:
                raise SettingsError(f"{name}: the schema says it; leave it out")
        _require_columns(table, [schema.target, *(column.name for column in schema.columns)])
        x = _encoded(table, schema)
        y = _known_targets(table, schema)
    if schema.client and schema.client in table.columns:
        users = np.array([_word(table, schema.client, row) for row in range(len(table))])
    data = Dataset(
        x, y, labels=schema.labels, users=users, name=table.name, task=schema.task, kind="features", schema=schema
    )
    names = data.labels if data.kind_of_task.one_class else (schema.target,)
    made = replace(data, labels=names, schema=replace(schema, task=data.task, labels=names))
    _tell(table, made)
    return made


def _found(table: _Table, target: str, client: str, drop: tuple[str, ...], task: str) -> tuple[np.ndarray, Schema]:
    """The inputs of a table, and the schema that its columns look like."""
    columns = ", ".join(table.columns)
    if not target:
        raise SettingsError(f"{table.called}: say with target=... which column is predicted; there are {columns}")
    for name in (target, client, *drop):
        if name and name not in table.columns:
            raise unknown(f"column of {table.called}", name, table.columns)
    if target in (client, *drop):
        raise SettingsError(f"target={target}: is {'dropped' if target in drop else 'the client'} too")
    inputs = [name for name in table.columns if name not in (target, client, *drop)]
    if not inputs:
        raise DataError(f"{table.called}: no column is left for inputs")
    schema = Schema(target, tuple(_column(table, name) for name in inputs), task, (), client, drop)
    return _encoded(table, schema), schema


def _column(table: _Table, name: str) -> Column:
    """A column as its values look."""
    values = [value for value in table.columns[name] if value is not None]
    missing = len(values) < len(table)
    if not values:
        raise DataError(f"{table.called}: column {name} is empty; leave it out with --drop {name}")
    if all(_truth(value) is not None for value in values):
        return Column(name, "boolean", missing=missing)
    if (example := _dates(values)) is not None:
        raise DataError(
            f"{table.called}: column {name} holds dates such as {example}, which are neither amounts nor categories; "
            f"leave it out with --drop {name}, or write an amount such as days since the first visit"
        )
    codes = any(isinstance(value, str) and _CODE.fullmatch(value) for value in values)
    if not codes and 2 * sum(_number(value) is not None for value in values) >= len(values):
        return Column(name, "number", missing=missing)
    if 2 * sum(isinstance(value, str) and _COMMA.fullmatch(value) is not None for value in values) > len(values):
        raise DataError(f"{table.called}: column {name} has decimal commas, as in {values[0]}; write points")
    if strange := [value for value in values if not isinstance(value, str | Real)]:
        held = type(strange[0]).__name__
        raise DataError(f"{table.called}: column {name} holds values of type {held}; leave it out with --drop {name}")
    categories = tuple(sorted({str(value) for value in values}))
    if len(categories) > _MANY:
        raise DataError(
            f"{table.called}: column {name} has {len(categories)} different words, more than {_MANY} categories; leave "
            f"it out with --drop {name}"
        )
    return Column(name, "category", categories, missing)


def _encoded(table: _Table, schema: Schema) -> np.ndarray:
    """The inputs [row, input] of a table; not-a-number where a number or a truth value is missing."""
    x = np.zeros((len(table), len(schema.inputs)))
    place = 0
    for column in schema.columns:
        values = table.columns[column.name]
        gone = np.array([value is None for value in values])
        if column.type == "category":
            known = {word: number for number, word in enumerate(column.categories)}
            for row, value in enumerate(values):
                if value is not None:
                    x[row, place + _category(table, column, row, str(value), known)] = 1
        else:
            convert: Callable[[Any], Any] = _number if column.type == "number" else _truth
            told = "is no number" if column.type == "number" else "is neither true nor false"
            x[gone, place] = np.nan
            for row, value in enumerate(values):
                if value is None:
                    continue
                converted = convert(value)
                if converted is None:
                    way_out = f"write it empty, or leave the column out with --drop {column.name}"
                    raise table.wrong(column.name, row, f"{str(value)!r} {told}; {way_out}")
                x[row, place] = converted
        if column.missing:
            x[gone, place + len(column.inputs) - 1] = 1
        elif gone.any():
            log.warning(
                "%s: column %s: %d missing values become the mean, unmarked, as the schema has missing = false",
                *(table.name, column.name, gone.sum()),
            )
        place += len(column.inputs)
    return x


def _category(table: _Table, column: Column, row: int, word: str, known: dict[str, int]) -> int:
    if word not in known:
        some = ", ".join(column.categories[:20])
        raise table.wrong(column.name, row, f"{word!r} is none of {some}; write it empty, or add it to the schema")
    return known[word]


def _targets(table: _Table, target: str) -> np.ndarray:
    """The targets as they stand in the table: whole numbers, numbers, truth values or words."""
    values = table.columns[target]
    _refuse_missing(table, target)
    if all(isinstance(value, bool | np.bool_) for value in values):
        return np.array(values, dtype=bool)
    if (example := _dates(values)) is not None:
        raise DataError(
            f"{table.called}: target={target} holds dates such as {example}, which no task predicts; write an amount, "
            "such as days since the first visit"
        )
    numbers = [_number(value) for value in values]
    count = sum(number is not None for number in numbers)
    if count == len(values):
        made = np.array(numbers, dtype=np.float64)
        return made.astype(np.int64) if (made == np.round(made)).all() and (abs(made) < 2**53).all() else made
    if 2 * count > len(values):
        row = numbers.index(None)
        raise table.wrong(target, row, f"{str(values[row])!r} is no number, but most targets are; correct the row")
    return np.array([str(value) for value in values])


def _known_targets(table: _Table, schema: Schema) -> np.ndarray:
    """The targets of a table whose labels are known."""
    values, made = table.columns[schema.target], []
    _refuse_missing(table, schema.target)
    for row, value in enumerate(values):
        number = _number(value)
        if schema.task == "regression":
            if number is None:
                raise table.wrong(schema.target, row, f"{str(value)!r} is no number")
            made.append(number)
            continue
        word = str(value) if number is None or number != round(number) else str(int(number))
        if word not in schema.labels:
            some = ", ".join(schema.labels[:20])
            raise table.wrong(schema.target, row, f"{str(value)!r} is none of the labels {some}")
        made.append(schema.labels.index(word))
    return np.array(made, dtype=np.float64 if schema.task == "regression" else np.int64)


def _refuse_missing(table: _Table, column: str) -> None:
    for row, value in enumerate(table.columns[column]):
        if value is None:
            raise table.wrong(column, row, "is empty, and every row needs it; fill it in, or leave the row out")


def _word(table: _Table, column: str, row: int) -> str:
    """The name of a row's client."""
    value = table.columns[column][row]
    if value is None:
        raise table.wrong(column, row, "is empty, and every row needs its client")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _number(value: Any) -> float | None:
    """A value as a number; None if it is none."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, str | Real | Decimal):
        return None
    if isinstance(value, _Category):
        return None
    try:
        number = float(value) if not isinstance(value, str) or "_" not in value else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _truth(value: Any) -> bool | None:
    """A value as true or false; None if it is neither."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return _TRUTH.get(value.lower()) if isinstance(value, str) else None


def _dates(values: Sequence[Any]) -> Any:
    """One of the dates, if most of these values are dates, or None."""
    dates = [value for value in values if _is_date(value)]
    return dates[0] if 2 * len(dates) > len(values) else None


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date | datetime.time | np.datetime64) or (
        isinstance(value, str) and _DATE.fullmatch(value) is not None
    )


def _tell(table: _Table, data: Dataset) -> None:
    """Log what was made of which column."""
    schema = data.schema
    assert schema is not None
    gone = {name: sum(value is None for value in values) for name, values in table.columns.items()}

    def named(kind: str) -> Iterable[str]:
        for column in schema.columns:
            if column.type == kind:
                words = f" ({', '.join(column.categories[:10])}{' ...' if len(column.categories) > 10 else ''})"
                lost = f" [{gone[column.name]} missing]" if gone[column.name] else ""
                yield column.name + (words if column.categories else "") + lost

    kinds = {"numbers": "number", "true or false": "boolean", "categories": "category"}
    parts = [f"{title}: {', '.join(found)}" for title, kind in kinds.items() if (found := list(named(kind)))]
    used = {schema.target, schema.client, *(column.name for column in schema.columns)}
    if left := [name for name in table.columns if name not in used]:
        parts.append(f"left out: {', '.join(left)}")
    if any(gone[column.name] for column in schema.columns):
        parts.append("missing values become the mean of training rows, and an input says where")
    if data.users is not None:
        parts.append(f"{len(np.unique(data.users))} clients")
    log.info("%s: %d rows; target %s; %s", table.name, len(table), schema.target, "; ".join(parts))
