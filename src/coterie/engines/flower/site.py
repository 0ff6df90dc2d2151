"""A real site as it answers the server: one client with its own data and its own installation.

A server can say `hello`, ask for the `keys` of a round, and `call` a program by its name. What runs is what this
installation has registered and the site's settings allow; net, data and label set are the site's own. A site pins the
method that it takes part in: then a program runs if that method's own code asks for it, with the settings that the
method has at the site, and as often in a round as the method asks (`coterie.server.protocol`). Bounds on batches,
steps, rounds, sizes and time hold besides (`coterie.clients.guard.Limits`). Whatever else a message asks is refused.
"""

import hashlib
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.clients import HOME, HOME_BLEND, HOME_PRIOR, HOME_WEIGHTS, CallContext
from coterie.clients.guard import BoundError, Limits
from coterie.clients.letters import Letter, Letters, checked_content
from coterie.clients.memory import Value, size_of
from coterie.clients.programs import Program, moments, program_named
from coterie.clients.sealing import Identity, Roster, SealingError, Seals, read_roster
from coterie.core.errors import CoterieError, ProgramError
from coterie.core.files import write_whole
from coterie.data.population import Scales
from coterie.engines.chunk import Host, run_chunk
from coterie.engines.flower.audit import Trail
from coterie.engines.flower.guard import SiteGuard
from coterie.engines.flower.leaving import Leaving
from coterie.engines.flower.versions import Version, Versions
from coterie.engines.torch_flags import applied
from coterie.methods import methods
from coterie.nets import codec
from coterie.nets.stacks import Models, Stack
from coterie.server.federation import Call
from coterie.server.method import Method
from coterie.server.protocol import calls_of, objection
from coterie.server.served_models import ServedModels

log = logging.getLogger("coterie")

SCALING = ("shift", "scale", "target_shift", "target_scale")
"""What server and sites must agree on in scaling, where settings say it."""

PROTOCOL = 1
"""The version of the messages between server and sites."""

_WORDS, _LISTED = 500, 200
"""How many characters of what a server says, and how many letters, an entry of the audit log has."""

_SCORINGS = 3
"""How often a round is scored at most: as it is, and once more at the end of a run."""


@dataclass(frozen=True)
class Rules:
    """What a site decides for itself, besides its data and its net."""

    name: str
    """What the site is called."""
    labels: tuple[str, ...]
    """The label set of its data."""
    state: Path
    """Folder for what the client keeps between rounds."""
    allow: tuple[str, ...]
    """Programs that the server may ask for, with `*` as a wildcard."""
    method: Method | None = None
    """The method that it takes part in; without one, any that `allow` has programs of, set as the server likes."""
    shift: tuple[float, ...] = ()
    """What is subtracted from inputs, per channel, if the settings say it."""
    scale: tuple[float, ...] = ()
    """What inputs are divided by then, per channel, if the settings say it."""
    target_shift: tuple[float, ...] = ()
    """What is subtracted from numbers that are predicted, if the settings say it."""
    target_scale: tuple[float, ...] = ()
    """What they are divided by then, if the settings say it."""
    model: Path | None = None
    """The file into which the site's own model goes at the end of a run."""
    precision: str | None = "float32"
    """What the net computes in; with None torch's settings are left alone."""
    identity: Path | None = None
    """This site's private identity for letters."""
    peers: Path | None = None
    """The pinned public identities of all sites."""
    ca: Path | None = None
    """The certificate of the authority that must have signed these; without it they are taken as they are."""
    limits: Limits = field(default_factory=Limits)
    """Bounds on what this site does for others."""
    leaving: Leaving = field(default_factory=Leaving)
    """What is done to answers before they leave."""
    audit: Path | None = None
    """The file that says what the site was asked and what left it."""


