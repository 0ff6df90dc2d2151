"""What methods show of their inside: true, in the order of the clients, without an effect on the run."""

import json

import numpy as np
import pytest
import torch

import coterie
from coterie import Scoring, trust
from coterie.core.arrays import everywhere
from coterie.methods import slfed
from coterie.moves import encounters
from coterie.runs.experiment import run
from coterie.runs.folder import StoredRun
from coterie.runs.settings import Settings
from coterie.server.fitting import _plain
from coterie.server.method import methods

METHODS = {
    "accord": {"group_round": 2, "insured": True},
    "autocfl": {"cluster_round": 2},
    "cafa": {},
    "compose": {"group_round": 2, "mixing": "similarity"},
    "fedavg": {},
    "fl-hc": {"cluster_round": 2, "adjust": True},
    "flis-dc": {},
    "flis-hc": {},
    "ifca": {},
    "slfed": {"synthetic": 20, "gan_steps": 3},
}


def federation(clients=8, **options):
    given = {"limit": 400, "server_samples": 20}
    return coterie.simulate("digits", "autocfl-label", "logistic", clients=clients, **given | options)


def fitted(name, rounds=3, fed=None, **options):
    made = methods.make(name, rounds=rounds, **METHODS[name] | options)
    return made.fit(fed or federation(), scoring=Scoring(insights=True))


def array(value):
    return np.array(value, dtype=float)


@pytest.mark.parametrize("name", METHODS)
def test_insights_change_no_result(name):
    made = methods.make(name, rounds=3, **METHODS[name])
    plain, seen = (made.fit(federation(), scoring=Scoring(insights=on)) for on in (False, True))
    assert plain.insights == []
    assert [line["round"] for line in seen.insights] == [1, 2, 3]
    for one, other in zip(plain.rounds, seen.rounds, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert plain.summary["ledger"] == seen.summary["ledger"]


@pytest.mark.parametrize("name", METHODS)
def test_insights_are_lines_of_plain_numbers(name):
    for line in fitted(name).insights:
        assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_insights_belong_to_evaluated_rounds():
    made = methods.make("autocfl", rounds=5)
    seen = made.fit(federation(), scoring=Scoring(insights=True, evaluate_every=2)).insights
    assert [line["round"] for line in seen] == [2, 4, 5]


def test_autocfl_shows_the_distances_it_clusters_by():
    result = fitted("autocfl")
    first, second, third = result.insights
    distance = array(second["distance"])
    assert distance.shape == (8, 8)
    assert (distance == distance.T).all()
    assert (np.diag(distance) == 0).all()
    assert distance[0, 1] > 0
    assert first["distance"] != second["distance"] == third["distance"]  # after clustering nothing is compared
    assert second["clusters"] == result.state.clusters.labels.tolist()
    pace = result.state.pace
    assert third["cumulative_loss"] == pytest.approx(pace.total.tolist(), rel=1e-5)
    assert third["epochs"] == pytest.approx(pace.epochs.tolist(), rel=1e-5)
    assert len(first["loss_variance"]) == 1
    assert third["loss_variance"] == pytest.approx([*pace.variances], rel=1e-5)
    assert third["loss_variance"][1] == pytest.approx(np.var(pace.total.numpy()), rel=1e-5)


def test_cafa_shows_labels_clusters_silhouettes_and_weights():
    fed = federation()
    result = fitted("cafa", fed=fed, participation=0.5)
    last = result.insights[-1]
    counts = fed.run(coterie.programs.label_histogram).label_histogram.numpy()
    assert array(last["label_shares"]) == pytest.approx(counts / counts.sum(axis=1, keepdims=True), rel=1e-5)
    assert sum(last["weights"]) == pytest.approx(1, abs=1e-5)
    assert sum(weight > 0 for weight in last["weights"]) == 4
    ks, scores = zip(*last["silhouette"], strict=True)
    assert list(ks) == list(range(2, 2 + len(ks)))
    assert len(set(last["clusters"])) == ks[int(np.argmax(scores))]


def test_fl_hc_shows_what_it_adjusts_by():
    seen = fitted("fl-hc").insights
    assert set(seen[0]) == {"round", "epochs", "cumulative_loss", "loss_variance", "clusters"}
    assert set(fitted("fl-hc", adjust=False).insights[0]) == {"round", "clusters"}
    assert len(seen[-1]["loss_variance"]) == 1  # of the round before clustering


def test_slfed_shows_opinions_of_a_simulation():
    fed = federation()
    result = fitted("slfed", fed=fed, opinions="persistent")
    last = result.insights[-1]
    held = fed.shortcut(encounters.show_opinions, names=tuple(fed.names))
    uncertainty = held.uncertainty.numpy()
    known = uncertainty < 1
    assert last["known"] == known.sum(axis=1).tolist()
    expected = [row[there].mean() for row, there in zip(uncertainty, known, strict=True)]
    assert last["uncertainty"] == pytest.approx(expected, rel=1e-5)
    mixing = array(last["mixing"])
    assert mixing.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-4)
    assert ((mixing > 0).sum(axis=1) - 1 <= last["chosen"]).all()
    # The more encounters, the surer.
    assert np.nanmean(last["uncertainty"]) < np.nanmean(result.insights[0]["uncertainty"])


