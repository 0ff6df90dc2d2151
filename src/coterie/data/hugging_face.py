"""Data sets of Hugging Face's library `datasets`, which is needed only to make them.

What a column is stands in the data set itself: a `ClassLabel` has names, an `Image` gives pictures, a `Value` numbers
or words, and a list of whole numbers is a row of ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.errors import DataError, SettingsError, unknown
from coterie.data.dataset import Dataset
from coterie.data.own import as_array
from coterie.data.tables import from_columns

_NAMES = ("label", "labels", "target")
"""What the column that is predicted is called if nobody says."""


def is_hugging_face(data: Any) -> bool:
    """Whether something is a data set of that library, or several parts of one by name."""
    if isinstance(data, Mapping):
        return bool(data) and all(map(is_hugging_face, data.values()))
    return hasattr(data, "features") and hasattr(data, "column_names") and hasattr(data, "__getitem__")


def from_hugging_face(
    dataset: Any,
    target: str = "",
    inputs: str = "",
    client: str = "",
    drop: Sequence[str] = (),
    kind: str = "",
    task: str = "",
) -> Dataset:
    """Data from a data set of Hugging Face's library `datasets`, or from one with the parts `train` and `test`.

    The column `target` is predicted, by default the one called `label`. `inputs` names a column of images, arrays or
    ids; without it, the only column of that sort is taken, or else all columns are the columns of a table (see
    `from_table`). The column `client` tells clients apart, and those of `drop` are left out. `kind` and `task` say
    what inputs are and what is predicted (see `Dataset`).
    """
    parts = {"train": dataset} if not isinstance(dataset, Mapping) else dict(dataset)
    if "train" not in parts:
        raise DataError(f"a data set with the parts {', '.join(parts)}: one must be called train; give one of them")
    train, test = parts["train"], parts.get("test")
    if not hasattr(train, "__len__"):
        raise DataError("a streamed data set has no length; load it without streaming=True")
    columns = list(train.column_names)
    target = target or next((name for name in _NAMES if name in columns), "")
    if not target:
        raise SettingsError(f"say with target=... which column is predicted; there are {', '.join(columns)}")
    for name in (target, inputs, client, *drop):
        if name and name not in columns:
            raise unknown("column of the data set", name, columns)
    name = getattr(train, "builder_name", None) or "hugging-face"
    left = [column for column in columns if column not in (target, client, *drop)]
    inputs = inputs or _inputs(train, left)
    labels = tuple(getattr(train.features[target], "names", None) or ())
    if not inputs:
        if test is not None:
            raise SettingsError("a table has no test part of its own: give the part train, or all rows in one part")
        table = {one: [*train[one]] for one in columns}
        if labels:
            table[target] = [labels[place] for place in table[target]]
        return from_columns(table, target, client, drop, task, name)
    users = None if not client else np.array([str(user) for user in train[client]])
    told: dict[str, Any] = {"labels": labels, "kind": kind, "task": task, "name": name}
    part = None if test is None else Dataset(_stacked(test, inputs), np.asarray([*test[target]]), **told)
    return Dataset(_stacked(train, inputs), np.asarray([*train[target]]), test=part, users=users, **told)


def _inputs(part: Any, columns: Sequence[str]) -> str:
    """The only column that holds more than a number or a word in each row; empty if there is none."""
    found = [column for column in columns if len(part) and np.ndim(as_array(part[0][column])) > 0]
    if len(found) > 1:
        raise SettingsError(f"say with inputs=... which column is the input: {' or '.join(found)}")
    return found[0] if found else ""


def _stacked(part: Any, column: str) -> np.ndarray:
    """The inputs of all rows, which must have one shape."""
    rows = [as_array(row) for row in part[column]]
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise DataError(
                f"column {column}, row {number}: of shape {row.shape}, but the first is of {rows[0].shape}; "
                "scale images to one size, and pad or cut ids to one length"
            )
    return np.stack(rows) if rows else np.empty((0, 0))
