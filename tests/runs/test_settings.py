"""Settings: from options, from files and back, and whose an option is."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.data import Dataset, Split
from coterie.data.division import Division
from coterie.data.splits import Dirichlet, split_rules
from coterie.engines.simulation import Computing
from coterie.methods import methods
from coterie.runs.options import parse_arrivals
from coterie.runs.settings import FORMAT, Settings, World, default_net, read_table, simulate
from coterie.server.method import Method, method
from coterie.server.scoring import Scoring
from coterie.server.serving import Served


def through_a_file(settings):
    """The settings as another process gets them."""
    return Settings.from_table(tomllib.loads(tomli_w.dumps(settings.table())))


@pytest.fixture
def skewed():
    """A method with an option that the Dirichlet split has too, and one that nothing else has."""

    @method("skewed")
    class Skewed(Method):
        """Does nothing."""

        alpha: float = 7.0
        """Not the split's."""

        tilt: int = 1
        """Only here."""

        def begin(self, fed):
            return None

        def round(self, fed, state):
            return state

        def serve(self, fed, state) -> Served:
            raise NotImplementedError

    yield Skewed
    del methods._classes["skewed"]


# To a file and back


@pytest.mark.parametrize("name", list(methods))
def test_every_method_survives_a_file(name):
    settings = Settings(methods[name]())
    assert through_a_file(settings) == settings


@pytest.mark.parametrize("name", list(split_rules))
def test_every_split_survives_a_file(name):
    settings = Settings(methods["local"](), World(split=split_rules[name]()))
    assert through_a_file(settings) == settings


def test_every_value_survives_a_file():
    settings = Settings(
        methods["fedprox"](rounds=30, milestones=(0.25, 0.1), mu=0.3, steps=7, schedule="steps"),
        World(
            data="mnist",
            data_options={"limit": 50, "data_dir": "/data"},
            split=Dirichlet(alpha=0.05, min_size=3),
            net="lenet5",
            seed=3,
            split_seed=-4,
            arrivals={3: 10, 0: 2},
            division=Division(test="labels", augment="crop-flip"),
            computing=Computing(workers=0, precision="float64"),
            labels=("zero", "one"),
        ),
        Scoring(views=("served", "last"), global_test=False, top=5),
    )
    assert through_a_file(settings) == settings


numbers = st.floats(min_value=1e-12, max_value=1e12, allow_nan=False)


@given(rate=numbers, mu=numbers, epochs=numbers, alpha=numbers, seed=st.integers())
def test_numbers_survive_a_file_to_the_last_bit(rate, mu, epochs, alpha, seed):
    world = World(split=Dirichlet(alpha=alpha), seed=seed)
    settings = Settings(methods["fedprox"](rate=rate, mu=mu, epochs=epochs), world)
    assert through_a_file(settings) == settings


def test_a_table_has_only_what_toml_has():
    table = Settings(methods["fedavg"](), World(arrivals={2: 5})).table()
    assert table["format"] == FORMAT == 1
    assert table["coterie"] == coterie.__version__
    assert table["arrivals"] == {"2": 5}
    assert table["method"]["milestones"] == [0.5, 0.75]
    assert table["scoring"]["views"] == ["served"]
    for unset in ("steps", "net", "split_seed"):
        assert unset not in table
        assert unset not in table["method"]
    assert "workers" not in table["computing"]
    assert "labels" not in table["data"]


def test_an_assignment_in_memory_is_written_out():
    rule = split_rules.make("given", assignment=np.array([0, 1, 1, -1]))
    again = through_a_file(Settings(methods["local"](), World(split=rule)))
    assert again.world.split.assignment == [0, 1, 1, -1]


