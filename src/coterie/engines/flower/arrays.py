"""Any app's arrays as a net: what mixing, layers and distances must know of models whose module is somebody else's.

Nothing is known of the module but the names, shapes and types of its arrays. Floats are what is trained, but for the
running statistics that are known by name; whole numbers, such as a count of batches, go with the statistics: they are
mixed like everything else and rounded at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.randomness import torch_generator
from coterie.core.records import record
from coterie.nets.net import Layout, Net
from coterie.nets.stacks import Models

STATISTICS = ("*running_mean", "*running_var")
"""Names of arrays that are running statistics, as PyTorch's normalisations call them."""


@record
@dataclass(frozen=True)
class Arrays:
    """The names, shapes and types of an app's arrays, in their order, and which of them are trained."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    trained: tuple[bool, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.names), len(self.shapes), len(self.dtypes), len(self.trained)}
        if len(lengths) > 1 or len(set(self.names)) < len(self.names):
            raise CoterieError("arrays that are not described one by one")
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            if np.dtype(dtype).kind not in "biuf":
                raise SettingsError(f"array {name!r} is of {dtype}: only numbers can be mixed")
        if not any(self.trained):
            raise SettingsError(f"nothing to train in the arrays {', '.join(self.names) or '(none)'}")

    @classmethod
    def of(cls, arrays: ArrayRecord, statistics: Sequence[str] = STATISTICS) -> "Arrays":
        """The arrays of a record; `statistics` are patterns of the names of what nobody trains."""
        names = tuple(arrays)
        kinds = [np.dtype(arrays[name].dtype) for name in names]
        trained = tuple(
            kind.kind == "f" and not any(fnmatchcase(name, pattern) for pattern in statistics)
            for name, kind in zip(names, kinds, strict=True)
        )
        return cls(names, tuple(tuple(arrays[name].shape) for name in names), tuple(map(str, kinds)), trained)

    @cached_property
    def full_names(self) -> tuple[str, ...]:
        """Names that begin with that of a layer, as `fc2.weight` does.

        Arrays that came as a list have none. There a layer begins with each array of two or more axes: what follows,
        a bias or a scale, is taken to belong to it.
        """
        if any("." in name for name in self.names):
            return self.names
        layers = np.maximum(np.cumsum([len(shape) > 1 for shape in self.shapes]), 1)
        return tuple(f"{layer}.{name}" for layer, name in zip(layers, self.names, strict=True))

    def layout(self, trained: bool) -> Layout:
        """Where the trained arrays, or the others, lie in a vector."""
        chosen = [place for place, moves in enumerate(self.trained) if moves == trained]
        return Layout(tuple(self.full_names[at] for at in chosen), tuple(self.shapes[at] for at in chosen))


class ArrayNet(Net):
    """A net of which only the arrays are known: models can be mixed and compared, but nothing can be computed."""

    def __init__(self, arrays: Arrays, initial: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        # Not the base's: it builds a module.
        self.arrays, self.name, self.shape, self.classes = arrays, "app", (), 0
        self.device = torch.device("cpu")
        self.dtype = torch.float64 if "float64" in arrays.dtypes else torch.float32
        self.parameters, self.buffers = arrays.layout(trained=True), arrays.layout(trained=False)
        self._initial = tuple(initial)

    @classmethod
    def of(cls, records: Sequence[ArrayRecord], statistics: Sequence[str] = STATISTICS) -> "ArrayNet":
        """The net of arrays from which models start: number 0 from the first, and so on."""
        net = cls(Arrays.of(records[0], statistics))
        starts = [net.models_of(arrays) for arrays in records]
        net._initial = tuple((start.parameters, start.buffers) for start in starts)
        return net

    def new(self, seed: int, number: int) -> tuple[Tensor, Tensor]:
        """The arrays that were given; where there are no more, the first ones with each array's numbers in new order.

        That keeps what the app's own initialisation is like, of which nothing else is known: spread, bounds, and the
        arrays that are constant.
        """
        if number < len(self._initial):
            return self._initial[number]
        parameters, buffers = self._initial[0]
        rng = torch_generator(seed, "net", number)
        shuffled = [part[torch.randperm(len(part), generator=rng)] for part in parameters.split(self.parameters.sizes)]
        return torch.cat(shuffled), buffers

    def models_of(self, arrays: ArrayRecord) -> Models:
        """A single model of an app's arrays."""
        described = {name: tuple(array.shape) for name, array in arrays.items()}
        expected = dict(zip(self.arrays.names, self.arrays.shapes, strict=True))
        if described != expected:
            raise CoterieError(f"other arrays than the run began with: {_differing(described, expected)}")
        wide = np.float64 if self.dtype is torch.float64 else np.float32
        tensors = {
            full: torch.from_numpy(np.array(arrays[name].numpy(), dtype=wide, order="C"))
            for name, full in zip(self.arrays.names, self.arrays.full_names, strict=True)
        }
        buffers = self.buffers.flatten(tensors).to(self.dtype)
        return Models(self, self.parameters.flatten(tensors), buffers)

    def arrays_of(self, model: Models) -> ArrayRecord:
        """The app's arrays of a single model, in their own names, order and types."""
        views = self.parameters.views(model.parameters) | self.buffers.views(model.buffers)
        made = ArrayRecord()
        for name, full, dtype in zip(self.arrays.names, self.arrays.full_names, self.arrays.dtypes, strict=True):
            values = views[full].contiguous().numpy()
            kind = np.dtype(dtype)
            made[name] = Array(np.asarray(values if kind.kind == "f" else np.rint(values), dtype=kind))
        return made

    def build(self, generator: torch.Generator) -> nn.Module:
        """There is no module here."""
        raise CoterieError("only the app knows the module that its arrays belong to")

    def __call__(self, *inputs: Any) -> Any:
        """There is no module here."""
        raise CoterieError("only the app knows the module that its arrays belong to")


def _differing(given: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    for name in (*expected, *given):
        if given.get(name) != expected.get(name):
            return f"{name!r} is {given.get(name, 'missing')}, was {expected.get(name, 'not there')}"
    return "none"
