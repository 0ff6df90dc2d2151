"""What the split rules share: drawing shares, making whole numbers of them, and dealing samples out.

Most rules make a table of counts, [client, class], from which `deal` draws samples. The classes are only those that
occur in the data, numbered without gaps: no client is to have a label without samples.
"""

from itertools import pairwise
from typing import Annotated

import numpy as np

from coterie.core.errors import DataError, SettingsError
from coterie.core.fields import above
from coterie.data.dataset import Dataset

Concentration = Annotated[float, above(0, "a number above 0")]
"""The parameter of a Dirichlet distribution: the smaller, the more unequal the shares that are drawn from it."""


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Unless the condition holds, raise the error for a setting. Only for what a field's range cannot say."""
    if not condition:
        raise SettingsError(f"{name}={value}: {allowed}")


def require_samples(data: Dataset, clients: int, each: int = 1) -> None:
    """Unless all clients can have `each` samples of their own, raise an error that says what would work."""
    most = len(data) // clients
    require(most >= 1, "clients", clients, f"{data.name} has {len(data)} samples, and every client needs one")
    allowed = (
        f"{data.name} has {len(data)} samples, {most} for each, and min_size is {each}: use fewer, or set min_size"
    )
    require(most >= each, "clients", clients, allowed)


def numbered_classes(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The labels numbered without gaps, [sample], and how many samples each class has, [class]."""
    if not data.kind_of_task.one_class:
        others = "iid, quantity, natural or given"
        raise DataError(f"{data.name}: task={data.task} has no classes by which this split could divide; use {others}")
    _, y, available = np.unique(data.y, return_inverse=True, return_counts=True)
    return y, available


def softmax(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Shares that add up to 1, from logarithms of numbers in these proportions."""
    from scipy.special import softmax as shares  # here, because importing it takes longer than most splits

    return shares(values, axis=axis)


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray | float, shape: tuple[int, int]) -> np.ndarray:
    """Draws from Dirichlet distributions, one per row, as logarithms of the shares.

    Small shares would all become zero; their logarithms still differ. So the shares of a row can be taken among some
    of its columns only: these are a Dirichlet draw over those columns, whatever the others have (neutrality).
    """
    # Below this the logarithms would overflow; one column has all of a row long before.
    alpha = np.broadcast_to(np.maximum(concentration, 1e-200), shape)
    # Gamma(a) is Gamma(a + 1) * U^(1 / a), which is never zero as a logarithm.
    from scipy.special import log_softmax

    return log_softmax(np.log(rng.standard_gamma(alpha + 1)) + np.log1p(-rng.random(shape)) / alpha, axis=1)


def cut(totals: np.ndarray | int, weights: np.ndarray, offsets: np.ndarray | float = 0.0) -> np.ndarray:
    """Cut each total into whole numbers in proportion to the weights on the last axis; they add up to it exactly.

    Equal weights give numbers that differ by one at most, a weight of zero gives zero. Offsets in [0, 1), one per
    total, shift which of the numbers are rounded up.
    """
    edges = np.cumsum(weights, axis=-1, dtype=np.float64)
    last, totals, offsets = edges[..., -1:], np.asarray(totals)[..., None], np.asarray(offsets)[..., None]
    # Multiplied before it is divided, so that whole numbers divide exactly; the last edge is the total, unrounded.
    whole = np.where(edges < last, np.floor(edges * totals / last + offsets), totals).astype(np.int64)
    return np.diff(whole, axis=-1, prepend=0)


def cut_to_each(total: int, weights: np.ndarray, takers: np.ndarray) -> np.ndarray:
    """As `cut`, but each place that `takers` names gets at least one, if the total is enough for that."""
    spare = total - int(takers.sum())
    return cut(spare, weights) + takers if spare >= 0 else cut(total, weights)


