"""The splits of CAFA.

Zhang et al., "Optimizing Federated Learning on Non-IID Data with Clustering and Model Sharing".
"""

from typing import Annotated

import numpy as np

from coterie.core.fields import Count, within
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import (
    Concentration,
    chunks,
    cut,
    cut_to_each,
    deal,
    deal_overlapping,
    log_dirichlet,
    numbered_classes,
    require,
    require_samples,
    softmax,
)


@split_rules.register("cafa")
class CAFAClasses(SplitRule):
    """CAFA's main split: 20 to 40 % of the classes per client, in random unequal sizes.

    The paper says no more than that each client has 2 to 4 of 10 classes and a random amount of data (Section IV-B).
    Ours: the number of classes is drawn uniformly from 20 to 40 % of all, rounded and at least one, and then the
    classes; a class that nobody drew takes the place of one that several did, as long as there is one. Each class is
    cut among its owners by proportions drawn uniformly from the simplex; every owner gets a sample of it, where there
    are that many. Every sample is dealt out, unless there are too few clients for all classes.
    """

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw classes for each client and cut each class among its owners."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        least, most = (max(1, round(share * len(available))) for share in (0.2, 0.4))
        numbers = rng.integers(least, most, self.clients, endpoint=True)
        owned = _all_owned(rng, _drawn_classes(rng, numbers, len(available)))
        proportions = np.where(owned, rng.standard_exponential(owned.shape), 0)  # normalised, these are uniform
        counts = np.zeros(owned.shape, dtype=np.int64)
        for label in np.flatnonzero(owned.any(axis=0)):
            counts[:, label] = cut_to_each(int(available[label]), proportions[:, label], owned[:, label])
        return Split(deal(rng, y, counts))


