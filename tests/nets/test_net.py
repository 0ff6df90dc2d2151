"""A module as a function of flat vectors."""

import functools
import sys
import threading
import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.func import vmap

from coterie.core.errors import SettingsError
from coterie.nets import BatchNorm, make_net
from coterie.nets.layers import Pass
from coterie.nets.net import Layout
from support.worlds import close, linear, mlp, normed


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def simple(*layers):
    """A factory of layers between 4 features and 3 classes."""
    return lambda shape, classes: nn.Sequential(*(layer() for layer in layers))


class Reads(nn.Module):
    """A small net of words, with everything that initialises itself in a way of its own."""

    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.square, self.cut = nn.Linear(5, 5), nn.Linear(5, classes)
        nn.init.orthogonal_(self.square.weight)
        nn.init.trunc_normal_(self.cut.weight, std=0.1)
        self.noise = nn.Parameter(
            torch.randn(5) + torch.rand_like(torch.zeros(5)) + torch.randint_like(self.cut.bias, 0, 9)[0]
        )
        self.register_buffer("order", torch.randperm(5).double())

    def forward(self, x):
        words = self.embedding(x.long().clamp(0, 10))
        return self.cut(self.square(self.lstm(words)[0][:, -1] + self.noise))


FACTORIES = {"linear": (linear, (4,)), "normed": (normed, (2, 4, 4)), "words": (Reads, (6,))}


@pytest.fixture(params=FACTORIES)
def net(request):
    factory, shape = FACTORIES[request.param]
    return make_net(factory, shape, 3, dtype=torch.float64)


# Initialising


def test_initialising_never_touches_the_global_generator(net):
    before = torch.get_rng_state()
    net.initial(rng())
    assert torch.equal(before, torch.get_rng_state())


def test_initial_values_depend_on_the_generator_given_and_on_nothing_else(net):
    first = net.initial(rng(1))
    torch.rand(5)
    for ours, again in zip(first, net.initial(rng(1)), strict=True):
        assert torch.equal(ours, again)
    assert (net.initial(rng(2))[0] != first[0]).double().mean() > 0.5


def test_initial_values_are_the_modules_own_for_the_same_seed():
    # Without our detour through a generator of our own, the plain module draws the same numbers from the global one.
    state = torch.get_rng_state()
    try:
        torch.manual_seed(5)
        plain = normed((2, 4, 4), 3)
    finally:
        torch.set_rng_state(state)
    net = make_net(normed, (2, 4, 4), 3)
    parameters, buffers = net.initial(rng(5))
    for name, view in (net.parameters.views(parameters) | net.buffers.views(buffers)).items():
        assert torch.equal(view, plain.state_dict()[name])


def test_initialising_in_other_threads_changes_nothing(net):
    alone = [net.initial(rng(seed))[0] for seed in range(4)]
    found = {}
    threads = [threading.Thread(target=lambda s=s: found.update({s: net.initial(rng(s))[0]})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[seed], found[seed]) for seed in range(4))


# Running


def test_a_net_computes_what_its_module_computes(net):
    parameters, buffers = net.initial(rng())
    module = net.build(rng()).double().eval()
    x = torch.randn(7, *net.shape, generator=rng(3), dtype=torch.float64)
    output, after = net(parameters, buffers, (x,), Pass())
    close(output, module(x))
    assert torch.equal(after, buffers)


def test_training_moves_running_statistics_and_leaves_what_was_given():
    net = make_net(normed, (2, 4, 4), 3, dtype=torch.float64)
    parameters, buffers = net.initial(rng())
    given = buffers.clone()
    module = net.build(rng()).double()
    x = torch.randn(7, 2, 4, 4, generator=rng(3), dtype=torch.float64)
    output, after = net(parameters, buffers, (x,), Pass(training=True))
    close(output, module(x))
    close(net.buffers.views(after)["1.running_var"], module[1].running_var)
    assert torch.equal(buffers, given)


