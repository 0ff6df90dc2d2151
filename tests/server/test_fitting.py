"""The course of a run: repeatable to the last bit, resumable, and without a trace of what was lost."""

import copy
import io

import numpy as np
import pytest
import torch
from rich.console import Console

import coterie
from coterie import Clients, Federation, Method, Scoring, method, program, serving, state
from coterie.data import Split
from coterie.report.tables import run_table
from coterie.server.fitting import fit
from coterie.server.method import methods
from coterie.training.local import LocalTraining


def data(samples=120, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, classes))).argmax(1)
    return coterie.Dataset(x, y, labels=tuple("abcd")).held_out(0.2)


def federation(clients=6, seed=0, **options):
    return coterie.simulate(data(), "dirichlet", "mlp", clients=clients, alpha=1.0, min_size=6, seed=seed, **options)


def without_time(thing):
    """The same figures without those that end in `seconds`."""
    if isinstance(thing, dict):
        return {key: without_time(value) for key, value in thing.items() if not key.endswith("seconds")}
    return [without_time(item) for item in thing] if isinstance(thing, list) else thing


def figures(result):
    return without_time([result.summary, result.rounds, result.clients, result.groups, result.insights])


@pytest.fixture
def temporary_method():
    """Registers methods for one test."""
    before = dict(methods._classes)
    yield method
    methods._classes.clear()
    methods._classes.update(before)


@state
class Nothing:
    """No state at the server."""


@program
def count(clients: Clients, local: LocalTraining):
    """Count calls, and train a little so that the round shows in the record."""
    clients.keep(calls=clients.state("calls", torch.zeros(len(clients))) + 1)
    clients.train(clients.initial(), local)


@program
def calls(clients: Clients):
    """How often clients were called."""
    none = torch.zeros(len(clients), dtype=torch.int64)
    return {"calls": clients.state("calls", torch.zeros(len(clients))), "steps": clients.state("_steps", none)}


def counting(failing_round=None):
    """A method that keeps state at the clients, and may lose a round after they have done their part."""

    @method("counting")
    class Counting(Method):
        def begin(self, fed: Federation):
            return Nothing()

        def round(self, fed: Federation, state):
            fed.run(count, fed.sample(0.5), local=self.local)
            if fed.round == failing_round:
                raise ConnectionError("the round is lost")
            return state

        def serve(self, fed: Federation, state):
            return serving.kept("model")

    return Counting


@pytest.mark.parametrize("options", [{"server_momentum": 0.5}, {"participation": 0.5, "momentum": 0.9}])
def test_two_fits_with_the_same_settings_are_equal_to_the_last_bit(options):
    fed = federation()
    first = coterie.FedAvg(rounds=4, **options).fit(fed)
    coterie.Local(rounds=2, rate=0.3).fit(fed)
    second = coterie.FedAvg(rounds=4, **options).fit(fed)
    third = coterie.FedAvg(rounds=4, **options).fit(federation())
    for other in (second, third):
        assert figures(first) == figures(other)
        assert torch.equal(first.state.model.parameters, other.state.model.parameters)


def test_nothing_that_ran_before_in_the_process_changes_a_result():
    fresh = figures(coterie.FedAvg(rounds=2).fit(federation()))
    np.random.default_rng(3).random(10)
    torch.rand(7)
    np.random.rand(7)  # noqa: NPY002  # the global generator is what must not matter
    coterie.FedProx(rounds=1, mu=0.3).fit(federation(clients=3, seed=5))
    before = torch.get_rng_state()
    assert figures(coterie.FedAvg(rounds=2).fit(federation())) == fresh
    assert torch.equal(before, torch.get_rng_state())


def test_another_seed_gives_another_run():
    assert figures(coterie.FedAvg(rounds=1).fit(federation(seed=1))) != figures(
        coterie.FedAvg(rounds=1).fit(federation())
    )


def test_scoring_does_not_touch_training():
    fed = federation()
    often = coterie.FedAvg(rounds=4).fit(fed, scoring=Scoring(views=("served", "adapted", "last")))
    seldom = coterie.FedAvg(rounds=4).fit(fed, scoring=Scoring(evaluate_every=4, global_test=False))
    assert torch.equal(often.state.model.parameters, seldom.state.model.parameters)
    assert [record["round"] for record in seldom.rounds] == [4]
    assert "global_accuracy_mean" not in seldom.rounds[0]


def test_the_last_round_is_always_evaluated():
    result = coterie.FedAvg(rounds=5).fit(federation(), scoring=Scoring(evaluate_every=2))
    assert [record["round"] for record in result.rounds] == [2, 4, 5]


