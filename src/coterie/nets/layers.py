"""Layers that take the place of torch's own in every net: `adopt` puts them there.

Vectorised training fills the batches of clients with less samples up to one length. Torch's batch normalisation would
count the rows that only fill up, and its dropout would draw noise by a client's place in the stack. Ours are told which
rows are real, and a key from which to draw (`Pass`). They keep the names of torch's parameters, so weights can be
exchanged with plain PyTorch nets. Convolution, pooling and normalisation use our kernels on a GPU, and where
normalisation stands between other layers, it does part of their work in the same passes: biases before it, sums and
ReLU behind it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from coterie.core.errors import SettingsError
from coterie.core.randomness import uniform
from coterie.nets.convolution import (
    Kernels,
    batch_normalise,
    channels_last_kernels,
    convolve,
    convolving,
    group_normalise,
    pool,
    pooling,
)


@dataclass
class Pass:
    """What layers must know about the forward pass that is under way."""

    training: bool = False
    rows: Tensor | None = None
    """1 for real rows and 0 for those that only fill up, [row]; None if all are real."""
    key: Tensor | None = None
    """The key, a scalar, from which the noise of this pass is drawn."""
    draws: int = 0
    """How many times layers have drawn noise in this pass: each time it is another one."""
    stacked: bool = False
    """Whether a stack of models runs at once, under `vmap`."""
    features: Tensor | None = None
    """What the net's last layer got in this pass."""

    def noise(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1) of this shape, other ones with each call."""
        if self.key is None:
            raise SettingsError("a pass with dropout needs a key")
        self.draws += 1
        # `uniform` counts on from its key: keys are so far apart that no layer reaches the next one's, within 64 bits.
        return uniform(self.key + (self.draws * 0x5851F42D4C957F2D & (1 << 63) - 1), *shape)


class _Local(threading.local):
    """The current pass of each thread: one of evaluation, unless `passing` says another."""

    current = Pass()


_local = _Local()


@contextmanager
def passing(current: Pass) -> Iterator[None]:
    """Let layers see this pass as the current one, in this thread."""
    before, _local.current = _local.current, current
    try:
        yield
    finally:
        _local.current = before


def note_features(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Let the current pass know what a layer gets: a hook of the net's last layer."""
    _local.current.features = inputs[0]


