"""The engine for real sites over a transport without a network: the same numbers as a simulation, and every fault."""

import json
import logging
import shutil
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save as save_tensors

import coterie
from coterie import Clients, program
from coterie.clients.clients import CallContext
from coterie.clients.letters import Letter
from coterie.clients.sealing import Identity, write_peers
from coterie.core.errors import ProgramError, SettingsError
from coterie.data import Schema, Split, from_table
from coterie.deploy.server import Deployment, run_over
from coterie.deploy.site import SiteSettings
from coterie.engines.flower.engine import FederatedTask, RoundLostError, TooFewSitesError, Waiting
from coterie.engines.simulation import Computing
from coterie.nets import codec
from coterie.nets.stacks import Models
from coterie.runs.folder import StoredRun
from coterie.server.federation import Federation
from coterie.server.served_models import ServedModels

NAMES = ("aachen", "bonn", "celle")
LABELS = ("cat", "dog", "eel")
FAST = {"timeout": 5.0, "patience": 0.0, "poll": 0.001}


class Wires:
    """A transport to sites in this process, with faults to order."""

    def __init__(self, sites):
        self.sites = dict(enumerate(sites, start=7))
        self.waiting, self.count = {}, 0
        self.away = set()
        self.sent = []
        self.twist = lambda node, number, answer: answer

    def nodes(self):
        return set(self.sites) - self.away

    def send(self, messages):
        names = {}
        for node, parts in messages.items():
            self.count += 1
            self.sent.append(parts)
            names[node] = str(self.count)
            answer = None if node in self.away else self.sites[node].answer(parts)
            answer = self.twist(node, self.count, answer)
            if answer is not ...:
                self.waiting[str(self.count)] = answer
        return names

    def receive(self, messages, most):
        return {name: self.waiting.pop(name) for name in messages if name in self.waiting}


class Gate:
    """Does something after each round."""

    def __init__(self, act):
        self.act = act

    def round_done(self, checkpoint, record, groups):
        self.act(record["round"])

    def run_done(self, checkpoint, result):
        pass


def everything(samples=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples * len(NAMES), 5)).astype(np.float32)
    return coterie.Dataset(x, np.arange(len(x)) % 3, labels=LABELS)


def parts(samples=40):
    return [np.arange(samples * place, samples * (place + 1) - 7 * place) for place in range(len(NAMES))]


@pytest.fixture
def sites(tmp_path):
    """Three sites with own files of data, letter identities and settings."""
    return settled_at(tmp_path, everything(), NAMES, parts())


def settled_at(tmp_path, data, names, indices):
    """Sites with these samples each."""
    identities = {name: Identity.create() for name in names}
    write_peers(tmp_path / "peers.toml", {name: one.public for name, one in identities.items()})
    made = []
    for name, index in zip(names, indices, strict=True):
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / "data.npz", x=data.x[index], y=np.array(LABELS)[data.y[index]])
        identities[name].write(folder / "identity.pem")
        (folder / "site.toml").write_text(
            f"""
            format = 1
            name = "{name}"
            labels = ["cat", "dog", "eel"]
            net = "mlp"
            data = "data.npz"
            state = "state"
            shift = [0, 0, 0, 0, 0]
            scale = [1, 1, 1, 1, 1]
            allow = ["coterie.*", "test_flower.*", "tests.*"]
            identity = "identity.pem"
            peers = "../peers.toml"
            [computing]
            precision = "float64"
            """
        )
        made.append(SiteSettings.read(folder / "site.toml"))
    return made


@pytest.fixture
def wires(sites):
    return Wires([site.open() for site in sites])


def deployment(method, server=None, **waiting):
    task = FederatedTask(LABELS, (5,), "mlp", (0.0,) * 5, (1.0,) * 5)
    computing = Computing(precision="float64", device="cpu")
    return Deployment(method, task, server=server, waiting=Waiting(**FAST | waiting), computing=computing)


def simulated(**options):
    split = Split(tuple(parts()), names=NAMES)
    return coterie.simulate(everything(), split, "mlp", precision="float64", scaling="none", workers=0, **options)


def unused():
    """The samples that no site has."""
    return np.setdiff1d(np.arange(40 * len(NAMES)), np.concatenate(parts()))


def held():
    """What the server holds: the samples that no site has."""
    data = everything()
    return coterie.Dataset(data.x[unused()], data.y[unused()], labels=LABELS)


def same(one, other):
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert set(mine) == set(theirs)
        for key, value in mine.items():
            if key == "bytes_peer":
                assert value >= theirs[key]  # letters travel sealed, which makes each a little longer
            elif not key.endswith("seconds"):
                assert value == pytest.approx(theirs[key], abs=1e-9), key


METHODS = {
    "accord": {"base": "scaffold", "insured": True, "participation": 0.7, "group_round": 2, "significance": 0.9},
    "autocfl": {"cluster_round": 2},
    "cafa": {"participation": 0.7},
    "cfic": {"participation": 0.7},
    "fedavg": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.1},
    "moon": {"participation": 0.7},
    "scaffold": {"participation": 0.7},
    "apfl": {},
    "local": {},
    "slfed": {"synthetic": 10, "gan_steps": 3},
    "per-fedavg": {"order": "hessian-free"},
    "pfedme": {"inner_steps": 2},
    "fedem": {"components": 2, "participation": 0.7},
    "fedopt": {"server_optimizer": "yogi", "server_rate": 0.05},
    "fedavg-ft": {"probe_epochs": 1.0, "tune_epochs": 2.0},
    "fedper": {},
    "fedbn": {},
    "feddbe": {"participation": 0.7},
    "fedbabu": {"tune_epochs": 2.0},
    "fedamp": {"participation": 0.7},
    "fedfomo": {"downloads": 1},
    "fedlc": {"tau": 0.5},
    "fedrod": {"participation": 0.7},
    "fedala": {"participation": 0.7},
    "fedproto": {"participation": 0.7},
    "fedpac": {"participation": 0.7},
    "ifca": {"clusters": 2, "init_retry": 1},
    "fesem": {"clusters": 2, "participation": 0.7},
    "fedrc": {"clusters": 2, "participation": 0.7},
    "stocfl": {"threshold": 0.2, "participation": 0.7},
    "fedsoft": {"clusters": 2, "participation": 0.7},
    "fedgroup": {"clusters": 2, "group_rate": 0.01, "participation": 0.7},
    "cfl": {"warmup": 1, "mean_norm": 2.0, "client_norm": 0.0, "gamma": None},
    "fl-hc": {"cluster_round": 2, "clusters": 2},
    "hdbscan": {"cluster_round": 2, "noise": "global"},
    "pacfl": {"clusters": 2, "vectors": 1},
}


