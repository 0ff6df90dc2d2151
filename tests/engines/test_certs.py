"""Certificates and keys: TLS accepts them, Flower reads them, and each party has what it needs and nothing more."""

import argparse
import os
import shutil
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from coterie.clients.sealing import Identity, SealingError, Seals, read_peers, write_peers
from coterie.core.errors import CoterieError, SettingsError
from coterie.engines.flower.certs import make_certificates

PRIVATE = {"ca.key", "server.key", "node.key", "identity.pem"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Certificates of three sites that no test changes, made under a careless umask."""
    before = os.umask(0)
    try:
        return make_certificates(tmp_path_factory.mktemp("made"), ["north", "south", "2nd.floor-a_b"])
    finally:
        os.umask(before)


@pytest.fixture
def copy(made, tmp_path):
    """A folder of the same that a test may change."""
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shake_hands(server, authority: Path, host: str) -> str:
    """Connect to a server with these files as Flower's client does; returns the version of TLS."""
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(server.certificate, server.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    client.load_verify_locations(cadata=authority.read_text(encoding="ascii"))

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                with listening.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(1)
            except (ssl.SSLError, ConnectionError):
                pass  # the client has hung up; what it says is what counts

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                client.wrap_socket(plain, server_hostname=host) as secure,
            ):
                secure.send(b"x")
                return str(secure.version())
        finally:
            thread.join()


# The server's certificate


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_a_site_accepts_the_server_at_each_of_its_hosts(made, host):
    assert shake_hands(made.server, made.sites["north"].ca, host) == "TLSv1.3"


def test_a_site_with_another_authority_refuses_the_server(made, tmp_path):
    other = make_certificates(tmp_path / "other", ["north"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made.server, other.sites["north"].ca, "localhost")


def test_a_server_at_another_host_is_refused(made):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        shake_hands(made.server, made.server.ca, "elsewhere.example.org")


def test_a_certificate_is_for_the_hosts_it_was_made_for(tmp_path):
    made = make_certificates(tmp_path, ["a"], hosts=["fl.Example.org", "10.0.0.7"])
    for host in ("fl.example.org", "10.0.0.7"):
        assert shake_hands(made.server, made.sites["a"].ca, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made.server, made.sites["a"].ca, "localhost")


def test_the_server_cannot_sign_and_the_authority_cannot_serve(made):
    server = x509.load_pem_x509_certificate(made.server.certificate.read_bytes())
    authority = x509.load_pem_x509_certificate(made.server.ca.read_bytes())
    server.verify_directly_issued_by(authority)
    may_sign = [
        (
            certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca,
            certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign,
            certificate.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature,
        )
        for certificate in (server, authority)
    ]
    assert may_sign == [(False, False, True), (True, True, False)]


def test_certificates_are_valid_as_long_as_asked_and_never_longer_than_their_authority(tmp_path):
    def days_left(path: Path) -> float:
        return (x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc - now) / timedelta(days=1)

    made, now = make_certificates(tmp_path, ["a"], days=30), datetime.now(UTC)
    assert days_left(made.server.certificate) == pytest.approx(30, abs=0.1)
    authority = days_left(made.server.ca)
    assert authority > 3000
    made.server.certificate.unlink()
    make_certificates(tmp_path, [], days=100_000)
    assert days_left(made.server.certificate) == authority


@pytest.mark.parametrize("host", ["", "fl.example.org:8000", "[::1]", "a b", "-x", "x-", "a..b", "ü.org", "a" * 64])
def test_bad_hosts_are_refused(tmp_path, host):
    with pytest.raises(SettingsError, match=r"a name like fl\.example\.org or an address, without port or brackets"):
        make_certificates(tmp_path / "new", ["a"], hosts=[host])
    assert not (tmp_path / "new").exists()


# What Flower reads

flower = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing it gives some of its dependencies'


@flower
def test_flower_reads_the_node_keys(made):
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    keys = set()
    for name, files in made.sites.items():
        given = argparse.Namespace(auth_supernode_private_key=str(files.node_key), auth_supernode_public_key=None)
        found = _try_setup_client_authentication(given)
        assert found is not None
        private, public = found
        assert isinstance(private.curve, ec.SECP384R1)
        for path in (files.node_public, made.server.node(name)):
            assert load_pem_public_key(try_load_public_key(path)) == public
        keys.add(try_load_public_key(files.node_public))
    assert len(keys) == len(made.sites)


@flower
def test_flower_reads_the_certificates(made):
    from flwr.common.args import try_obtain_root_certificates, try_obtain_server_certificates

    server, files = made.server, made.sites["north"]
    given = {"ssl_ca_certfile": server.ca, "ssl_certfile": server.certificate, "ssl_keyfile": server.key}
    given = argparse.Namespace(**{name: str(path) for name, path in given.items()})
    expected = (server.ca.read_bytes(), server.certificate.read_bytes(), server.key.read_bytes())
    assert try_obtain_server_certificates(given) == expected
    given = argparse.Namespace(insecure=False, root_certificates=str(files.ca))
    assert try_obtain_root_certificates(given, "localhost:8000") == server.ca.read_bytes()


# Who gets what


def test_each_party_has_what_it_needs_and_nothing_else(made):
    names = {"north", "south", "2nd.floor-a_b"}
    assert set(made.sites) == set(made.added) == names
    assert made.outdated == ()
    assert {path.name for path in made.folder.iterdir()} == {"ca", "server", "sites", "peers.toml"}
    assert set(content(made.folder / "ca")) == {"ca.pem", "ca.key"}
    nodes = {f"nodes/{name}.pub" for name in names}
    assert set(content(made.server.folder)) == {"ca.pem", "server.pem", "server.key"} | nodes
    assert {path.name for path in (made.folder / "sites").iterdir()} == names
    for files in made.sites.values():
        expected = {files.ca, files.node_key, files.node_public, files.identity, files.peers}
        assert set(files.folder.iterdir()) == expected


def test_private_keys_are_for_their_owner_alone(made):
    found = [path for path in made.folder.rglob("*") if path.name in PRIVATE]
    assert len(found) == 2 + 2 * 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    for path in made.folder.rglob("*"):
        assert (b"PRIVATE KEY" in path.read_bytes() if path.is_file() else False) == (path in found)
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.folder.rglob("*") if path.is_dir()} == {0o700}


def test_sites_can_write_to_each_other_with_what_they_are_given(made, tmp_path):
    def seals(name: str) -> Seals:
        files = made.sites[name]
        return Seals(name, Identity.read(files.identity), read_peers(files.peers), tmp_path / name)

    north, south, at = seals("north"), seals("south"), {"run": "r", "round": 1}
    north.announce(**at)
    sealed = north.seal(b"hello", **at, phase=0, receiver="south", subject="s", announcement=south.announce(**at))
    assert south.reading(**at, phase=1).open(sealed, sender="north", subject="s") == b"hello"
    with pytest.raises(SealingError, match="the private key is not the one"):
        Seals("north", Identity.read(made.sites["south"].identity), read_peers(made.sites["south"].peers), tmp_path)


# Later


def test_made_again_nothing_changes(made, copy):
    again = make_certificates(copy, ["north"], hosts=["127.0.0.1"])
    assert content(copy) == content(made.folder)
    assert (again.added, again.outdated) == ((), ())
    assert set(again.sites) == set(made.sites)


def test_a_site_that_is_added_later_changes_only_who_is_known(made, copy, caplog):
    again = make_certificates(copy, ["east"])
    assert again.added == ("east",)
    assert set(again.outdated) == set(made.sites)
    assert "must be given their new peers.toml: 2nd.floor-a_b, north, south" in caplog.text
    before, after = content(made.folder), content(copy)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"peers.toml"} | {f"sites/{name}/peers.toml" for name in made.sites}
    own = {"ca.pem", "node.key", "node.pub", "identity.pem", "peers.toml"}
    assert set(after) - set(before) == {"server/nodes/east.pub"} | {f"sites/east/{name}" for name in own}
    peers = read_peers(copy / "peers.toml")
    assert peers == read_peers(made.folder / "peers.toml") | {
        "east": Identity.read(again.sites["east"].identity).public
    }
    assert all(read_peers(files.peers) == peers for files in again.sites.values())
    assert shake_hands(again.server, again.sites["east"].ca, "localhost")


