"""`coterie advise`: which method serves a federation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group

from coterie.cli.console import console, following, print_json, tell
from coterie.cli.options import ask, needed, world_options
from coterie.cli.parameters import command, flag, whole
from coterie.cli.run import RUNS, place_of, short, stoppable
from coterie.core.fields import above, at_least, check_range


def add_advise(app: App, arguments: Sequence[str] | None, group: Group, sort_key: int) -> None:
    """Add `coterie advise`, with the options that the arguments behind it need."""
    asked = None if arguments is None else ask(arguments, _advise)
    shown = [] if asked is None else needed(world_options(asked), asked, _advise)
    app.command(command(_advise, shown), name="advise", group=group, sort_key=sort_key)


def _advise(
    given: dict[str, Any],
    *,
    budget: Annotated[float, flag("Minutes that it may take; what it has no time for is left out. [2]")] = 2.0,
    rounds: Annotated[int, flag("Rounds of a run at full length. [40]", converter=whole)] = 40,
    private: Annotated[
        Literal["none", "labels"],
        flag("What clients keep to themselves besides their data: `labels` is how often they have which. [none]"),
    ] = "none",
    out: Annotated[Path | None, flag("Folder of the advice; by default a new one below `runs/`.", "Output")] = None,
    as_json: Annotated[bool, flag("Print the advice as JSON, and nothing else.", "Output", "--json")] = False,
) -> None:
    """Find out which method serves the clients of a federation: `coterie advise --data visits.csv --client hospital`.

    It looks at how clients differ, tries methods on what clients do not test on, and looks at test data once. It ends
    with a page, the advice as JSON, and a settings file that does what it says.
    """
    check_range("budget", budget, above(0, "minutes, above 0"))
    check_range("rounds", rounds, at_least(4))
    from coterie.runs.options import table_of

    table, _ = table_of(given, "local")  # refuses what is wrong before torch is imported

    from coterie.advice.advised import NAMES
    from coterie.advice.advising import advise
    from coterie.runs.settings import Settings

    world = Settings.complete(table)[0].world
    place = place_of(out, RUNS, f"advice-{short(world)}-{world.split.name}")
    with stoppable(place, "coterie advise, which begins anew"), following(quiet=as_json) as follower:
        fed = world.federation()
        try:
            advice = advise(fed, budget=budget, rounds=rounds, private=private, told=follower.say)
        finally:
            fed.close()
    page = advice.save(place if isinstance(place, Path) else place.make())
    if as_json:
        print_json(json.loads((page.parent / NAMES[1]).read_text(encoding="utf-8")))
        return
    for sentence in advice.sentences:
        console.print(f"- {sentence}", highlight=False, markup=False)
    if advice.settings is not None:
        tell("to do it:", f"coterie run --settings {page.parent / NAMES[0]}")
    tell("look at", page)
