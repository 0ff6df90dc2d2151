"""Federations for the tests of methods: of one number, worked out by hand, and small real ones in float64."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import Clients, program
from coterie.data import Split
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation


class Number(nn.Module):
    """One trained number, given back for every class."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), 2)


def quadratics(monkeypatch: pytest.MonkeyPatch, *clients: tuple[float, float, int], **options) -> Federation:
    """Clients (c, a, n) with n training samples whose loss is a/2 (w - c)^2 of the one number w, which starts at 0."""

    def objective(model, batch, key):
        centre, curvature = batch.x.unbind(1)
        return batch.mean(0.5 * curvature * (model.parameters - centre) ** 2)

    train = Clients.train
    monkeypatch.setattr(Clients, "train", lambda self, *a, **k: train(self, *a, **k, objective=objective))
    counts = [samples + 1 for _, _, samples in clients]  # one more, for the test data that scoring wants
    x = np.repeat([(centre, curvature) for centre, curvature, _ in clients], counts, axis=0).astype(np.float32)
    data = coterie.Dataset(x, np.zeros(len(x), dtype=int), labels=("a", "b"))
    split = Split(tuple(np.split(np.arange(len(x)), np.cumsum(counts)[:-1])))
    division = {"precision": "float64", "scaling": "none", "validation": 0, "test_share": 0.01}
    fed = coterie.simulate(data, split, lambda shape, classes: Number(), **division, **options)
    assert fed.sizes.tolist() == [samples for _, _, samples in clients]
    return fed


def course(method: coterie.Method, fed: Federation) -> list:
    """The method's state before the first round and after each."""
    states: list = []

    class Keeper:
        def round_done(self, checkpoint, record, groups):
            states.append(checkpoint.state)

        def run_done(self, checkpoint, result):
            pass

    fed.begin(method.rounds)
    first = method.begin(fed)
    method.fit(fed, observers=[Keeper()])
    return [first, *states]


def value(model: Models | Changes) -> float:
    """The one number."""
    return model.parameters.item()


def dataset(samples: int = 120, classes: int = 3, features: int = 5) -> coterie.Dataset:
    """Gaussian inputs, labelled by a linear rule."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, features)).astype(np.float32)
    return coterie.Dataset(x, (x @ rng.normal(size=(features, classes))).argmax(1), labels=tuple("abcdef"[:classes]))


def unequal(clients: int = 6, net="mlp", **options) -> Federation:
    """Clients with unequal numbers of samples."""
    options = {"min_size": 6, "precision": "float64"} | options
    return coterie.simulate(dataset(), "quantity", net, clients=clients, **options)


def of_sizes(sizes: Sequence[int], net="mlp", **options) -> Federation:
    """Clients with so many samples each, training and test data together."""
    split = Split(tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])))
    return coterie.simulate(dataset(sum(sizes)), split, net, **{"precision": "float64", "validation": 0} | options)


def normed(shape, classes):
    """A net with running statistics in its body."""
    return nn.Sequential(
        nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Tanh(), nn.BatchNorm1d(6, affine=False), nn.Linear(6, classes)
    )


@program
def kept_model(clients: Clients, name: str = "model"):
    """What clients keep, or start from."""
    return {"model": clients.state(name, otherwise=clients.initial())}


@program
def kept_change(clients: Clients, name: str):
    """What clients keep."""
    return {"change": clients.state(name, otherwise=clients.initial().zeros())}


def same(one: Models, other: Models) -> bool:
    """Whether models are equal to the last bit."""
    return torch.equal(one.parameters, other.parameters) and torch.equal(one.buffers, other.buffers)


def apart(one: Models, other: Models) -> float:
    """How far models are from each other, in any parameter or running statistic."""
    return max(float((a - b).abs().max()) for a, b in zip(one.tensors, other.tensors, strict=True) if a.numel())


def losing(fed: Federation, lost: Sequence[int]) -> Federation:
    """The federation in which some clients never answer in time: what they did is undone."""
    run = fed._engine.run

    def incomplete(call):
        answers = run(call)
        there = ~np.isin(answers.clients, lost)
        if there.all() or call.at.scoring:
            return answers
        fed._engine.reject(answers.clients[~there])
        rows = torch.from_numpy(there)
        outputs = {name: found[rows] for name, found in answers.outputs.items()}
        return type(answers)(answers.clients[there], outputs, answers.letters)

    fed._engine.run = incomplete
    return fed
