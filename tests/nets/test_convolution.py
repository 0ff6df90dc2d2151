"""Convolutions of many clients at once are convolutions, and so are their derivatives of every order."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.func import grad, vmap

from coterie.nets import layers
from coterie.nets.convolution import batch_normalise, convolve, convolving, group_normalise, pool
from coterie.nets.layers import Conv2d, Pass, adopt, passing
from support.reference_norms import Norms


class Reference:
    """The same with torch's own operations, client by client."""

    calls = 0

    def convolution(self, images, kernels, biases, padding, flip, precision):
        Reference.calls += 1
        rows = []
        for row in range(len(images)):
            kernel = kernels[row].permute(3, 0, 1, 2).flip(2, 3) if flip else kernels[row].permute(0, 3, 1, 2)
            rows.append(F.conv2d(images[row], kernel, None if biases is None else biases[row], padding=padding))
        return torch.stack(rows)

    def weight_gradient(self, images, gradients, padding, precision):
        weights = []
        for x, g in zip(images, gradients, strict=True):
            sizes = [x.shape[axis] + 2 * padding[axis - 2] - g.shape[axis] + 1 for axis in (2, 3)]
            weights.append(torch.nn.grad.conv2d_weight(x, (g.shape[1], x.shape[1], *sizes), g, padding=padding))
        return torch.stack(weights).permute(0, 1, 3, 4, 2)

    def pool(self, images):
        Reference.calls += 1
        high, wide = images.shape[-2] // 2, images.shape[-1] // 2
        four = images[..., : 2 * high, : 2 * wide].unflatten(-1, (wide, 2)).unflatten(-3, (high, 2))
        best = four.transpose(-3, -2).flatten(-2).max(dim=-1)
        return best.values, best.indices.to(torch.int8)

    def unpool(self, gradients, index, height, width):
        out = gradients.new_zeros(*gradients.shape[:-2], height, width)
        for number in range(4):
            y, x = slice(number // 2, 2 * gradients.shape[-2], 2), slice(number % 2, 2 * gradients.shape[-1], 2)
            out[..., y, x] = gradients * (index == number)
        return out


CASES = [((0, 0), 3), ((1, 1), 3), ((2, 1), (5, 3)), ((0, 0), 1)]


def stacks(kernel, device="cpu", dtype=torch.float64, channels=3, filters=5, size=(7, 6)):
    rng = torch.Generator().manual_seed(0)
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    shapes = ((4, 2, channels, *size), (4, filters, channels, high, wide), (4, filters))
    return [torch.randn(*shape, generator=rng, dtype=torch.float64).to(device, dtype) for shape in shapes]


def ours(padding, kernels):
    return lambda x, w, b: convolve(x, w, b, padding, kernels).sin().sum()


def theirs(padding):
    return lambda x, w, b: F.conv2d(x, w, b, padding=padding).sin().sum()


@pytest.mark.parametrize(("padding", "kernel"), CASES)
def test_output_and_gradients(padding, kernel):
    given = stacks(kernel)
    wanted = vmap(lambda x, w, b: F.conv2d(x, w, b, padding=padding))(*given)
    torch.testing.assert_close(vmap(lambda x, w, b: convolve(x, w, b, padding, Reference()))(*given), wanted)
    for found, expected in zip(
        vmap(grad(ours(padding, Reference()), argnums=(0, 1, 2)))(*given),
        vmap(grad(theirs(padding), argnums=(0, 1, 2)))(*given),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("padding", "kernel"), CASES)
def test_second_derivatives(padding, kernel):
    given = stacks(kernel)

    def length(function):
        def inner(x, w, b):
            return sum(part.square().sum() for part in grad(function, argnums=(0, 1, 2))(x, w, b))

        return vmap(grad(inner, argnums=(0, 1, 2)))(*given)

    for found, expected in zip(length(ours(padding, Reference())), length(theirs(padding)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [(6, 8), (7, 5), (2, 2)])
def test_pooling_and_its_derivatives(size):
    x = stacks(3, size=size)[0]
    torch.testing.assert_close(vmap(lambda x: pool(x, Reference()))(x), vmap(lambda x: F.max_pool2d(x, 2))(x))

    def first(pooled):
        return grad(lambda x: pooled(x).sin().sum())

    def second(pooled):
        return grad(lambda x: first(pooled)(x).square().sum())

    for order in (first, second):
        found, expected = (vmap(order(f))(x) for f in (lambda x: pool(x, Reference()), lambda x: F.max_pool2d(x, 2)))
        torch.testing.assert_close(found, expected)


def test_the_pooling_layer_uses_kernels_where_they_fit(monkeypatch):
    monkeypatch.setattr(layers, "pooling", lambda x: Reference())
    monkeypatch.setattr(Reference, "calls", 0)
    x = stacks(3)[0]
    for number, layer in enumerate((nn.MaxPool2d(2), nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1))):
        expected = vmap(layer)(x)
        with passing(Pass(stacked=True)):
            torch.testing.assert_close(vmap(adopt(layer))(x), expected)
        assert Reference.calls == 1, number


def test_an_input_that_all_share():
    x, w, b = stacks(3)
    found = vmap(lambda w, b: convolve(x[0], w, b, (1, 1), Reference()))(w, b)
    torch.testing.assert_close(found, vmap(lambda w, b: F.conv2d(x[0], w, b, padding=1))(w, b))


def test_weights_that_all_share():
    x, w, b = stacks(3)
    for found, expected in zip(
        vmap(grad(ours((1, 1), Reference()), argnums=(0, 2)), in_dims=(0, None, 0))(x, w[0], b),
        vmap(grad(theirs((1, 1)), argnums=(0, 2)), in_dims=(0, None, 0))(x, w[0], b),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_a_frozen_layer_stays_with_torch(monkeypatch):
    # All models have the same weights then: their rows are one batch.
    monkeypatch.setattr(layers, "convolving", lambda x, weight: pytest.fail("not for these"))
    layer = adopt(nn.Conv2d(3, 5, 3).double().requires_grad_(False))
    x = stacks(3)[0]
    with passing(Pass(stacked=True)):
        found = vmap(layer)(x)
    torch.testing.assert_close(found, torch.stack([layer(rows) for rows in x]))


def test_without_vmap_it_is_the_usual_convolution():
    x, w, b = (stack[0] for stack in stacks(3))
    torch.testing.assert_close(convolve(x, w, b, (1, 1), Reference()), F.conv2d(x, w, b, padding=1))


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"bias": False}])
def test_the_layer_uses_kernels_when_many_models_run_at_once(options, monkeypatch):
    monkeypatch.setattr(layers, "convolving", lambda x, weight: Reference())
    monkeypatch.setattr(Reference, "calls", 0)
    layer = adopt(nn.Sequential(nn.Conv2d(3, 5, 3, **options)).double())[0]
    x = stacks(3)[0]
    with passing(Pass(stacked=True)):
        found = vmap(layer)(x)
    assert Reference.calls == 1
    torch.testing.assert_close(found, vmap(layer)(x))
    assert Reference.calls == 1


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"groups": 3}, {"padding": "same"}])
def test_other_convolutions_stay_with_torch(options, monkeypatch):
    monkeypatch.setattr(layers, "convolving", lambda x, weight: pytest.fail("not for these"))
    layer = adopt(nn.Conv2d(3, 6, 3, **options).double())
    assert isinstance(layer, Conv2d)
    with passing(Pass(stacked=True)):
        vmap(layer)(stacks(3)[0])


