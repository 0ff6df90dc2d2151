"""What each client predicts with, as a method hands it out.

>>> coterie.serving.kept().after(coterie.LocalTraining(epochs=2), "head").personal
True
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.nets.stacks import Models
from coterie.training.local import LocalTraining


@dataclass(frozen=True, eq=False)
class Served:
    """A rule that gives every client a predictor. Made by the functions below.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> coterie.serving.each(models, [0, 1, 1]).index
    tensor([0, 1, 1])
    """

    models: Models | None = None
    """The server's models, [model]."""
    index: Tensor | None = None
    """Which of them each client gets, [client]; without it clients choose or mix."""
    weights: Tensor | None = None
    """How each client mixes their predictions, [client, model]."""
    shares: str | None = None
    """The name under which clients keep their own weights; a client that has none yet fits them to its data."""
    kept: str | None = None
    """The name under which clients keep a model of their own."""
    on: str = "train"
    """The data by which clients choose among models."""
    part: str = "none"
    """The part of that model which the server's `shared` one replaces."""
    shared: Tensor | None = None
    """A packed part (see `Models.packed`)."""
    added: tuple[str, str] | None = None
    """A part of the model, and the name under which clients keep what they add to it."""
    offset: str | None = None
    """The name under which clients keep what is added, for them, to what the last layer gets; others add nothing."""
    adapt: tuple[tuple[str, LocalTraining], ...] = ()
    """Local training that precedes predicting: which part of the model is trained, and how, one after another."""
    blend: "Blend | None" = None
    """Of which candidates beside that model each client blends what it predicts with."""

    def after(self, local: LocalTraining, trains: str = "all") -> "Served":
        """This rule, with a little local training of a part at each client before it predicts; the last thing it does.

        >>> served = coterie.serving.kept().after(coterie.LocalTraining(epochs=2), "head")
        >>> [part for part, _ in served.after(coterie.LocalTraining(epochs=1)).adapt]  # linear probing, then all of it
        ['head', 'all']
        """
        return replace(self, adapt=(*self.adapt, (trains, local)))

    def plus(self, part: str, kept: str) -> "Served":
        """This rule, with what clients keep under a name added to a part of the one model that each is served.

        It is packed as by `Models.packed`. A client that keeps nothing yet adds nothing.

        >>> model = coterie.simulate(clients=3, net="mlp").new_model()
        >>> coterie.serving.one(model, clients=3).plus("head", "own_head").personal
        True
        """
        if self.mixed:
            raise CoterieError("serving: clients that mix models have no one model to which they could add something")
        return replace(self, added=(part, kept))

    def with_offset(self, name: str) -> "Served":
        """This rule, after which each client adds an offset to what the last layer gets, if it keeps one by this name.

        >>> model = coterie.simulate(clients=3, net="mlp").new_model()
        >>> coterie.serving.one(model, clients=3).with_offset("offset").personal
        True
        """
        if self.mixed:
            raise CoterieError(
                "serving: clients that mix models have no one model whose features an offset could shift"
            )
        return replace(self, offset=name)

    def blended(self, own: Sequence[str], local: LocalTraining, parts: int, found: Tensor) -> "Served":
        """This rule, after which each client blends what it is served with models of its own; see `Blend`.

        >>> served = coterie.serving.one(coterie.simulate(clients=3, net="mlp").new_model(), clients=3)
        >>> served.blended(["mine"], coterie.LocalTraining(), parts=2, found=torch.zeros(3, 6)).personal
        True
        """
        return replace(self, blend=Blend(tuple(own), local, parts, found))

    @property
    def mixed(self) -> bool:
        """Whether clients predict with several models at once."""
        return self.weights is not None or self.shares is not None

    @property
    def personal(self) -> bool:
        """Whether clients predict with something of their own, not with one of the server's models."""
        own = self.added or self.adapt or self.offset is not None or self.blend is not None
        return self.models is None or self.mixed or bool(own)


@dataclass(frozen=True, eq=False)
class Blend:
    """Candidates that a client blends: what it is served, that model adapted, and models that it keeps itself.

    >>> served = coterie.serving.one(coterie.simulate(clients=3, net="mlp").new_model(), clients=3)
    >>> served.blended(["mine"], coterie.LocalTraining(), parts=2, found=torch.zeros(3, 6)).blend.own
    ('mine',)
    """

    own: tuple[str, ...]
    """The names under which clients keep the latter; who keeps none yet has what it is served in its place."""
    local: LocalTraining
    """How the served model is adapted."""
    parts: int
    """In how many parts weights are dealt out (see `coterie.moves.choosing.lattice`)."""
    found: Tensor
    """What the federation has found of every blend (see `coterie.moves.choosing.between_clients`)."""


def one(model: Models, clients: int) -> Served:
    """The same model for all clients; `clients` is their number.

    >>> coterie.serving.one(coterie.simulate(clients=3, net="mlp").new_model(), clients=3).index
    tensor([0, 0, 0])
    """
    return each(model.expand(1), torch.zeros(clients, dtype=torch.int64))


def each(models: Models, index: Any) -> Served:
    """For each client one of the server's models [model], by its place `index` [client].

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> coterie.serving.each(models, [1, 0, 1]).personal
    False
    """
    index = torch.as_tensor(index, dtype=torch.int64).cpu()
    if len(models.shape) != 1 or len(index) == 0 or int(index.max()) >= len(models) or int(index.min()) < 0:
        places = f"places up to {int(index.max())}" if len(index) else "no places"
        raise CoterieError(f"serving: {places} in models of shape {models.shape}")
    return Served(models=models, index=index)


def best_fit(models: Models, on: str = "train") -> Served:
    """Each client takes the one of the server's models [model] with the lowest loss on its own data of this kind.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> coterie.serving.best_fit(models).on
    'train'
    """
    return Served(models=models, on=on)


def mixture(models: Models, weights: Tensor | str) -> Served:
    """Each client mixes the predictions of the server's models [model] by its own weights.

    They are [client, model], or the name under which clients keep theirs: then the server need not know them.

    >>> models = coterie.simulate(clients=3, net="mlp").new_models(2)
    >>> coterie.serving.mixture(models, torch.full((3, 2), 0.5)).mixed
    True
    """
    return Served(models=models, shares=weights) if isinstance(weights, str) else Served(models=models, weights=weights)


def kept(name: str = "model", part: str = "none", shared: Tensor | None = None) -> Served:
    """Each client predicts with the model that it keeps itself; before it has one, with the initial model.

    A part of it can be the server's: `shared` is packed as by `Models.packed`.

    >>> coterie.serving.kept().personal
    True
    """
    return Served(kept=name, part=part, shared=shared)
