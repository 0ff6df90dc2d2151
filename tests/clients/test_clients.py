"""What a program may do on clients, and what it may not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from coterie.clients.clients import CallContext, Clients, new_models
from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError, SettingsError
from coterie.engines.chunk import ClientHost
from coterie.nets.stacks import Models
from coterie.training.forms import FORMS, Loop, form_named
from coterie.training.local import LocalTraining
from coterie.training.loop import task_loss
from support.worlds import NOBODY, close, linear, mlp, normed, resized, world

LOCAL = LocalTraining(epochs=1, batch=4)


def remembering(positions=(0, 1, 2, 3), **values):
    """What four clients remember, of which some have kept something."""
    memory = Memory(4)
    memory.update(torch.tensor(positions), values)
    return memory


# Remembering


def test_clients_that_keep_nothing_get_what_to_start_from():
    clients = world(mlp).clients()
    start = torch.zeros(4)
    assert clients.state("mark", start) is start


def test_clients_that_keep_nothing_and_get_nothing_are_an_error():
    with pytest.raises(CoterieError, match="keep nothing under 'mark'"):
        world(mlp).clients().state("mark")


def test_what_was_kept_comes_back():
    memory = remembering(mark=torch.arange(4))
    assert world(mlp).clients(memory=memory).state("mark", torch.zeros(4)).tolist() == [0, 1, 2, 3]


def test_each_client_gets_its_own_or_what_to_start_from():
    memory = remembering([1, 3], mark=torch.tensor([[5.0, 5.0], [7.0, 7.0]]))
    clients = world(mlp).clients(memory=memory)
    assert clients.state("mark", torch.zeros(4, 2))[:, 0].tolist() == [0, 5, 0, 7]
    with pytest.raises(CoterieError, match="client 0 keeps nothing under 'mark'"):
        clients.state("mark")


@pytest.mark.parametrize("several", [False, True], ids=["one model", "several models"])
def test_models_are_kept_with_their_statistics(several):
    here = world(normed, shape=(2, 4, 4))
    own, start = here.models(), here.models(seed=1)
    if several:  # as many models as clients, so that a mix-up of the axes would go unnoticed by the shapes
        own, start = Models.stack([own] * 4), Models.stack([start] * 4)
    clients = here.clients(memory=remembering([1, 3], model=own[[1, 3]]))
    found = clients.state("model", start)
    for client, source in enumerate([start, own, start, own]):
        assert torch.equal(found.parameters[client], source.parameters[client])
        assert torch.equal(found.buffers[client], source.buffers[client])


def test_changes_are_kept_too():
    here = world(mlp)
    change = here.models() - here.models(seed=1)
    clients = here.clients(memory=remembering([2], control=change[2:3]))
    found = clients.state("control", here.models().zeros())
    assert torch.equal(found.parameters[2], change.parameters[2])
    assert not found.parameters[0].any()


def test_what_a_program_keeps_it_sees_at_once_and_memory_only_afterwards():
    memory = remembering(mark=torch.zeros(4))
    clients = world(mlp).clients(memory=memory)
    clients.keep(mark=torch.ones(4), more=torch.ones(4, 2))
    assert clients.state("mark").tolist() == [1] * 4
    assert memory.values["mark"].tolist() == [0] * 4
    assert set(clients.kept) == {"mark", "more"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), r"shape \(3,\) for 4 clients"),
        (torch.tensor(1.0), r"shape \(\) for 4 clients"),
        ([1, 2, 3, 4], "not list"),
        (np.zeros(4), "not ndarray"),
        (world(mlp).models()[0], r"shape \(\) for 4 clients"),
    ],
    ids=["rows", "number", "list", "array", "single model"],
)
def test_only_values_with_a_row_per_client_can_be_kept(value, message):
    with pytest.raises(CoterieError, match=rf"keep\(mark=...\): .*{message}"):
        world(mlp).clients().keep(mark=value)


# Training calls


def following(clients):
    """Memory after a call, as an engine would make it."""
    memory = clients._memory
    memory.update(torch.arange(len(clients)), clients.kept)
    memory.commit()
    return memory


def test_every_training_call_of_a_round_has_draws_of_its_own():
    here = world(mlp)
    clients, start = here.clients(), here.models()
    first, second = (clients.train(start, LOCAL).models.parameters for _ in range(2))
    # Clients 0 and 2 have more than one batch; the others see the same samples in any order.
    assert (first - second).abs().amax(dim=1)[[0, 2]].min() > 1e-6
    close(first[[1, 3]], second[[1, 3]])


def test_calls_are_counted_across_programs_of_a_round():
    here = world(mlp)
    together = here.clients()
    twice = [together.train(here.models(), LOCAL).models for _ in range(2)]
    one = here.clients()
    first = one.train(here.models(), LOCAL).models
    two = here.clients(memory=following(one))
    second = two.train(here.models(), LOCAL).models
    assert torch.equal(first.parameters, twice[0].parameters)
    assert torch.equal(second.parameters, twice[1].parameters)


def test_the_count_begins_anew_with_every_round():
    here = world(mlp)
    before = here.clients(number=1)
    before.train(here.models(), LOCAL)
    after = here.clients(number=2, memory=following(before))
    fresh = here.clients(number=2)
    assert torch.equal(
        after.train(here.models(), LOCAL).models.parameters, fresh.train(here.models(), LOCAL).models.parameters
    )


def test_every_step_of_every_client_has_noise_of_its_own():
    here, keys = world(mlp), []

    def recording(model, batch, key):
        keys.append(int(key))
        return task_loss(model, batch, key)

    clients = here.clients("loop")
    for _ in range(2):
        clients.train(here.models(), LocalTraining(steps=5), objective=recording)
    assert len(set(keys)) == 2 * 4 * 5


@pytest.mark.parametrize("at", [{"seed": 1}, {"number": 2}], ids=["seed", "round"])
def test_draws_differ_by_seed_and_round(at):
    here = world(mlp)
    one, other = here.clients().train(here.models(), LOCAL), here.clients(**at).train(here.models(), LOCAL)
    assert (one.models.parameters != other.models.parameters).any(dim=1)[[0, 2]].all()


def test_draws_follow_the_clients_name_not_its_place():
    here = world(mlp)
    whole, last = here.clients("loop"), here.clients("loop", [2])
    expected = whole.train(here.models(), LOCAL).models.parameters[2]
    assert torch.equal(last.train(here.models()[2:3], LOCAL).models.parameters[0], expected)


def test_steps_and_rounds_are_counted_for_the_record():
    here = world(mlp)
    memory = None
    for number in (1, 2):
        clients = here.clients(number=number, memory=memory)
        for _ in range(number):
            clients.train(here.models(), LOCAL)
        memory = following(clients)
    assert memory.values["_steps"].tolist() == [3 * 2, 3 * 1, 3 * 3, 3 * 1]
    assert memory.values["_rounds"].tolist() == [2] * 4


def test_adapting_is_like_training_but_leaves_no_trace():
    here = world(mlp)
    clients = here.clients()
    adapted = clients.adapt(here.models(), LOCAL)
    assert clients.kept == {}
    assert torch.equal(adapted.parameters, clients.adapt(here.models(), LOCAL).parameters)
    assert (adapted.parameters != here.models().parameters).any(dim=1).all()


def test_adapting_may_be_of_a_part_and_each_stage_draws_its_own_batches():
    here = world(mlp)
    clients, start = here.clients(), here.models()
    head = here.net.part("head")
    adapted = clients.adapt(start, LOCAL, "head")
    assert torch.equal(adapted.parameters[:, ~head], start.parameters[:, ~head])
    assert (adapted.parameters[:, head] != start.parameters[:, head]).any(dim=1).all()
    other = clients.adapt(start, LOCAL, "head", stage=1)
    # The client with a single sample has but one order of batches.
    assert (adapted.parameters != other.parameters).any(dim=1).tolist() == [True, False, True, False]


def test_the_last_model_is_kept_only_if_asked():
    here = world(mlp)
    plain, keeping = here.clients(), here.clients(keep_last=True)
    plain.train(here.models(), LOCAL)
    result = keeping.train(here.models(), LOCAL)
    assert "_last" not in plain.kept
    assert torch.equal(keeping.kept["_last"].parameters, result.models.parameters)


@pytest.mark.parametrize("form", FORMS)
def test_a_client_without_training_samples_is_named(form):
    here = resized(world(mlp), (7, 0, 2, 1))
    with pytest.raises(CoterieError, match="client 1 has no training samples"):
        here.clients(form).train(here.models(), LOCAL)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2)], ids=str)
def test_training_takes_one_model_per_client(shape):
    here = world(mlp)
    start = here.models(1)[0]
    with pytest.raises(CoterieError, match="for 4 clients"):
        here.clients().train(start.expand(*shape) if shape else start, LOCAL)


def test_evaluating_takes_models_per_client():
    here = world(mlp)
    with pytest.raises(CoterieError, match=r"models of shape \(3,\) for 4 clients: the first axis is the client"):
        here.clients().evaluate(here.models(3))


# Data


@pytest.mark.parametrize("part", ["test", "global"])
@pytest.mark.parametrize(
    "reach",
    [
        lambda clients, part: clients.evaluate(clients.initial(), part),
        lambda clients, part: clients.labels(part),
        lambda clients, part: clients.label_counts(part),
        lambda clients, part: clients.inputs(part),
        lambda clients, part: clients.samples(0, part),
    ],
    ids=["evaluate", "labels", "label_counts", "inputs", "samples"],
)
def test_test_data_is_out_of_reach_unless_scoring(reach, part):
    here = world(mlp)
    with pytest.raises(CoterieError, match="test data is for scoring only"):
        reach(here.clients(), part)
    reach(here.clients(scoring=True), part)


def test_an_unknown_part_is_an_error():
    with pytest.raises(SettingsError, match="on='tset': train or validation"):
        world(mlp).clients().evaluate(world(mlp).models(), "tset")


def test_the_global_test_set_is_the_same_for_all():
    here = world(mlp)
    found = here.clients(scoring=True).evaluate(here.models(1)[0].expand(4), "global")
    assert found.samples.tolist() == [5] * 4
    assert len(set(found.loss_sum.tolist())) == 1


def test_without_a_global_test_set_there_is_nothing_to_score():
    here = world(mlp)
    clients = here.clients(scoring=True)
    bare = Clients(here.net, here.pool, here.shards, clients._form, clients._at)
    assert bare.evaluate(here.models(), "global").accuracy.isnan().all()


@pytest.mark.parametrize("part", ["train", "validation"])
def test_label_counts_are_the_clients_own(part):
    here = world(mlp)
    found = here.clients().label_counts(part)
    assert found.shape == (4, 3)
    for client, shard in enumerate(here.shards):
        assert found[client].tolist() == np.bincount(here.pool.y[shard.part(part)], minlength=3).tolist()


@pytest.mark.parametrize("part", ["train", "validation"])
def test_labels_are_in_the_order_of_a_clients_samples(part):
    here = world(mlp)
    found = here.clients().labels(part)
    for client, shard in enumerate(here.shards):
        own = shard.part(part)
        assert found[client].tolist() == [*here.pool.y[own].tolist(), *[-1] * (found.shape[1] - len(own))]


def test_sizes_and_names():
    clients = world(mlp).clients(chosen=[2, 0])
    assert clients.sizes.tolist() == [12, 7]
    assert clients.names == ("2", "0")
    assert (len(clients), clients.round) == (2, 1)


def test_a_clients_samples_come_prepared_with_their_labels():
    here = world(mlp)
    for row, shard in enumerate(here.shards):
        for part in ("train", "validation"):
            x, y = here.clients().samples(row, part)
            close(x, here.pool.inputs(torch.from_numpy(shard.part(part))))
            assert y.tolist() == here.pool.y[shard.part(part)].tolist()


def test_inputs_come_prepared_if_clients_have_equally_many():
    here = world(mlp)
    found = here.clients().inputs("validation")
    assert found.shape == (4, 3, 5)
    close(found[2], here.pool.inputs(torch.from_numpy(here.shards[2].validation)))
    with pytest.raises(CoterieError, match="unequal numbers of samples"):
        here.clients().inputs("train")


def test_generators_are_keyed_by_purpose_round_and_name():
    here = world(mlp)

    def draws(purpose="noise", **options):
        return [rng.random() for rng in here.clients(**options).generators(purpose)]

    assert draws() == draws()
    assert draws(chosen=[3, 1]) == [draws()[3], draws()[1]]
    others = draws("other") + draws(number=2) + draws(seed=1)
    assert len({*draws(), *others}) == 16


# Models


def test_new_models_are_the_same_for_a_seed_and_each_different():
    net = world(linear).net
    three = new_models(net, 5, 3)
    assert three.shape == (3,)
    assert torch.equal(new_models(net, 5).parameters, three.parameters[0])
    assert torch.equal(new_models(net, 5, 2).parameters, three.parameters[:2])
    assert not torch.equal(three.parameters[0], three.parameters[1])
    assert not torch.equal(new_models(net, 6).parameters, three.parameters[0])


def test_all_clients_begin_with_the_same_model():
    clients = world(linear).clients(seed=3)
    initial = clients.initial()
    assert initial.shape == (4,)
    assert torch.equal(initial.parameters[3], new_models(clients.net, 3).parameters)


# Losses of every sample


def some_models(here, kind):
    """Three models for each of four clients: the same for all, or each client's own."""
    if kind == "shared":
        return here.models(3).expand(4)
    return Models.stack([here.models(3, seed=seed) for seed in range(4)])


