"""Steps that are recorded once and replayed: CUDA graphs of the training step.

A GPU is done with a kernel of a small net long before the host has launched the next one. A graph holds a whole step
(gathering the batch from the pool, gradients, terms, momentum, the move) and is launched at once. It reads and writes
at fixed addresses. So what a bundle of tracks holds is copied into buffers that stay, and the number of the step is
counted on the device. Buffers and graphs are kept for the next bundle of the same kind: the next round's. Every bundle
has a stream of its own, so that several go on side by side. A net that cannot be recorded runs without graphs, with a
warning.

As tracks finish, shorter graphs over the same buffers are replayed. There are few lengths (powers of two up to 16, then
numbers of three binary digits); finished tracks that are still inside of one compute along and do not move. All sizes
are functions of the bundle alone, never of what ran before, so that a result repeats to the last bit.
"""

import gc
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from coterie.nets.stacks import Models
from coterie.training.loop import BatchIndices, Bundle, Objective, Schedule, Stepping, TrackRows

log = logging.getLogger("coterie")

_WINDOW = 64
"""How many steps' tables lie on the device at fixed places; longer training replaces them window by window."""

_KINDS = 12
"""How many kinds of bundles have their buffers and graphs kept: those that were used last."""

_OFTEN = 4
"""How many steps of an unusual width there must be for a graph to be worth it."""

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what a function does on fixed buffers, and gives a function that replays it."""


def rounded_up(count: int, digits: int) -> int:
    """The next number of which all binary digits but the first few (`digits`) are 0."""
    step = 1 << max(0, count.bit_length() - digits)
    return -(-count // step) * step


def objective_key(objective: Objective) -> Hashable:
    """A key that is equal for objectives which do the same.

    A function that is made anew for every call is known by its code and by the values that it closes over.
    """
    parts: tuple[Any, ...] = (objective,)
    if isinstance(objective, partial):
        parts = (objective_key(objective.func), objective.args, *objective.keywords.items())
    elif isinstance(objective, FunctionType) and objective.__closure__:
        inside = (cell.cell_contents for cell in objective.__closure__)
        parts = (objective.__code__, objective.__defaults__, *inside)
    for key in (parts, objective):
        with suppress(TypeError):
            hash(key)
            return key  # type: ignore[return-value]
    return id(objective)  # the gradients that were recorded keep it alive: no other can get its number


class Recorder:
    """Buffers and graphs, kept by kind of bundle."""

    def __init__(self, record: Record | None = None) -> None:
        self._record = record
        self._kinds: OrderedDict[Hashable, list[_Recorded]] = OrderedDict()

    def prepared(self, bundles: Iterable[tuple[Bundle, Objective]]) -> list[Stepping]:
        """The bundles, given with their objectives, in buffers; each runs in a stream of its own, beside the others.

        The first bundle of a kind gets the first buffers that are kept for the kind, the second the second, and so on.
        """
        taken: Counter[Hashable] = Counter()
        loaded = [self._loaded(bundle, objective, taken) for bundle, objective in bundles]
        while len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        return loaded

    def _loaded(self, bundle: Bundle, objective: Objective, taken: Counter[Hashable]) -> Stepping:
        shape = _Shape.of(bundle)
        stepper = bundle.stepper
        kind = (
            shape,
            objective_key(objective),
            bundle.extras,
            id(stepper.pool),
            id(stepper.net),
            stepper.trains is not None,
        )
        kept = self._kinds.setdefault(kind, [])
        self._kinds.move_to_end(kind)
        if taken[kind] == len(kept):
            kept.append(_Recorded(bundle, shape, self._record))
        taken[kind] += 1
        return _Loaded(bundle, kept[taken[kind] - 1])

    def forget(self) -> None:
        """Give all buffers and graphs back."""
        self._kinds.clear()


@dataclass(frozen=True)
class _Shape:
    """The sizes of the buffers for a bundle."""

    tracks: int
    width: int
    idle: bool
    """Whether tracks that have finished can be among those that compute."""
    rows: tuple[tuple[str, torch.Size, torch.dtype], ...]
    draws: tuple[bool, int]
    """Whether images are cropped, and the number of streams of batches."""

    @classmethod
    def of(cls, bundle: Bundle) -> "_Shape":
        tracks = rounded_up(len(bundle.rows.parameters), 5)
        idle = bundle.stepper.tables.moving is not None
        idle |= any(_prefix(active, tracks) != active for active in bundle.active)
        draws = bundle.stepper.tables.draws
        width = min(bundle.batch or inf, rounded_up(draws[0].sources.shape[2], 3))
        rows = [(name, rows) for name, rows in vars(bundle.rows).items() if rows is not None]
        shapes = tuple((name, cls._tail(name, rows), rows.dtype) for name, rows in rows)
        return cls(tracks, int(width), idle, shapes, (draws[0].crops is not None, len(draws)))

    @staticmethod
    def _tail(name: str, rows: Tensor) -> torch.Size:
        """The shape of a row. Rows of sample weights are rounded up: their length differs from cohort to cohort."""
        return torch.Size([rounded_up(rows.shape[1], 3)]) if name == "sample_weights" else rows.shape[1:]

    def new_rows(self, like: TrackRows) -> TrackRows:
        """Buffers for the tracks' rows."""
        device = like.parameters.device
        made: dict[str, Any] = dict.fromkeys(vars(like))
        for name, tail, dtype in self.rows:
            made[name] = torch.zeros(self.tracks, *tail, dtype=dtype, device=device)
        return TrackRows(**made)

    def new_tables(self, like: Schedule) -> Schedule:
        """Buffers for the tables of a window of steps."""
        lead, device = (_WINDOW, self.tracks), like.counted.device

        def table(source: Tensor | None) -> Any:
            if source is None:
                return None
            return torch.zeros(*lead, self.width, *source.shape[3:], dtype=source.dtype, device=device)

        draws = tuple(BatchIndices(*map(table, vars(one).values())) for one in like.draws)
        moving = torch.zeros(*lead, 1, dtype=torch.bool, device=device) if self.idle else None
        return Schedule(draws, like.counted.new_zeros(lead), moving, _WINDOW)


