"""The loop and the vectorised form are one computation: they agree in float64, whatever a client is told."""

import pytest
import torch
from torch import nn

from coterie.clients.clients import CallContext, Clients
from coterie.core.errors import SettingsError
from coterie.nets.stacks import Models
from coterie.training.forms import FORMS, Vectorised, form_named
from coterie.training.local import LocalTraining
from coterie.training.loop import Terms, Track, TrainingJob, task_loss
from support.trainings import (
    IMAGES,
    LOCAL,
    NAMES,
    WITHIN,
    everything,
    first_order,
    frozen_body,
    inner_loss,
    noisy,
    options_of,
    pretrained,
    second_order,
    three,
)
from support.worlds import close, mlp, normed, resized, world


def dropping(shape, classes):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Dropout2d(0.3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(16, 6),
        nn.Dropout(0.2),
        nn.Linear(6, classes),
    )


def grouped(shape, classes):
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, classes))


class Recurrent(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, classes)

    def forward(self, x):
        return self.head(self.lstm(x[:, :, None])[0][:, -1])


def trained(here, form, local=LOCAL, chosen=None, start=None, **options):
    """What the clients' models become."""
    start = here.models() if start is None else start
    start = start if chosen is None else start[chosen]
    return here.clients(form, chosen).train(start, local, **options)


def agree(here, local=LOCAL, **options):
    """Both forms give the same models, statistics and losses; and training did something."""
    loop, together = (trained(here, form, local, **options) for form in ("loop", "vectorised"))
    close(together.models.parameters, loop.models.parameters, WITHIN)
    close(together.models.buffers, loop.models.buffers, WITHIN)
    close(together.loss, loop.loss, WITHIN)
    assert torch.equal(together.steps, loop.steps)
    for ours, theirs in ((together.beside, loop.beside), (together.carried, loop.carried)):
        assert ours.keys() == theirs.keys()
        assert all(close(ours[name], theirs[name], WITHIN) is None for name in theirs)
    assert (loop.models.parameters != here.models().parameters).any(dim=1).all()


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        (mlp, (5,)),
        (normed, IMAGES),
        (dropping, IMAGES),
        (grouped, IMAGES),
        (everything, IMAGES),
        (pretrained, IMAGES),
        (Recurrent, (5,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_forms_agree_for_every_kind_of_layer(factory, shape):
    agree(world(factory, shape=shape))


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(epochs=3, batch=0, rate=0.2),
        LocalTraining(epochs=3, batch=100, rate=0.2),
        LocalTraining(epochs=3, batch=1, rate=0.1),
        LocalTraining(epochs=2.6, batch=4, rate=0.2),
        LocalTraining(epochs=0.3, batch=4, rate=0.2),
        LocalTraining(steps=5, batch=4, rate=0.2),
        LocalTraining(epochs=3, batch=4, rate=0.1, momentum=0.9),
        LocalTraining(epochs=3, batch=4, rate=0.2, decay=0.1),
        LocalTraining(epochs=3, batch=4, rate=0.2, clip=0.3),
        LocalTraining(epochs=3, batch=4, rate=0.05, momentum=0.5, decay=0.1, clip=0.3),
        LocalTraining(epochs=3, batch=4, rate=0.02, optimizer="adam", decay=0.1),
    ],
    ids=lambda local: ", ".join(f"{k}={v}" for k, v in vars(local).items() if v != getattr(LOCAL, k)),
)
@pytest.mark.parametrize("factory", [mlp, everything])
def test_forms_agree_for_every_setting(factory, local):
    agree(world(factory, shape=IMAGES if factory is everything else (5,)), local)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_forms_agree_for_every_option(name, momentum):
    here = world(everything, shape=IMAGES)
    agree(here, LocalTraining(epochs=2, batch=4, rate=0.1, momentum=momentum, decay=0.01), **options_of(here)[name])


def test_forms_agree_for_all_options_at_once():
    here = world(everything, shape=IMAGES, augment=True)
    options = {}
    for name in ("pull per client", "anchor", "push", "body", "epochs per client", "sample weights"):
        options |= options_of(here)[name]
    agree(here, LocalTraining(batch=4, rate=0.1, momentum=0.5, decay=0.01, clip=1.0), **options)


