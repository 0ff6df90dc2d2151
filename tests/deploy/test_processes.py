"""Processes of a federation: nothing that they start outlives them."""

import signal
import subprocess
import sys
import time

import pytest

from coterie.deploy.processes import Processes
from support.worlds import runs

DETACHED = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes on Windows")
@pytest.mark.parametrize("killed", [False, True])
def test_what_left_the_group_is_ended_too(killed, tmp_path):
    with Processes() as processes:
        process = processes.start("parent", [sys.executable, "-c", DETACHED], tmp_path / "log.txt", {})
        while not process.log.read_text():
            time.sleep(0.05)
        child = int(process.log.read_text())
        if killed:
            process.signal(signal.SIGKILL)
            assert process.wait(10)
            assert runs(child)
    for _ in range(100):
        if not runs(child):
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


@pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes on Windows")
def test_others_go_on(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with Processes() as processes:
        processes.start("one", [sys.executable, "-c", "pass"], tmp_path / "log.txt", {})
    assert other.poll() is None
    other.kill()
    other.wait()
