"""Secret sharing: sums are right, and shares say nothing."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie import sharing
from coterie.clients.sharing import STEP, combine, split
from coterie.core.errors import CoterieError, SettingsError

MODES = ("additive", "scalar")


def model(parameters=200, seed=0):
    return np.random.default_rng(seed).normal(size=parameters)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parties", [2, 3, 10])
def test_all_shares_together_are_the_model(mode, parties):
    shares = split(model(), parties, mode)
    assert shares.shape == (parties, 200)
    assert np.abs(combine(shares) - model()).max() <= (STEP / 2 if mode == "additive" else 1e-14)


@given(st.lists(st.floats(-sharing.LARGEST, sharing.LARGEST), min_size=1, max_size=20), st.integers(2, 6))
def test_numbers_come_back_to_half_a_step(values, parties):
    found = combine(split(values, parties, seed=1))
    assert np.abs(found - values).max() <= STEP / 2


@pytest.mark.parametrize("mode", MODES)
def test_the_sum_of_models_needs_nobody_to_see_one(mode):
    # Each of n parties splits its own model, adds up what it got, and only those sums are combined.
    models = np.stack([model(seed=client) for client in range(4)])
    shares = np.stack([split(own, 4, mode) for own in models])  # [owner, receiver, parameter]
    sums = shares.sum(axis=0)
    allowed = 4 * STEP / 2 if mode == "additive" else 1e-13
    assert np.abs(combine(sums) - models.sum(axis=0)).max() <= allowed


def test_the_sum_of_many_of_the_largest_models_is_still_right():
    largest = np.full(3, sharing.LARGEST)
    sums = sum(split(largest, 2) for _ in range(2000))
    assert combine(sums).tolist() == (2000 * largest).tolist()


@pytest.mark.parametrize("left_out", range(4))
def test_any_shares_but_all_are_uniformly_random_whatever_the_model_is(left_out):
    # Two very different models, the same secret: the first n - 1 shares are the same to the last bit, and the last is
    # the model shifted by a mask that nobody else has.
    zero, large = np.zeros(5000), np.full(5000, 1000.0)
    for secret in (zero, large):
        rest = np.delete(split(secret, 4), left_out, axis=0)
        bits = (rest.view(np.uint64)[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
        # 3 * 5000 fair coins for each of 64 bits: within five deviations of a half, also of any two shares' sum.
        assert np.abs(bits.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / np.sqrt(15000)
        total = rest.sum(axis=0).view(np.uint64)
        top = (total >> np.uint64(63)).mean()
        assert abs(top - 0.5) < 5 * 0.5 / np.sqrt(5000)
    same = split(zero, 4, seed=7)[:-1], split(large, 4, seed=7)[:-1]
    assert (same[0] == same[1]).all()


def test_for_every_model_there_is_a_missing_share_that_explains_the_others():
    # The argument for perfect secrecy: n - 1 shares fit any model equally well.
    shares, other = split(model(seed=1), 3), model(seed=2)
    for missing in range(3):
        explained = shares.copy()
        explained[missing] += split(other, 2, seed=0).sum(axis=0) - shares.sum(axis=0)
        assert np.abs(combine(explained) - other).max() <= STEP / 2


def test_shares_are_new_every_time_unless_a_seed_is_given():
    assert not (split(model(), 3) == split(model(), 3)).any()
    for mode in MODES:
        assert (split(model(), 3, mode, seed=5) == split(model(), 3, mode, seed=5)).all()
        assert not (split(model(), 3, mode, seed=5) == split(model(), 3, mode, seed=6)).all()
    key = sharing.new_key()
    assert (split(model(), 3, seed=key) == split(model(), 3, seed=key)).all()
    assert key != sharing.new_key()


def test_no_seed_of_a_run_reaches_the_shares(monkeypatch):
    monkeypatch.setattr(sharing.secrets, "token_bytes", lambda count: b"\1" * count)
    fixed = split(model(), 3)
    assert (fixed == split(model(), 3)).all()  # nothing but the operating system decides


def test_what_the_papers_scheme_shows():
    # Each single share of a layer has a cosine of 1 with it: all that is hidden is a scale (Eq. 17).
    layers = [120, 80]
    shares = split(model(), 3, "scalar", layers=layers)
    for share in shares:
        for cut in (slice(0, 120), slice(120, 200)):
            cosine = share[cut] @ model()[cut] / np.linalg.norm(share[cut]) / np.linalg.norm(model()[cut])
            assert cosine == pytest.approx(1)
    scales = np.stack([shares[:, 0] / model()[0], shares[:, 150] / model()[150]])
    assert scales.sum(axis=1) == pytest.approx([1, 1])
    assert ((scales >= 0) & (scales < 1)).all()
    assert np.abs(scales[0] - scales[1]).max() > 1e-3  # every layer has its own
    # An additive share has nothing of the kind.
    masked = split(model(5000), 3)[0].astype(float)
    assert abs(np.corrcoef(masked, model(5000))[0, 1]) < 5 / np.sqrt(5000)


def test_the_papers_scheme_comes_with_a_warning(caplog):
    sharing._warn_of_scalars.cache_clear()
    with caplog.at_level(logging.WARNING, logger="coterie"):
        split(model(), 2, "scalar")
        split(model(), 2, "scalar")
    assert [record.message for record in caplog.records] == [
        "sharing=scalar: each share shows a layer up to its scale, so it hides little; use additive"
    ]


def test_tensors_are_taken_too():
    shares = split(torch.from_numpy(model()).float(), 3)
    assert np.abs(combine(torch.from_numpy(shares)) - model().astype(np.float32)).max() <= STEP / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parties": 1}, "parties=1: a single share is the model itself"),
        ({"parties": 2, "mode": "shamir"}, "mode='shamir'"),
        ({"parties": 2, "mode": "scalar", "layers": [3]}, "layers of 3 parameters"),
        ({"parties": 2, "model": np.ones((2, 2))}, "flat vector"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(SettingsError, match=message):
        split(**{"model": model()} | arguments)


@pytest.mark.parametrize("value", [2 * sharing.LARGEST, np.nan, np.inf])
def test_what_does_not_fit_in_the_ring_is_refused(value):
    with pytest.raises(CoterieError, match="cannot be shared"):
        split([0.0, value], 2)


def test_combining_nothing_is_refused():
    with pytest.raises(SettingsError, match="shares of shape"):
        combine(np.empty((0, 3)))
