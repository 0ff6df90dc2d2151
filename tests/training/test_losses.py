"""Own losses: one number for each sample, whose mean over real samples is ours to take."""

import re
from math import log

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import coterie
from coterie.core.errors import SettingsError
from coterie.data.tasks import TASKS
from coterie.training.local import LocalTraining
from coterie.training.losses import Loss, losses, task_with
from support.worlds import SIZES, close, linear, world

CPU = torch.device("cpu")


def cross_entropy(outputs, targets):
    """The loss that classification has anyway, written as it stands in the task."""
    return -outputs.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def brier(outputs, targets):
    """The squared distance of the probabilities from the label's."""
    return (outputs.softmax(dim=-1) - F.one_hot(targets, outputs.shape[-1])).square().sum(dim=-1)


def cubed(outputs, targets):
    """A loss for several numbers."""
    return (outputs - targets).abs().pow(3).mean(dim=-1)


@pytest.fixture
def registered():
    """Losses that a test registers are gone afterwards."""
    kept = dict(losses)
    yield
    losses.clear()
    losses.update(kept)


def federation(loss=None, **options):
    """Clients with 5 to 31 samples, in float64: batches of 8 are padded at all of them."""
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(72, 5)).astype(np.float32), np.arange(72) % 3)
    given = [range(5), range(5, 24), range(24, 41), range(41, 72)]
    options = {"precision": "float64", **options}
    return coterie.simulate(data, [list(own) for own in given], "mlp", loss=loss, **options)


def of(here, loss):
    """The world with another loss."""
    here.net.task = task_with(here.net.task, loss, here.net.classes, CPU)
    return here


@pytest.mark.parametrize("options", [{"engine": "loop"}, {"engine": "vectorised"}, {"strict": True}, {"workers": 2}])
def test_the_cross_entropy_as_an_own_loss_is_fedavg_to_the_last_bit(options):
    found = []
    for loss in (None, cross_entropy):
        fed = federation(loss, **options)
        found.append(coterie.FedAvg(rounds=3, batch=8).fit(fed))
        fed.close()
    usual, own = found
    assert torch.equal(own.state.model.parameters, usual.state.model.parameters)
    assert [r["loss_mean"] for r in own.rounds] == [r["loss_mean"] for r in usual.rounds]
    assert own.clients == usual.clients


@pytest.mark.parametrize("form", ["loop", "vectorised", "branch"])
@pytest.mark.parametrize("batch", [0, 5])
def test_a_step_lowers_the_mean_over_real_samples_however_batches_are_padded(form, batch):
    here = of(world(linear), brier)
    start, local = here.models(), LocalTraining(steps=1, batch=batch, rate=0.5)
    trained = here.clients(form).train(start, local)
    assert set(SIZES) == {7, 3, 12, 1}  # batches of 5 are full at two clients, and have 3 and 1 rows at the others
    for row, (shard, size) in enumerate(zip(here.shards, SIZES, strict=True)):
        if batch and size > batch:
            continue  # which 5 samples are drawn is not for this test to know
        leaf = start.parameters[row].clone().requires_grad_()
        index = torch.from_numpy(shard.train)
        outputs = F.linear(here.pool.inputs(index), *(here.net.parameters.views(leaf)[n] for n in ("weight", "bias")))
        value = brier(outputs, here.pool.y[index]).mean()
        (gradient,) = torch.autograd.grad(value, leaf)
        close(trained.models.parameters[row], start.parameters[row] - 0.5 * gradient)
        close(trained.loss[row], value.detach())


def test_forms_agree_on_an_own_loss_over_whole_epochs():
    here = of(world(linear), brier)
    runs = [
        here.clients(form).train(here.models(), LocalTraining(epochs=3, batch=4, rate=0.2))
        for form in ("loop", "vectorised")
    ]
    close(runs[0].models.parameters, runs[1].models.parameters)
    close(runs[0].loss, runs[1].loss)


def test_what_is_evaluated_as_loss_is_the_own_one():
    fed = federation(brier)
    result = coterie.FedAvg(rounds=1, batch=8).fit(fed)
    (pool, shards), model = (fed._engine._host.pool, fed._engine._host.shards), result.state.model.expand(1)
    for client, shard in zip(result.clients, shards, strict=False):
        index = torch.from_numpy(shard.test)
        outputs = fed._engine.form.outputs(model, pool.inputs(index), shared=True)
        assert client["loss"] == pytest.approx(float(brier(outputs[0], pool.y[index]).mean()))


