"""The command line: one argument list in, one command run. What a command needs is imported when it runs.

`coterie --help`, lists, and errors that a command line alone shows take no torch, which takes more than a second.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from cyclopts import App, CycloptsError, Group, UnknownOptionError, UnusedCliTokensError

from coterie._version import __version__
from coterie.cli.advise import add_advise
from coterie.cli.arguments import behind, listed, split_off
from coterie.cli.compare import add_compare
from coterie.cli.console import errors, tell
from coterie.cli.demo import demo
from coterie.cli.deploy import add_deploy
from coterie.cli.listings import show_data, show_losses, show_methods, show_metrics, show_nets, show_splits
from coterie.cli.look import add_split, report, schema, show
from coterie.cli.models import export, predict
from coterie.cli.run import add_run
from coterie.cli.study import add_reproduce, add_study
from coterie.core.errors import CoterieError, ProgramError, called_here
from coterie.core.modules import own_module

_DO, _CHOOSE, _HELP = (
    Group(title, sort_key=place) for place, title in enumerate(("Experiments", "What there is to choose from", "Help"))
)

_ABOUT = """Federated learning when clients' data differ: who belongs together, and what is it worth to each?

Start with `coterie demo`, then `coterie run fedavg`. Every command explains itself with `--help`.

Every command takes `--modules NAME,NAME`, your own Python modules with methods, splits, nets, losses and metrics.
They may lie in the current folder; the variable COTERIE_MODULES names some for all commands. Runs remember which ones
they need.
"""

MODULES = "COTERIE_MODULES"
"""The environment variable that names users' modules for all commands."""


def _app(arguments: Sequence[str]) -> App:
    """All commands, of which only the one that the arguments choose has its options."""
    app = App(
        name="coterie",
        help=_ABOUT,
        version=__version__,
        help_format="markdown",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.command(demo, group=_DO, sort_key=0)
    add_run(app, behind("run", arguments), _DO, 1)
    add_compare(app, behind("compare", arguments), _DO, 2)
    app.command(show, usage="Usage: coterie show RUN... [OPTIONS]", group=_DO, sort_key=3)
    app.command(report, usage="Usage: coterie report RUN... [OPTIONS]", group=_DO, sort_key=4)
    add_advise(app, behind("advise", arguments), _DO, 5)
    add_split(app, behind("split", arguments), _DO, 5)
    app.command(export, group=_DO, sort_key=6)
    app.command(predict, group=_DO, sort_key=7)
    app.command(schema, group=_DO, sort_key=8)
    add_reproduce(app, behind("reproduce", arguments), _DO, 9)
    add_study(app, behind("study", arguments), _DO, 10)
    add_deploy(app, behind("deploy", arguments), _DO, 11)
    for place, function in enumerate((show_methods, show_data, show_splits, show_nets, show_losses, show_metrics)):
        app.command(function, name=function.__name__.removeprefix("show_"), group=_CHOOSE, sort_key=place)
    for name in ("--help", "--version"):
        app[name].group = _HELP
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error that the user can mend is one message and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _terminable():
            try:
                modules, given = split_off("--modules", given)
                for name in (*listed(os.environ.get(MODULES, "")), *modules):
                    own_module(name)
                _app(given)(given)
            finally:
                sys.stdout.flush()  # here a closed pipe can be told from an error; at Python's exit it cannot
    except (CoterieError, CycloptsError) as error:
        tell("error:", _message(error), errors, style="bold red")
        sys.exit(1 if isinstance(error, ProgramError) else 2)
    except KeyboardInterrupt:
        tell("stopped", "", errors)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has enough of it, e.g. `head`; Python must not try to write the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, by which schedulers end a job, do what Ctrl-C does."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others may not decide about signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _message(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {' '.join(error.unused_tokens or ())!r}: options begin with --, see --help"
    if isinstance(error, UnknownOptionError):
        given = (error.token.keyword or error.token.value or "").partition("=")[0]
        called = "--" + called_here(given.lstrip("-")).replace("_", "-")
        if called != given and any(called in one.names for one in error.argument_collection):
            return f"unknown option {given}: it is called {called} here"
    text = str(error)
    return text[:1].lower() + " ".join(text[1:].split()) if isinstance(error, CycloptsError) else text
