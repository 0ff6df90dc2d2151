"""Splits drawn from Dirichlet distributions: of labels, in four published definitions, and of sizes."""

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np

from coterie.core.errors import unknown
from coterie.core.fields import Count
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import (
    Concentration,
    chunks,
    cut,
    deal,
    draw_columns,
    log_dirichlet,
    numbered_classes,
    require_samples,
    softmax,
    top_up,
)

logger = logging.getLogger(__name__)

Definition = Literal["class-balanced", "class", "client", "client-prior"]

_DRAWS = 50
"""How often a split with a minimum size is drawn before the last draw is topped up."""

_SPARE = 1000
"""In FLGo's definition: how many spare label distributions there are for which clients' may be exchanged."""

_SWEEPS = 3
"""In FLGo's definition: how often each client's label distribution may be exchanged."""

_NEAR = 1e-6
"""In FLGo's definition: the squared distance of the mean label distribution to the data's that is small enough."""


@split_rules.register("dirichlet")
class Dirichlet(SplitRule):
    """Label shares drawn from a Dirichlet distribution, in one of four published definitions.

    - `class-balanced`: each class is cut among the clients by a draw from Dir(alpha), but a client that has reached the
      mean size gets no more; all is drawn again until no client is below the minimum size (NIID-Bench: Li et al., ICDE
      2022). We draw at most 50 times, then top up.
    - `class`: each class is cut by a draw from Dir(alpha), without gate or minimum (felisat's clustered federated
      learning: Sattler et al., TNNLS 2020). We top up clients below the minimum, since no client may be empty.
    - `client`: each client draws its label distribution from Dir(alpha, ..., alpha). Clients of equal size take turns
      at random and draw a sample by it; a class that has run out is drawn again (FedDC: Gao et al., CVPR 2022; SLFed).
    - `client-prior`: each client draws its label distribution from Dir(alpha * the data's class shares), which is far
      more skewed at the same alpha (10 times less concentrated for 10 even classes). Distributions are exchanged for
      fresh ones, at most three times per client, until their mean is the data's; then each class is cut in proportion,
      so that sizes are equal as far as the mean matches (FLGo: Wang et al., 2023; probably CFIC).

    Every sample is dealt out. Topping up: while a client is below the minimum, the smallest one takes what it lacks
    from the most frequent class of the largest.
    """

    alpha: Concentration = 0.5
    """Concentration: small for few classes per client, large for all clients alike."""

    definition: Definition = "class-balanced"
    """Which published definition: `class-balanced` (NIID-Bench), `class` (felisat), `client` (FedDC, SLFed) or
    `client-prior` (FLGo, CFIC)."""

    min_size: Count | None = None
    """Fewest samples of a client; by default 10 for `class-balanced`, as in NIID-Bench, and 1 for the others, which
    have no minimum of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.definition not in _DEFINITIONS:
            raise unknown("definition", self.definition, _DEFINITIONS)

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw counts per client and class by the definition, then deal the samples."""
        minimum = self.min_size or (10 if self.definition == "class-balanced" else 1)
        require_samples(data, self.clients, minimum)
        y, available = numbered_classes(data)
        draw, draws = _DEFINITIONS[self.definition]
        counts = _at_least(minimum, draws, lambda: draw(rng, self.alpha, self.clients, available))
        return Split(deal(rng, y, counts))


@split_rules.register("quantity")
class Quantity(SplitRule):
    """Sizes drawn from a Dirichlet distribution; labels alike for all clients (NIID-Bench).

    Sizes are drawn from Dir(alpha) until no client is below the minimum (Li et al., ICDE 2022, `iid-diff-quantity`). We
    draw at most 50 times; then, while a client is below it, the smallest takes what it lacks from the largest. Every
    sample is dealt out.
    """

    alpha: Concentration = 0.5
    """Concentration: small for very different sizes, large for equal ones."""

    min_size: Count = 10
    """Fewest samples of a client."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw sizes, then cut the shuffled samples."""
        require_samples(data, self.clients, self.min_size)
        everything = np.array([len(data)])
        sizes = _at_least(self.min_size, _DRAWS, lambda: _by_class(rng, self.alpha, self.clients, everything))
        return Split(chunks(rng, len(data), sizes[:, 0]))


def _at_least(minimum: int, draws: int, draw: Callable[[], np.ndarray]) -> np.ndarray:
    """Draw until every client has the minimum, at most `draws` times; then the last draw, topped up."""
    for _ in range(draws):
        counts = draw()
        small = int((counts.sum(axis=1) < minimum).sum())
        if not small:
            return counts
    logger.info("%d of %d clients were below %d samples and are topped up", small, len(counts), minimum)
    return top_up(counts, minimum)


