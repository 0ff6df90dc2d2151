"""FedFomo: every client downloads a few others' models, and mixes them by how much each lowers its own loss.

Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized federated learning with first order model optimization", ICLR
2021.

| symbol | here |
|---|---|
| theta_i(t-1), theta_n(t) | the model that a client began its last training with, `base`, and the models as trained |
| w_n = (L_i(theta_i(t-1)) - L_i(theta_n)) / distance of both | `gains`, on the client's validation data |
| theta_i(t) = theta_i(t-1) + sum of w_n (theta_n - theta_i(t-1)) | the mix that it trains further |
| P | `affinity`: which models the server offers to whom |

Weights below 0 count 0, and the others are scaled to sum 1, so the step ends among the models; the client's own trained
model is always one of them. If none is better than the base the client goes back to that. The server adds w to P, and
offers models with the highest P or, with chance epsilon, any. Formulas are the paper's as public code and a summary
have them. The authors' code divides w by the size of its sum before adding it to P, which may be near 0, and takes the
sum of absolute differences for the distance unless told otherwise; PFLlib weighs models by training batches. Here P
grows by w itself and the distance is Euclidean, as in all public code but the authors'. A model of somebody who is
absent can be had as it was sent last.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL, Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative, Share, at_least
from coterie.core.records import state
from coterie.moves import mixing, sampling
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedFomoState:
    """What clients sent last, [client], whether they have sent anything, and P, [client, client]."""

    models: Models
    sent: Tensor
    affinity: Tensor


@method("fedfomo")
class FedFomo(Method):
    """Every client mixes a few others' models by how much each lowers its own loss. (Zhang et al., ICLR 2021)"""

    family = "personal"
    sends = "several models down and one up, with how much each of those it got has lowered the loss"
    gives_away = "its trained model, which others download as it is, and how much others' models would help it"

    downloads: Annotated[int, at_least(0)] = 4
    """How many others' models a client gets in a round; with its own 5, as in the authors' commands. With 0 it is
    training alone, with rounds that make the validation loss worse taken back."""

    explore: Share = 0.3
    """epsilon: the chance of a model that is drawn, instead of the best known one, in the first round; the paper's."""

    explore_decay: NonNegative = 0.05
    """By how much that chance is lower in every further round; the authors' commands have 0.05."""

    def begin(self, fed: Federation) -> FedFomoState:
        """Nobody has sent a model, and nothing is known of anybody."""
        count = len(fed.names)
        none, nothing = torch.zeros(count, dtype=torch.bool), torch.zeros(count, count, dtype=torch.float64)
        return FedFomoState(fed.new_model().expand(count), none, nothing)

    def round(self, fed: Federation, state: FedFomoState) -> FedFomoState:
        """Offer models to the cohort; keep those that come back, and what was said of the others."""
        cohort = fed.sample(self.participation)
        affinity = fed.grown(fed.grown(state.affinity), axis=1)
        offered = self._offered(fed, affinity, np.flatnonzero(state.sent.numpy()), cohort)
        each = {"models": state.models[offered]} if offered.numel() else {}
        replies = fed.run(mix_and_train, cohort, each=each, local=self.local)
        if each:
            told = offered[torch.from_numpy(np.isin(cohort, replies.clients))]
            rows = affinity[replies.clients].scatter_add(1, told, replies.gains.cpu().double())
            affinity = fed.updated(affinity, replies.clients, rows)
        sent = fed.updated(state.sent, replies.clients, True)
        return FedFomoState(fed.updated(state.models, replies.clients, replies.model), sent, affinity)

    def _offered(self, fed: Federation, affinity: Tensor, there: np.ndarray, cohort: np.ndarray) -> Tensor:
        """Whose models each client of the cohort gets, [client, model]: as many for all."""
        there = np.array(sorted(there, key=fed.names.__getitem__), dtype=np.int64)
        others = [there[there != client] for client in cohort]
        count = min(self.downloads, *map(len, others))
        epsilon = max(self.explore - self.explore_decay * (fed.round - 1), 0)
        rows = []
        for client, some in zip(cohort, others, strict=True):
            rng = fed.generator(f"models for {fed.names[client]}")
            rows.append(some[sampling.epsilon_greedy(affinity[client, some], count, epsilon, rng)])
        return torch.from_numpy(np.stack(rows))

    def serve(self, fed: Federation, state: FedFomoState) -> serving.Served:
        """Each client's own model; the initial one before it has trained."""
        return serving.kept("model")


def _model_and_gains(net: Net, asked: Mapping[str, Any]) -> Declared:
    return {"model": MODEL} | ({"gains": Output(float, (len(asked["models"]),))} if "models" in asked else {})


@program(gives=_model_and_gains)
def mix_and_train(clients: Clients, local: LocalTraining, models: Models | None = None) -> Outputs:
    """FedFomo's client: weigh the own model and those that it got by their loss, mix them, and train the mix."""
    base, own = (clients.state(name, otherwise=clients.initial()) for name in ("base", "model"))
    got = [] if models is None else [models[:, place] for place in range(models.shape[1])]
    candidates = Models.stack([base, own, *got], axis=1)
    losses = clients.mean_losses(candidates, "validation")
    gains = mixing.first_order(losses[:, 0], losses, (candidates - candidates[:, :1]).norm().cpu())
    weights = gains.clamp(min=0)
    weights[:, 0] += weights.sum(dim=1) == 0  # nothing is better than the base
    start = ((weights / weights.sum(dim=1, keepdim=True))[:, None] @ candidates)[:, 0]
    trained = clients.train(start, local).models
    clients.keep(base=start, model=trained)
    return {"model": trained, **({"gains": gains[:, 2:]} if got else {})}
