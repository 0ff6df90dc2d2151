"""FedLC: the loss by hand, what it does to labels that a client has not, and FedAvg where margins are all the same."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedlc import train_calibrated
from coterie.training.local import LocalTraining
from support.worked_examples import apart, same, unequal
from support.worlds import close, linear, mlp, normed, world

LABELS = ([0, 0, 0, 0, 1], [2, 2, 1, 1, 0, 0], [1] * 7)


def labelled(factory=linear, features=4):
    """Three clients with these labels."""
    y = np.concatenate(LABELS)
    x = np.random.default_rng(4).normal(size=(len(y), features)).astype(np.float32)
    return world(factory, [len(own) for own in LABELS], (features,), 3, x=x, y=y)


def by_numpy(here, start, client, rate, tau):
    """The weights and biases of a linear net after a step on all of a client's samples, with margins."""
    index = here.shards[client].train
    x, y = here.pool.x[index].double().numpy(), here.pool.y[index].numpy()
    state = start.state_dict()
    weight, bias = state["weight"].numpy(), state["bias"].numpy()
    counts = np.bincount(y, minlength=3)
    there = counts > 0
    logits = (x @ weight.T + bias)[:, there] - tau * counts[there] ** -0.25
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = np.zeros((len(y), 3))
    error[:, there] = shares
    error[np.arange(len(y)), y] -= 1
    return weight - rate * error.T @ x / len(y), bias - rate * error.mean(axis=0)


@pytest.mark.parametrize("form", ["loop", "vectorised"])
def test_a_step_by_hand(form):
    here = labelled()
    start = here.models()
    found = train_calibrated(here.clients(form), start=start, local=LocalTraining(steps=1, batch=0, rate=0.5), tau=0.7)[
        "model"
    ]
    for client in range(3):
        weight, bias = by_numpy(here, start[client], client, 0.5, 0.7)
        state = found[client].state_dict()
        close(state["weight"], torch.from_numpy(weight))
        close(state["bias"], torch.from_numpy(bias))


def test_nothing_moves_a_label_that_the_client_has_not():
    here = labelled()
    start = here.models()
    local = LocalTraining(epochs=5, batch=2, rate=0.5)
    found = train_calibrated(here.clients(), start=start, local=local, tau=1.0)["model"]
    assert torch.equal(found.layer("")["weight"][0, 2], start.layer("")["weight"][0, 2])
    assert not torch.equal(found.layer("")["weight"][0, 1], start.layer("")["weight"][0, 1])
    # With one label alone there is nothing to tell apart, and no gradient.
    assert torch.equal(found.parameters[2], start.parameters[2])


@pytest.mark.parametrize(("factory", "shape"), [(mlp, (5,)), (normed, (2, 4, 4))])
def test_where_labels_are_equally_frequent_a_client_trains_as_fedavgs(factory, shape):
    here = world(factory, (6, 12, 3), shape, y=np.arange(21) % 3)
    start, local = here.models(), LocalTraining(epochs=2, batch=4, rate=0.2)
    ours = train_calibrated(here.clients(), start=start, local=local, tau=2.0)["model"]
    plain = here.clients().train(start, local).models
    close(ours.parameters, plain.parameters, 1e-10)
    close(ours.buffers, plain.buffers, 1e-10)


def test_with_a_tiny_tau_only_missing_labels_differ_from_fedavg():
    fed = unequal()
    plain = coterie.FedAvg(rounds=2).fit(fed).state.model
    near, far = (coterie.FedLC(rounds=2, tau=tau).fit(fed).state.model for tau in (1e-9, 1.0))
    assert (fed.run(coterie.programs.label_histogram).label_histogram > 0).all()  # else this test means nothing
    assert apart(near, plain) < 1e-8
    assert apart(far, plain) > 1e-4


def test_traffic_and_steps_are_fedavgs():
    fed = unequal()
    ours, plain = coterie.FedLC(rounds=2).fit(fed), coterie.FedAvg(rounds=2).fit(fed)
    assert [ours.summary["ledger"][way] for way in ("up", "down")] == [
        plain.summary["ledger"][way] for way in ("up", "down")
    ]
    assert [one["steps"] for one in ours.clients] == [one["steps"] for one in plain.clients]
    assert not same(ours.state.model, plain.state.model)


def test_another_loss_and_no_margin_are_refused():
    with pytest.raises(SettingsError, match=r"tau=0.0: above 0; without margins use fedavg"):
        coterie.FedLC(tau=0.0)
    with pytest.raises(SettingsError, match=r"loss=focal: fedlc is a change of the cross-entropy"):
        coterie.FedLC(rounds=1).fit(unequal(loss="focal"))
