"""Worker processes of one thread each, for simulations on a CPU.

A worker imports a program's module by its name, as a real site would: so nothing is pickled, and users' scripts need no
`if __name__ == "__main__"`. Calls and results are files in shared memory, in the encoding of `coterie.nets.codec`; a
line on a pipe says which file. The samples are mapped into every worker, not copied.

The folder of these files is locked by whoever made it, and by the workers that are forked from it. If all of them are
killed, nobody is left to remove it: so whoever makes such a folder removes those that nobody locks any more.
"""

import contextlib
import importlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from coterie.clients.clients import CallContext
from coterie.clients.letters import Letters
from coterie.clients.memory import Memory
from coterie.clients.programs import program_named
from coterie.core.errors import CoterieError, ProgramError
from coterie.core.files import lock_folder
from coterie.core.modules import homes_of
from coterie.core.records import record
from coterie.data.population import Pool, Shard
from coterie.data.tasks import task_named
from coterie.engines.chunk import ClientHost, Result, run_chunk
from coterie.engines.simulation.processes import WorkerProcess, can_fork, start
from coterie.nets import codec, make_net
from coterie.nets.net import Net
from coterie.server.federation import Call
from coterie.training.forms import form_named
from coterie.training.losses import task_with

record(CallContext)


_FOLDERS = "coterie-workers-"
"""How the names of all such folders begin."""


