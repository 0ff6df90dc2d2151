"""Tasks: how targets are taken, what is lowered, what is predicted."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import coterie
from coterie.core.errors import DataError, SettingsError
from coterie.data import Dataset
from coterie.data.population import Pool, populate
from coterie.data.split import Split
from coterie.data.tasks import TASKS, task_named
from coterie.runs.settings import Settings


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["no", "yes", "no"], "binary"),
        ([True, False, True], "binary"),
        ([0, 1, 2], "classification"),
        ([3, 5, 9], "classification"),
        ([0.1, 0.2, 0.3], "regression"),
        ([0.0, 1.0, 2.0], "classification"),
        ([[0, 1], [1, 1], [0, 0]], "multi-label"),
        ([[0, 2], [1, 1], [0, 0]], "regression"),
        ([[0.5, 2], [1, 1], [0, 0]], "regression"),
    ],
)
def test_the_task_is_what_targets_look_like(y, task):
    assert Dataset(np.zeros((3, 2)), y).task == task


def test_many_whole_numbers_are_amounts_unless_they_count_classes():
    assert Dataset(np.zeros((60, 2)), np.arange(60) * 7 + 25).task == "regression"
    assert Dataset(np.zeros((60, 2)), np.arange(60)).task == "classification"
    assert Dataset(np.zeros((60, 2)), np.arange(60) % 20 * 7).task == "classification"


@pytest.mark.parametrize(
    ("y", "level"),
    [
        ([0, 1, 2], "INFO"),
        ([0.5, 1.5, 3.25], "INFO"),
        ([3, 50, 7], "WARNING"),
    ],
)
def test_numbers_that_could_be_either_are_told_of(y, level, caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        Dataset(np.zeros((3, 2)), y, name="mine")
    assert [record.levelname for record in caplog.records] == [level]
    assert "mine: targets" in caplog.text
    assert "or say task=" in caplog.text


def test_nothing_is_told_where_the_task_is(caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        Dataset(np.zeros((3, 2)), [3, 50, 7], task="regression")
        Dataset(np.zeros((3, 2)), ["a", "b", "a"])
    assert not caplog.records


def test_a_task_can_be_told():
    data = Dataset(np.zeros((3, 2)), [3, 5, 9], task="regression")
    assert data.y.tolist() == [[3.0], [5.0], [9.0]]
    assert data.labels == ("target",)
    assert Dataset(np.zeros((3, 2)), [[3, 5], [9, 1], [2, 2]], labels=("up", "down")).labels == ("up", "down")


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        ([0, 1, 2], {"task": "binary"}, "task=binary, but there are 3 classes"),
        (["a", "b", "a"], {"task": "regression"}, "targets such as a are no numbers"),
        ([[0, 2], [1, 1], [0, 0]], {"task": "multi-label"}, "takes 0 and 1 for each label, not 2"),
        ([1.5, 2.5, 3.5], {"task": "regression", "labels": ("a", "b")}, "2 names for 1 targets"),
    ],
)
def test_targets_that_do_not_fit_are_refused(y, options, message):
    with pytest.raises(DataError, match=message):
        Dataset(np.zeros((3, 2)), y, **options)


def test_an_unknown_task_is_an_error_that_helps():
    with pytest.raises(SettingsError, match=r"regresion.*regression"):
        Dataset(np.zeros((3, 2)), [1, 2, 3], task="regresion")


def test_a_test_part_has_the_task_of_the_training_part():
    test = Dataset(np.zeros((2, 2)), [7, 9])
    data = Dataset(np.zeros((3, 2)), [3.5, 5.0, 9.0], test=test)
    assert (data.task, data.test.task) == ("regression", "regression")
    assert data.test.y.tolist() == [[7.0], [9.0]]


def test_losses_are_those_of_torch():
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64)
    classes = torch.randint(0, 3, (2, 5), generator=rng)
    several = torch.randint(0, 2, (2, 5, 3), generator=rng).float()
    numbers = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64)
    for model in range(2):
        torch.testing.assert_close(
            task_named("classification").losses(outputs, classes)[model],
            F.cross_entropy(outputs[model], classes[model], reduction="none"),
        )
        torch.testing.assert_close(
            task_named("multi-label").losses(outputs, several)[model],
            F.binary_cross_entropy_with_logits(outputs[model], several[model].double(), reduction="none").mean(1),
        )
        torch.testing.assert_close(
            task_named("regression").losses(outputs, numbers)[model],
            F.mse_loss(outputs[model], numbers[model], reduction="none").mean(1),
        )


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_mixture_of_one_model_is_that_model(task):
    outputs = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.tensor([0.0, 1.0, 0.0])[:, None].expand(3, 4)
    alone = task.predicted(task.mixed(outputs, weights))
    torch.testing.assert_close(alone, task.predicted(outputs[1]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["classification", "multi-label", "regression"])
def test_a_mixture_predicts_the_mean_of_predictions(name):
    task = task_named(name)
    outputs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mixed = task.predicted(task.mixed(outputs, torch.tensor([0.25, 0.75])[:, None].expand(2, 4)))
    torch.testing.assert_close(mixed, 0.25 * task.predicted(outputs[0]) + 0.75 * task.predicted(outputs[1]))


def amounts(count=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 3))
    return Dataset(x, 1000 + 50 * x @ [1.0, 2.0, -1.0] + rng.normal(size=count))


def test_amounts_are_learned_with_mean_0_and_deviation_1_of_training_samples():
    data = amounts()
    population = populate(data, Split((np.arange(20), np.arange(20, 40))))
    trained = np.concatenate([shard.train for shard in population.shards])
    assert population.target_shift == pytest.approx(data.y[trained].mean())
    pool = Pool.of(population, "cpu", torch.float64)
    assert pool.y[torch.from_numpy(trained)].mean().item() == pytest.approx(0, abs=1e-6)
    assert pool.y[torch.from_numpy(trained)].std(correction=0).item() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("split", ["dirichlet", "label-skew", "cafa", "slfed-dist1", "slfed-dist3"])
def test_splits_by_class_refuse_amounts(split):
    with pytest.raises(DataError, match="task=regression has no classes by which this split could divide; use iid"):
        coterie.simulate(amounts(), split=split, clients=2, net="mlp")


@pytest.mark.parametrize("split", ["iid", "quantity"])
def test_other_splits_divide_amounts(split):
    assert len(coterie.simulate(amounts(), split=split, clients=2, net="mlp").names) == 2


def test_a_share_of_amounts_can_be_held_out():
    data = amounts().held_out(0.25)
    assert (len(data), len(data.test)) == (30, 10)


@pytest.mark.parametrize("test", ["labels", "proportions"])
def test_test_data_by_label_needs_classes(test):
    with pytest.raises(DataError, match=f"test={test}: task=regression has no classes"):
        coterie.simulate(amounts().held_out(0.25), split="iid", clients=2, test=test, net="mlp")


@pytest.mark.parametrize("form", ["loop", "vectorised"])
def test_forms_train_amounts_alike(form):
    fed = coterie.simulate(amounts(), split="quantity", clients=4, net="mlp", precision="float64", engine=form)
    result = coterie.FedAvg(rounds=15, batch=4).fit(fed)
    losses = [record["loss_mean"] for record in result.rounds]
    assert losses[-1] < 0.2 < losses[0]
    assert result.summary["loss_mean"] == pytest.approx(0.0, abs=0.2)


def test_the_split_of_those_who_name_none_suits_the_task():
    amounts = coterie.Dataset(np.zeros((40, 2)), np.arange(40) / 3)
    assert coterie.simulate(amounts, clients=3, net="logistic").world["split"]["name"] == "iid"
    assert coterie.simulate("diabetes", clients=3).world["split"]["name"] == "iid"
    assert coterie.simulate("wine", clients=3).world["split"]["name"] == "dirichlet"
    for data, split in (("diabetes", "iid"), ("digits", "dirichlet")):
        assert Settings.of({"data": data}, "fedavg")[0].world.split.name == split
    told = {"data": "mine.csv", "target": "stay", "task": "regression"}
    assert Settings.of(told, "fedavg")[0].world.split.name == "iid"
    assert Settings.of({**told, "client": "hospital"}, "fedavg")[0].world.split.name == "natural"
    assert Settings.of({**told, "split": "quantity"}, "fedavg")[0].world.split.name == "quantity"
