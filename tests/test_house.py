"""The plan of the house, as far as import-linter does not hold it: names, sizes of methods, and what tests share."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

import coterie

SRC = Path(coterie.__file__).parent
TESTS = Path(__file__).parent
METHODS = sorted(path for path in (SRC / "methods").glob("*.py") if path.stem not in ("__init__", "as_published"))
LONGER = {"slfed": 120, "compose": 120, "cafa": 120, "flis": 120}
"""The lines that methods may have whose papers describe more than others; all others may have 80."""

WITHOUT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING),
    tokenize.ENDMARKER,
}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of_code(path: Path) -> int:
    """Lines that are not blank, comments or docstrings, those of fields among them."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for one in tokens if one.type not in WITHOUT_CODE for line in range(one.start[0], one.end[0] + 1)}
    strings = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr) and is_text(node.value)]
    return len(lines - {line for node in strings for line in range(node.lineno, (node.end_lineno or 0) + 1)})


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def imported(path: Path) -> set[str]:
    """The names of all modules that a file imports, also inside of functions."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_two_classes_have_the_same_name():
    classes = [
        node.name for path in SRC.rglob("*.py") for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_every_module_is_in_a_room():
    assert sorted(path.stem for path in SRC.glob("*.py")) == ["__init__", "__main__", "_version"]


def test_what_is_public_is_said_on_one_screen():
    assert lines_of_code(SRC / "__init__.py") <= 60


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_a_method_is_short_and_knows_no_variant_as_published(path):
    assert lines_of_code(path) <= LONGER.get(path.stem, 80)
    assert "compat" not in path.read_text(encoding="utf-8")
    assert "coterie.methods.as_published" not in imported(path)


def test_no_test_imports_another():
    tests = {path.stem: path for path in TESTS.rglob("test_*.py")}
    assert {
        stem
        for stem, path in tests.items()
        if any(part in tests for name in imported(path) for part in name.split("."))
    } == set()