@pytest.mark.parametrize("name", METHODS)
def test_sites_give_what_a_simulation_gives(name, wires, tmp_path):
    method = coterie.methods.make(name, rounds=3, batch=8, **METHODS[name])
    real = run_over(deployment(method), wires, tmp_path / "run")
    alone = method.fit(simulated())
    same(real.rounds, alone.rounds)
    same(real.clients, alone.clients)
    stored = StoredRun.read(tmp_path / "run")
    assert stored.rounds == real.rounds
    assert stored.summary["clients"] == 3


def test_sites_mix_models_by_shares_that_the_server_relays(tmp_path, monkeypatch):
    # Enough sites for contributors: three of SLFed's clients would each keep their own model.
    names = tuple(f"site {place}" for place in range(8))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(320, 5)).astype(np.float32)
    data = coterie.Dataset(x, (x @ rng.normal(size=(5, 3))).argmax(1), labels=LABELS)
    indices = np.array_split(np.arange(320), 8)
    wires = Wires([site.open() for site in settled_at(tmp_path, data, names, indices)])
    answers, private = [], []
    wires.twist = lambda node, number, answer: answers.append(answer) or answer
    write, keep = Clients.write, Clients.keep
    monkeypatch.setattr(Clients, "write", lambda self, *a, **k: (private.extend(k.values()), write(self, *a, **k))[1])
    monkeypatch.setattr(Clients, "keep", lambda self, **k: (private.extend(k.values()), keep(self, **k))[1])
    method = coterie.SLFed(rounds=1, batch=8, synthetic=20, gan_steps=5)
    real = run_over(deployment(method), wires, tmp_path / "run")
    monkeypatch.undo()
    split = Split(tuple(indices), names=names)
    fed = coterie.simulate(data, split, "mlp", precision="float64", scaling="none", workers=0)
    alone = method.fit(fed)
    for mine, theirs in zip(real.clients, alone.clients, strict=True):
        assert mine["accuracy"] == theirs["accuracy"]
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-8)  # shares are rounded to a step of 2**-32
        assert mine["steps"] == theirs["steps"]
    sealed, plain = (result.summary["ledger"] for result in (real, alone))
    assert sealed["up"] == plain["up"]
    assert sealed["down"] == plain["down"]
    assert sealed["peer"].keys() == plain["peer"].keys() == {"samples", "counts", "opinions", "request", "share", "sum"}
    assert all(sealed["peer"][subject] >= size for subject, size in plain["peer"].items())
    # Nothing that a client kept or wrote is to be found in what passed through the server.
    passed = b"".join([*answers, *(part for message in wires.sent for part in message.values())])
    tensors = [value.parameters if isinstance(value, Models) else value for value in private]
    secrets = {tensor.contiguous().numpy().tobytes() for tensor in tensors if tensor.unique().numel() > 8}
    assert len(secrets) > 40
    assert not any(content[-64:] in passed for content in secrets)
    assert names[0].encode() in passed


OWN_PRIORS = {
    "fedavg": {},
    "ifca": {"clusters": 2},
    "fedem": {"components": 2},
    "accord": {"group_round": 2, "insured": True},
}


@pytest.mark.parametrize(("name", "options"), OWN_PRIORS.items())
def test_sites_add_their_own_priors_and_tell_nobody(name, options, tmp_path):
    # Some labels are rarer at one site than at another, so that shares are there to be seen.
    data = everything()
    indices = [
        index[(data.y[index] == place) | (np.arange(len(index)) % 2 == 0)] for place, index in enumerate(parts())
    ]
    wires = Wires([site.open() for site in settled_at(tmp_path, data, NAMES, indices)])
    answers = []
    wires.twist = lambda node, number, answer: answers.append(answer) or answer
    made = {
        prior: coterie.methods.make(name, rounds=2, batch=8, prior=prior, **options) for prior in ("own", "learned")
    }
    real = run_over(deployment(made["own"]), wires, tmp_path / "run")
    split = Split(tuple(indices), names=NAMES)
    fed = coterie.simulate(data, split, "mlp", precision="float64", scaling="none", workers=0)
    alone, usual = made["own"].fit(fed), made["learned"].fit(fed)
    same(real.clients, alone.clients)
    assert [client["loss"] for client in usual.clients] != [client["loss"] for client in alone.clients]
    assert real.models is None
    for place, client in enumerate(NAMES):
        own = ServedModels.read(tmp_path / client / "model.safetensors")
        np.testing.assert_allclose(own.prior, alone.models.of_client(client).prior, atol=1e-12)
        inputs = data.x[indices[place]]
        np.testing.assert_allclose(own.model(client).scores(inputs), alone.model(client).scores(inputs), atol=1e-9)
    # No count of labels, no share and no prior of any site is in what passed, neither as bytes nor in words.
    counts = fed.run(coterie.programs.label_histogram).label_histogram
    passed = b"".join([*answers, *(part for message in wires.sent for part in message.values())])
    for own in (*counts, *(counts / counts.sum(dim=1, keepdim=True)), *alone.models.prior):
        for value in (own, own.double(), own.float()):
            assert value.numpy().tobytes() not in passed
            assert str(value.tolist()).encode() not in passed
    outputs = [codec.load(answer, {"mlp": fed.net}).get("outputs", {}) for answer in answers]
    known = {"model", "choice", "loss", "test_samples", "test_accuracy", "validation", "steps", "rounds"}
    told = {"gains", "means", "spread", "known", "accuracy", "evaluated", "_kept_finite"}
    known |= told if name == "accord" else set()
    assert {name for output in outputs for name in output} <= known
    # What is looked for would be found: a site that is asked for its labels answers with such bytes.
    wires.twist = lambda node, number, answer: answer
    asked = dict.fromkeys(("base", "builds_on"))
    at = vars(CallContext(seed=0, number=1))
    call = {"format": 1, "ask": "call", "program": "coterie.programs.label_histogram", "run": "r", "at": at, **asked}
    request = codec.dump({**call, "letters": [], "announcements": {}, "each": {}, "settings": {}})
    assert counts[0].numpy().tobytes() in wires.sites[7].answer({"request": request})


BY_INFERENCE = {
    "flis-dc": {"threshold": 0.6},
    "flis-hc": {"threshold": 0.6},
    "compose": {"evidence": "inference", "grouping": "linkage", "threshold": 0.6, "group_round": 2},
}


