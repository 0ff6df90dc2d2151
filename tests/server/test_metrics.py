"""Metrics: worked numbers, what they are for, and how they reach a run's records."""

from itertools import pairwise

import numpy as np
import pytest

import coterie
from coterie import Scoring
from coterie.core.errors import SettingsError
from coterie.server.metrics import facts_of, metric_named, metrics

CLASSES = np.array([0, 0, 1, 2])
SHARES = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.1, 0.5, 0.4]])
"""Right, wrong, right, wrong."""

ANSWERS = np.array([0, 0, 1, 1, 1])
SURE = np.array([0.1, 0.6, 0.55, 0.3, 0.9])
TWO = np.stack([1 - SURE, SURE], axis=1)
"""The second class is predicted for samples 1, 2 and 4, of which 2 and 4 are right."""

AMOUNTS = np.array([[1.0], [2.0], [6.0]])
GUESSES = np.array([[1.0], [4.0], [5.0]])


@pytest.mark.parametrize(
    ("name", "y", "predicted", "expected"),
    [
        ("accuracy", CLASSES, SHARES, 2 / 4),
        # Recall 1/2 of class 0, 1 of class 1, 0 of class 2.
        ("balanced_accuracy", CLASSES, SHARES, 1 / 2),
        # Precision 1 and recall 1/2; precision 1/3 and recall 1; nothing.
        ("f1", CLASSES, SHARES, (2 / 3 + 1 / 2 + 0) / 3),
        # Precision 2/3, recall 2/3.
        ("f1", ANSWERS, TWO, 2 / 3),
        # Of the pairs (0.1, 0.6) x (0.55, 0.3, 0.9), 4 of 6 are in order.
        ("auc", ANSWERS, TWO, 4 / 6),
        # Confidence 0.8 right, 0.6 wrong, 0.7 right, 0.5 wrong, each in a bin of its own.
        ("calibration_error", CLASSES, SHARES, (0.2 + 0.6 + 0.3 + 0.5) / 4),
        ("log_loss", CLASSES, SHARES, -np.log([0.8, 0.3, 0.7, 0.4]).mean()),
        ("mae", AMOUNTS, GUESSES, (0 + 2 + 1) / 3),
        ("rmse", AMOUNTS, GUESSES, np.sqrt((0 + 4 + 1) / 3)),
        # Mean 3, sum of squares 4 + 1 + 9.
        ("r2", AMOUNTS, GUESSES, 1 - 5 / 14),
        ("accuracy", np.array([[1, 0], [1, 1]]), np.array([[0.9, 0.2], [0.7, 0.4]]), 1 / 2),
        # F1 of the first label is 1; of the second, which is missed once and never found, 0.
        ("f1", np.array([[1, 0], [1, 1]]), np.array([[0.9, 0.2], [0.7, 0.4]]), 1 / 2),
    ],
)
def test_worked_numbers(name, y, predicted, expected):
    assert metric_named(name)(y, predicted) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(metrics))
def test_no_samples_and_predictions_that_are_no_numbers_have_no_value(name):
    judge = metric_named(name)
    y, predicted = (AMOUNTS, GUESSES) if judge.tasks == ("regression",) else (CLASSES, SHARES)
    assert np.isfinite(judge(y, predicted))
    assert np.isnan(judge(y[:0], predicted[:0]))
    assert np.isnan(judge(y, predicted * np.inf))


def test_a_single_class_has_no_auc_and_a_missing_class_no_part_in_it():
    assert np.isnan(metric_named("auc")(np.zeros(3, int), TWO[:3]))
    # Class 2 never occurs: the mean is over the classes 0 and 1.
    expected = metric_named("auc")(CLASSES[:3] == 1, np.stack([1 - SHARES[:3, 1], SHARES[:3, 1]], axis=1))
    of_class_0 = 1.0  # 0.8 and 0.3 are both above 0.2
    assert metric_named("auc")(CLASSES[:3], SHARES[:3]) == pytest.approx((of_class_0 + expected) / 2)


@pytest.mark.parametrize("name", ["accuracy", "log_loss", "mae", "rmse"])
def test_the_value_of_several_clients_together_follows_from_theirs(name):
    judge, rng = metric_named(name), np.random.default_rng(3)
    if judge.tasks == ("regression",):
        y, predicted = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    else:
        y, predicted = rng.integers(0, 4, 30), rng.dirichlet(np.ones(4), 30)
    cuts = [0, 5, 5, 30]
    parts = [(y[a:b], predicted[a:b]) for a, b in pairwise(cuts)]
    values, samples = np.array([judge(*part) for part in parts]), np.array([len(part[0]) for part in parts])
    assert judge.combined(values, samples) == pytest.approx(judge(y, predicted))


def test_what_does_not_follow_is_not_made_up():
    assert metric_named("auc").combined(np.array([0.5, 0.7]), np.array([3, 4])) is None


# In a run


def binary_data(samples=240):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=samples) > 0.8).astype(int)
    return coterie.Dataset(x, y, labels=("no", "yes"), task="binary").held_out(0.3)


