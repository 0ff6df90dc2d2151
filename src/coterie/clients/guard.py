"""What clients hold to, whoever asks.

Simulated clients have nobody to hold out against, so their guard has no bounds but those that keep a protocol sound. A
real site has one of its own (`coterie.engines.flower.guard`), with the limits that its owner sets in `site.toml`.
"""

from dataclasses import dataclass, field
from typing import Annotated

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.fields import Checked, Count, Positive, at_least


class BoundError(CoterieError):
    """What is asked is outside of the bounds that a client's owner has set."""


@dataclass(frozen=True)
class Limits(Checked):
    """Bounds on what a client does for others.

    What trains on few samples, or on few at a time, tells what these samples are: of a single one a linear layer's
    gradient is the sample itself, up to a factor.
    """

    contributors: Annotated[int, at_least(2)] = 2
    """The least number of models in a sum to which the client contributes its own."""

    samples: Count = 8
    """The least number of its training samples that a training goes through."""

    batch: Count = 8
    """The least number of samples in a step, unless the client takes all that it has."""

    least_steps: Count = 1
    """The least number of steps in a training."""

    steps: Count = 100_000
    """The most steps in a training, whatever epochs it is said in."""

    models: Count = 100
    """The most models that one input has."""

    megabytes: Count = 2048
    """The largest message, in millions of bytes."""

    seconds: Positive = 3600.0
    """The longest time for one answer. A step that has begun, or a product of matrices, is not cut short."""

    rounds: Count = 1000
    """In how many rounds the client takes part, of all runs together."""

    attempts: Count = 5
    """How often a round may be tried again with other questions: a round that too few clients answer is lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_steps > self.steps:
            raise SettingsError(f"least_steps={self.least_steps}: more than the most, steps={self.steps}")


@dataclass(frozen=True)
class Guard:
    """Holds a client to its limits."""

    limits: Limits = field(default_factory=Limits)

    def gives(self, subject: str, receiver: str, secret: bytes, question: bytes) -> bool:
        """Whether a client may answer a question that a receiver asks about a secret.

        Two answers to different questions about one secret would give away their difference.
        """
        return True

    def check_training(self, samples: int, steps: int, batch: int, leaves: bool = True) -> None:
        """Refuse a training of so many steps on so many samples; `leaves` says whether anybody learns its result."""


OPEN = Guard()
"""The guard of simulated clients."""