def _by_class(rng: np.random.Generator, alpha: float, clients: int, available: np.ndarray) -> np.ndarray:
    """Counts where each class is cut among the clients by shares that are drawn for it."""
    shares = softmax(log_dirichlet(rng, alpha, (len(available), clients)), axis=1)
    return cut(available, shares).T


def _by_class_balanced(rng: np.random.Generator, alpha: float, clients: int, available: np.ndarray) -> np.ndarray:
    """Counts where each class is cut, by drawn shares, among those clients that are still below the mean size."""
    counts = np.zeros((clients, len(available)), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label, total in enumerate(available):
        # NIID-Bench draws shares for all, sets the others' to zero and renormalises. By the neutrality of Dirichlet
        # distributions this is the same as drawing for these clients only.
        below = np.flatnonzero(sizes < available.sum() / clients)
        shares = softmax(log_dirichlet(rng, alpha, (1, len(below)))[0])
        counts[below, label] = cut(total, shares)
        sizes += counts[:, label]
    return counts


def _by_client(rng: np.random.Generator, alpha: float, clients: int, available: np.ndarray) -> np.ndarray:
    """Counts where clients draw sample after sample, without replacement, by label distributions of their own."""
    return _in_turns(rng, log_dirichlet(rng, alpha, (clients, len(available))), available)


def _in_turns(rng: np.random.Generator, log_shares: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Counts where clients of equal size draw all samples in random turns; who finds a class empty draws again."""
    turns = _turns(rng, cut(int(available.sum()), np.ones(len(log_shares))))
    left = available.copy()
    labels = draw_columns(rng, softmax(log_shares, axis=1), turns)
    counts = np.zeros(log_shares.shape, dtype=np.int64)
    while True:
        # All draws before the first that finds its class empty are final. Of the others, those of that class are drawn
        # anew.
        refused = _rank(labels) >= left[labels]
        end = int(refused.argmax()) if refused.any() else len(turns)
        np.add.at(counts, (turns[:end], labels[:end]), 1)
        if end == len(turns):
            return counts
        left -= np.bincount(labels[:end], minlength=len(left))
        turns, labels = turns[end:], labels[end:]
        again = left[labels] == 0
        shares = softmax(np.where(left > 0, log_shares, -np.inf), axis=1)
        labels[again] = draw_columns(rng, shares, turns[again])


def _turns(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """The client that draws at each turn, [turn]: always a random one of those that have not their size yet."""
    # Of several Poisson processes with equal rates, each has the same chance to have the next event.
    times = rng.standard_exponential((len(sizes), sizes.max())).cumsum(axis=1)
    times[np.arange(sizes.max()) >= sizes[:, None]] = np.inf
    return np.argsort(times, axis=None)[: sizes.sum()] // sizes.max()


def _rank(labels: np.ndarray) -> np.ndarray:
    """For each entry, how many earlier ones are equal to it."""
    order = np.argsort(labels.astype(np.uint16), kind="stable")  # short integers are sorted in linear time
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return ranks


def _by_client_prior(rng: np.random.Generator, alpha: float, clients: int, available: np.ndarray) -> np.ndarray:
    """Counts where each class is cut by its shares in clients' label distributions, whose mean is about the data's."""
    prior = available / available.sum()
    log_shares = log_dirichlet(rng, alpha * prior, (clients + _SPARE, len(available)))
    chosen = _near_mean(rng, softmax(log_shares, axis=1), clients, prior)
    # A class of which no client has a share above zero goes to the client with the largest logarithm of one.
    return cut(available, softmax(log_shares[chosen], axis=0).T).T


def _near_mean(rng: np.random.Generator, rows: np.ndarray, clients: int, target: np.ndarray) -> np.ndarray:
    """The row of each client: the first rows, some exchanged for spare ones until their mean is near the target."""
    chosen, spare = np.arange(clients), np.arange(clients, len(rows))
    offers = rows[spare]
    squares = (offers**2).sum(axis=1)
    gap = rows[:clients].sum(axis=0) - clients * target
    for client in np.tile(rng.permutation(clients), _SWEEPS):
        if gap @ gap <= _NEAR * clients**2:
            break
        own = rows[chosen[client]]
        rest = gap - own
        # |rest + offer|^2, without the constant |rest|^2
        costs = squares + 2 * offers @ rest
        best = int(costs.argmin())
        if costs[best] < own @ own + 2 * own @ rest:
            gap = rest + offers[best]
            chosen[client], spare[best] = spare[best], chosen[client]
            offers[best], squares[best] = own, own @ own
    return chosen


_DEFINITIONS: dict[str, tuple[Callable[[np.random.Generator, float, int, np.ndarray], np.ndarray], int]] = {
    "class-balanced": (_by_class_balanced, _DRAWS),
    "class": (_by_class, 1),
    "client": (_by_client, 1),
    "client-prior": (_by_client_prior, 1),
}
"""The definitions of the Dirichlet split, and how often each is drawn before its last draw is topped up."""