def test_a_file_needs_to_say_no_more_than_the_method():
    assert Settings.from_table({"method": {"name": "fedavg"}}) == Settings(methods["fedavg"]())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seeds = 3", "unknown entry of the settings 'seeds': did you mean seed"),
        ("format = 2", "format=2: this version of Coterie reads format 1"),
        ("seed = 'x'", "seed='x': expected a whole number"),
        ("seed = true", "seed=True: expected a whole number"),
        ("split_seed = 0.5", "split_seed=0.5: expected a whole number or nothing"),
        ("net = 3", "net=3: expected a text"),
        ("method = 'fedavg'", r"method = 'fedavg': expected a section \[method\] with name = 'fedavg' in it"),
        ("division = 3", r"division = 3: expected a section \[division\]"),
        ("[method]\nname = ['fedavg']", r"method\.name=\['fedavg'\]: expected a text"),
        ("[method]\nname = 'fedavgg'", "unknown method 'fedavgg': did you mean fedavg"),
        ("[method]\nrounds = 'many'", "rounds='many': expected a whole number"),
        ("[method]\nrouds = 3", "unknown option of the method fedavg 'rouds': did you mean rounds"),
        ("[method]\nmilestones = ['a']", "milestones='a': expected a number"),
        ("[method]\nrate = inf", "rate=inf: expected a finite number"),
        ("[method]\noptimizer = 'adma'", "unknown optimizer 'adma': did you mean adam"),
        ("[split]\nname = 'dirichle'", "unknown split 'dirichle': did you mean dirichlet"),
        ("[split]\nalpa = 1.0", "unknown option of the split dirichlet 'alpa': did you mean alpha"),
        ("[data]\nlimits = 3", r"unknown entry of \[data\] 'limits': did you mean limit"),
        ("[data]\nlimit = 'x'", "limit='x': expected a whole number"),
        ("[data]\nname = 'imagenet32'\nseed = 3", r"unknown entry of \[data\] 'seed'"),
        ("[data]\nlabels = 3", "data.labels=3: expected a list"),
        ("[division]\ntset = 'own'", r"unknown entry of \[division\] 'tset': did you mean test"),
        ("[scoring]\nviews = 'served'", "views='served': expected a list"),
        ("[scoring]\nviews = ['serve']", "unknown views 'serve': did you mean served"),
        ("[arrivals]\nfirst = 3", "arrivals: 'first' is not the number of a client"),
        ("[arrivals]\n3 = 'soon'", "arrivals.3='soon': expected a whole number"),
        ("[arrivals]\n3 = 0", "arrivals: client 3 in round 0; rounds are counted from 1"),
        ("[arrivals]\n3 = 21", "arrivals: client 3 comes in round 21, after the last of 20"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(content, message):
    table = tomllib.loads(content)
    if isinstance(table.setdefault("method", {}), dict):
        table["method"].setdefault("name", "fedavg")
    with pytest.raises(SettingsError, match=message):
        Settings.from_table(table)


def test_a_file_without_a_method_is_refused():
    with pytest.raises(SettingsError, match=r"name no method: write \[method\]"):
        Settings.from_table({"split": {"name": "iid"}})


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "prose.toml").write_text("to be or not to be")
    for name, message in (("none.toml", "cannot be read"), (".", "cannot be read"), ("bytes.toml", "not a TOML file")):
        with pytest.raises(SettingsError, match=message):
            read_table(tmp_path / name)
    with pytest.raises(SettingsError, match=r"prose.toml: not a TOML file .* line 1"):
        read_table(tmp_path / "prose.toml")


# From options


def test_options_go_to_the_parts_that_have_them():
    given = {"alpha": 0.1, "clients": 5, "rounds": 3, "test": "labels", "workers": 0, "top": 5, "limit": 100, "seed": 2}
    settings, notes = Settings.of(given, "fedavg")
    world = settings.world
    assert (world.split.alpha, world.split.clients) == (0.1, 5)
    assert settings.method.rounds == 3
    assert (world.division.test, world.computing.workers, settings.scoring.top) == ("labels", 0, 5)
    assert (world.data_options, world.seed) == ({"limit": 100}, 2)
    assert notes == []


def test_options_that_are_not_given_stay_as_they_are():
    assert Settings.of({"alpha": None, "rounds": None, "net": None}, "fedavg")[0] == Settings(methods["fedavg"]())


def test_a_plain_name_is_the_splits_before_the_methods_and_a_note_says_so(skewed):
    settings, notes = Settings.of({"alpha": 0.1}, "skewed")
    assert (settings.world.split.alpha, settings.method.alpha) == (0.1, 7.0)
    assert notes == ["alpha is the split's; the method has one too: method.alpha"]


def test_a_prefix_says_whose_an_option_is(skewed):
    settings, notes = Settings.of({"method.alpha": 0.2, "split.alpha": 0.3, "method.rounds": 2}, "skewed")
    assert (settings.world.split.alpha, settings.method.alpha, settings.method.rounds) == (0.3, 0.2, 2)
    assert notes == []