def draw_columns(rng: np.random.Generator, shares: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """For each row number in `rows` a random column, drawn with that row's shares; one without a share never is."""
    edges = np.cumsum(shares, axis=1)
    edges = edges / edges[:, -1:] + np.arange(len(shares))[:, None]
    # A draw of almost one would be rounded into the next row when the row number is added.
    places = np.searchsorted(edges.ravel(), rows + rng.random(len(rows)) * (1 - 1e-9), side="right")
    return places - rows * shares.shape[1]


def gather(owner: np.ndarray, clients: int) -> tuple[np.ndarray, ...]:
    """The samples of each client in ascending order, from the owner of each sample, [sample]; -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(order[start:end] for start, end in pairwise(edges))


def deal(rng: np.random.Generator, y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Random samples for each client, as many of each class as `counts`, [client, class], says; none is given twice."""
    owner = np.full(len(y), -1)
    for label, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(y == label))
        owner[members[: column.sum()]] = np.repeat(np.arange(len(counts)), column)
    return gather(owner, len(counts))


def deal_overlapping(rng: np.random.Generator, y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """As `deal`, but each client draws from all samples, also those that others have; none is twice at one client."""
    members = [np.flatnonzero(y == label) for label in range(counts.shape[1])]
    return tuple(
        np.sort(
            np.concatenate([rng.choice(all_, count, replace=False) for all_, count in zip(members, row, strict=True)])
        )
        for row in counts
    )


def chunks(rng: np.random.Generator, samples: int, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Random samples of any class for each client, as many as its size; none is given twice."""
    owner = np.full(samples, -1)
    owner[rng.permutation(samples)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return gather(owner, len(sizes))


def top_up(counts: np.ndarray, minimum: int) -> np.ndarray:
    """Counts, [client, class], moved between clients until each has the minimum.

    While a client is below it, the smallest takes what it lacks from the most frequent class of the largest. There must
    be enough for all in sum. Then this ends: every step moves at least one sample, and makes nobody too small.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    while sizes.min() < minimum:
        poor, rich = sizes.argmin(), sizes.argmax()
        label = counts[rich].argmax()
        moved = min(minimum - sizes[poor], sizes[rich] - minimum, counts[rich, label])
        counts[[poor, rich], label] += [moved, -moved]
        sizes[[poor, rich]] += [moved, -moved]
    return counts


def largest_fit(shares: np.ndarray, sizes: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Counts, [client, class], with each client's shares and these sizes, shrunk in proportion until the data suffices.

    Every client gets at least one sample; an error where the data does not suffice even for that.
    """
    shares = shares / shares.sum(axis=1, keepdims=True)
    largest = int(sizes.max())
    demand = sizes @ shares / largest
    wanted = demand > 0
    bound = min(largest, int((available[wanted] / demand[wanted]).min()))
    # Multiples of the golden ratio spread evenly over [0, 1), so that clients with the same shares have their numbers
    # rounded up in different classes.
    offsets = np.arange(len(sizes)) * 0.6180339887498949 % 1
    # Rounding may take a little more than the bound allows for; then one of the next smaller sizes fits.
    for size in range(bound, 0, -1):
        counts = cut(np.maximum(sizes * size // largest, 1), shares, offsets)
        if (counts.sum(axis=0) <= available).all():
            return counts
    raise SettingsError(f"clients={len(sizes)}: too many for {available.sum()} samples in this split")


def imbalance(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """AutoCFL's imbalanced sizes: 9 of 20 clients, drawn at random, keep 10, 30 or 60 %, a third of them each.

    Other numbers of clients are cut in the same proportion, rounded, and the three levels are dealt out in turns.
    """
    levels = np.resize([0.1, 0.3, 0.6], round(9 * len(sizes) / 20))
    chosen = rng.permutation(len(sizes))[: len(levels)]
    smaller = sizes.copy()
    smaller[chosen] = np.maximum(np.rint(levels * sizes[chosen]), 1)
    return smaller


def blocks(clients: int, groups: int) -> np.ndarray:
    """The group of each client, [client]: blocks of clients whose sizes differ by one at most."""
    return np.repeat(np.arange(groups), cut(clients, np.ones(groups)))


def rotated(groups: np.ndarray, rotations: int) -> tuple[str | None, ...]:
    """The name of each client's rotation, of so many that are equally far apart, from its group [client]."""
    return tuple(f"rotate-{angle}" if angle else None for angle in groups * 360 // rotations)
