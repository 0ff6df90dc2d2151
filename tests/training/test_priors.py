"""Clients' own priors: kept out of training and added where clients predict, alike in every form and at every place."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.clients.clients import CallContext, Clients
from coterie.clients.programs import choose
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.nets.stacks import Models
from coterie.training.forms import FORMS, Branch, Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from coterie.training.priors import log_prior
from support.federations import same, uneven
from support.trainings import IMAGES, WITHIN, everything, noisy, second_order
from support.worlds import close, linear, mlp, world

OWN = LocalTraining(epochs=3, batch=4, rate=0.2, prior="own")


def clients(here, form=None, **at):
    return Clients(here.net, here.pool, here.shards, form or FORMS["loop"](), CallContext(number=1, **at))


def alike(**options):
    """Clients that have every label equally often."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    data = coterie.Dataset(x, np.arange(120) % 3, labels=tuple("abc"))
    data = replace(data, test=coterie.Dataset(x[:30] + 1, data.y[:30], labels=tuple("abc")))
    parts = tuple(np.split(np.arange(120), [12, 42, 60]))
    given = {"precision": "float64", "validation": 0, "test": "global", **options}
    return coterie.simulate(data, Split(parts), "mlp", **given)


def test_what_is_added_is_the_log_of_smoothed_shares_but_for_a_constant():
    counts = torch.tensor([[4, 0, 4], [1, 2, 3], [0, 0, 0]])
    shares = (counts.double() + 0.5) / (counts.sum(dim=1, keepdim=True) + 1.5)
    found = log_prior(counts, 0.5)
    close(found.log_softmax(dim=1), shares.log())
    # 4 of one label and none of the other: log(.5 / 4.5) = -log 9. Equally frequent labels, or none at all: exactly 0.
    assert found[0].tolist() == [0, pytest.approx(-log(9)), 0]
    assert found[2].tolist() == [0, 0, 0]
    # One label alone: all others stand log(s / (n + s)) below it, and are not impossible.
    assert log_prior(torch.tensor([7, 0]), 0.25).tolist() == [0, pytest.approx(log(0.25 / 7.25))]


def test_smoothing_without_end_adds_exactly_nothing():
    assert not log_prior(torch.tensor([[4, 0, 9]]), 1e18).any()


@pytest.mark.parametrize("objective", [None, second_order], ids=["plain", "second order"])
def test_all_forms_train_the_same_also_with_recorded_steps(objective):
    here = world(everything, (7, 3, 12, 1), IMAGES)
    recorder = {"recorder": Recorder(lambda step: lambda: step())}
    forms = [Vectorised(), Vectorised(strict=True), Vectorised(**recorder), Branch(**recorder)]
    options = {} if objective is None else {"objective": objective}
    reference = clients(here).train(here.models(), OWN, **options)
    for form in forms:
        found = clients(here, form).train(here.models(), OWN, **options)
        close(found.models.parameters, reference.models.parameters, WITHIN)
        close(found.loss, reference.loss, WITHIN)
    plain = clients(here).train(here.models(), replace(OWN, prior="learned"), **options)
    assert not torch.equal(plain.models.parameters, reference.models.parameters)


def test_an_objective_that_calls_the_net_on_plain_inputs_says_itself_what_it_makes_of_the_outputs():
    here = world(mlp)
    usual, own = (
        clients(here).train(here.models(), replace(OWN, prior=prior), objective=noisy) for prior in ("learned", "own")
    )
    assert torch.equal(usual.models.parameters, own.models.parameters)


def test_with_a_linear_last_layer_the_prior_is_a_shift_of_its_bias():
    # To train on f + log pi is to add log pi to the bias, train as usual, and take it off again.
    here = world(linear)
    start, own = here.models(), clients(here).log_prior(0.5)
    place = slice(here.net.parameters.total - 3, None)

    def shifted(models, by):
        parameters = models.parameters.clone()
        parameters[:, place] += by
        return Models(models.net, parameters, models.buffers)

    usual = clients(here).train(shifted(start, own), replace(OWN, prior="learned")).models
    found = clients(here).train(start, OWN).models
    close(found.parameters, shifted(usual, -own).parameters)
    # So is to predict with f + log pi.
    for on in ("train", "validation"):
        ours, theirs = clients(here, prior=0.5).evaluate(found, on), clients(here).evaluate(shifted(found, own), on)
        close(ours.loss, theirs.loss)
        assert torch.equal(ours.correct, theirs.correct)


@pytest.mark.parametrize("form", FORMS)
def test_one_model_for_all_is_evaluated_with_each_client_s_own_prior(form):
    here = world(mlp)
    model = here.models(1)[0]
    every = clients(here, FORMS[form](), prior=0.5).evaluate(model.expand(4), "train")
    copies = clients(here, FORMS[form](), prior=0.5).evaluate(
        here.models(1)[torch.zeros(4, dtype=torch.int64)], "train"
    )
    close(every.loss, copies.loss)
    assert not torch.equal(every.loss, clients(here, FORMS[form]()).evaluate(model.expand(4), "train").loss)


def test_samples_that_clients_share_are_judged_with_each_client_s_own_prior():
    here = world(mlp, (6, 6))
    first, second = here.shards
    here = replace(here, shards=(first, replace(second, train=np.concatenate([second.train, first.train[:3]]))))
    model = here.models(1)[0]
    together = clients(here, prior=0.5).losses(model.expand(1).expand(2))
    for row in range(2):
        alone = Clients(here.net, here.pool, here.shards[row : row + 1], FORMS["loop"](), CallContext(prior=0.5))
        close(together[row, :, : len(here.shards[row].train)], alone.losses(model.expand(1).expand(1))[0])