class Counting(nn.Module):
    """Changes a buffer in place, as modules in plain PyTorch may, and knows whether it is being trained."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.layer(x) * (1 if self.training else 2)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_knows_whether_it_is_trained(training):
    net = make_net(lambda shape, classes: Counting(), (4,), 3)
    parameters, buffers = net.initial(rng())
    x = torch.ones(2, 4)
    output, after = net(parameters, buffers, (x,), Pass(training=training))
    expected = F.linear(x, *net.parameters.views(parameters).values())
    torch.testing.assert_close(output, expected * (1 if training else 2))
    assert after.tolist() == [float(training)]
    assert buffers.tolist() == [0.0]


def test_shared_weights_stay_shared():
    def factory(shape, classes):
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, classes))
        net[2].weight = net[0].weight
        return net

    net = make_net(factory, (4,), 3, dtype=torch.float64)
    assert net.parameters.total == 16 + 4 + 4 + 12 + 3
    parameters, buffers = net.initial(rng())
    x = torch.randn(2, 4, generator=rng(1), dtype=torch.float64)
    close(net(parameters, buffers, (x,), Pass())[0], net.build(rng()).double()(x))


# Fitting


@pytest.mark.parametrize(
    ("factory", "shape", "message"),
    [
        (linear, (4, 2, 2), "does not fit inputs of shape 4x2x2 with 3 classes"),
        (simple(lambda: nn.Linear(5, 3)), (4,), "does not fit inputs of shape 4 "),
        (simple(lambda: nn.Linear(4, 2)), (4,), r"2 samples give outputs of shape \(2, 2\)"),
        (simple(lambda: nn.LSTM(4, 3)), (4,), "2 samples give outputs of shape tuple"),
        (lambda shape, classes: classes, (4,), "gives int, not an nn.Module"),
        (lambda shape, classes: 1 / 0, (4,), "division by zero"),
        (lambda: nn.Linear(4, 3), (4,), "takes 0 positional arguments"),
        (simple(nn.Identity), (3,), "nothing to train"),
        ("lenet5", (1, 8, 8), "net lenet5 does not fit .* images of 8x8 are too small: at least 16x16"),
        ("lenet5", (64,), "net lenet5 does not fit .* use mlp or logistic"),
    ],
)
def test_a_net_that_does_not_fit_gets_one_clear_error(factory, shape, message):
    with pytest.raises(SettingsError, match=message):
        make_net(factory, shape, 3)


class Noisy(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 3), draw

    def forward(self, x):
        return self.draw(self.layer(x))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: F.dropout(x, training=True),
        lambda x: x + torch.randn(x.shape),
        lambda x: x + torch.rand_like(x),
        lambda x: x[torch.randperm(len(x))],
        lambda x: torch.bernoulli(x.sigmoid()),
    ],
    ids=["dropout", "randn", "rand_like", "randperm", "bernoulli"],
)
def test_a_net_that_draws_in_its_forward_pass_is_refused(draw):
    before = torch.get_rng_state()
    with pytest.raises(SettingsError, match="draws random numbers in its forward pass"):
        make_net(lambda shape, classes: Noisy(draw), (4,), 3)
    assert torch.equal(before, torch.get_rng_state())


def test_many_dropout_layers_fit():
    factory = simple(*[functools.partial(nn.Dropout, 0.1)] * 9, lambda: nn.Linear(4, 3))
    assert make_net(factory, (4,), 3).parameters.total == 15


def test_checking_the_fit_leaves_no_trace_in_the_initial_statistics():
    _, buffers = make_net(normed, (2, 4, 4), 3).initial(rng())
    assert buffers.tolist() == [0.0] * 4 + [1.0] * 4


# Own nets


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_nets")
    module.make, module.number = linear, 3
    monkeypatch.setitem(sys.modules, "own_nets", module)


def test_own_nets_come_by_import_path(own_module):
    net = make_net("own_nets:make", (4,), 3)
    assert (net.name, net.parameters.total) == ("own_nets:make", 15)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_nets:missing", "cannot be imported"),
        ("no_such_module:make", "cannot be imported .*no_such_module"),
        (":make", "cannot be imported"),
        ("own_nets:number", "not a function"),
        ("lenet", "did you mean lenet5"),
        ("own_nets.make", "unknown net"),
    ],
)
def test_a_path_that_leads_nowhere_gets_one_clear_error(own_module, path, message):
    with pytest.raises(SettingsError, match=message):
        make_net(path, (4,), 3)


def test_a_module_that_fails_on_import_gets_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "broken_nets.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="broken_nets"):
        make_net("broken_nets:make", (4,), 3)


def test_any_callable_can_be_a_factory():
    class Factory:
        def __call__(self, shape, classes):
            return linear(shape, classes)

    assert make_net(functools.partial(linear), (4,), 3).parameters.total == 15
    assert make_net(Factory(), (4,), 3).parameters.total == 15
    assert make_net(linear, (4,), 3).name == "support.worlds:linear"


# Layers and parts


def test_layouts_take_apart_and_put_together():
    net = make_net(normed, (2, 4, 4), 3)
    parameters, _ = net.initial(rng())
    views = net.parameters.views(parameters)
    assert torch.equal(net.parameters.flatten(views), parameters)
    assert views["0.weight"].shape == (4, 2, 3, 3)
    assert views["0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_views_write_through_with_leading_axes_in_front():
    layout = Layout(("kernel", "bias"), ((2, 3, 1, 4), (5,)))
    flat = torch.zeros(6, 7, layout.total)
    views = layout.views(flat)
    assert views["kernel"].shape == (6, 7, 2, 3, 1, 4)
    views["kernel"][2, 3, 1, 2, 0, 3] = 1
    assert flat[2, 3].sum() == 1
    assert flat.sum() == 1


def test_views_work_under_vmap():
    net = make_net(normed, (2, 4, 4), 3)
    stack = torch.stack([net.initial(rng(seed))[0] for seed in range(3)])
    together = vmap(lambda flat: net.parameters.views(flat)["0.weight"])(stack)
    assert torch.equal(together, net.parameters.views(stack)["0.weight"])


class Nested(nn.Module):
    """Parameters at the top, in a layer with layers below it, and in a last layer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(7))
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5))
        self.body.scale = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("all", 7 + 2 + 25 + 30 + 18),
        ("none", 0),
        ("head", 18),
        ("body", 7 + 2 + 25 + 30),
        ("body.0", 25),
        ("body.0.bias", 5),
        (["body"], 2 + 25 + 30),
        (["body.1", "head"], 30 + 18),
        ("token", 7),
        ("top-0", 0),
        ("top-1", 18),
        ("top-2", 18 + 30),
        ("top-99", 7 + 2 + 25 + 30 + 18),
        ("not head", 7 + 2 + 25 + 30),
        ("not not head", 18),
        ("not top-2", 7 + 2 + 25),
        ("body.1, head", 30 + 18),
        ("not body.1,head", 7 + 2 + 25),
        ([""], 7),
        ([], 0),
    ],
)
def test_parts_are_named_layers_with_everything_below(part, count):
    net = make_net(lambda shape, classes: Nested(), (4,), 3)
    assert int(net.part(part).sum()) == count
    assert net.part(part) is net.part(part), "made once: a recorded step must not fetch it from the host"


