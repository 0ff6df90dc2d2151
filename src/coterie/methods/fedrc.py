"""FedRC: soft clusters of clients whose labels mean something else, and not of those who have other labels.

Guo, Tang and Lin, "FedRC: tackling diverse distribution shifts challenge in federated learning by robust clustering",
ICML 2024.

| symbol | here |
|---|---|
| K, theta_k | `clusters`, the server's models |
| omega_ik | `shares`: a client's weight of each cluster, which stays with it |
| C_yk | the share of label y in cluster k: of all clients' samples, weighted by gamma |
| I(x, y; theta_k) | exp(-loss) / C_yk, an estimate of P(x, y) / (P(x) P(y)) |
| gamma_ijk | in proportion to omega_ik I(x_ij, y_ij; theta_k): how far a sample belongs to a cluster |

It is FedEM with I in place of the likelihood: who has many of a label draws that label's samples no longer to its
cluster, so that clusters differ by what labels mean (concept shift) and not by how frequent they are. A round is an E
step with the C of the round before, new omega, which are gamma's means over a client's samples, and local steps on
samples weighted by gamma; each model becomes the mean weighted by samples. In the first round all C are equal, which is
FedEM. A label that a cluster has not seen has a C of 1e-8 there, as in the authors' program.

For C each client sends gamma's sum for each label and cluster; of those that are absent the last ones count. Clients
predict with the clusters' models mixed by omega. One that has not taken part yet finds its omega by EM with the models
as they are and no C, as test clients do in the authors' program. That program lets the C of the last round count as one
more sample in the next, which is left out here. The equations were compared with it and with public summaries, not with
the paper's text.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL, Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.core.fields import Count
from coterie.core.records import state
from coterie.moves import mixing
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedRCState:
    """The clusters' models, and which labels each has."""

    models: Models
    """[cluster]."""
    labels: Tensor
    """The sums of gamma that clients sent last, [client, cluster, class]; 0 for a client that has sent none."""


@method("fedrc")
class FedRC(Method):
    """Soft clusters of clients whose labels mean the same, however frequent they are. (Guo et al., ICML 2024)"""

    family = "clustered"
    sends = "all models and their shares of labels to a client; all models and a number for each label and model back"
    gives_away = "its trained models, and how often it has each label, for each model"

    clusters: Count = 3
    """K: how many models the server keeps; 3 in the authors' example."""

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "weighs samples by how frequent their classes are in a cluster"

    def begin(self, fed: Federation) -> FedRCState:
        """Models from different seeds, and nothing known of labels."""
        labels = torch.zeros(len(fed.names), self.clusters, fed.net.classes, dtype=torch.float64)
        return FedRCState(fed.new_models(self.clusters), labels)

    def round(self, fed: Federation, state: FedRCState) -> FedRCState:
        """Send all models out with their shares of labels; each moves to the mean of what the cohort has made of it."""
        cohort = fed.sample(self.participation)
        frequencies = mixing.label_frequencies(state.labels.sum(dim=0))
        sent = {"models": state.models, "frequencies": frequencies}
        replies = fed.run(train_clusters, cohort, shared=sent, local=self.local)
        weights = mixing.by_samples(replies.samples)
        models = Models.cat([weights @ replies.model[:, cluster] for cluster in range(self.clusters)])
        return FedRCState(models, fed.updated(state.labels, replies.clients, replies.labels))

    def serve(self, fed: Federation, state: FedRCState) -> serving.Served:
        """The clusters' models, mixed by the shares that each client keeps."""
        return serving.mixture(state.models, "shares")


def _by_cluster(net: Net, asked: Mapping[str, Any]) -> Declared:
    count = len(asked["models"])
    return {"model": MODEL.of_each(asked["models"]), "labels": Output(float, (count, net.classes), least=0)}


@program(gives=_by_cluster)
def train_clusters(clients: Clients, models: Models, frequencies: Tensor, local: LocalTraining) -> Outputs:
    """FedRC's client: an E step, new shares, and every model trained on samples weighted by gamma."""
    count, labels = models.shape[1], clients.labels()
    even = torch.full(models.shape, 1 / count, dtype=torch.float64, device=models.parameters.device)
    shares = clients.state("shares", otherwise=even)
    places = labels.clamp(min=0)[:, None].expand(-1, count, -1)  # [client, cluster, sample]
    losses = clients.losses(models) + frequencies.double().log().gather(2, places)  # -log I
    likely = mixing.responsibilities(losses, shares)
    clients.keep(shares=likely.nanmean(dim=2))
    known = likely.nan_to_num(0)
    weights = known.to(models.parameters.dtype)
    trained = [clients.train(models[:, k], local, sample_weights=weights[:, k]).models for k in range(count)]
    sums = known @ one_hot(places[:, 0], clients.net.classes).double()
    return {"model": Models.stack(trained, axis=1), "labels": sums}