def test_forms_agree_under_augmentation():
    here = world(normed, shape=IMAGES, augment=True)
    agree(here)
    plain = trained(world(normed, shape=IMAGES), "loop")
    assert not torch.allclose(trained(here, "loop").models.parameters, plain.models.parameters)


# Objectives


@pytest.mark.parametrize("objective", [second_order, first_order, frozen_body, three], ids=lambda f: f.__name__)
@pytest.mark.parametrize("factory", [mlp, everything])
def test_forms_agree_for_every_objective(factory, objective):
    agree(world(factory, shape=IMAGES if factory is everything else (5,)), objective=objective)


def test_forms_agree_for_keyed_noise_in_an_objective():
    agree(world(mlp), objective=noisy)


def test_objectives_differ():
    here = world(mlp)
    found = [trained(here, "loop", objective=f).models.parameters for f in (second_order, first_order, task_loss)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one] - found[other]).abs().max() > 1e-4


def test_inner_passes_leave_the_statistics_and_the_noise_alone():
    def peeking(model, batch, key):
        model.gradient(inner_loss(batch))
        model.curvature(inner_loss(batch), model.parameters, 1e-3)
        model.at(2 * model.parameters)(batch)
        model.frozen("body")(batch)
        model.evaluated(2 * model.parameters, model.buffers)(batch)
        return inner_loss(batch)(model)

    here = world(everything, shape=IMAGES)
    for form in FORMS:
        peeked, plain = trained(here, form, objective=peeking).models, trained(here, form).models
        close(peeked.buffers, plain.buffers, WITHIN)
        close(peeked.parameters, plain.parameters, WITHIN)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_evaluated_on_the_way_predicts_as_its_module_does(form):
    def outputs_of(model, batch, key):
        other = model.evaluated(model.carried["parameters"], model.carried["buffers"])
        model.carried["outputs"] = other(batch)[batch.index.argsort()]
        return inner_loss(batch)(model)

    here = world(everything, (4, 4, 4), shape=IMAGES)
    others = here.models(seed=9)
    carried = {"parameters": others.parameters, "buffers": others.buffers, "outputs": torch.zeros(3, 4, 3)}
    local = LocalTraining(steps=1, batch=0)
    clients = here.clients(form)
    found = clients.train(here.models(), local, objective=outputs_of, carried=carried).carried["outputs"]
    for client in range(3):
        x, _ = clients.samples(client)
        close(found[client], others[client].module()(x).detach(), WITHIN)


def test_every_view_of_a_model_draws_noise_of_its_own():
    # With the same noise in the inner and in the outer step of a meta-learner they would not be independent.
    seen = []

    def looking(model, batch, key):
        views = [model, model.at(model.parameters), model.at(model.parameters).at(model.parameters)]
        seen.extend(inner_loss(batch)(view).item() for view in (*views, model))
        return inner_loss(batch)(model)

    trained(world(everything, shape=IMAGES), "loop", LocalTraining(steps=1, batch=4), objective=looking, chosen=[2])
    assert len(set(seen)) == 4


def test_a_product_with_the_hessian_is_the_derivative_of_the_gradient_in_a_direction():
    found = []

    def looking(model, batch, key):
        direction = torch.linspace(-1, 1, model.net.parameters.total, dtype=torch.float64)
        loss = inner_loss(batch)
        product = torch.func.grad(lambda p: model.at(p).gradient(loss) @ direction)(model.parameters)
        found.append((model.curvature(loss, direction, 1e-4), product))
        return loss(model)

    trained(world(mlp), "loop", LocalTraining(steps=1, batch=4), objective=looking, chosen=[2])
    close(*found[0], 1e-7)


def test_batches_of_several_streams_are_independent_orders_of_the_same_samples():
    seen = []

    def recording(model, batches, key):
        seen.append([batch.index.tolist() for batch in batches])
        return inner_loss(batches[0])(model)

    recording.batches = 2
    trained(world(mlp), "loop", LocalTraining(epochs=1, batch=4), objective=recording, chosen=[2])
    first, second = ([place for batch in stream for place in batch] for stream in zip(*seen, strict=True))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


