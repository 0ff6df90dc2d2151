"""What the split rules share: drawing shares, making whole numbers of them, and dealing samples out.

Most rules come down to a table of counts, [client, class], that `deal` turns into samples. Classes are those that occur
in the data, numbered without gaps: a label that no sample has is nobody's.
"""

from itertools import pairwise

import numpy as np

from coterie.core.errors import SettingsError
from coterie.data.dataset import Dataset


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise the error for a setting out of range, unless the condition holds."""
    if not condition:
        raise SettingsError(f"{name}={value}: {allowed}")


def require_positive(name: str, value: float | None) -> None:
    """Raise an error unless the setting is a finite number above 0, or left out."""
    require(value is None or 0 < value < float("inf"), name, value, "a number above 0")


def require_samples(data: Dataset, clients: int, each: int = 1) -> None:
    """Raise an error that says what would work, unless every client can have that many samples of its own."""
    most = len(data) // clients
    require(most >= 1, "clients", clients, f"{data.name} has {len(data)} samples, and every client needs one")
    allowed = (
        f"{data.name} has {len(data)} samples, {most} for each, and min_size is {each}: use fewer, or set min_size"
    )
    require(most >= each, "clients", clients, allowed)


def numbered_classes(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The labels numbered without gaps, [sample], and how many samples each class has, [class]."""
    _, y, available = np.unique(data.y, return_inverse=True, return_counts=True)
    return y, available


def softmax(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Shares from their logarithms."""
    from scipy.special import softmax as shares  # when it is needed: importing it takes longer than many a split

    return shares(values, axis=axis)


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray | float, shape: tuple[int, int]) -> np.ndarray:
    """Logarithms of Dirichlet draws, one per row.

    As logarithms they stay apart where the shares themselves underflow, so that shares among some columns alone can be
    taken: by the neutrality of the distribution, these are a draw over those columns.
    """
    # Below this the logarithms would overflow; a draw is a single column long before.
    alpha = np.broadcast_to(np.maximum(concentration, 1e-200), shape)
    # Gamma(a) is Gamma(a + 1) * U^(1 / a), which is never zero as a logarithm.
    from scipy.special import log_softmax

    return log_softmax(np.log(rng.standard_gamma(alpha + 1)) + np.log1p(-rng.random(shape)) / alpha, axis=1)


def cut(totals: np.ndarray | int, weights: np.ndarray, offsets: np.ndarray | float = 0.0) -> np.ndarray:
    """Whole numbers in proportion to the weights, along the last axis, that add up to the totals exactly.

    Equal weights give numbers that are equal within one; no weight gives nothing. Offsets in [0, 1), one per total,
    move the places at which the rounding gives one more.
    """
    edges = np.cumsum(weights, axis=-1, dtype=np.float64)
    last, totals, offsets = edges[..., -1:], np.asarray(totals)[..., None], np.asarray(offsets)[..., None]
    # The product comes first, so that whole numbers divide exactly; the last edge is the total whatever the rounding.
    whole = np.where(edges < last, np.floor(edges * totals / last + offsets), totals).astype(np.int64)
    return np.diff(whole, axis=-1, prepend=0)


def cut_to_each(total: int, weights: np.ndarray, takers: np.ndarray) -> np.ndarray:
    """As `cut`, but every taker gets at least one, where there are that many."""
    spare = total - int(takers.sum())
    return cut(spare, weights) + takers if spare >= 0 else cut(total, weights)


def draw_columns(rng: np.random.Generator, shares: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One column for each row number given, drawn by that row's shares; a column without a share is never drawn."""
    edges = np.cumsum(shares, axis=1)
    edges = edges / edges[:, -1:] + np.arange(len(shares))[:, None]
    # A draw of almost one would be rounded into the next row when the row number is added.
    places = np.searchsorted(edges.ravel(), rows + rng.random(len(rows)) * (1 - 1e-9), side="right")
    return places - rows * shares.shape[1]


def gather(owner: np.ndarray, clients: int) -> tuple[np.ndarray, ...]:
    """The samples of each client in ascending order, from the owner of each sample (-1: nobody)."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(order[start:end] for start, end in pairwise(edges))


def deal(rng: np.random.Generator, y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Random samples for each client, as many of each class as the counts say, [client, class], and none to two."""
    owner = np.full(len(y), -1)
    for label, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(y == label))
        owner[members[: column.sum()]] = np.repeat(np.arange(len(counts)), column)
    return gather(owner, len(counts))


def deal_overlapping(rng: np.random.Generator, y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """As `deal`, but each client draws from all samples, whatever others have; none is twice at a client."""
    members = [np.flatnonzero(y == label) for label in range(counts.shape[1])]
    return tuple(
        np.sort(
            np.concatenate([rng.choice(all_, count, replace=False) for all_, count in zip(members, row, strict=True)])
        )
        for row in counts
    )


def chunks(rng: np.random.Generator, samples: int, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Random samples for each client, whatever their class, and none to two."""
    owner = np.full(samples, -1)
    owner[rng.permutation(samples)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return gather(owner, len(sizes))


def top_up(counts: np.ndarray, minimum: int) -> np.ndarray:
    """The counts, [client, class], with every client at the minimum or above.

    While a client is below it, the smallest takes what it lacks from the most frequent class of the largest. The counts
    must add up to the minimum for all clients, so this ends: every step moves a sample, and never one too many.
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
    """Counts, [client, class], by each client's shares: of these sizes, or all smaller in proportion until they fit.

    No client gets less than one sample; where even that does not fit, it is an error.
    """
    shares = shares / shares.sum(axis=1, keepdims=True)
    largest = int(sizes.max())
    demand = sizes @ shares / largest
    wanted = demand > 0
    bound = min(largest, int((available[wanted] / demand[wanted]).min()))
    # Multiples of the golden ratio spread evenly: alike clients do not all get their odd samples from the same class.
    offsets = np.arange(len(sizes)) * 0.6180339887498949 % 1
    # The bound ignores rounding, so a few steps down may be needed.
    for size in range(bound, 0, -1):
        counts = cut(np.maximum(sizes * size // largest, 1), shares, offsets)
        if (counts.sum(axis=0) <= available).all():
            return counts
    raise SettingsError(f"clients={len(sizes)}: too many for {available.sum()} samples in this split")


def imbalance(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """AutoCFL's imbalanced sizes: 9 of 20 clients, drawn at random, keep 10, 30 or 60 %, a third of them each.

    Of another number of clients it is the same part, rounded, and the three levels take turns.
    """
    levels = np.resize([0.1, 0.3, 0.6], round(9 * len(sizes) / 20))
    chosen = rng.permutation(len(sizes))[: len(levels)]
    smaller = sizes.copy()
    smaller[chosen] = np.maximum(np.rint(levels * sizes[chosen]), 1)
    return smaller
