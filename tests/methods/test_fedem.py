"""FedEM: the E step by hand, shares that stay with the client, reductions."""

from math import log

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients, Scoring, program
from coterie.core.errors import SettingsError
from coterie.methods.fedem import FedEM, FedEMState, train_components
from coterie.moves.mixing import mixture_shares, responsibilities
from support.federations import at_round, opposed, same, uneven


@program
def own_shares(clients: Clients):
    """What clients keep."""
    return {"shares": clients.state("shares")}


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_e_step_by_hand():
    # pi = (1/2, 1/2), losses (0, ln 3): 1 to 1/3, so q = (3/4, 1/4); and the other way round.
    losses = numbers([[0, log(3)], [log(3), 0]])  # one client, [client, model, sample]
    q = responsibilities(losses, numbers([0.5, 0.5]))
    assert torch.allclose(q[0], numbers([0.75, 0.25], [0.25, 0.75]), atol=1e-12)
    # The M step of the shares is their mean: 1/2 again; with three samples of the first kind and one of the second
    # (3 * 3/4 + 1/4) / 4 = 5/8.
    assert torch.allclose(mixture_shares(losses, numbers([0.5, 0.5])), numbers([0.5, 0.5]))
    four = losses[:, :, [0, 0, 0, 1]]
    assert torch.allclose(mixture_shares(four, numbers([0.5, 0.5])), numbers([0.625, 0.375]), atol=1e-12)


def random_losses(clients=3, models=4, samples=9):
    losses = torch.from_numpy(np.random.default_rng(0).exponential(3, (clients, models, samples)))
    losses[1, :, 6:] = torch.nan  # a client with fewer samples
    return losses


def test_responsibilities_of_a_sample_add_to_one_and_absent_samples_have_none():
    q = responsibilities(random_losses(), torch.full((3, 4), 0.25))
    total = q.sum(dim=1)
    assert torch.allclose(total[[0, 2]], torch.ones(2, 9, dtype=torch.float64), atol=1e-12)
    assert total[1, :6].tolist() == pytest.approx([1] * 6)
    assert total[1, 6:].isnan().all()
    shares = mixture_shares(random_losses(), torch.full((3, 4), 0.25))
    assert shares.sum(dim=1).tolist() == pytest.approx([1] * 3)


def test_equal_components_leave_the_shares_as_they_are():
    losses = random_losses(models=1).expand(3, 4, 9)
    shares = numbers([0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.7, 0.1, 0.1, 0.1])
    assert torch.allclose(mixture_shares(losses, shares, steps=5), shares, atol=1e-12)


def test_no_step_of_em_lowers_the_likelihood():
    losses, shares = random_losses(), torch.full((3, 4), 0.25, dtype=torch.float64)
    before = -torch.inf
    for _ in range(10):
        likelihood = torch.logsumexp(shares.log()[:, :, None] - losses, dim=1).nansum(dim=1)
        assert (likelihood >= before - 1e-12).all()
        before, shares = likelihood, mixture_shares(losses, shares)


def test_a_share_of_zero_and_losses_of_any_size_give_finite_numbers():
    losses = numbers([[1e4, 2e4], [5.0, 700.0]])
    q = responsibilities(losses, numbers([0.0, 1.0]))
    assert q.isfinite().all()
    assert torch.allclose(q.sum(dim=1), torch.ones(1, 2, dtype=torch.float64))


def test_with_one_component_it_is_fedavg_to_the_last_bit():
    fed = uneven()
    fedem = FedEM(rounds=3, components=1, participation=0.7).fit(fed)
    fedavg = coterie.FedAvg(rounds=3, participation=0.7).fit(fed)
    assert same(fedem.state.models[0], fedavg.state.model)
    assert [c["accuracy"] for c in fedem.clients] == [c["accuracy"] for c in fedavg.clients]


