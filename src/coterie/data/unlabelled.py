"""Inputs alone, for which somebody wants to know what a model predicts: nothing says what the right answer is."""

from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.data.own import read_images
from coterie.data.preparation import Preparation
from coterie.data.readers import read_npz, reading
from coterie.data.tables import encoded_rows, is_table


def unlabelled(path: Path, preparation: Preparation) -> Any:
    """The inputs [sample, ...] at a path: a table if the model is for one, an array x in a file, or images."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if preparation.schema is not None:
        if not is_table(path) or path.is_dir():
            raise DataError(f"{path}: this model takes the rows of a table (CSV or Parquet)")
        return encoded_rows(path, preparation.schema)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, ("x",))["x"]
    if suffix == ".npy":
        with reading(path, "an .npy file"):
            return np.load(path, allow_pickle=False)
    if preparation.kind == "image":
        return read_images(path, preparation.shape)
    raise DataError(f"{path}: this model takes {preparation.kind}: an .npz file with an array x, or an .npy file")
