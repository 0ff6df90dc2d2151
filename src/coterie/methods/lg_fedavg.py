"""LG-FedAvg: clients share the upper layers of their models and keep the lower ones.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think locally, act globally: federated learning
with local and global representations", 2020 (arXiv 2001.01523).

A client puts the shared part that it was sent into the model that it keeps, trains all of it, keeps it, and sends the
shared part back with its running statistics; the server takes the mean, and never holds a model that could predict.
Differences from the authors' code: no training with FedAvg beforehand, means are weighted by samples and only clients
that take part are sent the new part (so PACFL and FLIS), and no choice of every client's best round. The part is given
by names of layers: counting tensors from the end, as public code does, can cut a layer in two, and counting layers from
the front (FL-bench) shares the wrong ones.
"""

from typing import Literal

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import like_input
from coterie.clients.programs import Outputs, program
from coterie.core.records import state
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class LGFedAvgState:
    """The part that is shared, packed with its running statistics."""

    shared: Tensor


@method("lg-fedavg")
class LGFedAvg(Method):
    """Clients share the upper layers and keep the lower ones to themselves. (Liang et al., arXiv 2020)"""

    family = "personal"
    sends = "the shared part of a model each way"
    gives_away = "how its data moves the shared layers, and no more"

    shares: str = "head"
    """The part that is shared: `head` (the last layer), `top-2` (the last two, as FLIS does with LeNet), `body`, `all`,
    `none`, or names of layers with commas between."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    refresh: bool = False
    """Clients predict with the newest shared part in their model, which costs a download by all, instead of with the
    model as they last trained it."""

    def check(self, fed: Federation) -> None:
        """The net must have the part."""
        super().check(fed)
        fed.net.part(self.shares)

    def begin(self, fed: Federation) -> LGFedAvgState:
        """The shared part of a fresh model, which clients make themselves."""
        return LGFedAvgState(fed.new_model().packed(self.shares))

    def round(self, fed: Federation, state: LGFedAvgState) -> LGFedAvgState:
        """Send the shared part out, and take the mean of what comes back."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_around, cohort, shared=state.shared, local=self.local, part=self.shares)
        return LGFedAvgState(replies.weights(self.weighting).to(replies.shared_part) @ replies.shared_part)

    def serve(self, fed: Federation, state: LGFedAvgState) -> serving.Served:
        """Each client's own model."""
        return serving.kept("model", self.shares, state.shared if self.refresh else None)


@program(told={"part": "shares"}, gives=like_input("shared_part"))
def train_around(clients: Clients, shared_part: Tensor, local: LocalTraining, part: str) -> Outputs:
    """Put the shared part into the client's own model, train and keep that, and give the part back."""
    own = clients.state("model", otherwise=clients.initial()).patched(part, shared_part)
    trained = clients.train(own, local).models
    clients.keep(model=trained)
    return {"shared_part": trained.packed(part)}
