"""Server steps."""

import torch

from coterie.moves.server_steps import beyond, control_variate, direction, mean_over_all, momentum
from coterie.nets.stacks import Models
from support.worlds import close, normed, world

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


def test_going_beyond_follows_a_running_mean_of_the_changes():
    # m_1 = .1 d_1, w_1 = mixed + .5 m_1; m_2 = .9 m_1 + .1 d_2.
    still = MODEL.zeros()
    moved, mean = beyond(MODEL, MIXED, still, rate=0.5, inertia=0.9)
    first = MIXED.parameters - MODEL.parameters
    close(mean.parameters, 0.1 * first)
    close(moved.parameters, MIXED.parameters + 0.05 * first)
    again, mean = beyond(moved, LATER, mean, rate=0.5, inertia=0.9)
    second = 0.09 * first + 0.1 * (LATER.parameters - moved.parameters)
    close(mean.parameters, second)
    close(again.parameters, LATER.parameters + 0.5 * second)
    assert torch.equal(again.buffers, LATER.buffers)
    back, _ = beyond(MODEL, MIXED, still, rate=-0.5, inertia=0.9)
    close(back.parameters, MIXED.parameters - 0.05 * first)


def test_the_mean_over_all_counts_newcomers_with_nothing():
    changes = THREE - MODEL  # the first is zero
    total = changes.parameters.sum(dim=0)
    mean = mean_over_all(MODEL.zeros(), 0, changes, 5)
    close(mean.parameters, total / 5)
    # Two of five change again, and three newcomers bring the number to 8.
    later = mean_over_all(mean, 5, changes[:2], 8)
    close(later.parameters, (total + changes.parameters[:2].sum(dim=0)) / 8)


def test_a_control_variate_is_the_mean_gradient_and_stays_without_steps():
    own, control = THREE - MODEL, MODEL.zeros().expand(3)
    start = MODEL.expand(3)
    length = torch.tensor([0.2, 0.0, 3.0], dtype=torch.float64)
    new = control_variate(own, control, start, THREE, length)
    expected = own.parameters + (start - THREE).parameters / torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)[:, None]
    close(new.parameters[[0, 2]], expected[[0, 2]])
    assert torch.equal(new.parameters[1], own.parameters[1])


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
