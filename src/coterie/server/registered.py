"""All methods by name. Knowing them takes no torch: a method's file is imported when the method itself is asked for."""

from collections.abc import Iterable
from typing import Any

from coterie.core.registry import Registry

methods: Registry[Any] = Registry("method")
"""Filled by the decorators of `coterie.server.method`; `coterie.methods` says where ours are."""

FAMILIES = {
    "global": "one model for all clients",
    "clustered": "models for groups of clients",
    "personal": "a model for each client",
    "own": "methods that are not from a paper, and yours",
}
"""The families of methods, in the order in which they are listed, and what clients get from each."""


def by_family(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of methods by family, in the order of the families; those without any are left out."""
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in names:
        family = methods[name].family if methods.is_own(name) else methods.declared(name).constant("family")
        found.setdefault(family, []).append(name)
    return {family: listed for family, listed in found.items() if listed}
