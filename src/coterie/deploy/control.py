"""What the owner of a SuperLink can do: admit nodes, start and watch runs."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from coterie.core.errors import CoterieError
from coterie.engines.flower.node import ServerAwayError, check_server

log = logging.getLogger("coterie")


class Control:
    """A connection to a SuperLink's control interface."""

    def __init__(self, superlink: str, ca: Path) -> None:
        """An error says if nobody answers there, or who answers has no certificate of this authority."""
        try:
            check_server(superlink, ca)
        except ServerAwayError as error:
            raise CoterieError(f"{error}; `coterie deploy server` starts it, and --superlink names another") from error
        self.superlink = superlink
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._client = ControlHttpClient.from_server_address(superlink, False, ca.read_bytes(), [version])

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def register(self, key: Path) -> bool:
        """Admit a node by its public key; False if it was admitted before."""
        public: Any = load_ssh_public_key(key.read_bytes())
        request = RegisterNodeRequest(public_key=public_key_to_bytes(public), name=key.stem)
        try:
            self._ask(self._client.RegisterNode, request)
        except CoterieError as error:
            if "already in use" in str(error):
                return False
            raise
        return True

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
