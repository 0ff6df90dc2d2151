"""A tree of clusters: those that were split, and the leaves, which are trained.

A node that was split keeps the model at which its sides parted, and how they parted, so that clients that come later
find their way down.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from coterie.core.records import state
from coterie.moves import evidence
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation, Replies


@state
class ClusterTree:
    """Clusters of clients with a model each, and from which cluster each was split off."""

    models: Models
    """Each node's model, [node]; of one that was split, the model that it was split at."""
    parents: Tensor
    """The node that each was split off from, [node]; -1 for the first, which had all clients."""
    parting: Changes
    """In which direction each node's clients went when it was split off, [node]."""
    members: Tensor
    """Which clients are at which node, [node, client]."""

    @classmethod
    def one(cls, model: Models, fed: Federation) -> Self:
        """All clients at a single node."""
        members = torch.ones(1, len(fed.names), dtype=torch.bool)
        return cls(model.expand(1), torch.tensor([-1]), model.expand(1).zeros(), members)

    @property
    def place(self) -> Tensor:
        """The last node that each client is at, [client]."""
        return len(self.members) - 1 - self.members.flip(0).int().argmax(dim=0)

    @property
    def leaves(self) -> list[int]:
        """The nodes that were not split."""
        return sorted(set(range(len(self.parents))) - set(self.parents.tolist()))

    def grown(self, fed: Federation) -> Self:
        """The tree with all clients that there are: new ones are at its root."""
        members = fed.grown(self.members, axis=1).clone()
        members[0] |= ~members.any(dim=0)
        return replace(self, members=members)

    def lowered(self, clients: np.ndarray, here: Tensor, updates: Changes) -> Self:
        """The tree after clients at split nodes have gone to the side that their update is more similar to."""
        members = self.members.clone()
        for row in torch.isin(here, self.parents).nonzero()[:, 0].tolist():
            sides = (self.parents == here[row]).nonzero()[:, 0]
            both = Changes.cat([updates[[row]], self.parting[sides]])
            members[here[row], clients[row]] = False
            members[sides[evidence.update_cosine(both)[0, 1:].argmax()], clients[row]] = True
        return replace(self, members=members)

    def split(self, node: int, leaving: np.ndarray, groups: Sequence[np.ndarray]) -> Self:
        """The tree after clients have left a node for new ones below it, a node for each group.

        A new node begins where it was split off; in which direction it goes is known when it is averaged.
        """
        members = self.members.clone()
        members[node, leaving] = False
        new = torch.zeros(len(groups), members.shape[1], dtype=torch.bool)
        for row, group in zip(new, groups, strict=True):
            row[group] = True
        parents = torch.full((len(groups),), node)
        return replace(
            self,
            models=Models.cat([self.models, self.models[parents]]),
            parents=torch.cat([self.parents, parents]),
            members=torch.cat([members, new]),
        )

    def averaged(self, replies: Replies, counting: Tensor, weighting: str) -> Self:
        """The tree with every node at the mean of what its members sent, without those not `counting` [client]."""
        counts = (self.members[:, replies.clients] & counting) * replies.counts(weighting)
        models = replies.mixed(counts, otherwise=self.models)
        parting = Changes.cat([self.parting, (models - self.models)[len(self.parting) :]])
        return replace(self, models=models, parting=parting)
