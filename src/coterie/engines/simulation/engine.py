"""The engine for simulated clients: it computes all of them on this machine, in this process or in worker processes.

It chooses the form of computing by net and device. On a CPU `vectorised` is four times as fast as the loop for an MLP
on digits, and half as fast for a CNN of 16 and 32 channels on 28x28 images. Worker processes compute each client alone
in the loop form, so their number changes no bit. Clients that are computed together must fit into `memory`; if memory
runs out all the same, the group is halved, and so is the bound.
"""

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
import torch

from coterie.clients.clients import CallContext, Clients
from coterie.clients.letters import Letters
from coterie.clients.memory import Memory, Value, size_of
from coterie.core.errors import CoterieError, SettingsError
from coterie.core.fields import WITHOUT_EFFECT, Checked, Effect, above, at_least, known_keywords
from coterie.data.population import Pool, Population, Shard
from coterie.data.preparation import Preparation
from coterie.engines.chunk import ClientHost, Result, joined, part_of, run_chunk
from coterie.engines.simulation.workers import Workers, out_of_reach
from coterie.engines.torch_flags import applied
from coterie.nets import make_net
from coterie.nets.net import Factory, Net
from coterie.server.federation import Answers, Call
from coterie.training.forms import FORMS, Form, form_named
from coterie.training.losses import LossFunction, task_with

log = logging.getLogger("coterie")

_SERVER_PART = 1000
"""Samples of the global test set that are scored together: small enough to spread over workers."""

_SMALL_NET = 100_000
"""Multiply-and-adds per sample up to which the vectorised form is the faster one on a CPU (see benchmarks)."""

_SMALL_NET_GPU, _SMALL_NET_TF32 = 10_000_000, 20_000_000
"""The same limit on a GPU, and on a GPU in tf32, for which we have kernels; larger nets are faster in `branch` form."""

_QUICK_EPOCH = 1e10
"""Multiply-and-adds of an epoch over all clients, about a second's: below, worker processes take longer to start."""

_KEPT = 0.25
"""Memory on a GPU for what clients keep, as a share of the memory for computing, which it comes on top of."""