class RemoteSite:
    """Answers a server's messages for the one client of a host."""

    def __init__(self, rules: Rules, host: Host, scaled: Callable[[Scales], Host] | None = None) -> None:
        """A site with the data of a host. If `scaled` is given, the host's are raw: that gives one with the scales."""
        methods.load()  # a server may ask for programs of any method
        self._rules, self._host, self._net = rules, host, host.net
        self._nets = {host.net.name: host.net}
        self._scaled = None if scaled is None else lru_cache(maxsize=1)(scaled)
        self._introduced = False
        self._guard = SiteGuard(rules.limits, folder=rules.state / "given")
        self._method = rules.method
        self._known: tuple[Roster, Seals] | None = None
        self._trail = None if rules.audit is None else Trail(rules.audit)
        self._calls = Counter() if self._method is None else calls_of(self._method)

    @property
    def _seals(self) -> Seals:
        """What seals this site's letters and opens those of others, with the list of peers as it is now."""
        rules = self._rules
        if rules.identity is None or rules.peers is None:
            raise CoterieError("this site has no identity for letters: set identity and peers in its settings")
        roster = read_roster(rules.peers)
        if self._known is None or self._known[0] != roster:
            if rules.ca is not None:
                self._check_roster(roster, rules.peers, rules.ca)
            identity = Identity.read(rules.identity)
            self._known = roster, Seals(rules.name, identity, roster.identities, rules.state / "letters")
        return self._known[1]

    def _check_roster(self, roster: Roster, path: Path, ca: Path) -> None:
        """Refuse a list of peers that the authority has not signed, or that is older than one that was here before."""
        try:
            roster.check(ca.read_bytes())
        except (OSError, SealingError) as error:
            raise SealingError(f"{path}: {error}") from error
        newest = self._rules.state / "peers.serial"
        before = int(newest.read_text()) if newest.is_file() else 0
        if roster.serial < before:
            raise SealingError(
                f"{path}: list {roster.serial}, but list {before} was here before: who is no longer on it could come "
                "back by an old one; get the newest from the leader"
            )
        if roster.serial > before:
            newest.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(newest, str(roster.serial))

    def answer(self, request: Mapping[str, bytes]) -> bytes:
        """The answer to a message. A wrong one never ends the site: it refuses, and logs the reason.

        What was asked and what leaves is in the audit log, if there is one, before the answer leaves.
        """
        about: dict[str, Any] = {"what": "nothing that can be read", "question": _digest_of(request).hex()}
        answer = self._answered(request, about)
        if self._trail is None:
            return answer
        try:
            self._trail.note(**about, answer=hashlib.sha256(answer).hexdigest(), bytes=len(answer))
        except CoterieError as error:
            log.error("refused: %s", error)
            return codec.dump({"refused": "this site's audit log cannot be written"})
        return answer

    def _answered(self, request: Mapping[str, bytes], about: dict[str, Any]) -> bytes:
        """The answer to a message; what the audit log says about both is added to `about`."""
        try:
            if (size := sum(map(len, request.values()))) > 1e6 * self._rules.limits.megabytes:
                raise CoterieError(f"a message of {size} bytes: at most {self._rules.limits.megabytes} MB here")
            asked = codec.load(request["request"], self._nets)
            if not isinstance(asked, dict) or asked.get("format") != PROTOCOL:
                raise CoterieError(f"not a message of format {PROTOCOL}")
            handlers = {"hello": self._hello, "keys": self._keys, "call": self._call}
            kind = asked.get("ask")
            about |= _described(asked)
            if kind not in handlers:
                raise CoterieError(f"asked for {kind!r}, which is none of {', '.join(handlers)}")
            shared = codec.load(request["shared"], self._nets) if "shared" in request else {}
            with within(self._rules.limits.seconds):
                answer = handlers[kind](asked, shared, _digest_of(request))
            about |= {"outcome": "answered", **_left(answer)}
            return codec.dump(answer)
        except ProgramError as error:
            if isinstance(error.__cause__, BoundError):
                return self._refuse(str(error.__cause__), about)
            log.exception("a program failed")
            about |= {"outcome": "failed", "reason": _short(error)}
            return codec.dump({"failed": str(error)})
        except (CoterieError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = str(error) if isinstance(error, CoterieError) else f"malformed message ({error!r})"
            return self._refuse(reason, about)

    @staticmethod
    def _refuse(reason: str, about: dict[str, Any]) -> bytes:
        """An answer that refuses, for this reason."""
        log.warning("refused: %s", reason)
        about |= {"outcome": "refused", "reason": _short(reason)}
        return codec.dump({"refused": reason})

    def _hello(self, asked: Mapping[str, Any], shared: Any, question: bytes) -> dict[str, Any]:
        """Who this site is, and what must fit the task: all that a server learns before it calls a program."""
        if not self._introduced:  # it is asked again and again
            told = "its name, how many samples it trains on, labels, net and task"
            log.info("told the server who this site is: %s", told)
            self._introduced = True
        return {
            "name": self._rules.name,
            "samples": self._host.samples,
            "labels": list(self._rules.labels),
            "task": self._net.task.name,
            "loss": self._net.task.own_loss,
            "net": self._net.name,
            "shape": list(self._net.shape),
            "parameters": self._net.parameters.total,
            "dtype": str(self._net.dtype),
            "frozen": self._net.digest,
            # Only what the settings say: a site's own mean and deviation are nobody's business.
            **{name: list(getattr(self._rules, name)) or None for name in SCALING},
        }

    def _keys(self, asked: Mapping[str, Any], shared: Any, question: bytes) -> dict[str, Any]:
        """This site's signed key, with which letters to it are sealed in a round."""
        return {"announcement": self._seals.announce(_text(asked["run"]), _whole(asked["round"]))}

    def _call(self, asked: Mapping[str, Any], shared: Any, question: bytes) -> dict[str, Any]:
        """Run a program: its outputs, whether the client keeps anything new, sealed letters, and how many samples."""
        program = self._allowed(_text(asked["program"]))
        run, at = _text(asked["run"]), _context(asked["at"])
        if at.scoring != program.scoring:
            raise CoterieError(f"program {program.name}: test data is for scoring programs, and only for them")
        settings = dict(asked["settings"])
        self._check_protocol(program, settings, at)
        host = self._host_for(program, asked.get("scales"))
        versions = Versions(self._rules.state / "memory", run)
        base, builds_on = _version(asked["base"]), _version(asked["builds_on"])
        memory = versions.read(builds_on, self._nets)
        letters = Letters(self._opened(asked["letters"], run, at))
        each = _values(asked["each"])
        _check_inputs(program, each, _values(shared), settings)
        self._check_sizes(each, _values(shared))
        self._count(program, run, at, question)
        call = Call(program, np.array([0]), each, _values(shared), settings, at, letters)
        precision = self._rules.precision
        with nullcontext() if precision is None else applied(precision, self._net.device):
            outputs, kept, written = run_chunk(call, memory, host, self._guard)
        outputs = self._leaving(program, outputs, call)
        sealed = self._sealed(written, asked["announcements"], run, at)
        ended = HOME in kept
        self._take_home(kept, host)
        if ended and program.scoring and self._rules.identity is not None:  # what the run's letters need is over, too
            self._seals.forget(run)
        if kept:
            memory.update(torch.tensor([0]), {name: value.to("cpu") for name, value in kept.items()})
            version = (at.number, at.phase)
            versions.write(version, memory)
            versions.keep_only([base, builds_on, version])
        what = "scored" if program.scoring else "ran"
        log.info("round %d: %s %s; sent %s", at.number, what, program.name, _in_words(outputs, sealed))
        return {"outputs": dict(outputs), "kept": bool(kept), "letters": sealed, "samples": self._host.samples}

    def _take_home(self, kept: dict[str, Value], host: Host) -> None:
        """Store what this site predicts with at the end of a run, if that is among what it was told to keep."""
        names = (HOME, HOME_WEIGHTS, HOME_BLEND, HOME_PRIOR)
        models, weights, blend, prior = (kept.pop(name, None) for name in names)
        preparation = getattr(host, "preparation", None)
        if self._rules.model is None or preparation is None or not isinstance(models, Models):
            return
        name, told = (self._rules.name,), prior.cpu() if isinstance(prior, Tensor) else None
        if isinstance(weights, Tensor):
            blended = blend is not None
            own = ServedModels(models[0].to("cpu"), preparation, name, None, weights.cpu(), told, blended)
        else:
            only = torch.zeros(1, dtype=torch.int64)
            own = ServedModels(models.to("cpu"), preparation, name, index=only, prior=told)
        own.write(self._rules.model)
        log.info("this site's own model is in %s", self._rules.model)

    def _host_for(self, program: Program, scales: Any) -> Host:
        """This site's data, scaled as the server says all sites do it, if it does not know that by itself."""
        if self._scaled is None:
            return self._host
        if scales is None:
            if program is not moments:
                raise CoterieError("this site scales as all sites do together, and the server does not say how")
            return self._host
        return self._scaled(Scales(**{one.name: _numbers(scales[one.name]) for one in fields(Scales)}))

    def _allowed(self, name: str) -> Program:
        """The program of this name, if this site's settings allow it."""
        if not any(fnmatchcase(name, pattern) for pattern in self._rules.allow):
            raise CoterieError(f"program {name} is not allowed by this site's settings")
        found = program_named(name)
        if found.simulated:
            raise CoterieError(f"program {name} gives what a client keeps to itself: it is for simulations only")
        return found

    def _check_protocol(self, program: Program, settings: Mapping[str, Any], at: CallContext) -> None:
        """Refuse a call that this site's method would not make."""
        method = self._method
        if method is None or program.scoring or (program is moments and self._scaled is not None):
            return
        if program not in self._calls:
            raise CoterieError(f"program {program.name} is none of {method.name}, this site's method")
        if at.number > method.rounds:
            raise CoterieError(f"round {at.number}: this site's method has {method.rounds} rounds")
        if at.prior != method.local.own_prior:
            raise CoterieError(f"a smoothing of priors of {at.prior}: this site's method has {method.local.own_prior}")
        if reason := objection(method, program, settings, at.number):
            raise CoterieError(f"program {program.name} of {method.name}: {reason}")

    def _check_sizes(self, *given: Mapping[str, Value]) -> None:
        """Refuse more models than this site takes."""
        most = self._rules.limits.models
        for name, value in (pair for part in given for pair in part.items()):
            if isinstance(value, Models) and prod(value.shape) > most:
                raise CoterieError(f"{name}: {prod(value.shape)} models, at most {most} here (limits.models)")

    def _count(self, program: Program, run: str, at: CallContext, question: bytes) -> None:
        """Note what is asked, and refuse what is asked too often."""
        if not program.scoring:
            self._guard.count_round(run, at.number)
        if self._rules.leaving.noise:  # many answers to one question would tell what is below the noise
            question += os.urandom(16)
        if self._method is not None:
            self._guard.count_call(run, at.number, program.name, question, self._calls.get(program, _SCORINGS))

    def _leaving(self, program: Program, outputs: Mapping[str, Value], call: Call) -> dict[str, Value]:
        """What leaves of the outputs of a program, as this site's settings want it."""
        leaving = self._rules.leaving
        if not leaving.clip or program.scoring:
            return dict(outputs)
        if program.letters:
            raise CoterieError(f"program {program.name} writes letters, which this site cannot clip (leaving.clip)")
        shared = [value.expand(1, *([] if isinstance(value, Stack) else value.shape)) for value in call.shared.values()]
        return leaving.treated(outputs, [*call.each.values(), *shared])

    def _opened(self, letters: Sequence[Any], run: str, at: CallContext) -> list[Letter]:
        """The letters that can be read and trusted. Others are left out, and the call goes on without them."""
        opened: list[Letter] = []
        if not letters:
            return opened
        reading = self._seals.reading(run=run, round=at.number, phase=at.phase)
        for letter in letters:
            if not isinstance(letter, Letter) or letter.receiver != self._rules.name:
                raise CoterieError("a letter that is none, or for somebody else")
            try:
                content = reading.open(letter.content, sender=letter.sender, subject=letter.subject)
                opened.append(replace(letter, content=checked_content(codec.load(content, self._nets))))
            except CoterieError as error:
                log.warning("refused a letter: %s", error)
        return opened

    def _sealed(self, letters: Sequence[Letter], announcements: Any, run: str, at: CallContext) -> list[Letter]:
        """The letters as they leave this site: each can be read by its receiver alone.

        A letter is left out if its receiver's key of this round is not known, or is not the receiver's own.
        """
        sealed = []
        for letter in letters:
            if letter.receiver not in announcements:
                log.warning("no letter to %s: its key of this round is not known", letter.receiver)
                continue
            try:
                content = self._seals.seal(
                    codec.dump(letter.content),
                    run=run,
                    round=at.number,
                    phase=at.phase,
                    receiver=letter.receiver,
                    subject=letter.subject,
                    announcement=announcements[letter.receiver],
                )
            except SealingError as error:
                log.warning("no letter to %s: %s", letter.receiver, error)
                continue
            sealed.append(replace(letter, content=content))
        return sealed


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Refuse what takes longer. It can be cut short in the main thread alone, where a site answers."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def end(*told: Any) -> None:
        raise BoundError(f"an answer takes longer than {seconds:g} s (limits.seconds)")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _digest_of(request: Mapping[str, bytes]) -> bytes:
    """A digest of all parts of a message."""
    whole = hashlib.sha256()
    for name, part in sorted(request.items()):
        whole.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(part).digest())
    return whole.digest()


