"""Certificates and keys of a federation: how the server proves who it is to sites, and sites to it and to each other.

    ca/ca.pem, ca.key            the authority that signs the server's certificate; the key stays here, best offline
    peers.toml                   the public letter identities of all sites, from which the sites' copies are made
    server/                      to be taken to the machine of the SuperLink
        ca.pem, server.pem, server.key
        nodes/NAME.pub           the node keys to register
    sites/NAME/                  to be taken to the site of that name, and nowhere else
        ca.pem                   with this the site recognises the server
        node.key, node.pub       with these the server recognises the site (Flower's node authentication)
        identity.pem             with this other sites recognise the site (`coterie.clients.sealing`)
        peers.toml               with this the site recognises the others

Best no private key of a site is ever here: a site makes its keys itself (`make_keys`) and sends a request without any
secret, which the leader signs (`sign_request`). Where the leader makes them (`make_certificates` with sites), the
private ones may be removed once the site has them: public ones stay in `peers.toml` and `nodes`.

A request has the public halves of both keys, a signature by each, and, if it replaces earlier keys, one by the identity
before. `peers.toml` is signed by the authority and numbered: sites take no other, and no older one. Who is revoked is
on no later list, and the server forgets the node key (`coterie.deploy.control.Control.admit`).
"""

import base64
import hashlib
import ipaddress
import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.clients.sealing import Identity, Roster, read_roster, write_peers, write_private
from coterie.core.errors import SettingsError, unknown
from coterie.core.files import write_whole

log = logging.getLogger("coterie")

LOCAL = ("localhost", "127.0.0.1", "::1")
"""The names and addresses at which a server on the same machine is reached."""

_AUTHORITY_DAYS = 3650
"""Days for which the authority's certificate is valid: long, since every site has it, and it is tedious to replace."""

_SKEW = timedelta(days=1)
"""How far a site's clock may be behind when certificates are new."""


class _File:
    """An attribute that is the path of a file in the `folder` of its object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: "ServerFiles | SiteFiles", owner: object = None) -> Path:
        return files.folder / self._name


@dataclass(frozen=True)
class ServerFiles:
    """The files that the SuperLink needs."""

    folder: Path

    ca = _File("ca.pem")
    """The authority's certificate, for `--ssl-ca-certfile`."""
    certificate = _File("server.pem")
    """The server's certificate, for `--ssl-certfile`."""
    key = _File("server.key")
    """The server's private key, for `--ssl-keyfile`."""

    def node(self, site: str) -> Path:
        """The public node key of a site, for `flwr supernode register`."""
        return self.folder / "nodes" / f"{site}.pub"


@dataclass(frozen=True)
class SiteFiles:
    """The files that a site needs. Its private keys are not here if they were handed over and removed."""

    folder: Path

    ca = _File("ca.pem")
    """The authority's certificate, for `--root-certificates`."""
    node_key = _File("node.key")
    """The private node key, for `--auth-supernode-private-key`."""
    node_public = _File("node.pub")
    """The public node key, for `flwr supernode register`."""
    identity = _File("identity.pem")
    """The private letter identity, for the site's settings."""
    peers = _File("peers.toml")
    """The pinned identities of all sites, for the site's settings."""


@dataclass(frozen=True)
class Certificates:
    """Where the certificates and keys of a federation are, and what has changed."""

    folder: Path
    server: ServerFiles
    sites: Mapping[str, SiteFiles]
    """All sites, new ones and old ones."""
    added: tuple[str, ...]
    """The new sites."""
    outdated: tuple[str, ...]
    """The old sites that must be given their new `peers.toml`."""


