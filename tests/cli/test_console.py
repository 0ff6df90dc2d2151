"""What people see while a command runs."""

import io
import logging

import pytest
from rich.console import Console
from rich.table import Table

import coterie
from coterie.cli import console
from coterie.cli.console import following, print_table, tell
from coterie.runs.settings import Settings


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns in place of both outputs."""
    screen = io.StringIO()
    wide = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(console, "console", wide)
    monkeypatch.setattr(console, "errors", wide)
    return screen


def short_run(follower, rounds=3, **options):
    method = coterie.FedAvg(rounds=rounds)
    fed = coterie.simulate("digits", net="logistic", clients=3, limit=200, **options)
    return method.fit(fed, observers=follower.watch(method, seed=7))


def wide_table():
    table = Table("a", "b")
    table.add_row("x" * 70, "y" * 70)
    return table


def test_a_terminal_shows_rounds_accuracy_and_time_left(terminal):
    with following() as follower:
        result = short_run(follower)
    *_, last, _ = terminal.getvalue().replace("\r", "\n").splitlines()
    assert "fedavg seed 7" in last
    assert "3/3" in last
    assert f"accuracy {100 * result.summary['accuracy_mean']:.1f} %" in last
    assert "0:00:00" in last


def test_a_line_of_progress_fits_a_narrow_terminal(terminal):
    with following() as follower:
        short_run(follower)
    assert max(len(line) for line in terminal.getvalue().replace("\r", "\n").splitlines()) <= 80 + len("\x1b[2K")


def test_clients_without_test_data_have_no_accuracy_to_show(terminal):
    with following() as follower:
        short_run(follower, test_share=0.0)
    assert "accuracy" not in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_quiet_shows_nothing(terminal):
    with following(quiet=True) as follower:
        short_run(follower)
    assert terminal.getvalue() == ""


def test_nothing_is_shown_without_a_terminal(capsys):
    with following() as follower:
        short_run(follower)
    assert capsys.readouterr() == ("", "")


def test_warnings_are_shown_also_without_a_terminal(capsys):
    with following(quiet=True):
        logging.getLogger("coterie").warning("client [/3] answered with nonsense")
    assert "client [/3] answered with nonsense" in capsys.readouterr().err


def test_a_terminal_shows_what_a_split_has_to_say(terminal):
    with following():
        Settings.of({"split": "slfed-dist0", "clients": 3}, "local")[0].world.population  # noqa: B018
    assert "the published numbers are scaled by" in terminal.getvalue()


def test_only_warnings_are_shown_without_a_terminal(capsys):
    with following():
        Settings.of({"split": "slfed-dist0", "clients": 3}, "local")[0].world.population  # noqa: B018
    assert capsys.readouterr() == ("", "")


def test_logging_is_as_before_afterwards(terminal):
    log = logging.getLogger("coterie")
    before = list(log.handlers), log.level
    with pytest.raises(RuntimeError), following():
        raise RuntimeError
    assert (log.handlers, log.level) == before


def test_text_is_told_as_it_is(capsys):
    tell("written to", "/home/[bold]/" + 100 * "x")
    assert capsys.readouterr().out == "written to /home/[bold]/" + 100 * "x" + "\n"


def test_a_table_is_as_wide_as_it_needs_where_nobody_looks(capsys):
    print_table(wide_table())
    assert "x" * 70 + " │ " + "y" * 70 in capsys.readouterr().out


def test_a_table_fits_a_terminal(terminal):
    print_table(wide_table())
    assert max(map(len, terminal.getvalue().splitlines())) == 80
