"""Draws depend on their key and on their place, and on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.func import vmap

from coterie.core.randomness import draw_key, generator, generators, torch_generator, uniform

PARTS = st.lists(st.text(max_size=4) | st.integers(-5, 5), max_size=4).map(tuple)


@given(PARTS)
def test_a_key_stands_for_its_parts(parts):
    assert draw_key(*parts) == draw_key(*parts)
    assert 0 <= draw_key(*parts) < 2**63


@given(PARTS, PARTS)
def test_different_parts_give_different_keys(one, other):
    assert (draw_key(*one) == draw_key(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        (("ab",), ("a", "b")),
        (("a", "b"), ("b", "a")),
        (("a\x1fsb",), ("a", "b")),
        ((1, 23), (12, 3)),
        ((), ("",)),
    ],
)
def test_keys_tell_apart_what_reads_alike(one, other):
    assert draw_key(*one) != draw_key(*other)


def test_numpy_numbers_key_like_pythons_own():
    assert draw_key("round", np.int64(3)) == draw_key("round", 3)
    assert draw_key(np.str_("client")) == draw_key("client")


@pytest.mark.parametrize("draw", [lambda *key: generator(*key).random(4), lambda *key: _normal(torch_generator(*key))])
def test_generators_repeat_for_a_key_and_differ_between_keys(draw):
    np.testing.assert_array_equal(draw(0, "a"), draw(0, "a"))
    assert (draw(0, "a") != draw(0, "b")).all()
    assert (draw(0, "a") != draw(1, "a")).all()


def _normal(rng):
    return torch.randn(4, generator=rng).numpy()


def test_a_torch_generator_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    _normal(torch_generator(3))
    assert torch.equal(before, torch.get_rng_state())


KEYS = torch.tensor([0, 1, 2**63 - 1, -5, draw_key("client 7", 3)])


@pytest.mark.parametrize("key", KEYS)
def test_uniform_numbers_are_uniform(key):
    numbers = uniform(key, 20_000).numpy()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbours_in_a_draw_and_in_keys_are_unrelated():
    # Training uses key + step: neighbouring keys must be as good as any. |r| of 20,000 pairs is above 0.04 once in 1e8.
    numbers = np.stack([uniform(KEYS[-1] + step, 20_000).numpy() for step in range(3)] + [uniform(KEYS[0], 20_000)])
    shifted = np.stack([np.roll(row, 1) for row in numbers])
    correlation = np.corrcoef(np.concatenate([numbers, shifted])) - np.eye(8)
    assert abs(correlation).max() < 0.04


@given(st.integers(0, 2**63 - 1), st.integers(0, 6), st.integers(0, 6), st.integers(1, 5))
def test_a_longer_draw_begins_with_the_shorter_one(key, rows, more, columns):
    key = torch.tensor(key)
    assert torch.equal(uniform(key, rows + more, columns)[:rows], uniform(key, rows, columns))


def test_uniform_is_the_same_under_vmap():
    together = vmap(lambda key: uniform(key, 3, 4))(KEYS)
    assert torch.equal(together, torch.stack([uniform(key, 3, 4) for key in KEYS]))


def test_uniform_has_the_shape_asked_for():
    assert uniform(KEYS[0]).shape == ()
    assert uniform(KEYS[0], 0, 3).shape == (0, 3)
    assert uniform(KEYS[0], 2, 3, 4).shape == (2, 3, 4)


def test_many_generators_in_turn_draw_what_each_draws_alone():
    keys = [draw_key(0, "batches", client) for client in range(4)]
    for client, rng in enumerate(generators(keys)):
        alone = generator(0, "batches", client)
        assert rng.permutation(9).tolist() == alone.permutation(9).tolist()
        # An odd number of 32-bit draws leaves half of a 64-bit one behind, which the next must not see.
        assert rng.integers(7, size=3, dtype=np.int32).tolist() == alone.integers(7, size=3, dtype=np.int32).tolist()
