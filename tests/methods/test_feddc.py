"""FedDC: what it is made of, and what the authors' code gets wrong."""

import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from support.worked_examples import course, kept_change, of_sizes, quadratics, same, unequal, value


@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5, "rate": 0.05}, {"serves": "mean"}])
def test_without_correction_it_is_feddyn(options):
    fed = unequal()
    dynamic = coterie.FedDyn(rounds=4, **options).fit(fed)
    drifts = fed.run(kept_change, name="drift").change.parameters
    plain = coterie.FedDC(rounds=4, correction=False, **options).fit(fed)
    assert same(plain.state.model, dynamic.state.model)
    assert same(plain.state.mean, dynamic.state.mean)
    assert torch.equal(fed.run(kept_change, name="drift").change.parameters, drifts)
    assert not plain.state.control.parameters.any()


def test_without_correction_the_worked_example_of_feddyn_holds(monkeypatch):
    fed = quadratics(monkeypatch, (1, 1, 2), (-1, 3, 2))
    made = coterie.FedDC(rounds=3, alpha=0.5, correction=False, steps=70, rate=0.2, clip=0.0)
    models = [value(state.model) for state in course(made, fed)]
    assert models == pytest.approx([0, -0.190476, -0.285714, -0.344671], abs=1e-6)


def test_with_correction_the_common_optimum_is_still_the_end(monkeypatch):
    fed = quadratics(monkeypatch, (1, 1, 2), (-1, 3, 2))
    made = coterie.FedDC(rounds=20, alpha=0.5, steps=20, rate=0.1)
    assert value(made.fit(fed).state.model) == pytest.approx(-0.5, abs=1e-2)


def test_in_the_first_round_and_without_a_pull_clients_train_as_in_fedavg():
    # There is no drift and no correction yet; a pull of 1e-300 is lost in every sum.
    fed = unequal()
    options = {"rounds": 1, "clip": 0.0}
    mean = coterie.FedDC(alpha=1e-300, **options).fit(fed).state.mean
    assert same(mean, coterie.FedAvg(weighting="uniform", **options).fit(fed).state.model)


def test_with_everybody_there_the_servers_control_is_the_mean_of_the_clients():
    fed = unequal()
    for rounds in (1, 3):
        result = coterie.FedDC(rounds=rounds, rate=0.05).fit(fed)
        for name, ours in (("control", result.state.control), ("drift", result.state.drift)):
            kept = fed.run(kept_change, name=name).change.parameters
            assert torch.allclose(ours.parameters, kept.mean(0), atol=1e-12)


def test_a_control_variate_is_divided_by_all_clients_and_not_by_the_cohort():
    fed = unequal()
    result = coterie.FedDC(rounds=3, rate=0.05, participation=0.5).fit(fed)
    kept = fed.run(kept_change, name="control").change.parameters
    assert torch.allclose(result.state.control.parameters, kept.sum(0) / 6, atol=1e-12)


def first_controls(fed, **options):
    """What clients keep after their first round, and the lengths K eta that it was divided by."""
    made = coterie.methods.make("feddc", rounds=1, batch=5, epochs=1, rate=0.05, **options)
    made.fit(fed)
    controls = fed.run(kept_change, name="control").change.parameters
    drifts = fed.run(kept_change, name="drift").change.parameters
    return (-drifts / controls).median(dim=1).values


def test_a_control_variate_is_divided_by_the_clients_own_steps_and_not_by_an_average_clients():
    fed = of_sizes([12, 25, 53], test_share=0.1)
    own = torch.tensor([-(-size // 5) * 0.05 for size in fed.sizes.tolist()], dtype=torch.float64)
    assert torch.allclose(first_controls(fed), own)
    average = -(-round(sum(fed.sizes.tolist()) / 3) // 5) * 0.05
    assert torch.allclose(first_controls(fed, compat=True), torch.full((3,), average, dtype=torch.float64))


def test_a_control_variate_is_divided_by_the_rate_of_its_round_and_not_of_the_first(monkeypatch):
    # Every gradient of a very flat quadratic is its slope -a c = -.001, at whatever rate: so must G_i be.
    fed = quadratics(monkeypatch, (1000, 1e-6, 2))
    options = {"rounds": 3, "steps": 2, "alpha": 1e-12, "schedule": "exponential", "rate_decay": 0.5}
    found = value(coterie.FedDC(**options).fit(fed).state.control)
    assert found == pytest.approx(-0.001, rel=1e-3)
    # With one client G = G_i, so G_i+ = (w - theta) / (K eta): the authors divide by a rate four times too high.
    wrong = value(coterie.methods.make("feddc", compat=True, **options).fit(fed).state.control)
    assert wrong == pytest.approx(-0.001 / 4, rel=1e-3)


def test_two_models_travel_each_way_and_one_without_correction():
    fed = unequal()
    size = fed.net.parameters.total * 8 * 6
    ledger = coterie.FedDC(rounds=1).fit(fed).summary["ledger"]
    assert ledger["down"] == {"model": size, "control": size}
    assert ledger["up"] == {"model": size, "control change": size}
    ledger = coterie.FedDC(rounds=1, correction=False).fit(fed).summary["ledger"]
    assert ledger["down"] == ledger["up"] == {"model": size}


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"optimizer": "adam"}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=f"{next(iter(options))}="):
        coterie.methods.make("feddc", **options)
