"""Recorded steps: buffers, windows and prefixes change no result. Here a record is just run again, without a GPU."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from coterie.clients.clients import CallContext, Clients
from coterie.training import graphs
from coterie.training.forms import FORMS, Branch, Vectorised
from coterie.training.graphs import Recorder, objective_key, rounded_up
from coterie.training.local import LocalTraining
from coterie.training.loop import task_loss
from support.trainings import (
    IMAGES,
    LOCAL,
    NAMES,
    WITHIN,
    everything,
    noisy,
    options_of,
    pretrained,
    second_order,
    three,
)
from support.worlds import close, mlp, world


def again(step):
    """Stands for a graph on a machine without a GPU."""
    return lambda: step()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(graphs, "_WINDOW", 3)


def trained(here, form, local=LOCAL, number=1, **options):
    clients = Clients(here.net, here.pool, here.shards, form, CallContext(number=number))
    return clients.train(here.models(), local, **options)


def agree(here, local=LOCAL, rounds=2, **options):
    """Both recorded forms do what the loop does, also in buffers that were used before."""
    loop, forms = FORMS["loop"](), (Vectorised(recorder=Recorder(again)), Branch(recorder=Recorder(again)))
    for number in range(1, rounds + 1):
        reference = trained(here, loop, local, number, **options)
        for form in forms:
            found = trained(here, form, local, number, **options)
            close(found.models.parameters, reference.models.parameters, WITHIN)
            close(found.models.buffers, reference.models.buffers, WITHIN)
            close(found.loss, reference.loss, WITHIN)
            for name, value in (reference.beside | reference.carried).items():
                close((found.beside | found.carried)[name], value, WITHIN)
            if form.name == "branch":
                assert torch.equal(found.models.parameters, reference.models.parameters)


@pytest.mark.parametrize(
    "local",
    [
        LOCAL,
        LocalTraining(epochs=3, batch=0, rate=0.2),
        LocalTraining(epochs=3, batch=100, rate=0.2),
        LocalTraining(epochs=2.6, batch=1, rate=0.1),
        LocalTraining(steps=7, batch=4, rate=0.2),
        LocalTraining(epochs=3, batch=4, rate=0.05, momentum=0.5, decay=0.1, clip=0.3),
        LocalTraining(epochs=3, batch=4, rate=0.02, optimizer="adam", decay=0.1),
    ],
    ids=lambda local: ", ".join(f"{k}={v}" for k, v in vars(local).items() if v != getattr(LOCAL, k)) or "plain",
)
@pytest.mark.parametrize("sizes", [(7, 3, 12, 1), (8, 8, 8), (9, 2, 5, 5, 20), (6,)], ids=str)
def test_recorded_forms_agree_with_the_loop(local, sizes):
    agree(world(everything, sizes, IMAGES), local)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_forms_agree_for_every_option(name):
    here = world(everything, shape=IMAGES, augment=True)
    agree(here, LocalTraining(epochs=2, batch=4, rate=0.1, momentum=0.9, decay=0.01), **options_of(here)[name])


@pytest.mark.parametrize("objective", [second_order, three, noisy], ids=lambda f: f.__name__)
def test_recorded_forms_agree_for_every_objective(objective):
    agree(world(mlp), objective=objective)


def test_recorded_forms_agree_for_frozen_layers():
    agree(world(pretrained, shape=IMAGES))


def test_many_tracks_shrink_through_few_prefixes():
    here = world(mlp, tuple(range(1, 40)))
    recorder = Recorder(again)
    loop = trained(here, FORMS["loop"](), LocalTraining(epochs=1, batch=2))
    found = trained(here, Vectorised(recorder=recorder), LocalTraining(epochs=1, batch=2))
    close(found.models.parameters, loop.models.parameters, WITHIN)
    ((recorded,),) = recorder._kinds.values()
    assert recorded.shape.tracks == 40
    assert sorted(tracks for tracks, _ in recorded.graphs) == [1, 4, 8, 16, 20, 24, 28, 32, 40]


def test_a_finished_client_that_computes_along_stays_as_it_is():
    """Its gradient is not a number there: it has no samples left."""
    here = world(everything, (9, 1, 1, 5, 5, 5), IMAGES)
    found = trained(here, Vectorised(recorder=Recorder(again)), LocalTraining(epochs=2, batch=2, momentum=0.9))
    assert torch.isfinite(found.models.parameters).all()
    assert torch.isfinite(found.models.buffers).all()
    assert torch.isfinite(found.loss).all()


def counting(recorded):
    def record(step):
        recorded.append(step)
        return step

    return record


def test_the_next_round_records_nothing_new():
    made = []
    here, form = world(mlp, (8, 8, 8)), Vectorised(recorder=Recorder(counting(made)))
    for number in range(1, 4):
        trained(here, form, number=number)
        assert len(made) == 1
    trained(here, form, LocalTraining(epochs=3, batch=4, rate=0.05))
    assert len(made) == 1, "the rate is a value, not a part of the record"
    trained(here, form, LocalTraining(epochs=3, batch=4, momentum=0.5))
    assert len(made) == 2
    form.forget()
    trained(here, form)
    assert len(made) == 3


def test_works_side_by_side_are_what_they_are_alone_in_buffers_that_are_kept(monkeypatch):
    monkeypatch.setattr(graphs, "_KINDS", 2)  # fewer than there are: nothing is taken away while it is in use
    here, works, train = world(mlp, (7, 3, 12, 1)), [], Vectorised.train
    monkeypatch.setattr(Vectorised, "train", lambda self, work: (works.append(work), train(self, work))[1])
    slower, faster = (LocalTraining(epochs=2, batch=4, momentum=momentum) for momentum in (0.5, 0.9))  # of one kind
    alone = [trained(here, Vectorised(), local, number=2) for local in (LOCAL, slower, faster)]
    alone.append(trained(here, Vectorised(), objective=noisy))
    recorder = Recorder(again)
    for _ in range(2):
        for (models, losses), expected in zip(Vectorised(recorder=recorder).train_all(works), alone, strict=True):
            close(models.parameters, expected.models.parameters, WITHIN)
            close(losses, expected.loss, WITHIN)
    assert [len(kept) for kept in recorder._kinds.values()] == [2, 1]


def test_what_cannot_be_recorded_runs_as_it_is(caplog):
    def refuses(step):
        raise RuntimeError("operation not permitted")

    here = world(mlp)
    loop, found = (trained(here, form) for form in (FORMS["loop"](), Vectorised(recorder=Recorder(refuses))))
    close(found.models.parameters, loop.models.parameters, WITHIN)
    assert "cannot be recorded" in caplog.text


def test_old_kinds_are_forgotten(monkeypatch):
    monkeypatch.setattr(graphs, "_KINDS", 2)
    here, recorder = world(mlp), Recorder(again)
    for objective in (task_loss, noisy, lambda model, batch, key: task_loss(model, batch, key)):
        trained(here, Vectorised(recorder=recorder), objective=objective)
    assert len(recorder._kinds) == 2


def scaled(model, batch, key, by):
    return by * task_loss(model, batch, key)


def made_anew(by):
    return lambda model, batch, key: scaled(model, batch, key, by)


@dataclass(frozen=True)
class Scaled:
    by: float

    def __call__(self, model, batch, key):
        return scaled(model, batch, key, self.by)


@pytest.mark.parametrize(
    "make", [made_anew, Scaled, lambda by: partial(scaled, by=by)], ids=["closure", "object", "partial"]
)
def test_objectives_are_known_by_what_they_consist_of(make):
    assert objective_key(make(2.0)) == objective_key(make(2.0))
    assert objective_key(make(2.0)) != objective_key(make(3.0))
    made = []
    here, form = world(mlp, (8, 8, 8)), Vectorised(recorder=Recorder(counting(made)))
    for by in (2.0, 2.0, 3.0):
        found = trained(here, form, objective=make(by))
        close(found.models.parameters, trained(here, FORMS["loop"](), objective=make(by)).models.parameters, WITHIN)
    assert len(made) == 2


@pytest.mark.parametrize("make", [made_anew, lambda by: partial(scaled, by=by)], ids=["closure", "partial"])
def test_objectives_with_parts_that_have_no_hash_are_known_by_themselves(make):
    one, other = make([2.0]), make([2.0])
    assert objective_key(one) == objective_key(one)
    assert objective_key(one) != objective_key(other)


@pytest.mark.parametrize(
    ("count", "digits", "rounded"), [(1, 3, 1), (7, 3, 7), (9, 3, 10), (100, 5, 100), (100, 3, 112), (65, 3, 80)]
)
def test_rounded_up(count, digits, rounded):
    assert rounded_up(count, digits) == rounded


@pytest.mark.parametrize("sizes", [(7, 3, 12, 1), (6,)], ids=str)
def test_strict_steps_that_are_recorded_are_those_that_are_not(sizes):
    here = world(everything, sizes, IMAGES)
    recorded, plain = Vectorised(recorder=Recorder(again), strict=True), Vectorised(strict=True)
    for number in (1, 2):
        found, expected = (trained(here, form, LOCAL, number) for form in (recorded, plain))
        assert torch.equal(found.models.parameters, expected.models.parameters)
        assert torch.equal(found.models.buffers, expected.models.buffers)
        assert torch.equal(found.loss, expected.loss)
    ((kept,),) = recorded._recorder._kinds.values()
    assert set(kept.graphs) == {(16, 4)}
