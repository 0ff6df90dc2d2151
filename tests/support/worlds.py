"""What tests share: small worlds of a few clients of unequal sizes in float64, and ways to look at things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from coterie.clients.clients import CallContext, Clients
from coterie.clients.memory import Memory
from coterie.data.population import Pool, Population, Shard
from coterie.nets import Net, make_net
from coterie.nets.stacks import Models, Stack
from coterie.training.forms import form_named
from coterie.training.loop import Batch, LocalModel

NOBODY = np.empty(0, dtype=np.int64)
SIZES = (7, 3, 12, 1)
"""Training samples of the usual four clients: partial batches, a batch larger than the data, a single sample."""


@dataclass(frozen=True)
class World:
    """Clients with data and a net, without an engine around them."""

    net: Net
    pool: Pool
    shards: tuple[Shard, ...]

    def clients(
        self,
        form: str = "vectorised",
        chosen: Sequence[int] | None = None,
        memory: Memory | None = None,
        **at: object,
    ) -> Clients:
        """Some of the clients, in the order given."""
        shards = self.shards if chosen is None else [self.shards[client] for client in chosen]
        common = np.arange(5)
        return Clients(self.net, self.pool, shards, form_named(form), CallContext(**{"number": 1} | at), memory, common)

    def models(self, count: int | None = None, seed: int = 0) -> Models:
        """Different models, one per client unless told otherwise, with running statistics that are not the usual."""
        rng = np.random.default_rng(seed)
        shape = (len(self.shards) if count is None else count,)
        parameters = torch.from_numpy(rng.normal(size=(*shape, self.net.parameters.total)) / 3)
        buffers = torch.from_numpy(rng.uniform(0.5, 1.5, size=(*shape, self.net.buffers.total)))
        return Models(self.net, parameters.to(self.net.dtype), buffers.to(self.net.dtype))


def world(
    factory,
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, ...] = (5,),
    classes: int = 3,
    augment: bool = False,
    x: np.ndarray | None = None,
    y: np.ndarray | None = None,
    dtype: torch.dtype = torch.float64,
) -> World:
    """Clients with so many training samples each, and 3 validation and 4 test samples more."""
    rng = np.random.default_rng(7)
    train = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    rest = sum(sizes) + np.arange(7 * len(sizes)).reshape(-1, 7)
    total = sum(sizes) + rest.size
    x = rng.normal(size=(total, *shape)).astype(np.float32) if x is None else _longer(x, total)
    y = rng.integers(0, classes, total) if y is None else _longer(y, total)
    shards = tuple(
        Shard(str(client), own, more[:3], more[3:]) for client, (own, more) in enumerate(zip(train, rest, strict=True))
    )
    ones = np.ones(shape[0])
    server = Shard("server", NOBODY, NOBODY, NOBODY)
    labels = tuple(map(str, range(classes)))
    kind = "image" if x.ndim == 4 else "features"
    population = Population(x, y, shards, server, labels, None, 0 * ones, ones, augment, "own", kind)
    net = make_net(factory, shape, classes, dtype=dtype)
    return World(net, Pool.of(population, "cpu", dtype), shards)


def _longer(values: np.ndarray, total: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((total - len(values), *values.shape[1:]), values.dtype)])


def resized(some: World, sizes: Sequence[int]) -> World:
    """The same world with fewer training samples at each client."""
    shards = tuple(replace(shard, train=shard.train[:size]) for shard, size in zip(some.shards, sizes, strict=True))
    return replace(some, shards=shards)


# Nets


def linear(shape, classes):
    """A linear layer, for features."""
    return nn.Linear(shape[0], classes)


def mlp(shape, classes):
    """Two layers, for features."""
    return nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes))


def normed(shape, classes):
    """Convolution and batch normalisation, for images."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * shape[1] * shape[2], classes),
    )


# One parameter, for numbers that can be worked out by hand


class Point(nn.Module):
    """A single number, whatever goes in."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), 1)


def quadratic(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The mean of a/2 (w - c)^2, where a sample is (c, a)."""
    centre, curvature = batch.x.unbind(1)
    return batch.mean(0.5 * curvature * (model(batch)[:, 0] - centre).square())


def quadratics(*clients: Sequence[tuple[float, float]]) -> World:
    """Clients whose samples are (c, a), each with the loss a/2 (w - c)^2 of a single parameter w."""
    x = np.array([sample for own in clients for sample in own], dtype=np.float32)
    return world(lambda shape, classes: Point(), [len(own) for own in clients], (2,), 1, x=x, y=np.zeros(len(x), int))


def at(some: World, *values: float) -> Models:
    """Models of a single parameter each."""
    parameters = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    return Models(some.net, parameters, torch.zeros(len(values), 0, dtype=torch.float64))


def close(ours: Tensor, theirs: Tensor, within: float = 1e-12) -> None:
    """Assert that tensors are equal but for rounding."""
    torch.testing.assert_close(ours, theirs, atol=within, rtol=0)


def tensors_of(values: object) -> dict[str, Tensor]:
    """All tensors in a method's state or in named values, however deep, by name, in float64 on the host."""
    if is_dataclass(values) and not isinstance(values, Stack):
        values = {field.name: getattr(values, field.name) for field in fields(values)}
    elif isinstance(values, Stack | tuple):
        values = dict(enumerate(values.tensors if isinstance(values, Stack) else values))
    if isinstance(values, Mapping):
        found = {name: tensors_of(value) for name, value in values.items()}
        return {f"{name}/{key}": tensor for name, inner in found.items() for key, tensor in inner.items()}
    if isinstance(values, int | float | Tensor | np.ndarray):
        return {"": torch.as_tensor(values).cpu().double()}
    assert values is None or isinstance(values, str), type(values)
    return {}


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
