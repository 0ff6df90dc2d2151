"""FedSoft: a client belongs to every cluster in part, and its own model is pulled to all their centres at once.

Ruan and Joe-Wong, "FedSoft: soft clustered federated learning with proximal local updating", AAAI 2022.

| symbol | here |
|---|---|
| S, c_s | `clusters`, the centres: models that the server keeps |
| w_k | a client's own model, which it keeps and predicts with |
| n_ks | of how many of the client's samples the loss is lowest under c_s; counted every tau rounds (`estimate_every`) |
| u_ks = max(n_ks / n_k, sigma) | the client's importance weights; sigma is `smoother` |
| v_sk = u_ks n_k / sum over clients | how much a client counts in a centre's mean |
| lambda | `strength`: clients lower F_k(w) + lambda/2 sum_s u_ks, times the squared distance from w to c_s |
| K | `drawn`: clients for each centre in a round |

All pulls together are one, of strength lambda sum_s u_ks to the mean of the centres by u_ks: so a client is sent that
mean alone, made for it by the server, and all centres only when it has to count. A client goes on from its own model,
as in the authors' program; with one centre and `start=centres` it is FedProx.

The authors draw K clients for every centre by v_sk, and take their plain mean. That is `drawn`, but with replacement,
so that the mean is right on average: their program draws without, and with K as large as the number of clients all
centres would be equal. By default the cohort is a share of the clients, as in other methods, each weighted by v_sk in
each centre, as the program does if it selects nobody. As published, the program stops in the first round: it gives the
function that counts an argument that this does not take. The method was read from it and from public summaries, not
from the paper's text.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import COUNT, MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Count, NonNegative, Share, at_least
from coterie.core.records import state
from coterie.moves import mixing, sampling
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedSoftState:
    """The centres, and how clients' samples are spread over them."""

    models: Models
    """The centres, [cluster]."""
    counts: Tensor
    """n_ks as last counted, [client, cluster]; all 0 for a client that has not counted yet."""


@method("fedsoft")
class FedSoft(Method):
    """A client belongs to every cluster in part, and is pulled to all their centres. (Ruan and Joe-Wong, AAAI 2022)"""

    family = "clustered"
    sends = "a model each way; every few rounds all centres to everybody, and a number for each back"
    gives_away = "its trained model, and of how many of its samples each centre's loss is the lowest"

    clusters: Count = 4
    """S: how many centres the server keeps; in the authors' program as many as there are sources of data."""

    estimate_every: Count = 2
    """tau: after how many rounds all clients count anew; 2 in the authors' example."""

    strength: NonNegative = 0.1
    """lambda: the strength of the pull. 0 is training alone. The authors' program has 0.01 to 1, mostly 0.1. As steps
    are explicit, `strength` times `rate` must stay below 2."""

    smoother: Share = 0.0001
    """sigma: the least importance of a centre to a client. The authors'."""

    drawn: Annotated[int, at_least(0, "at least 1, or 0 for a cohort by participation")] = 0
    """K: how many clients are drawn for each centre in a round, by importance; 15 of 20 in the authors' example. 0
    draws a share of all clients (`participation`)."""

    start: Literal["own", "centres"] = "own"
    """Whether clients go on from their own models, or train anew from the mean of the centres that they are sent."""

    predict_with: Literal["own", "centre"] = "own"
    """What clients predict with: their own models, or the centre with the lowest loss on their training data."""

    def begin(self, fed: Federation) -> FedSoftState:
        """Centres from different seeds."""
        return FedSoftState(fed.new_models(self.clusters), torch.zeros(len(fed.names), self.clusters).double())

    def round(self, fed: Federation, state: FedSoftState) -> FedSoftState:
        """Let clients train near their mix of the centres, and move the centres to their weighted means."""
        counts = self._counted(fed, state)
        importance = self._importance(counts)
        pulls = importance.sum(dim=1)
        cohort, weights = self._cohort(fed, counts.sum(dim=1, keepdim=True) * importance)
        sent = {"mix": (importance / pulls[:, None])[cohort] @ state.models, "pull": self.strength * pulls[cohort]}
        replies = fed.run(train_near, cohort, each=sent, local=self.local, own=self.start == "own")
        return FedSoftState(replies.mixed(weights[:, replies.clients], otherwise=state.models), counts)

    def _counted(self, fed: Federation, state: FedSoftState) -> Tensor:
        """n_ks [client, cluster] of all clients, after those were asked whose turn it is."""
        counts = fed.grown(state.counts)
        new = fed.clients[(counts[fed.clients] == 0).all(dim=1).numpy()]
        asked = fed.clients if fed.is_due(1, self.estimate_every) else new
        replies = (fed.ask if counts.any() else fed.run)(count_best, asked, shared=state.models)
        return counts if replies is None else fed.updated(counts, replies.clients, replies.fitted_best)

    def _importance(self, counts: Tensor) -> Tensor:
        """u_ks, [client, cluster]; even for clients that have not counted yet."""
        samples = counts.sum(dim=1, keepdim=True)
        return torch.where(samples > 0, counts / samples, 1 / self.clusters).clamp(min=self.smoother)

    def _cohort(self, fed: Federation, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Who trains, and how much clients count in the centres' means, [cluster, client]."""
        known = fed.clients[(weights[fed.clients] > 0).any(dim=1).numpy()]
        if not self.drawn:
            return torch.from_numpy(fed.sample(self.participation, among=known)), weights.T
        rng, times = fed.generator("sample"), torch.zeros(weights.T.shape, dtype=torch.float64)
        for row, column in zip(times, weights.T, strict=True):
            chosen, count = sampling.by_size(known, column[known], self.drawn, rng)
            row[chosen] = torch.from_numpy(count).double()
        return times.any(dim=0).nonzero()[:, 0], times

    def serve(self, fed: Federation, state: FedSoftState) -> serving.Served:
        """Each client's own model, or the centre that fits it best."""
        return serving.kept("model") if self.predict_with == "own" else serving.best_fit(state.models)


@program(gives=lambda net, asked: {"fitted_best": COUNT.of_each(asked["models"])})
def count_best(clients: Clients, models: Models) -> Outputs:
    """Of how many of the client's training samples each model's loss is the lowest."""
    return {"fitted_best": mixing.best_counts(clients.losses(models))}


@program(told={"own": "start=own"}, gives={"model": MODEL})
def train_near(clients: Clients, mix: Models, pull: Tensor, local: LocalTraining, own: bool) -> Outputs:
    """FedSoft's client: train its own model, or the mix, pulled to the mix; keep what comes out and send it back."""
    start = clients.state("model", otherwise=clients.initial()) if own else mix
    trained = clients.train(start, local, pull=pull, anchor=mix).models
    clients.keep(model=trained)
    return {"model": trained}
