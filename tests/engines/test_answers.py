"""Answers held against what programs declare, and against each other: honest ones always count."""

import numpy as np
import pytest

import coterie
from coterie.clients.programs import programs
from coterie.data import Split
from coterie.engines.chunk import part_of
from coterie.engines.flower.answers import contribution, too_far
from coterie.moves.outliers import far_off
from support.every_method import METHODS


def skewed():
    """Clients that differ as much as they can: of few classes each, and with 4 samples or hundreds."""
    rng, data = np.random.default_rng(0), coterie.load("digits")
    sizes = (4, 4, 8, 16, 30, 60, 120, 250)
    chosen = [np.flatnonzero(np.isin(data.y, [place])) for place in range(len(sizes))]
    drawn = zip(chosen, sizes, strict=True)
    return data, Split(tuple(rng.choice(own, min(size, len(own)), replace=False) for own, size in drawn))


@pytest.mark.parametrize("name", METHODS)
def test_no_honest_answer_is_refused_or_too_far_off_however_clients_differ(name, monkeypatch):
    data, split = skewed()
    fed = coterie.simulate(data, split, "mlp", workers=0, seed=1, server_samples=20)
    engine, seen = fed._engine, []
    run = engine.run

    def watched(call):
        answers = run(call)
        found = {}
        for row, client in enumerate(answers.clients.tolist()):
            if client < 0:
                return answers
            outputs = {key: value[row : row + 1] for key, value in answers.outputs.items()}
            answer = {"outputs": outputs, "kept": False, "letters": [], "samples": 5}
            (at,) = np.flatnonzero(call.clients == client)
            found[client] = contribution(answer, part_of(call, np.array([at])), fed.net, "x", ["x"])
        assert too_far(found) == {}, call.program.name
        seen.append(call.program.name)
        return answers

    monkeypatch.setattr(engine, "run", watched)
    options = {"rate": 0.1, **METHODS[name], **({"shares": "not 3"} if name == "lg-fedavg" else {})}
    coterie.methods.make(name, rounds=4, batch=8, **options).fit(fed)
    assert len(seen) >= 8


def test_every_program_that_a_site_may_run_declares_what_it_gives():
    coterie.methods.load()
    ours = {name: made for name, made in programs.items() if name.startswith("coterie.") and not made.simulated}
    assert len(ours) > 20
    assert [name for name, made in ours.items() if made.gives is None] == []


@pytest.mark.parametrize("honest", [3, 5, 20])
@pytest.mark.parametrize("lie", [1e3, 1e38, 1e300, np.inf])
def test_what_is_absurd_is_too_far_off_and_nobody_else_is(honest, lie):
    distances = np.append(np.random.default_rng(0).lognormal(0, 0.5, honest), lie)
    found = far_off(distances, np.ones(honest + 1))
    assert found[-1]
    assert not found[:-1].any()


def test_of_two_only_what_is_absurd_is_too_far_off():
    assert far_off(np.array([1.0, 900.0]), np.ones(2)).tolist() == [False, False]
    assert far_off(np.array([1.0, 1e4]), np.ones(2)).tolist() == [False, True]


def test_who_still_moves_when_all_others_have_stopped_is_not_left_out():
    assert not far_off(np.array([0, 0, 0, 0, 0.9]), np.ones(5)).any()
    assert far_off(np.array([0, 0, 0, 0, 1e6]), np.ones(5)).tolist() == [False] * 4 + [True]


def test_what_is_no_number_is_left_to_others():
    assert not far_off(np.array([np.nan, 1, 1, 1]), np.ones(4)).any()
