"""The port between methods and clients: a method asks the federation to run a program, and mixes what comes back."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.clients import programs
from coterie.clients.clients import HOME, HOME_BLEND, HOME_PRIOR, HOME_WEIGHTS, CallContext, Clients, new_models
from coterie.clients.letters import Letters
from coterie.clients.memory import Value, size_of
from coterie.clients.programs import Program
from coterie.core.display import html_table, span
from coterie.core.errors import CoterieError, NoAnswerError
from coterie.core.origin import origin
from coterie.core.randomness import generator
from coterie.data.moments import Moments
from coterie.data.preparation import Preparation
from coterie.moves import mixing, sampling
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models, Stack
from coterie.server.ledger import Direction, Ledger
from coterie.training.local import LocalTraining

KEPT_FINITE = "_kept_finite"
"""The output, beside a program's own, that says whether the models that a client keeps are finite, [client]."""

_HOME = (HOME, HOME_WEIGHTS, HOME_BLEND, HOME_PRIOR)

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Call:
    """A program with its inputs, for some clients: what an engine carries."""

    program: Program
    clients: np.ndarray
    """Positions of the clients, ascending."""
    each: Mapping[str, Value] = field(default_factory=dict)
    """Inputs with a row per client."""
    shared: Mapping[str, Value] = field(default_factory=dict)
    """Inputs that are the same for all."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: CallContext = field(default_factory=CallContext)
    letters: Letters = field(default_factory=Letters)
    """Letters for these clients."""


@dataclass(frozen=True)
class Answers:
    """What came back: who answered, and their outputs in that order."""

    clients: np.ndarray
    outputs: Mapping[str, Value]
    letters: Letters = field(default_factory=Letters)
    """What they have written to each other."""


class Engine(Protocol):
    """Carries programs to clients, which have positions from 0 on."""

    @property
    def net(self) -> Net:
        """The net that is trained."""

    @property
    def names(self) -> Sequence[str]:
        """What the clients are called."""

    @property
    def sizes(self) -> Sequence[int]:
        """Training samples of each client."""

    @property
    def preparation(self) -> Preparation | None:
        """How inputs are prepared for the net; None where only the clients know."""

    @property
    def server(self) -> Sequence[int]:
        """Positions of the parts of the global test set, all below 0: they can be scored like clients."""

    @property
    def real(self) -> bool:
        """Whether clients are real sites. An engine that does not say is real: that costs time, never privacy."""

    def present(self) -> np.ndarray:
        """Positions of the clients that can be reached."""

    def start_round(self, number: int) -> None:
        """A round begins: the engine may look which clients can be reached."""

    def run(self, call: Call) -> Answers:
        """Run a program on clients."""

    def reject(self, clients: np.ndarray) -> None:
        """Forget what these clients have kept since the last commit."""

    def commit(self) -> None:
        """Make final what clients have kept in this round."""

    def rollback(self) -> None:
        """Forget what all clients have kept in this round."""

    def reset(self) -> None:
        """Forget everything that clients keep: a new run begins."""

    def checkpoint(self) -> Any:
        """What clients keep, to be stored with a checkpoint."""

    def restore(self, content: Any) -> None:
        """Go back to a checkpoint."""

    def server_clients(self, at: CallContext) -> Clients:
        """The `Clients` interface over what the server itself holds."""

    def explain(self) -> str:
        """How it computes, and why."""

    def close(self) -> None:
        """Give back what it holds, such as worker processes."""


class Replies:
    """What clients sent back: each output of the program as an attribute, with a row per client that answered.

    >>> fed = coterie.simulate(split="iid", clients=4, net="mlp")
    >>> replies = fed.run(coterie.programs.label_histogram)
    >>> replies.label_histogram.shape, replies.samples.tolist()
    (torch.Size([4, 10]), [251, 252, 251, 252])
    """

    def __init__(self, clients: np.ndarray, outputs: Mapping[str, Value], samples: Tensor, letters: Letters) -> None:
        self.clients = clients
        """Positions of the clients that answered, ascending."""
        self.outputs: dict[str, Any] = dict(outputs)
        self.letters = letters
        """What they have written to each other, to be handed on unopened."""
        self.samples = samples
        """Training samples of the clients that answered, [client]."""

    def __len__(self) -> int:
        return len(self.clients)

    def __getattr__(self, name: str) -> Any:
        outputs = self.__dict__.get("outputs", {})
        if name in outputs:
            return outputs[name]
        raise AttributeError(f"the program returned no {name!r}, only {', '.join(outputs) or 'nothing'}")

    def of(self, there: Any) -> "Replies":
        """The replies of some of the clients that answered: `there` [client] is true for them."""
        there = torch.as_tensor(there, dtype=torch.bool).cpu()
        outputs = {name: value[there.to(value.device)] for name, value in self.outputs.items()}
        return Replies(self.clients[there.numpy()], outputs, self.samples[there], self.letters)

    def counts(self, weighting: str = "samples") -> Tensor:
        """What the clients count for, [client]: as many as their samples, or 1 each."""
        return self.samples if weighting == "samples" else torch.ones(len(self))

    def weights(self, weighting: str = "samples") -> Tensor:
        """The clients' weights in a mean, [client], which sum to 1: in proportion to their samples, or equal."""
        return mixing.by_samples(self.counts(weighting))[0]

    def average(self, weighting: str = "samples", of: str = "model", by: Any = None, otherwise: Any = None) -> Any:
        """The mean of an output over the clients, weighted by their samples or uniformly: a single model.

        With `by` [client], the group of each client that answered, there is a mean for each group, [group]. A group
        from which nobody answered gets what `otherwise` [group] has there, unchanged to the last bit.
        """
        samples = self.counts(weighting)
        if by is None:
            return (mixing.by_samples(samples) @ self.outputs[of])[0]
        membership = torch.as_tensor(by).cpu() == torch.arange(len(otherwise))[:, None]  # [group, client]
        return self.mixed(membership * samples, otherwise, of)

    def mixed(self, weights: Tensor, otherwise: Any, of: str = "model") -> Any:
        """Weighted means of an output, one for each row of weights [group, client]. Rows need not sum to 1.

        A row without any weight, because nobody of that group answered, gives what `otherwise` [group] has there,
        unchanged to the last bit.
        """
        there = (weights > 0).any(dim=1)
        normal = torch.zeros(weights.shape, dtype=torch.float64)
        normal[there] = mixing.by_samples(torch.ones(len(self)), weights[there])
        return (normal @ self.outputs[of]).where(there, otherwise)


