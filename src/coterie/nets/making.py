"""Makes nets: ours by their names, and those of users' own functions."""

import torch

from coterie.core.errors import SettingsError, unknown
from coterie.core.modules import own_thing
from coterie.data.tasks import TASKS, Task
from coterie.nets.net import Factory, Net
from coterie.nets.zoo import nets


def factory_named(name: str) -> Factory:
    """The factory of a net of ours by its name, or a user's own by its import path (`package.module:function`)."""
    if name in nets:
        return nets[name]
    if ":" not in name:
        raise unknown("net", name, [*nets, "package.module:function"])
    factory: Factory = own_thing("net", name)
    if not callable(factory):
        raise SettingsError(f"net {name!r}: not a function of (shape, classes) that gives an nn.Module")
    return factory


def make_net(
    net: str | Factory,
    shape: tuple[int, ...],
    classes: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    task: Task = TASKS["classification"],
    vocabulary: int = 0,
) -> Net:
    """A net for inputs of a shape and a number of outputs, by its name or made by a function of these two.

    If inputs are token ids, `vocabulary` says how many different ones there are, with 0, which fills up.
    """
    factory = factory_named(net) if isinstance(net, str) else net
    if not callable(factory):
        raise SettingsError(
            f"net={net!r}: expected the name of a net, or a function of (shape, classes) that makes one"
        )
    name = net if isinstance(net, str) else f"{factory.__module__}:{getattr(factory, '__qualname__', factory)}"
    return Net(factory, shape, classes, name, device, dtype, task, vocabulary)