@pytest.mark.parametrize("rows", [2, 5, 256], ids=lambda rows: f"{rows} at once")
@pytest.mark.parametrize("kind", ["shared", "own"])
@pytest.mark.parametrize("form", FORMS)
def test_losses_are_of_every_sample_in_its_place(form, kind, rows, monkeypatch):
    monkeypatch.setattr("coterie.training.evaluation._ROWS", rows)
    here = world(normed, shape=(2, 4, 4))
    models = some_models(here, kind)
    found = here.clients(form).losses(models)
    assert found.shape == (4, 3, 12)
    for client, shard in enumerate(here.shards):
        index = torch.from_numpy(shard.train)
        x, y = here.pool.inputs(index), here.pool.y[index]
        for number in range(3):
            expected = F.cross_entropy(models[client, number].module()(x), y, reduction="none")
            close(found[client, number, : len(y)], expected.detach())
        assert found[client, :, len(y) :].isnan().all()


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_losses_add_up_to_what_evaluating_finds(kind):
    here = world(mlp)
    models = some_models(here, kind)
    for part in ("train", "validation"):
        losses, found = here.clients().losses(models, part), here.clients().evaluate(models, part)
        close(losses.nansum(dim=2), found.loss_sum)


def test_losses_are_in_the_order_of_a_batchs_index():
    here = world(linear, (12,))
    models, seen = here.models(1).expand(1), {}
    losses = here.clients("loop").losses(models)[0, 0]

    def recording(model, batch, key):
        each = F.cross_entropy(model(batch), batch.y, reduction="none")
        seen.update(zip(batch.index.tolist(), each.tolist(), strict=True))
        return batch.mean(each)

    here.clients("loop").train(models[:, 0], LocalTraining(epochs=1, batch=4, rate=1e-300), objective=recording)
    assert losses.tolist() == pytest.approx([seen[place] for place in range(12)], abs=1e-12)


