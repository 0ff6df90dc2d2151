"""The engine for real sites: it sends programs as messages, and survives whatever a site does.

A site is known by its name. The transport knows only numbered nodes, of which a site may have another one after each
start, and may lose any message. A site that dies, hangs, comes back or answers nonsense costs its own contribution to
that round and nothing else: whatever is wrong with an answer (`coterie.engines.flower.answers`), and whatever fails
while it is read, is that site's loss. All that the engine needs of a network are the three verbs of `Transport`, so
every fault can be tested without one.

A round takes `Waiting.timeout` at most: each exchange with the sites may take half of the time that is left, however
many there are. A site that does not answer in time, or answers what cannot be, is asked nothing more in that round.
If that happens again in the next round that it is asked in, it rests for a round, then for 3, for 7 and so on, until it
does well again; it is asked earlier if a round has too few sites without it.

What a client keeps lies at its site, in versions. A message says which version it builds on, and which one was final
before the round; the site deletes all others. To undo what a site has kept, the engine points at the older version in
its next message. A server that has lost its own last round so finds the version before. The name by which sites know a
run is random, and stands in the run's checkpoint. A site that has lost what it kept, with its disk perhaps, begins anew
as one that has just joined, and is asked again at once. Where what a method carries at the server counts on what its
clients keep, as a mean of control variates does, it cannot (`Method.counts_on_memory`): it rests, and the log says so.

A run that goes on in another process waits for those that were there when it stopped, as long as its patience lasts;
whom it goes on without is in the log and in the run's summary.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np
import torch

from coterie.clients.clients import CallContext, Clients
from coterie.clients.letters import Letters
from coterie.clients.memory import Memory, Value
from coterie.core.errors import CoterieError, NoAnswerError, ProgramError, SettingsError
from coterie.core.fields import WITHOUT_EFFECT
from coterie.data.moments import Moments
from coterie.data.population import Scales
from coterie.data.preparation import Preparation
from coterie.data.schema import Schema
from coterie.engines.chunk import ClientHost, joined, part_of, run_chunk
from coterie.engines.flower.answers import (
    WORDS,
    Contribution,
    NotFiniteError,
    brief,
    contribution,
    is_count,
    is_name,
    is_plain,
    largest,
    too_far,
)
from coterie.engines.flower.site import PROTOCOL, SCALING
from coterie.engines.flower.versions import LOST, Version
from coterie.nets import codec
from coterie.nets.net import Net
from coterie.nets.stacks import Stack
from coterie.server.federation import KEPT_FINITE, Answers, Call

log = logging.getLogger("coterie")

_NEW = "at a new node"
"""What a site is called that has not said its name."""

_LONGEST = 8
"""After how many faults in a row a site no longer rests longer each time: then it is asked every 128 rounds."""

_ANNOUNCEMENT = 1 << 12
"""Bytes of a signed key at most."""


class TooFewSitesError(CoterieError):
    """Fewer sites are connected than the run needs, and it has waited for them long enough."""


class RoundLostError(NoAnswerError):
    """Too few sites answered, so the round does not count: whoever runs it goes on from the checkpoint before it."""


class Transport(Protocol):
    """Carries messages to numbered nodes, and their answers back."""

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""

    def send(self, messages: Mapping[int, Mapping[str, bytes]]) -> dict[int, str]:
        """Send each node a message of named parts. Returns for each node the name that its message has got."""

    def receive(self, messages: Collection[str], most: int) -> Mapping[str, bytes | Exception | None]:
        """The answers that have arrived, by the name of the message, without waiting for any.

        It is None where the node could not answer, and an error where its answer cannot be read or has more than `most`
        bytes.
        """


@dataclass(frozen=True)
class FederatedTask:
    """What the server and all sites must agree on; each takes it from its own settings."""

    labels: tuple[str, ...]
    """The label set."""

    shape: tuple[int, ...]
    """The shape of one input: features, or channels, height and width."""

    net: str
    """The net: one of ours by name, or `package.module:function`."""

    shift: tuple[float, ...] = ()
    """What is subtracted from inputs, per channel. A site that subtracts something else is not admitted."""

    scale: tuple[float, ...] = ()
    """What inputs are divided by then, per channel."""

    name: str = "sites"
    """What tables call the data."""

    vocabulary: int = 0
    """How many ids there are, if inputs are tokens."""

    task: str = "classification"
    """What is predicted: see `Dataset.task`."""

    loss: str = ""
    """What training lowers instead of the task's own loss: one by name, or `package.module:function`."""

    kind: str = ""
    """What an input is: see `Dataset.kind`."""

    target_shift: tuple[float, ...] = ()
    """What is subtracted from numbers that are predicted, for each of them."""

    target_scale: tuple[float, ...] = ()
    """What the differences are divided by then."""


