"""What a net's factory has frozen is the same in all models: it is not sent, averaged, stored or changed."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.func import vmap

import coterie
from coterie.core.errors import CoterieError, SettingsError
from coterie.nets import codec, make_net
from coterie.nets.layers import Pass
from coterie.nets.stacks import Models
from coterie.runs.experiment import run
from coterie.runs.settings import Settings
from coterie.training import forms
from coterie.training.local import LocalTraining
from support.trainings import IMAGES, WITHIN, backbone, pretrained
from support.worlds import close, normed, tensors_of, world

TRAINED = 4 + 4 + 16 * 3 + 3
"""The second normalisation and the head of `pretrained`, for three classes of images of 4x4 pixels."""

TRAINED_WIDE = 4 + 4 + 64 * 3 + 3
"""The same for images of 8x8 pixels."""

CONSTANTS = {f"0.{name}": value.double() for name, value in backbone().items()}


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def without_dropout(shape, classes):
    made = pretrained(shape, classes)
    made[5] = nn.Identity()
    return made


@pytest.fixture
def net():
    return make_net(pretrained, IMAGES, 3, dtype=torch.float64)


def assert_constant(net):
    """The constants are those of the file, to the last bit."""
    assert net.constants.keys() == CONSTANTS.keys()
    for name, value in CONSTANTS.items():
        assert torch.equal(net.constants[name], value), name


def test_only_what_is_trained_is_in_the_vectors(net):
    assert net.parameters.total == TRAINED
    assert net.buffers.names == ("3.running_mean", "3.running_var")
    assert net.frozen == 4 * 18 + 4 + 4 + 4, "statistics are no parameters"
    assert_constant(net)


def test_parts_are_parts_of_what_is_trained(net):
    assert net.layers == ("3", "6")
    assert int(net.part("head").sum()) == 16 * 3 + 3
    assert int(net.statistics("body").sum()) == 8


@pytest.mark.parametrize("training", [True, False])
def test_frozen_layers_compute_as_in_evaluation(net, training):
    parameters, buffers = net.initial(rng())
    x = torch.randn(7, *IMAGES, generator=rng(3), dtype=torch.float64)
    plain = net.build(rng()).double().train(training)
    plain[0].eval()
    plain[5] = nn.Identity()
    bare = make_net(without_dropout, IMAGES, 3, dtype=torch.float64)
    output, after = bare(parameters, buffers, (x,), Pass(training=training))
    close(output, plain(x))
    close(bare.buffers.views(after)["3.running_var"], plain[3].running_var)
    assert torch.equal(after, buffers) != training
    assert_constant(bare)


@pytest.mark.parametrize("form", ["loop", "vectorised", "branch"])
def test_training_is_that_of_a_plain_loop_with_frozen_weights(form):
    here = world(without_dropout, sizes=(12,), shape=IMAGES)
    start = here.models()
    plain = start[0].module()
    plain.train()
    plain[0].eval()
    index = torch.from_numpy(here.shards[0].train)
    x, y = here.pool.inputs(index), here.pool.y[index]
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], 0.2, 0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    local = LocalTraining(steps=3, batch=0, rate=0.2, momentum=0.9, decay=0.1)
    ours = here.clients(form).train(start, local).models[0].module()
    for name, value in plain.state_dict().items():
        if "num_batches" not in name:
            close(ours.state_dict()[name], value)
    assert_constant(here.net)


def test_each_model_can_be_differentiated_inside_of_a_stack(monkeypatch):
    # As on a GPU. On a CPU the stack as a whole is differentiated, unless `vmap` refuses that.
    here, local = world(pretrained, shape=IMAGES), LocalTraining(batch=4)
    reference = here.clients().train(here.models(), local).models
    ways = [lambda loss: partial(refuse, loss), vmap]
    monkeypatch.setattr(forms, "vmap", lambda function: ways.pop(0)(function))
    close(here.clients().train(here.models(), local).models.parameters, reference.parameters, WITHIN)


def refuse(*arguments):
    raise RuntimeError


def test_a_model_is_exported_whole(net):
    models = Models(net, *(tensor[None] for tensor in net.initial(rng())))
    state = models[0].state_dict()
    plain = net.build(rng(9)).double()
    assert {name for name in plain.state_dict() if "num_batches" not in name} == state.keys()
    for name, value in CONSTANTS.items():
        assert torch.equal(state[name], value)
    state["0.0.weight"].zero_()
    assert_constant(net)  # who changes what he was given changes no other model
    x = torch.randn(5, *IMAGES, generator=rng(2), dtype=torch.float64)
    close(models[0].module()(x), net(*net.initial(rng()), (x,), Pass())[0])


def test_a_norm_that_is_trained_in_part_keeps_its_statistics():
    def factory(shape, classes):
        made = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, classes))
        made[0].weight.requires_grad_(False)
        return made

    net = make_net(factory, (4,), 3)
    assert net.buffers.names == ("0.running_mean", "0.running_var")
    assert net.constants.keys() == {"0.weight"}


def test_frozen_whole_numbers_stay_whole():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(12).reshape(3, 4), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x @ self.weight.to(x).T * self.scale

    net = make_net(lambda shape, classes: Quantised(), (4,), 3, dtype=torch.float64)
    assert net.constants["weight"].dtype == torch.int64
    assert net.digest


# Where constants come from


def test_frozen_parameters_that_are_drawn_are_refused():
    def factory(shape, classes):
        made = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, classes))
        made[0].requires_grad_(False)
        return made

    with pytest.raises(SettingsError, match=r"0.weight is frozen.* must come from a file, not from the generator"):
        make_net(factory, (4,), 3)


def test_a_digest_tells_constants_apart(net, monkeypatch):
    assert make_net(normed, IMAGES, 3).digest == ""
    assert make_net(pretrained, IMAGES, 3, dtype=torch.float64).digest == net.digest
    monkeypatch.setattr("support.trainings.backbone", lambda channels: backbone(1, channels))
    assert make_net(pretrained, IMAGES, 3, dtype=torch.float64).digest != net.digest


def test_stored_models_are_read_only_with_their_own_constants(net, monkeypatch):
    models = Models(net, *(tensor[None] for tensor in net.initial(rng())))
    content = codec.dump(models)
    assert len(content) < 8 * (TRAINED + 8) + 700, "constants are not stored"
    assert torch.equal(codec.load(content, {net.name: net}).parameters, models.parameters)
    monkeypatch.setattr("support.trainings.backbone", lambda channels: backbone(1, channels))
    other = make_net(pretrained, IMAGES, 3, dtype=torch.float64)
    with pytest.raises(CoterieError, match=r"other frozen parameters than the net support.trainings:pretrained has"):
        codec.load(content, {net.name: other})


# Whole runs


def federation(net=pretrained, **options):
    y = np.random.default_rng(0).integers(3, size=120)
    x = np.random.default_rng(1).normal(size=(120, 2, 8, 8)) + y[:, None, None, None]
    data = coterie.Dataset(x, y, labels=("a", "b", "c"))
    return coterie.simulate(data, "iid", net, clients=4, **{"precision": "float64", "workers": 0, **options})


def test_only_what_is_trained_is_sent():
    fed = federation()
    result = coterie.FedAvg(rounds=3).fit(fed)
    assert result.summary["ledger"]["up"]["model"] == 3 * 4 * 8 * (TRAINED_WIDE + 8)
    assert result.summary["ledger"]["down"]["model"] == 3 * 4 * 8 * (TRAINED_WIDE + 8)
    assert (result.summary["parameters"], result.summary["frozen_parameters"]) == (TRAINED_WIDE, 84)
    assert f"{TRAINED_WIDE} parameters and 84 frozen" in fed.explain()
    assert_constant(fed.net)


@pytest.mark.parametrize(
    "name",
    ["ditto", "fedrep", "scaffold", "per-fedavg", "fedem", "slfed", "apfl", "pfedme", "moon", "feddbe"],
)
def test_forms_agree_on_what_is_trained(name):
    method = coterie.methods.make(name, rounds=2)
    runs = {engine: method.fit(federation(engine=engine)) for engine in ("loop", "vectorised")}
    losses = [[client["loss"] for client in run.clients] for run in runs.values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)


def test_workers_have_their_constants_from_the_factory():
    results = []
    for workers in (0, 2):
        fed = federation("support.trainings:pretrained", engine="loop", workers=workers)
        results.append(coterie.FedAvg(rounds=2).fit(fed))
        fed.close()
    assert torch.equal(results[0].state.model.parameters, results[1].state.model.parameters)


class StopAfterOne:
    """Stops a run when its first round is stored."""

    def round_done(self, checkpoint, record, groups):
        raise InterruptedError

    def run_done(self, checkpoint, result):
        raise AssertionError


def begun(folder):
    settings = Settings.of({"net": "support.trainings:pretrained", "clients": 3, "limit": 200, "rounds": 3}, "ditto")[0]
    with pytest.raises(InterruptedError):
        run(settings, folder, observers=[StopAfterOne()], saving=1.0)
    return settings


def test_a_resumed_run_is_the_unbroken_one(tmp_path):
    settings = begun(tmp_path / "run")
    resumed, unbroken = run(settings, tmp_path / "run", resume=True), run(settings)
    assert resumed.rounds[-1]["loss_mean"] == unbroken.rounds[-1]["loss_mean"]
    for ours, theirs in zip(tensors_of(resumed.state).values(), tensors_of(unbroken.state).values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_does_not_go_on_with_other_weights(tmp_path, monkeypatch):
    settings = begun(tmp_path / "run")
    monkeypatch.setattr("support.trainings.backbone", lambda channels: backbone(1, channels))
    with pytest.raises(CoterieError, match=r"other frozen parameters than the net .* has here"):
        run(settings, tmp_path / "run", resume=True)