def test_private_keys_that_were_handed_over_are_not_made_anew(made, copy):
    shutil.rmtree(copy / "sites" / "north")
    again = make_certificates(copy, ["north", "east"])
    assert again.added == ("east",)
    assert {path.name for path in again.sites["north"].folder.iterdir()} == {"ca.pem", "peers.toml"}
    assert read_peers(again.sites["north"].peers)["north"] == read_peers(made.folder / "peers.toml")["north"]


def test_an_attempt_that_was_cut_off_is_carried_on(tmp_path):
    first = make_certificates(tmp_path, ["a", "b"])
    before = content(tmp_path)
    for path in (tmp_path / "peers.toml", first.sites["b"].node_public, first.server.node("b"), first.server.ca):
        path.unlink()
    again = make_certificates(tmp_path, ["a", "b"])
    assert content(tmp_path) == before
    assert again.added == ("a", "b")


def test_a_server_certificate_is_renewed_once_it_is_removed(made, copy):
    (copy / "server" / "server.pem").unlink()
    again = make_certificates(copy, [], hosts=["fl.example.org"])
    assert shake_hands(again.server, made.sites["north"].ca, "fl.example.org")
    before, after = content(made.folder), content(copy)
    assert {name for name in before if before[name] != after[name]} == {"server/server.pem"}


