"""StoCFL: clients found clusters as they come, which merge where data pulls a fixed model in the same direction.

Zeng, Hu, Liu, Yu, Wang and Xu, "Stochastic clustered federated learning", arXiv 2303.00897, 2023.

| symbol | here |
|---|---|
| Psi(D_i) | the distribution extractor: where a little training on a client's data leads the anchor, told once |
| phi | the anchor, a model that is never trained: the initial one, which clients make for themselves |
| tau | `threshold`: clusters whose directions have at least this cosine become one |
| omega | the global model, exactly FedAvg's |
| theta_k | a cluster's model: its members lower F_i(theta) + lambda/2 times the squared distance to omega |
| lambda | `mu` |

A client that comes for the first time tells its direction, and is a cluster of its own that begins at omega; the
direction of a cluster is the mean of its members'. Then all clusters that are linked by cosines of tau or more are
united, once in a round; the model of the one with most members goes on, of equals the oldest. Clusters are never split.
A client that was not asked yet gets omega.

The authors' program compares only clusters of which somebody is in the cohort, by the mean of those members alone; the
server knows them all, and compares them all, which is the same with full participation. If the older of two clusters of
the same size has no model yet, the program forgets the other's. Its clients count all the same. One step over all
samples, its default on shifted labels, makes Psi a gradient; elsewhere it trains for epochs. The method was read from
this program and from public summaries, not from the paper's text.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch

from coterie.clients.clients import Clients
from coterie.clients.programs import MODEL, Output, Outputs, program
from coterie.core.fields import NonNegative, Positive, at_least
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing
from coterie.nets.stacks import Changes, Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining


@state
class StoCFLState:
    """The global model, and the clusters that there are so far."""

    model: Models
    """omega."""
    clusters: Clusters
    """theta_k, and who is where; no clusters at first."""
    directions: Changes
    """The mean of its members' Psi, [cluster]."""


@method("stocfl")
class StoCFL(Method):
    """Clusters that clients found as they come, and that merge if their data is alike. (Zeng et al., arXiv 2023)"""

    family = "clustered"
    sends = "two models each way, its cluster's and the global one, and once a change of a model's size"
    gives_away = (
        "two trained models, and a gradient of all its data, by which the server learns which clients are alike"
    )

    threshold: Annotated[float, at_least(-1)] = 0.5
    """tau: clusters with at least this cosine are united. -1 unites all, above 1 nobody is united. The authors' program
    has 0.3, and its examples 0.2 and 0.65: it depends on the net and on how many samples a client has. With 12 clients
    of digits and the net `mlp`, 0.5 kept IID clients together and told two rotations or swapped labels apart, where 0.3
    made one cluster of rotations; with 20 clients and the net `cnn` swapped labels were 10 clusters at 0.5, and
    one at 0.3."""

    mu: NonNegative = 0.05
    """lambda: strength of the pull of a cluster's model to the global one; the authors' default. 0 trains it alone."""

    anchor_epochs: Positive = 1.0
    """Passes over its data by which a client finds its direction; they do not count as steps of training. The authors'
    examples have 1 to 20."""

    anchor_batch: Annotated[int, at_least(0, "at least 1, or 0 for all samples at once")] = 0
    """Samples in a step of these passes. All at once in one pass is a gradient."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """Clients count all the same, as in the authors' program, or by their number of samples."""

    def begin(self, fed: Federation) -> StoCFLState:
        """A fresh model, and no clusters."""
        model = fed.new_model()
        nobody = torch.full((len(fed.names),), -1)
        return StoCFLState(model, Clusters(model.expand(0), nobody), model.expand(0).zeros())

    def round(self, fed: Federation, state: StoCFLState) -> StoCFLState:
        """Let newcomers found clusters, unite those that are alike, and train the global and the clusters' models."""
        cohort = fed.sample(self.participation)
        state = self._united(self._founded(fed, state, cohort))
        labels = state.clusters.labels
        cohort = cohort[(labels[cohort] >= 0).numpy()]
        sent = {"cluster": state.clusters.models[labels[cohort]]}
        replies = fed.run(train_levels, cohort, shared=state.model, each=sent, local=self.local, mu=self.mu)
        by, otherwise = labels[replies.clients], state.clusters.models
        models = replies.average(self.weighting, of="cluster", by=by, otherwise=otherwise)
        return replace(state, model=replies.average(self.weighting), clusters=Clusters(models, labels))

    @property
    def passes(self) -> LocalTraining:
        """How the anchor is trained."""
        return LocalTraining(epochs=self.anchor_epochs, batch=self.anchor_batch, rate=self.rate, prior=self.prior)

    def _founded(self, fed: Federation, state: StoCFLState, cohort: np.ndarray) -> StoCFLState:
        """The clusters, with one more for each client of the cohort that was in none."""
        clusters = replace(state.clusters, labels=state.clusters.of(fed))
        new = cohort[(clusters.labels[cohort] < 0).numpy()]
        replies = (fed.ask if len(new) < len(cohort) else fed.run)(find_direction, new, local=self.passes)
        if replies is None:
            return replace(state, clusters=clusters)
        clusters = clusters.joined(fed, replies.clients, torch.arange(len(replies)) + len(clusters.models))
        models = Models.cat([clusters.models, state.model.expand(len(replies))])
        directions = Changes.cat([state.directions, replies.direction])
        return StoCFLState(state.model, Clusters(models, clusters.labels), directions)

    def _united(self, state: StoCFLState) -> StoCFLState:
        """The clusters after those were united that are linked by cosines of tau or more."""
        models, labels = state.clusters.models, state.clusters.labels
        if self.threshold > 1:
            return state
        apart = 1 - evidence.update_cosine(state.directions)
        found = grouping.linkage(apart, 1 - self.threshold, method="single")
        sizes = torch.bincount(labels[labels >= 0], minlength=len(models))
        largest = torch.from_numpy((found.matrix * sizes.numpy()).argmax(axis=1))
        labels = torch.where(labels < 0, -1, torch.from_numpy(found.labels)[labels])
        directions = mixing.by_samples(sizes, found) @ state.directions
        return replace(state, clusters=Clusters(models[largest], labels), directions=directions)

    def serve(self, fed: Federation, state: StoCFLState) -> Served:
        """The model of each client's cluster; one that is in none gets the global model."""
        return state.clusters.serve(fed, otherwise=state.model)


@program(told={"local": "passes"}, gives={"direction": Output(Changes)})
def find_direction(clients: Clients, local: LocalTraining) -> Outputs:
    """Psi: the change of the anchor by a little training, of which nothing stays."""
    anchor = clients.initial()
    return {"direction": clients.adapt(anchor, local) - anchor}


@program(gives={"model": MODEL, "cluster": MODEL})
def train_levels(clients: Clients, model: Models, cluster: Models, local: LocalTraining, mu: float) -> Outputs:
    """StoCFL's client: train the global model, and its cluster's, pulled to the global one that was sent."""
    trained = clients.train(model, local).models
    return {"model": trained, "cluster": clients.train(cluster, local, pull=mu, anchor=model).models}
