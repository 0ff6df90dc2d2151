"""What clients keep about each other: a table of notes for every client, with a row for each of the others.

Others may join in mid-run, but what is kept under a name may not change its shape: the table is kept in blocks of rows.
"""

from collections.abc import Sequence

import numpy as np
import torch

from coterie.clients.clients import Clients

_BLOCK = 32
"""Others in a block."""


def recall(clients: Clients, names: Sequence[str], stranger: np.ndarray) -> np.ndarray:
    """The table of each client, [client, other, column] in float64; the row of a stranger is as given."""
    fresh = torch.from_numpy(stranger).expand(len(clients), _BLOCK, -1)
    blocks = [clients.state(f"others {first}", fresh).cpu().numpy() for first in range(0, len(names), _BLOCK)]
    return np.concatenate(blocks, axis=1)[:, : len(names)].copy()


def remember(clients: Clients, table: np.ndarray, stranger: np.ndarray) -> None:
    """Keep the table of each client."""
    for first in range(0, table.shape[1], _BLOCK):
        block = np.tile(stranger, (len(clients), _BLOCK, 1))
        part = table[:, first : first + _BLOCK]
        block[:, : part.shape[1]] = part
        clients.keep(**{f"others {first}": torch.from_numpy(block)})
