"""Runs a program on clients in this process: simulated ones that are computed together, or a real site's own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import CallContext, Clients, RememberedFits
from coterie.clients.guard import OPEN, Guard
from coterie.clients.letters import Letter, Letters
from coterie.clients.memory import Memory, Value
from coterie.core.errors import CoterieError, ProgramError
from coterie.data.population import Pool, Shard
from coterie.data.preparation import Preparation
from coterie.nets.net import Net
from coterie.nets.stacks import Models, Stack
from coterie.server.federation import KEPT_FINITE, Call
from coterie.training.forms import Form


class Host(Protocol):
    """Has clients and can show them to a program. Whoever wants programs run in this process brings one."""

    @property
    def net(self) -> Net:
        """The net that the clients train; programs get their inputs on its device."""

    @property
    def samples(self) -> int | None:
        """How many training samples the first client has; None as long as nobody has counted them."""

    def clients(
        self,
        positions: Iterable[int],
        at: CallContext,
        memory: Memory | None = None,
        letters: Letters | None = None,
        guard: Guard = OPEN,
    ) -> Clients:
        """The clients at these positions, as a program sees them; `guard` is what they hold to."""


@dataclass(frozen=True)
class ClientHost:
    """A host that has the data of its clients, and computes with it."""

    net: Net
    pool: Pool
    shards: Sequence[Shard]
    """Which samples of the pool each client has, by its position."""
    common: np.ndarray
    """The global test set, as places in the pool."""
    form: Form
    """How gradients and outputs are computed."""
    preparation: Preparation | None = None
    """How the inputs of its clients are prepared, for models to take home."""
    known: RememberedFits = field(default_factory=dict)
    """How models last did on the data of single clients, so that the same question is computed only once."""

    @property
    def samples(self) -> int:
        """How many training samples the first client has."""
        return len(self.shards[0].train)

    def clients(
        self,
        positions: Iterable[int],
        at: CallContext,
        memory: Memory | None = None,
        letters: Letters | None = None,
        guard: Guard = OPEN,
    ) -> Clients:
        """The clients at these positions, as a program sees them."""
        shards = [self.shards[client] for client in positions]
        return Clients(self.net, self.pool, shards, self.form, at, memory, self.common, letters, self.known, guard)


Result = tuple[dict[str, Value], dict[str, Value], list[Letter]]
"""What a program returns, what it has told the clients to keep, and the letters that they have written."""


def run_chunk(call: Call, memory: Memory, host: Host, guard: Guard = OPEN) -> Result:
    """Run a program on all clients of a call together, within the bounds of a guard.

    If that fails, the program is run on each client alone, so that the error can name the client.
    """
    clients = host.clients(call.clients, call.at, memory, call.letters, guard)
    inputs = {name: value.to(host.net.device) for name, value in call.each.items()}
    for name, value in call.shared.items():
        # Without a copy: with stride 0 along the clients, `Clients.evaluate` sees that all have the same model.
        inputs[name] = _expanded(value.to(host.net.device), len(clients))
    try:
        outputs = call.program(clients, **inputs, **call.settings)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        where = f"client {clients.names[0]}"
        if len(clients) > 1:
            for row in range(len(clients)):
                run_chunk(part_of(call, np.array([row])), memory.rows(torch.tensor([row])), host, guard)
            where = "clients " + ", ".join(clients.names[:5]) + (" ..." if len(clients) > 5 else "") + " together"
        raise ProgramError(f"program {call.program.name} failed on {where}: {type(error).__name__}: {error}") from error
    if clients.written and not call.program.letters:
        raise CoterieError(f"program {call.program.name} writes letters: declare it with @program(letters=True)")
    return outputs | _kept_finite(clients), clients.kept, clients.written


def _kept_finite(clients: Clients) -> dict[str, Tensor]:
    """An output that tells whether the models that each client was told to keep are finite, [client], if any were."""
    largest = []
    for name, value in clients.kept.items():
        # Neither our own notes, whose names begin with an underscore, nor models of other nets, such as a GAN.
        if isinstance(value, Models) and not name.startswith("_") and value.net.parameters == clients.net.parameters:
            for tensor in value.tensors:
                if tensor.numel():
                    rows = tensor.reshape(len(clients), -1)
                    largest.append(torch.linalg.vector_norm(rows, ord=torch.inf, dim=1))
    return {KEPT_FINITE: torch.stack(largest).isfinite().all(dim=0)} if largest else {}


def part_of(call: Call, rows: np.ndarray) -> Call:
    """The same call for some of its clients only, given by their rows."""
    index = torch.from_numpy(rows)
    each = {name: value[index.to(value.device)] for name, value in call.each.items()}
    return replace(call, clients=call.clients[rows], each=each)


def joined(parts: Sequence[Mapping[str, Value]], order: Tensor) -> dict[str, Value]:
    """The outputs of several parts of a call as one; row i of the result is row `order[i]` of the parts in sequence."""
    whole: dict[str, Value] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        first = values[0]
        value = type(first).cat(values) if isinstance(first, Stack) else torch.cat(values)  # type: ignore[arg-type]
        whole[name] = value[order.to(value.device)]
    return whole


def _expanded(value: Value, clients: int) -> Value:
    """The value with the client as an additional first axis, along which it repeats."""
    return value.expand(clients) if isinstance(value, Stack) else value.expand(clients, *value.shape)
