"""What holds for every baseline: odd federations, clients that come late or never answer, running statistics."""

import re

import numpy as np
import pytest
import torch

import coterie
from coterie import Scoring
from coterie.core.errors import CoterieError
from coterie.core.registry import first_line
from coterie.data import Split
from coterie.nets import codec
from support.worked_examples import dataset, kept_change, losing, normed, of_sizes, unequal
from support.worlds import tensors_of

METHODS = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "moon": {},
    "fednova": {},
    "scaffold": {"rate": 0.05},
    "feddyn": {},
    "feddc": {"rate": 0.05},
    "fedfa": {"rate": 0.02},
    "fedmgda": {},
    "clustered-sampling": {},
    "clustered-sampling, by similarity": {"by": "similarity"},
    "lg-fedavg": {},
    "ditto": {},
    "apfl": {},
    "pfedme": {},
    "fedrep": {"head_epochs": 2.0},
    "fedopt": {"server_optimizer": "yogi", "server_rate": 0.05},
    "fedavg-ft": {"probe_epochs": 1.0, "tune_epochs": 2.0},
    "fedper": {},
    "fedbn": {},
    "feddbe": {},
    "fedbabu": {"tune_epochs": 2.0},
    "fedamp": {},
    "fedfomo": {"downloads": 2},
    "fedlc": {},
    "fedsoft": {"clusters": 2},
    "stocfl": {"threshold": 0.2},
    "fedrc": {"clusters": 2},
    "fedgroup": {"clusters": 2},
    "fedrod": {},
    "fedala": {"first_epochs": 3.0},
    "fedproto": {},
    "fedpac": {},
}
EVERY = pytest.mark.parametrize("name", METHODS)


def made(name, **options):
    return coterie.methods.make(name.split(",")[0], **{"rounds": 3} | METHODS[name] | options)


def finite(result):
    losses = [client["loss"] for client in result.clients]
    return all(loss is not None and np.isfinite(loss) for loss in losses)


# Odd federations

ODD = {
    "one client": lambda: of_sizes([12]),
    "two clients": lambda: of_sizes([12, 5]),
    "a client with one training sample": lambda: of_sizes([30, 2, 20], test_share=0.1),
    "very unequal clients": lambda: of_sizes([100, 2, 2, 3], test_share=0.1),
}


@EVERY
@pytest.mark.parametrize("kind", ODD)
def test_odd_federations_work(name, kind):
    fed = ODD[kind]()
    assert finite(made(name).fit(fed))


def parted(parts, y):
    """Clients with these samples; the same data may be given to several."""
    base = dataset(60)
    index = np.concatenate(parts)
    data = coterie.Dataset(base.x[index], np.asarray(y)[index], labels=tuple("abc"))
    split = Split(tuple(np.split(np.arange(len(index)), np.cumsum([len(part) for part in parts])[:-1])))
    return coterie.simulate(data, split, "mlp", precision="float64", validation=0)


@EVERY
def test_clients_of_one_class_each_work(name):
    y = np.repeat([0, 1, 2], 20)
    assert finite(made(name).fit(parted(np.split(np.arange(60), 3), y)))


@EVERY
def test_clients_that_are_all_the_same_work(name):
    base = dataset(60)
    assert finite(made(name, batch=0).fit(parted([np.arange(20)] * 4, base.y)))


BEFORE = {"fedgroup": 8}
"""How many clients train before the first round, drawn or not."""


@EVERY
def test_a_cohort_of_one_works_and_who_never_takes_part_is_served_too(name):
    fed = unequal(clients=8)
    result = made(name, rounds=2, participation=0.01).fit(fed)
    taken = [client["rounds_taken_part"] for client in result.clients]
    assert 1 <= sum(taken) <= 2 + BEFORE.get(name, 0)
    assert finite(result)


# Training that diverges


@pytest.mark.parametrize(
    ("name", "options"), [("fedavg", {"rate": 1e200}), ("local", {"rate": 1e200}), ("ditto", {"mu": 1e200})]
)
def test_training_that_diverges_stops_the_run_whether_models_are_sent_or_kept(name, options):
    with pytest.raises(CoterieError, match="no client gave finite numbers"):
        coterie.methods.make(name, rounds=3, epochs=4, **options).fit(of_sizes([15] * 3))


