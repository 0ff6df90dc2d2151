"""Who takes part in a round, and how often.

>>> rng = coterie.simulate(clients=6).generator("example")
>>> len(coterie.sampling.uniform(np.arange(6), coterie.sampling.cohort_size(0.5, 6), rng))
3
"""

from typing import Any, Literal

import numpy as np

from coterie.core.arrays import as_counts
from coterie.core.errors import SettingsError
from coterie.moves.grouping import Grouping, by_key


def cohort_size(participation: float, clients: int) -> int:
    """How many clients a share of them is: rounded down, but at least one.

    >>> coterie.sampling.cohort_size(0.1, 25)
    2
    """
    if not 0 < participation <= 1:
        raise SettingsError(f"participation={participation}: a fraction in (0, 1]; use 1.0 for all clients")
    return max(1, int(participation * clients + 1e-9))  # 0.29 * 100 is 28.999... in binary


def uniform(clients: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` different clients, each equally likely, sorted; all clients if there are no more than that.

    >>> coterie.sampling.uniform(np.array([2, 5, 7]), 3, np.random.default_rng(0))
    array([2, 5, 7])
    """
    if count >= len(clients):
        return clients
    return np.sort(rng.choice(clients, size=count, replace=False))


def by_size(clients: np.ndarray, sizes: Any, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`count` draws with replacement, in proportion to the clients' samples: who was drawn, sorted, and how often.

    The mean over the draws, with these counts as weights, is on average FedAvg's mean over all clients (MD sampling).

    >>> coterie.sampling.by_size(np.array([2, 5]), sizes=[0, 9], count=4, rng=np.random.default_rng(0))
    (array([5]), array([4]))
    """
    sizes = as_counts("sizes", sizes, len(clients))
    if not sizes.sum() > 0:
        raise SettingsError("sizes: nobody has samples to be drawn by")
    drawn = rng.choice(np.asarray(clients), size=count, p=sizes / sizes.sum())
    return tuple(np.unique(drawn, return_counts=True))  # type: ignore[return-value]


def epsilon_greedy(values: Any, count: int, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """`count` different places: each the best that is left by its value [place] or, with chance `epsilon`, any.

    Among equals it is drawn which comes first.

    >>> coterie.sampling.epsilon_greedy([0.1, 0.7, 0.4], 2, epsilon=0, rng=np.random.default_rng(0))
    array([1, 2])
    """
    values = np.asarray(values, dtype=np.float64)
    left = np.lexsort((rng.random(len(values)), -values)).tolist()
    drawn = [left.pop(int(rng.integers(len(left))) if rng.random() < epsilon else 0) for _ in range(count)]
    return np.array(drawn, dtype=np.int64)


def stratified(
    groups: Any,
    count: int,
    quota: Literal["max", "min"] = "max",
    rng: np.random.Generator | None = None,
    clients: np.ndarray | None = None,
) -> np.ndarray:
    """`count` different clients, spread evenly over disjoint groups (CFIC, Section 3.3), sorted.

    `groups` is a `Grouping`, or a key per client. Each of m groups gives its quota, or all clients that it has; the
    remaining places are drawn from all clients that are left, each equally likely. The quota is max(floor(count / m),
    1), which spreads clients as the paper says, or the min(...) that it prints. With more groups than places, `max`
    draws the groups that give a client. `clients` are the positions of the grouped clients, by default 0, 1, ...

    >>> chosen = coterie.sampling.stratified([0, 0, 0, 0, 1], 2, rng=np.random.default_rng(0))
    >>> len(chosen), 4 in chosen  # the small group is always there
    (2, True)
    """
    labels = groups.labels if isinstance(groups, Grouping) else by_key(groups).labels
    clients = np.arange(len(labels)) if clients is None else np.asarray(clients)
    if len(clients) != len(labels):
        raise SettingsError(f"groups: of {len(labels)} clients, but there are {len(clients)}")
    if quota not in ("max", "min"):
        raise SettingsError(f"quota={quota!r}: max or min")
    if count < 1:
        raise SettingsError(f"count={count}: at least 1")
    if count >= len(clients):
        return np.sort(clients)
    if rng is None:
        raise SettingsError("stratified: give a generator to draw from, such as fed.generator('sample')")
    names = np.unique(labels[labels >= 0])
    share = count // max(len(names), 1)
    each = max(share, 1) if quota == "max" else min(share, 1)
    if each * len(names) > count:
        names = rng.choice(names, size=count, replace=False)
    chosen = [uniform(clients[labels == name], each, rng) for name in names] if each else []
    taken = np.concatenate([*chosen, np.empty(0, dtype=clients.dtype)])
    rest = clients[~np.isin(clients, taken)]
    return np.sort(np.concatenate([taken, uniform(rest, count - len(taken), rng)]))


# Clustered sampling (Fraboni et al., ICML 2021): a table [row, client] of chances, and one draw from each row. Rows sum
# to 1, columns to the number of rows times the client's part of all samples: so the mean of those drawn is unbiased.


def draw(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How often each client is drawn if every row [row, client] draws one, [client].

    >>> coterie.sampling.draw(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.random.default_rng(0))
    array([1, 0, 1])
    """
    clients = chances.shape[1]
    return np.bincount([rng.choice(clients, p=row) for row in chances], minlength=clients)


def chances_by_size(sizes: np.ndarray, rows: int) -> np.ndarray:
    """Chances by which clients of like size share a row: rows are filled in the order of size (algorithm 1).

    >>> coterie.sampling.chances_by_size(np.array([30, 10, 20]), rows=2)
    array([[1.        , 0.        , 0.        ],
           [0.        , 0.33333333, 0.66666667]])
    """
    sizes = _counted(sizes)
    table = np.zeros((rows, len(sizes)), dtype=np.int64)
    _pour(table, np.argsort(-sizes, kind="stable"), rows * sizes, sizes.sum())
    return table / sizes.sum()


def chances_by_similarity(sizes: np.ndarray, rows: int, distances: np.ndarray) -> np.ndarray:
    """Chances by which clients that are alike, by distances [client, client], share a row (algorithm 2).

    Ward's tree is cut into the largest groups that fit into a row; the largest of them get a row each, and the others
    fill what is left. A client with more samples than a row holds has rows of its own first.

    >>> apart = np.array([[0, 9, 1], [9, 0, 9], [1, 9, 0]])
    >>> coterie.sampling.chances_by_similarity(np.array([10, 20, 10]), rows=2, distances=apart)
    array([[0. , 1. , 0. ],
           [0.5, 0. , 0.5]])
    """
    sizes = _counted(sizes)
    capacity = sizes.sum()
    table = np.zeros((rows, len(sizes)), dtype=np.int64)
    whole, amounts = np.divmod(rows * sizes, capacity)
    table[np.arange(whole.sum()), np.repeat(np.arange(len(sizes)), whole)] = capacity
    free, some = table[whole.sum() :], np.flatnonzero(amounts)
    groups = _groups_up_to(capacity, amounts[some], distances[np.ix_(some, some)])
    ranked = sorted((some[group] for group in groups), key=lambda group: -amounts[group].sum())
    for row, group in zip(free, ranked, strict=False):
        row[group] = amounts[group]
    _pour(free, np.concatenate([*ranked[len(free) :], []]).astype(np.int64), amounts, capacity)
    return table / capacity


def _counted(sizes: np.ndarray) -> np.ndarray:
    sizes = np.asarray(sizes, dtype=np.int64)
    if not sizes.sum() > 0:
        raise SettingsError("sizes: nobody has counted samples yet, by which clients are to be drawn")
    return sizes


def _pour(table: np.ndarray, order: np.ndarray, amounts: np.ndarray, capacity: int) -> None:
    """Fill the rows one after another with the clients' amounts, in whole numbers so that nothing is lost; in place."""
    room = capacity - table.sum(axis=1)
    row = 0
    for client in order:
        left = amounts[client]
        while left > 0:
            poured = min(left, room[row])
            table[row, client] += poured
            left, room[row] = left - poured, room[row] - poured
            row += int(room[row] == 0)


def _groups_up_to(capacity: int, amounts: np.ndarray, distances: np.ndarray) -> list[np.ndarray]:
    """The largest groups of Ward's tree whose amounts together do not exceed the capacity."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(amounts) < 2:
        return [np.arange(len(amounts))] * len(amounts)
    tree = linkage(squareform(distances, checks=False), "ward")
    below = [*amounts.astype(float), *np.zeros(len(tree))]
    for merge, (left, right) in enumerate(tree[:, :2].astype(int)):
        below[len(amounts) + merge] = below[left] + below[right]
    tree[:, 2] = below[len(amounts) :]  # cut by what is below a merge, not by its height
    labels = fcluster(tree, capacity, criterion="distance")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
