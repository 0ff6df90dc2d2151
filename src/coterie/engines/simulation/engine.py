"""The simulation: all clients on this machine, in process or in worker processes."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from coterie.clients import Clients, Round
from coterie.data.population import Pool, Population, Shard
from coterie.engines.chunk import Result, Site, joined, part_of, run_chunk
from coterie.engines.simulation.workers import Workers
from coterie.errors import CoterieError, SettingsError
from coterie.federation import Answers, Call
from coterie.forms import FORMS, form_named
from coterie.letters import Letters
from coterie.memory import Memory
from coterie.nets import make_net
from coterie.nets.net import Factory

__all__ = ["Computing", "Simulation", "server_parts", "settled"]

log = logging.getLogger("coterie")

_SERVER_PART = 1000
"""Samples of the global test set that are scored together: small enough to spread over workers."""

_SMALL_NET = 100_000
"""Multiply-and-adds per sample up to which the vectorised form is the faster one on a CPU (see benchmarks)."""

_QUICK_EPOCH = 1e10
"""Multiply-and-adds of an epoch over all clients up to which starting worker processes does not pay: about a second."""


@dataclass(frozen=True)
class Computing:
    """Where and how a simulation computes. Nothing here changes a result beyond float rounding, but for precision."""

    engine: Literal["simulation", "loop", "vectorised"] = "simulation"
    """One client after another (`loop`), many at once (`vectorised`), or whichever suits net and device."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` takes a GPU if there is one."""

    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"
    """What nets compute in; models are kept in float32, or in float64."""

    workers: int | None = None
    """Processes of one thread each that share the work on a CPU; 0 computes in this process. By default one per core,
    if there is enough to do."""

    memory: float = 1.0
    """Gigabytes that clients who are computed together may take."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"workers={self.workers}: 0 or more")
        if self.memory <= 0:
            raise SettingsError(f"memory={self.memory}: gigabytes, above 0")

    @property
    def dtype(self) -> torch.dtype:
        """What models are kept in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def find_device(self) -> torch.device:
        """The device that is meant, if it is there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            kind = "cpu or cuda" if torch.cuda.is_available() else "cpu; torch finds no GPU"
            raise SettingsError(f"device={self.device}: not available here, only {kind}") from error
        return device


class Simulation:
    """An engine that holds the whole population."""

    real = False

    def __init__(self, population: Population, net: str | Factory, computing: Computing | None = None) -> None:
        self.computing = computing or Computing()
        device, dtype = self.computing.find_device(), self.computing.dtype
        self.net = make_net(net, population.shape, population.classes, device, dtype)
        self.names = population.names
        self.sizes = [len(shard.train) for shard in population.shards]
        parts = server_parts(population.server)
        # Positions from the end: the parts of the global test set are -1, -2 ..., then comes what the server trains on.
        shards = [*population.shards, population.server, *parts]
        self.server = range(-len(parts), 0)
        form = form_named(self._choose_form(device), half=self.computing.precision == "bf16")
        self._site = Site(self.net, Pool.of(population, device, dtype), shards, population.server.test, form)
        self._memory = Memory(len(shards))
        workers = self._choose_workers(device)
        self._workers = Workers(workers, self._site) if workers else None

    # Choosing how to compute

    def _choose_form(self, device: torch.device) -> str:
        if self.computing.engine in FORMS:
            return self.computing.engine
        small = self.net.work <= _SMALL_NET
        return "vectorised" if device.type != "cpu" or small else "loop"

    def _choose_workers(self, device: torch.device) -> int:
        if device.type != "cpu":
            return 0
        if self.computing.workers is not None:
            return self.computing.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        epoch = 3 * self.net.work * sum(self.sizes)  # the backward pass is two forward passes
        return min(cores, len(self.names)) if cores > 1 and epoch > _QUICK_EPOCH else 0

    def explain(self) -> str:
        """How it computes, and why."""
        where = f"{self._workers.count} worker processes" if self._workers else "this process"
        work = f"{self.net.work:,} multiply-and-adds a sample"
        told = "as told" if self.computing.engine in FORMS else f"chosen for {work} on {self._site.pool.device}"
        return f"{self._site.form.name} form ({told}), {self.computing.precision}, in {where}"

    def _chunks(self, call: Call) -> list[np.ndarray]:
        """The rows of a call in groups that are computed together, clients with most samples first."""
        part = "test" if call.at.scoring else "train"
        sizes = [len(self._site.shards[client].part(part)) for client in call.clients]
        order = np.argsort(-np.array(sizes), kind="stable")
        lanes = self._lanes(call) if self._site.form.name == "vectorised" else 1
        return [order[first : first + lanes] for first in range(0, len(order), lanes)]

    def _lanes(self, call: Call) -> int:
        batches = [getattr(value, "batch", 0) for value in call.settings.values()]
        rows = max([*batches, 32])
        # Parameters, gradient, velocity and a temporary; activations once forward and about once backward.
        numbers = 4 * self.net.parameters.total + 2 * rows * (self.net.activations + int(np.prod(self.net.shape)))
        return max(1, int(self.computing.memory * 1e9 / (numbers * self.net.dtype.itemsize)))

    # Running programs

    def present(self) -> np.ndarray:
        """All clients: those that arrive late are the federation's business."""
        return np.arange(len(self.names))

    def start_round(self, number: int) -> None:
        """Nothing changes here between rounds."""

    def run(self, call: Call) -> Answers:
        """Run a program on clients, group by group."""
        chunks = self._chunks(call)
        calls = [part_of(call, rows) for rows in chunks]
        memories = [self._memory.rows(torch.from_numpy(one.clients)) for one in calls]
        if self._workers is not None and Workers.can_run(call):
            results = self._workers.run(calls, memories)
        else:
            results = [self._run_here(one, memory) for one, memory in zip(calls, memories, strict=True)]
        for one, (_, kept, _) in zip(calls, results, strict=True):
            self._memory.update(torch.from_numpy(one.clients), {name: value.to("cpu") for name, value in kept.items()})
        order = torch.from_numpy(np.argsort(np.concatenate(chunks)))
        letters = Letters(letter for _, _, written in results for letter in written)
        return Answers(call.clients, joined([outputs for outputs, _, _ in results], order), letters)

    def _run_here(self, call: Call, memory: Memory) -> Result:
        with settled(self.computing.precision, self._site.pool.device):
            return run_chunk(call, memory, self._site)

    def server_clients(self, at: Round) -> Clients:
        """The `Clients` interface over what the server itself holds."""
        server = -len(self.server) - 1
        held = self._site.shards[server]
        if not len(held.train):
            raise CoterieError("the server holds no samples: set server_samples, e.g. --server-samples 500")
        if not at.test_data and np.isin(held.train, held.test).any():
            raise CoterieError(
                "server_from=test: test data is for scoring only, and this method does not say it reads it"
            )
        return self._site.clients([server], at)

    # What clients keep

    def reject(self, clients: np.ndarray) -> None:
        """Forget what these clients have kept since the last commit."""
        self._memory.rollback(torch.from_numpy(clients))

    def commit(self) -> None:
        """Make final what clients have kept in this round."""
        self._memory.commit()

    def rollback(self) -> None:
        """Forget what all clients have kept in this round."""
        self._memory.rollback()

    def reset(self) -> None:
        """Forget everything that clients keep."""
        self._memory = Memory(len(self._site.shards))

    def checkpoint(self) -> dict[str, Any]:
        """What clients keep: for each name the clients that have a value, and their rows."""
        content = {}
        for name, known in self._memory.known.items():
            positions = known.nonzero()[:, 0]
            content[name] = {"clients": positions, "rows": self._memory.values[name][positions]}
        return content

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go back to a checkpoint."""
        self.reset()
        for name, entry in content.items():
            self._memory.update(entry["clients"], {name: entry["rows"]})
        self._memory.commit()

    def close(self) -> None:
        """End the worker processes."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def server_parts(server: Shard) -> list[Shard]:
    """The global test set in parts that are scored like clients."""
    none = np.empty(0, dtype=np.int64)
    cuts = range(0, len(server.test), _SERVER_PART)
    return [Shard(f"server/{cut}", none, none, server.test[cut : cut + _SERVER_PART]) for cut in cuts]


@contextmanager
def settled(precision: str, device: torch.device) -> Iterator[None]:
    """Torch's settings while a program runs; they are as before afterwards."""
    with ExitStack() as stack:
        if device.type == "cpu":
            # One thread: with several, small operations of a loaded machine take up to ten times as long.
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            stack.callback(torch.set_num_threads, threads)
        else:
            tf32 = precision == "tf32"
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            stack.callback(torch.set_float32_matmul_precision, before)
            stack.enter_context(
                torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
            )
        yield
