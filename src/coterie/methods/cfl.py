"""CFL: where the clients of a cluster pull its model in different directions, it is split in two.

Sattler, Müller and Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", IEEE TNNLS 2021 (first as arXiv 1910.01991): the recursion, its bipartition (Algorithm 1), and the
way of new clients down the tree.

| symbol | here |
|---|---|
| theta_c, Delta_i | a cluster's model, a client's update of it |
| eps_1, eps_2 | `mean_norm`: near a stationary point of the cluster; `client_norm`: but some client is not |
| alpha_cross | cosines between updates of clients on different sides |
| gamma_max | `gamma`: how far clients of one distribution may differ |

Clusters are the nodes of a tree: one that was split keeps the model from which the two sides parted, and how they
parted. A client at such a node (it came later, or was not asked when the cluster was split) trains from that model and
goes down to the side that its update is more similar to, one node in a round. So nothing old enters a mean, and clients
may be sampled; the paper asks all.

The paper's thresholds are absolute norms, to be found anew for every net and rate (0.4 and 1.6 in the authors' code).
By default they are relative here. Means are weighted by samples as in the paper; its code takes plain ones, skips the
check of gamma, and splits by complete linkage, where Algorithm 1 is single linkage.
"""

from dataclasses import replace
from math import sqrt
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.programs import train
from coterie.core.fields import NonNegative, at_least, within
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing
from coterie.nets.stacks import Changes
from coterie.server import serving
from coterie.server.cluster_tree import ClusterTree
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method


@state
class CFLState(ClusterTree):
    """The tree of clusters."""

    unit: float = 0.0
    """The longest update of the first round."""


@method("cfl")
class CFL(Method):
    """Splits a cluster in two where its clients' updates oppose each other. (Sattler et al., IEEE TNNLS 2021)"""

    family = "clustered"
    sends = "a model each way"
    gives_away = "its trained model; from its update the server learns which clients are alike"

    mean_norm: NonNegative = 0.25
    """eps_1: a cluster may be split if its mean update is shorter than this; 0 never splits, which is FedAvg. 0.25 is
    what the authors' 0.4 is of their 1.6."""

    client_norm: NonNegative = 0.5
    """eps_2: and it is split only if some client's update is longer than this."""

    relative: bool = True
    """Whether `mean_norm` is in units of the longest update of the cluster in that round, and `client_norm` of the
    longest in the first round; otherwise both are norms, as in the paper."""

    gamma: Annotated[float | None, within("[0, 1)", "in [0, 1), or none for no check")] = 0.0
    """gamma_max: split only if clients of different sides are less similar than sqrt((1 - gamma) / 2); none skips the
    check, as public code does."""

    warmup: Annotated[int, at_least(0)] = 10
    """Rounds before the first split; 20 in the authors' code."""

    linkage: Literal["single", "complete"] = "complete"
    """How a cluster is split: so that the most similar clients of different sides are as dissimilar as can be, as in
    the paper (`single`), or by complete linkage, as in its code, which is less easily misled by a single client."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients of a cluster count by their number of samples, as in the paper, or all the same, as in its code."""

    def begin(self, fed: Federation) -> CFLState:
        """All clients at one node, with a fresh model."""
        return CFLState.one(fed.new_model(), fed)

    def round(self, fed: Federation, state: CFLState) -> CFLState:
        """Let clients train their nodes' models; split, and move every leaf to the mean of its members."""
        tree, cohort = state.grown(fed), fed.sample(self.participation)
        replies = fed.run(train, cohort, each=tree.models[tree.place[cohort]], local=self.local)
        here = tree.place[replies.clients]
        updates = replies.model - tree.models[here]
        fresh = ~torch.isin(here, tree.parents)  # who trained a leaf; the others only go down the tree
        tree = replace(tree, unit=tree.unit or float(updates.norm().max())).lowered(replies.clients, here, updates)
        return self.divided(fed.round, tree, replies, updates, fresh).averaged(replies, fresh, self.weighting)

    def divided(self, number: int, tree: CFLState, replies: Replies, updates: Changes, fresh: Tensor) -> CFLState:
        """The tree after those leaves are split whose clients' updates oppose each other."""
        counts = replies.counts(self.weighting)
        for node in tree.leaves:
            rows = (tree.members[node, replies.clients] & fresh).nonzero()[:, 0].numpy()
            sides = self._sides(number, updates[rows], counts[rows], tree.unit)
            if sides is not None:
                clients = replies.clients[rows]
                tree = tree.split(node, clients, [self.named(clients)[side] for side in sides])
        return tree

    def named(self, clients: np.ndarray) -> np.ndarray:
        """The numbers by which clients of a cluster that is split are put on its sides: their own."""
        return clients

    def _sides(self, number: int, updates: Changes, samples: Tensor, unit: float) -> np.ndarray | None:
        """Who is on which side if a cluster is to be split, [side, client]."""
        if number <= self.warmup or len(updates) < 3:
            return None
        mean, longest = float((mixing.by_samples(samples) @ updates).norm()), float(updates.norm().max())
        near, far = (longest, unit) if self.relative else (1.0, 1.0)
        if mean >= self.mean_norm * near or longest <= self.client_norm * far:
            return None
        similarity = evidence.update_cosine(updates)
        sides = grouping.bipartition(similarity, self.linkage).matrix
        if len(sides) < 2 or (self.gamma is not None and _across(similarity, sides) >= sqrt((1 - self.gamma) / 2)):
            return None
        return sides

    def serve(self, fed: Federation, state: CFLState) -> serving.Served:
        """The model of the node that each client is at."""
        return serving.each(state.models, state.grown(fed).place)


def _across(similarity: np.ndarray, sides: np.ndarray) -> float:
    """alpha_cross^max: how similar the most similar clients of different sides are."""
    return float(similarity[np.ix_(sides[0], sides[1])].max())
