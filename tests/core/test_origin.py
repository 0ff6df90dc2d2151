"""Where results come from is known as far as it can be."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

import coterie
from coterie.core.origin import _commit, origin


@pytest.fixture(autouse=True)
def anew():
    _commit.cache_clear()
    yield
    _commit.cache_clear()


def test_the_commit_is_that_of_our_own_source():
    home = Path(coterie.__file__).parent
    asked = subprocess.run(["git", "-C", home, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    said = origin(torch.device("cpu")).get("commit")
    if asked.returncode:
        assert said is None or re.fullmatch("[0-9a-f]{40}", said)
    else:
        assert said.removesuffix("-dirty") == asked.stdout.strip()


def test_without_git_the_commit_is_left_out(monkeypatch):
    monkeypatch.setenv("PATH", "")
    said = origin(torch.device("cpu"), "1234")
    assert "commit" not in said
    assert said["data"] == "1234"


def test_inside_of_somebody_elses_repository_the_commit_is_not_taken_for_ours(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    home = tmp_path / "venv" / "coterie" / "core"
    home.mkdir(parents=True)
    monkeypatch.setattr("coterie.core.origin.__file__", str(home / "origin.py"))
    assert "commit" not in origin(torch.device("cpu"))
