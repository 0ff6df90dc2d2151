"""A hostile server and its questions: what a site answers to programs that it allows."""

import json
import time
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import coterie
from coterie import programs
from coterie.clients.clients import CallContext, new_models
from coterie.clients.guard import Limits
from coterie.clients.sealing import Identity, write_peers
from coterie.core.errors import CoterieError, SettingsError
from coterie.data.population import Pool
from coterie.deploy.site import SiteSettings
from coterie.engines.flower.audit import Trail
from coterie.engines.flower.guard import SiteGuard
from coterie.engines.flower.leaving import Leaving
from coterie.engines.flower.site import PROTOCOL, RemoteSite, Rules, within
from coterie.methods.lg_fedavg import train_around
from coterie.moves import encounters
from coterie.moves.pacing import train_for
from coterie.nets import codec
from coterie.nets.stacks import Models
from coterie.server.protocol import calls_of
from coterie.server.scoring import score_client
from coterie.training.local import LocalTraining

LABELS = ("a", "b", "c")
SAMPLES = 28
WIDE_OPEN = Limits(samples=1, batch=1, rounds=10**9, attempts=10**9)
"""Limits that leave everything to the server, as if there were none."""


class Attacked:
    """A site of 28 samples behind its messages, and the server that asks."""

    def __init__(self, folder, method=None, **rules):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(SAMPLES, 6)).astype(np.float32)
        data = coterie.Dataset(x, np.arange(SAMPLES) % 3, labels=LABELS)
        fed = coterie.simulate(data, clients=1, net="logistic", precision="float64", test_share=0, workers=0)
        self.host = fed._engine._host
        self.net = self.host.net
        self.secrets = Pool.inputs(self.host.pool, torch.from_numpy(self.host.shards[0].train)).flatten(1)
        allow = ("coterie.*", "test_site_attacks.*", "tests.*")
        self.site = RemoteSite(Rules("a", LABELS, folder, allow, method=method, **rules), self.host)
        self.start = new_models(self.net, 0)

    def ask(self, program, shared, run="run", number=1, scoring=False, **settings):
        """What the site answers to a call."""
        at = CallContext(number=number, run=run, scoring=scoring)
        content = {
            "format": PROTOCOL,
            "ask": "call",
            "run": run,
            "program": getattr(program, "name", program),
            "at": asdict(at),
            "scales": None,
            "each": {},
            "settings": settings,
            "base": None,
            "builds_on": None,
            "letters": [],
            "announcements": {},
        }
        parts = {"request": codec.dump(content), "shared": codec.dump(shared)}
        return codec.load(self.site.answer(parts), {self.net.name: self.net})

    def recovered(self, local, questions=110):
        """How many of the samples are found again, to nine digits, by inverting the answers of so many calls.

        The change of a linear layer after one step on one sample is the sample, times that of the bias.
        """
        found = set()
        for number in range(questions):
            answer = self.ask(programs.train, {"start": self.start}, local=local, number=number + 1)
            if "outputs" not in answer:
                continue
            change = (answer["outputs"]["model"].parameters[0] - self.start.parameters)[: self.net.parameters.total]
            weight, bias = change[:-3].reshape(3, -1), change[-3:]
            guess = weight[bias.abs().argmax()] / bias[bias.abs().argmax()]
            distance = (self.secrets - guess).abs().amax(dim=1)
            if distance.min() < 1e-9:
                found.add(int(distance.argmin()))
        return len(found)


@coterie.program(letters=True)
def write_nobody(clients, names):
    """Write no letter."""


@pytest.fixture
def attack(tmp_path):
    return lambda method=None, **rules: Attacked(tmp_path / str(time.monotonic_ns()), method, **rules)


ONE_BY_ONE = LocalTraining(steps=1, batch=1, rate=1.0)


def test_one_sample_at_a_time_would_give_all_samples_and_is_refused(attack):
    everything = attack(limits=WIDE_OPEN)
    assert everything.recovered(ONE_BY_ONE) == len(everything.secrets)
    assert attack().recovered(ONE_BY_ONE, 20) == 0
    assert attack(coterie.FedAvg(rounds=200)).recovered(ONE_BY_ONE, 20) == 0
    assert attack(coterie.FedAvg(rounds=200), limits=WIDE_OPEN).recovered(ONE_BY_ONE, 20) == 0