@pytest.mark.parametrize("name", BY_INFERENCE)
def test_sites_are_compared_on_what_the_server_holds(name, wires, tmp_path):
    method = coterie.methods.make(name, rounds=3, batch=8, rate=0.5, **BY_INFERENCE[name])
    real = run_over(deployment(method, server="test_flower:held"), wires, tmp_path / "run")
    alone = method.fit(simulated(server_samples=len(unused())))
    same(real.rounds, alone.rounds)
    same(real.clients, alone.clients)
    assert real.rounds[-1]["groups"] > 1


def test_no_site_lets_a_method_read_test_data(wires, tmp_path, monkeypatch):
    leaky = coterie.methods.make("flis-dc", rounds=1, compat=True)
    with pytest.raises(SettingsError, match="flis-dc reads test data with these settings: no site allows that"):
        deployment(leaky, server="test_flower:held")
    monkeypatch.setattr(Deployment, "__post_init__", lambda self: None)
    with pytest.raises(ProgramError, match="at a site it is for scoring only"):
        run_over(deployment(leaky, server="test_flower:held"), wires, tmp_path / "run")


def test_a_run_that_was_stopped_goes_on_to_the_same_end(wires, sites, tmp_path):
    method = coterie.Scaffold(rounds=4, batch=8, participation=0.7)
    whole = run_over(deployment(method), wires, tmp_path / "whole")

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_over(deployment(method), wires, tmp_path / "run", [Gate(stop)])
    # Another server process, and the sites' processes are new too.
    again = run_over(deployment(method), Wires([site.open() for site in sites]), tmp_path / "run")
    same(again.rounds, whole.rounds)
    same(again.clients, whole.clients)
    assert torch.equal(again.state.model.parameters, whole.state.model.parameters)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda answer: None, "could not be reached"),
        (lambda answer: ..., "did not answer within"),
        (lambda answer: b"nonsense", "answers nonsense"),
        (lambda answer: codec.dump([1, 2]), "answers nonsense"),
        (lambda answer: codec.dump({"outputs": {"model": torch.ones(1, 3)}, "kept": False, "letters": []}), "wrongly"),
        (lambda answer: codec.dump({"outputs": {"model": torch.ones(2, 3)}, "kept": False, "letters": []}), "nonsense"),
        (lambda answer: codec.dump({"failed": "no memory"}), "failed: no memory"),
        (lambda answer: spoiled(answer, float("nan")), "not finite"),
        (lambda answer: spoiled(answer, float("inf")), "not finite"),
    ],
)
def test_a_fault_costs_the_site_its_contribution_in_that_round_and_nothing_else(
    fault, message, wires, tmp_path, caplog
):
    def twist(node, number, answer):
        # Three greetings, three answers in round 1, three scores; number 10 is the first site in round 2.
        return fault(answer) if number == 10 else answer

    wires.twist = twist
    method = coterie.Scaffold(rounds=3, batch=8)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(deployment(method, timeout=0.05), wires, tmp_path / "run")
    assert [client["rounds_taken_part"] for client in result.clients] == [2, 3, 3]
    assert message in caplog.text
    assert "aachen" in caplog.text
    assert "aachen" in (tmp_path / "run" / "log.txt").read_text()


def spoiled(answer, number):
    nets = {"mlp": coterie.simulate(everything(), Split(tuple(parts())), "mlp", precision="float64").net}
    content = codec.load(answer, nets)
    model = content["outputs"]["model"]
    parameters = model.parameters.clone()
    parameters[0, 3] = number
    content["outputs"]["model"] = Models(model.net, parameters, model.buffers)
    return codec.dump(content)


def test_a_site_that_loses_a_round_ends_as_if_it_had_not_been_asked(wires, tmp_path):
    # Its control variate must be that of round 1 when round 3 begins.
    wires.twist = lambda node, number, answer: spoiled(answer, float("nan")) if number == 10 else answer
    method = coterie.Scaffold(rounds=3, batch=8)
    lost = run_over(deployment(method), wires, tmp_path / "lost")
    fed = simulated()
    present = fed._engine.present
    fed._engine.present = lambda: present()[1:] if fed.round == 2 else present()
    expected = method.fit(fed)
    difference = lost.state.model.parameters - expected.state.model.parameters
    # The share of the cohort among all clients is another: here a client is missing, there it is not there at all.
    assert difference.abs().max() < 0.1
    assert [client["steps"] for client in lost.clients] == [client["steps"] for client in expected.clients]


def test_a_site_that_goes_and_comes_back_takes_part_again(wires, tmp_path):
    def close(number):
        wires.away = {8} if number == 1 else set()

    result = run_over(deployment(coterie.FedAvg(rounds=3, batch=8)), wires, tmp_path / "run", [Gate(close)])
    assert [client["rounds_taken_part"] for client in result.clients] == [3, 2, 3]
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "bonn is no longer connected" in text
    assert "bonn is back" in text


def test_a_site_that_joins_late_gets_a_position_behind_the_others(wires, tmp_path):
    wires.away = {7}
    arrival = Gate(lambda number: wires.away.clear())
    result = run_over(deployment(coterie.FedAvg(rounds=2, batch=8)), wires, tmp_path / "run", [arrival])
    assert [client["client"] for client in result.clients] == ["bonn", "celle", "aachen"]
    assert [client["rounds_taken_part"] for client in result.clients] == [2, 2, 1]


def test_too_few_sites_stop_the_run_with_its_state_saved(wires, tmp_path):
    def leave(number):
        if number == 2:
            wires.away = {7, 8}

    method = coterie.FedAvg(rounds=4, batch=8)
    with pytest.raises(TooFewSitesError, match=r"1 of at least 2 sites .*coterie deploy resume"):
        run_over(deployment(method), wires, tmp_path / "run", [Gate(leave)])
    wires.away = set()
    again = run_over(deployment(method), wires, tmp_path / "run")
    same(again.rounds, method.fit(simulated()).rounds)


def test_a_round_that_too_few_answer_is_run_again(wires, tmp_path):
    wires.twist = lambda node, number, answer: None if number in (10, 11) else answer
    method = coterie.Scaffold(rounds=3, batch=8)
    result = run_over(deployment(method), wires, tmp_path / "run")
    same(result.rounds, method.fit(simulated()).rounds)
    assert (
        "1 of 3 sites answered, at least 2 are needed; the round is tried again"
        in (tmp_path / "run" / "log.txt").read_text()
    )


