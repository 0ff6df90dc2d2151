"""pFedMe: clients lower the Moreau envelopes of their losses, and each finds a personal model near the global one.

T. Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, Algorithm 1.

| symbol | here |
|---|---|
| w, w_i | the global model, and what a client makes of it in a round |
| theta_i(w) | the personal model: the minimum of h(theta) = f_i(theta) + lambda/2 |theta - w|^2 |
| F_i(w) | the Moreau envelope, h(theta_i(w)); its gradient is lambda (w - theta_i(w)) |
| lambda, K | `strength`, `inner_steps` |
| eta, beta | `rate`, `server_rate` |

A step is w_i <- w_i - eta lambda (w_i - theta), where K steps theta <- theta - `inner_rate` (grad f(theta) + lambda
(theta - w_i)) on the step's batch have led near theta_i(w_i). They go on from the theta of the step before, and in a
round's first step from w. The server moves by beta from w to the plain mean of all w_i. Nobody but the client has its
theta; it predicts with its last one. As lambda grows this becomes FedAvg at the rate eta; with K = 1 and a single step
it is FedAvg at the rate eta lambda `inner_rate`. Running statistics are those of the passes at theta.

Where public code differs: the authors' weighs clients by their samples, has a weight decay of 0.001 in the inner steps
that Algorithm 1 does not have, and lets all clients train, of which it then averages a sample; here who is not asked
does not train. FLGo's never clears the gradient between inner steps, so that they add up, and begins them at w in every
step. The paper's text was not at hand: Algorithm 1 is as these two have it where they agree.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Count, Positive
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel, task_loss


@method("pfedme")
class PFedMe(FedAvg):
    """A global model that lowers clients' Moreau envelopes, and personal ones near it. (Dinh et al., NeurIPS 2020)"""

    family = "personal"

    strength: Positive = 15.0
    """lambda: how strongly personal models are pulled to the global one; 15 is the authors'. As steps are explicit,
    `strength` times `rate`, and times `inner_rate`, must stay below 2."""

    inner_steps: Count = 5
    """K: steps towards the personal model in each local step; 5 is the authors'."""

    inner_rate: Positive = 0.1
    """Size of these steps; 0.1 is the authors'."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """Clients count all the same, as in the paper, or by their number of samples, as in the authors' code."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg whose clients lower their envelopes."""
        cohort = fed.sample(self.participation)
        replies = fed.run(
            train_envelope,
            cohort,
            shared=state.model,
            local=self.local,
            strength=self.strength,
            inner_steps=self.inner_steps,
            inner_rate=self.inner_rate,
        )
        return self.step(state, replies)

    def serve(self, fed: Federation, state: FedAvgState) -> serving.Served:
        """Each client's personal model."""
        return serving.kept("model")


@program(gives={"model": MODEL})
def train_envelope(
    clients: Clients, start: Models, local: LocalTraining, strength: float, inner_steps: int, inner_rate: float
) -> Outputs:
    """Train along the gradient of the envelope; keep the personal model that was found last."""
    envelope = MoreauEnvelope(strength, inner_steps, inner_rate)
    trained = clients.train(start, local, objective=envelope, carried={"personal": start.parameters})
    clients.keep(model=Models(start.net, trained.carried["personal"], trained.models.buffers))
    return {"model": trained.models}


@dataclass(frozen=True)
class MoreauEnvelope:
    """The loss at a personal model nearby, and what it costs to be away from it."""

    strength: float
    steps: int
    rate: float

    def __call__(self, model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
        """h at the personal model; its gradient, in which that is constant, is lambda (w - theta)."""

        def loss(personal: LocalModel) -> Tensor:
            return task_loss(personal, batch, key)

        centre, theta = model.parameters.detach(), model.carried["personal"]
        for _ in range(self.steps):
            gradient = model.at(theta).gradient(loss).detach()
            theta = theta - self.rate * (gradient + self.strength * (theta - centre))
        personal = model.at(theta)
        value = loss(personal)
        model.buffers, model.carried["personal"] = personal.buffers, theta
        return value + self.strength / 2 * (model.parameters - theta).square().sum()
