"""Nets for series [time, channel] and for token ids [time], of which 0 fills up and counts nowhere.

Recurrence and attention are written out in plain operations on tensors: torch's own layers do not run under `vmap`,
with which many clients are computed at once. The results are those of `nn.GRU` and `F.scaled_dot_product_attention`.
"""

from abc import ABC, abstractmethod
from math import sqrt

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


class GRU(nn.Module):
    """A gated recurrent unit: its state [row, hidden] after the last real step of each row of [row, time, input]."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(inputs, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        for parameter in self.parameters():  # as torch's own
            nn.init.uniform_(parameter, -1 / sqrt(hidden), 1 / sqrt(hidden))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Go through the steps; at those that are not `real` [row, time] the state stays."""
        given = self.input(x)
        state = given.new_zeros(x.shape[0], self.state.in_features)  # `len` would fix the number of rows on export
        for step in range(x.shape[1]):
            reset_given, keep_given, new_given = given[:, step].chunk(3, dim=-1)
            reset_before, keep_before, new_before = self.state(state).chunk(3, dim=-1)
            reset, keep = (reset_given + reset_before).sigmoid(), (keep_given + keep_before).sigmoid()
            new = (new_given + reset * new_before).tanh()
            after = new + keep * (state - new)
            state = after if real is None else torch.where(real[:, step, None], after, state)
        return state


class Attention(nn.Module):
    """Every step of [row, time, width] looks at all real steps of its row, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed, self.weights, self.out = nn.Linear(width, 3 * width), nn.Softmax(dim=-1), nn.Linear(width, width)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Mix the steps; nobody looks at those that are not `real` [row, time]."""
        parts = self.mixed(x).unflatten(-1, (3, self.heads, -1)).movedim(1, 3)  # [row, 3, head, time, number]
        queries, keys, values = parts.unbind(1)
        likeness = queries @ keys.transpose(-2, -1) / sqrt(queries.shape[-1])
        if real is not None:
            # Not infinity: a row without any real step would have no numbers.
            likeness = likeness.masked_fill(~real[:, None, None], torch.finfo(likeness.dtype).min)
        return self.out((self.weights(likeness) @ values).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, and then two layers for each step by itself; each is added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.layers_norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Transform [row, time, width]."""
        x = x + self.attention(self.attention_norm(x), real)
        return x + self.layers(self.layers_norm(x))


class Positions(nn.Module):
    """Adds to each step of [row, time, width] what was learned for its place."""

    def __init__(self, time: int, width: int) -> None:
        super().__init__()
        self.learned = nn.Parameter(torch.randn(time, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Add the learned vectors."""
        return x + self.learned


class SequenceNet(nn.Module, ABC):
    """A net that reads series, or token ids if there is a vocabulary: what it becomes of them is left to subclasses."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width) if vocabulary else None

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for series [row, time, channel] or token ids [row, time]."""
        return self.read(x, None) if self.embedding is None else self.read(self.embedding(x.long()), x != 0)

    @abstractmethod
    def read(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The outputs for vectors [row, time, ...], of which those at `real` [row, time] count; all if it is None."""


class Recurrent(SequenceNet):
    """A GRU, and a linear layer that sees its last state."""

    def __init__(self, shape: Shape, classes: int, vocabulary: int, width: int = 32, hidden: int = 64) -> None:
        super().__init__(vocabulary, width)
        self.gru, self.head = GRU(width if vocabulary else shape[1], hidden), nn.Linear(hidden, classes)

    def read(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The outputs for the last state."""
        return self.head(self.gru(x, real))


class Transformer(SequenceNet):
    """Blocks of attention, and a linear layer that sees the mean over steps."""

    def __init__(self, shape: Shape, classes: int, vocabulary: int, width: int = 64, heads: int = 4) -> None:
        super().__init__(vocabulary, width)
        self.first = nn.Identity() if vocabulary else nn.Linear(shape[1], width)
        self.positions = Positions(shape[0], width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def read(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The outputs for the mean over what the blocks make of each step."""
        x = self.positions(self.first(x))
        for block in self.blocks:
            x = block(x, real)
        return self.head(_mean(self.norm(x), real))


class EmbeddingBag(SequenceNet):
    """A linear layer that sees the mean of the tokens' embeddings."""

    def __init__(self, classes: int, vocabulary: int, width: int = 64) -> None:
        super().__init__(vocabulary, width)
        self.head = nn.Linear(width, classes)

    def read(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The outputs for the mean embedding."""
        return self.head(_mean(x, real))


class ChannelsFirst(nn.Module):
    """Series [row, time, channel] as convolutions take them, [row, channel, time]."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap time and channel."""
        return x.transpose(1, 2)


def _mean(x: Tensor, real: Tensor | None) -> Tensor:
    """The mean of [row, time, width] over real steps; 0 in a row without any."""
    if real is None:
        return x.mean(dim=1)
    return (x * real.unsqueeze(-1)).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)
