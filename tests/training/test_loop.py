"""The one training loop: against plain PyTorch, and against numbers worked out by hand."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from coterie.core.errors import CoterieError, SettingsError
from coterie.nets.stacks import Changes, Models
from coterie.training.forms import FORMS
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, Terms, task_loss
from support.worlds import at, close, mlp, normed, quadratic, quadratics, world

IMAGES = (2, 4, 4)


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


# Against plain PyTorch


def batches_of(here, client, local):
    """The batches a client goes through, as places in the pool."""
    seen = []

    def recording(model, batch, key):
        seen.append(here.shards[client].train[batch.index])
        return task_loss(model, batch, key)

    here.clients("loop", [client]).train(here.models(1), local, objective=recording)
    return seen


def plain_loop(here, client, start, local, pull=0.0, anchor=None, push=None, sample_weights=None):
    """What anyone would write: a module, an optimizer of PyTorch's, and the batches one after another."""
    module = start.module().train()
    parameters = list(module.parameters())
    if local.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, local.rate, weight_decay=local.decay)
    else:
        optimizer = torch.optim.SGD(parameters, local.rate, local.momentum, weight_decay=local.decay)
    anchor = [p.detach().clone() for p in (start if anchor is None else anchor).module().parameters()]
    losses = []
    for places in batches_of(here, client, local):
        x, y = here.pool.inputs(torch.from_numpy(places)), here.pool.y[places]
        optimizer.zero_grad()
        each = F.cross_entropy(module(x), y, reduction="none")
        if sample_weights is not None:
            each = each * sample_weights[client, places - here.shards[client].train[0]]
        loss = each.mean()
        losses.append((loss.item(), len(y)))
        term = sum((p - a).square().sum() for p, a in zip(parameters, anchor, strict=True))
        (loss + pull / 2 * term).backward()
        if push is not None:
            constants = push.net.parameters.views(push.parameters)
            for parameter, constant in zip(parameters, constants.values(), strict=True):
                parameter.grad += constant
        if local.clip:
            nn.utils.clip_grad_norm_(parameters, local.clip)
        optimizer.step()
    return module, losses


PLAIN = [
    LocalTraining(epochs=3, batch=4, rate=0.2),
    LocalTraining(epochs=3, batch=4, rate=0.1, momentum=0.9),
    LocalTraining(epochs=3, batch=4, rate=0.2, decay=0.1),
    LocalTraining(epochs=3, batch=4, rate=0.1, momentum=0.9, decay=0.1),
    LocalTraining(epochs=3, batch=4, rate=0.2, clip=0.5),
    LocalTraining(epochs=3, batch=4, rate=0.1, momentum=0.5, decay=0.1, clip=0.5),
    LocalTraining(epochs=3, batch=4, rate=0.02, optimizer="adam"),
    LocalTraining(epochs=3, batch=4, rate=0.02, optimizer="adam", decay=0.1, clip=0.5),
    LocalTraining(epochs=3, batch=0, rate=0.2),
    LocalTraining(epochs=1.7, batch=4, rate=0.2),
    LocalTraining(steps=5, batch=4, rate=0.2),
    LocalTraining(epochs=3, batch=4, rate=0.2, whole_batches=True),
]


def same_as_plain(here, form, local, **options):
    # Adam divides the rounding error of a gradient that is really zero (a bias before a norm) by its own size.
    within = 1e-9 if local.optimizer == "adam" else 1e-12
    start = here.models()
    result = here.clients(form).train(start, local, **options)
    for client in range(len(here.shards)):
        own = {key: _own(value, client) if key != "sample_weights" else value for key, value in options.items()}
        module, losses = plain_loop(here, client, start[client], local, **own)
        expected = dict(module.state_dict())
        for name, value in result.models[client].state_dict().items():
            close(value, expected[name], within)
        epoch = losses[-local.steps_per_epoch(len(here.shards[client].train)) :]
        mean = sum(loss * rows for loss, rows in epoch) / sum(rows for _, rows in epoch)
        assert result.loss[client].item() == pytest.approx(mean, abs=within)


def _own(value, client):
    return value[client] if getattr(value, "shape", None) else value