@pytest.mark.parametrize(
    "local",
    [
        replace(ONE_BY_ONE, epochs=1e-9, steps=None),
        replace(ONE_BY_ONE, steps=5),
        replace(ONE_BY_ONE, batch=7),
        LocalTraining(steps=10**9, batch=32),
        LocalTraining(epochs=1e15, batch=32),
    ],
)
def test_training_outside_of_a_sites_bounds_is_refused_at_once(attack, local):
    started = time.monotonic()
    answer = attack().ask(programs.train, {"start": attack().start}, local=local)
    assert "limits." in str(answer)
    assert time.monotonic() - started < 60  # and not after a billion steps


def test_bounds_hold_whatever_way_steps_are_said(attack):
    site = attack()
    asked = {"start": site.start, "epochs": torch.tensor(1e12)}
    answer = site.ask(train_for, asked, local=LocalTraining())
    assert "limits.steps" in str(answer)


def test_a_site_answers_its_method_and_no_other(attack):
    site = attack(coterie.FedAvg(rounds=3))
    local = coterie.FedAvg(rounds=3).local
    start = {"start": site.start}
    assert "outputs" in site.ask(programs.train, start, local=local)
    refused = {
        "is none of fedavg": site.ask(programs.label_histogram, {}, on="train"),
        "rate=0.2, where this method has 0.1": site.ask(programs.train, start, local=replace(local, rate=0.2)),
        "pull=-9.0, where": site.ask(programs.train, start, local=local, pull=-9.0),
        "this site's method has 3 rounds": site.ask(programs.train, start, number=4, local=local),
    }
    for reason, answer in refused.items():
        assert reason in answer["refused"]


@pytest.mark.parametrize(
    ("method", "program", "settings"),
    [
        (coterie.SLFed(), encounters.choose, {"names": ["a"], "present": ["a"], "store": "direct", "reveal": True}),
        (coterie.SLFed(), encounters.share, {"names": ["a"], "mode": "none"}),
        (coterie.FedPer(), train_around, {"local": coterie.FedPer().local, "part": "all"}),
        (coterie.SLFed(), encounters.show_opinions, {"names": ["a"]}),
        (coterie.SLFed(), programs.own_prior, {}),
    ],
)
@pytest.mark.parametrize("limits", [Limits(), WIDE_OPEN])
def test_what_only_simulations_do_and_what_the_owner_chose_is_not_the_servers(
    attack, method, program, settings, limits
):
    assert set(attack(method, limits=limits).ask(program, {}, **settings)) == {"refused"}


def test_a_round_is_tried_again_but_not_for_ever_and_not_in_many_runs(attack, caplog):
    method = coterie.FedAvg(rounds=2)
    site = attack(method, limits=Limits(attempts=2, rounds=3))

    def asked(value, run="run", number=1):
        start = Models(site.net, site.start.parameters + value, site.start.buffers)
        return site.ask(programs.train, {"start": start}, run=run, number=number, local=method.local)

    first = asked(0.0)
    assert "outputs" in asked(0.1)
    assert "asked 3 times in round 1; this site's method asks 1 times" in asked(0.2)["refused"]
    same = asked(0.0)  # delivered again
    assert torch.equal(same["outputs"]["model"].parameters, first["outputs"]["model"].parameters)
    assert "outputs" in asked(0.0, number=2)
    assert "outputs" in asked(0.0, run="another")
    assert "3 rounds are all" in asked(0.0, run="another", number=2)["refused"]
    # Nor after a restart.
    again = attack(method, limits=Limits(attempts=2, rounds=3))
    again.site._guard = site.site._guard
    assert (
        "3 rounds are all"
        in again.ask(programs.train, {"start": site.start}, run="third", number=1, local=method.local)["refused"]
    )
    assert "limits.rounds" in caplog.text


def test_scoring_goes_on_but_not_without_end(attack):
    site = attack(coterie.FedAvg(), limits=Limits(attempts=1, rounds=1))
    codes = []
    for value in range(5):
        start = Models(site.net, site.start.parameters + value, site.start.buffers)
        answer = site.ask(score_client, {"models": start}, scoring=True)
        codes.append("limits.attempts" in str(answer))
    assert codes == [False, False, False, True, True]


def test_size_and_time_are_bounded(attack):
    many = Models.stack([attack().start] * 5)
    site = attack(limits=Limits(models=4))
    assert "5 models, at most 4" in site.ask(programs.choose, {"models": many})["refused"]
    site = attack(limits=Limits(megabytes=1))
    assert "at most 1 MB" in site.ask(programs.predict, {"inputs": torch.zeros(10**6)})["refused"]
    site = attack(limits=Limits(seconds=0.2))
    answer = site.ask(programs.train, {"start": site.start}, local=LocalTraining(steps=10**5))
    assert "longer than 0.2 s" in str(answer)


