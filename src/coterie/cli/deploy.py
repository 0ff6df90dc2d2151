"""`coterie deploy`: from a method to a federation of real sites."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
from cyclopts import App, Group, Parameter

from coterie.cli.arguments import behind
from coterie.cli.console import Follower, following, print_json, print_table, tell
from coterie.cli.options import of_methods
from coterie.cli.parameters import GROUPS, argument, command, flag, whole
from coterie.cli.run import RUNS, place_of, settings_of, short, stoppable
from coterie.core.errors import CoterieError, SettingsError
from coterie.core.fields import at_least, check_range
from coterie.core.files import write_whole
from coterie.core.logs import OneLineFormatter

if TYPE_CHECKING:
    from coterie.deploy.control import Control
    from coterie.deploy.server import Deployment
    from coterie.runs.folder import StoredRun
    from coterie.server.fitting import Record

_option = partial(flag, show_default=None)

Out = Annotated[Path | None, flag("Folder of the run; by default a new one below `runs/`.")]
AsJson = Annotated[bool, flag("Print the summary as JSON, and nothing else.", name="--json")]
MinSites = Annotated[int, _option("A round counts if at least so many sites answer.", converter=whole)]
Timeout = Annotated[float, _option("Seconds that a round may take, however many sites hang.")]
State = Annotated[Path, _option("Folder of the SuperLink's state, on this machine.")]
Patience = Annotated[float, _option("Seconds that the run waits for missing sites before it stops.")]

_LOOK = 5.0
"""Seconds between two looks at the keys of the nodes that are to be admitted."""

_ABOUT = """Run a method on real sites, over Flower: `coterie deploy local fedavg --sites 3` tries it on this machine.

For a real federation: `init` writes an app, `certs` the server's keys, `key` those of a site, which `sign` admits;
`server` and `run` go on the server's machine, `site` at each site. What a server can make a site do is decided at the
site, by its own settings and its own installation.
"""


def add_deploy(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add all commands of `coterie deploy`; the one that the arguments choose has its options."""
    deploy = App(name="deploy", help=_ABOUT, help_format="markdown", group=group, sort_key=sort_key)
    said = {"group": GROUPS["Experiment"]}
    method = argument("method", str, "fedavg", help="Method; see `coterie methods`.", **said)
    shown = of_methods(behind("local", arguments or ()), _local, slice(1))
    deploy.command(command(_local, shown, [method]), name="local")
    folder = argument("folder", Path, help="Folder of the app, which must not exist or be empty.", **said)
    shown = of_methods(behind("init", arguments or ()), _init, slice(1, 2))
    deploy.command(command(_init, shown, [folder, method]), name="init")
    for function in (certs, key, sign, revoke, server, site, run, resume, audit):
        deploy.command(function)
    app.command(deploy)


def _require_flower() -> None:
    """If Flower is missing, raise an error that says how to install it."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise CoterieError("real sites need Flower: pip install 'coterie[flower]'") from error


def _local(
    given: dict[str, Any],
    method: str = "fedavg",
    *,
    sites: Annotated[int, _option("How many sites there are.", converter=whole)] = 3,
    min_sites: MinSites = 2,
    timeout: Timeout = 600.0,
    patience: Patience = 300.0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Everything on this machine, with real processes, encryption and node authentication.

    The data is divided among the sites as `coterie run METHOD --clients SITES` divides it, and the result is the same.
    """
    check_range("sites", sites, at_least(1))
    if given.setdefault("clients", sites) != sites:
        raise SettingsError(f"clients={given['clients']}: there are {sites} sites; say --sites")
    settings = settings_of(given, method)
    _require_flower()

    from coterie.deploy.local import LocalFederation, deployment_of, prepare
    from coterie.engines.flower.engine import Waiting

    waiting = Waiting(sites=sites, min_sites=min(min_sites, sites), timeout=timeout, patience=patience)
    # Whatever is wrong with the settings must show before a folder is made.
    deployment_of(settings, waiting)
    settings.world.population  # noqa: B018
    folder = _folder(out, f"{method}-{short(settings.world)}-sites")
    with _resumable(folder), following(quiet=as_json) as follower:
        deployment = prepare(settings, folder / "deployment", waiting)
        with LocalFederation(folder / "deployment") as federation:
            stored = federation.run(folder, _watch(follower, deployment))
    _present(stored, as_json)