def test_a_plain_name_is_the_methods_where_the_split_has_none(skewed):
    settings, notes = Settings.of({"split": "iid", "alpha": 0.1}, "skewed")
    assert settings.method.alpha == 0.1
    assert notes == []


def test_a_plain_name_is_the_data_sets_where_the_split_has_none():
    assert Settings.of({"data": "imagenet32", "classes": 10}, "local")[0].world.data_options == {"classes": 10}
    both = {"data": "imagenet32", "split": "label-skew", "classes": 3, "data.classes": 10}
    world = Settings.of(both, "local")[0].world
    assert (world.split.classes, world.data_options) == (3, {"classes": 10})


def test_an_option_that_only_another_method_has_is_left_to_it(skewed):
    for name in ("tilt", "method.tilt"):
        settings, _ = Settings.of({name: 3, "split": "iid", "alpha": 0.5}, "local", others=["skewed", "local"])
        assert settings.method == methods["local"]()
        with pytest.raises(SettingsError, match="nothing that is used here has it, only method skewed"):
            Settings.of({name: 3}, "local", others=["fedavg"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alhpa": 1.0}, "unknown option 'alhpa': did you mean alpha"),
        ({"sede": 1}, "unknown option 'sede': did you mean seed"),
        ({"split.alhpa": 1.0}, r"unknown option 'split.alhpa': did you mean split\.alpha"),
        ({"mu": 1.0}, "option 'mu': nothing that is used here has it, only method ditto, .*method fedprox"),
        ({"split": "iid", "definition": "class"}, "'definition': nothing .* only split dirichlet"),
        ({"split": "iid", "split.definition": "class"}, "'split.definition': nothing .* only split dirichlet"),
        ({"method.clients": 3}, "unknown option 'method.clients'"),
        ({"rounds": "3"}, "rounds='3': expected a whole number"),
        ({"arrivals": "3"}, "arrivals='3': write client:round,client:round"),
        ({"arrivals": "3:x"}, "arrivals='3:x': write"),
        ({"arrivals": "3:1:2"}, "arrivals='3:1:2': write"),
        ({"arrivals": "3:1,3:2"}, "a client arrives once"),
    ],
)
def test_an_option_that_nothing_takes_is_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        Settings.of(given, "fedavg")


def test_without_a_method_there_are_no_settings():
    with pytest.raises(SettingsError, match="no method"):
        Settings.of({"rounds": 3}, None, {"split": {"name": "iid"}})


def test_arrivals_are_read_as_pairs():
    assert parse_arrivals("3:10,7:20") == {3: 10, 7: 20}
    early = Settings.of({"arrivals": "3:10"}, "local")[0]
    assert early.world.arrivals == {3: 10}
    assert Settings.of({"arrivals": ""}, "local", base=early.table())[0].world.arrivals == {}


# On top of a file


BASE = {
    "seed": 5,
    "net": "mlp",
    "data": {"name": "digits", "limit": 300, "labels": list("0123456789")},
    "split": {"name": "dirichlet", "alpha": 0.2, "clients": 7},
    "method": {"name": "fedavg", "rounds": 9, "rate": 0.3, "server_momentum": 0.5},
    "scoring": {"evaluate_every": 3},
}


def test_options_go_before_those_of_the_file():
    settings, _ = Settings.of({"alpha": 0.7, "rounds": 4, "seed": 1, "net": "cnn"}, None, BASE)
    assert (settings.world.split.alpha, settings.world.split.clients) == (0.7, 7)
    assert (settings.method.rounds, settings.method.server_momentum) == (4, 0.5)
    assert (settings.world.seed, settings.world.net, settings.scoring.evaluate_every) == (1, "cnn", 3)


def test_another_method_takes_over_what_all_methods_have():
    local = Settings.of({}, "local", BASE)[0].method
    assert (local.rounds, local.rate) == (9, 0.3)
    assert local == methods["local"](rounds=9, rate=0.3)


def test_another_split_takes_over_the_number_of_clients_only():
    split = Settings.of({"split": "quantity"}, None, BASE)[0].world.split
    assert (split.name, split.clients, split.alpha) == ("quantity", 7, 0.5)


def test_a_file_that_names_no_split_means_the_default_one():
    base = {"split": {"alpha": 0.2}, "method": {"name": "local"}}
    assert Settings.of({"split": "dirichlet"}, None, base)[0].world.split.alpha == 0.2


