"""Users' own modules: importing one registers the methods, splits, nets and the like that stand in it.

A run says in its settings which modules its things come from, so that whoever reads it can import them first.
"""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.core.errors import SettingsError


def own_module(name: str, beside: Path | None = None) -> ModuleType:
    """Import a user's module, which may lie in a folder, by default the current one.

    The folder stays on Python's path, in front: what the module imports later may lie there, too.
    """
    folder = str((beside or Path()).absolute())
    # Modules of ours are found anyway, and the folder they are named in would hide modules of the user's.
    if name.partition(".")[0] != "coterie" and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module does when it is imported
        advice = "put it into the current folder or on PYTHONPATH"
        raise SettingsError(f"module {name!r} cannot be imported ({error}); {advice}") from error


def own_thing(kind: str, path: str) -> Any:
    """What `package.module:name` stands for, such as a net; the module may lie in the current folder."""
    module, _, name = path.partition(":")
    try:
        return getattr(own_module(module), name)
    except (SettingsError, AttributeError) as error:
        raise SettingsError(f"{kind} {path!r}: cannot be imported ({error})") from error


def homes_of(things: Iterable[Any]) -> tuple[str, ...]:
    """The modules, sorted, in which a user has defined these classes and functions: those that can be imported."""
    homes = {thing.__module__ for thing in things if _stands_in_its_module(thing)}
    return tuple(sorted(name for name in homes if name.partition(".")[0] not in ("coterie", "__main__")))


def _stands_in_its_module(thing: Any) -> bool:
    return getattr(sys.modules.get(thing.__module__), thing.__name__, None) is thing
