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
        self, images: Tensor, weights: Tensor, biases: Tensor, shifts: Tensor | None, groups: int, eps: float,
        rectify: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Normalise images [row, channel, y, x] that lie channels-last, after shifts of their channels; ReLU, if asked.

        Gives centres, from which shifts are taken off, and scales [row, channel] too.
        """

    def group_norm_back(
        self, images: Tensor, gradients: Tensor, centres: Tensor, scales: Tensor, weights: Tensor, biases: Tensor,
        groups: int, rectify: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """The gradients with respect to images, weights, biases and shifts."""

    def batch_norm(
        self, images: Tensor, others: Tensor | None, weights: Tensor, biases: Tensor, shifts: Tensor | None,
        running_mean: Tensor, running_variance: Tensor, momentum: float, eps: float, rectify: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Normalise images [row, channel, y, x] that lie channels-last over all rows, add others, and ReLU, if asked.

        Gives centres, scales, and the running mean and variance that follow, [4, channel], too.
        """

    def batch_norm_back(
        self, images: Tensor, gradients: Tensor, results: Tensor | None, kept: Tensor, weights: Tensor, biases: Tensor,
        rectify: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """The gradients with respect to images, weights, biases and others."""


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


def channels_last_kernels(x: Tensor) -> Kernels | None:
    """Our kernels, if these are images that lie channels-last on a GPU, in float32 or bfloat16."""
    if not (x.is_cuda and x.dim() == 4 and x.dtype in (torch.float32, torch.bfloat16)):
        return None
    return _triton() if x.is_contiguous(memory_format=torch.channels_last) else None


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


def group_normalise(
    x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None, groups: int, eps: float, rectify: bool,
    kernels: Kernels,
) -> Tensor:  # fmt: skip
    """`F.group_norm` of images, which lie channels-last and whose channels are shifted first, and ReLU, if asked."""
    result: Tensor = _GroupNorm.apply(x, weight, bias, shift, groups, eps, rectify, kernels)[0]
    return result


class _GroupNorm(torch.autograd.Function):
    """Group normalisation. Whoever differentiates it twice gets torch's own derivatives."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None, groups: int, eps: float, rectify: bool,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return kernels.group_norm(x, weight, bias, shift, groups, eps, rectify)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, shift, ctx.groups, ctx.eps, ctx.rectify, ctx.kernels = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, bias, shift, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        x, weight, bias, shift, centres, scales = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            shifted = x if shift is None else x + shift[:, None, None]

            def native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                result = F.group_norm(x, ctx.groups, weight, bias, ctx.eps)
                return F.relu(result) if ctx.rectify else result

            back, *others = torch.func.vjp(native, shifted, weight, bias)[1](gradient)
            return back, *others, None if shift is None else back.sum((0, 2, 3)), *[None] * 4
        back, *others, of_shift = ctx.kernels.group_norm_back(
            x, gradient, centres, scales, weight, bias, ctx.groups, ctx.rectify
        )
        return back, *others, None if shift is None else of_shift.to(shift.dtype), *[None] * 4


def batch_normalise(
    x: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor, shift: Tensor | None, running_mean: Tensor,
    running_variance: Tensor, momentum: float, eps: float, rectify: bool, kernels: Kernels,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`F.batch_norm` of images, which lie channels-last, plus others, and ReLU, if asked.

    The shifts of channels, of which normalisation leaves nothing, are only in the running mean, which it gives too, as
    it gives the running variance.
    """
    running = (running_mean, running_variance)
    result, kept = _BatchNorm.apply(x, other, weight, bias, shift, *running, momentum, eps, rectify, kernels)
    return result, kept[2], kept[3]


class _BatchNorm(torch.autograd.Function):
    """Batch normalisation. Whoever differentiates it twice gets torch's own derivatives."""

    @staticmethod
    def forward(
        x: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor, shift: Tensor | None, running_mean: Tensor,
        running_variance: Tensor, momentum: float, eps: float, rectify: bool, kernels: Kernels,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        running = (running_mean, running_variance)
        return kernels.batch_norm(x, other, weight, bias, shift, *running, momentum, eps, rectify)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, other, weight, bias, *_, ctx.eps, ctx.rectify, ctx.kernels = inputs
        result, kept = output
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(x, other, weight, bias, None if other is None else result, kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        x, other, weight, bias, result, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants to differentiate this again

            def native(x: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
                result = F.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
                result = result if other is None else result + other
                return F.relu(result) if ctx.rectify else result

            if other is None:
                back, *others = torch.func.vjp(lambda x, *of: native(x, None, *of), x, weight, bias)[1](gradient)
                return back, None, *others, *[None] * 7
            return *torch.func.vjp(native, x, other, weight, bias)[1](gradient), *[None] * 7
        back, *others, passed = ctx.kernels.batch_norm_back(x, gradient, result, kept, weight, bias, ctx.rectify)
        return back, None if other is None else passed, *others, *[None] * 7


def _stacked(info: Any, dims: Any, *tensors: Tensor) -> list[Tensor]:
    """The tensors with the client as their first axis. One that all clients share is expanded, not copied."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]
