"""Letters: routed unopened, read only by the client they are for."""

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients, program
from coterie.clients.letters import Letter, Letters
from coterie.core.errors import CoterieError, ProgramError


@program(letters=True)
def write_to_next(clients: Clients, order: torch.Tensor):
    """Each client writes its name's length and its number to the next one."""
    for row in range(len(clients)):
        number = int(order[row])
        clients.write(row, str((number + 1) % 4), "greeting", number=torch.tensor([number]), words=torch.zeros(2, 3))
        if number == 2:
            clients.write(row, "0", "secret", number=torch.tensor([99]))
    return {"written": torch.tensor([len(name) for name in clients.names])}


@program
def read(clients: Clients):
    """The numbers that were received, and how many letters."""
    numbers = [sum(int(letter.content["number"]) for letter in clients.letters(row)) for row in range(len(clients))]
    greetings = [len(clients.letters(row, "greeting")) for row in range(len(clients))]
    return {"sum": torch.tensor(numbers), "greetings": torch.tensor(greetings)}


@program(letters=True)
def write_text(clients: Clients):
    """Tries to write something that is no tensor."""
    clients.write(0, "1", "words", text="hello")


@pytest.fixture(params=["loop", "vectorised", "workers"])
def fed(request):
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(40, 4)), np.arange(40) % 2)
    engine, workers = ("loop", 2) if request.param == "workers" else (request.param, 0)
    fed = coterie.simulate(data, "iid", "mlp", clients=4, engine=engine, workers=workers)
    yield fed
    fed.close()


def test_a_letter_reaches_the_client_it_is_for_and_no_other(fed):
    replies = fed.run(write_to_next, each=torch.arange(4))
    received = fed.run(read, letters=replies.letters)
    # Client 0 hears from 3, and 99 from 2; the others from the one before.
    assert received.sum.tolist() == [3 + 99, 0, 1, 2]
    assert received.greetings.tolist() == [1, 1, 1, 1]


def test_letters_are_delivered_only_with_the_call_they_are_given_to(fed):
    replies = fed.run(write_to_next, each=torch.arange(4))
    assert fed.run(read).sum.tolist() == [0, 0, 0, 0]
    assert fed.run(read, [1, 2], letters=replies.letters).sum.tolist() == [0, 1]


def test_the_ledger_counts_letters_as_traffic_between_clients(fed):
    fed.run(write_to_next, each=torch.arange(4))
    # A greeting is one int64 and six float32, a secret one int64.
    assert fed.ledger.by_kind()["peer"] == {"greeting": 4 * (8 + 24), "secret": 8}


def test_a_method_sees_envelopes_only(fed):
    letters = fed.run(write_to_next, each=torch.arange(4)).letters
    assert len(letters) == 5
    assert ("2", "0", "secret", 8) in set(letters.envelopes())
    assert not any(isinstance(value, torch.Tensor) for value in vars(letters).values())


def test_letters_can_be_put_together():
    first = Letters([Letter("a", "b", "s", {})])
    assert len(first + first) == 2
    assert len((first + first).to("b")) == 2
    assert (first + first).to("a") == ()


def test_a_letter_holds_tensors(fed):
    with pytest.raises((ProgramError, CoterieError), match="text is str, not a tensor"):
        fed.run(write_text)
