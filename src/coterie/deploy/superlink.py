"""The process of the SuperLink: Flower's own, with two doors instead of one and a lock on the inner one.

Flower serves everything at one address: what sites need, what the owner needs (start and stop runs, admit nodes), and
what server apps need. Its control interface has no log-in unless a plugin asks for one, and hands any run to whoever
asks for work. So here

- sites reach an outer door, where nothing but `SITES_NEED` exists. Each request there is signed with a registered node
  key (Flower's node authentication);
- all else is behind an inner door, on loopback. The control interface asks there for a token, the one who hands out
  work for a signature with a secret. Both are made anew at each start, and lie in the folder of the SuperLink's state
  in files that only its owner can read;
- the process that starts server apps (Flower's SuperExec) is started here, with that secret.

>>> allows(outer=True, path="/v1/fleet/pull-messages"), allows(outer=True, path="/v1/control/list-runs")
(True, False)
"""

import argparse
import hmac
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w
import uvicorn
from flwr.common.constant import (
    FLWR_INTERNAL_GRPC_CONTROL_API,
    FLWR_INTERNAL_GRPC_FLEET_API,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from coterie.clients.sealing import write_private
from coterie.core.errors import SettingsError
from coterie.deploy.state import CONTROL
from coterie.engines.flower.certs import ServerFiles

_SECRET = "superexec.secret"
"""The file with the secret of the process that starts server apps."""

SITES_NEED = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
        *("push-object", "pull-object", "confirm-message-received", "get-run", "get-fab"),
    )
)
"""All that exists at the outer door. Nodes are registered by the owner of the SuperLink, never by themselves."""

_LARGEST = 64 << 20
"""The longest request that sites may send, in bytes: Flower cuts what is large into pieces of 20 MB."""

_END = 5.0
"""Seconds that the process which starts server apps has to end."""

_Application = Callable[[Any, Any, Any], Any]


def allows(outer: bool, path: str) -> bool:
    """Whether a path exists at a door.

    >>> allows(outer=False, path="/v1/control/list-runs")
    True
    """
    return not outer or path in SITES_NEED


class TokenPlugin(ControlAuthnPlugin):
    """Lets in who shows the token, as the one account that owns this SuperLink."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        """Whether a request has the token, and whose it is."""
        shown = [value.encode() if isinstance(value, str) else value for _, value in metadata]
        if len(shown) == 1 and self._token and hmac.compare_digest(shown[0], self._token.encode()):
            return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)
        return False, None

    def get_login_details(self) -> None:
        """There is no log-in: the token is in a file."""

    def get_auth_tokens(self, device_code: str) -> None:
        """There is no log-in."""

    def refresh_tokens(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
        """Tokens are not renewed."""
        return None, None


class Doors:
    """An application that is whole at one port, and at all others has nothing but what sites need."""

    def __init__(self, application: _Application, inner: int) -> None:
        self._application, self._inner = application, inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on if its path exists at the door where it came in, and it is not too long."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        # The port of the socket that took the connection; what a request says of itself plays no part.
        outer = scope["server"][1] != self._inner
        if outer and (scope["type"] != "http" or not allows(outer, scope["path"])):
            await _refuse(scope, send, 404)
        elif outer and not 0 <= _length(scope) <= _LARGEST:
            await _refuse(scope, send, 413)
        else:
            await self._application(scope, receive, send)


def _length(scope: Any) -> int:
    """How many bytes a request announces; -1 if it does not say."""
    told = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(told[0]) if len(told) == 1 and told[0].isdigit() else -1


async def _refuse(scope: Any, send: Any, status: int) -> None:
    """Answer with a status and nothing else."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@contextmanager
def _private_file(path: Path, content: bytes) -> Any:
    """A file that only its owner can read, as long as the block runs; whoever sees it sees all of it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    write_private(new, content)
    new.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def serve(files: ServerFiles, state: Path, host: str, port: int) -> None:
    """Be the SuperLink until stopped: open both doors, and start the process that starts server apps."""
    # Whoever is asked to end goes through the blocks below, which end and remove what is theirs.
    signal.signal(signal.SIGTERM, lambda *told: sys.exit())
    for name in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(name, None)  # Flower's older interfaces know neither door
    token, secret = secrets.token_urlsafe(32), secrets.token_bytes(32)
    with closing(_bound(host, port)) as outer, closing(_bound("127.0.0.1", 0)) as inner:
        address = f"127.0.0.1:{inner.getsockname()[1]}"
        config = SuperLinkLifespanConfig(
            control_address="",
            health_server_address=None,
            host=host,
            port=port,
            insecure=False,
            certificates=(files.ca.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes()),
            superexec_auth_secret=secret,
            authn_plugin=TokenPlugin(token),
            event_log_plugin=None,
            fleet_event_log_plugin=None,
            enable_event_log=False,
            artifact_provider=None,
            enable_supernode_auth=True,
            fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
            fleet_api_address=None,
            simulation=False,
            ssl_ca_certfile=str(files.ca),
            ssl_certfile=str(files.certificate),
            ssl_keyfile=str(files.key),
            database=str(state / "state.db"),
            isolation=ISOLATION_MODE_PROCESS,
            runtime_dependency_install=False,
        )
        application = Doors(create_app(config, SuperLinkLifespan), inner.getsockname()[1])
        server = uvicorn.Server(
            uvicorn.Config(
                application,
                log_config=get_uvicorn_log_config(logging.INFO),
                ssl_keyfile=str(files.key),
                ssl_certfile=str(files.certificate),
                proxy_headers=False,
                server_header=False,
                ws="none",
            )
        )
        told = tomli_w.dumps({"superlink": address, "ca": str(files.ca.absolute()), "token": token})
        with (
            _private_file(state / _SECRET, secret),
            _private_file(state / CONTROL, told.encode()),
            _superexec(address, files.ca, state / _SECRET),
            suppress(KeyboardInterrupt),
        ):
            server.run([outer, inner])


@contextmanager
def _superexec(address: str, ca: Path, secret: Path) -> Any:
    """The process that starts server apps, as long as the block runs; it ends with this process, too."""
    command = [
        *(str(Path(sys.executable).parent / "flower-superexec"), "--runtime-api-address", address),
        *("--root-certificates", str(ca), "--superexec-auth-secret-file", str(secret)),
        *("--parent-pid", str(os.getpid())),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(f"cannot listen at {host}:{port} ({error.strerror})") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments that `coterie.deploy.processes` gives, and serve."""
    parser = argparse.ArgumentParser(description=serve.__doc__)
    parser.add_argument("files", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    try:
        serve(ServerFiles(given.files), given.state, given.host, given.port)
    except SettingsError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
