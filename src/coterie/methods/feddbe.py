"""FedDBE: every client has an offset of its own for what the last layer gets, so that the body need not learn its bias.

Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan, "Eliminating domain bias for federated learning in representation space",
NeurIPS 2023: their domain bias eliminator (DBE) with FedAvg.

| symbol | here |
|---|---|
| z | what the last layer gets of a sample: the body's features |
| z-bar_i^p | a client's offset (the paper's personalized representation bias memory), which it keeps; at first 0 |
| z-bar^g | the consensus: the clients' mean features, the same in all rounds |
| z-hat_i | a client's running mean of features, from 0 in each round: (1 - mu) z-hat_i + mu times the batch's mean |
| kappa, mu | `strength`, `mean_momentum` |

A client trains the model and its offset, at the same rate, to lower the loss of head(z + z-bar_i^p) plus kappa times
the mean over features of (z-hat_i - z-bar^g)^2 / 2 (the paper's mean regularisation); no gradient goes through earlier
batches. The model is averaged by samples; offsets are not sent, and clients predict with the newest model and their own
one. Before the first round clients train as long as in a round without both terms, send the running mean that they have
then, and forget the rest; the consensus is the mean of these by samples, and never changes.

The paper's text was not at hand: all this is its authors' code. There every client takes part before the first round;
here the first cohort does. With mu = 1, as the authors run it, a running mean is that of the last batch alone, also in
the consensus. Their code's default for kappa is 0, which is no regularisation at all.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from coterie.clients.clients import Clients
from coterie.clients.programs import MODEL, Output, Outputs, program
from coterie.core.fields import NonNegative, Share
from coterie.core.records import state
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel


@state
class FedDBEState:
    """The global model and, once it is known, the consensus [feature]."""

    model: Models
    consensus: Tensor | None = None


@method("feddbe")
class FedDBE(Method):
    """FedAvg, and for every client an offset of its own in feature space. (Zhang et al., NeurIPS 2023)"""

    family = "personal"
    sends = "a model each way, and down the consensus, a number for each feature; before the first round its mean up"
    gives_away = "its trained model, and in the first round the mean of its features; its offset stays with it"

    strength: NonNegative = 50.0
    """kappa: how strongly mean features are pulled to the consensus; 50 is the authors' for a small CNN on
    Fashion-MNIST. With 0 there is none, and no training before the first round."""

    mean_momentum: Share = 1.0
    """mu: how much a batch counts in the running mean; 1, the authors' with that CNN, is the batch alone."""

    offsets: bool = True
    """Whether clients have offsets; without, and with `strength` 0, it is FedAvg to the last bit."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    def check(self, fed: Federation) -> None:
        """The last layer must be linear, with a bias that can take a client's offset."""
        super().check(fed)
        fed.net.check_offsets()

    def begin(self, fed: Federation) -> FedDBEState:
        """A fresh model."""
        return FedDBEState(fed.new_model())

    def round(self, fed: Federation, state: FedDBEState) -> FedDBEState:
        """Find the consensus if it is not known; then a round of FedAvg with offsets."""
        cohort, consensus = fed.sample(self.participation), state.consensus
        how: dict[str, Any] = {"local": self.local, "mean_momentum": self.mean_momentum}
        if self.strength and consensus is None:
            found = fed.run(mean_features, cohort, shared=state.model, **how)
            consensus = found.weights(self.weighting).to(found.mean) @ found.mean
        inputs = {"start": state.model} | ({} if consensus is None else {"consensus": consensus})
        replies = fed.run(train_with_offset, cohort, shared=inputs, **how, strength=self.strength, offsets=self.offsets)
        return FedDBEState(replies.average(self.weighting), consensus)

    def serve(self, fed: Federation, state: FedDBEState) -> serving.Served:
        """The one model, with each client's own offset."""
        served = serving.one(state.model, len(fed.names))
        return served.with_offset("offset") if self.offsets else served


@program(gives=lambda net, asked: {"mean": Output(float, (net.features,))})
def mean_features(clients: Clients, start: Models, local: LocalTraining, mean_momentum: float) -> Outputs:
    """The running mean of features at the end of plain training, of which nothing else is kept."""
    carried = {"mean": start.parameters.new_zeros(len(clients), clients.net.features)}
    return {"mean": clients.train(start, local, objective=OffsetLoss(mean_momentum), carried=carried).carried["mean"]}


@program(gives={"model": MODEL})
def train_with_offset(
    clients: Clients,
    start: Models,
    local: LocalTraining,
    mean_momentum: float,
    strength: float,
    offsets: bool,
    consensus: Tensor | None = None,
) -> Outputs:
    """Train the model, which is sent back, and the client's offset, which is kept."""
    none = start.parameters.new_zeros(len(clients), clients.net.features)
    beside = {"offset": clients.state("offset", otherwise=none)} if offsets else {}
    carried = {} if consensus is None else {"mean": none, "consensus": consensus}
    trained = clients.train(start, local, objective=OffsetLoss(mean_momentum, strength), beside=beside, carried=carried)
    clients.keep(**trained.beside)
    return {"model": trained.models}


@dataclass(frozen=True)
class OffsetLoss:
    """What the task lowers, with the client's offset if it has one, and how far mean features are from a consensus."""

    mean_momentum: float
    strength: float = 0.0

    def __call__(self, model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
        """The loss of a batch; the running mean goes on, and counts if there is a consensus that it can be far from."""
        features, outputs = model.with_features(batch)
        if "offset" in model.beside:
            outputs = outputs + model.net.shift(model.parameters, model.beside["offset"])
        loss = batch.mean(model.net.task.losses(outputs, batch.y))
        if "mean" in model.carried:
            own = vmap(batch.mean, in_dims=1)(features).to(model.carried["mean"])
            mean = torch.lerp(model.carried["mean"], own, self.mean_momentum)
            model.carried["mean"] = mean.detach()
            loss = loss + self.strength / 2 * (mean - model.carried.get("consensus", mean)).square().mean()
        return loss
