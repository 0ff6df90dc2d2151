"""Clusters of clients with a model each, and FedAvg inside every one of them.

What methods share that group clients in one round and train the groups apart in the next. A client may be in no
cluster: it came late, was away when the others were clustered, or has a name that the federation did not know at the
start. Methods let it train from the model that the others were compared at, and place it by what it sends.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.programs import choose
from coterie.core.records import state
from coterie.moves import mixing, sampling
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation, Replies


@state
class Clusters:
    """A model per cluster, and which cluster each client is in."""

    models: Models
    """The clusters' models, [cluster]."""
    labels: Tensor
    """Each client's cluster, [client]; -1 for one that is in none yet."""

    @classmethod
    def one(cls, model: Models, fed: Federation) -> "Clusters":
        """All clients, also those that have yet to come, in a single cluster."""
        return cls(model.expand(1), torch.zeros(len(fed.names), dtype=torch.int64))

    @classmethod
    def found(cls, fed: Federation, replies: Replies, grouping: Grouping, weighting: str = "samples") -> "Clusters":
        """The clusters of a grouping of the clients that answered, each with its members' mean; others are in none."""
        means = mixing.by_samples(replies.counts(weighting), grouping) @ replies.model
        nobody = cls(means, torch.empty(0, dtype=torch.int64))
        return nobody.joined(fed, replies.clients, grouping.labels)

    def of(self, fed: Federation) -> Tensor:
        """Each client's cluster, [client]; clients that have joined the federation since are in none."""
        return fed.grown(self.labels, -1)

    def missing(self, fed: Federation) -> np.ndarray:
        """Positions of the clients that are there but in no cluster."""
        return fed.unplaced(self.labels)

    def joined(self, fed: Federation, clients: np.ndarray, labels: Any) -> "Clusters":
        """The clusters after some clients were put in those that `labels` says."""
        return Clusters(self.models, fed.updated(self.labels, clients, labels, otherwise=-1))

    def placed(self, fed: Federation, replies: Replies, nearest: Callable[[Models], Any]) -> "Clusters":
        """The clusters with clients that answered and were in none: `nearest` finds theirs by what they sent."""
        late = np.flatnonzero((self.of(fed)[replies.clients] < 0).numpy())
        return self.joined(fed, replies.clients[late], nearest(replies.model[late])) if len(late) else self

    def settled(self, fed: Federation, on: str) -> "Clusters":
        """The clusters with everybody who is there and in none: each chooses the model that fits its data `on` best."""
        new = self.missing(fed)
        if len(self.models) == 1:
            return self.joined(fed, new, 0)
        replies = fed.ask(choose, new, shared=self.models, on=on)
        return self if replies is None else self.joined(fed, replies.clients, replies.choice)

    def cohort(self, fed: Federation, participation: float) -> np.ndarray:
        """Who trains in a round: a share of every cluster, and everybody who is in none yet."""
        return np.union1d(self.sample(fed, participation), self.missing(fed))

    def sample(self, fed: Federation, participation: float) -> np.ndarray:
        """A cohort with its share of every cluster, at least one client of each that has somebody there."""
        rng, labels = fed.generator("sample"), self.of(fed).numpy()[fed.clients]
        clusters = [fed.clients[labels == cluster] for cluster in np.unique(labels[labels >= 0])]
        drawn = [sampling.uniform(some, sampling.cohort_size(participation, len(some)), rng) for some in clusters]
        return np.sort(np.concatenate([*drawn, fed.clients[:0]]))

    def start(self, fed: Federation, clients: np.ndarray, otherwise: Models | None = None) -> Models:
        """The model that each of some clients trains from, [client]: its cluster's, or another if it is in none."""
        models = self.models if otherwise is None else Models.cat([self.models, otherwise.expand(1)])
        return models[self.of(fed)[clients]]  # -1 is the last

    def averaged(self, fed: Federation, replies: Replies, weighting: str = "samples") -> "Clusters":
        """Each cluster's model replaced by the mean of what its members sent; where none did, it stays.

        Models of clients that are in no cluster are in no mean.
        """
        labels = self.of(fed)
        models = replies.average(weighting, by=labels[replies.clients], otherwise=self.models)
        return Clusters(models, labels)

    def serve(self, fed: Federation, otherwise: Models | None = None) -> serving.Served:
        """To each client its cluster's model; to one in none the model `otherwise`, or else the first cluster's."""
        labels = self.of(fed)
        if otherwise is None or not len(self.missing(fed)):
            return serving.each(self.models, labels.clamp(min=0))
        models = Models.cat([self.models, otherwise.expand(1)])
        return serving.each(models, torch.where(labels < 0, len(self.models), labels))