def test_a_program_that_no_site_can_run_stops_the_run_at_once(wires, tmp_path):
    wires.twist = lambda node, number, answer: codec.dump({"failed": "no memory"}) if number > 9 else answer
    with pytest.raises(ProgramError, match="round 2, no site can: no memory"):
        run_over(deployment(coterie.FedAvg(rounds=3, batch=8)), wires, tmp_path / "run")
    assert wires.count == 12


def test_a_part_of_the_sites_that_fail_costs_the_round_alone(wires, tmp_path):
    # Two of three are asked, and both fail, once; number 9 is the first in round 2.
    wires.twist = lambda node, number, answer: codec.dump({"failed": "no memory"}) if number in (9, 10) else answer
    result = run_over(deployment(coterie.FedAvg(rounds=3, batch=8, participation=0.7)), wires, tmp_path / "run")
    assert [record["round"] for record in result.rounds] == [1, 2, 3]
    assert "at least 2 are needed (no memory); the round is tried again" in (tmp_path / "run/log.txt").read_text()


def test_a_site_counts_with_the_samples_that_it_last_told_if_these_are_not_more_than_at_first(wires, tmp_path):
    def twist(node, number, answer):
        content = codec.load(answer, {"mlp": simulated().net}) if number in (4, 5, 6) else None
        told = {4: 5, 5: True, 6: 1000}
        return answer if content is None else codec.dump({**content, "samples": told[number]})

    wires.twist = twist
    counted, average = [], coterie.FedAvg.step

    def step(self, state, replies):
        counted.append(replies.samples.tolist())
        return average(self, state, replies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coterie.FedAvg, "step", step)
        result = run_over(deployment(coterie.FedAvg(rounds=1, batch=8)), wires, tmp_path / "run")
    assert counted == [[5, 23, 18]]
    assert [client["samples"] for client in result.clients] == [28, 23, 18]  # scoring told the truth again


def test_a_round_that_is_lost_again_and_again_stops_the_run(wires, tmp_path):
    wires.twist = lambda node, number, answer: None if number > 9 else answer
    with pytest.raises(RoundLostError, match="round 2"):
        run_over(deployment(coterie.FedAvg(rounds=3, batch=8)), wires, tmp_path / "run")


def test_the_first_round_waits_for_all_sites_that_are_expected(wires, tmp_path):
    wires.away = {9}
    with pytest.raises(TooFewSitesError, match="2 of at least 3"):
        run_over(deployment(coterie.FedAvg(rounds=1), sites=3), wires, tmp_path / "run")


def test_a_site_with_another_task_is_not_admitted(wires, tmp_path, caplog):
    made = deployment(coterie.FedAvg(rounds=1))
    other = Deployment(made.method, FederatedTask(("cat", "dog", "fox"), (5,), "mlp"), waiting=made.waiting)
    with caplog.at_level(logging.WARNING, logger="coterie"), pytest.raises(TooFewSitesError):
        run_over(other, wires, tmp_path / "run")
    assert "site aachen is not admitted: its labels is ['cat', 'dog', 'eel'], the task's is" in caplog.text


def test_sites_train_on_an_own_loss_as_a_simulation_does_and_one_with_another_is_not_admitted(
    sites, tmp_path, monkeypatch, caplog
):
    module = types.ModuleType("own_losses")
    module.brier = brier
    monkeypatch.setitem(sys.modules, "own_losses", module)
    made = deployment(coterie.FedAvg(rounds=3, batch=8))
    made = replace(made, task=replace(made.task, loss="own_losses:brier"))
    real = run_over(made, Wires([replace(site, loss="own_losses:brier").open() for site in sites]), tmp_path / "run")
    alone = coterie.FedAvg(rounds=3, batch=8).fit(simulated(loss="own_losses:brier"))
    same(real.rounds, alone.rounds)
    same(real.clients, alone.clients)
    opened = [replace(site, loss="own_losses:brier").open() for site in sites[:2]]
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(made, Wires([*opened, sites[2].open()]), tmp_path / "other")
    assert [client["client"] for client in result.clients] == ["aachen", "bonn"]
    assert "site celle is not admitted: its loss is the task's own, the server's own_losses:brier" in caplog.text


def brier(outputs, targets):
    return (outputs.softmax(dim=-1) - torch.nn.functional.one_hot(targets, 3)).square().sum(dim=-1)


