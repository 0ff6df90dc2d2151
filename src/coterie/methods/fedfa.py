"""FedFa: clients that do badly or come often count for more, with momentum on both sides.

Huang, Li, Wang, Du and Zhang, "Fairness and accuracy in federated learning", 2020 (arXiv 2012.10069).

| symbol | here |
|---|---|
| Acc_i | a client's accuracy on its training data with the model that it was sent |
| f_i | how often the client has taken part, this round included; it keeps the count |
| p_i | its weight: (1 - beta) of it from accuracy, beta from frequency (`mixing.by_information`) |
| gamma, m | momentum, of the clients' steps and of the server; the server's running mean of the changes |
| eta | how far the server goes along m |

The new model is the weighted mean plus eta m. An accuracy of zero has no logarithm: it is taken for 1e-6 of the sum.
Where all are zero, all count alike.
"""

from typing import Annotated

import torch

from coterie.clients.clients import Clients
from coterie.clients.outputs import COUNT, MODEL, SHARE
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Fraction, NonNegative, within
from coterie.core.records import state
from coterie.moves import mixing, server_steps
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedFaState:
    """The global model, and the running mean of its changes."""

    model: Models
    velocity: Changes


@method("fedfa")
class FedFa(Method):
    """Weights by training accuracy and participation, and momentum on both sides. (Huang et al., arXiv 2020)"""

    family = "global"
    sends = "a model each way; an accuracy and a count up"
    gives_away = "its trained model, how well the global model fits its data, and how often it has taken part"

    momentum: float = 0.9
    """gamma of the clients: momentum of SGD. Starts from zero in every round. 0.9 in the public implementation."""

    beta: Annotated[float, within("[0, 1]", "a share, in [0, 1]")] = 0.5
    """The part of a client's weight that comes from how often it took part; the rest comes from its accuracy."""

    server_momentum: Fraction = 0.9
    """gamma of the server: how much of the running mean of changes is kept."""

    server_rate: NonNegative | None = None
    """eta: how far the server goes along that mean, beyond the clients' mean; by default the clients' `rate`."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "weighs clients by accuracy on their classes"

    def begin(self, fed: Federation) -> FedFaState:
        """A fresh model that has not moved yet."""
        model = fed.new_model()
        return FedFaState(model, model.zeros())

    def round(self, fed: Federation, state: FedFaState) -> FedFaState:
        """Weigh the cohort's models by what the clients say of themselves; then go on along the momentum."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_and_tell, cohort, shared=state.model, local=self.local)
        weights = mixing.by_information(replies.accuracy, replies.frequency, self.beta)
        mixed = weights @ replies.model
        return FedFaState(
            *server_steps.beyond(state.model, mixed, state.velocity, self.step_rate, self.server_momentum)
        )

    @property
    def step_rate(self) -> float:
        """eta: `server_rate`, or without one the clients' `rate`."""
        return self.rate if self.server_rate is None else self.server_rate


@program(gives={"model": MODEL, "accuracy": SHARE, "frequency": COUNT})
def train_and_tell(clients: Clients, start: Models, local: LocalTraining) -> Outputs:
    """Train, and say how well the start did and how often the client has taken part."""
    accuracy = clients.evaluate(start, on="train").accuracy
    frequency = clients.state("frequency", otherwise=torch.zeros(len(clients), dtype=torch.int64)) + 1
    clients.keep(frequency=frequency)
    return {"model": clients.train(start, local).models, "accuracy": accuracy, "frequency": frequency}
