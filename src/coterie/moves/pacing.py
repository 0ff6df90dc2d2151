"""AutoCFL's adjustment of local training: clients that lag behind train longer, so that models differ by data alone.

Clients with few samples take few steps; their models stay near the start and look alike, whatever their data. Before
clients are clustered, those that have lost more than the client with most samples therefore get more epochs (Gong et
al., Section 4.2). It can precede any clustering of models: AutoCFL's own and that of FL+HC.

| symbol | here |
|---|---|
| E_m, \\|D_m\\| | `Pace.epochs`, the client's samples |
| loss_m, CL_m | the mean loss of its last epoch in a round, and the sum of these over rounds (Eq. 7) |
| s\\*, alpha, rho | the client with most samples, `growth`, the exponent of Eq. 9 |
"""

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL, NUMBER
from coterie.clients.programs import Outputs, program
from coterie.core.records import state
from coterie.nets.stacks import Models
from coterie.training.local import LocalTraining

_ROUNDING = 1e-6
"""Losses that differ by a smaller part are equal: clients with the same data sum it up in different orders."""


@state
class Pace:
    """How long each client trains, and what it has lost so far; tensors are [client]."""

    epochs: Tensor
    """E_m, fractions included."""
    total: Tensor
    """Its losses, summed over the rounds in which it took part."""
    taken: Tensor
    """How many rounds these are."""
    last: Tensor
    """Its loss of the last of them."""
    variances: tuple[float, ...] = ()
    """The variance of cumulative losses over clients after each round."""


def begin(clients: int, epochs: float) -> Pace:
    """The pace before the first round: this number of epochs for each of this many clients."""
    none = torch.zeros(clients, dtype=torch.float64)
    return Pace(torch.full_like(none, epochs), none, none, none)


def grown(pace: Pace, clients: int, epochs: float) -> Pace:
    """The pace with room for this many clients, if there are more than before; new ones start with these epochs."""
    more = max(0, clients - len(pace.epochs))
    total, taken, last = (F.pad(values, (0, more)) for values in (pace.total, pace.taken, pace.last))
    return Pace(F.pad(pace.epochs, (0, more), value=epochs), total, taken, last, pace.variances)


def observed(pace: Pace, clients: np.ndarray, loss: Tensor) -> Pace:
    """The pace after a round in which these clients reported these losses [client]."""
    total, taken, last = pace.total.clone(), pace.taken.clone(), pace.last.clone()
    loss = loss.detach().cpu().double()
    total[clients] += loss
    taken[clients] += 1
    last[clients] = loss
    pace = dataclasses.replace(pace, total=total, taken=taken, last=last)
    variance = float(_cumulative(pace)[taken > 0].var(correction=0))
    return dataclasses.replace(pace, variances=(*pace.variances, variance))


def _cumulative(pace: Pace) -> Tensor:
    """CL_m, [client]. Rounds that a client missed count with its mean loss: its sum alone has fewer summands."""
    return pace.total * (pace.taken.max() / pace.taken.clamp(min=1))


def adjusted(pace: Pace, samples: Any, growth: float = 0.5, capped: bool = False) -> Pace:
    """The pace with the epochs of the next round; `samples` [client] are the clients' numbers of samples."""
    known = pace.taken > 0
    samples = torch.as_tensor(samples)[: len(known)]
    epochs = pace.epochs.clone()
    epochs[known] = more_epochs(
        epochs[known], samples[known], pace.last[known], _cumulative(pace)[known], growth, capped
    )
    return dataclasses.replace(pace, epochs=epochs)


def more_epochs(
    epochs: Any, samples: Any, loss: Any, cumulative: Any, growth: float = 0.5, capped: bool = False
) -> Tensor:
    """E_m of the next round from this one's [client]: Eqs. 8 and 9.

    Clients that have lost more than the one with most samples (the first of equals) get (growth |D_s*| / |D_m|)^rho
    epochs more, with rho = min(1, loss_m / loss_s*). Where the base is below 1, a small rho makes that step longer and
    not shorter, as the paper means it to; `capped` limits it to the base.
    """
    epochs, samples, loss, cumulative = (
        torch.as_tensor(values, dtype=torch.float64) for values in (epochs, samples, loss, cumulative)
    )
    most = int(np.argmax(samples.numpy()))
    base = growth * samples[most] / samples
    rho = (loss / loss[most]).nan_to_num(nan=1.0).clamp(max=1)  # the benchmark may have nothing left to lose
    step = base**rho
    if capped:
        step = torch.minimum(step, base)
    behind = cumulative > cumulative[most] * (1 + _ROUNDING)
    return epochs + torch.where(behind, step, 0.0)


def rises(pace: Pace) -> bool:
    """Whether cumulative losses differ more after this round than after the one before: the paper's sign to stop."""
    return len(pace.variances) > 1 and pace.variances[-1] > pace.variances[-2]


def insight(pace: Pace) -> dict[str, Any]:
    """Epochs and cumulative losses, [client], and the variance of these after each round so far."""
    losses = torch.where(pace.taken > 0, _cumulative(pace), torch.nan)
    return {"epochs": pace.epochs, "cumulative_loss": losses, "loss_variance": pace.variances}


@program(gives={"model": MODEL, "loss": NUMBER})
def train_for(clients: Clients, start: Models, epochs: Tensor, local: LocalTraining) -> Outputs:
    """Train for the client's own number of epochs, and report the mean loss of the last one."""
    trained = clients.train(start, local, epochs=epochs)
    return {"model": trained.models, "loss": trained.loss}
