"""FedProto: prototypes and pulls by hand, how clients predict by them, and training alone where nothing pulls."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedproto import FedProtoState, train_to_prototypes
from coterie.moves import mixing
from coterie.training.forms import Branch, Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from support.federations import at_round
from support.worked_examples import kept_model, normed, of_sizes, same, unequal
from support.worlds import close, mlp, world
from support.worlds import normed as normed_images

NETS = pytest.mark.parametrize("net", ["mlp", normed])


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_prototypes_are_means_by_samples_and_what_nobody_has_stays():
    # Class 0: (1 * 2 + 3 * 6) / 4 = 5 of clients with 1 and 3 samples. Class 1: of one client. Class 2: of nobody.
    means = numbers([[2.0], [7.0], [0.0]], [[6.0], [0.0], [0.0]])
    before = numbers([9.0], [9.0], [9.0])
    assert mixing.by_class(means, torch.tensor([[1, 2, 0], [3, 0, 0]]), before).tolist() == [[5], [7], [9]]
    assert mixing.by_class(means, torch.tensor([[1, 1, 0], [1, 0, 0]]), before).tolist() == [[4], [7], [9]]


@pytest.mark.parametrize("form", ["loop", "vectorised"])
def test_a_step_by_hand(form):
    # With f = tanh(A x + a), logits B f + b and the prototype c of the sample's class, the pull adds
    # lambda 2 / d (f - c) to the gradient with respect to f of each sample.
    here, rate, strength = world(mlp), 0.5, numbers(0.8, 0.8, 0.0)
    rng = np.random.default_rng(5)
    prototypes = torch.from_numpy(rng.normal(size=(3, 6)))
    local = LocalTraining(steps=1, batch=0, rate=rate)
    given = {"prototypes": prototypes.expand(4, -1, -1), "pull": strength.expand(4, -1)}
    clients = here.clients(form)
    start = clients.initial()
    told = train_to_prototypes(clients, **given, local=local, weighting="samples")
    for client in range(4):
        index = here.shards[client].train
        x, y = here.pool.x[index].double().numpy(), here.pool.y[index].numpy()
        below, shift, above, bias = (tensor.numpy() for tensor in start[client].state_dict().values())
        f = np.tanh(x @ below.T + shift)
        logits = f @ above.T + bias
        error = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(3)[y]
        pull = strength.numpy()[y][:, None] * 2 / 6 * (f - prototypes.numpy()[y])
        inner = (error @ above + pull) * (1 - f**2)
        expected = (
            below - rate * inner.T @ x / len(y),
            shift - rate * inner.mean(axis=0),
            above - rate * error.T @ f / len(y),
            bias - rate * error.mean(axis=0),
        )
        found = clients.kept["model"][client].state_dict().values()
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, torch.from_numpy(theirs))
        f = np.tanh(x @ expected[0].T + expected[1])
        for label in range(3):
            own = f[y == label]
            close(told["means"][client, label], torch.from_numpy(own.mean(axis=0) if len(own) else np.zeros(6)))
            assert told["label_counts"][client, label] == len(own)


def test_all_forms_agree_also_with_recorded_steps():
    here = world(normed_images, shape=(2, 4, 4))
    prototypes = torch.from_numpy(np.random.default_rng(5).normal(size=(3, 64))).expand(4, -1, -1)
    given = {"prototypes": prototypes, "pull": numbers([1.0, 0.5, 0.0]).expand(4, -1)}
    local, found = LocalTraining(epochs=3, batch=4, rate=0.2), []
    recorder = {"recorder": Recorder(lambda step: lambda: step())}
    for form in (None, Vectorised(), Vectorised(strict=True), Vectorised(**recorder), Branch(**recorder)):
        clients = here.clients("loop")
        clients._form = form or clients._form
        told = train_to_prototypes(clients, **given, local=local, weighting="uniform")
        assert told["label_counts"].max() == 1
        found.append((clients.kept["model"].parameters, told["means"]))
    for parameters, means in found[1:]:
        close(parameters, found[0][0], 1e-10)
        close(means, found[0][1], 1e-10)


@NETS
def test_without_a_pull_it_is_training_alone(net):
    fed, options = unequal(net=net), {"rounds": 3, "participation": 0.5}
    ours = coterie.FedProto(strength=0.0, predicts="head", **options).fit(fed)
    models = fed.run(kept_model).model
    alone = coterie.Local(**options).fit(fed)
    assert same(models, fed.run(kept_model).model)
    assert [client["loss"] for client in ours.clients] == [client["loss"] for client in alone.clients]
    coterie.FedProto(**options).fit(fed)
    assert not same(models, fed.run(kept_model).model)


def test_a_first_round_pulls_nowhere():
    fed = unequal()
    coterie.FedProto(rounds=1, strength=5.0).fit(fed)
    models = fed.run(kept_model).model
    coterie.Local(rounds=1).fit(fed)
    assert same(models, fed.run(kept_model).model)


@NETS
def test_clients_predict_the_class_whose_prototype_is_nearest(net):
    fed = unequal(net=net)
    result = coterie.FedProto(rounds=2).fit(fed)
    prototypes, site = result.state.prototypes, fed._engine._host
    models = fed.run(kept_model).model
    for client, record in enumerate(result.clients):
        index = torch.from_numpy(site.shards[client].test)
        features = []
        module = models[client].module().requires_grad_(False)
        module[-1].register_forward_pre_hook(lambda layer, inputs, features=features: features.append(inputs[0]))
        module(site.pool.inputs(index))
        nearest = torch.cdist(features[0], prototypes)
        y = site.pool.y[index]
        assert record["accuracy"] == pytest.approx(float((nearest.argmin(dim=1) == y).double().mean()))
        assert record["loss"] == pytest.approx(float(nn.functional.cross_entropy(-nearest.square(), y)), abs=1e-9)


def test_no_model_travels():
    fed = unequal()
    ledger = coterie.FedProto(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    width = 64 * 3 * 8
    assert ledger["down"] == {"prototypes": 2 * 3 * width, "pull": 2 * 3 * 3 * 8}
    assert ledger["up"] == {"means": 2 * 3 * width, "label counts": 2 * 3 * 3 * 8}


def test_a_prototype_of_which_nobody_tells_stays_and_a_class_without_any_is_never_predicted():
    fed = at_round(labelled([0, 1] * 15, [0] * 30))
    method = coterie.FedProto(participation=0.01)
    numbers_of = {name: fed.names.index(name) for name in fed.names}
    state = method.begin(fed)
    seen = []
    for number in range(1, 7):
        fed.start_round(number)
        after = method.round(fed, state)
        labels = 2 if fed.sample(0.01)[0] == numbers_of["0"] else 1
        stays = after.prototypes[labels:]
        assert torch.equal(stays, state.prototypes[labels:])
        assert after.known.tolist() == [state.known[label] or label < labels for label in range(3)]
        seen.append(labels)
        state = after
    assert set(seen) == {1, 2}
    served = method.serve(fed, FedProtoState(state.prototypes, state.known))
    model = fed.new_model().patched("head", served.shared)
    assert model.module()(torch.randn(50, 5, dtype=torch.float64) * 9).argmax(dim=1).max() == 1  # never class 2


def labelled(*labels):
    """Clients that have these labels, of three."""
    y = np.concatenate(labels)
    x = np.random.default_rng(0).normal(size=(len(y), 5)).astype(np.float32)
    data = coterie.Dataset(x, y, labels=("a", "b", "c"))
    split = coterie.data.Split(tuple(np.split(np.arange(len(y)), np.cumsum([len(own) for own in labels])[:-1])))
    return coterie.simulate(data, split, "mlp", precision="float64", validation=0)


def unbiased(shape, classes):
    """A net whose last layer has weights alone."""
    return nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes, bias=False))


def test_a_last_layer_without_biases_cannot_be_one_of_prototypes():
    fed = of_sizes([20] * 3, net=unbiased)
    with pytest.raises(SettingsError, match=r"its last layer has no biases; use predicts=head"):
        coterie.FedProto(rounds=1).fit(fed)
    assert coterie.FedProto(rounds=1, predicts="head").fit(fed).summary["loss_mean"] > 0


def test_a_pull_below_0_is_refused():
    with pytest.raises(SettingsError, match=r"strength=-1.0"):
        coterie.FedProto(strength=-1.0)
