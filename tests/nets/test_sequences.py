"""Nets for series and token ids: their layers are torch's, padding counts nowhere, and all forms agree."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.func import vmap

from coterie.clients.clients import CallContext, Clients, new_models
from coterie.clients.memory import Memory
from coterie.clients.programs import train
from coterie.core.errors import SettingsError
from coterie.engines.chunk import ClientHost, run_chunk
from coterie.engines.simulation.workers import Workers
from coterie.nets import make_net, nets
from coterie.nets.layers import Pass
from coterie.nets.sequences import GRU, Attention, Recurrent
from coterie.server.federation import Call
from coterie.training import forms
from coterie.training.forms import FORMS, Branch, Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from support.trainings import WITHIN
from support.worlds import SIZES, close, world

SERIES, TOKENS, VOCABULARY = ("cnn-1d", "gru", "transformer"), ("embedding-bag", "gru", "transformer"), 9
TIME = 6


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, generator=rng(seed), dtype=torch.float64)


def tokens(rows, time=TIME, seed=0):
    """Token ids of rows of different lengths, filled up with 0; one row has none at all."""
    ids = torch.randint(1, VOCABULARY, (rows, time), generator=rng(seed))
    lengths = torch.arange(rows) % (time + 1)
    return torch.where(torch.arange(time) < lengths[:, None], ids, 0)


# Layers


def gru_of(theirs):
    """Our layer with the weights of torch's."""
    ours = GRU(theirs.input_size, theirs.hidden_size).double()
    named = {"input": "ih", "state": "hh"}
    state = {f"{name}.{kind}": getattr(theirs, f"{kind}_{at}_l0") for name, at in named.items() for kind in KINDS}
    ours.load_state_dict(state)
    return ours


KINDS = ("weight", "bias")


def test_a_gru_is_that_of_torch():
    theirs = nn.GRU(3, 5, batch_first=True).double()
    x = random(4, 7, 3).requires_grad_()
    ours = gru_of(theirs)(x)
    close(ours, theirs(x)[1][0])
    for one, other in zip(*(torch.autograd.grad(y.sin().sum(), x) for y in (ours, theirs(x)[1][0])), strict=True):
        close(one, other)


def test_a_gru_keeps_its_state_where_nothing_is_real():
    theirs, lengths = nn.GRU(3, 5, batch_first=True).double(), torch.tensor([7, 2, 5, 1])
    x = random(4, 7, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    real = torch.arange(7) < lengths[:, None]
    close(gru_of(theirs)(x, real), theirs(packed)[1][0])
    late = torch.zeros(4, 10, 3, dtype=torch.float64)
    late[:, 3:] = x
    close(gru_of(theirs)(late, F.pad(real, (3, 0))), theirs(packed)[1][0])  # wherever the padding is


def test_a_gru_begins_with_weights_like_those_of_torch():
    drawn = list(GRU(3, 50).parameters())
    bound = 50**-0.5
    assert sorted(p.numel() for p in drawn) == sorted(p.numel() for p in nn.GRU(3, 50).parameters())
    assert all(0.9 * bound < p.abs().max() <= bound for p in drawn)


@pytest.mark.parametrize("masked", [True, False])
def test_attention_is_that_of_torch(masked):
    layer, x = Attention(8, 2).double(), random(3, 5, 8)
    real = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 1]]).bool() if masked else None
    queries, keys, values = (part.reshape(3, 5, 2, 4).transpose(1, 2) for part in layer.mixed(x).chunk(3, dim=-1))
    mask = None if real is None else real[:, None, None]
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    close(layer(x, real), layer.out(expected.transpose(1, 2).reshape(3, 5, 8)))


# Padding


@pytest.mark.parametrize("name", TOKENS)
def test_padding_counts_nowhere(name):
    x = tokens(rows=9)
    net = make_net(name, (TIME,), 3, dtype=torch.float64, vocabulary=VOCABULARY)
    parameters, buffers = net.initial(rng())
    output = net(parameters, buffers, (x,), Pass())[0]
    assert output.isfinite().all(), "also without any token"
    views = net.parameters.views(parameters)
    views["embedding.weight"][0] = 1e3  # views write through: what stands for padding is never looked at
    close(net(parameters, buffers, (x,), Pass())[0], output)
    assert not torch.allclose(output[1], output[2])


