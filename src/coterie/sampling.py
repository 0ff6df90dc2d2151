"""Who takes part in a round."""

import numpy as np

from coterie.errors import SettingsError

__all__ = ["cohort_size", "uniform"]


def cohort_size(participation: float, clients: int) -> int:
    """How many of the clients a share is: at least one, never more than there are, rounded down."""
    if not 0 < participation <= 1:
        raise SettingsError(f"participation={participation}: a fraction in (0, 1]; use 1.0 for all clients")
    return max(1, int(participation * clients + 1e-9))  # 0.29 * 100 is 28.999... in binary


def uniform(clients: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many different clients, each equally likely, in their own order."""
    if count >= len(clients):
        return clients
    return np.sort(rng.choice(clients, size=count, replace=False))