def test_components_are_trained_on_samples_weighted_by_responsibility():
    # One step over all samples of a client: the change of a component is the gradient of sum_i q_i l_i / n.
    fed = at_round(uneven())
    models = fed.new_models(2)
    local = FedEM(steps=1, batch=0, rate=1.0).local
    found = fed.run(train_components, shared=models, local=local)
    site = fed._engine._host
    for client in range(6):
        index = torch.from_numpy(site.shards[client].train)
        x, y = site.pool.inputs(index), site.pool.y[index]
        losses = torch.stack([torch.nn.functional.cross_entropy(m.module()(x), y, reduction="none") for m in models])
        q = (-losses).softmax(dim=0)
        for number, model in enumerate(models):
            module = model.module()
            loss = torch.nn.functional.cross_entropy(module(x), y, reduction="none")
            gradient = torch.autograd.grad((q[number].detach() * loss).mean(), list(module.parameters()))
            flat = fed.net.parameters.flatten(dict(zip(fed.net.parameters.names, gradient, strict=True)))
            change = models.parameters[number] - found.model.parameters[client, number]
            assert torch.allclose(change, flat, atol=1e-12)


def test_shares_stay_with_the_client():
    fed = uneven()
    result = FedEM(rounds=2).fit(fed)
    kept = fed.run(own_shares).shares
    assert kept.sum(dim=1).tolist() == pytest.approx([1] * 6)
    assert kept.std(dim=0).max() > 1e-3  # clients differ
    size = 2 * 3 * 6 * fed.net.parameters.total * 8
    assert result.summary["ledger"]["up"] == result.summary["ledger"]["down"] == {"model": size}
    assert list(vars(result.state)) == ["models"]


def test_only_clients_that_took_part_are_averaged_and_not_all_of_them():
    # The authors' code averages the models of all clients, so that old ones dilute those of the cohort.
    fed = at_round(uneven())
    made = FedEM(components=2, participation=0.5)
    start = FedEMState(fed.new_models(2))
    cohort = fed.sample(0.5)
    after = made.round(fed, start).models
    replies = at_round(fed).run(train_components, cohort, shared=start.models, local=made.local)
    weights = fed.sizes[torch.from_numpy(cohort)].double()
    mean = torch.einsum("c,cmp->mp", weights / weights.sum(), replies.model.parameters)
    assert torch.allclose(after.parameters, mean, atol=1e-14)


def test_a_client_that_never_took_part_finds_its_shares_by_itself():
    fed = opposed()
    made = FedEM(rounds=12, components=2, rate=1.0, participation=0.75)
    result = made.fit(fed)
    accuracy = [client["accuracy"] for client in result.clients]
    fed.begin(1)  # everybody forgets its shares, as if all had just arrived
    fed.start_round(13)
    scores = coterie.server.scoring.score(fed, made.serve(fed, result.state), Scoring(), made.local)
    assert scores.values["accuracy"].mean() >= np.mean(accuracy) - 0.05
    assert scores.values["accuracy"].mean() > 0.75  # even shares of two opposed components would give a half


def test_a_mixture_serves_opposed_groups_that_one_model_cannot():
    fed = opposed()
    mixed = FedEM(rounds=15, components=2, rate=1.0).fit(fed)
    shares = fed.run(own_shares).shares
    one = coterie.FedAvg(rounds=15, rate=1.0).fit(fed)
    assert mixed.summary["accuracy_mean"] > one.summary["accuracy_mean"] + 0.15
    assert (shares[::2].mean(0) - shares[1::2].mean(0)).abs().min() > 0.3


def test_permuting_the_components_permutes_the_shares():
    fed = at_round(uneven())
    models = fed.new_models(3)
    local = FedEM().local
    fed.run(train_components, shared=models, local=local)
    straight = fed.run(own_shares).shares
    at_round(fed).run(train_components, shared=models[[2, 0, 1]], local=local)
    assert torch.allclose(fed.run(own_shares).shares, straight[:, [2, 0, 1]], atol=1e-14)


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients(clients):
    result = FedEM(rounds=2, components=4).fit(uneven(clients=clients))
    assert result.state.models.parameters.isfinite().all()


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="components=0: at least 1"):
        coterie.methods.make("fedem", components=0)
