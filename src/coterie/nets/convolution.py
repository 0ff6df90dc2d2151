"""Convolution and pooling for stacks of clients under `vmap`, where each client has weights of its own.

`vmap` by itself makes grouped convolutions of them, which are slower. The functions here have a rule for `vmap` that
calls our kernels (`coterie.nets.kernels`), and have each other as derivatives: so they can be differentiated any number
of times. Our kernels are used only where Triton and a GPU are there.
"""

from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.grad import conv2d_weight

Padding = tuple[int, int]

_MOST_CHANNELS = 64
"""Most channels for our kernels; with more cuDNN's grouped convolutions are faster."""


class Kernels(Protocol):
    """What the functions here need of `coterie.nets.kernels`, or of a reference in its place."""

    def convolution(
        self, images: Tensor, kernels: Tensor, biases: Tensor | None, padding: Padding, flip: bool, precision: str
    ) -> Tensor:
        """Convolve images [client, row, channel, y, x] with kernels [client, filter, y, x, channel]."""

    def weight_gradient(self, images: Tensor, gradients: Tensor, padding: Padding, precision: str) -> Tensor:
        """The gradient with respect to the kernels, [client, filter, y, x, channel]."""

    def pool(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The largest pixel of each square of 2x2 in [..., y, x], and which of the four it is."""

    def unpool(self, gradients: Tensor, index: Tensor, height: int, width: int) -> Tensor:
        """The gradient of each square at the pixel that was the largest, and 0 at the other three."""

    def group_norm(
        self, images: Tensor, weights: Tensor, biases: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise images [row, channel, y, x] that lie channels-last; gives centres and scales [row, channel] too."""

    def group_norm_back(
        self, images: Tensor, gradients: Tensor, centres: Tensor, scales: Tensor, weights: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients with respect to images, weights and biases."""


@cache
def _triton() -> Kernels | None:
    """Our kernels, if Triton is there."""
    try:
        from coterie.nets import kernels
    except ImportError:
        return None
    return kernels


def convolving(x: Tensor, weight: Tensor) -> Kernels | None:
    """Our kernels, if they can compute this convolution and are faster than torch's."""
    few = max(weight.shape[:2]) <= _MOST_CHANNELS
    return pooling(x) if few and torch.backends.cudnn.allow_tf32 else None


def pooling(x: Tensor) -> Kernels | None:
    """Our kernels, if they can pool these images: in float32 on a GPU."""
    usual = x.is_cuda and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
    return _triton() if usual else None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding, kernels: Kernels) -> Tensor:
    """`F.conv2d`, which under `vmap` is computed with these kernels."""
    result: Tensor = _Convolution.apply(x, weight, bias, padding, kernels)
    return result


class _Convolution(torch.autograd.Function):
    """Convolution."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding, kernels: Kernels) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.padding, ctx.kernels = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        back = _InputGradient.apply(gradient, weight, ctx.padding, ctx.kernels) if ctx.needs_input_grad[0] else None
        weights = _WeightGradient.apply(x, gradient, ctx.padding, ctx.kernels)
        return back, weights, gradient.sum((0, 2, 3)) if ctx.biased else None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding, kernels: Kernels
    ) -> tuple[Tensor, int]:
        x, weight = _stacked(info, dims, x, weight)
        biases = None if bias is None else _stacked(info, dims[2:], bias)[0]
        return kernels.convolution(x, weight.movedim(2, 4), biases, padding, False, "tf32"), 0


class _InputGradient(torch.autograd.Function):
    """The gradient of a convolution with respect to its input, from that of its output."""

    @staticmethod
    def forward(gradient: Tensor, weight: Tensor, padding: Padding, kernels: Kernels) -> Tensor:
        return F.conv_transpose2d(gradient, weight, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gradient, weight, ctx.padding, ctx.kernels = inputs
        ctx.save_for_backward(gradient, weight)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> Any:
        gradient, weight = ctx.saved_tensors
        along = _Convolution.apply(change, weight, None, ctx.padding, ctx.kernels)
        return along, _WeightGradient.apply(change, gradient, ctx.padding, ctx.kernels), None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, gradient: Tensor, weight: Tensor, padding: Padding, kernels: Kernels
    ) -> tuple[Tensor, int]:
        gradient, weight = _stacked(info, dims, gradient, weight)
        around = (weight.shape[3] - 1 - padding[0], weight.shape[4] - 1 - padding[1])
        return kernels.convolution(gradient, weight.movedim(2, 4), None, around, True, "tf32"), 0


class _WeightGradient(torch.autograd.Function):
    """The gradient of a convolution with respect to its weights, from that of its output."""

    @staticmethod
    def forward(x: Tensor, gradient: Tensor, padding: Padding, kernels: Kernels) -> Tensor:
        sizes = [x.shape[axis] + 2 * padding[axis - 2] - gradient.shape[axis] + 1 for axis in (2, 3)]
        return conv2d_weight(x, (gradient.shape[1], x.shape[1], *sizes), gradient, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, gradient, ctx.padding, ctx.kernels = inputs
        ctx.save_for_backward(x, gradient)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> Any:
        x, gradient = ctx.saved_tensors
        back = _InputGradient.apply(gradient, change, ctx.padding, ctx.kernels) if ctx.needs_input_grad[0] else None
        return back, _Convolution.apply(x, change, None, ctx.padding, ctx.kernels), None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, gradient: Tensor, padding: Padding, kernels: Kernels
    ) -> tuple[Tensor, int]:
        x, gradient = _stacked(info, dims, x, gradient)
        return kernels.weight_gradient(x, gradient, padding, "tf32").movedim(4, 2), 0


def pool(x: Tensor, kernels: Kernels) -> Tensor:
    """`F.max_pool2d(x, 2)`, computed with these kernels."""
    result: Tensor = _StackedPool.apply(x, kernels)[0]
    return result


class _StackedPool(torch.autograd.Function):
    """The largest pixel of each square of 2x2, and which of the four it is."""

    @staticmethod
    def forward(x: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        return kernels.pool(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.kernels = inputs
        ctx.sizes = tuple(x.shape[-2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        return _Unpool.apply(gradient, *ctx.saved_tensors, ctx.sizes, ctx.kernels), None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, kernels: Kernels) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return kernels.pool(x.movedim(dims[0], 0)), (0, 0)


class _Unpool(torch.autograd.Function):
    """The gradient of pooling. It is linear in the gradients, and its derivative picks the same pixels again."""

    @staticmethod
    def forward(gradient: Tensor, index: Tensor, sizes: tuple[int, int], kernels: Kernels) -> Tensor:
        return kernels.unpool(gradient, index, *sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, index, _, _ = inputs
        ctx.save_for_backward(index)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        high, wide = index.shape[-2:]
        squares = change[..., : 2 * high, : 2 * wide].unflatten(-1, (wide, 2)).unflatten(-3, (high, 2))
        four = squares.transpose(-3, -2).flatten(-2)
        return four.gather(-1, index.long().unsqueeze(-1)).squeeze(-1), None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, gradient: Tensor, index: Tensor, sizes: tuple[int, int], kernels: Kernels
    ) -> tuple[Tensor, int]:
        gradient, index = _stacked(info, dims, gradient, index)
        return kernels.unpool(gradient, index, *sizes), 0


def normalise(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, kernels: Kernels) -> Tensor:
    """`F.group_norm`, computed with these kernels, for images that lie channels-last."""
    result: Tensor = _StackedGroupNorm.apply(x, weight, bias, groups, eps, kernels)[0]
    return result


class _StackedGroupNorm(torch.autograd.Function):
    """Group normalisation. Whoever differentiates it twice gets torch's own derivatives."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, kernels: Kernels
    ) -> tuple[Tensor, Tensor, Tensor]:
        return kernels.group_norm(x, weight, bias, groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, ctx.groups, ctx.eps, ctx.kernels = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, bias, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        x, weight, bias, centres, scales = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants to differentiate this again

            def native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return F.group_norm(x, ctx.groups, weight, bias, ctx.eps)

            return *torch.func.vjp(native, x, weight, bias)[1](gradient), None, None, None
        return *ctx.kernels.group_norm_back(x, gradient, centres, scales, weight, ctx.groups), None, None, None


def _stacked(info: Any, dims: Any, *tensors: Tensor) -> list[Tensor]:
    """The tensors with the client as their first axis. One that all clients share is expanded, not copied."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]
