"""How clients differ: each cause is found where it is and nowhere else, and who differs is named."""

import numpy as np
import pytest

import coterie
from coterie.advice import causes
from coterie.advice.causes import diagnose

WORLDS = {
    "iid": ({"split": "iid"}, ()),
    "labels": ({"split": "label-skew", "classes": 2}, ("labels",)),
    "rotations": ({"split": "autocfl-input"}, ("inputs",)),
    "rotations and labels": ({"split": "rotated-label-skew"}, ("inputs", "labels")),
    "one with swapped labels": ({"split": "swapped-labels", "swapped": 0.1}, ("concepts",)),
    "sizes": ({"split": "quantity", "alpha": 0.2}, ("sizes",)),
    "few samples": ({"split": "iid", "limit": 120, "clients": 24}, ("few samples",)),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Fewer trees and draws: what is looked at here is clear enough for them."""
    monkeypatch.setattr(causes, "_TREES", 40)
    monkeypatch.setattr(causes, "_DRAWS", 3)
    monkeypatch.setattr(causes, "_PERMUTATIONS", 60)


def diagnosed(seed=0, **given):
    given = {"clients": 10, **given}
    return diagnose(coterie.simulate("digits", net="mlp", seed=seed, **given)._engine.population, seed)


@pytest.mark.parametrize("name", WORLDS)
def test_the_true_cause_is_found_and_no_other(name):
    given, expected = WORLDS[name]
    assert diagnosed(**given).main == expected


def test_clients_that_call_labels_otherwise_are_named_with_their_words():
    found = diagnosed(split="swapped-labels", swapped=0.1).causes["concepts"]
    assert found.differing == ("9",)
    assert found.renamed["9"] == {str(label): str(label ^ 1) for label in range(10)}
    assert found.clients["9"] > 0.8
    assert max(effect for client, effect in found.clients.items() if client != "9") < 0.2


def test_test_data_is_not_looked_at():
    population = coterie.simulate("digits", split="label-skew", classes=2, clients=6, net="mlp")._engine.population
    used = np.concatenate([part for shard in population.shards for part in (shard.train, shard.validation)])
    before = diagnose(population, 0)
    hidden = np.setdiff1d(np.arange(len(population.y)), used)
    population.x[hidden], population.y[hidden] = 0, 0
    assert diagnose(population, 0) == before


def test_other_labels_do_not_pass_for_other_inputs():
    found = diagnosed(split="label-skew", classes=2).causes["inputs"]
    assert not found.found
    assert found.effect < 0.55


def test_chance_finds_labels_in_about_one_of_twenty_worlds():
    """With a level of 5 %, of 20 worlds without any difference at most four are expected to show one (p = 0.003)."""
    rng = np.random.default_rng(0)
    population = coterie.simulate("digits", split="iid", clients=8, net="mlp")._engine.population
    shown = 0
    for _ in range(20):
        population.y[:] = rng.permutation(population.y)
        samples = causes._samples(population, rng)
        shown += bool(causes._labels(samples, rng).differing)
    assert shown <= 4


@pytest.mark.parametrize("scale", [1, 1000])
def test_numbers_to_predict_are_looked_at_in_classes(scale):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 4))
    data = coterie.Dataset(x, scale * (x[:, 0] + 0.1 * rng.normal(size=400)), task="regression")
    order = np.argsort(data.y[:, 0] if data.y.ndim > 1 else data.y)
    low_and_high = [order[:100].tolist(), order[100:200].tolist(), order[200:300].tolist(), order[300:].tolist()]
    found = diagnose(coterie.simulate(data, split=low_and_high, net="mlp")._engine.population)
    assert "labels" in found.main


def test_what_cannot_be_looked_at_says_why():
    data = coterie.Dataset(np.arange(40.0).reshape(20, 2), np.arange(20) % 2)
    population = coterie.simulate(data, split=[list(range(10)), list(range(10, 20))], net="mlp")._engine.population
    found = diagnose(population)
    assert found.causes["concepts"].note == "needs at least three clients"
    assert not found.causes["concepts"].found


def test_the_area_within_labels_is_that_of_mann_and_whitney():
    # Label 0: own 0.9, 0.4 against 0.5, 0.1: three of four pairs right. Label 1: own 0.3 against 0.7: none of one.
    chance = np.array([0.9, 0.4, 0.5, 0.1, 0.3, 0.7])
    own = np.array([True, True, False, False, True, False])
    area, _ = causes._area_within(chance, own, np.array([0, 0, 0, 0, 1, 1]))
    assert area == pytest.approx(3 / 5)


def test_a_renaming_keeps_names_of_which_nothing_is_known():
    y, predicted = np.array([0, 0, 0, 1, 1]), np.array([1, 1, 1, 0, 0])
    assert causes._renaming(y, predicted, 4).tolist() == [1, 0, 2, 3]
