"""IFCA: the server keeps k models; every client trains the one that fits its data best.

Ghosh, Chung, Yin and Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020, Algorithm 1
with model averaging (option II).

| symbol | here |
|---|---|
| k, theta_j | `clusters`, the server's models |
| j-hat = argmin_j F_i(theta_j) | `choice`: by the mean loss on the client's own training data; the first of equals |
| tau, gamma | `epochs` or `steps`, `rate` |

Where the paper leaves things open: a group's mean is weighted by samples (the paper's clients have equally many), a
model that nobody chose stays as it is, and a loss that is not a number is never the lowest. The authors' code draws
the initial models anew until every group attracts enough clients, which the text does not say: `init_retry`.
"""

from typing import Annotated, Literal

import torch

from coterie.clients.clients import Clients
from coterie.clients.outputs import place_among
from coterie.clients.programs import Outputs, choose, program
from coterie.core.fields import Count, Share, at_least
from coterie.core.records import state
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class IFCAState:
    """The server's models, [cluster]."""

    models: Models


@method("ifca")
class IFCA(Method):
    """Every client trains the one of k models that fits its data best. (Ghosh et al., NeurIPS 2020)"""

    family = "clustered"
    sends = "all models to a client; one model and the number of its choice back"
    gives_away = "its trained model, and to which group it belongs"

    clusters: Count = 4
    """k: how many models the server keeps. The paper takes the true number of groups."""

    init_retry: Annotated[int, at_least(0)] = 0
    """How often the initial models may be drawn anew if a group attracts too few clients. 0 takes the first draw, as
    the paper's text does; its code tries until it succeeds. Every draw costs k models to all clients."""

    init_balance: Share = 0.4
    """A draw is good if every model attracts this part of an even share of the clients. The authors' code asks for 35%
    of the clients with 2 groups (0.7) and for 10% with 4 (0.4)."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients of a group count by their number of samples, or all the same."""

    def begin(self, fed: Federation) -> IFCAState:
        """Models from different seeds; if asked, the best balanced of several draws, or the first that is good."""
        best, balance = fed.new_models(self.clusters), -1.0
        for draw in range(1 + self.init_retry if self.init_retry else 0):
            models = fed.new_models(self.clusters, first=draw * self.clusters)
            chosen = torch.bincount(fed.run(choose, shared=models).choice.cpu(), minlength=self.clusters)
            least = float(chosen.min() / chosen.sum()) * self.clusters
            if least > balance:
                best, balance = models, least
            if balance >= self.init_balance:
                break
        return IFCAState(best)

    def round(self, fed: Federation, state: IFCAState) -> IFCAState:
        """Send all models out; each moves to the mean of what the clients that chose it have made of it."""
        cohort = fed.sample(self.participation)
        replies = fed.run(choose_and_train, cohort, shared=state.models, local=self.local)
        return IFCAState(replies.average(self.weighting, by=replies.choice, otherwise=state.models))

    def serve(self, fed: Federation, state: IFCAState) -> serving.Served:
        """To each client the model with the lowest loss on its training data, whether it took part or not."""
        return serving.best_fit(state.models)


@program(gives=place_among("models"))
def choose_and_train(clients: Clients, models: Models, local: LocalTraining) -> Outputs:
    """IFCA's client: train the model with the lowest training loss."""
    choice = clients.best_fit(models)
    return {"model": clients.train(models.chosen(choice), local).models, "choice": choice}
