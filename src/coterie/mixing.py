"""From membership to weights: row-stochastic matrices [group, client] that mix a stack of models.

A row mixes the members of one group; it is zero where a client is no member.
"""

from typing import Any

import torch
from torch import Tensor

from coterie.errors import SettingsError

__all__ = ["by_samples", "mixture_shares", "responsibilities", "uniform"]


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


def responsibilities(losses: Tensor, shares: Tensor) -> Tensor:
    """How likely each sample is to come from each model of a mixture, [client, model, sample]; each sample's add to 1.

    `losses` [client, model, sample] are negative log-likelihoods and `shares` [client, model] the mixture's weights:
    q_ik is proportional to pi_k exp(-l_k(i)), the E step of the EM algorithm. NaN marks samples that are not there.
    """
    # A share of 0 would be 0 for ever, and its logarithm is no number to go on with.
    return (shares.to(losses).clamp(min=1e-10).log().unsqueeze(2) - losses).softmax(dim=1)


def mixture_shares(losses: Tensor, shares: Tensor, steps: int = 1) -> Tensor:
    """The weights of a mixture of fixed models after so many steps of the EM algorithm, [client, model]."""
    for _ in range(steps):
        shares = responsibilities(losses, shares).nanmean(dim=2)
    return shares
