"""FedSoft: importance and a round by hand, both ways to draw clients, newcomers, reductions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedsoft import FedSoft, FedSoftState, count_best
from coterie.moves.mixing import best_counts
from coterie.nets.stacks import Changes
from support.federations import at_round, lost, opposed, pulled, pulling, same, uneven
from support.worked_examples import kept_model

PLACES = [(4.0, 0.0), (0.0, 6.0), (2.0, 2.0)]


def centres_at(fed, *places):
    """Models of a plane's points at these places."""
    return fed.new_model().expand(len(places)) + Changes(fed.net, torch.tensor(places).double())


def round_from(fed, made, centres, counts):
    """A round from these centres, in which clients go by these counts and do not count anew."""
    state = FedSoftState(centres, torch.tensor(counts).double())
    return made.round(at_round(fed, 2), state)


class TestImportance:
    """Of how many samples a centre's loss is the lowest."""

    def test_by_hand(self):
        nan = torch.nan
        losses = torch.tensor([[[1, 5, 2, 3], [2, 4, 2, 9]], [[7, 1, nan, nan], [6, nan, nan, nan]]])
        assert best_counts(losses).tolist() == [[3, 1], [1, 1]]  # a tie goes to the first, NaN is never the lowest

    def test_clients_count_their_training_samples(self):
        fed = at_round(uneven())
        models = fed.new_models(3)
        counted = fed.run(count_best, shared=models).fitted_best
        assert counted.sum(dim=1).tolist() == fed.sizes.tolist()
        site = fed._engine._host
        for client in range(6):
            index = torch.from_numpy(site.shards[client].train)
            x, y = site.pool.inputs(index), site.pool.y[index]
            losses = [torch.nn.functional.cross_entropy(m.module()(x), y, reduction="none") for m in models]
            best = torch.stack(losses).argmin(dim=0)
            assert counted[client].tolist() == torch.bincount(best, minlength=3).tolist()

    def test_it_is_estimated_every_tau_rounds(self):
        fed = uneven()
        ledger = FedSoft(rounds=5, clusters=3, estimate_every=2).fit(fed).summary["ledger"]
        model = 6 * fed.new_model().size
        assert ledger["down"]["model"] == 5 * model + 3 * 3 * model  # in rounds 1, 3 and 5 all three centres too
        assert ledger["up"] == {"model": 5 * model, "fitted best": 3 * 6 * 3 * 8}

    def test_no_centre_is_without_any(self):
        found = FedSoft(clusters=3, smoother=0.01)._importance(torch.tensor([[9.0, 1, 0], [0, 0, 0]]).double())
        assert found.tolist() == [pytest.approx([0.9, 0.1, 0.01]), pytest.approx([1 / 3] * 3)]


def test_a_round_by_hand(monkeypatch):
    # F_k(w) = |w - p_k|^2 / 2, lambda 0.5, centres (8, 0) and (0, 8). A client with u = (1/2, 1/2) is pulled to (4, 4),
    # one with (1, 0) to (8, 0), each with lambda 1/2: a step of 2/3 from anywhere ends at (p + mean / 2) / (3/2).
    pulling(monkeypatch)
    fed, made = pulled(*PLACES), FedSoft(clusters=2, strength=0.5, smoother=0, steps=1, batch=0, rate=2 / 3)
    counts = [[3, 3], [6, 0], [0, 3]]
    after = round_from(fed, made, centres_at(fed, (8.0, 0.0), (0.0, 8.0)), counts)
    own = fed.run(kept_model).model.parameters
    expected = np.array([[4 + 2, 0 + 2], [0 + 4, 6 + 0], [2 + 0, 2 + 4]]) / 1.5
    np.testing.assert_allclose(own, expected, atol=1e-6)
    # v is u times the samples, which are the counts: 3 and 6 for the first centre, 3 and 3 for the second.
    np.testing.assert_allclose(after.models.parameters[0], (3 * expected[0] + 6 * expected[1]) / 9, atol=1e-6)
    np.testing.assert_allclose(after.models.parameters[1], (expected[0] + expected[2]) / 2, atol=1e-6)


def test_clients_lower_what_the_paper_says(monkeypatch):
    # The one pull to the mean is the sum of all pulls, also where importance adds to more than 1: gradient descent on
    # F(w) + lambda/2 sum_s u_s |w - c_s|^2 by automatic differentiation, step by step.
    pulling(monkeypatch)
    fed, places = pulled((1.0, 3.0)), torch.tensor([[5.0, 0.0], [0.0, -2.0], [7.0, 7.0]]).double()
    made = FedSoft(clusters=3, strength=0.3, smoother=0.2, steps=5, batch=0, rate=0.2)
    round_from(fed, made, centres_at(fed, *places.tolist()), [[4, 2, 0]])
    w, u = torch.zeros(2, dtype=torch.float64, requires_grad=True), torch.tensor([2 / 3, 1 / 3, 0.2]).double()
    for _ in range(5):
        lowered = (w - torch.tensor([1.0, 3.0])).square().sum() / 2
        lowered = lowered + 0.15 * (u * (w - places).square().sum(dim=1)).sum()
        w = (w - 0.2 * torch.autograd.grad(lowered, w)[0]).detach().requires_grad_()
    torch.testing.assert_close(fed.run(kept_model).model.parameters[0], w.detach(), atol=1e-6, rtol=0)


