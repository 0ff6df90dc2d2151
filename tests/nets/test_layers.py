"""Our batch normalisation and dropout: the stock ones' numbers, without the stock ones' sense of position."""

from inspect import signature

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from coterie.core.errors import SettingsError
from coterie.nets.layers import BatchNorm, Dropout, MaxPool2d, Pass, adopt, passing

SHAPES = {nn.BatchNorm1d: (6, 3), nn.BatchNorm2d: (6, 3, 4, 5), nn.BatchNorm3d: (4, 3, 2, 3, 2)}


def stock_norm(kind=nn.BatchNorm2d, **options):
    """A stock layer in float64 that has seen some life."""
    norm = kind(3, **options).double()
    with torch.no_grad():
        norm.running_mean.normal_(generator=torch.Generator().manual_seed(1))
        norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(2))
        for parameter in norm.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    return norm


def inputs(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def forward(module, x, **current):
    with passing(Pass(**current)):
        return module(x)


def same_state(ours, stock):
    """Equal parameters and running statistics, within 1e-12."""
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, stock.state_dict()[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [None, "all"], ids=["torch's kernel", "with a row mask"])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.1, "momentum": 0.5}], ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_batch_norm_has_the_stock_layers_values(kind, options, rows):
    stock = stock_norm(kind, **options)
    ours = adopt(stock_norm(kind, **options))
    x = inputs(*SHAPES[kind])
    mask = None if rows is None else torch.ones(len(x))
    for _ in range(2):
        torch.testing.assert_close(forward(ours, x, training=True, rows=mask), stock(x), atol=1e-12, rtol=0)
    same_state(ours, stock)
    torch.testing.assert_close(forward(ours, x), stock.eval()(x), atol=1e-12, rtol=0)
    same_state(ours, stock)


def test_padded_rows_do_not_count():
    stock, ours = stock_norm(), adopt(stock_norm())
    x = inputs(6, 3, 4, 5)
    padded = torch.cat([x, torch.full((2, 3, 4, 5), 1e6)])
    rows = torch.tensor([1.0] * 6 + [0.0] * 2)
    result = forward(ours, padded, training=True, rows=rows)[:6]
    torch.testing.assert_close(result, stock(x), atol=1e-12, rtol=0)
    same_state(ours, stock)


def test_a_single_value_per_channel_is_normalised_to_the_bias():
    # Its variance is 0, so nothing but the bias is left; the stock layer refuses such a batch.
    for rows in (None, torch.ones(1)):
        ours = adopt(stock_norm(nn.BatchNorm1d))
        result = forward(ours, inputs(1, 3), training=True, rows=rows)
        torch.testing.assert_close(result[0], ours.bias, atol=1e-12, rtol=0)
        assert torch.isfinite(ours.running_var).all()


def test_state_dicts_go_both_ways():
    stock, ours = stock_norm(), BatchNorm(3).double()
    ours.load_state_dict(stock.state_dict())
    same_state(ours, stock)
    fresh = nn.BatchNorm2d(3).double()
    fresh.load_state_dict(dict(ours.state_dict()))
    same_state(ours, fresh)


def test_bfloat16_activations_keep_running_statistics_in_full_precision():
    ours = BatchNorm(3)
    x = inputs(6, 3, 4, 5).bfloat16()
    result = forward(ours, x, training=True, rows=torch.ones(6))
    assert result.dtype == torch.bfloat16
    expected = 0.1 * x.double().mean((0, 2, 3))  # momentum 0.1, from zero
    torch.testing.assert_close(ours.running_mean.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_dropout_drops_its_share_and_keeps_the_mean(share):
    x = torch.ones(100, 100, dtype=torch.float64)
    result = forward(Dropout(share), x, training=True, key=torch.tensor(5))
    assert (result == 0).double().mean() == pytest.approx(share, abs=0.02)
    assert result.unique().tolist() == pytest.approx([0, 1 / (1 - share)])


def test_channel_dropout_drops_whole_channels():
    result = forward(Dropout(0.5, channels=True), torch.ones(20, 30, 2, 2), training=True, key=torch.tensor(5))
    whole = result.flatten(2)
    assert (whole == whole[:, :, :1]).all()
    assert 0.4 < (whole[:, :, 0] == 0).double().mean() < 0.6


def test_dropout_rests_when_evaluating_or_when_its_share_is_zero():
    x = inputs(4, 5)
    assert forward(Dropout(0.5), x) is x
    assert forward(Dropout(0.0), x, training=True) is x


@given(rows=st.integers(1, 8), padding=st.integers(0, 8), channels=st.booleans(), key=st.integers(0, 2**63 - 1))
def test_dropout_does_not_depend_on_padding(rows, padding, channels, key):
    layer, key = Dropout(0.5, channels), torch.tensor(key)
    padded = forward(layer, torch.ones(rows + padding, 4, 3), training=True, key=key)
    assert torch.equal(padded[:rows], forward(layer, torch.ones(rows, 4, 3), training=True, key=key))


def test_dropout_does_not_depend_on_other_clients():
    keys = torch.tensor([3, 99, 12345])

    def run(key, x):
        return forward(Dropout(0.5), x, training=True, key=key)

    x = torch.ones(3, 6, 7)
    together = vmap(run)(keys, x)
    for client in range(3):
        assert torch.equal(together[client], run(keys[client], x[client]))


def test_every_dropout_layer_of_a_deep_net_has_noise_of_its_own():
    x = torch.ones(10, 50)
    current = Pass(training=True, key=torch.tensor(2**63 - 1))
    with passing(current):
        masks = [Dropout(0.5)(x) for _ in range(12)]
    for number, mask in enumerate(masks):
        for other in masks[:number]:
            assert 0.35 < (mask == other).double().mean() < 0.65


def test_dropout_without_a_key_says_so():
    with pytest.raises(SettingsError, match="needs a key"):
        forward(Dropout(0.5), torch.ones(2, 2), training=True)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_dropout_of_everything_is_refused(share):
    with pytest.raises(SettingsError, match="share"):
        Dropout(share)


def test_a_pass_ends_where_it_ends_even_after_an_error():
    norm, x = stock_norm(), inputs(6, 3, 4, 5)
    ours = adopt(stock_norm())
    with pytest.raises(ZeroDivisionError), passing(Pass(training=True)):
        raise ZeroDivisionError
    torch.testing.assert_close(ours(x), norm.eval()(x), atol=1e-12, rtol=0)


def test_group_norm_takes_stacks_of_images_that_lie_channels_last():
    # The stock layer fails here on a CPU: "NYI: querying is_contiguous inside of vmap".
    norm = adopt(nn.GroupNorm(2, 4).double())
    images, kernels = inputs(3, 5, 2, 2, 3).movedim(4, 2), inputs(3, 4, 1, 1, 3).movedim(4, 2)

    def run(x, kernel):
        return norm(nn.functional.conv2d(x, kernel))

    with torch.no_grad():
        together = vmap(run)(images, kernels)
    for client in range(3):
        torch.testing.assert_close(together[client], run(images[client], kernels[client]), atol=1e-12, rtol=0)


def test_stock_layers_are_replaced_at_any_depth():
    net = adopt(nn.Sequential(nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.3)), nn.Dropout2d(0.4)))
    assert isinstance(net[0][0], BatchNorm)
    assert (net[0][1].share, net[0][1].channels) == (0.3, False)
    assert (net[1].share, net[1].channels) == (0.4, True)


