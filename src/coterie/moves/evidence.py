"""How alike clients are: from what they send to features, distances and similarities.

Arrays or tensors with the client as first axis go in, arrays of float64 come out. What comes out fits every function of
`coterie.moves.grouping`: a distance d is the similarity 1 - d and the other way round.

Equal clients are at distance 0 exactly, and what rounding leaves of a distance counts as 0: otherwise groups of
identical clients would depend on the order of a sum.

>>> distance = coterie.evidence.weight_distance([[0, 0], [0, 1], [6, 8]])  # what three clients have sent
>>> coterie.grouping.linkage(distance, groups=2).labels
array([0, 0, 1])
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import as_array
from coterie.core.errors import SettingsError
from coterie.nets.stacks import Changes, Models, cosines, distances

_TIE = 1e-9
"""Shares that differ by less are equal: a third, computed in two ways, need not give the same number."""


def label_shares(counts: Any) -> np.ndarray:
    """The share of each label in a client's samples, [client, class], from its counts of labels (CAFA Eqs. 1-2).

    >>> coterie.evidence.label_shares([[3, 1], [0, 2]])
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    counts = as_array("counts", counts, 1, 2)
    if (counts < 0).any():
        raise SettingsError(f"counts: {counts.min():g} is below 0")
    total = counts.sum(axis=-1, keepdims=True)
    if not (total > 0).all():
        where = f"client {int(np.argmin(total.reshape(-1)))}" if counts.ndim == 2 else "the client"
        raise SettingsError(f"counts: {where} has no samples, so its labels have no shares")
    return counts / total


def dominant_label(shares: Any) -> np.ndarray:
    """The label whose share is farthest from uniform, [client]: CFIC's Psi (Eq. 2), from shares [client, class].

    Eq. 2 takes the least ratio of logarithms. That is where |D_i - 1/C| is greatest, but it is undefined where that is
    0, so the greatest |D_i - 1/C| is what is looked for. Among equals an over-represented label comes first, then the
    lowest: with two classes that is the majority, and a client with all labels alike gets label 0.

    >>> coterie.evidence.dominant_label([[0.6, 0.2, 0.2], [0.1, 0.45, 0.45]])  # too many of 0; too few of 0
    array([0, 0])
    """
    shares = as_array("shares", shares, 1, 2)
    if (shares < 0).any() or not np.allclose(shares.sum(axis=-1), 1, atol=1e-6):
        raise SettingsError("shares: expected shares that sum to 1 for every client; see label_shares")
    deviation = shares - 1 / shares.shape[-1]
    size = np.abs(deviation)
    farthest = size >= size.max(axis=-1, keepdims=True) - _TIE
    over = farthest & (deviation > 0)
    candidates = np.where(over.any(axis=-1, keepdims=True), over, farthest)
    return np.asarray(candidates.argmax(axis=-1))


def weight_distance(models: Any, layer: str = "last") -> np.ndarray:
    """Euclidean distances between clients' weights, over the number of weights, [client, client] (AutoCFL Eq. 6).

    Of `Models` the last layer is compared, or another by its name, or "all". Other arrays [client, ...] are the weights
    themselves. A distance below their precision is 0.

    >>> coterie.evidence.weight_distance([[0, 0], [3, 4]])
    array([[0. , 2.5],
           [2.5, 0. ]])
    """
    if isinstance(models, Models | Changes):
        rows = models.part("head" if layer == "last" else layer)
    elif layer != "last":
        raise SettingsError(f"layer={layer!r}: only Models know their layers; give the layer's weights themselves")
    else:
        rows = models
    known = rows.dtype if isinstance(rows, Tensor) and rows.is_floating_point() else torch.float64
    rows, precision = _rows("models", rows), torch.finfo(known).eps
    distance = distances(rows)
    # Clients with the same data add it up in different orders: what they differ by then is no distance.
    distance[distance <= 32 * precision * rows.norm(dim=1).max()] = 0
    return distance.cpu().numpy() / rows.shape[1]


