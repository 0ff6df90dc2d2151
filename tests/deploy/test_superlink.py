"""The doors of a SuperLink, attacked: what an outsider and a site can do at them, with real processes."""

import asyncio
import hashlib
import os
import ssl
import stat
import subprocess
import sys
import time
from contextlib import closing

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import fab_to_proto
from flwr.proto import control_pb2, fleet_pb2, runtime_pb2
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.core.errors import CoterieError, SettingsError
from coterie.deploy.control import Control, ShowToken
from coterie.deploy.processes import Processes, check_user, free_port, start_superlink
from coterie.deploy.state import CONTROL
from coterie.deploy.superlink import SITES_NEED, Doors, TokenPlugin
from coterie.engines.flower.certs import make_certificates
from coterie.runs.settings import read_table


class Attacked:
    """A SuperLink with two registered sites and one stranger, and the ways to it."""

    def __init__(self, folder):
        self.folder, self.state, self.port = folder, folder / "superlink", free_port()
        self.certificates = make_certificates(folder / "certs", ["north", "south"])
        self.ca = self.certificates.server.ca
        self.outer = f"127.0.0.1:{self.port}"
        self.processes = Processes()
        self.process = start_superlink(self.processes, self.certificates.server, self.state, port=self.port)
        self.inner = read_table(self.state / CONTROL)["superlink"]

    def client(self, kind, door, *interceptors):
        told = [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), *interceptors]
        return closing(kind.from_server_address(door, False, self.ca.read_bytes(), told))

    def signing(self, site):
        """What signs requests with a site's own node key."""
        key = load_ssh_private_key(self.certificates.sites[site].node_key.read_bytes(), None)
        return NodeAuthHttpInterceptor(key, key.public_key())

    def app(self):
        """An app of the attacker's own, which writes a file where the SuperLink runs."""
        app = self.folder / "attack"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(
            '[project]\nname = "attack"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n[tool.flwr.app]\npublisher = "x"\n'
            '[tool.flwr.app.components]\nserverapp = "attack:app"\nclientapp = "attack:app"\n'
        )
        (app / "attack.py").write_text(f"open({str(self.folder / 'pwned')!r}, 'w').close()\napp = None\n")
        bundle = build_fab_from_disk(app)
        return fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    attacked = Attacked(tmp_path_factory.mktemp("attacked"))
    yield attacked
    attacked.processes.stop()


def status(call, request):
    """The status with which a request is refused; 200 if it is answered."""
    try:
        call(request)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


ORDERS = {
    "ListRuns": control_pb2.ListRunsRequest(),
    "ListNodes": control_pb2.ListNodesRequest(),
    "StartRun": None,
    "StopRun": control_pb2.StopRunRequest(run_id=1),
    "RegisterNode": None,
    "UnregisterNode": control_pb2.UnregisterNodeRequest(node_id=1),
    "StreamLogs": control_pb2.StreamLogsRequest(run_id=1),
}


def order(attacked, name):
    if name == "StartRun":
        return control_pb2.StartRunRequest(fab=attacked.app())
    if name == "RegisterNode":
        stranger = make_certificates(attacked.folder / "stranger", ["east"]).sites["east"]
        key = load_ssh_private_key(stranger.node_key.read_bytes(), None)
        return control_pb2.RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key()), name="east")
    return ORDERS[name]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("who", ["outsider", "site", "guesser"])
def test_nobody_but_the_owner_gives_orders(attacked, who, name):
    own = {"outsider": (), "site": (attacked.signing("north"),), "guesser": (ShowToken("guessed"),)}[who]
    if who == "site":  # what signs for a fleet signs nothing else: shown as a bearer it is none
        own = (*own, ShowToken(attacked.certificates.sites["north"].node_public.read_text().split()[1]))
    request = order(attacked, name)
    for door, expected in ((attacked.outer, 404), (attacked.inner, 401)):
        with attacked.client(ControlHttpClient, door, *own) as client:
            call = getattr(client, name)
            if name.startswith("Stream"):
                assert status(lambda asked, call=call: list(call(asked)), request) == expected
            else:
                assert status(call, request) == expected
    assert not (attacked.folder / "pwned").exists()