def _prefix(active: int, tracks: int) -> int:
    """How many tracks compute where the first `active` have to: `active`, rounded up to one of few lengths."""
    return min(tracks, rounded_up(active, 3) if active > 16 else 1 << (active - 1).bit_length())


class _Recorded:
    """Buffers of one shape, and graphs of the step: one for each number of tracks that compute and width of batches."""

    def __init__(self, bundle: Bundle, shape: _Shape, record: Record | None) -> None:
        self.shape = shape
        self.rows = shape.new_rows(bundle.rows)
        trains = None if bundle.stepper.trains is None else torch.empty_like(bundle.stepper.trains)
        self.stepper = replace(bundle.stepper, tables=shape.new_tables(bundle.stepper.tables), trains=trains)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.rows.parameters.device)
        self.stream = torch.cuda.Stream() if self.number.device.type == "cuda" else None
        self.record = record or _CudaGraphs(self.stream)
        self.graphs: dict[tuple[int, int], Callable[[], None]] = {}
        self.seen: Counter[tuple[int, int]] = Counter()
        self.fails = False

    def streaming(self) -> AbstractContextManager[Any]:
        """A context in which the device works in the stream of these buffers."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def prepare(self, sizes: Sequence[tuple[int, int]], masked: bool) -> None:
        """Record steps of the sizes that are worth it. This overwrites the buffers, so they are filled afterwards."""
        self.seen.update(sizes)
        for size in dict.fromkeys(sizes):
            # With a mask, widths are rounded and few. Without, an epoch's last batch has a width that may be unique.
            if size in self.graphs or self.fails or not (masked or self.seen[size] >= _OFTEN):
                continue
            step = partial(self.step, size, masked)
            step()  # libraries set themselves up when they are first called, which cannot be recorded
            try:
                self.graphs[size] = self.record(step)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.fails = True
                log.warning(
                    "net %s cannot be recorded as a CUDA graph, and runs slower: %s", self.stepper.net.name, error
                )

    def step(self, size: tuple[int, int], masked: bool) -> None:
        """Take the step in the buffers, without a graph."""
        self.stepper.step(self.rows, self.number, *size, masked)
        self.number += 1

    def fill(self, bundle: Bundle) -> None:
        """Copy what the tracks of a bundle hold into the buffers."""
        self.number.zero_()
        for ours, theirs in zip(vars(self.rows).values(), vars(bundle.rows).values(), strict=True):
            if ours is not None:
                _corner(ours, theirs).copy_(theirs)
        if self.stepper.trains is not None and bundle.stepper.trains is not None:
            self.stepper.trains.copy_(bundle.stepper.trains)

    def fill_window(self, tables: Schedule, first: int) -> None:
        """Copy the tables of a window of steps, which begins at `first`, into the buffers."""
        ours = self.stepper.tables
        for draws, source in zip(ours.draws, tables.draws, strict=True):
            draws.real.zero_()
            for name, table in vars(source).items():
                if table is not None:
                    _put(getattr(draws, name), table[first : first + _WINDOW])
        _put(ours.counted, tables.counted[first : first + _WINDOW])
        if ours.moving is not None and tables.moving is not None:
            ours.moving.zero_()
            _put(ours.moving, tables.moving[first : first + _WINDOW])


def _corner(buffer: Tensor, like: Tensor) -> Tensor:
    """The part of a buffer, which may be larger, that begins where the buffer does and has this tensor's shape."""
    return buffer[tuple(slice(size) for size in like.shape)]


