"""Processes that answer questions, a line each: forked from this one where that is safe, else fresh interpreters.

A fork is there at once and shares what this process has loaded; a fresh interpreter imports torch for more than a
second. A fork has only the thread that forked: what another one was about to do, or held a lock for, it never gets. So
nothing is forked while other Python threads run, nor once CUDA is in use. The idle threads of OpenMP and OpenBLAS may
be there, since a worker computes with one thread.
"""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import IO, NoReturn

import torch

Life = Callable[[str, IO[str], IO[str]], None]
"""What a process does: called with a word, where questions come from and where answers go; a function of a module."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class WorkerProcess:
    """A process that is asked and answers."""

    def __init__(self, pid: int, questions: IO[str], answers: IO[str], wait: Callable[[], int]) -> None:
        self.pid = pid
        self._questions, self._answers, self._wait = questions, answers, wait
        self.code: int | None = None
        """What it ended with, negative for a signal, once it has been waited for."""

    def ask(self, question: str) -> None:
        """Write a line to it."""
        self._questions.write(question + "\n")
        self._questions.flush()

    def answer(self) -> str:
        """The line that it writes, empty if it has ended."""
        return self._answers.readline()

    def close(self) -> None:
        """Let it know that nothing more will be asked."""
        for end in (self._questions, self._answers):
            with contextlib.suppress(OSError):
                end.close()

    def kill(self) -> None:
        """End it now."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """What it ends with."""
        if self.code is None:
            self.code = self._wait()
        return self.code


def start(life: Life, word: str) -> WorkerProcess:
    """A new process that lives this life."""
    return _forked(life, word) if _can_fork() else _fresh(life, word)


def _can_fork() -> bool:
    return sys.platform == "linux" and len(sys._current_frames()) == 1 and not torch.cuda.is_initialized()


def _forked(life: Life, word: str) -> WorkerProcess:
    (asked, asks), (answered, answers) = os.pipe(), os.pipe()
    sys.stdout.flush()  # or both would write what waits there
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Newer Pythons warn of any other thread; those that are left here are known (see above).
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.close(asks)
        os.close(answered)
        _live(life, word, os.fdopen(asked), os.fdopen(answers, "w"))
    os.close(asked)
    os.close(answers)
    return WorkerProcess(
        pid, os.fdopen(asks, "w"), os.fdopen(answered), lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    )


def _live(life: Life, word: str, questions: IO[str], answers: IO[str]) -> NoReturn:
    """Live in a fork, without the handlers of the parent, and leave without what the parent does at its end."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # a collection would touch, and so copy, all pages that are shared with the parent
        _prepare()
        life(word, questions, answers)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _fresh(life: Life, word: str) -> WorkerProcess:
    command = f"from {__name__} import live_fresh; live_fresh()"
    popen = subprocess.Popen(
        [sys.executable, "-c", command, life.__module__, life.__name__, word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        text=True,
    )
    assert popen.stdin is not None
    assert popen.stdout is not None
    return WorkerProcess(popen.pid, popen.stdin, popen.stdout, popen.wait)


def live_fresh() -> None:
    """Live in a fresh interpreter, whose arguments say how."""
    module, name, word = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    _prepare()
    life: Life = getattr(__import__(module, fromlist=[name]), name)
    life(word, sys.stdin, answers)


def _prepare() -> None:
    """Keep prints from between the answers, and have glibc keep memory that is freed.

    It would give it back to the system after every step, to fetch it again in the next one: a thousand page faults.
    """
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with contextlib.suppress(AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
