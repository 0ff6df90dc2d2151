"""What the README shows works as it stands."""

import re
from pathlib import Path

import coterie

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "import coterie" in block)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "fedavg.png").stat().st_size > 10_000
    assert len(capsys.readouterr().out.splitlines()) == 22


def test_the_readme_names_every_method():
    listed = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert sorted(listed) == sorted(coterie.methods)


def test_the_code_of_fedprox_in_the_readme_is_the_real_one():
    source = (Path(coterie.__file__).parent / "methods" / "fedprox.py").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(@method.*?)```", README, re.DOTALL).group(1)
    plain = re.sub(r"(: Federation|: State| -> State)", "", source)
    for line in shown.strip().splitlines():
        assert line.strip() in plain
