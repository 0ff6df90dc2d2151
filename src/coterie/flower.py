"""For Flower apps: a Coterie run as a `ServerApp`, a site as a `ClientApp`, and methods as strategies.

app = coterie.flower.server_app(Path(__file__).parent / "settings.toml")
"""

from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.deploy.server import Deployment, run_over
from coterie.deploy.site import SiteSettings
from coterie.engines.flower.messages import GridTransport
from coterie.engines.flower.node import reply
from coterie.engines.flower.site import RealSite
from coterie.errors import SettingsError

__all__ = ["client_app", "server_app"]


def server_app(settings: Path) -> ServerApp:
    """A server app that runs the method of a settings file into the folder that the run configuration calls `out`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out = str(context.run_config.get("out", ""))
        if not out:
            raise SettingsError("no run folder: start with `coterie deploy run`, or `flwr run . -c 'out=\"FOLDER\"'`")
        deployment = Deployment.read(settings)
        run_over(deployment, GridTransport(grid, 2 * deployment.waiting.timeout), Path(out))

    return app


def client_app() -> ClientApp:
    """A client app for Flower's own SuperNode, whose node configuration names the site's settings: `site="site.toml"`.

    `coterie deploy site` does the same without fetching an app from the server, and faster.
    """
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        if "site" not in context.node_config:
            raise SettingsError("the node configuration names no site: --node-config 'site=\"site.toml\"'")
        return reply(_site(str(context.node_config["site"])), message)

    return app


@cache
def _site(path: str) -> RealSite:
    return SiteSettings.read(Path(path)).open()
