"""Small federations for the tests of methods, in float64."""

import numpy as np
import torch

import coterie
from coterie.data import Split
from coterie.federation import Federation
from coterie.weights import Models


def uneven(clients: int = 6, net="mlp", **options) -> Federation:
    """Clients with unequal numbers of samples of three classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    data = coterie.Dataset(x, (x @ rng.normal(size=(5, 3))).argmax(1), labels=tuple("abc"))
    options = {"min_size": 6, "precision": "float64", **options}
    return coterie.simulate(data, "quantity", net, clients=clients, **options)


def opposed(groups=(0, 1) * 4, samples: int = 240, **options) -> Federation:
    """Clients with the same inputs, whose labels are shifted by the number of their group: no model can serve two.

    The groups take turns, so that positions within a group are not positions among all clients.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    classes = max(groups) + 1
    y = np.digitize(x[:, 0], np.linspace(-1, 1, classes + 1)[1:-1])
    parts = np.array_split(np.arange(samples), len(groups))
    for part, group in zip(parts, groups, strict=True):
        y[part] = (y[part] + group) % classes
    data = coterie.Dataset(x, y, labels=tuple(map(str, range(classes))))
    split = Split(tuple(parts), groups=np.array(groups))
    return coterie.simulate(data, split, "mlp", precision="float64", **options)


def at_round(fed: Federation, number: int = 1) -> Federation:
    """The federation as it is when a round begins, with nothing remembered."""
    fed.begin(rounds=20)
    fed.start_round(number)
    return fed


def same(one: Models, other: Models) -> bool:
    """Whether models are equal to the last bit."""
    return torch.equal(one.parameters, other.parameters) and torch.equal(one.buffers, other.buffers)