def test_clients_choose_and_mix_with_the_prior():
    here = world(mlp)
    models = here.models(8).flattened()
    stack = Models(here.net, models.parameters.reshape(4, 2, -1), models.buffers.reshape(4, 2, -1))
    some = clients(here, prior=0.5)
    assert torch.equal(some.best_fit(stack), some.evaluate(stack).loss.argmin(dim=1))
    close(some.evaluate(stack).loss, some.losses(stack).nanmean(dim=2))
    weights = torch.tensor([[0.3, 0.7]] * 4, dtype=torch.float64)
    chances = (-some.losses(stack)).exp()
    mixed = -(chances * weights[..., None]).sum(dim=1).log()
    close(some.evaluate(stack, mixture=weights).loss, mixed.nanmean(dim=1))


def test_a_remembered_fit_is_not_taken_for_one_with_another_prior():
    here, known = world(mlp, (12,)), {}
    models = here.models(2).expand(1)
    for prior in (0.0, 0.5, 0.0):
        at = CallContext(prior=prior)
        remembering = Clients(here.net, here.pool, here.shards, FORMS["loop"](), at, known=known)
        remembering.best_fit(models)
        (_, found), fresh = next(iter(known.values())), clients(here, prior=prior).evaluate(models)
        assert torch.equal(found.loss, fresh.loss)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ifca", "fedem", "per-fedavg", "fedrep", "ditto"])
def test_where_all_labels_are_equally_frequent_a_method_is_itself_to_the_last_bit(name):
    fed = alike()
    usual = coterie.methods.make(name, rounds=3).fit(fed)
    own = coterie.methods.make(name, rounds=3, prior="own").fit(fed)
    assert [c | {"loss": 0} for c in own.clients] == [c | {"loss": 0} for c in usual.clients]
    assert own.summary["loss_mean"] == pytest.approx(usual.summary["loss_mean"], abs=1e-12)
    if usual.served.models is not None:
        assert same(own.served.models, usual.served.models)


def test_with_smoothing_without_end_a_method_is_itself_to_the_last_bit():
    fed = uneven()
    usual = coterie.FedAvg(rounds=3).fit(fed)
    assert same(coterie.FedAvg(rounds=3, prior="own", prior_smoothing=1e18).fit(fed).state.model, usual.state.model)
    assert not same(coterie.FedAvg(rounds=3, prior="own").fit(fed).state.model, usual.state.model)


def test_one_label_at_a_client_can_be_trained_and_served():
    y = np.repeat([0, 1, 2], 20)
    x = (np.random.default_rng(0).normal(size=(60, 4)) + np.eye(3, 4)[y]).astype(np.float32)
    data = coterie.Dataset(x, y, labels=tuple("abc"))
    fed = coterie.simulate(data, Split(tuple(np.split(np.arange(60), 3))), "mlp", precision="float64")
    # A model for all labels alike, and log pi of the one label that a client knows: .5 to 14.5.
    assert coterie.FedAvg(rounds=10, prior="own").fit(fed).summary["accuracy_mean"] == 1.0
    assert coterie.FedAvg(rounds=10).fit(fed).summary["accuracy_mean"] < 1.0


def test_the_prior_reaches_worker_processes():
    results = []
    for workers in (0, 2):
        fed = coterie.simulate("digits", "label-skew", "mlp", clients=4, workers=workers, engine="loop")
        results.append(coterie.FedAvg(rounds=1, steps=3, prior="own").fit(fed))
        fed.close()
    assert [c["accuracy"] for c in results[0].clients] == [c["accuracy"] for c in results[1].clients]
    assert same(results[0].state.model, results[1].state.model)


def test_what_the_server_holds_has_no_prior(monkeypatch):
    # The global test set and the server's own samples belong to nobody's shares of labels.
    fed = coterie.simulate("digits", "label-skew", "mlp", clients=4, server_samples=20)
    result = coterie.FedAvg(rounds=2, prior="own").fit(fed)
    probe = fed.server.predict(result.state.model.expand(1))
    per_client = {client["global_accuracy"] for client in result.clients}
    assert len(per_client) == 1
    fed.prior = 0.0
    assert torch.equal(fed.server.predict(result.state.model.expand(1)), probe)


def test_permuting_labels_permutes_the_result():
    # With a last layer that starts at zero no label is different from another but by its place.
    order = np.array([2, 0, 1])

    def zeroed(shape, classes):
        layer = nn.Linear(shape[0], classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    y = (x @ rng.normal(size=(4, 3))).argmax(1)
    made = []
    for labels in (y, order[y]):
        data = coterie.Dataset(x, labels, labels=tuple("abc"))
        fed = coterie.simulate(data, Split(tuple(np.split(np.arange(90), [20, 50]))), zeroed, precision="float64")
        made.append(coterie.FedAvg(rounds=3, prior="own").fit(fed).state.model)
    for name, values in made[0].state_dict().items():
        close(made[1].state_dict()[name][order], values)


def test_without_classes_there_is_no_prior():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    for y, task in ((x.sum(axis=1), "regression"), ((x > 0).astype(np.float32), "multi-label")):
        data = coterie.Dataset(x, y, task=task)
        fed = coterie.simulate(data, "iid", "mlp", clients=3)
        with pytest.raises(SettingsError, match=f"prior=own: .* task={task} has none; use prior=learned"):
            coterie.FedAvg(rounds=1, prior="own").fit(fed)


def test_a_program_of_a_method_chooses_as_the_clients_are_served():
    fed = coterie.simulate("digits", "label-skew", "mlp", clients=6)
    result = coterie.IFCA(rounds=2, clusters=2, prior="own").fit(fed)
    chosen = fed.run(choose, shared=result.state.models).choice
    assert chosen.tolist() == [client["group_found"] for client in result.clients]
