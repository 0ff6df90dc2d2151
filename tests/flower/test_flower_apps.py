"""A method as a strategy for somebody else's Flower app: apps in this process behind a grid without a network."""

import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients, Models, program
from coterie.core.errors import CoterieError, ProgramError, SettingsError
from coterie.nets import codec
from coterie.runs.folder import StoredRun

with warnings.catch_warnings():  # a library for command lines that Flower imports warns of its own future
    warnings.simplefilter("ignore", DeprecationWarning)
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, FedAvgM
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.task_identity import TaskIdentity

    import coterie.flower
    from coterie.engines.flower.arrays import ArrayNet, Arrays
    from coterie.engines.flower.messages import as_records, from_records
    from coterie.flower.apps import APP_MESSAGE, digest_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
GUIDE = (EXAMPLE / "README.md").read_text(encoding="utf-8")
SIZES = (30, 12, 21)


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """What the tests need of Flower and of Coterie for Flower, with the clients' state in a folder of the test."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    monkeypatch.setenv("COTERIE_STATE", str(tmp_path / "clients"))
    monkeypatch.setattr("coterie.engines.flower.engine.time.sleep", lambda seconds: None)
    return coterie.flower


def record_of(**arrays):
    return ArrayRecord({name.replace("__", "."): Array(np.asarray(value)) for name, value in arrays.items()})


def values_of(record):
    return {name: array.numpy() for name, array in record.items()}


def same(one, other, tolerance=1e-12):
    one, other = values_of(one), values_of(other)
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=tolerance, err_msg=name)


def initial():
    rng = np.random.default_rng(3)
    return record_of(hidden__weight=rng.normal(size=(4, 3)), hidden__bias=np.zeros(4), head__weight=rng.normal(size=4))


def data_of(partition):
    """Regression data of a client; odd clients have the opposite truth."""
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(SIZES[partition % 3], 3))
    return x, (-1) ** partition * x.sum(axis=1) + 0.1


def app_for(make, seen=None, told=None, **options):
    """A small app with handlers as Flower's examples have them, in float64: one step downhill."""
    app = make(**options)
    seen = [] if seen is None else seen

    def answer(message, context, **more):
        x, y = data_of(int(context.node_config["partition-id"]))
        arrays = values_of(message.content["arrays"])
        hidden = x @ arrays["hidden.weight"].T + arrays["hidden.bias"]
        error = hidden @ arrays["head.weight"] - y
        seen.append((message.metadata.message_type, int(context.node_id), dict(message.content["config"])))
        return arrays, x, hidden, error

    @app.train()
    def train(message, context):
        arrays, x, hidden, error = answer(message, context)
        rate = float(message.content["config"]["rate"])
        back = np.outer(error, arrays["head.weight"]) / len(x)
        arrays["hidden.weight"] -= rate * back.T @ x
        arrays["hidden.bias"] -= rate * back.sum(axis=0)
        arrays["head.weight"] -= rate * hidden.T @ error / len(x)
        metrics = {"train_loss": float((error**2).mean()), "num-examples": len(x), **(told or {})}
        content = {"arrays": record_of(**arrays), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        *_, error = answer(message, context)
        metrics = {"eval_loss": float((error**2).mean()), "eval_acc": float((abs(error) < 1).mean())}
        return Message(RecordDict({"metrics": MetricRecord({**metrics, "num-examples": len(error)})}), reply_to=message)

    return app


def grid_of(app, nodes=3, twist=None, joined=None):
    """A grid whose nodes are apps in this process. Messages take the way that they take over a network, as bytes."""

    def carried(message, name):
        contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        copy = inflate_object_from_contents(message.object_id, contents)
        assert isinstance(copy, Message)
        copy.metadata.__dict__["_message_id"] = name
        return copy

    class Local(Grid):
        run = None

        def __init__(self):
            self.count, self.replies = 0, {}
            self.contexts = {
                100 + place: Context(
                    1, 100 + place, {"partition-id": place, "num-partitions": nodes}, RecordDict(), {"local-epochs": 2}
                )
                for place in range(nodes)
            }
            self.looks = 0

        def set_run(self, run):
            pass

        def create_message(self, *arguments, **more):
            raise NotImplementedError

        def get_node_ids(self):
            self.looks += 1
            there = nodes if joined is None else joined(self.looks)
            return list(self.contexts)[:there]

        def push_messages(self, messages):
            names = []
            for message in messages:
                self.count += 1
                name = str(self.count)
                node = message.metadata.dst_node_id
                reply = app(carried(message, name), self.contexts[node])
                reply = reply if twist is None else twist(node, self.count, reply)
                reply.metadata.__dict__["_reply_to_message_id"] = name
                self.replies[name] = carried(reply, f"answer to {name}")
                names.append(name)
            return names

        def pull_messages(self, message_ids):
            return [self.replies.pop(name) for name in message_ids]

        def send_and_receive(self, messages, *, timeout=None):
            return self.pull_messages(self.push_messages(messages))

    return Local()


def config(rate=0.05, **more):
    return ConfigRecord({"rate": rate, **more})


def started(flower, method, *, rounds=3, app=None, grid=None, **options):
    """A strategy after a run of an app."""
    strategy = flower.strategy(method, patience=0, **options)
    grid = grid or grid_of(app or app_for(flower.ClientApp))
    outcome = strategy.start(grid, initial(), num_rounds=rounds, train_config=config())
    return strategy, outcome


# Arrays of any layout


def state_dict():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    )
    module(torch.randn(4, 2, 4, 4))
    return module.state_dict()


