"""FedALA: weights by hand, with clipping at both ends; what they start from and when; FedAvg where nothing is mixed."""

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.clients import CallContext, Clients
from coterie.clients.memory import Memory
from coterie.core.errors import SettingsError
from coterie.methods.fedala import mix_and_train_on
from coterie.training.forms import FORMS, Branch, Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from support.worked_examples import apart, kept_model, normed, same, unequal
from support.worlds import close, linear, mlp, world
from support.worlds import normed as normed_images

NETS = pytest.mark.parametrize("net", ["mlp", normed])


def recalled(here, form, **kept):
    """All clients of a world, which keep these values."""
    memory = Memory(len(here.shards))
    memory.update(torch.arange(len(here.shards)), kept)
    memory.commit()
    return Clients(here.net, here.pool, here.shards, form, CallContext(number=3), memory)


def mixed_and_trained(clients, start, **options):
    how = {"weighing": LocalTraining(batch=0, rate=4.0), "passes": [0.0, 5.0, 2.0], "part": "all"} | options
    return mix_and_train_on(clients, start=start, local=LocalTraining(steps=1, batch=0, rate=0.5), **how)["model"]


def gradient(here, client, numbers):
    """Of the mean cross-entropy of a linear net with these numbers, by hand."""
    index = here.shards[client].train
    x, y = here.pool.x[index].double().numpy(), here.pool.y[index].numpy()
    logits = x @ numbers[:-3].reshape(3, -1).T + numbers[-3:]
    error = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(3)[y]
    return np.concatenate([(error.T @ x / len(y)).reshape(-1), error.mean(axis=0)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rounds", "passes"), [(0, 0), (1, 5), (2, 2), (7, 2)])
def test_weights_and_what_is_trained_from_them_by_hand(form, rounds, passes):
    here = world(linear)
    own, given = here.models(seed=1), here.models(seed=2)
    before = torch.from_numpy(np.random.default_rng(3).uniform(size=own.parameters.shape))
    counted = torch.full((4,), rounds)
    clients = recalled(here, FORMS[form](), model=own, weights=before, rounds=counted)
    found = mixed_and_trained(clients, given)
    clipped = set()
    for client in range(4):
        mine, change = own.parameters[client].numpy(), (given - own).parameters[client].numpy()
        weights = before[client].numpy()
        for _ in range(passes):
            free = weights - 4.0 * gradient(here, client, mine + change * weights) * change
            weights = free.clip(0, 1)
            clipped |= {-1} if (free < 0).any() else set()
            clipped |= {1} if (free > 1).any() else set()
        mix = mine + change * weights
        close(clients.kept["weights"][client], torch.from_numpy(weights))
        close(found.parameters[client], torch.from_numpy(mix - 0.5 * gradient(here, client, mix)))
    assert clipped == ({-1, 1} if passes else set())  # else clipping was not tried
    assert clients.kept["rounds"].tolist() == [rounds + 1] * 4


def test_all_forms_mix_alike_also_with_recorded_steps_and_batches():
    here = world(normed_images, shape=(2, 4, 4))
    kept = {
        "model": here.models(seed=1),
        "weights": torch.full((4, int(here.net.part("head").sum())), 0.4, dtype=torch.float64),
        "rounds": torch.tensor([0, 1, 2, 3]),
    }
    options = {"weighing": LocalTraining(batch=2, rate=1.0), "passes": [0.0, 3.2, 0.8], "part": "head"}
    recorder = {"recorder": Recorder(lambda step: lambda: step())}
    for keeping in (kept, {}):  # the latter is a first round, in which nobody has anything to mix, and no steps for it
        reference = mixed_and_trained(recalled(here, FORMS["loop"](), **keeping), here.models(seed=2), **options)
        for form in (Vectorised(), Vectorised(strict=True), Vectorised(**recorder), Branch(**recorder)):
            found = mixed_and_trained(recalled(here, form, **keeping), here.models(seed=2), **options)
            close(found.parameters, reference.parameters, 1e-10)
            close(found.buffers, reference.buffers, 1e-10)


def test_lower_layers_and_running_statistics_are_the_global_models():
    here = world(mlp)
    own, given = here.models(seed=1), here.models(seed=2)
    head = here.net.part("head")
    zeros = torch.zeros(4, int(head.sum()), dtype=torch.float64)
    clients = recalled(here, FORMS["loop"](), model=own, weights=zeros, rounds=torch.full((4,), 2))
    options = {"weighing": LocalTraining(rate=1e-9), "part": "head"}
    began = []
    train = clients.train
    clients.train = lambda start, *a, **k: began.append(start) or train(start, *a, **k)
    mixed_and_trained(clients, given, **options)
    start = began[1]  # with weights of 0: the own head, and nothing else of its own
    assert torch.equal(start.parameters[:, ~head], given.parameters[:, ~head])
    close(start.parameters[:, head], own.parameters[:, head], 1e-8)
    assert torch.equal(start.buffers, given.buffers)


@NETS
def test_with_all_weights_1_training_begins_with_the_global_model_and_it_is_fedavg(net):
    # Weights begin at 1, and without passes they stay there. Batches are whole data sets: their order means nothing.
    fed, options = unequal(net=net), {"rounds": 4, "participation": 0.5, "batch": 0}
    ours = coterie.FedALA(first_epochs=0.0, weight_epochs=0.0, adapts="all", **options).fit(fed)
    assert apart(ours.state.model, coterie.FedAvg(**options).fit(fed).state.model) < 1e-12
    learnt = coterie.FedALA(adapts="all", **options).fit(fed)
    assert apart(learnt.state.model, ours.state.model) > 1e-4


@NETS
def test_where_nothing_is_mixed_it_is_fedavg(net):
    fed, options = unequal(net=net), {"rounds": 3, "batch": 0}
    ours = coterie.FedALA(adapts="none", **options).fit(fed)
    assert apart(ours.state.model, coterie.FedAvg(**options).fit(fed).state.model) < 1e-12


def test_a_model_travels_each_way_and_clients_predict_with_their_own():
    fed = unequal()
    result = coterie.FedALA(rounds=2, participation=0.5).fit(fed)
    size = 2 * 3 * fed.new_model().size
    assert result.summary["ledger"]["up"] == result.summary["ledger"]["down"] == {"model": size}
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": fed.run(kept_model).model}, {})
    assert [client["loss"] for client in result.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)


def test_steps_for_weights_are_counted_and_a_first_round_has_none():
    fed = unequal(clients=2)
    (first, *_), (second, *_), (third, *_) = (
        coterie.FedALA(rounds=rounds, steps=3, batch=0, share=0.5, first_epochs=8.0).fit(fed).clients
        for rounds in (1, 2, 3)
    )
    assert [first["steps"], second["steps"], third["steps"]] == [3, 3 + 4 + 3, 3 + 4 + 3 + 1 + 3]
    assert third["rounds_taken_part"] == 3


def test_what_is_served_before_a_client_has_trained_is_the_initial_model():
    fed = unequal()
    coterie.FedALA(rounds=1, participation=0.01).fit(fed)
    models = fed.run(kept_model).model
    assert sum(same(models[client], fed.new_model()) for client in range(6)) == 5


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 1.1}, {"weight_rate": 0.0}, {"first_epochs": -1.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedala", **options)


def test_an_unknown_part_is_refused():
    with pytest.raises(SettingsError, match="has no layer 'hat'"):
        coterie.FedALA(rounds=1, adapts="hat").fit(unequal())
