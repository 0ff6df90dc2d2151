"""FedRoD: one model whose clients all aim at the same, and on top of its logits a head of its own for every client.

Chen and Chao, "On bridging generic and personalized federated learning for image classification", ICLR 2022.

| symbol | here |
|---|---|
| f(x), h_g | the features before the last layer, and that layer, the generic head: the model that FedAvg averages |
| h_p | the personal head, a linear layer of the same shape, which a client keeps; nobody else ever sees it |
| n_c | how many samples of class c a client has |

A client lowers two risks at once. The model lowers a balanced one, the cross-entropy of h_g(f(x)) + gamma log n_c
(balanced softmax: Ren et al., NeurIPS 2020), in which it does not matter how frequent labels are at this client: so
clients with other labels do not pull elsewhere. The personal head lowers the cross-entropy of h_g(f(x)) + h_p(f(x)) as
it is, and moves nothing but itself. Clients predict with that sum under the newest model; two linear heads add up to
one, so it is a model of the same net.

Personal heads begin at zero, so a client that has not taken part predicts with the generic model. A class of which a
client has no sample is left out of its balanced risk, which is what log 0 means. The paper's second form, in which a
network makes personal heads out of clients' shares of labels, is not here.

Of the paper no more than the abstract was at hand, and of its authors no code: this is as PFLlib and fluke have it, but
for heads that there begin as h_p = h_g, so that first predictions have twice the logits. FL-bench never adds h_g to h_p
and lets the personal risk move the features. So does FLGo, whose balanced risk is the label's probability instead of
its negative log.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.core.fields import NonNegative
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel


@method("fedrod")
class FedRoD(FedAvg):
    """A model trained by a balanced risk, and a personal head on top of its logits. (Chen and Chao, ICLR 2022)"""

    family = "personal"
    gives_away = "its trained model; its head stays with it"

    gamma: NonNegative = 1.0
    """How far the balanced risk is balanced: 1 is balanced softmax, as in public code. With 0 the model is FedAvg's, if
    every client has every label."""

    predicts: Literal["personal", "generic"] = "personal"
    """What clients predict with: the model and their own head, or the model alone."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "balances by counts of labels"

    def check(self, fed: Federation) -> None:
        """Balancing is of the softmax, and is done once; the head is linear."""
        super().check(fed)
        if fed.net.task.own_loss:
            raise SettingsError(f"loss={fed.net.task.own_loss}: fedrod balances the cross-entropy")
        if self.prior == "own":
            raise SettingsError("prior=own: fedrod's model is trained without priors anyway; use prior=learned")
        fed.net.features  # noqa: B018

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients train both heads."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_both_heads, cohort, shared=state.model, local=self.local, gamma=self.gamma)
        return self.step(state, replies)

    def serve(self, fed: Federation, state: FedAvgState) -> Served:
        """The one model, with the client's own head added to its head if asked."""
        served = super().serve(fed, state)
        return served if self.predicts == "generic" else served.plus("head", "personal_head")


@program(gives={"model": MODEL})
def train_both_heads(clients: Clients, start: Models, local: LocalTraining, gamma: float) -> Outputs:
    """Train the model by the balanced risk and the personal head by the client's own; keep the head."""
    counts = clients.label_counts()
    balance = torch.where(counts > 0, gamma * counts.double().log(), -torch.inf)
    own = clients.state("personal_head", otherwise=torch.zeros_like(start.part("head")))
    beside = {"personal_head": own}
    trained = clients.train(start, local, objective=both_risks, beside=beside, carried={"balance": balance})
    clients.keep(personal_head=trained.beside["personal_head"])
    return {"model": trained.models}


def both_risks(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The balanced risk of the generic logits, and the plain one of the personal ones, which reaches nothing else."""
    features, generic = model.with_features(batch)
    head = model.net.head.views(model.beside["personal_head"])
    personal = generic.detach() + linear(features.detach(), *head.values())
    losses = model.net.task.losses
    return batch.mean(losses(generic + model.carried["balance"], batch.y) + losses(personal, batch.y))