@pytest.mark.parametrize("name", TOKENS)
def test_padding_gets_no_gradient(name):
    net = make_net(name, (TIME,), 3, dtype=torch.float64, vocabulary=VOCABULARY)
    parameters, buffers = net.initial(rng())
    leaf = parameters.requires_grad_()
    net(leaf, buffers, (tokens(rows=9),), Pass(training=True))[0].sin().sum().backward()
    gradient = net.parameters.views(leaf.grad)["embedding.weight"]
    assert gradient[0].eq(0).all()
    assert gradient[1:].ne(0).any(dim=1).all()


def test_an_embedding_bag_is_that_of_torch():
    x = tokens(rows=6)
    net = make_net("embedding-bag", (TIME,), 3, dtype=torch.float64, vocabulary=VOCABULARY)
    parameters, buffers = net.initial(rng())
    views = net.parameters.views(parameters)
    mean = F.embedding_bag(x, views["embedding.weight"], mode="mean", padding_idx=0)
    expected = F.linear(mean, views["head.weight"], views["head.bias"])
    close(net(parameters, buffers, (x,), Pass())[0], expected)


@pytest.mark.parametrize("name", ["gru", "transformer", "cnn-1d"])
def test_the_order_of_steps_counts(name):
    net = make_net(name, (TIME, 2), 3, dtype=torch.float64)
    given, x = net.initial(rng()), random(4, TIME, 2)
    assert not torch.allclose(net(*given, (x,), Pass())[0], net(*given, (x.flip(1),), Pass())[0])


# Forms


def series_world(name):
    return world(nets[name], shape=(TIME, 2))


def tokens_world(name):
    total = sum(SIZES) + 7 * len(SIZES)
    x = tokens(total).numpy().astype(np.float32)
    return world(lambda shape, classes: nets[name](shape, classes, vocabulary=VOCABULARY), shape=(TIME,), x=x)


WORLDS = {f"{name} for series": partial(series_world, name) for name in SERIES}
WORLDS |= {f"{name} for tokens": partial(tokens_world, name) for name in TOKENS}


@pytest.mark.parametrize("name", WORLDS)
def test_forms_agree(name):
    here, local = WORLDS[name](), LocalTraining(epochs=2, batch=4, rate=0.1, momentum=0.5)
    others = Vectorised(), Branch(), Vectorised(recorder=Recorder(lambda step: step))
    reference = trained(here, FORMS["loop"](), local)
    assert (reference.models.parameters != here.models().parameters).any(dim=1).all()
    for form in others:
        found = trained(here, form, local)
        close(found.models.parameters, reference.models.parameters, WITHIN)
        close(found.loss, reference.loss, WITHIN)


def trained(here, form, local):
    return Clients(here.net, here.pool, here.shards, form, CallContext(number=1)).train(here.models(), local)


@pytest.mark.parametrize("name", WORLDS)
def test_many_models_run_at_once(name, monkeypatch):
    here = WORLDS[name]()
    monkeypatch.setattr(FORMS["loop"], "_outputs", None)  # what takes over where `vmap` knows no way
    x = here.pool.inputs(torch.arange(8))
    together = Vectorised().outputs(here.models(), x, shared=True)
    models, net = here.models(), here.net
    for row, output in enumerate(together):
        close(net(models.parameters[row], models.buffers[row], (x,), Pass())[0], output)


def refused(function):
    """Stands for `vmap` where it must not be needed."""

    def refuse(*args):
        raise RuntimeError(function)

    return refuse


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_gradients_run_under_vmap_on_either_way(name, inside, monkeypatch):
    # On a CPU the stack is differentiated, on a GPU each model inside of it.
    here, local = WORLDS[name](), LocalTraining(batch=4)
    reference = trained(here, Vectorised(), local)
    ways = [refused, vmap] if inside else [vmap, refused]
    monkeypatch.setattr(forms, "vmap", lambda function: ways.pop(0)(function))
    close(trained(here, Vectorised(), local).models.parameters, reference.models.parameters, WITHIN)


def test_a_worker_hears_of_the_vocabulary():
    net = make_net("gru", (TIME,), 3, dtype=torch.float64, vocabulary=VOCABULARY)
    here = replace(tokens_world("gru"), net=net)
    host = ClientHost(net, here.pool, here.shards, np.arange(3), FORMS["loop"]())
    call = Call(train, np.arange(2), {}, {"start": new_models(net, 0)}, {"local": LocalTraining(batch=4)})
    workers = Workers(1, host)
    try:
        ((found, _, _),) = workers.run([call], [Memory(2)])
    finally:
        workers.close()
    assert torch.equal(found["model"].parameters, run_chunk(call, Memory(2), host)[0]["model"].parameters)


