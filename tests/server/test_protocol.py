"""What a method asks of clients, as it is read from its code: all that it does ask, and nothing else."""

from collections import Counter
from dataclasses import replace

import pytest

import coterie
from coterie import programs
from coterie.clients.programs import Program
from coterie.moves import encounters
from coterie.server.protocol import REPEATS, calls_of, objection
from support.every_method import METHODS
from support.federations import uneven


def spied(fed):
    """The calls that an engine carries from now on."""
    calls, run = [], fed._engine.run

    def carry(call):
        calls.append(call)
        return run(call)

    fed._engine.run = carry
    return calls


@pytest.mark.parametrize("name", sorted(METHODS))
def test_whatever_a_method_asks_is_expected_of_it(name):
    more = {"slfed": {"rehearse": True}, "lg-fedavg": {"shares": "not 3"}}.get(name, {})
    schedule = {"schedule": "cosine"}
    method = coterie.methods.make(name, rounds=3, batch=10, **{**schedule, **METHODS[name], **more})
    fed = uneven(server_samples=12)
    calls = spied(fed)
    method.fit(fed)
    asked = Counter()
    for call in calls:
        # What only simulations are asked for their results to take home is not asked of sites.
        if call.program.scoring or call.program is coterie.programs.own_prior or (call.clients < 0).all():
            continue
        assert objection(method, call.program, call.settings, call.at.number) == ""
        assert not call.program.simulated
        assert call.at.prior == method.local.own_prior
        asked[call.at.number, call.program] += 1
    expected = calls_of(method)
    assert asked
    for (_, program), count in asked.items():
        assert count <= expected[program], program.name


@pytest.mark.parametrize("name", ["scaffold", "feddc", "ifca"])
def test_so_is_what_a_variant_asks(name):
    compat = {"scaffold": "pacfl", "feddc": True, "ifca": True}[name]
    method = coterie.methods.make(name, rounds=2, batch=10, compat=compat)
    fed = uneven()
    calls = spied(fed)
    method.fit(fed)
    own = [call for call in calls if not call.program.scoring]
    assert own
    assert all(call.program in calls_of(method) for call in own)
    assert [objection(method, call.program, call.settings, call.at.number) for call in own] == [""] * len(own)


@coterie.program
def count(clients, most):
    """How many samples there are, as far as that is told."""
    return {"count": clients.sizes.clamp(max=most)}


@coterie.program(told={"most": "largest"})
def count_well(clients, most):
    """How many samples there are, as far as that is told."""
    return {"count": clients.sizes.clamp(max=most)}


def helper(fed):
    """What a method hands to a function beside it."""
    return fed.run(programs.train, shared=fed.new_model(), local=coterie.LocalTraining())


def own_method(**inner):
    """A method of one's own with these functions."""

    @coterie.method("asks-this-and-that")
    class Asks(coterie.Method):
        """Asks. (Me, 2026)"""

        largest: int = 7
        """The most that is told."""

        def begin(self, fed):
            return None

        def round(self, fed, state):
            return inner["round"](self, fed)

    for name, function in inner.items():
        setattr(Asks, name, function)
    return Asks()


def test_programs_are_found_where_they_are_named(monkeypatch):
    monkeypatch.setattr(coterie.methods, "_classes", {})

    def once(self, fed):
        return fed.run(count, most=3)

    def by_the_way(self, fed):
        return helper(fed), coterie.programs.evaluate

    def often(self, fed):
        return [fed.run(count, most=self.largest) for _ in range(3)]

    def in_a_loop(self, fed):
        for _ in range(3):
            fed.run(count, most=3)

    assert calls_of(own_method(round=once)) == {count: 1}
    assert calls_of(own_method(round=by_the_way)) == {programs.train: 1, programs.evaluate: 1}
    assert calls_of(own_method(round=often)) == calls_of(own_method(round=in_a_loop)) == {count: REPEATS}
    assert calls_of(own_method(round=lambda self, fed: None)) == {}


def test_a_setting_comes_from_a_field_or_is_not_the_servers_to_choose(monkeypatch):
    monkeypatch.setattr(coterie.methods, "_classes", {})
    method = own_method(round=lambda self, fed: fed.run(count, most=3))
    assert objection(method, count_well, {"most": 7}, 1) == ""
    assert objection(method, count_well, {"most": 8}, 1) == "most=8, where this method has largest=7"
    assert objection(method, count_well, {"most": 7.0}, 1) == ""
    assert objection(method, count_well, {"most": True}, 1) != ""
    assert "which no field of this method says" in objection(method, count, {"most": 7}, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 1},
        {"batch": 1},
        {"epochs": 1e9},
        {"rate": 0.2},
        {"momentum": 0.9},
        {"clip": 1e-9},
        {"optimizer": "adam"},
        {"decay": 3.0},
        {"prior": "own"},
        {"whole_batches": True},
    ],
)
def test_training_is_set_as_the_method_has_it_in_that_round(change):
    method = coterie.FedAvg(rounds=4, rate=0.1, schedule="exponential", rate_decay=0.5)
    local = method.local
    assert objection(method, programs.train, {"local": local.at(2, 4)}, 2) == ""
    assert "rate=0.1, where this method has 0.05" in objection(method, programs.train, {"local": local.at(1, 4)}, 2)
    (name,) = change
    assert objection(method, programs.train, {"local": replace(local.at(2, 4), **change)}, 2).startswith(f"{name}=")


def test_a_pull_is_for_those_who_have_one():
    local = coterie.LocalTraining()
    assert objection(coterie.FedAvg(), programs.train, {"local": local, "pull": 0.0}, 1) == ""
    assert objection(coterie.FedAvg(), programs.train, {"local": local, "pull": -5.0}, 1) != ""


@pytest.mark.parametrize(
    ("program", "settings", "fine"),
    [
        (encounters.choose, {"names": ("a",), "present": ("a",), "store": "direct", "reveal": False}, True),
        (encounters.choose, {"names": ("a",), "present": ("a",), "store": "direct", "reveal": True}, False),
        (encounters.share, {"names": ("a",), "mode": "additive"}, True),
        (encounters.share, {"names": ("a",), "mode": "none"}, False),
        (encounters.share, {"names": ("a",), "mode": "scalar"}, False),
    ],
)
def test_how_models_are_hidden_is_not_a_servers_to_choose(program, settings, fine):
    assert (objection(coterie.SLFed(), program, settings, 1) == "") is fine
    trusted = coterie.SLFed(topology="server", sharing="none")
    assert (objection(trusted, program, settings, 1) == "") is (
        settings.get("reveal") is True or "none" in settings.values()
    )


def test_which_part_leaves_is_not_a_servers_to_choose():
    part = {"local": coterie.FedPer().local, "part": "body"}
    around = next(iter(calls_of(coterie.FedPer())))
    assert objection(coterie.FedPer(), around, part, 1) == ""
    assert "part='all', where" in objection(coterie.FedPer(), around, part | {"part": "all"}, 1)


def test_what_a_server_may_choose_is_a_finite_number():
    told = {"names": ("a",), "local": coterie.SLFed().local, "gan": coterie.SLFed().gan, "synthetic": 1000, "since": 3}
    introduce = next(one for one in calls_of(coterie.SLFed()) if one.name.endswith("introduce"))
    assert isinstance(introduce, Program)
    assert objection(coterie.SLFed(), introduce, told, 1) == ""
    assert objection(coterie.SLFed(), introduce, told | {"since": float("nan")}, 1) != ""
    assert objection(coterie.SLFed(), introduce, told | {"synthetic": 10**6}, 1) != ""
