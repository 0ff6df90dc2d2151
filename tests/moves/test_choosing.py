"""A client's own choice, shrunk towards the federation's: worked numbers and limits; and options that must pay."""

import numpy as np
import pytest
import torch

from coterie.clients.clients import CallContext, Clients
from coterie.moves import choosing
from coterie.nets.stacks import Models
from coterie.training.forms import FORMS
from support.worlds import close, mlp, world


def seen(*clients):
    """What clients have judged of one blend beside the first: mean gain, sum of squares, samples."""
    return torch.tensor([[[0.0, 0.0, client[2]], list(client)] for client in clients], dtype=torch.float64)


def some_clients(sizes=(12, 7, 3)):
    here = world(mlp, sizes)
    return here, Clients(here.net, here.pool, here.shards, FORMS["loop"](), CallContext(number=1))


@pytest.mark.parametrize(("models", "parts", "blends"), [(1, 3, 1), (2, 1, 2), (3, 2, 6), (4, 2, 10), (3, 4, 15)])
def test_a_lattice_has_every_convex_weight_once_and_the_first_model_first(models, parts, blends):
    weights = choosing.lattice(models, parts)
    assert weights.shape == (blends, models)
    assert len(torch.unique(weights, dim=0)) == blends
    assert weights.sum(dim=1).tolist() == [1] * blends
    assert weights[0].tolist() == [1] + [0] * (models - 1)


def test_an_analysis_of_variance_by_hand():
    # Two clients with 4 samples each, means 3 and 1, sums of squares 12 and 6: sigma^2 = 18 / 6 = 3. Around the mean 2
    # there is 4 + 4 = 8, of which chance explains (2 - 1) 3; n0 = 8 - 32 / 8 = 4; tau^2 = 5 / 4.
    found = choosing.between_clients(seen((3, 12, 4), (1, 6, 4)))
    close(found[:, 1], torch.tensor([2, 1.25, 3], dtype=torch.float64))
    assert not found[:, 0].any()


def test_the_mean_weighs_clients_by_how_sure_they_are():
    found = choosing.between_clients(seen((3, 30, 10), (1, 6, 2)))
    mean, between, within = found[:, 1]
    weights = 1 / (between + within / torch.tensor([10.0, 2.0], dtype=torch.float64))
    close(mean, (weights * torch.tensor([3.0, 1.0], dtype=torch.float64)).sum() / weights.sum())
    assert 2 < mean < 3


def test_a_client_trusts_itself_by_tau_and_its_samples():
    found = torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    # B = .5 / (.5 + 2 / n): 1/2 with 4 samples, 3/4 with 12, 0 without any.
    gains = choosing.shrunk(seen((-1, 0, 4), (-1, 0, 12), (0, 0, 0), (-1, 0, 4e12)), found)
    assert gains[:, 1].tolist() == pytest.approx([0, -0.5, 1, -1])
    assert not gains[:, 0].any()


def test_clients_that_are_alike_all_take_the_federation_s_choice():
    found = choosing.between_clients(seen((1.1, 400, 4), (0.9, 400, 4), (1.0, 400, 4)))
    assert found[1, 1] == 0
    gains = choosing.shrunk(seen((-5, 1, 4), (9, 1, 4)), found)
    assert gains[:, 1].tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("clients", [[], [(0, 0, 0)], [(0, 0, 0), (0, 0, 0)]])
def test_where_nobody_has_seen_anything_nobody_leaves_the_first_model(clients):
    known = seen(*clients) if clients else torch.zeros(0, 2, 3)
    found = choosing.between_clients(known)
    assert not found.any()
    assert not choosing.shrunk(seen((0, 0, 0)), found).any()


def test_a_single_client_is_the_federation():
    found = choosing.between_clients(seen((2, 8, 5)))
    assert found[:, 1].tolist() == [2, 0, 2]


def test_shrinking_makes_gains_more_right():
    # True gains N(0.3, 0.5^2), three samples of deviation 1.5 each: the mean squared error of B_i y_i + (1 - B_i) mu.
    rng = np.random.default_rng(0)
    truth = rng.normal(0.3, 0.5, 400)
    samples = truth[:, None] + rng.normal(0, 1.5, (400, 3))
    mean = samples.mean(axis=1)
    squares = ((samples - mean[:, None]) ** 2).sum(axis=1)
    known = seen(*((m, s, 3) for m, s in zip(mean, squares, strict=True)))
    found = choosing.between_clients(known)
    close(found[:, 1], torch.tensor([0.3, 0.25, 2.25], dtype=torch.float64), 0.12)
    gains = choosing.shrunk(known, found)[:, 1].numpy()
    best = 0.25 / (0.25 + 0.75)  # the Bayesian error is tau^2 (1 - B)
    assert ((gains - truth) ** 2).mean() == pytest.approx(0.25 * (1 - best), rel=0.1)
    assert ((mean - truth) ** 2).mean() > 3 * ((gains - truth) ** 2).mean()


def test_gains_are_of_the_blended_outputs():
    here, clients = some_clients()
    models = Models.stack([here.models(3), here.models(6)[3:]], axis=1)
    found = choosing.judged(clients, models, parts=2)
    for row in range(3):
        x, y = clients.samples(row, "validation")
        assert found[row, 0, 2] == len(y)
        if not len(y):
            assert not found[row].any()
            continue
        one, other = (models[row, place].module()(x) for place in range(2))
        losses = [
            torch.nn.functional.cross_entropy(out, y, reduction="none") for out in (one, (one + other) / 2, other)
        ]
        for blend, loss in enumerate(losses):
            gains = losses[0] - loss
            close(found[row, blend, 0], gains.mean().double(), 1e-6)
            close(found[row, blend, 1], (gains - gains.mean()).square().sum().double(), 1e-6)


def test_options_are_taken_only_where_they_pay():
    rng = np.random.default_rng(1)
    plain = rng.uniform(0.4, 0.6, 20)
    better, much = plain - rng.uniform(0.02, 0.1, 20), plain - rng.uniform(0.2, 0.3, 20)
    noise = plain + rng.normal(0, 0.1, 20)
    assert choosing.paying(np.stack([plain, noise]), 0.05) == 0
    assert choosing.paying(np.stack([plain, noise, better]), 0.05) == 2
    assert choosing.paying(np.stack([plain, better, much]), 0.05) == 2
    assert choosing.paying(np.stack([plain, much, better]), 0.05) == 1  # more groups must beat fewer
    assert choosing.paying(np.stack([plain, plain]), 0.05) == 0


def test_trying_is_corrected_for():
    # Five clients of five gain: p = 1/32 = 0.031, which is enough for one option and too little for two.
    plain, better = np.full(5, 0.5), np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    assert choosing.paying(np.stack([plain, better]), 0.05) == 1
    assert choosing.paying(np.stack([plain, better, plain]), 0.05) == 0


def test_clients_that_cannot_say_do_not_count():
    errors = np.stack([np.full(8, 0.5), np.arange(8) / 20])
    errors[1, 3:] = np.nan
    assert choosing.paying(errors, 0.05) == 0


def test_nothing_is_found_where_nothing_is_in_nineteen_of_twenty():
    rng = np.random.default_rng(2)
    found = [choosing.paying(rng.normal(size=(4, 15)), 0.05) > 0 for _ in range(400)]
    assert np.mean(found) < 0.08
