"""Processes that answer questions, one line each way: forks of this process where that is safe, or fresh interpreters.

A fork is there at once and shares the memory of what this process has imported; a fresh interpreter imports torch for
more than a second. But of all threads a fork has only the one that forked, and a lock that another thread held stays
locked in it for ever. So nothing is forked while other Python threads run, nor once CUDA is in use. The idle threads of
OpenMP and OpenBLAS do no harm, since a worker computes with one thread.
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
"""What a process does from beginning to end. It must be a function of a module. It is called with a word from whoever
starts the process, and with the files from which it reads questions and to which it writes answers."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Numbers by which glibc's `mallopt` knows two of its settings."""


class WorkerProcess:
    """A process as whoever asks it sees it."""

    def __init__(self, pid: int, questions: IO[str], answers: IO[str], wait: Callable[[], int]) -> None:
        self.pid = pid
        self._questions, self._answers, self._wait = questions, answers, wait
        self.code: int | None = None
        """The process's exit code, negative if a signal ended it; None until `wait` has seen the end."""

    def ask(self, question: str) -> None:
        """Send the process a line."""
        self._questions.write(question + "\n")
        self._questions.flush()

    def answer(self) -> str:
        """The next line from the process, or an empty text if it has ended."""
        return self._answers.readline()

    def close(self) -> None:
        """Let the process know that nothing more will be asked."""
        for end in (self._questions, self._answers):
            with contextlib.suppress(OSError):
                end.close()

    def kill(self) -> None:
        """End the process at once."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        if self.code is None:
            self.code = self._wait()
        return self.code


def start(life: Life, word: str) -> WorkerProcess:
    """Start a process that runs `life` with this word."""
    return _forked(life, word) if can_fork() else _fresh(life, word)


def can_fork() -> bool:
    """Whether a process that is started now is a fork of this one."""
    return sys.platform == "linux" and len(sys._current_frames()) == 1 and not torch.cuda.is_initialized()


def _forked(life: Life, word: str) -> WorkerProcess:
    (asked, asks), (answered, answers) = os.pipe(), os.pipe()
    sys.stdout.flush()  # or both processes would write what is still in its buffer
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Newer Pythons warn of any other thread. Only harmless ones are left here: see the docstring of the module.
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
    """Run a life in a fork: without the parent's handler for SIGTERM, and without what the parent does at its exit."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # collecting garbage would write to, and so copy, all memory that is shared with the parent
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
    """Run a life in a fresh interpreter. Its arguments are the life's module, its name and the word."""
    module, name, word = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    _prepare()
    life: Life = getattr(__import__(module, fromlist=[name]), name)
    life(word, sys.stdin, answers)


def _prepare() -> None:
    """Send what the process prints to stderr, away from its answers, and have glibc keep memory that is freed.

    Otherwise glibc returns memory to the system after every step and fetches it again in the next one: with a small CNN
    that is a thousand page faults a step, a quarter of the time.
    """
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with contextlib.suppress(AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
