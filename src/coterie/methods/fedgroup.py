"""FedGroup: before any round, clients are grouped by the directions in which a little training leads them.

Duan, Liu, Ji, Liu, Liang, Chen and Tan, "FedGroup: efficient federated learning via decomposed similarity-based
clustering", ISPA 2021 (first as arXiv 2010.06870).

| symbol | here |
|---|---|
| m | `clusters`: how many groups there are, and of how many directions the measure is made |
| alpha | `founders`: alpha m clients train a little from the initial model, and found the groups |
| V | the m leading left singular vectors of the founders' updates |
| EDC | the Euclidean distance between two clients' cosines with V, by which k-means groups the founders |
| Delta w_g | the mean update of a group's founders: what a newcomer's first update is compared with |
| eta_G | `group_rate`: how much of the other groups' models, each at length 1, is mixed into a group's |
| mu | the pull of FedGrouProx, which is FedProx inside the groups |

A group begins at the plain mean of its founders' models. Who has founded none is a newcomer: when it is first asked, it
trains a little from the initial model too, joins the group with the smallest angle between their updates, and then
takes part. Who was never asked gets the plain mean of the groups' models, the paper's auxiliary global model.

What the authors' two programs do differently: the first (GrouProx) overwrites Delta w_g by what mixing between groups
changed, which is 0 without it, and so can place nobody later; the second (FlexCFL) keeps it, as is done here, and
trains 50 steps where the first trains one epoch. Both divide the mix by the sum of its weights. The method was read
from the authors' programs and public summaries, not from the paper's text.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program, train
from coterie.core.fields import Count, NonNegative, Positive
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing, sampling
from coterie.nets.stacks import Changes, Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining


@state
class FedGroupState:
    """The groups, and where their founders went."""

    clusters: Clusters
    directions: Changes | None = None
    """The mean update of each group's founders from the initial model, [group]; none before there are groups."""


@method("fedgroup")
class FedGroup(Method):
    """Groups by the directions of clients' first updates, and FedAvg inside them. (Duan et al., ISPA 2021)"""

    family = "clustered"
    sends = "a model each way, and once more before a client's first round"
    gives_away = "its trained model; from its first update the server learns which clients are alike"

    clusters: Count = 5
    """m: how many groups there are. 5 in the example of the authors' program."""

    founders: Count = 20
    """alpha: the groups are made of this many clients for each group, drawn at random, or of all if there are fewer.
    20 in the authors' programs."""

    pretrain_epochs: Positive = 1.0
    """How long clients train before they are grouped; one epoch, as in the authors' first program."""

    group_rate: NonNegative = 0.0
    """eta_G: how much other groups' models count in a group's own after each round. 0 keeps groups apart, as the
    authors' programs do if nobody says otherwise; their example has 0.01."""

    mu: NonNegative = 0.0
    """Strength of the pull to the group's model (FedGrouProx): clients lower F(w) + mu/2 |w - w_g|^2."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients of a group count by their number of samples, or all the same; founders always count the same."""

    def begin(self, fed: Federation) -> FedGroupState:
        """A fresh model, and nobody in a group."""
        return FedGroupState(Clusters(fed.new_model().expand(1), torch.full((len(fed.names),), -1)))

    def round(self, fed: Federation, state: FedGroupState) -> FedGroupState:
        """Place who is in no group yet, let every group do a round of FedAvg, and mix their models if asked."""
        cohort, state = fed.sample(self.participation), self._founded(fed, state)
        groups = self._joined(fed, state, cohort)
        cohort = cohort[(groups.of(fed)[cohort] >= 0).numpy()]
        replies = fed.run(train, cohort, each=groups.start(fed, cohort), local=self.local, pull=self.mu)
        groups = groups.averaged(fed, replies, self.weighting)
        if self.group_rate:
            groups = replace(groups, models=mixing.among(groups.models.norm(), self.group_rate) @ groups.models)
        return replace(state, clusters=groups)

    def _founded(self, fed: Federation, state: FedGroupState) -> FedGroupState:
        """The groups that some clients found in the first round, by k-means on their cosines with V."""
        if state.directions is not None:
            return state
        founders = sampling.uniform(fed.clients, self.founders * self.clusters, fed.generator("founders"))
        replies = self._pretrained(fed, fed.run, founders)
        cosines = evidence.decomposed_cosines(replies.model - fed.new_model(), self.clusters)
        found = grouping.kmeans(cosines, self.clusters, int(fed.generator("groups").integers(2**31)))
        groups = Clusters.found(fed, replies, found, "uniform")
        return FedGroupState(groups, groups.models - fed.new_model())

    def _joined(self, fed: Federation, state: FedGroupState, cohort: np.ndarray) -> Clusters:
        """The groups with those of a cohort that were in none."""
        groups, directions = state.clusters, state.directions
        assert directions is not None
        new = cohort[(groups.of(fed)[cohort] < 0).numpy()]
        replies = self._pretrained(fed, fed.ask if len(new) < len(cohort) else fed.run, new)
        if replies is None:
            return groups
        updates = Changes.cat([replies.model - fed.new_model(), directions])
        nearest = evidence.update_cosine(updates)[: len(replies), len(replies) :].argmax(axis=1)
        return groups.joined(fed, replies.clients, nearest)

    def _pretrained(self, fed: Federation, ask: Any, clients: np.ndarray) -> Any:
        """What clients send after a little training of the initial model."""
        return ask(pretrain, clients, shared=fed.new_model(), local=self.pretraining)

    @property
    def pretraining(self) -> LocalTraining:
        """How the initial model is trained before there are groups."""
        return replace(self.local, epochs=self.pretrain_epochs, steps=None)

    def serve(self, fed: Federation, state: FedGroupState) -> Served:
        """The model of each client's group; one that is in none gets the mean of the groups' models."""
        models = state.clusters.models
        return state.clusters.serve(fed, otherwise=(mixing.uniform(len(models)) @ models)[0])


@program(told={"local": "pretraining"}, gives={"model": MODEL})
def pretrain(clients: Clients, start: Models, local: LocalTraining) -> Outputs:
    """Train the initial model a little."""
    return {"model": clients.train(start, local).models}