def _init(given: dict[str, Any], folder: Path, method: str = "fedavg") -> None:
    """Write a ready Flower app: settings, hooks for data, a template for sites.

    The task (labels, net, scaling of inputs) is that of the data named with `--data`, by default digits. For tables
    `--schema` says it without any data; how to scale is then made of sums and counts that sites send.
    """
    schema = None if "data" in given else given.pop("schema", None)
    settings = settings_of(given, method)
    _require_flower()

    from coterie.data.schema import Schema
    from coterie.deploy.app import write_app
    from coterie.deploy.local import deployment_of, deployment_of_schema

    if schema is None:
        write_app(folder, deployment_of(settings))
    else:
        write_app(folder, deployment_of_schema(settings, Schema.read(schema), Path(schema).stem))
    tell("written to", folder)
    tell("read on in", folder / "README.md")


def certs(
    folder: Annotated[Path, Parameter(help="Folder of the keys; what is there is kept.")],
    *,
    sites: Annotated[
        str | None, _option("Sites whose keys are made here, with commas between; others make their own (`key`).")
    ] = None,
    hosts: Annotated[
        str | None, _option("Names and addresses at which sites reach the server, with commas between.")
    ] = None,
    days: Annotated[int, _option("How long the server's certificate is valid.", converter=whole)] = 365,
) -> None:
    """Make an authority and the server's certificate; with `--sites` also keys for these sites, to try things out.

    In a real federation each site makes its keys itself (`coterie deploy key`), and the leader signs them (`sign`).
    """
    _require_flower()
    from coterie.engines.flower.certs import LOCAL, make_certificates

    names = None if sites is None else [name.strip() for name in sites.split(",")]
    # The server's own machine reaches it too, to register nodes and to start runs.
    known = None if hosts is None else [*(host.strip() for host in hosts.split(",")), *LOCAL]
    made = make_certificates(folder, names, known, days)
    tell("for the server:", made.server.folder)
    for name in made.added:
        tell(f"for {name}:", made.sites[name].folder)
    _told_who_is_outdated(made.outdated)


def key(
    name: Annotated[str, Parameter(help="What the site is called.")],
    *,
    to: Annotated[Path | None, _option("Folder of the keys; by default one of the site's name.")] = None,
    previous: Annotated[
        Path | None, _option("The private identity that the new keys replace, `identity.pem`, to prove who asks.")
    ] = None,
) -> None:
    """Make a site's keys, at the site, which they never leave; the leader signs the request that is written there."""
    _require_flower()
    from coterie.engines.flower.certs import make_keys

    folder = to or Path(name)
    made = make_keys(folder, name, previous)
    tell("send to the leader:", folder / "request.toml")
    tell("and compare with them, by telephone say:", made.fingerprint)


def sign(
    folder: Annotated[Path, Parameter(help="The leader's folder, as `certs` has made it.")],
    request: Annotated[Path, Parameter(help="The request of a site, `request.toml`.")],
    *,
    replace: Annotated[bool, flag("Let the keys replace others of that name, although these have not signed.")] = False,
) -> None:
    """Admit a site with the keys that it has made itself, or let its new keys replace its old ones."""
    _require_flower()
    from coterie.engines.flower.certs import Request, sign_request

    asked = Request.read(request)
    made = sign_request(folder, asked, replace)
    tell("compare with the site before you hand anything out:", asked.fingerprint)
    tell(f"for {asked.name}, beside its own keys:", made.sites[asked.name].folder)
    _told_who_is_outdated(made.outdated)
    tell("for the server:", made.server.node(asked.name))


def revoke(
    folder: Annotated[Path, Parameter(help="The leader's folder, as `certs` has made it.")],
    name: Annotated[str, Parameter(help="The site that no longer belongs.")],
) -> None:
    """Take a site off the list: the server no longer lets it in, and other sites no longer take its letters."""
    _require_flower()
    from coterie.engines.flower.certs import revoke as revoked

    made = revoked(folder, name)
    tell("remove from the server:", made.server.node(name))
    _told_who_is_outdated(made.outdated)


def _told_who_is_outdated(names: Sequence[str]) -> None:
    """Tell which sites need a new list of peers."""
    if names:
        tell("give these sites their new peers.toml:", ", ".join(names))


