"""Torch's settings while programs run: they are the process's own, and others' code must not feel them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch

Flags = tuple[str, torch.device]
"""A precision and where is computed."""


class _state:  # noqa: N801
    """How many programs run in this process, what they want of torch, and what takes its settings back."""

    lock = threading.Lock()
    inside = 0
    wanted: Flags | None = None
    undo = ExitStack()


@contextmanager
def applied(precision: str, device: torch.device) -> Iterator[None]:
    """Torch's settings while programs run; when the last of them ends, they are as before."""
    with _state.lock:
        if not _state.inside:
            _state.wanted, _state.undo = (precision, device), _set_torch(precision, device)
        _state.inside += 1
    try:
        yield
    finally:
        with _state.lock:
            _state.inside -= 1
            if not _state.inside:
                _state.undo.close()
                _state.wanted = None


def current() -> Callable[[], AbstractContextManager[None]]:
    """The settings that hold now, to be entered when something is computed later."""
    return nullcontext if _state.wanted is None else partial(applied, *_state.wanted)


@contextmanager
def lifted() -> Iterator[None]:
    """Torch as it was before, for a while: a program waits, and the code of other runs goes on in other threads."""
    with _state.lock:
        inside, wanted = _state.inside, _state.wanted
        if inside:
            _state.undo.close()
        _state.inside, _state.wanted = 0, None
    try:
        yield
    finally:
        with _state.lock:
            _state.inside, _state.wanted = inside, wanted
            if wanted is not None:
                _state.undo = _set_torch(*wanted)


def _set_torch(precision: str, device: torch.device) -> ExitStack:
    undo = ExitStack()
    if device.type == "cpu":
        # One thread: with several, small operations of a loaded machine take up to ten times as long.
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
    else:
        tf32 = precision == "tf32"
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        undo.enter_context(
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
        )
    return undo
