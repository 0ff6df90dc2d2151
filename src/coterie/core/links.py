"""Links to what is imported only when it is asked for.

A room imports only from rooms above it. Where a class of an early room has a method whose work is done in a later one,
such as drawing a result, the package itself, which knows all rooms, says here what does that work. And a package that
offers names of modules which take long to import imports a module with the first of its names.
"""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

links: dict[str, str] = {}
"""`package.module:function` by the name of the method that is served by it; filled by `coterie` itself."""


def linked(name: str) -> Callable[..., Any]:
    """The function that a name is linked to, imported when it is asked for."""
    module, _, function = links[name].partition(":")
    found: Callable[..., Any] = _from(module, function)
    return found


def offered(file: str) -> dict[str, str]:
    """The names that a package imports for type checkers alone, and the modules that they are from."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = (node for block in tree.body if isinstance(block, ast.If) for node in block.body)
    return {name.name: str(node.module) for node in imports if isinstance(node, ast.ImportFrom) for name in node.names}


def when_asked(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: it imports a name from its home, which is a module."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return _from(homes[name], name)

    return find


def _from(module: str, name: str) -> Any:
    """What `from module import name` gives."""
    return getattr(__import__(module, fromlist=[name]), name)