def test_arrays_of_any_kind_come_back_as_they_were():
    records = [
        ArrayRecord(state_dict()),
        ArrayRecord([np.ones((3, 4), np.float16), np.arange(4.0), np.array(7), np.array([True, False])]),
        record_of(weight=np.ones((2, 2), np.float32), count=np.array(5, np.uint8), empty=np.ones((0, 3))),
    ]
    for given in records:
        net = ArrayNet.of([given])
        back = net.arrays_of(net.models_of(given))
        same(back, given, tolerance=0)
        assert [array.dtype for array in back.values()] == [array.dtype for array in given.values()]
        assert [array.shape for array in back.values()] == [array.shape for array in given.values()]


def test_running_statistics_and_whole_numbers_are_not_trained():
    net = ArrayNet.of([ArrayRecord(state_dict())])
    assert net.buffers.names == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert net.layers == ("0", "1", "3")
    assert int(net.part("head").sum()) == 26
    named = ArrayNet.of([record_of(kernel=np.ones((2, 2)), moving=np.ones(2))], statistics=["mov*"])
    assert named.buffers.names == ("1.moving",)


def test_layers_of_a_list_of_arrays_begin_with_its_matrices():
    net = ArrayNet.of([ArrayRecord([np.ones((3, 4)), np.ones(4), np.ones((4, 2)), np.ones(2)])])
    assert net.layers == ("1", "2")
    assert int(net.part("head").sum()) == 10


def test_whole_numbers_are_rounded_after_mixing():
    net = ArrayNet.of([record_of(weight=np.ones((2, 2)), count=np.array(4))])
    models = Models.stack([net.models_of(record_of(weight=np.ones((2, 2)), count=np.array(n))) for n in (4, 9)])
    assert values_of(net.arrays_of(torch.tensor([0.7, 0.3]) @ models))["count"] == 6  # 5.5 to the even number
    assert values_of(net.arrays_of(torch.tensor([0.5, 0.5]) @ models))["count"] == 6


def test_further_models_have_the_numbers_of_the_first_in_new_order():
    arrays = record_of(a__weight=np.arange(20.0).reshape(4, 5), a__scale=np.ones(4), b__weight=-np.arange(9.0))
    net = ArrayNet.of([arrays])
    first, second, third = (values_of(net.arrays_of(Models(net, *net.new(5, number)))) for number in range(3))
    same(net.arrays_of(Models(net, *net.new(5, 0))), arrays, tolerance=0)
    for name, value in values_of(arrays).items():
        assert sorted(second[name].flat) == sorted(value.flat)
    assert (second["a.scale"] == 1).all()
    assert (second["a.weight"] != first["a.weight"]).any()
    assert (second["a.weight"] != third["a.weight"]).any()
    same(net.arrays_of(Models(net, *net.new(5, 1))), record_of(**second), tolerance=0)
    given = ArrayNet.of([arrays, record_of(**{name: value + 1 for name, value in first.items()})])
    assert values_of(given.arrays_of(Models(given, *given.new(5, 1))))["a.scale"].tolist() == [2, 2, 2, 2]


