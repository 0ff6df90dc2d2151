"""Layers that do part of their neighbours' work: the numbers of the stock layers, and those layers back on request."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from coterie.nets import layers
from coterie.nets.layers import BatchNorm, Conv2d, GroupNorm, Pass, Residual, Taken, adopt, as_stock, passing, rectified
from coterie.nets.net import parts_of
from support.reference_norms import Norms

SHAPE = (5, 2, 6, 6)


def norms(kind, channels):
    return nn.BatchNorm2d(channels) if kind is BatchNorm else nn.GroupNorm(4, channels)


def stock(kind, channels=32):
    """A net in float64 in which normalisation follows convolutions with biases, and ReLU or pooling follows it."""
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, channels, 3, padding=1), norms(kind, channels), nn.ReLU()),
        Residual(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), norms(kind, channels), nn.ReLU())),
        nn.Conv2d(channels, channels, 3, padding=1),
        norms(kind, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9 * channels, 3),
    ).double()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.3, generator=rng)
    return net


def images(*shape):
    rng = torch.Generator().manual_seed(2)
    return torch.randn(shape, generator=rng, dtype=torch.float64).contiguous(memory_format=torch.channels_last)


def step(net, x, rows=None):
    """Output, gradients by name (0 for what has none) and buffers of a training pass."""
    with passing(Pass(training=True, rows=rows)):
        output = net(x)
    real = output if rows is None else output * rows[:, None]
    names, parameters = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(real.sin().sum(), parameters, allow_unused=True)
    by_name = {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, gradients, strict=True)}
    return output.detach(), by_name, {name: value for name, value in net.named_buffers() if "num_batches" not in name}


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


@pytest.fixture(params=["torch", "kernels"])
def path(request, monkeypatch):
    """Both ways of computing: torch's layers, and the one for a GPU, with kernels made of torch's operations."""
    if request.param == "kernels":
        monkeypatch.setattr(layers, "channels_last_kernels", lambda x: Norms())
        monkeypatch.setattr(layers, "takes_biases", lambda x, current: not current.stacked)
        monkeypatch.setattr(layers.MaxPool2d, "_plain", False)


@pytest.mark.parametrize("kind", [BatchNorm, GroupNorm])
def test_a_step_is_the_stock_layers(kind, path):
    net = stock(kind)
    ours = adopt(deepcopy(net))
    found, expected = step(ours, images(*SHAPE)), step(net, images(*SHAPE))
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("kind", [BatchNorm, GroupNorm])
def test_rows_that_only_fill_up_change_nothing(kind, path):
    net = stock(kind)
    ours = adopt(deepcopy(net))
    padded = torch.cat([images(*SHAPE), 100 * images(2, *SHAPE[1:])])
    rows = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    (found, *rest), (expected, *others) = step(ours, padded, rows), step(net, images(*SHAPE))
    same(found[:5], expected)
    same(rest, others)


@pytest.mark.parametrize("kind", [BatchNorm, GroupNorm])
def test_evaluation_is_the_stock_layers(kind, path):
    net = stock(kind)
    ours = adopt(deepcopy(net)).eval()
    step(net, images(*SHAPE))  # so that there are running statistics, and biases in them
    ours.load_state_dict(net.state_dict())
    with torch.no_grad():
        same(ours(images(*SHAPE)), net.eval()(images(*SHAPE)))


def test_what_is_taken_over():
    net = adopt(stock(BatchNorm))
    first, norm, relu = net[0]
    assert (first.followed, norm.follows, norm.rectifies, type(relu)) == (BatchNorm, (first,), True, Taken)
    assert isinstance(net[1].inner[2], Taken)
    assert type(net[5]) is nn.ReLU, "pooling goes first where it follows"
    assert not net[3].rectifies


class Looking(nn.Module):
    """Uses what is between two layers of a sequence."""

    def __init__(self):
        super().__init__()
        self.stage = nn.Sequential(nn.Conv2d(2, 32, 3), nn.BatchNorm2d(32), nn.ReLU())

    def forward(self, x):
        return self.stage[0](x).sum() + self.stage(x)


def shared():
    convolution, norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
    return nn.Sequential(convolution, norm, nn.ReLU(), convolution, norm, nn.ReLU())


@pytest.mark.parametrize("make", [Looking, shared], ids=["seen", "shared"])
def test_what_others_see_or_share_is_left_alone(make):
    for layer in adopt(make()).modules():
        assert not isinstance(layer, Taken)
        assert not isinstance(layer, Conv2d) or layer.followed is None
        assert not isinstance(layer, BatchNorm) or not (layer.follows or layer.rectifies)


@pytest.mark.parametrize("kind", [BatchNorm, GroupNorm])
def test_the_stock_layers_come_back(kind):
    net = stock(kind)
    ours = adopt(deepcopy(net))
    back = as_stock(ours, images(*SHAPE))
    kinds = {type(layer) for layer in back.modules()}
    assert kinds == {type(layer) for layer in net.modules()}
    with torch.no_grad():
        same(back.eval()(images(*SHAPE)), net.eval()(images(*SHAPE)))


@pytest.mark.parametrize("add", [False, True])
def test_a_norm_asked_to_rectify(add, path):
    norm = nn.BatchNorm2d(32).double()
    x, other = images(4, 32, 5, 5), images(4, 32, 5, 5).flip(0) if add else None
    with passing(Pass(training=True)):
        same(rectified(adopt(deepcopy(norm)), x, other), rectified(norm, x, other))


SIZES, HALVED = [3, 2, 4], [True, False, True]


@pytest.mark.parametrize("halved", [None, HALVED])
def test_parts_of_a_vector_and_the_way_back(halved):
    flat = torch.arange(9, dtype=torch.float64).add(0.3).requires_grad_()
    parts = parts_of(flat, SIZES, halved)
    lower = [halved is not None and half for half in HALVED]
    assert [part.dtype for part in parts] == [torch.bfloat16 if low else torch.float64 for low in lower]
    for part, plain, low in zip(parts, flat.split(SIZES), lower, strict=True):
        assert torch.equal(part, plain.bfloat16() if low else plain)
    (gradient,) = torch.autograd.grad((parts[0].double() ** 2).sum() + 5 * parts[1].sum(), flat)
    rounded = 2 * (flat[:3].bfloat16() if halved else flat[:3]).double()
    expected = torch.cat([rounded.to(parts[0].dtype).double(), torch.full((2,), 5.0), torch.zeros(4)])
    assert torch.equal(gradient, expected.double())


def test_parts_can_be_differentiated_twice():
    flat = torch.arange(1.0, 10.0, dtype=torch.float64)

    def cubes(flat):
        return sum(part.pow(3).sum() for part in parts_of(flat, SIZES, None))

    same(grad(lambda flat: grad(cubes)(flat).square().sum())(flat), 36 * flat**3)


def test_an_adopted_net_can_be_called_as_a_function():
    ours = adopt(stock(BatchNorm))
    tensors = dict(ours.named_parameters())
    with passing(Pass(training=True)):
        assert torch.equal(functional_call(ours, tensors, images(*SHAPE)), ours(images(*SHAPE)))