def test_slfed_list_sizes_are_those_of_the_trust_layer():
    uncertainty = np.array([0.2, 0.5, 0.6, 1.0])
    opinions = np.stack([1 - uncertainty, 0 * uncertainty, uncertainty], axis=-1)
    assert trust.trusted(opinions).sum() == 1  # a stranger is in no list, and nor is who is above the mean


def test_slfed_shows_nothing_of_real_clients(monkeypatch):
    fed = federation()
    fitted("slfed", rounds=1, fed=fed)
    monkeypatch.setattr(type(fed._engine), "real", True)
    assert methods.make("slfed").insight(fed, slfed.SLFedState()) == {}


@pytest.mark.parametrize(("name", "participation"), [("flis-dc", 0.5), ("flis-hc", 0.5)])
def test_flis_shows_the_similarities_of_those_it_compared(name, participation):
    result = fitted(name, participation=participation)
    similarity = array(result.insights[-1]["similarity"])
    there = ~np.isnan(np.diag(similarity))
    assert there.sum() == (4 if name == "flis-dc" else 8)
    inner = similarity[np.ix_(there, there)]
    assert (np.diag(inner) == 1).all()
    assert (inner == inner.T).all()
    assert ((inner >= 0) & (inner <= 1)).all()


def test_flis_mixes_those_above_the_threshold():
    last = fitted("flis-dc", threshold=0.6).insights[-1]
    similarity, mixing = array(last["similarity"]), array(last["mixing"])
    assert ((mixing > 0) == (similarity >= 0.6)).all()
    assert mixing.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-5)


@pytest.mark.parametrize("how", ["samples", "uniform", "similarity"])
def test_compose_shows_whose_models_are_mixed(how):
    result = fitted("compose", mixing=how, grouping="linkage", clusters=2)
    mixing = array(result.insights[-1]["mixing"])
    assert mixing.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-5)
    home = result.state.home
    if how != "similarity":
        together = (home[:, None] == home[None]).numpy()
        assert ((mixing > 0) == together).all()


def test_late_clients_are_unknown_until_they_come():
    fed = federation(arrivals={7: 3})
    first, *_, last = fitted("autocfl", rounds=4, fed=fed, cluster_round=1).insights
    assert array(first["distance"]).shape == (8, 8)
    assert np.isnan(array(first["distance"])[7]).all()
    assert first["cumulative_loss"][7] is None
    assert first["clusters"][7] == -1
    assert last["clusters"][7] >= 0


def test_a_folder_holds_insights_if_asked(tmp_path):
    given = {"clients": 5, "net": "logistic", "limit": 300, "rounds": 2}
    run(Settings.of(given, "autocfl")[0], tmp_path / "plain")
    result = run(Settings.of({**given, "insights": True}, "autocfl")[0], tmp_path / "seen")
    assert not (tmp_path / "plain/insights.jsonl").exists()
    assert StoredRun.read(tmp_path / "plain").insights == []
    assert StoredRun.read(tmp_path / "seen").insights == result.insights
    assert len(result.insights) == 2


def test_the_command_line_asks_for_insights(call, tmp_path):
    assert call("run autocfl --clients 4 --net logistic --limit 200 --rounds 1 --insights --out a").code == 0
    assert len(StoredRun.read(tmp_path / "a").insights) == 1


def test_what_is_known_of_some_is_unknown_of_others():
    whole = everywhere(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [0, 2], 3)
    assert whole[np.ix_([0, 2], [0, 2])].tolist() == [[1, 2], [3, 4]]
    assert np.isnan(whole[1]).all()
    assert np.isnan(whole[:, 1]).all()


def test_numbers_are_written_to_six_digits_and_what_is_none_as_null():
    value = {"a": torch.tensor([1 / 3, torch.nan], dtype=torch.float64), "b": (1, True, np.float64(2e-9 / 3)), "c": {}}
    assert _plain(value) == {"a": [0.333333, None], "b": [1, True, 6.66667e-10], "c": {}}