@pytest.mark.parametrize(
    "local", PLAIN, ids=lambda local: ", ".join(f"{k}={v}" for k, v in vars(local).items() if v != getattr(PLAIN[0], k))
)
@pytest.mark.parametrize("factory", [mlp, normed])
def test_training_is_what_plain_pytorch_does(form, factory, local):
    # No client of a single sample: PyTorch's own batch normalisation refuses such a batch, and batches of 4 leave none.
    same_as_plain(world(factory, (7, 3, 12), shape=(5,) if factory is mlp else IMAGES), form, local)


def test_pull_and_push_are_what_plain_pytorch_does(form):
    here = world(normed, (7, 3, 12), shape=IMAGES)
    local = LocalTraining(epochs=2, batch=4, rate=0.1, momentum=0.5, decay=0.1, clip=2.0)
    push = (here.models(seed=1) - here.models(seed=2)) * 0.1
    same_as_plain(here, form, local, pull=0.7, anchor=here.models(seed=3), push=push)


def test_sample_weights_are_what_plain_pytorch_does(form):
    here = world(mlp, (7, 3, 12))
    weights = torch.from_numpy(np.random.default_rng(0).uniform(0, 2, (3, 12)))
    same_as_plain(here, form, LocalTraining(epochs=2, batch=4), sample_weights=weights)


def test_an_epoch_is_every_sample_once_in_a_new_order_each_time():
    here = world(mlp)
    epochs = batches_of(here, 2, LocalTraining(epochs=3, batch=5))
    assert [len(batch) for batch in epochs] == [5, 5, 2] * 3
    orders = [np.concatenate(epochs[first : first + 3]) for first in (0, 3, 6)]
    for order in orders:
        assert sorted(order) == list(here.shards[2].train)
    assert (orders[0] != orders[1]).any()


def test_whole_batches_leave_out_what_does_not_fill_one_and_take_as_many_steps():
    here = world(mlp, (7, 3, 12))
    local = LocalTraining(epochs=3, batch=5, whole_batches=True)
    # 12 samples: 3 x 3 steps as otherwise, in passes of two full batches.
    batches = batches_of(here, 2, local)
    assert [len(batch) for batch in batches] == [5] * 9
    passes = [np.concatenate(batches[first : first + 2]) for first in (0, 2, 4, 6)]
    assert all(len(set(one)) == 10 for one in passes)
    assert len({frozenset(one) for one in passes}) > 1
    # 3 samples fill no batch, and are all that there is.
    assert [sorted(batch) for batch in batches_of(here, 1, local)] == [list(here.shards[1].train)] * 3
    even = LocalTraining(epochs=3, batch=4)
    same = zip(batches_of(here, 2, even), batches_of(here, 2, replace(even, whole_batches=True)), strict=True)
    assert all(np.array_equal(one, other) for one, other in same)


def test_augmentation_is_drawn_anew_for_every_step_client_and_round():
    # Two clients with one and the same image: whatever differs is the augmentation.
    image = np.arange(2 * 4 * 4, dtype=np.float32).reshape(1, 2, 4, 4)
    here = world(normed, (1, 1), IMAGES, augment=True, x=np.concatenate([image, image]), y=np.zeros(2, int))
    seen = []

    def recording(model, batch, key):
        seen.append(tuple(batch.x.flatten().tolist()))
        return task_loss(model, batch, key)

    for number in (1, 2):
        here.clients("loop", number=number).train(here.models(), LocalTraining(steps=6), objective=recording)
    sequences = [tuple(seen[first : first + 6]) for first in range(0, 24, 6)]
    assert len(set(sequences)) == 4
    assert all(len(set(sequence)) > 3 for sequence in sequences)


# Worked numbers: one parameter w, client k lowers a_k/2 (w - c_k)^2

EXACT = LocalTraining(steps=100, batch=0, rate=0.3)
"""Enough steps to be at the minimum, to the last bits: each leaves at most 0.7 of the way."""


@pytest.mark.parametrize(("mu", "minimiser"), [(0.0, 1.0), (0.1, 1 / 1.1), (1.0, 0.5), (3.0, 0.25)])
def test_fedprox_ends_at_the_minimiser(form, mu, minimiser):
    # (w - 1)^2 / 2 + mu/2 w^2 is least where w - 1 + mu w = 0.
    here = quadratics([(1, 1)])
    result = here.clients(form).train(at(here, 0.0), EXACT, pull=mu, objective=quadratic)
    assert result.models.parameters.item() == pytest.approx(minimiser, abs=1e-12)


