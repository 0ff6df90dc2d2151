"""Whole federations of real processes on this machine: the same numbers as a simulation, and what a crash costs."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from coterie.core.errors import CoterieError
from coterie.deploy.local import LocalFederation, prepare
from coterie.engines.flower.certs import make_certificates
from coterie.engines.flower.engine import Waiting
from coterie.runs.experiment import run as simulate_run
from coterie.runs.folder import StoredRun
from coterie.runs.settings import Settings

WORLD = {"data": "digits", "net": "mlp", "precision": "float64", "device": "cpu", "workers": 0, "alpha": 1.0}


def settings(method, sites, **options):
    return Settings.of({**WORLD, "clients": sites, **options}, method)[0]


def same(real, simulated):
    """Equal up to float rounding, but for the clock."""
    assert len(real) == len(simulated)
    for one, other in zip(real, simulated, strict=True):
        for key, value in one.items():
            if not key.endswith("seconds"):
                assert value == pytest.approx(other[key], abs=1e-9), key


def run_locally(made, folder, sites):
    prepare(made, folder / "deployment", Waiting(sites=sites, patience=60))
    with LocalFederation(folder / "deployment") as federation:
        return federation.run(folder, lambda record: None)


def test_two_sites_give_what_a_simulation_gives(call, tmp_path):
    options = "--data digits --net mlp --precision float64 --alpha 1 --rounds 2"
    outcome = call(f"deploy local scaffold --sites 2 {options} --out real --json")
    assert outcome.code == 0, outcome.err + "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    call(f"run scaffold --clients 2 {options} --out simulated")
    real, simulated = StoredRun.read(Path("real")), StoredRun.read(Path("simulated"))
    same(real.rounds, simulated.rounds)
    same(real.clients, simulated.clients)
    assert outcome.json["accuracy_mean"] == real.summary["accuracy_mean"]
    assert "scaffold · digits · sites · 2 clients" in call("show real").out
    # Nothing is left behind.
    assert str(tmp_path) not in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"), [("fedavg", {"server_momentum": 0.5}), ("fedprox", {"mu": 0.1}), ("scaffold", {})]
)
def test_three_sites_give_what_a_simulation_gives(method, options, tmp_path):
    made = settings(method, 3, rounds=3, **options)
    real = run_locally(made, tmp_path / "real", 3)
    simulated = simulate_run(made, tmp_path / "simulated")
    same(real.rounds, simulated.rounds)
    same(real.clients, simulated.clients)


@pytest.fixture
def federation(tmp_path):
    """A prepared federation of two sites of which nothing runs yet."""
    prepare(settings("fedavg", 2, rounds=2), tmp_path / "deployment", Waiting(sites=2, patience=180))
    federation = LocalFederation(tmp_path / "deployment")
    yield federation
    federation.processes.stop()


def connect(federation, folder):
    """Be a site with the keys in a folder until it is connected or gives up, for some seconds at most; what it said."""
    command = [sys.executable, "-m", "coterie", "deploy", "site", str(folder / "site.toml")]
    log = folder / "said.log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--superlink", federation.superlink], stdout=output, stderr=output)
    deadline = time.monotonic() + 60
    ends = ("is connected", "does not let this site in")
    while process.poll() is None and time.monotonic() < deadline and not any(end in log.read_text() for end in ends):
        time.sleep(0.1)
    process.kill()
    process.wait()
    return log.read_text()


def test_who_is_not_registered_or_does_not_trust_the_server_is_not_let_in(federation, tmp_path):
    federation.start_superlink()
    own = tmp_path / "deployment" / "certs" / "sites" / "0"
    strangers = make_certificates(tmp_path / "strangers", ["0"]).sites["0"]
    # A key that nobody has registered.
    registered, key = (own / "node.key").read_bytes(), strangers.node_key.read_bytes()
    (own / "node.key").chmod(0o600)
    (own / "node.key").write_bytes(key)
    said = connect(federation, own)
    assert "is connected" not in said
    assert "does not let this site in" in said
    # The right key, but an authority that has not signed this server's certificate.
    (own / "node.key").write_bytes(registered)
    authority = (own / "ca.pem").read_bytes()
    (own / "ca.pem").write_bytes(strangers.ca.read_bytes())
    said = connect(federation, own)
    assert "is connected" not in said
    assert "does not identify itself with a certificate of the authority" in " ".join(said.split())
    # And with the right ones it is let in.
    (own / "ca.pem").write_bytes(authority)
    assert "site 0 is connected" in connect(federation, own)


class Follower(threading.Thread):
    """Runs a federation in the background."""

    def __init__(self, federation, out):
        super().__init__(daemon=True)
        self.federation, self.out, self.rounds, self.error = federation, out, [], None

    def run(self):
        try:
            self.federation.run(self.out, lambda record: self.rounds.append(record["round"]))
        except CoterieError as error:
            self.error = error

    def wait_for(self, number, seconds=240):
        deadline = time.monotonic() + seconds
        while (not self.rounds or self.rounds[-1] < number) and self.is_alive():
            assert time.monotonic() < deadline, f"round {number} is not done after {seconds} s"
            time.sleep(0.05)


@pytest.mark.slow
def test_a_site_that_is_killed_in_mid_round_comes_back(tmp_path):
    prepare(settings("scaffold", 3, rounds=30), tmp_path / "run" / "deployment", Waiting(sites=3, patience=60))
    with LocalFederation(tmp_path / "run" / "deployment") as federation:
        follower = Follower(federation, tmp_path / "run")
        follower.start()
        follower.wait_for(2)
        federation.sites["1"].signal(signal.SIGSTOP)  # it has a message, or gets one, that it will not answer
        time.sleep(2)
        federation.sites["1"].signal(signal.SIGKILL)
        done = follower.rounds[-1]
        follower.wait_for(done + 1)  # with two sites
        federation.start_site("1")
        follower.join(600)
        assert not follower.is_alive()
        assert follower.error is None
    clients = {client["client"]: client for client in StoredRun.read(tmp_path / "run").clients}
    assert clients["0"]["rounds_taken_part"] == clients["2"]["rounds_taken_part"] == 30
    assert done < clients["1"]["rounds_taken_part"] < 30
    log = (tmp_path / "run" / "log.txt").read_text()
    assert re.search("site 1 (could not be reached|is no longer connected)", log)
    assert "site 1 is back" in log
    said = (tmp_path / "run" / "deployment" / "logs" / "site-1.log").read_text()
    nodes = re.findall(r"as node (\d+)", said)
    assert len(nodes) == 2
    assert nodes[0] == nodes[1]


def server_apps(folder):
    """The server apps that were started below a folder."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        belongs = any(str(folder) in value for value in (process.info["environ"] or {}).values())
        if belongs and any("flwr-serverapp" in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["ServerApp", "SuperLink"])
def test_a_run_whose_server_is_killed_goes_on_to_the_same_result(victim, call, tmp_path):
    out = tmp_path / "run"
    made = settings("scaffold", 2, rounds=12)
    prepare(made, out / "deployment", Waiting(sites=2, patience=180))
    with LocalFederation(out / "deployment") as federation:
        follower = Follower(federation, out)
        follower.start()
        follower.wait_for(3)
        if victim == "ServerApp":
            for process in server_apps(out):
                process.kill()
        else:
            federation.superlink_process.signal(signal.SIGKILL)
        follower.join(120)
        assert "coterie deploy resume" in str(follower.error) or "SuperLink has ended" in str(follower.error)
    done = StoredRun.read(out).rounds[-1]["round"]
    assert 3 <= done < 12
    outcome = call(f"deploy resume {out} --json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["rounds"] == 12
    simulated = simulate_run(made)
    same(StoredRun.read(out).rounds, simulated.rounds)
    same(StoredRun.read(out).clients, simulated.clients)
