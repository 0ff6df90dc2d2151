"""The same on a GPU, where there is one."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.runs.comparison import compare
from coterie.runs.settings import Settings
from support.worlds import tensors_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def data():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=200)
    x = rng.integers(0, 120, (200, 2, 8, 8)) + 30 * y[:, None, None, None]
    return coterie.Dataset(x.astype(np.uint8), y).held_out(0.2)


def federation(device, precision="float64", engine="simulation", **options):
    options = {"clients": 7, "min_size": 6, "device": device, "precision": precision, "engine": engine, **options}
    options = {"server_samples": 10, **options}  # for FLIS
    return coterie.simulate(data(), "quantity", noisy_net, **options)


def noisy_net(shape, classes):
    """A net with batch normalisation and dropout.

    Its convolution has no bias: the gradient would be zero but for rounding, which Adam blows up to steps of full size.
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, classes),
    )


@pytest.mark.parametrize("engine", ["loop", "vectorised", "branch"])
@pytest.mark.parametrize("name", list(coterie.methods))
def test_a_gpu_agrees_with_the_loop_on_the_cpu(engine, name, caplog):
    made = coterie.methods.make(name, rounds=3, batch=8, momentum=0.5, participation=0.8)
    reference = made.fit(federation("cpu", engine="loop", augment="crop-flip"))
    result = made.fit(federation("cuda", engine=engine, augment="crop-flip"))
    for one, other in zip(reference.clients, result.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)
    ours, theirs = tensors_of(result.state), tensors_of(reference.state)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert (value - theirs[key]).abs().max() < 1e-9, key
    assert "cannot be recorded" not in caplog.text


@pytest.mark.parametrize(
    "local",
    [
        {"optimizer": "adam", "rate": 0.01},
        {"clip": 0.3, "decay": 0.1, "momentum": 0.9},
        {"epochs": 20.0, "batch": 3},
        {"batch": 0},
        {"steps": 70},
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["vectorised", "branch"])
def test_recorded_steps_agree_with_the_loop_on_the_cpu(engine, local):
    made = coterie.FedProx(**{"rounds": 2, "batch": 8} | local)
    reference, result = (
        made.fit(federation(device, engine=form)).state.model for device, form in (("cpu", "loop"), ("cuda", engine))
    )
    assert (result.parameters.cpu() - reference.parameters).abs().max() < 1e-9
    assert (result.buffers.cpu() - reference.buffers).abs().max() < 1e-9


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_branch_is_the_loop_to_the_last_bit(precision):
    made = coterie.FedAvg(rounds=3, batch=8, momentum=0.5)
    loop, branch = (made.fit(federation("cuda", precision, engine)).state.model for engine in ("loop", "branch"))
    assert torch.equal(loop.parameters, branch.parameters)
    assert torch.equal(loop.buffers, branch.buffers)


def test_steps_are_recorded_once_and_replayed():
    fed = federation("cuda", engine="vectorised")
    coterie.FedAvg(rounds=3, batch=8).fit(fed)
    ((recorded,),) = fed._engine._host.form._recorder._kinds.values()
    assert recorded.graphs
    assert not recorded.fails
    again = dict(recorded.graphs)
    coterie.FedAvg(rounds=3, batch=8).fit(fed)
    assert recorded.graphs == again


class Asking(nn.Module):
    """A net whose forward pass asks the device something: it cannot be recorded."""

    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(128, classes)

    def forward(self, x):
        return self.layer(x.flatten(1)) * (2.0 if bool((x.detach().sum() > 1e30).item()) else 1.0)


def test_a_net_that_cannot_be_recorded_still_trains(caplog):
    made = coterie.FedAvg(rounds=2, batch=8)
    results = []
    for device, engine in (("cpu", "loop"), ("cuda", "branch")):
        fed = coterie.simulate(data(), "iid", Asking, clients=3, device=device, precision="float64", engine=engine)
        results.append(made.fit(fed).state.model.parameters.cpu())
    assert (results[0] - results[1]).abs().max() < 1e-9
    assert "cannot be recorded" in caplog.text


@pytest.mark.parametrize("engine", ["simulation", "branch", "vectorised"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_every_precision_learns_and_repeats_to_the_last_bit(precision, engine):
    fed = federation("cuda", precision, engine)
    first, second = (coterie.FedAvg(rounds=5, batch=8).fit(fed) for _ in range(2))
    assert first.summary["accuracy_mean"] > 0.5
    assert torch.equal(first.state.model.parameters, second.state.model.parameters)


def test_torch_is_left_as_it_was():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic
    coterie.FedAvg(rounds=1).fit(federation("cuda", "tf32"))
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic) == before


def kept_models(fed):
    return fed._engine._memory.values["model"].parameters


def test_the_gpu_is_taken_by_default_and_clients_keep_their_models_there():
    fed = federation("auto")
    coterie.Local(rounds=1).fit(fed)
    assert fed.net.device.type == "cuda"
    assert kept_models(fed).device.type == "cuda"
    assert "stays on the GPU" in fed.explain()


def test_models_that_do_not_fit_on_the_gpu_are_kept_on_the_host():
    roomy, tight = federation("cuda"), federation("cuda", memory=2e-5)
    results = [coterie.Local(rounds=3, batch=8, participation=0.6).fit(fed) for fed in (roomy, tight)]
    assert kept_models(tight).device.type == "cpu"
    assert (kept_models(roomy).cpu() - kept_models(tight)).abs().max() < 1e-9
    for one, other in zip(*(result.clients for result in results), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)


NAMES = ("fedavg", "local", "ifca", "cfl", "scaffold", "fedem")


def together_and_alone(precision, **more):
    given = {"clients": 6, "net": "cnn", "data": "digits", "batch": 8, "rounds": 3, "split_seed": 0, "device": "cuda"}
    given |= {"precision": precision, "engine": "vectorised"} | more
    chosen = [Settings.of(given, name)[0] for name in NAMES]
    return [compare(chosen, seeds=2, together=together) for together in (True, False)]


def test_runs_together_are_what_they_are_alone():
    for (_, ours), (_, theirs) in zip(*together_and_alone("float64"), strict=True):
        for mine, yours in zip(ours.clients, theirs.clients, strict=True):
            assert mine["loss"] == pytest.approx(yours["loss"], abs=1e-9)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_strict_runs_are_the_same_to_the_last_bit_alone_and_together(precision):
    for (_, ours), (_, theirs) in zip(*together_and_alone(precision, strict=True), strict=True):
        assert ours.clients == theirs.clients
        states = [tensors_of(result.state) for result in (ours, theirs)]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
