"""What clients believe of each other from synthetic samples that they show: the clients' side of subjective logic.

In a round clients meet. Each counts which classes its own model sees in the other's samples (`judge`); how alike the
counts of both are is evidence for an opinion (`weigh`). They tell each other their opinions, and each chooses whose
models it wants and asks for their sum (`choose`), which it gets in secret shares (`share`, `respond`, `combine`). Each
of these programs reads the letters of the one before. `coterie.moves.trust` has the arithmetic of opinions.

A client keeps a table with a row for each of the others: what it has found out about it, and what it thinks of it.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.clients import secure_sums
from coterie.clients.clients import Clients
from coterie.clients.letters import Like, one_each
from coterie.clients.outputs import MODEL, Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.clients.secure_sums import Names
from coterie.clients.synthesis import class_counts
from coterie.moves import trust
from coterie.nets.net import Net
from coterie.nets.stacks import Models

EVIDENCE, OPINION, ALIKE, SIGMA, HEARD = slice(0, 2), slice(2, 5), 5, 6, 7
"""Columns of a client's table. First the evidence for and against similarity, and the opinion. Then notes of this
round: how alike both models see the other's samples, the other's weight in the mixed model, and the uncertainty that is
left after hearing others."""

_UNSEEN = -1.0
"""Stands in the column `ALIKE` for somebody whose samples were not seen in this round."""

STRANGER = np.array([1.0, 1.0, *trust.NOTHING, _UNSEEN, 0.0, 1.0])
"""The row of somebody who was never met."""

_BLOCK = 32
"""Rows of a table that are kept together. Others may join in mid-run, but what a client keeps under a name may not
change its shape: so tables are kept in blocks of rows, each under a name of its own."""


def recall(clients: Clients, names: Names) -> np.ndarray:
    """The table of each client, [client, other, column] in float64."""
    fresh = torch.from_numpy(STRANGER).expand(len(clients), _BLOCK, -1)
    blocks = [clients.state(f"others {first}", fresh).cpu().numpy() for first in range(0, len(names), _BLOCK)]
    return np.concatenate(blocks, axis=1)[:, : len(names)].copy()


def remember(clients: Clients, table: np.ndarray) -> None:
    """Keep the table of each client."""
    for first in range(0, table.shape[1], _BLOCK):
        block = np.tile(STRANGER, (len(clients), _BLOCK, 1))
        part = table[:, first : first + _BLOCK]
        block[:, : part.shape[1]] = part
        clients.keep(**{f"others {first}": torch.from_numpy(block)})


@program(letters=True, gives={})
def judge(clients: Clients, names: Names) -> None:
    """Count the classes that the own model sees in others' samples, compare with the senders' counts, and tell them."""
    own, table = clients.state("model"), recall(clients, names)
    table[..., ALIKE] = _UNSEEN
    # Others show as many samples as oneself: more would only cost time.
    shown, bounds = (clients.state(name) for name in ("shown", "bounds"))
    like = {"samples": _like(shown), "bounds": _like(bounds), "counts": _like(clients.state("counts"))}
    received = [one_each(clients.letters(row, "samples", **like), names) for row in range(len(clients))]
    for letters in zip_longest(*received):  # the first letter of every client, the second ...
        some = next(letter for letter in letters if letter is not None)  # who has fewer looks at another's in vain
        contents = [(letter or some).content for letter in letters]
        samples, bounds = (torch.stack([content[name] for content in contents]) for name in ("samples", "bounds"))
        for row, counts in enumerate(class_counts(clients, own, samples, bounds)):
            if (letter := letters[row]) is not None:
                table[row, names.index(letter.sender), ALIKE] = _cosine(counts, letter.content["counts"])
                clients.write(row, letter.sender, "counts", counts=counts)
    remember(clients, table)


@program(letters=True, told={"store": "opinions"}, gives={})
def weigh(clients: Clients, names: Names, store: trust.Store) -> None:
    """Turn encounters into evidence and opinions, and tell all opinions to those who were met."""
    own, table = clients.state("counts").cpu(), recall(clients, names)
    similarity = np.full(table.shape[:2], np.nan)
    for row in range(len(clients)):
        for letter in one_each(clients.letters(row, "counts", counts=_like(own)), names):
            other = names.index(letter.sender)
            on_own, on_other = _cosine(own[row], letter.content["counts"]), table[row, other, ALIKE]
            if on_other != _UNSEEN:  # a letter may be lost one way
                similarity[row, other] = (on_own + on_other) / 2  # Eq. 2
    evidence, opinions = trust.met(table[..., EVIDENCE], table[..., OPINION], similarity, store)
    table[..., EVIDENCE], table[..., OPINION] = evidence, opinions
    remember(clients, table)
    for row, other in np.argwhere(~np.isnan(similarity)).tolist():
        clients.write(row, names[other], "opinions", opinions=torch.from_numpy(table[row, :, OPINION]))


def _revealed(net: Net, asked: Mapping[str, Any]) -> Declared:
    return {"model": MODEL, "similarity": Output(float, (len(asked["names"]),))} if asked["reveal"] else {}


@program(letters=True, told={"store": "opinions", "reveal": "topology=server"}, gives=_revealed)
def choose(clients: Clients, names: Names, present: Names, store: trust.Store, reveal: bool) -> Outputs:
    """Hear what others think, choose contributors among those present, and ask for their models.

    With `reveal` the client asks nobody, but shows the server its model and the contributors' weights.
    """
    table, there = recall(clients, names), np.isin(names, present)
    for row, me in enumerate(map(names.index, clients.names)):
        letters = one_each(clients.letters(row, "opinions", opinions=(torch.float64, len(names), 3)), names)
        told = {names.index(at.sender): at.content["opinions"].numpy() for at in letters}
        told = {other: opinions for other, opinions in told.items() if trust.are_opinions(opinions)}
        opinions = trust.heard(table[row, :, OPINION], me, told)
        chosen = trust.trusted(opinions) & there
        # A sum that is one model, or nearly so, would be given by nobody.
        chosen &= secure_sums.can_be_asked(torch.from_numpy(opinions[chosen, 0]))
        table[row, :, SIGMA] = np.where(chosen, opinions[:, 0], 0)
        table[row, :, HEARD] = opinions[:, 2]
        if store == "persistent":
            table[row, :, OPINION] = opinions
    remember(clients, table)
    sigma = torch.from_numpy(table[..., SIGMA])
    if reveal:
        return {"model": clients.state("model"), "similarity": sigma}
    for row, weights in enumerate(sigma):
        secure_sums.ask(clients, row, names, weights)
    return {}


def _shown(net: Net, asked: Mapping[str, Any]) -> Declared:
    return dict.fromkeys(("uncertainty", "similarity"), Output(float, (len(asked["names"]),)))


@program(simulated=True, gives=_shown)
def show_opinions(clients: Clients, names: Names) -> Outputs:
    """How uncertain each client is of the others, and their weights in its model; for simulations alone."""
    table = torch.from_numpy(recall(clients, names))
    return {"uncertainty": table[..., HEARD], "similarity": table[..., SIGMA]}


@program(gives={})
def adopt(clients: Clients, model: Models) -> None:
    """Keep the mixed model."""
    clients.keep(model=model)


@program(letters=True, told={"mode": "sharing"}, gives={})
def share(clients: Clients, names: Names, mode: secure_sums.Mode) -> None:
    """For every client that asked, split the own model, times its weight, among all contributors (Eq. 17)."""
    secure_sums.send_shares(clients, names, clients.state("model"), mode)


@program(letters=True, told={"mode": "sharing"}, gives={})
def respond(clients: Clients, names: Names, mode: Literal["additive", "scalar"]) -> None:
    """Send every client that asked the sum of the received shares and the own one (Eq. 18)."""
    secure_sums.send_sums(clients, names, clients.state("model"), mode)


@program(gives={})
def combine(clients: Clients, names: Names) -> None:
    """Mix the own model with the sum of the contributors', if all of them have answered (Eq. 19)."""
    sigma = torch.from_numpy(recall(clients, names)[..., SIGMA])
    clients.keep(model=secure_sums.mixed(clients, names, clients.state("model"), sigma))


def _like(values: Tensor) -> Like:
    """The type and the shape of one client's row of values [client, ...]."""
    return (values.dtype, *values.shape[1:])


def _cosine(left: Tensor, right: Tensor) -> float:
    return float(F.cosine_similarity(left.double(), right.double(), dim=0).clamp(0, 1))
