"""Randomness that is keyed, not global.

Every draw comes from a generator whose key names what the draw is for: the seed, a purpose, the round, the client. Two
draws with different keys are independent, and a draw does not depend on what was drawn before it, so a result does not
depend on the engine, on the number of workers, on the chunk size or on what ran earlier in the same process.

Noise inside of nets, such as dropout, comes from `uniform` with a key for each client and step.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Part = str | int


def draw_key(*parts: Part) -> int:
    """A hash of 63 bits of a sequence of words and numbers: the key of one kind of draws."""
    # A part begins with the letter of its type, and a separator inside of one is doubled: no two sequences read alike.
    text = "\x1f".join([type(part).__name__[0] + str(part).replace("\x1f", "\x1f\x1f") for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: Part) -> np.random.Generator:
    """A NumPy generator for one purpose, e.g. `generator(seed, "sample", round)`."""
    return np.random.Generator(np.random.Philox(key=draw_key(*parts)))


def generators(keys: Iterable[int]) -> Iterator[np.random.Generator]:
    """A NumPy generator for each of many keys, one after another.

    It is one object that is set to the next key, so each must be used before the next is asked for: making a generator
    takes longer than drawing the batches of a client with it.
    """
    philox = np.random.Philox(key=0)
    reused, state = np.random.Generator(philox), philox.state
    for key in keys:
        state["state"]["key"][0] = key
        philox.state = state
        yield reused


def torch_generator(*parts: Part) -> "torch.Generator":
    """A torch generator on the host for one purpose, such as the initialisation of a net."""
    import torch  # here, because this module also serves splits and data sets, which need no torch

    # The global generator is not touched: this seeds an object of our own.
    return torch.Generator().manual_seed(draw_key(*parts))


def uniform(key: "Tensor", *shape: int) -> "Tensor":
    """Random numbers in [0, 1) of a shape, the same ones for the same key on every device and under `vmap`.

    `key` is a scalar int64 tensor. Each number is a hash of the key and of the number's position: the first rows of a
    longer draw are the rows of a shorter one. So noise does not depend on padding.
    """
    import torch

    state = torch.arange(math.prod(shape), dtype=torch.int64, device=key.device) * _GOLDEN + key
    # The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in wrapping signed arithmetic.
    state = (state ^ _shift(state, 30)) * _MIX_1
    state = (state ^ _shift(state, 27)) * _MIX_2
    state = state ^ _shift(state, 31)
    return (_shift(state, 40).to(torch.float32) * 2.0**-24).reshape(shape)


def _shift(value: "Tensor", bits: int) -> "Tensor":
    """A right shift that fills up with zeros; torch's own repeats the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The signed number of 64 bits with the same bits, as torch has no unsigned ones."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
