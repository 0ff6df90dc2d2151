"""Keys that sites make themselves: signed by the leader, rotated, revoked; and what an impostor does with them."""

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import coterie
from coterie.clients.sealing import Identity, Roster, SealingError, read_peers, read_roster, write_peers
from coterie.core.errors import CoterieError, SettingsError
from coterie.deploy.control import Control
from coterie.deploy.processes import Processes, free_port, start_superlink
from coterie.engines.flower.certs import Request, make_certificates, make_keys, revoke, sign_request
from coterie.engines.flower.engine import FederatedTask, FlowerEngine, TooFewSitesError, Waiting
from coterie.engines.flower.site import RemoteSite, Rules
from coterie.nets import codec, make_net


@pytest.fixture
def leader(tmp_path):
    """A leader's folder with an authority and no site."""
    make_certificates(tmp_path / "leader", None)
    return tmp_path / "leader"


@pytest.fixture
def admitted(leader, tmp_path):
    """Two sites that have made their keys themselves."""
    for name in ("north", "south"):
        make_keys(tmp_path / name, name)
        sign_request(leader, Request.read(tmp_path / name / "request.toml"))
    return leader


def request_of(folder):
    return Request.read(folder / "request.toml")


def test_no_secret_leaves_a_site(leader, tmp_path):
    made = make_keys(tmp_path / "north", "north")
    secrets = [(tmp_path / "north" / name).read_bytes() for name in ("node.key", "identity.pem")]
    assert all((tmp_path / "north" / name).stat().st_mode & 0o777 == 0o600 for name in ("node.key", "identity.pem"))
    assert b"PRIVATE" not in (tmp_path / "north" / "request.toml").read_bytes()
    sign_request(leader, request_of(tmp_path / "north"))
    for path in leader.rglob("*"):
        if path.is_file() and path.name not in ("ca.key", "server.key"):
            assert b"PRIVATE" not in path.read_bytes()
            assert path.read_bytes() not in secrets
    assert {path.name for path in (leader / "sites" / "north").iterdir()} == {"ca.pem", "peers.toml"}
    assert request_of(tmp_path / "north").fingerprint == made.fingerprint


def test_the_list_of_peers_is_signed_and_numbered(admitted):
    roster, authority = read_roster(admitted / "peers.toml"), (admitted / "ca" / "ca.pem").read_bytes()
    assert (set(roster.identities), roster.serial) == ({"north", "south"}, 2)
    roster.check(authority)
    assert read_roster(admitted / "sites" / "north" / "peers.toml") == roster
    other = {**roster.identities, "north": Identity.create().public}
    for forged in (
        Roster(other, roster.serial, roster.signature),
        Roster(roster.identities, roster.serial + 1, roster.signature),
        Roster({"north": roster.identities["north"]}, roster.serial, roster.signature),
        Roster(roster.identities, roster.serial),
    ):
        with pytest.raises(SealingError, match="not signed by the authority"):
            forged.check(authority)


@pytest.mark.parametrize("field", ["name", "node", "identity", "by_node", "by_identity"])
def test_a_request_that_was_altered_on_the_way_is_refused(tmp_path, field):
    make_keys(tmp_path / "north", "north")
    make_keys(tmp_path / "other", "other")
    table, other = (tomllib.loads((tmp_path / one / "request.toml").read_text()) for one in ("north", "other"))
    (tmp_path / "request.toml").write_text(tomli_w.dumps(table | {field: other[field]}))
    with pytest.raises(SettingsError, match="its signatures are not by the keys in it"):
        request_of(tmp_path)


@pytest.mark.parametrize("content", ["", "name = 3", "[a]", 'name = "a"\nsecret = "b"', "nonsense"])
def test_what_is_no_request_is_refused(tmp_path, content):
    (tmp_path / "request.toml").write_text(content)
    with pytest.raises(SettingsError, match="not a request for keys"):
        request_of(tmp_path)


def test_a_name_is_taken_over_by_nobody(admitted, tmp_path):
    make_keys(tmp_path / "impostor", "north")
    before = (admitted / "peers.toml").read_bytes()
    with pytest.raises(SettingsError, match=r"known with other keys, .*--replace"):
        sign_request(admitted, request_of(tmp_path / "impostor"))
    make_keys(tmp_path / "second", "north", previous=tmp_path / "south" / "identity.pem")
    with pytest.raises(SettingsError, match="known with other keys"):
        sign_request(admitted, request_of(tmp_path / "second"))
    assert (admitted / "peers.toml").read_bytes() == before


