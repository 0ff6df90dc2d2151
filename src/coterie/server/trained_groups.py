"""Groups of clients with a model each, that FedAvg or SCAFFOLD trains, and that can be parted into smaller ones."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.records import state
from coterie.moves import server_steps
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Changes
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation, Replies


@state
class TrainedGroups:
    """The groups' models, and with SCAFFOLD the control variates of their servers."""

    clusters: Clusters
    controls: Changes | None = None
    """The mean control variate of each group, [group]; None with FedAvg."""
    known: Tensor | None = None
    """Over how many clients each of these is the mean, [group]."""

    @classmethod
    def one(cls, fed: Federation, corrected: bool) -> "TrainedGroups":
        """All clients in one group, with a fresh model."""
        clusters = Clusters.one(fed.new_model(), fed)
        if not corrected:
            return cls(clusters)
        return cls(clusters, clusters.models.zeros(), torch.tensor([len(fed.clients)]))

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.clusters.models)

    @property
    def weighting(self) -> str:
        """What clients count by, as in the papers: by samples in FedAvg, all the same in SCAFFOLD."""
        return "samples" if self.controls is None else "uniform"

    def settled(self, fed: Federation) -> "TrainedGroups":
        """The groups with everybody who is there: who is in none joins the one that fits its validation data best."""
        return replace(self, clusters=self.clusters.settled(fed, "validation"))

    def inputs(self, fed: Federation, clients: Any) -> dict[str, Any]:
        """What some clients train from, a row for each."""
        inputs: dict[str, Any] = {"start": self.clusters.start(fed, clients)}
        if self.controls is not None:
            inputs["control"] = self.controls[self.clusters.of(fed)[clients]]
        return inputs

    def parted(self, fed: Federation, replies: Replies, found: Grouping) -> "TrainedGroups":
        """The groups that those who answered were parted into, each with the model that all had; others are in none.

        A control variate is the mean of those that members had `before` this round, which they told.
        """
        models = self.clusters.models[[0] * len(found)]
        nobody = Clusters(models, torch.full_like(self.clusters.of(fed), -1))
        clusters = nobody.joined(fed, replies.clients, found.labels)
        if self.controls is None:
            return TrainedGroups(clusters)
        otherwise = self.controls[[0] * len(found)]
        means = replies.average("uniform", "before", by=found.labels, otherwise=otherwise)
        return TrainedGroups(clusters, means, torch.from_numpy(found.sizes))

    def stepped(self, fed: Federation, replies: Replies) -> "TrainedGroups":
        """The groups after their members have trained: each takes a step of its own."""
        clusters = self.clusters.averaged(fed, replies, self.weighting)
        if self.controls is None:
            return TrainedGroups(clusters)
        assert self.known is not None
        here, there = clusters.labels[replies.clients], clusters.labels[fed.clients]
        now = torch.maximum(self.known, there[there >= 0].bincount(minlength=len(self)))
        steps = [
            server_steps.mean_over_all(self.controls[place], int(self.known[place]), own, int(now[place]))
            for place in range(len(self))
            for own in [replies.of(here == place).control_change]
        ]
        return TrainedGroups(clusters, Changes.stack(steps), now)
