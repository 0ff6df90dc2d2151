"""FedOpt: the server takes an adaptive step, for which the mean change of the clients is the gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive federated optimization", ICLR 2021,
Algorithm 2: FedAdam, FedYogi and FedAdagrad.

| symbol | here |
|---|---|
| Delta_t | the mean of the clients' changes |
| m_t = beta_1 m + (1 - beta_1) Delta_t | `first` |
| v_t = v + Delta^2 | `second` of Adagrad |
| v_t = beta_2 v + (1 - beta_2) Delta^2 | `second` of Adam |
| v_t = v - (1 - beta_2) Delta^2 sign(v - Delta^2) | `second` of Yogi |
| x + eta m / (sqrt(v) + tau) | the new model |
| eta | `server_rate` |

Nothing is divided by 1 - beta^t, as Adam has it elsewhere. The paper asks for v_{-1} >= tau^2, and here it is tau^2;
public code (FL-bench) begins at 0. Running statistics are the mean. The equations were compared with that code, and
not with the paper's text.
"""

from typing import Literal

from coterie.clients.programs import train
from coterie.core.fields import Fraction, Positive
from coterie.core.records import state
from coterie.moves import server_steps
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation
from coterie.server.method import Method, method


@state
class FedOptState:
    """The global model, the running mean of its changes, and that of their squares or, with Adagrad, their sum."""

    model: Models
    first: Changes
    second: Changes


@method("fedopt")
class FedOpt(Method):
    """The server takes a step of Adam, Yogi or Adagrad along the clients' mean change. (Reddi et al., ICLR 2021)"""

    family = "global"
    sends = "a model each way"
    gives_away = "its trained model, and once, when it joins, its number of samples"

    server_optimizer: Literal["adam", "yogi", "adagrad"] = "adam"
    """How squares of changes are remembered: FedAdam, FedYogi or FedAdagrad."""

    server_rate: Positive = 0.01
    """eta: about how far a parameter moves in a round. The paper tunes it for every data set."""

    beta_1: Fraction | None = None
    """How much of the mean change is kept. By default 0.9, and 0 for Adagrad, as in the paper's experiments."""

    beta_2: Fraction = 0.99
    """How much of the squares is kept by Adam and Yogi; 0.99 in the paper."""

    tau: Positive = 1e-3
    """Changes much smaller than this are not scaled up; 0.001 in the paper. The larger, the less is adapted."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    def begin(self, fed: Federation) -> FedOptState:
        """A fresh model; no change yet, and squares of tau."""
        model = fed.new_model()
        none = model.zeros()
        return FedOptState(model, none, Changes(fed.net, none.parameters + self.tau**2))

    def round(self, fed: Federation, state: FedOptState) -> FedOptState:
        """Send the model out, let the cohort train it, and step along the mean change."""
        cohort = fed.sample(self.participation)
        mean = fed.run(train, cohort, shared=state.model, local=self.local).average(self.weighting)
        usual = 0.0 if self.server_optimizer == "adagrad" else 0.9
        decays = (usual if self.beta_1 is None else self.beta_1, self.beta_2)
        kind, rate, tau = self.server_optimizer, self.server_rate, self.tau
        return FedOptState(
            *server_steps.adaptive(state.model, mean, state.first, state.second, kind, rate, decays, tau)
        )
