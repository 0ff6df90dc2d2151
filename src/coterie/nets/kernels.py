"""Kernels for a GPU, written in Triton: convolution, pooling and normalisation.

cuDNN computes the convolutions of many clients as a grouped one: with a small kernel for each client, and in memory
formats that cost copies. Here the client is an axis of the grid, images stay as they are, and the matrix with which a
convolution multiplies is never written to memory. One kernel convolves, which also gives the gradient of the input; one
gives the gradient of the weights. Torch's own kernels for pooling are several times slower than memory allows, as are
those for batch normalisation of images that lie channels-last; for group normalisation it copies such images into its
usual format and back. What follows normalisation at once (ReLU, a sum with another branch) is done in the same pass.

Two traps: with a `tl.where` on a tile between its load and the dot product, the gradient of the weights took five times
as long; and with tiles loaded as [tap, pixel] instead of [pixel, tap], twice as long.
"""

# ruff: noqa: N803  (arguments that are known when a kernel is compiled are in capitals)
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _convolve(
    images, kernels, biases, out, images_stride, kernels_stride, biases_stride, rows,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    FILTERS: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr, PAD_HEIGHT: tl.constexpr, PAD_WIDTH: tl.constexpr,
    BIAS: tl.constexpr, FLIP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_FILTERS: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_TAPS: tl.constexpr,
):  # fmt: skip
    """out[client, row, filter, pixel] = sum over taps of kernels[client, filter, tap] images[client, row, tap, pixel].

    A tap is a place in the kernel and a channel; the channel runs fastest, as kernels are stored. With FLIP the kernels
    are stored as [channel, place, filter] and read from their end: that convolution takes gradients back to the input.
    """
    client = tl.program_id(2).to(tl.int64)
    images += client * images_stride
    kernels += client * kernels_stride
    taps: tl.constexpr = CHANNELS * KERNEL_HEIGHT * KERNEL_WIDTH
    area: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    real = pixel < rows * area
    row, place = pixel // area, pixel % area
    top, left = place // OUT_WIDTH - PAD_HEIGHT, place % OUT_WIDTH - PAD_WIDTH
    corner = row * (CHANNELS * HEIGHT * WIDTH) + top * WIDTH + left
    filters = tl.program_id(1) * BLOCK_FILTERS + tl.arange(0, BLOCK_FILTERS)
    total = tl.zeros((BLOCK_PIXELS, BLOCK_FILTERS), dtype=tl.float32)
    for first in range(0, taps, BLOCK_TAPS):
        tap = first + tl.arange(0, BLOCK_TAPS)
        if CHANNELS % BLOCK_TAPS == 0:  # one place for the whole block: borders are a matter of pixels alone
            channel, spot = first % CHANNELS + tl.arange(0, BLOCK_TAPS), first // CHANNELS
            down, right = spot // KERNEL_WIDTH, spot % KERNEL_WIDTH
            y, x = (top + down)[:, None], (left + right)[:, None]
            there = real[:, None]
        else:
            channel, spot = tap % CHANNELS, tap // CHANNELS
            down, right = spot // KERNEL_WIDTH, spot % KERNEL_WIDTH
            y, x = top[:, None] + down[None, :], left[:, None] + right[None, :]
            there = real[:, None] & (tap[None, :] < taps)
        if PAD_HEIGHT + PAD_WIDTH > 0:
            there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        if FLIP:
            stored = channel * (KERNEL_HEIGHT * KERNEL_WIDTH) + (KERNEL_HEIGHT * KERNEL_WIDTH - 1 - spot)
            weights = kernels + stored[:, None] * FILTERS + filters[None, :]
        else:
            weights = kernels + filters[None, :] * taps + tap[:, None]
        weight = tl.load(weights, mask=(filters[None, :] < FILTERS) & (tap[:, None] < taps), other=0.0)
        offset = channel * (HEIGHT * WIDTH) + down * WIDTH + right
        value = tl.load(images + corner[:, None] + offset[None, :], mask=there, other=0.0)
        total = tl.dot(value, weight, total, input_precision=PRECISION)
    total = tl.trans(total)  # the pixels of an image lie side by side in the output
    if BIAS:
        total += tl.load(biases + client * biases_stride + filters, mask=filters < FILTERS, other=0.0)[:, None]
    out += client * rows * (FILTERS * area)
    target = row[None, :] * (FILTERS * area) + filters[:, None] * area + place[None, :]
    tl.store(out + target, total, mask=(filters[:, None] < FILTERS) & real[None, :])


