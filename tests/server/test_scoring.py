"""Scoring: what each client is served, under each view and on each kind of test data."""

import logging

import numpy as np
import pytest
import torch

import coterie
from coterie import Method, Scoring, serving, state
from coterie.core.errors import CoterieError, SettingsError
from coterie.server.fitting import fit
from coterie.server.scoring import score, spread
from coterie.training.local import LocalTraining


def data(samples=150, classes=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 8)).astype(np.float32)
    y = (x @ rng.normal(size=(8, classes))).argmax(1)
    return coterie.Dataset(x, y, labels=tuple(map(str, range(classes)))).held_out(0.3)


def federation(clients=5, **options):
    options = {"alpha": 1.0, "min_size": 8, **options}
    return coterie.simulate(data(), "dirichlet", "mlp", clients=clients, **options)


def scored(fed, served, **options):
    fed.begin(1, keep_last="last" in options.get("views", ()))
    fed.round = 1
    return score(fed, served, Scoring(**options), LocalTraining())


def test_the_spread_over_clients():
    values = np.array([0.1, 0.9, 0.5, np.nan, 0.7])
    figures = spread(values)
    assert figures["mean"] == pytest.approx(0.55)
    assert figures["std"] == pytest.approx(np.std([0.1, 0.9, 0.5, 0.7]))
    assert (figures["min"], figures["max"], figures["worst_tenth"]) == (0.1, 0.9, 0.1)


def test_the_worst_tenth_is_the_mean_of_the_worst_tenth_rounded_up():
    values = np.arange(25) / 25
    assert spread(values)["worst_tenth"] == pytest.approx(np.mean(values[:3]))


def test_nobody_with_a_value_has_no_figures():
    assert spread(np.array([np.nan]))["mean"] is None


def test_one_model_for_all_and_the_same_model_for_each_score_alike():
    fed = federation()
    model = fed.new_model()
    one = scored(fed, serving.one(model, 5))
    each = scored(fed, serving.each(fed.new_models(2), [0] * 5))
    assert np.array_equal(one.values["accuracy"], each.values["accuracy"])
    assert np.allclose(one.more["global_accuracy"], each.more["global_accuracy"])


def test_each_client_is_scored_with_its_own_model():
    fed = federation(precision="float64")
    models = fed.new_models(3)
    index = [2, 0, 1, 1, 0]
    together = scored(fed, serving.each(models, index))
    for client, row in enumerate(index):
        alone = scored(fed, serving.one(models[row], 5))
        assert together.loss[client] == pytest.approx(alone.loss[client], abs=1e-12)
        assert together.more["global_accuracy"][client] == pytest.approx(alone.more["global_accuracy"][client])


def test_best_fit_takes_the_model_with_the_lowest_training_loss():
    fed = federation()
    models = fed.new_models(4)
    losses = fed.run(coterie.clients.programs.evaluate, shared=models, on="train").loss
    scores = scored(fed, serving.best_fit(models))
    assert scores.groups.tolist() == losses.argmin(1).tolist()
    assert "global_accuracy" in scores.more


def test_best_fit_can_go_by_validation_data():
    fed = federation()
    models = fed.new_models(9)
    by = {
        on: fed.run(coterie.clients.programs.evaluate, shared=models, on=on).loss.argmin(1)
        for on in ("train", "validation")
    }
    assert scored(fed, serving.best_fit(models, on="validation")).groups.tolist() == by["validation"].tolist()
    assert by["validation"].tolist() != by["train"].tolist()


def test_a_mixture_of_one_model_is_that_model():
    fed = federation(precision="float64")
    models = fed.new_models(2)
    weights = torch.tensor([[1.0, 0.0]] * 5)
    mixed = scored(fed, serving.mixture(models, weights), global_test=True)
    alone = scored(fed, serving.one(models[0], 5), global_test=True)
    assert np.allclose(mixed.loss, alone.loss, atol=1e-9)
    assert np.allclose(mixed.more["global_accuracy"], alone.more["global_accuracy"])


