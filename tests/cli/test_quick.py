"""What answers at once: importing torch takes more than a second, and these commands do without."""

import json
import subprocess
import sys

import pytest

ANSWERS = [
    "",
    "--help",
    "--version",
    "methods",
    "methods fedavg",
    "methods slfed",
    "splits",
    "splits dirichlet",
    "data",
    "data mnist",
    "run --help",
    "run fedavg --help",
    "run slfed --split label-skew --data imagenet32 --help",
    "run --rounds 3 fedavg --help",
    "compare --help",
    "compare fedavg fedprox --help",
    "show --help",
    "report --help",
    "split --help",
    "demo --help",
    "reproduce --help",
    "study --help",
    "study run --help",
    "deploy --help",
    "deploy local fedprox --help",
    "deploy init --help",
    "deploy site --help",
    "nets --help",
]
ERRORS = [
    "runn",
    "run",
    "run fedavgg",
    "run fedavg more",
    "run fedavg --alhpa 1",
    "run fedavg --mu 1",
    "run fedavg --rounds",
    "run fedavg --rounds many",
    "run fedavg --rate nan",
    "run fedavg --weighting unifrom",
    "run fedavg --rate 0",
    "run fedavg --participation 1.5",
    "run fedprox --mu -0.1",
    "run fedavg --milestones 0.5,2",
    "run fedavg --evaluate-every 0",
    "run fedavg --memory 0",
    "run fedavg --arrivals 3",
    "run fedavg --split dirichle",
    "run --resume",
    "compare",
    "compare fedavg locl",
    "compare fedavg local --mu 1",
    "compare fedavg --rate 0",
    "compare fedavg --seeds 0",
    "split dirichle",
    "split iid --rounds 3",
    "split iid --alpha 1",
    "methods fedavgg",
    "splits dirichle",
    "data minst",
    "show",
    "report",
    "reproduce cafa/table2 --alhpa 1",
    "reproduce cafa/table2 --rounds many",
    "reproduce cafa/table2 --seeds 0",
    "study run",
    "study ran",
    "deploy lokal",
    "deploy local fedavgg",
    "deploy local --sites 0",
    "deploy init app fedavg --rate 0",
]

CALLS = """
import contextlib, io, json, shlex, sys
from coterie.cli.main import main

found = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(shlex.split(line))
        except SystemExit as ended:
            found[line] = [ended.code or 0, "torch" in sys.modules]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The exit code of each line, and whether torch was imported by then: in one interpreter, one after another."""
    command = [sys.executable, "-c", CALLS, json.dumps(ANSWERS + ERRORS)]
    folder = tmp_path_factory.mktemp("quick")
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, cwd=folder, check=True).stdout)


def test_no_line_takes_torch(found):
    assert next((line for line, (_, torch) in found.items() if torch), None) is None


def test_every_line_is_an_answer_or_an_error(found):
    assert {line for line, (code, _) in found.items() if code == 0} == set(ANSWERS)
    assert {line for line, (code, _) in found.items() if code == 2} == set(ERRORS)
