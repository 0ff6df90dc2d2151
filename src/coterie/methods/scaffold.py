"""SCAFFOLD: every client corrects its steps by how its gradients differ from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
ICML 2020. Control variates are those of option II (Eq. 4).

| symbol | here |
|---|---|
| x, y_i | the global model, a client's model |
| c, c_i | the server's control variate, a client's own, which never leaves it |
| K, eta_l | a client's steps in the round and its rate |

With local momentum a step counts for more than one gradient, which the paper leaves open: K is then the number of
gradients in the change, as in FedNova.
"""

from typing import Literal

from coterie.clients.clients import Clients
from coterie.clients.outputs import CHANGES, MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Positive
from coterie.core.records import state
from coterie.moves import server_steps
from coterie.moves.correcting import train_controlled
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class ScaffoldState:
    """The global model x, the server's control variate c, and over how many clients it is the mean."""

    model: Models
    control: Changes
    clients: int


@method("scaffold")
class Scaffold(Method):
    """Clients correct their drift with control variates that they keep. (Karimireddy et al., ICML 2020)"""

    family = "global"
    sends = "two models each way: the model and a control variate down, the trained model and the variate's change up"
    gives_away = "its trained model, and its mean gradient by the change of its control variate"
    sgd_only = "control variates are made for sgd"
    counts_on_memory = "the server's control variate is the mean of those that clients keep"

    clip: float = 10.0
    """Longest gradient of a step (Euclidean norm); 0 does not clip. The paper does not, but a control variate remembers
    a gradient that explodes, and on digits the run then diverges; 10 is what FedDyn's authors ran SCAFFOLD with."""

    server_rate: Positive = 1.0
    """eta_g: how far the server goes from the old model to the mean."""

    weighting: Literal["uniform", "samples"] = "uniform"
    """Clients count all the same, as in the paper, or by their number of samples, as in NIID-Bench and PACFL."""

    def begin(self, fed: Federation) -> ScaffoldState:
        """A fresh model, and no correction: all control variates start at zero."""
        model = fed.new_model()
        return ScaffoldState(model, model.zeros(), len(fed.clients))

    def round(self, fed: Federation, state: ScaffoldState) -> ScaffoldState:
        """Let the cohort train with correction; move the model and the server's control variate."""
        cohort = fed.sample(self.participation)
        inputs = {"start": state.model, "control": state.control}
        replies = fed.run(controlled_training, cohort, shared=inputs, local=self.local)
        return self.step(state, replies, state.clients, max(state.clients, len(fed.clients)))

    def step(self, state: ScaffoldState, replies: Replies, known: int, clients: int) -> ScaffoldState:
        """The server's step, after which the control variate is a mean over `clients` clients, not over `known`."""
        model, _ = server_steps.momentum(state.model, replies.average(self.weighting), None, self.server_rate)
        control = server_steps.mean_over_all(state.control, known, replies.control_change, clients)
        return ScaffoldState(model, control, clients)


@program(gives={"model": MODEL, "control_change": CHANGES})
def controlled_training(clients: Clients, start: Models, control: Changes, local: LocalTraining) -> Outputs:
    """SCAFFOLD's client, option II: c_i+ = c_i - c + (x - y_i) / (K eta_l)."""
    return train_controlled(clients, start, control, local, start.zeros(), local.momentum)