# Who is computed with whom


@pytest.mark.parametrize("factory", [mlp, everything])
@pytest.mark.parametrize("chosen", [[0], [3], [2, 0], [3, 1, 0], [3, 2, 1, 0]], ids=str)
def test_a_client_does_not_depend_on_who_shares_its_chunk(factory, chosen):
    here = world(factory, shape=IMAGES if factory is everything else (5,), augment=factory is everything)
    whole, part = trained(here, "vectorised"), trained(here, "vectorised", chosen=chosen)
    close(part.models.parameters, whole.models.parameters[chosen], WITHIN)
    close(part.models.buffers, whole.models.buffers[chosen], WITHIN)
    close(part.loss, whole.loss[chosen], WITHIN)


def test_a_client_does_not_see_the_samples_of_others_even_as_padding():
    # One absurd sample of a client that is not even there would turn sums over padded rows into NaN.
    here = world(everything, shape=IMAGES)
    here.pool.x[here.shards[0].train] = torch.inf
    loop, together = (trained(here, form, chosen=[1, 2, 3]) for form in ("loop", "vectorised"))
    assert torch.isfinite(loop.models.parameters).all()
    close(together.models.parameters, loop.models.parameters, WITHIN)
    found = here.clients("vectorised", [1, 2, 3]).evaluate(here.models(3), "train")
    assert torch.isfinite(found.loss_sum).all()


LANES = [
    LocalTraining(epochs=2, batch=4, rate=0.2),
    LocalTraining(epochs=1, batch=3, rate=0.1, momentum=0.9),
    LocalTraining(steps=7, batch=0, rate=0.05, decay=0.1),
    LocalTraining(epochs=3, batch=5, rate=0.3, clip=0.1, momentum=0.5),
]


