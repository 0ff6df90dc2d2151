"""Methods and seeds side by side, and what runs are called there."""

import pytest

from coterie.cli.demo import demo_settings
from coterie.core.errors import SettingsError
from coterie.data.sources import sources
from coterie.methods import methods
from coterie.runs.comparison import compare, names_apart
from coterie.runs.experiment import NewFolder, run
from coterie.runs.settings import Settings

TINY = {"clients": 4, "net": "logistic", "limit": 400, "rounds": 2, "seed": 3}


def pair(**more):
    return [Settings.of({**TINY, **more}, name)[0] for name in ("local", "fedavg")]


def timeless(summary):
    return {name: value for name, value in summary.items() if name not in ("seconds", "best_round")}


def table(method="fedavg", **given):
    return Settings.of(given, method)[0].table()


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


# What runs are called


def test_runs_are_called_by_their_methods():
    assert names_apart([table("local"), table("fedavg"), table("fedprox")]) == ["local", "fedavg", "fedprox"]


def test_seeds_do_not_set_runs_apart():
    assert names_apart([table(seed=1), table(seed=2)]) == ["fedavg", "fedavg"]


def test_what_changes_no_result_does_not_set_runs_apart():
    assert names_apart([table(workers=0), table(memory=2.0), table(data_dir="x")]) == ["fedavg"] * 3


def test_options_set_runs_apart():
    assert names_apart([table(alpha=0.1), table(alpha=0.5), table(alpha=0.5)]) == [
        *("fedavg, alpha=0.1", "fedavg, alpha=0.5", "fedavg, alpha=0.5")
    ]
    assert names_apart([table(steps=3), table()]) == ["fedavg, steps=3", "fedavg"]
    assert names_apart([table(precision="float64"), table()]) == [
        *("fedavg, precision=float64", "fedavg, precision=float32")
    ]
    assert names_apart([table(net="mlp"), table(net="cnn")]) == ["fedavg, net=mlp", "fedavg, net=cnn"]


def test_an_option_of_one_method_does_not_set_others_apart():
    assert names_apart([table("fedprox", mu=0.1), table("fedprox", mu=0.2), table("fedavg")]) == [
        *("fedprox, mu=0.1", "fedprox, mu=0.2", "fedavg")
    ]


def test_an_option_that_all_methods_have_sets_them_apart():
    assert names_apart([table("local", rounds=5), table("fedavg", rounds=9)]) == ["local, rounds=5", "fedavg, rounds=9"]


def test_another_split_or_data_set_is_named_without_its_options():
    assert names_apart([table(split="iid"), table(split="label-skew")]) == ["fedavg, iid", "fedavg, label-skew"]
    assert names_apart([table(data="mnist"), table(data="digits")]) == ["fedavg, mnist", "fedavg, digits"]


def test_settings_without_a_method_have_a_name_too():
    assert names_apart([{}, {"seed": 3}]) == ["None", "None"]