def _short(told: object) -> str:
    """What somebody says, as an audit log has it: not at any length."""
    text = str(told)
    return text if len(text) <= _WORDS else text[:_WORDS] + " ..."


def _described(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a message asks, as an audit log has it."""
    about = {"what": _short(asked.get("ask"))}
    about |= {name: _short(asked[name]) for name in ("run", "round", "program") if name in asked}
    at = asked.get("at")
    if isinstance(at, dict):
        about |= {"round": _short(at.get("number")), "call": _short(at.get("phase"))}
    if isinstance(asked.get("settings"), dict):
        about["settings"] = _short({str(name): str(value) for name, value in asked["settings"].items()})
    return about


def _left(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What leaves in an answer, as an audit log has it: bytes by name, and letters by receiver."""
    if not isinstance(answer.get("outputs"), dict):
        return {"left": _short(", ".join(answer))}
    left = {name: sum(one.nbytes for one in _tensors(value)) for name, value in answer["outputs"].items()}
    letters = Counter((letter.receiver, letter.subject) for letter in answer["letters"])
    return {"left": left, "letters": [[*about, count] for about, count in sorted(letters.items())][:_LISTED]}


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return tuple(value.tensors) if isinstance(value, Stack) else (value,)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CoterieError(f"expected a text, not {type(value).__name__}")
    return value


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(isinstance(one, float) and isfinite(one) for one in value):
        raise CoterieError("expected finite numbers")
    return tuple(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise CoterieError(f"expected a whole number, not {value!r}")
    return value


def _context(value: Any) -> CallContext:
    kinds = {item.name: type(item.default) for item in fields(CallContext)}
    if not isinstance(value, dict) or any(type(value.get(name)) is not kind for name, kind in kinds.items()):
        raise CoterieError("a message that does not say where in a run it is")
    made = CallContext(**{name: value[name] for name in kinds})
    if not (isfinite(made.prior) and made.prior >= 0):
        raise CoterieError(f"a smoothing of priors of {made.prior}")
    if made.test_data:
        raise CoterieError("a method that reads test data: at a site it is for scoring only")
    return made


def _version(value: Any) -> Version | None:
    return None if value is None else (_whole(value[0]), _whole(value[1]))


def _values(inputs: Any) -> dict[str, Value]:
    if not isinstance(inputs, dict) or not all(isinstance(value, Value) for value in inputs.values()):
        raise CoterieError("inputs that are neither tensors nor models")
    return inputs


def _check_inputs(program: Program, *given: Mapping[str, Any]) -> None:
    for name in (name for part in given for name in part):
        if name not in program.inputs:
            raise CoterieError(f"program {program.name} has no input {name!r}")


def _in_words(outputs: Mapping[str, Value], letters: Sequence[Letter]) -> str:
    """What leaves this site with an answer, in words: each output with its bytes, and to whom sealed letters go."""
    parts = [f"{name} ({size_of(value):,} bytes)" for name, value in outputs.items()]
    if letters:
        parts.append(f"sealed letters to {', '.join(letter.receiver for letter in letters)}")
    return f"{', '.join(parts) or 'no output'} and the number of samples"
