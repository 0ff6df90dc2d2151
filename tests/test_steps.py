"""Server steps."""

import torch

from coterie.steps import direction, momentum
from coterie.weights import Models
from helpers import close, normed, world

HERE = world(normed, shape=(2, 4, 4))
THREE = HERE.models(3)
MODEL, MIXED, LATER = THREE[0], THREE[1], THREE[2]


def test_a_full_step_is_the_mixed_model_itself():
    moved, velocity = momentum(MODEL, MIXED, None)
    assert moved is MIXED
    assert velocity is None


def test_a_server_rate_goes_part_of_the_way():
    moved, velocity = momentum(MODEL, MIXED, None, rate=0.25)
    close(moved.parameters, 0.75 * MODEL.parameters + 0.25 * MIXED.parameters)
    assert velocity is None


def test_momentum_adds_what_is_left_of_earlier_changes():
    # v_1 = d_1; v_2 = 0.9 v_1 + d_2; w <- w + 0.5 v, with d the mixed model minus the old one.
    moved, velocity = momentum(MODEL, MIXED, None, rate=0.5, inertia=0.9)
    first = MIXED.parameters - MODEL.parameters
    close(velocity.parameters, first)
    close(moved.parameters, MODEL.parameters + 0.5 * first)
    moved, velocity = momentum(moved, LATER, velocity, rate=0.5, inertia=0.9)
    start = MODEL.parameters + 0.5 * first
    second = 0.9 * first + LATER.parameters - start
    close(velocity.parameters, second)
    close(moved.parameters, start + 0.5 * second)


def test_running_statistics_are_always_the_mixed_ones():
    for options in ({}, {"rate": 0.1}, {"inertia": 0.9}):
        moved, _ = momentum(MODEL, MIXED, None, **options)
        assert torch.equal(moved.buffers, MIXED.buffers)


def test_every_model_pulls_in_its_direction_by_its_weight_alone():
    near, far = MODEL + (MIXED - MODEL) * 1e-3, MODEL + (LATER - MODEL) * 1e3
    pulled = direction(MODEL, Models.stack([near, far]), [0.25, 0.75])
    first, second = MIXED - MODEL, LATER - MODEL
    close(pulled.parameters, 0.25 * first.parameters / first.norm() + 0.75 * second.parameters / second.norm(), 1e-9)
    assert pulled.norm() <= 1


def test_a_model_that_did_not_move_pulls_nowhere_even_if_rounding_moved_it():
    thirds = torch.full((1, 3), 1 / 3, dtype=torch.float64) @ MODEL.expand(3)
    assert not torch.equal(thirds.parameters[0], MODEL.parameters)
    for others in (thirds, MODEL.expand(1)):
        assert not direction(MODEL, others, [1.0]).parameters.any()
