"""FedProx: FedAvg whose clients are pulled back towards the model they were sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks", MLSys 2020.

Clients lower F_k(w) + mu/2 |w - w_t|^2 (Eq. 2), where w_t is the model they were sent.
"""

from coterie.clients.programs import train
from coterie.core.fields import NonNegative
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.server.federation import Federation
from coterie.server.method import method


@method("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the global model. (Li et al., MLSys 2020)"""

    mu: NonNegative = 0.01
    """Strength of the pull: clients lower F(w) + mu/2 |w - w_t|^2. 0 is FedAvg to the last bit."""

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients are pulled back."""
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train, cohort, shared=state.model, local=self.local, pull=self.mu))
