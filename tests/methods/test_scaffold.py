"""SCAFFOLD: the worked example, what public code gets wrong, reductions."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import Clients, program
from coterie.core.errors import SettingsError
from coterie.data import Split
from support.worked_examples import kept_change, normed


class Number(nn.Module):
    """One trained number, given back for every class."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.w.expand(len(x), 2)


def two_quadratics(**options):
    """Two clients with F_i(w) = (w - c_i)^2 / 2, c = +-1, through a regression on their own input."""
    x = np.array([[1.0]] * 6 + [[-1.0]] * 6, dtype=np.float32)
    data = coterie.Dataset(x, np.zeros(12, dtype=int), labels=("a", "b"))
    split = Split((np.arange(6), np.arange(6, 12)))
    return coterie.simulate(
        data, split, lambda s, c: Number(), precision="float64", scaling="none", validation=0, test_share=0.1, **options
    )


@pytest.fixture
def quadratic(monkeypatch):
    """Makes training lower (w - x)^2 / 2 instead of cross-entropy, with x the client's input."""

    def objective(model, batch, key):
        return batch.mean(0.5 * (model.parameters - batch.x[:, 0]) ** 2)

    train = Clients.train
    monkeypatch.setattr(Clients, "train", lambda self, *a, **k: train(self, *a, **k, objective=objective))


@program
def own_control(clients: Clients):
    """What clients keep."""
    return {"control": clients.state("control")}


def test_two_opposed_clients_stop_drifting(quadratic):
    # eta = .1, K = 2, x = 0: y = +-.19 and c_i = -+.95; then y = +-.0095, c_i = -+.9975; then y = +-.000475.
    fed = two_quadratics()
    expected = [(0.19, -0.95), (0.0095, -0.9975), (0.000475, -0.999875)]
    for rounds, (moved, control) in enumerate(expected, start=1):
        made = coterie.Scaffold(rounds=rounds, steps=2, rate=0.1)
        result = made.fit(fed, scoring=coterie.Scoring(views=("last",)))
        assert abs(result.state.model.parameters.item()) < 1e-12
        kept = fed.run(own_control).control.parameters[:, 0]
        assert kept.tolist() == pytest.approx([control, -control], abs=1e-12)
        last = fed._engine._memory.values["_last"].parameters[:2, 0]
        assert last.tolist() == pytest.approx([moved, -moved], abs=1e-12)


