"""FLIS: clients belong together if their models predict alike on samples that the server holds.

Morafah, Vahidian, Wang and Lin, "FLIS: clustered federated learning via inference similarity for non-IID data
distribution", IEEE Open Journal of the Computer Society 2023 (first arXiv 2208.09754, 2022). FLIS (DC) is Algorithm 1
with Algorithm 2, FLIS (HC) is Algorithm 3; the similarity is that of Section 2.2.

| symbol | here |
|---|---|
| D^server | `fed.server`: training samples that no client has (`server_samples`; the paper holds 2500) |
| B_k | what client k's model predicts for them, hard (one-hot) or soft |
| A_ij | `evidence.inference_similarity`: for hard predictions the share of samples on which i and j agree |
| beta | `threshold` |
| T_t, theta_g,j | the clusters of a round and their models |

Before its first round HC lets every client train once from the initial model to be compared, which is charged.

Where we differ: A_ij has the inner product as its numerator, as in the authors' code. The printed norm of the
elementwise product would give a model a similarity of 1/sqrt(2500) with itself, below every threshold. A client picks
its cluster by its loss on validation data, where Algorithm 1 uses its test data. Equality passes the threshold, and a
client is always in its own cluster. HC cuts an average-linkage tree of 1 - A at 1 - beta, where the code uses
overlapping neighbourhoods; a cluster from which nobody takes part keeps its model. Clients that come later choose the
cluster that fits their data best.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, choose, program, train
from coterie.core.arrays import everywhere
from coterie.core.fields import within
from coterie.core.records import state
from coterie.moves import composing, grouping, mixing
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.fitting import Noted
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining

Agreement = Annotated[float, within("[0, 1]", "a share of agreement in [0, 1]; 0 is one cluster for all")]


@dataclass(frozen=True)
class FLIS(Method):
    """What FLIS (DC) and FLIS (HC) have in common."""

    family = "clustered"
    gives_away = "its trained model, and by what that predicts for the server's samples above all which labels it knows"

    threshold: Agreement = 0.5
    """beta: how much two models must agree. The paper finds 0.5 best on Fashion-MNIST, 0.3 on CIFAR-10 and SVHN (Fig.
    2). 0 is FedAvg of the cohort."""

    predictions: Literal["hard", "soft"] = "hard"
    """Models are compared by the labels they predict (as in the authors' code) or by probabilities."""

    select_on: Literal["validation", "train"] = "validation"
    """The data on which clients compare cluster models; a client without validation samples takes its training data."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "compares clients by predicted classes"

    @property
    def server_samples(self) -> int:
        """A hundred, with which small data can still do; the paper holds 2500."""
        return 100

    @property
    def chosen_on(self) -> str:
        """The data on which clients compare cluster models."""
        return self.select_on

    def similarity(self, fed: Federation, models: Models) -> np.ndarray:
        """A: how far models agree on the server's samples, [model, model]."""
        return composing.by_inference(fed.server.predict(models), self.predictions == "hard").similarity


@state
class NewestClusters:
    """The models of the newest clusters, [cluster]."""

    models: Models


@method("flis-dc")
class FLISDC(FLIS):
    """Overlapping clusters of clients whose models predict alike, new in every round. (Morafah et al., OJCS 2023)"""

    sends = "all cluster models to every client of the cohort, and one model back"

    merge: bool = True
    """Send clusters with the same members as one. Without, there is one per participant, as in the paper: the same
    result for more traffic."""

    def begin(self, fed: Federation) -> NewestClusters:
        """One fresh model, if the server has something to compare models on."""
        _ = fed.server
        return NewestClusters(fed.new_model().expand(1))

    def round(self, fed: Federation, state: NewestClusters) -> Noted:
        """Let the cohort train the clusters they choose, and form new ones around each of them."""
        cohort = fed.sample(self.participation)
        replies = fed.run(choose_and_train, cohort, shared=state.models, local=self.local, on=self.chosen_on)
        similarity = self.similarity(fed, replies.model)
        around = grouping.neighbourhoods(similarity, self.threshold)
        weights = mixing.by_samples(replies.samples, around.distinct() if self.merge else around)
        found = {"similarity": similarity, "mixing": mixing.by_samples(replies.samples, around)}
        everybody = {name: everywhere(matrix, replies.clients, len(fed.names)) for name, matrix in found.items()}
        return Noted(NewestClusters(weights @ replies.model), everybody)

    def serve(self, fed: Federation, state: NewestClusters) -> serving.Served:
        """To each client the cluster that fits its data best, whether it took part or not."""
        return serving.best_fit(state.models, on=self.select_on)


@state
class FixedClusters:
    """The models of all clusters, [cluster], and in which each client is, [client]; -1 before it is known."""

    models: Models
    labels: Tensor


@method("flis-hc")
class FLISHC(FLIS):
    """Disjoint clusters of clients whose models predict alike, found once. (Morafah et al., OJCS 2023)"""

    sends = "a model each way, and once more before the first round"

    threshold: Agreement = 0.75
    """beta: how much the models of a cluster must agree, by the linkage. The paper gives none for HC; label pairs are
    told apart from about 0.7 to 0.85 on. 0 is FedAvg."""

    linkage: Literal["average", "complete", "single"] = "average"
    """What agreement between clusters means: on average, of the least alike, or of the most alike clients."""

    def begin(self, fed: Federation) -> Noted:
        """Let everybody train once from the initial model, and group them by what their models predict."""
        _ = fed.server
        model = fed.new_model()
        replies = fed.run(train, shared=model, local=self.local)
        similarity = self.similarity(fed, replies.model)
        groups = grouping.linkage(1 - similarity, threshold=1 - self.threshold, method=self.linkage)
        labels = fed.updated(torch.empty(0, dtype=torch.int64), replies.clients, groups.labels, otherwise=-1)
        found = {"similarity": everywhere(similarity, replies.clients, len(fed.names))}
        return Noted(FixedClusters(model.expand(len(groups)), labels), found)

    def round(self, fed: Federation, state: FixedClusters) -> FixedClusters:
        """FedAvg inside every cluster, among those of the cohort."""
        labels = self.placed(fed, state)
        cohort = np.setdiff1d(fed.sample(self.participation), fed.unplaced(labels))
        if not len(cohort):
            return replace(state, labels=labels)
        replies = fed.run(train, cohort, each=state.models[labels[cohort]], local=self.local)
        models = replies.average(by=labels[replies.clients], otherwise=state.models)
        return FixedClusters(models, labels)

    def placed(self, fed: Federation, state: FixedClusters) -> Tensor:
        """The cluster of every client, after those that are new have chosen the best."""
        labels = fed.grown(state.labels, -1)
        new = fed.unplaced(labels)
        if len(new) and fed.round > 1:  # before the first round is over all clusters have the same model
            replies = fed.run(choose, new, shared=state.models, on=self.chosen_on)
            labels = fed.updated(labels, replies.clients, replies.choice)
        return labels

    def serve(self, fed: Federation, state: FixedClusters) -> serving.Served:
        """To each client its cluster's model."""
        return serving.each(state.models, state.labels.clamp(min=0))

    def insight(self, fed: Federation, state: FixedClusters) -> Mapping[str, Any]:
        """The clusters."""
        return {"clusters": state.labels}


@program(told={"on": "chosen_on"}, gives={"model": MODEL})
def choose_and_train(clients: Clients, models: Models, local: LocalTraining, on: str) -> Outputs:
    """FLIS (DC)'s client: train the cluster model that fits best."""
    start = models.chosen(clients.best_fit(models, on))
    return {"model": clients.train(start, local).models}
