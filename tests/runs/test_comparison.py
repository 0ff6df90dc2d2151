"""Methods and seeds side by side."""

import pytest

from coterie.cli.demo import demo_settings
from coterie.core.errors import SettingsError
from coterie.data.sources import sources
from coterie.methods import methods
from coterie.runs.comparison import compare
from coterie.runs.experiment import NewFolder, run
from coterie.runs.settings import Settings

TINY = {"clients": 4, "net": "logistic", "limit": 400, "rounds": 2, "seed": 3}


def pair(**more):
    return [Settings.of({**TINY, **more}, name)[0] for name in ("local", "fedavg")]


def timeless(summary):
    return {name: value for name, value in summary.items() if name not in ("seconds", "best_round")}


def test_every_method_runs_with_every_seed(tmp_path):
    entries = compare(pair(), seeds=2, out=tmp_path / "c")
    found = [(settings.method.name, settings.world.seed, result.summary["seed"]) for settings, result in entries]
    assert found == [("local", 3, 3), ("fedavg", 3, 3), ("local", 4, 4), ("fedavg", 4, 4)]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        *("fedavg-seed3", "fedavg-seed4", "local-seed3", "local-seed4")
    ]


def test_each_run_is_what_it_is_alone():
    entries = compare(pair(), seeds=2)
    for settings, result in entries:
        assert timeless(run(settings).summary) == timeless(result.summary)


def test_seeds_with_a_fixed_split_share_it():
    first, second = (settings.world.population for settings, _ in compare(pair(split_seed=1)[:1], seeds=2))
    assert [shard.train.tolist() for shard in first.shards] == [shard.train.tolist() for shard in second.shards]


def test_finished_runs_are_not_run_again(tmp_path):
    class Counted:
        def __init__(self):
            self.rounds = 0

        def round_done(self, checkpoint, record, groups):
            self.rounds += 1

        def run_done(self, checkpoint, result):
            pass

    first = compare(pair(), out=tmp_path / "c")
    watched = Counted()
    again = compare(pair(), seeds=2, out=tmp_path / "c", resume=True, watch=lambda method, seed: [watched])
    assert watched.rounds == 4
    assert [result.summary for _, result in again[:2]] == [result.summary for _, result in first]


def test_a_wrong_world_makes_no_folder(tmp_path):
    with pytest.raises(SettingsError):
        compare(pair(net="lenet5"), out=NewFolder(tmp_path, "c"))
    assert list(tmp_path.iterdir()) == []


def test_the_demo_is_twenty_clients_in_four_groups():
    settings = demo_settings()
    assert [one.method.name for one in settings][:2] == ["local", "fedavg"]
    assert {one.method.name for one in settings} <= set(methods)
    assert len({id(one.world) for one in settings}) == len(settings)
    assert sources[settings[0].world.data].published.downloads == ()
    assert len(set(settings[0].world.population.groups)) == 4
    assert len(settings[0].world.population) == 20


@pytest.mark.parametrize("together", [False, True])
def test_a_comparison_goes_on_in_another_way_of_computing(tmp_path, together):
    class Stopping:
        def round_done(self, checkpoint, record, groups):
            if len(checkpoint.rounds) == 2:
                raise InterruptedError

        def run_done(self, checkpoint, result):
            pass

    def stop_fedavg(method, seed):
        return [Stopping()] if method.name == "fedavg" else []

    begun = pair(rounds=3, device="auto", engine="vectorised")
    with pytest.raises(InterruptedError):
        compare(begun, out=tmp_path / "c", resume=True, watch=stop_fedavg, together=together)
    other = pair(rounds=3, device="cpu", workers=0, memory=0.5, engine="loop")
    entries = compare(other, out=tmp_path / "c", resume=True, together=together)
    for settings, result in entries:
        assert [record["round"] for record in result.rounds] == [1, 2, 3]
        stored = tmp_path / "c" / f"{settings.method.name}-seed3" / "settings.toml"
        assert 'device = "auto"' in stored.read_text(), "it is the run that was begun"
    with pytest.raises(SettingsError, match=r"method.rate is 0.1 there, 0.2 here"):
        compare(pair(rounds=3, rate=0.2), out=tmp_path / "c", resume=True)