def test_a_cpu_has_no_kernels():
    x, w, _ = stacks(3)
    assert convolving(x, w) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize(("channels", "filters"), [(3, 20), (33, 64)])
@pytest.mark.parametrize(("padding", "kernel"), CASES)
def test_triton_kernels_compute_the_same(padding, kernel, channels, filters, rows):
    from coterie.nets import kernels

    x, w, b = stacks(kernel, "cuda", torch.float32, channels, filters, (9, 11))
    x = x[:, :1] + torch.arange(rows, device="cuda").reshape(1, -1, 1, 1, 1) / 9
    w = w.permute(0, 1, 3, 4, 2).contiguous()
    out = kernels.convolution(x, w, b, padding, False, "ieee")
    around = (w.shape[2] - 1 - padding[0], w.shape[3] - 1 - padding[1])
    back = kernels.convolution(out, w, None, around, True, "ieee")
    weights = kernels.weight_gradient(x, out, padding, "ieee")
    exact, (x, w, b, given) = Reference(), (one.double() for one in (x, w, b, out))
    near(out, exact.convolution(x, w, b, padding, False, ""))
    near(back, exact.convolution(given, w, None, around, True, ""))
    near(weights, exact.weight_gradient(x, given, padding, ""))


def near(found, expected):
    assert (found.double() - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("size", [(28, 28), (7, 5), (2, 2)])
def test_triton_pooling_is_exact(size):
    from coterie.nets import kernels

    x = stacks(3, "cuda", torch.float32, size=size)[0].relu()  # with many equal zeros
    (found, index), (expected, places) = kernels.pool(x), Reference().pool(x)
    assert torch.equal(found, expected)
    assert torch.equal(kernels.unpool(found, index, *size), Reference().unpool(expected, index, *size))
    last, its_index = kernels.pool(x[0].contiguous(memory_format=torch.channels_last))
    assert torch.equal(last, found[0])
    assert torch.equal(its_index, index[0])
    assert torch.equal(kernels.unpool(last, its_index, *size), kernels.unpool(found[0], index[0], *size))
    assert torch.equal(F.max_pool2d(x.flatten(0, 1), 2).reshape(found.shape), found)
    unequal = index != places
    assert (x.amax() == 0) or (found[unequal] == 0).all(), "only zeros are equal"


def images_to_normalise(channels=8, size=(5, 6), device="cpu", dtype=torch.float64, rows=3):
    rng = torch.Generator().manual_seed(1)
    x = 3 + torch.randn(rows, channels, *size, generator=rng, dtype=torch.float64)
    weight, bias, shift = torch.randn(3, channels, generator=rng, dtype=torch.float64)
    x = x.to(device, dtype).contiguous(memory_format=torch.channels_last)
    return [x.requires_grad_(), *(v.to(device, dtype).clone().requires_grad_() for v in (weight, bias, shift))]


def group_norm(groups, rectify, kernels=None):
    """Group normalisation of shifted images as a function of all that it depends on: torch's own, or with kernels."""

    def function(x, weight, bias, shift):
        if kernels is not None:
            return group_normalise(x, weight, bias, shift, groups, 1e-5, rectify, kernels)
        out = F.group_norm(x + shift[:, None, None], groups, weight, bias, 1e-5)
        return F.relu(out) if rectify else out

    return function


def batch_norm(rectify, add, kernels=None):
    """Batch normalisation of images plus others that depend on them: torch's own, or with kernels."""

    def function(x, weight, bias):
        other = x.square().flip(0) if add else None
        if kernels is not None:
            running = (torch.zeros_like(weight), torch.ones_like(weight))
            return batch_normalise(x, other, weight, bias, None, *running, 0.1, 1e-5, rectify, kernels)[0]
        out = F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)
        out = out + other if add else out
        return F.relu(out) if rectify else out

    return function


