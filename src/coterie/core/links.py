"""What is imported only when it is asked for.

Links: a room imports only from rooms above it. Where a class of an early room has a method whose work is done in a
later one, such as drawing a result, the package itself, which knows all rooms, says in `links` which function does it.

Offered names: a module lists under TYPE_CHECKING what it offers of modules that take long to import, and with
`__getattr__ = when_asked(__name__, offered(__file__))` it imports each of these when one of its names is asked for.
"""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

links: dict[str, str] = {}
"""`package.module:function` by the name of the method whose work that function does; `coterie` itself fills it."""


def linked(name: str) -> Callable[..., Any]:
    """The function that a name is linked to; its module is imported now."""
    module, _, function = links[name].partition(":")
    found: Callable[..., Any] = _from(module, function)
    return found


def offered(file: str) -> dict[str, str]:
    """The names that a module imports for type checkers alone, each with the module that has it."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = (node for block in tree.body if isinstance(block, ast.If) for node in block.body)
    return {name.name: str(node.module) for node in imports if isinstance(node, ast.ImportFrom) for name in node.names}


def when_asked(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: it imports a name from the module that is its home."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _from(homes[name], name)

    return find


def _from(module: str, name: str) -> Any:
    """What `from module import name` gives."""
    return getattr(__import__(module, fromlist=[name]), name)
