"""APFL: its three updates by hand, the global model that is FedAvg's, and what an alpha of 0 or 1 makes of it."""

import numpy as np
import pytest
import torch

import coterie
from coterie import Scoring
from coterie.clients.memory import Memory
from coterie.core.errors import SettingsError
from coterie.methods import apfl
from coterie.methods.apfl import train_mixture
from coterie.training.local import LocalTraining
from support.federations import opposed
from support.worked_examples import apart, kept_model, normed, same, unequal
from support.worlds import at, close, quadratic, quadratics


@coterie.program
def shares_kept(clients):
    """How much of its own model each client mixes in."""
    return {"share": clients.state("share")}


NETS = pytest.mark.parametrize("net", ["mlp", normed])
FORMS = pytest.mark.parametrize("form", ["loop", "vectorised"])


@pytest.fixture
def parabola(monkeypatch):
    """Makes the loss a/2 (w - c)^2 of samples (c, a), instead of cross-entropy."""
    monkeypatch.setattr(apfl, "task_loss", quadratic)


def trained(here, form, start, memory=None, steps=2, rate=0.1, **options):
    """What clients that start from this number keep after a round, by name."""
    clients = here.clients(form, memory=memory)
    local = LocalTraining(steps=steps, batch=0, rate=rate)
    starts = at(here, *[start] * len(here.shards))
    train_mixture(clients, start=starts, local=local, **{"alpha": 0.5, "adaptive": True} | options)
    return clients.kept


def numbers(kept):
    return kept["own"].parameters[:, 0], kept["share"], kept["model"].parameters[:, 0]


@FORMS
def test_two_steps_by_hand(parabola, form):
    # f = (w - 4)^2 / 2 from w = v = 0, eta = .1, alpha = .5. First w = .4 and v = .1 * .5 * 4 = .2. Then the mixture is
    # .3: w = .4 + .1 * 3.6 = .76 and v = .2 + .1 * .5 * 3.7 = .385. Last, at the mixture .5725, alpha = .5 - .1 *
    # (.385 - .76) * (.5725 - 4) = .37146875, and the client predicts with .76 - alpha * .375.
    own, share, mixed = numbers(trained(quadratics([(4, 1)] * 3, [(4, 1)]), form, 0.0))
    close(own, torch.full((2,), 0.385, dtype=torch.float64))
    close(share, torch.full((2,), 0.37146875, dtype=torch.float64))
    close(mixed, torch.full((2,), 0.76 - 0.37146875 * 0.375, dtype=torch.float64))


@FORMS
def test_the_own_model_and_its_share_go_on_from_where_they_were(parabola, form):
    # Clients (c, a) over three rounds, in which all start from -1: the same recursion in NumPy.
    centres, curvatures = np.array([4.0, -2.0]), np.array([1.0, 0.5])
    here, memory = quadratics([(4, 1)] * 2, [(-2, 0.5)] * 5), Memory(2)
    own, share = np.zeros(2), np.full(2, 0.25)
    for _ in range(3):
        kept = trained(here, form, -1.0, memory, steps=3, alpha=0.25)
        memory.update(torch.arange(2), kept)
        sent = np.full(2, -1.0)
        for _ in range(3):
            mixed = share * own + (1 - share) * sent
            own = own - 0.1 * share * curvatures * (mixed - centres)
            sent = sent - 0.1 * curvatures * (sent - centres)
        mixed = share * own + (1 - share) * sent
        share = np.clip(share - 0.1 * (own - sent) * curvatures * (mixed - centres), 0, 1)
        expected = (own, share, share * own + (1 - share) * sent)
        for found, known in zip(numbers(kept), expected, strict=True):
            np.testing.assert_allclose(found, known, atol=1e-12)


@FORMS
@pytest.mark.parametrize(("start", "share"), [(-40.0, 1.0), (3.9, 0.0)])
def test_a_share_stays_between_0_and_1(parabola, form, start, share):
    # The own model starts at 0. Where the global one is farther from 4 the step leads beyond 1, to some 80; where it is
    # nearer, below 0: after a step w = 3.91, v = .1025, so alpha = .5 - .1 * (-3.8075) * (-1.99375) = -.26.
    assert trained(quadratics([(4, 1)]), form, start, steps=1)["share"].tolist() == [share]


@FORMS
def test_a_share_that_is_not_adaptive_stays(parabola, form):
    assert trained(quadratics([(4, 1)]), form, 0.0, adaptive=False)["share"].tolist() == [0.5]


@NETS
@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5, "server_momentum": 0.5}])
def test_the_global_model_is_fedavgs(net, options):
    fed = unequal(net=net)
    ours = coterie.APFL(rounds=3, **options).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert apart(ours.state.model, fedavg.state.model) < 1e-12
    for way in ("up", "down"):
        assert ours.summary["ledger"][way] == fedavg.summary["ledger"][way]
    taken = [client["rounds_taken_part"] for client in ours.clients]
    for one, other, rounds in zip(ours.clients, fedavg.clients, taken, strict=True):
        assert one["steps"] == other["steps"] + rounds  # alpha's step


@NETS
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_with_alpha_1_clients_train_alone(net, participation):
    fed = unequal(net=net)
    options = {"rounds": 3, "participation": participation, "momentum": 0.3, "clip": 0.5}
    coterie.APFL(alpha=1.0, adaptive=False, **options).fit(fed)
    ours = fed.run(kept_model).model
    coterie.Local(**options).fit(fed)
    assert apart(ours, fed.run(kept_model).model) < 1e-12


def test_with_alpha_0_the_own_model_never_moves_and_clients_predict_with_what_they_have_made_of_the_global_one():
    fed = unequal()
    coterie.APFL(rounds=2, alpha=0.0, adaptive=False).fit(fed, scoring=Scoring(views=("last",)))
    assert same(fed.run(kept_model, name="own").model, fed.new_model().expand(6))
    assert same(fed.run(kept_model).model, fed.run(kept_model, name="_last").model)


def test_clients_whose_data_disagree_mix_in_more_of_their_own():
    def shares(groups):
        fed = opposed(groups)
        coterie.APFL(rounds=10, rate=0.5).fit(fed)
        return fed.run(shares_kept).share

    # Both start at a half; with the same data in other hands it is the global model that fits.
    assert shares((0, 1) * 4).min() > 0.6
    assert shares((1,) * 8).max() < 0.2


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_a_share_beyond_0_and_1_is_refused(alpha):
    with pytest.raises(SettingsError, match=f"alpha={alpha}"):
        coterie.APFL(alpha=alpha)
