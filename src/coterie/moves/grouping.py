"""From evidence to membership: who belongs together.

Every function takes arrays or tensors and gives a `Grouping`. Distances are [client, client], symmetric, and 0 between
a client and itself. Any evidence works with any grouping: from similarities s one gets the distances 1 - s, and the
rows of either can serve as features.

>>> coterie.grouping.linkage([[0, 1, 9], [1, 0, 9], [9, 9, 0]], threshold=2).matrix
array([[ True,  True, False],
       [False, False,  True]])
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.arrays import as_array, as_counts, as_square
from coterie.core.errors import CoterieError, SettingsError
from coterie.moves.evidence import between_classes, class_distance

Noise = Literal["alone", "nearest", "out"]
Linkage = Literal["single", "complete", "average", "ward"]


class OverlapError(CoterieError, AttributeError):
    """A client is in several groups, so it has no single label.

    >>> coterie.grouping.Grouping([[1, 1, 0], [0, 1, 1]]).labels
    Traceback (most recent call last):
        ...
    coterie.moves.grouping.OverlapError: labels: client 1 is in several groups; use the matrix, or distinct() first
    """


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which clients are in which group. Groups may overlap or be empty, and a client may be in none.

    >>> groups = coterie.grouping.Grouping.of([0, 1, 0, -1])
    >>> groups.sizes, groups.members(0), groups.disjoint
    (array([2, 1]), array([0, 2]), True)
    """

    matrix: np.ndarray
    """Whether a client is a member, [group, client]."""

    def __post_init__(self) -> None:
        matrix = self.matrix.detach().cpu().numpy() if isinstance(self.matrix, Tensor) else np.asarray(self.matrix)
        if matrix.ndim != 2 or not matrix.size:
            raise SettingsError(f"matrix of shape {matrix.shape}: expected true or false, [group, client]")
        object.__setattr__(self, "matrix", matrix.astype(bool))

    @classmethod
    def of(cls, labels: Any, groups: int | None = None) -> "Grouping":
        """Disjoint groups from the place of each client's group, [client]; a client with -1 is in none."""
        labels = as_array("labels", labels, 1).astype(np.int64)
        groups = max(int(labels.max()) + 1, 1) if groups is None else groups
        if labels.max() >= groups:
            raise SettingsError(f"labels: {int(labels.max())} with {groups} groups")
        return cls(labels[None, :] == np.arange(groups)[:, None])

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.matrix)

    @property
    def sizes(self) -> np.ndarray:
        """How many clients each group has, [group]."""
        return self.matrix.sum(axis=1)

    @property
    def disjoint(self) -> bool:
        """Whether no client is in two groups."""
        return bool((self.matrix.sum(axis=0) <= 1).all())

    @cached_property
    def labels(self) -> np.ndarray:
        """The place of each client's group, [client], where groups are disjoint; -1 for a client in none."""
        if not self.disjoint:
            client = int(self.matrix.sum(axis=0).argmax())
            raise OverlapError(f"labels: client {client} is in several groups; use the matrix, or distinct() first")
        return np.where(self.matrix.any(axis=0), self.matrix.argmax(axis=0), -1)

    def members(self, group: int) -> np.ndarray:
        """Positions of a group's clients."""
        return self.matrix[group].nonzero()[0]

    def distinct(self) -> "Grouping":
        """The same groups without repetitions, in the order of their first appearance."""
        first = np.unique(self.matrix, axis=0, return_index=True)[1]
        return Grouping(self.matrix[np.sort(first)])


@dataclass(frozen=True, eq=False)
class Silhouette(Grouping):
    """Groups whose number was chosen by silhouette. Unpacks as `labels, k, scores`.

    >>> labels, k, scores = coterie.grouping.kmeans_silhouette([[0], [1], [8], [9]])
    >>> labels, k, max(scores, key=scores.get)
    (array([0, 0, 1, 1]), 2, 2)
    """

    scores: dict[int, float]
    """The mean silhouette for every number of groups that was tried."""

    @property
    def k(self) -> int:
        """The number of groups that was chosen."""
        return len(self)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.labels, self.k, self.scores))


