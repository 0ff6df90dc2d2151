"""CAFA: clients count by how many others have data like theirs, and by how well their models do with everybody else.

Zhang, Wang, Li, Cardiff and Ranaweera, "Optimizing federated learning on non-IID data with clustering and model
sharing", EuCNC 2025. Two stages weigh the clients of one global model. CBCC clusters them once by their labels: who is
in a large cluster counts for more. ABFA lets the selected clients of a round share their models: each tests all of them
on its validation data, and who is right more often counts for more.

| symbol | here |
|---|---|
| v_i | `CAFAState.counts` over their sum: the shares of classes (Eqs. 1 and 2) |
| k, C_j | the clusters of k-means, k by the silhouette or `clusters` (Eqs. 3 to 6): `CAFAState.labels` |
| C_IID | the largest cluster (Eq. 7), which passes for IID; it is reported, and enters no weight |
| w^K, w^A | the share of a client's cluster (Eq. 8), its model's share of accuracy (Eqs. 9 and 10) |
| S_j | a client's validation samples |

Where the paper is open:
- Section III-B tests a model on the other clients; Algorithm 1 and the authors' code include its own. So do we.
- Every member of a cluster gets the whole cluster's share (Eq. 8), so clusters count by the square of their size.
  Eq. 11 sums over all clients; only the selected ones have a model. Numbers of samples count nowhere.
- Where no model is ever right, all have the same accuracy weight; clients that have no validation samples do not judge.
- Clients that come late are asked for their histogram, and all are clustered again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.letters import Letter, one_each
from coterie.clients.programs import COUNT, MODEL, SHARE, Outputs, evaluate, label_histogram, program, train
from coterie.core.fields import Count
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing
from coterie.moves.grouping import Grouping, Silhouette
from coterie.nets.stacks import Models
from coterie.server.federation import Federation, Replies
from coterie.server.fitting import Noted
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class CAFAState:
    """The global model, and what CBCC knows of clients, by their positions."""

    model: Models
    counts: Tensor
    """How often each client has each label, [client, class]; all 0 for those not asked yet."""
    labels: Tensor
    """Each client's cluster, [client]; -1 for those that are in none yet."""


