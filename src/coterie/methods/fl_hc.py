"""FL+HC: some rounds of FedAvg, then clients are clustered once by their updates, and every cluster goes on alone.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on
non-IID data", IJCNN 2020, Algorithm 1.

| symbol | here |
|---|---|
| n_1, w | `cluster_round` - 1 rounds of FedAvg, and their model |
| Delta w_k | what a client's training makes of w in the round of clustering, in which all take part |
| P = (distance, linkage, T) | `distance`, `linkage`, `threshold` |

Distances depend on net, data and rates, so that the threshold is in units of their median unless `relative` is off.
Updates are compared, not models: for the cosine that is not the same. Clusters begin with their members' mean. A client
that was away, or comes later, trains from w, which the server keeps, and joins the cluster with the nearest mean
update; the paper has none. With `adjust`, AutoCFL's adjustment precedes the clustering (Gong et al., Section 5.3).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, NonNegative
from coterie.core.records import state
from coterie.moves import evidence, grouping, pacing
from coterie.moves.pacing import Pace, train_for
from coterie.nets.stacks import Changes, Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.server.serving import Served


@state
class FLHCState:
    """The clusters; once they are found, also what clients that come late are compared with."""

    clusters: Clusters
    """One of all clients at first."""
    origin: Models | None = None
    """w: the model from which clients trained in the round of clustering."""
    updates: Changes | None = None
    """Each cluster's mean update in that round, [cluster]."""
    pace: Pace | None = None
    """How long each client trains; None if that is not adjusted."""


@method("fl-hc")
class FLHC(Method):
    """FedAvg, then clusters by linkage of updates, each on its own. (Briggs et al., IJCNN 2020)"""

    family = "clustered"
    sends = "a model each way; the round of clustering asks all clients"
    gives_away = "its trained model; from its update the server learns which clients are alike"

    cluster_round: Count = 5
    """The round in which all clients train and are clustered (5 in AutoCFL's comparison)."""

    threshold: NonNegative = 0.9
    """T: clusters farther apart than this stay apart. 0 leaves every client alone, a large one is FedAvg."""

    clusters: Count | None = None
    """How many clusters to make, instead of a threshold."""

    relative: bool = True
    """Whether the threshold is in units of the median distance between clients."""

    distance: Literal["l1", "l2", "cosine"] = "l2"
    """How far apart two updates are: Manhattan, Euclidean or cosine."""

    linkage: Literal["single", "complete", "average", "ward"] = "complete"
    """How far apart two clusters are: their nearest members, their farthest, the mean, or the growth of variance."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    adjust: bool = False
    """Give clients that lag behind more epochs before clustering, as AutoCFL does."""

    growth: NonNegative = 0.5
    """alpha of that adjustment: how fast epochs grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linkage == "ward" and self.distance != "l2":
            raise SettingsError(f"distance={self.distance}: the linkage ward is made for l2")
        if self.adjust and self.steps is not None:
            raise SettingsError(f"steps={self.steps}: it is epochs that are adjusted; set epochs instead")

    def begin(self, fed: Federation) -> FLHCState:
        """All clients in one cluster, with a fresh model."""
        pace = pacing.begin(len(fed.names), self.epochs) if self.adjust else None
        return FLHCState(Clusters.one(fed.new_model(), fed), pace=pace)

    def round(self, fed: Federation, state: FLHCState) -> FLHCState:
        """FedAvg inside every cluster; in one round, all clients train and are clustered."""
        if state.pace is not None:
            state = replace(state, pace=pacing.grown(state.pace, len(fed.names), self.epochs))
        if state.origin is None and fed.round >= self.cluster_round:
            return self._clustered(fed, state)
        clusters, pace = state.clusters, state.pace
        if state.origin is None:
            clusters = clusters.joined(fed, clusters.missing(fed), 0)
        cohort = clusters.cohort(fed, self.participation)
        replies = self._train(fed, state, cohort, clusters.start(fed, cohort, otherwise=state.origin))
        if pace is not None and state.origin is None:
            pace = pacing.observed(pace, replies.clients, replies.loss)
            pace = pacing.adjusted(pace, fed.sizes, self.growth)
        clusters = clusters.averaged(fed, replies, self.weighting).placed(fed, replies, partial(self._nearest, state))
        return replace(state, clusters=clusters, pace=pace)

    def _train(self, fed: Federation, state: FLHCState, clients: np.ndarray, start: Models) -> Replies:
        """Let clients train from one model, or from one each [client], for their own epochs if these are adjusted."""
        epochs = {} if state.pace is None else {"epochs": state.pace.epochs[clients]}
        return fed.run(train_for if epochs else train, clients, each={"start": start, **epochs}, local=self.local)

    def _clustered(self, fed: Federation, state: FLHCState) -> FLHCState:
        """All clients train from one model, and are grouped by how they have changed it."""
        origin = state.clusters.models[0]
        replies = self._train(fed, state, fed.clients, origin)
        distance = evidence.update_distance(replies.model - origin, self.distance)
        cut = {"groups": self.clusters} if self.clusters else {"threshold": self.threshold, "relative": self.relative}
        clusters = Clusters.found(fed, replies, grouping.linkage(distance, method=self.linkage, **cut), self.weighting)
        return FLHCState(clusters, origin, clusters.models - origin, state.pace)

    def _nearest(self, state: FLHCState, sent: Models) -> np.ndarray:
        """The cluster whose mean update is nearest to that of each model which was trained from w, [model]."""
        assert state.origin is not None
        assert state.updates is not None
        away = evidence.update_distance(Changes.cat([sent - state.origin, state.updates]), self.distance)
        return away[: len(sent), len(sent) :].argmin(axis=1)

    def serve(self, fed: Federation, state: FLHCState) -> Served:
        """The model of each client's cluster; one that has none yet gets the model from before there were clusters."""
        return state.clusters.serve(fed, otherwise=state.origin)

    def insight(self, fed: Federation, state: FLHCState) -> Mapping[str, Any]:
        """The clusters, and if epochs are adjusted the clients' epochs and cumulative losses."""
        paced = {} if state.pace is None else pacing.insight(state.pace)
        return {**paced, "clusters": state.clusters.of(fed)}
