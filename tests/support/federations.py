"""Small federations for the tests of methods, in float64."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import coterie
from coterie.data import Split
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.fitting import Noted


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


class Place(nn.Module):
    """A point in the plane, whatever goes in."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.w.expand(len(x), 2)


def pulled(*places, samples: int = 8, **options) -> Federation:
    """Clients that pull a point of the plane each to its own place: F_i(w) = |w - c_i|^2 / 2.

    With `AT_ONCE` a client's model is its place after a round, and its update what is between. Needs `pulling`.
    """
    x = np.repeat(np.array(places, dtype=np.float32), samples, axis=0)
    data = coterie.Dataset(x, np.arange(len(x)) % 2, labels=("a", "b"))
    split = Split(tuple(np.split(np.arange(len(x)), len(places))))
    given = {"precision": "float64", "scaling": "none", "validation": 0, "test_share": 0.25, **options}
    return coterie.simulate(data, split, lambda shape, classes: Place(), **given)


AT_ONCE = {"steps": 1, "batch": 0, "rate": 1.0}
"""Local training that leads to the minimum of a parabola in one step."""


def pulling(monkeypatch) -> None:
    """Make training lower the squared distance between the model and the inputs, instead of cross-entropy."""
    train = coterie.Clients.train

    def distance(model, batch, key):
        return batch.mean(0.5 * (model(batch) - batch.x).square().sum(dim=1))

    monkeypatch.setattr(coterie.Clients, "train", lambda self, *a, **k: train(self, *a, **k, objective=distance))


def lost(fed: Federation, *clients: int) -> Federation:
    """The federation, with clients that are asked but never answer."""
    run = fed._engine.run

    def partly(call):
        answers = run(call)
        if call.at.scoring:
            return answers
        there = ~np.isin(answers.clients, clients)
        outputs = {name: value[torch.from_numpy(there)] for name, value in answers.outputs.items()}
        return replace(answers, clients=answers.clients[there], outputs=outputs)

    fed._engine.run = partly
    return fed


def state_of(outcome):
    """The state that a method gave, perhaps with what it noted beside it."""
    return outcome.state if isinstance(outcome, Noted) else outcome