@method("cafa")
class CAFA(Method):
    """One model, clients weighted by label clusters and by accuracy on each other's data. (Zhang et al., EuCNC 2025)"""

    family = "global"
    sends = "a label histogram up, once; in a round of m clients m models down, m up and m (m - 1) between them"
    gives_away = "its label histogram to the server, and its trained model to the server and every client of the round"

    stages: Literal["both", "cbcc", "abfa"] = "both"
    """What weighs clients: their cluster (`cbcc`), their model's accuracy (`abfa`), or both, which is CAFA."""

    clusters: Count | None = None
    """How many clusters there are; by default the silhouette decides. The authors' code has 6."""

    sharing: Literal["peer", "server"] = "peer"
    """How models get from client to client: as letters, as in the paper, or from the server, which has them anyway.
    That saves the way up, and in a simulation of m clients the memory of m x m models. The result is the same."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "weighs clients by their shares of classes and by accuracy"

    def begin(self, fed: Federation) -> CAFAState:
        """A fresh model; nobody has been asked for labels."""
        nobody = torch.empty(0, fed.net.classes, dtype=torch.int64)
        return CAFAState(fed.new_model(), fed.grown(nobody), torch.full((len(fed.names),), -1))

    def round(self, fed: Federation, state: CAFAState) -> Noted:
        """Cluster whoever is new, let the cohort train and judge each other's models, and mix them."""
        findings: dict[str, Any] = {}
        if self.stages != "abfa":
            state, findings = self._classified(fed, state)
        replies = self._trained(fed, state, self._cohort(fed, state))
        weights = mixing.cafa_weights(self._cluster_sizes(state, replies), *self._judged(fed, replies))
        findings["weights"] = fed.updated(weights.new_zeros(0), replies.clients, weights[0])
        return Noted(replace(state, model=(weights @ replies.model)[0]), findings)  # Eq. 11

    def _classified(self, fed: Federation, state: CAFAState) -> tuple[CAFAState, dict[str, Any]]:
        """CBCC: the clusters, found anew if there is a new client (Section III-A), and what figures show of them."""
        counts, labels = fed.grown(state.counts), fed.grown(state.labels, -1)
        replies = fed.ask(label_histogram, fed.unplaced(labels))
        if replies is None:
            return replace(state, counts=counts, labels=labels), {}
        counts = fed.updated(counts, replies.clients, replies.label_histogram)
        known = (counts.sum(dim=1) > 0).nonzero()[:, 0].numpy()
        shares = evidence.label_shares(counts[known])
        found = self._clusters(shares, fed.seed)
        labels = fed.updated(labels, known, found.labels)
        largest = grouping.largest_group(found.labels, shares).matrix[0]
        findings = {"iid": fed.updated(torch.zeros(0, dtype=torch.bool), known, largest)}
        if isinstance(found, Silhouette):
            findings["silhouette"] = list(enumerate(found.scores.values(), start=2))
        return replace(state, counts=counts, labels=labels), findings

    def _clusters(self, shares: np.ndarray, seed: int) -> Grouping:
        if self.clusters is None:
            return grouping.kmeans_silhouette(shares, seed=seed)
        return grouping.kmeans(shares, self.clusters, seed=seed)

    def _cohort(self, fed: Federation, state: CAFAState) -> np.ndarray:
        """A share of the clients that are there and, where clusters count, in a cluster."""
        there = fed.clients if self.stages == "abfa" else np.setdiff1d(fed.clients, fed.unplaced(state.labels))
        return fed.sample(self.participation, among=there)

    def _trained(self, fed: Federation, state: CAFAState, cohort: np.ndarray) -> Replies:
        if self.stages == "cbcc" or self.sharing == "server":
            return fed.run(train, cohort, shared=state.model, local=self.local)
        peers = [fed.names[client] for client in cohort]
        return fed.run(train_and_share, cohort, shared=state.model, local=self.local, peers=peers)

    def _cluster_sizes(self, state: CAFAState, replies: Replies) -> Tensor:
        """The size of the cluster of each client that answered, [client]; 1 for all where clusters do not count."""
        if self.stages == "abfa":
            return torch.ones(len(replies))
        return torch.bincount(state.labels[state.labels >= 0])[state.labels[replies.clients]]

    def _judged(self, fed: Federation, replies: Replies) -> tuple[Tensor, Tensor]:
        """ABFA: how every model does with every client [model, client], and the clients' validation samples [client].

        Who has dropped out since it trained judges nobody.
        """
        count = len(replies)
        if self.stages == "cbcc" or count == 1:
            return torch.ones(count, count), torch.ones(count)
        if self.sharing == "server":
            judges = fed.run(evaluate, replies.clients, shared=replies.model, on="validation")
        else:
            senders = [fed.names[client] for client in replies.clients]
            judges = fed.run(judge, replies.clients, letters=replies.letters, senders=senders)
        rows = np.searchsorted(replies.clients, judges.clients)
        accuracy = torch.zeros(count, count, dtype=torch.float64)
        accuracy[:, rows] = judges.accuracy.cpu().T
        if self.sharing == "peer":
            accuracy[rows, rows] = replies.accuracy.cpu()[rows]
        samples = torch.zeros(count, dtype=torch.int64)
        samples[rows] = judges.evaluated.cpu()
        return accuracy, samples

    def insight(self, fed: Federation, state: CAFAState) -> Mapping[str, Any]:
        """The clusters, and the shares of labels that they rest on."""
        if self.stages == "abfa":
            return {}
        return {"label_shares": state.counts / state.counts.sum(dim=1, keepdim=True), "clusters": state.labels}


@program(letters=True, gives={"model": MODEL, "accuracy": SHARE})
def train_and_share(clients: Clients, start: Models, local: LocalTraining, peers: Sequence[str]) -> Outputs:
    """Train, test the model on one's own validation data, and write it to every other client of the round."""
    models = clients.train(start, local).models
    for row, name in enumerate(clients.names):
        for peer in peers:
            if peer != name:
                clients.write(row, peer, "model", parameters=models.parameters[row], buffers=models.buffers[row])
    return {"model": models, "accuracy": clients.evaluate(models, "validation").accuracy.nan_to_num(0)}


@program(gives=lambda net, asked: {"accuracy": SHARE.of_each(asked["senders"]), "evaluated": COUNT})
def judge(clients: Clients, senders: Sequence[str]) -> Outputs:
    """The accuracy of the models that these clients have written, [client, sender], on one's own validation data.

    Nobody writes to itself: its own place stays 0.
    """
    place, net = {name: number for number, name in enumerate(senders)}, clients.net
    like = {"parameters": (net.dtype, net.parameters.total), "buffers": (net.dtype, net.buffers.total)}
    letters = [one_each(clients.letters(row, "model", **like), senders) for row in range(len(clients))]
    accuracy = torch.zeros(len(clients), len(senders), dtype=torch.float64)
    if not any(letters):  # nobody's model has arrived, so there is nothing to judge
        return {"accuracy": accuracy, "evaluated": torch.zeros(len(clients), dtype=torch.int64)}
    models = Models.stack([Models.stack([_model(clients, letter) for letter in received]) for received in letters])
    judged = clients.evaluate(models, "validation")
    for row, received in enumerate(letters):
        accuracy[row, [place[letter.sender] for letter in received]] = judged.accuracy[row].nan_to_num(0).cpu()
    return {"accuracy": accuracy, "evaluated": judged.samples}


def _model(clients: Clients, letter: Letter) -> Models:
    return Models(clients.net, letter.content["parameters"], letter.content["buffers"]).to(clients.net.device)
