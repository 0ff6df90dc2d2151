"""The process of a site: a Flower node that runs no code from the server.

Flower's own SuperNode fetches an app from the server and runs its client, in a fresh process for every message. This
node speaks the same protocol, by Flower's own client for it, but hands messages to the site that is installed here and
stays in memory with its net and its data. It never fetches an app, and a message costs milliseconds.

The modules of flwr that this takes are not all part of Flower's public interface, hence the narrow range of versions in
`pyproject.toml`.
"""

import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.run import InvalidRunStatusException, RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.core.errors import CoterieError, SettingsError
from coterie.engines.flower.messages import MESSAGE_TYPE, as_records, from_records
from coterie.engines.flower.site import RemoteSite
from coterie.nets.codec import dump

log = logging.getLogger("coterie")

_POLLS = (0.1, 1.0)
"""Seconds between looks for messages: right after a message, and after a long time without one."""

_ADMISSION = 2.5 * HEARTBEAT_DEFAULT_INTERVAL
"""Seconds after which a server that does not let this site in never will: somewhat more than two heartbeats."""

_PAUSE = 3.0
"""Seconds between two attempts to be let in."""

_REFUSED = 1
"""Flower's code for an error of unknown kind."""


def reply(site: RemoteSite, message: Message) -> Message:
    """The Flower message with which a site answers a Flower message."""
    if message.metadata.message_type != MESSAGE_TYPE:
        log.warning("refused: a message of type %s", message.metadata.message_type)
        return Message(Error(code=_REFUSED, reason="not a message for this site"), reply_to=message)
    try:
        content = site.answer(from_records(message.content))
    except CoterieError as error:
        log.warning("refused: %s", error)
        content = dump({"refused": str(error)})
    return Message(as_records({"answer": content}), reply_to=message)


def serve(site: RemoteSite, superlink: str, ca: Path, key: Path, ready: Callable[[int], None]) -> None:
    """Answer a SuperLink's messages until the process is stopped; `ready` is told the node's number once connected.

    The connection is always encrypted, checked against the certificate authority `ca`, and authenticated with this
    site's node key.
    """
    private = _private_key(key)
    try:
        check_server(superlink, ca)
    except ServerAwayError as error:
        log.info("waiting: %s", error)
    _await_admission(superlink, ca, private)
    keys = (private, private.public_key())
    with http_request_response(superlink, False, str(ca), keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        ready(node)
        pause, longest = _POLLS
        while True:
            received = receive()
            if received is None:
                time.sleep(pause)
                pause = min(1.5 * pause, longest)
                continue
            pause = _POLLS[0]
            try:
                _answer(site, received, pull, confirm, send, push)
            except (RunNotRunningException, InvalidRunStatusException):  # both are no Exception but a BaseException
                log.info("a message of a run that has ended is left alone")
            except Exception:  # a message that cannot be fetched or answered must not end the site
                log.exception("a message could not be answered")


def _answer(site: RemoteSite, received: Any, pull: Any, confirm: Any, send: Any, push: Any) -> None:
    """Fetch the content of a message, let the site answer it, and send the answer back."""
    envelope, tree = received
    run = envelope.metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda name: pull(run, name),
        lambda name: confirm(run, name),
        return_type=Message,
        # A message can be seen a moment before its content is there.
        initial_backoff=0.05,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    started = time.monotonic()
    answer = reply(site, message)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    with no_object_id_recompute():
        objects, answer_tree = get_all_nested_objects(answer), get_object_tree(answer)
        wanted, session = send(answer, answer_tree, time.monotonic() - started)
        push_objects(objects, lambda name, content: push(run, session, name, content), object_ids_to_push=wanted)


class ServerAwayError(CoterieError):
    """Nobody answers at the address of a SuperLink."""


def check_server(superlink: str, ca: Path) -> None:
    """Refuse an address at which nobody answers, or somebody without a certificate of the federation's authority."""
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"superlink={superlink}: write host:port, e.g. federation.example.org:8000")
    if not ca.is_file():
        what = "the certificate of the federation's authority, which `coterie deploy certs` makes"
        raise SettingsError(f"{ca}: no such file; it is {what}")
    try:
        trusted = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"{ca}: cannot be read as the certificate of an authority ({error})") from error
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as plain:
            trusted.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLError as error:
        raise CoterieError(
            f"the server at {superlink} does not identify itself with a certificate of the authority in {ca} ({error})"
        ) from error
    except (OSError, OverflowError) as error:
        raise ServerAwayError(f"no server answers at {superlink} ({error})") from error


def _await_admission(superlink: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Wait until the server lets this node in.

    After a crash the server takes the node for connected, and refuses it, until a heartbeat is missed: up to a minute.
    Flower's own connection would end the process at the first refusal.
    """
    public = public_key_to_bytes(key.public_key())
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    deadline = time.monotonic() + _ADMISSION
    with FleetHttpClient.from_server_address(superlink, False, str(ca), interceptors) as client:
        while True:
            try:
                node = client.ActivateNode(request).node_id
                client.DeactivateNode(DeactivateNodeRequest(node_id=node))
                return
            except httpx.TransportError:
                deadline = time.monotonic() + _ADMISSION  # it is not there; that is no refusal
            except httpx.HTTPStatusError as error:
                reason = "its key is not registered there, or is in use by another process"
                if time.monotonic() > deadline:
                    raise CoterieError(f"the server at {superlink} does not let this site in: {reason}") from error
                log.info("the server at %s does not let this site in yet: %s", superlink, reason)
            time.sleep(_PAUSE)


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as the node's private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{path}: not an elliptic-curve key; `coterie deploy certs` makes the right kind")
    return key
