"""For Flower apps: a Coterie run as a `ServerApp`, a site as a `ClientApp`, and methods as strategies.

A federation of Coterie's own, as `coterie deploy init` writes it, is

    app = coterie.flower.server_app(Path(__file__).parent / "settings.toml")

A Flower app that exists already takes a method with two lines, one on either side:

    strategy = coterie.flower.strategy(coterie.IFCA(clusters=2))  # instead of FedAvg()
    from coterie.flower import ClientApp  # instead of flwr.clientapp
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flwr import clientapp
from flwr.app import Context, Message
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.app_utils import start_parent_process_monitor

from coterie.core.errors import SettingsError
from coterie.deploy.server import Deployment, run_over
from coterie.deploy.site import ALLOWED, SiteSettings
from coterie.engines.flower.messages import GridTransport
from coterie.engines.flower.node import reply
from coterie.engines.flower.site import RemoteSite
from coterie.flower.apps import APP_MESSAGE, reply_of_app
from coterie.flower.strategy import CoterieStrategy
from coterie.server.method import Method

__all__ = ["ClientApp", "CoterieStrategy", "client_app", "server_app", "strategy"]


def server_app(settings: Path) -> ServerApp:
    """A server app that runs the method of a settings file; the run's folder is `out` in the run configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out = str(context.run_config.get("out", ""))
        if not out:
            raise SettingsError("no run folder: start with `coterie deploy run`, or `flwr run . -c 'out=\"FOLDER\"'`")
        # Otherwise this process would outlive its SuperLink, and write into a run that another one goes on with.
        start_parent_process_monitor(os.getppid())
        deployment = Deployment.read(settings)
        run_over(deployment, GridTransport(grid, 2 * deployment.waiting.timeout), Path(out))

    return app


def client_app() -> clientapp.ClientApp:
    """A client app for Flower's own SuperNode, whose node configuration names the site's settings: `site="site.toml"`.

    The command `coterie deploy site` does the same, faster and without fetching an app from the server.
    """
    app = clientapp.ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        if "site" not in context.node_config:
            raise SettingsError("the node configuration names no site: --node-config 'site=\"site.toml\"'")
        return reply(_site(str(context.node_config["site"])), message)

    return app


@cache
def _site(path: str) -> RemoteSite:
    return SiteSettings.read(Path(path)).open()


def strategy(method: Method, **options: Any) -> CoterieStrategy:
    """A strategy that runs a method, to be started in place of Flower's FedAvg; `CoterieStrategy` says the options."""
    return CoterieStrategy(method, **options)


class ClientApp(clientapp.ClientApp):
    """Flower's `ClientApp`, which also runs the programs of a method by means of its train and evaluate handlers.

    All else is as in Flower: handlers are registered the same way, mods see the same messages, and messages of other
    strategies reach their handlers. This is no mod because Flower gives a mod only the handler for the message's own
    kind, but a program such as IFCA's evaluates and trains within one message.
    """

    def __init__(self, client_fn: Any = None, mods: list[Mod] | None = None, *, allow: Sequence[str] = ALLOWED) -> None:
        """`allow` names the programs that a server may ask for, with `*` as a wildcard."""
        if client_fn is not None:
            raise SettingsError("client_fn: Coterie needs handlers that are registered with @app.train() and the like")
        super().__init__(mods=mods)
        self._allow = tuple(allow)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        if message.metadata.message_type != APP_MESSAGE:
            return super().__call__(message, context)
        return reply_of_app(message, context, super().__call__, self._allow)
