"""Secret sharing: a model is split into shares that say nothing unless all are put together.

So clients can find the sum of their models without anybody seeing a single one.

`additive` is the default. Numbers are rounded to multiples of `STEP` and become elements of the ring of integers modulo
2**64. All shares but the last are uniformly random, and the last is what is missing to the model: any n - 1 of n shares
are uniformly random, whatever the model is. Sums of shares, of one model or of many, are exact in the ring, so a result
differs from the plain sum by at most half a step for each model in it. Numbers up to `LARGEST` can be shared, and
thousands of such models summed, before the ring is full.

`scalar` is SLFed's own scheme (Eq. 17): each layer is multiplied by random numbers that sum to 1. It is kept for
comparison: every single share is the layer itself, up to a factor.

The random shares are expanded (SHAKE-256) from 256 bits of the operating system's entropy.

>>> one, other = np.array([0.5, -2.0]), np.array([0.25, 1.0])
>>> shares = coterie.sharing.split(one, 3) + coterie.sharing.split(other, 3)  # each party adds what it got
>>> coterie.sharing.combine(shares)
array([ 0.75, -1.  ])
"""

import hashlib
import logging
import secrets
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.errors import CoterieError, SettingsError

Mode = Literal["additive", "scalar"]

STEP = 2.0**-32
"""What numbers are rounded to in the ring."""

LARGEST = 2.0**20
"""The largest number that can be shared."""

log = logging.getLogger("coterie")


def new_key() -> bytes:
    """A secret from which shares are made, drawn from the operating system's entropy.

    >>> len(coterie.sharing.new_key())
    32
    """
    return secrets.token_bytes(32)


def split(
    model: Any,
    parties: int,
    mode: Mode = "additive",
    seed: int | bytes | None = None,
    layers: Sequence[int] | None = None,
) -> np.ndarray:
    """The shares [party, parameter] of a model [parameter]: int64 in the ring, or for `scalar` float64.

    A whole number as seed makes shares that anybody can repeat, for tests only; bytes are a secret of the client's own
    (`new_key`), from which it can make the same shares again. `layers` are the numbers of parameters in each layer, for
    `scalar`; by default the whole model is one layer.

    >>> coterie.sharing.split(np.array([0.5, -2.0]), parties=3).shape
    (3, 2)
    """
    values = np.asarray(model.detach().cpu() if isinstance(model, Tensor) else model, dtype=np.float64)
    if values.ndim != 1:
        raise SettingsError(f"a model of shape {values.shape}: shares are made of one flat vector")
    if parties < 2:
        raise SettingsError(f"parties={parties}: a single share is the model itself; at least 2")
    key = new_key() if seed is None else seed if isinstance(seed, bytes) else f"seed {seed}".encode()
    if mode == "additive":
        shares = np.empty((parties, len(values)), dtype=np.int64)
        shares[:-1] = _random(key, (parties - 1, len(values)))
        shares[-1] = _encoded(values) - _sum(shares[:-1])
        return shares
    if mode == "scalar":
        _warn_of_scalars()
        sizes = [len(values)] if layers is None else list(layers)
        if sum(sizes) != len(values):
            raise SettingsError(f"layers of {sum(sizes)} parameters in all, for a model of {len(values)}")
        return np.repeat(_parts_of_one(key, parties, len(sizes)), sizes, axis=1) * values
    raise SettingsError(f"mode={mode!r}: additive or scalar")


def combine(shares: Any) -> np.ndarray:
    """The model [parameter] that was split into these shares [party, parameter].

    Sums of the shares of several models are shares of the models' sum: then the result is that sum.

    >>> coterie.sharing.combine(coterie.sharing.split(np.array([0.5, -2.0]), parties=3))
    array([ 0.5, -2. ])
    """
    shares = np.asarray(shares.detach().cpu() if isinstance(shares, Tensor) else shares)
    if shares.ndim != 2 or not len(shares):
        raise SettingsError(f"shares of shape {shares.shape}: expected [party, parameter]")
    return _sum(shares) * STEP if shares.dtype == np.int64 else shares.sum(axis=0, dtype=np.float64)


def _encoded(values: np.ndarray) -> np.ndarray:
    """Numbers as elements of the ring."""
    largest = np.abs(values).max(initial=0)
    if not largest <= LARGEST:  # so that NaN is refused too
        raise CoterieError(f"a model with a number as large as {largest:g} cannot be shared: at most {LARGEST:g}")
    return np.rint(values / STEP).astype(np.int64)


def _sum(shares: np.ndarray) -> np.ndarray:
    """The sum in the ring: NumPy's 64-bit integers wrap around."""
    return np.asarray(shares.sum(axis=0, dtype=np.int64))


def _random(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of the ring that look uniformly random to everybody who does not have the key."""
    return np.frombuffer(hashlib.shake_256(key).digest(8 * int(np.prod(shape))), dtype="<i8").reshape(shape)


def _parts_of_one(key: bytes, parties: int, layers: int) -> np.ndarray:
    """SLFed's X, [party, layer]: for each layer random factors that sum to 1, uniform among all that do."""
    uniform = ((_random(key, (parties, layers)) >> 11) & (1 << 53) - 1) * 2.0**-53
    heights = -np.log1p(-uniform) + 1e-300
    return heights / heights.sum(axis=0)


@cache
def _warn_of_scalars() -> None:
    log.warning("sharing=scalar: each share shows a layer up to its scale, so it hides little; use additive")
