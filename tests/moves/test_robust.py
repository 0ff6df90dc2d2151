"""Robust mixing: worked numbers, breakdown points, and attacks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.clients.clients import new_models
from coterie.core.errors import SettingsError
from coterie.moves import robust
from coterie.nets import Net
from coterie.nets.stacks import Models
from support.federations import Place
from support.worked_examples import normed

NET = Net(lambda shape, classes: Place(), (2,), 2, dtype=torch.float64)


def at(*places):
    """Models that are points of the plane."""
    return Models(
        NET, torch.from_numpy(np.array(places, dtype=np.float64)), torch.empty(len(places), 0, dtype=torch.float64)
    )


def place(models):
    return models.parameters[0].tolist()


MIXES = {
    "median": lambda weights, models, bad: robust.median(weights, models),
    "trimmed mean": lambda weights, models, bad: robust.trimmed_mean(weights, models, share=bad / len(models)),
    "geometric median": lambda weights, models, bad: robust.geometric_median(weights, models),
    "krum": lambda weights, models, bad: robust.krum(weights, models, bad),
    "multi-krum": lambda weights, models, bad: robust.krum(weights, models, bad, keep=len(models) - 2 * bad),
    "norm bounds": lambda weights, models, bad: robust.norm_bounded(weights, models, around=at((0, 0))),
}
EVERY = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)


class TestByHand:
    """Worked numbers."""

    def test_median(self):
        assert place(robust.median([[1, 1, 1]], at((1, 9), (2, 5), (30, 7)))) == [2, 7]
        assert place(robust.median([[1, 1, 1, 1]], at((1, 9), (2, 5), (4, 7), (30, 1)))) == [3, 6]

    def test_a_weighted_median_has_half_of_the_weight_on_either_side(self):
        # Weights 0.2, 0.2, 0.6: more than half is at the last. Weights 1/4, 1/4, 1/2: exactly half is below it.
        assert place(robust.median([[1, 1, 3]], at((1, 9), (2, 5), (30, 7)))) == [30, 7]
        assert place(robust.median([[1, 1, 2]], at((1, 9), (2, 5), (30, 7)))) == [16, 7]
        repeated = at((1, 9), (2, 5), (30, 7), (30, 7), (30, 7))
        assert place(robust.median([[1] * 5], repeated)) == place(
            robust.median([[1, 1, 3]], at((1, 9), (2, 5), (30, 7)))
        )

    def test_a_trimmed_mean(self):
        four = at((1, 8), (2, 6), (4, 4), (30, -50))
        assert place(robust.trimmed_mean([[1] * 4], four, share=0.25)) == [3, 5]
        assert place(robust.trimmed_mean([[1] * 4], four, share=0)) == [37 / 4, -32 / 4]
        # A share of 1/8 cuts half of the first and of the last: (1/2 + 2 + 4 + 30/2) / 3, and so on.
        assert place(robust.trimmed_mean([[1] * 4], four, share=1 / 8)) == pytest.approx([21.5 / 3, -11 / 3])

    def test_a_geometric_median(self):
        # Of three corners of an equilateral triangle it is the centre; a point with half of the weight is it itself.
        corners = at((0, 0), (2, 0), (1, np.sqrt(3)))
        assert place(robust.geometric_median([[1, 1, 1]], corners)) == pytest.approx([1, 1 / np.sqrt(3)], abs=1e-6)
        assert place(robust.geometric_median([[2, 1, 1]], corners)) == pytest.approx([0, 0], abs=1e-2)
        assert place(robust.geometric_median([[5, 1, 1]], corners)) == pytest.approx([0, 0], abs=1e-4)

    def test_krum(self):
        # n = 5, bad = 1: two nearest neighbours count. Scores of 0, 1, 3, 4, 50: 1+9, 1+4, 4+1, 1+9, 46^2+47^2.
        five = at((0, 0), (1, 0), (3, 0), (4, 0), (50, 0))
        assert place(robust.krum([[1] * 5], five, bad=1)) == [1, 0]
        assert place(robust.krum([[1] * 5], five, bad=1, keep=2)) == [2, 0]
        assert place(robust.krum([[1, 3, 1, 1, 1]], five, bad=1, keep=2)) == [1.5, 0]

    def test_norm_bounds(self):
        # Lengths 5, 1 and 100: within 5 the last becomes (0, 5), and the mean of the three is (4/3, 8/3).
        three = at((3, 4), (1, -1 + 1), (0, 100))
        assert place(robust.norm_bounded([[1] * 3], three, around=at((0, 0)))) == pytest.approx([4 / 3, 3])
        assert place(robust.norm_bounded([[1] * 3], three, around=at((0, 0)), limit=1e9)) == pytest.approx(
            [4 / 3, 104 / 3]
        )
        ahead = robust.norm_bounded([[0, 0, 1]], three, around=at((0, 90)), limit=4)
        assert place(ahead) == [0, 94]

    def test_capped_counts(self):
        assert robust.capped([5, 10, 1e12], most=3).tolist() == [[5, 10, 30]]
        assert robust.capped([5, 10, 15], most=1.5).tolist() == [[5, 10, 15]]


@EVERY
def test_groups_are_mixed_apart_and_need_not_be_of_one_size(mix):
    models = at((1, 2), (1, 2), (1, 2), (1, 2), (1, 2), (8, 9), (8, 9), (8, 9))
    weights = torch.tensor([[1.0] * 5 + [0] * 3, [0] * 5 + [1.0] * 3])
    if mix in (MIXES["krum"], MIXES["multi-krum"]):
        found = robust.krum(weights, models, bad=0)
    elif mix is MIXES["norm bounds"]:
        found = robust.norm_bounded(weights, models, around=at((0, 0), (8, 8)))
    else:
        found = mix(weights, models, 1)
    np.testing.assert_allclose(found.parameters, [[1, 2], [8, 9]], atol=1e-6)


@EVERY
def test_equal_models_stay_as_they_are_and_the_order_of_clients_does_not_matter(mix):
    assert place(mix([[1.0] * 7], at(*[(3, -4)] * 7), 2)) == pytest.approx([3, -4], abs=1e-9)
    rng = np.random.default_rng(0)
    points, weights, order = rng.normal(size=(9, 2)), rng.uniform(1, 2, size=9), rng.permutation(9)
    straight = place(mix([weights.tolist()], at(*points), 2))
    assert place(mix([weights[order].tolist()], at(*points[order]), 2)) == pytest.approx(straight, abs=1e-9)


def test_running_statistics_are_mixed_like_parameters():
    net = Net(normed, (3,), 2, dtype=torch.float64)
    models = new_models(net, 0, 5)
    assert models.buffers.shape[1] > 0
    models.buffers[4] = 1e30
    for found in (
        robust.median([[1] * 5], models),
        robust.geometric_median([[1] * 5], models),
        robust.krum([[1] * 5], models, bad=1),
        robust.norm_bounded([[1] * 5], models, around=models[:1]),
    ):
        assert found.buffers.abs().max() < 10


def test_float32_models_stay_so():
    models = coterie.simulate(clients=3, net="mlp").new_models(3)
    assert robust.median([[1, 1, 1]], models).parameters.dtype == torch.float32


class TestBreakdown:
    """What the stated breakdown points mean: below them honest members bound the result, from them on they do not."""

    @EVERY
    @given(seed=st.integers(0, 10_000), honest=st.integers(5, 12), size=st.sampled_from([1.0, 1e6, 1e30, 1e200]))
    def test_a_minority_can_move_the_result_nowhere(self, mix, seed, honest, size):
        rng = np.random.default_rng(seed)
        bad = int(rng.integers(1, (honest - 1) // 2))  # also few enough for Krum: n >= 2 bad + 3
        own = rng.normal(size=(honest, 2))
        hostile = rng.normal(size=2) * size if seed % 2 else rng.normal(size=(bad, 2)) * size
        found = mix([[1.0] * (honest + bad)], at(*own, *np.broadcast_to(hostile, (bad, 2))), bad)
        # The geometric median has the widest bound: 2 (1 - a) / (1 - 2 a) times the radius of the honest, a < 1/3 here.
        radius = np.linalg.norm(own - own.mean(axis=0), axis=1).max() + np.linalg.norm(own.mean(axis=0))
        assert np.linalg.norm(np.array(place(found)) - own.mean(axis=0)) <= 4 * radius + 1e-6

    @given(seed=st.integers(0, 10_000))
    def test_medians_and_trimmed_means_stay_among_the_honest(self, seed):
        rng = np.random.default_rng(seed)
        own, hostile = rng.normal(size=(7, 2)), rng.normal(size=(3, 2)) * 1e9
        for found in (
            robust.median([[1] * 10], at(*own, *hostile)),
            robust.trimmed_mean([[1] * 10], at(*own, *hostile), share=0.3),
        ):
            assert (found.parameters[0].numpy() >= own.min(axis=0) - 1e-9).all()
            assert (found.parameters[0].numpy() <= own.max(axis=0) + 1e-9).all()

    def test_from_the_breakdown_point_on_the_result_can_be_anywhere(self):
        own, far = [(0.0, 0.0)] * 4, (1e9, 0.0)
        assert place(robust.median([[1] * 8], at(*own, *[far] * 4)))[0] == 5e8
        assert place(robust.trimmed_mean([[1] * 8], at(*own, *[far] * 4), share=0.25))[0] > 1e8
        assert place(robust.geometric_median([[1] * 9], at(*own, *[far] * 5)))[0] > 1e8
        assert place(robust.krum([[1] * 9], at(*own, *[far] * 5), bad=3))[0] == 1e9
        assert place(robust.norm_bounded([[1] * 9], at(*own, *[far] * 5), around=at((0, 0))))[0] > 1e8
        assert place(robust.norm_bounded([[1] * 9], at(*own, *[far] * 5), around=at((0, 0)), limit=1.0))[0] <= 1

    def test_one_client_is_enough_for_the_mean(self):
        assert place(torch.tensor([[0.2] * 5]) @ at(*[(0.0, 0.0)] * 4, (1e9, 0)))[0] == pytest.approx(2e8)

    def test_colluding_sybils_need_more_than_bad_clients_to_be_krum_s_choice(self):
        # Of n = 9 with bad = 3 four neighbours count. Identical models have distance 0, but three of them have only two
        # such neighbours each, and look for two more among the honest; five have four.
        rng = np.random.default_rng(0)
        for sybils, won in ((3, False), (4, False), (5, True)):
            own = rng.normal(size=(9 - sybils, 2))
            found = place(robust.krum([[1] * 9], at(*own, *[(40.0, 40.0)] * sybils), bad=3))
            assert (found == [40, 40]) is won

    def test_inflated_counts_break_what_goes_by_weight_unless_they_are_capped(self):
        models, counts = at(*[(0.0, 0.0)] * 4, (1e9, 0.0)), [20, 25, 30, 35, 1e12]
        for mix in (robust.median, robust.geometric_median):
            assert place(mix([counts], models))[0] > 1e8
            assert abs(place(mix(robust.capped(counts, most=2), models))[0]) < 1e-2

    def test_replacing_the_model_moves_it_by_no_more_than_a_weight_times_the_limit(self):
        # Bagdasaryan et al., AISTATS 2020: who sends start + n (target - start), while others stay, sets the mean.
        start, target, n = np.array([1.0, 1.0]), np.array([7.0, -3.0]), 10
        models = at(*[start] * (n - 1), start + n * (target - start))
        even = torch.full((1, n), 1 / n, dtype=torch.float64)
        assert place(even @ models) == pytest.approx(target.tolist())
        found = robust.norm_bounded(even, models, around=at(start), limit=0.5)
        assert np.linalg.norm(place(found) - start) == pytest.approx(0.5 / n)


def attacked(fed, bad, change):
    """The federation in which some clients send what `change` makes of their updates."""
    run = fed._engine.run

    def hostile(call):
        answers = run(call)
        if call.at.scoring or "model" not in answers.outputs:
            return answers
        models, sent = answers.outputs["model"], next(iter((call.shared or call.each).values()))
        parameters = models.parameters.clone()
        parameters[bad] = sent.parameters + change(parameters[bad] - sent.parameters)
        return replace(answers, outputs={**answers.outputs, "model": Models(models.net, parameters, models.buffers)})

    fed._engine.run = hostile
    return fed


ATTACKS = {
    "sign flip": lambda updates: -10 * updates,
    "colluding": lambda updates: (-5 * updates.mean(dim=0)).expand_as(updates),
}


class Robust(coterie.FedAvg):
    """FedAvg with robust mixing, as the module's example shows it; known under no name."""

    def step(self, state, replies):
        mixed = self.mix(torch.ones(1, len(replies)), replies.model, state.model.expand(1))
        return type(state)(mixed[0])


