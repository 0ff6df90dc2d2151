"""Clusters by density: HDBSCAN of the cosines between clients' output layers, and FedAvg inside each cluster.

The baseline "CM" that SLFed compares against (Section 6.1). The clustering is that of Campello, Moulavi and Sander,
"Density-based clustering based on hierarchical density estimates", PAKDD 2013; McInnes, Healy and Astels, "hdbscan:
hierarchical density based clustering", JOSS 2017.

The paper gives neither the round of clustering, nor the smallest cluster, nor what becomes of outliers. Here clients
are clustered in round 5, by default once; clusters of 2 count (with the library's 5, the paper's 8 clusters of 50
clients are hardly possible); all may be one cluster, as IID clients are; and an outlier is a cluster of its own. One
that was away, or comes later, trains from the mean of all clients' models and joins the cluster whose mean output layer
is at the smallest angle to its own.
"""

from functools import partial
from typing import Annotated, Literal

import numpy as np

from coterie.clients.programs import train
from coterie.core.fields import Count, at_least
from coterie.core.records import state
from coterie.moves import evidence, grouping
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.server.serving import Served


@state
class HDBSCANState:
    """The clusters, and a model for clients that are in none."""

    clusters: Clusters
    """One of all clients at first."""
    model: Models
    """The mean of all models that clients sent last."""
    outliers: bool = False
    """Whether the last cluster is that of the outliers, which get the mean of all models."""


@method("hdbscan")
class HDBSCAN(Method):
    """FedAvg inside clusters that HDBSCAN finds from output layers. (Campello et al., PAKDD 2013)"""

    family = "clustered"
    sends = "a model each way; a round of clustering asks all clients"
    gives_away = "its trained model; from its last layer the server learns which clients are alike"

    cluster_round: Count = 5
    """The round in which clients are clustered first; until then FedAvg."""

    recluster_every: Annotated[int, at_least(0, "at least 1, or 0 to cluster once")] = 0
    """Rounds between clusterings after the first; 0 clusters once."""

    min_size: Annotated[int, at_least(2)] = 2
    """The smallest cluster: fewer clients are outliers."""

    single: bool = True
    """Whether all may be one cluster."""

    noise: Literal["alone", "nearest", "global"] = "alone"
    """What becomes of an outlier: it stays alone, joins the nearest cluster, or trains and gets the mean of all."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    def begin(self, fed: Federation) -> HDBSCANState:
        """All clients in one cluster, with a fresh model."""
        model = fed.new_model()
        return HDBSCANState(Clusters.one(model, fed), model)

    def round(self, fed: Federation, state: HDBSCANState) -> HDBSCANState:
        """FedAvg inside every cluster; in rounds of clustering, new clusters from what all clients send."""
        clusters, outliers = state.clusters, state.outliers
        if len(clusters.models) == 1:
            clusters = clusters.joined(fed, clusters.missing(fed), 0)
        due = fed.is_due(self.cluster_round, self.recluster_every)
        cohort = fed.clients if due else clusters.cohort(fed, self.participation)
        replies = fed.run(train, cohort, each=clusters.start(fed, cohort, otherwise=state.model), local=self.local)
        if due:
            found, outliers = self._found(replies)
            clusters = Clusters.found(fed, replies, found, self.weighting)
        else:
            clusters = clusters.averaged(fed, replies, self.weighting)
            clusters = clusters.placed(fed, replies, partial(_nearest, clusters.models))
        mean = replies.average(self.weighting)
        if outliers:
            clusters = Clusters(Models.cat([clusters.models[:-1], mean.expand(1)]), clusters.labels)
        return HDBSCANState(clusters, mean, outliers)

    def _found(self, replies: Replies) -> tuple[Grouping, bool]:
        """Clusters by the angles between output layers, and whether the last one is of outliers."""
        distance = 1 - evidence.update_cosine(replies.model.part("head"))
        noise = "out" if self.noise == "global" else self.noise
        labels = grouping.density(distance, self.min_size, self.single, noise).labels
        return Grouping.of(np.where(labels < 0, labels.max() + 1, labels)), bool((labels < 0).any())

    def serve(self, fed: Federation, state: HDBSCANState) -> Served:
        """The model of each client's cluster; one that has none yet gets the mean of all."""
        return state.clusters.serve(fed, otherwise=state.model)


def _nearest(models: Models, sent: Models) -> np.ndarray:
    """The cluster whose model's output layer is at the smallest angle to that of each model that was sent, [model]."""
    alike = evidence.update_cosine(Models.cat([sent, models]).part("head"))
    return alike[: len(sent), len(sent) :].argmax(axis=1)
