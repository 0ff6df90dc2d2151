"""What training lowers, where that is not the task's own loss: functions by name, in `losses`, or a user's own.

A loss is a function of a net's outputs [sample, output] and of targets that gives one loss for each sample [sample].
Targets are numbers of classes [sample], 0 and 1 [sample, label], or numbers [sample, number] with mean 0 and deviation
1, as nets learn them. The mean is ours to take: rows of a batch may be padding, and samples may have weights. So a loss
that takes it itself would be wrong without anybody noticing, and is refused.

What is evaluated as `loss` is the same loss, as a mean over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.core.errors import SettingsError, unknown
from coterie.core.modules import own_thing
from coterie.core.registry import first_line
from coterie.data.tasks import TASKS, Task, task_named

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LossFunction = Callable[..., Any]
"""Gives the losses [sample] for outputs [sample, output] and targets."""

_SAMPLES = 3
"""With how many samples a loss is tried before training."""


@dataclass(frozen=True)
class Loss:
    """A loss: its function, and the tasks that it is for."""

    name: str
    function: LossFunction
    tasks: tuple[str, ...] = tuple(TASKS)

    @property
    def about(self) -> str:
        """What it is, in a line."""
        return first_line(self.function)


losses: dict[str, Loss] = {}
"""All losses that have a name of their own."""


def loss(name: str, *, tasks: Sequence[str] = tuple(TASKS)) -> Callable[[LossFunction], LossFunction]:
    """Make a function of outputs and targets a loss, which settings then know by this name.

    It gives a loss for each sample, and takes no mean over samples. It is made of operations of torch alone, without
    `.item()` and without an `if` about values, because all clients are computed in one go.

    >>> @coterie.loss("hinge", tasks=["classification"])
    ... def hinge(outputs, targets):
    ...     "How far the label's output is from being ahead of all others by 1."
    ...     label = targets.unsqueeze(1)
    ...     ahead = outputs.gather(1, label) - outputs.scatter(1, label, -torch.inf).amax(1, keepdim=True)
    ...     return (1 - ahead).clamp(min=0).squeeze(1)
    >>> fed = coterie.simulate(clients=3, net="mlp", loss="hinge")
    >>> result = coterie.FedAvg(rounds=2).fit(fed)
    >>> result.rounds[1]["loss_mean"] < result.rounds[0]["loss_mean"]  # the mean over samples of the same loss
    True
    """
    if not isinstance(name, str):  # the decorator without brackets would register nothing, and say nothing
        raise SettingsError('loss: the decorator takes a name, e.g. `("mine")`')
    for task in tasks:
        task_named(task)

    def register(function: LossFunction) -> LossFunction:
        losses[name] = Loss(name, function, tuple(tasks))
        return function

    return register


def loss_named(name: str) -> Loss:
    """A loss by its name, or a user's own by its import path (`package.module:function`)."""
    if name in losses:
        return losses[name]
    if ":" not in name:
        raise unknown("loss", name, [*losses, "package.module:function"])
    return _of_function(own_thing("loss", name), name)


def _of_function(function: Any, name: str) -> Loss:
    """The loss that a function is: as it is registered, if it is."""
    if not callable(function):
        raise SettingsError(f"loss={name}: expected a name, or a function of (outputs, targets)")
    return next((known for known in losses.values() if known.function is function), Loss(name, function))


def task_with(task: Task, loss: str | LossFunction | None, classes: int, device: torch.device) -> Task:
    """The task, in which training lowers a loss by its name or by its function; with None the task's own.

    A loss that does not give one number for each sample is refused, and so is one that is for other tasks.
    """
    if not loss:
        return task
    if isinstance(loss, str):
        chosen = loss_named(loss)
    else:
        name = getattr(loss, "__qualname__", None)
        chosen = _of_function(loss, repr(loss) if name is None else f"{loss.__module__}:{name}")
    if task.name not in chosen.tasks:
        raise SettingsError(f"loss={chosen.name}: is for task={' or '.join(chosen.tasks)}; this is task={task.name}")
    _check(chosen, task, classes, device)
    kind: Any = type(task)

    class WithLoss(kind):  # a task like this one, but for what training lowers
        own_loss = chosen.name
        own_function = staticmethod(chosen.function)

        def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
            found: Tensor = chosen.function(outputs.flatten(0, -2), y.flatten(0, outputs.dim() - 2))
            return found.to(outputs.dtype).unflatten(0, outputs.shape[:-1])

    made: Task = WithLoss()
    return made


