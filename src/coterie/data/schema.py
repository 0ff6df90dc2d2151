"""What the columns of a table are, and which numbers they become. A schema knows no row, so it can be sent to sites."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tomli_w

from coterie.core.errors import SettingsError, unknown
from coterie.core.files import write_whole
from coterie.core.registry import checked
from coterie.data.moments import Moments
from coterie.data.tasks import task_named

FORMAT = 1
"""The version of schemas in files."""

ColumnType = Literal["number", "boolean", "category"]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str

    type: ColumnType
    """A `number` stays one, and is scaled. A `boolean` becomes 0 or 1, a `category` an input per category, 0 or 1."""

    categories: tuple[str, ...] = ()
    """All that a category may be."""

    missing: bool = False
    """Whether an input of its own says where a value is missing: 1 there, else 0."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the inputs are called that the column becomes."""
        own = tuple(f"{self.name}={one}" for one in self.categories) if self.type == "category" else (self.name,)
        return (*own, f"{self.name} missing") if self.missing else own


@dataclass(frozen=True)
class Schema:
    """The columns of a table that are inputs, and what is predicted. Written as TOML, it is the same for all sites.

    >>> from coterie.data.schema import Column, Schema
    >>> columns = (Column("age", "number", missing=True), Column("ward", "category", ("A", "B")))
    >>> Schema("outcome", columns, "binary", ("no", "yes")).inputs
    ('age', 'age missing', 'ward=A', 'ward=B')
    """

    target: str
    """The column that is predicted."""

    columns: tuple[Column, ...]
    """The columns that are inputs, in the order of the inputs."""

    task: str
    """What is predicted; see `Dataset.task`."""

    labels: tuple[str, ...]
    """The names of the classes, or of what else is predicted."""

    client: str = ""
    """The column that tells clients apart, if one does."""

    drop: tuple[str, ...] = ()
    """Columns that are left out."""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What all inputs are called."""
        return tuple(name for column in self.columns for name in column.inputs)

    @cached_property
    def amounts(self) -> np.ndarray:
        """Which inputs are numbers that are scaled, [input]: not those that say yes or no."""
        return np.array([name == one.name and one.type == "number" for one in self.columns for name in one.inputs])

    def filling(self, moments: Moments) -> np.ndarray:
        """What stands for a missing value, for each input: the mean. Of a category that is missing no input is 1."""
        own = [name == one.name and one.type != "category" for one in self.columns for name in one.inputs]
        return np.where(own, moments.mean, 0.0)

    def scaling(self, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from inputs, and what they are divided by then: mean and deviation of the numbers."""
        return np.where(self.amounts, moments.mean, 0.0), np.where(self.amounts, moments.deviation, 1.0)

    def write(self, path: Path) -> None:
        """Write the schema into a file."""
        write_whole(path, tomli_w.dumps(self.table()))

    def table(self) -> dict[str, Any]:
        """The schema as TOML has it."""
        return {"format": FORMAT, **_said(self), "columns": [_said(column) for column in self.columns]}

    @classmethod
    def read(cls, path: str | Path) -> "Schema":
        """The schema in a file."""
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: not a TOML file ({error})") from error
        try:
            return cls.from_table(content)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from error

    @classmethod
    def from_table(cls, content: Mapping[str, Any]) -> "Schema":
        """The schema that a table as TOML has it describes."""
        content = dict(content)
        if (found := content.pop("format", None)) != FORMAT:
            raise SettingsError(f"format={found}: a schema of format {FORMAT} is expected, as `coterie schema` writes")
        columns = checked("columns", content.pop("columns", ()), tuple[dict[str, Any], ...])
        own = _values(cls, "the schema", {**content, "columns": tuple(_column(column) for column in columns)})
        if not columns:
            raise SettingsError("columns: there are none")
        names = [own["target"], *(column.name for column in own["columns"])]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SettingsError(f"column {twice[0]} is there twice")
        task_named(own["task"])
        return cls(**own)


def _said(thing: Any) -> dict[str, Any]:
    """The fields that are not as they would be if they were left out, as TOML has them."""
    own = {field.name: getattr(thing, field.name) for field in fields(thing) if getattr(thing, field.name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


def _column(content: Mapping[str, Any]) -> Column:
    column = Column(**_values(Column, "a column", content))
    if column.type not in get_args(ColumnType):
        raise unknown(f"type of column {column.name}", column.type, get_args(ColumnType))
    if (column.type == "category") != bool(column.categories):
        raise SettingsError(f"column {column.name}: categories are for a category, which needs some")
    return column


_TYPES: dict[str, Any] = {"missing": bool, "columns": tuple[Column, ...]} | dict.fromkeys(
    ("categories", "labels", "drop"), tuple[str, ...]
)


def _values(cls: Any, where: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a table for the fields of a class."""
    known = [field.name for field in fields(cls)]
    for name in content:
        if name not in known:
            raise unknown(f"entry of {where}", name, known)
    for name in ("name", "type") if cls is Column else ("target", "task", "labels"):
        if name not in content:
            raise SettingsError(f"{where} does not say its {name}")
    return {name: checked(name, value, _TYPES.get(name, str)) for name, value in content.items()}