def test_other_data_has_other_labels():
    world = Settings.of({"data": "mnist"}, None, BASE)[0].world
    assert (world.data_options, world.labels) == ({"limit": 300}, ())


@pytest.mark.parametrize("change", [{"seed": 1}, {"split_seed": 1}, {"limit": 200}])
def test_labels_are_forgotten_with_what_they_depend_on(change):
    assert Settings.of({}, None, BASE)[0].world.labels == tuple("0123456789")
    assert Settings.of(change, None, BASE)[0].world.labels == ()


def test_the_file_itself_is_left_alone():
    before = repr(BASE)
    Settings.of({"split": "iid", "rounds": 1, "limit": 100}, "local", BASE)
    assert repr(BASE) == before


# Worlds


def test_data_with_other_labels_than_the_settings_is_refused():
    with pytest.raises(SettingsError, match=r"digits has the labels 0, 1, .* the settings cat, dog"):
        World(labels=("cat", "dog")).dataset  # noqa: B018
    assert World(labels=tuple("0123456789")).dataset.classes == 10


def test_the_split_has_its_own_seed():
    def owned(**seeds):
        return [shard.train.tolist() for shard in World(split=Dirichlet(clients=4), **seeds).population.shards]

    assert owned(seed=1) == owned(seed=2, split_seed=1)
    assert owned(seed=1) != owned(seed=2)


def test_resolved_settings_say_where_files_are_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", x=np.zeros((6, 2)), y=[0, 1] * 3)
    np.save("who.npy", [0, 0, 1, 1, 1, 0])
    given = {"data": "mine.npz", "split": "given", "assignment": "who.npy", "data_dir": "files"}
    world = Settings.of(given, "local")[0].resolved().world
    assert world.data == str(tmp_path / "mine.npz")
    assert world.split.assignment == str(tmp_path / "who.npy")
    assert world.split.groups is None
    assert world.data_options == {"data_dir": str(tmp_path / "files")}
    assert (world.net, world.labels) == ("mlp", ("0", "1"))
    monkeypatch.chdir("/")
    assert len(world.population) == 2


def test_resolved_settings_are_no_others():
    settings = Settings.of({"limit": 100, "clients": 3}, "local")[0]
    assert settings.resolved() == replace(
        settings, world=replace(settings.world, net="cnn", labels=tuple("0123456789"))
    )


def test_another_seed_may_have_other_labels():
    world = World(seed=3, labels=tuple("0123456789"))
    assert world.reseeded(3) is world
    assert (world.reseeded(4).seed, world.reseeded(4).labels) == (4, ())


@pytest.mark.parametrize(
    ("data", "shape", "net"),
    [("mnist", (1, 28, 28), "cnn-20-50"), ("x", (5,), "mlp"), ("x", (1, 8, 8), "cnn"), ("x", (3, 32, 32), "lenet5")],
)
def test_data_has_a_net_that_fits_it(data, shape, net):
    assert default_net(data, Dataset(np.zeros((2, *shape)), [0, 1])) == net


def test_own_data_can_be_told_what_it_is(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros((6, 4, 2)), y=[3, 5, 9, 3, 5, 9])
    given = {"data": str(tmp_path / "mine.npz"), "kind": "series", "task": "regression", "net": "mlp"}
    data = through_a_file(Settings.of(given, "fedavg")[0]).world.dataset
    assert (data.kind, data.task) == ("series", "regression")
    with pytest.raises(SettingsError, match="unknown kind 'serie': did you mean series"):
        Settings.of({**given, "kind": "serie"}, "fedavg")


# Python


def small(samples=40, classes=2):
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(samples, 3)), np.arange(samples) % classes, name="small")


def test_simulate_takes_names_and_options():
    fed = simulate("digits", "label-skew", "mlp", seed=3, clients=4, classes=3, limit=400, test_share=0.3)
    assert (len(fed.names), fed.net.name, fed.seed) == (4, "mlp", 3)


def test_simulate_takes_objects():
    def factory(shape, classes):
        return coterie.nets["logistic"](shape, classes)

    split = Split((range(10), range(10, 40)), names=("left", "right"))
    fed = simulate(small(), split, factory)
    assert list(fed.names) == ["left", "right"]
    assert fed.net.parameters.total == 8
    assert len(simulate(small(), Dirichlet(clients=3)).names) == 3


