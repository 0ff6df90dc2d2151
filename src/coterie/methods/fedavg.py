"""FedAvg: one model for all, the mean of what the clients make of it.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017. Server momentum: Hsu, Qi and Brown, "Measuring the effects of non-identical data
distribution for federated visual classification", 2019.

The new model is the sum of n_k / n w_k over the cohort (Algorithm 1).
"""

from typing import Literal

from coterie.clients.programs import train
from coterie.core.fields import Fraction, Positive
from coterie.core.records import state
from coterie.moves import server_steps
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method


@state
class FedAvgState:
    """The global model, and the server's velocity if it has momentum."""

    model: Models
    velocity: Changes | None = None


@method("fedavg")
class FedAvg(Method):
    """One model for all: the mean of the clients' models. (McMahan et al., AISTATS 2017)"""

    family = "global"
    sends = "a model each way"
    gives_away = "its trained model, and once, when it joins, its number of samples"

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, as in the paper, or all the same."""

    server_rate: Positive = 1.0
    """How far the server goes from the old model to the mean."""

    server_momentum: Fraction = 0.0
    """How much of the last change is kept (FedAvgM, Hsu et al. 2019)."""

    def begin(self, fed: Federation) -> FedAvgState:
        """Start from a fresh model."""
        return FedAvgState(fed.new_model())

    def round(self, fed: Federation, state: FedAvgState) -> FedAvgState:
        """Send the model out, let the cohort train it, and take the mean."""
        cohort = fed.sample(self.participation)
        return self.step(state, fed.run(train, cohort, shared=state.model, local=self.local))

    def step(self, state: FedAvgState, replies: Replies) -> FedAvgState:
        """The server's step, from what the cohort sent."""
        mean = replies.average(self.weighting)
        return FedAvgState(
            *server_steps.momentum(state.model, mean, state.velocity, self.server_rate, self.server_momentum)
        )
