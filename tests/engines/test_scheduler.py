"""Several runs at once: each is what it is alone, and what they train they train together."""

import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError
from coterie.engines.simulation.scheduler import Scheduler
from coterie.runs.comparison import compare
from coterie.runs.settings import Settings
from coterie.training.evaluation import EvaluationJob
from coterie.training.forms import Vectorised
from support.every_method import METHODS
from support.worlds import close, mlp, tensors_of, world

TINY = {"clients": 4, "net": "mlp", "limit": 300, "precision": "float64", "device": "cpu", "workers": 0, "batch": 8}


def settings(*names, **more):
    return [Settings.of({**TINY, "rounds": 3, **METHODS[name], **more}, name)[0] for name in names]


def batches(monkeypatch):
    """How many runs were served by each training, of the last meeting."""
    met = []
    begin = Scheduler.__init__
    monkeypatch.setattr(Scheduler, "__init__", lambda self, *fits: (begin(self, *fits), met.append(self))[0])
    return lambda: met[-1].batches


def agree(one, other):
    assert [s.method.name for s, _ in one] == [s.method.name for s, _ in other]
    for (_, ours), (_, theirs) in zip(one, other, strict=True):
        assert ours.summary["seed"] == theirs.summary["seed"]
        for mine, yours in zip(ours.clients, theirs.clients, strict=True):
            assert mine["loss"] == pytest.approx(yours["loss"], abs=1e-9)
            assert mine["accuracy"] == pytest.approx(yours["accuracy"], abs=1e-9)
            assert (mine["client"], mine["steps"]) == (yours["client"], yours["steps"])


def test_seeds_together_are_what_they_are_alone(monkeypatch):
    served = batches(monkeypatch)
    chosen = settings("fedavg", split_seed=0)
    agree(compare(chosen, seeds=3, together=True), compare(chosen, seeds=3, together=False))
    assert served() == [3, 3, 3]


def test_methods_together_are_what_they_are_alone(monkeypatch):
    served = batches(monkeypatch)
    chosen = settings("fedavg", "fedprox", "local", "scaffold", participation=0.8, split_seed=0)
    agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))
    # FedAvg and Local fit together; the others have terms of their own, which only their other seed has too.
    assert sorted(served()) == sorted([4, 2, 2] * 3)


def test_who_asks_about_more_samples_does_not_disturb_the_others():
    # IFCA asks about training samples while FedAvg asks about the fewer test samples.
    chosen = settings("fedavg", "ifca", split_seed=0, validation=0.0)
    agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))


def test_runs_of_different_length_do_not_wait_for_those_that_have_ended(monkeypatch):
    served = batches(monkeypatch)
    chosen = [*settings("fedavg"), *settings("local", rounds=5)]
    agree(compare(chosen, together=True), compare(chosen, together=False))
    assert served() == [2, 2, 2, 1, 1]


def test_folders_are_the_same(tmp_path):
    compare(settings("fedavg", "local", split_seed=0), seeds=2, out=tmp_path, together=True)
    assert len([path for path in tmp_path.iterdir() if (path / "summary.json").is_file()]) == 4


def test_samples_that_differ_are_not_put_together(monkeypatch):
    served = batches(monkeypatch)
    chosen = settings("fedavg", "local", limit=200)
    agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))
    assert served() == [2, 2, 2], "the methods of a seed fit together, those of another do not"


def test_samples_that_are_rotated_differently_fit_together(monkeypatch):
    served = batches(monkeypatch)
    chosen = settings("fedavg", split="autocfl-input", limit=None)
    agree(compare(chosen, seeds=3, together=True), compare(chosen, seeds=3, together=False))
    assert served() == [3, 3, 3]


class Failing(coterie.FedAvg):
    """Fails in its second round."""

    name = "failing"

    def round(self, fed, state):
        if fed.round == 2:
            raise CoterieError("no more")
        return super().round(fed, state)


class Observing(coterie.FedAvg):
    """Notes how many threads torch has while its server's side is at work."""

    name = "observing"
    threads: ClassVar[list[int]] = []

    def round(self, fed, state):
        self.threads.append(torch.get_num_threads())
        state = super().round(fed, state)
        self.threads.append(torch.get_num_threads())
        return state


def test_torch_is_as_it_was_for_what_is_not_in_a_program():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        chosen = settings("fedavg", "ifca", "local")
        object.__setattr__(chosen[1], "method", Observing(rounds=3, batch=8))
        compare(chosen, together=True)
        assert set(Observing.threads) == {3}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_an_error_of_one_run_is_raised_and_ends_the_others():
    fine, broken = settings("fedavg", rounds=50)[0], settings("fedavg")[0]
    object.__setattr__(broken, "method", Failing(rounds=3, batch=8))
    with pytest.raises(CoterieError, match="no more"):
        compare([fine, broken], together=True)
    assert threading.active_count() == 1


def test_a_training_that_fails_together_is_tried_alone(monkeypatch):
    train = Vectorised.train_all

    def limited(self, works):
        if sum(len(work.tracks) for work in works) > 4:
            raise RuntimeError("too many")
        return train(self, works)

    monkeypatch.setattr(Vectorised, "train_all", limited)
    chosen = settings("fedavg", "local", "fedprox")
    agree(compare(chosen, together=True), compare(chosen, together=False))


