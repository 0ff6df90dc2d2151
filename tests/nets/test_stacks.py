"""Stacks of models and of changes: what mixes, what adds up, and where each tensor lies."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.spatial.distance import cdist
from torch import nn

from coterie.core.errors import SettingsError
from coterie.nets.stacks import Changes, Models, cosines, distances
from support.worlds import close, mlp, normed, world

HERE = world(normed, shape=(2, 4, 4))
MODELS, OTHERS = HERE.models(), HERE.models(seed=1)


@pytest.fixture(params=["models", "changes"])
def stack(request):
    return MODELS if request.param == "models" else MODELS - OTHERS


# Mixing

WEIGHTS = [[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "weights",
    [np.array(WEIGHTS), torch.tensor(WEIGHTS, dtype=torch.float64), np.array(WEIGHTS, order="F"), WEIGHTS],
    ids=["numpy", "torch", "numpy by columns", "list"],
)
def test_mixing_gives_a_row_per_row_of_weights(stack, weights):
    mixed = weights @ stack
    assert mixed.shape == (2,)
    for ours, tensor in zip(mixed.tensors, stack.tensors, strict=True):
        close(ours, torch.tensor(WEIGHTS, dtype=torch.float64) @ tensor)


def test_mixing_by_a_vector_gives_a_single_one(stack):
    single = np.full(4, 0.25) @ stack
    assert single.shape == ()
    close(single.parameters, stack.parameters.mean(dim=0))


def test_mixing_covers_running_statistics():
    close((np.full((1, 4), 0.25) @ MODELS).buffers[0], MODELS.buffers.mean(dim=0))
    assert HERE.net.buffers.total == 8


def test_weights_are_taken_in_the_models_own_precision():
    single = Models(MODELS.net, MODELS.parameters.float(), MODELS.buffers.float())
    mixed = np.full((1, 4), 0.25) @ single
    assert mixed.parameters.dtype == torch.float32
    mixed = torch.ones(1, 4, dtype=torch.int64) @ MODELS
    assert mixed.parameters.dtype == torch.float64


def test_each_client_can_mix_models_of_its_own():
    several = Models.stack([MODELS, OTHERS])  # [2, 4]
    mixed = torch.full((2, 1, 4), 0.25) @ several
    assert mixed.shape == (2, 1)
    close(mixed.parameters[1, 0], OTHERS.parameters.mean(dim=0))


# Adding


def test_a_difference_is_of_the_trained_part_alone():
    change = MODELS - OTHERS
    assert type(change) is Changes
    assert len(change.tensors) == 1
    close(change.parameters, MODELS.parameters - OTHERS.parameters)


def test_a_change_leads_from_one_to_the_other_and_leaves_running_statistics():
    reached = OTHERS + (MODELS - OTHERS)
    close(reached.parameters, MODELS.parameters)
    assert torch.equal(reached.buffers, OTHERS.buffers)


def test_a_change_can_be_taken_back():
    before = MODELS - (MODELS - OTHERS)
    assert type(before) is Models
    close(before.parameters, OTHERS.parameters)
    assert torch.equal(before.buffers, MODELS.buffers)


def test_models_do_not_add_up():
    with pytest.raises(TypeError):
        MODELS + OTHERS


def test_changes_form_a_vector_space():
    one, two = MODELS - OTHERS, OTHERS - MODELS
    close((one + two).parameters, torch.zeros_like(one.parameters))
    close((one - two).parameters, 2 * one.parameters)
    close((-one).parameters, two.parameters)
    close((one * 3).parameters, (3 * one).parameters)
    close((one / 4).parameters, one.parameters * 0.25)
    close(MODELS.zeros().parameters, torch.zeros_like(one.parameters))


@pytest.mark.parametrize(
    "numbers",
    [
        torch.tensor([1, 2, 3, 4]),
        torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float32),
        np.array([1.0, 2.0, 3.0, 4.0]),
        np.array([1, 2, 3, 4]),
    ],
    ids=["whole", "single precision", "numpy", "whole numpy"],
)
def test_a_number_per_client_applies_to_its_row(numbers):
    change = MODELS - OTHERS
    column = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    for scaled in (change * numbers, numbers * change):
        close(scaled.parameters, change.parameters * column)
        assert scaled.parameters.dtype == torch.float64
    close((change / numbers).parameters, change.parameters / column)


@pytest.mark.parametrize("number", [0.1, torch.tensor(0.1, dtype=torch.float64), np.float64(0.1)], ids=type)
def test_one_number_applies_to_all_to_the_last_bit(number):
    change = MODELS - OTHERS
    assert torch.equal((change * number).parameters, change.parameters * 0.1)


def test_single_models_broadcast_against_stacks():
    change = MODELS - OTHERS[0]
    close(change.parameters[2], MODELS.parameters[2] - OTHERS.parameters[0])


# Rows and axes


def test_rows_are_taken_as_from_a_tensor(stack):
    assert len(stack) == 4
    assert stack[1].shape == ()
    assert stack[1:3].shape == (2,)
    assert torch.equal(stack[[2, 0]].parameters, stack.parameters[[2, 0]])
    assert stack[torch.tensor([True, False, False, True])].shape == (2,)


def test_a_single_model_has_no_rows(stack):
    with pytest.raises(TypeError, match="single"):
        stack[0][0]
    with pytest.raises(TypeError, match="single"):
        len(stack[0])


def test_stacking_and_joining(stack):
    assert torch.equal(type(stack).stack([stack[0], stack[1]]).parameters, stack.parameters[:2])
    assert torch.equal(type(stack).cat([stack[:1], stack[1:]]).parameters, stack.parameters)
    assert type(stack).stack([stack, stack]).shape == (2, 4)


def test_expanding_copies_nothing(stack):
    wide = stack[0].expand(5)
    assert wide.shape == (5,)
    assert wide.parameters.data_ptr() == stack.parameters.data_ptr()
    assert stack.expand(3).shape == (3, 4)
    assert stack.inserted(1).shape == (4, 1)


def test_where_chooses_by_row():
    chosen = torch.tensor([True, False, True, False])
    picked = MODELS.where(chosen, OTHERS)
    for row in range(4):
        source = MODELS if chosen[row] else OTHERS
        assert torch.equal(picked.parameters[row], source.parameters[row])
        assert torch.equal(picked.buffers[row], source.buffers[row])


def test_size_counts_every_byte():
    net = HERE.net
    assert MODELS.size == 4 * 8 * (net.parameters.total + net.buffers.total)
    assert (MODELS - OTHERS).size == 4 * 8 * net.parameters.total


def test_norm_is_the_length_of_a_row():
    close((MODELS - OTHERS).norm(), (MODELS - OTHERS).parameters.square().sum(1).sqrt())


# Layers and parts


def test_layer_views_have_the_modules_shapes_behind_the_leading_axes():
    views = MODELS.layer("0")
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "0.weight": (4, 4, 2, 3, 3),
        "0.bias": (4, 4),
    }


def test_layer_views_are_views():
    models = Models(MODELS.net, MODELS.parameters.clone(), MODELS.buffers)
    models.layer("0")["0.weight"].zero_()
    models.layer("4.bias")["4.bias"].zero_()
    assert (models.parameters == 0).sum() == 4 * (4 * 2 * 9 + 3)
    assert not models.layer("0.weight")["0.weight"].any()


def test_parts_are_the_parameters_of_their_layers():
    head = MODELS.part("head")
    assert head.shape == (4, 3 * 64 + 3)
    close(head, torch.cat([view.flatten(1) for view in MODELS.layer("4").values()], dim=1))
    assert MODELS.part("body").shape[1] + head.shape[1] == HERE.net.parameters.total
    assert torch.equal(MODELS.part("all"), MODELS.parameters)


@pytest.mark.parametrize("part", ["all", "none", "head", "body", "1"])
def test_a_packed_part_has_its_running_statistics_and_can_be_put_elsewhere(part):
    trained, running = HERE.net.part(part), HERE.net.statistics(part)
    packed = MODELS.packed(part)
    assert packed.shape == (4, int(trained.sum() + running.sum()))
    others = HERE.models(4, seed=1)
    mixed = others.patched(part, packed)
    assert torch.equal(mixed.parameters, torch.where(trained, MODELS.parameters, others.parameters))
    assert torch.equal(mixed.buffers, torch.where(running, MODELS.buffers, others.buffers))
    one = others.patched(part, packed[2])  # one part for all
    assert torch.equal(one.packed(part), packed[2].expand(4, -1))
    assert torch.equal(others.packed("all"), HERE.models(4, seed=1).packed("all"))  # nothing was written in place


def test_shifted_models_predict_as_if_an_offset_was_added_to_what_their_last_layer_gets():
    offset = torch.from_numpy(np.random.default_rng(0).normal(size=(4, HERE.net.features)))
    shifted, x = MODELS.shifted(offset), torch.randn(3, *HERE.net.shape, dtype=torch.float64)
    for row in range(4):
        module = MODELS[row].module()
        torch.testing.assert_close(shifted[row].module()(x), module[-1](module[:-1](x) + offset[row]))
    assert torch.equal(MODELS.shifted(0 * offset).packed("all"), MODELS.packed("all"))
    shared = MODELS[0].expand(4)
    close(shared.shifted(offset).parameters[2], MODELS[0].shifted(offset[2]).parameters)
    assert torch.equal(shared.parameters[0], MODELS.parameters[0])  # nothing was written in place


def test_an_unknown_layer_is_an_error():
    with pytest.raises(SettingsError, match="no layer '7': it has 0, 1, 4"):
        MODELS.layer("7")


# PyTorch


def test_a_model_is_an_ordinary_module():
    module = MODELS[1].module()
    assert not module.training
    assert type(module[1]) is nn.BatchNorm2d
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    close(HERE.clients(chosen=[0]).predict(MODELS[1:2], x[None])[0], module(x))


def test_state_dicts_go_to_pytorch_and_come_back():
    state = MODELS[1].state_dict()
    plain = normed((2, 4, 4), 3).double()
    plain.load_state_dict(state)
    assert all(value.is_contiguous() for value in state.values())
    net = HERE.net
    assert torch.equal(net.parameters.flatten(plain.state_dict()), MODELS.parameters[1])
    assert torch.equal(net.buffers.flatten(plain.state_dict()), MODELS.buffers[1])


def test_a_state_dict_is_of_a_single_model():
    with pytest.raises(TypeError, match="take a row first"):
        MODELS.state_dict()


def test_nets_without_running_statistics_have_none():
    models = world(mlp).models()
    assert models.buffers.shape == (4, 0)
    assert (np.ones((1, 4)) @ models).buffers.shape == (1, 0)
    assert set(models[0].state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


# Geometry

ROWS = arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-10, 10, width=32))


@given(ROWS, st.sampled_from([0.0, 1e6]))
def test_distances_are_scipys(rows, far):
    rows = rows + far  # far from the origin differences must not drown
    found = distances(torch.from_numpy(rows)).numpy()
    # A squared distance comes from squares of up to 2,000, known to 16 digits: its root is good to 1e-6.
    np.testing.assert_allclose(found, cdist(rows, rows), atol=2e-6)
    assert (np.diag(found) == 0).all()


def test_distances_of_ordinary_rows_are_exact_to_twelve_digits():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 50)))
    np.testing.assert_allclose(distances(rows), cdist(rows, rows), atol=1e-12)


@given(ROWS, st.sampled_from([1.0, 1e-20]))
def test_cosines_are_scipys_and_zero_for_zero_rows(rows, scale):
    rows = np.where(abs(rows) < 1e-3, 0, rows) * scale
    zero = ~rows.any(axis=1)
    with np.errstate(invalid="ignore"):
        expected = np.where(zero[:, None] | zero[None, :], 0, 1 - cdist(rows, rows, "cosine"))
    np.testing.assert_allclose(cosines(torch.from_numpy(rows)), expected, atol=1e-12)


def test_models_can_be_stacked_behind_the_clients():
    behind = Models.stack([MODELS, OTHERS], axis=1)
    assert behind.shape == (4, 2)
    assert torch.equal(behind.parameters[:, 1], OTHERS.parameters)
    assert torch.equal(behind.buffers[:, 0], MODELS.buffers)
