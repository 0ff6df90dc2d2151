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
    plain = re.sub(r"(: Federation|: FedAvgState| -> FedAvgState)", "", source)
    for line in shown.strip().splitlines():
        assert line.strip() in plain


def test_the_two_lines_of_the_readme_are_those_of_the_example():
    example = Path(__file__).parent.parent / "examples" / "flower_app"
    guide = (example / "README.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (example / "digits_app").glob("*_app.py"))
    sources = "".join(sources.split())
    for text in (README, guide):
        shown = "".join(re.findall(r"```diff\n(.*?)```", text, re.DOTALL))
        added, removed = (re.findall(rf"^{sign} *(.*)$", shown, re.MULTILINE) for sign in (r"\+", "-"))
        assert len(added) == len(removed) == 2
        # The example says more in the same call.
        assert all(line.replace(" ", "").removesuffix(")") in sources for line in added)
        assert not any(line.replace(" ", "") in sources for line in removed)
