"""FedProto: no model travels, only prototypes, the mean features of each class, to which clients pull their own.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: federated prototype learning across heterogeneous clients", AAAI
2022, Algorithm 1.

| symbol | here |
|---|---|
| f_i(x) | the features that the last layer of a client's own model gets |
| C_i^(j) | the mean of f_i over the client's samples of class j, after training (Eq. 3) |
| the mean of C_i^(j) over clients that have class j | `prototypes`: what the server sends |
| L_S + lambda L_R (Eq. 7) | what clients lower |
| argmin_j of the distance of f_i(x) to the prototype of j | how they predict (Eq. 4), with `predicts=prototypes` |

L_R is, as in the authors' code, the mean over samples and features of the squared difference to the prototype of the
sample's class; the paper sums over classes the distances of mean features. Nearest prototypes are a linear last layer:
-|f - C|^2 is 2 f.C - |C|^2 but for what is the same for all classes, and so the logits are scaled as in prototypical
networks (Snell et al., 2017). A prototype of which nobody tells in a round stays; a class without any is never
predicted. In the paper clients may have nets of their own, if features are equally many; here all have the same net.

What is wrong there: Eq. 6 divides a weighted mean once more by the number of clients, which shrinks prototypes; the
code takes the plain mean, here `weighting=uniform`. The code averages features that it sees while it trains, under the
models of all its steps; it looks for the nearest prototype only among classes that the client has, and the accuracies
that it prints add up what it counted before, for other clients and for heads.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.core.fields import NonNegative
from coterie.core.records import state
from coterie.moves import mixing
from coterie.nets.net import Net
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel


@state
class FedProtoState:
    """The prototypes, [class, feature], and which classes have one, [class]."""

    prototypes: Tensor
    known: Tensor


@method("fedproto")
class FedProto(Method):
    """Clients train alone, pulled to the mean features that each class has at all of them. (Tan et al., AAAI 2022)"""

    family = "personal"
    sends = "the mean features of each class each way"
    gives_away = "which labels it has, how many of each unless all count the same, and the mean features of each"

    strength: NonNegative = 1.0
    """lambda: how strongly features are pulled to prototypes; 1 in the authors' code. 0 is training alone."""

    predicts: Literal["prototypes", "head"] = "prototypes"
    """Clients predict the class with the nearest prototype, as in the paper, or with their own last layer. With
    `prior=own` they add what they know of their labels to either."""

    weighting: Literal["samples", "uniform"] = "samples"
    """A client counts in the prototype of a class by its samples of it, or all that have the class count the same."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "takes the mean features of each class"

    def check(self, fed: Federation) -> None:
        """The net must end in a linear layer, one with biases if prototypes are to take its place."""
        super().check(fed)
        if fed.net.features and self.predicts == "prototypes" and len(fed.net.head.names) < 2:
            raise SettingsError(f"net {fed.net.name}: its last layer has no biases; use predicts=head")

    def begin(self, fed: Federation) -> FedProtoState:
        """Nobody has sent a prototype."""
        classes = fed.net.classes
        none = torch.zeros(classes, fed.net.features, dtype=fed.net.dtype)
        return FedProtoState(none, torch.zeros(classes, dtype=torch.bool))

    def round(self, fed: Federation, state: FedProtoState) -> FedProtoState:
        """Send the prototypes out, and take the means of what comes back."""
        cohort, pull = fed.sample(self.participation), self.strength * state.known.to(state.prototypes)
        told = {"prototypes": state.prototypes, "pull": pull}
        replies = fed.run(train_to_prototypes, cohort, shared=told, local=self.local, weighting=self.weighting)
        counts = replies.label_counts.cpu()
        prototypes = mixing.by_class(replies.means.cpu(), counts, state.prototypes)
        return FedProtoState(prototypes, state.known | (counts > 0).any(dim=0))

    def serve(self, fed: Federation, state: FedProtoState) -> serving.Served:
        """Each client's own model, in which prototypes take the place of the last layer if asked."""
        if self.predicts == "head":
            return serving.kept("model")
        weights, biases = 2 * state.prototypes, -state.prototypes.square().sum(dim=1)
        biases = torch.where(state.known, biases, -1e6)
        tensors = dict(zip(fed.net.head.names, (weights, biases), strict=True))
        return serving.kept("model", "head", fed.net.head.flatten(tensors))


def _described(net: Net, asked: Mapping[str, Any]) -> Declared:
    return {"means": Output(float, (net.classes, net.features)), "label_counts": Output(int, (net.classes,), least=0)}


@program(gives=_described)
def train_to_prototypes(
    clients: Clients, prototypes: Tensor, pull: Tensor, local: LocalTraining, weighting: str
) -> Outputs:
    """Train the client's own model, pulled to prototypes, keep it, and tell the mean features that it gives."""
    own = clients.state("model", otherwise=clients.initial())
    carried = {"prototypes": prototypes, "pull": pull}
    trained = clients.train(own, local, objective=near_prototypes, carried=carried).models
    clients.keep(model=trained)
    means, counts = clients.class_means(trained)[0], clients.label_counts()
    return {"means": means.to(prototypes), "label_counts": counts if weighting == "samples" else (counts > 0).long()}


def near_prototypes(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The task's loss, and how far features are from the prototypes of their classes."""
    features, outputs = model.with_features(batch)
    away = (features - model.carried["prototypes"][batch.y]).square().mean(dim=1)
    return batch.mean(model.net.task.losses(outputs, batch.y) + model.carried["pull"][batch.y] * away)
