"""FeSEM: a few centres in the space of weights; every client belongs to the one nearest to its trained model.

Xie, Long, Shen, Zhou, Wang, Jiang and Zhang, "Multi-center federated learning", arXiv 2005.01026, 2020 (later as Long
et al., World Wide Web 2023).

| symbol | here |
|---|---|
| K, W~(k) | `clusters`, the centres: models that the server keeps |
| W_i, r_i | a client's trained model, and the centre nearest to it (E step) |

Centres from different seeds would lie so far apart that no client ever left the one it was sent first. So all clients
of the first round train the same model, and k-means of what they send gives the first centres. A client that has not
taken part yet starts from the mean of the centres, weighted by their members, and joins the nearest one.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.clients.programs import train
from coterie.core.fields import Count
from coterie.moves import grouping, mixing
from coterie.nets.stacks import Models
from coterie.server.clusters import Clusters
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.server.serving import Served


@method("fesem")
class FeSEM(Method):
    """Clients join the nearest of a few centres in the space of weights. (Xie et al., arXiv 2020)"""

    family = "clustered"
    sends = "a model each way"
    gives_away = "its trained model, and by it to which centre it belongs"

    clusters: Count = 4
    """K: how many centres the server keeps."""

    layer: str = "all"
    """What is compared: all weights, as in the paper, the last layer (`head`), or a layer by its name."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """Clients of a centre count all the same, as in the paper, or by their number of samples."""

    def begin(self, fed: Federation) -> Clusters:
        """All centres are one fresh model, and nobody belongs to one."""
        return Clusters(Models.stack([fed.new_model()] * self.clusters), torch.full((len(fed.names),), -1))

    def round(self, fed: Federation, state: Clusters) -> Clusters:
        """Let the cohort train from their centres, assign them anew, and move the centres to their means."""
        cohort = fed.sample(self.participation)
        start = state.start(fed, cohort, otherwise=self._middle(state)[0])
        replies = fed.run(train, cohort, each=start, local=self.local)
        joined = state.joined(fed, replies.clients, self._nearest(fed, state, replies))
        return joined.averaged(fed, replies, self.weighting)

    def _middle(self, state: Clusters) -> Models:
        members = torch.bincount(state.labels[state.labels >= 0], minlength=len(state.models))
        return mixing.by_samples(members) @ state.models if members.any() else state.models[:1]

    def _nearest(self, fed: Federation, state: Clusters, replies: Replies) -> Tensor:
        """The E step: the nearest centre for each model; in the first round k-means finds the centres too."""
        rows = replies.model.part(self.layer).double()
        if (state.labels < 0).all():
            seed = int(fed.generator("centres").integers(2**31))
            return torch.from_numpy(grouping.kmeans(rows, self.clusters, seed).labels)
        return torch.cdist(rows, state.models.part(self.layer).double()).argmin(dim=1).cpu()

    def serve(self, fed: Federation, state: Clusters) -> Served:
        """Each client's centre; one that has none yet gets the mean of the centres."""
        return state.serve(fed, otherwise=self._middle(state)[0])
