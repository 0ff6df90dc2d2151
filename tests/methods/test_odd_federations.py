"""CAFA, AutoCFL and CFIC where there is hardly anybody, or nothing to tell clients apart by."""

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.programs import label_histogram
from coterie.data import Split
from coterie.methods.cfic import dominant_label
from coterie.server.federation import Answers
from support.federations import state_of

METHODS = [
    ("cafa", {}),
    ("cafa", {"sharing": "server"}),
    ("autocfl", {"cluster_round": 2}),
    ("autocfl", {"stop": "variance", "guard": 0.0}),
    ("cfic", {}),
    ("cfic", {"ask": "cohort", "quota": "min"}),
]


def data(samples=120, classes=3):
    rng = np.random.default_rng(0)
    y = np.arange(samples) % classes
    x = rng.normal(size=(samples, 4)) + np.eye(classes, 4)[y]
    return coterie.Dataset(x.astype(np.float32), y, labels=tuple("abc"))


def of_class(label, start, size):
    return np.flatnonzero(data().y == label)[start : start + size]


WORLDS = {
    "one client": (np.arange(30),),
    "two clients": (np.arange(30), np.arange(30, 60)),
    "a client with one sample": (np.arange(30), np.arange(30, 60), np.array([60])),
    "clients with one class each": tuple(of_class(label, 0, 12) for label in range(3)),
    "all of one class": tuple(of_class(0, 10 * client, 10) for client in range(4)),
    "very unequal clients": (np.arange(100), np.arange(100, 103), np.arange(103, 107), np.arange(107, 120)),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_odd_federations_run_to_the_end_and_serve_everybody(name, options, world):
    fed = coterie.simulate(data(), Split(WORLDS[world]), "logistic", precision="float64")
    for participation in (1.0, 0.1):  # a tenth of so few is a cohort of one; some never take part
        made = coterie.methods.make(name, rounds=4, participation=participation, batch=8, **options)
        result = made.fit(fed)
        assert torch.isfinite(result.served.models.parameters).all()
        assert len(result.served.index) == len(fed.names)
        assert all(client["loss"] is None or client["loss"] >= 0 for client in result.clients)


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_identical_clients_are_one_group_and_their_model_is_everybodys(name, options):
    same = np.arange(40)
    split = Split((same,) * 5, repeats=True)
    fed = coterie.simulate(data().held_out(0.2), split, "logistic", precision="float64", test="global", validation=0)
    result = coterie.methods.make(name, rounds=4, batch=0, epochs=3, **options).fit(fed)
    assert result.summary["groups"] == 1
    assert len({client["loss"] for client in result.clients}) == 1
    if name == "cafa":
        assert result.state.labels.tolist() == [0] * 5


@pytest.mark.parametrize(("name", "program"), [("cafa", label_histogram), ("cfic", dominant_label)])
def test_a_client_that_does_not_say_what_it_has_is_asked_again(name, program, monkeypatch):
    fed = coterie.simulate(data(), "iid", "logistic", clients=4, precision="float64")
    run, silent = fed._engine.run, {1: (0, 1, 2, 3), 2: (1,)}

    def dropping(call):
        answers = run(call)
        if call.program is not program:
            return answers
        stay = ~np.isin(answers.clients, silent.get(call.at.number, ()))
        rows = {name: value[torch.from_numpy(stay)] for name, value in answers.outputs.items()}
        return Answers(answers.clients[stay], rows)

    monkeypatch.setattr(fed._engine, "run", dropping)
    made = coterie.methods.make(name)
    fed.begin(3)
    state, known = state_of(made.begin(fed)), []
    for number in (2, 3) if name == "cafa" else (1, 2, 3):
        fed.start_round(number)
        state = state_of(made.round(fed, state))
        known.append((state.labels >= 0).tolist())
    assert known[-2:] == [[True, False, True, True], [True] * 4]


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_federation_may_grow_in_mid_run_by_clients_that_say_nothing(name, options, monkeypatch):
    # Over a real network names are appended: the state is then of fewer clients than there are.
    fed = coterie.simulate(data(), "iid", "logistic", clients=5, precision="float64")
    made = coterie.methods.make(name, batch=8, **options)
    monkeypatch.setattr(fed._engine, "names", fed.names[:4])
    monkeypatch.setattr(fed._engine, "sizes", fed._engine.sizes[:4])
    fed.begin(4)
    state = state_of(made.begin(fed))
    for number in (1, 2, 3):
        fed.start_round(number)
        state = state_of(made.round(fed, state))
    monkeypatch.undo()
    run = fed._engine.run

    def dropping(call):
        answers = run(call)
        stay = answers.clients < 4
        rows = {name: value[torch.from_numpy(stay)] for name, value in answers.outputs.items()}
        return Answers(answers.clients[stay], rows, answers.letters)

    monkeypatch.setattr(fed._engine, "run", dropping)
    fed.start_round(4)
    state = state_of(made.round(fed, state))
    served = made.serve(fed, state)
    assert len(served.index) == 5
    monkeypatch.undo()
    fed.start_round(5)
    state = state_of(made.round(fed, state))
    assert torch.isfinite(made.serve(fed, state).models.parameters).all()
    labels = (state.clusters if name == "autocfl" else state).labels
    assert len(labels) == 5
    assert labels[4] >= 0