def test_time_is_bounded_in_the_main_thread_and_the_clock_is_stopped():
    with within(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(CoterieError, match=r"longer than 0\.05 s"), within(0.05):
        time.sleep(5)


@pytest.mark.parametrize(
    ("samples", "steps", "batch", "fine"),
    [
        (28, 1, 8, True),
        (28, 1, 7, False),
        (28, 1, 0, True),
        (28, 4, 7, False),
        (5, 9, 32, False),
        (8, 1, 32, True),
        (28, 0, 1, True),
        (28, 100_001, 32, False),
    ],
)
def test_bounds_of_a_training(tmp_path, samples, steps, batch, fine):
    guard = SiteGuard(Limits(), folder=tmp_path)
    with nullcontext() if fine else pytest.raises(CoterieError, match=r"limits\."):
        guard.check_training(samples, steps, batch)


def test_what_nobody_learns_has_no_floor(tmp_path):
    SiteGuard(Limits(), folder=tmp_path).check_training(3, 1, 1, leaves=False)
    with pytest.raises(CoterieError, match=r"limits\.steps"):
        SiteGuard(Limits(steps=10), folder=tmp_path).check_training(3, 11, 1, leaves=False)
    with pytest.raises(CoterieError, match=r"limits\.least_steps"):
        SiteGuard(Limits(least_steps=5), folder=tmp_path).check_training(30, 4, 10)
    with pytest.raises(SettingsError, match="least_steps=5: more than the most"):
        Limits(least_steps=5, steps=4)


# What leaves


def test_what_leaves_is_near_what_was_sent(attack):
    site = attack(leaving=Leaving(clip=0.01))
    sent = Models(site.net, site.start.parameters + 50.0, site.start.buffers)
    local = LocalTraining(epochs=5, rate=1.0)
    free = attack().ask(programs.train, {"start": sent}, local=local)["outputs"]["model"]
    bound = site.ask(programs.train, {"start": sent}, local=local)["outputs"]["model"]
    far, near = (one.parameters[0] - sent.parameters for one in (free, bound))
    assert far.norm() > 0.1
    assert near.norm() == pytest.approx(0.01)
    assert torch.allclose(near / near.norm(), far / far.norm())


def test_noise_is_fresh_and_the_same_question_cannot_be_asked_until_it_is_gone(attack):
    method = coterie.FedAvg()
    site = attack(method, leaving=Leaving(clip=1.0, noise=0.5), limits=Limits(attempts=3))
    answers = [site.ask(programs.train, {"start": site.start}, local=method.local) for _ in range(4)]
    assert [set(answer) == {"refused"} for answer in answers] == [False, False, False, True]
    first, second = (answer["outputs"]["model"].parameters for answer in answers[:2])
    assert (first - second).std() == pytest.approx(0.5 * 2**0.5, rel=0.6)


def test_noise_has_the_deviation_that_is_asked_for():
    made = Leaving(clip=2.0, noise=0.25).treated({"update": torch.zeros(1, 40_000)}, [])["update"]
    assert made.std().item() == pytest.approx(0.5, rel=0.02)


def test_letters_cannot_be_clipped_so_nothing_leaves(attack):
    told = {"names": ["a"]}
    assert "outputs" in attack().ask(write_nobody, {}, **told)
    assert "cannot clip" in attack(leaving=Leaving(clip=1.0)).ask(write_nobody, {}, **told)["refused"]


def test_whole_numbers_are_left_alone():
    counts = {"labels": torch.tensor([[3, 4]])}
    assert torch.equal(Leaving(clip=1.0, noise=1.0).treated(counts, [])["labels"], counts["labels"])
    with pytest.raises(SettingsError, match="in units of clip"):
        Leaving(noise=1.0)


# Settings


def written(folder, more=""):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "data.npz", x=np.zeros((30, 2)), y=np.array(LABELS)[np.arange(30) % 3])
    (folder / "site.toml").write_text(
        'name = "a"\nlabels = ["a", "b", "c"]\nnet = "mlp"\ndata = "data.npz"\nstate = "state"\n' + more
    )
    return folder / "site.toml"


