"""FedAMP: clients whose models are alike pass each other more of them, and so become more alike.

Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, "Personalized cross-silo federated learning on non-IID data", AAAI 2021,
Algorithm 1, with the attention for deep nets that the paper calls HeurFedAMP.

| symbol | here |
|---|---|
| w_i | a client's own model, which it keeps and predicts with; the server has a copy of what it sent last |
| u_i = sum_j xi_ij w_j | its message: what it is sent, a mix of all clients' models |
| xi_ij = alpha_k A'(d_ij^2), A(x) = 1 - exp(-x / sigma) | `attention=distance`, Eq. 4; xi_ii is what is left to 1 |
| xi_ij = (1 - xi_ii) exp(sigma cos_ij) / sum over others | `attention=angle`: HeurFedAMP |
| argmin F_i(w) + lambda / (2 alpha_k) times the squared distance to u_i | local training from u_i, pulled to it |

Where the paper is wrong or open: the gradient of A(d^2) is twice what Eq. 4 takes, which only means another alpha_k;
xi_ii is below 0 if alpha_k is large, and here others then count 1 together. Local training starts at the message, as in
FLGo's code: the pull alone is 0.0001 with its defaults. PFLlib's penalty is the distance and not its square. The paper
divides alpha_k by 10 every 30 rounds, which is left out. All clients take part in it; here, models of those that are
absent count as they were sent last, and one that has sent none counts for nobody, as if its own was the initial model.
The equations were compared with two public summaries and with the code named, not with the paper's text.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative, Positive, Share
from coterie.core.records import state
from coterie.moves import mixing
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedAMPState:
    """What clients sent last, [client], and whether they have sent anything, [client]."""

    models: Models
    sent: Tensor


@method("fedamp")
class FedAMP(Method):
    """Every client starts from a mix of all models, those like its own above all. (Huang et al., AAAI 2021)"""

    family = "personal"
    sends = "a model each way: down a mix of the clients' models, made for this client"
    gives_away = "its trained model; others get mixes with it, and whoever is like it one that is nearly its model"

    attention: Literal["angle", "distance"] = "angle"
    """What likeness is: the cosine of two models, as in HeurFedAMP, which the paper takes for deep nets, or their
    distance, as in FedAMP."""

    sigma: Positive = 25.0
    """How sharp attention is: by angle, the larger the sharper; by distance, the scale of squared distances between
    models, the smaller the sharper. 25 is FLGo's for angles."""

    own_weight: Share | None = None
    """xi_ii of attention by angle: the part of its own model in a client's message; by default the same as if all were
    alike, one by the number of clients, as in FLGo."""

    alpha: Positive = 1e4
    """alpha_k: the length of the step along attention by distance, and what divides the pull. FLGo's, as in the
    paper."""

    strength: NonNegative = 1.0
    """lambda: clients lower F(w) + strength / (2 alpha) |w - u|^2."""

    @property
    def pull(self) -> float:
        """How strongly clients' models are drawn to their messages."""
        return self.strength / self.alpha

    def begin(self, fed: Federation) -> FedAMPState:
        """Nobody has sent a model."""
        count = len(fed.names)
        return FedAMPState(fed.new_model().expand(count), torch.zeros(count, dtype=torch.bool))

    def round(self, fed: Federation, state: FedAMPState) -> FedAMPState:
        """Send every client of the cohort its message, and keep the models that come back."""
        cohort = fed.sample(self.participation)
        models, sent = self._known(fed, state)
        messages = self._weights(models, sent)[cohort] @ models
        replies = fed.run(train_and_keep, cohort, each=messages, local=self.local, pull=self.pull)
        return FedAMPState(
            fed.updated(models, replies.clients, replies.model), fed.updated(sent, replies.clients, True)
        )

    def _known(self, fed: Federation, state: FedAMPState) -> tuple[Models, Tensor]:
        """The models of all clients, also of those that have joined since, and whether they have sent theirs."""
        sent = fed.grown(state.sent)
        return fed.grown(state.models).where(sent, fed.new_model().expand(len(sent))), sent

    def _weights(self, models: Models, sent: Tensor) -> Tensor:
        """xi, [client, client]."""
        if self.attention == "distance":
            return mixing.attention(models.parameters, sent, self.alpha, self.sigma)
        own = 1 / len(models) if self.own_weight is None else self.own_weight
        return mixing.attention_by_angle(models.parameters, sent, own, self.sigma)

    def serve(self, fed: Federation, state: FedAMPState) -> serving.Served:
        """Each client's own model; the initial one before it has trained."""
        return serving.kept("model")

    def insight(self, fed: Federation, state: FedAMPState) -> Mapping[str, Any]:
        """By which weights the clients' next messages are mixed."""
        return {"mixing": self._weights(*self._known(fed, state))}


@program(gives={"model": MODEL})
def train_and_keep(clients: Clients, start: Models, local: LocalTraining, pull: float) -> Outputs:
    """Train the model that was sent, pulled to it; keep what comes out and send it back."""
    trained = clients.train(start, local, pull=pull).models
    clients.keep(model=trained)
    return {"model": trained}
