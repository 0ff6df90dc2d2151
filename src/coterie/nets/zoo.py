"""The networks of the papers, and small ones for series and tokens.

Each is a function of the input's shape, the number of classes and, for token ids, the size of the vocabulary.
"""

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from math import prod
from typing import Any

from torch import Tensor, nn

from coterie.core.errors import SettingsError
from coterie.nets.layers import Residual, rectified
from coterie.nets.net import Factory
from coterie.nets.sequences import ChannelsFirst, EmbeddingBag, Recurrent, Transformer

Shape = tuple[int, ...]

nets: dict[str, Factory] = {}
"""All networks by name."""

_KINDS = {
    "features": ("features [feature]", "mlp or logistic"),
    "images": ("images [channel, y, x]", "cnn or lenet5"),
    "series": ("series [time, channel]", "cnn-1d, gru or transformer"),
    "token ids": ("token ids [time]", "embedding-bag, gru or transformer"),
    "inputs": ("inputs of any shape", "mlp or logistic"),
}
"""What data can be: its axes, and nets that take it."""

_NUMBERS = ("features", "images", "series", "inputs")


def net(name: str, *takes: str) -> Callable[[Callable[..., nn.Module]], Factory]:
    """Register a net under a name, with the kinds of data that it takes: images if nothing is said.

    A net for token ids is a function of the vocabulary too.
    """
    takes = takes or ("images",)

    def decorate(factory: Callable[..., nn.Module]) -> Factory:
        @wraps(factory)
        def checked(shape: Shape, classes: int, vocabulary: int = 0) -> nn.Module:
            kind = "token ids" if vocabulary else {1: "features", 2: "series", 3: "images"}.get(len(shape), "inputs")
            if kind not in takes:
                own = " or ".join(_KINDS[each][0] for each in takes if each != "inputs")
                given = f"{kind} {'x'.join(map(str, shape))}"
                raise SettingsError(f"{name} takes {own}, this data has {given}: use {_KINDS[kind][1]}")
            more: dict[str, Any] = {"vocabulary": vocabulary} if "token ids" in takes else {}
            return factory(shape, classes, **more)

        del checked.__wrapped__  # its arguments are these, also of nets that do not care for a vocabulary
        nets[name] = checked
        return checked

    return decorate