def test_one_key_is_not_for_two_names(admitted, tmp_path):
    for theirs in ("identity", "node"):
        folder = tmp_path / theirs
        made = make_keys(folder, "east")
        twin = request_of(tmp_path / "north")
        asked = Request("east", twin.node if theirs == "node" else made.node, "", "", "")
        asked = Request("east", asked.node, twin.identity if theirs == "identity" else made.identity, "", "")
        with pytest.raises(SettingsError, match=r"of another site|node key of north"):
            sign_request(admitted, asked)


def test_keys_are_rotated_by_who_has_the_old_ones(admitted, tmp_path):
    old = read_peers(admitted / "peers.toml")["north"]
    make_keys(tmp_path / "new", "north", previous=tmp_path / "north" / "identity.pem")
    made = sign_request(admitted, request_of(tmp_path / "new"))
    assert made.outdated == ("south",)
    roster = read_roster(admitted / "peers.toml")
    assert roster.identities["north"] == Identity.read(tmp_path / "new" / "identity.pem").public != old
    assert roster.serial == 3
    assert made.server.node("north").read_text().split()[:2] == (tmp_path / "new" / "node.pub").read_text().split()[:2]
    with pytest.raises(SettingsError, match="known with other keys"):  # the old request, sent again
        sign_request(admitted, request_of(tmp_path / "north"))
    sign_request(admitted, request_of(tmp_path / "north"), replace=True)  # after a call by telephone
    assert read_peers(admitted / "peers.toml")["north"] == old


def test_who_is_signed_again_changes_nothing(admitted, tmp_path):
    before = {path: path.read_bytes() for path in admitted.rglob("*") if path.is_file()}
    assert sign_request(admitted, request_of(tmp_path / "north")).outdated == ()
    assert {path: path.read_bytes() for path in admitted.rglob("*") if path.is_file()} == before


def test_keys_are_not_overwritten_and_names_and_authorities_are_checked(leader, tmp_path):
    make_keys(tmp_path / "north", "north")
    with pytest.raises(SettingsError, match="exists already"):
        make_keys(tmp_path / "north", "north")
    with pytest.raises(SettingsError, match="up to 64 letters"):
        make_keys(tmp_path / "odd", "north\n2026 INFO all is well")
    with pytest.raises(SettingsError, match="make the authority first"):
        sign_request(tmp_path / "nobody", request_of(tmp_path / "north"))
    (leader / "ca" / "ca.key").unlink()
    with pytest.raises(SettingsError, match=r"ca\.key: missing, and needed to sign who belongs"):
        sign_request(leader, request_of(tmp_path / "north"))


# At a site


@pytest.fixture
def site(admitted, tmp_path):
    """The site north, which reads the list that it was given."""
    for name in ("ca.pem", "peers.toml"):
        shutil.copy(admitted / "sites" / "north" / name, tmp_path / "north" / name)
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3, labels=("a", "b", "c"))
    fed = coterie.simulate(data, clients=1, net="logistic", test_share=0, workers=0)
    folder = tmp_path / "north"
    rules = {"identity": folder / "identity.pem", "peers": folder / "peers.toml", "ca": folder / "ca.pem"}
    return RemoteSite(Rules("north", ("a", "b", "c"), folder / "state", (), **rules), fed._engine._host)


def keys(site):
    """What a site answers that is asked for its key of a round."""
    request = codec.dump({"format": 1, "ask": "keys", "run": "run", "round": 1})
    return codec.load(site.answer({"request": request}), {})


def test_a_site_takes_no_list_that_is_forged_unsigned_or_old(site, admitted, tmp_path):
    own = tmp_path / "north" / "peers.toml"
    assert "announcement" in keys(site)
    older = own.read_bytes()
    revoke(admitted, "south")
    own.write_bytes((admitted / "sites" / "north" / "peers.toml").read_bytes())
    assert "announcement" in keys(site)
    assert "south" not in site._seals._peers
    own.write_bytes(older)
    assert "list 2, but list 3 was here before" in keys(site)["refused"]
    peers = read_peers(own)
    write_peers(own, peers)
    assert "not signed by the authority" in keys(site)["refused"]
    stranger = make_certificates(tmp_path / "stranger", None).folder
    make_keys(tmp_path / "x", "north")
    sign_request(stranger, request_of(tmp_path / "x"))
    own.write_bytes((stranger / "peers.toml").read_bytes())
    assert "not signed by the authority" in keys(site)["refused"]


