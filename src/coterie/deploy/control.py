"""What the owner of a SuperLink can do: admit nodes, start and watch runs.

Who the owner is: whoever can read the folder of the SuperLink's state, where it says how it is reached from this
machine and which token it asks for (`coterie.deploy.superlink`).
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.registry import checked
from coterie.deploy.state import CONTROL
from coterie.engines.flower.node import ServerAwayError, check_server
from coterie.runs.settings import read_table

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class ShowToken:
    """Has every request show the token."""

    token: str = field(repr=False)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the token to a request."""
        context.request.headers["authorization"] = f"Bearer {self.token}"
        return call_next(context)


class Control:
    """A connection to the control interface of the SuperLink that keeps its state in a folder of this machine."""

    def __init__(self, state: Path) -> None:
        """An error says if no SuperLink runs there, or if who answers has no certificate of its authority."""
        path = state / CONTROL
        if not path.is_file():
            raise SettingsError(
                f"{path}: no such file; `coterie deploy server` writes it while it runs, and --state names its folder"
            )
        told = read_table(path)
        self.superlink, ca, token = (checked(name, told.get(name), str) for name in ("superlink", "ca", "token"))
        try:
            check_server(self.superlink, Path(ca))
        except ServerAwayError as error:
            raise CoterieError(f"{error}; `coterie deploy server` starts it, and --state names its folder") from error
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        shown: list[ProtobufClientInterceptor] = [version, ShowToken(token)]
        self._client = ControlHttpClient.from_server_address(self.superlink, False, Path(ca).read_bytes(), shown)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def register(self, key: Path) -> bool:
        """Admit a node by its public key; False if it was admitted before."""
        request = RegisterNodeRequest(public_key=public_key_to_bytes(_loaded(key)), name=key.stem)
        try:
            self._ask(self._client.RegisterNode, request)
        except CoterieError as error:
            if "already in use" in str(error):
                return False
            raise
        return True

    def admit(self, nodes: Path) -> tuple[list[str], list[str]]:
        """Have admitted exactly the nodes whose public keys are in a folder; returns who is new, and who has to go."""
        wanted = {public_key_to_bytes(_loaded(path)): path for path in sorted(nodes.glob("*.pub"))}
        listed = self._ask(self._client.ListNodes, ListNodesRequest()).nodes_info
        there = {node.public_key: node for node in listed if node.status != "unregistered"}
        gone = [node for key, node in there.items() if key not in wanted]
        for node in gone:
            self._ask(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node.node_id))
        new = [path.stem for key, path in wanted.items() if key not in there and self.register(path)]
        return new, [node.name for node in gone]

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of an app, with these entries for its run configuration; returns the run's number."""
        bundle = build_fab_from_disk(app)
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        request = StartRunRequest(fab=fab, override_config=user_config_to_proto(dict(config)))
        answer = self._ask(self._client.StartRun, request)
        if not answer.HasField("run_id"):
            raise CoterieError(f"the SuperLink at {self.superlink} does not start the run")
        return int(answer.run_id)

    def status(self, run: int) -> tuple[str, str]:
        """The state of a run (pending, starting, running or finished), and what Flower tells about it besides."""
        found = self._ask(self._client.ListRuns, ListRunsRequest(run_id=run)).run_dict
        status = run_from_proto(next(iter(found.values()))).status
        return status.status, " ".join(filter(None, (status.sub_status, status.details)))

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._ask(self._client.StopRun, StopRunRequest(run_id=run))

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        """What the SuperLink answers to a request; its refusal, and its silence, are errors."""
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            raise CoterieError(f"the SuperLink refuses: {error.response.text.strip() or error}") from error
        except httpx.TransportError as error:
            raise CoterieError(f"the SuperLink at {self.superlink} does not answer any more ({error})") from error


def _loaded(path: Path) -> Any:
    """The public key in a file."""
    try:
        return load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as a public node key ({error})") from error