@known_keywords
@dataclass(frozen=True)
class Computing(Checked):
    """Where and how a simulation computes. Nothing here changes a result beyond float rounding, but for precision.

    >>> coterie.Computing(device="cpu", precision="float64").dtype
    torch.float64
    """

    engine: Annotated[Literal["simulation", "loop", "vectorised", "branch"], WITHOUT_EFFECT] = "simulation"
    """One client after another (`loop`), many at once (`vectorised`), one after another but side by side on a GPU
    (`branch`), or whichever suits net and device."""

    device: Annotated[str, WITHOUT_EFFECT] = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` takes a GPU if there is one."""

    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"
    """What nets compute in; models are kept in float32, or in float64."""

    workers: Annotated[int | None, at_least(0), WITHOUT_EFFECT] = None
    """Processes of one thread each that share the work on a CPU; 0 computes in this process. By default one per core,
    if there is enough to do."""

    memory: Annotated[float | None, above(0, "gigabytes, above 0"), WITHOUT_EFFECT] = None
    """Gigabytes that clients who are computed together may take: 1 by default, on a GPU half of what is free."""

    strict: Annotated[bool, Effect.COURSE] = False
    """Compute in stacks of one width, filled up where they are not full, so that a run gives the same to the last bit
    alone, among others of a comparison, and with any `memory`. Takes longer."""

    @property
    def dtype(self) -> torch.dtype:
        """What models are kept in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def find_device(self) -> torch.device:
        """The device that the settings mean; an error if it is not there."""
        if self.device == "auto":
            return torch.device("cuda" if _gpu_is_usable() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            kind = "cpu or cuda" if torch.cuda.is_available() else "cpu; torch finds no GPU"
            raise SettingsError(f"device={self.device}: not available here, only {kind}") from error
        return device


@cache
def _gpu_is_usable() -> bool:
    """Whether torch can use a GPU; what it complains of while it looks goes into our log."""
    with warnings.catch_warnings(record=True) as told:  # torch warns of a GPU that is there and does not work
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    for warning in told:
        log.warning("computing on the %s: %s", "GPU" if usable else "CPU", warning.message)
    return usable


class Simulation:
    """An engine that holds the data of all clients, and what they keep."""

    real = False

    def __init__(
        self,
        population: Population,
        net: str | Factory,
        computing: Computing | None = None,
        beside: "Simulation | None" = None,
        loss: str | LossFunction | None = None,
    ) -> None:
        """An engine for a population. It shares net, loss and samples with `beside`, which must have the same."""
        self.computing, self.population = computing or Computing(), population
        device, dtype = self.computing.find_device(), self.computing.dtype
        task = beside.net.task if beside else task_with(population.task, loss, population.classes, device)
        said = population.shape, population.classes, device, dtype, task, population.vocabulary
        self.net: Net = beside.net if beside else make_net(net, *said)
        pool = beside._host.pool if beside else Pool.of(population, device, dtype)
        self.preparation = Preparation.of(population)
        self.names = population.names
        self.sizes = [len(shard.train) for shard in population.shards]
        parts = server_parts(population.server)
        # The last ones are known by positions below 0: the parts of the global test set and the server's own samples.
        shards = [*population.shards, population.server, *parts]
        self.server = range(-len(parts), 0)
        half, strict = self.computing.precision == "bf16", self.computing.strict
        form = form_named(self._choose_form(device), half, strict)
        self._host: ClientHost = ClientHost(self.net, pool, shards, population.server.test, form)
        self._memory_limit = self._choose_memory(device)
        self._memory = Memory(len(shards), self._home)
        workers = self._choose_workers(device)
        self._workers = Workers(workers, self._host) if workers else None

    # Choosing how to compute

    def _choose_form(self, device: torch.device) -> str:
        if self.computing.engine in FORMS:
            return self.computing.engine
        if device.type == "cpu":
            return "vectorised" if self.net.work <= _SMALL_NET else "loop"
        most = _SMALL_NET_TF32 if self.computing.precision == "tf32" else _SMALL_NET_GPU
        return "vectorised" if self.net.work <= most else "branch"

    def _choose_workers(self, device: torch.device) -> int:
        if device.type != "cpu":
            return 0
        hidden = out_of_reach(self.net)
        if self.computing.workers is not None:
            if self.computing.workers and hidden is not None:
                advice = "put the function into a module that can be imported, or set workers=0"
                raise SettingsError(f"workers={self.computing.workers}: other processes cannot make {hidden}; {advice}")
            return self.computing.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        epoch = 3 * self.net.work * sum(self.sizes)  # the backward pass is two forward passes
        return min(cores, len(self.names)) if cores > 1 and epoch > _QUICK_EPOCH and hidden is None else 0

    def _choose_memory(self, device: torch.device) -> float:
        if self.computing.memory is not None:
            return self.computing.memory
        return torch.cuda.mem_get_info(device)[0] / 2e9 if device.type == "cuda" else 1.0

    def _home(self, rows: Value) -> torch.device:
        """Where a value that clients keep is to lie: where its first rows are if that has room, or on the host."""
        if rows.device.type == "cpu":
            return rows.device
        size = size_of(rows) // len(rows) * self._memory.clients
        fits = self._memory.size_on(rows.device) + size <= self._kept_on_device
        return rows.device if fits else torch.device("cpu")

    @property
    def _kept_on_device(self) -> float:
        """How many bytes of what clients keep may lie on a GPU."""
        return _KEPT * self._memory_limit * 1e9

    @property
    def form(self) -> Form:
        """How gradients and outputs of clients are computed."""
        return self._host.form

    @form.setter
    def form(self, form: Form) -> None:
        self._host = replace(self._host, form=form)

    def explain(self) -> str:
        """In words: how clients are computed, and why so."""
        device, form, net = self._host.pool.device, self._host.form, self.net
        told = "as told" if self.computing.engine in FORMS else f"chosen for this net on {device.type}"
        where = f"{self._workers.count} worker processes of one thread" if self._workers else "this process"
        parts = [f"{form.name} form ({told}): {form.about}"]
        frozen = f" and {net.frozen:,} frozen" if net.frozen else ""
        size = f"{net.parameters.total:,} parameters{frozen}"
        parts.append(f"net {net.name}: {size}, {net.work:,} multiply-and-adds a sample")
        if net.task.own_loss:
            parts.append(f"loss {net.task.own_loss}, a mean over samples")
        parts.append(f"{self.computing.precision} on {device}, in {where}")
        if form.together:
            parts.append(f"up to {self.clients_at_once(32):,} clients together, as {self._memory_limit:.3g} GB allow")
        if form.strict:
            parts.append("strict: in stacks of one width, so that no bit depends on what else is computed")
        if device.type != "cpu":
            most = int(self._kept_on_device / (net.parameters.total * net.dtype.itemsize))
            room = f"room for {most:,} models ({self._kept_on_device / 1e9:.3g} GB)"
            parts.append(f"what clients keep stays on the GPU, {room}; what does not fit is sent from the host")
        return "; ".join(parts)

    def _chunks(self, call: Call) -> list[np.ndarray]:
        """The rows of a call in groups that are computed together; clients with most samples are in the first group."""
        batches = [getattr(value, "batch", 0) for value in call.settings.values()]
        tracks = self.clients_at_once(max([*batches, 32])) if self._host.form.together else 1
        if len(call.clients) <= tracks:
            return [np.arange(len(call.clients))]
        part = "test" if call.at.scoring else "train"
        sizes = [len(self._host.shards[client].part(part)) for client in call.clients]
        order = np.argsort(-np.array(sizes), kind="stable")
        return [order[first : first + tracks] for first in range(0, len(order), tracks)]

    def clients_at_once(self, rows: int) -> int:
        """How many clients fit into memory together if their batches have this many rows."""
        # Parameters, gradient, velocity and a temporary; activations on the way forward, about as much on the way back.
        numbers = 4 * self.net.parameters.total + 2 * rows * (self.net.activations + prod(self.net.shape))
        return max(1, int(self._memory_limit * 1e9 / (numbers * self.net.dtype.itemsize)))

    # Running programs

    def present(self) -> np.ndarray:
        """Positions of all clients: the federation itself leaves out those that have not arrived yet."""
        return np.arange(len(self.names))

    def start_round(self, number: int) -> None:
        """Nothing changes here between rounds."""

    def run(self, call: Call) -> Answers:
        """Run a program on the clients of a call, one group after another or spread over the workers."""
        chunks = self._chunks(call)
        calls = [call] if len(chunks) == 1 else [part_of(call, rows) for rows in chunks]
        if self._workers is not None and Workers.can_run(call):
            results = list(zip(calls, self._workers.run(calls, list(map(self._memory_of, calls))), strict=True))
        else:
            results = [result for one in calls for result in self._run_here(one)]
        for one, (_, kept, _) in results:
            self._memory.update(torch.from_numpy(one.clients), kept)
        letters = Letters(letter for _, (_, _, written) in results for letter in written)
        if len(results) == 1:
            return Answers(call.clients, results[0][1][0], letters)
        order = torch.from_numpy(np.argsort(np.concatenate([one.clients for one, _ in results])))
        return Answers(call.clients, joined([outputs for _, (outputs, _, _) in results], order), letters)

    def _memory_of(self, call: Call) -> Memory:
        """What the clients of a call keep."""
        return self._memory.rows(torch.from_numpy(call.clients))

    def _run_here(self, call: Call) -> list[tuple[Call, Result]]:
        """Run a program in this process, in smaller groups if memory runs out."""
        try:
            with applied(self.computing.precision, self._host.pool.device):
                return [(call, run_chunk(call, self._memory_of(call), self._host))]
        except torch.OutOfMemoryError as error:
            if len(call.clients) == 1:
                message = f"memory runs out for one client alone ({call.program.name}): a smaller batch may help"
                raise CoterieError(message) from error
        # Not inside of `except`: there the error's traceback still holds the tensors of the failed attempt.
        self._host.form.forget()
        torch.cuda.empty_cache()
        half = len(call.clients) // 2
        self._memory_limit /= 2
        log.warning("memory ran out for %d clients together: going on with %d", len(call.clients), half)
        rows = np.arange(len(call.clients))
        return [part for some in (rows[:half], rows[half:]) for part in self._run_here(part_of(call, some))]

    def server_clients(self, at: CallContext) -> Clients:
        """What the server itself holds, as a client that a program sees."""
        server = -len(self.server) - 1
        held = self._host.shards[server]
        if not len(held.train):
            raise CoterieError("the server holds no samples: set server_samples, e.g. --server-samples 500")
        if not at.test_data and np.isin(held.train, held.test).any():
            raise CoterieError(
                "server_from=test: test data is for scoring only, and this method does not say it reads it"
            )
        return self._host.clients([server], at)

    # What clients keep

    def reject(self, clients: np.ndarray) -> None:
        """Undo what these clients have kept since the last commit."""
        self._memory.rollback(torch.from_numpy(clients))

    def commit(self) -> None:
        """Make final what clients have kept in this round."""
        self._memory.commit()

    def rollback(self) -> None:
        """Undo what all clients have kept since the last commit."""
        self._memory.rollback()

    def reset(self) -> None:
        """Forget everything that clients keep."""
        self._memory = Memory(len(self._host.shards), self._home)

    def checkpoint(self) -> Mapping[str, Any]:
        """What clients keep: for each name the positions of the clients that keep a value, and their rows."""
        return self._memory.snapshot()

    def restore(self, content: Mapping[str, Any]) -> None:
        """Let clients keep what they kept at a checkpoint, and nothing else."""
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
    """The global test set, cut into parts that are scored like clients: so it is spread over workers too."""
    none = np.empty(0, dtype=np.int64)
    cuts = range(0, len(server.test), _SERVER_PART)
    return [Shard(f"server/{cut}", none, none, server.test[cut : cut + _SERVER_PART]) for cut in cuts]
