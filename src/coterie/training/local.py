"""The settings of a client's local training: how long, in what batches, at which rate, with which optimizer."""

from dataclasses import dataclass, replace
from math import ceil, cos, pi
from typing import Annotated, Literal

from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, Count, Fraction, NonNegative, Positive, at_least, known_keywords, within
from coterie.core.records import record


@record
@known_keywords
@dataclass(frozen=True)
class LocalTraining(Checked):
    """How a client trains.

    >>> local = coterie.LocalTraining(epochs=2, batch=32, rate=0.1, schedule="exponential", rate_decay=0.5)
    >>> local.steps_for(samples=100)
    8
    >>> local.at(round=2, rounds=10).rate
    0.05
    """

    epochs: NonNegative = 2.0
    """Passes over the client's own data in a round; a fraction ends in the middle of one."""

    steps: Count | None = None
    """A fixed number of steps in a round, instead of epochs."""

    batch: Annotated[int, at_least(0, "at least 1, or 0 for all samples at once")] = 32
    """Samples in a step; 0 takes all of a client's samples at once."""

    whole_batches: bool = False
    """Take full batches only: what is left of a client's samples at the end of a pass is left out of it, and the next
    pass begins. There are as many steps as otherwise. A client that has no full batch takes all of its samples."""

    rate: Positive = 0.1
    """Learning rate."""

    momentum: Fraction = 0.0
    """Momentum of SGD. Starts from zero in every round."""

    decay: NonNegative = 0.0
    """Weight decay."""

    clip: Annotated[float, at_least(0, "above 0, or 0 for no clipping")] = 0.0
    """Longest gradient of a step (Euclidean norm); 0 does not clip."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """How a gradient becomes a step: SGD, with or without `momentum`, or Adam."""

    schedule: Literal["constant", "exponential", "cosine", "steps"] = "constant"
    """How the learning rate changes over rounds: not at all, by `rate_decay` every round, along a half cosine to zero,
    or by `rate_decay` after each of `milestones`."""

    rate_decay: Annotated[float, within("(0, 1]")] = 0.99
    """Factor of the schedules `exponential` and `steps`."""

    milestones: Annotated[tuple[float, ...], within("[0, 1]", "parts of all rounds, in [0, 1]")] = (0.5, 0.75)
    """Parts of all rounds after which the schedule `steps` lowers the rate."""

    prior: Literal["learned", "own"] = "learned"
    """How frequent labels are: models learn it (`learned`), or it is taken out of training, and each client adds what
    it knows of its own labels to whatever it predicts (`own`), without telling anyone. Needs classes."""

    prior_smoothing: Positive = 0.5
    """For `prior=own`: what is added to each of a client's counts of labels before their shares are taken, so that a
    label that it has not seen stays possible."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "adam" and self.momentum:
            raise SettingsError(f"momentum={self.momentum}: belongs to sgd; adam has its own")

    @property
    def own_prior(self) -> float:
        """The smoothing of clients' own priors; 0 if models learn how frequent labels are."""
        return self.prior_smoothing if self.prior == "own" else 0.0

    @property
    def tied_to_rounds(self) -> str:
        """Why a run with more rounds is another one from its first round on, in words; empty if it is not."""
        words = {
            "cosine": "schedule=cosine lowers the rate to zero until the last round",
            "steps": "schedule=steps lowers the rate after parts of all rounds",
        }
        return words.get(self.schedule, "")

    def at(self, round: int, rounds: int) -> "LocalTraining":  # noqa: A002
        """These settings for one round (counted from 1): `rate` is what the schedule makes it, and then stays."""
        past = max(round - 1, 0)
        factor = 1.0
        if self.schedule == "exponential":
            factor = self.rate_decay**past
        elif self.schedule == "cosine":
            factor = 0.5 * (1 + cos(pi * past / max(rounds, 1)))
        elif self.schedule == "steps":
            factor = self.rate_decay ** sum(past >= milestone * rounds for milestone in self.milestones)
        return replace(self, rate=self.rate * factor, schedule="constant")

    def steps_for(self, samples: int, epochs: float | None = None) -> int:
        """How many steps a client with this many samples takes in a round.

        Passes that are given as `epochs` replace the epochs or steps of these settings.
        """
        if self.steps is not None and epochs is None:
            return self.steps
        epochs = self.epochs if epochs is None else epochs
        return max(1, round(epochs * self.steps_per_epoch(samples))) if epochs > 0 else 0

    def steps_per_epoch(self, samples: int) -> int:
        """How many steps a pass over this many samples takes."""
        return ceil(samples / (self.batch or samples))