def _image(shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of images of this shape; an error if they are too small."""
    channels, height, width = shape
    if min(height, width) < least:
        raise SettingsError(f"images of {height}x{width} are too small: at least {least}x{least} are needed")
    return channels, height, width


def _head(*widths: int) -> list[nn.Module]:
    """Fully connected layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def _cnn(
    shape: Shape, classes: int, widths: tuple[int, ...], hidden: tuple[int, ...], kernel: int = 5, padding: int = 0
) -> nn.Module:
    """Convolutions of these widths, each with ReLU and 2x2 pooling behind it, and then fully connected layers."""
    before, *sides = _image(shape, least=2 ** len(widths) if padding else 16)
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(before, width, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        before, sides = width, [(side + 2 * padding - kernel + 1) // 2 for side in sides]
    return nn.Sequential(*layers, *_head(before * prod(sides), *hidden, classes))


@net("logistic", *_NUMBERS)
def logistic(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


@net("mlp", *_NUMBERS)
def mlp(shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 64; takes any input but token ids."""
    return nn.Sequential(*_head(prod(shape), 64, classes))


@net("cnn")
def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 3x3 convolutions of 8 and 16 channels, for small images such as the 8x8 digits."""
    return _cnn(shape, classes, (8, 16), (), kernel=3, padding=1)


@net("cnn-6-16")
def cnn_6_16(shape: Shape, classes: int) -> nn.Module:
    """AutoCFL's net for CIFAR-10: 5x5 convolutions of 6 and 16 channels, one linear layer."""
    return _cnn(shape, classes, (6, 16), ())


@net("cnn-20-50")
def cnn_20_50(shape: Shape, classes: int) -> nn.Module:
    """AutoCFL's net for MNIST: 5x5 convolutions of 20 and 50 channels, one linear layer."""
    return _cnn(shape, classes, (20, 50), ())


@net("cnn-16-32")
def cnn_16_32(shape: Shape, classes: int) -> nn.Module:
    """AutoCFL's net for Fashion-MNIST: 5x5 convolutions of 16 and 32 channels, one linear layer."""
    return _cnn(shape, classes, (16, 32), ())


@net("cfic-mnist")
def cfic_mnist(shape: Shape, classes: int) -> nn.Module:
    """CFIC's net for MNIST: padded 5x5 convolutions of 32 and 64 channels, a hidden layer of 512."""
    return _cnn(shape, classes, (32, 64), (512,), padding=2)


@net("cfic-cifar")
def cfic_cifar(shape: Shape, classes: int) -> nn.Module:
    """CFIC's net for CIFAR and SVHN: two 5x5 convolutions of 64 channels, hidden layers of 384 and 192."""
    return _cnn(shape, classes, (64, 64), (384, 192))


@net("cfic-emnist")
def cfic_emnist(shape: Shape, classes: int) -> nn.Module:
    """CFIC's net for EMNIST: 5x5 convolutions of 32, 32 and 64 channels, pooled after the second and third, then 256.

    The paper gives channels, the 576 inputs of the hidden layer, and "a unique pooling connection sequence": this is
    FLGo's net for FEMNIST, the framework whose nets the paper's others are. The count of parameters fits others too.
    """
    before, *sides = _image(shape, least=20)
    layers: list[nn.Module] = []
    for width, pool in ((32, False), (32, True), (64, True)):
        layers += [nn.Conv2d(before, width, 5), nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]
        before, sides = width, [(side - 4) // 2 if pool else side - 4 for side in sides]
    return nn.Sequential(*layers, *_head(before * prod(sides), 256, classes))


@net("lenet5")
def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max pooling: 5x5 convolutions of 6 and 16 channels, hidden layers of 120 and 84."""
    return _cnn(shape, classes, (6, 16), (120, 84))


@net("resnet9")
def resnet9(shape: Shape, classes: int) -> nn.Module:
    """ResNet-9 with group normalisation, for 32x32 images."""
    channels, _, _ = _image(shape, least=8)

    def block(before: int, after: int, pool: bool = False) -> nn.Sequential:
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(32, after), nn.ReLU()]
        return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))

    return nn.Sequential(
        block(channels, 64),
        block(64, 128, pool=True),
        Residual(nn.Sequential(block(128, 128), block(128, 128))),
        block(128, 256, pool=True),
        block(256, 512, pool=True),
        Residual(nn.Sequential(block(512, 512), block(512, 512))),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


@net("resnet18")
def resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 with batch normalisation, for 32x32 images (3x3 first convolution, no first pooling)."""
    channels, _, _ = _image(shape, least=8)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_BasicBlock(before, width, stride), _BasicBlock(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class _BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second(rectified(self.first_norm, self.first(x)))
        return rectified(self.second_norm, inner, self.shortcut(x))


@net("vgg19")
def vgg19(shape: Shape, classes: int) -> nn.Module:
    """VGG-19 with batch normalisation, for 32x32 images, with hidden layers of 512 and 512."""
    channels, height, width = _image(shape, least=32)
    layers: list[nn.Module] = []
    for repeats, after in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            channels = after
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(512 * (height // 32) * (width // 32), 512, 512, classes))


@net("cnn-1d", "series")
def cnn_1d(shape: Shape, classes: int) -> nn.Module:
    """For series: convolutions of 32 and 64 channels over 5 steps, and the mean over time."""
    time, channels = shape
    if time < 2:
        raise SettingsError(f"series of {time} step are too short: at least 2 are needed")
    return nn.Sequential(
        ChannelsFirst(),
        nn.Conv1d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


@net("gru", "series", "token ids")
def gru(shape: Shape, classes: int, vocabulary: int) -> nn.Module:
    """For series and token ids: a gated recurrent unit of 64, which sees embeddings of 32 for tokens."""
    return Recurrent(shape, classes, vocabulary)


@net("transformer", "series", "token ids")
def transformer(shape: Shape, classes: int, vocabulary: int) -> nn.Module:
    """For series and token ids: two blocks of attention with 4 heads of 16, learned positions."""
    return Transformer(shape, classes, vocabulary)


@net("embedding-bag", "token ids")
def embedding_bag(shape: Shape, classes: int, vocabulary: int) -> nn.Module:
    """For token ids: the mean of their embeddings of 64, and a linear layer."""
    return EmbeddingBag(classes, vocabulary)
