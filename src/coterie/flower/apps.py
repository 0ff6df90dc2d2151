"""Runs programs at the client of any Flower app: the client's side of `coterie.flower.strategy`.

A program sees one client. To train and to evaluate, this calls the app's own train and evaluate handlers, with the
messages that Flower's FedAvg would send them. What an app's training loop cannot do (terms of the gradient, objectives,
weights of samples) and what needs the samples themselves (predictions, labels) raises an error that says so, but only
when a program asks for it.

As at a site, only programs run that this installation has registered and allows. The server tells the client once what
the app's arrays are and how to ask its handlers (`AppFacts`). The client keeps this on disk, because Flower starts a
new process for every message.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import platformdirs
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from torch import Tensor

from coterie.clients.clients import CallContext, Clients, Evaluation
from coterie.clients.guard import OPEN, Guard, Limits
from coterie.clients.letters import Letters
from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError
from coterie.core.files import write_whole
from coterie.core.records import record
from coterie.data.population import Shard
from coterie.deploy.site import PARTS
from coterie.engines.flower.arrays import ArrayNet, Arrays
from coterie.engines.flower.messages import as_records, from_records
from coterie.engines.flower.site import RemoteSite, Rules
from coterie.nets import codec
from coterie.nets.stacks import Changes, Models
from coterie.training.local import LocalTraining
from coterie.training.loop import Objective, task_loss

log = logging.getLogger("coterie")

_AS_LONG = 1e7
"""Seconds that an app has for an answer: as long as it likes, since Flower ends what takes too long."""

APP_MESSAGE = "query.coterie"
"""The kind of Flower message that carries programs to apps."""

_KEPT = 10
"""For how many runs a client keeps what the server has told about them."""

Handler = Callable[[Message, Context], Message]


@record
@dataclass(frozen=True)
class AppFacts:
    """What a client must know about an app's run before it can run programs."""

    arrays: Arrays
    initial: tuple[Tensor, Tensor]
    """The parameters and buffers of the model that the run starts from."""
    parts: tuple[str, ...]
    """The parts of its data that the evaluate handler can tell apart; empty if there is no such handler."""
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)
    arrays_key: str = "arrays"
    """What the app calls the record of arrays in a message."""
    config_key: str = "config"
    """What the app calls the record of its configuration in a message."""
    samples_key: str = "num-examples"
    """What the app calls the number of samples among its metrics."""

    def __post_init__(self) -> None:
        sound = isinstance(self.arrays, Arrays) and all(isinstance(part, Tensor) for part in self.initial)
        if not sound or {type(key) for key in (self.arrays_key, self.config_key, self.samples_key)} != {str}:
            raise CoterieError("a description of an app that is none")
        widths = [self.arrays.layout(trained).total for trained in (True, False)]
        if [tuple(part.shape) for part in self.initial] != [(width,) for width in widths]:
            raise CoterieError("initial arrays of another app")


def digest_of(about: bytes) -> str:
    """The name under which a client keeps these facts about an app."""
    return hashlib.sha256(about).hexdigest()


def reply_of_app(message: Message, context: Context, handler: Handler, allow: Sequence[str]) -> Message:
    """An app's answer to a message that asks for a program; `handler` hands ordinary messages to the app."""
    name = _name_of(context)
    state = Path(os.environ.get("COTERIE_STATE") or platformdirs.user_state_dir("coterie"))
    folder = state / "apps" / quote(name, safe="").replace(".", "%2E")  # a name may lead to no other place
    asked: AppHost | None = None
    try:
        parts = from_records(message.content)
        about = _told(parts, folder / "about")
        asked = AppHost(name, about, lambda kind, content: handler(_inner(message, kind, content), context))
        rules = Rules(name, (), folder, tuple(allow), precision=None, limits=Limits(seconds=_AS_LONG))
        answer = RemoteSite(rules, asked).answer(parts)
    except CoterieError as error:
        log.warning("refused: %s", error)
        answer = codec.dump({"refused": str(error)})
    content = {"answer": answer}
    if asked is not None:  # without metrics the server knows that it must tell the facts again
        content["metrics"] = codec.dump(asked.metrics)
    return Message(as_records(content), reply_to=message)


