"""The Flower app of a federation: what `coterie deploy init` writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from coterie.core.errors import SettingsError
from coterie.core.files import write_whole
from coterie.deploy.server import Deployment
from coterie.deploy.site import ALLOWED
from coterie.runs.settings import FORMAT

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "coterie-federation"
version = "1.0.0"
description = "A federation run by Coterie"
license = "Apache-2.0"
dependencies = ["coterie[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
out = ""
"""

_SERVER_APP = '''\
"""The server's side: runs the method of settings.toml over the sites that are connected."""

from pathlib import Path

from coterie.flower import server_app

app = server_app(Path(__file__).parent / "settings.toml")
'''

_CLIENT_APP = '''\
"""A site's side, for those who run Flower's own SuperNode; `coterie deploy site` needs no app."""

from coterie.flower import client_app

app = client_app()
'''

_SERVER_DATA = '''\
"""Data that the server itself holds: probe images for FLIS, a global test set.

To use it, write into settings.toml:

    [server]
    data = "federation.server_data:load"
"""

from pathlib import Path

import numpy as np

import coterie


def load() -> coterie.Dataset:
    """Samples for methods that need some, and as test part the global test set."""
    arrays = np.load(Path.home() / "server.npz")
    test = coterie.Dataset(arrays["x_test"], arrays["y_test"])
    return coterie.Dataset(arrays["x"], arrays["y"], test=test)
'''

_SITE_DATA = '''\
"""Where a site's data comes from, if it is neither an .npz file nor a folder of images per class.

To use it, write into site.toml:

    data = "site_data:load"
"""

from pathlib import Path

import numpy as np

import coterie


def load() -> coterie.Dataset:
    """This site's samples, with labels that are places in, or names of, the task's label set."""
    arrays = np.load(Path(__file__).parent / "data.npz")
    return coterie.Dataset(arrays["x"], arrays["y"])
'''

_README = """\
# A federation run by Coterie

| file | for whom |
|---|---|
| `federation/settings.toml` | the server: method, task, how long to wait for sites |
| `federation/server_data.py` | the server: data that it holds itself, if any |
| `site/site.toml` | each site gets a copy and fills in its name and where its data is |
| `site/site_data.py` | a site whose data is neither an .npz file nor a folder of images |

Who makes the keys:

    coterie deploy certs certs --sites north,south --hosts federation.example.org

hands `certs/server` to the server's machine and `certs/sites/NAME` to each site, over a channel that the site trusts.

On the server's machine:

    coterie deploy server certs/server --host 0.0.0.0 --port 8000
    coterie deploy run . --certs certs/server --superlink 127.0.0.1:8000 --out runs/first
    coterie deploy resume runs/first          # after a crash, or when sites were missing

At each site, beside its keys:

    coterie deploy site site.toml
"""


def write_app(folder: Path, deployment: Deployment) -> None:
    """Write a ready Flower app with these settings, and what a site needs to fill in."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder}: is not empty; choose another folder")
    package, site = folder / "federation", folder / "site"
    try:
        for path in (package, site):
            path.mkdir(parents=True)
        write_whole(folder / "pyproject.toml", _PROJECT)
        write_whole(folder / "README.md", _README)
        write_whole(package / "__init__.py", '"""The Flower app."""\n')
        write_whole(package / "server_app.py", _SERVER_APP)
        write_whole(package / "client_app.py", _CLIENT_APP)
        write_whole(package / "server_data.py", _SERVER_DATA)
        write_whole(package / "settings.toml", tomli_w.dumps(deployment.table()))
        write_whole(site / "site_data.py", _SITE_DATA)
        table = site_table(deployment, name="north", data="data.npz")
        write_whole(site / "site.toml", _SITE_NOTE + tomli_w.dumps(table))
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written ({error.strerror})") from error


_SITE_NOTE = """\
# What this site decides for itself. Paths are seen from this file's folder.
# data: an .npz file with arrays x and y, a folder of images per class, or "site_data:load".
# allow: the programs that the server may ask for; nothing else runs here.

"""


def site_table(deployment: Deployment, name: str, data: str, **more: Any) -> Mapping[str, Any]:
    """The settings of a site that fits a deployment, with its keys beside them."""
    task = deployment.task
    table = {
        "format": FORMAT,
        "name": name,
        "data": data,
        "state": "state",
        "labels": list(task.labels),
        "net": task.net,
        "shift": list(task.shift),
        "scale": list(task.scale),
        "allow": list(ALLOWED),
        "superlink": "127.0.0.1:8000",
        "ca": "ca.pem",
        "key": "node.key",
        "identity": "identity.pem",
        "peers": "peers.toml",
        "computing": {"device": deployment.computing.device, "precision": deployment.computing.precision},
    }
    return table | more