def test_several_numbers_take_own_losses():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    data = coterie.Dataset(x, x @ rng.normal(size=(4, 2)), task="regression")
    fed = coterie.simulate(data, "iid", clients=3, net="mlp", loss=cubed)
    result = coterie.FedAvg(rounds=3).fit(fed)
    assert result.rounds[-1]["loss_mean"] < result.rounds[0]["loss_mean"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, y: F.cross_entropy(o, y), r"gives one number .*\(3,\): leave out \.mean\(\), and say reduction"),
        (lambda o, y: (o.softmax(-1) - F.one_hot(y, 4)) ** 2, r"gives \(3, 4\).*mean over all axes but the first"),
        (lambda o, y: cross_entropy(o, y)[:2], r"gives \(2,\) for outputs \(3, 4\) and targets \(3,\)"),
        (lambda o, y: cross_entropy(o, y) / cross_entropy(o, y).mean(), "depends on the other samples.*padding"),
        (lambda o, y: cross_entropy(o, y).tolist(), "gives list .*as a tensor"),
        (lambda o, y: o.argmax(-1) == y, "has no gradient"),
        (lambda o, y: cross_entropy(o, y).detach(), "has no gradient"),
        (lambda o, y: cross_entropy(o, y).squeeze() * o.max().item(), r"fails .*without \.item\(\)"),
        (lambda o, y: cross_entropy(o, y) * torch.rand(len(o)), "random numbers"),
        (lambda o, y: o @ y, r"fails for outputs \(3, 4\) and targets \(3,\)"),
        ("nobody", "unknown loss 'nobody': known are .*package.module:function"),
        ("focl", "did you mean focal"),
        ("huber", "loss=huber: is for task=regression; this is task=classification"),
        (3, "loss=3: expected a name, or a function"),
    ],
)
def test_a_loss_that_would_be_wrong_is_refused_before_training(loss, message):
    data = coterie.Dataset(np.zeros((40, 3), np.float32), np.arange(40) % 4)
    with pytest.raises(SettingsError, match=message) as error:
        coterie.simulate(data, "iid", clients=2, net="mlp", loss=loss)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("registered")
def test_a_loss_is_registered_for_its_tasks():
    coterie.loss("brier", tasks=["classification"])(brier)
    assert losses["brier"] == Loss("brier", brier, ("classification",))
    assert federation("brier").net.task.own_loss == federation(brier).net.task.own_loss == "brier"
    with pytest.raises(SettingsError, match="takes a name"):
        coterie.loss(brier)
    with pytest.raises(SettingsError, match="unknown task 'clasification'"):
        coterie.loss("brier", tasks=["clasification"])


@pytest.mark.parametrize("name", sorted(losses))
def test_every_loss_of_ours_takes_all_its_tasks(name):
    assert losses[name].about
    for task in losses[name].tasks:
        made = task_with(TASKS[task], name, 2, CPU)
        assert made.own_loss == name
        assert (made.name, made.score, made.one_class) == (task, TASKS[task].score, TASKS[task].one_class)


def test_losses_of_ours_are_what_their_papers_say():
    even, label = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([2])
    classes = {name: float(losses[name].function(even, label)) for name in ("focal", "label-smoothing")}
    # All classes have p = 1/4: the focal loss is (3/4)^2 log 4, and smoothing moves probability between equals.
    assert classes["focal"] == pytest.approx(9 / 16 * log(4))
    assert classes["label-smoothing"] == pytest.approx(log(4))
    outputs = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    smoothed = F.cross_entropy(outputs, torch.tensor([1]), label_smoothing=0.1)
    assert float(losses["label-smoothing"].function(outputs, torch.tensor([1]))) == pytest.approx(float(smoothed))
    numbers, targets = torch.tensor([[3.0, 0.5]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    # Errors 3 and 1/2: 3 - 1/2 beyond 1, and 1/8 within it; the mean of 2.5 and 0.125.
    assert float(losses["huber"].function(numbers, targets)) == pytest.approx(1.3125)
    assert float(losses["absolute"].function(numbers, targets)) == pytest.approx(1.75)


def test_worker_processes_need_a_loss_that_they_can_import():
    hidden = lambda outputs, targets: cross_entropy(outputs, targets)  # noqa: E731
    with pytest.raises(
        SettingsError, match=r"workers=2: other processes cannot make loss .*<lambda>; put the function"
    ):
        federation(hidden, workers=2)
    assert "in this process" in federation(hidden).explain()


def test_explaining_names_the_loss():
    assert re.search("loss test_losses:brier, a mean over samples", federation(brier).explain())