def tracks_of(here, settings):
    return [
        Track(shard.train, (0, "train", shard.name), local.steps_for(len(shard.train)), local)
        for shard, local in zip(here.shards, settings, strict=True)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_lanes_with_different_settings_equal_the_same_tracks_alone(form):
    here = world(everything, (7, 3, 12, 5), shape=IMAGES)
    tracks, start = tracks_of(here, LANES), here.models()
    terms = Terms.of(start, torch.tensor([0.0, 0.5, 1.0, 2.0]), None, None, "all")
    together, losses = form_named(form).train(TrainingJob(here.pool, tracks, start, terms, task_loss))
    for number, track in enumerate(tracks):
        row = slice(number, number + 1)
        pull = 0.0 if number == 0 else [0.0, 0.5, 1.0, 2.0][number]
        own = Terms.of(start[row], pull, None, None, "all")
        alone, loss = form_named("loop").train(TrainingJob(here.pool, [track], start[row], own, task_loss))
        close(together.parameters[number], alone.parameters[0], WITHIN)
        close(together.buffers[number], alone.buffers[0], WITHIN)
        close(losses[number], loss[0], WITHIN)


@pytest.mark.parametrize("form", FORMS)
def test_a_client_without_steps_stays_where_it_is(form):
    here = world(normed, shape=IMAGES)
    result = trained(here, form, LocalTraining(rate=0.2, momentum=0.9, decay=0.1), epochs=[1, 0, 1, 0], pull=1.0)
    assert result.steps.tolist() == [1, 0, 1, 0]
    for client in (1, 3):
        assert torch.equal(result.models.parameters[client], here.models().parameters[client])
        assert torch.equal(result.models.buffers[client], here.models().buffers[client])
    nobody = trained(here, form, LocalTraining(epochs=0))
    assert torch.equal(nobody.models.parameters, here.models().parameters)


@pytest.mark.parametrize("form", FORMS)
def test_training_changes_nothing_of_what_it_is_given(form):
    here = world(everything, shape=IMAGES)
    start, anchor, push = here.models(), here.models(seed=1), here.models(seed=2) - here.models(seed=3)
    trained(here, form, start=start, pull=0.1, anchor=anchor, push=push, trains="body")
    assert torch.equal(start.parameters, here.models().parameters)
    assert torch.equal(start.buffers, here.models().buffers)
    assert torch.equal(anchor.parameters, here.models(seed=1).parameters)
    assert torch.equal(push.parameters, (here.models(seed=2) - here.models(seed=3)).parameters)


# Evaluating


def stacks(here):
    """Models in every arrangement that clients can be given."""
    one = here.models(1)[0]
    three = here.models(3)
    return {
        "one for all": one.expand(4),
        "own": here.models(),
        "several for all": three.expand(4),
        "several own": Models.stack([three, here.models(3, seed=1), here.models(3, seed=2), three]),
    }


def by_hand(here, stack, part, mixture=None):
    """Correct, correct among five and summed loss, sample by sample with plain modules, [score, client, model]."""
    several = len(stack.shape) > 1
    stack = stack if several else stack.inserted(1)
    scores = []
    for client, shard in enumerate(here.shards):
        x, y = here.pool.inputs(torch.from_numpy(shard.part(part))), here.pool.y[shard.part(part)]
        logs = [
            model.module()(x).detach().log_softmax(dim=1) for model in (stack[client, k] for k in range(stack.shape[1]))
        ]
        if mixture is not None:
            logs = [sum(share * log.exp() for share, log in zip(mixture[client], logs, strict=True)).log()]
        for log in logs:
            order = log.argsort(dim=1, descending=True)
            right = order == y[:, None]
            loss = -log[torch.arange(len(y)), y]
            scores.append([right[:, 0].sum(), right[:, :5].sum(), loss.sum()])
    result = torch.tensor(scores, dtype=torch.float64).reshape(4, -1, 3).movedim(2, 0)
    return result if several and mixture is None else result[:, :, 0]


@pytest.mark.parametrize("factory", [mlp, everything, Recurrent])
@pytest.mark.parametrize("kind", ["one for all", "own", "several for all", "several own"])
@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("form", FORMS)
def test_evaluation_is_what_plain_modules_give(form, part, kind, factory):
    here = world(factory, shape=IMAGES if factory is everything else (5,), classes=7)
    stack = stacks(here)[kind]
    found = here.clients(form, scoring=True).evaluate(stack, part)
    correct, correct_top5, loss = by_hand(here, stack, part)
    assert torch.equal(found.correct, correct)
    assert torch.equal(found.correct_top5, correct_top5)
    close(found.loss_sum, loss)
    assert found.samples.tolist() == [len(shard.part(part)) for shard in here.shards]
    sizes = found.samples if found.correct.dim() == 1 else found.samples[:, None]
    close(found.accuracy, correct / sizes)
    close(found.accuracy_of(5), correct_top5 / sizes)
    close(found.loss, loss / sizes)


@pytest.mark.parametrize("kind", ["several for all", "several own"])
@pytest.mark.parametrize("form", FORMS)
def test_a_mixture_predicts_with_mixed_probabilities(form, kind):
    here = world(everything, shape=IMAGES)
    mixture = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.6, 0.2, 0.2]], dtype=torch.float64)
    found = here.clients(form).evaluate(stacks(here)[kind], "train", mixture)
    correct, _, loss = by_hand(here, stacks(here)[kind], "train", mixture)
    assert torch.equal(found.correct, correct)
    close(found.loss_sum, loss)


@pytest.mark.parametrize("form", FORMS)
def test_large_data_is_evaluated_in_blocks_without_losing_a_sample(form, monkeypatch):
    here = world(mlp)
    whole = here.clients(form).evaluate(here.models(), "train")
    shared = here.clients(form).evaluate(here.models(1)[0].expand(4), "train")
    monkeypatch.setattr("coterie.training.evaluation._ROWS", 5)
    close(here.clients(form).evaluate(here.models(), "train").loss_sum, whole.loss_sum)
    close(here.clients(form).evaluate(here.models(1)[0].expand(4), "train").loss_sum, shared.loss_sum)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["one for all", "own"])
