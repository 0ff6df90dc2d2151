"""All methods by name. Knowing them takes no torch: a method's file is imported when the method itself is asked for."""

from typing import Any

from coterie.core.registry import Registry

methods: Registry[Any] = Registry("method")
"""Filled by the decorators of `coterie.server.method`; `coterie.methods` says where ours are."""