def federation(**options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    data = coterie.Dataset(x, (x @ rng.normal(size=(5, 3))).argmax(1), labels=tuple("abc"))
    options = {"net": "mlp"} | options
    return coterie.simulate(data, "quantity", clients=6, min_size=6, precision="float64", **options)


def test_with_everybody_there_the_servers_control_is_the_mean_of_the_clients():
    fed = federation()
    result = coterie.Scaffold(rounds=4, rate=0.05).fit(fed)
    kept = fed.run(own_control).control.parameters
    assert torch.allclose(result.state.control.parameters, kept.mean(0), atol=1e-12)


def test_a_control_variate_is_divided_by_all_clients_and_not_by_the_cohort():
    # Public code divides by the cohort (PACFL), which moves c twice as far when half of the clients take part.
    fed = federation()
    result = coterie.Scaffold(rounds=1, participation=0.5, rate=0.05).fit(fed)
    cohort = [row for row, client in enumerate(result.clients) if client["rounds_taken_part"]]
    assert len(cohort) == 3
    kept = fed.run(own_control, cohort).control.parameters
    assert torch.allclose(result.state.control.parameters, kept.sum(0) / 6, atol=1e-12)


def test_control_variates_start_at_zero_so_that_the_first_round_is_fedavg():
    # Public code starts them from a random net (NIID-Bench).
    fed = federation()
    scaffold = coterie.Scaffold(rounds=1, rate=0.05).fit(fed)
    fedavg = coterie.FedAvg(rounds=1, rate=0.05, weighting="uniform").fit(fed)
    assert torch.equal(scaffold.state.model.parameters, fedavg.state.model.parameters)
    second = coterie.Scaffold(rounds=2, rate=0.05).fit(fed)
    plain = coterie.FedAvg(rounds=2, rate=0.05, weighting="uniform").fit(fed)
    assert not torch.allclose(second.state.model.parameters, plain.state.model.parameters)


def test_what_an_absent_client_keeps_stays_as_it_is():
    fed = federation()
    kept = []
    for rounds in (2, 3):
        result = coterie.Scaffold(rounds=rounds, participation=0.34, rate=0.05).fit(fed)
        taken = [client["rounds_taken_part"] for client in result.clients]
        kept.append((fed.run(kept_change, name="control").change.parameters, taken))
    (before, then), (after, now) = kept
    absent = [a == b for a, b in zip(then, now, strict=True)]
    assert sum(absent) == 4
    assert [torch.equal(*rows) for rows in zip(before, after, strict=True)] == absent


def test_a_client_that_joins_late_counts_with_no_control_variate_until_it_takes_part():
    fed = federation(arrivals={4: 3, 5: 3})
    for rounds, clients in ((2, 4), (3, 6), (4, 6)):
        state = coterie.Scaffold(rounds=rounds, rate=0.05).fit(fed).state
        kept = fed.run(kept_change, name="control").change.parameters
        assert state.clients == clients
        assert torch.allclose(state.control.parameters, kept.sum(0) / clients, atol=1e-12)


def test_without_any_steps_nothing_moves():
    fed = federation()
    state = coterie.Scaffold(rounds=2, epochs=0).fit(fed).state
    assert torch.allclose(state.model.parameters, fed.new_model().parameters, atol=1e-15)
    assert not state.control.parameters.any()
    assert not fed.run(own_control).control.parameters.any()


def test_running_statistics_have_no_control_variate():
    fed = federation(net=normed)
    state = coterie.Scaffold(rounds=2, rate=0.05).fit(fed).state
    assert fed.net.buffers.total > 0
    assert state.control.parameters.shape[-1] == fed.net.parameters.total


def test_with_momentum_the_control_variate_is_still_the_size_of_a_gradient(quadratic):
    # 50 steps with momentum .9 and a tiny rate from w = 0: every gradient is about -c_i, so c_i must be about -+1.
    # Dividing by the 50 steps instead gives -7.1.
    fed = two_quadratics()
    coterie.Scaffold(rounds=1, steps=50, rate=1e-4, momentum=0.9).fit(fed)
    kept = fed.run(own_control).control.parameters[:, 0]
    assert kept.tolist() == pytest.approx([-1, 1], rel=0.02)


@pytest.mark.parametrize("compat", ["niid-bench", "pacfl"])
def test_public_code_counts_a_step_with_momentum_as_one_gradient(quadratic, compat):
    # 50 steps with momentum .9 and eta = .001 from w = 0: (x - y) / (K eta) is -7.123, and -.976 without momentum.
    fed = two_quadratics()
    for momentum, expected in ((0.9, -7.123), (0.0, -0.976)):
        made = coterie.methods.make("scaffold", rounds=1, steps=50, rate=1e-3, momentum=momentum, compat=compat)
        made.fit(fed)
        kept = fed.run(own_control).control.parameters[:, 0]
        assert kept.tolist() == pytest.approx([expected, -expected], abs=1e-3)
    # Counted right, the 50 steps are 410.5 gradients, from -1 at w = 0 to -.644 at the end.
    coterie.Scaffold(rounds=1, steps=50, rate=1e-3, momentum=0.9).fit(fed)
    assert fed.run(own_control).control.parameters[0].item() == pytest.approx(-7.123 * 50 / 410.46, abs=1e-3)


def test_pacfl_divides_control_variates_by_the_cohort():
    fed = federation()
    result = coterie.methods.make("scaffold", rounds=1, participation=0.5, rate=0.05, compat="pacfl").fit(fed)
    kept = fed.run(kept_change, name="control").change.parameters
    assert torch.allclose(result.state.control.parameters, kept.sum(0) / 3, atol=1e-12)


def test_niid_bench_starts_control_variates_from_a_random_net_which_shows_if_somebody_is_absent():
    fed = federation()
    options = {"rounds": 3, "rate": 0.05}
    right, wrong = (
        coterie.methods.make("scaffold", compat=compat, **options).fit(fed).state for compat in ("none", "niid-bench")
    )
    # With everybody there it is forgotten in the first round: c - c_i is 0 in it, and exact after it.
    assert torch.allclose(right.model.parameters, wrong.model.parameters, atol=1e-9)
    assert torch.allclose(right.control.parameters, wrong.control.parameters, atol=1e-9)
    options["participation"] = 0.5
    right, wrong = (
        coterie.methods.make("scaffold", compat=compat, **options).fit(fed).state for compat in ("none", "niid-bench")
    )
    assert not torch.allclose(right.model.parameters, wrong.model.parameters, atol=1e-3)
    # Clients that never came still hold their part of the random net in the server's mean.
    mean = fed.run(kept_change, name="control").change.parameters
    never = [row for row in range(6) if not mean[row].any()]
    random = fed.new_models(2)[1].parameters
    assert torch.allclose(wrong.control.parameters, (mean.sum(0) + len(never) * random) / 6, atol=1e-9)


def test_two_models_travel_each_way():
    fed = federation()
    result = coterie.Scaffold(rounds=1).fit(fed)
    size = fed.net.parameters.total * 8 * 6
    assert result.summary["ledger"]["down"] == {"control": size, "model": size}
    assert result.summary["ledger"]["up"] == {"control change": size, "model": size}


@pytest.mark.parametrize("options", [{"server_rate": 0.0}, {"optimizer": "adam"}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError):
        coterie.methods.make("scaffold", **options)
