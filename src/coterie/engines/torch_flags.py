"""Torch's precision and threads while programs run.

They belong to the whole process, and code that is no program must find them as they were: `applied` sets them while a
program runs. Of runs that compute together, one waits inside of a program while others go on: `lifted` takes the
settings back meanwhile, or the servers of the others would take their means in tf32.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch


class _state:  # noqa: N801
    """How many programs run in this process, the settings they want of torch, and what undoes these."""

    lock = threading.Lock()
    inside = 0
    wanted: tuple[str, torch.device] | None = None  # precision and device
    undo = ExitStack()


@contextmanager
def applied(precision: str, device: torch.device) -> Iterator[None]:
    """Set torch up for a program. When the last of the programs that run at once ends, torch is as it was before."""
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
    """How to apply later the settings that hold now: for what a program asks for and another thread computes."""
    return nullcontext if _state.wanted is None else partial(applied, *_state.wanted)


@contextmanager
def lifted() -> Iterator[None]:
    """Torch as it was before all programs, while the program in this thread waits and other threads go on."""
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
    """Set torch up for a precision on a device; closing the result undoes it."""
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