def _check(loss: Loss, task: Task, classes: int, device: torch.device) -> None:
    """Refuse a function that gives anything but a loss for each sample, which depends on that sample alone."""
    import torch
    from torch.func import vmap

    outputs = torch.linspace(-1, 1, _SAMPLES * classes, device=device).sin().reshape(_SAMPLES, classes).requires_grad_()
    y = torch.arange(_SAMPLES, device=device) % classes
    if not task.one_class:
        y = (torch.arange(_SAMPLES * classes, device=device).reshape(_SAMPLES, classes) % 2).to(outputs.dtype)
    shapes = f"outputs {_shape(outputs)} and targets {_shape(y)}"
    wanted = f"for {shapes}; it must give one loss for each sample, ({_SAMPLES},)"
    try:
        found = loss.function(outputs, y)
    except Exception as error:  # whatever the user's function does
        raise SettingsError(f"loss {loss.name}: fails for {shapes}: {_line(error)}") from error
    if not isinstance(found, torch.Tensor):
        raise SettingsError(f"loss {loss.name}: gives {type(found).__name__} {wanted}, as a tensor")
    if found.dim() == 0:
        advice = "leave out .mean(), and say reduction='none' to functions of torch: Coterie takes the mean"
        raise SettingsError(f"loss {loss.name}: gives one number {wanted}: {advice}")
    if found.shape != (_SAMPLES,):
        advice = ": take the mean over all axes but the first, e.g. .mean(dim=1)" if len(found) == _SAMPLES else ""
        raise SettingsError(f"loss {loss.name}: gives {_shape(found)} {wanted}{advice}")
    if not (found.is_floating_point() and found.requires_grad):
        raise SettingsError(f"loss {loss.name}: has no gradient; make it of the outputs, by differentiable operations")
    try:
        alone = torch.cat([loss.function(outputs[i : i + 1], y[i : i + 1]).reshape(1) for i in range(_SAMPLES)])
        stacked = vmap(loss.function)(outputs.expand(2, -1, -1), y.expand(2, *y.shape))
    except Exception as error:
        advice = "use operations of torch only, without .item(), random numbers or an `if` about values"
        where = "for one sample, or for many clients at once"
        raise SettingsError(f"loss {loss.name}: fails {where}: {_line(error)}; {advice}") from error
    for other in (alone, *stacked):
        if not torch.allclose(other, found, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise SettingsError(
                f"loss {loss.name}: a sample's loss depends on the other samples, of which some may be padding; "
                "make it of the sample's own outputs and target"
            )


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


@loss("label-smoothing", tasks=("classification", "binary"))
def _label_smoothing(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy with a tenth of the label's probability spread over all classes. (Szegedy et al., CVPR 2016)"""
    logs = outputs.log_softmax(dim=-1)
    return -0.9 * logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - 0.1 * logs.mean(dim=-1)


@loss("focal", tasks=("classification", "binary"))
def _focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy times (1 - p)^2, so that samples which are recognised count less. (Lin et al., ICCV 2017)"""
    log = outputs.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -((1 - log.exp()) ** 2) * log


@loss("absolute", tasks=("regression",))
def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """The absolute error, which outliers pull less than the squared one; a mean over the numbers of a sample."""
    return (outputs - targets).abs().mean(dim=-1)


@loss("huber", tasks=("regression",))
def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error up to a deviation of 1, and linear beyond; a mean over the numbers. (Huber, 1964)"""
    error = (outputs - targets).abs()
    near = error.clamp(max=1)
    return (near * (error - near / 2)).mean(dim=-1)
