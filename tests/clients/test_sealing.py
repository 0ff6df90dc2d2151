"""Sealed letters: they reach the site they are for, and a server in between can do nothing with them but lose them."""

import base64
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clients import sealing
from coterie.clients.sealing import Identity, SealingError, Seals, read_peers, write_peers
from coterie.core.errors import CoterieError

SECRET = b"what only b may know " * 8
ANNOUNCEMENT, NUMBER, NONCE, TAG = 96, 4, 12, 16
HEAD = 1 + ANNOUNCEMENT + NUMBER + NONCE
"""The layout that the module's docstring promises."""


class Sites:
    """Some sites that know each other, in run `r`, round 1."""

    def __init__(self, folder: Path, names: str = "abc") -> None:
        self.folder = folder
        self.identities = {name: Identity.create() for name in names}
        self.peers = {name: identity.public for name, identity in self.identities.items()}
        self.seals = {name: self.started(name) for name in names}
        self.start(1)

    def __getitem__(self, name: str) -> Seals:
        return self.seals[name]

    def started(self, name: str) -> Seals:
        """What a new process at a site has."""
        return Seals(name, self.identities[name], self.peers, self.folder / name)

    def start(self, number: int, run: str = "r") -> None:
        self.announced = {name: seals.announce(run, number) for name, seals in self.seals.items()}

    def seal(self, content: bytes = SECRET, **changes) -> bytes:
        """A letter from a to b, written in the first call."""
        given = {"run": "r", "round": 1, "phase": 0, "receiver": "b", "subject": "greeting"}
        given |= {"announcement": self.announced["b"]} | changes
        return self["a"].seal(content, **given)

    def open(self, sealed: bytes, reader: str = "b", phase: int = 1, **changes) -> bytes:
        """What a call at b reads, by default the second of the round."""
        at = {"run": "r", "round": 1, "phase": phase} | {k: changes.pop(k) for k in ("run", "round") if k in changes}
        return self[reader].reading(**at).open(sealed, **{"sender": "a", "subject": "greeting"} | changes)


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path)


