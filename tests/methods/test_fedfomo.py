"""FedFomo: weights by hand, who is offered what, and what it becomes if nobody is offered anything."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedfomo import mix_and_train
from coterie.moves import mixing, sampling
from support.federations import at_round, opposed
from support.worked_examples import course, kept_model, of_sizes, same, unequal


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_weights_by_hand():
    # (1 - 0.5) / 2, (1 - 3) / 4; the client's own place and a loss that is no number count nothing.
    found = mixing.first_order(numbers(1.0), numbers([0.5, 3.0, 0.2, np.nan]), numbers([2.0, 4.0, 0.0, 1.0]))
    assert found.tolist() == [[0.25, -0.5, 0, 0]]


def test_without_exploring_the_best_are_taken_and_with_it_anybody():
    values = [0.1, 0.9, 0.5, 0.7]
    assert sampling.epsilon_greedy(values, 3, 0.0, np.random.default_rng(0)).tolist() == [1, 3, 2]
    drawn = [sampling.epsilon_greedy(values, 2, 1.0, np.random.default_rng(seed)) for seed in range(600)]
    assert np.bincount(np.concatenate(drawn)) == pytest.approx([300] * 4, abs=60)
    assert all(len(set(places)) == 2 for places in map(tuple, drawn))
    half = [sampling.epsilon_greedy(values, 1, 0.5, np.random.default_rng(seed))[0] for seed in range(600)]
    assert np.mean(np.array(half) == 1) == pytest.approx(0.5 + 0.5 / 4, abs=0.06)


def test_equals_are_drawn():
    drawn = [sampling.epsilon_greedy([0, 0, 0], 1, 0.0, np.random.default_rng(seed))[0] for seed in range(300)]
    assert np.bincount(drawn) == pytest.approx([100] * 3, abs=40)


def validation_loss(site, client, model):
    """By PyTorch's own layers."""
    index = torch.from_numpy(site.shards[client].validation)
    outputs = model.module()(site.pool.inputs(index))
    return torch.nn.functional.cross_entropy(outputs, site.pool.y[index]).item()


def test_a_client_mixes_by_validation_loss_and_distance_and_goes_on_from_there():
    fed = at_round(unequal(validation=0.3))
    local = coterie.LocalTraining(steps=1, batch=0, rate=1e-9)  # so little that what it began with is to be seen
    others = fed.new_models(6 * 3, first=1)
    got = type(others)(fed.net, others.parameters.reshape(6, 3, -1), others.buffers.reshape(6, 3, -1))
    replies = fed.run(mix_and_train, each={"models": got}, local=local)
    site, start, mixed = fed._engine._host, fed.new_model(), 0
    for client in range(6):
        before = validation_loss(site, client, start)
        gains = [
            (before - validation_loss(site, client, model)) / float((model - start).norm()) for model in got[client]
        ]
        np.testing.assert_allclose(replies.gains[client], gains, atol=1e-12)
        weights = np.maximum(gains, 0)
        expected = start.parameters
        if weights.any():
            mixed += 1
            expected = torch.from_numpy(weights / weights.sum()) @ got[client].parameters
        torch.testing.assert_close(replies.model[client].parameters, expected, atol=1e-7, rtol=0)
    assert mixed > 0


def test_a_round_that_made_the_model_worse_is_taken_back():
    fed = unequal()
    coterie.FedFomo(rounds=1, downloads=0, rate=30.0).fit(fed)
    start, trained = (fed.run(kept_model, name=name).model for name in ("base", "model"))
    losses = [[validation_loss(fed._engine._host, n, m[n]) for m in (start, trained)] for n in range(6)]
    worse = np.array([after > before for before, after in losses])
    assert worse.any()
    coterie.FedFomo(rounds=2, downloads=0, rate=30.0).fit(fed)
    again = fed.run(kept_model, name="base").model
    for client in range(6):
        assert same(again[client], (start if worse[client] else trained)[client])


def test_without_downloads_it_is_training_alone_as_long_as_that_helps():
    options = {"rounds": 4, "batch": 0, "rate": 0.05, "participation": 0.5}
    fed = of_sizes([30] * 4)  # without validation data, by the training data, which full steps never make worse
    ours = coterie.FedFomo(downloads=0, **options).fit(fed)
    models = fed.run(kept_model).model
    alone = coterie.Local(**options).fit(fed)
    assert same(models, fed.run(kept_model).model)
    assert [c["loss"] for c in ours.clients] == [c["loss"] for c in alone.clients]
    assert "down" not in ours.summary["ledger"]


def test_affinity_is_the_sum_of_what_clients_have_said():
    fed, said = unequal(), []
    run = fed.run

    def listening(program, clients=None, **inputs):
        replies = run(program, clients, **inputs)
        if "gains" in replies.outputs:
            said.append((inputs["each"]["models"], replies))
        return replies

    fed.run = listening
    states = course(coterie.FedFomo(rounds=4, downloads=2, explore=0.5), fed)
    assert len(said) == 3  # in the first round nobody has a model to offer
    expected = np.zeros((6, 6))
    for (offered, replies), state in zip(said, states[1:-1], strict=True):
        for row, client in enumerate(replies.clients):
            for place in range(2):
                (whose,) = [n for n in range(6) if same(state.models[n], offered[row, place])]
                assert whose != client
                expected[client, whose] += replies.gains[row, place]
    np.testing.assert_allclose(states[-1].affinity, expected, atol=1e-12)


def test_clients_come_to_know_who_is_alike():
    fed = opposed()
    result = coterie.FedFomo(rounds=12, rate=1.0, downloads=3).fit(fed)
    affinity = result.state.affinity
    within = torch.cat([affinity[::2, ::2].flatten(), affinity[1::2, 1::2].flatten()]).mean()
    assert within > affinity[::2, 1::2].mean() + 0.05
    assert affinity[1::2, ::2].mean() < 0


def test_fewer_models_are_sent_where_there_are_fewer():
    fed = of_sizes([20] * 3)
    ledger = coterie.FedFomo(rounds=2, downloads=7).fit(fed).summary["ledger"]
    size = fed.new_model().size
    assert ledger["down"] == {"model": 3 * 2 * size}
    assert ledger["up"] == {"model": 2 * 3 * size, "gains": 3 * 2 * 8}


@pytest.mark.parametrize("options", [{"downloads": -1}, {"explore": 1.5}, {"explore_decay": -0.1}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedfomo", **options)