class Federation:
    """Clients that can be asked to run programs, in a run of rounds.

    >>> fed = coterie.simulate(split="iid", clients=4, net="mlp")
    >>> fed.sizes
    tensor([251, 252, 251, 252])
    >>> replies = fed.run(coterie.programs.train, [0, 2], shared=fed.new_model(), local=coterie.LocalTraining(steps=1))
    >>> replies.clients
    array([0, 2])
    """

    def __init__(
        self,
        engine: Engine,
        seed: int = 0,
        arrivals: Mapping[int, int] | None = None,
        true_groups: np.ndarray | None = None,
        world: Mapping[str, Any] | None = None,
        checksum: str = "",
    ) -> None:
        """`world` is what a settings file says of these clients; `checksum` is that of own data."""
        self._engine, self.seed, self.true_groups, self.world = engine, seed, true_groups, world
        self._checksum = checksum
        self.keep_last, self._test_data = False, False
        self.prior = 0.0
        """The smoothing of the priors that clients add to what models give for their data; 0 if they add none."""
        self.ledger = Ledger()
        self.round, self.rounds, self._phase = 0, 0, 0
        self._method_at_work = False
        self._arrivals = dict(arrivals or {})
        for client in self._arrivals:
            if not 0 <= client < len(engine.names):
                raise CoterieError(f"arrivals: there is no client {client} (0 to {len(engine.names) - 1})")

    def __repr__(self) -> str:
        return f"Federation({self._told})"

    def _repr_html_(self) -> str:
        """What a notebook shows: each client with what it has."""
        columns: dict[str, list[Any]] = {"client": [*self.names], "samples to train on": self.sizes.tolist()}
        if self.true_groups is not None:
            columns["true group"] = self.true_groups.tolist()
        if self._arrivals:
            columns["comes in round"] = [self._arrivals.get(client, 1) for client in range(len(self.names))]
        return html_table(self._told, [*columns], zip(*columns.values(), strict=True))

    @property
    def _told(self) -> str:
        """What it is, in a line."""
        split = f"{self.world['split']['name']} split, " if self.world else ""
        data = f"{self.preparation.data}, " if self.preparation else ""
        who = f"{len(self.names):,} {'sites' if self.real else 'clients'}"
        sizes = f" with {span(self.sizes.tolist())} samples to train on" if len(self.names) else ""
        return f"{data}{split}{who}{sizes}; net {self.net.name}, {self.net.parameters.total:,} parameters"

    @property
    def net(self) -> Net:
        """The net that is trained."""
        return self._engine.net

    @property
    def names(self) -> Sequence[str]:
        """What the clients are called, present or not."""
        return self._engine.names

    @property
    def sizes(self) -> Tensor:
        """Training samples of every client, [client]."""
        return torch.tensor(self._engine.sizes)

    @property
    def real(self) -> bool:
        """Whether clients are real sites, whose data and models the server must not see, and not a simulation's."""
        return getattr(self._engine, "real", True)

    @property
    def preparation(self) -> Preparation | None:
        """How inputs are prepared for the net; None where only the clients know."""
        return getattr(self._engine, "preparation", None)

    @property
    def origin(self) -> dict[str, str]:
        """What computes here, and from which data, for the record."""
        return origin(self.net.device, self._checksum)

    @property
    def clients(self) -> np.ndarray:
        """Positions of the clients that are there in this round."""
        now, present = max(self.round, 1), self._engine.present()
        late = [client for client, arrival in self._arrivals.items() if arrival > now]
        return present[~np.isin(present, late)] if late else present

    def new_model(self) -> Models:
        """A freshly initialised model: the one that every run of this seed starts from."""
        return new_models(self.net, self.seed)

    def new_models(self, count: int, first: int = 0) -> Models:
        """Several freshly initialised models, each different: this seed's from number `first` on; `new_model` is 0."""
        return new_models(self.net, self.seed, count, first)

    def generator(self, purpose: str) -> np.random.Generator:
        """A generator for the server's draws, keyed by purpose and round."""
        return generator(self.seed, "server", purpose, self.round)

    def sample(self, participation: float = 1.0, among: np.ndarray | None = None) -> np.ndarray:
        """The cohort of this round: a share of the clients that are there, or of some of them, each equally likely."""
        present = self.clients if among is None else among
        count = sampling.cohort_size(participation, len(present))
        return sampling.uniform(present, count, self.generator("sample"))

    # Values that the server has of every client; there may be more clients in every round

    def grown(self, values: Any, otherwise: float = 0, axis: int = 0) -> Any:
        """Values of all clients along an axis; those that have joined since get `otherwise`, or a stack's row of 0."""
        if isinstance(values, Stack):
            return type(values)(values.net, *map(self.grown, values.tensors))
        shape = list(values.shape)
        shape[axis] = len(self.names) - shape[axis]
        return torch.cat([values, values.new_full(shape, otherwise)], dim=axis)

    def updated(self, values: Any, clients: np.ndarray, rows: Any, otherwise: float = 0) -> Any:
        """Values of all clients [client, ...], lengthened as by `grown`, in which some clients have new `rows`."""
        if isinstance(values, Stack):
            pairs = zip(values.tensors, rows.tensors, strict=True)
            return type(values)(values.net, *(self.updated(old, clients, new) for old, new in pairs))
        values = self.grown(values, otherwise)
        values = values.clone()
        values[torch.from_numpy(clients)] = torch.as_tensor(rows).to(values)
        return values

    def unplaced(self, labels: Tensor) -> np.ndarray:
        """Positions of the clients that are there and have no label yet, or one below 0."""
        return self.clients[(self.grown(labels, -1)[self.clients] < 0).numpy()]

    def is_due(self, first: int, every: int = 0) -> bool:
        """Whether this is the round `first`, or one that comes a multiple of `every` rounds later (0: no later one)."""
        since = self.round - first
        return since == 0 or (since > 0 and every > 0 and since % every == 0)

    @property
    def server(self) -> "ServerData":
        """What the server itself holds, e.g. FLIS's probe images."""
        return ServerData(self._engine.server_clients(replace(self._at(), prior=0.0)))

    def run(
        self,
        program: Program,
        clients: Any = None,
        *,
        each: Any = None,
        shared: Any = None,
        letters: Letters | None = None,
        **settings: Any,
    ) -> Replies:
        """Run a program on clients and bring back what it returns.

        `each` gives inputs with a row per client, `shared` the same input to all: one value for the program's first
        input, or a dict by name. A single model goes to all, also as `each`. `letters` are those of earlier replies.
        Everything else is a setting. Inside the program every input has the client as first axis. Clients that do not
        answer, or answer with numbers that are not finite, are missing in the replies.
        """
        if program.scoring:
            raise CoterieError(f"program {program.name} reads test data: it is for scoring, not for methods")
        return self._run(program, clients, each, shared, settings, letters=letters)

    def ask(self, program: Program, clients: np.ndarray, **settings: Any) -> Replies | None:
        """What `run` gives, or None if there are no clients to ask or none of them answers.

        For questions that can be put again in the next round, while the method does without the answer.
        """
        try:
            return self.run(program, clients, **settings) if len(clients) else None
        except NoAnswerError:
            return None

    def then(self, replies: Replies, program: Program, **settings: Any) -> Replies:
        """The next program of a protocol: on those that have answered, with the letters that they have written."""
        return self.run(program, replies.clients, letters=replies.letters, **settings)

    def shortcut(
        self,
        program: Program,
        clients: Any = None,
        *,
        each: Any = None,
        shared: Any = None,
        letters: Letters | None = None,
        **settings: Any,
    ) -> Replies:
        """Run a program that stands for an exchange between clients, as only a simulation may.

        Secret shares, for example, cost n x n messages of a model's size for each client and do not change the result.
        Nothing is counted here: who takes a shortcut charges the ledger with what the exchange would have sent.
        """
        if self.real:
            raise CoterieError(f"program {program.name}: a shortcut shows what real clients keep from the server")
        return self._run(program, clients, each, shared, settings, letters=letters, counted=False)

    def score(
        self, program: Program, clients: np.ndarray, each: Any, shared: Any, counted: bool = True, **settings: Any
    ) -> Replies:
        """Run a program that may read test data, for `coterie.server.scoring`.

        Its traffic is counted as evaluation, unless it is one that there is in simulations only.
        """
        if self._method_at_work:
            raise CoterieError("test data is for scoring only: a method can reach train and validation data")
        return self._run(program, clients, each, shared, settings, scoring=True, counted=counted)

    @contextmanager
    def method_at_work(self) -> Iterator[None]:
        """While a method's own code runs: test data is out of reach, and a failure leaves no trace at the clients."""
        self._method_at_work = True
        try:
            yield
        except BaseException:
            self._engine.rollback()
            raise
        finally:
            self._method_at_work = False

    def _at(self, scoring: bool = False) -> CallContext:
        return CallContext(
            self.seed,
            self.round,
            scoring,
            self.keep_last,
            phase=self._phase,
            prior=self.prior,
            test_data=self._test_data,
        )

    def _run(
        self,
        program: Program,
        clients: Any,
        each: Any,
        shared: Any,
        settings: Mapping[str, Any],
        scoring: bool = False,
        letters: Letters | None = None,
        counted: bool = True,
    ) -> Replies:
        positions = self.clients if clients is None else np.unique(np.asarray(clients, dtype=np.int64))
        if clients is not None and len(positions) != len(np.atleast_1d(clients)):
            raise CoterieError("a client is asked twice in one call")
        if clients is not None and each is not None and (np.diff(np.asarray(clients)) < 0).any():
            raise CoterieError("clients must be in ascending order, as their rows in `each` are")
        own, common = _bound(program, each, self.net.dtype), _bound(program, shared, self.net.dtype)
        for name in [name for name, value in own.items() if isinstance(value, Stack) and not value.shape]:
            common[name] = own.pop(name)
        told = {name: self._resolved(value) for name, value in settings.items()}
        at = self._at(scoring)
        if (positions < 0).all():  # what the server holds has no shares of labels of its own
            at = replace(at, prior=0.0)
        call = Call(program, positions, own, common, told, at, letters or Letters())
        self._phase += 1
        _check_inputs(call)
        if len(positions) == 0:
            raise CoterieError(f"program {program.name}: no clients to run on")
        crosses = counted and bool((positions >= 0).all())  # what the server holds itself does not travel
        if crosses:
            self._count(call.each, "evaluation" if scoring else "down")
            self._count(call.shared, "evaluation" if scoring else "down", times=len(positions))
        answers = self._engine.run(call)
        # The engine adds it to every answer. It is no output of the program, and so not counted.
        outputs = dict(answers.outputs)
        kept_finite = outputs.pop(KEPT_FINITE, None)
        answers = replace(answers, outputs=outputs)
        if crosses:
            self._count(answers.outputs, "evaluation" if scoring else "up")
            for _, _, subject, size in answers.letters.envelopes():
                self.ledger.add("peer", subject, size)
        answers = answers if scoring else self._accepted(program, answers, kept_finite)
        samples = answers.outputs.get("samples")
        if samples is None:
            samples = self.sizes[torch.from_numpy(answers.clients[answers.clients >= 0])]
        assert isinstance(samples, Tensor)
        return Replies(answers.clients, answers.outputs, samples.cpu(), answers.letters)

    def _resolved(self, value: Any) -> Any:
        return value.at(self.round, self.rounds) if isinstance(value, LocalTraining) else value

    def _accepted(self, program: Program, answers: Answers, kept_finite: Value | None) -> Answers:
        """The answers without those of clients whose outputs, or the models that they keep, are not finite.

        `kept_finite` [client] tells of the latter. Such a client loses what it contributed and kept in this round,
        nothing else.
        """
        if not len(answers.clients):
            raise NoAnswerError(f"round {self.round}: no client answered ({program.name})")
        finite: dict[torch.device, list[Tensor]] = {}
        for value in answers.outputs.values():
            for tensor in value.tensors if isinstance(value, Stack) else (value,):
                if tensor.is_floating_point() and tensor.numel():
                    # The largest of a row tells about all of it, and reads it only once.
                    largest = torch.linalg.vector_norm(tensor.reshape(len(tensor), -1), ord=torch.inf, dim=1)
                    finite.setdefault(tensor.device, []).append(torch.isfinite(largest))
        fine = torch.ones(len(answers.clients), dtype=torch.bool)
        if isinstance(kept_finite, Tensor):
            fine &= kept_finite.reshape(len(fine), -1).bool().all(dim=1).cpu()
        for rows in finite.values():
            fine &= torch.stack(rows).all(dim=0).cpu()
        if fine.all():
            return answers
        rejected = answers.clients[~fine.numpy()]
        names = ", ".join(self.names[client] for client in rejected[:5]) + (" ..." if len(rejected) > 5 else "")
        log.warning("round %d, %s: client %s has numbers that are not finite", self.round, program.name, names)
        if not fine.any():
            raise CoterieError(
                f"round {self.round}: no client gave finite numbers ({program.name}); a lower rate or clipping may help"
            )
        self._engine.reject(rejected)
        outputs = {name: value[fine] for name, value in answers.outputs.items()}
        letters = answers.letters.without(self.names[client] for client in rejected)
        return Answers(answers.clients[fine.numpy()], outputs, letters)

    def _count(self, values: Mapping[str, Value], direction: Direction, times: int = 1) -> None:
        for name, value in values.items():
            kind = "model" if isinstance(value, Models) else name.replace("_", " ")
            self.ledger.add(direction, kind, size_of(value) * times)

    def agree_on_scales(self) -> None:
        """Where inputs are to be scaled by what clients know together, ask them, and tell all of them the same.

        They send sums and counts over their training samples, and no rows.
        """
        if not getattr(self._engine, "scales_together", False):
            return
        replies = self.run(programs.moments)
        count, total, squares = replies.moments.sum(dim=0).numpy()
        told = self._engine.scale(Moments(count, total, squares))  # type: ignore[attr-defined]
        self.ledger.add("down", "scales", told * len(self.clients))

    # The course of a run, for `fit`

    def begin(
        self,
        rounds: int,
        keep_last: bool = False,
        test_data: bool = False,
        prior: float = 0.0,
        counts_on_memory: str = "",
    ) -> None:
        """Start a run of this many rounds: clients forget what they keep, and the ledger is empty.

        `test_data` lets the method's programs read test data, for protocols that do and say so. With a `prior`, the
        smoothing, clients add their own log shares of labels to whatever models give for their data. `counts_on_memory`
        says why a client that has lost what it keeps cannot go on as a new one, if it cannot.
        """
        if self.real:
            self._engine.counts_on_memory = counts_on_memory  # type: ignore[attr-defined]
        self.prior = prior
        self.round, self.rounds, self.keep_last, self._test_data = 0, rounds, keep_last, test_data
        self.ledger = Ledger()
        self._engine.reset()

    def start_round(self, number: int) -> None:
        """The next round begins."""
        self.round, self._phase = number, 0
        self._engine.start_round(number)

    def commit(self) -> None:
        """The round is done: what clients kept in it is final."""
        self._engine.commit()

    def checkpoint(self) -> dict[str, Any]:
        """Everything that a run in progress needs besides the method's state."""
        return {"round": self.round, "ledger": self.ledger.by_kind(), "clients": self._engine.checkpoint()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.round = content["round"]
        self.ledger.restore(content["ledger"])
        self._engine.restore(content["clients"])

    def taken_home(self) -> dict[str, tuple[Tensor, Value]]:
        """What clients of a simulation were given by `Clients.take_home` since the last commit; they then forget it.

        For each name that is the positions of the clients, and a row for each.
        """
        kept = self._engine.checkpoint()
        found = {name: (kept[name]["clients"], kept[name]["rows"]) for name in _HOME if name in kept}
        del kept  # what somebody still holds would be copied before it changes
        self._engine.rollback()
        return {name: (clients, rows.to("cpu")) for name, (clients, rows) in found.items()}

    @property
    def went_on_without(self) -> list[dict[str, Any]]:
        """After which rounds the run went on without clients that took part before it stopped, and who."""
        return getattr(self._engine, "went_on_without", [])

    def explain(self) -> str:
        """How the engine computes, and why."""
        return self._engine.explain()

    def close(self) -> None:
        """Give back what the engine holds, such as worker processes."""
        self._engine.close()

    @property
    def global_test(self) -> Sequence[int]:
        """Positions that hold the global test set, for scoring."""
        return self._engine.server


class ServerData:
    """The samples that the server itself holds, and what it can ask of them."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return int(self._clients.sizes[0])

    def predict(self, models: Models) -> Tensor:
        """What models [model] give for the server's samples, [model, row, class], before the softmax."""
        return self._clients.predict(models.expand(1), self._clients.inputs())[0]

    def label_counts(self) -> Tensor:
        """How often the server has each label, [class]."""
        return self._clients.label_counts()[0]


def _bound(program: Program, values: Any, dtype: torch.dtype) -> dict[str, Value]:
    """Inputs by name; a single value is for the program's first input. Plain numbers get the models' precision."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if not program.inputs:
            raise CoterieError(f"program {program.name} takes no inputs")
        values = {program.inputs[0]: values}
    return {
        name: value if isinstance(value, Models | Changes) else _tensor(value, dtype) for name, value in values.items()
    }


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor | np.ndarray):
        return torch.as_tensor(value)
    tensor = torch.from_numpy(np.array(value))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_inputs(call: Call) -> None:
    """Refuse `each` without a row per client, and inputs that the program does not have or is given twice."""
    program, clients, given = call.program, len(call.clients), [*call.each, *call.shared, *call.settings]
    for name, value in call.each.items():
        if not value.shape or value.shape[0] != clients:
            raise CoterieError(f"program {program.name}: {name} has shape {tuple(value.shape)} for {clients} clients")
    for name in given:
        if name not in program.inputs:
            inputs = ", ".join(program.inputs)
            raise CoterieError(f"program {program.name} has no input {name!r}; it has {inputs or 'none'}")
        if given.count(name) > 1:
            raise CoterieError(f"program {program.name}: {name} is given twice")
