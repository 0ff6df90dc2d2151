"""What a method is: the server's side of a protocol, as pure functions over a small state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from coterie.core.errors import SettingsError, unknown
from coterie.core.fields import Count, within
from coterie.core.registry import Registry
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.fitting import Result, fit
from coterie.server.registered import methods as registered
from coterie.training.local import LocalTraining

M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class Method(LocalTraining, ABC):
    """Base of all methods: how long it runs, who takes part, and how clients train.

    A subclass declares what it can be told as fields with a default and a docstring below. `begin`, `round` and `serve`
    keep nothing in `self`: what is carried from round to round is the state, a class marked with `@state`.

    >>> @coterie.method("median")
    ... class Median(coterie.FedAvg):
    ...     '''One model: the median of the clients' models, parameter by parameter.'''
    ...
    ...     def step(self, state, replies):
    ...         middle = replies.model.parameters.median(dim=0).values
    ...         return type(state)(coterie.Models(state.model.net, middle, replies.average().buffers))
    >>> len(Median(rounds=2).fit(coterie.simulate(clients=3, net="mlp")).rounds)
    2
    """

    name: ClassVar[str]

    family: ClassVar[str] = "own"
    """The family that it is listed in: one of `coterie.server.registered.FAMILIES`."""

    rounds: Count = 20
    """How many rounds there are."""

    participation: Annotated[float, within("(0, 1]", "a fraction in (0, 1]; use 1.0 for all clients")] = 1.0
    """Share of the clients that take part in a round."""

    sends: ClassVar[str] = ""
    """What travels between server and clients, and between clients."""

    gives_away: ClassVar[str] = ""
    """What others learn of a client. It stands on the method's page and in reports."""

    sgd_only: ClassVar[str] = ""
    """Why the method needs SGD, as the error says that refuses another optimizer; empty if it does not."""

    counts_on_memory: ClassVar[str] = ""
    """Why a real site that has lost what it keeps cannot go on as one that has just joined, as the log says it; empty
    if it can. It cannot where the server carries sums of what clients keep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sgd_only and self.optimizer != "sgd":
            raise SettingsError(f"optimizer={self.optimizer}: {self.sgd_only}")

    @property
    def local(self) -> LocalTraining:
        """How clients train, as a setting for programs."""
        return LocalTraining(**{field.name: getattr(self, field.name) for field in fields(LocalTraining)})

    @property
    def reads_test_data(self) -> bool:
        """Whether it looks at test data, as some published protocols do. Every table of such a run says so."""
        return False

    @property
    def server_samples(self) -> int:
        """How many samples the server should hold for it, if nobody says; 0 if it needs none."""
        return 0

    @property
    def needs_classes(self) -> str:
        """Why the method needs every sample to be of one class, as an error says it; empty if it does not."""
        return ""

    @property
    def tied_to_rounds(self) -> str:
        """Why a run with more rounds is another one from its first round on, in words; empty if it is not.

        So it is with some schedules of the rate. A method whose rounds look at how many there are (`fed.rounds`)
        overrides this: otherwise a run that is made longer is not the one that had these rounds from its beginning.
        """
        return self.local.tied_to_rounds

    def check(self, fed: Federation) -> None:
        """Refuse a federation that the method cannot run on, before anything is written or sent."""
        if self.needs_classes and not fed.net.task.one_class:
            raise SettingsError(f"{self.name} {self.needs_classes}, and task={fed.net.task.name} has no classes")
        if self.prior == "own" and not fed.net.task.one_class:
            told = f"prior=own: clients add their shares of classes, and task={fed.net.task.name} has none"
            raise SettingsError(f"{told}; use prior=learned")

    @abstractmethod
    def begin(self, fed: Federation) -> Any:
        """The state before the first round."""

    @abstractmethod
    def round(self, fed: Federation, state: Any) -> Any:
        """The state after another round."""

    def serve(self, fed: Federation, state: Any) -> serving.Served:
        """The one model.

        It is `state.model`, for all clients; a method whose clients predict with anything else overrides this.
        """
        return serving.one(state.model, len(fed.names))

    def insight(self, fed: Federation, state: Any) -> Mapping[str, Any]:
        """What figures of the method show of its state after a round, by name: arrays with the client as first axis.

        What is seen on the way, and not carried in the state, `round` gives beside it, as `Noted`. It is asked for only
        with `Scoring.insights`. What clients keep from the server is shown in simulations alone: there a `fed.shortcut`
        may look at it.
        """
        return {}

    def fit(self, fed: Federation, **options: Any) -> Result:
        """Run all rounds on a federation; see `coterie.fit` for the options."""
        if not isinstance(fed, Federation):
            raise SettingsError(f"fed={fed!r}: expected a federation, such as coterie.simulate(...) gives")
        known = [name for name in signature(fit).parameters if name not in ("method", "fed")]
        for name in options:
            if name not in known:
                raise unknown("option of fit", name, known)
        return fit(self, fed, **options)


methods: Registry[Method] = registered
"""All methods by name."""


@dataclass_transform(frozen_default=True)
def method(name: str) -> Callable[[type[M]], type[M]]:
    """Register a method under a name; its fields become its options.

    >>> @coterie.method("large-steps")
    ... class LargeSteps(coterie.FedAvg):
    ...     '''FedAvg that goes farther.'''
    ...
    ...     server_rate: float = 1.5
    ...     '''How far.'''
    >>> coterie.methods.make("large-steps", rounds=3).server_rate
    1.5
    """
    return methods.register(name)  # type: ignore[return-value]


@dataclass_transform(frozen_default=True)
def method_variant(name: str) -> Callable[[type[M]], type[M]]:
    """Register a variant of a method with fields that only it has: it is made where one of them is given."""
    return methods.variant(name)  # type: ignore[return-value]