class Keeper:
    """Keeps a copy of every checkpoint."""

    def __init__(self):
        self.checkpoints = {}

    def round_done(self, checkpoint, record, groups):
        self.checkpoints[checkpoint.federation["round"]] = copy.deepcopy(checkpoint)

    def run_done(self, checkpoint, result):
        self.last = copy.deepcopy(checkpoint)


RESUMED = {
    "autocfl": {},
    "cafa": {},
    "cfic": {},
    "fedavg": {"server_momentum": 0.5},
    "fedprox": {},
    "moon": {},
    "local": {},
    "scaffold": {},
    "fednova": {"server_momentum": 0.5},
    "feddyn": {"serves": "mean"},
    "feddc": {},
    "fedfa": {},
    "fedmgda": {},
    "clustered-sampling": {"by": "similarity"},
    "lg-fedavg": {"refresh": True},
    "ditto": {},
    "apfl": {},
    "fedrep": {"head_epochs": 2.0},
    "fedopt": {"server_optimizer": "yogi", "server_rate": 0.05},
    "fedavg-ft": {"probe_epochs": 1.0, "tune_epochs": 2.0},
    "fedper": {},
    "fedbn": {},
    "feddbe": {},
    "fedbabu": {"tune_epochs": 2.0},
    "fedamp": {},
    "fedfomo": {"downloads": 2},
    "fedlc": {},
    "fedrod": {},
    "fedala": {},
    "fedproto": {},
    "fedpac": {},
    "ifca": {},
    "fedem": {},
    "per-fedavg": {},
    "pfedme": {},
    "flis-dc": {},
    "flis-hc": {},
    "compose": {},
    "fesem": {"clusters": 2},
    "fedrc": {},
    "stocfl": {"threshold": 0.2},
    "fedsoft": {"clusters": 2, "estimate_every": 3},
    "fedgroup": {"clusters": 2, "founders": 1},
    "cfl": {"warmup": 1, "mean_norm": 2.0, "client_norm": 0.0, "gamma": None},
    "fl-hc": {"cluster_round": 2, "adjust": True},
    "hdbscan": {"cluster_round": 2, "recluster_every": 2, "noise": "global"},
    "pacfl": {},
    "slfed": {"synthetic": 20, "gan_steps": 5},
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_resumed_run_ends_like_an_unbroken_one(name, at):
    made = methods.make(name, rounds=5, participation=0.6, **RESUMED[name])
    scoring = Scoring(views=("served", "last"), evaluate_every=2, insights=True)
    keeper = Keeper()
    whole = made.fit(federation(server_samples=10), scoring=scoring, observers=[keeper])
    resumed = made.fit(federation(server_samples=10), scoring=scoring, resume=keeper.checkpoints[at])
    assert figures(resumed) == figures(whole)


def test_a_round_that_is_lost_leaves_no_trace_at_the_clients(temporary_method):
    fed = federation()
    with pytest.raises(ConnectionError):
        counting(failing_round=3)(rounds=4).fit(fed)
    lost = fed.run(calls)
    counting()(rounds=2).fit(fed)
    two = fed.run(calls)
    assert torch.equal(lost.calls, two.calls)
    assert torch.equal(lost.steps, two.steps)
    assert two.calls.sum() == 2 * 3


def test_what_clients_keep_survives_rounds_without_them(temporary_method):
    fed = federation()
    result = counting()(rounds=6).fit(fed)
    kept = fed.run(calls).calls.tolist()
    assert sum(kept) == 6 * 3
    assert kept == [client["rounds_taken_part"] for client in result.clients]


def test_a_new_fit_starts_with_nothing_remembered(temporary_method):
    fed = federation()
    counting()(rounds=3).fit(fed)
    counting()(rounds=1).fit(fed)
    assert fed.run(calls).calls.sum() == 3


def test_the_best_round_is_the_best_on_validation_data_and_the_earliest_of_equals():
    result = coterie.FedAvg(rounds=8).fit(federation())
    validation = [record["validation_accuracy"] for record in result.rounds]
    assert result.summary["best_round"]["round"] == 1 + validation.index(max(validation))


def test_without_validation_data_there_is_no_best_round():
    result = coterie.FedAvg(rounds=2).fit(federation(validation=0))
    assert result.summary["best_round"] is None
    assert result.summary["validation_accuracy"] is None


def grouped(groups, truth, **scoring):
    """A method that serves the same models to groups that change in round 2."""

    @state
    class Models_:
        models: object

    @method("grouped")
    class Grouped(Method):
        def begin(self, fed):
            return Models_(fed.new_models(3))

        def round(self, fed, state):
            return state

        def serve(self, fed, state):
            return serving.each(state.models, groups[min(fed.round, 2) - 1])

    fed = federation()
    return fit(Grouped(rounds=4), fed, true_groups=truth, scoring=Scoring(**scoring))


def test_groups_are_compared_with_the_true_ones(temporary_method):
    truth = [0, 0, 1, 1, 2, 2]
    result = grouped([[0, 0, 0, 0, 0, 0], [2, 2, 0, 0, 1, 1]], truth)
    summary = result.summary
    assert (summary["ari"], summary["nmi"], summary["purity"], summary["placed_right"]) == (1, 1, 1, 6)
    assert summary["stable_since"] == 2
    assert [record["groups"] for record in result.rounds] == [1, 3, 3, 3]
    assert [change["round"] for change in result.groups] == [1, 2]
    assert [client["group_found"] for client in result.clients] == [2, 2, 0, 0, 1, 1]
    assert [client["true_group"] for client in result.clients] == truth


def test_groups_are_known_also_of_rounds_that_are_not_evaluated(temporary_method):
    often, rarely = (
        grouped([[0] * 6, [2, 2, 0, 0, 1, 1]], [0, 0, 1, 1, 2, 2], evaluate_every=number) for number in (1, 4)
    )
    assert len(rarely.rounds) == 1
    assert rarely.groups == often.groups
    assert rarely.summary["stable_since"] == 2


def test_who_has_one_group_from_beginning_to_end_has_no_round_since_which_groups_are_stable(temporary_method):
    never = grouped([[0] * 6, [0] * 6], [0, 0, 1, 1, 2, 2])
    assert never.summary["stable_since"] is None
    assert never.summary["placed_right"] == 2


def test_groups_that_were_joined_again_are_stable_since_then(temporary_method):
    assert grouped([[0, 0, 1, 1, 2, 2], [0] * 6], [0] * 6).summary["stable_since"] == 2


def test_groups_are_scored_only_where_there_are_some_to_find(temporary_method):
    told = {"ari", "nmi", "purity", "placed_right"}
    assert not told & grouped([[0, 0, 1, 1, 2, 2]] * 2, [0] * 6).summary.keys()
    assert told <= grouped([[0] * 6] * 2, [0, 0, 1, 1, 2, 2]).summary.keys()


def test_clients_that_never_took_part_are_counted_apart():
    fed = coterie.simulate("digits", "iid", "logistic", clients=10)
    few = coterie.FedAvg(rounds=2, participation=0.2).fit(fed)
    idle = [client for client in few.clients if client["rounds_taken_part"] == 0]
    others = [client for client in few.clients if client["rounds_taken_part"] > 0]
    told = few.summary["never_took_part"]
    assert told["clients"] == len(idle) >= 6
    assert told["accuracy_mean"] == pytest.approx(np.mean([client["accuracy"] for client in idle]))
    assert told["others_accuracy_mean"] == pytest.approx(np.mean([client["accuracy"] for client in others]))
    shown = io.StringIO()
    Console(file=shown, width=100).print(run_table(few.summary))
    assert f"{len(idle)}: {100 * told['accuracy_mean']:.1f} %, others " in shown.getvalue()
    assert "never_took_part" not in coterie.FedAvg(rounds=1).fit(fed).summary


def test_one_client_placed_wrong_is_counted(temporary_method):
    result = grouped([[0] * 6, [0, 0, 1, 1, 2, 1]], [0, 0, 1, 1, 2, 2])
    assert result.summary["placed_right"] == 5
    assert result.summary["purity"] == pytest.approx(5 / 6)


def test_permuting_clients_permutes_the_result():
    base = data()
    parts = np.array_split(np.arange(len(base)), 5)
    order = [3, 0, 4, 1, 2]
    results = []
    for arrangement in (range(5), order):
        split = Split(tuple(parts[client] for client in arrangement), names=tuple(f"c{c}" for c in arrangement))
        fed = coterie.simulate(base, split, "mlp", precision="float64", split_seed=0)
        results.append(coterie.FedAvg(rounds=3).fit(fed))
    plain, permuted = results
    assert torch.allclose(plain.state.model.parameters, permuted.state.model.parameters, atol=1e-12)
    by_name = {client["client"]: client for client in permuted.clients}
    for client in plain.clients:
        assert by_name[client["client"]]["accuracy"] == client["accuracy"]
        assert by_name[client["client"]]["loss"] == pytest.approx(client["loss"], abs=1e-12)


def test_the_same_client_trains_the_same_whoever_else_is_there():
    base = data()
    parts = np.array_split(np.arange(len(base)), 4)
    models = []
    for count_ in (2, 4):
        split = Split(tuple(parts[:count_]))
        fed = coterie.simulate(base, split, "mlp", precision="float64")
        fed.begin(1)
        fed.round = 1
        replies = fed.run(coterie.programs.train, [0, 1], shared=fed.new_model(), local=LocalTraining())
        models.append(replies.model.parameters)
    assert torch.equal(models[0], models[1])