@dataclass(frozen=True, eq=False)
class Votes(Grouping):
    """Groups that clients have voted for.

    >>> coterie.grouping.vote([[0, 1, 9], [1, 0, 9], [9, 9, 0]], samples=[10, 20, 30]).scores
    array([[0.        , 0.66666667, 0.16666667],
           [0.        , 1.33333333, 0.33333333],
           [0.        , 0.        , 0.5       ]])
    """

    scores: np.ndarray
    """What each client has scored for each representative, [client, client]: S of AutoCFL Eq. 12."""

    near: np.ndarray
    """Which others each client takes for its like, [client, client]: P_1 of AutoCFL."""


# Features


def kmeans(features: Any, k: int, seed: int = 0) -> Grouping:
    """k-means on features [client, feature]: k groups, or fewer if there are fewer distinct rows of features.

    >>> coterie.grouping.kmeans([[0], [8], [1], [9]], k=2).labels
    array([0, 1, 0, 1])
    """
    features = as_array("features", features, 2)
    if k < 1:
        raise SettingsError(f"k={k}: at least 1")
    return _by_first_member(_kmeans_labels(features, min(k, len(np.unique(features, axis=0))), seed))


def kmeans_silhouette(features: Any, k_range: Iterable[int] | None = None, seed: int = 0) -> Silhouette:
    """k-means with the k of the highest mean silhouette, of equals the lowest k (CAFA Eqs. 3-6).

    Without a range, k goes from 2 to the number of clients less one. A k above the number of distinct rows of features
    is left out. If no k is left, and without a range for fewer than four clients, all are one group: a silhouette of
    one group is not defined. A client that is alone in its group has silhouette 0.

    >>> coterie.grouping.kmeans_silhouette([[0], [1], [8], [9]]).k
    2
    """
    from sklearn.metrics import silhouette_score

    features = as_array("features", features, 2)
    clients = len(features)
    if k_range is None:
        k_range = range(2, clients if clients >= 4 else 2)
    tried = sorted(set(map(int, k_range)))
    if tried and tried[0] < 1:
        raise SettingsError(f"k_range: k={tried[0]} is below 1")
    limit = min(clients - 1, len(np.unique(features, axis=0)))
    labels = {k: _kmeans_labels(features, k, seed) for k in tried if 2 <= k <= limit}
    scores = {k: float(silhouette_score(features, found)) for k, found in labels.items()}
    if not scores:
        return Silhouette(np.ones((1, clients), dtype=bool), {})
    best = max(scores, key=lambda k: (scores[k], -k))
    return Silhouette(_by_first_member(labels[best]).matrix, scores)


