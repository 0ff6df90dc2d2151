"""From membership to weights: row-stochastic matrices [group, client] that mix a stack of models.

A row mixes the members of one group; it is zero where a client is no member. A membership is a `Grouping`, or true and
false [group, client].

>>> models = coterie.simulate(clients=3, net="mlp").new_models(3)
>>> (coterie.mixing.uniform(3) @ models).shape  # the mean of three
(1,)
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import as_counts, as_square
from coterie.core.errors import SettingsError
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Changes, Models, cosines, distances


def by_samples(samples: Any, membership: Any = None) -> Tensor:
    """Weights in proportion to the clients' samples, [group, client]; without a membership all are one group.

    A group whose members have no samples is an error: nobody could say what its model is.

    >>> coterie.mixing.by_samples([10, 30, 5], coterie.grouping.Grouping.of([0, 0, 1]))
    tensor([[0.2500, 0.7500, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
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
    """Equal weights for all members, [group, client].

    >>> coterie.mixing.uniform(4)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    return by_samples(torch.ones(clients), membership)


def without_oneself(counts: Any, membership: Any = None) -> Tensor:
    """For each client the mean of the others in its group, [client, client], weighted by their `counts` [client].

    Who is alone in its group, or has no group, gets the mean of all others: what it would have without groups.

    >>> coterie.mixing.without_oneself([1, 1, 2], coterie.grouping.Grouping.of([0, 0, 1]))
    tensor([[0.0000, 1.0000, 0.0000],
            [1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    counts = torch.from_numpy(as_counts("counts", counts))
    if len(counts) < 2:
        raise SettingsError("mixing without oneself: there is nobody else")
    matrix = np.ones((1, len(counts))) if membership is None else membership.matrix
    groups = torch.from_numpy(np.asarray(matrix, dtype=np.float64))
    others = 1 - torch.eye(len(counts), dtype=torch.float64)
    beside = groups.T @ groups * others * counts
    alone = ~(beside > 0).any(dim=1, keepdim=True)
    return by_samples(torch.ones(len(counts)), torch.where(alone, others * counts, beside))


def cafa_weights(cluster_sizes_of_selected: Any, accuracy: Any, validation_sizes: Any) -> Tensor:
    """CAFA's weights of the selected clients, [1, client] (Eqs. 8-11).

    `cluster_sizes_of_selected` [client] is the size of the cluster, among all clients, that each is in: w^K up to a
    factor, which cancels (Eq. 8). `accuracy` [model, client] is every selected client's model on the validation data of
    every selected client, its own included, weighted by `validation_sizes` [client] (Eqs. 9-10). Where no model has any
    accuracy, they count alike.

    >>> coterie.mixing.cafa_weights([3, 1], accuracy=[[1.0, 0.5], [0.5, 1.0]], validation_sizes=[10, 10])
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
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

    >>> coterie.mixing.personal([[0, 1, 0], [0.25, 0, 0.75], [0, 0, 0]])
    tensor([[0.5000, 0.5000, 0.0000],
            [0.1250, 0.5000, 0.3750],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    similarity = as_square("similarity", similarity)
    if own < 0 or (similarity < 0).any():
        raise SettingsError("mixing by similarity: weights below 0; leave out clients by a similarity of 0")
    np.fill_diagonal(similarity, own)
    if not (similarity.sum(axis=1) > 0).all():
        raise SettingsError(f"own={own}: a client that has chosen nobody needs a weight for itself above 0")
    return torch.from_numpy(similarity / similarity.sum(axis=1, keepdims=True))


def among(lengths: Any, rate: float) -> Tensor:
    """Each group's mix of all groups' models [group, group]: its own by 1, others by rate over length (FedGroup).

    `lengths` [group] are the Euclidean norms of the models; one that is all 0 counts for no other. Rows are scaled to
    sum to 1. A rate of 0 mixes nothing.

    >>> coterie.mixing.among([2.0, 1.0], rate=1.0)
    tensor([[0.5000, 0.5000],
            [0.3333, 0.6667]], dtype=torch.float64)
    """
    lengths = torch.as_tensor(lengths, dtype=torch.float64).cpu()
    if not rate >= 0:
        raise SettingsError(f"rate={rate}: 0 or more")
    weights = torch.where(lengths > 0, rate / lengths, 0).repeat(len(lengths), 1).fill_diagonal_(1)
    return weights / weights.sum(dim=1, keepdim=True)


def attention(rows: Tensor, counted: Tensor, alpha: float, sigma: float) -> Tensor:
    """Each client's own mix [client, client]: another counts the more, the nearer its model is (FedAMP, Eq. 4).

    It counts alpha A'(d^2) with A(x) = 1 - exp(-x / sigma), for the Euclidean distance d of the models `rows` [client,
    number], and the rest is the client's own. Where others would count more than 1 together, they are scaled down to
    1: with a longer step along the gradient of A a client would go beyond them. Clients that are not `counted` [client]
    count for nobody but themselves.

    >>> models = torch.tensor([[0.0], [1.0]])
    >>> coterie.mixing.attention(models, counted=torch.tensor([True, False]), alpha=1, sigma=1)
    tensor([[1.0000, 0.0000],
            [0.3679, 0.6321]], dtype=torch.float64)
    """
    others = alpha / sigma * torch.exp(-distances(rows).cpu().square() / sigma)
    others = others * counted.to(others) * (1 - torch.eye(len(others), dtype=others.dtype))
    others = others / others.sum(dim=1, keepdim=True).clamp(min=1)
    return others + torch.diag(1 - others.sum(dim=1))


def attention_by_angle(rows: Tensor, counted: Tensor, own: float, sigma: float) -> Tensor:
    """Each client's own mix [client, client]: itself by `own`, others in proportion to exp(sigma cos) (HeurFedAMP).

    The cosine is that of the models `rows` [client, number]. Clients that are not `counted` [client] count for nobody
    but themselves; where nobody else is counted, a client's mix is its own model.

    >>> models = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> coterie.mixing.attention_by_angle(models, counted=torch.tensor([True, True, True]), own=0.5, sigma=2)
    tensor([[0.5000, 0.4404, 0.0596],
            [0.4404, 0.5000, 0.0596],
            [0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """
    scores = sigma * cosines(rows).cpu()
    excluded = torch.eye(len(scores), dtype=torch.bool) | ~counted.bool()
    others = scores.masked_fill(excluded, -torch.inf).softmax(dim=1).nan_to_num(0) * (1 - own)
    return others + torch.diag(1 - others.sum(dim=1))


def first_order(before: Tensor, losses: Tensor, distance: Tensor) -> Tensor:
    """How much each of several models would lower a client's loss, by unit of distance, [client, model] (FedFomo).

    `before` [client] is the loss of the client's model, `losses` [client, model] are those of the others, and
    `distance` [client, model] says how far these are from it. A model that is where the client's is, or whose loss is
    not a number, counts 0.

    >>> coterie.mixing.first_order(torch.tensor([2.0]), torch.tensor([[1.0, 3.0]]), distance=torch.tensor([[4.0, 1.0]]))
    tensor([[ 0.2500, -1.0000]])
    """
    gain = (before[:, None] - losses) / torch.where(distance > 0, distance, torch.inf)
    return gain.nan_to_num(nan=0, posinf=0, neginf=0)


def clipped(weights: Any, distance: Any, limit: float) -> Tensor:
    """Each client's own mix [client, client] with others brought nearer to it, none farther away than `limit`.

    `distance` [client, client] is that of their models. Bringing a model nearer is the same as giving a part of its
    weight to the client's own, so the result is a mix again.

    >>> coterie.mixing.clipped([[0.5, 0.5], [0, 1]], distance=[[0, 4], [4, 0]], limit=1)
    tensor([[0.8750, 0.1250],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    weights, distance = as_square("weights", weights), as_square("distance", distance)
    if limit <= 0:
        raise SettingsError(f"limit={limit}: above 0")
    bounded = weights * np.minimum(1, limit / np.maximum(distance, limit))
    np.fill_diagonal(bounded, 0)
    np.fill_diagonal(bounded, 1 - bounded.sum(axis=1))
    return torch.from_numpy(bounded)


def bounded(weights: Tensor, models: Models, clip: float, noise: float, rng: np.random.Generator) -> Models:
    """Mixed models [client], which no single contributor moves by more than its weight times `clip`, with noise.

    The noise is Gaussian on every parameter, with a deviation of `noise` times what the heaviest contributor can do. A
    `clip` of 0 is no bound, and there is no noise then.

    >>> models = coterie.simulate(clients=2, net="mlp").new_models(2)
    >>> weights = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    >>> mixed = coterie.mixing.bounded(weights, models, clip=0.1, noise=0, rng=np.random.default_rng(0))
    >>> [round(float(moved), 4) for moved in (mixed - models).parameters.norm(dim=1)]  # half of 0.1
    [0.05, 0.0]
    """
    if not clip:
        return weights @ models
    heaviest = (weights - torch.diag(weights.diagonal())).amax(dim=1)
    drawn = torch.from_numpy(rng.standard_normal(models.parameters.shape)).to(models.parameters)
    mixed = clipped(weights, distances(models.parameters), clip) @ models
    return mixed + Changes(models.net, drawn) * (noise * clip * heaviest)


def responsibilities(losses: Tensor, shares: Tensor) -> Tensor:
    """How likely each sample is to come from each model of a mixture, [client, model, sample]; each sample's add to 1.

    `losses` [client, model, sample] are negative log-likelihoods and `shares` [client, model] the mixture's weights:
    q_ik is proportional to pi_k exp(-l_k(i)), the E step of the EM algorithm. NaN marks samples that are not there.

    >>> likely = torch.tensor([[[0.9, 0.5], [0.1, 0.5]]])  # of two samples under two models
    >>> coterie.mixing.responsibilities(-likely.log(), shares=torch.tensor([[0.5, 0.5]]))
    tensor([[[0.9000, 0.5000],
             [0.1000, 0.5000]]])
    """
    # A share of 0 would be 0 for ever, and its logarithm is no number to go on with.
    return (shares.to(losses).clamp(min=1e-10).log().unsqueeze(2) - losses).softmax(dim=1)


def mixture_shares(losses: Tensor, shares: Tensor, steps: int = 1) -> Tensor:
    """The weights of a mixture of fixed models after this many steps of the EM algorithm, [client, model].

    >>> likely = torch.tensor([[[0.9, 0.5], [0.1, 0.5]]])
    >>> coterie.mixing.mixture_shares(-likely.log(), shares=torch.tensor([[0.5, 0.5]]))
    tensor([[0.7000, 0.3000]])
    """
    for _ in range(steps):
        shares = responsibilities(losses, shares).nanmean(dim=2)
    return shares


def label_frequencies(counts: Tensor) -> Tensor:
    """The share of each label in each of several clusters, [cluster, class], from sums [cluster, class] (FedRC's C).

    A label that a cluster does not have gets 1e-8. In a cluster that has nothing, all labels are equally frequent.

    >>> coterie.mixing.label_frequencies(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000]])
    """
    total, even = counts.sum(dim=1, keepdim=True), torch.ones_like(counts) / counts.shape[1]
    return torch.where(total > 0, counts / total, even).clamp(min=1e-8)


def best_counts(losses: Tensor) -> Tensor:
    """How many of a client's samples each of several models fits best, [client, model] (FedSoft); of equals the first.

    `losses` are [client, model, sample]; NaN marks samples that are not there.

    >>> coterie.mixing.best_counts(torch.tensor([[[0.1, 0.7, 0.5], [0.9, 0.3, 0.5]]]))
    tensor([[2, 1]])
    """
    there = ~losses.isnan().all(dim=1)
    best = losses.nan_to_num(nan=torch.inf).argmin(dim=1)  # [client, sample]
    models = torch.arange(losses.shape[1], device=losses.device)[:, None]
    return ((best.unsqueeze(1) == models) & there.unsqueeze(1)).sum(dim=2)


def by_information(accuracy: Any, frequency: Any, share: float) -> Tensor:
    """FedFa's weights [client]: a part `share` is from how often clients took part, the rest from their accuracies.

    Each is an information quantity, normalised to sum 1: -log2 of a client's part of all accuracy, which is larger the
    worse it does, and -log2 of 1 less its part of all participation, which is larger the oftener it took part.

    >>> coterie.mixing.by_information(accuracy=[0.5, 0.5], frequency=[1, 3], share=1.0)
    tensor([0.1719, 0.8281], dtype=torch.float64)
    """
    accuracy, frequency = (torch.as_tensor(value, dtype=torch.float64).cpu() for value in (accuracy, frequency))
    # A part of 0, and a part that is everything, have no logarithm: the limits are those of the public implementation.
    needs = -_parts(accuracy).clamp(min=1e-6).log2()
    came = -(1 - _parts(frequency)).clamp(min=1e-5).log2()
    return (1 - share) * _parts(needs) + share * _parts(came)


def collaboration(shares: Tensor, variance: Tensor) -> Tensor:
    """Each client's own mix of all heads, [client, client], by the risk that they have for its data (FedPAC).

    `shares` [client, class, feature] are mean features of each class times how frequent it is, and `variance` [client]
    is what features vary by around them. A mix is the better, the nearer its shares are to the client's own, and the
    less it varies; so a client whose features vary much takes more from those like it.

    >>> shares = torch.tensor([[[1.0]], [[1.0]], [[9.0]]], dtype=torch.float64)
    >>> coterie.mixing.collaboration(shares, torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)).round(decimals=2)
    tensor([[0.5000, 0.5000, 0.0100],
            [0.5000, 0.5000, 0.0100],
            [0.0100, 0.0100, 0.9800]], dtype=torch.float64)
    """
    rows, own = shares.flatten(1), torch.eye(len(shares), dtype=shares.dtype)
    # The length of a mix of these is the square root of what alpha lowers.
    spread = variance.clamp(min=0).sqrt().diag()
    every = (torch.cat([rows - row, spread], dim=1) for row in rows)
    return torch.stack([least_norm(found, mine, 1.0) for found, mine in zip(every, own, strict=True)])


def by_class(means: Tensor, counts: Tensor, otherwise: Tensor) -> Tensor:
    """The means of classes over clients, from each client's [client, class, ...] and its counts [client, class].

    A class of which nobody counts anything gets what `otherwise` [class, ...] has there.

    >>> means, counts = torch.tensor([[[1.0], [0.0]], [[4.0], [0.0]]]), torch.tensor([[1, 0], [2, 0]])
    >>> coterie.mixing.by_class(means, counts, otherwise=torch.tensor([[9.0], [8.0]])).tolist()
    [[3.0], [8.0]]
    """
    weights = counts.to(means) / counts.sum(dim=0).clamp(min=1)
    return torch.where((counts > 0).any(dim=0).unsqueeze(1), torch.einsum("kc,kcd->cd", weights, means), otherwise)


def _parts(values: Tensor) -> Tensor:
    """The values in proportion, summing to 1; all the same if they are all zero."""
    total = values.sum()
    return values / total if total > 0 else torch.full_like(values, 1 / len(values))


def least_norm(rows: Tensor, around: Tensor, within: float) -> Tensor:
    """The weights [row] that make the weighted sum of rows shortest, each at most `within` from that in `around` [row].

    They are at least 0 and sum to 1: a quadratic program in as many unknowns as there are rows. Of equally good
    weights, those nearest to `around` are taken.

    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> coterie.mixing.least_norm(rows, around=torch.tensor([0.5, 0.5]), within=0.5)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    from scipy.optimize import minimize, nnls

    gram, start = (rows.double() @ rows.double().mT).cpu().numpy(), around.double().cpu().numpy()
    least, most = np.maximum(start - within, 0), np.minimum(start + within, 1)
    gram /= gram.diagonal().max() or 1  # the solution is the same, and the solver's tolerances mean something
    ridge = 1e-10  # decides between equally good weights, and is too small to show in others
    matrix, ones = gram + ridge * np.eye(len(start)), np.ones(len(start))
    if within >= 1:
        # With no other bound than 0 it is non-negative least squares, which is many times as fast: with (sum - 1)^2
        # in place of a sum of 1, the solution is another only by a factor.
        values, vectors = np.linalg.eigh(gram)
        root = np.sqrt(values.clip(0))[:, None] * vectors.T
        near = np.sqrt(ridge) * (np.eye(len(start)) - np.outer(start, ones))
        found, _ = nnls(np.vstack([root, near, ones]), np.append(np.zeros(2 * len(start)), 1), maxiter=100 * len(start))
        found = found / found.sum()
    else:
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
    """The solution to the last digits: an approximate one tells which bounds it touches, the rest is a linear system.

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
