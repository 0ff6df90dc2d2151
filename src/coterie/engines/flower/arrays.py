"""The arrays of any Flower app as a net, so that models whose module only the app has can be mixed and compared.

Only the names, shapes and types of the arrays are known. Floats are trained, except running statistics, which are
recognised by name. Whole numbers, such as a count of batches, are treated like statistics: they are mixed like
everything else and rounded at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.randomness import torch_generator
from coterie.core.records import record
from coterie.data.tasks import TASKS
from coterie.nets.net import Layout, Net
from coterie.nets.stacks import Models

STATISTICS = ("*running_mean", "*running_var")
"""Names of arrays that are running statistics, as PyTorch's normalisations call them."""


@record
@dataclass(frozen=True)
class Arrays:
    """What is known of an app's arrays, in the app's order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    trained: tuple[bool, ...]
    """Which of the arrays the app trains."""

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
        """What a record of arrays shows; `statistics` are patterns of the names of arrays that are not trained."""
        names = tuple(arrays)
        kinds = [np.dtype(arrays[name].dtype) for name in names]
        trained = tuple(
            kind.kind == "f" and not any(fnmatchcase(name, pattern) for pattern in statistics)
            for name, kind in zip(names, kinds, strict=True)
        )
        return cls(names, tuple(tuple(arrays[name].shape) for name in names), tuple(map(str, kinds)), trained)

    @cached_property
    def full_names(self) -> tuple[str, ...]:
        """Names that begin with the name of a layer, as `fc2.weight` does.

        Arrays that an app gives as a list have no such names. There a layer is taken to begin with each array of two or
        more axes; arrays that follow, such as a bias or a scale, belong to it.
        """
        if any("." in name for name in self.names):
            return self.names
        layers = np.maximum(np.cumsum([len(shape) > 1 for shape in self.shapes]), 1)
        return tuple(f"{layer}.{name}" for layer, name in zip(layers, self.names, strict=True))

    def layout(self, trained: bool) -> Layout:
        """Where the trained arrays lie in their flat vector, or the other arrays in theirs."""
        chosen = [place for place, moves in enumerate(self.trained) if moves == trained]
        return Layout(tuple(self.full_names[at] for at in chosen), tuple(self.shapes[at] for at in chosen))


class ArrayNet(Net):
    """A net of which only the arrays are known: its models can be mixed and compared, but not run."""

    def __init__(self, arrays: Arrays, initial: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        # Without the constructor of `Net`, which builds the module.
        self.arrays, self.name, self.shape, self.classes = arrays, "app", (), 0
        self.device, self.task = torch.device("cpu"), TASKS["classification"]
        self.dtype = torch.float64 if "float64" in arrays.dtypes else torch.float32
        self.parameters, self.buffers = arrays.layout(trained=True), arrays.layout(trained=False)
        self.constants, self.frozen, self.vocabulary = dict[str, Tensor](), 0, 0
        self._initial = tuple(initial)

    @classmethod
    def of(cls, records: Sequence[ArrayRecord], statistics: Sequence[str] = STATISTICS) -> "ArrayNet":
        """The net of these arrays: model number 0 starts from the first record, number 1 from the second, and so on."""
        net = cls(Arrays.of(records[0], statistics))
        starts = [net.models_of(arrays) for arrays in records]
        net._initial = tuple((start.parameters, start.buffers) for start in starts)
        return net

    def new(self, seed: int, number: int) -> tuple[Tensor, Tensor]:
        """The parameters and buffers from which a model starts: those of its record, if there was one for its number.

        Otherwise they are those of the first record, with the numbers of each trained array in a new order. Nothing is
        known of how the app initialises a model, and this keeps the spread, the bounds and the constants of that.
        """
        if number < len(self._initial):
            return self._initial[number]
        parameters, buffers = self._initial[0]
        rng = torch_generator(seed, "net", number)
        shuffled = [part[torch.randperm(len(part), generator=rng)] for part in parameters.split(self.parameters.sizes)]
        return torch.cat(shuffled), buffers

    def models_of(self, arrays: ArrayRecord) -> Models:
        """An app's arrays as a single model."""
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
        """A single model as the app's arrays, with the app's names, order and types."""
        views = self.parameters.views(model.parameters) | self.buffers.views(model.buffers)
        made = ArrayRecord()
        for name, full, dtype in zip(self.arrays.names, self.arrays.full_names, self.arrays.dtypes, strict=True):
            values = views[full].contiguous().numpy()
            kind = np.dtype(dtype)
            made[name] = Array(np.asarray(values if kind.kind == "f" else np.rint(values), dtype=kind))
        return made

    @property
    def batch_norms(self) -> NoReturn:
        """Arrays have names, and no kinds of layers."""
        raise SettingsError("an app does not tell which layers are batch normalisation: name them instead")

    @cached_property
    def features(self) -> NoReturn:
        """Nor do they tell what the last layer gets."""
        raise SettingsError("an app does not tell what its last layer gets: let Coterie train (`coterie deploy`)")

    def build(self, *arguments: Any, **more: Any) -> NoReturn:
        """There is no module here."""
        raise CoterieError("only the app knows the module that its arrays belong to")

    __call__ = build


def _differing(given: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """In words: the first name under which two mappings have different values, and these."""
    for name in (*expected, *given):
        if given.get(name) != expected.get(name):
            return f"{name!r} is {given.get(name, 'missing')}, was {expected.get(name, 'not there')}"
    return "none"