@triton.jit(do_not_specialize=["clients"])
def _weight_gradient(
    images, gradients, out, images_stride, gradients_stride, rows, clients, steps,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    FILTERS: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr, PAD_HEIGHT: tl.constexpr, PAD_WIDTH: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_FILTERS: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_TAPS: tl.constexpr,
):  # fmt: skip
    """out[part, client, filter, tap] = sum over a part of the pixels of gradients and images under the tap."""
    client = tl.program_id(2).to(tl.int64)
    images += client * images_stride
    gradients += client * gradients_stride
    part = tl.program_id(1) % PARTS
    taps = CHANNELS * KERNEL_HEIGHT * KERNEL_WIDTH
    area = OUT_HEIGHT * OUT_WIDTH
    tap = tl.program_id(0) * BLOCK_TAPS + tl.arange(0, BLOCK_TAPS)
    channel, spot = tap % CHANNELS, tap // CHANNELS
    down, right = spot // KERNEL_WIDTH, spot % KERNEL_WIDTH
    offset = channel * (HEIGHT * WIDTH) + down * WIDTH + right
    filters = (tl.program_id(1) // PARTS) * BLOCK_FILTERS + tl.arange(0, BLOCK_FILTERS)
    total = tl.zeros((BLOCK_FILTERS, BLOCK_TAPS), dtype=tl.float32)
    for step in range(steps):
        pixel = (part * steps + step) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
        real = pixel < rows * area
        row, place = pixel // area, pixel % area
        top, left = place // OUT_WIDTH - PAD_HEIGHT, place % OUT_WIDTH - PAD_WIDTH
        source = row[None, :] * (FILTERS * area) + filters[:, None] * area + place[None, :]
        gradient = tl.load(gradients + source, mask=(filters[:, None] < FILTERS) & real[None, :], other=0.0)
        there = real[:, None] & (tap[None, :] < taps)
        if PAD_HEIGHT + PAD_WIDTH > 0:
            y, x = top[:, None] + down[None, :], left[:, None] + right[None, :]
            there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        corner = row * (CHANNELS * HEIGHT * WIDTH) + top * WIDTH + left
        value = tl.load(images + corner[:, None] + offset[None, :], mask=there, other=0.0)
        total = tl.dot(gradient, value, total, input_precision=PRECISION)
    out += (part * clients + client) * (FILTERS * taps)
    target = filters[:, None] * taps + tap[None, :]
    tl.store(out + target, total, mask=(filters[:, None] < FILTERS) & (tap[None, :] < taps))


def convolution(
    images: Tensor, kernels: Tensor, biases: Tensor | None, padding: tuple[int, int], flip: bool, precision: str
) -> Tensor:
    """Convolve images [client, row, channel, y, x] with kernels [client, filter, y, x, channel], or flipped ones."""
    images, kernels = _rows_apart(images), _rows_apart(kernels)
    clients, rows, channels, height, width = images.shape
    filters, down, right = kernels.shape[4 if flip else 1], kernels.shape[2], kernels.shape[3]
    high, wide = height + 2 * padding[0] - down + 1, width + 2 * padding[1] - right + 1
    out = images.new_empty(clients, rows, filters, high, wide)
    tile, pixels, taps, warps, stages = _convolution_blocks(filters, channels * down * right)
    grid = (triton.cdiv(rows * high * wide, pixels), triton.cdiv(filters, tile), clients)
    _convolve[grid](
        images, kernels, out if biases is None else biases, out,
        images.stride(0), kernels.stride(0), 0 if biases is None else biases.stride(0), rows,
        channels, height, width, filters, high, wide, down, right, *padding, biases is not None, flip, precision,
        tile, pixels, taps, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def weight_gradient(images: Tensor, gradients: Tensor, padding: tuple[int, int], precision: str) -> Tensor:
    """The gradient with respect to the kernels, [client, filter, y, x, channel]."""
    images, gradients = _rows_apart(images), _rows_apart(gradients)
    clients, rows, channels, height, width = images.shape
    filters, high, wide = gradients.shape[2:]
    down, right = height + 2 * padding[0] - high + 1, width + 2 * padding[1] - wide + 1
    taps = channels * down * right
    tile, pixels, block, warps, stages = _gradient_blocks(filters)
    programs = clients * triton.cdiv(filters, tile) * triton.cdiv(taps, block)
    steps = triton.cdiv(rows * high * wide, pixels)
    # As many parts as fill the processors four times over, each of at least four steps. Their sums are added in order.
    parts = triton.next_power_of_2(max(1, min(triton.cdiv(4 * _processors(), programs), steps // 4)))
    out = images.new_empty(parts, clients, filters, taps)
    grid = (triton.cdiv(taps, block), triton.cdiv(filters, tile) * parts, clients)
    _weight_gradient[grid](
        images, gradients, out, images.stride(0), gradients.stride(0), rows, clients, triton.cdiv(steps, parts),
        channels, height, width, filters, high, wide, down, right, *padding, parts, precision,
        tile, pixels, block, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    whole = out[0] if parts == 1 else out.sum(dim=0)
    return whole.unflatten(-1, (down, right, channels))


@triton.jit
def _pool(
    images, out, index, total,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of each square of 2x2 pixels, and which of the four it is: the first of equals.

    A pixel has INNER numbers beside each other: its channels, or one if channels lie apart.
    """
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = pixel < total
    image, place = pixel // (OUT_HEIGHT * OUT_WIDTH * INNER), pixel // INNER % (OUT_HEIGHT * OUT_WIDTH)
    corner = image * (HEIGHT * WIDTH) + (place // OUT_WIDTH) * (2 * WIDTH) + (place % OUT_WIDTH) * 2
    corner = images + corner * INNER + pixel % INNER
    best = tl.load(corner, mask=real, other=0.0)
    which = tl.zeros((BLOCK,), dtype=tl.int8)
    for number in tl.static_range(1, 4):
        value = tl.load(corner + ((number // 2) * WIDTH + number % 2) * INNER, mask=real, other=0.0)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        which = tl.where(better, tl.full((BLOCK,), number, tl.int8), which)
    tl.store(out + pixel, best, mask=real)
    tl.store(index + pixel, which, mask=real)


@triton.jit
def _unpool(
    gradients, index, out, total,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the squares at the pixels that were the largest, and 0 elsewhere."""
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image, place = pixel // (HEIGHT * WIDTH * INNER), pixel // INNER % (HEIGHT * WIDTH)
    y, x = place // WIDTH, place % WIDTH
    square = (image * (OUT_HEIGHT * OUT_WIDTH) + (y // 2) * OUT_WIDTH + x // 2) * INNER + pixel % INNER
    inside = (pixel < total) & (y < 2 * OUT_HEIGHT) & (x < 2 * OUT_WIDTH)
    which = tl.load(index + square, mask=inside, other=-1)
    value = tl.load(gradients + square, mask=inside, other=0.0)
    tl.store(out + pixel, tl.where(which == (y % 2) * 2 + x % 2, value, 0.0), mask=pixel < total)


_POOL_BLOCK = 1024


def pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """The largest pixel of each square of 2x2 in [..., y, x], and which of the four it is.

    What it gives lies in memory as the images do.
    """
    inner = _inner(images)
    images = images.contiguous() if inner == 1 else images
    height, width = images.shape[-2:]
    out = _empty(images, height // 2, width // 2, inner)
    index = torch.empty_like(out, dtype=torch.int8)
    grid = (triton.cdiv(out.numel(), _POOL_BLOCK),)
    _pool[grid](images, out, index, out.numel(), height, width, height // 2, width // 2, inner, _POOL_BLOCK)
    return out, index


def unpool(gradients: Tensor, index: Tensor, height: int, width: int) -> Tensor:
    """The gradient of each square at the pixel that was the largest, and 0 at the other three."""
    inner = _inner(index)
    index = index.contiguous() if inner == 1 else index
    gradients = gradients.contiguous(memory_format=torch.contiguous_format if inner == 1 else torch.channels_last)
    out = _empty(gradients, height, width, inner)
    grid = (triton.cdiv(out.numel(), _POOL_BLOCK),)
    _unpool[grid](gradients, index, out, out.numel(), height, width, *gradients.shape[-2:], inner, _POOL_BLOCK)
    return out


def _inner(images: Tensor) -> int:
    """How many numbers of a pixel lie beside each other: all channels if images lie channels-last."""
    if images.dim() != 4 or images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last):
        return 1
    return images.shape[1]


def _empty(like: Tensor, height: int, width: int, inner: int) -> Tensor:
    """Room for images of another size that lie as these do."""
    shape = (*like.shape[:-2], height, width)
    if inner == 1:
        return like.new_empty(shape)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@triton.jit
def _moments(
    images, shifts, means, squares, area, SHIFTED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Mean, after a shift, and squared deviations of each channel over a block of pixels [row, pixel, channel]."""
    row, block, blocks = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    pixel, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    real = pixel[:, None] < area
    value = tl.load(images + row * area * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :], mask=real, other=0.0)
    value = value.to(tl.float32)
    count = tl.minimum(area - block * BLOCK, BLOCK).to(tl.float32)
    mean = tl.sum(value, axis=0) / count
    away = tl.where(real, value - mean[None, :], 0.0)
    target = (row * blocks + block) * CHANNELS + channel
    if SHIFTED:
        mean += tl.load(shifts + channel).to(tl.float32)
    tl.store(means + target, mean)
    tl.store(squares + target, tl.sum(away * away, axis=0))


@triton.jit
def _over_groups(values, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """The sum of each channel's group, for every channel."""
    sums = tl.sum(tl.reshape(values, (GROUPS, CHANNELS // GROUPS)), axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def _normalise(
    images, shifts, means, squares, weights, biases, out, centres, scales, area, blocks, eps, SHIFTED: tl.constexpr,
    RECTIFY: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Group normalisation of a block of pixels, and ReLU, from the moments of all blocks of the row."""
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    part, channel = tl.arange(0, BLOCKS), tl.arange(0, CHANNELS)
    there = part[:, None] < blocks
    source = (row * blocks + part[:, None]) * CHANNELS + channel[None, :]
    mean = tl.load(means + source, mask=there, other=0.0)
    square = tl.load(squares + source, mask=there, other=0.0)
    count = tl.maximum(tl.minimum(area - part * BLOCK, BLOCK), 0).to(tl.float32)[:, None]
    total = area * (CHANNELS // GROUPS)
    centre = _over_groups(tl.sum(mean * count, axis=0), CHANNELS, GROUPS) / total
    away = mean - centre[None, :]
    spread = _over_groups(tl.sum(square + away * away * count, axis=0), CHANNELS, GROUPS) / total
    scale = 1 / tl.sqrt(spread + eps)
    if SHIFTED:  # to shift a value and to take the centre off is one subtraction
        centre -= tl.load(shifts + channel).to(tl.float32)
    if block == 0:
        tl.store(centres + row * CHANNELS + channel, centre)
        tl.store(scales + row * CHANNELS + channel, scale)
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    place = row * area * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
    value = tl.load(images + place, mask=pixel[:, None] < area, other=0.0).to(tl.float32)
    weight, bias = tl.load(weights + channel), tl.load(biases + channel)
    result = (value - centre[None, :]) * scale[None, :] * weight[None, :] + bias[None, :]
    if RECTIFY:
        result = tl.maximum(result, 0.0)
    tl.store(out + place, result, mask=pixel[:, None] < area)


@triton.jit
def _products(
    images, gradients, centres, scales, weights, biases, sums, area, parts, RECTIFY: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums over a block of pixels of gradients, and of gradients times normalised values, for each channel."""
    row, block, blocks = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    pixel, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    place = row * area * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
    real = pixel[:, None] < area
    gradient = tl.load(gradients + place, mask=real, other=0.0).to(tl.float32)
    value = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
    centre, scale = tl.load(centres + row * CHANNELS + channel), tl.load(scales + row * CHANNELS + channel)
    normal = (value - centre[None, :]) * scale[None, :]
    if RECTIFY:  # computed as on the way there, so that the same values count as above zero
        weight, bias = tl.load(weights + channel), tl.load(biases + channel)
        gradient = tl.where(normal * weight[None, :] + bias[None, :] > 0, gradient, 0.0)
    target = (row * blocks + block) * CHANNELS + channel
    tl.store(sums + target, tl.sum(gradient, axis=0))
    tl.store(sums + parts * CHANNELS + target, tl.sum(gradient * normal, axis=0))


@triton.jit
def _normalise_back(
    images, gradients, centres, scales, weights, biases, sums, back, out, area, blocks, parts, RECTIFY: tl.constexpr,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The gradient of group normalisation's input for a block of pixels, from the sums over all blocks of the row.

    Its own sum over the block, for each channel, is part of the gradient of the shifts.
    """
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    part, channel = tl.arange(0, BLOCKS), tl.arange(0, CHANNELS)
    source = (row * blocks + part[:, None]) * CHANNELS + channel[None, :]
    plain = tl.sum(tl.load(sums + source, mask=part[:, None] < blocks, other=0.0), axis=0)
    along = tl.sum(tl.load(sums + parts * CHANNELS + source, mask=part[:, None] < blocks, other=0.0), axis=0)
    weight = tl.load(weights + channel)
    total = area * (CHANNELS // GROUPS)
    plain = _over_groups(plain * weight, CHANNELS, GROUPS) / total
    along = _over_groups(along * weight, CHANNELS, GROUPS) / total
    centre, scale = tl.load(centres + row * CHANNELS + channel), tl.load(scales + row * CHANNELS + channel)
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    place = row * area * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
    gradient = tl.load(gradients + place, mask=pixel[:, None] < area, other=0.0).to(tl.float32)
    value = tl.load(images + place, mask=pixel[:, None] < area, other=0.0).to(tl.float32)
    normal = (value - centre[None, :]) * scale[None, :]
    if RECTIFY:
        gradient = tl.where(normal * weight[None, :] + tl.load(biases + channel)[None, :] > 0, gradient, 0.0)
    result = (gradient * weight[None, :] - plain[None, :] - normal * along[None, :]) * scale[None, :]
    tl.store(out + place, result, mask=pixel[:, None] < area)
    shifted = tl.sum(tl.where(pixel[:, None] < area, result, 0.0), axis=0)
    tl.store(back + (row * blocks + block) * CHANNELS + channel, shifted)


def _norm_blocks(images: Tensor) -> tuple[int, int, int]:
    """How many pixels an image has, how many of them one program takes, and how many programs that makes."""
    area = images.shape[2] * images.shape[3]
    block = min(max(4, 8192 // images.shape[1]), triton.next_power_of_2(area))
    return area, block, triton.cdiv(area, block)


def group_norm(
    images: Tensor, weights: Tensor, biases: Tensor, shifts: Tensor | None, groups: int, eps: float, rectify: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise images [row, channel, y, x] that lie channels-last, after shifts of their channels; ReLU, if asked.

    Gives centres, from which shifts are taken off, and scales [row, channel] too.
    """
    rows, channels = images.shape[:2]
    area, block, blocks = _norm_blocks(images)
    means, squares = weights.new_empty(2, rows, blocks, channels)
    centres, scales = weights.new_empty(2, rows, channels)
    out = torch.empty_like(images)
    grid, wide, shifted = (blocks, rows), triton.next_power_of_2(blocks), shifts is not None
    _moments[grid](images, shifts, means, squares, area, shifted, channels, block, num_warps=8)
    _normalise[grid](
        images, shifts, means, squares, weights, biases, out, centres, scales, area, blocks, eps, shifted, rectify,
        channels, groups, block, wide, num_warps=8,
    )  # fmt: skip
    return out, centres, scales


def group_norm_back(
    images: Tensor, gradients: Tensor, centres: Tensor, scales: Tensor, weights: Tensor, biases: Tensor, groups: int,
    rectify: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients with respect to images, weights, biases and shifts."""
    gradients = gradients.contiguous(memory_format=torch.channels_last)
    rows, channels = images.shape[:2]
    area, block, blocks = _norm_blocks(images)
    sums = weights.new_empty(3, rows * blocks, channels)
    out = torch.empty_like(images)
    grid, wide = (blocks, rows), triton.next_power_of_2(blocks)
    _products[grid](
        images, gradients, centres, scales, weights, biases, sums, area, rows * blocks, rectify, channels, block,
        num_warps=8,
    )  # fmt: skip
    _normalise_back[grid](
        images, gradients, centres, scales, weights, biases, sums, sums[2], out, area, blocks, rows * blocks, rectify,
        channels, groups, block, wide, num_warps=8,
    )  # fmt: skip
    # In two steps, as few sums over many numbers would keep few processors busy.
    halfway = sums.unflatten(1, (blocks, rows)).sum(dim=1)
    of_biases, of_weights, of_shifts = halfway.sum(dim=1)
    return out, of_weights, of_biases, of_shifts


@triton.jit
def _batch_moments(
    images, means, squares, pixels, span, CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Mean and squared deviations of a tile of channels over a span of pixels [pixel, channel]."""
    part, channel = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    start, end = part * span, tl.minimum(pixels, part * span + span)
    pixel = start + tl.arange(0, BLOCK)
    place = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    first = tl.load(images + place, mask=pixel[:, None] < end, other=0.0).to(tl.float32)
    # Sums are taken of what values are away from the mean of the first block: those of plain squares would be coarse.
    near = tl.sum(first, axis=0) / tl.minimum(end - start, BLOCK).to(tl.float32)
    away = tl.where(pixel[:, None] < end, first - near[None, :], 0.0)
    sums, products = away, away * away
    for step in range(BLOCK, span, BLOCK):
        pixel = start + step + tl.arange(0, BLOCK)
        place, real = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :], pixel[:, None] < end
        value = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        away = tl.where(real, value - near[None, :], 0.0)
        sums += away
        products += away * away
    total, count = tl.sum(sums, axis=0), (end - start).to(tl.float32)
    tl.store(means + part * CHANNELS + channel, near + total / count)
    tl.store(squares + part * CHANNELS + channel, tl.sum(products, axis=0) - total * total / count)


@triton.jit
def _batch_normalise(
    images, others, means, squares, weights, biases, shifts, running_mean, running_variance, out, kept, pixels, span,
    parts, eps, momentum, SHIFTED: tl.constexpr, ADD: tl.constexpr, RECTIFY: tl.constexpr,
    CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Normalise a span of pixels with the moments of all, add others, rectify; the first program keeps the moments.

    Kept are centres, scales, and the running mean and variance that follow, [4, channel].
    """
    part, channel = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    piece = tl.arange(0, PARTS)
    source, there = piece[:, None] * CHANNELS + channel[None, :], piece[:, None] < parts
    mean = tl.load(means + source, mask=there, other=0.0)
    square = tl.load(squares + source, mask=there, other=0.0)
    count = tl.maximum(tl.minimum(pixels - piece * span, span), 0).to(tl.float32)[:, None]
    centre = tl.sum(mean * count, axis=0) / pixels
    away = mean - centre[None, :]
    spread = tl.sum(square + away * away * count, axis=0)
    scale = 1 / tl.sqrt(spread / pixels + eps)
    if part == 0:
        tl.store(kept + channel, centre)
        tl.store(kept + CHANNELS + channel, scale)
        shifted = centre
        if SHIFTED:
            shifted += tl.load(shifts + channel).to(tl.float32)
        before = tl.load(running_mean + channel)
        tl.store(kept + 2 * CHANNELS + channel, before + momentum * (shifted - before))
        before = tl.load(running_variance + channel)
        tl.store(kept + 3 * CHANNELS + channel, before + momentum * (spread / (pixels - 1) - before))
    weight, bias = tl.load(weights + channel), tl.load(biases + channel)
    end = tl.minimum(pixels, part * span + span)
    for step in range(0, span, BLOCK):
        pixel = part * span + step + tl.arange(0, BLOCK)
        place, real = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :], pixel[:, None] < end
        value = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        result = (value - centre[None, :]) * scale[None, :] * weight[None, :] + bias[None, :]
        if ADD:
            result += tl.load(others + place, mask=real, other=0.0).to(tl.float32)
        if RECTIFY:
            result = tl.maximum(result, 0.0)
        tl.store(out + place, result, mask=real)


@triton.jit
def _batch_products(
    images, gradients, results, kept, weights, biases, passed, sums, pixels, span, parts,
    ADD: tl.constexpr, RECTIFY: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums over a span of pixels of gradients, and of gradients times normalised values, for a tile of channels.

    Where others were added before ReLU, the results say where it passed gradients on, and these are written down.
    """
    part, channel = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    centre, scale = tl.load(kept + channel), tl.load(kept + CHANNELS + channel)
    weight, bias = tl.load(weights + channel), tl.load(biases + channel)
    end = tl.minimum(pixels, part * span + span)
    plain = tl.zeros((BLOCK, TILE), tl.float32)
    along = tl.zeros((BLOCK, TILE), tl.float32)
    for step in range(0, span, BLOCK):
        pixel = part * span + step + tl.arange(0, BLOCK)
        place, real = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :], pixel[:, None] < end
        gradient = tl.load(gradients + place, mask=real, other=0.0).to(tl.float32)
        value = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        normal = (value - centre[None, :]) * scale[None, :]
        if RECTIFY:
            if ADD:
                gradient = tl.where(tl.load(results + place, mask=real, other=0.0) > 0, gradient, 0.0)
                tl.store(passed + place, gradient, mask=real)
            else:  # computed as on the way there, so that the same values count as above zero
                gradient = tl.where(normal * weight[None, :] + bias[None, :] > 0, gradient, 0.0)
        plain += gradient
        along += gradient * normal
    target = part * CHANNELS + channel
    tl.store(sums + target, tl.sum(plain, axis=0))
    tl.store(sums + parts * CHANNELS + target, tl.sum(along, axis=0))


@triton.jit
def _batch_normalise_back(
    images, gradients, kept, weights, biases, sums, totals, out, pixels, span, parts,
    RECTIFY: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The gradient of batch normalisation's input for a span of pixels, from the sums over all.

    The first program writes the totals of the sums, which are the gradients of biases and weights.
    """
    part, channel = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    piece = tl.arange(0, PARTS)
    source, there = piece[:, None] * CHANNELS + channel[None, :], piece[:, None] < parts
    plain = tl.sum(tl.load(sums + source, mask=there, other=0.0), axis=0)
    along = tl.sum(tl.load(sums + parts * CHANNELS + source, mask=there, other=0.0), axis=0)
    if part == 0:
        tl.store(totals + channel, plain)
        tl.store(totals + CHANNELS + channel, along)
    centre, scale = tl.load(kept + channel), tl.load(kept + CHANNELS + channel)
    weight, bias = tl.load(weights + channel), tl.load(biases + channel)
    plain, along, factor = plain / pixels, along / pixels, scale * weight
    end = tl.minimum(pixels, part * span + span)
    for step in range(0, span, BLOCK):
        pixel = part * span + step + tl.arange(0, BLOCK)
        place, real = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :], pixel[:, None] < end
        gradient = tl.load(gradients + place, mask=real, other=0.0).to(tl.float32)
        value = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        normal = (value - centre[None, :]) * scale[None, :]
        if RECTIFY:
            gradient = tl.where(normal * weight[None, :] + bias[None, :] > 0, gradient, 0.0)
        result = (gradient - plain[None, :] - normal * along[None, :]) * factor[None, :]
        tl.store(out + place, result, mask=real)


_BATCH_TILE = 16
"""Channels of a program: few, so that there are many programs, of which each has few parts to put together."""


@dataclass(frozen=True)
class _BatchGrid:
    """How the pixels and channels of images are dealt out to programs."""

    pixels: int
    span: int
    parts: int
    block: int

    @staticmethod
    def of(images: Tensor) -> "_BatchGrid":
        """About 256 programs, each with a span of pixels that it goes through in blocks."""
        pixels, tiles = images.shape[0] * images.shape[2] * images.shape[3], images.shape[1] // _BATCH_TILE
        span = triton.next_power_of_2(triton.cdiv(pixels, min(64, max(1, 256 // tiles))))
        block = min(512, max(32, span))
        span = max(span, block)
        return _BatchGrid(pixels, span, triton.cdiv(pixels, span), block)

    @property
    def warps(self) -> int:
        """How many warps a program has."""
        return 8 if self.block == 512 else 4


def batch_norm(
    images: Tensor, others: Tensor | None, weights: Tensor, biases: Tensor, shifts: Tensor | None,
    running_mean: Tensor, running_variance: Tensor, momentum: float, eps: float, rectify: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Normalise images [row, channel, y, x] that lie channels-last over all rows, add others, and ReLU, if asked.

    Gives centres, scales, and the running mean and variance that follow, [4, channel], too. The shifts of channels, of
    which normalisation leaves nothing, are only in the running mean.
    """
    channels = images.shape[1]
    deal = _BatchGrid.of(images)
    means, squares = weights.new_empty(2, deal.parts, channels)
    kept, out = weights.new_empty(4, channels), torch.empty_like(images)
    grid = (deal.parts, channels // _BATCH_TILE)
    _batch_moments[grid](
        images, means, squares, deal.pixels, deal.span, channels, _BATCH_TILE, deal.block, num_warps=deal.warps
    )
    _batch_normalise[grid](
        images, others, means, squares, weights, biases, shifts, running_mean, running_variance, out, kept, deal.pixels,
        deal.span, deal.parts, eps, momentum, shifts is not None, others is not None, rectify,
        channels, _BATCH_TILE, deal.block, triton.next_power_of_2(deal.parts), num_warps=deal.warps,
    )  # fmt: skip
    return out, kept


def batch_norm_back(
    images: Tensor, gradients: Tensor, results: Tensor | None, kept: Tensor, weights: Tensor, biases: Tensor,
    rectify: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients with respect to images, weights, biases and others; the results are needed if others were added."""
    gradients = gradients.contiguous(memory_format=torch.channels_last)
    channels = images.shape[1]
    deal = _BatchGrid.of(images)
    sums, totals = weights.new_empty(2, deal.parts, channels), weights.new_empty(2, channels)
    out, added = torch.empty_like(images), results is not None
    passed = torch.empty_like(images) if added and rectify else gradients
    grid = (deal.parts, channels // _BATCH_TILE)
    _batch_products[grid](
        images, gradients, results, kept, weights, biases, passed, sums, deal.pixels, deal.span, deal.parts, added,
        rectify, channels, _BATCH_TILE, deal.block, num_warps=deal.warps,
    )  # fmt: skip
    _batch_normalise_back[grid](
        images, passed, kept, weights, biases, sums, totals, out, deal.pixels, deal.span, deal.parts,
        rectify and not added, channels, _BATCH_TILE, deal.block, triton.next_power_of_2(deal.parts),
        num_warps=deal.warps,
    )  # fmt: skip
    return out, totals[1], totals[0], passed


def _convolution_blocks(filters: int, taps: int) -> tuple[int, int, int, int, int]:
    """How many filters, pixels and taps a program takes at once, its warps and its stages: the fastest as measured."""
    tile = min(64, max(8, triton.next_power_of_2(filters)))
    return tile, 128, 32 if taps <= 32 else 16, 2, 3


def _gradient_blocks(filters: int) -> tuple[int, int, int, int, int]:
    """What `_convolution_blocks` gives for convolution, for the gradient of the weights."""
    tile = min(64, max(16, triton.next_power_of_2(filters)))
    return (tile, 32, 128, 4, 3) if tile == 64 else (tile, 64 if tile == 16 else 32, 32, 1, 3)


def _rows_apart(stack: Tensor) -> Tensor:
    """The stack, copied if a client's part is not contiguous; parts of clients may lie apart from each other."""
    return stack if stack[0].is_contiguous() else stack.contiguous()


@cache
def _processors() -> int:
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.multi_processor_count)