def test_a_site_says_its_method_and_its_bounds(tmp_path):
    path = written(
        tmp_path,
        '[method]\nname = "fedprox"\nmu = 0.5\nrounds = 7\n[limits]\nsteps = 9\n[leaving]\nclip = 2.0\nnoise = 0.1\n',
    )
    made = SiteSettings.read(path)
    assert (made.method.name, made.method.mu, made.method.rounds) == ("fedprox", 0.5, 7)
    assert (made.limits.steps, made.leaving) == (9, Leaving(2.0, 0.1))
    assert made.open()._calls == calls_of(made.method)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[method]\nrounds = 3\n", "does not say its name"),
        ('[method]\nname = "fedprx"\n', "unknown method 'fedprx'"),
        ('[method]\nname = "fedavg"\nmu = 1.0\n', "mu"),
        ('[method]\nname = "flis-dc"\ncompat = true\n', "reads test data"),
        ("[limits]\nbatch = 0\n", "batch=0"),
        ("[leaving]\nnoise = 1.0\n", "in units of clip"),
    ],
)
def test_bad_settings_are_named(tmp_path, more, message):
    with pytest.raises(SettingsError, match=message):
        SiteSettings.read(written(tmp_path, more))


@pytest.mark.parametrize(
    ("method", "limits", "message"),
    [
        ("batch = 4", "", "4 batch, outside of its .limits. batch=8"),
        ("rounds = 2000", "", "2000 rounds, outside of its .limits. rounds=1000"),
        ("steps = 200000", "", "200000 steps, outside of its .limits. steps=100000"),
        ("batch = 8", "samples = 100", "training samples, outside of its .limits. samples=100"),
        ("batch = 0", "", ""),
        ("batch = 4", "batch = 4", ""),
    ],
)
def test_a_method_that_the_sites_own_bounds_keep_it_from_does_not_begin(tmp_path, method, limits, message):
    made = SiteSettings.read(written(tmp_path, f'[method]\nname = "fedavg"\n{method}\n[limits]\n{limits}\n'))
    with pytest.raises(SettingsError, match=message) if message else nullcontext():
        made.open()


def test_without_a_method_no_site_begins(call, refused, tmp_path):
    path = written(tmp_path / "site", 'ca = "ca.pem"\nkey = "node.key"\n')
    refused(f"deploy site {path}", r"any method with any settings would do; say with \[method\]")


def test_the_keys_of_a_run_are_gone_when_it_has_ended(attack, tmp_path):
    identity = Identity.create()
    identity.write(tmp_path / "identity.pem")
    write_peers(tmp_path / "peers.toml", {"a": identity.public})
    site = attack(identity=tmp_path / "identity.pem", peers=tmp_path / "peers.toml")
    before = [site.site._seals.announce(run, 1) for run in ("run", "another")]
    served = {"models": site.start}
    assert "outputs" in site.ask(score_client, served, scoring=True)
    assert site.site._seals.announce("run", 1) == before[0]
    assert "outputs" in site.ask(score_client, served, scoring=True, take_home=True)
    assert site.site._seals.announce("run", 1) != before[0]
    assert site.site._seals.announce("another", 1) == before[1]


# What is written down


def test_all_that_is_asked_and_all_that_leaves_is_in_the_audit_log(attack, tmp_path):
    site = attack(coterie.FedAvg(), audit=tmp_path / "audit.jsonl")
    local = coterie.FedAvg().local
    assert "outputs" in site.ask(programs.train, {"start": site.start}, local=local)
    assert "refused" in site.ask(programs.train, {"start": site.start}, local=replace(local, rate=9.0))
    site.ask("nothing\n{}", {})
    site.site.answer({"request": b"no message"})
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [entry["outcome"] for entry in entries] == ["answered", "refused", "refused", "refused"]
    first = entries[0]
    assert (first["what"], first["program"], first["run"], first["round"]) == ("call", programs.train.name, "run", "1")
    assert first["left"] == {"model": 8 * site.net.parameters.total}
    assert "rate=9.0" in entries[1]["settings"]
    assert "rate=9.0, where" in entries[1]["reason"]
    assert Trail(tmp_path / "audit.jsonl").check().entries == 4


def test_nothing_leaves_that_cannot_be_written_down(attack, tmp_path):
    site = attack(audit=tmp_path / "audit.jsonl")
    (tmp_path / "audit.jsonl").mkdir()
    answer = site.ask(programs.train, {"start": site.start}, local=LocalTraining())
    assert answer == {"refused": "this site's audit log cannot be written"}