def test_arrays_that_nothing_can_be_done_with_are_refused():
    net = ArrayNet.of([initial()])
    with pytest.raises(CoterieError, match=r"'head.weight' is missing, was \(4,\)"):
        net.models_of(record_of(hidden__weight=np.ones((4, 3)), hidden__bias=np.zeros(4)))
    with pytest.raises(CoterieError, match="only the app knows the module"):
        net.models_of(initial()).module()
    with pytest.raises(SettingsError, match="nothing to train in the arrays 0"):
        Arrays.of(ArrayRecord([np.arange(3)]))
    with pytest.raises(SettingsError, match="array 'w' is of <U1"):
        Arrays.of(record_of(w=np.array(["a"])))


# The same as Flower's own


def test_fedavg_is_flowers_own_fedavg(flower):
    _, ours = started(flower, coterie.FedAvg())
    # The same app answers Flower's own strategy as ever.
    app = app_for(flower.ClientApp)
    theirs = FedAvg(min_available_nodes=3).start(grid_of(app), initial(), num_rounds=3, train_config=config())
    same(ours.arrays, theirs.arrays)
    for number in (1, 2, 3):
        expected = dict(theirs.train_metrics_clientapp[number])
        assert dict(ours.train_metrics_clientapp[number]) == pytest.approx(expected)
        for name, value in theirs.evaluate_metrics_clientapp[number].items():
            assert ours.evaluate_metrics_clientapp[number][name] == pytest.approx(value)


def test_server_momentum_is_flowers_own_fedavgm(flower):
    _, ours = started(flower, coterie.FedAvg(server_momentum=0.5), rounds=4)
    stock = FedAvgM(server_learning_rate=1.0, server_momentum=0.5, min_available_nodes=3)
    theirs = stock.start(grid_of(app_for(flower.ClientApp)), initial(), num_rounds=4, train_config=config())
    same(ours.arrays, theirs.arrays)


def test_other_messages_pass_through(flower):
    app = app_for(flower.ClientApp)

    @app.query()
    def query(message, context):
        return Message(RecordDict(), reply_to=message)

    grid = grid_of(app)
    asked = Message(RecordDict(), dst_node_id=101, message_type="query")
    assert not grid.send_and_receive([asked])[0].has_error()
    with pytest.raises(ValueError, match="No query function registered with name 'other'"):
        grid.push_messages([Message(RecordDict(), dst_node_id=101, message_type="query.other")])


# Methods that Flower has not


def test_ifca_finds_out_who_belongs_together(flower):
    strategy, outcome = started(flower, coterie.IFCA(clusters=2), rounds=6, seed=1)
    assert strategy.groups["partition-0"] == strategy.groups["partition-2"] != strategy.groups["partition-1"]
    assert len(strategy.models) == 2
    same(outcome.arrays, strategy.models[strategy.groups["partition-0"]], tolerance=0)
    # Each model is one that its own group has trained, on its own.
    alone = strategy.models[strategy.groups["partition-1"]]
    _, fedavg = started(flower, coterie.FedAvg(), rounds=6)
    assert loss_of(alone, 1) < 0.5 * loss_of(fedavg.arrays, 1)
    assert strategy.result.summary["groups"] == 2
    assert outcome.evaluate_metrics_clientapp[6]["accuracy_mean"] == strategy.result.summary["accuracy_mean"]


def loss_of(arrays, partition):
    x, y = data_of(partition)
    arrays = values_of(arrays)
    return float((((x @ arrays["hidden.weight"].T + arrays["hidden.bias"]) @ arrays["head.weight"] - y) ** 2).mean())


def test_models_can_start_where_the_app_says(flower):
    # The truth of the odd clients: who has it stays there, since the loss is zero.
    truth = record_of(
        hidden__weight=np.outer([1, 0, 0, 0], [-1.0] * 3), hidden__bias=[0.1, 0, 0, 0], head__weight=[1.0, 0, 0, 0]
    )
    strategy, _ = started(flower, coterie.IFCA(clusters=2), rounds=2, further=[truth])
    assert strategy.groups == {"partition-0": 0, "partition-1": 1, "partition-2": 0}
    same(strategy.models[1], truth)


