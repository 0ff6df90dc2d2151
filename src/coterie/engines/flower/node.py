"""The process of a site: a Flower node that runs no code from the server.

Flower's own SuperNode fetches an app bundle from the server and runs the client in it, in a fresh process for every
message. This one speaks the same protocol with Flower's own client, but hands messages to the site that is installed
here, which stays in memory with its net and its data: bundles are never fetched, and a message costs milliseconds.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supernode.fleet_http_connection import http_request_response

from coterie.engines.flower.messages import MESSAGE_TYPE, packed, unpacked
from coterie.engines.flower.site import RealSite
from coterie.errors import CoterieError, SettingsError
from coterie.wire import dump

__all__ = ["reply", "serve"]

log = logging.getLogger("coterie")

_POLL = 0.2
"""Seconds between looks for messages."""

_REFUSED = 1
"""Flower's code for an error of no special kind."""


def reply(site: RealSite, message: Message) -> Message:
    """A site's answer to a Flower message."""
    if message.metadata.message_type != MESSAGE_TYPE:
        log.warning("refused: a message of type %s", message.metadata.message_type)
        return Message(Error(code=_REFUSED, reason="not a message for this site"), reply_to=message)
    try:
        content = site.answer(unpacked(message.content))
    except CoterieError as error:
        log.warning("refused: %s", error)
        content = dump({"refused": str(error)})
    return Message(packed({"answer": content}), reply_to=message)


def serve(site: RealSite, superlink: str, ca: Path, key: Path, ready: Callable[[int], None]) -> None:
    """Answer a SuperLink's messages until the process is stopped; `ready` is told the node's number once connected.

    The connection is always encrypted, checked against the certificate authority `ca`, and authenticated with this
    site's node key.
    """
    private = _private_key(key)
    if not ca.is_file():
        raise SettingsError(f"{ca}: no such file; it is the certificate of the federation's authority")
    keys = (private, private.public_key())
    with http_request_response(superlink, False, str(ca), keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        ready(node)
        while True:
            received = receive()
            if received is None:
                time.sleep(_POLL)
                continue
            try:
                _answer(site, received, pull, confirm, send, push)
            except Exception:  # a message that cannot be had or answered must not end the site
                log.exception("a message could not be answered")


def _answer(site: RealSite, received: Any, pull: Any, confirm: Any, send: Any, push: Any) -> None:
    """Fetch the content of a message, let the site answer it, and bring the answer back."""
    envelope, tree = received
    run = envelope.metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree, lambda name: pull(run, name), lambda name: confirm(run, name), return_type=Message
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    started = time.monotonic()
    answer = reply(site, message)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    with no_object_id_recompute():
        objects, answer_tree = get_all_nested_objects(answer), get_object_tree(answer)
        wanted, session = send(answer, answer_tree, time.monotonic() - started)
        push_objects(objects, lambda name, content: push(run, session, name, content), object_ids_to_push=wanted)


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as the node's private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{path}: not an elliptic-curve key; `coterie deploy certs` makes the right kind")
    return key