def test_the_last_layer_is_the_head_even_below_another():
    class Below(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 3)
            self.first.then = nn.Linear(3, 3)

        def forward(self, x):
            return self.first.then(self.first(x))

    net = make_net(lambda shape, classes: Below(), (4,), 3)
    assert torch.equal(net.part("body"), ~net.part("head"))
    assert int(net.part("head").sum()) == 12


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("all", 8 + 6 + 4),
        ("none", 0),
        ("head", 4),
        ("body", 8 + 6),
        ("1", 8),
        ("top-2", 4),
        ("not 1", 6 + 4),
        ("not 1,6", 6),
    ],
)
def test_running_statistics_belong_to_the_part_of_their_layer(part, count):
    # The second norm has no parameters, so no name leads to it: it goes with what is left of the others.
    net = make_net(
        lambda shape, classes: nn.Sequential(
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            nn.Linear(4, 3),
            nn.BatchNorm1d(3, affine=False),
            nn.Tanh(),
            nn.Linear(3, 2),
            nn.BatchNorm1d(2),
        ),
        (4,),
        2,
    )
    assert int(net.statistics(part).sum()) == count
    assert torch.equal(net.statistics(f"not {part}"), ~net.statistics(part))


def test_an_unknown_layer_gets_the_known_ones():
    with pytest.raises(SettingsError, match=r"no layer 'bod': it has body, body.0, body.1, head"):
        make_net(lambda shape, classes: Nested(), (4,), 3).part(["bod"])


