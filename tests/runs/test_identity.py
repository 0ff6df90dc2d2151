"""What makes a run the one it is: what it is called, what it may go on as, and whose clients can be compared."""

import tomllib
from dataclasses import replace

import pytest
import tomli_w

from coterie.core.fields import WITHOUT_EFFECT, Effect
from coterie.core.registry import options
from coterie.deploy.server import Deployment
from coterie.engines.flower.engine import FederatedTask, Waiting
from coterie.engines.simulation import Computing
from coterie.methods import methods
from coterie.methods.fedavg import FedAvg
from coterie.runs.identity import changes_results, differences, names_apart, world_of
from coterie.runs.settings import Settings
from coterie.server.method import method
from coterie.server.scoring import Scoring


def table(method="fedavg", **given):
    return Settings.of(given, method)[0].table()


def without(table, *keys):
    """The same as a version has stored that did not know these settings, or whole sections of them."""
    kept = tomllib.loads(tomli_w.dumps(table))
    for key in keys:
        part, _, name = key.rpartition(".")
        del (kept[part] if part else kept)[name]
    return kept


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


def test_runs_may_be_computed_in_any_way_and_are_called_the_same():
    ways = [table(device="cpu"), table(engine="loop"), table(strict=True), table(insights=True), table()]
    assert names_apart(ways) == ["fedavg"] * 5
    assert len({world_of(way) for way in ways}) == 1


def test_what_an_older_version_did_not_store_is_as_it_is_by_default():
    new = table("fedprox")
    old = without(new, "method.mu", "method.rate", "division.test", "scoring", "computing.precision", "seed")
    assert names_apart([old, new]) == ["fedprox", "fedprox"]
    assert world_of(old) == world_of(new)
    assert differences(old, new) == differences(new, old) == []
    other = table("fedprox", rate=0.3, evaluate_every=2)
    assert names_apart([old, other, new]) == [
        "fedprox, rate=0.1, evaluate_every=1",
        "fedprox, rate=0.3, evaluate_every=2",
        "fedprox, rate=0.1, evaluate_every=1",
    ]
    assert differences(other, old) == [
        "method.rate is 0.1 there, 0.3 here",
        "scoring.evaluate_every is 1 there, 2 here",
    ]
    assert world_of(without(table(scaling="unit"), "division.scaling")) == world_of(table())
    assert world_of(table(scaling="unit")) != world_of(table())


@pytest.fixture
def moved(monkeypatch):
    """A method, an option of which has been moved to a variant."""
    monkeypatch.setattr(methods, "_classes", dict(methods._classes))
    monkeypatch.setattr(methods, "_variants", dict(methods._variants))

    @method("moved")
    class Moved(FedAvg):
        """Without the option."""

    @methods.variant("moved")
    class Variant(Moved):
        """With the option."""

        compat: bool = False


def test_an_option_that_has_moved_to_a_variant_tells_no_runs_apart(moved):
    new, erring = table("moved"), table("moved", compat=True)
    assert "compat" not in new["method"]
    old = {**new, "method": {**new["method"], "compat": False}}
    assert names_apart([old, new]) == ["moved", "moved"]
    assert differences(old, new) == differences(new, old) == []
    assert differences(erring, old) == differences(erring, new) == ["method.compat is False there, True here"]
    assert names_apart([old, erring, new]) == ["moved, compat=False", "moved, compat=True", "moved, compat=False"]


def test_what_is_no_option_any_more_stays_what_it_was():
    new = table()
    old = {**new, "method": {**new["method"], "gone": 3}}
    assert names_apart([old, new]) == ["fedavg, gone=3", "fedavg"]
    assert differences(new, old) == ["method.gone is 3 there, None here"]


def test_methods_that_are_not_known_here_have_names_too():
    stranger = {**table(), "method": {"name": "strange", "mu": 0.1}}
    assert names_apart([stranger, {**stranger, "method": {"name": "strange", "mu": 0.2}}, table()]) == [
        *("strange, mu=0.1", "strange, mu=0.2", "fedavg")
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"device": "cpu", "workers": 0, "memory": 2.0, "engine": "loop", "data_dir": "x"}, []),
        ({"strict": True}, ["computing.strict is False there, True here"]),
        ({"insights": True}, ["scoring.insights is False there, True here"]),
        ({"seed": 2}, ["seed is 0 there, 2 here"]),
        ({"split_seed": 0}, ["split_seed is None there, 0 here"]),
        ({"limit": 9}, ["data.limit is None there, 9 here"]),
        ({"arrivals": "1:2"}, ["arrivals.1 is None there, 2 here"]),
        ({"split": "iid", "rate": 0.2}, ["method.rate is 0.1 there, 0.2 here", "split is dirichlet there, iid here"]),
    ],
)
def test_a_run_goes_on_as_what_it_is(given, found):
    assert differences(table(**given), table()) == found


def test_a_run_does_not_go_on_with_data_that_has_other_labels():
    ours, theirs = ({**table(), "data": {"name": "digits", "labels": labels}} for labels in (["a"], ["b"]))
    assert differences(ours, theirs) == ["data.labels is ['b'] there, ['a'] here"]
    assert world_of(ours) == world_of(theirs)


def test_worlds_are_the_same_if_clients_can_be_compared():
    assert world_of(table("fedprox", mu=3.0, rounds=2, precision="float64", views=("last",))) == world_of(table())
    for given in ({"seed": 1}, {"clients": 5}, {"net": "cnn"}, {"data": "mnist"}, {"limit": 3}, {"validation": 0.2}):
        assert world_of(table(**given)) != world_of(table())
    assert world_of(table(alpha=1.0)) == world_of({**table(), "split": {**table()["split"], "alpha": 1}})


def test_a_run_over_real_sites_goes_on_however_long_sites_are_waited_for():
    task = FederatedTask(("a", "b"), (3,), "logistic")
    one = Deployment(methods.make("fedavg"), task)
    waiting = Waiting(sites=9, min_sites=1, timeout=1.0, patience=1.0, poll=1.0)
    other = replace(one, waiting=waiting, server="elsewhere.npz", computing=Computing(device="cpu"))
    assert differences(other.table(), one.table()) == []
    assert differences(other.table(), without(one.table(), "task.scale", "sites")) == []
    assert names_apart([one.table(), other.table()]) == ["fedavg", "fedavg"]
    changed = replace(one, task=replace(task, net="mlp"))
    assert differences(changed.table(), one.table()) == ["task.net is logistic there, mlp here"]


def test_fields_say_themselves_what_they_change():
    effects = {option.name: option.effect for kind in (Computing, Scoring, Waiting) for option in options(kind)}
    assert {name for name, effect in effects.items() if effect is WITHOUT_EFFECT} == {
        *("engine", "device", "workers", "memory"),
        *("sites", "min_sites", "timeout", "patience", "poll"),
    }
    assert (effects["strict"], effects["insights"], effects["precision"]) == (
        *(Effect.COURSE, Effect.RECORD, Effect.RESULTS),
    )
    assert [changes_results(name) for name in ("workers", "data_dir", "strict")] == [False] * 3
    assert [changes_results(name) for name in ("mu", "insights", "seed", "precision", "limit")] == [True] * 5
