"""CFIC besides accuracy: who has which labels."""

import numpy as np

from coterie.moves import evidence
from coterie.runs.settings import World
from coterie.server.fitting import Record
from coterie.studies.measures import Measure, measures

_FREQUENT = 0.01
"""The share of a client's training data from which on a label counts as frequent."""


@measures.register("client-labels")
class ClientLabels(Measure):
    """Who has which labels: how many samples and labels clients have, and how far one label dominates (CFIC's Fig. 2).

    Of the training data. `dominant_labels` is how many clusters CFIC would make of the clients.
    """

    gives = (
        *("samples_min", "samples_mean", "samples_max", "labels_mean"),
        *("frequent_labels_mean", "largest_share_mean", "dominant_labels"),
    )

    def run(self, world: World) -> tuple[Record, Record]:
        """Count the labels of every client."""
        population = world.population
        counts = population.label_counts()
        shares, sizes = evidence.label_shares(counts), counts.sum(axis=1)
        summary = {
            "samples_min": int(sizes.min()),
            "samples_mean": float(sizes.mean()),
            "samples_max": int(sizes.max()),
            "labels_mean": float((counts > 0).sum(axis=1).mean()),
            "frequent_labels_mean": float((shares > _FREQUENT).sum(axis=1).mean()),
            "largest_share_mean": float(shares.max(axis=1).mean()),
            "dominant_labels": len(np.unique(evidence.dominant_label(shares))),
        }
        details = {
            "clients": list(population.names),
            "classes": list(population.labels),
            "counts": counts.tolist(),
            "shares": shares.tolist(),
        }
        return summary, details
