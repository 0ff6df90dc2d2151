"""FedDC: FedDyn's regulariser and SCAFFOLD's correction together, so that local drift is decoupled and undone.

Gao, Fu, Li, Chen, Xu and Xu, "FedDC: federated learning with non-IID data via local drift decoupling and correction",
CVPR 2022.

| symbol | here |
|---|---|
| w, theta_i | the global model, a client's model |
| h_i | a client's drift, as in FedDyn; it never leaves it |
| G, G_i | control variates, the server's and a client's, as in SCAFFOLD |
| K, eta | a client's steps in the round and its rate |

A client lowers L_i + alpha/2 |theta + h_i - w|^2 + <theta, G - G_i>, then h_i grows by theta_i - w. The server takes
the mean of the cohort's models plus the mean drift of all clients: without the control variates this is FedDyn, step by
step.
"""

from collections.abc import Mapping
from typing import Any

from coterie.clients.clients import Clients
from coterie.clients.outputs import CHANGES, MODEL, Declared
from coterie.clients.programs import Outputs, program
from coterie.core.records import state
from coterie.methods.feddyn import FedDyn, FedDynState
from coterie.moves import server_steps
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation, Replies
from coterie.server.method import method
from coterie.training.local import LocalTraining


@state
class FedDCState(FedDynState):
    """FedDyn's state, and the server's control variate G."""

    control: Changes


@method("feddc")
class FedDC(FedDyn):
    """FedDyn's drift and SCAFFOLD's control variates, both kept by the clients. (Gao et al., CVPR 2022)"""

    sends = "two models each way: the model and a control variate down, the trained model and the variate's change up"
    gives_away = "its trained model, and its mean gradient by the change of its control variate"
    sgd_only = "control variates are made for sgd"

    correction: bool = True
    """Whether clients use control variates; without them it is FedDyn to the last bit."""

    def begin(self, fed: Federation) -> FedDCState:
        """A fresh model, no drift and no correction yet."""
        model = fed.new_model()
        return FedDCState(model, model, model.zeros(), len(fed.clients), model.zeros())

    def round(self, fed: Federation, state: FedDCState) -> FedDCState:  # type: ignore[override]
        """A round of FedDyn in which the control variates move too."""
        replies = self.trained(fed, state)
        clients, control = max(state.clients, len(fed.clients)), state.control
        if self.correction:
            control = server_steps.mean_over_all(control, state.clients, replies.control_change, clients)
        moved = self.step(state, replies, clients)
        return FedDCState(moved.model, moved.mean, moved.drift, clients, control)

    def trained(self, fed: Federation, state: FedDCState) -> Replies:
        """What a cohort sends after training with its drifts and control variates."""
        cohort = fed.sample(self.participation)
        return fed.run(corrected_training, cohort, shared=self.sent(state), local=self.local, alpha=self.alpha)

    def sent(self, state: FedDCState) -> dict[str, Models | Changes]:
        """What clients get from the server."""
        return {"start": state.model} | ({"control": state.control} if self.correction else {})


def trained_and_controlled(net: Net, asked: Mapping[str, Any]) -> Declared:
    """What FedDC's clients give: a control variate's change if they were sent one."""
    return {"model": MODEL} | ({"control_change": CHANGES} if "control" in asked else {})


@program(gives=trained_and_controlled)
def corrected_training(
    clients: Clients, start: Models, local: LocalTraining, alpha: float, control: Changes | None = None
) -> Outputs:
    """Train with drift and, if there is one, control variate, and keep both."""
    return train_corrected(clients, start, local, alpha, control)


def train_corrected(
    clients: Clients,
    start: Models,
    local: LocalTraining,
    alpha: float,
    control: Changes | None,
    length: float | None = None,
) -> Outputs:
    """FedDC's client. `length`, if given, replaces its own K eta."""
    drift = clients.state("drift", otherwise=start.zeros())
    own = clients.state("control", otherwise=start.zeros())
    correction = start.zeros() if control is None else control - own
    trained = clients.train(start, local, pull=alpha, push=drift * alpha + correction)
    clients.keep(drift=drift + (trained.models - start))
    if control is None:
        return {"model": trained.models}
    gradients = server_steps.weight_of_steps(trained.steps, local.momentum) * local.rate
    new = server_steps.control_variate(own, control, start, trained.models, gradients if length is None else length)
    clients.keep(control=new)
    return {"model": trained.models, "control_change": new - own}
