"""Files are whole at any moment."""

from pathlib import Path

import pytest

from coterie.core.files import write_whole


def test_a_file_is_whole_at_any_moment(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")

    def killed(path, content):
        with path.open("wb") as file:
            file.write(content[:2])
        raise InterruptedError

    monkeypatch.setattr(Path, "write_bytes", killed)
    with pytest.raises(InterruptedError):
        write_whole(tmp_path / "x", "newer")
    assert (tmp_path / "x").read_text() == "old"
