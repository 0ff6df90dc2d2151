"""The Flower app of a federation: what `coterie deploy init` writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from coterie.core.errors import SettingsError
from coterie.core.files import write_whole
from coterie.deploy.server import Deployment
from coterie.deploy.site import ALLOWED
from coterie.runs.settings import FORMAT, as_toml

_TEMPLATE = Path(__file__).with_name("template")
"""The files of the app. Their names end in `.txt` here, so that no tool takes them for code of this project."""


def write_app(folder: Path, deployment: Deployment) -> None:
    """Write a ready Flower app with these settings, and the files that a site fills in."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder}: is not empty; choose another folder")
    files = {
        template.relative_to(_TEMPLATE).with_suffix(""): template.read_text(encoding="utf-8")
        for template in sorted(_TEMPLATE.rglob("*.txt"))
    }
    files[Path("federation/settings.toml")] = tomli_w.dumps(deployment.table())
    data = "data.npz"
    if deployment.schema is not None:
        data = "data.csv"
        files[Path("site/schema.toml")] = tomli_w.dumps(deployment.schema.table())
    files[Path("site/site.toml")] += tomli_w.dumps(site_table(deployment, name="north", data=data))
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, content)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written ({error.strerror})") from error


def site_table(deployment: Deployment, name: str, data: str, **more: Any) -> Mapping[str, Any]:
    """The content of a `site.toml` that fits a deployment, for a site whose keys lie beside that file."""
    task = deployment.task
    table = {
        "format": FORMAT,
        "name": name,
        "data": data,
        "state": "state",
        "labels": list(task.labels),
        "net": task.net,
        **({"shift": list(task.shift), "scale": list(task.scale)} if deployment.schema is None else {}),
        **({"schema": "schema.toml"} if deployment.schema is not None else {}),
        **({"vocabulary": task.vocabulary} if task.vocabulary else {}),
        **({"task": task.task} if task.task != "classification" else {}),
        **({"loss": task.loss} if task.loss else {}),
        **({"target_shift": list(task.target_shift)} if task.target_shift and deployment.schema is None else {}),
        **({"target_scale": list(task.target_scale)} if task.target_scale and deployment.schema is None else {}),
        "allow": [*ALLOWED, *(f"{module}.*" for module in deployment.modules)],
        "superlink": "127.0.0.1:8000",
        "ca": "ca.pem",
        "key": "node.key",
        "identity": "identity.pem",
        "peers": "peers.toml",
        "method": as_toml({"name": deployment.method.name, **vars(deployment.method)}),
        "computing": {"device": deployment.computing.device, "precision": deployment.computing.precision},
    }
    own = {"modules": list(deployment.modules)} if deployment.modules else {}
    return table | own | more