def stored(folder: Path) -> bytes:
    """All that a site has on disk."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def _secrets(folder: Path) -> list[bytes]:
    with closing(sqlite3.connect(folder / "letters.sqlite")) as store:
        return [secret for (secret,) in store.execute("SELECT secret FROM keys")]


# There and back


@pytest.fixture(scope="module")
def pair():
    with tempfile.TemporaryDirectory() as folder:
        yield Sites(Path(folder), "ab")


@given(content=st.binary(max_size=300), subject=st.text(max_size=30), phase=st.integers(0, 2**32 - 2))
@settings(max_examples=50)
def test_whatever_is_sealed_is_what_the_receiver_opens(pair, content, subject, phase):
    sealed = pair.seal(content, subject=subject, phase=phase)
    assert pair.open(sealed, subject=subject, phase=phase + 1) == content
    assert len(sealed) == len(content) + HEAD + TAG


def test_a_letter_shows_nothing_of_its_content_and_no_two_are_alike(sites):
    first, second = sites.seal(), sites.seal()
    assert not any(SECRET[i : i + 4] in first for i in range(len(SECRET) - 3))
    assert first[HEAD:] != second[HEAD:]
    assert first[HEAD - NONCE : HEAD] != second[HEAD - NONCE : HEAD]


def test_a_site_can_write_to_itself(sites):
    sealed = sites.seal(receiver="a", announcement=sites.announced["a"])
    assert sites.open(sealed, reader="a") == SECRET


def test_a_letter_back_in_the_same_round(sites):
    sealed = sites["b"].seal(
        b"thanks", run="r", round=1, phase=1, receiver="a", subject="reply", announcement=sites.announced["a"]
    )
    assert sites.open(sealed, reader="a", phase=2, sender="b", subject="reply") == b"thanks"


def test_strange_names_and_subjects_are_sealed_too(tmp_path):
    names = ("\ud800", "b\x00c")
    identities = {name: Identity.create() for name in names}
    peers = {name: identity.public for name, identity in identities.items()}
    first, second = (Seals(name, identities[name], peers, tmp_path / str(i)) for i, name in enumerate(names))
    at = {"run": "\udfff", "round": 0}
    first.announce(**at)
    sealed = first.seal(b"x", **at, phase=0, receiver=names[1], subject="", announcement=second.announce(**at))
    assert second.reading(**at, phase=1).open(sealed, sender=names[0], subject="") == b"x"


def test_a_letter_longer_than_the_cipher_takes_is_refused_before_it_is_sealed(sites, monkeypatch):
    monkeypatch.setattr(sealing, "_LARGEST", 10)
    assert sites.open(sites.seal(b"0123456789")) == b"0123456789"
    with pytest.raises(SealingError, match="a letter of 11 bytes: at most 10"):
        sites.seal(b"0123456789a")


def test_the_form_is_the_one_that_is_documented(sites, tmp_path):
    def packed(*fields: bytes) -> bytes:
        return b"".join(len(field).to_bytes(8, "big") + field for field in fields)

    sealed, own, theirs = sites.seal(), sites.announced["b"][:32], sites.announced["a"]
    assert sealed[:1] + theirs + bytes(4) == sealed[: 1 + ANNOUNCEMENT + NUMBER]
    stated = packed(b"scoterie announcement 1", b"sr", b"i1", b"sa", b"b" + theirs[:32])
    identity = Ed25519PublicKey.from_public_bytes(base64.b64decode(sites.peers["a"]))
    identity.verify(theirs[32:], stated)  # or else it raises
    secret = X25519PrivateKey.from_private_bytes(_secrets(tmp_path / "b")[0])
    shared = secret.exchange(X25519PublicKey.from_public_bytes(theirs[:32]))
    info = packed(b"scoterie letter key 1", b"sr", b"i1", b"sa", b"sb", b"b" + theirs[:32], b"b" + own)
    key = HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared)
    envelope = packed(b"scoterie letter 1", b"sr", b"i1", b"i0", b"sa", b"sb", b"sgreeting")
    assert ChaCha20Poly1305(key).decrypt(sealed[HEAD - NONCE : HEAD], sealed[HEAD:], envelope) == SECRET


# What the relay may try with keys


def test_a_key_that_the_relay_has_swapped_is_refused(sites):
    forged = X25519PrivateKey.generate().public_key().public_bytes_raw() + sites.announced["b"][32:]
    with pytest.raises(SealingError, match="the key announced for b in run r, round 1 is not signed"):
        sites.seal(announcement=forged)
    sealed = sites.seal()
    with pytest.raises(SealingError, match="the key announced for a in run r, round 1 is not signed"):
        sites.open(sealed[:1] + forged + sealed[1 + ANNOUNCEMENT :])


def test_a_relay_with_an_identity_of_its_own_cannot_sit_between_two_sites(sites, tmp_path):
    relay = Seals("b", Identity.create(), {}, tmp_path / "relay")
    with pytest.raises(SealingError, match="not signed for it by the identity pinned at a"):
        sites.seal(announcement=relay.announce("r", 1))
    posing = Seals("a", Identity.create(), {"b": sites.peers["b"]}, tmp_path / "posing")
    posing.announce("r", 1)
    forged = posing.seal(
        b"lie", run="r", round=1, phase=0, receiver="b", subject="greeting", announcement=sites.announced["b"]
    )
    with pytest.raises(SealingError, match="not signed for it by the identity pinned at b"):
        sites.open(forged)


@pytest.mark.parametrize(
    ("site", "run", "number"), [("b", "r", 2), ("b", "other", 1), ("c", "r", 1)], ids=["round", "run", "name"]
)
def test_an_announcement_for_something_else_is_refused(sites, site, run, number):
    other = sites.started(site).announce(run, number)
    with pytest.raises(SealingError, match="not signed for it"):
        sites.seal(announcement=other)


def test_an_identity_that_two_sites_share_does_not_make_them_one(tmp_path):
    sites = Sites(tmp_path)
    sites.peers["c"] = sites.peers["b"]
    shared = Seals("c", sites.identities["b"], sites.peers, tmp_path / "shared")
    with pytest.raises(SealingError, match="the key announced for b in run r, round 1 is not signed for it"):
        sites.seal(announcement=shared.announce("r", 1))


@given(site=st.text(max_size=3), run=st.text(max_size=3), number=st.integers(0, 12))
def test_a_signature_is_for_one_run_round_name_and_key_only(site, run, number):
    stated = sealing._statement((run, number), site, b"k" * 32)
    for moved in (
        ((run + site, number), "", b"k" * 32),
        ((site, number), run, b"k" * 32),
        ((run, number * 10), site, b"k" * 32),
        ((run + str(number), 0), site, b"k" * 32),
        ((run, number), site + "k", b"k" * 31),
    ):
        if moved != ((run, number), site, b"k" * 32):
            assert sealing._statement(*moved) != stated


@pytest.mark.parametrize("announcement", [b"", b"x" * 95, b"x" * 97, None, "x" * 96])
def test_what_is_no_announcement_is_refused(sites, announcement):
    with pytest.raises(SealingError, match="announcement of b is none"):
        sites.seal(announcement=announcement)


def test_a_key_that_would_make_every_secret_the_same_is_refused(sites):
    # Zero is a point of low order: whatever it is multiplied with, the result is zero.
    zero = bytes(32)
    signed = zero + sites.identities["b"].sign(sealing._statement(("r", 1), "b", zero))
    with pytest.raises(SealingError, match="a to b: the key announced by one of them is no key"):
        sites.seal(announcement=signed)


def test_a_peer_without_a_pinned_identity_is_refused_by_name(sites, tmp_path):
    alone = Seals("b", sites.identities["b"], {}, tmp_path / "b")
    with pytest.raises(SealingError, match=r"no identity of 'a' is pinned at b: get the peers\.toml"):
        alone.reading(run="r", round=1, phase=1).open(sites.seal(), sender="a", subject="greeting")
    with pytest.raises(SealingError, match="no identity of 'd' is pinned at a"):
        sites.seal(receiver="d")


# What the relay may try with letters


def test_no_byte_of_a_letter_can_be_altered(sites):
    sealed = sites.seal(b"short")
    last = 2**32 - 1  # a call that could read whatever phase the letter claims to be from
    for place in range(len(sealed)):
        altered = bytearray(sealed)
        altered[place] ^= 1
        with pytest.raises(SealingError):
            sites.open(bytes(altered), phase=last)
    for cut in (sealed[:-1], sealed + b"\0", b"", sealed[: HEAD + TAG - 1]):
        with pytest.raises(SealingError):
            sites.open(cut, phase=last)
    assert sites.open(sealed, phase=last) == b"short"  # a failed attempt does not use it up


@pytest.mark.parametrize(
    "changes",
    [{"subject": "other"}, {"subject": 5}, {"sender": "c"}, {"sender": "b"}, {"sender": ["a"]}, {"reader": "c"}],
    ids=str,
)
def test_a_letter_cannot_be_readdressed(sites, changes):
    with pytest.raises(SealingError):
        sites.open(sites.seal(), **changes)


def test_a_letter_is_not_taken_back_to_its_sender(sites):
    # With b's own announcement in it, a and b agree on the same secret as for a letter from b to a.
    sealed = sites.seal()
    with pytest.raises(SealingError, match="cannot be opened"):
        sites.open(sealed[:1] + sites.announced["b"] + sealed[1 + ANNOUNCEMENT :], reader="a", sender="b")


@pytest.mark.parametrize("content", [{"number": 1}, None, "text", bytearray(200)])
def test_what_was_never_sealed_is_refused(sites, content):
    with pytest.raises(SealingError, match="is not a sealed one"):
        sites.open(content)


def test_a_letter_of_another_round_or_run_is_refused(sites):
    sealed = sites.seal()
    with pytest.raises(SealingError, match="not signed for it"):
        sites.open(sealed, round=2)
    with pytest.raises(SealingError, match="not signed for it"):
        sites.open(sealed, run="other")


def test_only_a_later_call_can_read_a_letter(sites):
    sealed = sites.seal(phase=2)
    for phase in (0, 1, 2):
        with pytest.raises(SealingError, match=f"written in call 2, and cannot be read in call {phase}"):
            sites.open(sealed, phase=phase)
    assert sites.open(sealed, phase=3) == SECRET


def test_a_letter_is_not_read_by_a_second_call(sites):
    sealed = sites.seal()
    assert sites.open(sealed, phase=1) == SECRET
    with pytest.raises(SealingError, match="was read in call 1 already, and is delivered again"):
        sites.open(sealed, phase=2)
    sites.seals["b"] = sites.started("b")
    with pytest.raises(SealingError, match="was read in call 1 already"):
        sites.open(sealed, phase=2)


def test_a_letter_is_not_read_twice_by_one_call(sites):
    sealed, reading = sites.seal(), sites["b"].reading(run="r", round=1, phase=1)
    assert reading.open(sealed, sender="a", subject="greeting") == SECRET
    with pytest.raises(SealingError, match="the letter from a on 'greeting' was delivered twice"):
        reading.open(sealed, sender="a", subject="greeting")


def test_a_call_that_is_delivered_again_reads_its_letters_again(sites):
    sealed = sites.seal()
    assert sites.open(sealed) == sites.open(sealed) == SECRET
    sites.seals["b"] = sites.started("b")
    assert sites.open(sealed) == SECRET


def test_a_letter_that_could_not_be_noted_is_not_handed_out(sites, tmp_path):
    sealed = sites.seal()
    (tmp_path / "b" / "letters.sqlite").write_bytes(b"not a database " * 100)
    with pytest.raises(SealingError, match=r"letters\.sqlite: cannot be used .* the round starts over"):
        sites.open(sealed)


# Rounds, runs and restarts


def test_a_round_has_one_key_and_another_round_another(sites):
    first = sites.announced["a"]
    assert sites["a"].announce("r", 1) == sites.started("a").announce("r", 1) == first
    second = sites["a"].announce("r", 2)
    assert second[:32] != first[:32]
    assert sites["a"].announce("r", 1)[:32] not in (first[:32], second[:32])


def test_processes_that_announce_at_once_agree_on_one_key(sites):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: sites.started("a").announce("r", 2), range(16)))
    assert len(found) == 1


def test_the_key_of_a_round_outlives_the_process(sites, tmp_path):
    sealed = sites.seal()
    sites.identities["b"].write(tmp_path / "b.pem")
    write_peers(tmp_path / "peers.toml", sites.peers)
    (tmp_path / "sealed").write_bytes(sealed)
    code = """
