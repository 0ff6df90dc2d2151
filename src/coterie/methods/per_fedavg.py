"""Per-FedAvg: a model from which a single local step leads every client to a good one of its own.

Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020, Algorithm 1 in its first-order and Hessian-free variants.

| symbol | here |
|---|---|
| w, w~ | a client's model, and the same after an inner step of size alpha |
| alpha, beta | `inner_rate`, `rate` |
| D, D', D'' | independent batches: of the inner step, of the outer one, of the Hessian |
| delta | `delta` |

A local step is w <- w - beta (I - alpha H(w; D'')) g with g = grad f(w~; D') and w~ = w - alpha grad f(w; D). The first
order drops H; Hessian-free puts (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta) for H g. Before a
client predicts, it takes `adapt_steps` inner steps on its own data.

Where public code goes wrong: one loses the outer step before the next one begins, one carries momentum from the inner
step into the outer, and one leaves out clients whose data fits in one batch. Here the inner step is plain and leaves no
trace, and every stream of batches goes through all of a client's data. Batches of the outer step are those of FedAvg,
so that `inner_rate=0` is FedAvg; running statistics are those of the outer step's pass.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative, Positive, at_least
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel, task_loss


@method("per-fedavg")
class PerFedAvg(FedAvg):
    """A shared model from which one local step leads to a personal one. (Fallah et al., NeurIPS 2020)"""

    family = "personal"

    order: Literal["first", "hessian-free"] = "first"
    """How the step through the inner step is taken: without second derivatives, or with differences of gradients."""

    inner_rate: NonNegative = 0.01
    """alpha: size of the inner step, and of the steps before predicting; 0.01 in the paper."""

    delta: Positive = 1e-3
    """How far apart the gradients are whose difference stands for the Hessian."""

    adapt_steps: Annotated[int, at_least(0)] = 1
    """Steps of size `inner_rate` that a client takes on its own data before it predicts."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """Clients count all the same, as in the paper, or by their number of samples."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg whose clients train for the loss after an inner step."""
        cohort = fed.sample(self.participation)
        delta = self.delta if self.order == "hessian-free" else None
        replies = fed.run(
            meta_training, cohort, shared=state.model, local=self.local, inner_rate=self.inner_rate, delta=delta
        )
        return self.step(state, replies)

    def serve(self, fed: Federation, state: FedAvgState) -> Served:
        """The one model, after the clients' own steps."""
        served = super().serve(fed, state)
        if not (self.inner_rate and self.adapt_steps):
            return served
        prior, smoothing = self.prior, self.prior_smoothing
        how = LocalTraining(
            steps=self.adapt_steps, batch=self.batch, rate=self.inner_rate, prior=prior, prior_smoothing=smoothing
        )
        return served.after(how)


@program(gives={"model": MODEL})
def meta_training(
    clients: Clients, start: Models, local: LocalTraining, inner_rate: float, delta: float | None
) -> Outputs:
    """Per-FedAvg's client: train for the loss after an inner step; first-order without a delta."""
    return {"model": clients.train(start, local, objective=AfterInnerStep(inner_rate, delta)).models}


@dataclass(frozen=True)
class AfterInnerStep:
    """The loss of one batch after a step on another."""

    rate: float
    delta: float | None

    @property
    def batches(self) -> int:
        """How many independent batches it takes: D', D and, for the Hessian, D''."""
        return 2 if self.delta is None else 3

    def __call__(self, model: LocalModel, batch: tuple[Batch, ...], key: Tensor) -> Tensor:
        """The loss at w~; its gradient is the step's direction."""
        outer, inner = batch[:2]
        # Detached, the inner step is a constant, and the gradient of the loss is g: the first order.
        ahead = model.at(model.parameters - self.rate * model.gradient(_loss_of(inner, key)).detach())
        loss = task_loss(ahead, outer, key)
        model.buffers = ahead.buffers
        if self.delta is None:
            return loss
        product = model.curvature(_loss_of(batch[2], key), ahead.gradient(_loss_of(outer, key)), self.delta)
        # A term of value 0 whose gradient is the missing -alpha H g.
        moved = model.parameters - model.parameters.detach()
        return loss - self.rate * (product.detach() * moved).sum()


def _loss_of(batch: Batch, key: Tensor):  # type: ignore[no-untyped-def]
    return lambda model: task_loss(model, batch, key)
