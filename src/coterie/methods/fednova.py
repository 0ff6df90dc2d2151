"""FedNova: FedAvg in which a client that takes more steps does not count for more.

Wang, Liu, Liang, Joshi and Poor, "Tackling the objective inconsistency problem in heterogeneous federated
optimization", NeurIPS 2020.

| symbol | here |
|---|---|
| tau_i, rho | a client's steps in the round, its momentum |
| a_i | the gradients that it has added up: tau_i, or more with momentum (`steps.weight_of_steps`) |
| p_i | its part of the cohort's samples |
| d_i | its change per gradient, (w_i - w) / a_i |
| tau_eff | the mean of a_i, weighted by p_i |

The new model is w + tau_eff sum p_i d_i. Public code (FLGo) divides by the steps even with momentum. With very unequal
steps and momentum tau_eff can be large enough to diverge, as published tables show (10.0% in NIID-Bench): then lower
`server_rate`.
"""

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL, Output
from coterie.clients.programs import Outputs, program
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.moves import server_steps
from coterie.nets.stacks import Models
from coterie.server.federation import Federation, Replies
from coterie.server.method import method
from coterie.training.local import LocalTraining


@method("fednova")
class FedNova(FedAvg):
    """FedAvg of changes per local step, so that fast clients do not pull harder. (Wang et al., NeurIPS 2020)"""

    sends = "a model each way, and up the number of gradients in it"
    gives_away = "its trained model, how many steps it took, and once, when it joins, its number of samples"
    sgd_only = "the number of gradients in a change is known for sgd only"

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """A round of FedAvg in which clients also say how many gradients their changes add up."""
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train_and_count, cohort, shared=state.model, local=self.local))

    def step(self, state: FedAvgState, replies: Replies) -> FedAvgState:
        """The server's step, from what the cohort sent."""
        mean, weights = replies.average(self.weighting), replies.weights(self.weighting)
        mixed = server_steps.normalised(state.model, replies.model, mean, weights, replies.gradients)
        return FedAvgState(
            *server_steps.momentum(state.model, mixed, state.velocity, self.server_rate, self.server_momentum)
        )


@program(gives={"model": MODEL, "gradients": Output(float, least=0)})
def train_and_count(clients: Clients, start: Models, local: LocalTraining) -> Outputs:
    """Train, and say how many gradients the change adds up."""
    trained = clients.train(start, local)
    return {"model": trained.models, "gradients": server_steps.weight_of_steps(trained.steps, local.momentum)}
