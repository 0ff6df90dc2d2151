"""What people see while a command runs and at its end."""

import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from coterie.server.fitting import Checkpoint, Record, Result
    from coterie.server.method import Method

console = Console()
errors = Console(stderr=True)

_WIDE = 1000
"""Wider than any table."""


def tell(lead: str, text: object, to: Console = console, style: str = "dim") -> None:
    """Print a line. The text is taken as it is, however long: it may hold brackets, and a path stays in one piece."""
    to.print(Text.assemble((lead, style), " ", str(text)), soft_wrap=True)


def note(notes: Iterable[str]) -> None:
    """Tell what a user should know about settings."""
    for one in notes:
        tell("note:", one, errors)


def print_json(value: Any) -> None:
    """Print a value as JSON, and nothing else."""
    sys.stdout.write(json.dumps(value) + "\n")


def plain_table(header: Sequence[str], numeric: Collection[str] = ()) -> Table:
    """A table without rules, for lists; numeric columns are aligned to the right."""
    table = Table(header_style="dim", show_header=any(header), box=None, pad_edge=False)
    for number, name in enumerate(header):
        side: Literal["left", "right"] = "right" if name in numeric else "left"
        table.add_column(Text(name), style="bold" if number == 0 else "", justify=side, no_wrap=number == 0)
    return table


def print_table(table: Table) -> None:
    """Print a table, in a pipe or a file as wide as it needs to be, so that there a row is a line."""
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


class Follower:
    """A line of progress for each run: rounds, accuracy so far, groups, time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def watch(self, method: "Method", seed: int) -> "list[Line]":
        """The observers of one run."""
        task = self._progress.add_task(f"{method.name} [dim]seed {seed}[/dim]", total=method.rounds, figures="")
        return [Line(self._progress, task)]

    def tally(self, runs: int, rounds: int) -> "Tally":
        """One line for many runs that have so many rounds in all."""
        task = self._progress.add_task("", total=rounds, figures="")
        return Tally(self._progress, task, runs)


class Tally:
    """The progress of many runs: how many have ended, and how many of all rounds are done."""

    def __init__(self, progress: Progress, task: TaskID, runs: int) -> None:
        self._progress, self._task, self._runs, self._ended = progress, task, runs, 0
        self._show()

    def _show(self) -> None:
        self._progress.update(self._task, description=f"{self._ended} of {self._runs} runs, rounds")

    def watch(self, resumed_at: int = 0) -> "list[Counted]":
        """The observers of one more run, which goes on after so many rounds."""
        self.count(resumed_at)
        return [Counted(self)]

    def count(self, rounds: int) -> None:
        """So many rounds more are done."""
        self._progress.update(self._task, advance=rounds)

    def ended(self) -> None:
        """One run more has ended."""
        self._ended += 1
        self._show()


class Counted:
    """The rounds of one run, counted with those of others."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Count a round."""
        self._tally.count(1)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Count a run."""
        self._tally.ended()


class Line:
    """The progress of one run."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Move the bar."""
        self.show(checkpoint.federation["round"], record)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Show the end."""
        self.show(checkpoint.federation["round"], result.rounds[-1])

    def show(self, number: int, record: "Record | None") -> None:
        """Show that so many rounds are done, and the figures of the last that was evaluated."""
        self._progress.update(self._task, completed=number)
        if record is not None:
            self._progress.update(self._task, figures=_figures(record))


def _figures(record: "Record") -> str:
    accuracy = record["accuracy_mean"]
    shown = "" if accuracy is None else f"accuracy {100 * accuracy:.1f} %"
    return shown + (f", {record['groups']} groups" if (record["groups"] or 0) > 1 else "")


@contextmanager
def following(quiet: bool = False) -> Iterator[Follower]:
    """Show progress on the terminal, if there is one; log messages appear above it.

    Without a terminal, or where quiet is asked for, only warnings are shown.
    """
    shown = errors.is_terminal and not quiet
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=errors,
        disable=not shown,
    )
    handler = RichHandler(console=errors, show_time=False, show_path=False, markup=False)
    log = logging.getLogger("coterie")
    level = log.level
    log.addHandler(handler)
    if shown and level == logging.NOTSET:
        log.setLevel(logging.INFO)
    try:
        with progress:
            yield Follower(progress)
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