def test_clients_keep_their_own_model_on_disk(flower, tmp_path):
    strategy, outcome = started(flower, coterie.Local(), rounds=3)
    assert strategy.models == ()
    assert len(outcome.arrays) == 0
    kept = sorted(path.parent.parent.parent.name for path in (tmp_path / "clients").rglob("memory/*/*.safetensors"))
    assert set(kept) == {"partition-0", "partition-1", "partition-2"}
    # What it has is what the app makes of the initial arrays in three rounds, alone.
    app, alone = app_for(flower.ClientApp), initial()
    for number in (1, 2, 3):
        alone = trained_alone(grid_of(app), 101, alone, number)
    assert strategy.result.clients[1]["loss"] == pytest.approx(loss_of(alone, 1))
    assert [client["rounds_taken_part"] for client in strategy.result.clients] == [3, 3, 3]
    assert [client["samples"] for client in strategy.result.clients] == list(SIZES)


def trained_alone(grid, node, arrays, number):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"rate": 0.05, "server-round": number})})
    return grid.send_and_receive([Message(content, dst_node_id=node, message_type="train")])[0].content["arrays"]


def test_handlers_get_what_flower_would_send_and_the_methods_wishes(flower):
    calls = []
    method = coterie.FedAvg(rate=0.5, epochs=3, schedule="exponential", rate_decay=0.5)
    app = app_for(flower.ClientApp, calls)
    strategy = flower.strategy(method, parts=("train", "validation", "test"))
    strategy.start(grid_of(app), initial(), num_rounds=2, train_config=config(), evaluate_config=config(verbose=True))
    trained = [config for kind, node, config in calls if kind == "train" and node == 100]
    assert [asked["server-round"] for asked in trained] == [1, 2]
    assert [asked["coterie-rate"] for asked in trained] == [0.5, 0.25]
    assert trained[0]["rate"] == 0.05
    assert trained[0]["coterie-epochs"] == 3
    assert "coterie-steps" not in trained[0]
    evaluated = [config for kind, node, config in calls if kind == "evaluate" and node == 100]
    assert [asked["coterie-part"] for asked in evaluated] == ["test", "validation"] * 2
    assert evaluated[0]["verbose"] is True
    assert strategy.result.summary["validation_accuracy"] is not None


def test_an_app_with_one_evaluation_set_has_no_validation_data(flower):
    calls = []
    strategy, _ = started(flower, coterie.FedAvg(), rounds=1, app=app_for(flower.ClientApp, calls))
    assert {config["coterie-part"] for kind, _, config in calls if kind == "evaluate"} == {"test"}
    assert strategy.result.summary["validation_accuracy"] is None
    assert strategy.result.summary["best_round"] is None


def test_an_app_whose_clients_hold_no_test_data_is_scored_on_validation_data(flower):
    calls = []
    app = app_for(flower.ClientApp, calls)
    strategy, _ = started(flower, coterie.IFCA(clusters=2), rounds=1, app=app, parts=("train", "validation"))
    assert {config["coterie-part"] for kind, _, config in calls if kind == "evaluate"} == {"train", "validation"}
    assert strategy.result.summary["accuracy_mean"] is None
    assert strategy.result.summary["best_round"]["round"] == 1


def test_an_app_without_an_evaluate_handler_trains_all_the_same(flower):
    calls = []
    app = app_for(flower.ClientApp, calls)
    strategy, outcome = started(flower, coterie.FedAvg(), rounds=2, app=app, parts=())
    assert {kind for kind, *_ in calls} == {"train"}
    assert strategy.result.summary["accuracy_mean"] is None
    assert loss_of(outcome.arrays, 0) > 0
    with pytest.raises(ProgramError, match="the app has no evaluate handler"):
        started(flower, coterie.IFCA(clusters=2), app=app, parts=())


def test_mods_of_the_app_see_ordinary_messages(flower):
    kinds = []

    def mod(message, context, call_next):
        kinds.append((message.metadata.message_type, sorted(message.content)))
        return call_next(message, context)

    started(flower, coterie.FedAvg(), rounds=1, app=app_for(flower.ClientApp, mods=[mod]))
    assert set(map(str, kinds)) == {
        "('train', ['arrays', 'config'])",
        "('evaluate', ['arrays', 'config'])",
    }


def test_the_app_can_use_other_names_for_its_records(flower):
    app = flower.ClientApp()

    @app.train()
    def train(message, context):
        assert message.content["hyper"]["rate"] == 0.05
        metrics = MetricRecord({"rows": 10 * (1 + context.node_id - 100)})
        return Message(RecordDict({"out": message.content["weights"], "metrics": metrics}), reply_to=message)

    keys = {"arrayrecord_key": "weights", "configrecord_key": "hyper", "weighted_by_key": "rows"}
    strategy, outcome = started(flower, coterie.FedAvg(), rounds=1, app=app, parts=(), **keys)
    same(outcome.arrays, initial())
    assert [client["samples"] for client in strategy.result.clients] == [10, 20, 30]