@split_rules.register("cafa-mixed")
class CAFAMixed(SplitRule):
    """CAFA's test of client classification: some clients IID, the others with one or two classes.

    The IID clients have disjoint random samples. Each other client draws 1 to `classes` classes, and their proportions
    from a Dirichlet distribution, and takes that many samples of each from the whole data set, at least one, whatever
    other clients have (Tables II and III; mode 1 of the authors' code). Sizes are equal within one. Where a class has
    too few samples, the client's other classes make up for it; a client that has all samples of its classes is smaller.
    The true groups are what the tables score: IID clients (0) and others (1).
    """

    iid: Annotated[float, within("[0, 1]", "a share in [0, 1]")] = 0.25
    """Share of the clients that are IID."""

    classes: Count = 2
    """Most classes of a client that is not IID."""

    alpha: Concentration = 0.5
    """Concentration of the proportions in which such a client has its classes."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Deal samples to the IID clients, then let each other client draw from all samples."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        require(self.classes <= len(available), "classes", self.classes, f"{data.name} has {len(available)} classes")
        sizes = cut(len(data), np.ones(self.clients))
        alike = round(self.iid * self.clients)
        numbers = rng.integers(1, self.classes, self.clients - alike, endpoint=True)
        owned = _drawn_classes(rng, numbers, len(available))
        shares = softmax(np.where(owned, log_dirichlet(rng, self.alpha, owned.shape), -np.inf), axis=1)
        counts = np.zeros(owned.shape, dtype=np.int64)
        for client, takers in enumerate(owned):
            wanted = cut_to_each(int(sizes[alike + client]), shares[client], takers)
            counts[client] = _capped(wanted, np.where(takers, available, 0))
        indices = chunks(rng, len(data), sizes[:alike]) + deal_overlapping(rng, y, counts)
        return Split(indices, groups=np.arange(self.clients) >= alike, repeats=True)


@split_rules.register("cafa-chunks")
class CAFAChunks(SplitRule):
    """CAFA's code, mode 0: 1 to 9 chunks of classes per client, the chunks of a class of equal size.

    Each client draws how many chunks it gets, uniformly from one to one less than there are classes. As many chunks as
    that is in all are spread over the classes at random, at least one for each; a client takes one of each of the
    classes that have most left. Where the authors' code fails, because fewer classes are left than a client wants, it
    takes several chunks of one. A class that nobody needs, which takes very few clients, stays unused.
    """

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw numbers of chunks, let clients take them in turns, and cut each class among its chunks."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        numbers = rng.integers(1, max(1, len(available) - 1), self.clients, endpoint=True)
        taken = _taken_chunks(rng, numbers, _spread(rng, int(numbers.sum()), len(available)))
        counts = np.zeros(taken.shape, dtype=np.int64)
        for label in np.flatnonzero(taken.any(axis=0)):
            counts[:, label] = cut_to_each(int(available[label]), taken[:, label], taken[:, label] > 0)
        return Split(deal(rng, y, counts))


@split_rules.register("cafa-consecutive")
class CAFAConsecutive(SplitRule):
    """CAFA's code, mode 2: consecutive classes per client from a random one on, in random unequal sizes.

    Sizes are in proportion to whole numbers drawn from 10 to 100; in the authors' code the last client gets only what
    rounding has left. A client takes equal parts of its classes, round in a circle; where one has run out, it goes on
    to the next ones. Every sample is dealt out.
    """

    classes: Count = 6
    """Classes per client, as long as they last: 6 in the authors' script, 2 by default in their code."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw sizes, and let one client after another take its classes."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        require(self.classes <= len(available), "classes", self.classes, f"{data.name} has {len(available)} classes")
        weights = rng.integers(10, 100, self.clients, endpoint=True)
        sizes = cut_to_each(len(data), weights, np.ones(self.clients, dtype=np.int64))
        counts, left = np.zeros((self.clients, len(available)), dtype=np.int64), available.copy()
        for client, size in enumerate(sizes):
            label, wanted, part = int(rng.integers(len(available))), int(size), -(-int(size) // self.classes)
            while wanted:
                share = min(part, int(left[label]), wanted)
                counts[client, label] += share
                left[label] -= share
                label, wanted = (label + 1) % len(available), wanted - share
        return Split(deal(rng, y, counts))


def _spread(rng: np.random.Generator, chunks: int, classes: int) -> np.ndarray:
    """How many chunks each class is cut into, [class]: one if there are enough, and the others at random."""
    least = rng.permutation(np.arange(classes) < chunks).astype(np.int64)
    return least + rng.multinomial(chunks - least.sum(), np.full(classes, 1 / classes))


def _taken_chunks(rng: np.random.Generator, numbers: np.ndarray, left: np.ndarray) -> np.ndarray:
    """How many chunks of each class each client takes, [client, class], if it takes of what there is most left."""
    left = left.copy()
    taken = np.zeros((len(numbers), len(left)), dtype=np.int64)
    for client, number in enumerate(numbers):
        while number:
            order = np.lexsort((rng.random(len(left)), -left))
            chosen = order[: min(number, np.count_nonzero(left))]
            taken[client, chosen] += 1
            left[chosen] -= 1
            number -= len(chosen)
    return taken


def _drawn_classes(rng: np.random.Generator, numbers: np.ndarray, classes: int) -> np.ndarray:
    """The random classes that each client owns, [client, class]: as many distinct ones as its number says."""
    lots = np.argsort(rng.random((len(numbers), classes)), axis=1)
    return lots < numbers[:, None]


def _all_owned(rng: np.random.Generator, owned: np.ndarray) -> np.ndarray:
    """Exchange classes that several clients own for those that nobody owns; each client keeps its number of them."""
    owned = owned.copy()
    for label in np.flatnonzero(~owned.any(axis=0)):
        spare = np.argwhere(owned & (owned.sum(axis=0) > 1))
        if not len(spare):
            break
        client, given = spare[rng.integers(len(spare))]
        owned[client, [given, label]] = False, True
    return owned


def _capped(counts: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Counts, [class], cut to what is available; what is cut goes to the next classes that have more to give."""
    capped = np.minimum(counts, available)
    filled = np.minimum(np.cumsum(available - capped), counts.sum() - capped.sum())
    return capped + np.diff(filled, prepend=0)
