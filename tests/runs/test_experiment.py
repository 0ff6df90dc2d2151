"""One run from its settings to its folder."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coterie.core.errors import CoterieError, SettingsError
from coterie.runs.experiment import NewFolder, free_path, run
from coterie.runs.settings import Settings

TINY = {"clients": 4, "net": "logistic", "limit": 400, "rounds": 2}


class Seen:
    """Remembers what a run reports."""

    def __init__(self):
        self.rounds, self.ends = [], 0

    def round_done(self, checkpoint, record, groups):
        self.rounds.append(record["round"])

    def run_done(self, checkpoint, result):
        self.ends += 1


def timeless(summary):
    return {name: value for name, value in summary.items() if name not in ("seconds", "best_round")}


def test_a_run_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = Seen()
    result = run(Settings.of(TINY, "fedavg")[0], observers=[seen])
    assert (seen.rounds, seen.ends) == ([1, 2], 1)
    assert {"data": "digits", "split": "dirichlet", "net": "logistic"}.items() <= result.summary.items()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_changes_nothing(tmp_path):
    settings = Settings.of(TINY, "local")[0]
    assert timeless(run(settings).summary) == timeless(run(settings, tmp_path / "a").summary)


def test_runs_can_share_a_federation(tmp_path):
    local, fedavg = (Settings.of(TINY, name)[0] for name in ("local", "fedavg"))
    fed = local.world.federation()
    shared = [run(one, federation=fed).summary for one in (local, fedavg, local)]
    alone = [run(one).summary for one in (local, fedavg, local)]
    assert list(map(timeless, shared)) == list(map(timeless, alone))


def test_own_data_is_called_by_its_name(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).normal(size=(40, 2)), y=np.arange(40) % 2)
    given = {"data": str(tmp_path / "mine.npz"), "clients": 2, "rounds": 1}
    assert run(Settings.of(given, "local")[0]).summary["data"] == "mine"


@pytest.mark.parametrize("wrong", [{"net": "lenet5"}, {"arrivals": "9:2"}, {"min_size": 400}, {"device": "no"}])
def test_wrong_settings_make_no_folder(tmp_path, wrong):
    settings = Settings.of({**TINY, **wrong}, "local")[0]
    for place in (tmp_path / "a", NewFolder(tmp_path, "a")):
        with pytest.raises(CoterieError):
            run(settings, place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("classes", "message"), [(1, "only one class"), (3, "top=5: with 3 classes")])
def test_data_that_cannot_be_scored_makes_no_folder(tmp_path, classes, message):
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).normal(size=(40, 2)), y=np.arange(40) % classes)
    given = {"data": str(tmp_path / "mine.npz"), "clients": 2, "rounds": 1, "split": "iid", "top": 5}
    with pytest.raises(SettingsError, match=message):
        run(Settings.of(given, "fedavg")[0], tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_new_folder_is_made_when_it_is_needed(tmp_path):
    place = NewFolder(tmp_path / "runs", "a")
    assert place.made is None
    assert not (tmp_path / "runs").exists()
    run(Settings.of(TINY, "local")[0], place)
    assert place.made == tmp_path / "runs/a"
    assert place.make() == place.made
    assert (place.made / "summary.json").is_file()
    assert NewFolder(tmp_path / "runs", "a").make() == tmp_path / "runs/a-2"


def test_many_that_start_at_once_get_a_folder_each(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: NewFolder(tmp_path, "a").make(), range(40)))
    assert len(set(made)) == 40


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="file/a: cannot be made"):
        NewFolder(tmp_path / "file", "a").make()


def test_a_free_path_has_a_number_where_one_is_needed(tmp_path):
    for name in ("a.png", "a-2.png", "a-3.png"):
        assert free_path(tmp_path, "a", ".png") == tmp_path / name
        (tmp_path / name).touch()
    assert free_path(tmp_path, "a") == tmp_path / "a"