def test_work_and_activations_are_counted_per_sample():
    net = make_net(mlp, (5,), 3)
    assert net.work == 5 * 6 + 6 * 3
    assert net.activations == 6 + 6 + 3


def test_our_own_layers_can_be_used_directly():
    net = make_net(simple(lambda: BatchNorm(4), lambda: nn.Linear(4, 3)), (4,), 3)
    assert net.buffers.names == ("0.running_mean", "0.running_var")


def tied(shape, classes):
    """Two layers with one matrix."""
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(4, classes))


def test_tied_weights_are_one_set_of_parameters():
    net = make_net(tied, (4,), 2, dtype=torch.float64)
    assert net.parameters.total == 16 + 10
    parameters, buffers = net.initial(rng(3))
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    output, _ = net(parameters, buffers, (x,), Pass())
    views = net.parameters.views(parameters)
    hidden = torch.tanh(x @ views["0.weight"].T) @ views["0.weight"].T
    assert torch.allclose(output, hidden @ views["3.weight"].T + views["3.bias"], atol=1e-12)


def ending_in(*layers):
    """A net whose layers are these."""
    return make_net(lambda shape, classes: nn.Sequential(*layers), (5,), 3)


def test_features_are_what_the_last_layer_gets():
    assert ending_in(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).features == 4
    assert ending_in(nn.Linear(5, 3)).features == 5


def test_up_to_its_head_a_net_gives_features_and_changes_nothing_else():
    made = ending_in(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    parameters, buffers = made.initial(rng(3))
    x = torch.randn(6, 5, generator=rng(1))
    outputs, after = made(parameters, buffers, (x,), Pass(training=True))
    features, also_after = made.up_to_head(parameters, buffers, (x,), Pass(training=True))
    head = made.head.views(parameters[made.part("head")])
    torch.testing.assert_close(nn.functional.linear(features, *head.values()), outputs)
    assert torch.equal(after, also_after)
    assert not torch.equal(after, buffers)
    assert (made.up_to_head.classes, made.classes) == (4, 3)
    assert made.up_to_head is made.up_to_head


def test_the_head_is_known_by_its_tensors_in_the_order_of_its_part():
    made = ending_in(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    parameters, _ = made.initial(rng(3))
    named = made.head.views(parameters[made.part("head")])
    whole = made.parameters.views(parameters)
    assert list(named) == ["2.weight", "2.bias"]
    assert all(torch.equal(tensor, whole[name]) for name, tensor in named.items())
    assert torch.equal(made.head.flatten(named), parameters[made.part("head")])


@pytest.mark.parametrize(
    "layers",
    [(nn.Linear(5, 3), nn.Tanh()), (nn.Linear(5, 3), nn.LayerNorm(3)), (nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1))],
    ids=["more behind it", "not linear", "not of a vector"],
)
def test_a_net_that_does_not_end_in_a_linear_layer_has_no_features(layers):
    made = ending_in(*layers, nn.Flatten())
    with pytest.raises(SettingsError, match=r"its last layer, \d, is not linear"):
        made.features  # noqa: B018


@pytest.mark.parametrize("layers", [(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), (nn.Linear(5, 3),)])
def test_an_offset_of_features_shifts_outputs_as_the_last_layer_says(layers):
    net = ending_in(*layers)
    parameters, _ = net.new(0, 0)
    weight = net.parameters.views(parameters)[net.head_names[0]]
    offset = torch.arange(net.features) - 1.0
    torch.testing.assert_close(net.shift(parameters, offset), weight @ offset)
    stacked = net.shift(torch.stack([parameters, 2 * parameters]), torch.stack([offset, -offset]))
    torch.testing.assert_close(stacked, torch.stack([weight @ offset, -2 * weight @ offset]))