def test_clients_without_samples_have_nothing_to_say(form, kind):
    here = world(normed, shape=IMAGES)
    empty = resized(here, (7, 0, 2, 0))
    found = empty.clients(form).evaluate(stacks(here)[kind], "train")
    assert found.samples.tolist() == [7, 0, 2, 0]
    assert found.accuracy.isnan().tolist() == [False, True, False, True]
    nobody = resized(here, (0, 0, 0, 0)).clients(form).evaluate(stacks(here)[kind], "train")
    assert nobody.loss.isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["one for all", "own", "several for all", "several own"])
def test_predictions_are_what_plain_modules_give(form, kind, monkeypatch):
    monkeypatch.setattr("coterie.training.evaluation._ROWS", 4)
    here = world(everything, shape=IMAGES)
    stack = stacks(here)[kind]
    inputs = here.pool.inputs(torch.arange(24).reshape(4, 6))
    found = here.clients(form).predict(stack, inputs)
    for client in range(4):
        own = stack[client]
        expected = own.module()(inputs[client]) if not own.shape else _each(own, inputs[client])
        close(found[client], expected)


def _each(models, x):
    return torch.stack([models[number].module()(x) for number in range(len(models))])


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_is_near_and_keeps_models_in_full_precision(form):
    here = world(everything, shape=IMAGES, dtype=torch.float32)
    tracks, start = tracks_of(here, [LOCAL] * 4), here.models()
    exact, rough = (
        form_named(form, half).train(TrainingJob(here.pool, tracks, start, Terms(), task_loss))[0]
        for half in (False, True)
    )
    assert rough.parameters.dtype == rough.buffers.dtype == torch.float32
    # bfloat16 has 8 bits: 0.4 % of a number, a few of which add up in ten steps.
    assert 1e-4 < (rough.parameters - exact.parameters).norm() / exact.parameters.norm() < 0.05
    outputs = form_named(form, half=True).outputs(exact, here.pool.inputs(torch.arange(5)), shared=True)
    assert outputs.dtype == torch.float32


def test_an_unknown_form_gets_the_known_ones():
    with pytest.raises(SettingsError, match="did you mean loop"):
        form_named("lop")


@pytest.mark.parametrize("sizes", [(7, 3, 12, 1), (8,) * 20], ids=str)
@pytest.mark.parametrize("local", [LOCAL, LocalTraining(epochs=2, batch=0, momentum=0.5, decay=0.1)], ids=["4", "all"])
def test_strict_training_is_the_loops_and_does_not_depend_on_who_trains_along(sizes, local):
    here = world(everything, sizes, IMAGES)
    strict = Vectorised(strict=True)

    def trained_by(form, chosen):
        clients = Clients(here.net, here.pool, [here.shards[client] for client in chosen], form, CallContext(number=1))
        return clients.train(here.models()[chosen], local)

    everybody = list(range(len(sizes)))
    together, loop = trained_by(strict, everybody), trained_by(form_named("loop"), everybody)
    close(together.models.parameters, loop.models.parameters, WITHIN)
    close(together.models.buffers, loop.models.buffers, WITHIN)
    close(together.loss, loop.loss, WITHIN)
    for chosen in ([1], [3, 0]):
        some = trained_by(strict, chosen)
        assert torch.equal(some.models.parameters, together.models.parameters[chosen])
        assert torch.equal(some.loss, together.loss[chosen])


@pytest.mark.parametrize("form", [name for name in FORMS if name != "branch"])
def test_strict_outputs_are_the_same_and_do_not_depend_on_what_else_is_run(form, monkeypatch):
    monkeypatch.setattr("coterie.training.forms._STRICT_ROWS", 4)
    here = world(everything, (5,) * 6, IMAGES, dtype=torch.float32)
    x = here.pool.inputs(torch.arange(60).reshape(6, 10))
    strict, plain = form_named(form, strict=True), form_named(form)
    found = strict.outputs(here.models(), x, shared=False)
    close(found, plain.outputs(here.models(), x, shared=False), 1e-5)
    assert torch.equal(strict.outputs(here.models()[2:3], x[2:3, :9], shared=False), found[2:3, :9])
    assert torch.equal(strict.outputs(here.models()[[4]], x[4], shared=True), found[[4]])
