"""Sums by letters: right for everybody who asked, at once, and complete or nothing."""

import pytest
import torch

from coterie import sharing
from coterie.clients import secure_sums
from coterie.clients.clients import Clients
from coterie.clients.letters import Letters
from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError
from support.worlds import close, mlp, normed, world

NAMES = ("0", "1", "2", "3")
WEIGHTS = torch.tensor(
    [[0, 0.5, 0.25, 0.1], [0.3, 0, 0, 0.9], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64
)  # [asking, contributor]; client 2 asks nobody


class Exchange:
    """Clients that run one step after another, with letters between them and memory."""

    def __init__(self, here):
        self.here, self.memory, self.letters, self.sent = here, Memory(4), Letters(), []

    def step(self, function, lost=()):
        """Run a step on all clients but those that are lost."""
        rows = [row for row in range(4) if NAMES[row] not in lost]
        at = self.here.clients(chosen=rows, memory=self.memory.rows(torch.tensor(rows)))
        clients = Clients(at.net, at._pool, at._shards, at._form, at._at, at._memory, letters=self.letters)
        result = function(clients, rows)
        self.memory.update(torch.tensor(rows), clients.kept)
        self.letters = Letters(clients.written)
        self.sent += clients.written
        return result


def total(models, mode, lost=(), when=""):
    """What each client receives, by its row."""
    at = Exchange(models_world(models))
    at.step(lambda clients, rows: [secure_sums.ask(clients, row, NAMES, WEIGHTS[row]) for row in range(4)])
    at.step(
        lambda clients, rows: secure_sums.send_shares(clients, NAMES, models[rows], mode),
        lost if when == "shares" else (),
    )
    if mode != "none":
        gone = lost if when in ("shares", "sums") else ()
        at.step(lambda clients, rows: secure_sums.send_sums(clients, NAMES, models[rows], mode), gone)
    read = at.step(lambda clients, rows: [secure_sums.received(clients, row, NAMES, WEIGHTS[row]) for row in range(4)])
    return at, read


def models_world(models):
    return normed_world() if models.net.buffers.total else world(mlp)


def normed_world():
    return world(normed, shape=(1, 4, 4))


@pytest.mark.parametrize("mode", ["additive", "scalar", "none"])
@pytest.mark.parametrize("here", [world(mlp), normed_world()], ids=["features", "running statistics"])
def test_everybody_gets_the_weighted_sum_it_asked_for(here, mode):
    models = here.models()
    _, read = total(models, mode)
    expected = WEIGHTS @ secure_sums.flat(models)
    for row in (0, 1, 3):
        close(read[row], expected[row], 3 * sharing.STEP if mode == "additive" else 1e-12)
    assert read[2] is None


@pytest.mark.parametrize("mode", ["additive", "scalar", "none"])
def test_the_bill_is_what_was_sent(mode):
    models = world(mlp).models()
    at, _ = total(models, mode)
    sent = dict.fromkeys(("request", "share", "sum"), 0)
    for letter in at.sent:
        sent[letter.subject] += letter.size
    bills = [secure_sums.traffic(int((row > 0).sum()), models.net.parameters.total, mode, 8) for row in WEIGHTS]
    assert sent == {subject: sum(bill[subject] for bill in bills) for subject in sent}


@pytest.mark.parametrize("when", ["shares", "sums"])
def test_a_sum_is_complete_or_nothing(when):
    models = world(mlp).models()
    _, read = total(models, "additive", lost=("2",), when=when)
    # Client 2 contributes to what 0 and 3 have asked for, but not to 1's.
    assert [values is None for values in read] == [True, False, True, True]
    close(read[1], (WEIGHTS @ secure_sums.flat(models))[1], 3 * sharing.STEP)


def test_the_sum_of_one_is_refused():
    clients = world(mlp).clients()
    with pytest.raises(CoterieError, match="a sum of one model would be that model"):
        secure_sums.ask(clients, 0, NAMES, torch.tensor([0.0, 0.5, 0.0, 0.0]))


def test_a_receiver_of_shares_has_nothing_but_noise():
    models = world(mlp).models()
    at, _ = total(models, "additive")
    seen = torch.stack([letter.content["values"] for letter in at.sent if letter.subject != "request"])
    bits = (seen.unsqueeze(-1) >> torch.arange(64)) & 1
    assert (bits.double().mean(dim=(0, 1)) - 0.5).abs().max() < 5 * 0.5 / seen.numel() ** 0.5
