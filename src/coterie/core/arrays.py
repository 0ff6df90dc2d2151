"""Arrays as the moves take them: lists, NumPy's arrays and tensors in, checked copies in float64 out."""

from typing import Any

import numpy as np
from torch import Tensor

from coterie.core.errors import SettingsError


def as_array(name: str, value: Any, *axes: int) -> np.ndarray:
    """A copy in float64, refused if it is empty, not finite, or of other numbers of axes than these."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: expected numbers in equal rows ({error})") from None
    if axes and array.ndim not in axes:
        allowed = " or ".join(map(str, axes))
        raise SettingsError(f"{name} of shape {array.shape}: expected {allowed} axes")
    if not array.size:
        raise SettingsError(f"{name} of shape {array.shape}: nothing in it")
    if not np.isfinite(array).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(array))[0]))
        raise SettingsError(f"{name}: not a finite number at [{place}]; leave out clients whose training has failed")
    return array


def as_counts(name: str, value: Any, length: int | None = None) -> np.ndarray:
    """One number per client, none below 0; `length` is the number of clients, where it is known."""
    array = as_array(name, value, 1)
    if length is not None and len(array) != length:
        raise SettingsError(f"{name}: {len(array)} numbers for {length} clients")
    if (array < 0).any():
        raise SettingsError(f"{name}: {array.min():g} is below 0")
    return array


def as_square(name: str, value: Any, symmetric: bool = False) -> np.ndarray:
    """A number for every pair of clients, [client, client], with `symmetric` one that is so, but for rounding."""
    array = as_array(name, value, 2)
    if array.shape[0] != array.shape[1]:
        raise SettingsError(f"{name} of shape {array.shape}: expected a number for every pair, [client, client]")
    if symmetric:
        if not np.allclose(array, array.T, rtol=1e-6, atol=1e-9 * np.abs(array).max()):
            row, column = np.unravel_index(np.abs(array - array.T).argmax(), array.shape)
            raise SettingsError(f"{name}: not symmetric, [{row}, {column}] and [{column}, {row}] differ")
        array = (array + array.T) / 2
    return array


def everywhere(matrix: Any, clients: Any, count: int) -> np.ndarray:
    """A matrix of some clients, put into one of all `count` clients, [client, client]; NaN for all others."""
    matrix = matrix.detach().cpu().numpy() if isinstance(matrix, Tensor) else np.asarray(matrix)
    whole = np.full((count, count), np.nan)
    whole[np.ix_(clients, clients)] = matrix
    return whole
