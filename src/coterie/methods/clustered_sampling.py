"""Clustered Sampling: FedAvg whose cohort is drawn so that every kind of client is in it.

Fraboni, Vidal, Kameni and Lorenzi, "Clustered sampling: low-variance and improved representativity for clients
selection in federated learning", ICML 2021.

| symbol | here |
|---|---|
| m | the size of the cohort, and the number of draws |
| p_i | a client's part of all samples |
| r_ki | the chance of client i in draw k; rows sum to 1, columns to m p_i |

Every draw gives one client, and the new model is the mean of the drawn clients' models, so that its expectation is the
mean weighted by p_i, with less variance than m draws from p_i. A client that is drawn twice trains once and counts
twice. Draws are arranged by size once and for all (algorithm 1), or anew in every round by how alike clients' last
changes are (algorithm 2); for the latter the server remembers the last change of every client, which FedAvg's forgets.
Two differences from the public code: a client that was never drawn has no change yet, so it is at a right angle to
those that have, where the code makes it identical to everyone; and Ward's tree is built from the distances, where the
code takes the rows of their matrix for coordinates.
"""

from typing import Literal

import numpy as np

from coterie.clients.programs import train
from coterie.core.records import state
from coterie.moves import mixing, sampling
from coterie.nets.stacks import Changes, Models, angles
from coterie.server.federation import Federation
from coterie.server.method import Method, method


@state
class ClusteredSamplingState:
    """The global model and, by similarity, the last change of every client [client], zero for those never drawn."""

    model: Models
    changes: Changes | None


@method("clustered-sampling")
class ClusteredSampling(Method):
    """FedAvg with one draw from each cluster of clients, by size or similarity. (Fraboni et al., ICML 2021)"""

    family = "global"
    sends = "a model each way"
    gives_away = "its trained model, and once, when it joins, its number of samples; by similarity, who it is like"

    by: Literal["size", "similarity"] = "size"
    """Clients share a draw with others of like size (algorithm 1), or with those whose changes are alike (2)."""

    def begin(self, fed: Federation) -> ClusteredSamplingState:
        """Start from a fresh model; nobody has changed it yet."""
        model = fed.new_model()
        return ClusteredSamplingState(model, None if self.by == "size" else fed.grown(model.zeros().expand(0)))

    def round(self, fed: Federation, state: ClusteredSamplingState) -> ClusteredSamplingState:
        """Draw clients, let each train once, and take the mean of the draws."""
        counts = self._drawn(fed, state)
        replies = fed.run(train, np.flatnonzero(counts), shared=state.model, local=self.local)
        weights = mixing.by_samples(counts[replies.clients])
        changes = state.changes
        if changes is not None:
            changes = fed.updated(changes, replies.clients, replies.model - state.model)
        return ClusteredSamplingState((weights @ replies.model)[0], changes)

    def _drawn(self, fed: Federation, state: ClusteredSamplingState) -> np.ndarray:
        """How often each client is drawn in this round, [client]."""
        present = fed.clients
        sizes = fed.sizes.numpy()[present]
        draws = sampling.cohort_size(self.participation, len(present))
        if state.changes is None:
            chances = sampling.chances_by_size(sizes, draws)
        else:
            changes = fed.grown(state.changes)[present]
            chances = sampling.chances_by_similarity(sizes, draws, angles(changes.parameters).cpu().numpy())
        counts = np.zeros(len(fed.names), dtype=np.int64)
        counts[present] = sampling.draw(chances, fed.generator("sample"))
        return counts
