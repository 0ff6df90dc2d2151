"""What clients keep between rounds, and how a failed round leaves no trace in it.

Everything that a run carries at the clients is kept here: also how many steps and rounds they have trained, and the
number of their training calls. So all of it survives in a checkpoint, and all of it is undone when a round fails or
when a client is rejected because its reply or the model that it keeps is not finite.

What clients keep may be larger than all the rest of a run, so nothing copies it as a whole. The log has the rows that a
round has written. A program's rows are copied when it asks for them. A checkpoint is a `Snapshot`, which is copied only
if somebody still holds it when memory changes next: who stores it at once pays only for the bytes. On a GPU the engine
keeps rows as far as they fit; the others lie on the host, from where those of a cohort are sent in pinned memory.
"""

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from math import prod
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.nets.stacks import Changes, Models, Stack

Value = Tensor | Models | Changes
"""What crosses between server and clients, and what clients keep; the first axis is the client."""


class Memory:
    """Named values of a number of clients, each with a row per client and a mark of which clients have one.

    Writes are logged until `commit`, so that `rollback` can undo them, for all clients or for some.
    """

    def __init__(self, clients: int, home: Callable[[Value], torch.device] | None = None) -> None:
        """Memory for a number of clients; `home` is given the first rows of a new value, and says where to keep it."""
        self.clients = clients
        self.values: MutableMapping[str, Value] = {}
        self.known: dict[str, Tensor] = {}
        self._home = home
        self._log: list[tuple[str, Tensor, Value | None, Tensor]] = []
        self._snapshots: list[ref[Snapshot]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def rows(self, positions: Tensor) -> "Memory":
        """The memory of some clients, numbered anew. A value is copied when it is read for the first time."""
        positions = positions % self.clients  # some are counted from the end
        some = Memory(len(positions))
        there = {name: known[positions] for name, known in self.known.items()}
        some.known = {name: known for name, known in there.items() if known.any()}
        some.values = _RowsOnDemand(self.values, some.known, positions)
        return some

    def size_on(self, device: torch.device) -> int:
        """Bytes that are kept on a device."""
        return sum(size_of(value) for value in self.values.values() if _tensors(value)[0].device == device)

    def snapshot(self) -> "Snapshot":
        """What all clients keep now, to be stored."""
        made = Snapshot(self)
        self._snapshots.append(ref(made))
        return made

    def _before_writing(self) -> None:
        for snapshot in self._snapshots:
            if (needed := snapshot()) is not None:
                needed.take()
        self._snapshots.clear()

    def update(self, positions: Tensor, changes: Mapping[str, Value]) -> None:
        """Write rows of some clients."""
        self._before_writing()
        positions = positions % self.clients
        for name, rows in changes.items():
            if name not in self.values:
                self.values[name] = _empty(rows, self.clients, None if self._home is None else self._home(rows))
                self.known[name] = torch.zeros(self.clients, dtype=torch.bool)
            value, known = self.values[name], self.known[name]
            if type(value) is not type(rows) or _rows_like(value) != _rows_like(rows):
                raise CoterieError(f"a client keeps {name!r} in another shape or type than before")
            there = known[positions]
            before = _taken(value, positions) if there.any() else None
            self._log.append((name, positions, before, there))
            _write(value, positions, rows)
            known[positions] = True

    def rollback(self, positions: Tensor | None = None) -> None:
        """Undo what these clients, or all, have written since the last commit."""
        self._before_writing()
        clients = torch.arange(self.clients) if positions is None else positions % self.clients
        for name, written, before, known in reversed(self._log):
            undone = torch.isin(written, clients)
            if before is not None:
                _write(self.values[name], written[undone], _taken(before, undone.nonzero()[:, 0]))
            self.known[name][written[undone]] = known[undone]
        if positions is None:
            self.commit()

    def commit(self) -> None:
        """Make all writes final."""
        self._log.clear()
        for name in [name for name, known in self.known.items() if not known.any()]:
            del self.values[name], self.known[name]


class Snapshot(UserDict[str, Any]):
    """What all clients keep at one time: for each name the clients that have a value, and their rows.

    Rows are copied when memory is about to change and this snapshot is still held. Rows that do not lie side by side
    are copied whenever they are asked for.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(dict.fromkeys(memory))
        self._memory = memory

    def take(self) -> None:
        """Copy all rows, so that later writes do not show here."""
        there = {name: known.nonzero()[:, 0] for name, known in self._memory.known.items()}
        values = self._memory.values
        self.data = {name: {"clients": own, "rows": _taken(values[name], own)} for name, own in there.items()}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if self.data[name] is not None:
            return self.data[name]
        value, positions = self._memory.values[name], self._memory.known[name].nonzero()[:, 0]
        first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (0, -1)
        # Rows that lie side by side, as when all clients keep a model, need no copy.
        aside = last - first + 1 == len(positions)
        return {"clients": positions, "rows": value[first : last + 1] if aside else _taken(value, positions)}


class _RowsOnDemand(UserDict[str, Any]):
    """Rows of some values, copied when they are read for the first time."""

    def __init__(self, source: Mapping[str, Value], names: Iterable[str], positions: Tensor) -> None:
        super().__init__(dict.fromkeys(names))
        self._source, self._positions = source, positions

    def __getitem__(self, name: str) -> Value:
        if self.data[name] is None:
            self.data[name] = _taken(self._source[name], self._positions)
        return self.data[name]


def _taken(value: Value, positions: Tensor) -> Value:
    """A copy of some rows, made so that it can be sent from the host to a GPU without waiting (pinned memory)."""
    return _like(value, [_taken_rows(tensor, positions) for tensor in _tensors(value)])


def _taken_rows(tensor: Tensor, positions: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        return tensor.index_select(0, positions.to(tensor.device))
    if not (tensor.is_floating_point() and torch.cuda.is_available()):
        return tensor.index_select(0, positions)
    rows = torch.empty(len(positions), *tensor.shape[1:], dtype=tensor.dtype, pin_memory=True)
    return torch.index_select(tensor, 0, positions, out=rows)


def size_of(value: Value) -> int:
    """Bytes of a value."""
    return value.size if isinstance(value, Stack) else value.numel() * value.element_size()


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return value.tensors if isinstance(value, Stack) else (value,)


def _rows_like(value: Value) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape[1:], tensor.dtype) for tensor in _tensors(value)]


def _like(value: Value, tensors: list[Tensor]) -> Value:
    return type(value)(value.net, *tensors) if isinstance(value, Stack) else tensors[0]


def _empty(like: Value, clients: int, device: torch.device | None) -> Value:
    return _like(like, [_zeros((clients, *t.shape[1:]), t.dtype, device or t.device) for t in _tensors(like)])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or not prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy's zeros, unlike torch's, are not touched until they are written: clients that keep nothing cost no memory.
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).reshape(shape)


def _write(value: Value, positions: Tensor, rows: Value) -> None:
    for target, source in zip(_tensors(value), _tensors(rows), strict=True):
        target[positions.to(target.device)] = source.to(target)
