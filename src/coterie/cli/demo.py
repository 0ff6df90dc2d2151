"""The first thing a newcomer sees."""

from coterie.methods import methods
from coterie.runs.settings import Settings

__all__ = ["demo_settings"]

_METHODS = ("local", "fedavg", "fedprox", "cafa", "autocfl", "cfic", "slfed", "flis-dc", "flis-hc")
"""What the demo shows, as far as it exists."""


def demo_settings() -> list[Settings]:
    """20 clients in 4 hidden groups on the embedded digits, for a handful of methods."""
    given = {"data": "digits", "split": "autocfl-label", "clients": 20, "net": "mlp", "rounds": 30, "batch": 16}
    given["test"] = "labels"  # a client's own test samples would be a dozen
    given["server_samples"] = 100  # on which FLIS compares models; all methods are in one world
    return [Settings.of(given, name)[0] for name in _METHODS if name in methods]