def test_a_site_with_other_pretrained_weights_is_not_admitted(sites, tmp_path, monkeypatch, caplog):
    weights = torch.ones(4, 5)

    def make(shape, classes):
        made = torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False), torch.nn.Linear(4, classes))
        made[0].weight = torch.nn.Parameter(weights.clone(), requires_grad=False)
        return made

    module = types.ModuleType("own_nets")
    module.make = make
    monkeypatch.setitem(sys.modules, "own_nets", module)
    opened = [replace(site, net="own_nets:make").open() for site in sites[:2]]
    weights[3, 3] += 1e-6
    opened.append(replace(sites[2], net="own_nets:make").open())
    weights[3, 3] = 1
    made = deployment(coterie.FedAvg(rounds=1))
    made = replace(made, task=replace(made.task, net="own_nets:make"))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(made, Wires(opened), tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["aachen", "bonn"]
    assert "site celle is not admitted: its net has other frozen parameters than the task's: all must" in caplog.text


def test_two_nodes_cannot_have_one_name(sites, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        wires = Wires([sites[0].open(), sites[1].open(), sites[0].open()])
        result = run_over(deployment(coterie.FedAvg(rounds=1, batch=8)), wires, tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["aachen", "bonn"]
    assert "another node has this name already" in caplog.text


# Hostile answers: each costs the site that gives it its contribution, and the run goes on as if it had not been asked


def altered(answer, **outputs):
    """A site's answer with other outputs."""
    content = codec.load(answer, nets_of_sites())
    content["outputs"] = content["outputs"] | outputs
    return codec.dump(content)


def nets_of_sites():
    return {"mlp": simulated().net}


def scaled(answer, factor=1.0, add=0.0):
    model = codec.load(answer, nets_of_sites())["outputs"]["model"]
    return altered(answer, model=Models(model.net, model.parameters * factor + add, model.buffers))


def written(*letters):
    return lambda answer: codec.dump({**codec.load(answer, nets_of_sites()), "letters": list(letters)})


def only(outputs):
    return lambda answer: codec.dump({"outputs": outputs, "kept": False, "letters": []})


def unfolding(answer):
    """2 MB that name the megabyte in them ten thousand times."""
    part = {"$": "bytes", "of": {"$": "tensor", "of": "0"}}
    tree = {"$": "dict", "of": [["outputs", {"$": "list", "of": [part] * 10_000}]]}
    return save_tensors({"0": torch.zeros(1 << 20, dtype=torch.uint8)}, {"tree": json.dumps(tree)})


HOSTILE = {
    "letters of a program that writes none": (written(Letter("aachen", "bonn", "x", b"")), "letters"),
    "letters in the name of another": (written(Letter("bonn", "celle", "x", b"")), "letters"),
    "letters that are numbers": (written(5), "letters"),
    "letters of wrong content": (written(Letter("aachen", "bonn", "x", 5)), "letters"),
    "outputs of mixed names": (lambda answer: altered(answer, model=torch.ones(1)), "wrongly shaped outputs"),
    "names that are none": (
        lambda answer: codec.dump(
            {"outputs": {1: torch.ones(1), "model": torch.ones(1)}, "kept": False, "letters": []}
        ),
        "not the outputs of one client",
    ),
    "another output besides": (
        lambda answer: altered(answer, more=torch.ones(1)),
        "outputs 'model', 'more', not 'model'",
    ),
    "empty outputs": (lambda answer: codec.dump({"outputs": {}, "kept": False, "letters": []}), "outputs none"),
    "an answer without a part of it": (lambda answer: codec.dump({"outputs": {}}), "not the outputs of one client"),
    "what unfolds": (unfolding, "damaged content"),
    "what is too large": (lambda answer: codec.dump({"outputs": torch.zeros(10 << 20)}), "bytes, where at most"),
    "what cannot be read": (lambda answer: ZeroDivisionError("in a record"), "answers nonsense: in a record"),
    "deeply nested": (lambda answer: b"\xff" * 8 + b"[" * 100_000, "damaged content"),
    "1e38": (lambda answer: scaled(answer, add=1e38), "away from what it was sent"),
    "1e300": (lambda answer: scaled(answer, add=1e300), "away from what it was sent"),
    "minus ten times the model": (lambda answer: scaled(answer, factor=-10), "away from what it was sent"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_its_site_alone_its_contribution(name, wires, tmp_path, caplog):
    fault, message = HOSTILE[name]
    method = coterie.FedAvg(rounds=3, batch=8)
    wires.twist = lambda node, number, answer: None if number == 10 else answer
    expected = run_over(deployment(method), wires, tmp_path / "unreached")
    wires.count = 0
    wires.twist = lambda node, number, answer: fault(answer) if number == 10 else answer
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(deployment(method), wires, tmp_path / "run")
    assert torch.equal(result.state.model.parameters, expected.state.model.parameters)
    assert [client["rounds_taken_part"] for client in result.clients] == [2, 3, 3]
    assert any("aachen" in line and message in line for line in caplog.messages)


def test_empty_outputs_of_the_first_of_two_cost_that_one_alone(wires, tmp_path):
    wires.away = {9}
    empty = codec.dump({"outputs": {}, "kept": False, "letters": []})
    wires.twist = lambda node, number, answer: empty if number == 3 else answer  # two greetings came before
    result = run_over(deployment(coterie.FedAvg(rounds=2, batch=8), min_sites=1), wires, tmp_path / "run")
    assert [client["rounds_taken_part"] for client in result.clients] == [1, 2]


@pytest.mark.parametrize("samples", [2**63, 2**64, -1, 0, 1.5, True, "many", [3]])
def test_numbers_of_samples_that_are_none_change_nothing(samples, wires, tmp_path):
    def twist(node, number, answer):
        return codec.dump({**codec.load(answer, nets_of_sites()), "samples": samples}) if number == 4 else answer

    method = coterie.FedAvg(rounds=1, batch=8)
    expected = run_over(deployment(method), wires, tmp_path / "honest")
    wires.count, wires.twist = 0, twist
    result = run_over(deployment(method), wires, tmp_path / "run")
    assert torch.equal(result.state.model.parameters, expected.state.model.parameters)


@pytest.mark.parametrize(
    "hello",
    [
        {"samples": 2**63},
        {"samples": np.array([1, 2])},
        {"labels": np.array([1, 2])},
        {"shape": np.array([5, 5])},
        {"loss": torch.ones(3)},
        {"name": np.array(["a"] * 3) == "b"},
        {"name": "a\nERROR stopped"},
        {"name": "x" * 1000},
        {"extra": {"a": 1}},
    ],
)
def test_a_hostile_greeting_is_not_admitted(hello, wires, tmp_path, caplog):
    wires.twist = lambda node, number, answer: (
        codec.dump({**codec.load(answer, {}), **hello}) if node == 7 and number <= 3 else answer
    )
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(deployment(coterie.FedAvg(rounds=1, batch=8)), wires, tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["bonn", "celle"]
    assert "is not admitted" in caplog.text
    assert not any("\n" in line for line in caplog.messages)


@pytest.mark.parametrize("score", [1e300, -1.0, 1.0001])
def test_a_score_out_of_its_range_is_none(score, wires, tmp_path, caplog):
    def twist(node, number, answer):
        return altered(answer, test_accuracy=torch.tensor([score], dtype=torch.float64)) if number == 7 else answer

    wires.twist = twist
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = run_over(deployment(coterie.FedAvg(rounds=1, batch=8)), wires, tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["bonn", "celle"]
    assert 0 <= result.rounds[-1]["accuracy_mean"] <= 1
    assert "test_accuracy has a number that is not within 0 and 1" in caplog.text


def test_answers_that_are_late_or_come_twice_count_never_or_once(wires, tmp_path):
    method = coterie.FedAvg(rounds=3, batch=8)
    wires.twist = lambda node, number, answer: None if number == 10 else answer
    expected = run_over(deployment(method), wires, tmp_path / "unreached")
    late, receive = {}, wires.receive

    def twist(node, number, answer):
        if number == 10:
            late["10"] = answer
            return ...
        return answer

    def again(messages, most):
        # Whatever has come before comes again, and the late answer with it: once it is too late.
        found = receive(messages, most)
        late.update({name: answer for name, answer in found.items() if len(late) < 50})
        return {**(late if "10" not in messages else {}), **found}

    wires.count, wires.twist, wires.receive = 0, twist, again
    result = run_over(deployment(method, timeout=0.5), wires, tmp_path / "run")
    assert torch.equal(result.state.model.parameters, expected.state.model.parameters)
    assert [client["rounds_taken_part"] for client in result.clients] == [2, 3, 3]


# Time: a round is over when its time is, whoever hangs


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only while the engine sleeps."""
    made = types.SimpleNamespace(now=0.0, monotonic=lambda: made.now, sleep=lambda seconds: made.move(seconds))

    def move(seconds):
        made.now += max(seconds, 1e-3)

    made.move = move
    monkeypatch.setattr("coterie.engines.flower.engine.time", made)
    return made


@pytest.mark.parametrize("name", ["fedavg", "slfed", "cafa"])
def test_a_round_takes_its_time_at_most_though_another_site_hangs_in_every_exchange(name, sites, tmp_path, clock):
    wires = Wires([site.open() for site in sites])
    hung, begun = {}, []

    def twist(node, number, answer):
        # In every round the first site hangs at the first question, the second one at the next.
        asked = codec.load(wires.sent[-1]["request"], {})
        if asked["ask"] != "call":
            return answer
        number = asked["at"]["number"]
        place = len(hung.setdefault(number, []))
        if number > 1 and place < 2 and node not in hung[number]:
            hung[number].append(node)
            return ...
        return answer

    wires.twist = twist
    options = {"synthetic": 10, "gan_steps": 3} if name == "slfed" else {}
    made = deployment(coterie.methods.make(name, rounds=4, batch=8, **options), timeout=60.0, min_sites=1)

    def watch(number):
        begun.append(clock.now)

    run_over(made, wires, tmp_path / "run", [Gate(watch)])
    assert max(np.diff([0, *begun])) <= 60.0 + 0.1
    assert sum(map(len, hung.values())) > 2


def test_a_site_that_hangs_for_ever_costs_less_and_less(wires, tmp_path, clock):
    wires.twist = lambda node, number, answer: ... if node == 8 and number > 9 else answer
    result = run_over(deployment(coterie.FedAvg(rounds=40, batch=8), timeout=60.0), wires, tmp_path / "run")
    assert [client["rounds_taken_part"] for client in result.clients] == [40, 40]
    # It is asked in rounds 2, 3, 5, 9, 17 and 33, and each time for half of a round's time.
    assert clock.now <= 6 * 30 + 40
    assert "bonn did not answer within 30 s; it rests for 15 rounds" in (tmp_path / "run" / "log.txt").read_text()


def test_a_site_that_does_well_again_is_asked_as_before(wires, tmp_path, clock):
    wires.twist = lambda node, number, answer: ... if node == 8 and 9 < number < 25 else answer
    result = run_over(deployment(coterie.FedAvg(rounds=12, batch=8), timeout=60.0), wires, tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["aachen", "bonn", "celle"]
    assert 5 < result.clients[1]["rounds_taken_part"] < 12


def test_a_node_that_never_greets_is_not_waited_for_again(wires, tmp_path, clock):
    wires.twist = lambda node, number, answer: ... if node == 8 else answer
    result = run_over(deployment(coterie.FedAvg(rounds=5, batch=8), timeout=60.0), wires, tmp_path / "run")
    assert [client["client"] for client in result.clients] == ["aachen", "celle"]
    assert clock.now <= 31


def test_a_node_whose_greeting_was_lost_is_asked_again_later(wires, tmp_path, clock):
    wires.twist = lambda node, number, answer: None if node == 8 and number < 8 else answer
    later = Gate(lambda number: clock.move(5))
    result = run_over(deployment(coterie.FedAvg(rounds=5, batch=8), timeout=60.0), wires, tmp_path / "run", [later])
    assert [client["client"] for client in result.clients] == ["aachen", "celle", "bonn"]
    assert result.clients[-1]["rounds_taken_part"] == 4


def test_who_rests_is_asked_when_a_round_has_too_few_without_it(wires, tmp_path, clock):
    wires.twist = lambda node, number, answer: ... if node == 8 and 9 < number < 22 else answer

    def leave(number):
        wires.away = {9} if number == 5 else set()

    result = run_over(
        deployment(coterie.FedAvg(rounds=6, batch=8), timeout=60.0, min_sites=2), wires, tmp_path / "run", [Gate(leave)]
    )
    assert [record["round"] for record in result.rounds] == [1, 2, 3, 4, 5, 6]


# Lost memory, and runs that go on


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedem"])
def test_a_site_that_has_lost_what_it_kept_begins_anew_and_takes_part_at_once(name, sites, wires, tmp_path):
    def lose(number):
        if number == 2:
            shutil.rmtree(tmp_path / "bonn" / "state")

    options = {"components": 2} if name == "fedem" else {}
    method = coterie.methods.make(name, rounds=4, batch=8, **options)
    result = run_over(deployment(method), wires, tmp_path / "run", [Gate(lose)])
    assert [client["client"] for client in result.clients] == ["aachen", "bonn", "celle"]
    assert [client["rounds_taken_part"] for client in result.clients] == [4, 2, 4]
    assert "site bonn has lost what it kept, and begins anew" in (tmp_path / "run" / "log.txt").read_text()
    if name == "fedavg":  # where nothing is kept that counts, nothing is lost
        whole = run_over(deployment(method), Wires([site.open() for site in sites]), tmp_path / "whole")
        assert torch.equal(result.state.model.parameters, whole.state.model.parameters)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
def test_where_the_server_counts_on_what_was_lost_the_log_says_so(name, wires, tmp_path):
    def lose(number):
        if number == 2:
            shutil.rmtree(tmp_path / "bonn" / "state")

    method = coterie.methods.make(name, rounds=4, batch=8)
    result = run_over(deployment(method), wires, tmp_path / "run", [Gate(lose)])
    assert [client["client"] for client in result.clients] == ["aachen", "celle"]
    assert "bonn has lost what it kept, and cannot begin anew: the server" in (tmp_path / "run" / "log.txt").read_text()


def stopped_after_two(wires, out):
    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_over(deployment(coterie.FedAvg(rounds=4, batch=8)), wires, out, [Gate(stop)])


def test_a_run_that_goes_on_waits_for_those_that_were_there(wires, sites, tmp_path, clock):
    method = coterie.FedAvg(rounds=4, batch=8)
    whole = run_over(deployment(method), Wires([site.open() for site in sites]), tmp_path / "whole")
    stopped_after_two(wires, tmp_path / "run")
    wires.away = {8}
    move = clock.move

    def moved(seconds):
        move(seconds)
        if clock.now > 20:
            wires.away = set()

    clock.move = moved
    again = run_over(deployment(method, patience=60.0), wires, tmp_path / "run")
    same(again.rounds, whole.rounds)
    assert 20 < clock.now < 40
    assert "went_on_without" not in again.summary


def test_a_run_that_goes_on_without_somebody_says_so(wires, tmp_path, clock):
    stopped_after_two(wires, tmp_path / "run")
    wires.away = {8}
    again = run_over(deployment(coterie.FedAvg(rounds=4, batch=8), patience=60.0), wires, tmp_path / "run")
    assert clock.now < 70
    assert again.summary["went_on_without"] == [{"after_round": 1, "sites": ["bonn"]}]  # round 2 was not saved
    assert StoredRun.read(tmp_path / "run").summary["went_on_without"] == again.summary["went_on_without"]
    assert "the run goes on without bonn, which took part before" in (tmp_path / "run" / "log.txt").read_text()


def test_a_round_that_is_tried_again_waits_for_nobody_who_has_left(wires, tmp_path, clock):
    def twist(node, number, answer):
        if number in (10, 11):
            wires.away = {8}
            return None
        return answer

    wires.twist = twist
    run_over(deployment(coterie.FedAvg(rounds=3, batch=8), patience=300.0), wires, tmp_path / "run")
    assert clock.now < 10


# What a site refuses


def asked(site, **content):
    answer = codec.load(site.answer({"request": codec.dump(content)}), {})
    return answer.get("refused", answer)


CALL = {
    "format": 1,
    "ask": "call",
    "run": "r",
    "program": "coterie.programs.label_histogram",
    "at": {
        "seed": 0,
        "number": 1,
        "scoring": False,
        "keep_last": False,
        "run": "",
        "phase": 0,
        "prior": 0.0,
        "test_data": False,
    },
    "each": {},
    "settings": {},
    "base": None,
    "builds_on": None,
    "letters": [],
    "announcements": {},
}


def test_a_site_answers_a_call_that_it_allows(sites):
    counts = asked(sites[0].open(), **CALL)["outputs"]["label_histogram"]
    assert int(counts.sum()) == 28


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "not a message of format 1"),
        ({"ask": "shell"}, "none of hello, keys, call"),
        ({"program": "os.system"}, "not allowed by this site's settings"),
        ({"program": "coterie.programs.unheard_of"}, "unknown program"),
        ({"program": "coterie.methods.__init__"}, "unknown program"),
        ({"settings": {"on": "test"}}, "test data is for scoring"),
        ({"settings": {"path": "/etc/passwd"}}, "has no input 'path'"),
        ({"at": {**CALL["at"], "scoring": True}}, "test data is for scoring programs, and only for them"),
        ({"at": {}}, "where in a run"),
        ({"run": "../../elsewhere"}, "letters, digits"),
        ({"run": 5}, "expected a text"),
        ({"each": {"on": 5}}, "neither tensors nor models"),
        ({"builds_on": [3, 1]}, "does not have what it kept in round 3"),
        ({"builds_on": ["a", "b"]}, "expected a whole number"),
        ({"letters": [5]}, "a letter that is none"),
        ({"program": None}, "expected a text"),
    ],
)
def test_a_site_refuses_everything_else_and_logs_it(change, reason, sites, caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        answer = asked(sites[0].open(), **CALL | change)
    text = answer if isinstance(answer, str) else answer.get("failed", "")
    assert reason in text
    assert text in caplog.text


def test_a_site_logs_once_what_ran_and_what_left_the_house(sites, caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        site = sites[0].open()
        for kind in ("hello", "call", "hello"):
            asked(site, **CALL | {"ask": kind})
    said = [record.getMessage() for record in caplog.records]
    (ran,) = [line for line in said if line.startswith("round 1: ran ")]
    assert ran.startswith(f"round 1: ran {CALL['program']}; sent label_histogram (")
    assert ran.endswith(" bytes) and the number of samples")
    assert sum(line.startswith("told the server who this site is: its name") for line in said) == 1


def test_a_site_that_allows_less_runs_less(sites, tmp_path):
    path = tmp_path / "aachen" / "site.toml"
    path.write_text(path.read_text().replace('"coterie.*", "test_flower.*", "tests.*"', '"coterie.methods.fedavg.*"'))
    assert "not allowed" in asked(SiteSettings.read(path).open(), **CALL)


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"x" * 100, json.dumps(CALL).encode()])
def test_bytes_that_are_no_message_are_refused(content, sites):
    site = sites[0].open()
    assert "refused" in codec.load(site.answer({"request": content}), {})
    assert "refused" in codec.load(site.answer({}), {})
    assert "refused" in codec.load(site.answer({"request": codec.dump(CALL), "shared": content}), {})


# Letters


@program(letters=True)
def tell_everybody(clients: Clients):
    """Writes a secret to every other site."""
    others = [name for name in NAMES if name not in clients.names]
    for name in others:
        clients.write(0, name, "secret", number=torch.full((50,), 0.123456789), who=torch.tensor([len(name)]))
    return {"written": torch.tensor([len(others)])}


@program
def listen(clients: Clients):
    """What was received."""
    letters = clients.letters(0, "secret")
    return {"sum": torch.tensor([sum(float(letter.content["number"].sum()) for letter in letters)])}


@pytest.fixture
def fed(wires):
    made = deployment(coterie.FedAvg(rounds=1))
    engine = made.engine(wires)
    engine.gather()
    fed = Federation(engine)
    fed.begin(1)
    fed.start_round(1)
    return fed


def test_letters_pass_the_server_sealed(fed, wires):
    answers = []
    wires.twist = lambda node, number, answer: answers.append(answer) or answer
    written = fed.run(tell_everybody)
    heard = fed.run(listen, letters=written.letters)
    assert heard.sum.tolist() == pytest.approx([2 * 50 * 0.123456789] * 3, rel=1e-6)
    # Whatever the server held: what it sent, and what it got.
    crossed = b"".join([*answers, *(part for message in wires.sent for part in message.values())])
    assert torch.full((50,), 0.123456789).numpy().tobytes()[:8] not in crossed
    assert b"aachen" in crossed
    assert fed.ledger.total("peer") > 6 * 50 * 4


def test_a_replayed_letter_is_refused(fed, caplog):
    written = fed.run(tell_everybody)
    fed.run(listen, letters=written.letters)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        again = fed.run(listen, letters=written.letters)
    assert again.sum.tolist() == [0, 0, 0]
    assert "was read in call" in caplog.text


def test_a_letter_of_another_round_is_refused(fed, caplog):
    written = fed.run(tell_everybody)
    fed.start_round(2)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        fed.run(tell_everybody)  # keys of round 2 are announced
        late = fed.run(listen, letters=written.letters)
    assert late.sum.tolist() == [0, 0, 0]
    assert "refused a letter" in caplog.text


def test_a_key_that_was_swapped_on_the_way_is_refused(fed, wires, caplog):
    def twist(node, number, answer):
        content = codec.load(answer, {})
        if node == 7 and "announcement" in content:
            content["announcement"] = bytes(32) + content["announcement"][32:]
        return codec.dump(content)

    wires.twist = twist
    with caplog.at_level(logging.WARNING, logger="coterie"):
        written = fed.run(tell_everybody)
    assert {receiver for _, receiver, _, _ in written.letters.envelopes()} == {"bonn", "celle"}
    assert "the key announced for aachen" in caplog.text


def test_without_an_identity_a_site_is_left_out_of_letters(sites, tmp_path, caplog):
    path = tmp_path / "aachen" / "site.toml"
    path.write_text(path.read_text().replace('identity = "identity.pem"', ""))
    wires = Wires([SiteSettings.read(path).open(), *(site.open() for site in sites[1:])])
    engine = deployment(coterie.FedAvg(rounds=1)).engine(wires)
    engine.gather()
    fed = Federation(engine)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        written = fed.run(tell_everybody)
    assert {receiver for _, receiver, _, _ in written.letters.envelopes()} == {"bonn", "celle"}
    assert "this site has no identity for letters" in caplog.text


# Tables at sites


def hospital(rng, rows):
    """Rows of one hospital: age, ward and smoker, with values missing, and whether the patient came back."""
    age = rng.normal(50 + rng.normal(0, 8), 10, rows)
    ward, smoker = rng.choice(["A", "B", "C"], rows), rng.choice(["true", "false"], rows)
    risk = (age - 50) / 10 + (ward == "A") + (smoker == "true") - 1
    lost = rng.random((2, rows)) < 0.1
    cells = zip(
        np.where(lost[0], "", np.round(age, 2).astype(str)),
        np.where(lost[1], "", ward),
        smoker,
        np.where(risk + rng.normal(0, 0.3, rows) > 0, "yes", "no"),
        np.round(1000 + 300 * risk, 2).astype(str),
        strict=True,
    )
    return ["age,ward,smoker,back,cost", *map(",".join, cells)]


@pytest.fixture(params=["back", "cost"])
def hospitals(request, tmp_path):
    """Sites with a table each, the schema of all, and the same rows in one data set with their clients."""
    rng = np.random.default_rng(0)
    drop = {"back": "cost", "cost": "back"}[request.param]
    (tmp_path / "tables").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / f"tables/{name}.csv").write_text("\n".join(hospital(rng, 60 + 20 * number)))
    data = from_table(tmp_path / "tables", target=request.param, drop=(drop,))
    data.schema.write(tmp_path / "schema.toml")
    sites = []
    for name in NAMES:
        (tmp_path / f"{name}.toml").write_text(
            tomli_w.dumps(
                {
                    "name": name,
                    "labels": list(data.labels),
                    "net": "mlp",
                    "data": f"tables/{name}.csv",
                    "schema": "schema.toml",
                    "state": f"state-{name}",
                    "computing": {"precision": "float64"},
                }
            )
        )
        sites.append(SiteSettings.read(tmp_path / f"{name}.toml"))
    return sites, data


def deployment_for(data, method):
    task = FederatedTask(data.labels, data.shape, "mlp")
    computing = Computing(precision="float64", device="cpu")
    return Deployment(method, task, schema=data.schema, waiting=Waiting(**FAST), computing=computing)


def test_sites_with_tables_give_what_a_simulation_of_all_rows_gives(hospitals, tmp_path):
    settled, data = hospitals
    wires = Wires([site.open() for site in settled])
    method = coterie.FedProx(rounds=3, batch=8)
    real = run_over(deployment_for(data, method), wires, tmp_path / "run")
    alone = method.fit(coterie.simulate(data, net="mlp", precision="float64", workers=0))
    for mine, theirs in zip(real.clients, alone.clients, strict=True):
        assert mine["client"] == theirs["client"]
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-9)
    # Three numbers for each input, and for each target that is one; sums and counts, whatever the number of rows.
    inputs, targets = len(data.schema.inputs), int(data.task == "regression")
    ledger = real.summary["ledger"]
    assert ledger["up"]["moments"] == 3 * 3 * 8 * (inputs + targets)
    assert ledger["down"]["scales"] == 3 * 8 * (3 * inputs + 2 * targets)
    assert "moments" not in alone.summary["ledger"]["up"]
    stored = StoredRun.read(tmp_path / "run")
    assert Schema.from_table(stored.settings["schema"]) == data.schema
    assert Deployment.from_table(stored.settings, tmp_path).schema == data.schema


def test_a_run_over_tables_goes_on_with_the_same_scales(hospitals, tmp_path):
    settled, data = hospitals
    wires = Wires([site.open() for site in settled])
    made = deployment_for(data, coterie.FedAvg(rounds=3, batch=8))
    whole = run_over(made, wires, tmp_path / "whole")

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_over(made, wires, tmp_path / "run", [Gate(stop)])
    fresh = Wires([site.open() for site in settled])
    rest = run_over(made, fresh, tmp_path / "run")
    same(rest.rounds, whole.rounds)
    same(rest.clients, whole.clients)
    asked = [codec.load(parts["request"], {}) for parts in fresh.sent]
    assert not any(one.get("program", "").endswith(".moments") for one in asked)


def test_a_site_with_a_table_trains_only_when_it_is_told_how_to_scale(hospitals, caplog):
    settled, data = hospitals
    wires = Wires([site.open() for site in settled])
    engine = deployment_for(data, coterie.FedAvg()).engine(wires)
    engine.schema = None
    engine.gather()
    fed = Federation(engine)
    with pytest.raises(ProgramError, match="scales as all sites do together, and the server does not say how"):
        fed.run(coterie.programs.label_histogram)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift": [0.0]}, "with a schema the server says how to scale; leave out shift and scale"),
        ({"labels": ["a", "b"]}, "labels no, yes, but the settings say a, b"),
        ({"schema": "none.toml"}, "none.toml: cannot be read"),
    ],
)
def test_settings_of_a_site_that_do_not_fit_its_schema_are_refused(change, message, tmp_path):
    (tmp_path / "x.csv").write_text("x,y\n1,no\n2,yes\n3,no\n4,yes\n")
    from_table(tmp_path / "x.csv", target="y").schema.write(tmp_path / "schema.toml")
    table = {"name": "a", "labels": ["no", "yes"], "net": "mlp", "data": "x.csv", "schema": "schema.toml"}
    (tmp_path / "site.toml").write_text(tomli_w.dumps({**table, "state": "state", **change}))
    with pytest.raises(SettingsError, match=message):
        SiteSettings.read(tmp_path / "site.toml").open()
