"""What clients remember between rounds, and how a round that is lost leaves no trace in it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.weights import Changes, Models, Stack

__all__ = ["Memory", "Value"]

Value = Tensor | Models | Changes
"""What crosses between server and clients, and what clients keep; the first axis is the client."""


class Memory:
    """Named values of a number of clients, each with a row per client and a mark of who has one.

    Writes are logged until `commit`, so that `rollback` can undo them, for all clients or for some.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.values: dict[str, Value] = {}
        self.known: dict[str, Tensor] = {}
        self._log: list[tuple[str, Tensor, Value | None, Tensor]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def rows(self, positions: Tensor) -> "Memory":
        """A copy of what some clients remember, numbered anew."""
        some = Memory(len(positions))
        for name, value in self.values.items():
            if self.known[name][positions].any():
                some.values[name], some.known[name] = value[positions], self.known[name][positions]
        return some

    def update(self, positions: Tensor, changes: dict[str, Value]) -> None:
        """Write rows of some clients."""
        for name, rows in changes.items():
            if name not in self.values:
                self.values[name] = _empty(rows, self.clients)
                self.known[name] = torch.zeros(self.clients, dtype=torch.bool)
            value, known = self.values[name], self.known[name]
            if type(value) is not type(rows) or _rows_like(value) != _rows_like(rows):
                raise CoterieError(f"a client keeps {name!r} in another shape or type than before")
            before = value[positions] if known[positions].any() else None
            self._log.append((name, positions, before, known[positions].clone()))
            _write(value, positions, rows)
            known[positions] = True

    def rollback(self, positions: Tensor | None = None) -> None:
        """Undo what these clients, or all, have written since the last commit."""
        for name, written, before, known in reversed(self._log):
            undone = torch.ones(len(written), dtype=torch.bool) if positions is None else torch.isin(written, positions)
            if before is not None:
                _write(self.values[name], written[undone], before[undone])
            self.known[name][written[undone]] = known[undone]
        if positions is None:
            self.commit()

    def commit(self) -> None:
        """Make all writes final."""
        self._log.clear()
        for name in [name for name, known in self.known.items() if not known.any()]:
            del self.values[name], self.known[name]


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return value.tensors if isinstance(value, Stack) else (value,)


def _rows_like(value: Value) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape[1:], tensor.dtype) for tensor in _tensors(value)]


def _empty(like: Value, clients: int) -> Value:
    # Zeros are not touched until they are written: rows of clients that keep nothing cost no memory on the host.
    zeros = [torch.zeros(clients, *t.shape[1:], dtype=t.dtype, device=t.device) for t in _tensors(like)]
    return type(like)(like.net, *zeros) if isinstance(like, Stack) else zeros[0]


def _write(value: Value, positions: Tensor, rows: Value) -> None:
    for target, source in zip(_tensors(value), _tensors(rows), strict=True):
        target[positions] = source.to(target)
