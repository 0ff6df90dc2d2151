"""FedEM: the server keeps a few component models; every client mixes their predictions in its own proportions.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS
2021, Algorithm 1.

| symbol | here |
|---|---|
| M, theta_m | `components`, the server's models |
| pi_t | `shares`: a client's weight of each component, which never leaves it |
| q_t(z_i = m) | how likely sample i comes from component m: the sample's weight in that component's training |

Components must start from different seeds: equal ones would stay equal. The E step sees all training samples as they
are, without augmentation. The mean is over the clients that took part: the authors' code takes it over all of them, and
so dilutes it with old models when clients are sampled. A client that has not taken part yet finds its shares by EM with
the components as they are.
"""

import torch

from coterie.clients.clients import Clients
from coterie.clients.outputs import Output
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Count
from coterie.core.records import state
from coterie.moves import mixing
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedEMState:
    """The components, [component]."""

    models: Models


@method("fedem")
class FedEM(Method):
    """Every client mixes a few shared models in its own proportions. (Marfoq et al., NeurIPS 2021)"""

    family = "personal"
    sends = "all components each way, so it costs as many times as much as FedAvg"
    gives_away = "its trained components, and by how far each has moved on which of them it was trained most; no shares"

    components: Count = 3
    """M: how many models the server keeps; 3 in the paper."""

    def begin(self, fed: Federation) -> FedEMState:
        """Components from different seeds."""
        return FedEMState(fed.new_models(self.components))

    def round(self, fed: Federation, state: FedEMState) -> FedEMState:
        """Send all components out; each moves to the mean of what the cohort has made of it."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_components, cohort, shared=state.models, local=self.local)
        weights = mixing.by_samples(replies.samples)
        return FedEMState(Models.cat([weights @ replies.model[:, component] for component in range(self.components)]))

    def serve(self, fed: Federation, state: FedEMState) -> serving.Served:
        """The components, mixed by the shares that each client keeps."""
        return serving.mixture(state.models, "shares")


@program(gives=lambda net, asked: {"model": Output(Models, tuple(asked["models"].shape))})
def train_components(clients: Clients, models: Models, local: LocalTraining) -> Outputs:
    """FedEM's client: an E step, new shares, and every component trained on samples weighted by responsibility."""
    even = torch.full(models.shape, 1 / models.shape[1], dtype=torch.float64, device=models.parameters.device)
    shares = clients.state("shares", otherwise=even)
    likely = mixing.responsibilities(clients.losses(models), shares)  # [client, component, sample]
    clients.keep(shares=likely.nanmean(dim=2))
    weights = likely.to(models.parameters.dtype).nan_to_num(0)
    trained = [
        clients.train(models[:, component], local, sample_weights=weights[:, component]).models
        for component in range(models.shape[1])
    ]
    return {"model": Models.stack(trained, axis=1)}
