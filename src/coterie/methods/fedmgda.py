"""FedMGDA+: a step that no client loses by, as long as the weights need not go far from FedAvg's.

Hu, Shaloudegi, Zhang and Yu, "Federated learning meets multi-objective optimization", IEEE Transactions on Network
Science and Engineering 2022.

| symbol | here |
|---|---|
| g_i | a client's change from its model back to the start, scaled to length 1 |
| lambda0 | the clients' parts of the cohort's samples |
| lambda* | the weights within epsilon of lambda0 that make sum lambda_i g_i shortest |
| eta | the length of the server's step |

The new model is w - eta sum lambda*_i g_i. The direction is no longer than 1, so eta is an absolute step: it does not
shrink as training converges, and wants a schedule or a small value in the end. The server solves a quadratic program in
as many unknowns as there are clients. A client whose model did not move has g_i = 0: it draws weight and adds nothing.
Running statistics are mixed by lambda0.
"""

import torch

from coterie.clients.programs import train
from coterie.core.fields import Positive, Share
from coterie.core.records import state
from coterie.moves import mixing
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.method import Method, method


@state
class FedMGDAState:
    """The global model."""

    model: Models


@method("fedmgda")
class FedMGDA(Method):
    """A common descent direction of all clients, near FedAvg's (FedMGDA+). (Hu et al., IEEE TNSE 2022)"""

    family = "global"
    sends = "a model each way"
    gives_away = "its trained model, and once, when it joins, its number of samples"

    epsilon: Share = 0.1
    """How far a client's weight may be from its part of the samples: 0 is FedAvg of normalised changes, 1 is MGDA."""

    server_rate: Positive = 1.0
    """eta: the longest step of the server, in units of the parameters."""

    def begin(self, fed: Federation) -> FedMGDAState:
        """Start from a fresh model."""
        return FedMGDAState(fed.new_model())

    def round(self, fed: Federation, state: FedMGDAState) -> FedMGDAState:
        """Normalise the cohort's changes, find the weights that fit all of them best, and take the step."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train, cohort, shared=state.model, local=self.local)
        changes = replies.model - state.model
        lengths = changes.norm()
        directions = changes / torch.where(lengths > 0, lengths, 1)
        weights = mixing.least_norm(directions.parameters, replies.weights(), self.epsilon)
        moved = state.model + weights @ directions * self.server_rate
        return FedMGDAState(Models(fed.net, moved.parameters, replies.average().buffers))