def test_losses_are_of_several_models():
    here = world(mlp)
    with pytest.raises(CoterieError, match="losses are of several models per client"):
        here.clients().losses(here.models())
    with pytest.raises(CoterieError, match="test data is for scoring only"):
        here.clients().losses(some_models(here, "own"), "test")


def test_the_best_fit_has_the_lowest_training_loss():
    here = world(mlp)
    models = some_models(here, "own")
    clients = here.clients()
    assert clients.best_fit(models).tolist() == clients.evaluate(models, "train").loss.argmin(dim=1).tolist()


def test_the_best_fit_can_be_sought_on_validation_data_where_there_is_any():
    here = world(mlp)
    models = some_models(here, "own")
    on_validation = here.clients().evaluate(models, "validation").loss.argmin(dim=1)
    on_train = here.clients().evaluate(models, "train").loss.argmin(dim=1)
    assert here.clients().best_fit(models, "validation").tolist() == on_validation.tolist()
    assert on_validation.tolist() != on_train.tolist()
    without = replace(here, shards=(*here.shards[:2], *(replace(one, validation=NOBODY) for one in here.shards[2:])))
    found = without.clients().best_fit(models, "validation").tolist()
    assert found == [*on_validation[:2].tolist(), *on_train[2:].tolist()]


def test_what_was_just_evaluated_for_one_client_is_not_evaluated_again(monkeypatch):
    here = world(mlp)
    site = ClientHost(here.net, here.pool, here.shards, NOBODY, form_named("loop"))
    models, ran = some_models(here, "own"), []
    outputs = Loop.outputs
    monkeypatch.setattr(Loop, "outputs", lambda *given, **more: ran.append(1) or outputs(*given, **more))

    def choice(client, models, on="train", **at):
        ran.clear()
        return site.clients([client], CallContext(number=1, **at)).best_fit(models[client : client + 1], on).item()

    first = choice(1, models)
    assert ran
    assert choice(1, models, scoring=True) == first
    assert not ran
    other = models.parameters.clone()
    other[1] = other[1].roll(1, dims=0)
    assert choice(1, replace(models, parameters=other)) == (first + 1) % models.shape[1]
    for client, on in ((0, "train"), (1, "validation")):
        choice(client, models, on)
        assert ran
    choice(1, models, "test", scoring=True)
    with pytest.raises(CoterieError, match="test data is for scoring only"):
        choice(1, models, "test")


