"""Nets, settings and objectives that use all that local training has, to compare the forms that compute it."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from coterie.core.randomness import uniform
from coterie.training.local import LocalTraining
from support.worlds import world

IMAGES = (2, 4, 4)
LOCAL = LocalTraining(epochs=3, batch=4, rate=0.2)
WITHIN = 1e-10
"""Rounding is 1e-15; normalising a batch of one sample, whose variance is 0, makes 300 times that of it in a step."""


def everything(shape, classes):
    """Both norms and both kinds of dropout, with pooling and padding."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.3),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(0.3),
        nn.Linear(6, classes),
    )


def options_of(here):
    """Everything that can be said to the trainer besides its settings."""
    rng = np.random.default_rng(3)
    return {
        "pull": {"pull": 0.7},
        "pull per client": {"pull": torch.tensor([0.0, 0.5, 1.0, 2.0])},
        "anchor": {"pull": 0.7, "anchor": here.models(seed=4)},
        "one anchor": {"pull": 0.7, "anchor": here.models(seed=4)[0]},
        "push": {"push": (here.models(seed=4) - here.models(seed=5)) * 0.1},
        "one push": {"push": (here.models(seed=4) - here.models(seed=5))[0] * 0.1},
        "head": {"trains": "head"},
        "body": {"trains": "body"},
        "layers": {"trains": ["1", "10"]},
        "epochs per client": {"epochs": [2.5, 0.4, 1, 3]},
        "epochs with none": {"epochs": torch.tensor([2.5, 1.0, 1.0, 3.0])},
        "sample weights": {"sample_weights": torch.from_numpy(rng.uniform(0, 2, (4, 12)))},
        "extras": {
            "objective": with_extras,
            "beside": {"head": torch.from_numpy(rng.normal(size=(4, 3, 6))), "shift": torch.zeros(4)},
            "carried": {"mean": torch.zeros(4), "margin": torch.from_numpy(rng.normal(size=(4, 3)))},
        },
    }


def inner_loss(batch):
    return lambda model: batch.mean(F.cross_entropy(model(batch), batch.y, reduction="none"))


def second_order(model, batches, key):
    """Per-FedAvg: the loss after an inner step, differentiated through the step."""
    first, second = batches
    return inner_loss(second)(model.at(model.parameters - 0.1 * model.gradient(inner_loss(first))))


def first_order(model, batches, key):
    """The same with the inner step taken as constant."""
    first, second = batches
    return inner_loss(second)(model.at(model.parameters - 0.1 * model.gradient(inner_loss(first)).detach()))


def frozen_body(model, batch, key):
    """A loss of the head alone, and a weak one of everything, which also moves the statistics."""
    return inner_loss(batch)(model.frozen("body")) + 0.1 * inner_loss(batch)(model)


def noisy(model, batch, key):
    """Keyed noise on the inputs, and a net that is called on plain tensors."""
    x = batch.x + uniform(key, *batch.x.shape)
    return batch.mean(F.cross_entropy(model.at(model.parameters)(x), batch.y, reduction="none"))


def three(model, batches, key):
    """Three batches, of which two are seen by the net."""
    return sum(inner_loss(batch)(model) for batch in batches[:2]) + 0 * batches[2].x.sum()


def with_extras(model, batch, key):
    """A second head that is trained beside the model, on features that it does not move, and a mean that is carried."""
    features, outputs = model.with_features(batch)
    mean = 0.5 * model.carried["mean"] + 0.5 * batch.mean(features.mean(dim=1))
    model.carried["mean"] = mean.detach()
    personal = outputs.detach() + features.detach() @ model.beside["head"].mT + model.beside["shift"]
    losses = (
        F.cross_entropy(each, batch.y, reduction="none") for each in (outputs - model.carried["margin"], personal)
    )
    return sum(map(batch.mean, losses)) + 0.1 * mean.square()


NAMES = list(options_of(world(everything, shape=IMAGES)))
"""What can be said to the trainer, by name."""

second_order.batches = first_order.batches = 2
three.batches = 3


def backbone(number=0, channels=2):
    """The weights of a pretrained convolution with its normalisation, as a file would have them."""
    rng = np.random.default_rng(number)
    shapes = {"0.weight": (4, channels, 3, 3), "0.bias": (4,), "1.weight": (4,), "1.bias": (4,), "1.running_mean": (4,)}
    drawn = {name: rng.normal(size=shape) for name, shape in shapes.items()} | {"1.running_var": rng.uniform(1, 2, 4)}
    return {name: torch.from_numpy(values).float() for name, values in drawn.items()}


def pretrained(shape, classes):
    """A frozen backbone, and a trained normalisation, dropout and head behind it."""
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4))
    body.load_state_dict(backbone(channels=shape[0]), strict=False)
    body.requires_grad_(False)
    rest = (nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2))
    return nn.Sequential(body, *rest, nn.Linear(shape[1] * shape[2], classes))
