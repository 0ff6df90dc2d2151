"""Sums of clients' models that hide the single models: secret shares that travel as letters.

A client asks some others for the sum of their models, each times a weight (`ask`). Each of these contributors splits
its own model among all of them (`send_shares`), and adds up the shares that it gets (`send_sums`); the client that
asked adds up these sums (`received`). These are four programs in turn, each reading the letters of the one before.
Without sharing (`none`) contributors send their models to the client that asked as they are, and `send_sums` is left
out.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from coterie.clients import sharing
from coterie.clients.clients import Clients
from coterie.clients.letters import Letter
from coterie.core.errors import CoterieError
from coterie.nets.stacks import Models

Mode = Literal["additive", "scalar", "none"]

Names = Sequence[str]
"""The names of all clients; letters name a client by its place here."""


def ask(clients: Clients, row: int, names: Names, weights: Tensor) -> None:
    """Let the client in this row ask all clients whose weight [client] is above 0 for the sum of their models."""
    contributors = weights.nonzero()[:, 0]
    if len(contributors) == 1:
        raise CoterieError("a sum of one model would be that model: at least two contributors")
    for other in contributors.tolist():
        clients.write(row, names[other], "request", weight=weights[other], contributors=contributors)


def send_shares(clients: Clients, names: Names, models: Models, mode: Mode) -> None:
    """For every client that asked, split the own model, times its weight, among all contributors."""
    vectors, keys = flat(models), [sharing.new_key() for _ in range(len(clients))]
    weights: dict[str, Tensor] = {}
    for row, me in enumerate(clients.names):
        for letter in clients.letters(row, "request"):
            asking, weight, contributors = letter.sender, letter.content["weight"], letter.content["contributors"]
            if mode == "none":
                clients.write(row, asking, "sum", values=(weight * vectors[row]).to(clients.net.dtype))
                continue
            weights.setdefault(asking, torch.zeros(len(clients), dtype=torch.float64))[row] = weight
            shares = _shares(clients, weight * vectors[row], len(contributors), mode, keys[row], asking)
            others = [names[other] for other in contributors.tolist() if names[other] != me]
            for other, share in zip(others, shares[1:], strict=True):
                place = torch.tensor(names.index(asking))
                clients.write(row, other, "share", asking=place, contributors=contributors, values=share)
    clients.keep(key=torch.tensor([list(key) for key in keys], dtype=torch.uint8))
    clients.keep(**{f"weight for {asking}": given for asking, given in weights.items()})


def send_sums(clients: Clients, names: Names, models: Models, mode: sharing.Mode) -> None:
    """Send every client that asked the sum of the received shares and the own one; nothing, if a share is missing."""
    vectors, keys = flat(models), clients.state("key").tolist()
    for row, me in enumerate(clients.names):
        by_asking = sorted(clients.letters(row, "share"), key=_asking)  # a stable sort: senders stay in order
        for place, letters in groupby(by_asking, key=_asking):
            received = {letter.sender: letter.content for letter in letters}
            contributors = {names[other] for other in next(iter(received.values()))["contributors"].tolist()}
            if received.keys() != contributors - {me}:
                continue
            asking = names[place]
            weight = clients.state(f"weight for {asking}")[row].cpu()
            # The own share is made again from the key, so that not one for every client that asked must be kept.
            own = _shares(clients, weight * vectors[row], len(contributors), mode, bytes(keys[row]), asking)[0]
            total = sum((content["values"] for content in received.values()), start=own)
            clients.write(row, asking, "sum", values=total)
    clients.keep(key=torch.zeros(len(clients), 32, dtype=torch.uint8))


def received(clients: Clients, row: int, names: Names, weights: Tensor) -> Tensor | None:
    """The sum that the client in this row asked for with these weights; None if a contributor's part is missing."""
    sums = clients.letters(row, "sum")
    if not sums or {letter.sender for letter in sums} != {names[other] for other in weights.nonzero()[:, 0].tolist()}:
        return None
    return torch.from_numpy(sharing.combine(torch.stack([letter.content["values"] for letter in sums])))


def traffic(contributors: int, numbers: int, mode: Mode, itemsize: int) -> Mapping[str, int]:
    """Bytes by subject of all letters for one sum of models, which have this many numbers of `itemsize` bytes."""
    listed = 8 + 8 * contributors  # a number, and the list of contributors
    size = numbers * (itemsize if mode == "none" else 8)
    shares = 0 if mode == "none" else contributors * (contributors - 1)
    return {"request": contributors * listed, "share": shares * (listed + size), "sum": contributors * size}


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


def _asking(letter: Letter) -> int:
    return int(letter.content["asking"])


def _shares(clients: Clients, vector: Tensor, parties: int, mode: sharing.Mode, key: bytes, asking: str) -> Tensor:
    """Shares of a model for the client that asked for the sum; the first one stays with the model's owner."""
    layers = [*clients.net.parameters.sizes, *clients.net.buffers.sizes]
    return torch.from_numpy(sharing.split(vector, parties, mode, seed=key + asking.encode(), layers=layers))
