"""Synthetic samples: what a client can show of its data without showing data.

Every client has a weak GAN (Goodfellow et al., "Generative adversarial nets", NeurIPS 2014): a generator and a
discriminator of one hidden layer each, for inputs of any shape that are normalised. Both are one module, trained
together by the one local training loop: each is frozen in the other's term of the loss. A little training is enough,
because samples need only be more like the client's data than noise is; and the less a GAN is trained, the less it
shows.
"""

from functools import cache
from math import prod

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from coterie.clients.clients import Clients
from coterie.core.randomness import uniform
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.training.local import LocalTraining
from coterie.training.loop import Batch, LocalModel

_LATENT = 32
"""How many numbers the generator makes a sample from."""

_HIDDEN = 128
"""Units in the hidden layers."""

_LEVELS = 255
"""Steps between the lowest and the highest number of samples that are packed as bytes, as images are."""


class _GAN(nn.Module):
    """Generator and discriminator. Called on samples it judges them; with `make` it turns noise into samples."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.generator = _layers(_LATENT, prod(shape))
        self.discriminator = _layers(prod(shape), 1)

    def forward(self, x: Tensor, make: bool = False) -> Tensor:
        if make:
            return _bounded(self.generator(x)).reshape(-1, *self.shape)
        return self.discriminator(x.flatten(1))


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, _HIDDEN), nn.LeakyReLU(0.2), nn.Linear(_HIDDEN, outputs))


def _bounded(numbers: Tensor) -> Tensor:
    """Numbers, bounded smoothly to three deviations of normalised inputs."""
    return 3 * torch.tanh(numbers / 3)


@cache
def gan_net(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Net:
    """The GAN for inputs of a shape."""
    return Net(lambda shape, _: _GAN(shape), shape, 1, "gan", device, dtype)


@cache
def _generator_net(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Net:
    """The generator alone: its parameters are the GAN's first ones, its classes are the numbers of a sample."""
    return Net(lambda latent, numbers: _layers(latent[0], numbers), (_LATENT,), prod(shape), "generator", device, dtype)


def adversarial(model: LocalModel, batch: Batch, key: Tensor) -> Tensor:
    """The loss of both players: the discriminator is to tell made samples from real ones, the generator to fool it."""
    noise = 2 * uniform(key, len(batch.x), _LATENT).to(batch.x.dtype) - 1
    made = model(noise, True)
    judged = F.softplus(-model(batch)) + F.softplus(model(made.detach()))
    fooled = F.softplus(-model.frozen("discriminator")(made))
    return batch.mean((judged + fooled)[:, 0])


def synthetic(clients: Clients, training: LocalTraining, count: int, since: int) -> tuple[Tensor, Tensor]:
    """The samples that each client shows, [client, row, ...] as bytes, and their bounds [client, 2]; see `packed`.

    A client keeps its GAN and its samples. If the samples are from before the round `since`, it trains the GAN further
    and makes new ones from new noise.
    """
    made = clients.state("made", torch.zeros(len(clients), dtype=torch.int64)).cpu()
    due = made < since
    if due.any():
        gan = _trained(clients, training, due)
        new, bounds = packed(_drawn(clients, gan, count))
        if not due.all():
            fresh = due.to(new.device)
            new = torch.where(fresh.reshape(-1, *[1] * (new.dim() - 1)), new, clients.state("shown", new))
            bounds = torch.where(fresh[:, None], bounds, clients.state("bounds", bounds))
        clients.keep(gan=gan, shown=new, bounds=bounds, made=torch.where(due, clients.round, made))
    return clients.state("shown"), clients.state("bounds")


def last_refresh(round: int, every: int) -> int:  # noqa: A002
    """The last round, up to this one, in which synthetic samples are made anew.

    The first is round 1. Three times the next is `every` rounds later, and then after twice as many rounds each time.
    With 0 there is no next.
    """
    last, made = 1, 1
    while every and last + every <= round:
        last, made = last + every, made + 1
        every *= 2 if made > 3 else 1
    return last


def _trained(clients: Clients, training: LocalTraining, due: Tensor) -> Tensor:
    """The clients' GANs [client, parameter], after some more training of those that are `due` [client]."""
    net = gan_net(clients.net.shape, clients.net.device, clients.net.dtype)
    fresh = clients.initial(net)
    start = Models(net, clients.state("gan", fresh.parameters), fresh.buffers)
    sizes = clients.sizes.tolist()
    passes = [training.steps_for(size) / training.steps_per_epoch(size) for size in sizes]
    trained = clients.train(start, training, epochs=torch.tensor(passes) * due, objective=adversarial)
    return trained.models.parameters


def _drawn(clients: Clients, gan: Tensor, count: int) -> Tensor:
    """Samples [client, row, ...], `count` from each client's GAN [client, parameter], from new noise in every round."""
    shape, device, dtype = clients.net.shape, clients.net.device, clients.net.dtype
    noise = np.stack([rng.uniform(-1, 1, (count, _LATENT)) for rng in clients.generators("synthetic samples")])
    generator = gan[:, gan_net(shape, device, dtype).part("generator")]
    models = Models(_generator_net(shape, device, dtype), generator, gan.new_empty(len(clients), 0))
    return _bounded(clients.predict(models, torch.from_numpy(noise).to(device))).unflatten(2, shape)


def packed(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Samples [client, ...] as bytes, and what the bytes 0 and 255 stand for, [client, 2]."""
    flat = samples.flatten(1)
    low, high = flat.amin(dim=1), flat.amax(dim=1)
    scale = torch.where(high > low, high - low, 1)
    levels = ((flat - low[:, None]) * (_LEVELS / scale)[:, None]).round()
    return levels.to(torch.uint8).reshape(samples.shape), torch.stack([low, high], dim=1)


def unpacked(samples: Tensor, bounds: Tensor) -> Tensor:
    """Samples [client, ...] from bytes, in the precision of their bounds [client, 2]."""
    low, high = bounds.unbind(1)
    spread = (-1,) + (1,) * (samples.dim() - 1)
    return low.reshape(spread) + samples.to(bounds.dtype) * ((high - low) / _LEVELS).reshape(spread)


def class_counts(clients: Clients, models: Models, samples: Tensor, bounds: Tensor) -> Tensor:
    """How often the clients' models predict each class for packed samples [client, row, ...]: [client, class].

    Samples are unpacked on the models' device, because they are many. The counts lie on the host.
    """
    device = clients.net.device
    predicted = clients.predict(models, unpacked(samples.to(device), bounds.to(device))).argmax(dim=2).cpu()
    return F.one_hot(predicted, clients.net.classes).sum(dim=1)
