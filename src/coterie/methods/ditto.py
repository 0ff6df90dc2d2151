"""Ditto: FedAvg, and beside it a model of its own for every client, pulled towards the global one.

Li, Hu, Beirami and Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021.

| symbol | here |
|---|---|
| w | the global model, exactly FedAvg's |
| v_k | a client's own model, which it keeps and predicts with; nobody else ever sees it |
| lambda | `mu`: the strength of the pull |

A client trains the model that it was sent, as in FedAvg, and then its own to lower F_k(v_k) + mu/2 |v_k - w_t|^2, where
w_t is what it was sent; so it takes twice the steps. A client that has not taken part yet predicts with the initial
model.
"""

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.training.local import LocalTraining


@method("ditto")
class Ditto(FedAvg):
    """FedAvg, and for every client an own model that is pulled towards it. (Li et al., ICML 2021)"""

    family = "personal"

    mu: NonNegative = 1.0
    """Strength of the pull, lambda in the paper, whose clients choose from 0.1, 1 and 2. 0 is training alone. As steps
    are explicit, `mu` times `rate` must stay below 2."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients train their own models too."""
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train_both, cohort, shared=state.model, local=self.local, mu=self.mu))

    def serve(self, fed: Federation, state: FedAvgState) -> serving.Served:
        """Each client's own model."""
        return serving.kept("model")


@program(gives={"model": MODEL})
def train_both(clients: Clients, start: Models, local: LocalTraining, mu: float) -> Outputs:
    """Train the global model, which is sent back, and the client's own, which is kept."""
    trained = clients.train(start, local).models
    own = clients.state("model", otherwise=clients.initial())
    clients.keep(model=clients.train(own, local, pull=mu, anchor=start).models)
    return {"model": trained}
