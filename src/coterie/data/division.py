"""How each client's data is used: what it trains on, what it is tested on, how inputs are prepared."""

from dataclasses import dataclass
from typing import Annotated, Literal

from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, at_least, known_keywords, within

TestKind = Literal["auto", "own", "labels", "proportions", "global"]
Scaling = Literal["channel", "unit", "none"]
Augmentation = Literal["none", "crop-flip"]


@known_keywords
@dataclass(frozen=True)
class Division(Checked):
    """How each client's data becomes training, validation and test data, and how inputs are prepared.

    >>> coterie.Division(validation=0.2, test_share=0.3).scaling
    'channel'
    """

    validation: Annotated[float, within("[0, 1)", "a share in [0, 1)")] = 0.1
    """Share of a client's samples that is kept for validation. Where clients share samples it is a share of all
    samples, which nobody trains on."""

    test: TestKind = "auto"
    """What a client is tested on: samples of its `own` that it does not train on, all published test samples of the
    `labels` it trains on, published test samples in its own label `proportions`, or the whole `global` test set; `auto`
    is `own`, or `proportions` where the split lets clients share samples."""

    test_share: Annotated[float, within("[0, 1)", "a share in [0, 1)")] = 0.2
    """Share of a client's samples that is kept for testing, where it is tested on its own."""

    scaling: Scaling = "channel"
    """Inputs: normalised by mean and deviation per `channel`, bytes divided by 255 (`unit`), or left alone (`none`)."""

    augment: Augmentation = "none"
    """What is done to training images: nothing, or `crop-flip`, a random crop of the image with
    four pixels added on each side and a random flip of left and right."""

    server_samples: Annotated[int, at_least(0)] = 0
    """How many samples the server holds for itself, e.g. for FLIS."""

    server_from: Literal["train", "test"] = "train"
    """Where the server's samples come from: `train` are training samples that no client gets, `test` the last published
    test samples of each class. Clients are tested on these, so only a method that says that it reads test data may take
    them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test in ("auto", "own") and self.validation + self.test_share >= 1:
            shares = f"validation={self.validation} and test_share={self.test_share}"
            raise SettingsError(f"{shares}: nothing is left to train on")
