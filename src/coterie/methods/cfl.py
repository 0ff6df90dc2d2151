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

A model travels each way. The server learns a client's trained model, and from its update which clients are alike.

Clusters are the nodes of a tree: one that was split keeps the model from which the two sides parted, and how they
parted. A client at such a node (it came later, or was not asked when the cluster was split) trains from that model and
goes down to the side that its update is more similar to, one node in a round. So nothing old enters a mean, and clients
may be sampled; the paper asks all.

The paper's thresholds are absolute norms, to be found anew for every net and rate (0.4 and 1.6 in the authors' code).
By default they are relative here. Means are weighted by samples as in the paper; its code takes plain ones, skips the
check of gamma, and splits by complete linkage, where Algorithm 1 is single linkage.

Public implementations, the authors' own first, take positions inside a cluster for numbers of clients when they split
it. From the second split on, clusters then overlap, and clients are in none. `compat="positions"` does so too, and
treats them as FedEM's code does: who is in several goes on with the newest, who is in none alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.core.fields import NonNegative, at_least, within
from coterie.core.records import state
from coterie.moves import evidence, grouping, mixing
from coterie.nets.stacks import Changes, Models
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.server.serving import Served

__all__ = ["CFL"]


@state
class State:
    """A tree of clusters: those that were split, and the leaves, which are trained."""

    models: Models
    """Each node's model, [node]; of one that was split, the model that it was split at."""
    parents: Tensor
    """The node that each was split off from, [node]; -1 for the first, which had all clients."""
    parting: Changes
    """In which direction each node's clients went when it was split off, [node]."""
    members: Tensor
    """Which clients are at which node, [node, client]; each at one, unless `compat` makes them overlap."""
    unit: float = 0.0
    """The longest update of the first round."""


@method("cfl")
class CFL(Method):
    """Splits a cluster in two where its clients' updates oppose each other. (Sattler et al., IEEE TNNLS 2021)"""

    mean_norm: NonNegative = 0.25
    """eps_1: a cluster may be split if its mean update is shorter than this; 0 never splits, which is FedAvg. 0.25 is
    what the authors' 0.4 is of their 1.6."""

    client_norm: NonNegative = 0.5
    """eps_2: and if some client's update is longer than this."""

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

    compat: Literal["none", "positions"] = "none"
    """`positions` repeats an error of public code, for comparison with tables that were made with it: after a split,
    positions inside the cluster are taken for numbers of clients. Who is in no cluster then goes on alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compat == "positions" and self.participation < 1:
            raise SettingsError(f"participation={self.participation}: the code that compat repeats asks all clients")

    def begin(self, fed: Federation) -> State:
        """All clients at one node, with a fresh model."""
        model = fed.new_model().expand(1)
        return State(model, torch.tensor([-1]), model.zeros(), torch.ones(1, len(fed.names), dtype=torch.bool))

    def round(self, fed: Federation, state: State) -> State:
        """Let clients train their nodes' models; split, and move every leaf to the mean of its members."""
        state = _grown(state, len(fed.names))
        place, device = _place(state.members), state.models.parameters.device
        cohort = fed.sample(self.participation)
        replies = fed.run(train, cohort, each=state.models[place[cohort].to(device)], local=self.local)
        here = place[replies.clients]
        updates = replies.model - state.models[here.to(device)]
        unit = state.unit or float(updates.norm().max())
        samples = replies.samples if self.weighting == "samples" else torch.ones(len(replies))
        fresh = ~torch.isin(here, state.parents)  # who trained a leaf; the others only go down the tree
        members, parents = _lowered(state, replies.clients, here, updates), state.parents.tolist()
        for node in sorted(set(range(len(parents))) - set(parents)):
            rows = (members[node, replies.clients] & fresh).nonzero()[:, 0]
            sides = self._sides(fed.round, updates[rows.to(device)], samples[rows], unit)
            if sides is not None:
                members[node, replies.clients[rows]] = False
                numbers = np.arange(len(rows)) if self.compat == "positions" else replies.clients[rows]
                members = torch.cat([members, _rows_of([numbers[side] for side in sides], members.shape[1])])
                parents += [node, node]
        lost = (~members.any(dim=0)).nonzero()  # nobody, but for the error that `compat` repeats
        members = torch.cat([members, _rows_of(list(lost.numpy()), members.shape[1])])
        parents += [0] * len(lost)
        # A new node begins where it was split off, and moves by its members' mean.
        models = Models.cat([state.models, state.models[parents[len(state.models) :]]])
        moved = replies.mixed((members[:, replies.clients] & fresh) * samples, otherwise=models)
        parting = Changes.cat([state.parting, (moved - models)[len(state.models) :]])
        return State(moved, torch.tensor(parents), parting, members, unit)

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

    def serve(self, fed: Federation, state: State) -> Served:
        """The model of the node that each client is at."""
        return serving.each(state.models, _place(_grown(state, len(fed.names)).members))


def _across(similarity: np.ndarray, sides: np.ndarray) -> float:
    """alpha_cross^max: how similar the most similar clients of different sides are."""
    return float(similarity[np.ix_(sides[0], sides[1])].max())


def _grown(state: State, clients: int) -> State:
    """The state for so many clients: new ones are at the root of the tree."""
    new = clients - state.members.shape[1]
    members = F.pad(state.members, (0, new))
    members[0, clients - new :] = True
    return replace(state, members=members)


def _place(members: Tensor) -> Tensor:
    """The last node that each client is at, [client]."""
    return len(members) - 1 - members.flip(0).int().argmax(dim=0)


def _rows_of(groups: Sequence[np.ndarray], clients: int) -> Tensor:
    """Membership [group, client] of groups of clients."""
    rows = torch.zeros(len(groups), clients, dtype=torch.bool)
    for row, group in zip(rows, groups, strict=True):
        row[group] = True
    return rows


def _lowered(state: State, clients: np.ndarray, here: Tensor, updates: Changes) -> Tensor:
    """Membership after clients at nodes that were split have gone to the side that their update is more similar to."""
    members = state.members.clone()
    for row in torch.isin(here, state.parents).nonzero()[:, 0].tolist():
        sides = (state.parents == here[row]).nonzero()[:, 0]
        both = Changes.cat([updates[[row]], state.parting[sides.to(updates.parameters.device)]])
        members[here[row], clients[row]] = False
        members[sides[evidence.update_cosine(both)[0, 1:].argmax()], clients[row]] = True
    return members
