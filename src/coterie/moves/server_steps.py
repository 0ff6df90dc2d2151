"""Server steps: from the old model and the mixed one to the next."""

from typing import Any

import torch
from torch import Tensor

from coterie.nets.stacks import Changes, Models


def momentum(
    model: Models, mixed: Models, velocity: Changes | None, rate: float = 1.0, inertia: float = 0.0
) -> tuple[Models, Changes | None]:
    """Move towards the mixed model with a server rate and momentum: the new model and the new velocity.

    The change of the round counts as a gradient (Hsu et al. 2019, FedAvgM). With rate 1 and no inertia the result is
    the mixed model itself, to the last bit. Buffers are always the mixed ones.
    """
    if rate == 1 and inertia == 0:
        return mixed, None
    change = mixed - model
    if inertia:
        change = change if velocity is None else velocity * inertia + change
    moved = model + change * rate
    return Models(model.net, moved.parameters, mixed.buffers), change if inertia else None


def adaptive(
    model: Models,
    mixed: Models,
    first: Changes,
    second: Changes,
    kind: str,
    rate: float,
    decays: tuple[float, float],
    tau: float,
) -> tuple[Models, Changes, Changes]:
    """A step of Adam, Yogi or Adagrad, for which the change to the mixed model is the gradient (FedOpt, Algorithm 2).

    `first` is the running mean of changes and `second` that of their squares, or with Adagrad the sum. The result is
    the new model, and both of them anew. Buffers are the mixed ones.
    """
    change = mixed - model
    first = first * decays[0] + change * (1 - decays[0])
    square, known = change.parameters.square(), second.parameters
    if kind == "adagrad":
        known = known + square
    elif kind == "yogi":
        known = known - (1 - decays[1]) * square * torch.sign(known - square)
    else:
        known = decays[1] * known + (1 - decays[1]) * square
    moved = model.parameters + rate * first.parameters / (known.sqrt() + tau)
    return Models(model.net, moved, mixed.buffers), first, Changes(model.net, known)


def beyond(model: Models, mixed: Models, velocity: Changes, rate: float, inertia: float) -> tuple[Models, Changes]:
    """Go beyond the mixed model along a running mean of the changes: the new model and the new mean (FedFa's step).

    A negative rate goes back instead.
    """
    velocity = velocity * inertia + (mixed - model) * (1 - inertia)
    return mixed + velocity * rate, velocity


def normalised(model: Models, trained: Models, mean: Models, weights: Tensor, lengths: Tensor) -> Models:
    """FedNova's mean: the model moved by the mean change per gradient, times the mean number of gradients.

    Both means have these weights. `lengths` [client] says how many gradients each client has added up; one that has
    none has no weight. Buffers are those of the plain `mean`: running statistics are not sums of gradients.
    """
    lengths = lengths.double().cpu()
    weights = weights.double().cpu() * (lengths > 0)
    if weights.any():
        weights = weights / weights.sum()
    change = weights @ ((trained - model) / torch.where(lengths > 0, lengths, 1)) * float(weights @ lengths)
    return Models(model.net, (model + change).parameters, mean.buffers)


def mean_over_all(mean: Changes, known: int, changes: Changes, clients: int) -> Changes:
    """The mean over all clients of what only they keep (SCAFFOLD's c, FedDyn's h), after some have changed theirs.

    So far it was a mean over `known` clients; now there are `clients`, of which new ones keep nothing yet. Both are the
    most that were ever there at once: so the mean stays exact when clients join late, and does not jump when some
    cannot be reached. `changes` [client] are divided by all clients: by those that answered would overshoot.
    """
    total = torch.ones(len(changes)) @ changes
    return mean * (known / clients) + total / clients


def control_variate(
    own: Changes, control: Changes, start: Models, trained: Models, gradients: Tensor | float
) -> Changes:
    """A client's new control variate, c_i - c + (x - y_i) / (K eta): option II of SCAFFOLD.

    `gradients` is K eta. A client that took no step has seen no gradient, and keeps what it had.
    """
    taken = torch.as_tensor(gradients, dtype=torch.float64).expand(len(own))
    new = own - control + (start - trained) / torch.where(taken > 0, taken, 1)
    return new.where(taken > 0, own)


def weight_of_steps(steps: Tensor, momentum: float) -> Tensor:
    """How many gradients local SGD adds up in these numbers of `steps` [client]: FedNova's a_i.

    Without momentum it is the number of steps; with momentum rho it is
    (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho) (Wang et al., NeurIPS 2020).
    """
    if momentum == 0:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def direction(model: Models, others: Models, weights: Any) -> Changes:
    """The weighted sum of the directions, each of length 1, from a model to other models [group].

    However far a group went, it pulls by its weight alone (CFIC, Eq. 4). One that did not move does not pull. With
    weights that sum to 1 the result is at most 1 long.
    """
    change = others - model
    length = change.norm()
    # A mean of equal models differs from them in its last bits, and that has a direction too.
    moved = length > 8 * torch.finfo(length.dtype).eps * model.norm()
    return torch.as_tensor(weights) @ (change * torch.where(moved, 1 / length, 0))
