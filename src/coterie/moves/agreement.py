"""How well groups that were found agree with the true ones."""

from typing import Any

import numpy as np


def agreement(found: Any, truth: Any) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information, purity and clients placed right."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    return {
        "ari": float(adjusted_rand_score(truth, found)),
        "nmi": float(normalized_mutual_info_score(truth, found)),
        "purity": purity(found, truth),
        "placed_right": placed_right(found, truth),
    }


def _table(found: Any, truth: Any) -> np.ndarray:
    """How many clients each found group has from each true one, [found, true]."""
    _, rows = np.unique(np.asarray(found), return_inverse=True)
    _, columns = np.unique(np.asarray(truth), return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def purity(found: Any, truth: Any) -> float:
    """Share of clients that are of their found group's commonest true group."""
    table = _table(found, truth)
    return float(table.max(axis=1).sum() / table.sum())


def placed_right(found: Any, truth: Any) -> int:
    """Clients in the right group under the best one-to-one matching of found and true groups."""
    from scipy.optimize import linear_sum_assignment

    table = _table(found, truth)
    return int(table[linear_sum_assignment(table, maximize=True)].sum())
