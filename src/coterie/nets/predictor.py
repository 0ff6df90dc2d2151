"""A model to take home: a plain module that takes inputs as the data has them, with all preparation inside."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import DataError
from coterie.data.dataset import inputs_of
from coterie.data.preparation import Preparation
from coterie.data.tables import encoded_rows

_AT_ONCE = 256
"""How many samples are predicted at once."""


class Predictor(nn.Module):
    """Predicts for raw inputs: it scales them, lets one net or a mixture of several compute, and names what comes out.

    Called, it gives the nets' outputs [sample, output]: for classes and labels before the softmax or the sigmoid, for
    numbers the numbers in their own units.
    """

    offset: Tensor
    factor: Tensor
    filling: Tensor
    weights: Tensor
    prior: Tensor
    target_shift: Tensor
    target_scale: Tensor

    def __init__(
        self,
        nets: Sequence[nn.Module],
        preparation: Preparation,
        weights: Tensor | None = None,
        client: str = "",
        prior: Tensor | None = None,
        blend: bool = False,
    ) -> None:
        """One net, or several with the `weights` [net] by which their predictions are mixed.

        As a `blend` not their probabilities are mixed, but their outputs before the softmax. A `prior` [class] is added
        to what each net gives.
        """
        super().__init__()
        self.nets, self.preparation, self.client = nn.ModuleList(nets), preparation, client
        self.task = preparation.kind_of_task
        self._mix = self.task.blended if blend else self.task.mixed
        dtype = next(nets[0].parameters()).dtype
        # The same numbers as in `Pool`, so that a sample is prepared here as it was when the model was scored.
        shift, scale = np.array(preparation.shift), np.array(preparation.scale)
        channel = (-1,) if preparation.kind == "series" else (-1,) + (1,) * (len(preparation.shape) - 1)
        self._constant("factor", torch.from_numpy(1 / scale).to(dtype).reshape(channel))
        self._constant("offset", torch.from_numpy(-shift / scale).to(dtype).reshape(channel))
        self._constant("target_shift", torch.tensor(preparation.target_shift, dtype=dtype))
        self._constant("target_scale", torch.tensor(preparation.target_scale, dtype=dtype))
        self._constant("filling", torch.tensor(preparation.filling, dtype=torch.float32))
        self._constant("weights", torch.ones(1, dtype=torch.float64) if weights is None else weights)
        self._constant("prior", torch.zeros(0, dtype=dtype) if prior is None else prior.to(dtype))
        self.eval()

    def _constant(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the outputs are called."""
        return self.preparation.labels

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for raw inputs [sample, ...]."""
        x = self._prepared(x)
        outputs = [net(x) + self.prior if len(self.prior) else net(x) for net in self.nets]
        mixed = outputs[0] if len(outputs) == 1 else self._mix(torch.stack(outputs), self.weights[:, None])
        return mixed * self.target_scale + self.target_shift if self.task.name == "regression" else mixed

    def _prepared(self, x: Tensor) -> Tensor:
        """Inputs as the nets take them; ids of tokens as they are."""
        if self.preparation.kind == "tokens":
            return x.long()
        if len(self.filling):
            x = torch.where(x.isnan(), self.filling, x)
        return torch.addcmul(self.offset, x.to(self.factor.dtype), self.factor)

    def scores(self, x: Any) -> np.ndarray:
        """What is predicted for raw inputs, in numbers: probabilities [sample, output], or the numbers themselves.

        Where inputs are rows of a table, `x` may be a data frame or the path of a table, with or without targets.
        """
        shape = self.preparation.shape
        if self.preparation.schema is not None and not isinstance(x, Tensor | np.ndarray):
            x = encoded_rows(x, self.preparation.schema)
        elif self.preparation.schema is None and not isinstance(x, Tensor):
            x = inputs_of("inputs", np.asarray(x), self.preparation.kind, missing=False)
        inputs = torch.as_tensor(x)
        if tuple(inputs.shape[1:]) != shape:
            raise DataError(f"inputs of shape {tuple(inputs.shape)}: expected [sample, {', '.join(map(str, shape))}]")
        inputs = inputs.to(self.factor.device)
        with torch.no_grad():
            parts = [self.task.predicted(self(block)) for block in inputs.split(_AT_ONCE)]
        return torch.cat(parts).cpu().numpy()

    def predict(self, x: Any) -> np.ndarray:
        """What is predicted for raw inputs: names of classes [sample], which labels are there, or the numbers."""
        scores = self.scores(x)
        if self.task.one_class:
            return np.array(self.labels)[scores.argmax(axis=1)]
        return scores > 0.5 if self.task.name == "multi-label" else scores
