"""What stands between data as users have it and a net: the scaling of inputs, and what outputs mean."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coterie.core.errors import DataError
from coterie.data.population import Population
from coterie.data.tasks import Task, task_named


@dataclass(frozen=True)
class Preparation:
    """How inputs are prepared for a net, and what its outputs mean. It goes wherever a model goes."""

    data: str
    """What the data is called."""
    task: str
    labels: tuple[str, ...]
    """What the outputs are called: classes, labels or numbers."""
    shape: tuple[int, ...]
    """The shape of one input."""
    shift: tuple[float, ...]
    """What is subtracted from inputs, per channel."""
    scale: tuple[float, ...]
    """What they are divided by then."""
    target_shift: tuple[float, ...] = (0.0,)
    """What is added to outputs that are numbers, after they have been multiplied by `target_scale`."""
    target_scale: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, population: Population) -> "Preparation":
        """How the inputs of a population are prepared, and what is predicted there."""
        numbers = (population.shift, population.scale, population.target_shift, population.target_scale)
        scaling = (tuple(map(float, values)) for values in numbers)
        return cls(population.data, population.task.name, population.labels, population.shape, *scaling)

    @property
    def kind_of_task(self) -> Task:
        """The task, with all that depends on it."""
        return task_named(self.task)

    def table(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Preparation":
        """The preparation that a table describes."""
        try:
            known: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
            }
            return cls(**known)
        except TypeError as error:
            raise DataError(f"not a description of prepared data: {error}") from error