def test_of_a_single_model_the_best_is_known_without_looking():
    here = world(mlp)
    assert here.clients().best_fit(here.models().inserted(1), "nowhere").tolist() == [0] * 4


def test_a_protocol_that_reads_test_data_reaches_the_clients_own_alone():
    here = world(mlp)
    allowed = here.clients(test_data=True)
    assert allowed.evaluate(here.models(), "test").samples.tolist() == [4] * 4
    with pytest.raises(CoterieError, match="test data is for scoring only"):
        allowed.evaluate(here.models(), "global")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["own models", "one model", "one client"])
def test_class_means_are_of_what_the_last_layer_gets(form, kind):
    here = world(normed, (7, 1) if kind != "one client" else (2,), (2, 4, 4))
    count = len(here.shards)
    models = here.models() if kind != "one model" else here.models(1)[0].expand(count)
    features, squares = here.clients(form).class_means(models)
    assert features.shape == (count, 3, 64)
    counts = here.clients(form).label_counts()
    assert (counts == 0).any()
    for client in range(count):
        seen = []
        module = models[client].module()
        module[-1].register_forward_pre_hook(lambda layer, inputs, seen=seen: seen.append(inputs[0]))
        x, y = here.clients(form).samples(client)
        module(x)
        for label in range(3):
            own = seen[0][y == label]
            close(features[client, label], own.mean(dim=0) if len(own) else torch.zeros(64, dtype=torch.float64))
            mean = own.square().sum(dim=1).mean() if len(own) else torch.tensor(0.0, dtype=torch.float64)
            close(squares[client, label], mean)


def test_class_means_of_samples_that_clients_share_are_each_ones():
    here = world(mlp, (6, 6))
    first, second = here.shards
    shared = replace(here, shards=(first, replace(second, train=np.concatenate([second.train, first.train[:3]]))))
    model = here.models(1)[0].expand(2)
    found = shared.clients("loop").class_means(model)
    for row in range(2):
        alone = shared.clients("loop", chosen=[row]).class_means(model[:1])
        close(found[0][row], alone[0][0])
        close(found[1][row], alone[1][0])
