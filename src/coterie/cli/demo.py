"""`coterie demo`: the first thing a newcomer sees."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coterie.cli.compare import present
from coterie.cli.console import console, following
from coterie.cli.parameters import flag
from coterie.cli.run import place_of, stoppable

if TYPE_CHECKING:
    from coterie.runs.settings import Settings

_METHODS = ("local", "fedavg", "fedprox", "cafa", "autocfl", "cfic", "slfed", "flis-dc", "flis-hc")
"""The methods that the demo shows."""


def demo(
    *,
    out: Annotated[Path | None, flag("Folder of the demo; by default a new one called `demo`.", "Output")] = None,
) -> None:
    """See federated learning on non-IID data happen: 20 clients in 4 hidden groups, methods side by side."""
    from coterie.runs.comparison import compare

    place = place_of(out, Path(), "demo")
    console.print(
        "20 clients hold scanned digits. What nobody tells the methods: there are four groups of clients, "
        "with the digits 0-2, 3-6, 4-9 and 0-9.\n",
        highlight=False,
    )
    with stoppable(place, "coterie demo, which begins anew"), following() as follower:
        settings = demo_settings()
        line = follower.one_line(len(settings), sum(one.method.rounds for one in settings))
        entries = compare(settings, out=place, watch=line.watch)
    present(place, "Digits, 20 clients in 4 hidden groups", entries)


def demo_settings() -> "list[Settings]":
    """20 clients in 4 hidden groups on the embedded digits, for a handful of methods."""
    from coterie.runs.settings import Settings

    given = {"data": "digits", "split": "autocfl-label", "clients": 20, "net": "mlp", "rounds": 30, "batch": 16}
    given["test"] = "labels"  # a client's own test samples would be a dozen
    given["server_samples"] = 100  # on which FLIS compares models; all methods are in one world
    return [Settings.of(given, name)[0] for name in _METHODS]
