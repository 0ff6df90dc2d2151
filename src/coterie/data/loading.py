"""Data by name or by path."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, DataError, SettingsError, unknown
from coterie.core.fields import checked
from coterie.data.dataset import Dataset
from coterie.data.hugging_face import from_hugging_face, is_hugging_face
from coterie.data.own import from_folder, from_npz
from coterie.data.sources import sources
from coterie.data.storage import data_folder
from coterie.data.tables import SUFFIXES, from_frame, from_table, is_frame, is_table

_OF_TABLES = ("target", "client", "drop", "task", "schema")
_OF_HUGGING_FACE = ("target", "client", "drop", "task", "kind", "inputs")
"""The options of own data in these forms."""


def load(
    data: Any,
    folder: str | Path | None = None,
    download: bool = True,
    *,
    limit: int | None = None,
    hold_out: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """A data set of the catalogue, or own data from an npz file, a table, a folder of tables or a folder of images.

    Own data may also be a data frame of pandas or Polars, or a data set of Hugging Face's library `datasets`.

    A name of the catalogue comes first: a folder that is called like one is written `./mnist`. `folder` is where
    published files are looked for and downloaded to (see `data_folder`). `hold_out` is the share of every class that
    becomes the test part; `limit` is the number of training samples that are kept. `seed` decides
    which samples these are, and which classes a data set has that picks some. Other options are those of the data set.

    >>> coterie.load("digits").shape
    (1, 8, 8)
    """
    limit, hold_out = checked("limit", limit, int | None), checked("hold_out", hold_out, float | None)
    seed = checked("seed", seed, int)
    if is_hugging_face(data):
        dataset = from_hugging_face(data, **_known("a Hugging Face data set", options, _OF_HUGGING_FACE))
    elif is_frame(data):
        dataset = from_frame(data, **_known("a table", options, _OF_TABLES))
    elif isinstance(checked("data", data, str | Path), str) and data in sources:
        dataset = _published(data, data_folder(folder), download, seed, options)
    else:
        dataset = _own(data, options)
    if hold_out is not None:
        if dataset.test is not None:
            raise SettingsError(f"hold_out={hold_out}: {dataset.name} has a test part already")
        dataset = dataset.held_out(hold_out, seed)
    return dataset if limit is None else dataset.limited(limit, seed)


def _published(name: str, folder: Path, download: bool, seed: int, options: dict[str, Any]) -> Dataset:
    if hasattr(sources[name], "seed"):
        options = {"seed": seed} | options
    return sources.make(name, **options).read(folder, download)


def _own(data: str | Path, options: dict[str, Any]) -> Dataset:
    path = Path(data).expanduser()
    if not data or not path.exists():
        raise _nowhere(data)
    if is_table(path):
        return from_table(path, **_known("a table", options, _OF_TABLES))
    if path.is_dir():
        return from_folder(path, **_known("a folder of images", options, ("size",)))
    if path.suffix.lower() != ".npz":
        raise DataError(
            f"{path}: own data is an .npz file, a table ({', '.join(SUFFIXES)}), or a folder of either "
            "tables or images per class"
        )
    return from_npz(path, **_known("an .npz file", options, ("kind", "task")))


def _known(form: str, options: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """The options of own data in this form; one that it does not have is an error."""
    for option in options:
        if option not in known:
            raise unknown(f"option of {form}", option, known)
    return options


def _nowhere(data: str | Path) -> CoterieError:
    """The error for data that is neither known by name nor there; a plain word is taken for a name, not a path."""
    path = Path(data)
    if isinstance(data, str) and path.name == data and not path.suffix:
        return unknown("data set", data, sources)
    near = get_close_matches(path.stem.lower(), list(sources), n=3, cutoff=0.5)
    hint = f"did you mean the data set {' or '.join(near)}?" if near else f"data sets by name are {', '.join(sources)}"
    return DataError(f"{data}: no such file or folder; {hint}")