def _name_of(context: Context) -> str:
    """The name of a node: the one in its configuration, or else one made of the number of its partition or its own."""
    config = context.node_config
    if config.get("name"):
        return str(config["name"])
    return f"partition-{config['partition-id']}" if "partition-id" in config else f"node-{context.node_id}"


def _told(parts: Mapping[str, bytes], folder: Path) -> AppFacts:
    """The facts about the app: from this message, or as the server has told them before."""
    digest = parts.get("app", b"").decode("ascii", errors="replace")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise CoterieError("a message that does not say about which app it is")
    path = folder / f"{digest}.safetensors"
    if "about" in parts:
        if digest_of(parts["about"]) != digest:
            raise CoterieError("a message that says something about another app")
        _remember(path, parts["about"])
    if not path.is_file():
        raise CoterieError(f"this client has not been told about the app, or has forgotten it ({path})")
    about = codec.read(path, {})
    if not isinstance(about, AppFacts):
        raise CoterieError(f"{path}: says nothing about an app")
    return about


def _remember(path: Path, content: bytes) -> None:
    """Keep the facts about an app in a file; those that were kept longest ago are deleted."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, content)
    for old in sorted(path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _inner(message: Message, kind: str, content: RecordDict) -> Message:
    """A message of this kind and content for the app's handler, as if it had come in place of the one that did."""
    metadata = copy(message.metadata)
    metadata.message_type = kind
    return make_message(metadata, content)


