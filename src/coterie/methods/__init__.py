"""The methods, one file each. A file put here is found by itself."""

import importlib
import pkgutil

from coterie.server.method import methods

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["methods"]
