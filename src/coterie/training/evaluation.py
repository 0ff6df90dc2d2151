"""How models do on samples: for each sample, how many classes come before its label, and its cross-entropy.

What models are asked about is named by places in the pool, so that whoever runs them can put together what several
runs ask at the same time. What comes back lies on the host, fetched at once: a GPU that is asked for a number waits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.data.population import Pool
from coterie.nets.net import Net
from coterie.nets.stacks import Models

Run = Callable[[Models, Tensor, bool], Tensor]
"""What models [n] give for inputs [n, row, ...], or for the same inputs [row, ...] if they are shared."""

_ROWS = 256
"""Samples that a model sees at once on a CPU: more do not fit its cache."""

_GPU_ROWS, _GPU_NUMBERS = 16384, 1 << 30
"""The same on a GPU, as far as what the nets leave behind is not more than so many numbers."""


@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """Models, and the samples that each is asked about."""

    pool: Pool
    models: Models
    """One for each question, [model]."""
    places: Sequence[np.ndarray]
    """The samples of each, as places in the pool. Where all are the same array, inputs are prepared once."""

    @property
    def shared(self) -> bool:
        """Whether all models are asked about the same samples."""
        return all(own is self.places[0] for own in self.places)

    @property
    def longest(self) -> int:
        """The most samples that a model is asked about."""
        return max(map(len, self.places), default=0)


def evaluate(run: Run, job: EvaluationJob) -> Tensor:
    """Rank and loss of every sample, [2, model, sample], on the host; behind a model's last sample there is anything.

    The rank is how many classes the model finds likelier than the label.
    """
    pool = job.pool
    found = [(rows, first, rank_and_loss(outputs, pool.y[index])) for rows, first, index, outputs in _blocks(run, job)]
    shape = (2, len(job.places), job.longest)
    if len(found) == 1 and found[0][2].shape == shape and found[0][0] is None:
        return found[0][2].cpu()
    result = torch.zeros(shape, dtype=job.models.parameters.dtype)
    for rows, first, block in found:
        result[:, slice(None) if rows is None else rows, first : first + block.shape[2]] = block.cpu()
    return result


def predictions(run: Run, job: EvaluationJob) -> Tensor:
    """What models give for their samples, [model, sample, class]; behind a model's last sample there is anything."""
    models = job.models
    result = models.parameters.new_zeros(len(job.places), job.longest, models.net.classes)
    for rows, first, _, outputs in _blocks(run, job):
        result[slice(None) if rows is None else rows, first : first + outputs.shape[1]] = outputs
    return result


def _blocks(run: Run, job: EvaluationJob) -> Iterator[tuple[Tensor | None, int, Tensor, Tensor]]:
    """Which models a block is of (nothing: all), its first sample, its samples' places in the pool, and the outputs."""
    pool, models, places = job.pool, job.models, job.places
    if job.shared:
        most = rows_at_once(models.net, len(models))
        for number, index in enumerate(torch.from_numpy(places[0]).to(pool.device).split(most)):
            if len(index):
                yield None, number * most, index, run(models, pool.inputs(index), True)
        return
    # Models with most samples first, so that those that are asked about further ones are always the first.
    sizes = np.array([len(own) for own in places])
    order = np.argsort(-sizes, kind="stable")
    first = 0
    while count := int((sizes > first).sum()):
        whose, left = order[:count], sizes[order[:count]] - first
        # Up to the middle one's last sample, and if that is far for most, no more than that is padding.
        middle = int(left[count // 2])
        width = min(int(left[0]) if left[0] <= 2 * middle else middle, rows_at_once(models.net, count))
        index = _padded([places[number][first : first + width] for number in whose])
        rows = None if count == len(places) and (np.diff(order) == 1).all() else torch.from_numpy(whose)
        some = models if rows is None else models[rows.to(pool.device)]
        index = index.to(pool.device)
        yield rows, first, index, run(some, pool.inputs(index), False)
        first += width


def rows_at_once(net: Net, models: int) -> int:
    """How many samples go through so many models at once."""
    if net.device.type == "cpu":
        return _ROWS
    each = models * (net.activations + prod(net.shape))
    return max(1, min(_GPU_ROWS, _GPU_NUMBERS // each))


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    """Places of unequal number as one tensor, filled up with the first place of each."""
    padded = np.empty((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)], padded[number, len(row) :] = row, row[0]
    return torch.from_numpy(padded)


def rank_and_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Rank of the label and cross-entropy, [2, ..., row], of outputs [..., row, class]."""
    y = y.expand(outputs.shape[:-1])
    own = outputs.gather(-1, y.unsqueeze(-1))
    # The classes that come before the label: those with more, and of equals those with a lower number, like argmax.
    # What is not a number comes before everything.
    earlier = torch.arange(outputs.shape[-1], device=y.device) < y.unsqueeze(-1)
    rank = (~(outputs <= own) | ((outputs == own) & earlier)).sum(dim=-1)
    loss = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").reshape(y.shape)
    return torch.stack([rank.to(loss.dtype), loss])
