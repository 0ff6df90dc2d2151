"""What each client predicts with, of several models: its own choice, shrunk towards that of the federation.

A client has candidates, and may blend them: the outputs of several models, before the softmax, in convex weights on a
lattice. It compares every blend with the first candidate, by how much lower the loss of a validation sample is. With
few samples that is mostly noise, and the best of many blends is the luckiest. So clients learn from each other:

| symbol | here |
|---|---|
| y_i, n_i | client i's mean gain by a blend over its validation samples, and how many there are |
| theta_i, sigma^2 | its true mean gain; the variance of a sample's gain around it, the same for all clients |
| mu, tau^2 | mean and variance of true gains over clients |

With y_i ~ N(theta_i, sigma^2 / n_i) and theta_i ~ N(mu, tau^2), the density of theta_i given y_i is proportional to
exp(-(y_i - theta)^2 n_i / (2 sigma^2) - (theta - mu)^2 / (2 tau^2)). It is normal, and its mean is where the derivative
of the exponent is 0:

    B_i y_i + (1 - B_i) mu,    B_i = tau^2 / (tau^2 + sigma^2 / n_i)

That is the Bayesian weight of what a client has seen itself; with mu, tau^2 and sigma^2 estimated from all clients it
is that of James and Stein (Efron and Morris, 1973). Nothing is left to be set: clients that are alike (tau^2 = 0) all
take the federation's choice, the blend with the highest mu, and so does one that has no validation samples; one that
has many goes by its own. Estimates are those of a one-way analysis of variance, and mu weighs clients by 1 / (tau^2 +
sigma^2 / n_i). They need sums over clients alone.
"""

from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import CHANGES, MODEL, Declared, Output
from coterie.clients.programs import Outputs, program
from coterie.moves.correcting import train_controlled
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models
from coterie.training.local import LocalTraining

_TIE = 1e-9
"""Gains that differ by less are equal: rounding must not decide."""


def lattice(models: int, parts: int) -> Tensor:
    """All convex weights of so many models that are multiples of 1 / parts, [blend, model]; the first model is first.

    >>> lattice(2, parts=2)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    chosen = torch.tensor(list(combinations_with_replacement(range(models), parts)))  # [blend, part]
    return torch.nn.functional.one_hot(chosen, models).sum(dim=1).double() / parts


def judged(clients: Clients, models: Models, parts: int) -> Tensor:
    """What every blend of models [client, model] gains on the client's validation data, [client, blend, 3].

    The numbers are the mean gain of a sample over the first model, the sum of squares around it, and how many samples
    there are; all 0 for a client that has none.
    """
    losses = clients.blended_losses(models, lattice(models.shape[1], parts), "validation")
    gains = losses[:, :1] - losses  # [client, blend, sample]
    samples = (~gains.isnan()).sum(dim=2)
    mean = gains.nansum(dim=2) / samples.clamp(min=1)
    squares = (gains - mean.unsqueeze(2)).square().nansum(dim=2)
    return torch.stack([mean, squares, samples.double()], dim=2)


def between_clients(seen: Tensor) -> Tensor:
    """mu, tau^2 and sigma^2 of every blend, [3, blend], of what clients have `judged` [client, blend, 3].

    Where too few have seen anything, clients count as alike, and what is not known as 0: nobody leaves the first model.

    >>> between_clients(torch.tensor([[[3.0, 2.0, 2.0]], [[1.0, 2.0, 2.0]]])).tolist()  # 2 +- 1, of samples +- sqrt(2)
    [[2.0], [1.0], [2.0]]
    """
    seen = seen[seen[:, 0, 2] > 0].double().cpu()
    gains, squares, samples = seen.unbind(dim=2)  # [client, blend]
    clients, every = len(seen), samples.sum(dim=0)
    if clients < 1:
        return torch.zeros(3, seen.shape[1], dtype=torch.float64)
    within = squares.sum(dim=0) / (every - clients).clamp(min=1)
    middle = (samples * gains).sum(dim=0) / every
    unequal = (every - samples.square().sum(dim=0) / every).clamp(min=1e-300)
    between = (samples * (gains - middle).square()).sum(dim=0) - (clients - 1) * within
    between = (between / unequal).clamp(min=0) if clients > 1 else torch.zeros_like(within)
    variance = between + within / samples
    weights = torch.where(variance > 0, 1 / variance, 0)
    weights = torch.where(weights.sum(dim=0) > 0, weights, torch.ones_like(weights))
    return torch.stack([(weights * gains).sum(dim=0) / weights.sum(dim=0), between, within])


def shrunk(seen: Tensor, found: Tensor) -> Tensor:
    """Each client's gain by every blend, [client, blend], as it has `judged` it and as `between_clients` has found.

    >>> found = torch.tensor([[2.0], [1.0], [2.0]])
    >>> shrunk(torch.tensor([[[3.0, 0.0, 2.0]], [[0.0, 0.0, 0.0]]]), found)  # B is 1/2; without samples it is mu
    tensor([[2.5000],
            [2.0000]])
    """
    mean, between, within = found.to(seen)
    gains, _, samples = seen.unbind(dim=2)
    # B = tau^2 n / (tau^2 n + sigma^2); where nothing varies, nothing is shrunk.
    own = between * samples
    weight = torch.where(own > 0, own / (own + within).clamp(min=1e-300), 0)
    return weight * gains + (1 - weight) * mean


def chosen(clients: Clients, models: Models, parts: int, found: Tensor) -> Tensor:
    """The weights of each client's blend of models [client, model]: of equally good ones the first."""
    gains = shrunk(judged(clients, models, parts), found)
    best = (gains >= gains.amax(dim=1, keepdim=True) - _TIE).int().argmax(dim=1)
    return lattice(models.shape[1], parts).to(models.parameters.device)[best]


