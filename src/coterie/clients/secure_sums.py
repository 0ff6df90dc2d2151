"""Sums of clients' models that hide the single models: secret shares that travel as letters.

A client asks some others for the sum of their models, each times a weight (`ask`). Each of these contributors splits
its own model among all of them (`send_shares`), and adds up the shares that it gets (`send_sums`); the client that
asked adds up these sums (`received`). These are four programs in turn, each reading the letters of the one before.
Without sharing (`none`) contributors send their models to the client that asked as they are, and `send_sums` is left
out.

Letters come from others, who may be curious or broken. A request that would show more than a sum is not answered, a
letter that does not fit is not read, and both cost nobody but the sum that they were about.
"""

import hashlib
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from coterie.clients import sharing
from coterie.clients.clients import Clients
from coterie.clients.letters import Letter, Like, one_each
from coterie.core.errors import CoterieError
from coterie.nets.stacks import Models

Mode = Literal["additive", "scalar", "none"]

Names = Sequence[str]
"""The names of all clients; letters name a client by its place here."""

LEAST = 2
"""The least number of models in a sum: one alone would be that model."""

HEAVIEST = 0.8
"""The largest part of all weight that one model may have: four times as much as all others together."""

_PLEDGE = 72
"""Bytes of what a contributor keeps for a client that asked: a key of 32, a digest of the contributors, its weight."""

log = logging.getLogger("coterie")


def can_be_asked(weights: Tensor) -> bool:
    """Whether a sum with these weights [contributor] tells little enough of a single model.

    One model alone, or one that weighs more than `HEAVIEST` of the whole, would be read off the sum.
    """
    total = float(weights.sum())
    return len(weights) >= LEAST and bool((weights <= HEAVIEST * total).all())


def ask(clients: Clients, row: int, names: Names, weights: Tensor) -> None:
    """Let the client in this row ask all clients whose weight [client] is above 0 for the sum of their models."""
    contributors = weights.nonzero()[:, 0]
    if len(contributors) == 1:
        raise CoterieError("a sum of one model would be that model: at least two contributors")
    for other in contributors.tolist():
        clients.write(row, names[other], "request", weights=weights[contributors].double(), contributors=contributors)


def send_shares(clients: Clients, names: Names, models: Models, mode: Mode) -> None:
    """For every client that asked, split the own model, times its weight, among all contributors.

    What answers nobody costs who asked: see `_granted`. Shares are made of a key that is drawn for this answer alone.
    """
    vectors, pledges = flat(models), {name: torch.zeros(len(clients), _PLEDGE, dtype=torch.uint8) for name in names}
    for row, me in enumerate(clients.names):
        for letter, weight, contributors in _granted(clients, row, names, vectors[row], mode):
            asking = letter.sender
            if mode == "none":
                clients.write(row, asking, "sum", values=(weight * vectors[row]).to(clients.net.dtype))
                continue
            key = sharing.new_key()
            pledges[asking][row] = _bytes(key + _digest(contributors) + struct.pack("<d", weight))
            shares = _shares(clients, weight * vectors[row], len(contributors), mode, key)
            others = [names[other] for other in contributors.tolist() if names[other] != me]
            for other, share in zip(others, shares[1:], strict=True):
                place = torch.tensor(names.index(asking))
                clients.write(row, other, "share", asking=place, contributors=contributors, values=share)
    clients.keep(**{_pledge(asking): given for asking, given in pledges.items() if given.any()})


def _granted(
    clients: Clients, row: int, names: Names, vector: Tensor, mode: Mode
) -> Iterator[tuple[Letter, float, Tensor]]:
    """The requests that the client in this row answers, each with the client's own weight and all contributors.

    One who asks twice, contributes itself, or asks for too few models or for one above all others, could take what it
    knows off the sum, and is answered by nobody.
    """
    places = {name: place for place, name in enumerate(names)}
    if len(places) < len(names):
        raise CoterieError("two clients of one name: nobody could say whose model is asked for")
    me, like = places[clients.names[row]], {"weights": (torch.float64, None), "contributors": (torch.int64, None)}
    for letter in one_each(clients.letters(row, "request", **like), names):
        weights, contributors = letter.content["weights"].cpu(), letter.content["contributors"].cpu()
        listed = contributors.tolist()
        sound = (
            len(weights) == len(listed) == len(set(listed))
            and all(0 <= place < len(names) for place in listed)
            and me in listed
            and places[letter.sender] not in listed
            and len(listed) >= clients.guard.limits.contributors
            and bool(((weights > 0) & (weights <= 1)).all())
            and can_be_asked(weights)
        )
        if not sound:
            log.warning("no sum for %s: what it asks for would show more than a sum", letter.sender)
            continue
        question = b"".join([mode.encode(), weights.numpy().tobytes(), contributors.numpy().tobytes()])
        if not clients.guard.gives("sum", letter.sender, vector.numpy().tobytes(), question):
            log.warning("no sum for %s: it was given another one of the same models", letter.sender)
            continue
        yield letter, float(weights[listed.index(me)]), contributors