def test_a_mixture_averages_probabilities():
    fed = federation(clients=2, precision="float64")
    models = fed.new_models(2)
    scores = scored(fed, serving.mixture(models, torch.tensor([[0.25, 0.75], [0.5, 0.5]])))
    site = fed._engine._host
    shard = site.shards[0]
    x, y = site.pool.inputs(torch.from_numpy(shard.test)), site.pool.y[torch.from_numpy(shard.test)]
    shares = site.form.outputs(models, x, shared=True).softmax(-1)
    mixed = 0.25 * shares[0] + 0.75 * shares[1]
    assert scores.loss[0] == pytest.approx(-mixed[torch.arange(len(y)), y].log().mean().item(), abs=1e-9)


def test_before_a_client_keeps_a_model_it_is_served_the_initial_one():
    fed = federation()
    kept = scored(fed, serving.kept("model"))
    initial = scored(fed, serving.one(fed.new_model(), 5))
    assert np.array_equal(kept.values["accuracy"], initial.values["accuracy"])


@coterie.program
def keep_offset(clients, rows):
    """Keep these offsets of what the last layer gets."""
    clients.keep(offset=rows)
    return {"rows": rows}


def test_a_client_adds_the_offset_that_it_keeps_to_what_the_last_layer_gets():
    fed = federation(precision="float64")
    model = fed.new_model()
    rows = torch.randn(2, fed.net.features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fed.begin(1)
    fed.round = 1
    fed.run(keep_offset, [1, 3], each={"rows": rows})
    found = score(fed, serving.one(model, 5).with_offset("offset"), Scoring(), LocalTraining())
    plain = scored(fed, serving.one(model, 5))
    for client, row in ((1, rows[0]), (3, rows[1])):
        expected = scored(fed, serving.one(model.shifted(row), 5)).loss[client]
        assert found.loss[client] == pytest.approx(expected, abs=1e-12)
        assert abs(found.loss[client] - plain.loss[client]) > 1e-3
    assert np.allclose(found.loss[[0, 2, 4]], plain.loss[[0, 2, 4]], atol=1e-12)


def test_a_part_of_a_kept_model_can_be_the_servers():
    fed = federation(precision="float64")
    other = fed.new_models(2)[1]
    mixed = fed.new_model().patched("head", other.packed("head"))
    found = scored(fed, serving.kept("model", "head", other.packed("head")))
    expected = scored(fed, serving.one(mixed, 5))
    assert np.allclose(found.loss, expected.loss, atol=1e-12)
    assert not np.allclose(found.loss, scored(fed, serving.kept("model")).loss)


def test_kept_models_are_scored_globally_only_if_asked():
    fed = federation()
    assert "global_accuracy" not in scored(fed, serving.kept("model")).more
    asked = scored(fed, serving.kept("model"), global_test=True).more["global_accuracy"]
    initial = scored(fed, serving.one(fed.new_model(), 5)).more["global_accuracy"]
    assert np.allclose(asked, initial)


def test_the_adapted_view_trains_a_copy_that_nobody_keeps():
    fed = federation()
    plain = coterie.FedAvg(rounds=3).fit(fed)
    adapted = coterie.FedAvg(rounds=3).fit(fed, scoring=Scoring(views=("adapted",), adapt_epochs=5))
    assert torch.equal(plain.state.model.parameters, adapted.state.model.parameters)
    assert [c["accuracy"] for c in plain.clients] == [c["accuracy"] for c in adapted.clients]
    assert [c["steps"] for c in plain.clients] == [c["steps"] for c in adapted.clients]
    assert [c["accuracy_adapted"] for c in adapted.clients] != [c["accuracy"] for c in adapted.clients]


def test_serving_after_local_training_is_the_adapted_model():
    fed = federation()
    local = LocalTraining(epochs=2)
    fed.begin(1)
    fed.round = 1
    after = score(fed, serving.one(fed.new_model(), 5).after(local), Scoring(), local)
    view = score(fed, serving.one(fed.new_model(), 5), Scoring(views=("adapted",), adapt_epochs=2), local)
    assert np.array_equal(after.values["accuracy"], view.more["accuracy_adapted"])


def test_the_last_view_is_the_model_that_the_client_trained_last():
    fed = federation()
    views = Scoring(views=("last",))
    result = coterie.Local(rounds=2, participation=0.5).fit(fed, scoring=views)
    # A client alone serves itself what it trained last.
    assert [c["accuracy_last"] for c in result.clients] == [c["accuracy"] for c in result.clients]
    shared = coterie.FedAvg(rounds=2).fit(fed, scoring=views)
    assert [c["accuracy_last"] for c in shared.clients] != [c["accuracy"] for c in shared.clients]


def test_a_mixture_is_scored_only_as_it_is_served(caplog):
    fed = federation()
    views = Scoring(views=("served", "adapted", "last"))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = coterie.FedEM(rounds=2).fit(fed, scoring=views)
    assert caplog.text.count("fedem: clients mix several models: there is no view adapted, last") == 1
    for record in [*result.rounds, *result.clients]:
        assert not [name for name in record if name.startswith(("accuracy_adapted", "accuracy_last"))]
    plain = coterie.FedEM(rounds=2).fit(fed)
    assert [c["accuracy"] for c in result.clients] == [c["accuracy"] for c in plain.clients]


@pytest.mark.parametrize(
    ("classes", "top", "message"),
    [(1, 1, "only one class"), (1, 5, "only one class"), (5, 5, "top=5: with 5 classes")],
)
def test_what_every_prediction_would_get_right_is_not_scored(classes, top, message):
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % classes
    fed = coterie.simulate(coterie.Dataset(x, y), "iid", "mlp", clients=2)
    with pytest.raises(SettingsError, match=message):
        coterie.FedAvg(rounds=1).fit(fed, scoring=Scoring(top=top))


def test_top_five_counts_labels_among_the_five_likeliest():
    fed = federation()
    one = coterie.FedAvg(rounds=1).fit(fed)
    five = coterie.FedAvg(rounds=1).fit(fed, scoring=Scoring(top=5))
    assert five.summary["accuracy_mean"] > one.summary["accuracy_mean"]
    assert five.summary["global_accuracy_mean"] >= 5 / 6 - 0.2
    assert one.summary["loss_mean"] == five.summary["loss_mean"]


@pytest.mark.parametrize("kind", ["own", "labels", "proportions", "global"])
def test_every_kind_of_test_data_can_be_scored(kind):
    fed = federation(test=kind)
    result = coterie.FedAvg(rounds=1).fit(fed)
    assert 0 <= result.summary["accuracy_mean"] <= 1
    if kind == "global":
        assert result.summary["accuracy_mean"] == pytest.approx(result.summary["global_accuracy_mean"])


def test_a_client_without_test_samples_is_left_out_of_the_figures():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(31, 4)), np.arange(31) % 2
    split = coterie.Split((np.arange(15), np.arange(15, 30), np.array([30])))
    fed = coterie.simulate(coterie.Dataset(x, y), split, "mlp")
    result = coterie.FedAvg(rounds=1).fit(fed)
    assert result.clients[2]["accuracy"] is None
    shards = fed._engine._host.shards[:3]
    assert [client["test_samples"] for client in result.clients] == [len(shard.test) for shard in shards]
    assert result.clients[2]["test_samples"] == 0
    known = [client["accuracy"] for client in result.clients[:2]]
    assert result.summary["accuracy_mean"] == pytest.approx(np.mean(known))


def test_a_method_that_reads_test_data_in_a_round_is_stopped():
    @state
    class Empty:
        pass

    class Cheat(Method):
        name = "cheat"

        def begin(self, fed):
            return Empty()

        def round(self, fed, state):
            score(fed, serving.kept("model"), Scoring(), self.local)
            return state

        def serve(self, fed, state):
            return serving.kept("model")

    with pytest.raises(CoterieError, match="test data is for scoring only"):
        fit(Cheat(rounds=1), federation())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"views": ("all",)}, "unknown views 'all': known are adapted, last, served"),
        ({"adapt_epochs": 0}, "above 0"),
    ],
)
def test_bad_scoring_is_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        Scoring(**options)


def test_serving_a_model_that_is_not_there_is_refused():
    fed = federation()
    with pytest.raises(CoterieError, match="places up to 2"):
        serving.each(fed.new_models(2), [0, 1, 2])
