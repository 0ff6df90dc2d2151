"""SCAFFOLD: every client corrects its steps by how its gradients differ from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
ICML 2020. Control variates are those of option II (Eq. 4).

| symbol | here |
|---|---|
| x, y_i | the global model, a client's model |
| c, c_i | the server's control variate, a client's own, which never leaves it |
| K, eta_l | a client's steps in the round and its rate |

Two models travel each way: x and c to a client, y_i and the change of c_i back. From the latter the server learns a
client's mean gradient. With local momentum a step counts for more than one gradient, which the paper leaves open: K is
then the number of gradients in the change, as in FedNova.
"""

from typing import Literal

from coterie import mixing, serving, steps
from coterie.clients import Clients
from coterie.errors import SettingsError
from coterie.federation import Federation
from coterie.method import Method, method
from coterie.programs import Outputs, program
from coterie.serving import Served
from coterie.training import LocalTraining
from coterie.weights import Changes, Models
from coterie.wire import state

__all__ = ["Scaffold"]


@state
class State:
    """The global model x and the server's control variate c."""

    model: Models
    control: Changes


@method("scaffold")
class Scaffold(Method):
    """Clients correct their drift with control variates that they keep. (Karimireddy et al., ICML 2020)"""

    server_rate: float = 1.0
    """eta_g: how far the server goes from the old model to the mean."""

    weighting: Literal["uniform", "samples"] = "uniform"
    """Clients count all the same, as in the paper, or by their number of samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_rate <= 0:
            raise SettingsError(f"server_rate={self.server_rate}: above 0")
        if self.optimizer != "sgd":
            raise SettingsError(f"optimizer={self.optimizer}: control variates are made for sgd")

    def begin(self, fed: Federation) -> State:
        """A fresh model, and no correction: all control variates start at zero."""
        model = fed.new_model()
        return State(model, model.zeros())

    def round(self, fed: Federation, state: State) -> State:
        """Let the cohort train with correction; move the model and the server's control variate."""
        cohort = fed.sample(self.participation)
        inputs = {"start": state.model, "control": state.control}
        replies = fed.run(controlled_training, cohort, shared=inputs, local=self.local)
        mean = replies.average(self.weighting)
        model, _ = steps.momentum(state.model, mean, None, self.server_rate)
        # c moves by the changes of the cohort over all clients: dividing by the cohort would overshoot.
        change = (mixing.uniform(len(replies)) @ replies.control_change)[0] * (len(replies) / len(fed.clients))
        return State(model, state.control + change)

    def serve(self, fed: Federation, state: State) -> Served:
        """The one model."""
        return serving.one(state.model, len(fed.names))


@program
def controlled_training(clients: Clients, start: Models, control: Changes, local: LocalTraining) -> Outputs:
    """SCAFFOLD's client, option II: c_i+ = c_i - c + (x - y_i) / (K eta_l)."""
    own = clients.state("control", otherwise=start.zeros())
    trained = clients.train(start, local, push=control - own)
    # With momentum a step counts for more than one gradient: K is the sum of their weights.
    gradients = steps.weight_of_steps(trained.steps, local.momentum)
    new = own - control + (start - trained.models) / (gradients * local.rate)
    clients.keep(control=new)
    return {"model": trained.models, "control_change": new - own}