@pytest.mark.parametrize("mu", [0.1, torch.tensor([0.1, 0.1], dtype=torch.float64)], ids=["scalar", "per client"])
def test_the_pulls_gradient_one_away_from_the_anchor_is_mu(form, mu):
    # A term built from detached tensors, or from the live parameters, would have the gradient 0.
    here = quadratics([(0, 0)], [(0, 0)])
    local = LocalTraining(steps=1, rate=1.0)
    result = here.clients(form).train(
        at(here, 4.0, -2.0), local, pull=mu, anchor=at(here, 3.0, -3.0), objective=quadratic
    )
    close(result.models.parameters[:, 0], torch.tensor([3.9, -2.1], dtype=torch.float64), 1e-15)


def test_each_client_has_a_pull_of_its_own(form):
    here = quadratics([(1, 1)], [(1, 1)], [(1, 1)])
    pull = torch.tensor([0.0, 1.0, 3.0])
    result = here.clients(form).train(at(here, 0.0, 0.0, 0.0), EXACT, pull=pull, objective=quadratic)
    close(result.models.parameters[:, 0], torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64))


@pytest.mark.parametrize("zero", [0.0, 0])
def test_a_pull_of_zero_changes_no_bit(form, zero):
    here = world(normed, shape=IMAGES)
    local = LocalTraining(epochs=2, batch=4, momentum=0.9)
    plain = here.clients(form).train(here.models(), local)
    pulled = here.clients(form).train(here.models(), local, pull=zero, anchor=here.models(seed=1))
    assert torch.equal(plain.models.parameters, pulled.models.parameters)
    assert torch.equal(plain.loss, pulled.loss)


def test_scaffold_by_hand(form):
    # c = +-1, eta = 0.1, K = 2, x = 0. Round 1 is plain: 0.1, then 0.1 + 0.1 * 0.9 = 0.19. The server's model stays 0,
    # so the new control variates are (x - y) / (K eta) = -+0.95, and their mean is 0. In round 2 a step of client +1
    # is y <- y + 0.1 (1 - y - 0.95): 0.005, 0.0095. Then c_i = -0.95 - 0.0095 / 0.2 = -0.9975, and so on.
    here = quadratics([(1, 1)], [(-1, 1)])
    local, start = LocalTraining(steps=2, batch=0, rate=0.1), at(here, 0.0, 0.0)
    control = own = start.zeros()
    for expected, kept in ((0.19, 0.95), (0.0095, 0.9975), (0.000475, 0.999875)):
        result = here.clients(form).train(start, local, push=control - own, objective=quadratic)
        own = own - control + (start - result.models) / (result.steps * local.rate)
        close(result.models.parameters[:, 0], torch.tensor([expected, -expected], dtype=torch.float64))
        close(own.parameters[:, 0], torch.tensor([-kept, kept], dtype=torch.float64))


def test_fednovas_locals_by_hand(form):
    # eta = 0.1, c = 1 and -1, 1 and 3 steps from 0: 0.1; and -0.1, -0.19, -0.271.
    here = quadratics([(1, 1)], [(-1, 1)])
    local = LocalTraining(batch=0, rate=0.1)
    result = here.clients(form).train(at(here, 0.0, 0.0), local, epochs=[1, 3], objective=quadratic)
    assert result.steps.tolist() == [1, 3]
    close(result.models.parameters[:, 0], torch.tensor([0.1, -0.271], dtype=torch.float64))


def feddyn_round(here, form, model, dual, drift, alpha=0.5):
    """The next model, the clients' dual variables and the server's, as in the paper."""
    start = model[0].expand(2)
    result = here.clients(form).train(start, EXACT, pull=alpha, push=-dual, objective=quadratic)
    change = result.models - start
    dual = dual - change * alpha
    drift = drift - HALVES @ change * alpha
    return HALVES @ result.models - drift / alpha, dual, drift


HALVES = np.full((1, 2), 0.5)


