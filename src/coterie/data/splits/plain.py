"""Splits that draw no shares: all clients alike, or a fixed number of classes for each."""

from collections.abc import Sequence

import numpy as np

from coterie.core.fields import Count
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import chunks, cut, deal, imbalance, numbered_classes, require, require_samples


@split_rules.register("iid")
class IID(SplitRule):
    """All clients alike: shuffled samples in equal parts.

    Sizes are equal within one. All clients are one true group, so that finding more than one can be scored as wrong.
    With `imbalanced` this is AutoCFL's IID-imbalanced setting.
    """

    imbalanced: bool = False
    """Cut 9 of 20 clients, drawn at random, to 10, 30 or 60 % of their samples, a third of them each (AutoCFL)."""

    samples: int | None = None
    """Samples per client before any cut; by default all samples are dealt out."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Random samples in equal or AutoCFL's imbalanced sizes."""
        indices = alike(data, rng, self.clients, self.samples, self.imbalanced)
        return Split(indices, groups=np.zeros(self.clients))


def alike(
    data: Dataset, rng: np.random.Generator, clients: int, samples: int | None, imbalanced: bool
) -> tuple[np.ndarray, ...]:
    """Disjoint random samples for each client, in equal sizes or in AutoCFL's imbalanced ones."""
    require_samples(data, clients)
    if samples is not None:
        most = len(data) // clients
        require(1 <= samples <= most, "samples", samples, f"1 to {most} for {clients} clients of {data.name}")
    total = len(data) if samples is None else samples * clients
    sizes = cut(total, np.ones(clients))
    return chunks(rng, len(data), imbalance(rng, sizes) if imbalanced else sizes)


@split_rules.register("label-skew")
class LabelSkew(SplitRule):
    """A fixed number of classes per client (NIID-Bench).

    Client i owns class i mod C and further distinct classes at random; each class's samples are shuffled and cut evenly
    among its owners, so sizes differ (Li et al., ICDE 2022, `noniid-#labelK`; FLIS's 20 % and 30 % are 2 and 3 of 10
    classes). Where the reference fails: all classes at once is no special case, and a class that nobody owns, which
    takes fewer clients than classes, stays unused. A client has fewer classes than asked for only if a class has fewer
    samples than owners.
    """

    classes: Count = 2
    """Classes per client."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw the owners of each class and cut it evenly."""
        return Split(skewed(data, rng, [self.clients], self.classes))


def skewed(data: Dataset, rng: np.random.Generator, blocks: Sequence[int], classes: int) -> tuple[np.ndarray, ...]:
    """Disjoint samples of some classes for each client, every class cut evenly among its owners.

    Clients come in blocks of these sizes, each of which begins with the same sets of classes.
    """
    require_samples(data, sum(blocks))
    y, available = numbered_classes(data)
    require(classes <= len(available), "classes", classes, f"{data.name} has {len(available)} classes")
    sets = _owned(rng, max(blocks), len(available), classes)
    owned = np.concatenate([sets[:size] for size in blocks])
    counts = np.zeros(owned.shape, dtype=np.int64)
    used = owned.any(axis=0)
    counts[:, used] = cut(available[used], owned[:, used].T).T
    return deal(rng, y, counts)


def _owned(rng: np.random.Generator, clients: int, classes: int, each: int) -> np.ndarray:
    """Which classes each client owns, `each` of them, [client, class]."""
    numbers = np.arange(clients)
    lots = rng.random((clients, classes))
    lots[numbers, numbers % classes] = -1  # a client's first class is not left to chance
    owned = np.zeros(lots.shape, dtype=bool)
    np.put_along_axis(owned, np.argsort(lots, axis=1)[:, :each], True, axis=1)
    return owned
