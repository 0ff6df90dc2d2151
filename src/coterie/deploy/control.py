"""What the owner of a SuperLink can do: admit nodes, start and watch runs."""

import hashlib
import logging
from collections.abc import Mapping
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

log = logging.getLogger("coterie")


class Control:
    """A connection to a SuperLink's control interface."""

    def __init__(self, superlink: str, ca: Path) -> None:
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
            self._client.RegisterNode(request)
        except httpx.HTTPStatusError as error:
            if "already in use" in error.response.text:
                return False
            raise _refused(error) from error
        return True

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of an app, with these entries for its run configuration; returns the run's number."""
        bundle = build_fab_from_disk(app)
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        try:
            answer = self._client.StartRun(StartRunRequest(fab=fab, override_config=user_config_to_proto(dict(config))))
        except httpx.HTTPStatusError as error:
            raise _refused(error) from error
        if not answer.HasField("run_id"):
            raise CoterieError(f"the SuperLink at {self.superlink} does not start the run")
        return int(answer.run_id)

    def status(self, run: int) -> tuple[str, str]:
        """The state of a run (pending, starting, running or finished), and what Flower tells about it besides."""
        found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        status = run_from_proto(next(iter(found.values()))).status
        return status.status, " ".join(filter(None, (status.sub_status, status.details)))

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._client.StopRun(StopRunRequest(run_id=run))


def _refused(error: httpx.HTTPStatusError) -> CoterieError:
    return CoterieError(f"the SuperLink refuses: {error.response.text.strip() or error}")