def test_feddyn_by_hand(form):
    # a = (1, 3), c = (1, -1), alpha = 0.5: the exact minimiser of a/2 (t - c)^2 - g t + alpha/2 (t - t_0)^2 is
    # (a c + g + alpha t_0) / (a + alpha). From 0: 2/3 and -6/7, mean -2/21; the drift is as much again: -4/21.
    here = quadratics([(1, 1)], [(-1, 3)])
    state = at(here, 0.0), at(here, 0.0, 0.0).zeros(), at(here, 0.0).zeros()
    for expected in (-4 / 21, -0.285714, -0.344671):
        state = feddyn_round(here, form, *state)
        model, dual, drift = state
        assert model.parameters.item() == pytest.approx(expected, abs=1e-6)
        assert drift.parameters.item() == pytest.approx(dual.parameters.mean().item(), abs=1e-12)


def test_feddyn_stays_at_the_true_optimum(form):
    # (1 - 3) / 4 = -0.5, where the dual variables are the clients' gradients a (t - c): -1.5 and 1.5.
    here = quadratics([(1, 1)], [(-1, 3)])
    dual = Changes(here.net, torch.tensor([[-1.5], [1.5]], dtype=torch.float64))
    model, after, _ = feddyn_round(here, form, at(here, -0.5), dual, at(here, 0.0).zeros())
    assert model.parameters.item() == pytest.approx(-0.5, abs=1e-12)
    close(after.parameters, dual.parameters)


@pytest.mark.parametrize(("order", "expected"), [("second", 0.081), ("first", 0.09)])
def test_per_fedavg_by_hand(form, order, expected):
    # f = (w - 1)^2 / 2, w = 0, alpha = beta = 0.1: the inner step leads to 0.1, where the gradient is -0.9. Through the
    # step it counts (1 - alpha f'') = 0.9 of that: 0.1 * 0.9 * 0.9 = 0.081; with the step as constant 0.1 * 0.9 = 0.09.
    here = quadratics([(1, 1)] * 3)

    def objective(model, batches, key):
        inner, outer, _ = batches
        gradient = model.gradient(lambda inside: quadratic(inside, inner, key))
        step = model.parameters - 0.1 * (gradient if order == "second" else gradient.detach())
        return quadratic(model.at(step), outer, key)

    objective.batches = 3
    result = here.clients(form).train(at(here, 0.0), LocalTraining(steps=1, batch=1, rate=0.1), objective=objective)
    assert result.models.parameters.item() == pytest.approx(expected, abs=1e-12)


