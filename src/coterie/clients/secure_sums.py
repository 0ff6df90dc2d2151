"""Sums of clients' models of which nobody sees the terms: secret shares that travel as letters.

A client asks some others for the sum of their models, each times a weight (`ask`). Each of them splits its own among
all that were asked (`send_shares`), adds up what it gets (`send_sums`), and who asked adds up these sums (`received`):
four programs in turn, each reading the letters of the one before. Without sharing (`none`) models go to who asked in
the clear, and nothing is added up in between.
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
"""All clients; letters speak of them by their places here."""


def ask(clients: Clients, row: int, names: Names, weights: Tensor) -> None:
    """Let a client, by its row, ask all those for their models whose weight [client] is above 0."""
    contributors = weights.nonzero()[:, 0]
    if len(contributors) == 1:
        raise CoterieError("a sum of one model would be that model: at least two contributors")
    for other in contributors.tolist():
        clients.write(row, names[other], "request", weight=weights[other], contributors=contributors)


def send_shares(clients: Clients, names: Names, models: Models, mode: Mode) -> None:
    """Split the own model, times the weight, among all contributors, for everybody who asked."""
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
    """Add up the shares that were received, and the own one, for everybody who asked; if one is lost, so is the sum."""
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
            # The own share is made again from the key, instead of keeping one for everybody who asked.
            own = _shares(clients, weight * vectors[row], len(contributors), mode, bytes(keys[row]), asking)[0]
            total = sum((content["values"] for content in received.values()), start=own)
            clients.write(row, asking, "sum", values=total)
    clients.keep(key=torch.zeros(len(clients), 32, dtype=torch.uint8))


def received(clients: Clients, row: int, names: Names, weights: Tensor) -> Tensor | None:
    """The sum that a client, by its row, asked for with these weights; nothing if it is not complete."""
    sums = clients.letters(row, "sum")
    if not sums or {letter.sender for letter in sums} != {names[other] for other in weights.nonzero()[:, 0].tolist()}:
        return None
    return torch.from_numpy(sharing.combine(torch.stack([letter.content["values"] for letter in sums])))


def traffic(contributors: int, numbers: int, mode: Mode, itemsize: int) -> Mapping[str, int]:
    """Bytes of all letters for one sum of models of so many numbers of `itemsize` bytes, by subject."""
    listed = 8 + 8 * contributors  # a number, and the list of contributors
    size = numbers * (itemsize if mode == "none" else 8)
    shares = 0 if mode == "none" else contributors * (contributors - 1)
    return {"request": contributors * listed, "share": shares * (listed + size), "sum": contributors * size}


def can_be_shared(models: Models) -> Tensor:
    """Whether models [client] are of numbers that are small enough for shares."""
    return torch.cat(models.tensors, dim=1).abs().amax(dim=1) <= sharing.LARGEST


def mixed(clients: Clients, names: Names, own: Models, weights: Tensor) -> Models:
    """Each client's own model, mixed with the sum that it asked for with these weights [client, other].

    The own one counts for 1. A client whose sum is not complete keeps its own.
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
    """Shares for the sum of one that asked; the first is the own one."""
    layers = [*clients.net.parameters.sizes, *clients.net.buffers.sizes]
    return torch.from_numpy(sharing.split(vector, parties, mode, seed=key + asking.encode(), layers=layers))
