"""FedProx: FedAvg whose clients are pulled back towards the model they were sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks", MLSys 2020.

Clients lower F_k(w) + mu/2 |w - w_t|^2 (Eq. 2), where w_t is the model they were sent. One model travels each way; a
client gives away what it does in FedAvg.
"""

from coterie.clients.programs import train
from coterie.core.fields import NonNegative
from coterie.methods.fedavg import FedAvg, State
from coterie.server.federation import Federation
from coterie.server.method import method

__all__ = ["FedProx"]


@method("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the global model. (Li et al., MLSys 2020)"""

    mu: NonNegative = 0.01
    """Strength of the pull: clients lower F(w) + mu/2 |w - w_t|^2. 0 is FedAvg to the last bit."""

    compat: bool = False
    """Leave the pull out, as public code does by mistake: CAFA's takes it from tensors without a gradient, PACFL's from
    the model itself, so that it is always zero. FedProx's rows in tables made with them are FedAvg's."""

    def round(self, fed: Federation, state: State) -> State:
        """As FedAvg's, with the pull."""
        if self.compat:
            return super().round(fed, state)
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train, cohort, shared=state.model, local=self.local, pull=self.mu))
