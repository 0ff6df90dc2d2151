"""Whole runs over sites that pin their method, over messages without a network: nothing of an honest run is refused."""

import logging
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.clients.sealing import Identity, write_peers
from coterie.deploy.server import Deployment, run_over
from coterie.deploy.site import SiteSettings
from coterie.engines.flower.engine import FederatedTask, Waiting
from coterie.engines.simulation import Computing
from coterie.runs.folder import StoredRun

LABELS = ("cat", "dog", "eel")
METHODS = {
    "autocfl": {"cluster_round": 2},
    "cafa": {"sharing": "peer"},
    "compose": {"evidence": "labels", "grouping": "kmeans", "clusters": 2},
    "ditto": {},
    "fedamp": {},
    "fedavg": {"schedule": "cosine", "prior": "own"},
    "fedbabu": {"tune_epochs": 1.0},
    "fedprox": {"mu": 0.1},
    "fedrep": {},
    "fl-hc": {"cluster_round": 1},
    "ifca": {"clusters": 2},
    "lg-fedavg": {},
    "pacfl": {"vectors": 2},
    "per-fedavg": {},
    "scaffold": {},
    "slfed": {"synthetic": 10, "gan_steps": 3},
}


class Wires:
    """A transport to sites in this process."""

    def __init__(self, sites):
        self.sites, self.answers = dict(enumerate(sites)), {}

    def nodes(self):
        return set(self.sites)

    def send(self, messages):
        names = {node: f"{len(self.answers)} {node}" for node in messages}
        self.answers |= {names[node]: self.sites[node].answer(parts) for node, parts in messages.items()}
        return names

    def receive(self, messages, most=None):
        return {name: self.answers[name] for name in messages}


@pytest.fixture
def sites(tmp_path):
    """The settings of three sites."""
    rng, made = np.random.default_rng(0), []
    identities = {name: Identity.create() for name in ("aachen", "bonn", "celle")}
    write_peers(tmp_path / "peers.toml", {name: one.public for name, one in identities.items()})
    for name, identity in identities.items():
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "data.npz", x=rng.normal(size=(40, 5)), y=np.array(LABELS)[np.arange(40) % 3])
        identity.write(tmp_path / name / "identity.pem")
        (tmp_path / name / "site.toml").write_text(
            f'name = "{name}"\nlabels = ["cat", "dog", "eel"]\nnet = "mlp"\ndata = "data.npz"\nstate = "state"\n'
            'identity = "identity.pem"\npeers = "../peers.toml"\nshift = [0, 0, 0, 0, 0]\nscale = [1, 1, 1, 1, 1]\n'
            '[computing]\nprecision = "float64"\n'
        )
        made.append(SiteSettings.read(tmp_path / name / "site.toml"))
    return made


@pytest.mark.parametrize("name", METHODS)
def test_no_site_refuses_what_its_own_method_asks(name, sites, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    method = coterie.methods.make(name, rounds=2, batch=10, **METHODS[name])
    task = FederatedTask(LABELS, (5,), "mlp", (0.0,) * 5, (1.0,) * 5)
    waiting = Waiting(sites=3, min_sites=3, timeout=5.0, patience=0.0, poll=0.001)
    deployment = Deployment(method, task, waiting=waiting, computing=Computing(precision="float64", device="cpu"))
    wires = Wires([replace(site, method=method).open() for site in sites])
    run_over(deployment, wires, tmp_path / "run")
    assert "refused" not in caplog.text
    clients = StoredRun.read(tmp_path / "run").clients
    assert [client["client"] for client in clients] == ["aachen", "bonn", "celle"]
    entries = [site.audit.read_text().count('"outcome":"answered"') for site in sites]
    assert min(entries) >= 3
