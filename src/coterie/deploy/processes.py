"""The processes of a federation on this machine: a SuperLink and sites, started, watched and stopped."""

import ctypes
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import psutil

from coterie.core.errors import CoterieError, SettingsError
from coterie.deploy.control import Control
from coterie.deploy.state import CONTROL
from coterie.engines.flower.certs import ServerFiles

_START = 60.0
"""Within how many seconds a SuperLink must listen."""

_MARK = "COTERIE_PROCESSES"
"""The environment variable by which `Processes` recognises what it has started."""

_STOP = 10.0
"""How many seconds a process that is asked to end has until it is killed."""


class Process:
    """A process of the federation, which writes what it prints into a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        """The number of the process, which is also that of its process group."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process is no longer running."""
        return self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds for the process to end; whether it did."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self, lines: int = 5) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Processes:
    """Starts processes and stops all of them when the `with` block ends, whatever happens."""

    def __init__(self) -> None:
        self._all: list[Process] = []
        self._mark = uuid4().hex
        """Stands in the environment of every process that is started here, which those that it starts inherit."""

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
        """Start a process."""
        process = Process(name, command, log, {**environment, _MARK: self._mark})
        self._all.append(process)
        return process

    def check(self) -> None:
        """Raise an error if the SuperLink has ended; a site may end at any time."""
        for process in self._all:
            if process.ended and process.name == "SuperLink":
                raise CoterieError(f"the {process.name} has ended; {process.log} says:\n{process.last_words()}")

    def stop(self) -> None:
        """End all processes: ask each to end, and kill it if it does not."""
        # The latest first: sites sign off at the SuperLink, which must still run then.
        for process in reversed(self._all):
            process.signal(signal.SIGINT)
            if not process.wait(_STOP):
                process.signal(signal.SIGKILL)
                process.wait(_STOP)
        self._end_others()
        self._all.clear()

    def _end_others(self) -> None:
        """End processes that outlive the one which started them.

        A SuperLink starts server apps in sessions of their own. If it is killed, they go on.
        """
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # the process has ended, or belongs to another user
                if process.environ().get(_MARK) == self._mark:
                    process.kill()


def _end_with_parent() -> None:
    """Have Linux end a child when this process is killed, and so can no longer end the child itself."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def flower_environment(folder: Path) -> dict[str, str]:
    """Environment variables for Flower: no telemetry, no check for updates, and no files outside of this folder."""
    return {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        # Flower starts its own helpers by name.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def start_superlink(
    processes: Processes,
    files: ServerFiles,
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    as_root: bool = False,
) -> Process:
    """Start a SuperLink that keeps its state in a folder, wait until it listens, and admit the nodes in `files`.

    It encrypts, lets only these nodes in, takes orders only from who can read the folder, and installs no packages.
    """
    check_user(host, as_root)
    for file in (files.ca, files.certificate, files.key):
        if not file.is_file():
            raise SettingsError(f"{file}: no such file; `coterie deploy certs` makes it")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # who can read it can start apps here
    (folder / CONTROL).unlink(missing_ok=True)  # of one that was killed
    command = [sys.executable, "-m", "coterie.deploy.superlink", str(files.folder), str(folder)]
    command += ["--host", host, "--port", str(port)]
    process = processes.start("SuperLink", command, folder / "superlink.log", flower_environment(folder))
    deadline = time.monotonic() + _START
    local = "127.0.0.1" if host in ("0.0.0.0", "") else host
    while not ((folder / CONTROL).is_file() and _listens(local, port)):
        processes.check()
        if time.monotonic() > deadline:
            raise CoterieError(f"the SuperLink does not listen after {_START:g} s; see {process.log}")
        time.sleep(0.1)
    with closing(Control(folder)) as control:
        control.admit(files.folder / "nodes")
    return process


def check_user(host: str, as_root: bool) -> None:
    """Refuse to serve others than this machine as root, unless told: who breaks in there would have the machine."""
    if os.name == "posix" and os.geteuid() == 0 and not as_root and not _loopback(host):
        raise SettingsError(
            f"host={host}: served by root, so whoever breaks in has the whole machine; start it as another user, or "
            "say --as-root"
        )


def _loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
