"""CAFA besides accuracy: who passes for an IID client by its labels."""

from collections.abc import Mapping

import numpy as np

from coterie.core.fields import Count
from coterie.moves import evidence, grouping
from coterie.moves.grouping import Grouping
from coterie.runs.settings import World
from coterie.server.fitting import Record
from coterie.studies.measures import Measure, measures


@measures.register("label-clusters")
class LabelClusters(Measure):
    """CAFA's classification of clients by their labels: is the largest cluster that of the IID ones?

    Clients are clustered by k-means over the label shares of their training data, and who is in the largest cluster
    passes for IID (Section III-A). Where the split says which clients are (its first true group), accuracy, precision,
    recall and F1 tell how right that is (Tables II and III). Nothing is trained. Figures find the label shares (Figs. 2
    and 5) and the silhouette of every k (Fig. 4).
    """

    gives = ("k", "silhouette", "accuracy", "precision", "recall", "f1")

    clusters: Count | None = None
    """k; by default the one with the highest mean silhouette of 2 to the number of clients less one."""

    def run(self, world: World) -> tuple[Record, Record]:
        """Cluster the clients of a world, and compare the largest cluster with the IID clients."""
        population = world.population
        shares = evidence.label_shares(population.label_counts())
        found, scores = self._found(shares, world.seed)
        largest = grouping.largest_group(found.labels, shares).matrix[0]
        summary: Record = {"k": len(found)}
        if scores:
            summary["silhouette"] = max(scores.values())
        if population.groups is not None:
            summary |= classification(largest, population.groups == 0)
        details = {
            "clients": list(population.names),
            "true_groups": None if population.groups is None else population.groups.tolist(),
            "classes": list(population.labels),
            "label_shares": shares.tolist(),
            "clusters": found.labels.tolist(),
            "iid": largest.tolist(),
            "silhouette": [[k, score] for k, score in scores.items()],
        }
        return summary, details

    def _found(self, shares: np.ndarray, seed: int) -> tuple[Grouping, Mapping[int, float]]:
        """The clusters, and the mean silhouette of every k that was tried."""
        if self.clusters is not None:
            return grouping.kmeans(shares, self.clusters, seed=seed), {}
        found = grouping.kmeans_silhouette(shares, seed=seed)
        return found, found.scores


def classification(flagged: np.ndarray, truth: np.ndarray) -> dict[str, float | None]:
    """Accuracy, precision, recall and F1 of a flag per client; nothing where a share is of no clients at all."""
    flagged, truth = np.asarray(flagged, dtype=bool), np.asarray(truth, dtype=bool)
    right = int((flagged & truth).sum())
    shares = {
        "accuracy": (int((flagged == truth).sum()), len(truth)),
        "precision": (right, int(flagged.sum())),
        "recall": (right, int(truth.sum())),
        "f1": (2 * right, int(flagged.sum() + truth.sum())),
    }
    return {name: part / whole if whole else None for name, (part, whole) in shares.items()}
