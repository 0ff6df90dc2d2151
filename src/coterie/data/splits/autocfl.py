"""The splits of AutoCFL: groups of clients that differ in labels or in inputs, balanced or not.

Gong et al., "Adaptive Client Clustering for Efficient Federated Learning over Non-IID and Imbalanced Data". Its IID
settings are those of `iid`.
"""

import logging
from typing import Annotated, Literal

import numpy as np

from coterie.core.fields import Count, at_least
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import (
    Concentration,
    blocks,
    cut,
    deal,
    imbalance,
    largest_fit,
    log_dirichlet,
    numbered_classes,
    require,
    require_samples,
    rotated,
    softmax,
)
from coterie.data.splits.plain import alike

logger = logging.getLogger(__name__)

_LABEL_GROUPS = ((0, 3), (3, 7), (4, 10), (0, 10))
"""The first class of each group and the one behind its last, for ten classes (Section 5.1)."""

_NORMAL = (1400, 1530, 1530, 1400, 1280), (1400, 1530, 1530, 1400, 1280)
_IMBALANCED = (380, 3100, 1150, 510, 640), (380, 2680, 2200, 380, 1020)
"""Sizes of the clients of the two groups (Fig. 1)."""


@split_rules.register("autocfl-label")
class AutoCFLLabel(SplitRule):
    """AutoCFL's four groups with the labels 0-2, 3-6, 4-9 and 0-9; balanced or imbalanced.

    All clients have the same number of samples, and no sample is at two clients (Section 5.1, NonIID-Label). Groups are
    blocks of clients, equal within one. With other than ten classes they have the same parts of the classes in their
    order: 0-29, 30-69, 40-99 and 0-99 of a hundred. The paper leaves the label proportions within a group open: ours
    are uniform, or drawn per client.
    """

    clients: Annotated[int, at_least(4, "at least 4, one for each group")] = 20

    imbalanced: bool = False
    """Cut 9 of 20 clients, drawn at random, to 10, 30 or 60 % of their samples, a third of them each."""

    samples: Count | None = None
    """Samples per client before any cut; by default as many as the data gives to all clients alike."""

    alpha: Concentration | None = None
    """Concentration of a Dirichlet distribution from which each client draws its shares of its group's labels; by
    default the shares are equal. The more they differ, the fewer samples all clients can have alike."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Give every client the same number of samples with its group's labels, then cut some."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        groups = blocks(self.clients, len(_LABEL_GROUPS))
        shares = _shares(rng, _label_groups(data, len(available))[groups], self.alpha)
        counts = largest_fit(shares, np.full(self.clients, self.samples or len(data)), available)
        if self.samples is not None:
            most = int(counts[0].sum())
            allowed = f"at most {most} for each client of this split of {data.name}"
            require(most == self.samples, "samples", self.samples, allowed)
        if self.imbalanced:
            counts = cut(imbalance(rng, counts.sum(axis=1)), counts)
        return Split(deal(rng, y, counts), groups=groups)


@split_rules.register("autocfl-input")
class AutoCFLInput(SplitRule):
    """AutoCFL's groups with rotated images; balanced or imbalanced.

    All clients have all labels, in equal or AutoCFL's imbalanced sizes; a group sees its images rotated (Section 5.1,
    NonIID-Input). The paper rotates half of the clients by 180 degrees for MNIST and Fashion-MNIST and then speaks of
    four clusters: two rotations make two true groups, and two is what we count. Groups are blocks of clients, equal
    within one.
    """

    rotations: int | None = None
    """How many rotations: 2 (0 and 180 degrees) or 4 (0, 90, 180 and 270); by default 4 for colour images and 2 for
    grey ones, as in the paper."""

    imbalanced: bool = False
    """Cut 9 of 20 clients, drawn at random, to 10, 30 or 60 % of their samples, a third of them each."""

    samples: int | None = None
    """Samples per client before any cut; by default all samples are dealt out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rotations in (None, 2, 4), "rotations", self.rotations, "2 or 4")

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Deal samples out to all alike and name each group's rotation."""
        rotations = self.rotations or (2 if data.shape[0] == 1 else 4)
        require(self.clients >= rotations, "clients", self.clients, f"at least {rotations}, one for each rotation")
        groups = blocks(self.clients, rotations)
        indices = alike(data, rng, self.clients, self.samples, self.imbalanced)
        return Split(indices, groups=groups, transforms=rotated(groups, rotations))


@split_rules.register("autocfl-motivation")
class AutoCFLMotivation(SplitRule):
    """AutoCFL's motivating example: 10 clients in two groups, with the sizes of its Fig. 1.

    Within a group each client draws its label shares from Dir(1), and no sample is at two clients (Section 3.3). The
    paper leaves the difference of the groups open. Ours: for a label shift the first group has the lower half of the
    classes and the second the upper; for an input shift both have all classes, and the second group's images are
    rotated by 180 degrees. For other numbers of clients the sizes repeat within each group. Where the data is too
    small, all sizes shrink in proportion until the drawn shares fit.
    """

    clients: Annotated[int, at_least(2, "at least 2, one for each group")] = 10
    """How many clients there are, half of them in each group."""

    shift: Literal["label", "input"] = "label"
    """What the groups differ in: their classes (`label`) or the rotation of their images (`input`)."""

    imbalanced: bool = False
    """Take Fig. 1's imbalanced sizes (380 to 3,100) instead of the normal ones (1,280 to 1,530)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.shift in ("label", "input"), "shift", self.shift, "label or input")

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Draw label shares within the groups and deal samples out in Fig. 1's sizes."""
        require_samples(data, self.clients)
        y, available = numbered_classes(data)
        groups = blocks(self.clients, 2)
        allowed = np.ones((2, len(available)), dtype=bool)
        if self.shift == "label":
            require(len(available) >= 2, "shift", self.shift, f"{data.name} has one class only")
            allowed = np.arange(len(available)) * 2 // len(available) == np.arange(2)[:, None]
        sizes = self._sizes(groups)
        counts = largest_fit(_shares(rng, allowed[groups], 1.0), sizes, available)
        if counts.sum() < sizes.sum():
            logger.info(
                "%s: Fig. 1's sizes are scaled by %.3g to fit %s", self.name, counts.sum() / sizes.sum(), data.name
            )
        transforms = rotated(groups, 2) if self.shift == "input" else ()
        return Split(deal(rng, y, counts), groups=groups, transforms=transforms)

    def _sizes(self, groups: np.ndarray) -> np.ndarray:
        published = _IMBALANCED if self.imbalanced else _NORMAL
        return np.concatenate([np.resize(published[group], (groups == group).sum()) for group in range(2)])


def _label_groups(data: Dataset, classes: int) -> np.ndarray:
    """The classes that each group may have, [group, class]."""
    require(classes >= 3, "split", AutoCFLLabel.name, f"needs at least 3 classes; {data.name} has {classes}")
    edges = np.rint(np.array(_LABEL_GROUPS) * classes / 10)
    label = np.arange(classes)
    return (edges[:, :1] <= label) & (label < edges[:, 1:])


def _shares(rng: np.random.Generator, allowed: np.ndarray, alpha: float | None) -> np.ndarray:
    """Shares of the classes that each client may have, [client, class]: equal, or drawn from Dir(alpha)."""
    if alpha is None:
        return allowed.astype(float)
    return softmax(np.where(allowed, log_dirichlet(rng, alpha, allowed.shape), -np.inf), axis=1)
