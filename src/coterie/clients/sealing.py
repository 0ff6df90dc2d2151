"""Letters sealed end to end: what sites write to each other through a server that can do no more than relay it.

Every site has an Ed25519 identity; its public half is pinned at every other site (`peers.toml`), in a list that the
federation's authority has signed, and never the server. For each round a site makes a fresh X25519 key and signs it
together with its own name, the run and the round: its announcement. A letter's key is HKDF-SHA256 of what the two
sites' round keys agree on, bound to run, round, both names and both public keys; the letter is ChaCha20-Poly1305 under
a random nonce, with run, round, phase, sender, receiver and subject as associated data. `docs/letters.md` has every
byte of it, and why it is not HPKE.

    sealed letter = format (1) | sender's announcement (96) | phase (4) | nonce (12) | ciphertext and tag (size + 16)
    announcement  = X25519 key (32) | Ed25519 signature (64)

What the relay sees: who writes to whom and when, the subject, and the size (a letter is 129 bytes longer than its
content).

What it cannot do: read a letter, alter one, write one in a site's name, or deliver one to another site, under another
sender or subject, in another run or round, to a call that is not later in the round than the one that wrote it, to two
calls, or twice to one. Once both sites have announced another round, letters of this one can no longer be read by
anybody, not even by who gets hold of the sites' disks: the keys are deleted (from the file; a snapshot of the disk may
still have them). The key of a run's last round goes when the run has ended and each site has its model, or when four
newer runs have come.

What is not protected: the relay can drop and delay letters. As the server it also decides which calls are made: it can
have a call repeated and deliver what was written the first time, the second time, or both, so a program that adds
letters up must see to it that it has one from each sender. A site can do what it likes with what it receives, and could
make up a letter to itself: a letter convinces its receiver and nobody else. Whoever steals an identity can speak for
its site until it is replaced in every `peers.toml`.
"""

import base64
import io
import os
import sqlite3
import tomllib
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509 import load_pem_x509_certificate

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole

_FORMAT = b"\x01"
_KEY, _SIGNATURE, _NUMBER, _NONCE, _TAG = 32, 64, 4, 12, 16
_ANNOUNCEMENT = _KEY + _SIGNATURE
_HEAD = len(_FORMAT) + _ANNOUNCEMENT + _NUMBER + _NONCE
_LARGEST = 2**31 - 1 - _TAG
"""The longest content that the cipher takes at once."""

_At = tuple[str, int]
"""A run and a round of it."""

_RUNS = 4
"""Runs whose current round a site can serve at the same time."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS keys (run BLOB PRIMARY KEY, round INTEGER NOT NULL, secret BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS opened (run BLOB, nonce BLOB, phase INTEGER NOT NULL, PRIMARY KEY (run, nonce))",
)

_PEERS = """\
# The public identities of all sites, for letters that the server must not be able to read.
# Every site needs this file, the same everywhere. A site takes one that the federation's authority has signed, and none
# that is older than the one before.

"""


class SealingError(CoterieError):
    """A letter, an announcement or an identity that cannot be trusted, read or written."""


class Identity:
    """Who a site is to other sites: an Ed25519 key of its own, which has nothing to do with Flower's node key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def create(cls) -> "Identity":
        """A new identity."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> "Identity":
        """The identity in a file."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise SealingError(f"{path}: cannot be read ({error.strerror})") from error
        except (TypeError, ValueError, UnsupportedAlgorithm) as error:
            raise SealingError(f"{path}: not a private key without a password ({error})") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise SealingError(f"{path}: a key of another kind; a letter identity is an Ed25519 key")
        return cls(key)

    def write(self, path: Path) -> None:
        """Store the private key for its owner alone; a file that is there already is never overwritten."""
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_private(path, self._key.private_bytes(pem, pkcs8, serialization.NoEncryption()))

    @property
    def public(self) -> str:
        """The public half, as it is written in `peers.toml`: 32 bytes in base64."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, content: bytes) -> bytes:
        """A signature that every holder of the public half can check."""
        return self._key.sign(content)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError as error:
        raise SealingError(f"{path}: exists already, and a private key is never overwritten") from error
    except OSError as error:
        raise SealingError(f"{path}: cannot be written ({error.strerror})") from error


@dataclass(frozen=True)
class Roster:
    """The public identities of all sites, as the federation's authority has signed them."""

    identities: Mapping[str, str]
    """Public identities, by site."""
    serial: int = 0
    """A number that is larger in every later list, so that an old one can be told from the newest; 0 if unsigned."""
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """What the signature is for."""
        pairs = (part for pair in sorted(self.identities.items()) for part in pair)
        return _framed("coterie peers 1", self.serial, *pairs)

    def signed(self, authority: EllipticCurvePrivateKey, serial: int) -> "Roster":
        """The same list under this number, signed by the authority."""
        made = Roster(self.identities, serial)
        algorithm = ECDSA(hashes.SHA256(), deterministic_signing=True)
        return Roster(self.identities, serial, authority.sign(made.statement, algorithm))

    def check(self, certificate: bytes) -> None:
        """Refuse a list that is not signed by the authority with this certificate."""
        try:
            key = load_pem_x509_certificate(certificate).public_key()
        except ValueError as error:
            raise SealingError(f"the authority's certificate cannot be read ({error})") from error
        try:
            if not isinstance(key, EllipticCurvePublicKey) or not self.signature:
                raise InvalidSignature
            key.verify(self.signature, self.statement, ECDSA(hashes.SHA256()))
        except InvalidSignature as error:
            raise SealingError(
                "not signed by the authority of this federation: get the newest peers.toml from its leader, who makes "
                "it with `coterie deploy sign` or `certs`"
            ) from error


