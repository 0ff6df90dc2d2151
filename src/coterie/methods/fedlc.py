"""FedLC: in training, clients lower the logit of a label the more, the fewer samples they have of it.

Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated learning with label distribution skew via logits calibration", ICML 2022.

A client with n_i samples of label i lowers

    -log(exp(f_y - tau n_y^(-1/4)) / sum_i exp(f_i - tau n_i^(-1/4)))

in place of the cross-entropy, so that rare labels are learnt with a margin. A label of which it has none has a margin
without end, and is left out of the sum: nothing that the client does moves its logit, where the cross-entropy would
push it down in every step. Everything else is FedAvg's; nobody predicts with margins.

The paper's text was not at hand: the loss is as three public implementations have it (FL-bench, fluke, PFLlib), and tau
as the first of them has it. They count 1e-8 samples where there are none, a margin of 100 tau. PFLlib's margins come
from the samples of all clients together, which a server does not know, and which calibrate no client.
"""

from typing import Annotated

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.core.fields import above
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel


@method("fedlc")
class FedLC(FedAvg):
    """FedAvg whose clients learn rare labels with a margin. (Zhang et al., ICML 2022)"""

    tau: Annotated[float, above(0, "above 0; without margins use fedavg")] = 1.0
    """How wide margins are. The wider, the less does it matter how often a client has a label."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "widens margins by counts of labels"

    def check(self, fed: Federation) -> None:
        """Margins are of the softmax."""
        super().check(fed)
        if fed.net.task.own_loss:
            raise SettingsError(f"loss={fed.net.task.own_loss}: fedlc is a change of the cross-entropy")

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients train with margins."""
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train_calibrated, cohort, shared=state.model, local=self.local, tau=self.tau))


@program(gives={"model": MODEL})
def train_calibrated(clients: Clients, start: Models, local: LocalTraining, tau: float) -> Outputs:
    """Train with a margin for each label, by how many samples the client has of it."""
    counts = clients.label_counts()
    margins = torch.where(counts > 0, tau * counts.double() ** -0.25, torch.inf)
    return {"model": clients.train(start, local, objective=calibrated_loss, carried={"margins": margins}).models}


def calibrated_loss(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The cross-entropy of logits that are lowered by margins."""
    return batch.mean(model.net.task.losses(model(batch) - model.carried["margins"], batch.y))
