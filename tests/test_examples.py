"""The examples run as they stand, and show what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_adapters_cost_little_and_give_much(capsys):
    runpy.run_path(str(EXAMPLES / "low_rank.py"), run_name="__main__")
    header, *lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: [float(word.replace(",", "")) for word in line.split()[1:]] for line in lines}
    assert header.split()[-1] == "accuracy"
    # Layers 64-256-256, adapters of rank 4 beside both, and a head for five classes; four bytes each way.
    frozen, head = 65 * 256 + 257 * 256, 257 * 5
    adapters = 4 * (64 + 256 + 256 + 256)
    assert rows["head"][:3] == [head, frozen, round(8 * head / 1000, 1)]
    assert rows["adapters"][:3] == [head + adapters, frozen, round(8 * (head + adapters) / 1000, 1)]
    assert rows["everything"][:2] == [head + frozen, 0]
    assert rows["head"][3] + 10 < rows["adapters"][3]
    assert rows["adapters"][3] + 5 > rows["everything"][3]


@pytest.mark.slow
def test_a_bounded_loss_is_pulled_less_by_wrong_labels(capsys):
    runpy.run_path(str(EXAMPLES / "own_loss.py"), run_name="__main__")
    header, *lines = capsys.readouterr().out.splitlines()
    accuracy = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert header.split() == ["loss", "accuracy"]
    assert list(accuracy) == ["cross-entropy", "bounded"]
    assert accuracy["bounded"] > accuracy["cross-entropy"] + 5


def test_the_example_of_a_loss_can_be_named_on_the_command_line(call, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    outcome = call("run fedavg --clients 3 --rounds 1 --net mlp --limit 300 --loss own_loss:bounded --json")
    assert outcome.code == 0, outcome.err
    assert 0 < outcome.json["loss_mean"] < 1 / 0.7
