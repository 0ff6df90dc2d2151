"""What people see while a command runs."""

import io
import logging
import re

import pytest
from rich.console import Console
from rich.table import Table

import coterie
from coterie.cli import console
from coterie.cli.console import following, plain_table, print_table, tell
from coterie.runs.comparison import compare
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


def shown(terminal):
    """All that was on a terminal, line by line, without the signs that move the cursor."""
    return re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()


def compared(follower, **more):
    settings = [
        Settings.of({"clients": 3, "limit": 200, "net": "logistic", "rounds": 2}, name)[0]
        for name in ("local", "fedavg")
    ]
    line = follower.one_line(4, 8)
    return compare(settings, seeds=2, watch=line.watch, **more)


def test_many_runs_have_one_line_that_says_which_is_at_work(terminal):
    with following() as follower:
        compared(follower)
    said = shown(terminal)
    last = next(line for line in reversed(said) if line.strip())
    assert last.startswith("run 4 of 4: fedavg, seed 1, round 2 of 2")
    assert sum("multiply-and-adds" in line for line in said) <= 1  # how they are computed is told once
    assert max(map(len, said)) <= 80


def test_runs_at_the_same_time_are_counted(terminal):
    with following() as follower:
        line = follower.one_line(3, 30)
        first, second = (line.watch(coterie.FedAvg(rounds=10), seed)[0] for seed in (0, 1))
        (task,) = follower._progress.tasks
        first._show(4, ended=False)
        assert task.description == "0 of 3 runs done, 2 at work"
        first._show(10, ended=True)
        second._show(1, ended=False)
        assert task.description == "run 2 of 3: fedavg, seed 1, round 1 of 10"
        assert task.completed == 11


def test_runs_that_were_finished_before_fill_the_line(terminal, tmp_path):
    with following(quiet=True) as follower:
        compared(follower, out=tmp_path)
    with following() as follower:
        compared(follower, out=tmp_path, resume=True)
        (task,) = follower._progress.tasks
        assert (task.completed, task.total) == (8, 8)


@pytest.mark.parametrize("width", [60, 80])
def test_no_number_of_a_line_of_progress_is_cut(terminal, monkeypatch, width):
    narrow = Console(file=terminal, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(console, "errors", narrow)
    with following() as follower:
        line = follower.one_line(12, 12_000)
        (run,) = line.watch(coterie.ClusteredSampling(rounds=1000), 11)
        run._show(777, ended=False)
        short_run(follower, rounds=100)
    assert "…" not in terminal.getvalue()
    assert max(map(len, shown(terminal))) <= width
    assert "777" in terminal.getvalue()


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


@pytest.fixture(params=[60, 80])
def narrow(request, monkeypatch):
    """A terminal of so many columns; gives its width and what is on it."""
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "console", Console(file=screen, force_terminal=True, width=request.param, color_system=None)
    )
    return request.param, screen


def held(screen):
    return screen.getvalue().splitlines()


def test_no_number_of_a_list_is_cut(narrow):
    width, screen = narrow
    labels = [str(label) for label in range(62)]
    table = plain_table(
        ["client", "train", "validation", "test", *labels], numeric=["train", "validation", "test", *labels]
    )
    table.add_row("writer 17", "12345", "678", "90", *("321" for _ in labels))
    print_table(table)
    header, row, note, *_ = held(screen)
    count = len(header.split()) - 4
    assert row.split() == ["writer", "17", "12345", "678", "90", *["321"] * count]
    assert header.split() == ["client", "train", "validation", "test", *labels[:count]]
    assert 3 < count < 20
    assert note == f"no room for: {count} to 61"
    assert max(map(len, held(screen))) <= width


def test_running_text_gives_way_to_numbers(narrow):
    width, screen = narrow
    table = plain_table(["net", "parameters", "what it is"], numeric=["parameters"])
    table.add_row("vgg19", "20,565,834", "word " * 40)
    print_table(table)
    assert "20,565,834" in screen.getvalue()
    assert screen.getvalue().count("word") == 40
    assert "no room" not in screen.getvalue()
    assert max(map(len, held(screen))) <= width


def test_a_long_first_column_is_folded_before_numbers_are_left_out(narrow):
    width, screen = narrow
    table = plain_table(["client", "samples"], numeric=["samples"])
    table.add_row("a" * 90, "1234567")
    print_table(table)
    assert "1234567" in screen.getvalue()
    assert screen.getvalue().count("a") == 90 + "samples".count("a")
    assert max(map(len, held(screen))) <= width