def test_the_owner_gives_orders_with_the_token_on_this_machine_alone(attacked):
    token = read_table(attacked.state / CONTROL)["token"]
    with attacked.client(ControlHttpClient, attacked.inner, ShowToken(token)) as client:
        nodes = client.ListNodes(control_pb2.ListNodesRequest()).nodes_info
        assert sorted(node.name for node in nodes) == ["north", "south"]
    with attacked.client(ControlHttpClient, attacked.outer, ShowToken(token)) as client:
        assert status(client.ListNodes, control_pb2.ListNodesRequest()) == 404


@pytest.mark.parametrize("who", ["outsider", "site"])
def test_nobody_but_our_own_helper_is_handed_work(attacked, who):
    own = (attacked.signing("north"),) if who == "site" else ()
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=["serverapp"])
    for door, expected in ((attacked.outer, 404), (attacked.inner, 401)):
        with attacked.client(RuntimeHttpClient, door, *own) as client:
            assert status(client.AcquireTask, request) == expected
            assert status(client.GetNodes, runtime_pb2.GetNodesRequest()) == expected
            assert status(client.PullMessages, runtime_pb2.PullAppMessagesRequest()) == expected


def test_a_node_that_nobody_admitted_is_not_let_in_and_cannot_admit_itself(attacked):
    stranger = make_certificates(attacked.folder / "stranger", ["east"]).sites["east"]
    key = load_ssh_private_key(stranger.node_key.read_bytes(), None)
    public = public_key_to_bytes(key.public_key())
    signing = NodeAuthHttpInterceptor(key, key.public_key())
    activate = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    with attacked.client(FleetHttpClient, attacked.outer, signing) as client:
        assert status(client.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=public)) == 404
        assert status(client.UnregisterNode, fleet_pb2.UnregisterNodeFleetRequest(node_id=1)) == 404
        assert status(client.ActivateNode, activate) >= 400
    with attacked.client(FleetHttpClient, attacked.outer) as client:  # unsigned
        assert status(client.ActivateNode, activate) == 401
    with attacked.client(FleetHttpClient, attacked.outer, attacked.signing("south")) as client:  # signed by another
        assert status(client.ActivateNode, activate) == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "//v1/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/runtime/acquire-task",
        "/docs",
        "/openapi.json",
        "/health",
        "/",
    ],
)
@pytest.mark.parametrize("headers", [{}, {"x-forwarded-for": "127.0.0.1", "host": "127.0.0.1:1"}])
def test_the_outer_door_has_nothing_else_whatever_a_request_says_of_itself(attacked, path, headers):
    with httpx.Client(verify=ssl.create_default_context(cafile=str(attacked.ca))) as client:
        request = client.build_request("POST", f"https://{attacked.outer}/", headers=headers, content=b"")
        request.url = request.url.copy_with(raw_path=path.encode())
        assert client.send(request).status_code == 404


def test_what_does_not_say_how_long_it_is_is_not_read(attacked):
    address = f"https://{attacked.outer}/v1/fleet/push-object"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(attacked.ca))) as client:
        assert client.post(address, content=iter([b"of unknown", b"length"])).status_code == 413