def make_certificates(
    folder: Path, sites: Sequence[str] | None, hosts: Sequence[str] | None = None, days: int = 365
) -> Certificates:
    """Make what is missing in a folder: an authority, a server certificate for `hosts`, and keys for each site.

    No key or certificate that exists is changed, so sites can be added later; then `peers.toml` is written anew for
    all sites, and each must be given the new one. `hosts` are the names and addresses at which sites reach the server;
    without them a new certificate is for `LOCAL`, and an existing one is taken as it is. `days` is how long a new
    server certificate is valid. To renew it, or to have one for other hosts, remove `server/server.pem` and call this
    again. With None for sites nobody's keys are made: sites make their own.
    """
    before = _roster(folder)
    peers = dict(before.identities)
    _check_names(sites or (), peers, needed=sites is not None)
    if days < 1:
        raise SettingsError(f"days={days}: a server certificate is valid for at least one day")
    names = None if hosts is None else [_general_name(host) for host in hosts]
    if names == []:
        raise SettingsError("hosts: at least one name or address at which sites reach the server")
    authority, server = folder / "ca", ServerFiles(folder / "server")
    added = tuple(site for site in sites or () if site not in peers)
    changes = bool(added) or (bool(peers) and not before.signature)
    outdated = tuple(sorted(peers)) if changes else ()
    try:
        for path in (folder, authority, server.folder, server.folder / "nodes", folder / "sites"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        certificate = _authority(authority, days)
        _create(server.ca, certificate)
        _server_certificate(server, authority, names, days)
        for site in added:
            peers[site] = _make_site(site, SiteFiles(folder / "sites" / site), server)
        everyone = _hand_out(folder, certificate, _signed(folder, before, peers) if changes else before)
    except OSError as error:
        raise SettingsError(f"{error.filename}: cannot be written ({error.strerror})") from error
    if outdated:
        log.warning("%s: these sites must be given their new peers.toml: %s", folder, ", ".join(outdated))
    return Certificates(folder, server, everyone, added, outdated)


def _roster(folder: Path) -> Roster:
    """The list of sites as it is now; empty if there is none."""
    path = folder / "peers.toml"
    return read_roster(path) if path.exists() else Roster({})


def _signed(folder: Path, before: Roster, peers: Mapping[str, str]) -> Roster:
    """A new list of sites, signed by the authority."""
    key = folder / "ca" / "ca.key"
    if not key.exists():
        raise SettingsError(f"{key}: missing, and needed to sign who belongs to the federation")
    signer = _key(key)
    if signer.public_key() != _read_certificate(folder / "ca" / "ca.pem").public_key():
        raise SettingsError(f"{key.parent}: ca.key is not the key of ca.pem")
    return Roster(peers).signed(signer, before.serial + 1)


def _hand_out(folder: Path, certificate: bytes, roster: Roster) -> dict[str, SiteFiles]:
    """Write the list of sites, and for each site what it is to be given; returns these files."""
    everyone = {site: SiteFiles(folder / "sites" / site) for site in sorted(roster.identities)}
    for files in everyone.values():
        files.folder.mkdir(exist_ok=True, mode=0o700)
        _create(files.ca, certificate)
        write_peers(files.peers, roster)
    # Last: a site is known once all its files are there, so an attempt that was cut off can be repeated.
    if roster.identities or roster.serial:
        write_peers(folder / "peers.toml", roster)
    return everyone


# Keys that sites make themselves


@dataclass(frozen=True)
class Request:
    """The public halves of a site's keys, as the site asks the leader to sign them."""

    name: str
    node: str
    """The public node key, in OpenSSH's form."""
    identity: str
    """The public identity for letters, in base64."""
    by_node: str
    """A signature of both by the node key."""
    by_identity: str
    """A signature of both by the identity."""
    by_previous: str = ""
    """A signature of both by the identity that this one replaces."""

    @property
    def statement(self) -> bytes:
        """What the signatures are for."""
        return "\n".join(("coterie request 1", self.name, self.node, self.identity)).encode()

    @property
    def fingerprint(self) -> str:
        """What site and leader compare by another way, by telephone say."""
        digest = hashlib.sha256(self.statement).hexdigest()[:32]
        return " ".join(digest[place : place + 4] for place in range(0, len(digest), 4))

    @classmethod
    def read(cls, path: Path) -> "Request":
        """The request in a file, whose signatures prove that who made it has both private keys."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            made = cls(**{str(name): str(value) for name, value in table.items()})
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
            raise SettingsError(f"{path}: not a request for keys ({error})") from error
        try:
            node = serialization.load_ssh_public_key(made.node.encode())
            if not isinstance(node, ec.EllipticCurvePublicKey) or len(made.node.split()) != 2 or "\n" in made.node:
                raise InvalidSignature
            node.verify(base64.b64decode(made.by_node), made.statement, ec.ECDSA(hashes.SHA256()))
            if not made.proves(made.identity, made.by_identity):
                raise InvalidSignature
        except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
            raise SettingsError(f"{path}: its signatures are not by the keys in it, or are for another name") from error
        return made

    def proves(self, identity: str, signature: str) -> bool:
        """Whether a signature of this request is by an identity."""
        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(identity))
            public.verify(base64.b64decode(signature), self.statement)
        except (ValueError, InvalidSignature):
            return False
        return True


def make_keys(folder: Path, name: str, previous: Path | None = None) -> Request:
    """Make a site's keys in a new folder at the site, and a request that the leader can sign; no secret is in it.

    If the keys are to replace earlier ones, `previous` is the private identity before.
    """
    _check_names([name], {})
    files = SiteFiles(folder)
    before = None if previous is None else Identity.read(previous)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (files.node_key, files.identity):
            if path.exists():
                raise SettingsError(f"{path}: exists already; make new keys in another folder")
        node, identity = _key(files.node_key, serialization.PrivateFormat.OpenSSH), Identity.create()
        identity.write(files.identity)
        public = node.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _create(files.node_public, public + f" {name}\n".encode())
        asked = Request(name, public.decode(), identity.public, "", "")
        by_node = base64.b64encode(node.sign(asked.statement, ec.ECDSA(hashes.SHA256()))).decode()
        signed = (base64.b64encode(one.sign(asked.statement)).decode() for one in (identity, before) if one is not None)
        made = Request(name, asked.node, asked.identity, by_node, *signed)
        write_whole(folder / "request.toml", tomli_w.dumps(vars(made)))
    except OSError as error:
        raise SettingsError(f"{error.filename}: cannot be written ({error.strerror})") from error
    return made


def sign_request(folder: Path, request: Request, replace: bool = False) -> Certificates:
    """Admit a site with the keys of its request, in the leader's folder; or let them replace its earlier keys.

    That needs a signature by the identity before, or `replace`, once the leader has made sure who asks.
    """
    before, server = _roster(folder), ServerFiles(folder / "server")
    authority = folder / "ca" / "ca.pem"
    if not authority.exists():
        raise SettingsError(f"{authority}: no such file; make the authority first, with `coterie deploy certs`")
    peers = dict(before.identities)
    _check_names([request.name], peers)
    known = peers.pop(request.name, None)
    if request.identity in peers.values():
        raise SettingsError(f"{request.name}: asks with the identity of another site")
    line = request.node.split()[:2]
    for path in sorted((server.folder / "nodes").glob("*.pub")):
        if path.stem != request.name and path.read_text().split()[:2] == line:
            raise SettingsError(f"{request.name}: asks with the node key of {path.stem}")
    if known not in (None, request.identity) and not replace and not request.proves(known or "", request.by_previous):
        raise SettingsError(
            f"{request.name}: known with other keys, and the request is not signed by them; compare the fingerprint "
            f"({request.fingerprint}) with the site, then say --replace"
        )
    changes = known != request.identity or not before.signature
    peers[request.name] = request.identity
    try:
        (folder / "sites").mkdir(exist_ok=True, mode=0o700)
        (server.folder / "nodes").mkdir(exist_ok=True, mode=0o700)
        roster = _signed(folder, before, peers) if changes else before
        write_whole(server.node(request.name), f"{request.node} {request.name}\n")
        everyone = _hand_out(folder, authority.read_bytes(), roster)
    except OSError as error:
        raise SettingsError(f"{error.filename}: cannot be written ({error.strerror})") from error
    outdated = tuple(name for name in everyone if changes and name != request.name)
    return Certificates(folder, server, everyone, (request.name,), outdated)


def revoke(folder: Path, name: str) -> Certificates:
    """Take a site off the list: the server forgets its node key, and no other site takes letters from it any more."""
    before, server = _roster(folder), ServerFiles(folder / "server")
    peers = dict(before.identities)
    if peers.pop(name, None) is None:
        raise unknown("site", name, before.identities)
    try:
        roster = _signed(folder, before, peers)
        server.node(name).unlink(missing_ok=True)
        (folder / "sites" / name / "peers.toml").unlink(missing_ok=True)
        everyone = _hand_out(folder, (folder / "ca" / "ca.pem").read_bytes(), roster)
    except OSError as error:
        raise SettingsError(f"{error.filename}: cannot be written ({error.strerror})") from error
    return Certificates(folder, server, everyone, (), tuple(everyone))


def _check_names(sites: Sequence[str], known: Mapping[str, str], needed: bool = True) -> None:
    """Refuse names that cannot be names of files, or that some file systems take for equal."""
    if needed and not sites and not known:
        raise SettingsError("sites: at least one name")
    if len(set(sites)) < len(sites):
        raise SettingsError(f"sites {', '.join(sites)}: one is given twice")
    taken: dict[str, str] = {}
    for name in (*known, *sites):
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?", name):
            raise SettingsError(
                f"site {name!r}: up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or "
                "digit and not ending with a dot"
            )
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise SettingsError(f"site {name!r}: differs from {other!r} only in upper and lower case")


def _general_name(host: str) -> x509.GeneralName:
    """A name or address in the form that certificates have."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        if not re.fullmatch(rf"(\*\.)?{label}(\.{label})*", host) or len(host) > 253:
            raise SettingsError(
                f"host {host!r}: a name like fl.example.org or an address, without port or brackets"
            ) from None
        return x509.DNSName(host.lower())


def _authority(folder: Path, days: int) -> bytes:
    """The certificate of the authority, made if there is none."""
    path = folder / "ca.pem"
    if not path.exists():
        key, subject = _key(folder / "ca.key"), "Coterie federation authority"
        end = datetime.now(UTC) + timedelta(days=max(days, _AUTHORITY_DAYS))
        extensions = [x509.BasicConstraints(ca=True, path_length=0), _usage(key_cert_sign=True, crl_sign=True)]
        _create(path, _certificate(subject, key.public_key(), None, key, end, critical=extensions))
    return path.read_bytes()


def _server_certificate(files: ServerFiles, authority: Path, names: list[x509.GeneralName] | None, days: int) -> None:
    """Make the server's certificate if there is none; one that exists must be for these names, if any are given."""
    if files.certificate.exists():
        _check_hosts(files.certificate, names or ())
        return
    issuer = _read_certificate(authority / "ca.pem")
    if not (authority / "ca.key").exists():
        raise SettingsError(f"{authority / 'ca.key'}: missing, and needed to sign a server certificate")
    signer, key = _key(authority / "ca.key"), _key(files.key)
    if signer.public_key() != issuer.public_key():
        raise SettingsError(f"{authority}: ca.key is not the key of ca.pem")
    end = min(datetime.now(UTC) + timedelta(days=days), issuer.not_valid_after_utc)
    critical = [x509.BasicConstraints(ca=False, path_length=None), _usage(digital_signature=True)]
    others = [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names or [_general_name(host) for host in LOCAL]),
    ]
    subject, public = "Coterie federation server", key.public_key()
    _create(files.certificate, _certificate(subject, public, issuer.subject, signer, end, critical, others))


