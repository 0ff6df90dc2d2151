"""FedAMP: its two kinds of attention and a whole course by hand, and what it becomes where attention is all or even."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.moves import mixing
from support.federations import opposed
from support.worked_examples import apart, course, kept_model, of_sizes, quadratics, same, unequal

EVERYBODY = torch.ones(3, dtype=torch.bool)
ROWS = np.array([[0.0, 3.0], [0.0, 1.0], [2.0, 0.0]])


def test_attention_by_distance_by_hand():
    # Squared distances 4, 13 and 5; A'(x) = exp(-x / sigma) / sigma.
    sigma, alpha = 5.0, 2.0
    a, b, c = (alpha / sigma * np.exp(-square / sigma) for square in (4, 13, 5))
    expected = [[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]]
    found = mixing.attention(torch.from_numpy(ROWS), EVERYBODY, alpha, sigma)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_it_is_a_step_along_the_gradient_of_attention():
    # u = w - alpha grad / 2 of the sum of A(|w_i - w_j|^2) over pairs: Eq. 4 leaves the 2 of the square out.
    sigma, alpha = 7.0, 1.5
    rows = torch.from_numpy(ROWS).requires_grad_()
    squares = (rows[:, None] - rows[None]).square().sum(dim=2)
    (gradient,) = torch.autograd.grad((1 - torch.exp(-squares / sigma)).triu(1).sum(), rows)
    found = mixing.attention(rows.detach(), EVERYBODY, alpha, sigma) @ rows.detach()
    torch.testing.assert_close(found, rows.detach() - alpha * gradient / 2, atol=1e-12, rtol=0)


def test_a_step_that_is_too_long_ends_among_the_others():
    found = mixing.attention(torch.from_numpy(ROWS), EVERYBODY, alpha=1e4, sigma=5.0)
    near, far = np.exp(-4 / 5), np.exp(-13 / 5)
    np.testing.assert_allclose(found[0], [0, near / (near + far), far / (near + far)], atol=1e-12)
    assert (found >= 0).all()


def test_attention_by_angle_by_hand():
    # Cosines 1, 0 and 0.
    weight = np.e**2 / (np.e**2 + 1)
    expected = [[0.2, 0.8 * weight, 0.8 * (1 - weight)], [0.8 * weight, 0.2, 0.8 * (1 - weight)], [0.4, 0.4, 0.2]]
    found = mixing.attention_by_angle(torch.from_numpy(ROWS), EVERYBODY, own=0.2, sigma=2.0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_who_is_not_counted_counts_for_itself_alone():
    counted = torch.tensor([True, False, False])
    for found in (
        mixing.attention(torch.from_numpy(ROWS), counted, 2.0, 5.0),
        mixing.attention_by_angle(torch.from_numpy(ROWS), counted, 0.2, 2.0),
    ):
        assert found[0].tolist() == [1, 0, 0]  # nobody else is there to be listened to
        assert (found[1:, 0] > 0).all()
        assert found[1, 2] == found[2, 1] == 0
        assert found.sum(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_three_rounds_by_hand(monkeypatch):
    # a/2 (w - c)^2, two steps from the message u with the pull lambda / alpha: w <- w - .5 (a (w - c) + pull (w - u)).
    centres, curvatures = np.array([0.0, 1.0, 8.0]), np.array([1.0, 0.5, 1.0])
    fed = quadratics(monkeypatch, *((c, a, 2) for c, a in zip(centres, curvatures, strict=True)))
    alpha, sigma, strength = 3.0, 6.0, 0.9
    options = {"attention": "distance", "alpha": alpha, "sigma": sigma, "strength": strength}
    states = course(coterie.FedAMP(rounds=3, steps=2, batch=0, rate=0.5, **options), fed)
    own = np.zeros(3)
    for state in states[1:]:
        # In the first round nobody has sent anything: the messages are the initial model, which all have.
        weights = alpha / sigma * np.exp(-((own[:, None] - own) ** 2) / sigma) * (1 - np.eye(3))
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1)
        message = (weights + np.diag(1 - weights.sum(axis=1))) @ own
        own = message.copy()
        for _ in range(2):
            own -= 0.5 * (curvatures * (own - centres) + strength / alpha * (own - message))
        np.testing.assert_allclose(state.models.parameters[:, 0], own, atol=1e-12)
    np.testing.assert_allclose(fed.run(kept_model).model.parameters[:, 0], own, atol=1e-12)
    assert abs(own[0] - own[1]) < 1  # who is alike moves together


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_with_all_weight_on_the_own_model_it_is_training_alone_to_the_last_bit(participation):
    options = {"rounds": 3, "participation": participation}
    fed = unequal()
    ours = coterie.FedAMP(own_weight=1.0, strength=0.0, **options).fit(fed)
    models = fed.run(kept_model).model
    alone = coterie.Local(**options).fit(fed)
    assert same(models, fed.run(kept_model).model)
    assert [c["accuracy"] for c in ours.clients] == [c["accuracy"] for c in alone.clients]


@pytest.mark.parametrize(
    "options", [{"sigma": 1e-9}, {"attention": "distance", "sigma": 6e15, "alpha": 1e15}], ids=lambda o: str(o)
)
def test_with_even_attention_messages_are_those_of_fedavg(options):
    fed = of_sizes([20] * 6)
    ours = coterie.FedAMP(rounds=3, strength=0.0, **options).fit(fed).state
    fedavg = coterie.FedAvg(rounds=3).fit(fed).state.model
    assert apart(torch.full((6,), 1 / 6, dtype=torch.float64) @ ours.models, fedavg) < 1e-12


def test_attention_finds_who_is_alike():
    fed = opposed()
    method = coterie.FedAMP(rounds=15, rate=1.0, sigma=50.0)
    result = method.fit(fed)
    mixing_ = method.insight(fed, result.state)["mixing"]
    within = mixing_[::2, ::2].sum() + mixing_[1::2, 1::2].sum()
    assert within / mixing_.sum() > 0.75
    assert result.summary["accuracy_mean"] > coterie.FedAvg(rounds=15, rate=1.0).fit(fed).summary["accuracy_mean"] + 0.1


def test_a_client_that_has_sent_nothing_starts_from_others_and_counts_for_nobody():
    fed = of_sizes([20] * 4, arrivals={3: 3})
    states = course(coterie.FedAMP(rounds=3), fed)
    assert [state.sent.tolist() for state in states[1:]] == [[True] * 3 + [False]] * 2 + [[True] * 4]
    without = course(coterie.FedAMP(rounds=2, own_weight=0.25), of_sizes([20] * 4, arrivals={3: 9}))[2]
    assert same(states[2].models[:3], without.models[:3])
    assert same(states[2].models[3], fed.new_model())


def test_what_travels_is_a_model_each_way():
    fed = unequal()
    ledger = coterie.FedAMP(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    assert ledger["down"] == ledger["up"] == {"model": 2 * 3 * fed.new_model().size}


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"own_weight": 1.1}, {"alpha": 0.0}, {"attention": "l1"}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedamp", **options)
