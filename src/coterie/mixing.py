"""From membership to weights: row-stochastic matrices [group, client] that mix a stack of models.

A row mixes the members of one group; it is zero where a client is no member. A membership is a `Grouping`, or true and
false [group, client].
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.arrays import as_counts, as_square
from coterie.errors import SettingsError
from coterie.grouping import Grouping

__all__ = ["by_samples", "cafa_weights", "clipped", "personal", "uniform"]


def by_samples(samples: Any, membership: Any = None) -> Tensor:
    """Weights in proportion to the clients' samples, [group, client]; without a membership all are one group.

    A group whose members have no samples is an error: nobody could say what its model is.
    """
    samples = torch.as_tensor(samples, dtype=torch.float64).reshape(-1)
    if membership is None:
        membership = torch.ones(1, len(samples), dtype=torch.bool)
    matrix = membership.matrix if isinstance(membership, Grouping) else membership
    weights = torch.as_tensor(matrix).to(samples) * samples
    total = weights.sum(dim=1, keepdim=True)
    if not (total > 0).all():
        raise SettingsError("mixing by samples: a group has no members with samples")
    return weights / total


def uniform(clients: int, membership: Any = None) -> Tensor:
    """Equal weights for all members, [group, client]."""
    return by_samples(torch.ones(clients), membership)


def cafa_weights(cluster_sizes_of_selected: Any, accuracy: Any, validation_sizes: Any) -> Tensor:
    """CAFA's weights of the selected clients, [1, client] (Eqs. 8-11).

    `cluster_sizes_of_selected` [client] is the size of the cluster, among all clients, that each is in: w^K up to a
    factor, which cancels (Eq. 8). `accuracy` [model, client] is every selected client's model on the validation data of
    every selected client, its own included, weighted by `validation_sizes` [client] (Eqs. 9-10). Where no model has any
    accuracy, they count alike.
    """
    sizes = as_counts("cluster_sizes_of_selected", cluster_sizes_of_selected)
    accuracy = as_square("accuracy", accuracy)
    validation = as_counts("validation_sizes", validation_sizes, len(sizes))
    if len(accuracy) != len(sizes):
        raise SettingsError(f"accuracy of shape {accuracy.shape} for {len(sizes)} clients")
    if (accuracy < 0).any() or (accuracy > 1).any():
        raise SettingsError("accuracy: expected shares from 0 to 1")
    if not (sizes > 0).all():
        raise SettingsError("cluster_sizes_of_selected: a client is in its own cluster, so none is empty")
    weighted = accuracy @ validation  # A_i up to the sum of the sizes, which cancels in Eq. 10
    weighted = weighted if weighted.sum() > 0 else np.ones(len(sizes))
    return by_samples(torch.from_numpy(sizes * weighted))  # Eq. 11


def personal(similarity: Any, own: float = 1.0) -> Tensor:
    """Each client's own mix, [client, client]: itself by `own`, others by their similarity to it (SLFed Eq. 19).

    Row i of `similarity` holds sigma_j for the clients j that i has chosen, and 0 for all others; the diagonal is not
    looked at. Who has chosen nobody keeps its own model.
    """
    similarity = as_square("similarity", similarity)
    if own < 0 or (similarity < 0).any():
        raise SettingsError("mixing by similarity: weights below 0; leave out clients by a similarity of 0")
    np.fill_diagonal(similarity, own)
    if not (similarity.sum(axis=1) > 0).all():
        raise SettingsError(f"own={own}: a client that has chosen nobody needs a weight for itself above 0")
    return torch.from_numpy(similarity / similarity.sum(axis=1, keepdims=True))


def clipped(weights: Any, distance: Any, limit: float) -> Tensor:
    """Each client's own mix [client, client] with others brought nearer to it, none farther away than `limit`.

    `distance` [client, client] is that of their models. Bringing a model nearer is the same as giving a part of its
    weight to the client's own, so the result is a mix again.
    """
    weights, distance = as_square("weights", weights), as_square("distance", distance)
    if limit <= 0:
        raise SettingsError(f"limit={limit}: above 0")
    bounded = weights * np.minimum(1, limit / np.maximum(distance, limit))
    np.fill_diagonal(bounded, 0)
    np.fill_diagonal(bounded, 1 - bounded.sum(axis=1))
    return torch.from_numpy(bounded)