def amounts(samples=240):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    return coterie.Dataset(x, (1000 + 300 * x[:, 0]).astype(np.float32)).held_out(0.3)


def run(data, *names, rounds=3, **options):
    fed = coterie.simulate(data, "iid", "mlp", clients=4, **options)
    scoring = Scoring(metrics=names)
    return coterie.FedAvg(rounds=rounds).fit(fed, scoring=scoring)


def test_several_at_once_reach_every_record():
    result = run(binary_data(), "f1", "auc", "log_loss")
    names = ["f1", "auc", "log_loss", "accuracy"]
    assert list(facts_of(result.summary)) == names
    for name in names:
        values = [client[name] for client in result.clients]
        assert result.summary[f"{name}_mean"] == pytest.approx(np.mean(values))
        assert result.rounds[0][f"{name}_min"] is not None
        assert result.summary[f"pooled_{name}"] is not None
    assert all(client["test_samples"] > 0 for client in result.clients)
    # The mean of what a metric is over all samples is what it is over all samples.
    weights = [client["test_samples"] for client in result.clients]
    assert result.summary["pooled_accuracy"] == pytest.approx(
        np.average([client["accuracy"] for client in result.clients], weights=weights)
    )
    assert result.summary["log_loss_mean"] == pytest.approx(result.summary["loss_mean"], rel=1e-4)


def test_the_first_metric_chooses_the_best_round_and_lower_may_be_better():
    result = run(binary_data(), "log_loss", rounds=6)
    validation = [record["validation_log_loss"] for record in result.rounds]
    assert result.summary["best_round"]["round"] == 1 + int(np.argmin(validation))
    assert result.summary["log_loss_worst_tenth"] == result.summary["log_loss_max"]


def test_numbers_are_judged_in_their_own_units():
    result = run(amounts(), "r2", "mae")
    assert list(facts_of(result.summary)) == ["r2", "mae", "rmse"]
    assert 0 < result.summary["r2_mean"] <= 1
    # The data's deviation is 300: errors in standardised units would be below 1.
    assert 5 < result.summary["mae_mean"] < result.summary["rmse_mean"] < 300
    assert result.summary["pooled_r2"] == pytest.approx(
        1 - (result.summary["pooled_rmse"] / _deviation(amounts())) ** 2, abs=0.02
    )
    assert not [key for key in result.summary if key.startswith("accuracy")]


def _deviation(data):
    y = np.concatenate([data.y, data.test.y])
    return float(y.std())


def test_a_mixture_and_the_model_it_is_made_of_are_judged_alike():
    plain = run(binary_data(), "auc")
    fed = coterie.simulate(binary_data(), "iid", "mlp", clients=4)
    mixture = coterie.FedEM(rounds=3, components=1).fit(fed, scoring=Scoring(metrics=("auc",)))
    assert mixture.summary["auc_mean"] == pytest.approx(plain.summary["auc_mean"], abs=0.2)


def test_workers_and_forms_judge_alike():
    ours = run(amounts(), "r2", workers=2, engine="loop").clients
    others = run(amounts(), "r2", workers=0, engine="vectorised").clients
    assert [client["r2"] for client in ours] == pytest.approx([client["r2"] for client in others], abs=1e-4)


def test_accuracy_by_predictions_is_accuracy_by_ranks():
    fed = coterie.simulate(clients=3, net="mlp")
    result = coterie.FedAvg(rounds=1).fit(fed, scoring=Scoring(metrics=("balanced_accuracy", "accuracy")))
    own = metric_named("accuracy")

    @coterie.metric("accuracy_again", higher=True)
    def again(y, predicted):
        return own(y, predicted)

    try:
        other = coterie.FedAvg(rounds=1).fit(fed, scoring=Scoring(metrics=("accuracy_again",)))
    finally:
        del metrics["accuracy_again"]
    for one, two in zip(result.clients, other.clients, strict=True):
        assert one["accuracy"] == two["accuracy"] == pytest.approx(two["accuracy_again"])


def test_metrics_that_do_not_fit_are_refused_before_anything_runs():
    with pytest.raises(SettingsError, match="metric"):
        Scoring(metrics=("acuracy",))
    with pytest.raises(SettingsError, match="metrics=rmse: is for task=regression; this is task=binary"):
        run(binary_data(), "rmse")
    with pytest.raises(SettingsError, match="this is task=regression"):
        run(amounts(), "f1")
    with pytest.raises(SettingsError, match="top=5"):
        coterie.FedAvg(rounds=1).fit(coterie.simulate(amounts(), "iid", "mlp", clients=2), scoring=Scoring(top=5))


@pytest.mark.parametrize("name", ["Mean error", "loss", "samples", ""])
def test_names_that_records_could_not_tell_apart_are_refused(name):
    with pytest.raises(SettingsError, match="metric"):
        coterie.metric(name, higher=True)


def test_runs_of_before_there_were_metrics_have_accuracy():
    assert list(facts_of({"accuracy_mean": 0.5})) == ["accuracy"]