def test_without_a_pull_every_client_trains_alone_to_the_last_bit():
    fed = uneven()
    soft = FedSoft(rounds=3, clusters=3, strength=0.0, participation=0.7).fit(fed)
    alone = coterie.Local(rounds=3, participation=0.7).fit(fed)
    assert [client["loss"] for client in soft.clients] == [client["loss"] for client in alone.clients]


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_with_one_centre_that_clients_start_from_it_is_fedprox_to_the_last_bit(mu):
    fed = uneven()
    soft = FedSoft(rounds=3, clusters=1, strength=mu, start="centres", participation=0.7).fit(fed)
    plain = coterie.FedProx(rounds=3, mu=mu, participation=0.7).fit(fed)
    assert same(soft.state.models[0], plain.state.model)
    first = FedSoft(rounds=1, clusters=1, strength=mu).fit(fed)  # a first round starts from the initial model anyway
    assert same(first.state.models[0], coterie.FedProx(rounds=1, mu=mu).fit(fed).state.model)


def test_permuting_the_centres_permutes_the_result():
    fed, made, order = uneven(), FedSoft(clusters=3, strength=0.5), [2, 0, 1]
    models, counts = fed.new_models(3), torch.zeros(6, 3).double()
    straight = made.round(at_round(fed), FedSoftState(models, counts))
    own = fed.run(kept_model).model
    turned = made.round(at_round(fed), FedSoftState(models[order], counts))
    torch.testing.assert_close(turned.models.parameters, straight.models.parameters[order], atol=1e-12, rtol=0)
    torch.testing.assert_close(fed.run(kept_model).model.parameters, own.parameters, atol=1e-12, rtol=0)
    assert torch.equal(turned.counts, straight.counts[:, order])


class TestDrawn:
    """Clients that are drawn for each centre by importance."""

    def test_the_mean_is_right_on_average(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*PLACES)
        counts, centres = [[3, 3], [6, 0], [0, 3]], centres_at(fed, (8.0, 0.0), (0.0, 8.0))
        made = FedSoft(clusters=2, strength=0.5, smoother=0, steps=1, batch=0, rate=2 / 3)
        expected = round_from(fed, made, centres, counts).models.parameters
        found, drawn = [], replace(made, drawn=2)
        for number in range(2, 400, 2):  # in odd rounds clients count anew
            state = FedSoftState(centres, torch.tensor(counts).double())
            found.append(drawn.round(at_round(fed, number), state).models.parameters)
        spread = torch.stack(found).std(dim=0) / len(found) ** 0.5
        assert ((torch.stack(found).mean(dim=0) - expected).abs() < 5 * spread + 1e-9).all()

    def test_only_who_was_drawn_trains_and_an_importance_of_zero_is_never_drawn(self, monkeypatch):
        pulling(monkeypatch)
        fed = pulled(*PLACES)
        made = FedSoft(clusters=2, smoother=0, drawn=5, steps=1, batch=0)
        cohort, times = made._cohort(at_round(fed, 2), torch.tensor([[0.0, 3.0], [6, 0], [0, 0]]).double())
        assert cohort.tolist() == [0, 1]
        assert times.tolist() == [[0, 5, 0], [5, 0, 0]]


class TestNewcomers:
    """Clients that have not counted yet."""

    def test_one_counts_when_it_comes_and_not_only_when_all_do(self):
        fed = uneven(arrivals={4: 2})
        states = []
        made = FedSoft(rounds=2, clusters=2, estimate_every=5)
        state = made.begin(fed)
        fed.begin(2)
        for number in (1, 2):
            fed.start_round(number)
            state = made.round(fed, state)
            fed.commit()
            states.append(state)
        assert [int(state.counts[4].sum()) for state in states] == [0, int(fed.sizes[4])]
        assert torch.equal(states[0].counts[:4], states[1].counts[:4])

    def test_who_does_not_answer_counts_nowhere_and_names_may_be_appended(self):
        few, more, made = uneven(clients=3), uneven(clients=4), FedSoft(clusters=2)
        state = made.round(lost(at_round(few), 1), made.begin(few))
        assert state.counts[1].tolist() == [0, 0]
        assert (state.counts[[0, 2]].sum(dim=1) > 0).all()
        after = made.round(at_round(more, 2), state)
        assert (after.counts.sum(dim=1) > 0).all()
        assert after.counts.shape == (4, 2)


def test_opposed_groups_are_served_better_by_own_models_and_by_centres():
    fed = opposed(samples=480)
    options = {"rounds": 12, "clusters": 2, "strength": 0.5, "rate": 0.3, "epochs": 5}
    own, centre = FedSoft(**options).fit(fed), FedSoft(**options, predict_with="centre").fit(fed)
    plain = coterie.FedAvg(rounds=12, rate=0.3, epochs=5).fit(fed)
    assert own.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.2
    assert centre.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.2


def test_both_forms_agree():
    results = [FedSoft(rounds=2, clusters=2, drawn=3).fit(uneven(engine=engine)) for engine in ("vectorised", "loop")]
    assert torch.equal(results[0].state.counts, results[1].state.counts)
    one, other = (result.state.models.parameters for result in results)
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("drawn", [0, 3])
def test_more_centres_than_clients(clients, drawn):
    result = FedSoft(rounds=2, clusters=4, drawn=drawn).fit(uneven(clients=clients))
    assert result.state.models.parameters.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{"clusters": 0}, {"estimate_every": 0}, {"strength": -1.0}, {"smoother": 1.5}, {"drawn": -1}, {"start": "here"}],
    ids=lambda options: next(iter(options)),
)
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedsoft", **options)
