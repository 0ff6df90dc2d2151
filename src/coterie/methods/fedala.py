"""FedALA: before it trains, a client mixes the new global model into its own, number by number, as its data wants it.

Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedALA: adaptive local aggregation for personalized federated learning", AAAI
2023, Algorithm 1.

| symbol | here |
|---|---|
| Theta_(t-1) | the global model, which FedAvg averages |
| Theta_i | a client's own model, which it keeps and predicts with |
| W_i | its weights, one for each number of the `adapts` layers, in [0, 1]; it keeps them, and they begin at 1 |
| Theta_i + (Theta_(t-1) - Theta_i) * W_i | what training begins with; all lower layers are the global model's |
| p, s, eta | `adapts` (p layers from the top), `share`, `weight_rate` |

Weights are learnt by gradient descent on the client's loss with what they mix, clipped to [0, 1] after each step: in a
round's one pass over a share s of the client's samples. The first time that there is anything to mix, in the client's
second round, the paper learns until the loss stays as it is. Here that is a number of passes, so that all clients know
beforehand how many steps they take.

The paper's text was not at hand: this is the authors' code, which PFLlib has too, and summaries. That code counts p in
tensors, so its 2 is one layer; it learns from one block of neighbouring samples, and in full batches only, of which
small clients have none; it mixes at all clients in every round, also at those that then do not train, and scores the
mix; it never averages running statistics, which here are the global model's.
"""

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative, Positive, within
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Changes, Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel


@method("fedala")
class FedALA(FedAvg):
    """Clients mix the global model into their own by weights that they learn. (Zhang et al., AAAI 2023)"""

    family = "personal"
    gives_away = "its trained model; its weights stay with it"

    adapts: str = "head"
    """The part that is mixed: `head` (the last layer, as in the authors' commands), `top-2`, `all`, `none`, which is
    FedAvg, or names of layers with commas between. All other layers are the global model's."""

    weight_rate: Positive = 1.0
    """eta: the rate at which weights are learnt; the authors'."""

    share: Annotated[float, within("(0, 1]")] = 0.8
    """s: the share of its samples from which a client learns weights in a pass; the authors'."""

    first_epochs: NonNegative = 11.0
    """Passes for the weights in a client's second round; 11 is the fewest after which the authors' code stops."""

    weight_epochs: NonNegative = 1.0
    """Passes for the weights in every later round; 1 in the paper."""

    @property
    def weighing(self) -> LocalTraining:
        """How weights are trained."""
        return replace(self.local, rate=self.weight_rate, momentum=0.0, decay=0.0, clip=0.0, optimizer="sgd")

    @property
    def passes(self) -> list[float]:
        """Passes for the weights in a client's first round, its second, and all others."""
        return [0.0, self.share * self.first_epochs, self.share * self.weight_epochs]

    def check(self, fed: Federation) -> None:
        """The net must have the part."""
        super().check(fed)
        fed.net.part(self.adapts)

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients begin with mixes of their own."""
        cohort = fed.sample(self.participation)
        told: dict[str, Any] = {
            "local": self.local,
            "weighing": self.weighing,
            "passes": self.passes,
            "part": self.adapts,
        }
        return self.step(state, fed.run(mix_and_train_on, cohort, shared=state.model, **told))

    def serve(self, fed: Federation, state: FedAvgState) -> serving.Served:
        """Each client's own model; the initial one before it has trained."""
        return serving.kept("model")


@program(told={"part": "adapts"}, gives={"model": MODEL})
def mix_and_train_on(
    clients: Clients, start: Models, local: LocalTraining, weighing: LocalTraining, passes: list[float], part: str
) -> Outputs:
    """Learn how to mix the global model into the client's own, train the mix, keep all and give the model back."""
    chosen = clients.net.part(part)
    kept = clients.state("model", otherwise=start).parameters
    own = Models(start.net, torch.where(chosen, kept, start.parameters), start.buffers)
    change = (start - own).parameters
    weights = torch.ones_like(change)
    weights[:, chosen] = clients.state("weights", otherwise=weights[:, chosen])
    rounds = clients.state("rounds", otherwise=torch.zeros(len(clients), dtype=torch.int64))
    epochs = torch.tensor(passes, dtype=torch.float64)[rounds.cpu().clamp(max=2)]
    learnt = clients.train(
        own,
        weighing,
        epochs=epochs,
        trains="none",
        objective=loss_of_mix,
        beside={"weights": weights},
        carried={"change": change, "beyond": torch.zeros_like(weights)},
    )
    weights = (learnt.beside["weights"] - learnt.carried["beyond"]).clamp(0, 1)
    trained = clients.train(own + Changes(own.net, change * weights), local).models
    clients.keep(model=trained, weights=weights[:, chosen], rounds=rounds + 1)
    return {"model": trained}


def loss_of_mix(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The loss of the client's model with the weighted change added to it."""
    # The trainer knows no bounds. What weights are beyond theirs is carried along and taken off before the next step,
    # which so begins where they were clipped; the gradient is that with respect to the clipped ones.
    free = model.beside["weights"] - model.carried["beyond"]
    clipped = free.detach().clamp(0, 1)
    model.carried["beyond"] = model.beside["weights"].detach() - clipped
    mix = model.at(model.parameters + model.carried["change"] * (clipped + free - free.detach()))
    return batch.mean(model.net.task.losses(mix(batch), batch.y))
