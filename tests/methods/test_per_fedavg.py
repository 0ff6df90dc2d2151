"""Per-FedAvg: the meta-step by hand, what public code gets wrong, reductions."""

import numpy as np
import pytest
import torch

import coterie
from coterie import Scoring
from coterie.core.errors import SettingsError
from coterie.methods import per_fedavg
from coterie.methods.per_fedavg import AfterInnerStep, PerFedAvg
from coterie.training.forms import FORMS
from coterie.training.local import LocalTraining
from coterie.training.loop import task_loss
from support.federations import opposed, same, uneven
from support.worlds import at, close, mlp, normed, quadratic, quadratics, world


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def parabola(monkeypatch):
    """Makes the loss a/2 (w - c)^2 of samples (c, a), instead of cross-entropy."""
    monkeypatch.setattr(per_fedavg, "task_loss", quadratic)


def moved(here, form, start, steps, rate=0.1, inner=0.1, delta=None, batch=1):
    local = LocalTraining(steps=steps, batch=batch, rate=rate)
    start = at(here, *[start] * len(here.shards))
    return here.clients(form).train(start, local, objective=AfterInnerStep(inner, delta)).models.parameters[:, 0]


@pytest.mark.parametrize(("delta", "expected"), [(None, 0.09), (1e-3, 0.081)], ids=["first order", "hessian-free"])
def test_one_step_by_hand(parabola, form, delta, expected):
    # f = (w - 1)^2 / 2 at w = 0, alpha = beta = .1: the inner step leads to .1, where g = -.9. First order: .1 * .9;
    # with the Hessian 1 it counts (1 - .1) of that.
    here = quadratics([(1, 1)] * 3, [(1, 1)])
    assert moved(here, form, 0.0, 1, delta=delta).tolist() == pytest.approx([expected] * 2, abs=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
def test_on_a_parabola_differences_of_gradients_are_exact_for_any_delta(parabola, form, delta):
    here = quadratics([(1, 1)] * 2)
    assert moved(here, form, 0.0, 1, delta=delta).item() == pytest.approx(0.081, abs=1e-10)


@pytest.mark.parametrize(("delta", "factor"), [(None, 0.91), (1e-3, 0.919)], ids=["first order", "hessian-free"])
def test_the_meta_update_is_not_lost_before_the_next_step(parabola, form, delta, factor):
    # FLGo's loop goes on from the inner weights and never writes the outer step back. Done right, the distance to the
    # minimum shrinks in every step by 1 - beta (1 - alpha), or by 1 - beta (1 - alpha)^2: after three, 1 - factor^3.
    here = quadratics([(1, 1)])
    assert moved(here, form, 0.0, 3, delta=delta).item() == pytest.approx(1 - factor**3, abs=1e-10)


def test_the_inner_step_has_no_momentum_and_leaves_none(parabola, form):
    # PACFL's code runs both steps through one momentum buffer. Here the outer gradients alone make it: with f as above
    # and momentum .5, v1 = -.9 and w1 = .09; then g = -.9 (1 - .09) = -.819, v2 = -.45 - .819 and w2 = .09 + .1269.
    here = quadratics([(1, 1)])
    local = LocalTraining(steps=2, batch=1, rate=0.1, momentum=0.5)
    found = here.clients(form).train(at(here, 0.0), local, objective=AfterInnerStep(0.1, None))
    assert found.models.parameters.item() == pytest.approx(0.2169, abs=1e-12)


def test_a_client_whose_data_fits_in_one_batch_trains_too(parabola, form):
    # PACFL's code takes half as many steps as there are batches, rounded down: none.
    here = quadratics([(1, 1)], [(1, 1)] * 9)
    assert (moved(here, form, 0.0, 2, batch=4) > 0.1).all()


def test_batches_of_the_inner_and_the_outer_step_are_independent(form):
    here, seen = world(mlp, (12,)), []

    def recording(model, batch, key):
        seen.append(batch.index.tolist())
        return task_loss(model, batch, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(per_fedavg, "task_loss", recording)
        local = LocalTraining(epochs=1, batch=4)
        here.clients("loop").train(here.models(), local, objective=AfterInnerStep(0.1, 1e-3))
    # A step calls the loss for the inner gradient, the outer loss, its gradient, and twice for the Hessian.
    inner, outer, again, ahead, behind = (seen[first::5] for first in range(5))
    assert outer == again
    assert ahead == behind
    for stream in (inner, outer, ahead):
        assert sorted(place for batch in stream for place in batch) == list(range(12))
    assert inner != outer != ahead != inner


def test_differences_of_gradients_approach_the_exact_hessian(form):
    # With all samples in a batch the three batches are the same, and the objective can be differentiated through.
    def exact(model, batch, key):
        inner = model.gradient(lambda inside: task_loss(inside, batch, key))
        return task_loss(model.at(model.parameters - 0.3 * inner), batch, key)

    here, local = world(mlp), LocalTraining(steps=2, batch=0, rate=0.5)
    clients, start = here.clients(form), here.models()
    expected = clients.train(start, local, objective=exact).models.parameters
    found = [
        clients.train(start, local, objective=AfterInnerStep(0.3, delta)).models.parameters for delta in (1e-1, 1e-4)
    ]
    first = clients.train(start, local, objective=AfterInnerStep(0.3, None)).models.parameters
    errors = [float((one - expected).abs().max()) for one in (first, *found)]
    assert errors[0] > 1e-3
    assert errors[1] < 0.1 * errors[0]
    assert errors[2] < 1e-8


def noisy(shape, classes):
    """Drops half of what it sees."""
    return torch.nn.Sequential(torch.nn.Dropout(0.5), mlp(shape, classes))


def test_the_hessian_is_of_one_draw_of_dropout():
    # With different noise on the two sides the difference of gradients would be divided by 2e-6: a step of thousands.
    here, local = world(noisy), LocalTraining(steps=1, batch=0, rate=0.1)
    start = here.models()
    found = here.clients().train(start, local, objective=AfterInnerStep(0.1, 1e-6)).models
    assert (found - start).norm().max() < 1


def test_the_running_statistics_follow_the_outer_pass(form):
    here = world(normed, shape=(2, 4, 4))
    local = LocalTraining(steps=1, batch=0, rate=0.1)
    start = here.models()
    plain = here.clients(form).train(start, local).models
    found = here.clients(form).train(start, local, objective=AfterInnerStep(0.0, None)).models
    close(found.buffers, plain.buffers)
    assert (found.buffers != start.buffers).any(dim=1).all()


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_without_an_inner_step_it_is_fedavg(order):
    fed = uneven()
    meta = PerFedAvg(rounds=3, inner_rate=0.0, order=order, participation=0.7, weighting="samples").fit(fed)
    plain = coterie.FedAvg(rounds=3, participation=0.7).fit(fed)
    assert same(meta.state.model, plain.state.model)
    assert [c["loss"] for c in meta.clients] == [c["loss"] for c in plain.clients]


def test_what_is_served_is_the_model_after_a_local_step():
    fed = uneven()
    plain = PerFedAvg(rounds=2, adapt_steps=0, inner_rate=0.1).fit(fed)
    adapted = PerFedAvg(rounds=2, adapt_steps=1, inner_rate=0.1, batch=0).fit(fed)
    further = PerFedAvg(rounds=2, adapt_steps=30, inner_rate=0.1).fit(fed)
    assert plain.served.adapt == ()
    assert adapted.served.adapt == (("all", LocalTraining(steps=1, batch=0, rate=0.1)),)
    assert adapted.summary["loss_mean"] != plain.summary["loss_mean"]
    assert same(further.state.model, plain.state.model)


def test_the_orders_differ():
    fed = uneven()
    first, free = (PerFedAvg(rounds=2, order=order, inner_rate=0.2).fit(fed) for order in ("first", "hessian-free"))
    assert (first.state.model.parameters - free.state.model.parameters).abs().max() > 1e-4


def test_a_model_that_adapts_well_serves_opposed_groups_better_than_fedavg():
    fed = opposed()
    meta = PerFedAvg(rounds=20, inner_rate=0.5, adapt_steps=5, batch=0, steps=10, rate=0.1).fit(fed)
    plain = coterie.FedAvg(rounds=20, batch=0, steps=10, rate=0.1).fit(fed, scoring=Scoring())
    assert meta.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.1


def test_traffic_is_fedavgs():
    fed = uneven()
    meta, plain = (method(rounds=1).fit(fed).summary["ledger"] for method in (PerFedAvg, coterie.FedAvg))
    assert (meta["up"], meta["down"]) == (plain["up"], plain["down"])


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients_and_a_single_sample(clients):
    result = PerFedAvg(rounds=2, order="hessian-free").fit(uneven(clients=clients))
    assert np.isfinite(result.summary["loss_mean"])
    here = world(mlp, (1,))
    start = here.models()
    one = here.clients().train(start, LocalTraining(steps=2), objective=AfterInnerStep(0.1, 1e-3)).models
    assert (one.parameters != start.parameters).any()


@pytest.mark.parametrize("options", [{"inner_rate": -0.1}, {"delta": 0.0}, {"adapt_steps": -1}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("per-fedavg", **options)
