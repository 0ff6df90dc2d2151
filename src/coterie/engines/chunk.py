"""A program on clients whose data is at hand: simulated ones that are computed together, or a real site."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import CallContext, Clients, RememberedFits
from coterie.clients.letters import Letter, Letters
from coterie.clients.memory import Memory, Value
from coterie.core.errors import CoterieError, ProgramError
from coterie.data.population import Pool, Shard
from coterie.nets.net import Net
from coterie.nets.stacks import Models, Stack
from coterie.server.federation import KEPT_FINITE, Call
from coterie.training.forms import Form


class Host(Protocol):
    """What a process needs to stand for clients."""

    @property
    def net(self) -> Net:
        """The net that is trained."""

    @property
    def device(self) -> torch.device:
        """Where programs get their inputs."""

    @property
    def samples(self) -> int | None:
        """Training samples of the first client; nothing while nobody has counted them."""

    def clients(
        self, positions: Iterable[int], at: CallContext, memory: Memory | None = None, letters: Letters | None = None
    ) -> Clients:
        """Clients by their positions."""


@dataclass(frozen=True)
class ClientHost:
    """A host that has the clients' data, the net, and a way to compute."""

    net: Net
    pool: Pool
    shards: Sequence[Shard]
    common: np.ndarray
    """The global test set, as places in the pool."""
    form: Form
    known: RememberedFits = field(default_factory=dict)
    """What need not be computed again."""

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return self.pool.device

    @property
    def samples(self) -> int:
        """Training samples of the first client."""
        return len(self.shards[0].train)

    def clients(
        self, positions: Iterable[int], at: CallContext, memory: Memory | None = None, letters: Letters | None = None
    ) -> Clients:
        """Clients by their positions."""
        shards = [self.shards[client] for client in positions]
        return Clients(self.net, self.pool, shards, self.form, at, memory, self.common, letters, self.known)


Result = tuple[dict[str, Value], dict[str, Value], list[Letter]]
"""A program's outputs, what the clients keep, and what they have written to others."""


def run_chunk(call: Call, memory: Memory, site: Host) -> Result:
    """Run a program on clients together.

    If it fails, it is run for each client alone to find out for which.
    """
    clients = site.clients(call.clients, call.at, memory, call.letters)
    inputs = {name: value.to(site.device) for name, value in call.each.items()}
    for name, value in call.shared.items():
        inputs[name] = _expanded(value.to(site.device), len(clients))
    try:
        outputs = call.program(clients, **inputs, **call.settings)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if len(clients) == 1:
            cause = f"{type(error).__name__}: {error}"
            raise ProgramError(f"program {call.program.name} failed on client {clients.names[0]}: {cause}") from error
        for row in range(len(clients)):
            run_chunk(part_of(call, np.array([row])), memory.rows(torch.tensor([row])), site)
        some = ", ".join(clients.names[:5]) + (" ..." if len(clients) > 5 else "")
        cause = f"{type(error).__name__}: {error}"
        raise ProgramError(f"program {call.program.name} failed on clients {some} together: {cause}") from error
    if clients.written and not call.program.letters:
        raise CoterieError(f"program {call.program.name} writes letters: declare it with @program(letters=True)")
    return outputs | _kept_finite(clients), clients.kept, clients.written


def _kept_finite(clients: Clients) -> dict[str, Tensor]:
    """Whether the models that a program has told clients to keep are finite, [client]; nothing if there are none."""
    largest = []
    for name, value in clients.kept.items():
        # Not what clients keep for the record, and no models of other nets, such as a GAN.
        if isinstance(value, Models) and not name.startswith("_") and value.net.parameters == clients.net.parameters:
            for tensor in value.tensors:
                if tensor.numel():
                    rows = tensor.reshape(len(clients), -1)
                    largest.append(torch.linalg.vector_norm(rows, ord=torch.inf, dim=1))
    return {KEPT_FINITE: torch.stack(largest).isfinite().all(dim=0)} if largest else {}


def part_of(call: Call, rows: np.ndarray) -> Call:
    """The call for the clients in some of its rows, in this order."""
    index = torch.from_numpy(rows)
    each = {name: value[index.to(device_of(value))] for name, value in call.each.items()}
    return Call(call.program, call.clients[rows], each, call.shared, call.settings, call.at, call.letters)


def joined(parts: Sequence[Mapping[str, Value]], order: Tensor) -> dict[str, Value]:
    """Outputs of several parts of a call as one, in this order of all their rows."""
    whole: dict[str, Value] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        first = values[0]
        value = type(first).cat(values) if isinstance(first, Stack) else torch.cat(values)  # type: ignore[arg-type]
        whole[name] = value[order.to(device_of(value))]
    return whole


def device_of(value: Value) -> torch.device:
    """Where a value is."""
    return value.parameters.device if isinstance(value, Stack) else value.device


def _expanded(value: Value, clients: int) -> Value:
    return value.expand(clients) if isinstance(value, Stack) else value.expand(clients, *value.shape)
