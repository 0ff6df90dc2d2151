"""What tests share. Those of the command line call it in process, in an empty folder."""

import json
import re
import shlex
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings

from coterie.cli.main import main

# No test may fail because a machine is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON document on the standard output."""
        return json.loads(self.out)


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Call the command line with a line of arguments; the current folder is an empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main(shlex.split(line))
        out, err = capsys.readouterr()
        return Outcome(exited.value.code or 0, out, err)

    return run


@pytest.fixture
def refused(call, tmp_path):
    """Call the command line with bad input: one message that matches, exit code 2, and nothing written or changed."""

    def run(line, message=""):
        before = files(tmp_path)
        outcome = call(line)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1
        assert re.search(message, outcome.err), outcome.err
        assert files(tmp_path) == before
        return outcome.err

    return run


def files(folder):
    """Every file and folder below a folder, with content and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


@pytest.fixture
def own_data(tmp_path):
    """Own data in a file `mine.npz`: 60 samples of 3 classes, whose names no markup language can stand."""
    rng = np.random.default_rng(0)
    labels = np.array(["[bold]a", "b [/x]", "$c$ <script>"])
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 3, labels=labels)
    return "mine.npz"
