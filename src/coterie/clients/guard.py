"""What clients hold to, whoever asks.

Simulated clients have nobody to hold out against, so their guard has no bounds but those that keep a protocol sound. A
real site has one of its own (`coterie.engines.flower.guard`), with the limits that its owner sets in `site.toml`.
"""

from dataclasses import dataclass, field
from typing import Annotated

from coterie.core.fields import Checked, at_least


@dataclass(frozen=True)
class Limits(Checked):
    """Bounds on what a client does for others."""

    contributors: Annotated[int, at_least(2)] = 2
    """The least number of models in a sum to which the client contributes its own."""


@dataclass(frozen=True)
class Guard:
    """Holds a client to its limits."""

    limits: Limits = field(default_factory=Limits)

    def gives(self, subject: str, receiver: str, secret: bytes, question: bytes) -> bool:
        """Whether a client may answer a question that a receiver asks about a secret.

        Two answers to different questions about one secret would give away their difference.
        """
        return True


OPEN = Guard()
"""The guard of simulated clients."""