class AppHost:
    """A host of one client, whose data only the handlers of its app can reach."""

    def __init__(self, name: str, about: AppFacts, handler: Callable[[str, RecordDict], Message]) -> None:
        self.name, self.about, self._handler = name, about, handler
        self.net = ArrayNet(about.arrays, [about.initial])
        self.samples: int | None = None
        self.metrics: dict[str, Any] = {}
        """For each kind of message on how many samples the app has measured, and what."""

    def clients(
        self,
        positions: Iterable[int],
        at: CallContext,
        memory: Memory | None = None,
        letters: Letters | None = None,
        guard: Guard = OPEN,
    ) -> "AppClients":
        """The one client, as a program sees it."""
        return AppClients(self, at, memory, letters, guard)

    def train(self, model: Models, config: Mapping[str, Any]) -> tuple[Models, dict[str, Any]]:
        """A single model after the app's own training, and what the app measured."""
        reply = self._asked(MessageType.TRAIN, model, {**self.about.train_config, **config})
        if len(reply.array_records) != 1:
            raise CoterieError(f"the app's train handler gives {len(reply.array_records)} records of arrays, not 1")
        metrics = self._measured(MessageType.TRAIN, reply)
        self.samples = metrics[self.about.samples_key]
        self.note("train", metrics)
        return self.net.models_of(next(iter(reply.array_records.values()))), metrics

    def note(self, kind: str, metrics: Mapping[str, Any]) -> None:
        """Note the numbers among what the app measured; the answer tells them to the server."""
        key = self.about.samples_key
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != key}
        self.metrics[kind] = [metrics[key], numbers]

    def evaluate(self, model: Models, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the app measures of a single model."""
        reply = self._asked(MessageType.EVALUATE, model, {**self.about.evaluate_config, **config})
        return self._measured(MessageType.EVALUATE, reply)

    def _asked(self, kind: str, model: Models, config: Mapping[str, Any]) -> RecordDict:
        """What the app's handler of this kind answers about a single model."""
        about = self.about
        content = RecordDict({about.config_key: ConfigRecord(dict(config))})
        content[about.arrays_key] = self.net.arrays_of(model)
        reply = self._handler(kind, content)
        if reply.has_error():
            raise CoterieError(f"the app's {kind} handler gives an error: {reply.error.reason}")
        return reply.content

    def _measured(self, kind: str, reply: RecordDict) -> dict[str, Any]:
        """All metrics in a handler's answer; the number of samples must be among them."""
        metrics = {name: value for record in reply.metric_records.values() for name, value in record.items()}
        key = self.about.samples_key
        samples = metrics.get(key)
        if not isinstance(samples, int | float) or samples < 1:
            given = ", ".join(metrics) or "none"
            raise CoterieError(
                f"the app's {kind} handler gives {key}={samples} among its metrics ({given}): at least 1"
            )
        return metrics | {key: int(samples)}


def _beyond(what: str) -> CoterieError:
    """An error that says what an app cannot do."""
    return CoterieError(
        f"a Flower app's own handlers cannot give {what}; choose a method of plain training and evaluating, such as "
        "FedAvg or IFCA, or let Coterie train here too (`coterie deploy`)"
    )


class _Absent:
    """Stands for the samples and the way to compute with them, which only the app has: to use either is an error."""

    device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        raise _beyond("what takes the samples themselves")


class AppTrained:
    """The outcome of an app's training. To ask for a number that the app does not tell is an error."""

    def __init__(self, models: Models, samples: Tensor, metrics: Mapping[str, Any]) -> None:
        self.models, self.samples, self._metrics = models, samples, metrics

    @property
    def steps(self) -> Tensor:
        """How many steps the app has taken, [client]."""
        return self._told("the number of its steps", "num-steps")

    @property
    def loss(self) -> Tensor:
        """The mean loss, [client]."""
        return self._told("a loss", _named(self._metrics, "loss") or "loss")

    def _told(self, what: str, name: str) -> Tensor:
        if not isinstance(self._metrics.get(name), int | float):
            given = ", ".join(self._metrics)
            raise CoterieError(f"the app's train handler does not tell {what}: add {name!r} to its metrics ({given})")
        return torch.tensor([self._metrics[name]], dtype=torch.float64)


class AppClients(Clients):
    """A Flower app's client, as a program sees it."""

    def __init__(
        self, host: AppHost, at: CallContext, memory: Memory | None, letters: Letters | None, guard: Guard = OPEN
    ) -> None:
        absent: Any = _Absent()
        nothing = np.empty(0, np.int64)
        shard = Shard(host.name, nothing, nothing, nothing)
        super().__init__(host.net, absent, [shard], absent, at, memory, None, letters, guard=guard)
        self._host = host

    def _part(self, part: str) -> list[np.ndarray]:
        raise _beyond("what takes the samples themselves")

    @property
    def sizes(self) -> Tensor:
        """How many training samples the app counted when it trained last, [client]."""
        unknown = torch.zeros(1, dtype=torch.int64)
        sizes: Tensor = self.state("_samples", unknown)
        if torch.equal(sizes, unknown):
            raise CoterieError("an app tells how many samples it has when it trains: not known before")
        return sizes

    def write(self, row: int, receiver: str, subject: str, **content: Tensor) -> None:
        """An app has no identity for letters."""
        raise _beyond("letters between clients")

    def train(
        self,
        start: Models,
        local: LocalTraining,
        *,
        epochs: Tensor | Sequence[float] | None = None,
        pull: float | Tensor = 0.0,
        anchor: Models | None = None,
        push: Changes | None = None,
        trains: str | Iterable[str] = "all",
        objective: Objective = task_loss,
        sample_weights: Tensor | None = None,
        beside: Mapping[str, Tensor] | None = None,
        carried: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """Let the app's train handler train. What the method wishes (rate, epochs, ...) stands in its configuration."""
        beyond = {
            "a pull in the gradient": bool(torch.as_tensor(pull).any()),
            "a push in the gradient": push is not None,
            "training of a part of the model": trains != "all",
            "another objective than their own": objective is not task_loss,
            "weights of samples": sample_weights is not None,
            "numbers beside the model": bool(beside or carried),
            "training without clients' own priors": local.prior == "own",
        }
        for what, needed in beyond.items():
            if needed:
                raise _beyond(what)
        if start.shape != (1,):
            raise CoterieError(f"start of shape {start.shape} for 1 client: training takes one model for each")
        first = self._training_call() == 0
        models, metrics = self._by_app(start, local, None if epochs is None else float(epochs[0]))
        samples = torch.tensor([self._host.samples])
        self.kept["_samples"] = samples
        self._add("_rounds", first.long())
        self._add("_steps", torch.tensor([int(metrics.get("num-steps", 0))]))
        if self._at.keep_last:
            self.kept["_last"] = models
        return AppTrained(models, samples, metrics)

    def adapt(self, start: Models, local: LocalTraining, trains: str = "all", stage: int = 0) -> Models:
        """Models after some training by the app, of which nothing is kept."""
        if trains != "all":
            raise _beyond("training of a part of the model")
        return self._by_app(start, local, None)[0]

    def _by_app(self, start: Models, local: LocalTraining, epochs: float | None) -> tuple[Models, dict[str, Any]]:
        """Models after the app's own training, and what it measured. The handler finds wishes as `coterie-NAME`."""
        wishes = {item.name: getattr(local, item.name) for item in fields(local)}
        if epochs is not None:
            wishes |= {"epochs": epochs, "steps": None}
        config = {f"coterie-{name}": value for name, value in wishes.items() if isinstance(value, int | float | str)}
        model, metrics = self._host.train(start[0], {"server-round": self.round, **config})
        return model.expand(1), metrics

    def evaluate(
        self, models: Models, on: str = "train", mixture: Tensor | None = None, blend: bool = False
    ) -> Evaluation:
        """How models do on the client's own data, as the app's evaluate handler measures it."""
        self._check_stack(models)
        if mixture is not None:
            raise _beyond("a mixture of predictions")
        if on not in PARTS:
            raise _beyond(f"an evaluation on {on!r}")
        if on == "test" and not self._at.scoring:
            raise CoterieError("test data is for scoring only: a method can reach train and validation data")
        known = self._host.about.parts
        if not known and not self._at.scoring:
            raise CoterieError(
                "the app has no evaluate handler, as its strategy says (parts=()), and the method needs one"
            )
        several = len(models.shape) > 1
        rows = models[0] if several else models
        # An app that does not tell parts apart has one evaluation set, which then stands for the training data too.
        asked = on in known or (on == "train" and len(known) > 0)
        scores = [self._one(rows[place], on) if asked else (np.nan, np.nan, 0) for place in range(len(rows))]
        accuracy, loss, samples = (torch.tensor([values], dtype=torch.float64) for values in zip(*scores, strict=True))
        correct, loss_sum = (values if several else values[:, 0] for values in (accuracy * samples, loss * samples))
        return Evaluation(correct, correct * torch.nan, loss_sum, samples[:, 0].long())

    def evaluate_each(
        self, models: Models, parts: Sequence[str], mixture: Tensor | None = None, blend: bool = False
    ) -> tuple[Evaluation, ...]:
        """How models do on each of several parts of the client's own data."""
        return tuple(self.evaluate(models, part, mixture, blend) for part in parts)

    def _one(self, model: Models, on: str) -> tuple[float, float, int]:
        """Accuracy and loss of a single model, and on how many samples. If the app gives no accuracy, that is NaN."""
        metrics = self._host.evaluate(model, {"server-round": self.round, "coterie-part": on})
        samples: int = metrics[self._host.about.samples_key]
        if on == "test" and "evaluate" not in self._host.metrics:  # the first model is what the client is served
            self._host.note("evaluate", metrics)
        loss, accuracy = _named(metrics, "loss"), _named(metrics, "acc")
        if loss is None:
            given = ", ".join(metrics)
            raise CoterieError(f"the app's evaluate handler gives no loss: none of its metrics is called so ({given})")
        return np.nan if accuracy is None else float(metrics[accuracy]), float(metrics[loss]), samples


def _named(metrics: Mapping[str, Any], word: str) -> str | None:
    """The name of the first metric that is a number and has this word in its name; None if there is none."""
    return next((n for n, value in metrics.items() if word in n.lower() and isinstance(value, int | float)), None)
