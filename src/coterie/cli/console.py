"""What people see while a command runs and at its end."""

import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from coterie.server.fitting import Checkpoint, Record, Result
    from coterie.server.method import Method

console = Console()
errors = Console(stderr=True)

_WIDE = 1000
"""Wider than any table."""

_NARROW = 12
"""How narrow running text may get."""

_NAMED = 6
"""Of more columns than this for which there is no room only the first and the last are named."""

_BROAD = 110
"""Columns of a terminal that has room for a long bar."""


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
        whole = number == 0 or name in numeric
        table.add_column(Text(name), style="bold" if number == 0 else "", justify=side, no_wrap=whole, overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print a table, in a pipe or a file as wide as it needs to be, so that there a row is a line.

    A terminal that is too narrow for all numbers gets fewer columns, and is told which: no number is cut.
    """
    if not console.is_terminal:
        Console(width=_WIDE).print(table)
        return
    left_out: list[str] = []
    table.columns[0].no_wrap = _wide(table.columns[0]) <= console.width // 2
    while _needed(table) > console.width:
        numeric = [column for column in table.columns[1:] if column.no_wrap]
        if not numeric:
            break
        table.columns.remove(numeric[-1])
        left_out.insert(0, str(numeric[-1].header))
    console.print(table)
    if left_out:
        named = left_out if len(left_out) <= _NAMED else [f"{left_out[0]} to {left_out[-1]}"]
        tell("no room for:", ", ".join(named), console)


def _wide(column: Column) -> int:
    """How wide a column is if nothing in it is broken."""
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in (*str(cell).splitlines(), ""))


def _needed(table: Table) -> int:
    """How wide a table has to be: columns with running text can be broken, numbers cannot."""
    least = (_wide(column) if column.no_wrap else min(_wide(column), _NARROW) for column in table.columns)
    return sum(least) + 2 * len(table.columns)


class _Count(MofNCompleteColumn):
    """How many rounds of how many are done, unless the description says that already."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields.get("counted", True) else Text()


class _Once(logging.Filter):
    """Lets a message that is only for information pass once: many runs tell the same of their world."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        again = record.levelno < logging.WARNING and text in self._said
        self._said.add(text)
        return not again


class Follower:
    """Makes the lines of progress of a command."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said: TaskID | None = None

    def watch(self, method: "Method", seed: int) -> "list[Line]":
        """The observers of one run, which has a line of its own."""
        task = self._progress.add_task(f"{method.name} [dim]seed {seed}[/dim]", total=method.rounds, figures="")
        return [Line(self._progress, task)]

    def say(self, words: str) -> None:
        """Say what is done now, in place of what was done before."""
        if self._said is None:
            self._said = self._progress.add_task(words, total=None, figures="", counted=False)
        self._progress.update(self._said, description=words)

    def one_line(self, runs: int, rounds: int) -> "RunOfMany":
        """One line for this number of runs that says which of them is at work."""
        task = self._progress.add_task("", total=rounds, figures="", counted=False)
        return RunOfMany(self._progress, task, runs)

    def together(self, runs: int, rounds: int) -> "SharedLine":
        """One line for this number of runs, which have this number of rounds in all."""
        return SharedLine(self._progress, self._progress.add_task("", total=rounds, figures=""), runs)


class SharedLine:
    """The progress of many runs: how many have ended, and how many of all rounds are done."""

    def __init__(self, progress: Progress, task: TaskID, runs: int) -> None:
        self._progress, self._task, self._runs, self._ended = progress, task, runs, 0
        self._advance()

    def _advance(self, rounds: int = 0) -> None:
        done = f"{self._ended} of {self._runs} runs, rounds"
        self._progress.update(self._task, advance=rounds, description=done)

    def watch(self, resumed_at: int = 0) -> "list[SharedLine]":
        """The observers of one of the runs, of which this many rounds are done already."""
        self._advance(resumed_at)
        return [self]

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Count a round."""
        self._advance(1)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Count a run."""
        self._ended += 1
        self._advance()


class RunOfMany:
    """The progress of many runs in one line: which of them is at work, and in which round; if several are, how many."""

    def __init__(self, progress: Progress, task: TaskID, runs: int) -> None:
        self._progress, self._task, self._runs = progress, task, runs
        self._begun, self._ended = 0, 0

    def watch(self, method: "Method", seed: int) -> "list[OneOfMany]":
        """The observers of the next run."""
        self._begun += 1
        name = f"run {self._begun} of {self._runs}: {method.name}, seed {seed}"
        return [OneOfMany(self, name, method.rounds)]

    def advance(self, name: str, rounds: int, ended: bool) -> None:
        """Say how far a run is that has done some more rounds."""
        self._ended += ended
        at_work = self._begun - self._ended
        several = f"{self._ended} of {self._runs} runs done, {at_work} at work"
        self._progress.update(self._task, advance=rounds, description=several if at_work > 1 else name)


class OneOfMany:
    """One of many runs, which share a line."""

    def __init__(self, line: RunOfMany, name: str, rounds: int) -> None:
        self._line, self._name, self._rounds, self._done = line, name, rounds, 0

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Show the round, and count those since the last one that was shown: a run may go on from a later one."""
        self._show(checkpoint.federation["round"], ended=False)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Count the run; one that was finished before has all of its rounds."""
        self._show(self._rounds, ended=True)

    def _show(self, number: int, ended: bool) -> None:
        done, self._done = self._done, number
        self._line.advance(f"{self._name}, round {number} of {self._rounds}", number - done, ended)


class Line:
    """The progress of one run: rounds, accuracy so far, groups, time left."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Move the bar."""
        self.show(checkpoint.federation["round"], record)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Show the end."""
        self.show(checkpoint.federation["round"], result.rounds[-1])

    def show(self, number: int, record: "Record | None") -> None:
        """Move the bar to the round of this number, and show the figures of a record if there is one."""
        self._progress.update(self._task, completed=number)
        if record is not None:
            self._progress.update(self._task, figures=_figures(record))


def _figures(record: "Record") -> str:
    from coterie.server.metrics import first_metric, shown

    name = first_metric(record)
    value = record[f"{name}_mean"]
    told = "" if value is None else f"{name.replace('_', ' ')} {shown(name, value)}"
    return told + (f", {record['groups']} groups" if (record["groups"] or 0) > 1 else "")


@contextmanager
def following(quiet: bool = False) -> Iterator[Follower]:
    """Show progress on the terminal, if there is one; log messages appear above it.

    Without a terminal, or where quiet is asked for, only warnings are shown.
    """
    shown = errors.is_terminal and not quiet
    whole = Column(no_wrap=True)  # what is not: a bar gets shorter, and a description is continued below
    progress = Progress(
        TextColumn("{task.description}", table_column=Column(overflow="fold")),
        BarColumn(40 if errors.width >= _BROAD else 10),
        _Count(table_column=whole),
        TextColumn("{task.fields[figures]}", table_column=whole),
        TimeRemainingColumn(table_column=whole),
        console=errors,
        disable=not shown,
    )
    handler = RichHandler(console=errors, show_time=False, show_path=False, markup=False)
    handler.addFilter(_Once())
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
