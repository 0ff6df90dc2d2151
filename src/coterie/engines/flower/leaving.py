"""What a site does to what leaves it: it bounds how far an answer is from what was sent, and adds noise.

Each output by itself is brought near: its difference to what the server has sent in the same form is clipped to a
Euclidean length. A change, or whatever nothing of its form was sent for, is clipped itself. Then Gaussian noise is
added, drawn anew for every answer, from the machine's own randomness and no seed that a server knows.

Whole numbers (counts of labels, choices), scores and letters are left as they are. Nothing here counts what many
answers tell together.

>>> sent, trained = torch.zeros(1, 4), torch.full((1, 4), 3.0)
>>> Leaving(clip=1.0).treated({"update": trained}, [sent])["update"].norm().item()
1.0
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.clients.memory import Value
from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, NonNegative
from coterie.nets.stacks import Changes, Models, Stack


@dataclass(frozen=True)
class Leaving(Checked):
    """Bounds on what leaves a site in answers that do not score."""

    clip: NonNegative = 0.0
    """The longest difference, in Euclidean distance, between what the site was sent and what it sends back; 0 does not
    clip."""

    noise: NonNegative = 0.0
    """The deviation of Gaussian noise on every number that leaves, in units of `clip`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and not self.clip:
            raise SettingsError(f"noise={self.noise}: is in units of clip, which is not set")

    def treated(self, outputs: Mapping[str, Value], sent: Iterable[Value]) -> dict[str, Value]:
        """The outputs [client, ...] of a program that was sent these values [client, ...]."""
        if not self.clip:
            return dict(outputs)
        known = list(sent)
        return {name: self._treated(value, known) for name, value in outputs.items()}

    def _treated(self, value: Value, sent: Iterable[Value]) -> Value:
        tensors = _tensors(value)
        if not all(tensor.is_floating_point() for tensor in tensors):
            return value
        start: list[Tensor] = [torch.zeros_like(tensor) for tensor in tensors]
        if not isinstance(value, Changes):
            alike = [other for other in sent if type(other) is type(value) and other.shape == value.shape]
            fitting = [other for other in alike if [t.shape for t in _tensors(other)] == [t.shape for t in tensors]]
            start = [tensor.to(tensors[0]) for tensor in _tensors(fitting[0])] if fitting else start
        changes = [(tensor - origin).double() for tensor, origin in zip(tensors, start, strict=True)]
        length = torch.stack([change.flatten(1).square().sum(dim=1) for change in changes]).sum(dim=0).sqrt()
        factor = (self.clip / length).clamp(max=1.0).nan_to_num(nan=1.0)
        rng = np.random.default_rng()
        made = []
        for change, origin in zip(changes, start, strict=True):
            near = change * factor.reshape(-1, *[1] * (change.dim() - 1))
            noise = torch.from_numpy(rng.normal(0.0, self.noise * self.clip, tuple(change.shape)))
            made.append((origin.double() + near + noise.to(near)).to(origin))
        return type(value)(value.net, *made) if isinstance(value, Models | Changes) else made[0]


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return tuple(value.tensors) if isinstance(value, Stack) else (value,)