def test_a_certificate_for_other_hosts_is_not_overwritten(copy):
    with pytest.raises(SettingsError, match=r"server\.pem: is for localhost, .*, not for fl\.example\.org; remove"):
        make_certificates(copy, ["north"], hosts=["localhost", "fl.example.org"])


def test_nothing_is_signed_without_the_authoritys_own_key(copy, tmp_path):
    (copy / "server" / "server.pem").unlink()
    (copy / "ca" / "ca.key").unlink()
    with pytest.raises(SettingsError, match=r"ca\.key: missing, and needed"):
        make_certificates(copy, ["north"])
    make_certificates(tmp_path / "other", ["north"])
    shutil.copy(tmp_path / "other" / "ca" / "ca.key", copy / "ca" / "ca.key")
    with pytest.raises(SettingsError, match=r"ca\.key is not the key of ca\.pem"):
        make_certificates(copy, ["north"])


def test_a_registered_key_of_an_earlier_site_is_noticed(tmp_path):
    first = make_certificates(tmp_path, ["a"])
    (tmp_path / "peers.toml").unlink()
    shutil.rmtree(first.sites["a"].folder)
    with pytest.raises(SettingsError, match=r"a\.pub: of another key than .*node\.key; remove what is out of date"):
        make_certificates(tmp_path, ["a"])


@pytest.mark.parametrize(
    ("name", "damaged"),
    [("ca/ca.key", b"nonsense"), ("ca/ca.pem", b"nonsense"), ("peers.toml", b"nonsense")],
)
def test_damaged_files_are_named(copy, name, damaged):
    (copy / "server" / "server.pem").unlink()
    (copy / name).write_bytes(damaged)
    with pytest.raises(CoterieError, match=Path(name).name):
        make_certificates(copy, ["north"])


def test_a_key_of_another_kind_is_refused(copy, made):
    (copy / "server" / "server.pem").unlink()
    shutil.copy(made.sites["north"].identity, copy / "server" / "server.key")
    with pytest.raises(SettingsError, match=r"server\.key: not a key of an elliptic curve for ECDSA"):
        make_certificates(copy, ["north"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match=r"file.*: cannot be written"):
        make_certificates(tmp_path / "file" / "made", ["a"])


# Names


def test_names_in_the_list_of_peers_are_checked_too(copy, made):
    write_peers(copy / "peers.toml", {"../north": read_peers(made.sites["north"].peers)["north"]})
    with pytest.raises(SettingsError, match=r"site '\.\./north': up to 64 letters"):
        make_certificates(copy, ["south"])


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../up", "a/b", "a\\b", ".hidden", "-option", "a.", "a b", "a\n", "ü", "a\0", "x" * 65, "a:b"],
)
def test_names_that_are_no_good_as_file_names_are_refused(tmp_path, name):
    with pytest.raises(SettingsError, match="up to 64 letters, digits, dots, dashes and underscores"):
        make_certificates(tmp_path / "new", ["fine", name])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (["b", "a", "a"], "sites b, a, a: one is given twice"),
        (["a", "A"], "site 'A': differs from 'a' only in upper and lower case"),
        ([], "sites: at least one name"),
    ],
)
def test_names_must_be_there_and_differ(tmp_path, sites, message):
    with pytest.raises(SettingsError, match=message):
        make_certificates(tmp_path / "new", sites)
    assert not (tmp_path / "new").exists()


def test_a_later_name_must_differ_from_those_that_are_there(copy):
    with pytest.raises(SettingsError, match="site 'North': differs from 'north'"):
        make_certificates(copy, ["North"])


@pytest.mark.parametrize(("settings", "message"), [({"days": 0}, "days=0"), ({"hosts": []}, "hosts: at least one")])
def test_settings_are_checked(tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        make_certificates(tmp_path, ["a"], **settings)