class Shares(nn.Module):
    """Gives the same logits for every input."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.logits.expand(len(x), 2)


def test_fedems_weights_by_hand(form):
    # Two components that give label 0 the probabilities 3/4 and 1/4, pi = (1/2, 1/2): losses differ by ln 3, so
    # q = (3/4, 1/4) for label 0 and (1/4, 3/4) for label 1. In a step of the first component on both samples the
    # gradient of its first logit is (3/4 (3/4 - 1) + 1/4 (3/4)) / 2 = 0; unweighted it is (3/4 - 1 + 3/4) / 2 = 1/4.
    here = world(lambda shape, classes: Shares(), (2,), classes=2, y=np.array([0, 1]))
    clients = here.clients(form)
    logits = torch.tensor([[[log(0.75), log(0.25)], [log(0.25), log(0.75)]]], dtype=torch.float64)
    components = Models(here.net, logits, torch.zeros(1, 2, 0, dtype=torch.float64))  # [client, model]
    chances = clients.predict(components, clients.inputs()).log_softmax(dim=-1)  # [client, model, row, class]
    q = (log(0.5) + chances[0, :, [0, 1], [0, 1]]).softmax(dim=0)  # [model, row]
    close(q, torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))
    local, first = LocalTraining(steps=1, batch=0, rate=1.0), components[:, 0]
    weighted = clients.train(first, local, sample_weights=q[:1]).models - first
    close(weighted.parameters, torch.zeros(1, 2, dtype=torch.float64))
    plain = clients.train(first, local).models - first
    close(plain.parameters, torch.tensor([[-0.25, 0.25]], dtype=torch.float64))


# Losses and steps


def test_loss_is_the_mean_over_the_samples_of_the_last_epoch(form):
    # One step a batch of 2 of 3 samples, rate so small that nothing moves: the loss is (1 + 4 + 9) / 6 whatever the
    # order, where a mean over batches would be something else.
    here = quadratics([(1, 1), (2, 1), (3, 1)])
    local = LocalTraining(epochs=4, batch=2, rate=1e-300)
    result = here.clients(form).train(at(here, 0.0), local, objective=quadratic)
    assert result.loss.item() == pytest.approx(14 / 6, abs=1e-12)
    assert result.steps.item() == 8
    assert result.samples.item() == 3


def test_loss_leaves_out_earlier_epochs(form):
    # From 0 towards 1 with rate 1: the minimum is reached in the first step.
    here = quadratics([(1, 1)], [(1, 1)])
    result = here.clients(form).train(
        at(here, 0.0, 0.0), LocalTraining(batch=0, rate=1.0), epochs=[1, 2], objective=quadratic
    )
    assert result.loss.tolist() == [0.5, 0.0]


def test_training_lowers_the_loss(form):
    here = world(mlp)
    result = here.clients(form).train(here.models(), LocalTraining(epochs=20, batch=4, rate=0.3))
    before = here.clients(form).evaluate(here.models(), "train").loss
    after = here.clients(form).evaluate(result.models, "train").loss
    assert (after < before).all()


@pytest.mark.parametrize(
    ("local", "samples", "epochs", "steps"),
    [
        (LocalTraining(epochs=2, batch=10), 25, None, 6),
        (LocalTraining(epochs=2, batch=0), 25, None, 2),
        (LocalTraining(epochs=2, batch=100), 25, None, 2),
        (LocalTraining(epochs=0.5, batch=10), 40, None, 2),
        (LocalTraining(epochs=0.01, batch=10), 40, None, 1),
        (LocalTraining(epochs=0, batch=10), 40, None, 0),
        (LocalTraining(steps=7, batch=10), 40, None, 7),
        (LocalTraining(steps=7, batch=10), 40, 2.0, 8),
        (LocalTraining(epochs=5, batch=1), 1, None, 5),
    ],
)
def test_steps_follow_from_epochs_batches_and_samples(local, samples, epochs, steps):
    assert local.steps_for(samples, epochs) == steps


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({}, [1, 1, 1, 1]),
        ({"schedule": "exponential", "rate_decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"schedule": "steps", "rate_decay": 0.1, "milestones": (0.5, 0.75)}, [1, 1, 0.1, 0.01]),
        # (1 + cos(pi t / 4)) / 2 for t = 0, 1, 2, 3.
        ({"schedule": "cosine"}, [1, 0.853553, 0.5, 0.146447]),
    ],
    ids=lambda value: value.get("schedule", "constant") if isinstance(value, dict) else "",
)
def test_schedules_change_the_rate_over_rounds(schedule, rates):
    local = LocalTraining(rate=1.0, **schedule)
    resolved = [local.at(number, 4) for number in (1, 2, 3, 4)]
    assert [one.rate for one in resolved] == pytest.approx(rates, abs=1e-6)
    assert local.at(0, 4).rate == 1.0
    assert all(one.at(3, 4) == one for one in resolved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1.0),
        ("epochs", float("inf")),
        ("epochs", float("nan")),
        ("steps", 0),
        ("batch", -1),
        ("rate", 0.0),
        ("rate", float("inf")),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("decay", -1e-3),
        ("clip", -1.0),
        ("rate_decay", 0.0),
        ("milestones", (100.0,)),
    ],
)
def test_settings_out_of_range_name_the_field_and_the_value(field, value):
    with pytest.raises(SettingsError, match=rf"{field}="):
        LocalTraining(**{field: value})


def test_adam_takes_no_momentum():
    with pytest.raises(SettingsError, match="belongs to sgd"):
        LocalTraining(optimizer="adam", momentum=0.9)


# What is trained


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("part", ["head", "body", "none", ["0"]], ids=str)
def test_only_the_chosen_part_moves(form, part, optimizer):
    here = world(normed, shape=IMAGES)
    local = LocalTraining(epochs=2, batch=4, decay=0.1, optimizer=optimizer)
    start, push = here.models(), here.models(seed=1) - here.models(seed=2)
    result = here.clients(form).train(start, local, trains=part, pull=0.5, anchor=here.models(seed=3), push=push)
    moved = (result.models.parameters != start.parameters).any(dim=0)
    assert torch.equal(moved, here.net.part(part))


@pytest.mark.parametrize("part", ["head", "body", ["0"]], ids=str)
def test_no_gradient_reaches_a_frozen_part(form, part):
    def objective(model, batch, key):
        return task_loss(model.frozen(part), batch, key)

    here = world(mlp)
    result = here.clients(form).train(here.models(), LocalTraining(epochs=2, batch=4), objective=objective)
    moved = (result.models.parameters != here.models().parameters).any(dim=0)
    assert torch.equal(moved, ~here.net.part(part))


@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_clipping_measures_what_is_trained(form, part):
    here = world(mlp)
    local = LocalTraining(steps=1, rate=1.0, clip=1e-3)
    result = here.clients(form).train(here.models(), local, trains=part)
    lengths = (result.models - here.models()).norm()
    assert lengths.tolist() == pytest.approx([1e-3] * 4, rel=0.01)


def test_momentum_starts_from_zero_in_every_call(form):
    here = quadratics([(1, 1)])
    local = LocalTraining(steps=2, rate=0.1, momentum=0.9)
    once = here.clients(form).train(at(here, 0.0), local, objective=quadratic).models
    # 0.1; then velocity 0.9 * 1 + 0.9 = 1.8: 0.28.
    assert once.parameters.item() == pytest.approx(0.28, abs=1e-12)
    again = here.clients(form).train(once, local, objective=quadratic).models
    # From 0.28: 0.072 more; then 0.1 (0.9 * 0.72 + 0.648).
    assert again.parameters.item() == pytest.approx(0.28 + 0.072 + 0.1296, abs=1e-12)


# Batches and terms


def test_a_batchs_mean_leaves_out_padding_and_applies_weights():
    y = torch.zeros(4, dtype=torch.int64)
    values, real = torch.tensor([1.0, 2.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert Batch(y, y, y, weight=real).mean(values) == 2
    assert Batch(y, y, y).mean(values[:3]) == 2
    # The weights say how much a sample counts, not a share: the sum is divided by the number of samples.
    weighted = Batch(y, y, y, weight=real, sample_weight=torch.tensor([3.0, 0.0, 0.0, 5.0]))
    assert weighted.mean(values) == 1


def test_terms_of_nothing_are_nothing():
    here = world(mlp)
    assert Terms.of(here.models(), 0.0, here.models(), None, "all") == Terms()


def test_terms_are_taken_by_row():
    here = world(mlp)
    push = here.models(seed=1) - here.models()
    terms = Terms.of(here.models(), torch.tensor([1.0, 2.0, 3.0, 4.0]), None, push, "head")
    some = terms.rows(torch.tensor([2, 0]))
    assert some.pull.flatten().tolist() == [3.0, 1.0]
    assert torch.equal(some.anchor, here.models().parameters[[2, 0]])
    assert torch.equal(some.push, push.parameters[[2, 0]])
    assert torch.equal(some.trains, here.net.part("head").double())


def test_a_single_anchor_or_push_stands_for_all_clients(form):
    here = quadratics([(0, 0)], [(0, 0)])
    local = LocalTraining(steps=1, rate=1.0)
    anchor = at(here, 2.0)[0]
    result = here.clients(form).train(at(here, 0.0, 1.0), local, pull=0.5, anchor=anchor, objective=quadratic)
    close(result.models.parameters[:, 0], torch.tensor([1.0, 1.5], dtype=torch.float64))
    push = Changes(here.net, torch.tensor([0.25], dtype=torch.float64))
    result = here.clients(form).train(at(here, 0.0, 1.0), local, push=push, objective=quadratic)
    close(result.models.parameters[:, 0], torch.tensor([-0.25, 0.75], dtype=torch.float64))


def test_settings_of_a_round_are_otherwise_the_same():
    local = LocalTraining(epochs=3, batch=7, momentum=0.5, schedule="exponential")
    assert local.at(1, 10) == replace(local, schedule="constant")


# Losses of users' own


def losses_of_samples(model, batch, key):
    return F.cross_entropy(model(batch), batch.y, reduction="none")


def its_own_mean(model, batch, key):
    return losses_of_samples(model, batch, key).mean()


def test_an_own_loss_gives_a_loss_for_each_sample_and_is_averaged_over_real_rows(form):
    here = world(mlp)  # clients of unequal size, so that batches are padded
    local = LocalTraining(epochs=2, batch=5)
    own = here.clients(form).train(here.models(), local, objective=losses_of_samples)
    usual = here.clients(form).train(here.models(), local)
    close(own.models.parameters, usual.models.parameters)
    close(own.loss, usual.loss)


def test_a_mean_that_counts_padding_is_refused(form):
    here = world(mlp)
    with pytest.raises(CoterieError, match=r"return one loss for each sample.*batch.mean"):
        here.clients(form).train(here.models(), LocalTraining(steps=1), objective=its_own_mean)


# What is beside a model, and what is carried


def beside_a_parabola(model, batch, key):
    """a/2 (w - c)^2, and (v - 3)^2 / 2 for the number beside the model; steps are counted."""
    model.carried["steps"] = model.carried["steps"] + 1
    return quadratic(model, batch, key) + 0.5 * (model.beside["v"] - model.carried["place"]).square()


def with_a_number_beside(form, **options):
    here = quadratics([(1, 1)], [(1, 1)] * 2)
    told = {"beside": {"v": torch.zeros(2)}, "carried": {"steps": torch.zeros(2), "place": torch.tensor([3.0, 3.0])}}
    given = {name: options.pop(name) for name in ("pull", "anchor", "push", "trains") if name in options}
    local = LocalTraining(**{"epochs": 2, "batch": 1, "rate": 0.1} | options)
    found = here.clients(form).train(at(here, 0.0, 0.0), local, objective=beside_a_parabola, **told, **given)
    assert found.models.parameters.shape == (2, 1)
    assert found.models.buffers.shape == (2, 0)
    assert found.carried["steps"].tolist() == [2, 4]
    assert found.carried["place"].tolist() == [3, 3]
    return found.models.parameters[:, 0].tolist(), found.beside["v"].tolist()


def test_what_is_beside_a_model_is_trained_with_it(form):
    # Steps of a tenth of the distance: 1 - .9^k to 1 and 3 - 3 * .9^k to 3, after two and after four steps.
    w, v = with_a_number_beside(form)
    assert w == pytest.approx([0.19, 0.3439], abs=1e-12)
    assert v == pytest.approx([0.57, 1.0317], abs=1e-12)


def test_terms_are_of_the_model_alone(form):
    here = quadratics([(1, 1)], [(1, 1)] * 2)
    terms = {"pull": 1.0, "anchor": at(here, 5.0, 5.0), "push": at(here, 1.0, 1.0) - at(here, 0.0, 0.0)}
    w, v = with_a_number_beside(form, **terms)
    # w + (w - 1) + (w - 5) is 0 at 2.5 after the push: every step goes a fifth of the way.
    assert w == pytest.approx([2.5 * (1 - 0.8**2), 2.5 * (1 - 0.8**4)], abs=1e-12)
    assert v == pytest.approx([0.57, 1.0317], abs=1e-12)


def test_what_is_beside_is_trained_also_where_the_model_is_not(form):
    w, v = with_a_number_beside(form, trains="none")
    assert w == [0, 0]
    assert v == pytest.approx([0.57, 1.0317], abs=1e-12)


def test_model_and_what_is_beside_it_are_clipped_apart(form):
    # The gradients are -1 and -3 and then -.9 and -2.8: together they would be clipped to a length of 2, not alone.
    w, v = with_a_number_beside(form, clip=2.0)
    assert w[0] == pytest.approx(0.19, abs=1e-6)
    assert v[0] == pytest.approx(0.4, abs=1e-6)


def test_momentum_is_of_both(form):
    # Velocities -1 and -1.4, of v -3 and -4.2.
    w, v = with_a_number_beside(form, momentum=0.5)
    assert w[0] == pytest.approx(0.24, abs=1e-12)
    assert v[0] == pytest.approx(0.72, abs=1e-12)