def test_the_server_evaluates_what_most_clients_are_served(flower):
    seen = {}

    def evaluate(number, arrays):
        seen[number] = arrays
        return MetricRecord({"loss": loss_of(arrays, 0)}) if number else None

    strategy = flower.strategy(coterie.IFCA(clusters=2), seed=1)
    outcome = strategy.start(
        grid_of(app_for(flower.ClientApp)), initial(), num_rounds=6, train_config=config(), evaluate_fn=evaluate
    )
    assert list(seen) == list(range(7))
    same(seen[0], initial(), tolerance=0)
    same(seen[6], outcome.arrays, tolerance=0)
    assert list(outcome.evaluate_metrics_serverapp) == [1, 2, 3, 4, 5, 6]
    assert strategy.groups["partition-0"] == strategy.groups["partition-2"]


# Run folders, resuming, nodes that come and go


def test_a_run_folder_is_written_and_goes_on_after_a_stop(flower, tmp_path, call):
    whole, expected = started(flower, coterie.FedAvg(server_momentum=0.3), rounds=4, out=tmp_path / "whole")
    stored = StoredRun.read(tmp_path / "whole")
    assert stored.rounds == whole.result.rounds
    assert stored.summary["clients"] == 3
    assert "partition-1 has joined" in (tmp_path / "whole" / "log.txt").read_text()

    def stop(node, number, reply):
        if number == 3 + 2 * 6 + 1:  # greetings, two rounds of training and scoring, then the third begins
            raise KeyboardInterrupt
        return reply

    stopped = grid_of(app_for(flower.ClientApp), twist=stop)
    with pytest.raises(KeyboardInterrupt):
        started(flower, coterie.FedAvg(server_momentum=0.3), rounds=4, grid=stopped, out=tmp_path / "run")
    assert "2 of 4 rounds done; it goes on when its Flower app is started again" in call(f"show {tmp_path}/run").out
    again, outcome = started(flower, coterie.FedAvg(server_momentum=0.3), rounds=4, out=tmp_path / "run")
    same(outcome.arrays, expected.arrays, tolerance=0)
    assert [record["round"] for record in again.result.rounds] == [1, 2, 3, 4]
    assert list(outcome.evaluate_metrics_clientapp) == [3, 4, 1, 2]
    assert call(f"show {tmp_path}/whole {tmp_path}/run").code == 0
    with pytest.raises(SettingsError, match=r"server_momentum is 0.3 there, 0.0 here"):
        started(flower, coterie.FedAvg(), rounds=4, out=tmp_path / "run")


