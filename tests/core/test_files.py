"""Files are whole at any moment, and a folder is one's own as long as it is locked."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.files import StorageError, append_to, lock_folder, write_whole


def test_a_file_is_whole_at_any_moment(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")

    def killed(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", "newer")
    assert (tmp_path / "x").read_text() == "old"


posix = pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders on Windows")


@posix
def test_a_locked_folder_is_locked_once_and_stays_as_it_is(tmp_path):
    before = tmp_path.stat().st_mtime_ns
    unlock = lock_folder(tmp_path)
    assert lock_folder(tmp_path) is None
    unlock()
    lock_folder(tmp_path)()
    assert [*tmp_path.iterdir()] == []
    assert tmp_path.stat().st_mtime_ns == before


@posix
def test_a_killed_process_locks_nothing_any_more(tmp_path):
    code = (
        "import pathlib, sys, time; from coterie.core.files import lock_folder\n"
        "unlock = lock_folder(pathlib.Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        assert lock_folder(tmp_path) is None
        other.send_signal(signal.SIGKILL)
    lock_folder(tmp_path)()


@posix
def test_a_process_that_was_forked_meanwhile_keeps_nothing_locked(tmp_path):
    code = (
        "import os, pathlib, sys; from coterie.core.files import lock_folder\n"
        "folder = pathlib.Path(sys.argv[1]); unlock = lock_folder(folder); reads, writes = os.pipe()\n"
        "if os.fork() == 0: os.close(writes); os.read(reads, 1); os._exit(0)\n"
        "unlock(); print(lock_folder(folder) is not None)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"


@posix
def test_a_disk_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def without(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", without)
    lock_folder(tmp_path)()


@pytest.mark.parametrize("lasting", [True, False])
def test_what_cannot_be_written_is_an_error_of_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, lasting):
    (tmp_path / "x").write_text("old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match=r"x: cannot be written \(No space left on device\)$"):
        write_whole(tmp_path / "x", "newer", lasting)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_line_is_appended_whole_or_not_at_all(tmp_path):
    append_to(tmp_path / "x", b"one\n")
    append_to(tmp_path / "x", b"two\n")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"
    with pytest.raises(StorageError, match="cannot be written"):
        append_to(tmp_path / "none" / "x", b"one\n")
