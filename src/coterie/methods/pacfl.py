"""PACFL: before any training clients are clustered by the angles between the subspaces that their data spans.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin, "Efficient distribution similarity identification in clustered
federated learning via principal angles between client data subspaces", AAAI 2023.

| symbol | here |
|---|---|
| U_p | the `vectors` leading left singular vectors of a client's data (features x samples) |
| A | the angles between clients' subspaces, in degrees: the smallest, or their sum |
| beta | `threshold` |

The published code takes the smallest angle between single vectors, sign included, which depends on the basis; here
angles are principal angles, which do not. It stacks vectors of all classes; here, with `by_class`, classes are compared
with themselves, and one that only one client has is at right angles. A client that comes later sends its vectors too,
and joins the cluster with the smallest mean angle, or founds one if that is above the threshold.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.programs import Output, Outputs, program, train
from coterie.core.fields import Count, NonNegative
from coterie.core.records import state
from coterie.moves import evidence, grouping
from coterie.nets.stacks import Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.server.serving import Served


@state
class PACFLState:
    """The clusters, and what clients have told of their data."""

    clusters: Clusters
    bases: Tensor | None = None
    """The clients' singular vectors, [client, class, feature, vector], or without classes; NaN for others."""


@method("pacfl")
class PACFL(Method):
    """Clusters by angles between data subspaces, before training. (Vahidian et al., AAAI 2023)"""

    family = "clustered"
    sends = "singular vectors of every client's data once, then a model each way"
    gives_away = (
        "its trained model, and what its data looks like: singular vectors of images are images, and with few samples "
        "they are nearly the samples themselves"
    )

    vectors: Count = 3
    """p: singular vectors that a client sends, 3 to 5 in the paper."""

    by_class: bool = True
    """Whether a client sends vectors of each of its classes, or of all its data together."""

    measure: Literal["smallest", "sum"] = "smallest"
    """How far apart two subspaces are: their smallest principal angle, or the sum of all."""

    threshold: NonNegative = 25.0
    """beta, in degrees: clusters farther apart than this stay apart. 0 is Local, 90 with `smallest` FedAvg. 25 told
    true groups of labels and of rotated inputs apart on digits, MNIST and Fashion-MNIST."""

    clusters: Count | None = None
    """How many clusters to make, instead of a threshold."""

    linkage: Literal["single", "complete", "average"] = "average"
    """How far apart two clusters are: their nearest members, their farthest, or the mean."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients of a cluster count by their number of samples, or all the same."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes, unless all data of a client is taken together."""
        return "compares clients class by class (by_class=false takes all data together)" if self.by_class else ""

    def begin(self, fed: Federation) -> PACFLState:
        """A fresh model, and nobody in a cluster."""
        return PACFLState(Clusters(fed.new_model().expand(1), torch.full((len(fed.names),), -1)))

    def round(self, fed: Federation, state: PACFLState) -> PACFLState:
        """Put those in clusters that are in none, and let every cluster do a round of FedAvg."""
        state = self._complete(fed, state)
        cohort = state.clusters.sample(fed, self.participation)
        replies = fed.run(train, cohort, each=state.clusters.start(fed, cohort), local=self.local)
        return replace(state, clusters=state.clusters.averaged(fed, replies, self.weighting))

    def _complete(self, fed: Federation, state: PACFLState) -> PACFLState:
        """The state after every client that is there and in no cluster was put in one."""
        ask = fed.run if state.bases is None else fed.ask  # who comes later and does not answer is asked again
        replies = ask(describe, state.clusters.missing(fed), vectors=self.vectors, by_class=self.by_class)
        if replies is None:
            return state
        clusters, known, told = state.clusters, state.bases, replies.singular_vectors.cpu()
        bases = fed.updated(told[:0] if known is None else known, replies.clients, told, otherwise=torch.nan)
        if known is None:
            angle = evidence.subspace_angle(told, self.measure)
            found = grouping.linkage(angle, None if self.clusters else self.threshold, self.clusters, self.linkage)
            clusters = Clusters(Models.stack([clusters.models[0]] * len(found)), clusters.labels)
            return PACFLState(clusters.joined(fed, replies.clients, found.labels), bases)
        for client in replies.clients:
            clusters = self._joined(fed, clusters, client, bases)
        return PACFLState(clusters, bases)

    def _joined(self, fed: Federation, clusters: Clusters, client: int, bases: Tensor) -> Clusters:
        """The clusters after a client that came later was put in one, perhaps in a new one of its own."""
        labels = clusters.of(fed).numpy()
        placed = np.flatnonzero(labels >= 0)
        angle = evidence.subspace_angle(bases[[client, *placed]], self.measure)[0, 1:]
        names = np.unique(labels[placed])
        means = np.array([angle[labels[placed] == name].mean() for name in names])
        if self.clusters or means.min() <= self.threshold:
            return clusters.joined(fed, np.array([client]), names[means.argmin()])
        models = Models.cat([clusters.models, fed.new_model().expand(1)])
        return Clusters(models, clusters.labels).joined(fed, np.array([client]), len(clusters.models))

    def serve(self, fed: Federation, state: PACFLState) -> Served:
        """The model of each client's cluster; one that has none yet gets the initial model."""
        return state.clusters.serve(fed, otherwise=fed.new_model())


@program(gives=lambda net, asked: {"singular_vectors": Output(float, (None,) * (2 + asked["by_class"]))})
def describe(clients: Clients, vectors: int, by_class: bool) -> Outputs:
    """The leading left singular vectors of the client's data: [client, feature, vector], or for each class."""
    told = []
    for row in range(len(clients)):
        x, y = clients.samples(row)
        parts = [x[y == label] for label in range(clients.net.classes)] if by_class else [x]
        told.append(torch.stack([evidence.leading_vectors(part.flatten(1), vectors) for part in parts]))
    bases = torch.stack(told).to(clients.net.dtype)
    return {"singular_vectors": bases if by_class else bases[:, 0]}
