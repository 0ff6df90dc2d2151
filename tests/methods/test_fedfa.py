"""FedFa: the worked weights, the sign of the server's momentum, degenerate accuracies."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie import program
from coterie.core.errors import SettingsError
from coterie.moves.mixing import by_information
from support.worked_examples import apart, course, of_sizes, quadratics, same, unequal, value

EQUAL = [0.5, 0.5]


def test_the_worked_weights():
    # Acc = (.5, .5), f = (1, 3): A = (1, 1), F = (-log2 .75, -log2 .25) = (.415037, 2), in parts (.171856, .828144).
    assert by_information(EQUAL, [1, 3], 1.0).tolist() == pytest.approx([0.171856, 0.828144], abs=1e-6)
    assert by_information(EQUAL, [1, 3], 0.5).tolist() == pytest.approx([0.335928, 0.664072], abs=1e-6)
    # Acc = (.9, .3): A = (-log2 .75, -log2 .25) as well.
    assert by_information([0.9, 0.3], [1, 1], 0.0).tolist() == pytest.approx([0.171856, 0.828144], abs=1e-6)


def test_who_does_worse_or_comes_oftener_counts_for_more():
    weights = by_information([0.9, 0.5, 0.1], [1, 1, 1], 0.5)
    assert (weights.diff() > 0).all()
    weights = by_information([0.5, 0.5, 0.5], [1, 5, 9], 0.5)
    assert (weights.diff() > 0).all()


def test_equal_clients_count_the_same():
    assert by_information([0.7] * 4, [3] * 4, 0.5).tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(("accuracy", "frequency"), [([0.3], [4]), ([0.0], [1]), ([1.0], [1])])
def test_a_single_client_has_all_the_weight(accuracy, frequency):
    assert by_information(accuracy, frequency, 0.5).tolist() == pytest.approx([1])


def test_accuracies_that_are_all_zero_count_the_same():
    assert by_information([0.0, 0.0, 0.0], [1, 1, 1], 0.0).tolist() == pytest.approx([1 / 3] * 3)


def test_an_accuracy_of_zero_has_a_limit():
    # -log2 1e-6 = 19.93, and -log2 .5 = 1 for each of the others.
    weights = by_information([0.0, 0.4, 0.4], [1, 1, 1], 0.0)
    assert weights.tolist() == pytest.approx([19.931569 / 21.931569, 1 / 21.931569, 1 / 21.931569], abs=1e-6)


ACCURACY = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(ACCURACY, st.floats(0, 1), st.integers(0, 2**32))
def test_weights_are_positive_and_sum_to_one(accuracy, share, seed):
    frequency = np.random.default_rng(seed).integers(1, 100, len(accuracy))
    weights = by_information(accuracy, frequency, share)
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)


def two(monkeypatch):
    """Two clients that pull to 1 and 3: equal accuracies and counts, so both weigh one half."""
    return quadratics(monkeypatch, (1, 1, 2), (3, 1, 2))


SETTINGS = {"rounds": 2, "steps": 1, "rate": 0.1, "momentum": 0.0, "server_momentum": 0.9}


def test_the_servers_momentum_goes_on_in_the_direction_of_the_change(monkeypatch):
    # w = 0: the mean is .2, m = .1 * .2 = .02, w = .2 + .1 * .02 = .202. Then the mean is .202 + .1 (2 - .202) = .3818,
    # m = .9 * .02 + .1 * .1798 = .03598, w = .3818 + .003598.
    models = [value(state.model) for state in course(coterie.FedFa(**SETTINGS), two(monkeypatch))]
    assert models == pytest.approx([0, 0.202, 0.385398], abs=1e-12)


def test_flgo_subtracts_the_momentum_which_takes_progress_back(monkeypatch):
    # w = .2 - .002 = .198; then .198 + .1 * 1.802 = .3782, m = .018 + .01802, w = .3782 - .003602.
    fed = two(monkeypatch)
    models = [value(state.model) for state in course(coterie.methods.make("fedfa", compat=True, **SETTINGS), fed)]
    assert models == pytest.approx([0, 0.198, 0.374598], abs=1e-12)
    ahead = course(coterie.FedFa(**SETTINGS), fed)
    plain = course(coterie.FedFa(server_rate=0.0, **SETTINGS), fed)
    for wrong, none, right in zip(models[1:], plain[1:], ahead[1:], strict=True):
        assert wrong < value(none.model) < value(right.model)


def test_without_a_server_rate_the_model_is_the_weighted_mean_of_one_round():
    # With the counts alone and everybody there, all weigh the same: FedAvg with momentum at the clients.
    fed = unequal()
    options = {"rounds": 3, "rate": 0.02}
    ours = coterie.FedFa(server_rate=0.0, beta=1.0, **options).fit(fed).state.model
    fedavg = coterie.FedAvg(weighting="uniform", momentum=0.9, **options).fit(fed).state.model
    assert apart(ours, fedavg) < 1e-12


def test_clients_report_the_accuracy_of_the_model_that_they_were_sent(monkeypatch):
    fed = unequal()
    seen = []
    mix = coterie.moves.mixing.by_information
    monkeypatch.setattr(coterie.moves.mixing, "by_information", lambda *a: seen.append(a) or mix(*a))
    coterie.FedFa(rounds=1).fit(fed)
    accuracy, frequency, share = seen[0]
    start = fed.run(coterie.clients.programs.evaluate, shared=fed.new_model(), on="train")
    assert torch.equal(accuracy, start.accuracy)
    assert frequency.tolist() == [1] * 6
    assert share == 0.5


@program
def frequencies(clients):
    """What clients keep."""
    return {"frequency": clients.state("frequency", otherwise=torch.zeros(len(clients), dtype=torch.int64))}


def test_clients_count_themselves_how_often_they_took_part():
    fed = unequal()
    result = coterie.FedFa(rounds=5, participation=0.5).fit(fed)
    counted = fed.run(frequencies).frequency.tolist()
    assert counted == [client["rounds_taken_part"] for client in result.clients]
    assert sum(counted) == 15


def test_a_model_and_two_numbers_travel_up():
    fed = unequal()
    ledger = coterie.FedFa(rounds=1).fit(fed).summary["ledger"]
    size = fed.net.parameters.total * 8 * 6
    assert ledger["down"] == {"model": size}
    assert ledger["up"] == {"model": size, "accuracy": 8 * 6, "frequency": 8 * 6}


def test_one_client_trains_alone_with_the_servers_momentum():
    fed = of_sizes([20])
    alone = coterie.FedFa(rounds=2, server_rate=0.0).fit(fed).state.model
    assert same(alone, coterie.FedAvg(rounds=2, momentum=0.9).fit(fed).state.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.5}, "beta=1.5"),
        ({"server_momentum": 1.0}, "server_momentum=1.0"),
        ({"server_rate": -1.0}, "server_rate="),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        coterie.methods.make("fedfa", **options)