def test_the_first_round_waits_for_all_nodes(flower):
    grid = grid_of(app_for(flower.ClientApp), joined=lambda looks: min(looks // 2, 3))
    strategy = flower.strategy(coterie.FedAvg(), sites=3)
    strategy.start(grid, initial(), num_rounds=2, train_config=config())
    assert [client["rounds_taken_part"] for client in strategy.result.clients] == [2, 2, 2]


def test_too_few_nodes_stop_the_run(flower):
    grid = grid_of(app_for(flower.ClientApp), joined=lambda looks: 2)
    with pytest.raises(CoterieError, match=r"2 of at least 3 sites .*; start the app again when they are back"):
        started(flower, coterie.FedAvg(), grid=grid, sites=3)


def test_a_node_that_fails_costs_its_own_contribution(flower, caplog):
    def broken(node, number, reply):
        return Message(Error(code=3, reason="out of memory"), reply_to=reply) if number == 3 + 6 + 2 else reply

    def nonsense(node, number, reply):
        if number == 3 + 6 + 2:
            reply.content["metrics"] = reply.content["coterie"]
        return reply

    for twist, text in ((broken, "out of memory"), (nonsense, "partition-1 answers nonsense")):
        with caplog.at_level(logging.WARNING, logger="coterie"):
            grid = grid_of(app_for(flower.ClientApp), twist=twist)
            strategy, _ = started(flower, coterie.FedAvg(), grid=grid)
        assert [client["rounds_taken_part"] for client in strategy.result.clients] == [3, 2, 3]
        assert text in caplog.text


def test_a_round_that_is_lost_is_run_again_without_a_folder(flower):
    def away(node, number, reply):
        lost = number in (3 + 6 + 1, 3 + 6 + 2)
        return Message(Error(code=5, reason="unavailable"), reply_to=reply) if lost else reply

    _, expected = started(flower, coterie.FedAvg(server_momentum=0.3))
    grid = grid_of(app_for(flower.ClientApp), twist=away)
    strategy, outcome = started(flower, coterie.FedAvg(server_momentum=0.3), grid=grid)
    same(outcome.arrays, expected.arrays, tolerance=0)
    assert [record["round"] for record in strategy.result.rounds] == [1, 2, 3]


def test_a_client_that_forgot_the_app_is_told_again(flower, tmp_path, caplog):
    def forget(node, number, reply):
        if number == 3 + 6:
            shutil.rmtree(tmp_path / "clients" / "apps" / "partition-1" / "about")
        return reply

    with caplog.at_level(logging.WARNING, logger="coterie"):
        grid = grid_of(app_for(flower.ClientApp), twist=forget)
        strategy, _ = started(flower, coterie.FedAvg(), grid=grid, rounds=4)
    assert "partition-1 refused: this client has not been told about the app" in caplog.text
    assert [client["rounds_taken_part"] for client in strategy.result.clients] == [4, 3, 4]


def test_nodes_are_called_as_they_say(flower):
    app = app_for(flower.ClientApp)
    grid = grid_of(app)
    grid.contexts[100].node_config["name"] = "Köln/../Mitte"
    strategy, _ = started(flower, coterie.FedAvg(), rounds=1, grid=grid)
    assert [client["client"] for client in strategy.result.clients] == ["Köln/../Mitte", "partition-1", "partition-2"]
    folders = {path.name for path in (Path(os.environ["COTERIE_STATE"]) / "apps").iterdir()}
    assert folders == {"K%C3%B6ln%2F%2E%2E%2FMitte", "partition-1", "partition-2"}


# What cannot be done


@program
def tell_labels(clients: Clients):
    """Asks for what only the samples can tell."""
    return {"labels": clients.label_counts()}


@program(letters=True)
def write_letters(clients: Clients):
    """Writes to somebody."""
    clients.write(0, "partition-0", "greeting", number=torch.ones(1))


@program
def need_steps(clients: Clients, start: Models, local: coterie.LocalTraining):
    """Needs to know how many steps were taken."""
    return {"steps": clients.train(start, local).steps}


@program
def know_sizes(clients: Clients):
    """Asks for the number of samples, which the client told when it trained."""
    return {"sizes": clients.sizes}


@program
def spy(clients: Clients, models: Models):
    """Tries to read test data."""
    return {"loss": clients.evaluate(models, on="test").loss}


class Asks(coterie.FedAvg):
    """Runs a program after each round of FedAvg; made for tests, and known under no name."""

    name = "asks"

    def round(self, fed, state):
        after = super().round(fed, state)
        inputs = {"start": after.model, "models": after.model}
        wanted = {name: inputs[name] for name in self.asked.inputs if name in inputs}
        settings = {"local": self.local} if "local" in self.asked.inputs else {}
        self.replies.append(fed.run(self.asked, shared=wanted, **settings))
        return after


def asking(asked):
    method = type("Asking", (Asks,), {"asked": asked, "replies": []})
    return method()


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            coterie.FedProx(),
            r"fedprox: .*coterie.programs.train .*cannot give a pull in the gradient.*coterie deploy",
        ),
        (coterie.Scaffold(), r"scaffold: .*scaffold.controlled_training .*cannot give a push in the gradient"),
        (coterie.FedEM(), r"fedem: .*fedem.train_components .*cannot give what takes the samples themselves"),
        (coterie.PerFedAvg(), r"per-fedavg: .*cannot give another objective than their own"),
        (asking(tell_labels), r"asks: .*tell_labels .*what takes the samples themselves"),
        (asking(write_letters), r"asks: .*write_letters .*letters between clients"),
        (asking(need_steps), r"does not tell the number of its steps: add 'num-steps' to its metrics \(train_loss, "),
        (asking(spy), r"test data is for scoring only"),
    ],
)
def test_what_an_app_cannot_do_is_said_clearly(method, reason, flower):
    with pytest.raises(ProgramError, match=reason):
        started(flower, method, app=app_for(flower.ClientApp, allow=["*"]))