def update_cosine(updates: Any) -> np.ndarray:
    """Cosines between clients' updates, [client, client]; 0 for a client that did not move (CFL, FL+HC).

    >>> coterie.evidence.update_cosine([[3, 4], [3, -4]])
    array([[ 1.  , -0.28],
           [-0.28,  1.  ]])
    """
    rows = _rows("updates", updates.parameters if isinstance(updates, Changes) else updates)
    return _tidy(cosines(rows).cpu().numpy())


def decomposed_cosines(updates: Any, directions: int) -> np.ndarray:
    """Cosines of clients' updates with the leading directions of all, [client, direction] (FedGroup).

    The directions are the leading singular vectors of the updates, at most as many as there are clients. The Euclidean
    distance between two clients' rows is FedGroup's EDC: it depends on few numbers, and not on how long updates are.
    A client that did not move has cosines 0. Differences below a millionth are left out.

    >>> coterie.evidence.decomposed_cosines([[3, 4], [6, 8], [4, -3]], directions=2)
    array([[1., 0.],
           [1., 0.],
           [0., 1.]])
    """
    rows = _rows("updates", updates.parameters if isinstance(updates, Changes) else updates)
    if directions < 1:
        raise SettingsError(f"directions={directions}: at least 1")
    vectors, values, _ = torch.linalg.svd(rows, full_matrices=False)
    along = (vectors * values)[:, :directions]  # the updates' coordinates along the directions
    # A direction is as good with the other sign. The largest coordinate is made positive, on every machine.
    along = along * along.gather(0, along.abs().argmax(dim=0, keepdim=True)).sign()
    lengths = rows.norm(dim=1, keepdim=True)
    cosines_found = (along / torch.where(lengths > 0, lengths, 1)).clamp(-1, 1)
    return cosines_found.cpu().numpy().round(6) + 0.0  # no -0


def update_distance(updates: Any, metric: Literal["l1", "l2", "cosine"] = "l2") -> np.ndarray:
    """Distances between clients' updates, [client, client]: Manhattan, Euclidean, or 1 less the cosine (FL+HC).

    >>> coterie.evidence.update_distance([[0, 0], [3, 4]], "l1")
    array([[0., 7.],
           [7., 0.]])
    """
    if metric == "cosine":
        return 1 - update_cosine(updates)
    rows = _rows("updates", updates.parameters if isinstance(updates, Changes) else updates)
    if metric == "l2":
        return distances(rows).cpu().numpy()
    if metric != "l1":
        raise SettingsError(f"metric={metric!r}: l1, l2 or cosine")
    return torch.cdist(rows, rows, p=1).cpu().numpy()


def subspace_angle(bases: Any, measure: Literal["smallest", "sum"] = "smallest") -> np.ndarray:
    """Principal angles between the subspaces that clients' data spans, in degrees, [client, client] (PACFL).

    `bases` [client, feature, vector] have orthonormal columns; a client with fewer vectors has columns of zeros. The
    result is the smallest principal angle, or the sum of all; neither depends on the basis of a subspace. With a
    subspace per class, [client, class, feature, vector], it is the mean over the classes that at least one of the two
    clients has: in a class that only one of them has, all angles are right angles.

    >>> coterie.evidence.subspace_angle([[[1], [0]], [[0], [1]]])  # two lines in a plane
    array([[ 0., 90.],
           [90.,  0.]])
    """
    bases = as_array("bases", bases, 3, 4)
    if measure not in ("smallest", "sum"):
        raise SettingsError(f"measure={measure!r}: smallest or sum")
    classes = bases[:, None] if bases.ndim == 3 else bases
    ranks = classes.any(axis=2).sum(axis=2)  # [client, class]
    if not ranks.any(axis=1).all():
        raise SettingsError(f"bases: client {int(ranks.any(axis=1).argmin())} has none, all is 0")
    total, counted = np.zeros((2, len(bases), len(bases)))
    for one, rank in zip(classes.swapaxes(0, 1), ranks.T, strict=True):
        cosine = _tidy(np.linalg.svd(one.swapaxes(1, 2)[:, None] @ one[None], compute_uv=False))
        angle = np.degrees(np.arccos(cosine))  # [client, client, vector], smallest first
        both, either = np.minimum(rank[:, None], rank), np.maximum(rank[:, None], rank)
        # Two subspaces have as many angles as the smaller one has dimensions. A missing one is at right angles to all.
        count = np.minimum(np.where(both > 0, both, either), 1 if measure == "smallest" else np.inf)
        total += np.where(np.arange(angle.shape[2]) < count[..., None], angle, 0).sum(axis=2)
        counted += either > 0
    return total / counted