def send_sums(clients: Clients, names: Names, models: Models, mode: sharing.Mode) -> None:
    """Send every client that asked the sum of the received shares and the own one; nothing, if a share is missing."""
    vectors, nothing = flat(models), torch.zeros(len(clients), _PLEDGE, dtype=torch.uint8)
    dtype, numbers = torch.int64 if mode == "additive" else torch.float64, vectors.shape[1]
    like: dict[str, Like] = {"asking": (torch.int64,), "values": (dtype, numbers), "contributors": (torch.int64, None)}
    pledges = {asking: clients.state(_pledge(asking), nothing).cpu() for asking in names}
    for row, me in enumerate(clients.names):
        letters = clients.letters(row, "share", **like)
        for place, asking in enumerate(names):
            pledge = bytes(pledges[asking][row].tolist())
            key, group, (weight,) = pledge[:32], pledge[32:64], struct.unpack("<d", pledge[64:])
            if not weight:
                continue
            own = [at for at in letters if int(at.content["asking"]) == place]
            alike = [at for at in own if _digest(at.content["contributors"]) == group]
            shares = {at.sender: at.content["values"].cpu() for at in one_each(alike, names)}
            contributors = alike[0].content["contributors"].tolist() if alike else []
            if not shares or shares.keys() != {names[other] for other in contributors} - {me}:
                continue
            # The own share is made again from the key, so that not one for every client that asked must be kept.
            mine = _shares(clients, weight * vectors[row], len(contributors), mode, key)[0]
            clients.write(row, asking, "sum", values=sum(shares.values(), start=mine))
    clients.keep(**{_pledge(asking): nothing for asking, given in pledges.items() if given.any()})


def received(clients: Clients, row: int, names: Names, weights: Tensor) -> Tensor | None:
    """The sum that the client in this row asked for with these weights.

    None if a contributor's part is missing or unfit, or if the numbers are too large for the sum of models.
    """
    width = clients.net.parameters.total + clients.net.buffers.total
    parts = clients.letters(row, "sum")
    if not parts or "values" not in parts[0].content:
        return None
    dtypes = (torch.int64, torch.float64, clients.net.dtype)
    dtype = next((own for own in dtypes if own == parts[0].content["values"].dtype), torch.int64)
    sums = one_each(clients.letters(row, "sum", values=(dtype, width)), names)
    if {letter.sender for letter in sums} != {names[other] for other in weights.nonzero()[:, 0].tolist()}:
        return None
    total = torch.from_numpy(sharing.combine(torch.stack([letter.content["values"] for letter in sums])))
    if not (total.abs() <= sharing.LARGEST * max(float(weights.sum()), 1.0)).all():
        log.warning("%s: a sum that is none, so somebody's part of it is wrong", clients.names[row])
        return None
    return total


def traffic(contributors: int, numbers: int, mode: Mode, itemsize: int) -> Mapping[str, int]:
    """Bytes by subject of all letters for one sum of models, which have this many numbers of `itemsize` bytes."""
    listed, asked = 8 + 8 * contributors, 16 * contributors  # contributors, once with a number, once with weights
    size = numbers * (itemsize if mode == "none" else 8)
    shares = 0 if mode == "none" else contributors * (contributors - 1)
    return {"request": contributors * asked, "share": shares * (listed + size), "sum": contributors * size}


def can_be_shared(models: Models) -> Tensor:
    """Whether all numbers of models [client] are small enough to be shared."""
    return torch.cat(models.tensors, dim=1).abs().amax(dim=1) <= sharing.LARGEST


def mixed(clients: Clients, names: Names, own: Models, weights: Tensor) -> Models:
    """Each client's own model, mixed with the sum that it asked for with these weights [client, other].

    The own model has weight 1. A client whose sum is not complete keeps its own model.
    """
    numbers = flat(own)
    for row, given in enumerate(weights):
        if (total := received(clients, row, names, given)) is not None:
            numbers[row] = (numbers[row] + total) / (1 + given.sum())
    parts = numbers.to(own.parameters).split([tensor.shape[1] for tensor in own.tensors], dim=1)
    return Models(own.net, *parts)


def flat(models: Models) -> Tensor:
    """Models [client] as rows of all their numbers, running statistics too, in float64 on the host."""
    return torch.cat(models.tensors, dim=1).double().cpu()


def _pledge(asking: str) -> str:
    """Under which name a contributor keeps what it needs to finish its answer to a client."""
    return f"pledge for {asking}"


def _digest(contributors: Tensor) -> bytes:
    return hashlib.sha256(contributors.cpu().numpy().tobytes()).digest()


def _bytes(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


def _shares(clients: Clients, vector: Tensor, parties: int, mode: sharing.Mode, key: bytes) -> Tensor:
    """Shares of a model for one client that asked for the sum; the first one stays with the model's owner."""
    layers = [*clients.net.parameters.sizes, *clients.net.buffers.sizes]
    return torch.from_numpy(sharing.split(vector, parties, mode, seed=key, layers=layers))
