"""The commands that the README shows can be pasted: they parse as they stand, and the first ones run."""

import re
import shlex
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    [shlex.split(line, comments=True) for line in block.splitlines() if line.strip().startswith("coterie ")]
    for block in re.split(r"\n(?=\S)", README)
]
COMMANDS = [words for block in BLOCKS for words in block]


def test_there_are_commands_and_none_is_an_abbreviation():
    assert len(COMMANDS) > 10
    for words in COMMANDS:
        # What a reader has to fill in is in capitals; a pipe or dots would be pasted as they are.
        assert not [word for word in words if word in ("|", "...") or word.endswith("...")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_has_the_options_that_it_is_shown_with(call, words):
    shown = call(shlex.join([*words[1:], "--help"]))
    assert shown.code == 0
    assert shown.out.startswith("Usage: coterie")
    for word in words:
        if word.startswith("-"):
            assert re.search(rf"(^|[\s│]){word}\b", shown.out), word


@pytest.mark.slow
def test_the_first_commands_run_one_after_another(call):
    """Only in fewer rounds, with fewer clients and seeds."""
    (first, *_) = [block for block in BLOCKS if len(block) > 3]
    less = {"run": ["--rounds", "1"], "compare": ["--rounds", "1", "--clients", "4"]}
    for words in map(list, first):
        if "--track" in words:  # needs a service
            continue
        more = [] if "--resume" in words else less.get(words[1], [])
        if "--seeds" in words:
            words[words.index("--seeds") + 1] = "2"
        outcome = call(shlex.join([*words[1:], *more]))
        assert outcome.code == 0, outcome.err
    assert list(Path("runs").iterdir())
