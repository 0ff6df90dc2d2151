"""FedDyn: the worked example in two forms, its invariant, what public code gets wrong."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from support.worked_examples import apart, course, kept_change, of_sizes, quadratics, same, unequal, value

EXACT = {"steps": 50, "rate": 0.4, "clip": 0.0}
"""Enough full-batch steps to stand for an exact minimiser: the slowest error shrinks to .6 in each."""


def test_two_quadratics_go_to_their_common_optimum(monkeypatch):
    # L_k = a_k (w - c_k)^2 / 2, a = (1, 3), c = (1, -1), alpha = .5. Round 1: w_k = a_k c_k / (a_k + .5) = 2/3, -6/7;
    # the mean -2/21 plus the mean drift -2/21 is -4/21. The common optimum is (1 - 3) / (1 + 3).
    fed = quadratics(monkeypatch, (1, 1, 2), (-1, 3, 2))
    models = [value(state.model) for state in course(coterie.FedDyn(rounds=20, alpha=0.5, **EXACT), fed)]
    assert models[:4] == pytest.approx([0, -0.190476, -0.285714, -0.344671], abs=1e-6)
    assert models[-1] == pytest.approx(-0.5, abs=2e-3)
    # FedAvg with exact minimisers stays where the plain mean of the optima is.
    fedavg = coterie.FedAvg(rounds=3, weighting="uniform", **EXACT).fit(fed).state.model
    assert value(fedavg) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_form_of_the_paper_gives_the_same_models(monkeypatch, participation):
    centres, curvatures, alpha, rounds = (1, -1, 2, 0.5), (1, 3, 0.5, 2), 0.5, 8
    fed = quadratics(monkeypatch, *((c, a, 2) for c, a in zip(centres, curvatures, strict=True)))
    made = coterie.FedDyn(rounds=rounds, alpha=alpha, participation=participation, **EXACT)
    states = course(made, fed)
    model, h, g = 0.0, 0.0, [0.0] * 4
    for number in range(1, rounds + 1):
        fed.start_round(number)
        cohort = fed.sample(participation)
        # argmin L_k - g_k w + alpha/2 (w - w_t)^2, then g_k -= alpha (w_k - w_t), h -= alpha/N sum (w_k - w_t).
        local = {
            k: (curvatures[k] * centres[k] + g[k] + alpha * model) / (curvatures[k] + alpha) for k in cohort.tolist()
        }
        for k, found in local.items():
            g[k] -= alpha * (found - model)
        h -= alpha / 4 * sum(found - model for found in local.values())
        model = sum(local.values()) / len(local) - h / alpha
        assert h == pytest.approx(sum(g) / 4, abs=1e-12)
        assert value(states[number].model) == pytest.approx(model, abs=1e-9)
        assert -alpha * value(states[number].drift) == pytest.approx(h, abs=1e-9)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_servers_drift_is_the_mean_over_all_clients_and_not_over_the_cohort(participation):
    fed = unequal()
    for rounds in (1, 2, 4):
        result = coterie.FedDyn(rounds=rounds, participation=participation).fit(fed)
        kept = fed.run(kept_change, name="drift").change.parameters
        assert torch.allclose(result.state.drift.parameters, kept.mean(0), atol=1e-12)
        assert torch.allclose(
            result.state.model.parameters, (result.state.mean + result.state.drift).parameters, atol=1e-12
        )


def test_a_client_that_joins_late_counts_with_no_drift_until_it_takes_part():
    fed = unequal(arrivals={4: 3, 5: 3})
    for rounds, clients in ((2, 4), (3, 6), (4, 6)):
        result = coterie.FedDyn(rounds=rounds).fit(fed)
        kept = fed.run(kept_change, name="drift").change.parameters
        assert result.state.clients == clients
        assert torch.allclose(result.state.drift.parameters, kept.sum(0) / clients, atol=1e-12)


def test_the_drift_of_an_absent_client_stays_as_it_is():
    fed = unequal()
    drifts = []
    for rounds in (3, 4):
        result = coterie.FedDyn(rounds=rounds, participation=0.4).fit(fed)
        drifts.append((fed.run(kept_change, name="drift").change.parameters, result.clients))
    (before, then), (after, now) = drifts
    absent = [a["rounds_taken_part"] == b["rounds_taken_part"] for a, b in zip(then, now, strict=True)]
    assert sum(absent) == 4
    for row, was_absent in enumerate(absent):
        assert torch.equal(before[row], after[row]) == was_absent


def test_all_clients_count_the_same_whatever_their_size():
    fed = of_sizes([60, 10])
    state = coterie.FedDyn(rounds=1).fit(fed).state
    drifts = fed.run(kept_change, name="drift").change.parameters
    start = fed.new_model().parameters
    assert torch.allclose(state.mean.parameters, start + drifts.mean(0), atol=1e-12)


def test_the_regulariser_has_a_gradient():
    fed = unequal()
    start = fed.new_model()
    short = coterie.FedDyn(rounds=1, alpha=30.0, epochs=20, rate=0.01).fit(fed).state.mean
    long = coterie.FedDyn(rounds=1, alpha=1e-9, epochs=20, rate=0.01).fit(fed).state.mean
    assert (short - start).norm() < 0.3 * (long - start).norm()


def test_gradients_are_clipped_unless_told_otherwise():
    made = coterie.FedDyn(rounds=1)
    assert made.local.clip == 10
    assert coterie.FedDyn(clip=0.0).local.clip == 0
    fed = unequal()
    tight = coterie.FedDyn(rounds=1, clip=0.01, steps=5, rate=0.1).fit(fed).state
    drifts = fed.run(kept_change, name="drift").change
    assert (drifts.norm() <= 5 * 0.1 * 0.01 + 1e-9).all()
    assert apart(tight.mean, fed.new_model()) > 0


def test_clients_are_served_the_corrected_model_or_the_mean():
    fed = unequal()
    cloud, mean = (coterie.FedDyn(rounds=2, serves=serves).fit(fed) for serves in ("cloud", "mean"))
    assert same(cloud.state.model, mean.state.model)
    assert same(cloud.served.models[0], cloud.state.model)
    assert same(mean.served.models[0], mean.state.mean)
    assert apart(mean.state.mean, mean.state.model) > 1e-3


def test_one_model_travels_each_way():
    fed = unequal()
    ledger = coterie.FedDyn(rounds=2).fit(fed).summary["ledger"]
    size = fed.net.parameters.total * 8 * 6 * 2
    assert ledger["down"] == ledger["up"] == {"model": size}


@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_a_bad_strength_is_refused(alpha):
    with pytest.raises(SettingsError, match=f"alpha={alpha}: above 0; without a regulariser use fedavg"):
        coterie.FedDyn(alpha=alpha)