def gradients_of(function, given):
    output = function(*given)
    return output, *torch.autograd.grad(output.sin().sum(), given)


def second_gradient(function, given):
    def length(x):
        return grad(lambda x: function(x, *given[1:]).sin().sum())(x).square().sum()

    return grad(length)(given[0].detach())


def same_derivatives(ours_, theirs, given):
    for found, expected in zip(gradients_of(ours_, given), gradients_of(theirs, given), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(second_gradient(ours_, given), second_gradient(theirs, given))


@pytest.mark.parametrize("rectify", [False, True])
def test_group_normalisation_and_its_derivatives(rectify):
    same_derivatives(group_norm(4, rectify, Norms()), group_norm(4, rectify), images_to_normalise())


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("rectify", [False, True])
def test_batch_normalisation_and_its_derivatives(rectify, add):
    same_derivatives(batch_norm(rectify, add, Norms()), batch_norm(rectify, add), images_to_normalise()[:3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(
    ("channels", "size", "groups"), [(64, (32, 32), 32), (512, (4, 4), 32), (8, (7, 5), 2), (1, (3, 3), 1)]
)
def test_triton_group_normalisation(channels, size, groups, rectify):
    from coterie.nets import kernels

    found = gradients_of(
        group_norm(groups, rectify, kernels), images_to_normalise(channels, size, "cuda", torch.float32)
    )
    expected = gradients_of(group_norm(groups, rectify), images_to_normalise(channels, size, "cuda"))
    *rest, shift = zip(found, expected, strict=True)
    for one, other in rest:
        near(one, other)
    # A channel that is its own group does not depend on its shift: what is left is rounding, of sums of this size.
    assert (shift[0].double() - shift[1]).norm() < 1e-5 * expected[1].norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(
    ("channels", "size", "rows"), [(64, (32, 32), 64), (512, (2, 2), 5), (96, (7, 5), 33), (16, (1, 1), 5)]
)
def test_triton_batch_normalisation(channels, size, rows, rectify, add):
    from coterie.nets import kernels

    given, exact = (
        images_to_normalise(channels, size, "cuda", dtype, rows)[:3] for dtype in (torch.float32, torch.float64)
    )
    found, expected = (
        gradients_of(batch_norm(rectify, add, kernels), given),
        gradients_of(batch_norm(rectify, add), exact),
    )
    for one, other in zip(found, expected, strict=True):
        near(one, other)
    mean, variance, shift = torch.rand(3, channels, device="cuda")
    ours_ = kernels.batch_norm(*(given[0], None, *given[1:], shift, mean, variance, 0.1, 1e-5, False))[1]
    before = (shift.double(), mean.double(), variance.double())
    theirs = Norms().batch_norm(exact[0], None, *exact[1:], *before, 0.1, 1e-5, False)[1]
    near(ours_, theirs)