# Nets


@pytest.mark.parametrize("name", SERIES)
def test_nets_learn_what_no_single_step_tells(name):
    # Which half of a series is louder.
    source = np.random.default_rng(0)
    y = source.integers(2, size=207)
    x = source.normal(size=(207, 16, 2)).astype(np.float32)
    x[y == 0, :8] *= 4
    x[y == 1, 8:] *= 4
    here = world(nets[name], (200,), (16, 2), 2, x=x, y=y, dtype=torch.float32)
    start = new_models(here.net, 0, 1)
    trained = here.clients("loop").train(start, LocalTraining(epochs=12, batch=10, rate=0.03, momentum=0.9)).models
    found = here.net(trained.parameters[0], trained.buffers[0], (torch.from_numpy(x),), Pass())[0].argmax(dim=1)
    assert (found.numpy() == y)[200:].all()
    assert (found.numpy() == y)[:200].mean() > 0.95


def test_a_net_hears_of_the_vocabulary_if_it_asks():
    told = []

    def asks(shape, classes, vocabulary):
        told.append(vocabulary)
        return Recurrent(shape, classes, vocabulary)

    net = make_net(asks, (TIME,), 3, vocabulary=VOCABULARY)
    assert set(told) == {VOCABULARY}
    assert net.vocabulary == VOCABULARY
    fixed = make_net(partial(asks, vocabulary=70), (TIME,), 3)  # whoever knows it already is not told of none
    assert told[-1] == 70
    assert fixed.vocabulary == 0


def test_an_own_net_need_not_ask_for_the_vocabulary():
    def knows(shape, classes):
        return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(2 * shape[0], classes))

    net = make_net(knows, (TIME,), 3, vocabulary=VOCABULARY)  # it is tried out with whole numbers
    assert net.parameters.total == 9 * 2 + (2 * TIME + 1) * 3
    assert net.work == 2 * TIME * 3


IMAGE, FEATURES = (3, 32, 32), (13,)


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "message"),
    [
        ("cnn-1d", IMAGE, 0, r"cnn-1d takes series \[time, channel\], this data has images 3x32x32: use cnn or lenet5"),
        ("cnn-1d", FEATURES, 0, r"this data has features 13: use mlp or logistic"),
        ("cnn-1d", (80,), 70, r"this data has token ids 80: use embedding-bag, gru or transformer"),
        ("cnn-1d", (1, 3), 0, r"series of 1 step are too short"),
        ("gru", IMAGE, 0, r"gru takes series \[time, channel\] or token ids \[time\], this data has images"),
        ("transformer", FEATURES, 0, r"this data has features 13: use mlp or logistic"),
        ("embedding-bag", (50, 3), 0, r"takes token ids \[time\], this data has series 50x3: use cnn-1d, gru or"),
        ("lenet5", (50, 3), 0, r"lenet5 takes images \[channel, y, x\], this data has series 50x3: use cnn-1d"),
        ("resnet18", FEATURES, 0, r"this data has features 13: use mlp or logistic"),
        ("resnet9", (2, 3, 4, 5), 0, r"this data has inputs 2x3x4x5: use mlp or logistic"),
        ("mlp", (80,), 70, r"mlp takes .*, this data has token ids 80: use embedding-bag"),
    ],
)
def test_a_net_refuses_data_of_another_kind(name, shape, vocabulary, message):
    with pytest.raises(SettingsError, match=message):
        make_net(name, shape, 3, vocabulary=vocabulary)


def test_simple_nets_take_series_and_any_numbers():
    assert make_net("mlp", (50, 3), 2).parameters.total == 151 * 64 + 65 * 2
    assert make_net("logistic", (2, 3, 4, 5), 2).parameters.total == 121 * 2


def test_work_is_counted_where_there_are_matrices():
    recurrent = make_net("gru", (10, 3), 2)
    assert recurrent.work == 10 * (3 * 192 + 64 * 192) + 64 * 2
    bag = make_net("embedding-bag", (10,), 2, vocabulary=70)
    assert bag.work == 64 * 2, "an embedding is looked up"