def test_what_a_part_of_the_clients_cannot_do_is_said_as_clearly(flower):
    with pytest.raises(CoterieError, match=r"fedprox: round 1.* cannot give a pull in the gradient"):
        started(flower, coterie.FedProx(participation=0.7))


IN_AN_APP = re.findall(r"`([a-z-]+)`", re.search(r"^Run:(.*?)\n\n", GUIDE, re.DOTALL | re.MULTILINE).group(1))


def run_of(flower, name):
    strategy = flower.strategy(coterie.methods.make(name), patience=0)
    strategy.start(grid_of(app_for(flower.ClientApp), nodes=4), initial(), num_rounds=2, train_config=config())
    return strategy.result


@pytest.mark.parametrize("name", IN_AN_APP)
def test_methods_that_the_guide_names_run_in_an_app(name, flower):
    assert [client["rounds_taken_part"] for client in run_of(flower, name).clients] == [2, 2, 2, 2]


@pytest.mark.parametrize("name", sorted(set(coterie.methods) - set(IN_AN_APP)))
def test_all_others_say_why_not(name, flower):
    with pytest.raises(CoterieError, match=r"cannot give|does not tell|samples"):
        run_of(flower, name)


def test_fedbn_runs_in_an_app_if_it_is_told_which_layers_are_shared(flower):
    strategy, _ = started(flower, coterie.FedBN(shares="not top-1"))
    assert [client["rounds_taken_part"] for client in strategy.result.clients] == [3, 3, 3]


def test_fedprox_without_a_pull_runs_as_fedavg(flower):
    _, ours = started(flower, coterie.FedProx(mu=0.0))
    _, fedavg = started(flower, coterie.FedAvg())
    same(ours.arrays, fedavg.arrays, tolerance=0)


def test_a_client_knows_its_size_once_it_has_trained(flower):
    method = asking(know_sizes)
    started(flower, method, app=app_for(flower.ClientApp, allow=["*"]))
    assert method.replies[-1].sizes.flatten().tolist() == list(SIZES)


def test_an_app_can_tell_how_many_steps_it_took(flower):
    app = app_for(flower.ClientApp, told={"num-steps": 5})
    strategy, ours = started(flower, coterie.FedNova(), app=app)
    _, fedavg = started(flower, coterie.FedAvg())
    same(ours.arrays, fedavg.arrays)  # equally many steps: FedNova is FedAvg
    assert [client["steps"] for client in strategy.result.clients] == [15, 15, 15]
    assert ours.train_metrics_clientapp[1]["num-steps"] == 5


def test_only_programs_that_the_app_allows_are_run(flower, caplog):
    with pytest.raises(ProgramError, match="tell_labels is not allowed by this site's settings"):
        started(flower, asking(tell_labels))
    with pytest.raises(ProgramError, match=r"coterie\.programs\.train is not allowed"):
        started(flower, coterie.FedAvg(), app=app_for(flower.ClientApp, allow=["coterie.scoring.*"]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"metrics": {"num-examples": 3}}, "gives 0 records of arrays, not 1"),
        ({"arrays": None, "metrics": {"rows": 3}}, r"gives num-examples=None among its metrics \(rows\)"),
        ({"arrays": None, "metrics": {"num-examples": 0}}, "gives num-examples=0"),
        ({"arrays": {"w": np.ones(2)}, "metrics": {"num-examples": 3}}, "other arrays than the run began with"),
        (ValueError("no data here"), "ValueError: no data here"),
        ("broken pipe", "the app's train handler gives an error: broken pipe"),
        ({"arrays": None, "metrics": {"num-examples": 3}}, "the app's evaluate handler gives no loss"),
    ],
)
def test_a_handler_that_gives_something_else_is_named(content, reason, flower):
    app = flower.ClientApp()

    @app.train()
    def train(message, context):
        if isinstance(content, Exception):
            raise content
        if isinstance(content, str):
            return Message(Error(code=1, reason=content), reply_to=message)
        records = {"metrics": MetricRecord(content["metrics"])}
        if "arrays" in content:
            given = content["arrays"]
            records["arrays"] = message.content["arrays"] if given is None else record_of(**given)
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 3, "score": 1.0})}), reply_to=message)

    with pytest.raises(ProgramError, match=reason):
        started(flower, coterie.FedAvg(), app=app)


