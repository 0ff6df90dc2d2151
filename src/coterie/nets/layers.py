"""Layers that take the place of torch's own in every net: `adopt` puts them there.

Vectorised training fills the batches of clients with less samples up to one length. Torch's batch normalisation would
count the rows that only fill up, and its dropout would draw noise by a client's place in the stack. Ours are told which
rows are real, and a key from which to draw (`Pass`). They keep the names of torch's parameters, so weights can be
exchanged with plain PyTorch nets. Convolution, pooling and group normalisation use our kernels on a GPU.
"""

import threading
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
from coterie.nets.convolution import convolve, convolving, normalise, pool, pooling


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

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [row, channel, ...]."""
        current = _local.current
        if self.frozen or not current.training:
            return self._native(x, self.running_mean, self.running_var, training=False)
        if current.rows is None and x.numel() > x.shape[1]:
            # Torch's own kernel is faster, but counts every row: here all are real.
            mean, variance = self.running_mean.clone(), self.running_var.clone()
            result = self._native(x, mean, variance, training=True)
            self.running_mean, self.running_var = mean, variance
            return result
        others = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        given, x = x.dtype, x.to(self.running_mean.dtype)  # sums of bfloat16 would be too coarse
        rows = x.new_ones(x.shape[0]) if current.rows is None else current.rows.to(x.dtype)
        real = rows.reshape([-1] + [1] * (x.dim() - 1))
        count = rows.sum() * (x[0, 0].numel())
        mean = (x * real).sum(others) / count
        centred = x - mean.reshape(shape)
        variance = (centred.square() * real).sum(others) / count
        # New tensors, not changed in place: the caller collects them, and vmap and grad can handle them.
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean = torch.lerp(self.running_mean, mean.detach(), self.momentum)
        self.running_var = torch.lerp(self.running_var, unbiased.detach(), self.momentum)
        x = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.weight is not None:
            x = x * self.weight.reshape(shape)
        if self.bias is not None:
            x = x + self.bias.reshape(shape)
        return x.to(given)

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

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [row, channel, height, width]."""
        current = _local.current
        kernels = convolving(x, self.weight) if current.stacked and not self.frozen and self._plain(x) else None
        if kernels is None:
            return super().forward(x)
        return convolve(x, self.weight, self.bias, self.padding, kernels)  # type: ignore[arg-type]

    def _plain(self, x: Tensor) -> bool:
        usual = (self.stride, self.dilation, self.groups, self.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        return usual and isinstance(self.padding, tuple) and x.dim() == 4


class MaxPool2d(nn.MaxPool2d):
    """Torch's max pooling, which computes a stack of models with our kernels where these can."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool [row, channel, height, width]."""
        current = _local.current
        kernels = pooling(x) if current.stacked and self._plain else None
        return super().forward(x) if kernels is None else pool(x, kernels)

    @property
    def _plain(self) -> bool:
        twos, rest = ((2, 2), 2), (self.padding, self.dilation, self.return_indices, self.ceil_mode)
        return self.kernel_size in twos and self.stride in twos and rest == (0, 1, False, False)


class GroupNorm(nn.GroupNorm):
    """Torch's group normalisation, which computes images that lie channels-last with our kernels where these can."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [row, channel, ...]."""
        current = _local.current
        kernels = pooling(x) if self.takes_channels_last and not current.stacked and x.dim() == 4 else None
        if kernels is None or not x.is_contiguous(memory_format=torch.channels_last):
            return _in_any_layout(super().forward, x)
        return normalise(x, self.weight, self.bias, self.num_groups, self.eps, kernels)

    @property
    def takes_channels_last(self) -> bool:
        """Whether our kernels can compute this layer: channels and groups must be powers of two."""
        powers = all(number & (number - 1) == 0 for number in (self.num_channels, self.num_groups))
        return powers and self.affine and self.num_channels <= 1024


def _in_any_layout(kernel: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The result of one of torch's kernels, also where it fails for images that lie channels-last under `vmap`.

    Some kernels ask for the memory format, which `vmap` cannot tell them: group normalisation on a CPU, and batch
    normalisation on a GPU.
    """
    try:
        return kernel(x)
    except RuntimeError:
        return kernel(x.contiguous())


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
        stock = kind(len(module.running_mean), module.eps, module.momentum, affine=module.weight is not None)
        stock.load_state_dict(module.state_dict(), strict=False)
        return stock.to(module.running_mean.dtype).eval()
    if isinstance(module, Dropout):
        channels = {3: nn.Dropout1d, 5: nn.Dropout3d}.get(axes.get(module, 4), nn.Dropout2d)
        return (channels if module.channels else nn.Dropout)(module.share).eval()
    return module


_STOCK_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_STOCK_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_STOCK_CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def adopt(module: nn.Module) -> nn.Module:
    """Put our layers into a net in place of torch's, and pooling before ReLU. Returns the net, or what replaces it."""
    module = _adopted(module, {})
    _pool_first(module)
    for layer in module.modules():
        if isinstance(layer, BatchNorm | Conv2d):
            own = list(layer.parameters(recurse=False))
            layer.frozen = bool(own) and not any(parameter.requires_grad for parameter in own)
    return module


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
