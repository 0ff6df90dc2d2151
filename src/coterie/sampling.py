"""Who takes part in a round, and how often."""

from typing import Any, Literal

import numpy as np

from coterie.arrays import as_counts
from coterie.errors import SettingsError
from coterie.grouping import Grouping, by_key

__all__ = ["by_size", "cohort_size", "stratified", "uniform"]


def cohort_size(participation: float, clients: int) -> int:
    """How many of the clients a share is: at least one, never more than there are, rounded down."""
    if not 0 < participation <= 1:
        raise SettingsError(f"participation={participation}: a fraction in (0, 1]; use 1.0 for all clients")
    return max(1, int(participation * clients + 1e-9))  # 0.29 * 100 is 28.999... in binary


def uniform(clients: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many different clients, each equally likely, in their own order."""
    if count >= len(clients):
        return clients
    return np.sort(rng.choice(clients, size=count, replace=False))


def by_size(clients: np.ndarray, sizes: Any, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """So many draws with replacement, by the clients' samples: who was drawn, in their own order, and how often each.

    The mean of what is drawn, with these counts as weights, is FedAvg's of all clients on average (MD sampling).
    """
    sizes = as_counts("sizes", sizes, len(clients))
    if not sizes.sum() > 0:
        raise SettingsError("sizes: nobody has samples to be drawn by")
    drawn = rng.choice(np.asarray(clients), size=count, p=sizes / sizes.sum())
    return tuple(np.unique(drawn, return_counts=True))  # type: ignore[return-value]


def stratified(
    groups: Any,
    count: int,
    quota: Literal["max", "min"] = "max",
    rng: np.random.Generator | None = None,
    clients: np.ndarray | None = None,
) -> np.ndarray:
    """So many different clients, spread evenly over disjoint groups (CFIC, Section 3.3), in their own order.

    `groups` is a `Grouping`, or a key per client. Of m groups each gives its quota, or all that it has; then the rest
    is drawn from all others, each equally likely. The quota is max(floor(count / m), 1), which spreads clients as the
    paper says, or the min(...) that it prints. With more groups than places, `max` draws the groups that give one.
    `clients` are the positions of those grouped; without it they are 0, 1, ...
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
    names = np.unique(labels)
    share = count // len(names)
    each = max(share, 1) if quota == "max" else min(share, 1)
    if each * len(names) > count:
        names = rng.choice(names, size=count, replace=False)
    chosen = [uniform(clients[labels == name], each, rng) for name in names] if each else []
    taken = np.concatenate([*chosen, np.empty(0, dtype=clients.dtype)])
    rest = clients[~np.isin(clients, taken)]
    return np.sort(np.concatenate([taken, uniform(rest, count - len(taken), rng)]))