def server(
    folder: Annotated[Path, Parameter(help="The server's folder of the keys, `certs/server`.")],
    *,
    host: Annotated[str, _option("Address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, _option("Port to listen on.", converter=whole)] = 8000,
    state: State = Path("superlink"),
    as_root: Annotated[bool, flag("Serve others than this machine although this is root.")] = False,
) -> None:
    """Run Flower's SuperLink until it is stopped, with encryption and the sites' node keys registered.

    Sites reach nothing but what sites need. Who may start runs is who can read the folder of the state, on this
    machine.
    """
    _require_flower()
    from coterie.deploy.processes import Processes, start_superlink
    from coterie.engines.flower.certs import ServerFiles

    with Processes() as processes:
        process = start_superlink(processes, ServerFiles(folder), state, host, port, as_root)
        tell("listening on", f"{host}:{port}, log in {process.log}; stop with Ctrl-C")
        admitted = _keys_in(folder / "nodes")
        while not process.wait(_LOOK):
            if (now := _keys_in(folder / "nodes")) != admitted:
                _admit(state, folder / "nodes")
                admitted = now
        processes.check()


def _keys_in(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of public node keys in a folder, with what changes when they do."""
    with suppress(FileNotFoundError):  # one is removed right now
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.glob("*.pub")}
    return {}


def _admit(state: Path, nodes: Path) -> None:
    """Let a running SuperLink admit the nodes of these keys and no others; what is wrong with them does not end it."""
    from coterie.deploy.control import Control

    try:
        with closing(Control(state)) as control:
            new, gone = control.admit(nodes)
    except CoterieError as error:
        tell("the keys of the nodes are left as they are:", error)
        return
    tell("admitted:", ", ".join(new) or "nobody new")
    tell("no longer admitted:", ", ".join(gone) or "nobody")


def site(
    settings: Annotated[Path, Parameter(help="The site's settings, `site.toml`.")],
    *,
    superlink: Annotated[
        str | None, _option("Address of the SuperLink, instead of the one in the settings.", show_default=False)
    ] = None,
) -> None:
    """Be a site until stopped: answer what the site's settings allow, with the site's own data and installation."""
    _require_flower()
    from coterie.deploy.site import SiteSettings
    from coterie.engines.flower.node import serve

    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # Hooks lie beside the settings.
    sys.path.insert(0, str(settings.parent.absolute()))
    made = SiteSettings.read(settings)
    if made.ca is None or made.key is None:
        raise SettingsError(f"{settings}: ca and key are missing; `coterie deploy certs` makes both")
    if made.method is None:
        told = "say with [method] which one this site takes part in, as `coterie deploy init` writes it"
        raise SettingsError(f"{settings}: any method with any settings would do; {told}")
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(handlers=[handler])
    log = logging.getLogger("coterie")
    log.setLevel(logging.INFO)
    address = superlink or made.superlink
    connected = partial(log.info, "site %s is connected to %s as node %d", made.name, address)
    serve(made.open(), address, made.ca, made.key, connected)


def run(
    app: Annotated[Path, Parameter(help="Folder of the app.")] = Path(),
    *,
    state: State = Path("superlink"),
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Run an app over the sites that are connected, on the machine of the SuperLink."""
    _require_flower()
    from coterie.deploy.control import Control
    from coterie.deploy.server import Deployment

    deployment = Deployment.read(app / "federation" / "settings.toml")
    # Whoever cannot be reached, or has no keys, must show before a folder is made.
    with closing(Control(state)) as control:
        new = out is None or not out.exists()
        folder = _folder(out, f"{deployment.method.name}-{deployment.task.name}-sites")
        try:
            (folder / "deployment").mkdir(parents=True, exist_ok=True)
            # The app as it is now: a run that goes on later must not find another one.
            ignored = shutil.ignore_patterns("runs", "certs", ".*", "site")
            shutil.copytree(app, folder / "deployment" / "app", ignore=ignored)
            connection = {"state": str(state.absolute())}
            write_whole(folder / "deployment" / "connection.toml", tomli_w.dumps(connection))
            number = _start(control, folder)
        except CoterieError:  # nothing has been started
            shutil.rmtree(folder if new else folder / "deployment")
            raise
        _follow(control, number, folder, as_json)


def resume(
    out: Annotated[Path, Parameter(help="Folder of the run.")],
    *,
    state: Annotated[Path | None, _option("Folder of the SuperLink's state, if it is another now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, from its last finished round to the same result."""
    _require_flower()
    from coterie.deploy.control import Control
    from coterie.deploy.local import LocalFederation
    from coterie.deploy.server import Deployment
    from coterie.runs.settings import read_table

    folder = out / "deployment"
    if not (folder / "app").is_dir():
        raise SettingsError(f"{out}: not a run over real sites (it has no deployment/app)")
    if (folder / "connection.toml").is_file():
        known = read_table(folder / "connection.toml")
        if state is None and "state" not in known:
            raise SettingsError(f"{out}: does not say where its SuperLink keeps its state; say --state FOLDER")
        with closing(Control(state or Path(known["state"]))) as control:
            _follow(control, _start(control, out), out, as_json)
        return
    deployment = Deployment.read(folder / "app" / "federation" / "settings.toml")
    with _resumable(out), following(quiet=as_json) as follower, LocalFederation(folder) as federation:
        stored = federation.run(out, _watch(follower, deployment))
    _present(stored, as_json)


def audit(
    settings: Annotated[Path, Parameter(help="The site's settings, `site.toml`, or an audit log itself.")],
    *,
    head: Annotated[str | None, _option("A digest that was noted earlier: the log must still begin with it.")] = None,
    last: Annotated[int, _option("How many of the last entries to show.", converter=whole)] = 10,
) -> None:
    """Check a site's audit log: who asked for what and what left, entry by entry, unaltered since it was written.

    Note the digest that it prints somewhere else: with `--head` you can tell later that nothing before it is missing.
    """
    _require_flower()
    from coterie.deploy.site import SiteSettings
    from coterie.engines.flower.audit import Trail

    path = settings if settings.suffix == ".jsonl" else SiteSettings.read(settings).audit
    found = Trail(path).check()
    if head is not None and head not in found.digests:
        raise CoterieError(f"{path}: has no entry with the digest {head}: entries are missing, or were replaced")
    lines = path.read_text(encoding="utf-8").splitlines()
    for number in range(max(len(lines) - last, 0), len(lines)):
        tell(f"line {number + 1}:", lines[number])
    tell("entries:", str(found.entries))
    tell("digest of the last:", found.head)


def _folder(out: Path | None, name: str) -> Path:
    """The folder that is asked for, which must be empty, or a new one below `runs`, which is made at once."""
    place = place_of(out, RUNS, name)
    return place if isinstance(place, Path) else place.make()


def _start(control: "Control", out: Path) -> int:
    """Start the app of a run, whose folder this is; returns the run's number."""
    return control.start(out / "deployment" / "app", {"out": str(out.absolute())})


def _follow(control: "Control", number: int, out: Path, as_json: bool) -> None:
    """Show how a run of this number goes on, and its table at the end."""
    from coterie.deploy.local import follow
    from coterie.deploy.server import Deployment

    deployment = Deployment.read(out / "deployment" / "app" / "federation" / "settings.toml")
    with _resumable(out), following(quiet=as_json) as follower:
        try:
            stored = follow(control, number, out, _watch(follower, deployment))
        except KeyboardInterrupt:
            with suppress(CoterieError):
                control.stop(number)
            raise
    _present(stored, as_json)


def _watch(follower: Follower, deployment: "Deployment") -> "Callable[[Record], None]":
    """What shows the records of a run as they arrive, on a line of progress."""
    (line,) = follower.watch(deployment.method, deployment.seed)
    return lambda record: line.show(record["round"], record)


def _resumable(out: Path) -> AbstractContextManager[None]:
    """Tell how to go on when the user stops what runs inside."""
    return stoppable(out, "coterie deploy resume FOLDER")


def _present(stored: "StoredRun", as_json: bool) -> None:
    from coterie.report.tables import run_table

    assert stored.summary is not None
    if as_json:
        print_json(stored.summary)
        return
    print_table(run_table(stored.summary))
    log = stored.path / "log.txt"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    if trouble := sum(" WARNING " in line for line in lines):
        tell("what went wrong on the way:", f"{trouble} lines in {log}")
    tell("written to", stored.path)
