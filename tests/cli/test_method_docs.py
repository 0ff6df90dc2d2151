"""What is said about methods: from their own files, the same in the terminal and on the pages."""

import re
from pathlib import Path

import pytest

import coterie
from coterie.cli.method_docs import about, page, write_pages
from coterie.core.registry import options

PAGES = Path(__file__).parents[2] / "docs" / "methods"

NAMES = [name for name in coterie.methods if coterie.methods[name].__module__.startswith("coterie.methods.")]
"""The methods that come with Coterie: other tests register their own."""


def test_the_pages_are_up_to_date(tmp_path):
    written = write_pages(tmp_path, NAMES)
    there = {path.name: path.read_text(encoding="utf-8") for path in PAGES.iterdir()}
    assert there == {path.name: path.read_text(encoding="utf-8") for path in written}, "run `make docs`"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_travels_and_what_a_client_gives_away(name):
    known, shown = about(name), page(name)
    assert known.sends
    assert known.gives_away
    assert f"**What travels:** {known.sends}." in shown
    assert f"**What a client gives away:** {known.gives_away}." in shown


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_meaning_and_stands_on_the_page(name):
    cls = coterie.methods[name]
    shown = page(name)
    for option in options(cls):
        assert option.help, option.name
        if option not in options(coterie.Method):
            assert f"| `--{option.name.replace('_', '-')}` |" in shown
    assert about(name).summary in shown
    assert all(said for _, said in about(name).steps)


def test_only_programs_that_a_method_runs_are_listed():
    def programs(name):
        return [call.partition("(")[0] for call, _ in about(name).programs]

    assert programs("fedprox") == ["train"]
    assert programs("local") == ["train_own"]
    assert programs("flis-dc") == ["choose_and_train"]
    assert sorted(programs("flis-hc")) == ["choose", "train"]
    (call, said), *others = about("scaffold").programs
    assert call.startswith("controlled_training(start, control, local")
    assert said.startswith("SCAFFOLD's client")
    assert not others


def test_bars_do_not_break_a_table():
    line = next(line for line in page("fedprox").splitlines() if line.startswith("| `--mu`"))
    assert r"\|w - w_t\|^2" in line


def test_what_else_an_option_can_be_is_shown():
    assert "| `--predictions` | hard (or soft) |" in page("flis-dc")
    assert "| `--compat` | false |" in page("flis-dc")


def test_the_terminal_says_what_the_page_says(call):
    said = " ".join(call("methods flis-dc").out.split())
    known = about("flis-dc")
    plain = re.sub(r"[`|]|---", "", known.text)
    for paragraph in plain.split("\n\n"):
        if "symbol" not in paragraph:
            assert " ".join(paragraph.split()) in said
    for _, meaning in (*known.steps, *known.programs):
        assert meaning in said
    for option in options(coterie.FLISDC):
        assert option.help in said


def test_pages_can_be_written_anywhere(call):
    outcome = call("methods --write pages")
    assert "written to pages" in outcome.out
    assert Path("pages/flis-dc.md").read_text(encoding="utf-8") == page("flis-dc")
    assert "[flis-dc](flis-dc.md)" in Path("pages/README.md").read_text(encoding="utf-8")


def test_pages_are_of_all_methods(refused):
    refused("methods fedavg --write pages", "write=pages: writes the pages of all methods")
