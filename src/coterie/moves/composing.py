"""Evidence and groupings by name, for `compose`: every kind of evidence gives what every kind of grouping takes.

Similarities are from 0 to 1, distances are 1 - similarity, and a threshold is a similarity, whatever is grouped.
Features are the shares of labels, or a client's distances to all others.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.moves import evidence, grouping, robust
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Changes, Models, distances


class Alike(NamedTuple):
    """How alike clients are."""

    similarity: np.ndarray
    """From 0 to 1, [client, client]."""
    features: np.ndarray
    """[client, feature]."""


def by_labels(counts: Tensor) -> Alike:
    """Shares of labels, of counts [client, class] (CAFA Eq. 1): similarity 1 - d / sqrt(2)."""
    shares = evidence.label_shares(counts)
    return Alike(1 - distances(torch.from_numpy(shares)).numpy() / np.sqrt(2), shares)


def by_weights(models: Models, layer: str) -> Alike:
    """Distances of a layer's weights (AutoCFL Eq. 6): similarity 1 - d / the greatest."""
    distance = evidence.weight_distance(models, layer)
    similarity = 1 - distance / (distance.max() or 1)
    return Alike(similarity, 1 - similarity)


def by_updates(updates: Changes) -> Alike:
    """Cosines of changes (CFL, FL+HC): similarity (1 + cosine) / 2."""
    similarity = (1 + evidence.update_cosine(updates)) / 2
    np.fill_diagonal(similarity, 1)
    return Alike(similarity, 1 - similarity)


def by_inference(outputs: Tensor, hard: bool) -> Alike:
    """Agreement of outputs [client, sample, class] on the same samples (FLIS, Section 2.2), by labels or by shares."""
    similarity = evidence.inference_similarity(outputs.argmax(dim=-1) if hard else outputs.softmax(dim=-1))
    return Alike(similarity, 1 - similarity)


def grouped(alike: Alike, samples: Tensor, seed: int, how: Any) -> Grouping:
    """The groups that a move makes of the evidence; `how` has its name and options, as `Compose` declares them."""
    similarity, features = alike
    distance, apart = 1 - similarity, 1 - how.threshold
    match how.grouping:
        case "one":
            return Grouping(np.ones((1, len(distance)), dtype=bool))
        case "key":
            return grouping.by_key(evidence.dominant_label(features))
        case "vote":
            return grouping.vote(distance, samples, how.weighted, how.guard)
        case "neighbourhoods":
            return grouping.neighbourhoods(similarity, how.threshold)
        case "linkage" if how.clusters is not None:
            return grouping.linkage(distance, groups=how.clusters, method=how.linkage)
        case "linkage":
            return grouping.linkage(distance, apart, method=how.linkage)
        case "bipartition":
            return grouping.bipartition(similarity)
        case "kmeans":
            return grouping.kmeans(features, how.clusters or 1, seed)
        case "silhouette":
            return grouping.kmeans_silhouette(features, seed=seed)
        case "dbscan":
            return grouping.dbscan(distance, apart, how.smallest, relative=False)
        case _:
            return grouping.density(distance, how.smallest)


def robustly_mixed(weights: Tensor, models: Models, before: Models, how: Any) -> Models:
    """Groups' models by weights [group, client]; `how` has the rule, as `Compose` declares it.

    A group of which no member has sent a model keeps the one that it had `before` [group].
    """
    there = (weights > 0).any(dim=1)
    match how.robust:
        case "median":
            mixed = robust.median(weights[there], models)
        case "trimmed-mean":
            mixed = robust.trimmed_mean(weights[there], models, how.trimmed)
        case _:
            mixed = robust.geometric_median(weights[there], models)
    place = torch.where(there, there.cumsum(dim=0) - 1, len(mixed) + torch.arange(len(there)))
    return Models.cat([mixed, before])[place]


def home_of(groups: Grouping) -> tuple[Grouping, np.ndarray]:
    """Distinct groups, and the one of them that is each client's own, [client].

    Where groups overlap there is a neighbourhood around every client, some of which may be the same.
    """
    if groups.disjoint:
        return groups, groups.labels
    distinct = groups.distinct()
    return distinct, (distinct.matrix[:, None] == groups.matrix[None]).all(axis=-1).argmax(axis=0)
