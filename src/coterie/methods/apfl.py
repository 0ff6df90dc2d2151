"""APFL: beside the global model every client trains one of its own, and learns in which proportion to mix the two.

Deng, Kamani and Mahdavi, "Adaptive personalized federated learning", 2020 (arXiv 2003.13461), Algorithm 1.

| symbol | here |
|---|---|
| w, w_i | the global model, and what a client makes of it in a round, exactly as in FedAvg |
| v_i | a client's own model, which nobody else ever sees |
| alpha_i | how much of its own model a client mixes in |
| v-bar_i = alpha_i v_i + (1 - alpha_i) w_i | the mixture, of parameters, with which it predicts |

In each step, on one batch, w_i <- w_i - eta grad f(w_i) and v_i <- v_i - eta alpha_i grad f(v-bar_i), both gradients
being of the models before the step. Once a round, after these steps, alpha_i takes a step of its own along <v_i - w_i,
grad f(v-bar_i)>, and is put back between 0 and 1. A client keeps v_i and alpha_i, also while it is absent, and predicts
with the mixture as it last trained it. Running statistics are those of the mixture's own passes.

The paper's text was not at hand: the updates are those of its authors' code (FedTorch) where that agrees with other
public code. Where it does not, or is wrong: FedTorch mixes outputs, not parameters; for alpha's step, which it takes
after a round's first batch, it weighs gradients by alpha and 1 - alpha that are weighted so already, and it pulls alpha
to 0 by 0.02 alpha. FL-bench takes that step after every batch of the first pass, and goes along each gradient of w_i
twice. PFLlib trains v_i without regard to alpha, and overwrites it with the mixture after each round.
"""

from dataclasses import replace

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Share
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel, task_loss


@method("apfl")
class APFL(FedAvg):
    """FedAvg, and for every client an own model that it mixes with the global one. (Deng et al., arXiv 2020)"""

    family = "personal"

    alpha: Share = 0.5
    """How much of its own model a client mixes in at first; 0.5 in FL-bench, 0.01 in FLGo. With 0 the own model is not
    trained, and clients predict with what they have made of the global one; with 1 they train alone."""

    adaptive: bool = True
    """Whether clients learn their `alpha`, at the rate of their models, or keep it as it is."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients train their own models too."""
        cohort, alpha, adaptive = fed.sample(self.participation), self.alpha, self.adaptive
        replies = fed.run(train_mixture, cohort, shared=state.model, local=self.local, alpha=alpha, adaptive=adaptive)
        return self.step(state, replies)

    def serve(self, fed: Federation, state: FedAvgState) -> serving.Served:
        """Each client's own mixture."""
        return serving.kept("model")


@program(gives={"model": MODEL})
def train_mixture(clients: Clients, start: Models, local: LocalTraining, alpha: float, adaptive: bool) -> Outputs:
    """Train the global model, which is sent back, and the own one in the mixture; then the share of the own one."""
    own = clients.state("own", otherwise=clients.initial())
    share = clients.state("share", otherwise=start.parameters.new_full((len(clients),), alpha))
    fixed = {"share": share, "running": own.buffers}
    trained = clients.train(start, local, objective=both_losses, beside={"own": own.parameters}, carried=fixed)
    models, own = trained.models, Models(start.net, trained.beside["own"], trained.carried["running"])
    if adaptive:
        step = replace(local, steps=1, momentum=0.0, decay=0.0, clip=0.0, optimizer="sgd")
        fixed = {"own": own.parameters, "running": own.buffers}
        moved = clients.train(models, step, trains="none", objective=mixed_loss, beside={"share": share}, carried=fixed)
        share = moved.beside["share"].clamp(0, 1)
    mixed = torch.lerp(models.parameters, own.parameters, share.unsqueeze(1))
    clients.keep(own=own, share=share, model=Models(start.net, mixed, own.buffers))
    return {"model": models}


def both_losses(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The loss of the global model, and that of the mixture, whose gradient reaches the own model alone."""
    return task_loss(model, batch, key) + mixed_loss(model, batch, key)


def mixed_loss(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The loss of the mixture of a model, taken as constant, with the own one."""
    known = model.carried | model.beside
    mixed = model.at(torch.lerp(model.parameters.detach(), known["own"], known["share"]))
    mixed.buffers = model.carried["running"]
    loss = task_loss(mixed, batch, key)
    model.carried["running"] = mixed.buffers
    return loss