def test_messages_that_are_none_of_ours_are_refused(flower, caplog):
    about = codec.dump({"something": "else"})
    contents = {
        "does not say about which app": as_records({"request": b""}),
        "is none of ours": RecordDict({"config": ConfigRecord({})}),
        "about another app": as_records({"app": b"0" * 64, "about": about}),
        "says nothing about an app": as_records({"app": digest_of(about).encode(), "about": about}),
        "has not been told": as_records({"app": b"1" * 64}),
    }
    grid = grid_of(app_for(flower.ClientApp))
    for reason, content in contents.items():
        reply = grid.send_and_receive([Message(content, dst_node_id=100, message_type=APP_MESSAGE)])[0]
        assert reason in codec.load(from_records(reply.content)["answer"], {})["refused"]
        assert reason in caplog.text


def test_the_strategy_drives_whole_rounds(flower):
    strategy = flower.strategy(coterie.FedAvg())
    for phase in ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"):
        with pytest.raises(CoterieError, match="fedavg drives whole rounds: call the strategy's start"):
            getattr(strategy, phase)(1, None)


def test_bad_options_are_refused_at_once(flower):
    with pytest.raises(SettingsError, match=r"a method is needed, such as coterie\.FedAvg"):
        flower.strategy("fedavg")
    with pytest.raises(SettingsError, match="parts='tests': some of train, validation, test"):
        flower.strategy(coterie.FedAvg(), parts=["tests"])
    with pytest.raises(SettingsError, match="min_sites=0"):
        flower.strategy(coterie.FedAvg(), min_sites=0)
    with pytest.raises(SettingsError, match="reads test data with these settings"):
        flower.strategy(coterie.methods.make("flis-dc", compat=True))
    with pytest.raises(SettingsError, match="client_fn"):
        flower.ClientApp(lambda context: None)


# The example


@pytest.fixture
def example(monkeypatch):
    """The example's modules."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield {name: importlib.import_module(f"digits_app.{name}") for name in ("task", "client_app")}
    for name in [name for name in sys.modules if name.startswith("digits_app")]:
        del sys.modules[name]


def test_the_example_finds_the_turned_scanners(flower, example):
    torch.manual_seed(0)
    arrays = ArrayRecord(example["task"].Net().state_dict())
    strategy = flower.strategy(coterie.IFCA(clusters=2), sites=4, parts=("train", "test"))
    strategy.start(grid_of(example["client_app"].app, nodes=4), arrays, num_rounds=2, train_config=config(0.1))
    assert strategy.groups["partition-0"] == strategy.groups["partition-2"]
    assert strategy.groups["partition-1"] == strategy.groups["partition-3"]
    assert strategy.groups["partition-0"] != strategy.groups["partition-1"]


@pytest.mark.slow
def test_the_example_runs_on_real_nodes(tmp_path):
    from coterie.deploy.processes import Processes, flower_environment, free_port

    home, out, port = tmp_path / "flwr", tmp_path / "run", free_port()
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    environment = flower_environment(home) | {
        "COTERIE_STATE": str(tmp_path / "clients"),
        # The apps' processes shall use the Coterie under test.
        "PYTHONPATH": str(Path(coterie.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    binaries = Path(sys.executable).parent
    processes = Processes()
    try:
        superlink = [str(binaries / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        superlink += ["--database", str(tmp_path / "state.db"), "--disable-runtime-dependency-installation"]
        processes.start("SuperLink", superlink, tmp_path / "superlink.log", environment)
        for place in range(2):
            node = [str(binaries / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--port", str(free_port()), "--node-config", f"partition-id={place} num-partitions=2"]
            processes.start(f"node {place}", node, tmp_path / f"node-{place}.log", environment)
        settings = f'out="{out}" nodes=2 num-server-rounds=2'
        run = [str(binaries / "flwr"), "run", str(EXAMPLE), "here", "--stream", "--run-config", settings]
        started = time.monotonic()
        while not (out / "summary.json").is_file():
            done = subprocess.run(run, env={**os.environ, **environment}, capture_output=True, text=True, timeout=540)
            # The SuperLink may not listen yet.
            assert done.returncode == 0 or time.monotonic() - started < 60, done.stdout + done.stderr
    finally:
        processes.stop()
    stored = StoredRun.read(out)
    assert [record["round"] for record in stored.rounds] == [1, 2]
    assert [client["client"] for client in stored.clients] == ["partition-0", "partition-1"]
    assert len({client["group_found"] for client in stored.clients}) == 2
    assert stored.summary["accuracy_mean"] > 0.7
    assert "'partition-0'" in done.stdout
