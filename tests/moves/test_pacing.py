"""AutoCFL's adjustment of local training: the worked numbers of Eqs. 7 to 9, and clients that come and go."""

import numpy as np
import pytest
import torch

import coterie
from coterie.data import Split
from coterie.moves import pacing
from coterie.moves.pacing import more_epochs, train_for
from coterie.training.local import LocalTraining
from support.worlds import close


@pytest.mark.parametrize(
    ("samples", "ratio", "expected"),
    [
        (100, 2.0, 6.0),  # .5 * 1000 / 100 = 5 more
        (100, 0.5, 1 + 5**0.5),  # 5^.5 = 2.236068 more
        (1000, 1.0, 1.5),
        (1000, 0.5, 1 + 0.5**0.5),  # the exponent makes a base below 1 larger: .707107 more
    ],
)
def test_worked_numbers_of_epochs(samples, ratio, expected):
    # The benchmark is client 0, with 1000 samples and a loss of 1; client 1 has lost more so far.
    epochs = more_epochs([1, 1], [1000, samples], [1.0, ratio], cumulative=[1.0, 1.1])
    close(epochs, torch.tensor([1.0, expected], dtype=torch.float64))


def test_who_has_lost_no_more_than_the_benchmark_trains_as_before():
    epochs = more_epochs([1, 2.5, 3], [1000, 10, 10], [1.0, 9.0, 9.0], cumulative=[2.0, 2.0, 1.9])
    assert epochs.tolist() == [1, 2.5, 3]


def test_epochs_never_fall_and_those_of_the_benchmark_never_change():
    rng = np.random.default_rng(0)
    samples = rng.integers(1, 500, size=9)
    pace = pacing.begin(9, 2.0)
    for _ in range(6):
        before = pace.epochs
        pace = pacing.observed(pace, np.arange(9), torch.from_numpy(rng.uniform(0, 2, size=9)))
        pace = pacing.adjusted(pace, samples)
        assert (pace.epochs >= before).all()
    assert pace.epochs[samples.argmax()] == 2
    assert (pace.epochs > 2).any()


def test_of_equally_many_samples_the_first_client_is_the_benchmark():
    epochs = more_epochs([1, 1, 1], [5, 5, 5], [1, 1, 1], cumulative=[2, 1, 3])
    assert epochs.tolist() == [1, 1, 1.5]


def test_a_cap_keeps_the_step_within_its_base():
    epochs = more_epochs([1, 1, 1], [1000, 1000, 100], [1, 0.5, 0.5], cumulative=[1, 2, 2], capped=True)
    close(epochs, torch.tensor([1, 1.5, 1 + 5**0.5], dtype=torch.float64))


def test_a_benchmark_that_has_nothing_left_to_lose_does_not_break_the_ratio():
    epochs = more_epochs([1, 1, 1], [100, 50, 50], [0.0, 0.0, 0.3], cumulative=[0.0, 0.1, 0.3])
    assert epochs.tolist() == [1, 2, 2]


def test_variances_are_of_cumulative_losses_and_their_rise_is_the_sign_to_stop():
    pace = pacing.begin(2, 1.0)
    everybody = np.arange(2)
    pace = pacing.observed(pace, everybody, torch.tensor([1.0, 3.0]))  # sums 1 and 3: variance 1
    assert pace.variances == (1.0,)
    assert not pacing.rises(pace)
    pace = pacing.observed(pace, everybody, torch.tensor([2.0, 1.0]))  # 3 and 4: 1/4
    assert pace.variances == (1.0, 0.25)
    assert not pacing.rises(pace)
    pace = pacing.observed(pace, everybody, torch.tensor([1.0, 1.0]))  # 4 and 5: no more than before
    assert not pacing.rises(pace)
    pace = pacing.observed(pace, everybody, torch.tensor([0.0, 1.0]))  # 4 and 6: 1
    assert pacing.rises(pace)


def test_who_missed_a_round_counts_there_with_its_mean():
    # Client 1 was there once and lost 2, client 0 twice and lost 1 + 2: as if client 1 had lost 4, more than 3.
    pace = pacing.begin(2, 1.0)
    pace = pacing.observed(pace, np.array([0]), torch.tensor([1.0]))
    pace = pacing.observed(pace, np.arange(2), torch.tensor([2.0, 2.0]))
    assert pace.variances == (0.0, 0.25)
    assert pacing.adjusted(pace, [10, 5]).epochs.tolist() == [1, 2]


def test_who_was_never_there_is_no_benchmark_and_clients_may_be_added():
    pace = pacing.observed(pacing.begin(2, 2.0), np.arange(2), torch.tensor([1.0, 2.0]))
    pace = pacing.grown(pace, 3, epochs=2.0)
    assert pacing.grown(pace, 2, epochs=9.0).epochs.tolist() == [2, 2, 2]
    pace = pacing.adjusted(pace, [10, 5, 1000])
    assert pace.epochs.tolist() == [2, 3, 2]


def test_a_client_trains_for_its_own_fraction_of_epochs_and_reports_its_last_loss():
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2)
    split = Split((np.arange(20), np.arange(20, 40)))
    fed = coterie.simulate(data, split, "logistic", validation=0, test_share=0.5, precision="float64")
    start, local = fed.new_model(), LocalTraining(batch=2, steps=99)
    replies = fed.run(train_for, shared={"start": start}, each={"epochs": torch.tensor([0.5, 2.4])}, local=local)
    # 10 samples in batches of 2, 5 steps an epoch: half of that, rounded to even, and 12. `steps` does not count.
    assert fed._engine._memory.values["_steps"][:2].tolist() == [2, 12]
    assert (replies.loss > 0).all()
    still = fed.run(train_for, shared={"start": start}, each={"epochs": torch.zeros(2)}, local=local)
    assert torch.equal(still.model.parameters, start.parameters.expand(2, -1))
