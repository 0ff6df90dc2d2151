"""Mixing that a few hostile or broken members of a group cannot lead astray.

Each function takes weights [group, client] and models [client], as `weights @ models` does, and gives models [group]. A
row's members are the clients with a weight above 0. Running statistics are mixed like parameters, because whoever
sends them can make them anything.

The *breakdown point* is the part of a group's weight that can be in hostile hands before the result can be moved
anywhere. It supposes that honest members are alike: the nearer they are to each other, the nearer the result is to
them. Where honest clients differ much, a robust mean leaves out the unusual ones, hostile or not.

| mixing | breakdown point | and what it costs |
|---|---|---|
| the mean | 0 | nothing |
| `median` | 1/2 | coordinates come from different clients |
| `trimmed_mean` | the share that is cut at each end | as much of what honest clients sent |
| `geometric_median` | 1/2 | an iteration; a group in the minority hardly counts |
| `krum` | `bad` of at least 2 bad + 3 members, by number | all models but the chosen ones |
| `norm_bounded` | 1/2; with a given limit 1, as the result stays within it | large updates, hostile or not |

Weights that clients claim themselves, such as numbers of samples, are theirs to inflate: `capped` bounds them first.

>>> @coterie.method("median-fedavg")
... class MedianFedAvg(coterie.FedAvg):
...     '''FedAvg whose server takes the median of the clients' models.'''
...
...     def step(self, state, replies):
...         weights = coterie.robust.capped(replies.counts(self.weighting), most=3)
...         return type(state)(coterie.robust.median(weights, replies.model)[0])
>>> len(MedianFedAvg(rounds=2).fit(coterie.simulate(clients=5, net="mlp")).rounds)
2
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.arrays import as_counts
from coterie.core.errors import SettingsError
from coterie.nets.stacks import Models

_TIE = 1e-9
"""Sums of weights that differ by less are equal: a half, added up in two orders, need not be the same number."""


def median(weights: Any, models: Models) -> Models:
    """The weighted median of each number (Yin et al., ICML 2018): half of the weight is below it, and half above.

    Where exactly half is, it is the mean of the two numbers in the middle.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(3)
    >>> mixed = coterie.robust.median([[1, 1, 1]], models)
    >>> torch.equal(mixed.parameters[0], models.parameters.median(dim=0).values)
    True
    """
    return _by_group(weights, models, _middle)


def _middle(rows: Tensor, own: Tensor) -> Tensor:
    """The weighted median of each column of rows [member, number], with weights [member] that sum to 1."""
    values, order = rows.sort(dim=0)
    below = own[order].cumsum(dim=0)
    low, high = ((below < 0.5 + tie).sum(dim=0).clamp(max=len(rows) - 1) for tie in (-_TIE, _TIE))
    return (values.gather(0, low[None]) / 2 + values.gather(0, high[None]) / 2)[0]


def trimmed_mean(weights: Any, models: Models, share: float) -> Models:
    """The mean of each number without this share of the weight at either end (Yin et al., ICML 2018).

    A client whose weight is partly cut counts with the rest. With a share of 0 it is the mean.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(3)
    >>> mixed = coterie.robust.trimmed_mean([[1, 1, 1]], models, share=1 / 3)  # one of three is left
    >>> torch.allclose(mixed.parameters[0], models.parameters.median(dim=0).values)
    True
    """
    if not 0 <= share < 0.5:
        raise SettingsError(f"share={share}: in [0, 0.5); the limit of 0.5 is the median")

    def trimmed(rows: Tensor, own: Tensor) -> Tensor:
        values, order = rows.sort(dim=0)
        sorted_weights = own[order]
        above = sorted_weights.cumsum(dim=0)
        left = (above.clamp(max=1 - share) - (above - sorted_weights).clamp(min=share)).clamp(min=0)
        # A number that does not count at all may be so large that even a rounded 0 of its weight would show.
        left = torch.where(left > _TIE, left, 0)
        return (left * values).sum(dim=0) / left.sum(dim=0)

    return _by_group(weights, models, trimmed)


def geometric_median(weights: Any, models: Models, smoothing: float = 1e-6, steps: int = 100) -> Models:
    """The model whose weighted distances to all models have the least sum, by Weiszfeld's iteration (Pillutla et al.).

    Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning", IEEE TSP 2022. Distances below
    `smoothing` times the median one count as that. It begins at the median of each number, which is robust itself, and
    ends when it no longer moves, or after so many steps.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)[[0, 0, 1]]
    >>> mixed = coterie.robust.geometric_median([[1, 1, 1]], models)  # two of three agree
    >>> torch.allclose(mixed.parameters[0], models.parameters[0], atol=1e-4)
    True
    """

    def centre(rows: Tensor, own: Tensor) -> Tensor:
        found = _middle(rows, own)
        for _ in range(steps):
            distance = (rows - found).norm(dim=1)
            usual = float(_middle(distance[:, None], own))
            if usual == 0:  # half of the weight is here, so this is it
                return found
            pulls = own / distance.clamp(min=smoothing * usual)
            moved = (pulls / pulls.sum()) @ rows
            if float((moved - found).norm()) <= 1e-9 * usual:
                return moved
            found = moved
        return found

    return _by_group(weights, models, centre)


def krum(weights: Any, models: Models, bad: int, keep: int = 1) -> Models:
    """The mean of the `keep` members that are nearest to their neighbours (Blanchard et al., NeurIPS 2017).

    A member's score is the sum of its squared distances to its n - bad - 2 nearest neighbours, of the n members of its
    group; those with the lowest scores are kept, of equals the first. So up to `bad` members that agree on something
    far away have too few neighbours there. It takes n of at least 2 bad + 3, and weights count only among the kept.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)[[0, 0, 0, 0, 1]]
    >>> mixed = coterie.robust.krum([[1] * 5], models, bad=1)
    >>> torch.equal(mixed.parameters[0], models.parameters[0])
    True
    """

    def nearest(rows: Tensor, own: Tensor) -> Tensor:
        if bad < 0 or len(rows) < 2 * bad + 3:
            raise SettingsError(f"krum: bad={bad} in a group of {len(rows)}; it takes at least 2 bad + 3 members")
        if not 1 <= keep <= len(rows) - bad:
            raise SettingsError(
                f"krum: keep={keep} of {len(rows)} members, {bad} of them bad; keep 1 to {len(rows) - bad}"
            )
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        scores = apart.fill_diagonal_(torch.inf).sort(dim=1).values[:, : len(rows) - bad - 2].sum(dim=1)
        kept = scores.sort(stable=True).indices[:keep]
        return (own[kept] / own[kept].sum()) @ rows[kept]

    return _by_group(weights, models, nearest)


def norm_bounded(weights: Any, models: Models, around: Models, limit: float | None = None) -> Models:
    """The mean with each model brought nearer to where its group began, so that none is farther away than `limit`.

    `around` [group] are the models that were sent. A member moves its group by no more than its weight times the limit
    (Sun et al., "Can you really backdoor federated learning?", 2019). Without a limit it is the weighted median of the
    members' own distances, which those of less than half of the weight cannot raise above all honest ones.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> mixed = coterie.robust.norm_bounded([[1.0]], models[1:], around=models[:1], limit=0.1)
    >>> round(float((mixed - models[:1]).norm()), 6)
    0.1
    """
    if limit is not None and not limit > 0:
        raise SettingsError(f"limit={limit}: above 0")
    starts = iter(_rows(around))

    def bounded(rows: Tensor, own: Tensor) -> Tensor:
        start = next(starts)
        lengths = (rows - start).norm(dim=1)
        most = _middle(lengths[:, None], own) if limit is None else torch.as_tensor(limit).to(lengths)
        nearer = torch.where(lengths > most, most / lengths, 1)
        return start + (own * nearer) @ (rows - start)

    return _by_group(weights, models, bounded)


def capped(counts: Any, most: float) -> Tensor:
    """Weights from counts [client] of which none is more than `most` times the median one, [1, client].

    Who claims a million samples then counts no more than a large client.

    >>> coterie.robust.capped([10, 20, 30, 1e9], most=2)
    tensor([[10., 20., 30., 50.]], dtype=torch.float64)
    """
    if not most >= 1:
        raise SettingsError(f"most={most}: at least 1")
    found = torch.from_numpy(as_counts("counts", counts))
    return found.clamp(max=most * float(found.quantile(0.5)))[None]


def _rows(models: Models) -> Tensor:
    """All numbers of models [model], one after another: what is compared and mixed."""
    return torch.cat(models.tensors, dim=1).double()


def _by_group(weights: Any, models: Models, mixed: Callable[[Tensor, Tensor], Tensor]) -> Models:
    """For each group what `mixed` makes of its members' numbers [member, number] and weights [member] of sum 1."""
    shares = torch.as_tensor(weights).to(models.device, torch.float64)
    if shares.dim() != 2 or shares.shape[1] != len(models) or not (shares >= 0).all():
        raise SettingsError(
            f"weights of shape {tuple(shares.shape)} for {len(models)} models: [group, client], 0 or more"
        )
    if not (shares.sum(dim=1) > 0).all():
        raise SettingsError("robust mixing: a group has no members")
    rows, members = _rows(models), shares > 0
    found = [mixed(rows[own], row[own] / row[own].sum()) for row, own in zip(shares, members, strict=True)]
    parts = torch.stack(found).to(models.parameters).split([part.shape[1] for part in models.tensors], dim=1)
    return Models(models.net, *parts)
