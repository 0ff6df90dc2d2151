"""The engine for simulated clients: all of them on this machine."""

from coterie.engines.simulation.engine import Computing, Simulation

__all__ = ["Computing", "Simulation"]