def inference_similarity(predictions: Any, as_printed: bool = False) -> np.ndarray:
    """How far clients' models agree on the same inputs, [client, client] (FLIS, Section 2.2).

    `predictions` are probabilities or one-hot rows [client, row, class], or predicted labels [client, row]. Two models
    score <B_i, B_j> / (|B_i| |B_j|), which for labels is the share of inputs on which they agree. With `as_printed` the
    numerator is the norm of the elementwise product, as the paper has it. A model then scores 1 / sqrt(rows) with
    itself, which is below every threshold of the paper.

    >>> coterie.evidence.inference_similarity([[0, 1, 2, 2], [0, 1, 1, 2]])
    array([[1.  , 0.75],
           [0.75, 1.  ]])
    """
    predictions = as_array("predictions", predictions, 2, 3)
    if predictions.ndim == 2:
        labels, predictions = np.unique(predictions, return_inverse=True)
        predictions = np.eye(len(labels))[predictions]
    if (predictions < 0).any():
        raise SettingsError("predictions: below 0; give probabilities or one-hot rows, not the net's raw outputs")
    rows = predictions.reshape(len(predictions), -1)
    products = rows @ rows.T
    squares = products.diagonal()
    if not (squares > 0).all():
        raise SettingsError(f"predictions: client {int(squares.argmin())} predicts nothing, all is 0")
    # The root of the product, not the product of roots: for one-hot rows it is exactly how many rows there are.
    norms = np.sqrt(squares[:, None] * squares[None, :])
    numerator = np.sqrt((rows**2) @ (rows**2).T) if as_printed else products
    return _tidy(numerator / norms)


def prediction_similarity(own_on_own: Any, other_on_own: Any, own_on_other: Any, other_on_other: Any) -> np.ndarray:
    """How alike two clients' models predict on the synthetic data of both, [...] (SLFed Eq. 2).

    Each argument counts predicted classes [..., class]; `other_on_own` are those of the other's model on one's own
    data. The result is the mean of the two cosines, one for each client's data.

    >>> float(coterie.evidence.prediction_similarity([3, 4], [4, 3], [0, 2], [0, 1]))
    0.98
    """
    cosine_on_own = _cosine(as_array("own_on_own", own_on_own), as_array("other_on_own", other_on_own))
    cosine_on_other = _cosine(as_array("own_on_other", own_on_other), as_array("other_on_other", other_on_other))
    return (cosine_on_own + cosine_on_other) / 2


def standardised(means: Any, spread: Any, known: Any) -> np.ndarray:
    """Clients' mean features of each class, in units of the class's own spread, [client, class, feature].

    `means` [client, class, feature], `spread` [client, class], the variance summed over features, and whether a client
    has the class, `known` [client, class], come from `Clients.class_means`. A class's spread is its mean over
    the clients that have it: so nobody need tell how often. Classes that a client has not, or that vary at no client,
    are NaN.

    >>> coterie.evidence.standardised([[[2.0], [0.0]], [[6.0], [3.0]]], [[4, 0], [4, 1]], [[True, False], [True, True]])
    array([[[ 1.],
            [nan]],
    <BLANKLINE>
           [[ 3.],
            [ 3.]]])
    """
    means, spread = as_array("means", means, 3), as_array("spread", spread, 2)
    known = as_array("known", known, 2) > 0
    scale = (spread * known).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    there = known & (scale > 0)
    units = np.sqrt(np.where(scale > 0, scale, 1))[:, None]
    return np.where(there[..., None], means / units, np.nan)


