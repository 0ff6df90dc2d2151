"""AutoCFL: clients find their clusters by voting over their last layers, once small ones have caught up.

Gong, Xing, Liu, Xi and Chen, "Adaptive client clustering for efficient federated learning over non-IID and imbalanced
data", IEEE Transactions on Big Data 2024. A few rounds of FedAvg, in which clients that lag behind train longer (see
`coterie.moves.pacing`); then clients are clustered once, without a number of clusters; then FedAvg inside every
cluster.

| symbol | here |
|---|---|
| E_m, alpha | `AutoCFLState.pace.epochs` (it starts at `epochs`), `growth` |
| omega, omega_k | the model of the one cluster that there is at first, those of the clusters |
| omega'_m, M | a client's last layer, the distances between them (Eq. 6) |
| tau_m, P_m1 | the widest gap in a sorted row of M, and who is before it: `grouping.vote` |

Where the paper is open or wrong:
- Eq. 3 subtracts the clients' updates: a sign error.
- Three descriptions of when to stop adjusting. The variance of cumulative losses, being of sums, nearly always rises at
  once, so that the printed rule (`stop="variance"`) clusters in round 2; in trial runs round 3 was better, and is the
  default. So are 2 epochs to start from: the paper gives none.
- Sorted rows of M leave out the client itself: its distance of 0 would be the widest gap on IID data. A gap counts as
  none if it is small beside the row's median distance. This `guard` is ours; without it IID data falls apart.
- E_m stays as it was at the clustering, or is reset (`keep_epochs`): the paper says only that adjusting stops.
- The paper has no sampling. Until clients are clustered all take part, because sums of losses are compared; after that
  `participation` counts.
- The paper has no late clients. Here one first trains from the model that clustering started from, and joins the
  cluster whose mean last layer is nearest to its own. So does one that was away when clients were clustered.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.arrays import everywhere
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, NonNegative
from coterie.core.records import state
from coterie.moves import evidence, grouping, pacing
from coterie.moves.pacing import Pace, train_for
from coterie.nets.stacks import Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation
from coterie.server.fitting import Noted
from coterie.server.method import Method, method
from coterie.server.serving import Served


@state
class AutoCFLState:
    """Everybody's pace and the clusters; once they are found, also what clients that come late are compared with."""

    pace: Pace
    clusters: Clusters
    """One of all clients at first."""
    origin: Models | None = None
    """The model from which clients trained when they were clustered."""
    heads: Tensor | None = None
    """The mean last layer of each cluster then, [cluster, p]."""


@method("autocfl")
class AutoCFL(Method):
    """Clusters by weighted voting over last layers, after lagging clients caught up. (Gong et al., IEEE TBD 2024)"""

    family = "clustered"
    sends = "a model each way, a number of epochs down and a loss up"
    gives_away = "its trained model and its loss; from models the server learns whose data is alike"

    adjust: bool = True
    """Give clients that lag behind more epochs before clustering; without it all train alike (the paper's ablation)."""

    weighted: bool = True
    """Let votes count by samples; without it all the same (the paper's Table 5)."""

    growth: NonNegative = 0.5
    """alpha: how fast epochs grow (Section 5.1)."""

    capped: bool = False
    """Never add more than alpha |D_s*| / |D_m| epochs, which Eq. 8 does where that is below 1."""

    guard: NonNegative = 0.1
    """How wide the widest gap in a row of distances must be to count, as part of their median; 0 counts every gap. On
    IID Fashion-MNIST 0.1 leaves one cluster in 4 of 10 runs and 0.25 in all, and label groups are found with either
    (`benchmarks/groups.py`); groups that differ less, such as rotated CIFAR-10, can be lost with 0.25."""

    stop: Literal["round", "variance"] = "round"
    """When to cluster: in `cluster_round`, or when the variance of cumulative losses rises, as printed."""

    cluster_round: Count = 3
    """The round in which clients are clustered; with `stop="variance"` not used."""

    last_round: Count = 6
    """With `stop="variance"`, the last round in which clients are clustered (the latest in the paper's Table 3)."""

    keep_epochs: bool = True
    """Go on with the adjusted epochs after clustering; else with as many as at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            raise SettingsError(f"steps={self.steps}: AutoCFL counts in epochs, which it adjusts; set epochs instead")

    def begin(self, fed: Federation) -> AutoCFLState:
        """A fresh model in one cluster of all clients, and the same number of epochs for everybody."""
        return AutoCFLState(pacing.begin(len(fed.names), self.epochs), Clusters.one(fed.new_model(), fed))

    def round(self, fed: Federation, state: AutoCFLState) -> AutoCFLState | Noted:
        """One model for all, until losses say that clients can be clustered; then FedAvg inside every cluster."""
        pace = pacing.grown(state.pace, len(fed.names), self.epochs)
        if state.origin is None:
            return self._adjusting(fed, state.clusters.models[0], pace)
        cohort = state.clusters.cohort(fed, self.participation)
        epochs = pace.epochs[cohort] if self.keep_epochs else torch.full((len(cohort),), self.epochs)
        start = state.clusters.start(fed, cohort, otherwise=state.origin)
        replies = fed.run(train_for, cohort, each={"start": start, "epochs": epochs}, local=self.local)
        clusters = state.clusters.averaged(fed, replies)
        return replace(state, pace=pace, clusters=clusters.placed(fed, replies, partial(_nearest, state)))

    def _adjusting(self, fed: Federation, model: Models, pace: Pace) -> Noted:
        """All clients train from one model; they are clustered, or their epochs adjusted."""
        inputs = {"start": model, "epochs": pace.epochs[fed.clients]}
        replies = fed.run(train_for, fed.clients, each=inputs, local=self.local)
        pace = pacing.observed(pace, replies.clients, replies.loss)
        distance = evidence.weight_distance(replies.model, layer="last")  # M
        noted = {"distance": everywhere(distance, replies.clients, len(fed.names))}
        last = self.cluster_round if self.stop == "round" else self.last_round
        if fed.round >= last or (self.stop == "variance" and pacing.rises(pace)):
            found = grouping.vote(distance, replies.samples, weighted=self.weighted, guard=self.guard)
            clusters = Clusters.found(fed, replies, found)
            return Noted(AutoCFLState(pace, clusters, model, clusters.models.part("head")), noted)
        if self.adjust:
            pace = pacing.adjusted(pace, fed.sizes, self.growth, self.capped)
        return Noted(AutoCFLState(pace, Clusters.one(replies.average(), fed)), noted)

    def serve(self, fed: Federation, state: AutoCFLState) -> Served:
        """The model of each client's cluster; one that has none yet gets the model from before there were clusters."""
        return state.clusters.serve(fed, otherwise=state.origin)

    def insight(self, fed: Federation, state: AutoCFLState) -> Mapping[str, Any]:
        """The clients' epochs and cumulative losses, and the clusters."""
        return pacing.insight(state.pace) | {"clusters": state.clusters.of(fed)}


def _nearest(state: AutoCFLState, sent: Models) -> Tensor:
    """The cluster whose mean last layer is nearest to that of each model, [model]."""
    assert state.heads is not None
    return torch.cdist(sent.part("head").double(), state.heads.double()).argmin(dim=1)
