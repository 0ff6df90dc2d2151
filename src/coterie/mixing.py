"""From membership to weights: row-stochastic matrices [group, client] that mix a stack of models.

A row mixes the members of one group; it is zero where a client is no member.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import SettingsError

__all__ = ["by_information", "by_samples", "least_norm", "uniform"]


def by_samples(samples: Any, membership: Any = None) -> Tensor:
    """Weights in proportion to the clients' samples, [group, client]; without a membership all are one group.

    A group whose members have no samples is an error: nobody could say what its model is.
    """
    samples = torch.as_tensor(samples, dtype=torch.float64).reshape(-1)
    if membership is None:
        membership = torch.ones(1, len(samples), dtype=torch.bool)
    weights = torch.as_tensor(membership).to(samples) * samples
    total = weights.sum(dim=1, keepdim=True)
    if not (total > 0).all():
        raise SettingsError("mixing by samples: a group has no members with samples")
    return weights / total


def uniform(clients: int, membership: Any = None) -> Tensor:
    """Equal weights for all members, [group, client]."""
    return by_samples(torch.ones(clients), membership)


def by_information(accuracy: Any, frequency: Any, share: float) -> Tensor:
    """FedFa's weights [client], from accuracies and from how often clients took part; `share` is that of the latter.

    Each half is an information quantity, normalised to sum 1: -log2 of a client's part of all accuracy, which is larger
    the worse it does, and -log2 of what its part of all participation leaves, which is larger the oftener it came.
    """
    accuracy, frequency = (torch.as_tensor(value, dtype=torch.float64).cpu() for value in (accuracy, frequency))
    # A part of 0, and a part that is everything, have no logarithm: the limits are those of the public implementation.
    needs = -_parts(accuracy).clamp(min=1e-6).log2()
    came = -(1 - _parts(frequency)).clamp(min=1e-5).log2()
    return (1 - share) * _parts(needs) + share * _parts(came)


def _parts(values: Tensor) -> Tensor:
    """The values in proportion, summing to 1; all the same if they are all zero."""
    total = values.sum()
    return values / total if total > 0 else torch.full_like(values, 1 / len(values))


def least_norm(rows: Tensor, around: Tensor, within: float) -> Tensor:
    """The weights [row] that make the weighted sum of rows shortest, none further than `within` from those given.

    They are at least 0 and sum to 1: a quadratic program in as many unknowns as there are rows. Of equally good
    weights, those nearest to the given ones are taken.
    """
    from scipy.optimize import minimize

    gram, start = (rows.double() @ rows.double().mT).cpu().numpy(), around.double().cpu().numpy()
    least, most = np.maximum(start - within, 0), np.minimum(start + within, 1)
    ridge = 1e-10  # decides between equally good weights, and is too small to show in others
    matrix, ones = gram + ridge * np.eye(len(start)), np.ones(len(start))
    found = minimize(
        lambda weights: weights @ matrix @ weights - 2 * ridge * start @ weights,
        start,
        jac=lambda weights: 2 * (matrix @ weights - ridge * start),
        method="SLSQP",
        bounds=list(zip(least, most, strict=True)),
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": lambda weights: ones},
        options={"ftol": 1e-16, "maxiter": 1000},
    ).x
    weights = _polished(np.clip(found, least, most), matrix, ridge * start, least, most)
    return torch.from_numpy(weights / weights.sum())


def _polished(
    weights: np.ndarray, matrix: np.ndarray, pull: np.ndarray, least: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """A solution that is right to the last digits: which bounds it touches is known, so the rest is a linear system.

    An iterative solver stops wherever it is near enough, and so at other digits for inputs that differ by rounding.
    """
    near = 1e-7 * (most - least)
    free = np.flatnonzero((weights - least > near) & (most - weights > near))
    if not len(free):
        return weights
    result = np.where(weights - least <= near, least, np.where(most - weights <= near, most, 0.0))
    result[free] = 0
    system = np.ones((len(free) + 1, len(free) + 1))
    system[:-1, :-1], system[-1, -1] = matrix[np.ix_(free, free)], 0
    right = np.append(pull[free] - matrix[free] @ result, 1 - result.sum())
    result[free] = np.linalg.solve(system, right)[:-1]
    inside = (result >= least - near).all() and (result <= most + near).all()
    return np.clip(result, least, most) if inside else weights
