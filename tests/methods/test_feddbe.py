"""FedDBE: steps by plain PyTorch, the consensus by hand, what is served, and FedAvg without its two terms."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import coterie
from coterie.clients.memory import Memory
from coterie.core.errors import SettingsError
from coterie.methods.feddbe import mean_features, train_with_offset
from coterie.training.local import LocalTraining
from support.worked_examples import apart, course, normed, of_sizes, same, unequal
from support.worlds import close, mlp, world
from support.worlds import normed as normed_images

FORMS = pytest.mark.parametrize("form", ["loop", "vectorised"])
NETS = pytest.mark.parametrize(("factory", "shape"), [(mlp, (5,)), (normed_images, (2, 4, 4))], ids=["mlp", "normed"])
OPTIONS = {"mean_momentum": 0.6, "strength": 3.0, "offsets": True}


def by_torch(here, client, start, offset, consensus, steps, rate):
    """A client's module and offset after steps on all of its samples, as the authors' code takes them."""
    index = here.shards[client].train
    x, y = here.pool.inputs(torch.from_numpy(index)), here.pool.y[index]
    model, offset = start[client].module().train(), offset.clone().requires_grad_()
    mean = torch.zeros_like(offset)
    for _ in range(steps):
        z = model[:-1](x)
        mean = 0.4 * mean.detach() + 0.6 * z.mean(dim=0)
        loss = F.cross_entropy(model[-1](z + offset), y) + 3 * (0.5 * (mean - consensus).square()).mean()
        moved = [*model.parameters(), offset]
        with torch.no_grad():
            for number, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                number -= rate * gradient
    return model.state_dict(), offset.detach(), mean.detach()


@FORMS
@NETS
def test_steps_by_plain_torch(factory, shape, form):
    here = world(factory, (7, 3, 12), shape)
    start, rng = here.models(), np.random.default_rng(2)
    offsets, consensus = (torch.from_numpy(rng.normal(size=(3, here.net.features))) for _ in range(2))
    memory = Memory(3)
    memory.update(torch.arange(3), {"offset": offsets})
    clients, local = here.clients(form, memory=memory), LocalTraining(steps=3, batch=0, rate=0.2)
    found = train_with_offset(clients, start=start, local=local, consensus=consensus, **OPTIONS)["model"]
    for client in range(3):
        expected, offset, _ = by_torch(here, client, start, offsets[client], consensus[client], 3, 0.2)
        state = found[client].state_dict()
        for name in (*here.net.parameters.names, *here.net.buffers.names):
            close(state[name], expected[name], 1e-11)
        close(clients.kept["offset"][client], offset, 1e-11)


def test_clients_with_partial_batches_are_the_same_alone_and_among_others():
    # Means of features are over real rows: those that only fill a batch up must not count.
    here = world(mlp)
    start, local = here.models(), LocalTraining(epochs=3, batch=4, rate=0.2)
    consensus = torch.ones(4, 6, dtype=torch.float64)
    found = []
    for form in ("loop", "vectorised"):
        clients = here.clients(form)
        model = train_with_offset(clients, start=start, local=local, consensus=consensus, **OPTIONS)["model"]
        mean = mean_features(here.clients(form), start=start, local=local, mean_momentum=0.3)["mean"]
        found.append((model.parameters, clients.kept["offset"], mean))
    for loop, vectorised in zip(*found, strict=True):
        close(loop, vectorised)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_consensus_is_the_mean_of_the_first_cohort_and_stays(weighting):
    # With all samples in one step and a momentum of .5 a running mean is half of the mean of the initial model's.
    fed = of_sizes([20, 8, 12, 30], test_share=0.1)
    method = coterie.FedDBE(rounds=3, steps=1, batch=0, mean_momentum=0.5, participation=0.5, weighting=weighting)
    begun, *states = course(method, fed)
    assert begun.consensus is None
    fed.begin(3)
    fed.start_round(1)
    first = fed.run(initial_means, fed.sample(0.5))
    assert len(first.clients) == 2
    weights = first.weights(weighting)
    close(states[0].consensus, weights @ first.mean / 2)
    assert all(torch.equal(state.consensus, states[0].consensus) for state in states)


@coterie.program
def initial_means(clients):
    """The mean of what the last layer gets in the initial model."""
    models = clients.initial()
    rows = [models[row].module()[:-1](clients.samples(row)[0]).mean(dim=0) for row in range(len(clients))]
    return {"mean": torch.stack(rows).detach()}


@pytest.mark.parametrize("net", ["mlp", normed])
@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5, "weighting": "uniform"}])
def test_without_offsets_and_strength_it_is_fedavg_to_the_last_bit(net, options):
    fed = unequal(net=net)
    ours = coterie.FedDBE(rounds=3, strength=0.0, offsets=False, **options).fit(fed)
    plain = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert same(ours.state.model, plain.state.model)
    assert [c["loss"] for c in ours.clients] == [c["loss"] for c in plain.clients]
    for way in ("up", "down"):
        assert ours.summary["ledger"][way] == plain.summary["ledger"][way]


def test_a_running_mean_that_no_batch_counts_in_does_nothing():
    # Without momentum it stays at 0. All samples are in one batch, so that it does not matter that the first round has
    # a training more, which draws other batches.
    fed, options = unequal(), {"rounds": 3, "batch": 0}
    still = coterie.FedDBE(mean_momentum=0.0, **options).fit(fed).state
    without = coterie.FedDBE(strength=0.0, **options).fit(fed).state
    assert still.consensus.tolist() == [0] * fed.net.features
    assert apart(still.model, without.model) < 1e-12
    assert apart(coterie.FedDBE(mean_momentum=1.0, **options).fit(fed).state.model, without.model) > 1e-3


def test_the_consensus_pulls_mean_features_together():
    def spread(strength):
        fed = coterie.simulate("digits", "label-skew", "mlp", clients=5, precision="float64", seed=1)
        model = coterie.FedDBE(rounds=3, strength=strength, rate=0.05).fit(fed).state.model
        still = {"local": LocalTraining(steps=1, batch=0, rate=1e-9), "mean_momentum": 1.0}
        return float(fed.run(mean_features, shared=model, **still).mean.std(dim=0).mean())

    assert spread(50.0) < 0.9 * spread(0.0)


def test_clients_are_served_the_newest_model_with_their_own_offset():
    fed = unequal()
    result = coterie.FedDBE(rounds=2, participation=0.5).fit(fed, keep_models=True)
    absent = torch.tensor([client["rounds_taken_part"] == 0 for client in result.clients])
    assert 0 < int(absent.sum()) < 6
    offsets = fed.run(offsets_kept).offset
    assert (offsets == 0).all(dim=1).tolist() == absent.tolist()
    expected = result.state.model.expand(6).shifted(offsets)
    assert same(result.models.models, expected)
    assert len(torch.unique(expected.parameters, dim=0)) == 7 - int(absent.sum())
    assert result.served.personal


@coterie.program
def offsets_kept(clients):
    """The clients' offsets, and 0 for those that have none."""
    return {"offset": clients.state("offset", otherwise=torch.zeros(len(clients), clients.net.features).double())}


def test_what_travels():
    fed = unequal()
    ledger = coterie.FedDBE(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    model, mean = fed.new_model().size, fed.net.features * 8
    assert ledger["up"] == {"model": 2 * 3 * model, "mean": 3 * mean}
    assert ledger["down"] == {"model": 3 * 3 * model, "consensus": 2 * 3 * mean}


def ending(last):
    return lambda shape, classes: nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), *last(classes))


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (lambda classes: [nn.Linear(6, classes, bias=False)], r"its last layer, 2, has no bias to take an offset up"),
        (lambda classes: [nn.Linear(6, classes), nn.Tanh()], "is not linear or not the end of it"),
    ],
)
def test_a_net_whose_last_layer_cannot_take_an_offset_is_refused(last, reason):
    with pytest.raises(SettingsError, match=reason):
        coterie.FedDBE(rounds=1).fit(unequal(net=ending(last)))


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"mean_momentum": 1.1}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.FedDBE(**options)
