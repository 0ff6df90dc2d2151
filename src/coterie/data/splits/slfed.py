"""The splits of SLFed (Sundar et al., "Subjective Logic-based Decentralized Federated Learning for Non-IID Data")."""

import logging
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.core.fields import Count, above
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import cut, deal_overlapping, numbered_classes, require

logger = logging.getLogger(__name__)

_LEVELS: dict[str, dict[int, int]] = {
    "dist0": {2000: 3, 1500: 2, 1000: 2, 5: 3},
    "dist1": {2500: 3, 5: 7},
    "dist2": {2000: 7, 5: 3},
    "even": {2000: 10},
}
"""The kinds of clients: how many of ten classes have each number of samples, `{samples: classes}` (Section 6.1.2)."""

_RANDOM = 4000
"""Most samples that a client of the kind `random` has of a class; the fewest is one."""


@dataclass(frozen=True)
class _SLFedDist(SplitRule):
    """Clients of the published kinds. They may have samples in common; none is twice at one client."""

    mix: ClassVar[dict[str, int]]
    """How many clients are of each kind, in proportion."""

    clients: Count = 50
    """How many clients there are."""

    scale: Annotated[float, above(0, "a number above 0")] | None = None
    """What the published numbers of samples are multiplied by, at least one staying; by default 1 or, where the rarest
    class has too few samples for that, what makes the largest number fit."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw counts for each client by its kind, and then its samples from the whole data set."""
        y, available = numbered_classes(data)
        scale = self._fitting_scale(data, int(available.min()))
        kinds = np.repeat(list(self.mix), cut(self.clients, np.array(list(self.mix.values()))))
        published = np.stack([_counts(rng, kind, len(available)) for kind in kinds])
        counts = np.maximum(np.rint(scale * published), 1).astype(np.int64)
        return Split(deal_overlapping(rng, y, counts), repeats=True)

    def _fitting_scale(self, data: Dataset, rarest: int) -> float:
        largest = max(_RANDOM if kind == "random" else max(_LEVELS[kind]) for kind in self.mix)
        most = rarest / largest
        if self.scale is not None:
            allowed = f"at most {most:.4g}: the rarest class of {data.name} has {rarest} samples of {largest}"
            require(self.scale <= most, "scale", self.scale, allowed)
            return self.scale
        if most < 1:
            logger.info("%s: the published numbers are scaled by %.4g to fit %s", self.name, most, data.name)
        return min(1.0, most)


@split_rules.register("slfed-dist0")
class SLFedDist0(_SLFedDist):
    """SLFed's Dist-0: 2,000 samples in 3 random classes, 1,500 in 2, 1,000 in 2 and 5 in 3.

    Clients may have samples in common (Section 6.1.2). Other numbers of classes are divided in the same proportion.
    """

    mix: ClassVar[dict[str, int]] = {"dist0": 1}


@split_rules.register("slfed-dist1")
class SLFedDist1(_SLFedDist):
    """SLFed's Dist-1: 2,500 samples in 3 random classes and 5 in the other 7.

    Clients may have samples in common (Section 6.1.2). Other numbers of classes are divided in the same proportion.
    """

    mix: ClassVar[dict[str, int]] = {"dist1": 1}


@split_rules.register("slfed-dist2")
class SLFedDist2(_SLFedDist):
    """SLFed's Dist-2: 2,000 samples in 7 random classes and 5 in the other 3.

    Clients may have samples in common (Section 6.1.2). Other numbers of classes are divided in the same proportion.
    """

    mix: ClassVar[dict[str, int]] = {"dist2": 1}


@split_rules.register("slfed-dist3")
class SLFedDist3(_SLFedDist):
    """SLFed's Dist-3: of 50 clients 8 as Dist-0, 7 as Dist-1, 7 as Dist-2, 8 even and 20 at random.

    An even client has 2,000 samples of every class, a random one 1 to 4,000, drawn uniformly for each class. Clients
    may have samples in common (Section 6.1.2). Other numbers of clients and classes are divided in the same proportion.
    """

    mix: ClassVar[dict[str, int]] = {"dist0": 8, "dist1": 7, "dist2": 7, "even": 8, "random": 20}


def _counts(rng: np.random.Generator, kind: str, classes: int) -> np.ndarray:
    """The published numbers of samples of a client of this kind, [class]."""
    if kind == "random":
        return rng.integers(1, _RANDOM, classes, endpoint=True)
    levels = _LEVELS[kind]
    return rng.permutation(np.repeat(list(levels), cut(classes, np.array(list(levels.values())))))
