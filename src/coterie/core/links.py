"""Links from a thing to what a later room does with it, such as drawing a result.

A room imports only from rooms above it. Where a class of an early room has a method whose work is done in a later one,
the package itself, which knows all rooms, says here what does that work.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["linked", "links"]

links: dict[str, str] = {}
"""`package.module:function` by the name of the method that is served by it; filled by `coterie` itself."""


def linked(name: str) -> Callable[..., Any]:
    """The function that a name is linked to, imported when it is asked for."""
    module, _, function = links[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
