"""The methods, one file each. A file put here is found by itself, and imported when its method is asked for."""

from typing import TYPE_CHECKING

from coterie.server.registered import methods as registered

if TYPE_CHECKING:
    from coterie.core.registry import Registry
    from coterie.server.method import Method

__all__ = ["methods"]

methods: "Registry[Method]" = registered
methods.found_in(__name__, "method", "method_variant")