def test_a_client_that_diverges_alone_keeps_the_model_that_it_had(caplog):
    # Such a decay makes a model 1e33 times as large in every step: too large in twelve of them, but not in two.
    result = coterie.Local(rounds=2, epochs=1, batch=10, rate=1.0, decay=1e33).fit(of_sizes([150, 10, 10]))
    assert [client["rounds_taken_part"] for client in result.clients] == [0, 2, 2]
    assert "client 0 has numbers that are not finite" in caplog.text
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == 0


# Clients that come late, or never answer


@EVERY
def test_clients_that_join_late_take_part_from_then_on(name):
    fed = of_sizes([15] * 5, arrivals={3: 2, 4: 3})
    result = made(name, rounds=4).fit(fed)
    assert finite(result)
    assert [client["rounds_taken_part"] for client in result.clients] == [4, 4, 4, 3, 2]


@EVERY
def test_who_does_not_answer_is_left_out(name):
    # With equal sizes, what is left is the federation of the others; only means over all clients know of the lost ones.
    fed = losing(of_sizes([15] * 5), [1, 3])
    result = made(name).fit(fed)
    assert finite(result)
    assert [client["rounds_taken_part"] for client in result.clients] == [3, 0, 3, 0, 3]
    for kept in ("control", "drift"):
        if f"{kept}/0" in tensors_of(result.state):
            rows = fed.run(kept_change, [0, 2, 4], name=kept).change.parameters
            assert torch.allclose(tensors_of(result.state)[f"{kept}/0"], rows.sum(0) / 5, atol=1e-12)


# The draws of clustered sampling are the server's: a row of clients in another order draws others.
@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("clustered")])
def test_permuting_clients_permutes_the_result(name):
    base = dataset(100)
    parts = np.split(np.arange(100), [12, 40, 60, 85])
    order = [3, 0, 4, 1, 2]
    results = []
    for arrangement in (range(5), order):
        split = Split(tuple(parts[client] for client in arrangement), names=tuple(f"c{c}" for c in arrangement))
        fed = coterie.simulate(base, split, "mlp", precision="float64", split_seed=0)
        results.append(made(name).fit(fed))
    plain, permuted = results
    by_name = {client["client"]: client for client in permuted.clients}
    for client in plain.clients:
        assert by_name[client["client"]]["loss"] == pytest.approx(client["loss"], abs=1e-8)


# Running statistics

OWN_PARTS = {"lg-fedavg", "ditto", "fedrep", "fedper", "fedbn", "fedbabu", "fedamp", "fedfomo", "fedproto", "fedpac"}
SEVERAL = {"fedgroup", "fedsoft", "stocfl", "fedrc"}
ONE_MODEL = [name for name in METHODS if name not in OWN_PARTS | SEVERAL]


@pytest.mark.parametrize("name", ONE_MODEL)
def test_running_statistics_are_averaged_and_nothing_else_is_done_to_them(name):
    # Public code often averages parameters alone, or puts statistics through server steps. With equal clients that all
    # take part every method's weights are equal (FedFa's, if they come from frequencies alone).
    fed = of_sizes([20] * 4, net=normed)
    options = {"beta": 1.0} if name == "fedfa" else {}
    result = made(name, rounds=1, **options).fit(fed, scoring=Scoring(views=("last",)))
    last = fed._engine._memory.values["_last"].buffers[:4]
    assert torch.allclose(result.state.model.buffers, last.mean(0), atol=1e-12)
    assert not torch.allclose(result.state.model.buffers, fed.new_model().buffers)
    assert last.std(0).min() > 0


# The rest


@EVERY
def test_a_state_survives_being_stored(name):
    fed = unequal(net=normed)
    state = made(name, participation=0.5).fit(fed).state
    back = codec.load(codec.dump(state), {fed.net.name: fed.net})
    assert type(back) is type(state)
    before, after = tensors_of(state), tensors_of(back)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@EVERY
def test_the_first_line_says_who_and_where(name):
    line = first_line(coterie.methods[name.split(",")[0]])
    assert re.search(r"\. \([A-Z][^()]+, [^()]+ \d{4}\)$", line), line


@EVERY
def test_it_learns(name):
    fed = coterie.simulate("digits", "dirichlet", "mlp", clients=5, alpha=1.0, seed=1)
    result = made(name, rounds=5).fit(fed, scoring=Scoring(evaluate_every=5))
    assert result.summary["accuracy_mean"] > 0.6