@pytest.mark.parametrize("attack", ATTACKS)
def test_under_attack_fedavg_is_lost_and_robust_mixing_learns(attack):
    bad, change, options = [1, 4], ATTACKS[attack], {"rounds": 5, "epochs": 3}

    def learned(method):
        fed = coterie.simulate("digits", "iid", "mlp", clients=10, seed=0)
        return method.fit(attacked(fed, bad, change)).summary["accuracy_mean"]

    assert learned(coterie.FedAvg(**options)) < 0.5
    for mix in (
        lambda weights, models, start: robust.median(weights, models),
        lambda weights, models, start: robust.trimmed_mean(weights, models, share=0.2),
        lambda weights, models, start: robust.geometric_median(weights, models),
        lambda weights, models, start: robust.krum(weights, models, bad=2, keep=6),
        lambda weights, models, start: robust.norm_bounded(weights, models, around=start),
    ):
        made = type("Made", (Robust,), {"name": "robust", "mix": staticmethod(mix)})
        assert learned(made(**options)) > 0.75


@pytest.mark.parametrize(
    ("called", "message"),
    [
        (lambda: robust.trimmed_mean([[1]], at((0, 0)), share=0.5), r"share=0.5: in \[0, 0.5\)"),
        (lambda: robust.krum([[1] * 4], at(*[(0, 0)] * 4), bad=1), r"bad=1 in a group of 4; it takes at least 2 bad"),
        (
            lambda: robust.krum([[1] * 5], at(*[(0, 0)] * 5), bad=1, keep=5),
            r"keep=5 of 5 members, 1 of them bad; keep 1 to 4",
        ),
        (lambda: robust.norm_bounded([[1]], at((0, 0)), around=at((0, 0)), limit=0), r"limit=0: above 0"),
        (lambda: robust.capped([1, 2], most=0.5), r"most=0.5: at least 1"),
        (lambda: robust.median([[0, 0]], at((0, 0), (1, 1))), r"a group has no members"),
        (lambda: robust.median([[1, -1]], at((0, 0), (1, 1))), r"\[group, client\], 0 or more"),
        (lambda: robust.median([1, 1], at((0, 0), (1, 1))), r"weights of shape \(2,\) for 2 models"),
    ],
)
def test_bad_arguments_are_refused(called, message):
    with pytest.raises(SettingsError, match=message):
        called()