def _check_hosts(path: Path, names: Sequence[x509.GeneralName]) -> None:
    """Refuse a certificate that is not for all of these names."""
    known = list(_read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    missing = [name for name in names if name not in known]
    if missing:
        there, wanted = (", ".join(str(name.value) for name in some) for some in (known, missing))
        raise SettingsError(f"{path}: is for {there}, not for {wanted}; remove the file to have another made")


def _make_site(site: str, files: SiteFiles, server: ServerFiles) -> str:
    """Make those keys of a new site that no earlier attempt has left. Returns the site's public identity."""
    files.folder.mkdir(exist_ok=True, mode=0o700)
    openssh = serialization.PublicFormat.OpenSSH
    key = _key(files.node_key, serialization.PrivateFormat.OpenSSH).public_key()
    public = key.public_bytes(serialization.Encoding.OpenSSH, openssh) + f" {site}\n".encode()
    for path in (files.node_public, server.node(site)):
        _create(path, public)
        if path.read_bytes() != public:
            raise SettingsError(f"{path}: of another key than {files.node_key}; remove what is out of date")
    if not files.identity.exists():
        Identity.create().write(files.identity)
    return Identity.read(files.identity).public


def _key(
    path: Path, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> ec.EllipticCurvePrivateKey:
    """The key in a file, made if there is none. Flower wants node keys in OpenSSH's form and of a NIST curve."""
    if not path.exists():
        made = ec.generate_private_key(ec.SECP384R1())
        write_private(path, made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    openssh = form == serialization.PrivateFormat.OpenSSH
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        key = load(path.read_bytes(), None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{path}: not a private key without a password ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{path}: not a key of an elliptic curve for ECDSA")
    return key


def _create(path: Path, content: bytes) -> None:
    """Write a file unless it exists."""
    if not path.exists():
        with path.open("xb") as file:
            file.write(content)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise SettingsError(f"{path}: not a certificate ({error})") from error


def _usage(**allowed: bool) -> x509.KeyUsage:
    known = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    nothing = dict.fromkeys((*known, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(**nothing | allowed)


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name | None,
    signer: ec.EllipticCurvePrivateKey,
    end: datetime,
    critical: Sequence[x509.ExtensionType],
    others: Sequence[x509.ExtensionType] = (),
) -> bytes:
    """A certificate that says whose key this is, signed by the issuer; without one, by the subject itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = x509.CertificateBuilder(issuer or name, name, key, x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC) - _SKEW).not_valid_after(end)
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(key),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    for extension in (*critical, *others, *identifiers):
        builder = builder.add_extension(extension, critical=extension in critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