@dataclass(frozen=True)
class Waiting:
    """How many sites a run needs, and how long it waits for them."""

    sites: Annotated[int, WITHOUT_EFFECT] = 0
    """Sites to wait for before the first round; 0 waits for `min_sites`. Methods that group clients once need them
    all."""

    min_sites: Annotated[int, WITHOUT_EFFECT] = 2
    """How many sites must answer for a round to count."""

    timeout: Annotated[float, WITHOUT_EFFECT] = 600.0
    """Seconds that a round may take: for each of its exchanges, sites have half of the time that is left to answer."""

    patience: Annotated[float, WITHOUT_EFFECT] = 300.0
    """Seconds that the run waits for sites that are missing, before it stops."""

    poll: Annotated[float, WITHOUT_EFFECT] = 0.05
    """Seconds until the first look for answers; looks become rarer, down to one in a second."""

    def __post_init__(self) -> None:
        if self.min_sites < 1:
            raise SettingsError(f"min_sites={self.min_sites}: at least 1")
        if self.sites < 0:
            raise SettingsError(f"sites={self.sites}: 0 or more")
        for name in ("timeout", "poll"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}={getattr(self, name)}: seconds, above 0")
        if self.patience < 0:
            raise SettingsError(f"patience={self.patience}: seconds, 0 or more")


@dataclass
class _KnownSite:
    """A site that has said its name, and so has a position."""

    name: str
    samples: int
    """Training samples; 0 while the site has not counted them."""
    node: int | None
    """The number of its node now; None while it is not connected."""
    first: int = 0
    """How many samples it first said it has. It never counts with more."""
    faults: int = 0
    """In how many rounds in a row it has hung, or answered what cannot be."""
    rests: int = 0
    """Up to which start of a round it is not asked."""
    answered: int = 0
    """At which start of a round it last gave an answer that counted."""
    accepted: Version | None = None
    """The version of what it keeps after the last round that counted."""
    current: Version | None = None
    """The version of what it keeps after its last call."""

    def counts(self, samples: Any) -> None:
        """Take note of how many samples it says it has, if it says a number; more than at first are not believed."""
        if is_count(samples):
            self.first = self.first or samples
            self.samples = min(samples, self.first)


