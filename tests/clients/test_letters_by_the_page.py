"""A worked letter, computed anew from `docs/letters.md`: whoever writes the protocol again comes to the same bytes."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.clients import sealing
from coterie.clients.sealing import Identity, Seals

VECTOR = json.loads(Path(__file__).with_name("letters.json").read_text(encoding="utf-8"))
AT = {"run": VECTOR["run"], "round": VECTOR["round"]}


def framed(*fields):
    """Fields, each behind its length."""
    made = b""
    for field in fields:
        if isinstance(field, bytes):
            content = b"b" + field
        elif isinstance(field, str):
            content = b"s" + field.encode()
        else:
            content = b"i%d" % field
        made += len(content).to_bytes(8, "big") + content
    return made


def key_of(who):
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(VECTOR[f"round key of the {who}"]))


def identity_of(who):
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTOR[f"identity of the {who}"]))


def public_of(key):
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def announcement_of(who):
    public = public_of(key_of(who))
    statement = framed("coterie announcement 1", VECTOR["run"], VECTOR["round"], VECTOR[who], public)
    return public + identity_of(who).sign(statement)


def letter():
    run, round_, sender, receiver = (VECTOR[name] for name in ("run", "round", "sender", "receiver"))
    own, theirs = key_of("sender"), key_of("receiver")
    info = framed("coterie letter key 1", run, round_, sender, receiver, public_of(own), public_of(theirs))
    key = HKDF(hashes.SHA256(), 32, None, info).derive(own.exchange(theirs.public_key()))
    envelope = framed("coterie letter 1", run, round_, VECTOR["phase"], sender, receiver, VECTOR["subject"])
    nonce = bytes.fromhex(VECTOR["nonce"])
    sealed = ChaCha20Poly1305(key).encrypt(nonce, bytes.fromhex(VECTOR["content"]), envelope)
    return b"\x01" + announcement_of("sender") + VECTOR["phase"].to_bytes(4, "big") + nonce + sealed


def test_the_page_says_every_byte():
    for who in ("sender", "receiver"):
        assert announcement_of(who).hex() == VECTOR[f"announcement of the {who}"]
    assert letter().hex() == VECTOR["letter"]


@pytest.fixture
def seals(tmp_path, monkeypatch):
    """Both sites, with the identities and round keys of the example."""
    identities = {who: Identity(identity_of(who)) for who in ("sender", "receiver")}
    peers = {VECTOR[who]: identity.public for who, identity in identities.items()}
    made = {}
    for who, identity in identities.items():

        class Given(X25519PrivateKey):
            """Round keys, of which the next is that of the example."""

            generate = staticmethod(lambda who=who: key_of(who))
            from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)

        monkeypatch.setattr(sealing, "X25519PrivateKey", Given)
        made[who] = Seals(VECTOR[who], identity, peers, tmp_path / who)
        assert made[who].announce(**AT).hex() == VECTOR[f"announcement of the {who}"]
    return made


def test_sites_write_that_letter(seals, monkeypatch):
    monkeypatch.setattr(sealing.os, "urandom", lambda size: bytes.fromhex(VECTOR["nonce"]))
    sealed = seals["sender"].seal(
        bytes.fromhex(VECTOR["content"]),
        **AT,
        phase=VECTOR["phase"],
        receiver=VECTOR["receiver"],
        subject=VECTOR["subject"],
        announcement=bytes.fromhex(VECTOR["announcement of the receiver"]),
    )
    assert sealed.hex() == VECTOR["letter"]


def test_sites_read_that_letter(seals):
    reading = seals["receiver"].reading(**AT, phase=VECTOR["phase"] + 1)
    opened = reading.open(bytes.fromhex(VECTOR["letter"]), sender=VECTOR["sender"], subject=VECTOR["subject"])
    assert opened.hex() == VECTOR["content"]
