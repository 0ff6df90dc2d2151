"""FedPAC: one body for all whose features clients pull to common centroids, and heads that they mix as it pays.

Xu, Tong and Huang, "Personalized federated learning with feature alignment and classifier collaboration", ICLR 2023,
Algorithm 1.

| symbol | here |
|---|---|
| theta, phi_i | the body, which is averaged, and a client's head, the last layer, which it keeps |
| c_k | `centroids`: the mean features of class k over all clients' samples, after training |
| lambda | `strength`: clients lower the loss + lambda times the mean squared difference of features to c_k |
| p_i(k), mu_ik | a client's share of class k, and its mean features under the body that it was sent |
| V_i | (sum_k p_i(k) E[f^2 given k] - sum_k p_i(k)^2 mu_ik^2) / n_i: the variance of all p_i(k) mu_ik together |
| alpha_i | how client i mixes the heads, phi_i = sum_j alpha_ij phi_j |

A client trains its head with the body frozen, then the body with the head frozen, pulled to the centroids: FedRep's
turns with FedProto's pull. For each client the server then looks for the weights, at least 0 and with sum 1, that lower

    sum_j alpha_ij^2 V_j + sum_k |sum_j alpha_ij (p_i(k) mu_ik - p_j(k) mu_jk)|^2,

the variance of a mixed head and its bias: a quadratic program, that of the shortest vector among mixes. The client gets
the mixed head at once and begins with it the next time; those that are absent keep theirs. Clients predict with the
newest body under their own head.

Of the paper no more than its abstract and introduction were at hand; this is its authors' code. That drops eigenvalues
of the program below 0.01 if rounding makes one negative, drops weights below 0.001, and for a class without a centroid
pulls to the client's own mean, all of which is left out here. PFLlib averages centroids without weights, and takes a
client's head by its number among all where those of the cohort are listed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.programs import NUMBER, Declared, Output, Outputs, program
from coterie.core.fields import NonNegative, Positive
from coterie.core.records import state
from coterie.methods.fedproto import near_prototypes
from coterie.moves import mixing
from coterie.nets.net import Net
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedPACState:
    """The body, packed with its running statistics; centroids [class, feature], and which classes have one, [class]."""

    body: Tensor
    centroids: Tensor
    known: Tensor


@method("fedpac")
class FedPAC(Method):
    """A shared body with aligned features, and heads that clients mix as it pays for each. (Xu et al., ICLR 2023)"""

    family = "personal"
    sends = "a model each way, in two parts; mean features of each class each way, and two statistics of them up"
    gives_away = "its trained model, how many of each label it has, and the mean features of each"

    strength: NonNegative = 1.0
    """lambda: how strongly features are pulled to centroids; 1 in the authors' code."""

    collaboration: bool = True
    """Whether heads are mixed. Without it, and with `strength` 0, it is FedRep."""

    head_epochs: NonNegative = 1.0
    """Passes over the client's own data for the head, before `epochs` (or `steps`) for the body; the authors'."""

    head_rate: Positive | None = None
    """Learning rate of the head; by default the body's. The authors' code has 0.1, and 0.01 for the body."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count in the body by their number of samples, or all the same."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "takes the mean features of each class"

    @property
    def alone(self) -> LocalTraining:
        """How heads are trained."""
        return replace(self.local, epochs=self.head_epochs, steps=None, rate=self.head_rate or self.rate)

    def begin(self, fed: Federation) -> FedPACState:
        """The body of a fresh model, which clients make themselves, and no centroid."""
        classes, body = fed.net.classes, fed.new_model().packed("body")
        return FedPACState(
            body, body.new_zeros(classes, fed.net.features).cpu(), torch.zeros(classes, dtype=torch.bool)
        )

    def round(self, fed: Federation, state: FedPACState) -> FedPACState:
        """Let the cohort train, average bodies and centroids, and give every client its mix of heads."""
        cohort = fed.sample(self.participation)
        pull = self.strength * state.known.to(state.centroids)
        told = {"body": state.body, "centroids": state.centroids, "pull": pull}
        replies = fed.run(train_aligned, cohort, shared=told, alone=self.alone, local=self.local)
        if self.collaboration:
            weights = mixing.collaboration(replies.shares.cpu().double(), replies.variance.cpu().double())
            fed.ask(take_head, replies.clients, each={"head": weights.to(replies.head) @ replies.head})
        body = replies.weights(self.weighting).to(replies.body) @ replies.body
        counts = replies.label_counts.cpu()
        centroids = mixing.by_class(replies.means.cpu(), counts, state.centroids)
        return FedPACState(body, centroids, state.known | (counts > 0).any(dim=0))

    def serve(self, fed: Federation, state: FedPACState) -> serving.Served:
        """The newest body under each client's own head."""
        return serving.kept("model", "body", state.body)


def _described(net: Net, asked: Mapping[str, Any]) -> Declared:
    part, features = Output(float, (None,)), Output(float, (net.classes, net.features))
    told = {"body": part, "head": part, "means": features, "shares": features, "variance": NUMBER}
    return told | {"label_counts": Output(int, (net.classes,), least=0)}


@program(gives=_described)
def train_aligned(
    clients: Clients, body: Tensor, centroids: Tensor, pull: Tensor, alone: LocalTraining, local: LocalTraining
) -> Outputs:
    """Describe the features that the body gives, train the head, then the body, and describe them again."""
    model = clients.state("model", otherwise=clients.initial()).patched("body", body)
    counts = clients.label_counts().cpu()
    chances = counts.double() / counts.sum(dim=1, keepdim=True)
    means, squares = clients.class_means(model)
    shares = chances.unsqueeze(2) * means
    variance = ((chances * squares).sum(dim=1) - shares.square().sum(dim=(1, 2))) / counts.sum(dim=1)
    model = clients.train(model, alone, trains="head").models
    carried = {"prototypes": centroids, "pull": pull}
    model = clients.train(model, local, trains="body", objective=near_prototypes, carried=carried).models
    clients.keep(model=model)
    parts = {"body": model.packed("body"), "head": model.packed("head"), "label_counts": counts}
    told = {"means": clients.class_means(model)[0], "shares": shares, "variance": variance}
    return parts | {name: value.to(body) for name, value in told.items()}


@program(gives={})
def take_head(clients: Clients, head: Tensor) -> None:
    """Put a head into the client's own model."""
    clients.keep(model=clients.state("model").patched("head", head))