# At the server


def test_who_is_revoked_or_has_new_keys_is_no_longer_let_in_with_the_old_ones(admitted, tmp_path):
    make_keys(tmp_path / "new", "north", previous=tmp_path / "north" / "identity.pem")
    files = make_certificates(admitted, None).server
    with Processes() as processes:
        start_superlink(processes, files, tmp_path / "state", port=free_port())
        control = Control(tmp_path / "state")
        try:
            assert control.admit(files.folder / "nodes") == ([], [])
            sign_request(admitted, request_of(tmp_path / "new"))
            assert control.admit(files.folder / "nodes") == (["north"], ["north"])
            revoke(admitted, "south")
            assert control.admit(files.folder / "nodes") == ([], ["south"])
            assert control.admit(files.folder / "nodes") == ([], [])
            (files.folder / "nodes" / "bad.pub").write_text("nonsense")
            with pytest.raises(SettingsError, match=r"bad\.pub: cannot be read as a public node key"):
                control.admit(files.folder / "nodes")
        finally:
            control.close()
    with pytest.raises(CoterieError, match="unknown site 'south'"):
        revoke(admitted, "south")


class Greeted:
    """A transport to one node that says a name, and whose key is registered under another."""

    def __init__(self, name, registered, net):
        self.name, self.own, self.net = name, registered, net

    def nodes(self):
        return {7}

    def registered(self, node):
        return self.own

    def send(self, messages):
        return {7: "message"}

    def receive(self, messages, most=None):
        hello = {"name": self.name, "samples": 10, "labels": ["a", "b"], "task": self.net.task.name, "loss": ""}
        hello |= {"net": self.net.name, "shape": list(self.net.shape), "parameters": self.net.parameters.total}
        return {"message": codec.dump({**hello, "dtype": str(self.net.dtype), "frozen": self.net.digest})}


@pytest.mark.parametrize(("registered", "let_in"), [("north", True), ("", True), ("south", False)])
def test_a_site_cannot_take_the_name_of_another(registered, let_in, caplog):
    net = make_net("logistic", (4,), 2, *[coterie.simulate(clients=2, net="mlp").net.device], None)
    transport = Greeted("north", registered, net)
    task, waiting = FederatedTask(("a", "b"), (4,), "logistic"), Waiting(min_sites=1, timeout=1, patience=0, poll=0.001)
    engine = FlowerEngine(net, task, transport, waiting)
    if let_in:
        engine.gather()
        assert engine.names == ["north"]
    else:
        with pytest.raises(TooFewSitesError):
            engine.gather()
        assert "site north is not admitted: its node key is that of south" in caplog.text


# The commands


def test_from_key_to_sign_to_revoke(call, refused, tmp_path):
    assert call("deploy certs leader --hosts federation.example.org").code == 0
    outcome = call("deploy key north")
    assert "send to the leader: north/request.toml" in outcome.out
    fingerprint = outcome.out.rsplit("say: ", 1)[1].strip()
    signed = call("deploy sign leader north/request.toml")
    assert fingerprint in signed.out
    assert "for north, beside its own keys: leader/sites/north" in signed.out
    call("deploy key south --to elsewhere")
    outcome = call("deploy sign leader elsewhere/request.toml")
    assert "give these sites their new peers.toml: north" in outcome.out
    call("deploy key north --to stolen")
    refused("deploy sign leader stolen/request.toml", "known with other keys")
    assert call("deploy sign leader stolen/request.toml --replace").code == 0
    outcome = call("deploy revoke leader south")
    assert "remove from the server: leader/server/nodes/south.pub" in outcome.out
    assert set(read_peers(Path("leader/peers.toml"))) == {"north"}
    refused("deploy revoke leader south", "unknown site 'south'")
    refused("deploy key north", "exists already")
    refused("deploy key ../up", "up to 64 letters")
