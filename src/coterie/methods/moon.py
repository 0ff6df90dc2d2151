"""MOON: clients learn representations like those of the model they were sent, and unlike those of their last own one.

Li, He and Song, "Model-contrastive federated learning", CVPR 2021, Algorithm 1.

| symbol | here |
|---|---|
| w, w_t | the model that a client trains, and the one that it was sent |
| w_prev | what it sent itself when it last took part; it keeps that |
| z, z_glob, z_prev | what the last layer gets of a sample in each of them |
| mu, tau | `mu`, `temperature` |

A client lowers the cross-entropy plus mu times, over samples,

    -log(exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)))

where w_t and w_prev are constants that run as in evaluation: with running statistics and without noise. Who takes part
for the first time has no last model, and lowers the cross-entropy alone. Everything else is FedAvg's.

The paper's nets have a projection head of two layers before the last one. Here the net is whatever is asked for: one
that ends in such layers is like the paper's, and others go without, as in PFLlib, FL-bench and FLGo. The authors' code
was at hand, and the paper's text was not. In that code every client has a model at first that nobody has trained, and
who comes for the first time after the first round is pushed away from that. In PFLlib both constants normalise by the
batch that they are given, and their running statistics go on moving.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative, Positive
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel, task_loss


@method("moon")
class MOON(FedAvg):
    """FedAvg whose clients learn features like the global model's and unlike their last. (Li et al., CVPR 2021)"""

    mu: NonNegative = 1.0
    """Weight of the contrast; the authors choose from 0.1, 1, 5 and 10, and 1 is their code's. 0 is FedAvg to the last
    bit."""

    temperature: Positive = 0.5
    """tau: the smaller, the more does a small difference of cosines count; 0.5 is the authors'."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients train with the contrast."""
        cohort, mu, temperature = fed.sample(self.participation), self.mu, self.temperature
        replies = fed.run(
            train_contrasted, cohort, shared=state.model, local=self.local, mu=mu, temperature=temperature
        )
        return self.step(state, replies)


@program(gives={"model": MODEL})
def train_contrasted(clients: Clients, start: Models, local: LocalTraining, mu: float, temperature: float) -> Outputs:
    """Train with the contrast between the model that was sent and the last own one; keep what comes out."""
    last = clients.state("last", otherwise=start)
    known = dict(zip(_CONSTANTS, (*start.tensors, *last.tensors), strict=True)) if mu else {}
    objective = ModelContrast(mu, temperature) if mu else task_loss
    trained = clients.train(start, local, objective=objective, carried=known).models
    clients.keep(last=trained)
    return {"model": trained}


_CONSTANTS = ("sent", "sent_buffers", "last", "last_buffers")


@dataclass(frozen=True)
class ModelContrast:
    """What the task lowers, and the contrast of a sample's features in three models."""

    mu: float
    temperature: float

    def __call__(self, model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
        """The mean over samples; where the last model is the one that was sent, the contrast is the constant log 2."""
        features, outputs = model.with_features(batch)
        sent, sent_buffers, last, last_buffers = (model.carried[name] for name in _CONSTANTS)
        like, unlike = (
            cosine_similarity(features.flatten(1), other.with_features(batch)[0].flatten(1))
            for other in (model.evaluated(sent, sent_buffers), model.evaluated(last, last_buffers))
        )
        losses = model.net.task.losses(outputs, batch.y)
        return batch.mean(losses + self.mu * softplus((unlike - like) / self.temperature))