def read_peers(path: Path) -> dict[str, str]:
    """The pinned public identities, by site."""
    return dict(read_roster(path).identities)


def read_roster(path: Path) -> Roster:
    """The list of public identities in a file, whoever has signed it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SealingError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SealingError(f"{path}: not a TOML file ({error})") from error
    peers = table.get("identities")
    if not isinstance(peers, dict) or not {"identities"} <= set(table) <= {"identities", "serial", "signature"}:
        raise SealingError(f'{path}: expected one section [identities] with lines `site = "public identity"`')
    for site, public in peers.items():
        try:
            _public_key(site, public)
        except SealingError as error:
            raise SealingError(f"{path}: {error}") from error
    serial, signature = table.get("serial", 0), table.get("signature", "")
    try:
        signed = base64.b64decode(signature, validate=True)
    except (NotBase64, TypeError, ValueError) as error:
        raise SealingError(f"{path}: a signature that is none") from error
    if not isinstance(serial, int) or isinstance(serial, bool) or serial < 0:
        raise SealingError(f"{path}: serial={serial!r}: a whole number")
    return Roster(peers, serial, signed)


def write_peers(path: Path, peers: Mapping[str, str] | Roster) -> None:
    """Write the public identities of sites, whole or not at all, in place of an earlier list."""
    roster = peers if isinstance(peers, Roster) else Roster(peers)
    for site, public in roster.identities.items():
        _public_key(site, public)
    table: dict[str, Any] = {"identities": dict(sorted(roster.identities.items()))}
    if roster.signature:
        table |= {"serial": roster.serial, "signature": base64.b64encode(roster.signature).decode()}
    try:
        write_whole(path, _PEERS + tomli_w.dumps(dict(reversed(table.items()))))
    except OSError as error:
        raise SealingError(f"{path}: cannot be written ({error.strerror})") from error


def _public_key(site: str, public: object) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(str(public), validate=True))
    except (NotBase64, ValueError) as error:
        raise SealingError(f"identity of {site}: {public!r} is not 32 bytes in base64") from error


class Seals:
    """A site's side of all letters: announces its key of a round, seals what leaves, opens what arrives.

    `folder` belongs to this site alone. It holds what must outlive a process within a round: the current key of each
    run, and which letters have been opened with it. Several processes may use it at the same time.
    """

    def __init__(self, name: str, identity: Identity, peers: Mapping[str, str], folder: Path) -> None:
        self.name, self._identity, self._folder = name, identity, folder
        if peers.get(name, identity.public) != identity.public:
            raise SealingError(
                f"identity of {name}: the private key is not the one whose public half is pinned for {name}; "
                "the two files do not belong together"
            )
        self._peers = {site: _public_key(site, public) for site, public in {**peers, name: identity.public}.items()}

    def announce(self, run: str, round: int) -> bytes:  # noqa: A002
        """This site's signed public key for a round, which every site needs that writes to it or hears from it.

        It is the same for every call in the same run and round. Any other round of the run, later or earlier, gets a
        fresh key, and the one before is deleted, so that nothing sealed with it can be opened any more.
        """
        with self._store() as store:
            found = _key_of(store, run)
            if found is None or found[0] != round:
                found = (round, X25519PrivateKey.generate())
                store.execute("DELETE FROM keys WHERE run = ?", (_encoded(run),))
                store.execute("DELETE FROM opened WHERE run = ?", (_encoded(run),))
                row = (_encoded(run), _counted("round", round), found[1].private_bytes_raw())
                store.execute("INSERT INTO keys VALUES (?, ?, ?)", row)
                # The newest have the highest rowid. Letters of runs that go are of no use without their keys.
                store.execute(
                    "DELETE FROM keys WHERE rowid NOT IN (SELECT rowid FROM keys ORDER BY rowid DESC LIMIT ?)", (_RUNS,)
                )
                store.execute("DELETE FROM opened WHERE run NOT IN (SELECT run FROM keys)")
        return self._announcement(found[1], (run, round))

    def forget(self, run: str) -> None:
        """Delete the key of a run that has ended: from then on nobody can open any letter of it."""
        with self._store() as store:
            for table in ("keys", "opened"):
                store.execute(f"DELETE FROM {table} WHERE run = ?", (_encoded(run),))

    def seal(
        self,
        content: bytes,
        *,
        run: str,
        round: int,  # noqa: A002
        phase: int,
        receiver: str,
        subject: str,
        announcement: bytes,
    ) -> bytes:
        """A letter that only the receiver can read; `announcement` is the receiver's for this round.

        `phase` is the number, within the round, of the call that writes it.
        """
        if len(content) > _LARGEST:
            raise SealingError(f"a letter of {len(content)} bytes: at most {_LARGEST}; write several")
        at, number = (run, round), _counted("phase", phase).to_bytes(_NUMBER, "big")
        theirs = self._announced(receiver, at, announcement)
        with self._store() as store:
            own = self._own(store, at)
        cipher = _cipher(own, theirs, at, (self.name, own.public_key()), (receiver, theirs))
        nonce = os.urandom(_NONCE)
        ciphertext = cipher.encrypt(nonce, content, _envelope(at, phase, self.name, receiver, subject))
        return b"".join((_FORMAT, self._announcement(own, at), number, nonce, ciphertext))

    def reading(self, *, run: str, round: int, phase: int) -> "Reading":  # noqa: A002
        """What one call may read; `phase` is the number of that call within the round."""
        return Reading(self, (run, _counted("round", round)), _counted("phase", phase))

    def _announcement(self, key: X25519PrivateKey, at: _At) -> bytes:
        public = key.public_key().public_bytes_raw()
        return public + self._identity.sign(_statement(at, self.name, public))

    def _announced(self, site: str, at: _At, announcement: bytes) -> X25519PublicKey:
        """The key in an announcement, if it is from that site and for this round."""
        identity = self._peers.get(site) if isinstance(site, str) else None
        if identity is None:
            raise SealingError(
                f"no identity of {site!r} is pinned at {self.name}: get the peers.toml that lists it "
                "from whoever made the certificates"
            )
        if not isinstance(announcement, bytes) or len(announcement) != _ANNOUNCEMENT:
            raise SealingError(f"what should be the announcement of {site} is none")
        public, signature = announcement[:_KEY], announcement[_KEY:]
        try:
            identity.verify(signature, _statement(at, site, public))
        except InvalidSignature as error:
            raise SealingError(
                f"the key announced for {site} in run {at[0]}, round {at[1]} is not signed for it by the identity "
                f"pinned at {self.name}: it is of another site, run or round, or was swapped on the way, or peers.toml "
                "is out of date"
            ) from error
        return X25519PublicKey.from_public_bytes(public)

    def _own(self, store: sqlite3.Connection, at: _At) -> X25519PrivateKey:
        """The key that was announced for a round, as long as the round is the current one."""
        run, number = at
        found = _key_of(store, run)
        if found is None or found[0] != number:
            now = f"round {found[0]} is; keys of other rounds are deleted" if found else "none was announced"
            raise SealingError(f"{self.name}: round {number} of run {run} is not the current one ({now})")
        return found[1]

    @contextmanager
    def _store(self) -> Iterator[sqlite3.Connection]:
        """The file with keys and opened letters, in a transaction that no other process interrupts."""
        path = self._folder / "letters.sqlite"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as store:
                store.execute("PRAGMA secure_delete = ON")
                store.execute("BEGIN IMMEDIATE")
                with store:
                    for table in _TABLES:
                        store.execute(table)
                    yield store
        except (OSError, sqlite3.Error) as error:
            raise SealingError(f"{path}: cannot be used ({error}); without this file the round starts over") from error


class Reading:
    """What one call reads. `Seals.reading` makes it, once for each call.

    A reading opens a letter once, and no later call can open it. Only a reading with the same run, round and phase may
    open it once more: that is the same call, delivered again because the first try was lost. That a letter was opened
    is on disk before its content is handed out.
    """

    def __init__(self, seals: Seals, at: _At, phase: int) -> None:
        self._seals, self._at, self._phase = seals, at, phase
        self._read: set[bytes] = set()

    def open(self, sealed: bytes, *, sender: str, subject: str) -> bytes:
        """The content of a letter to this site, if it is what `sender` wrote on this subject."""
        seals, at, what = self._seals, self._at, f"the letter from {sender} on {subject!r}"
        if not isinstance(sealed, bytes) or len(sealed) < _HEAD + _TAG or sealed[: len(_FORMAT)] != _FORMAT:
            raise SealingError(f"{what} is not a sealed one, or of another version of Coterie")
        head = io.BytesIO(sealed[len(_FORMAT) : _HEAD])
        theirs = seals._announced(sender, at, head.read(_ANNOUNCEMENT))
        written, nonce = int.from_bytes(head.read(_NUMBER), "big"), head.read(_NONCE)
        envelope = _envelope(at, written, sender, seals.name, subject)
        with seals._store() as store:
            own = seals._own(store, at)
            cipher = _cipher(own, theirs, at, (sender, theirs), (seals.name, own.public_key()))
            try:
                content = cipher.decrypt(nonce, memoryview(sealed)[_HEAD:], envelope)
            except InvalidTag as error:
                raise SealingError(
                    f"{what} cannot be opened: it was altered on the way, is not for {seals.name}, "
                    "or was sealed before the round was started anew"
                ) from error
            if written >= self._phase:
                raise SealingError(f"{what} was written in call {written}, and cannot be read in call {self._phase}")
            self._note(store, nonce, what)
        self._read.add(nonce)
        return content

    def _note(self, store: sqlite3.Connection, nonce: bytes, what: str) -> None:
        """Remember that a letter was opened; refuse if it was before."""
        if nonce in self._read:
            raise SealingError(f"{what} was delivered twice")
        letter = (_encoded(self._at[0]), nonce)
        before = store.execute("SELECT phase FROM opened WHERE run = ? AND nonce = ?", letter).fetchone()
        if before is None:
            store.execute("INSERT INTO opened VALUES (?, ?, ?)", (*letter, self._phase))
        elif before[0] != self._phase:
            raise SealingError(f"{what} was read in call {before[0]} already, and is delivered again")


def _key_of(store: sqlite3.Connection, run: str) -> tuple[int, X25519PrivateKey] | None:
    """The current round of a run, with its key."""
    row = store.execute("SELECT round, secret FROM keys WHERE run = ?", (_encoded(run),)).fetchone()
    return None if row is None else (row[0], X25519PrivateKey.from_private_bytes(row[1]))


def _cipher(
    own: X25519PrivateKey,
    theirs: X25519PublicKey,
    at: _At,
    sender: tuple[str, X25519PublicKey],
    receiver: tuple[str, X25519PublicKey],
) -> ChaCha20Poly1305:
    """The cipher for letters from one site to another in a round; the way back has another."""
    try:
        shared = own.exchange(theirs)
    except ValueError as error:  # a point of low order: what comes out would be the same for everybody
        raise SealingError(f"{sender[0]} to {receiver[0]}: the key announced by one of them is no key") from error
    keys = (sender[1].public_bytes_raw(), receiver[1].public_bytes_raw())
    info = _framed("coterie letter key 1", *at, sender[0], receiver[0], *keys)
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared))


def _statement(at: _At, name: str, key: bytes) -> bytes:
    """What the signature of an announcement is for."""
    return _framed("coterie announcement 1", *at, name, key)


def _envelope(at: _At, phase: int, sender: str, receiver: str, subject: str) -> bytes:
    """What the tag of a letter covers besides its content."""
    return _framed("coterie letter 1", *at, phase, sender, receiver, subject)


def _framed(*fields: str | int | bytes) -> bytes:
    """Fields as bytes, each with its length before it: no two lists of fields give the same."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in map(_encoded, fields))


def _encoded(field: str | int | bytes) -> bytes:
    """A field as bytes, with the letter of its type before it."""
    if isinstance(field, bytes):
        return b"b" + field
    if isinstance(field, str):
        return b"s" + field.encode("utf-8", "surrogatepass")
    if isinstance(field, int) and not isinstance(field, bool):
        return b"i" + str(field).encode()
    raise SealingError(f"{field!r} is neither a text nor a whole number")


def _counted(name: str, number: int) -> int:
    if not isinstance(number, int) or not 0 <= number < 256**_NUMBER:
        raise SealingError(f"{name}={number!r}: a whole number, counted from 0")
    return number
