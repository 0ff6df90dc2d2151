"""AutoCFL: clients find their clusters by voting over their last layers, once small ones have caught up.

Gong, Xing, Liu, Xi and Chen, "Adaptive client clustering for efficient federated learning over non-IID and imbalanced
data", IEEE Transactions on Big Data 2024. A few rounds of FedAvg, in which clients that lag behind train longer (see
`coterie.adjustment`); then clients are clustered once, without a number of clusters; then FedAvg inside every cluster.

| symbol | here |
|---|---|
| E_m, alpha | `State.pace.epochs` (it starts at `epochs`), `growth` |
| omega, omega_k | `State.model`, `State.models` |
| omega'_m, M | a client's last layer, the distances between them (Eq. 6) |
| tau_m, P_m1 | the widest gap in a sorted row of M, and who is before it: `grouping.vote` |

**Sends** a model each way, a number of epochs down and a loss up. **A client gives away** its model and its loss; from
models the server learns whose data is alike.

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
- The paper has no late clients. Here one trains from the model that clustering started from, and joins the cluster
  whose mean last layer is nearest to its own. So does one that was away when clients were clustered.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie import adjustment, evidence, grouping, mixing, sampling, serving
from coterie.adjustment import Pace, train_for
from coterie.errors import SettingsError
from coterie.federation import Federation
from coterie.grouping import Grouping
from coterie.method import Method, method
from coterie.serving import Served
from coterie.weights import Models
from coterie.wire import state

__all__ = ["AutoCFL"]


@state
class State:
    """One model and everybody's pace; once clients are clustered, also a model per cluster and who is where."""

    model: Models
    """The global model; after clustering the one that it started from, for clients that come late."""
    pace: Pace
    models: Models | None = None
    """The clusters' models, [cluster]."""
    labels: Tensor | None = None
    """Each client's cluster, [client]; -1 for those that have none yet."""
    heads: Tensor | None = None
    """The mean last layer of each cluster when clients were clustered, [cluster, p]."""


@method("autocfl")
class AutoCFL(Method):
    """Clusters by weighted voting over last layers, after lagging clients caught up. (Gong et al., IEEE TBD 2024)"""

    adjust: bool = True
    """Give clients that lag behind more epochs before clustering; without it all train alike (the paper's ablation)."""

    weighted: bool = True
    """Let votes count by samples; without it all the same (the paper's Table 5)."""

    growth: float = 0.5
    """alpha: how fast epochs grow (Section 5.1)."""

    capped: bool = False
    """Never add more than alpha |D_s*| / |D_m| epochs, which Eq. 8 does where that is below 1."""

    guard: float = 0.1
    """How wide the widest gap in a row of distances must be to count, as part of their median; 0 counts every gap."""

    stop: Literal["round", "variance"] = "round"
    """When to cluster: in `cluster_round`, or when the variance of cumulative losses rises, as printed."""

    cluster_round: int = 3
    """The round in which clients are clustered; with `stop="variance"` not used."""

    last_round: int = 6
    """With `stop="variance"`, the last round in which clients are clustered (the latest in the paper's Table 3)."""

    keep_epochs: bool = True
    """Go on with the adjusted epochs after clustering; else with as many as at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cluster_round", "last_round"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: at least 1")
        if self.growth < 0:
            raise SettingsError(f"growth={self.growth}: 0 or more")
        if self.guard < 0:
            raise SettingsError(f"guard={self.guard}: 0 or more")
        if self.steps is not None:
            raise SettingsError(f"steps={self.steps}: AutoCFL counts in epochs, which it adjusts; set epochs instead")

    def begin(self, fed: Federation) -> State:
        """A fresh model, and the same number of epochs for all."""
        return State(fed.new_model(), adjustment.begin(len(fed.names), self.epochs))

    def round(self, fed: Federation, state: State) -> State:
        """One model for all and a look at their losses; or, once there are clusters, one for each."""
        state = replace(state, pace=adjustment.grown(state.pace, len(fed.names), self.epochs))
        if state.models is None:
            return self._adjusting(fed, state)
        return self._clustered(fed, self._joined(fed, state))

    def _adjusting(self, fed: Federation, state: State) -> State:
        clients = fed.clients
        each = {"epochs": state.pace.epochs[clients]}
        replies = fed.run(train_for, clients, shared={"start": state.model}, each=each, local=self.local)
        pace = adjustment.observed(state.pace, replies.clients, replies.loss)
        if not self._ready(fed.round, pace):
            if self.adjust:
                pace = adjustment.adjusted(pace, fed.sizes, self.growth, self.capped)
            return State(replies.average(), pace)
        distance = evidence.weight_distance(replies.model, layer="last")
        found = grouping.vote(distance, replies.samples, weighted=self.weighted, guard=self.guard)
        models = mixing.by_samples(replies.samples, found.matrix) @ replies.model
        labels = torch.full((len(fed.names),), -1)
        labels[replies.clients] = torch.as_tensor(found.labels)
        return State(state.model, pace, models, labels, models.part("head"))

    def _ready(self, number: int, pace: Pace) -> bool:
        if self.stop == "round":
            return number >= self.cluster_round
        return adjustment.rises(pace) or number >= self.last_round

    def _joined(self, fed: Federation, state: State) -> State:
        """The clusters with those in it that came late, or were away when the others were clustered."""
        assert state.labels is not None
        assert state.heads is not None
        labels = F.pad(state.labels.clone(), (0, len(fed.names) - len(state.labels)), value=-1)
        new = fed.clients[(labels[fed.clients] < 0).numpy()]
        if len(new):
            each = {"epochs": torch.full((len(new),), float(self.epochs), dtype=torch.float64)}
            replies = fed.run(train_for, new, shared={"start": state.model}, each=each, local=self.local)
            if len(replies):
                away = torch.cdist(replies.model.part("head").double(), state.heads.double())
                labels[replies.clients] = away.argmin(dim=1).cpu()
        return replace(state, labels=labels)

    def _clustered(self, fed: Federation, state: State) -> State:
        """FedAvg inside every cluster, each with its own share of clients."""
        assert state.models is not None
        assert state.labels is not None
        cohort = self._cohort(fed, state.labels)
        epochs = state.pace.epochs[cohort] if self.keep_epochs else torch.full((len(cohort),), float(self.epochs))
        each = {"start": state.models[state.labels[cohort]], "epochs": epochs}
        replies = fed.run(train_for, cohort, each=each, local=self.local)
        return replace(state, models=replies.average(by=state.labels[replies.clients], otherwise=state.models))

    def _cohort(self, fed: Federation, labels: Tensor) -> np.ndarray:
        rng, members = fed.generator("sample"), Grouping.of(labels[fed.clients]).matrix
        clusters = [fed.clients[cluster] for cluster in members if cluster.any()]
        sizes = [sampling.cohort_size(self.participation, len(cluster)) for cluster in clusters]
        drawn = [sampling.uniform(cluster, size, rng) for cluster, size in zip(clusters, sizes, strict=True)]
        return np.sort(np.concatenate(drawn))

    def serve(self, fed: Federation, state: State) -> Served:
        """The model of each client's cluster; one that has none yet gets the model from before there were clusters."""
        if state.models is None or state.labels is None:
            return serving.one(state.model, len(fed.names))
        labels = F.pad(state.labels, (0, len(fed.names) - len(state.labels)), value=-1)
        alone = labels < 0
        if not alone[fed.clients].any():
            return serving.each(state.models, labels.clamp(min=0))
        models = Models.cat([state.models, state.model.expand(1)])
        return serving.each(models, torch.where(alone, len(state.models), labels))