def paying(errors: np.ndarray, significance: float) -> int:
    """Which of several options to take, by clients' `errors` [option, client], from the simplest on; 0 is the first.

    The next option that is better than the one held so far takes its place: by Wilcoxon's signed-rank test over
    clients, one-sided, at this significance over as many as were tried (Bonferroni). NaN is a client that cannot say.
    Few clients can show nothing: the smallest p of n is 2^-n.

    >>> errors = np.array([[0.9] * 8, np.arange(8) / 10, np.arange(8)[::-1] / 10])
    >>> paying(errors, significance=0.05), paying(errors[:, :4], significance=0.05)
    (1, 0)
    """
    from scipy.stats import wilcoxon

    errors = errors[:, ~np.isnan(errors).any(axis=0)]
    held = 0
    for option in range(1, len(errors)):
        gained = errors[held] - errors[option]
        # What rounding leaves of a difference is none.
        gained = gained[np.abs(gained) > _TIE]
        if len(gained) and wilcoxon(gained, alternative="greater").pvalue * (len(errors) - 1) < significance:
            held = option
    return held


def _judged(net: Net, asked: Mapping[str, Any]) -> Declared:
    corrected = asked.get("control") is not None
    controls = {"control_change": CHANGES, **({"before": CHANGES} if asked["looks"] else {})} if corrected else {}
    return {"model": MODEL, **controls, **({"gains": Output(float, (None, 3))} if asked["parts"] else {})}


@program(told={"parts": "blends", "looks": "*"}, gives=_judged)
def train_and_judge(
    clients: Clients,
    start: Models,
    local: LocalTraining,
    parts: int,
    insured: bool,
    looks: bool,
    control: Changes | None = None,
) -> Outputs:
    """Accord's client: train as the base does, and alone if insured; keep the models, and judge blends of them."""
    told: dict[str, Any] = {}
    own = [clients.train(clients.state("alone", otherwise=clients.initial()), local).models] if insured else []
    if insured:
        clients.keep(alone=own[0])
    if control is None:
        told["model"] = clients.train(start, local).models
    else:
        if looks:  # corrected, all models would be alike, whatever the clients' data
            control = told["before"] = clients.state("control", otherwise=start.zeros())
        told |= train_controlled(clients, start, control, local, start.zeros(), local.momentum)
    if parts:
        last = clients.state("model", otherwise=start)
        clients.keep(model=told["model"])
        candidates = Models.stack([start, told["model"], last, *own], axis=1)
        told["gains"] = judged(clients, candidates, parts)
    return told
