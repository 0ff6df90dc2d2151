"""How well groups that were found agree with the true ones."""

from typing import Any


def agreement(found: Any, truth: Any) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information, purity and clients placed right."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    return {
        "ari": float(adjusted_rand_score(truth, found)),
        "nmi": float(normalized_mutual_info_score(truth, found)),
        "purity": purity(found, truth),
        "placed_right": placed_right(found, truth),
    }


def purity(found: Any, truth: Any) -> float:
    """Share of clients that are of their found group's commonest true group."""
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(found, truth)  # [found, true]
    return float(table.max(axis=1).sum() / table.sum())


def placed_right(found: Any, truth: Any) -> int:
    """Clients in the right group under the best one-to-one matching of found and true groups."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(found, truth)
    return int(table[linear_sum_assignment(table, maximize=True)].sum())