def class_distance(features: Any) -> np.ndarray:
    """How far apart clients are, given the label: squared distances of class means, [client, client].

    `features` [client, class, feature] are `standardised` class means. The distance is a mean over the classes that
    both clients have; it is NaN for two that share none, of which nothing is known. How often a client has a class does
    not matter, nor which classes it has beside: that is what evidence without priors means.

    >>> coterie.evidence.class_distance([[[1.0], [0.0]], [[3.0], [0.0]], [[np.nan], [5.0]]])
    array([[ 0.,  2., 25.],
           [ 2.,  0., 25.],
           [25., 25.,  0.]])
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 3:
        raise SettingsError(f"features of shape {features.shape}: expected class means, [client, class, feature]")
    known = ~np.isnan(features).any(axis=2)
    return between_classes(np.nan_to_num(features), known, np.nan_to_num(features), known)


def between_classes(one: np.ndarray, known: np.ndarray, other: np.ndarray, also: np.ndarray) -> np.ndarray:
    """`class_distance` between two lists of class means, [one, other], with what each of them knows [..., class].

    >>> features = np.array([[[1.0]], [[3.0]]])
    >>> known = np.array([[True], [True]])
    >>> coterie.evidence.between_classes(features[:1], known[:1], features, known)
    array([[0., 4.]])
    """
    total, shared = np.zeros((2, len(one), len(other)))
    for label in range(one.shape[1]):
        both = known[:, None, label] & also[None, :, label]
        squares = ((one[:, None, label] - other[None, :, label]) ** 2).sum(axis=2)
        total += np.where(both, squares, 0)
        shared += both
    return np.where(shared > 0, total, np.nan) / np.maximum(shared, 1)


def _tidy(similarity: np.ndarray) -> np.ndarray:
    """The similarities made exactly symmetric, and exactly 1 where they are below it by no more than rounding."""
    similarity = (similarity + similarity.swapaxes(0, 1)) / 2
    return np.where(similarity > 1 - 1e-12, 1, similarity)


def _cosine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines along the last axis; 0 where one side is all 0."""
    norms = np.sqrt((left**2).sum(axis=-1) * (right**2).sum(axis=-1))
    return np.clip((left * right).sum(axis=-1) / np.where(norms > 0, norms, 1), -1, 1)


def _rows(name: str, values: Any) -> Tensor:
    """Values [client, ...] as rows of finite numbers, left on their device: they may be large, and on a GPU."""
    values = values if isinstance(values, Tensor) else torch.from_numpy(as_array(name, values))
    if values.dim() < 2 or not values.numel():
        raise SettingsError(
            f"{name} of shape {tuple(values.shape)}: expected the numbers of each client, [client, ...]"
        )
    rows = values.detach().reshape(len(values), -1).double()
    finite = torch.isfinite(rows).all(dim=1)
    if not finite.all():
        raise SettingsError(f"{name}: client {int(finite.int().argmin())} has numbers that are not finite")
    return rows


def leading_vectors(x: Tensor, count: int) -> Tensor:
    """The leading singular vectors [feature, vector] of samples [sample, feature]; zeros if there are fewer.

    >>> coterie.evidence.leading_vectors(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), 1)
    tensor([[0.6000],
            [0.8000]], dtype=torch.float64)
    """
    found = torch.zeros(x.shape[1], count, dtype=torch.float64, device=x.device)
    if len(x):
        _, values, rows = torch.linalg.svd(x.double(), full_matrices=False)
        rows = rows[:count][values[:count] > 1e-9 * values[0].clamp(min=1e-300)]
        # A singular vector is as good with the other sign. Its largest number is made positive, on every machine.
        largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
        found[:, : len(rows)] = (rows * largest.sign()).T
    return found