def _kmeans_labels(features: np.ndarray, k: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(k, n_init=10, random_state=seed % 2**32).fit_predict(features)


def by_key(labels: Any) -> Grouping:
    """Clients with equal keys [client] are a group; groups are in the order of the keys (CFIC).

    >>> coterie.grouping.by_key([7, 3, 7]).labels
    array([1, 0, 1])
    """
    keys = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if keys.ndim != 1 or not len(keys):
        raise SettingsError(f"labels of shape {keys.shape}: expected one key per client")
    if keys.dtype.kind == "f" and not np.isfinite(keys).all():
        raise SettingsError("labels: not a finite number")
    return Grouping.of(np.unique(keys, return_inverse=True)[1])


def largest_group(labels: Any, shares: Any) -> Grouping:
    """The group with most clients, alone: CAFA's IID cluster (Eq. 7). Its members have label 0, all others -1.

    Of equally large groups it is the one whose clients' shares of labels [client, class] have the highest mean entropy,
    and of these the first.

    >>> coterie.grouping.largest_group([0, 1, 1], shares=[[1, 0], [0.5, 0.5], [0.5, 0.5]]).labels
    array([-1,  0,  0])
    """
    grouping = Grouping.of(labels)
    shares = as_array("shares", shares, 2)
    if len(shares) != grouping.matrix.shape[1]:
        raise SettingsError(f"shares: {len(shares)} rows for {grouping.matrix.shape[1]} clients")
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
    largest = np.flatnonzero(grouping.sizes == grouping.sizes.max())
    means = np.array([entropy[grouping.matrix[group]].mean() for group in largest])
    return Grouping(grouping.matrix[[largest[int((means >= means.max() - 1e-12).argmax())]]])


# Distances and similarities


def vote(distance: Any, samples: Any, weighted: bool = True, guard: float = 0.1) -> Votes:
    """AutoCFL's groups: gaps between distances, votes, representatives (Algorithm 1). Nobody says how many there are.

    Each client m sorts the others by distance, and takes those before the largest gap, and itself, for its like (Eq.
    10). These vote for the one of them with most samples (Eq. 11), each with the share that it has of their samples, or
    all alike if not `weighted` (Eq. 12). A client joins the representative for which its votes add up to most (Eq. 13).
    If that representative joins another one itself, all of them are one group. The lowest position decides ties.

    The sorted distances leave out the client's own, which is 0: on IID data the gap behind it would be the largest, and
    everybody alone. A gap below `guard` times the row's median distance does not count, and then all are alike. The
    paper has no such guard, but without one it splits IID clients too; 0 turns it off.

    >>> coterie.grouping.vote([[0, 1, 9], [1, 0, 9], [9, 9, 0]], samples=[10, 20, 30], guard=0).labels
    array([0, 0, 1])
    """
    distance = _distances(distance)
    clients = len(distance)
    samples = as_counts("samples", samples, clients)
    if not (samples > 0).all():
        raise SettingsError(f"samples: client {int(samples.argmin())} has none, so it cannot vote")
    if guard < 0:
        raise SettingsError(f"guard={guard}: 0 or more")
    near = np.stack([_before_gap(distance, client, guard) for client in range(clients)])
    ballots = near * (samples if weighted else 1.0)
    ballots = ballots / ballots.sum(axis=1, keepdims=True)
    representatives = np.where(near, samples, -1).argmax(axis=1)
    scores = np.zeros((clients, clients))
    for client, representative in enumerate(representatives):
        scores[:, representative] += ballots[client]
    links = np.zeros((clients, clients), dtype=bool)
    # Scores that differ in the last digits alone are equal: the same votes were added up in another order.
    highest = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    links[np.arange(clients), highest.argmax(axis=1)] = True
    return Votes(_connected(links).matrix, scores, near)


def _before_gap(distance: np.ndarray, client: int, guard: float) -> np.ndarray:
    """Who lies before the largest gap in a client's sorted distances, [client]; everybody if no gap is large enough."""
    row = distance[client]
    others = np.sort(np.delete(row, client))
    gaps = np.diff(others)
    if not len(gaps) or gaps.max() == 0 or gaps.max() < guard * np.median(others):
        return np.ones(len(row), dtype=bool)
    near = row <= others[gaps.argmax()]
    near[client] = True
    return near


def neighbourhoods(similarity: Any, threshold: float) -> Grouping:
    """A group around every client: itself and all whose similarity reaches the threshold. Groups overlap (FLIS-DC).

    >>> coterie.grouping.neighbourhoods([[1, 0.9, 0.1], [0.9, 1, 0.8], [0.1, 0.8, 1]], threshold=0.8).matrix.astype(int)
    array([[1, 1, 0],
           [1, 1, 1],
           [0, 1, 1]])
    """
    similarity = as_square("similarity", similarity)
    return Grouping((similarity >= threshold) | np.eye(len(similarity), dtype=bool))


def linkage(
    distance: Any,
    threshold: float | None = None,
    groups: int | None = None,
    method: Linkage = "average",
    relative: bool = False,
) -> Grouping:
    """Agglomerative clusters: a tree, cut where the linkage exceeds `threshold`, or into `groups` (FL+HC, FLIS-HC).

    A `relative` threshold is in units of the median distance between clients.

    >>> coterie.grouping.linkage([[0, 1, 9], [1, 0, 9], [9, 9, 0]], threshold=2).labels
    array([0, 0, 1])
    """
    from scipy.cluster.hierarchy import cut_tree, fcluster
    from scipy.cluster.hierarchy import linkage as scipy_linkage
    from scipy.spatial.distance import squareform

    distance = _distances(distance)
    if (threshold is None) == (groups is None):
        raise SettingsError("linkage: give either a threshold or the number of groups")
    if threshold is not None and not threshold >= 0:
        raise SettingsError(f"threshold={threshold}: 0 or more")
    if groups is not None and not groups >= 1:
        raise SettingsError(f"groups={groups}: at least 1")
    if method not in ("single", "complete", "average", "ward"):
        raise SettingsError(f"method={method!r}: single, complete, average or ward")
    if len(distance) == 1:
        return Grouping.of([0])
    pairs = squareform(distance, checks=False)
    tree = scipy_linkage(pairs, method)
    if threshold is None:
        return _by_first_member(cut_tree(tree, n_clusters=min(groups or 1, len(distance)))[:, 0])
    threshold = threshold * float(np.median(pairs)) if relative else threshold
    return _by_first_member(fcluster(tree, threshold, criterion="distance"))


def merging(features: Any, most: int | None = None) -> dict[int, Grouping]:
    """Nested groups of clients by their class means, for each number of groups from 2 to `most`.

    `features` [client, class, feature] are `coterie.evidence.standardised`, with NaN for classes that a client has not.
    The two groups that are nearest by `class_distance` become one, whose class means are those of its members; so
    two clients that share no label may meet by way of others, and a group knows more labels the larger it is. Groups
    that share no label are never merged: nothing says that they are alike. There may then be no cut into so few groups.

    >>> cuts = coterie.grouping.merging([[[0.0], [np.nan]], [[0.1], [5.0]], [[np.nan], [5.1]], [[7.0], [9.0]]])
    >>> {groups: cut.labels.tolist() for groups, cut in cuts.items()}
    {2: [0, 0, 0, 1], 3: [0, 1, 1, 2]}
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 3 or not len(features):
        raise SettingsError(f"features of shape {features.shape}: expected class means, [client, class, feature]")
    most = len(features) - 1 if most is None else most
    count = (~np.isnan(features).any(axis=2)).astype(float)  # members that know a class, [group, class]
    total, means = np.nan_to_num(features), np.nan_to_num(features)
    labels, cuts = np.arange(len(features)), {}
    distance = class_distance(features)
    distance[np.tril_indices(len(features))] = np.nan
    for groups in range(len(features) - 1, 1, -1):
        if np.isnan(distance).all():
            break
        keep, gone = np.unravel_index(np.nanargmin(distance), distance.shape)
        labels[labels == gone] = keep
        total[keep] += total[gone]
        count[keep] += count[gone]
        means[keep] = total[keep] / np.maximum(count[keep], 1)[:, None]
        distance[gone] = distance[:, gone] = np.nan
        there = np.setdiff1d(np.unique(labels), keep)
        new = between_classes(means[[keep]], count[[keep]] > 0, means[there], count[there] > 0)[0]
        distance[np.minimum(keep, there), np.maximum(keep, there)] = new
        if groups <= most:
            cuts[groups] = _by_first_member(labels)
    return dict(sorted(cuts.items()))


def bipartition(similarity: Any, method: Linkage = "single") -> Grouping:
    """Two groups whose most similar clients across are as dissimilar as can be (CFL, Algorithm 1).

    That is single linkage, as in the paper; public code uses complete linkage, which gives rounder groups. A single
    client stays one group.

    >>> coterie.grouping.bipartition([[1, 0.9, -1], [0.9, 1, -1], [-1, -1, 1]]).labels
    array([0, 0, 1])
    """
    similarity = as_square("similarity", similarity, symmetric=True)
    distance = similarity.max() - similarity
    np.fill_diagonal(distance, 0)
    return linkage(distance, groups=2, method=method)


def dbscan(
    distance: Any, radius: float = 0.5, min_size: int = 2, relative: bool = True, noise: Noise = "alone"
) -> Grouping:
    """DBSCAN: clients with at least `min_size` clients in the radius, themselves included, link their neighbours.

    A `relative` radius is in units of the median distance. For `noise` see `density`.

    >>> coterie.grouping.dbscan([[0, 1, 9], [1, 0, 9], [9, 9, 0]], radius=2, relative=False, noise="out").labels
    array([ 0,  0, -1])
    """
    from sklearn.cluster import DBSCAN

    distance = _distances(distance)
    if not radius > 0:
        raise SettingsError(f"radius={radius}: above 0")
    if min_size < 1:
        raise SettingsError(f"min_size={min_size}: at least 1")
    if relative and len(distance) > 1:
        radius *= float(np.median(distance[np.triu_indices(len(distance), 1)]))
    if radius == 0:  # more than half of the pairs are identical: these are the groups
        return linkage(distance, threshold=0.0, method="single")
    labels = DBSCAN(eps=radius, min_samples=min_size, metric="precomputed").fit_predict(distance)
    return _settled(labels, distance, noise)


def density(distance: Any, min_size: int = 2, single: bool = True, noise: Noise = "alone") -> Grouping:
    """HDBSCAN: groups of at least `min_size` clients that lie closer together than to others.

    `single` allows all to be one group, as IID clients are. `noise` says what becomes of a client that is in no dense
    place: it is a group `alone`, joins the group with the `nearest` mean distance, or is left `out` of all groups.

    >>> points = np.array([0, 1, 2, 50, 51, 52])
    >>> coterie.grouping.density(abs(points[:, None] - points)).labels
    array([0, 0, 0, 1, 1, 1])
    """
    from sklearn.cluster import HDBSCAN

    distance = _distances(distance)
    if min_size < 2:
        raise SettingsError(f"min_size={min_size}: at least 2")
    if len(distance) < min_size:
        return _settled(np.full(len(distance), -1), distance, noise)
    found = HDBSCAN(min_cluster_size=min_size, allow_single_cluster=single, metric="precomputed", copy=True)
    return _settled(found.fit_predict(distance), distance, noise)


def best_fit(loss: Any) -> Grouping:
    """Groups of the clients for which the same model has the lowest `loss` [client, model], of equals the first (IFCA).

    A loss that is not a number counts as infinite. There is a group for every model, even if nobody is in it.

    >>> coterie.grouping.best_fit([[0.2, 0.9], [0.8, 0.1], [0.3, 0.3]]).labels
    array([0, 1, 0])
    """
    loss = loss.detach().cpu().numpy() if isinstance(loss, Tensor) else np.asarray(loss, dtype=np.float64)
    if loss.ndim != 2 or not loss.size:
        raise SettingsError(f"loss of shape {loss.shape}: expected [client, model]")
    return Grouping.of(np.where(np.isnan(loss), np.inf, loss).argmin(axis=1), groups=loss.shape[1])


def _distances(distance: Any) -> np.ndarray:
    """Distances, checked, with an exact 0 between a client and itself."""
    distance = as_square("distance", distance, symmetric=True)
    if (distance < 0).any():
        if distance.min() < -1e-9 * distance.max():
            raise SettingsError(f"distance: {distance.min():g} is below 0; a similarity s is the distance 1 - s")
        distance = distance.clip(min=0)  # 1 - s is a hair below 0 where s is a hair above 1
    np.fill_diagonal(distance, 0)
    return distance


def _connected(links: np.ndarray) -> Grouping:
    """Groups of clients that are linked, directly or through others."""
    from scipy.sparse.csgraph import connected_components

    return _by_first_member(connected_components(links, directed=False)[1])


def _by_first_member(labels: np.ndarray) -> Grouping:
    """Groups from a library's labels, in the order of their first members; a client with -1 stays in none."""
    names, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    first = np.where(names == -1, -1, first)
    places = first.argsort().argsort() - int((names == -1).any())
    return Grouping.of(places[inverse])


def _settled(labels: np.ndarray, distance: np.ndarray, noise: Noise) -> Grouping:
    """Groups from labels, where clients that are in none, labelled -1, are dealt with as `noise` says."""
    if noise not in ("alone", "nearest", "out"):
        raise SettingsError(f"noise={noise!r}: alone, nearest or out")
    labels = np.where(labels < 0, -1, labels)
    lost, groups = np.flatnonzero(labels == -1), np.unique(labels[labels >= 0])
    if noise == "nearest" and len(groups):
        means = np.stack([distance[np.ix_(lost, labels == group)].mean(axis=1) for group in groups], axis=1)
        labels[lost] = groups[means.argmin(axis=1)]
    elif noise != "out":
        labels[lost] = labels.max(initial=-1) + 1 + np.arange(len(lost))
    return _by_first_member(labels)