class BatchNorm(nn.Module):
    """Batch normalisation of each channel over all other axes. Only real rows count."""

    running_mean: Tensor
    running_var: Tensor
    frozen: bool = False
    """Whether it has parameters and none is trained: it then normalises as in evaluation, and counts nothing."""
    follows: "tuple[Conv2d, ...]" = ()
    """The convolution whose biases it takes over: see `_take_biases`. In a tuple, as it is no layer inside of this."""
    rectifies: bool = False
    """Whether it takes over the ReLU behind it: see `_take_relu`."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, other: Tensor | None = None, rectify: bool = False) -> Tensor:
        """Normalise [row, channel, ...], add another tensor of this shape, and ReLU, if asked."""
        current, rectify = _local.current, rectify or self.rectifies
        learns = current.training and not self.frozen
        if learns and current.rows is None and x.numel() > x.shape[1]:
            kernels = self._kernels(x, other, current)
            if kernels is not None:
                return self._with_kernels(x, other, rectify, kernels)
        result = self._normalised(x, current.rows if learns else None, learns)
        result = result if other is None else result + other
        return F.relu(result) if rectify else result

    def _normalised(self, x: Tensor, rows: Tensor | None, learns: bool) -> Tensor:
        if not learns:
            return self._native(x, self.running_mean, self.running_var, training=False)
        if rows is None and x.numel() > x.shape[1]:
            # Torch's own kernel is faster, but counts every row: here all are real.
            mean, variance = self.running_mean.clone(), self.running_var.clone()
            result = self._native(x, mean, variance, training=True)
            self.running_mean, self.running_var = self._with_biases(mean), variance
            return result
        others = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        given, x = x.dtype, x.to(self.running_mean.dtype)  # sums of bfloat16 would be too coarse
        rows = x.new_ones(x.shape[0]) if rows is None else rows.to(x.dtype)
        real = rows.reshape([-1] + [1] * (x.dim() - 1))
        count = rows.sum() * (x[0, 0].numel())
        mean = (x * real).sum(others) / count
        centred = x - mean.reshape(shape)
        variance = (centred.square() * real).sum(others) / count
        # New tensors, not changed in place: the caller collects them, and vmap and grad can handle them.
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean = self._with_biases(torch.lerp(self.running_mean, mean.detach(), self.momentum))
        self.running_var = torch.lerp(self.running_var, unbiased.detach(), self.momentum)
        x = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.weight is not None:
            x = x * self.weight.reshape(shape)
        if self.bias is not None:
            x = x + self.bias.reshape(shape)
        return x.to(given)

    def _kernels(self, x: Tensor, other: Tensor | None, current: Pass) -> Kernels | None:
        """Our kernels, where these can compute this layer."""
        if current.stacked or self.weight is None or self.bias is None or x.shape[1] % 16:
            return None
        if other is not None and (other.dtype != x.dtype or channels_last_kernels(other) is None):
            return None
        return channels_last_kernels(x)

    def _with_kernels(self, x: Tensor, other: Tensor | None, rectify: bool, kernels: Kernels) -> Tensor:
        assert self.weight is not None
        assert self.bias is not None
        shift = self.follows[0].bias if self.follows else None
        running = (self.running_mean, self.running_var)
        result, self.running_mean, self.running_var = batch_normalise(
            x, other, self.weight, self.bias, shift, *running, self.momentum, self.eps, rectify, kernels
        )
        return result

    def _with_biases(self, mean: Tensor) -> Tensor:
        """The running mean, with what the biases that were left out before this layer would have added to it."""
        for convolution in self.follows:
            assert convolution.bias is not None
            mean = torch.add(mean, convolution.bias.detach(), alpha=self.momentum)
        return mean

    def _native(self, x: Tensor, mean: Tensor, variance: Tensor, training: bool) -> Tensor:
        def run(x: Tensor) -> Tensor:
            return F.batch_norm(x, mean, variance, self.weight, self.bias, training, self.momentum, self.eps)

        return _in_any_layout(run, x)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # torch's layer has it; a fixed momentum has no use for it
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Conv2d(nn.Conv2d):
    """Torch's convolution, which computes a stack of models with our kernels where these can."""

    frozen: bool = False
    """Whether no parameter is trained: all models then have the same, and torch sees their rows as one batch."""
    followed: type[nn.Module] | None = None
    """The kind of normalisation that follows and takes over the biases, if one does: see `_take_biases`."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [row, channel, height, width]."""
        current = _local.current
        weight, bias = self.weight, None if self._hands_on(x, current) else self.bias
        kernels = convolving(x, weight) if current.stacked and not self.frozen and self._plain(x) else None
        if kernels is not None:
            return convolve(x, weight, bias, self.padding, kernels)  # type: ignore[arg-type]
        return self._conv_forward(x, weight, bias)

    def _hands_on(self, x: Tensor, current: Pass) -> bool:
        """Whether the layer that follows takes care of the biases."""
        if self.followed is GroupNorm:
            return takes_biases(x, current)
        return self.followed is not None and current.training

    def _plain(self, x: Tensor) -> bool:
        usual = (self.stride, self.dilation, self.groups, self.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        return usual and isinstance(self.padding, tuple) and x.dim() == 4


class MaxPool2d(nn.MaxPool2d):
    """Torch's max pooling, which computes stacks of models and images that lie channels-last with our kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool [row, channel, height, width]."""
        kernels = None
        if self._plain:
            kernels = pooling(x) if _local.current.stacked else channels_last_kernels(x)
        return super().forward(x) if kernels is None else pool(x, kernels)

    @property
    def _plain(self) -> bool:
        twos, rest = ((2, 2), 2), (self.padding, self.dilation, self.return_indices, self.ceil_mode)
        return self.kernel_size in twos and self.stride in twos and rest == (0, 1, False, False)


class GroupNorm(nn.GroupNorm):
    """Torch's group normalisation, which computes images that lie channels-last with our kernels where these can."""

    follows: tuple[Conv2d, ...] = ()
    """The convolution whose biases it takes over on a GPU: see `_take_biases`. In a tuple, as in `BatchNorm`."""
    rectifies: bool = False
    """Whether it takes over the ReLU behind it: see `_take_relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [row, channel, ...]."""
        current = _local.current
        shift = self.follows[0].bias if self.follows and takes_biases(x, current) else None
        kernels = channels_last_kernels(x) if self.takes_channels_last and not current.stacked else None
        if kernels is not None:
            return group_normalise(x, self.weight, self.bias, shift, self.num_groups, self.eps, self.rectifies, kernels)
        result = _in_any_layout(super().forward, x if shift is None else x + shift[:, None, None])
        return F.relu(result) if self.rectifies else result

    @property
    def takes_channels_last(self) -> bool:
        """Whether our kernels can compute this layer: channels and groups must be powers of two."""
        powers = all(number & (number - 1) == 0 for number in (self.num_channels, self.num_groups))
        return powers and self.affine and self.num_channels <= 1024


def takes_biases(x: Tensor, current: Pass) -> bool:
    """Whether group normalisation adds the biases of the convolution before it: where our kernels do both at once."""
    return x.is_cuda and not current.stacked


def _in_any_layout(kernel: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The result of one of torch's kernels, also where it fails for images that lie channels-last under `vmap`.

    Some kernels ask for the memory format, which `vmap` cannot tell them: group normalisation on a CPU, and batch
    normalisation on a GPU.
    """
    try:
        return kernel(x)
    except RuntimeError:
        return kernel(x.contiguous())


class Taken(nn.ReLU):
    """A ReLU that the normalisation before it has taken over: it does nothing any more."""

    def forward(self, x: Tensor) -> Tensor:
        """The inputs."""
        return x


def rectified(norm: nn.Module, x: Tensor, other: Tensor | None = None) -> Tensor:
    """What normalisation makes of x, plus another tensor, and ReLU: in one pass if the layer is ours."""
    if isinstance(norm, BatchNorm):
        joined: Tensor = norm(x, other, rectify=True)
        return joined
    result: Tensor = norm(x)
    return F.relu(result if other is None else result + other)


class Residual(nn.Module):
    """What a branch makes of its input, added to the input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """The sum, [row, ...]."""
        result: Tensor = x + self.inner(x)
        return result


class Dropout(nn.Module):
    """Dropout whose noise is drawn from the key of the pass; it drops whole channels if `channels` is set."""

    def __init__(self, share: float = 0.5, channels: bool = False) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise SettingsError(f"dropout of a share of {share}: in [0, 1)")
        self.share, self.channels = share, channels

    def forward(self, x: Tensor) -> Tensor:
        """Set a share of [row, ...] to zero, and scale the rest up so that the mean stays."""
        current = _local.current
        if not current.training or self.share == 0:
            return x
        shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if self.channels else x.shape
        keep = current.noise(*shape) >= self.share
        return x * keep.to(x.dtype) / (1 - self.share)


def as_stock(module: nn.Module, example: Tensor) -> nn.Module:
    """The module with torch's own layers in place of ours, so that it works without Coterie.

    Which of torch's classes that is depends on the inputs that a layer gets, which an `example` of inputs shows.
    """
    axes: dict[nn.Module, int] = {}
    ours = [layer for layer in module.modules() if isinstance(layer, BatchNorm | Dropout)]

    def note(layer: nn.Module, inputs: Any) -> None:
        axes[layer] = inputs[0].dim()

    hooks = [layer.register_forward_pre_hook(note) for layer in ours]
    with torch.no_grad():
        module.eval()(example)
    for hook in hooks:
        hook.remove()
    return _with_stock(module, axes)


def _with_stock(module: nn.Module, axes: dict[nn.Module, int]) -> nn.Module:
    for name, child in module._modules.items():
        module._modules[name] = None if child is None else _with_stock(child, axes)
    stock: nn.Module
    if isinstance(module, BatchNorm):
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 5: nn.BatchNorm3d}.get(axes.get(module, 4), nn.BatchNorm2d)
        mean, affine = module.running_mean, module.weight is not None
        stock = kind(len(mean), module.eps, module.momentum, affine=affine, dtype=mean.dtype)
        stock.load_state_dict(module.state_dict(), strict=False)
        return stock.eval()
    if type(module) in (Taken, Conv2d, MaxPool2d, GroupNorm):
        module.__class__ = type(module).__bases__[0]  # torch's own
    if isinstance(module, Dropout):
        channels = {3: nn.Dropout1d, 5: nn.Dropout3d}.get(axes.get(module, 4), nn.Dropout2d)
        return (channels if module.channels else nn.Dropout)(module.share).eval()
    return module


_STOCK_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_STOCK_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_STOCK_CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def adopt(module: nn.Module) -> nn.Module:
    """Put our layers into a net in place of torch's, and let these do their neighbours' work where that is quicker.

    Returns the net, or what replaces it.
    """
    module = _adopted(module, {})
    _pool_first(module)
    for layer in module.modules():
        if isinstance(layer, BatchNorm | Conv2d):
            own = list(layer.parameters(recurse=False))
            layer.frozen = bool(own) and not any(parameter.requires_grad for parameter in own)
    _take_biases(module)
    _take_relu(module)
    return module


def _take_relu(module: nn.Module) -> None:
    """Where ReLU follows normalisation, let normalisation compute it in the pass that it makes anyway."""
    used = Counter(child for parent in module.modules() for child in parent._modules.values())
    for first, second in _unseen_pairs(module):
        alone = used[first] == used[second] == 1
        if isinstance(first, BatchNorm | GroupNorm) and type(second) is nn.ReLU and alone:
            first.rectifies, second.__class__ = True, Taken


def _take_biases(module: nn.Module) -> None:
    """Where normalisation follows a convolution, let it take care of the convolution's biases.

    To add biases, and to sum up their gradient, are two more passes over all pixels. Batch normalisation takes away
    again what they add, and their gradient is 0 but for rounding: in training they are left out, and only the running
    mean knows them. Group normalisation adds them in our kernels, in passes that it makes anyway. A layer that is used
    in several places is left as it is.
    """
    used = Counter(child for parent in module.modules() for child in parent._modules.values())
    for first, second in _unseen_pairs(module):
        norm = isinstance(second, GroupNorm) or (isinstance(second, BatchNorm) and not second.frozen)
        if norm and isinstance(first, Conv2d) and first.bias is not None and used[first] == used[second] == 1:
            first.followed, second.follows = type(second), (first,)  # type: ignore[assignment]


def _unseen_pairs(module: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Layers that follow one another where no other code can see what is between them.

    That is so in a net that is a sequence, and in sequences and residual branches directly within such ones.
    """
    children = [child for child in module._modules.values() if child is not None]
    if type(module) is nn.Sequential:
        yield from pairwise(children)
    if type(module) in (nn.Sequential, Residual):
        for child in children:
            yield from _unseen_pairs(child)


def _pool_first(module: nn.Module) -> None:
    """Where max pooling follows ReLU, swap the two: ReLU then has a quarter of the pixels to compute.

    Outputs and gradients stay the same to the last bit: ReLU does not change which of several numbers is the largest,
    and where that is not above zero, no gradient passes in either order. This is done only in a net that is a sequence,
    and in sequences directly within such ones: there no other code can see what is between the two layers.
    """
    if type(module) is not nn.Sequential:
        return
    layers = module._modules
    for first, second in pairwise(list(layers)):
        pooling = layers[second]
        if type(layers[first]) is nn.ReLU and isinstance(pooling, MaxPool2d) and not pooling.return_indices:
            layers[first], layers[second] = pooling, layers[first]
    for child in module.children():
        _pool_first(child)


def _adopted(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module with our layers inside, or the layer of ours that replaces it."""
    if module not in done:  # a layer may be used in several places
        for name, child in module._modules.items():
            module._modules[name] = None if child is None else _adopted(child, done)
        done[module] = _replacement(module)
    return done[module]


def _replacement(module: nn.Module) -> nn.Module:
    """The layer of ours for a layer of torch's, or the module itself if it needs none; an error for some layers."""
    if isinstance(module, _STOCK_NORMS):
        if module.momentum is None or module.running_mean is None or module.running_var is None:
            raise SettingsError(f"{module}: batch normalisation needs running statistics and a momentum")
        norm = BatchNorm(module.num_features, module.eps, module.momentum, affine=False)
        norm.weight, norm.bias = module.weight, module.bias
        norm.running_mean, norm.running_var = module.running_mean, module.running_var
        return norm
    if isinstance(module, nn.GroupNorm):
        module.__class__ = GroupNorm
    if type(module) is nn.Conv2d:
        module.__class__ = Conv2d
    if type(module) is nn.MaxPool2d:
        module.__class__ = MaxPool2d
    if isinstance(module, nn.Dropout):
        return Dropout(module.p)
    if isinstance(module, _STOCK_CHANNEL_DROPOUTS):
        return Dropout(module.p, channels=True)
    counting = isinstance(module, _STOCK_INSTANCE_NORMS) and module.track_running_stats
    if counting or isinstance(module, nn.SyncBatchNorm | nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU):
        raise SettingsError(f"{module}: not supported; use nn.BatchNorm, nn.GroupNorm or nn.Dropout")
    return module
