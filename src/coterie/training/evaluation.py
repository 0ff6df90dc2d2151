"""How models do on samples: for each sample the rank of its label, and its loss.

A job names samples by their places in the pool. So runs over the same pool can put their jobs together, and inputs that
many models share are prepared once. The results come back to the host in one transfer for all: a GPU stands still
whenever somebody looks at its numbers. Whoever adds the results up does so on the host, in one order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from coterie.data.population import Pool
from coterie.data.tasks import Task
from coterie.nets.net import Net
from coterie.nets.stacks import Models

Run = Callable[[Models, Tensor, bool], Tensor]
"""Gives the outputs of models [n]: for inputs [n, row, ...], or if the last argument says that all share the same
inputs, for [row, ...]."""

_ROWS = 256
"""How many samples a model sees at once on a CPU: more do not fit its cache."""

_GPU_ROWS = 16384
"""How many samples a model sees at once on a GPU, at most."""

_GPU_NUMBERS = 1 << 30
"""How many numbers all models together may hold on a GPU at once, inputs and the outputs of layers counted."""


@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """Models, and the samples on which each is evaluated."""

    pool: Pool
    models: Models
    """The models, [model]; one that is evaluated on several lists of samples stands here several times."""
    places: Sequence[np.ndarray]
    """The samples of each model, as places in the pool. If all are the same array, inputs are prepared once."""
    prior: Tensor | None = None
    """What is added to outputs: [sample, class] if the job is `shared`, else [model, class]; None adds nothing."""

    @property
    def shared(self) -> bool:
        """Whether all models are evaluated on the same samples."""
        return all(own is self.places[0] for own in self.places)

    @property
    def longest(self) -> int:
        """The most samples on which a model is evaluated."""
        return max(map(len, self.places), default=0)


def evaluate(run: Run, job: EvaluationJob) -> Tensor:
    """Rank and loss of every sample, [2, model, sample], on the host.

    The rank is how many classes the model finds likelier than the label (see `Task.ranks`). Entries behind a model's
    last sample mean nothing.
    """
    pool, task = job.pool, job.models.net.task
    found = [
        (rows, first, rank_and_loss(task, outputs, pool.y[index])) for rows, first, index, outputs in _blocks(run, job)
    ]
    shape = (2, len(job.places), job.longest)
    if len(found) == 1 and found[0][2].shape == shape and found[0][0] is None:
        return found[0][2].cpu()
    result = torch.zeros(shape, dtype=job.models.parameters.dtype)
    for rows, first, block in found:
        result[:, slice(None) if rows is None else rows, first : first + block.shape[2]] = block.cpu()
    return result


def predictions(run: Run, job: EvaluationJob) -> Tensor:
    """What models give for their samples, [model, sample, class]. Entries behind a model's last sample mean nothing."""
    models = job.models
    result = models.parameters.new_zeros(len(job.places), job.longest, models.net.classes)
    for rows, first, _, outputs in _blocks(run, job):
        result[slice(None) if rows is None else rows, first : first + outputs.shape[1]] = outputs
    return result


def _blocks(run: Run, job: EvaluationJob) -> Iterator[tuple[Tensor | None, int, Tensor, Tensor]]:
    """Blocks of the job: the models of a block (None: all), its first column, its samples' places, and the outputs."""
    pool, models, places = job.pool, job.models, job.places
    if job.shared:
        most = rows_at_once(models.net, len(models))
        for number, index in enumerate(torch.from_numpy(places[0]).to(pool.device).split(most)):
            if len(index):
                outputs = run(models, pool.inputs(index), True)
                if job.prior is not None:
                    outputs = outputs + job.prior[number * most :][: len(index)]
                yield None, number * most, index, outputs
        return
    # Models with most samples come first, so that those which have samples left are always the first ones.
    sizes = np.array([len(own) for own in places])
    order = np.argsort(-sizes, kind="stable")
    first = 0
    while count := int((sizes > first).sum()):
        whose, left = order[:count], sizes[order[:count]] - first
        # A block is as wide as the longest list, or as the middle one if the longest is more than twice as long: a few
        # long lists would fill it with padding. What they have more is in the next blocks.
        middle = int(left[count // 2])
        width = min(int(left[0]) if left[0] <= 2 * middle else middle, rows_at_once(models.net, count))
        index = _padded([places[number][first : first + width] for number in whose])
        rows = None if count == len(places) and (np.diff(order) == 1).all() else torch.from_numpy(whose)
        some = models if rows is None else models[rows.to(pool.device)]
        index = index.to(pool.device)
        outputs = run(some, pool.inputs(index), False)
        if job.prior is not None:
            outputs = outputs + (job.prior if rows is None else job.prior[rows.to(pool.device)]).unsqueeze(1)
        yield rows, first, index, outputs
        first += width


def rows_at_once(net: Net, models: int) -> int:
    """How many samples each of this many models sees at once."""
    if net.device.type == "cpu":
        return _ROWS
    each = models * (net.activations + prod(net.shape))
    return max(1, min(_GPU_ROWS, _GPU_NUMBERS // each))


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    """Rows of unequal length as one tensor; a shorter row is filled up with its own first place."""
    padded = np.empty((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)], padded[number, len(row) :] = row, row[0]
    return torch.from_numpy(padded)


def rank_and_loss(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Rank of the label and loss, [2, ..., row], of outputs [..., row, output]."""
    y = y.expand(outputs.shape[:-1] if task.one_class else outputs.shape)
    loss = task.losses(outputs, y)
    return torch.stack([task.ranks(outputs, y).to(loss.dtype), loss])