@dataclass
class FlowerEngine:
    """An engine whose clients are real sites, reached through a transport."""

    real = True

    net: Net
    task: FederatedTask
    transport: Transport
    waiting: Waiting = field(default_factory=Waiting)
    schema: Schema | None = None
    """The columns of the sites' tables, if they have tables: then these are scaled by what all sites know together."""
    own: ClientHost | None = None
    """What the server itself holds: its own samples as the first client, then the parts of the global test set."""
    counts_on_memory: str = ""
    """Why a site that has lost what it keeps cannot begin anew, as the log says it; empty if it can."""
    advice: str = "when they are back, go on with `coterie deploy resume`"
    """What the error says that a user can do when too few sites are there."""

    def __post_init__(self) -> None:
        self._sites: list[_KnownSite] = []
        self._strangers: set[int] = set()
        self._unheard: dict[int, tuple[int, float]] = {}
        self._run = secrets.token_hex(8)
        self._runs_here = {self._run}
        self._round = 0
        self._starts = 0
        self._ends = 0.0
        self._announcements: dict[str, bytes] = {}
        self._forms: dict[tuple[str, str], Any] = {}
        self._complaints: dict[str, str] = {}
        self._lost: set[str] = set()
        self.went_on_without: list[dict[str, Any]] = []
        self._scales: Scales | None = None
        self.server: Sequence[int] = range(-len(self.own.shards) + 1, 0) if self.own else range(0)

    @property
    def preparation(self) -> Preparation | None:
        """How inputs are prepared, if the server knows it; otherwise each site scales by its own data."""
        task, scales = self.task, self._scales
        kind = task.kind or {1: "features", 3: "image"}.get(len(task.shape), "")
        about = (task.name, self.net.task.name, task.labels, kind, task.shape)
        if scales is not None:
            targets = {"target_shift": scales.target_shift, "target_scale": scales.target_scale}
            more: dict[str, Any] = {name: value for name, value in targets.items() if value}
            return Preparation(*about, scales.shift, scales.scale, **more, filling=scales.filling, schema=self.schema)
        if not (task.shift and task.scale):
            return None
        targets = {"target_shift": task.target_shift, "target_scale": task.target_scale}
        more = {name: value for name, value in targets.items() if value}
        return Preparation(*about, task.shift, task.scale, **more, vocabulary=task.vocabulary)

    @property
    def scales_together(self) -> bool:
        """Whether sites are to send moments, from which it is made how all of them scale."""
        return self.schema is not None

    def scale(self, moments: Moments) -> int:
        """Let all sites scale as the sum of their moments says; returns how many bytes each is told."""
        assert self.schema is not None
        if empty := [name for name, count in zip(self.schema.inputs, moments.count, strict=False) if not count]:
            log.warning("no site has a value of %s", ", ".join(empty))
        self._scales = Scales.of(self.schema, moments)
        log.info("all sites scale by the moments of %d rows", moments.count.max())
        return 8 * sum(len(numbers) for numbers in vars(self._scales).values())

    @property
    def _told_scales(self) -> dict[str, list[float]] | None:
        """How all sites scale, as messages and checkpoints have it; None if each knows that by itself."""
        return None if self._scales is None else {name: list(value) for name, value in vars(self._scales).items()}

    # Who is there

    @property
    def names(self) -> list[str]:
        """The names of all sites that were ever connected in this run, in the order of their positions."""
        return [site.name for site in self._sites]

    @property
    def sizes(self) -> list[int]:
        """How many training samples each site last said it has; 0 while it has not counted them."""
        return [site.samples for site in self._sites]

    def present(self) -> np.ndarray:
        """Positions of the sites that were connected when the roll was last called, and do not rest."""
        return np.array([position for position, site in enumerate(self._sites) if self._takes_part(site)], dtype=int)

    def _takes_part(self, site: _KnownSite) -> bool:
        return site.node is not None and site.rests <= self._starts

    def explain(self) -> str:
        """In words: who computes, and what a round needs."""
        waiting = self.waiting
        return (
            f"{len(self.present())} sites over Flower, each computing by itself; "
            f"a round counts with {waiting.min_sites} of them, and takes at most {waiting.timeout:g} s"
        )

    def gather(self, first: bool = True) -> None:
        """Wait for sites: before the first round for all that are expected, later for as many as a round needs."""
        self._wait_for(max(self.waiting.sites if first else 0, self.waiting.min_sites))

    def start_round(self, number: int) -> None:
        """Begin a round: see who is connected, and wait if these are too few."""
        self._round = number
        self._starts += 1
        self._announcements = {}
        self._wait_for(self.waiting.min_sites)
        self._ends = time.monotonic() + self.waiting.timeout

    def _wait_for(self, count: int) -> None:
        """Call the roll until this many sites are connected, or until the run's patience ends."""
        deadline = time.monotonic() + self.waiting.patience
        told = False
        while True:
            self._ends = time.monotonic() + self.waiting.timeout
            self._call_the_roll()
            if len(self.present()) < count:  # who rests is needed now
                for site in self._sites:
                    site.rests = 0
            there = len(self.present())
            if there >= count:
                return
            if time.monotonic() >= deadline:
                raise TooFewSitesError(
                    f"{there} of at least {count} sites are there after {self.waiting.patience:g} s of waiting; "
                    + self.advice
                )
            if not told:
                log.info("waiting for sites: %d of %d are there", there, count)
                told = True
            time.sleep(min(1.0, self.waiting.patience))

    def _call_the_roll(self) -> None:
        """Find out which sites are connected, and ask nodes that are new who they are."""
        nodes = self.transport.nodes()
        for site in self._sites:
            if site.node is not None and site.node not in nodes:
                log.warning("site %s is no longer connected", site.name)
                site.node = None
        self._strangers &= nodes  # one that was refused, left and came back gets another chance
        began = time.monotonic()
        self._unheard = {node: tries for node, tries in self._unheard.items() if node in nodes}
        silent = {node for node, (_, again) in self._unheard.items() if began < again}
        new = nodes - {site.node for site in self._sites} - self._strangers - silent
        if not new:
            return
        greeting = {"request": codec.dump({"format": PROTOCOL, "ask": "hello"})}
        answers = self._exchange(dict.fromkeys(new, greeting), WORDS)
        for node in new - answers.keys():  # asked again later, and the later the longer it has kept others waiting
            tries, took = self._unheard.get(node, (0, 0.0))[0] + 1, time.monotonic() - began
            self._unheard[node] = tries, began + took + 2 ** min(tries, 10) * (1 + took)
        # Positions in the order of names, so that a run does not depend on who connects first.
        introduced = sorted((brief(answer.get("name")), node) for node, answer in answers.items())
        for name, node in introduced:
            try:
                self._introduce(name, node, answers[node])
            except Exception as error:  # whatever a greeting contains
                log.warning("site %s is not admitted: %s", name, brief(error))
                self._strangers.add(node)

    def _introduce(self, name: str, node: int, hello: Mapping[str, Any]) -> None:
        """Admit the site at a new node if it fits the task and its name is free: as a new one, or one that is back."""
        problem = self._mismatch(hello)
        known = next((site for site in self._sites if site.name == name), None)
        if problem is None and (own := self._registered(node)) not in ("", name):
            problem = f"its node key is that of {own}"
        if problem is None and known is not None and known.node is not None:
            problem = "another node has this name already"
        if problem is not None:
            log.warning("site %s is not admitted: %s", name, problem)
            self._strangers.add(node)
        elif known is not None:
            log.info("site %s is back", name)
            known.node = node
            known.counts(hello["samples"])
        else:
            log.info("site %s has joined, with %s training samples", name, hello["samples"] or "uncounted")
            self._sites.append(_KnownSite(name, 0, node))
            self._sites[-1].counts(hello["samples"])

    def _registered(self, node: int) -> str:
        """The name under which the key of a node is registered; an empty text where the transport knows none."""
        registered = getattr(self.transport, "registered", None)
        return "" if registered is None else str(registered(node))

    def _mismatch(self, hello: Mapping[str, Any]) -> str | None:
        """What in a site's answer to the greeting does not fit this task; None if all does."""
        expected = {
            "labels": list(self.task.labels),
            "task": self.net.task.name,
            "net": self.net.name,
            "shape": list(self.net.shape),
            "parameters": self.net.parameters.total,
            "dtype": str(self.net.dtype),
        }
        if not all(is_plain(value) for value in hello.values()):
            return "its greeting has something else in it than texts and numbers"
        scaling = {name: list(getattr(self.task, name)) for name in SCALING}
        expected |= {name: given for name, given in scaling.items() if given}
        for name, value in expected.items():
            if hello.get(name) != value:
                return f"its {name} is {_brief(hello.get(name))}, the task's is {_brief(value)}"
        if hello.get("frozen", "") != self.net.digest:
            return "its net has other frozen parameters than the task's: all must read the same file of weights"
        if hello.get("loss", "") != self.net.task.own_loss:
            own = "the task's own"
            return f"its loss is {_brief(hello.get('loss') or own)}, the server's {self.net.task.own_loss or own}"
        called, samples = hello.get("name"), hello.get("samples")
        if not is_name(called) or not (samples is None or is_count(samples)):
            return "it does not say its name and its number of samples"
        return None

    # Carrying messages

    def _exchange(self, messages: Mapping[int, Mapping[str, bytes]], most: int) -> dict[int, Any]:
        """Send messages to nodes and wait for their answers, without those that come too late or make no sense.

        Answers may have `most` bytes, and half of the time that the round has left to arrive.
        """
        sites = {site.node: site for site in self._sites if site.node is not None}
        sent = self.transport.send(messages)
        open_messages = {message: node for node, message in sent.items()}
        answers: dict[int, Any] = {}
        began = time.monotonic()
        deadline = began + max(0.0, self._ends - began) / 2
        pause = self.waiting.poll
        while open_messages:
            for message, content in self.transport.receive(list(open_messages), most).items():
                if (node := open_messages.pop(message, None)) is None:
                    continue  # an answer that nobody has asked for, or a second one
                answer = self._read(content, most, sites.get(node))
                if answer is not None:
                    answers[node] = answer
            if open_messages and time.monotonic() >= deadline:
                for node in open_messages.values():
                    self._blame(sites.get(node), f"did not answer within {deadline - began:.3g} s")
                break
            if open_messages:
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(1.5 * pause, max(1.0, self.waiting.poll))
        return answers

    def _read(self, content: bytes | Exception | None, most: int, site: _KnownSite | None) -> dict[str, Any] | None:
        """What a site answers; None, and a line in the log, if that is an error or makes no sense."""
        name = site.name if site else _NEW
        if content is None:
            log.warning("site %s could not be reached", name)
            return None
        try:
            if isinstance(content, Exception):
                raise content
            if len(content) > most:
                raise CoterieError(f"{len(content)} bytes, where at most {most} are expected")
            answer = codec.load(content, {self.net.name: self.net})
            if not isinstance(answer, dict):
                raise CoterieError(type(answer).__name__)
        except Exception as error:  # whatever the site has sent, it is its own loss
            self._blame(site, f"answers nonsense: {brief(error)}")
            return None
        for kind in ("failed", "refused"):
            if kind in answer:
                if site is not None and str(answer[kind]).startswith(LOST):
                    self._lost.add(site.name)
                    return None
                log.warning("site %s %s: %s", name, kind, brief(answer[kind]))
                self._complaints[name] = brief(answer[kind])
                return None
        return answer

    def _blame(self, site: _KnownSite | None, what: str) -> None:
        """Write down what a site did, and ask it nothing more in this round, nor in some more if it goes on so."""
        if site is None:
            log.warning("site %s %s", _NEW, what)
            return
        if site.rests <= self._starts:
            site.faults += 1
            site.rests = self._starts + 2 ** (min(site.faults, _LONGEST) - 1)
        pause = site.rests - self._starts - 1
        log.warning("site %s %s%s", site.name, what, f"; it rests for {pause} rounds" if pause else "")

    # Running programs

    def run(self, call: Call) -> Answers:
        """Run a program at the sites of a call, or on what the server itself holds."""
        if (call.clients < 0).all():
            return self._run_here(call)
        asked = [client for client in call.clients.tolist() if self._takes_part(self._sites[client])]
        if call.program.letters:
            self._fetch_keys()
            if not self._announcements:
                raise ProgramError(
                    f"program {call.program.name} writes letters between clients, and the sites cannot give keys for "
                    "them: set identity and peers in their settings (`coterie deploy certs` makes both)"
                )
        shared, there = codec.dump(dict(call.shared)), len(self.present())
        rows = {client: row for row, client in enumerate(call.clients.tolist())}
        calls = {client: part_of(call, np.array([rows[client]])) for client in asked}
        self._complaints, self._lost = {}, set()
        answers = self._ask(calls, shared)
        if again := {client: own for client, own in calls.items() if self._begins_anew(self._sites[client])}:
            answers |= self._ask(again, shared)
        found = {}
        for client, answer in sorted(answers.items()):
            if (one := self._checked(answer, calls[client], client)) is not None:
                found[client] = one
        found = self._within_reason(call.program.name, self._alike(call.program.name, found))
        # If all sites were asked and all failed, they would fail again. If a part of them was asked, others may do it.
        if calls and len(self._complaints) == len(calls) == there:
            raise ProgramError(f"round {call.at.number}, no site can: {next(iter(self._complaints.values()))}")
        self._enough(call, len(found))
        letters = []
        for client, one in found.items():
            site = self._sites[client]
            site.counts(one.samples)
            site.answered = self._starts
            if one.kept:
                site.current = (call.at.number, call.at.phase)
            letters += one.letters
        outputs = joined([one.outputs for one in found.values()], torch.arange(len(found)))
        outputs[KEPT_FINITE] = torch.tensor([one.kept_finite for one in found.values()])
        return Answers(np.array(list(found)), outputs, Letters(letters))

    def _ask(self, calls: Mapping[int, Call], shared: bytes) -> dict[int, Any]:
        """Send sites the calls that are for them, each for one alone, and give their answers, in the calls' order."""
        nodes = {client: self._sites[client].node for client in calls}
        messages = {
            node: {"request": self._request(calls[client], self._sites[client]), "shared": shared}
            for client, node in nodes.items()
            if node is not None
        }
        most = max((largest(own, self.net, len(self._sites)) for own in calls.values()), default=WORDS)
        answers = self._exchange(messages, most)
        return {client: answers[node] for client, node in nodes.items() if node in answers}

    def _begins_anew(self, site: _KnownSite) -> bool:
        """Whether a site has just said that it has lost what it kept, and may go on as a new one; then it does."""
        if site.name not in self._lost:
            return False
        if self.counts_on_memory:
            self._blame(site, f"has lost what it kept, and cannot begin anew: {self.counts_on_memory}")
            return False
        log.warning("site %s has lost what it kept, and begins anew", site.name)
        site.accepted = site.current = None
        return True

    def _checked(self, answer: Mapping[str, Any], call: Call, client: int) -> Contribution | None:
        """What a site contributes to a call for it alone; None, and a word in the log, if its answer does not fit."""
        site = self._sites[client]
        try:
            return contribution(answer, call, self.net, site.name, self.names)
        except NotFiniteError as error:
            self._complaints[site.name] = str(error)
            self._blame(site, f"has {error}")
        except Exception as error:  # whatever is in the answer, it is the site's own loss
            self._blame(site, f"answers {call.program.name} with nonsense: {brief(error)}")
        self.reject(np.array([client]))
        return None

    def _request(self, call: Call, site: _KnownSite) -> bytes:
        """The message that asks a site to run a call, which is of this site alone."""
        content = {
            "format": PROTOCOL,
            "ask": "call",
            "run": self._run,
            "program": call.program.name,
            "at": asdict(call.at),
            "scales": self._told_scales,
            "each": dict(call.each),
            "settings": dict(call.settings),
            "base": site.accepted,
            "builds_on": site.current,
            "letters": list(call.letters.to(site.name)),
            "announcements": self._announcements if call.program.letters else {},
        }
        return codec.dump(content)

    def _alike(self, program: str, found: dict[int, Contribution]) -> dict[int, Contribution]:
        """The contributions whose outputs have the form that the program gave before, or that most sites give now.

        That decides what a program has not declared.
        """
        forms = {client: _form(one.outputs) for client, one in found.items()}
        counted = Counter(forms.values()).most_common()
        if not counted:
            return found
        usual = self._forms.get((self._run, program), counted[0][0])
        others = [client for client, form in forms.items() if form != usual] if len(counted) > 1 else []
        for client in others:
            self._blame(self._sites[client], f"answers {program} with wrongly shaped outputs")
            self.reject(np.array([client]))
        if not others:
            self._forms[self._run, program] = counted[0][0]
        return {client: one for client, one in found.items() if client not in others}

    def _within_reason(self, program: str, found: dict[int, Contribution]) -> dict[int, Contribution]:
        """The contributions without those that are too far off all others."""
        far = too_far(found)
        for client, why in far.items():
            self._blame(self._sites[client], f"is left out of {program}: {why}")
            self.reject(np.array([client]))
        return {client: one for client, one in found.items() if client not in far}

    def _enough(self, call: Call, answered: int) -> None:
        """Refuse a call that too few sites have answered; for scoring a single answer is enough."""
        needed = 1 if call.at.scoring else min(self.waiting.min_sites, len(call.clients))
        if answered < needed:
            raise RoundLostError(
                f"round {call.at.number}, {call.program.name}: {answered} of {len(call.clients)} sites answered, "
                f"at least {needed} are needed" + "".join(f" ({why})" for why in [*self._complaints.values()][:1])
            )

    def _run_here(self, call: Call) -> Answers:
        """Run a program on what the server itself holds."""
        assert self.own is not None
        rows = [part_of(call, np.array([row])) for row in range(len(call.clients))]
        outputs = [run_chunk(one, Memory(1), self.own)[0] for one in rows]
        return Answers(call.clients, joined(outputs, torch.arange(len(rows))))

    def server_clients(self, at: CallContext) -> Clients:
        """What the server itself holds, as a client that a program sees."""
        if self.own is None or not len(self.own.shards[0].train):
            raise CoterieError("the server holds no samples: name a data hook under [server] in the settings")
        return self.own.clients([0], at)

    def _fetch_keys(self) -> None:
        """Ask the sites for the signed keys with which letters to them are sealed in this round."""
        there = {site.node: site.name for site in self._sites if site.node is not None and self._takes_part(site)}
        missing = {node: name for node, name in there.items() if name not in self._announcements}
        if not missing:
            return
        request = {"request": codec.dump({"format": PROTOCOL, "ask": "keys", "run": self._run, "round": self._round})}
        for node, answer in self._exchange(dict.fromkeys(missing, request), WORDS).items():
            announcement = answer.get("announcement")
            if isinstance(announcement, bytes) and len(announcement) <= _ANNOUNCEMENT:
                self._announcements[missing[node]] = announcement

    # What clients keep lies at the sites; the engine only knows which version counts

    def reject(self, clients: np.ndarray) -> None:
        """Let these sites build on what they kept before this round."""
        for client in clients:
            self._sites[client].current = self._sites[client].accepted

    def commit(self) -> None:
        """Make final what sites have kept in this round; those that had no fault in it are trusted as before."""
        for site in self._sites:
            site.accepted = site.current
            if self._takes_part(site) and site.answered == self._starts:
                site.faults = 0

    def rollback(self) -> None:
        """Let all sites build on what they kept before this round."""
        self.reject(np.arange(len(self._sites)))

    def reset(self) -> None:
        """Begin a new run, under a name of which no site has kept anything."""
        self._run, self._scales, self.went_on_without = secrets.token_hex(8), None, []
        self._runs_here.add(self._run)
        for site in self._sites:
            site.accepted = site.current = None

    def checkpoint(self) -> dict[str, Any]:
        """The run's name at the sites, and for each site its position, size and version."""
        sites = [
            {
                "name": site.name,
                "samples": site.samples,
                "first": site.first,
                "version": site.accepted,
                "there": site.node is not None,
            }
            for site in self._sites
        ]
        content = {"run": self._run, "round": self._round, "sites": sites, "scales": self._told_scales}
        return content | ({"went_on_without": self.went_on_without} if self.went_on_without else {})

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on with a run: its sites get back their positions, connected or not, and new ones come behind them."""
        self.reset()
        self._run, self._round = content["run"], content.get("round", 0)
        self.went_on_without = list(content.get("went_on_without", []))
        if (scales := content.get("scales")) is not None:
            self._scales = Scales(**{name: tuple(value) for name, value in scales.items()})
        newcomers = {site.name: site for site in self._sites}
        restored = []
        for entry in content["sites"]:
            site = newcomers.pop(entry["name"], None) or _KnownSite(entry["name"], 0, None)
            site.first = entry.get("first") or entry["samples"]
            site.samples = min(site.samples or entry["samples"], site.first)
            site.accepted = site.current = entry["version"]
            restored.append(site)
        self._sites = [*restored, *newcomers.values()]
        if self._run not in self._runs_here:
            self._runs_here.add(self._run)
            self._wait_for_those({entry["name"] for entry in content["sites"] if entry.get("there")})

    def _wait_for_those(self, names: Collection[str]) -> None:
        """Wait for the sites of these names as long as the run's patience lasts, and take note of who has not come."""
        deadline = time.monotonic() + self.waiting.patience
        told = False
        while missing := [site.name for site in self._sites if site.name in names and site.node is None]:
            if time.monotonic() >= deadline:
                log.warning("the run goes on without %s, which took part before", ", ".join(missing))
                self.went_on_without.append({"after_round": self._round, "sites": missing})
                return
            if not told:
                log.info("waiting for %s, which took part before", ", ".join(missing))
                told = True
            time.sleep(min(1.0, self.waiting.patience))
            self._ends = time.monotonic() + self.waiting.timeout
            self._call_the_roll()

    def close(self) -> None:
        """The engine holds nothing that must be given back."""


def _form(outputs: Mapping[str, Value]) -> tuple[Any, ...]:
    """The names, kinds and shapes of outputs: equal for two sites whose outputs can be joined."""
    described = []
    for name, value in sorted(outputs.items()):
        tensors = value.tensors if isinstance(value, Stack) else (value,)
        kinds = tuple((tensor.shape[1:], tensor.is_floating_point()) for tensor in tensors)
        described.append((name, type(value).__name__, *kinds))
    return tuple(described)


def _brief(value: Any) -> str:
    text = brief(value)
    return text if len(text) <= 100 else text[:100] + " ..."