def _put(buffer: Tensor, values: Tensor) -> None:
    """Copy values into a buffer that may be larger, from its beginning on along every axis."""
    _corner(buffer, values).copy_(values)


class _Loaded:
    """A bundle that takes its steps in buffers, by replaying graphs."""

    def __init__(self, bundle: Bundle, recorded: _Recorded) -> None:
        self._bundle, self._recorded, self._masked = bundle, recorded, not bundle.alone
        self.active = bundle.active
        shape = recorded.shape
        if self._masked:
            widths = (min(shape.width, rounded_up(width, 2)) for width in bundle.width)
            self._sizes = [
                (_prefix(active, shape.tracks), width) for active, width in zip(self.active, widths, strict=True)
            ]
        else:
            self._sizes = list(zip(bundle.active, bundle.width, strict=True))
        self._tables = bundle.stepper.tables
        if shape.idle and self._tables.moving is None:
            counts = torch.tensor(self.active, device=self._tables.counted.device)
            tracks = torch.arange(len(bundle.rows.parameters), device=counts.device)
            self._tables = replace(self._tables, moving=(tracks < counts[:, None]).unsqueeze(2))
        if recorded.stream is not None:
            recorded.stream.wait_stream(torch.cuda.current_stream())
        with recorded.streaming():
            recorded.prepare(self._sizes, self._masked)
            recorded.fill(bundle)

    def step(self, number: int) -> None:
        """Let the tracks that are still training take a step."""
        recorded, size = self._recorded, self._sizes[number]
        with recorded.streaming():
            if number % _WINDOW == 0:
                recorded.fill_window(self._tables, number)
            graph = recorded.graphs.get(size)
            if graph is None:
                recorded.step(size, self._masked)
            else:
                graph()

    def result(self) -> tuple[Models, Tensor]:
        """The models and the losses of the last epoch, in the order in which the tracks were given."""
        if self._recorded.stream is not None:
            torch.cuda.current_stream().wait_stream(self._recorded.stream)
        return self._bundle.sorted_back(self._recorded.rows.first(len(self._bundle.rows.parameters)))


class _CudaGraphs:
    """Records CUDA graphs that share memory for intermediate results, as only one of them runs at a time."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream, self._pool = stream or torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of what the function does, as a function that does it again."""
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            function()  # once in this stream, where a library may keep room to work in
            with _no_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    function()
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        before.wait_stream(self._stream)
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off: a CUDA graph that it destroyed would break the one that is being recorded."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
