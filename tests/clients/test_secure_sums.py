"""Sums by letters: right for everybody who asked, at once, and complete or nothing."""

import numpy as np
import pytest
import torch

from coterie import sharing
from coterie.clients import secure_sums
from coterie.clients.clients import Clients
from coterie.clients.guard import OPEN, Limits
from coterie.clients.letters import Letter, Letters
from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError
from coterie.engines.flower.guard import SiteGuard
from support.worlds import close, mlp, normed, world

NAMES = ("0", "1", "2", "3")
WEIGHTS = torch.tensor(
    [[0, 0.5, 0.25, 0.1], [0.3, 0, 0, 0.9], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64
)  # [asking, contributor]; client 2 asks nobody


class Exchange:
    """Clients that run one step after another, with letters between them and memory."""

    def __init__(self, here):
        self.here, self.memory, self.letters, self.sent = here, Memory(4), Letters(), []
        self.guard = OPEN

    def step(self, function, lost=()):
        """Run a step on all clients but those that are lost."""
        rows = [row for row in range(4) if NAMES[row] not in lost]
        at = self.here.clients(chosen=rows, memory=self.memory.rows(torch.tensor(rows)))
        about = (at.net, at._pool, at._shards, at._form, at._at, at._memory)
        clients = Clients(*about, letters=self.letters, guard=self.guard)
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


# What a curious or a careless client does


def request(sender, receiver, weights, contributors):
    content = {"weights": torch.tensor(weights, dtype=torch.float64), "contributors": torch.tensor(contributors)}
    return Letter(sender, receiver, "request", content)


def answered(letters, models=None, exchange=None):
    """The shares that clients send when these letters have reached them, and the exchange."""
    models = world(mlp).models() if models is None else models
    exchange = exchange or Exchange(world(mlp))
    exchange.letters = Letters(letters)
    exchange.step(lambda clients, rows: secure_sums.send_shares(clients, NAMES, models[rows], "additive"))
    return exchange.letters._letters, exchange


FAIR = [request("0", other, [0.5, 0.5, 0.5], [1, 2, 3]) for other in "123"]


@pytest.mark.parametrize(
    "letters",
    {
        "itself among the contributors": [request("3", "1", [0.5, 0.5], [1, 3])],
        "one model": [request("3", "1", [0.5], [1])],
        "one model, named twice": [request("3", "1", [0.5, 0.5], [1, 1])],
        "nobody that there is": [request("3", "1", [0.5, 0.5], [1, 7])],
        "others alone": [request("3", "1", [0.5, 0.5], [0, 2])],
        "one above all others": [request("3", "1", [1.0, 1e-6], [1, 2])],
        "a weight of 1e30": [request("3", "1", [1e30, 1e30], [1, 2])],
        "a weight below 0": [request("3", "1", [0.5, -0.4], [1, 2])],
        "not a number": [request("3", "1", [0.5, np.nan], [1, 2])],
        "fewer weights": [request("3", "1", [0.5], [1, 2])],
        "two questions": [request("3", "1", [0.5, 0.5], [1, 2]), request("3", "1", [0.5, 0.4], [1, 2])],
        "no weights": [Letter("3", "1", "request", {"contributors": torch.tensor([1, 2])})],
        "other numbers": [
            Letter("3", "1", "request", {"weights": torch.ones(2), "contributors": torch.tensor([1, 2])})
        ],
        "a table": [
            Letter("3", "1", "request", {"weights": torch.ones(2, 2).double(), "contributors": torch.ones(2, 2).long()})
        ],
        "a stranger": [request("9", "1", [0.5, 0.5], [1, 2])],
    }.items(),
    ids=lambda named: named[0].replace(" ", "-"),
)
def test_who_asks_for_more_than_a_sum_gets_nothing_and_others_get_theirs(letters):
    sent, _ = answered([*FAIR, *letters[1]])
    assert {letter.subject for letter in sent} == {"share"}
    assert {int(letter.content["asking"]) for letter in sent} == {0}
    assert len(sent) == 3 * 2


def test_the_model_of_a_victim_is_not_to_be_had_by_naming_oneself():
    # On code that did not look who asks, this gave the victim's model to 1e-10: with the own share that comes back, and
    # the share that the victim sends to the asker as a contributor.
    models = world(mlp).models()
    exchange = answered([request("3", "1", [1.0, 1.0], [1, 3])], models)[1]
    exchange.step(lambda clients, rows: secure_sums.send_sums(clients, NAMES, models[rows], "additive"))
    assert not len(exchange.letters)


def test_shares_for_two_who_ask_and_for_one_who_asks_again_have_nothing_in_common():
    both = [*FAIR, request("2", "1", [0.5, 0.5], [1, 3]), request("2", "3", [0.5, 0.5], [1, 3])]
    sent, exchange = answered(both)
    again, _ = answered(both, exchange=exchange)
    shares = [letter.content["values"] for letter in (*sent, *again)]
    masked = {tuple((one - other).tolist()) for one in shares for other in shares if one is not other}
    assert len(shares) == 16
    # No difference of two shares is small in all numbers, as that of two shares with one mask would be.
    assert min(max(abs(value) for value in difference) for difference in masked) > 2.0**50


def test_a_site_answers_one_question_about_one_model(tmp_path):
    models = world(mlp).models()
    exchange = Exchange(world(mlp))
    exchange.guard = SiteGuard(folder=tmp_path)

    def ask(weights, receiver="3"):
        return len(answered([request(receiver, "1", weights, [1, 2])], models, exchange)[0])

    assert ask([0.5, 0.5]) == 1
    assert ask([0.5, 0.5]) == 1  # the same again, as when a round is repeated
    assert ask([0.5, 0.4]) == 0  # 0.1 times the other's model would be the difference
    assert ask([0.5, 0.4], "0") == 1
    exchange.guard = SiteGuard(folder=tmp_path)  # another process
    assert ask([0.5, 0.4]) == 0
    models = world(mlp).models(seed=3)  # another round's
    assert ask([0.5, 0.4]) == 1


def test_a_site_says_how_many_models_a_sum_must_have_at_least(tmp_path):
    exchange = Exchange(world(mlp))
    exchange.guard = SiteGuard(Limits(contributors=3), folder=tmp_path)
    assert not answered([request("3", "1", [0.5, 0.5], [1, 2])], exchange=exchange)[0]
    assert len(answered(FAIR, exchange=exchange)[0]) == 6


def share(sender, receiver, values, asking=0, contributors=(1, 2, 3)):
    content = {"asking": torch.tensor(asking), "contributors": torch.tensor(contributors), "values": values}
    return Letter(sender, receiver, "share", content)


@pytest.mark.parametrize(
    "wrong",
    {
        "another width": lambda own: share("2", "1", own.content["values"][:-1]),
        "other numbers": lambda own: share("2", "1", own.content["values"].double()),
        "an unknown asker": lambda own: share("2", "1", own.content["values"], asking=99),
        "other contributors": lambda own: share("2", "1", own.content["values"], contributors=(1, 2)),
        "another subject": lambda own: share("2", "1", own.content["values"], asking=2),
        "no values": lambda own: Letter("2", "1", "share", {"asking": torch.tensor(0)}),
    }.items(),
    ids=lambda named: named[0].replace(" ", "-"),
)
def test_a_share_that_is_none_costs_the_sum_that_it_was_for_and_no_other(wrong):
    models = world(mlp).models()
    sent, exchange = answered([*FAIR, *(request("2", other, [0.5, 0.5], [1, 3]) for other in "13")], models)
    spoiled = [at for at in sent if (at.sender, at.receiver, int(at.content["asking"])) == ("2", "1", 0)]
    assert len(spoiled) == 1
    exchange.letters = Letters([*(at for at in sent if at is not spoiled[0]), wrong[1](spoiled[0])])
    exchange.step(lambda clients, rows: secure_sums.send_sums(clients, NAMES, models[rows], "additive"))
    assert sorted((at.sender, at.receiver) for at in exchange.letters._letters) == [
        ("1", "2"),
        ("2", "0"),
        ("3", "0"),
        ("3", "2"),
    ]


@pytest.mark.parametrize("values", [torch.full((57,), 2**61), torch.ones(3, dtype=torch.int64), torch.ones(57)])
def test_a_sum_with_a_wrong_part_is_no_sum(values):
    clients = world(mlp).clients(chosen=[0])
    values = values if len(values) == 3 else values.new_ones(clients.net.parameters.total) * values[0]
    parts = [Letter(str(other), "0", "sum", {"values": values if other == 2 else values * 0}) for other in (1, 2)]
    clients._received = Letters(parts)
    weights = torch.tensor([0, 0.5, 0.5, 0], dtype=torch.float64)
    assert secure_sums.received(clients, 0, NAMES, weights) is None


def test_part_of_a_sum_that_comes_twice_is_not_added_twice():
    clients = world(mlp).clients(chosen=[0])
    parts = [Letter(str(other), "0", "sum", {"values": torch.ones(57, dtype=torch.int64)}) for other in (1, 2, 2)]
    clients._received = Letters(parts)
    assert secure_sums.received(clients, 0, NAMES, torch.tensor([0, 0.5, 0.5, 0])) is None
