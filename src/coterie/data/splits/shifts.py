"""Splits in which a label does not mean the same at all clients, whatever labels they have.

How frequent labels are says nothing of the true groups here: every group has the same sets of labels. So whoever finds
the groups has seen what the labels look like, and whoever finds the labels has found nothing.
"""

from typing import Annotated

import numpy as np

from coterie.core.fields import Count, Share, at_least
from coterie.data.dataset import Dataset
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import blocks, numbered_classes, require, rotated
from coterie.data.splits.plain import alike, skewed


@split_rules.register("rotated-label-skew")
class RotatedLabelSkew(SplitRule):
    """Rotations crossed with label skew: a few classes for each client, and a rotation for each block of them.

    The true groups are the rotations. Every block of clients has the same sets of classes, drawn as in `label-skew`:
    for each client there is one with the same classes and every other rotation, if blocks are equally large. No sample
    is at two clients.
    """

    clients: Annotated[int, at_least(2, "at least 2, one for each rotation")] = 20

    classes: Count = 3
    """Classes per client."""

    rotations: int = 2
    """How many rotations: 2 (0 and 180 degrees) or 4 (0, 90, 180 and 270)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rotations in (2, 4), "rotations", self.rotations, "2 or 4")
        allowed = f"at least {self.rotations}, one for each rotation"
        require(self.clients >= self.rotations, "clients", self.clients, allowed)

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Deal out classes to blocks of clients alike, and name each block's rotation."""
        groups = blocks(self.clients, self.rotations)
        indices = skewed(data, rng, np.bincount(groups).tolist(), self.classes)
        return Split(indices, groups=groups, transforms=rotated(groups, self.rotations))


@split_rules.register("swapped-labels")
class SwappedLabels(SplitRule):
    """Some clients have swapped labels: they call the first class the second and the second the first, and so on.

    The true groups are the clients with the data's labels, and those with swapped ones: the last of them. Of an odd
    number of classes the last keeps its name. Clients are tested on labels as they call them themselves. By default
    all of them have all classes; no sample is at two clients.
    """

    clients: Annotated[int, at_least(2, "at least 2, one with swapped labels and one without")] = 20

    swapped: Share = 0.5
    """The part of the clients that has swapped labels, rounded; there is at least one with them, and one without."""

    classes: Count | None = None
    """Classes per client, as in `label-skew`, and the same sets for both groups; by default all, in equal sizes."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """Deal samples out, and let the last clients call their labels otherwise."""
        numbered_classes(data)  # an error for data without classes
        swapped = min(max(round(self.swapped * self.clients), 1), self.clients - 1)
        sizes = [self.clients - swapped, swapped]
        if self.classes is None:
            indices = alike(data, rng, self.clients, None, False)
        else:
            indices = skewed(data, rng, sizes, self.classes)
        last = data.classes - data.classes % 2
        names = tuple(label ^ 1 if label < last else label for label in range(data.classes))
        return Split(indices, groups=np.repeat([0, 1], sizes), relabels=(None,) * sizes[0] + (names,) * sizes[1])