def test_a_layer_used_twice_is_replaced_in_both_places_by_one():
    drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(4)
    net = adopt(nn.Sequential(nn.Linear(4, 4), norm, drop, nn.Linear(4, 4), norm, drop))
    assert isinstance(net[2], Dropout)
    assert net[5] is net[2]
    assert isinstance(net[1], BatchNorm)
    assert net[4] is net[1]


def stages(*layers):
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Sequential(*layers), nn.Flatten(), nn.Linear(12, 2)).double()


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1)], ids=["squares", "overlapping"])
def test_pooling_goes_before_relu_and_no_bit_changes(pool):
    ours, stock = stages(nn.ReLU(), pool), stages(nn.ReLU(), pool)
    ours.load_state_dict(stock.state_dict())
    ours = adopt(ours)
    assert [type(layer) for layer in ours[1]] == [MaxPool2d, nn.ReLU]
    # Whole numbers and weights of one sign make many equal pixels, at and below zero too.
    x = torch.randint(-1, 2, (40, 2, 4, 4), generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        for net in (ours, stock):
            net[0].weight.copy_(net[0].weight.sign())
            net[0].bias.zero_()
    assert torch.equal(forward(ours, x, training=True), stock(x))
    gradients = [torch.autograd.grad((net(x) ** 2).sum(), list(net.parameters())) for net in (ours, stock)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert torch.equal(ours(x * torch.nan).isnan(), stock(x * torch.nan).isnan())


class Looking(nn.Module):
    """Uses what is between two layers of a sequence."""

    def __init__(self):
        super().__init__()
        self.stage = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x):
        return self.stage[0](x).sum() + self.stage(x)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Sigmoid(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.AvgPool2d(2)),
        (nn.ReLU(), nn.Sequential(nn.MaxPool2d(2))),
        (nn.ReLU(), nn.Tanh(), nn.MaxPool2d(2)),
    ],
    ids=str,
)
def test_other_layers_stay_where_they_are(layers):
    found = adopt(stages(*layers))[1]
    assert all(isinstance(layer, type(before)) for layer, before in zip(found, layers, strict=True))


def test_a_sequence_that_others_look_into_stays_as_it_is():
    assert isinstance(adopt(nn.Sequential(Looking()))[0].stage[0], nn.ReLU)


def test_replacing_keeps_what_the_layer_had():
    stock = stock_norm()
    same_state(adopt(stock), stock)


@pytest.mark.skipif("bias" not in signature(nn.BatchNorm2d).parameters, reason="torch's layer has no such option")
def test_a_norm_without_a_bias_stays_without():
    stock = stock_norm(bias=False)
    ours = adopt(stock_norm(bias=False))
    x = inputs(6, 3, 4, 5)
    assert ours.bias is None
    expected = stock(x)
    torch.testing.assert_close(forward(ours, x, training=True, rows=torch.ones(6)), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.SyncBatchNorm(3),
        nn.AlphaDropout(),
        nn.RReLU(),
    ],
    ids=repr,
)
def test_what_cannot_be_keyed_or_masked_is_refused_by_name(layer):
    with pytest.raises(SettingsError, match=type(layer).__name__):
        adopt(nn.Sequential(layer))


def test_running_statistics_come_out_of_a_functional_call():
    ours, stock = adopt(stock_norm()), stock_norm()
    tensors = dict(ours.named_parameters()) | {name: value.clone() for name, value in ours.named_buffers()}
    with passing(Pass(training=True)):
        functional_call(ours, tensors, (inputs(6, 3, 4, 5),))
    stock(inputs(6, 3, 4, 5))
    torch.testing.assert_close(tensors["running_mean"], stock.running_mean, atol=1e-12, rtol=0)
    assert torch.equal(ours.running_mean, stock_norm().running_mean)
