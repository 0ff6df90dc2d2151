"""The networks, by their parameter counts and by the shapes inside them."""

import pytest
import torch

from coterie.core.errors import SettingsError
from coterie.core.registry import first_line
from coterie.nets import make_net, nets
from coterie.nets.layers import Pass

MNIST, CIFAR, DIGITS, SERIES = (1, 28, 28), (3, 32, 32), (1, 8, 8), (50, 3)

COUNTS = [
    ("cnn-6-16", CIFAR, 10, 6_882),
    ("cnn-20-50", MNIST, 10, 33_580),
    ("cnn-16-32", MNIST, 10, 18_378),
    ("cfic-mnist", MNIST, 10, 1_663_370),
    ("cfic-cifar", CIFAR, 10, 797_962),
    # 90 more outputs of a layer with 192 inputs and a bias each.
    ("cfic-cifar", CIFAR, 100, 797_962 + 90 * 193),
    # 5x5 convolutions 1-32-32-64 and layers 576-256-62, as the paper's 576 inputs say:
    # 26 * 32 + (25 * 32 + 1) * 32 + (25 * 32 + 1) * 64 + 577 * 256 + 257 * 62.
    ("cfic-emnist", MNIST, 62, 832 + 25_632 + 51_264 + 147_712 + 15_934),
    ("lenet5", CIFAR, 10, 62_006),
    ("lenet5", MNIST, 10, 44_426),
    # The figure is for 100 classes: the last layer has 513 parameters a class.
    ("resnet9", CIFAR, 100, 6_621_540),
    ("resnet9", CIFAR, 10, 6_621_540 - 90 * 513),
    ("resnet18", CIFAR, 10, 11_173_962),
    ("vgg19", CIFAR, 10, 20_565_834),
    ("logistic", DIGITS, 10, 65 * 10),
    ("mlp", DIGITS, 10, 65 * 64 + 65 * 10),
    # 3x3 convolutions 1-8-16 and a layer of 16 * 2 * 2 inputs.
    ("cnn", DIGITS, 10, 10 * 8 + (9 * 8 + 1) * 16 + 65 * 10),
    # Convolutions over 5 steps of 3 channels, 32 and 64.
    ("cnn-1d", SERIES, 6, (5 * 3 + 1) * 32 + (5 * 32 + 1) * 64 + 65 * 6),
    # Three gates of 64 that see the input and the state, each with a bias.
    ("gru", SERIES, 6, 3 * 64 * (3 + 1 + 64 + 1) + 65 * 6),
    # Two blocks: two norms, queries, keys, values and outputs, layers of 128 and 64. Before them a layer and positions.
    ("transformer", SERIES, 6, 4 * 64 + 50 * 64 + 2 * (4 * 64 + 4 * 65 * 64 + 65 * 128 + 129 * 64) + 2 * 64 + 65 * 6),
]

TOKEN_COUNTS = [
    ("embedding-bag", 70 * 64 + 65 * 6),
    ("gru", 70 * 32 + 3 * 64 * (32 + 1 + 64 + 1) + 65 * 6),
    ("transformer", 70 * 64 + 20 * 64 + 2 * (4 * 64 + 4 * 65 * 64 + 65 * 128 + 129 * 64) + 2 * 64 + 65 * 6),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_counts(name, shape, classes, count):
    assert make_net(name, shape, classes).parameters.total == count


FIVES = [(28, 28), (14, 14), (10, 10), (5, 5)]
"""Sides of 32x32 images behind two unpadded 5x5 convolutions and the poolings after them."""

SHAPES = [
    ("cnn-6-16", CIFAR, [6, 6, 16, 16], FIVES),
    ("lenet5", CIFAR, [6, 6, 16, 16], FIVES),
    ("cfic-cifar", CIFAR, [64] * 4, FIVES),
    ("cnn-20-50", MNIST, [20, 20, 50, 50], [(24, 24), (12, 12), (8, 8), (4, 4)]),
    ("cnn-16-32", MNIST, [16, 16, 32, 32], [(24, 24), (12, 12), (8, 8), (4, 4)]),
    ("cfic-mnist", MNIST, [32, 32, 64, 64], [(28, 28), (14, 14), (14, 14), (7, 7)]),
    ("cfic-emnist", MNIST, [32, 32, 32, 64, 64], [(24, 24), (20, 20), (10, 10), (6, 6), (3, 3)]),
]


@pytest.mark.parametrize(("name", "shape", "channels", "sides"), SHAPES)
def test_shapes_behind_every_convolution_and_pooling(name, shape, channels, sides):
    module, seen = nets[name](shape, 10), []
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.MaxPool2d):
            layer.register_forward_hook(lambda layer, inputs, output: seen.append(tuple(output.shape[1:])))
    module(torch.zeros(1, *shape))
    assert seen == [(width, *side) for width, side in zip(channels, sides, strict=True)]


@pytest.mark.parametrize(("name", "count"), TOKEN_COUNTS)
def test_parameter_counts_for_70_different_tokens(name, count):
    assert make_net(name, (20,), 6, vocabulary=70).parameters.total == count


def test_every_net_is_counted_and_described():
    assert set(nets) == {name for name, *_ in [*COUNTS, *TOKEN_COUNTS]}
    assert all(first_line(nets[name]).endswith((".", ":")) for name in nets)


SMALL = [name for name, shape, *_ in COUNTS if shape != SERIES and name not in ("resnet9", "resnet18", "vgg19")]


@pytest.mark.parametrize("name", sorted(set(SMALL)))
def test_nets_take_images_that_are_not_square(name):
    net = make_net(name, (2, 20, 24), 5)
    output, _ = net(*net.initial(torch.Generator()), (torch.zeros(3, 2, 20, 24),), Pass())
    assert output.shape == (3, 5)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_simple_nets_take_features(name):
    assert make_net(name, (13,), 2).classes == 2


LEAST = {"cnn": 4, "cfic-mnist": 4, "cfic-emnist": 20, "lenet5": 16, "cfic-cifar": 16, "cnn-6-16": 16, "resnet9": 8}


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_images_that_are_too_small_get_the_least_size(name, least):
    assert make_net(name, (1, least, least), 3).name == name
    with pytest.raises(SettingsError, match=f"{name}.* too small: at least {least}x{least}"):
        make_net(name, (1, least, least - 1), 3)
