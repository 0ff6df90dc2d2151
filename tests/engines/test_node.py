"""The loop of a site behind a SuperLink."""

from contextlib import contextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.run import InvalidRunStatusException, RunNotRunningException

from coterie.engines.flower import node


@pytest.mark.parametrize("trouble", [RunNotRunningException, InvalidRunStatusException, ValueError])
def test_no_message_ends_a_site(trouble, monkeypatch, tmp_path):
    """Those of a run that has ended raise what is no Exception."""
    troubles = [trouble, trouble, KeyboardInterrupt]  # which stops it

    def answer(*parts):
        raise troubles.pop(0)

    @contextmanager
    def connection(*told):
        yield 7, lambda: "a message", *[None] * 6

    for name in ("check_server", "_await_admission"):
        monkeypatch.setattr(node, name, lambda *told: None)
    monkeypatch.setattr(node, "_private_key", lambda path: ec.generate_private_key(ec.SECP256R1()))
    monkeypatch.setattr(node, "_answer", answer)
    monkeypatch.setattr(node, "http_request_response", connection)
    (tmp_path / "ca").touch()
    with pytest.raises(KeyboardInterrupt):
        node.serve(None, "host:1", tmp_path / "ca", tmp_path / "key", lambda number: None)
    assert not troubles