def test_the_inner_door_is_on_loopback_and_its_token_for_the_owner_alone(attacked):
    family = [psutil.Process(attacked.process.pid), *psutil.Process(attacked.process.pid).children(recursive=True)]
    listening = {one.laddr for process in family for one in process.net_connections() if one.status == "LISTEN"}
    assert {f"{place.ip}:{place.port}" for place in listening} == {attacked.outer, attacked.inner}
    for path in (attacked.state / CONTROL, attacked.state / "superexec.secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(attacked.state.stat().st_mode) == 0o700
    token = read_table(attacked.state / CONTROL)["token"]
    seen = [word for process in family for word in process.cmdline()]
    assert seen
    assert not any(token in word for word in seen)


def test_each_start_has_a_token_of_its_own_and_removes_it_at_the_end(tmp_path):
    certificates, tokens = make_certificates(tmp_path / "certs", ["north"]), []
    for _ in range(2):
        with Processes() as processes:
            start_superlink(processes, certificates.server, tmp_path / "state", port=free_port())
            tokens.append(read_table(tmp_path / "state" / CONTROL)["token"])
        assert not (tmp_path / "state" / CONTROL).exists()
        assert not (tmp_path / "state" / "superexec.secret").exists()
    assert tokens[0] != tokens[1]
    with pytest.raises(SettingsError, match=r"control.toml: no such file; `coterie deploy server` writes it"):
        Control(tmp_path / "state")


def test_a_port_that_is_taken_is_named(attacked, tmp_path):
    with Processes() as processes, pytest.raises(CoterieError, match=f"cannot listen at 127.0.0.1:{attacked.port}"):
        start_superlink(processes, attacked.certificates.server, tmp_path / "state", port=attacked.port)


def test_root_serves_this_machine_and_others_only_if_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_user(host, as_root=False)
    for host in ("0.0.0.0", "", "::", "10.0.0.1", "federation.example.org"):
        with pytest.raises(SettingsError, match=r"served by root.*--as-root"):
            check_user(host, as_root=False)
        check_user(host, as_root=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_user("0.0.0.0", as_root=False)


@pytest.mark.parametrize("shown", [[], [""], ["secre"], ["secret "], [b"\xff"], ["secret", "secret"]])
def test_only_the_token_itself_is_the_token(shown):
    assert TokenPlugin("secret").validate_tokens_in_metadata([("name", value) for value in shown]) == (False, None)
    assert TokenPlugin("secret").validate_tokens_in_metadata([("name", "secret")])[0]
    assert not TokenPlugin().validate_tokens_in_metadata([("name", "")])[0]


def asked(path, kind="http", headers=(), port=1):
    """Which paths an application is asked for behind the doors, and the statuses with which these answer."""
    passed, sent = [], []

    async def application(scope, receive, send):
        passed.append(scope["path"])

    async def send(message):
        sent.append(message.get("status", message["type"]))

    scope = {"type": kind, "path": path, "headers": list(headers), "server": ("0.0.0.0", port)}
    asyncio.run(Doors(application, inner=2)(scope, None, send))
    return passed, sent


@pytest.mark.parametrize("path", sorted(SITES_NEED))
def test_what_is_too_long_is_not_read(path):
    assert asked(path, headers=[(b"content-length", b"5")]) == ([path], [])
    for wrong in (str(65 << 20).encode(), b"-1", b"1e3", b""):
        assert asked(path, headers=[(b"content-length", wrong)])[0] == []
    assert asked(path, headers=[(b"content-length", b"1")] * 2)[0] == []
    assert asked(path, headers=[(b"content-length", str(65 << 20).encode())], port=2) == ([path], [])


def test_other_protocols_find_no_outer_door():
    assert asked("/v1/fleet/pull-messages", kind="websocket") == ([], ["websocket.close"])
    assert asked("/v1/control/list-runs", kind="websocket") == ([], ["websocket.close"])


def test_the_process_of_the_superlink_loads_nothing_that_computes():
    code = "import sys, coterie.deploy.superlink; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_follows_the_keys_of_its_folder_and_outlives_a_bad_one(tmp_path):
    certificates = make_certificates(tmp_path / "certs", ["north"])
    nodes = certificates.server.folder / "nodes"
    command = [sys.executable, "-m", "coterie", "deploy", "server", str(certificates.server.folder)]
    log = tmp_path / "said.txt"
    with Processes() as processes:
        told = [*command, "--port", str(free_port()), "--state", str(tmp_path / "state")]
        process = processes.start("server", told, log, {"COLUMNS": "200"})

        def says(words):
            deadline = time.monotonic() + 60
            while words not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                assert not process.ended, log.read_text()
                time.sleep(0.2)

        says("listening on")
        (nodes / "bad.pub").write_text("nonsense")
        says("bad.pub: cannot be read as a public node key")
        (nodes / "bad.pub").unlink()
        (nodes / "north.pub").unlink()
        says("no longer admitted: north")
        make_certificates(tmp_path / "certs", ["east"])
        says("admitted: east")