class Workers:
    """Worker processes that have the same clients."""

    def __init__(self, count: int, host: ClientHost) -> None:
        """This many workers, which compute with the data, the net and the form of a host."""
        self.count, self._net = count, host.net
        self._names = [shard.name for shard in host.shards]
        pool, net = host.pool, host.net
        self._folder, self._unlock = _own_folder()
        # Started before the samples are written: meanwhile they import torch, if they have to.
        self._processes = [start(serve, str(self._folder)) for _ in range(count)]
        save_file({name: tensor.contiguous() for name, tensor in pool.tensors.items()}, self._folder / "pool")
        setup = {
            "net": net.name,
            "shape": net.shape,
            "classes": net.classes,
            "task": net.task.name,
            "loss": net.task.own_loss,
            "modules": homes_of(made for made in _functions_of(net).values() if hasattr(made, "__name__")),
            "vocabulary": net.vocabulary,
            "double": net.dtype == torch.float64,
            "form": host.form.name,
            "half": host.form.half,
            "augment": pool.augment,
            "shards": [[shard.name, shard.train, shard.validation, shard.test] for shard in host.shards],
            "common": host.common,
            "path": sys.path,
        }
        codec.write(self._folder / "setup", setup, lasting=False)
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # that a worker has ended is noticed when it is asked something
                process.ask("")
        self._numbers = 0
        self._had: dict[int, int] = {}
        """The process number of the worker that computed a client last, by the client's position."""

    @staticmethod
    def can_run(call: Call) -> bool:
        """Whether a worker could import the program's module and read the settings of the call."""
        module = sys.modules.get(call.program.function.__module__)
        if module is None or module.__name__ == "__main__" or module.__spec__ is None:
            return False
        with contextlib.suppress(CoterieError):
            codec.dump(dict(call.settings))
            return True
        return False

    def run(self, calls: Sequence[Call], memories: Sequence[Memory]) -> list[Result]:
        """The results of calls, in their order. A worker that is done with one call takes the next.

        It prefers a client that it had before, because it remembers how models did on that client's data.
        """
        self._numbers += 1
        shared = self._folder / f"shared-{self._numbers}"
        codec.write(shared, dict(calls[0].shared), lasting=False)
        waiting = list(range(len(calls)))
        results: list[Result | Exception | None] = [None] * len(calls)
        choosing = threading.Lock()

        def attend(process: WorkerProcess) -> None:
            """Hand one worker call after call, until none is left or one has failed."""
            while not any(isinstance(result, Exception) for result in results):
                with choosing:
                    if not waiting:
                        return
                    number = take(waiting, [int(call.clients[0]) for call in calls], self._had, process.pid)
                try:
                    results[number] = self._ask(process, calls[number], memories[number], shared)
                except Exception as error:
                    results[number] = error

        threads = [threading.Thread(target=attend, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shared.unlink(missing_ok=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results  # type: ignore[return-value]

    def _ask(self, process: WorkerProcess, call: Call, memory: Memory, shared: Path) -> Result:
        """Let a worker run a call, and read what it gives."""
        path = self._folder / f"call-{process.pid}"
        codec.write(path, self._content(call, memory), lasting=False)
        try:
            process.ask(json.dumps([call.program.function.__module__, str(path), str(shared)]))
            line = process.answer()
        except OSError:
            line = ""
        if not line:
            code = process.wait()
            ended = f"by signal {-code}" if code < 0 else f"with code {code}"
            raise CoterieError(f"a worker process ended {ended}: if memory ran out, use fewer workers")
        answer = json.loads(line)
        if "error" in answer:
            raise ProgramError(answer["error"])
        outputs, kept, letters = codec.read(path, {self._net.name: self._net})
        return outputs, kept, letters

    def _content(self, call: Call, memory: Memory) -> dict[str, Any]:
        """A call and what its clients keep, as the file for a worker has it; `shared` inputs are in another file."""
        names = [self._names[client] for client in call.clients]
        return {
            "program": call.program.name,
            "clients": call.clients,
            "each": dict(call.each),
            "settings": dict(call.settings),
            "at": call.at,
            "letters": [letter for name in names for letter in call.letters.to(name)],
            "memory": {name: [memory.values[name], memory.known[name]] for name in memory},
        }

    def close(self) -> None:
        """End the workers and remove their files."""
        processes, self._processes = self._processes, []
        if not processes:
            return
        for process in processes:
            process.close()
        for process in processes:
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._unlock()

    def __del__(self) -> None:
        if getattr(self, "_processes", None):
            self.close()


def _own_folder() -> tuple[Path, Callable[[], None]]:
    """A new folder in shared memory that is locked, and a function that unlocks it; what nobody owns is removed."""
    shared_memory = Path("/dev/shm")
    place = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDERS, dir=place))
        with contextlib.suppress(FileNotFoundError):  # somebody has taken it for one that nobody owns
            unlock = lock_folder(folder)
            if unlock is not None and folder.is_dir():
                _remove_what_nobody_owns(folder)
                return folder, unlock


def _remove_what_nobody_owns(own: Path) -> None:
    """Remove the folders beside this one whose processes have all been killed, with the samples in them."""
    if lock_folder(own) is not None:  # folders cannot be locked here, so nobody knows whose they are
        return
    for folder in own.parent.glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError):  # another user's, or removed by another process meanwhile
            if folder.stat().st_uid == own.stat().st_uid and (unlock := lock_folder(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                unlock()


def take(waiting: list[int], clients: Sequence[int], had: dict[int, int], worker: int) -> int:
    """Take from the waiting calls the first whose client this worker had before, or else the first of all.

    `clients` has the client of each call, `had` the worker that had each client last; it is brought up to date.
    """
    number = next((number for number in waiting if had.get(clients[number]) == worker), waiting[0])
    waiting.remove(number)
    had[clients[number]] = worker
    return number


def serve(place: str, questions: IO[str], answers: IO[str]) -> None:
    """What a worker does: it answers calls until nobody can ask any more, and then cleans up."""
    # Ctrl-C reaches the parent and its workers. The parent decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    folder = Path(place)
    if not questions.readline():  # the parent was killed before it had written everything
        shutil.rmtree(folder, ignore_errors=True)
        return
    host = _host(folder)
    for line in questions:
        module, path, shared = json.loads(line)
        try:
            importlib.import_module(module)  # registers the program, and the records in its settings
            codec.write(Path(path), _answer(host, Path(path), Path(shared)), lasting=False)
            answer = {}
        except Exception as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # The parent removes the folder when it ends in order. If it was killed, the workers do.
    time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def _functions_of(net: Net) -> dict[str, Any]:
    """The functions that a worker needs to make a net, in words: its factory, and its loss if that is an own one."""
    own = net.task.own_function
    return {f"net {net.name}": net.factory} | ({} if own is None else {f"loss {net.task.own_loss}": own})


def out_of_reach(net: Net) -> str | None:
    """What of a net a worker could not find by its name, in words; None if it finds all.

    A fork has what this process has, a fresh interpreter only what it can import: not what stands in a notebook.
    """
    for called, function in _functions_of(net).items():
        home = getattr(function, "__module__", "")
        stands = getattr(sys.modules.get(home), getattr(function, "__qualname__", ""), None) is function
        if not (stands and home != "__main__") and not ((stands or ":" not in called) and can_fork()):
            return called
    return None


def _host(folder: Path) -> ClientHost:
    """The clients and how to compute them, as the parent has written it down."""
    setup = codec.read(folder / "setup", {})
    sys.path[:] = setup["path"]
    for name in setup["modules"]:
        importlib.import_module(name)
    with safe_open(folder / "pool", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    dtype = torch.float64 if setup["double"] else torch.float32
    task = task_with(task_named(setup["task"]), setup["loss"], setup["classes"], torch.device("cpu"))
    shape, vocabulary = tuple(setup["shape"]), setup["vocabulary"]
    net = make_net(setup["net"], shape, setup["classes"], "cpu", dtype, task, vocabulary)
    shards = [Shard(*parts) for parts in setup["shards"]]
    pool = Pool(**tensors, augment=setup["augment"])
    return ClientHost(net, pool, shards, setup["common"], form_named(setup["form"], setup["half"]))


def _answer(host: ClientHost, path: Path, shared: Path) -> list[Any]:
    """Run the call in a file, with the shared inputs in another: outputs, what clients keep, letters."""
    nets = {host.net.name: host.net}
    content = codec.read(path, nets)
    memory = Memory(len(content["clients"]))
    for name, (value, known) in content["memory"].items():
        memory.values[name], memory.known[name] = value, known
    call = Call(
        program_named(content["program"]),
        content["clients"],
        content["each"],
        codec.read(shared, nets),
        content["settings"],
        content["at"],
        Letters(content["letters"]),
    )
    return list(run_chunk(call, memory, host))
