"""`coterie deploy`: what it writes, what it refuses, and the commands of a real federation one after another."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from coterie.core.errors import CoterieError
from coterie.data import Schema
from coterie.deploy.processes import free_port
from coterie.deploy.server import Deployment
from coterie.deploy.site import SiteSettings
from coterie.runs.folder import StoredRun


def test_init_writes_an_app_with_the_task_of_the_data(call, own_data):
    outcome = call(f"deploy init app fedprox --data {own_data} --net logistic --mu 0.3 --rounds 7")
    assert outcome.code == 0, outcome.err
    made = Deployment.read(Path("app/federation/settings.toml"))
    assert (made.method.name, made.method.mu, made.method.rounds) == ("fedprox", 0.3, 7)
    assert made.task.labels == ("[bold]a", "b [/x]", "$c$ <script>")
    assert made.task.shape == (4,)
    assert made.table() == tomllib.loads(Path("app/federation/settings.toml").read_text())
    site = SiteSettings.read(Path("app/site/site.toml"))
    assert (site.labels, site.net, site.shift) == (made.task.labels, "logistic", made.task.shift)
    app = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"]["serverapp"] == "federation.server_app:app"
    for file in Path("app").rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


def test_a_schema_is_enough_for_init(call, refused):
    rows = "".join(
        f"{row},{40 + row if row % 7 else ''},{'AB'[row % 2]},{('no', 'yes')[row % 2]}\n" for row in range(30)
    )
    Path("visits.csv").write_text("id,age,ward,back\n" + rows)
    outcome = call("schema visits.csv --target back --drop id")
    assert outcome.code == 0, outcome.err
    assert re.search(r"age +number +marked by an input", outcome.out)
    assert re.search(r"ward +category +A, B", outcome.out)
    refused("schema visits.csv --target back --drop id", "out=visits.toml: exists already")
    refused("schema visits.csv --target bak --out other.toml", "did you mean back")
    Path("visits.csv").unlink()
    outcome = call("deploy init app fedprox --schema visits.toml --mu 0.3 --net logistic")
    assert outcome.code == 0, outcome.err
    made = Deployment.read(Path("app/federation/settings.toml"))
    assert (made.task.labels, made.task.shape, made.task.net) == (("no", "yes"), (4,), "logistic")
    assert (made.method.mu, made.task.name, made.task.shift) == (0.3, "visits", ())
    assert made.schema == Schema.read("app/site/schema.toml") == Schema.read("visits.toml")
    assert made.table() == tomllib.loads(Path("app/federation/settings.toml").read_text())
    site = SiteSettings.read(Path("app/site/site.toml"))
    assert (site.data, site.schema) == ("app/site/data.csv", Path("app/site/schema.toml"))
    refused("deploy init other --schema none.toml", "none.toml: cannot be read")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("deploy init . fedavg --data mine.npz", "is not empty"),
        ("deploy init app unheard-of", "unknown method 'unheard-of'"),
        ("deploy local fedavg --sites 3 --clients 4", "there are 3 sites; say --sites"),
        ("deploy local fedavg --sites 0", "sites=0"),
        ("deploy local fedavg --timeout 0", "timeout=0"),
        ("deploy local fedavg --arrivals 1:2", "real sites arrive when they connect"),
        ("deploy certs keys --sites ../up", "../up"),
        ("deploy certs keys --sites a --days 0", "days=0"),
        ("deploy server keys", "no such file; `coterie deploy certs` makes it"),
        ("deploy site nothing.toml", "nothing.toml"),
        ("deploy run nothing", "settings.toml: cannot be read"),
        ("deploy resume nothing", "not a run over real sites"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(line, message, refused, own_data):
    refused(line, re.escape(message))


def test_certs_are_made_and_sites_added_later(call):
    assert "for the server: certs/server" in call("deploy certs certs --sites north,south").out
    outcome = call("deploy certs certs --sites east")
    assert "for east: certs/sites/east" in outcome.out
    assert "give these sites their new peers.toml: north, south" in outcome.out


def test_a_certificate_is_for_the_named_hosts_and_for_the_server_itself(call):
    call("deploy certs certs --sites north --hosts federation.example.org,10.1.2.3")
    certificate = x509.load_pem_x509_certificate(Path("certs/server/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["federation.example.org", "localhost"]
    assert "10.1.2.3" in map(str, names.get_values_for_type(x509.IPAddress))


def test_settings_of_real_sites_are_not_those_of_a_simulation(call, refused):
    call("deploy init app")
    refused("run --settings app/federation/settings.toml", "a run over real sites")


@pytest.fixture
def unheard(call, tmp_path, monkeypatch):
    """An app, keys, a run that was stopped, and an address at which nobody listens."""
    for name in ("HOME", "FLWR_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    call("deploy init app fedavg --net logistic --rounds 2")
    call("deploy certs certs --sites north,south")
    address = f"127.0.0.1:{free_port()}"
    shutil.copytree("app", "stopped/deployment/app")
    Path("stopped/deployment/connection.toml").write_text(f'state = "{tmp_path / "superlink"}"\n')
    said_to_be_at(address)
    return address


def said_to_be_at(address):
    """Write what a SuperLink at this address writes into the folder of its state."""
    Path("superlink").mkdir(exist_ok=True)
    told = f'superlink = "{address}"\nca = "{Path("certs/server/ca.pem").absolute()}"\ntoken = "secret"\n'
    Path("superlink/control.toml").write_text(told)


def test_without_a_server_a_deployment_ends_in_one_sentence_and_leaves_nothing_behind(unheard, refused):
    message = re.escape(f"no server answers at {unheard} (") + ".*; `coterie deploy server` starts it"
    refused("deploy run app", message)
    refused("deploy run app --out a", message)
    refused("deploy resume stopped", message)
    said_to_be_at("nowhere")
    refused("deploy run app", "superlink=nowhere: write host:port")
    said_to_be_at("127.0.0.1:70000")
    refused("deploy run app", "no server answers at 127.0.0.1:70000")
    refused("deploy run app --state other", "other/control.toml: no such file; `coterie deploy server` writes it")
    Path("stopped/deployment/connection.toml").write_text('superlink = "127.0.0.1:8000"\n')
    refused("deploy resume stopped", "does not say where its SuperLink keeps its state; say --state")


def test_a_server_that_is_another_one_gets_no_run(unheard, refused):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with listener.accept()[0] as other:
                other.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        stranger = threading.Thread(target=answer)
        stranger.start()
        said_to_be_at(f"127.0.0.1:{listener.getsockname()[1]}")
        refused("deploy run app", "does not identify itself with a certificate of the authority")
        stranger.join()


@pytest.mark.parametrize("line", ["deploy run app", "deploy resume stopped"])
@pytest.mark.usefixtures("unheard")
def test_without_keys_a_deployment_ends_in_one_sentence_and_leaves_nothing_behind(refused, line):
    Path("certs/server/ca.pem").write_text("no certificate")
    refused(line, "ca.pem: cannot be read as the certificate of an authority")
    Path("certs/server/ca.pem").unlink()
    refused(line, "ca.pem: no such file; .*which `coterie deploy certs` makes")


def test_a_run_on_this_machine_is_not_resumed_without_its_keys(unheard, refused):
    Path("stopped/deployment/connection.toml").unlink()
    refused("deploy resume stopped", "deployment/certs/sites: no such folder")
    Path("stopped/deployment/certs/sites").mkdir(parents=True)
    refused("deploy resume stopped", "deployment/certs/server/ca.pem: no such file")


def test_a_run_that_the_server_refuses_leaves_nothing_behind(unheard, refused, monkeypatch):
    def refuse(control, app, config):
        raise CoterieError("the SuperLink refuses: not today")

    monkeypatch.setattr("coterie.deploy.control.check_server", lambda superlink, ca: None)
    monkeypatch.setattr("coterie.deploy.control.Control.start", refuse)
    refused("deploy run app --out a", "not today")


@pytest.mark.slow
def test_the_commands_of_the_readme_one_after_another(call, tmp_path):
    """A server, two sites with data of their own in different forms, a run, and the same run again."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    np.savez(tmp_path / "task.npz", x=x, y=np.array(["no", "yes"])[(x[:, 0] > 0).astype(int)])
    call("deploy init app fedavg --data task.npz --net logistic --rounds 2")
    call("deploy certs certs --sites north,south")
    table = Path("app/site/site.toml").read_text()
    for place, name in enumerate(("north", "south")):
        site = Path("certs/sites") / name
        np.savez(site / "data.npz", x=x[place::2], y=np.array(["no", "yes"])[(x[place::2, 0] > 0).astype(int)])
        own = table.replace('name = "north"', f'name = "{name}"')
        if name == "south":  # through a hook in Python
            own = own.replace('data = "data.npz"', 'data = "site_data:load"')
            (site / "site_data.py").write_text(Path("app/site/site_data.py").read_text())
        (site / "site.toml").write_text(own)
    port = free_port()
    coterie = [sys.executable, "-m", "coterie", "deploy"]
    superlink = f"127.0.0.1:{port}"
    running = [subprocess.Popen([*coterie, "server", "certs/server", "--port", str(port)])]
    try:
        for name in ("north", "south"):
            site = f"certs/sites/{name}/site.toml"
            running.append(subprocess.Popen([*coterie, "site", site, "--superlink", superlink]))
        deadline = time.monotonic() + 120
        while not Path("superlink/superlink.log").is_file() or "activate-node" not in Path(
            "superlink/superlink.log"
        ).read_text(errors="replace"):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        outcome = call("deploy run app --out first --json")
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["rounds"] == 2
        assert {client["client"] for client in StoredRun.read(Path("first")).clients} == {"north", "south"}
        assert call("deploy resume first --json").json["accuracy_mean"] == json.loads(outcome.out)["accuracy_mean"]
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)