import sys
from pathlib import Path
from coterie.clients.sealing import Identity, Seals, read_peers
folder = Path(sys.argv[1])
seals = Seals("b", Identity.read(folder / "b.pem"), read_peers(folder / "peers.toml"), folder / "b")
reading = seals.reading(run="r", round=1, phase=1)
content = reading.open((folder / "sealed").read_bytes(), sender="a", subject="greeting")
sys.stdout.buffer.write(seals.announce("r", 1) + content)
"""
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, stdout=subprocess.PIPE).stdout
    assert found == sites.announced["b"] + SECRET
    with pytest.raises(SealingError, match="was read in call 1 already"):  # what the other process read counts here
        sites.open(sealed, phase=2)


def test_a_round_that_is_over_cannot_be_opened_by_anyone(sites, tmp_path):
    sealed = sites.seal()
    opened = sites.seal()
    sites.open(opened)
    keys = {name: _secrets(tmp_path / name) for name in "ab"}
    assert all(len(found) == 1 and found[0] in stored(tmp_path / name) for name, found in keys.items())
    sites.start(2)
    for name in "ab":
        assert keys[name][0] not in stored(tmp_path / name)
        assert opened[HEAD - NONCE : HEAD] not in stored(tmp_path / name)
    with pytest.raises(SealingError, match=r"b: round 1 of run r is not the current one \(round 2 is"):
        sites.open(sealed)
    sites.start(1)  # back again: another key
    with pytest.raises(SealingError, match="sealed before the round was started anew"):
        sites.open(sealed)


def test_a_run_that_is_over_cannot_be_opened_by_anyone(sites):
    sealed = sites.seal()
    kept = sites["b"].announce("another", 1)
    sites["b"].forget("r")
    with pytest.raises(SealingError, match="is not the current one"):
        sites.open(sealed)
    assert sites["b"].announce("another", 1) == kept
    assert sites["b"].announce("r", 1) != sites.announced["b"]


def test_nothing_is_sealed_before_the_round_is_announced(sites):
    sites["b"].announce("r", 2)
    with pytest.raises(SealingError, match=r"a: round 2 of run r is not the current one \(round 1 is"):
        sites.seal(round=2, announcement=sites["b"].announce("r", 2))
    with pytest.raises(SealingError, match=r"a: round 1 of run new is not the current one \(none was announced\)"):
        sites.seal(run="new", announcement=sites["b"].announce("new", 1))


def test_runs_side_by_side_keep_their_keys(sites):
    sealed = sites.seal()
    for seals in sites.seals.values():
        seals.announce("other", 7)
    assert sites.open(sealed) == SECRET


def test_only_the_newest_runs_are_remembered(sites, tmp_path):
    sealed = sites.seal()
    sites.open(sealed)
    first = _secrets(tmp_path / "b")
    for number in range(3):
        sites["b"].announce(f"run {number}", 1)
    assert sites.open(sealed) == SECRET
    sites["b"].announce("run 3", 1)
    assert first[0] not in stored(tmp_path / "b")
    assert len(_secrets(tmp_path / "b")) == 4
    with pytest.raises(SealingError, match="none was announced"):
        sites.open(sealed)


@pytest.mark.parametrize("number", [-1, 2**32, 1.5, "1", None], ids=str)
def test_rounds_and_phases_are_whole_numbers(sites, number):
    for attempt in (
        lambda: sites["a"].announce("r", number),
        lambda: sites.seal(phase=number),
        lambda: sites["b"].reading(run="r", round=1, phase=number),
        lambda: sites["b"].reading(run="r", round=number, phase=1),
    ):
        with pytest.raises(SealingError, match="a whole number, counted from 0"):
            attempt()
    assert sites["a"].announce("r", 1) == sites.announced["a"]  # a bad question leaves no trace


def test_keys_on_disk_are_for_their_owner_alone(sites, tmp_path):
    folder = tmp_path / "a"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


# Identities and peers


def test_an_identity_is_written_for_its_owner_alone_and_never_overwritten(tmp_path):
    path, identity = tmp_path / "identity.pem", Identity.create()
    before = os.umask(0)
    try:
        identity.write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.read(path).public == identity.public
    assert len(base64.b64decode(identity.public)) == 32
    with pytest.raises(SealingError, match=r"identity\.pem: exists already"):
        Identity.create().write(path)
    assert Identity.read(path).public == identity.public


def test_every_identity_is_another():
    assert len({Identity.create().public for _ in range(5)}) == 5


def test_files_that_hold_no_identity_are_named(tmp_path):
    path = tmp_path / "identity.pem"
    with pytest.raises(SealingError, match=r"identity\.pem: cannot be read"):
        Identity.read(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(SealingError, match=r"identity\.pem: not a private key"):
        Identity.read(path)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(ec.generate_private_key(ec.SECP384R1()).private_bytes(pem, pkcs8, serialization.NoEncryption()))
    with pytest.raises(SealingError, match=r"identity\.pem: a key of another kind; .* Ed25519"):
        Identity.read(path)


def test_an_identity_that_is_not_the_pinned_one_is_noticed_at_once(sites, tmp_path):
    with pytest.raises(SealingError, match="identity of a: the private key is not the one"):
        Seals("a", sites.identities["b"], sites.peers, tmp_path)


def test_peers_are_read_as_they_were_written(tmp_path, sites):
    path = tmp_path / "peers.toml"
    peers = sites.peers | {"St. Mary's, ward 7": Identity.create().public, "ü.1": Identity.create().public}
    write_peers(path, peers)
    assert read_peers(path) == peers
    assert path.read_text(encoding="utf-8").startswith("# The public identities of all sites")
    write_peers(path, sites.peers)
    assert read_peers(path) == sites.peers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = [", "not a TOML file"),
        ("", r"expected one section \[identities\]"),
        ("a = 'key'", r"expected one section \[identities\]"),
        ("identities = 3", r"expected one section \[identities\]"),
        ("[identities]\na = 'key'", "identity of a: 'key' is not 32 bytes in base64"),
        ("[identities]\na = 'a2V5'", "identity of a: 'a2V5' is not 32 bytes in base64"),
        ("[identities]\na = 3", "identity of a: 3 is not 32 bytes in base64"),
    ],
)
def test_a_damaged_list_of_peers_is_named(tmp_path, text, message):
    path = tmp_path / "peers.toml"
    path.write_text(text)
    with pytest.raises(SealingError, match=rf"peers\.toml: {message}"):
        read_peers(path)


def test_a_list_of_peers_that_is_missing_or_cannot_be_written_is_named(tmp_path, sites):
    with pytest.raises(SealingError, match=r"peers\.toml: cannot be read"):
        read_peers(tmp_path / "peers.toml")
    with pytest.raises(SealingError, match=r"peers\.toml: cannot be written"):
        write_peers(tmp_path / "nowhere" / "peers.toml", sites.peers)
    with pytest.raises(SealingError, match="identity of a"):
        write_peers(tmp_path / "peers.toml", {"a": "nonsense"})


def test_the_command_line_can_print_it():
    assert issubclass(SealingError, CoterieError)