def test_simulate_takes_the_samples_of_each_client():
    fed = simulate(small(), [[0, 1, 5], range(10, 20)], "mlp", test_share=0.0, validation=0.0)
    assert (list(fed.names), fed.sizes.tolist()) == (["0", "1"], [3, 10])
    named = simulate(small(), {"south": np.arange(4), "north": [9, 8]}, "mlp", test_share=0.0, validation=0.0)
    assert (list(named.names), named.sizes.tolist()) == (["south", "north"], [4, 2])


def test_simulate_is_the_world_that_settings_make():
    options = {"clients": 3, "alpha": 0.4, "limit": 200}
    ours = simulate("digits", net="logistic", seed=1, split_seed=2, **options)
    settings = Settings.of({"net": "logistic", "seed": 1, "split_seed": 2, "rounds": 2, **options}, "fedavg")[0]
    theirs = settings.world.federation()
    assert ours.sizes.tolist() == theirs.sizes.tolist()
    first, second = settings.method.fit(ours).summary, settings.method.fit(theirs).summary
    assert {k: v for k, v in first.items() if k not in ("seconds", "best_round")} == {
        k: v for k, v in second.items() if k not in ("seconds", "best_round")
    }


def test_simulate_takes_numpy_numbers():
    assert len(simulate(small(), clients=np.int64(2), alpha=np.float32(0.5)).names) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "mnist"}, "unknown option 'data': did you mean dataset"),
        ({"dataset": "mnst"}, "unknown data set 'mnst': did you mean mnist"),
        ({"split": "dirichle"}, "unknown split 'dirichle': did you mean dirichlet"),
        ({"net": "lenet"}, "unknown net 'lenet': did you mean lenet5"),
        ({"alhpa": 1.0}, "unknown option 'alhpa': did you mean alpha"),
        ({"rounds": 3}, "option 'rounds': belongs to the method, e.g. coterie.FedAvg"),
        ({"evaluate_every": 3}, "unknown option 'evaluate_every'"),
        ({"dataset": small(), "limit": 3}, "option 'limit': nothing that is used here has it"),
        ({"split": Dirichlet(), "clients": 3}, "option 'clients': nothing that is used here has it"),
        ({"split": "iid", "alpha": 3.0}, "option 'alpha': nothing .* only split .*split dirichlet"),
        ({"clients": "3"}, "clients='3': expected a whole number"),
        ({"arrivals": {0: -1}}, "arrivals: client 0 in round -1"),
        ({"arrivals": {99: 2}}, "arrivals: there is no client 99"),
        ({"clients": 2, "arrivals": {0: 2, 1: 3}}, "arrivals: nobody is there in the first round"),
        ({"dataset": small(), "split": Split((range(4), ()))}, "client 1 without samples"),
        ({"dataset": small(), "split": {"north": [0, 1], "south": []}}, "client south without samples"),
        (
            {"dataset": small(), "split": {"north": [0, 1], "south": [2, 1]}},
            "sample 1 is with north and with south; if that is meant, say repeats=True",
        ),
        ({"dataset": small(), "split": [[0, 3, 3], [1]]}, "sample 3 is twice with client 0"),
        ({"dataset": small(), "split": [[0, 1], [2, 40]]}, r"\(0 to 39\): client 1 has sample 40"),
        ({"dataset": small(), "split": [[0, 1], [-1]]}, "client 1 has sample -1"),
        ({"dataset": small(), "split": [[0, 1], [2.5]]}, "the samples of client 1 are not whole numbers"),
        ({"dataset": small(), "split": [0, 1, 1]}, r"expected the samples of each client, e.g. \[\[0, 1, 5\]"),
        ({"dataset": small(), "split": []}, "expected the samples of each client"),
        ({"dataset": small(), "clients": 41}, "small has 40 samples, and every client needs one"),
    ],
)
def test_simulate_refuses_what_it_does_not_know(arguments, message):
    with pytest.raises(CoterieError, match=message):
        simulate(**arguments)


def test_simulate_says_what_does_not_fit():
    with pytest.raises(SettingsError, match=r"cnn takes images .*, this data has features 3: use mlp or logistic"):
        simulate(small(), net="cnn", clients=2)
    with pytest.raises(DataError, match="test=labels: small has no test part"):
        simulate(small(), clients=2, test="labels")
