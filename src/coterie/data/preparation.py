"""What stands between data as users have it and a net: the inputs there are, their scaling, what outputs mean."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coterie.core.errors import DataError
from coterie.data.population import Population
from coterie.data.schema import Schema
from coterie.data.tasks import Task, task_named


@dataclass(frozen=True)
class Preparation:
    """How inputs are prepared for a net, and what its outputs mean. It goes wherever a model goes."""

    data: str
    """What the data is called."""
    task: str
    labels: tuple[str, ...]
    """What the outputs are called: classes, labels or numbers."""
    kind: str
    """What an input is; see `Dataset.kind`."""
    shape: tuple[int, ...]
    """The shape of one input."""
    shift: tuple[float, ...]
    """What is subtracted from inputs, per channel."""
    scale: tuple[float, ...]
    """What they are divided by then."""
    target_shift: tuple[float, ...] = (0.0,)
    """What is added to outputs that are numbers, after they have been multiplied by `target_scale`."""
    target_scale: tuple[float, ...] = (1.0,)
    vocabulary: int = 0
    """How many ids there are, if inputs are tokens."""
    filling: tuple[float, ...] = ()
    """What stands for missing values, per input, if some may be missing."""
    schema: Schema | None = None
    """What the columns of the table are, if inputs are rows of one."""

    @classmethod
    def of(cls, population: Population) -> "Preparation":
        """How the inputs of a population are prepared, and what is predicted there."""

        def numbers(values: Any) -> tuple[float, ...]:
            return () if values is None else tuple(map(float, values))

        return cls(
            population.data,
            population.task.name,
            population.labels,
            population.kind,
            population.shape,
            numbers(population.shift),
            numbers(population.scale),
            numbers(population.target_shift),
            numbers(population.target_scale),
            population.vocabulary,
            numbers(population.filling),
            population.schema,
        )

    @property
    def kind_of_task(self) -> Task:
        """The task, with all that depends on it."""
        return task_named(self.task)

    def table(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self) | {"schema": None if self.schema is None else self.schema.table()}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Preparation":
        """The preparation that a table describes."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
        }
        try:
            schema = known.pop("schema")
            return cls(**known, schema=None if schema is None else Schema.from_table(schema))
        except (KeyError, TypeError) as error:
            raise DataError(f"not a description of prepared data: {error}") from error