def test_tasks_that_never_train():
    assert Scheduler().run([partial(int, text) for text in ("1", "2")]) == [1, 2]
    assert Scheduler().run([]) == []


def test_what_runs_ask_of_models_is_answered_together(monkeypatch):
    meetings = []
    begin = Scheduler.__init__
    monkeypatch.setattr(Scheduler, "__init__", lambda self, *fits: (begin(self, *fits), meetings.append(self))[0])
    chosen = settings("fedavg", "ifca", "local", split_seed=0)
    agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))
    # IFCA asks for its clients' choice before it trains, and once more when it is scored.
    assert meetings[-1].batches == [6, 6, 6]
    assert len(meetings[-1].answers) < 3 * 6
    assert max(meetings[-1].answers) == 6


def test_questions_about_more_and_about_fewer_samples_get_what_they_get_alone():
    here, meeting, form = world(mlp), Scheduler(), Vectorised()
    asked = [
        EvaluationJob(here.pool, here.models(2), [np.arange(9)] * 2),
        EvaluationJob(here.pool, here.models(3, seed=1), [np.arange(4)] * 3),
        EvaluationJob(here.pool, here.models(2, seed=2), [np.array([3, 1]), np.arange(6)]),
    ]
    found = meeting.run([partial(meeting.form(form, number).evaluate, one) for number, one in enumerate(asked)])
    assert meeting.answers == [3]
    for one, answers in zip(asked, found, strict=True):
        assert answers.shape == (2, len(one.places), max(map(len, one.places)))
        for row, places in enumerate(one.places):
            alone = form.evaluate(EvaluationJob(here.pool, one.models[row : row + 1], [places]))
            close(answers[:, row, : len(places)], alone[:, 0])


def test_predictions_on_given_inputs_are_made_together():
    chosen = settings("flis-dc", server_samples=20, split_seed=0)
    agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))


def test_as_many_tracks_are_trained_together_as_fit(monkeypatch):
    served = batches(monkeypatch)
    chosen = settings("fedavg", "local", split_seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(coterie.engines.simulation.Simulation, "clients_at_once", lambda self, rows: 9)
        agree(compare(chosen, seeds=2, together=True), compare(chosen, seeds=2, together=False))
    assert served() == [2, 2] * 3  # four clients each


def test_kinds_that_have_no_step_in_common_are_trained_side_by_side_as_far_as_they_fit(monkeypatch):
    beside, train = [], Vectorised.train_all

    def noted(self, works):
        beside.append([len(work.tracks) for work in works])
        return train(self, works)

    chosen = settings("fedavg", "fedprox", "local", "scaffold", split_seed=0)
    monkeypatch.setattr(Vectorised, "train_all", noted)
    compare(chosen, together=True)
    assert beside == [[8, 4, 4]] * 3  # FedAvg and Local, FedProx, SCAFFOLD; four clients each
    for fits, expected in ((12, [[8, 4], [4]]), (9, [[8], [4, 4]]), (7, [[4]] * 4)):
        beside.clear()
        monkeypatch.setattr(coterie.engines.simulation.Simulation, "clients_at_once", lambda self, rows, n=fits: n)
        found = compare(chosen, together=True)
        assert beside == expected * 3
    agree(found, compare(chosen, together=False))


def test_when_memory_runs_out_runs_go_on_in_halves(monkeypatch):
    served, train, tried = batches(monkeypatch), Vectorised.train_all, []

    def limited(self, works):
        tried.append(sum(len(work.tracks) for work in works))
        if tried[-1] > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(self, works)

    monkeypatch.setattr(Vectorised, "train_all", limited)
    compare(settings("fedavg", split_seed=0), seeds=4, together=True)
    assert served() == [2] * 6
    assert tried == [16, 8, 8, 8, 8, 8, 8], "what did not fit once is not tried again"
    tried.clear()
    compare(settings("fedavg", "fedprox", split_seed=0), seeds=2, together=True)
    assert served() == [2] * 6
    assert tried == [16, 8, 8, 8, 8, 8, 8], "the same for kinds side by side"


@pytest.mark.parametrize("names", [("fedavg", "scaffold"), ("ifca", "flis-dc")], ids=", ".join)
def test_strict_runs_are_the_same_to_the_last_bit_alone_together_and_in_smaller_groups(names):
    # Unequal clients and convolutions: otherwise even what is not strict happens to be the same.
    more = {"precision": "float32", "strict": True, "engine": "vectorised", "net": "cnn", "split": "quantity"}
    more |= {"split_seed": 0, "server_samples": 20, "rounds": 2}
    together = compare(settings(*names, **more), seeds=2, together=True)
    alone = compare(settings(*names, **more), seeds=2, together=False)
    parts = compare(settings(*names, **more, memory=1e-4), seeds=2, together=False)
    for one, other, third in zip(together, alone, parts, strict=True):
        assert one[1].clients == other[1].clients == third[1].clients
        ours, theirs, others = (tensors_of(result.state) for _, result in (one, other, third))
        assert all(torch.equal(ours[key], theirs[key]) and torch.equal(ours[key], others[key]) for key in ours)
