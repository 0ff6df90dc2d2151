"""Advice as a whole, in Python and on the command line: what it says is what was measured."""

import json

import numpy as np
import pandas
import pytest

import coterie
from coterie.advice import causes, pilots
from coterie.core.errors import SettingsError

SMALL = (("local", {}), ("fedavg", {}), ("ifca", {"clusters": (2,)}))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(causes, "_TREES", 30)
    monkeypatch.setattr(causes, "_DRAWS", 2)
    monkeypatch.setattr(causes, "_PERMUTATIONS", 50)
    monkeypatch.setattr(pilots, "PORTFOLIO", SMALL)
    monkeypatch.setattr(pilots, "RATES", (0.1,))


@pytest.fixture
def fed():
    return coterie.simulate("digits", split="autocfl-input", clients=8, net="mlp", seed=1)


def test_rotated_clients_are_advised_to_train_in_groups_and_these_are_named(fed):
    advice = coterie.advise(fed, rounds=20)
    assert advice.method == "ifca"
    assert advice.sentences[0].startswith("Train a model for each of a few groups with `ifca` (rate 0.1, clusters 2)")
    assert any(one.startswith("Inputs look different") for one in advice.sentences)
    assert any(one.startswith("It finds 2 groups: client 0") for one in advice.sentences)
    assert sorted(client for names in advice.groups.values() for client in names) == [
        str(number) for number in range(8)
    ]


def test_gains_are_those_of_the_runs_on_test_data(fed):
    advice = coterie.advise(fed, rounds=8)
    alone = {client["client"]: client["accuracy"] for client in advice.results["local"].clients}
    for client in advice.results[advice.method].clients:
        gained = advice.gained[client["client"]].value
        assert gained == pytest.approx(client["accuracy"] - alone[client["client"]])


def test_test_data_decides_nothing(fed):
    first = coterie.advise(fed, rounds=8)
    population = fed._engine.population
    tests = np.concatenate([shard.test for shard in population.shards])
    kept = np.concatenate([np.concatenate([shard.train, shard.validation]) for shard in population.shards])
    population.y[np.setdiff1d(tests, kept)] = 0
    again = coterie.advise(coterie.simulate("digits", split="autocfl-input", clients=8, net="mlp", seed=1), rounds=8)
    assert (again.method, again.trial.sure) == (first.method, first.trial.sure)
    assert [one.mean for one in again.trial.pilots] == [one.mean for one in first.trial.pilots]


def test_advice_is_written_as_a_page_as_json_and_as_settings_that_do_it(fed, tmp_path, call):
    advice = coterie.advise(fed, rounds=8)
    page = advice.save(tmp_path / "advice")
    text = page.read_text()
    assert "<h2>How clients differ</h2>" in text
    assert text.count("<script") == 1
    told = json.loads((tmp_path / "advice/advice.json").read_text())
    assert told["advice"] == advice.method
    assert told["main_causes"] == ["inputs"]
    assert {client["says"] for client in told["clients"]} <= {"gains", "loses", "too few samples to say"}
    assert told["clients"][0]["ends"][0] <= told["clients"][0]["gain"] <= told["clients"][0]["ends"][1]
    outcome = call(f"run --settings {tmp_path / 'advice/settings.toml'} --out {tmp_path / 'run'} --json")
    assert outcome.code == 0, outcome.err
    done = json.loads(outcome.out)
    assert done["accuracy_mean"] == pytest.approx(advice.results[advice.method].summary["accuracy_mean"])


def test_objects_that_no_file_names_are_advised_in_python(tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 5))
    data = coterie.Dataset(x, (x[:, 0] > 0).astype(int))
    advice = coterie.advise(coterie.simulate(data, split="iid", clients=3, net="logistic"), rounds=4)
    assert advice.settings is None
    advice.save(tmp_path)
    assert not (tmp_path / "settings.toml").exists()
    assert "coterie.methods.make(" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, "budget=0: minutes, above 0"),
        ({"rounds": 3}, "rounds=3: at least 4"),
        ({"private": "everything"}, "private='everything': none or labels"),
    ],
)
def test_what_makes_no_sense_is_refused(fed, given, message):
    with pytest.raises(SettingsError, match=message):
        coterie.advise(fed, **given)


def test_one_client_has_nobody_to_train_with():
    fed = coterie.simulate("digits", split="iid", clients=1, net="logistic", limit=100)
    with pytest.raises(SettingsError, match="there is one client, who has nobody to train with"):
        coterie.advise(fed)


def test_what_is_not_known_is_said(tmp_path):
    lonely = [list(range(0, 100, 1)), list(range(100, 200))]
    y = np.array([0] * 50 + [1] * 50 + [1] * 60 + [2] * 40)
    x = np.random.default_rng(0).normal(size=(200, 3)) + y[:, None]
    advice = coterie.advise(coterie.simulate(coterie.Dataset(x, y), split=lonely, net="logistic"), rounds=4)
    assert any("only one client has that label" in one for one in advice.sentences)
    numbers = coterie.Dataset(x, x[:, 0] * 2.5, task="regression")
    few = [list(range(20)), list(range(20, 60)), list(range(60, 200))]
    advice = coterie.advise(coterie.simulate(numbers, split=few, net="mlp"), rounds=4)
    assert any(
        one.startswith("Not known: what it is worth to client 0, with fewer than 30") for one in advice.sentences
    )


def hospitals(folder):
    """Five hospitals' tables with gaps; the last one calls outcomes otherwise."""
    rng, names = np.random.default_rng(5), ("north", "south", "east", "west", "central")
    folder.mkdir()
    for name in names:
        x = rng.normal(size=(160, 4))
        sick = x[:, 0] + 0.7 * x[:, 1] + 0.2 * rng.normal(size=160) > 0
        table = pandas.DataFrame(x, columns=["age", "dose", "pulse", "score"])
        table.loc[rng.random(160) < 0.1, "pulse"] = np.nan
        words = ("well", "sick") if name != "central" else ("sick", "well")
        table["outcome"] = np.where(sick, words[1], words[0])
        table.to_csv(folder / f"{name}.csv", index=False)


def test_the_hospital_whose_labels_are_swapped_is_named(call, tmp_path):
    hospitals(tmp_path / "visits")
    out = tmp_path / "advice"
    outcome = call(f"advise --data {tmp_path / 'visits'} --target outcome --net mlp --rounds 8 --out {out}")
    assert outcome.code == 0, outcome.err
    told = json.loads((out / "advice.json").read_text())
    assert told["main_causes"] == ["concepts"]
    assert told["causes"]["concepts"]["differing"] == ["central"]
    assert told["causes"]["concepts"]["renamed"]["central"] == {"sick": "well", "well": "sick"}
    assert "Labels mean something else at client central" in " ".join(outcome.out.split())


def test_the_command_refuses_before_it_begins(refused):
    refused("advise --data digits --rounds 2", "rounds=2: at least 4")
    refused("advise --data nowhere.csv", "nowhere.csv")
    refused("advise --private all", "private")
