"""The simulation engine."""

from coterie.engines.simulation.engine import Computing, Simulation

__all__ = ["Computing", "Simulation"]
