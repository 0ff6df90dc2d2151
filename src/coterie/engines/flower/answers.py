"""What a site answers, held against what it was asked: everything that arrives from a site goes through here first.

An answer is bounded in size before it is unpacked. Then its outputs must be those that the program declares
(`coterie.clients.outputs`), in name, type, shape and range, its letters must be in the site's own name and to sites
that there are, and the samples that it counts with must be a number of samples. What does not fit is an error that says
what it is; the engine makes one site's loss of it.

Numbers that fit may still be made up. How far a model is from the one that the site was sent is compared with how far
those of the others are (`coterie.moves.outliers`): nobody's model counts that is far off all others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.letters import Letter
from coterie.clients.memory import Value
from coterie.clients.outputs import Output, unlike
from coterie.core.errors import CoterieError
from coterie.moves.outliers import far_off
from coterie.nets.net import Net
from coterie.nets.stacks import Models, Stack
from coterie.server.federation import KEPT_FINITE, Call

WORDS = 1 << 22
"""Bytes that an answer without outputs may have, such as a greeting: 4 MB."""

_UNDECLARED = 1 << 26
"""Bytes, besides some models, that an answer to a program may have which does not declare what it gives."""

_LETTER = 1 << 13
"""Bytes of a letter besides a model."""

_LETTERS = 1 << 24
"""Bytes of all letters from one site to another besides models."""

_MOST_SAMPLES = 1 << 40
"""No site has as many samples as this."""

_LOOSE = 1e6
"""Below this, numbers that are no model are never too far off."""


@dataclass(frozen=True)
class Contribution:
    """A site's answer to a program, as it may be used."""

    outputs: dict[str, Value]
    kept: bool
    """Whether the site has kept anything new."""
    letters: list[Letter]
    samples: int | None
    """How many training samples the site says it has, if it does."""
    kept_finite: bool = True
    """Whether the models that it keeps are finite."""
    distances: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each output that is bounded by those of others: how far off it is, and below what it never is too far."""


def largest(call: Call, net: Net, sites: int) -> int:
    """How many bytes one site's answer to a call may have."""
    model = 8 * (net.parameters.total + net.buffers.total)
    declared = call.program.declared(net, _asked(call))
    outputs = 16 * model + _UNDECLARED if declared is None else sum(output.size(net) for output in declared.values())
    letters = sites * (sites * (model + _LETTER) + _LETTERS) if call.program.letters else 0
    return WORDS + outputs + letters


def contribution(answer: Mapping[str, Any], call: Call, net: Net, name: str, others: Collection[str]) -> Contribution:
    """What a site of this name contributes to a call for it alone; an error says what in its answer does not fit."""
    outputs, kept, letters = (answer.get(part) for part in ("outputs", "kept", "letters"))
    if not isinstance(outputs, dict) or not isinstance(kept, bool) or not isinstance(letters, list):
        raise CoterieError("not the outputs of one client")
    outputs = dict(outputs)
    finite = outputs.pop(KEPT_FINITE, None)
    if finite is not None and not (isinstance(finite, Tensor) and finite.dtype == torch.bool and finite.numel() == 1):
        raise CoterieError("it does not say whether what it keeps is finite")
    for output, value in outputs.items():
        if not isinstance(output, str) or not isinstance(value, Value) or tuple(value.shape[:1]) != (1,):
            raise CoterieError("not the outputs of one client")
    _check_letters(letters, call, name, others)
    asked = _asked(call)
    declared = call.program.declared(net, asked)
    if declared is not None:
        if (problem := unlike(outputs, declared, net)) is not None:
            raise CoterieError(f"wrongly shaped outputs: {problem}")
        for output, form in declared.items():
            if (problem := form.beyond(outputs[output])) is not None:
                raise CoterieError(f"{output} has {problem}")
    if not call.at.scoring and not all(_finite(value) for value in outputs.values()):
        raise NotFiniteError("numbers that are not finite; a lower rate or clipping may help")
    distances = {
        output: _distance(value, asked, net)
        for output, value in outputs.items()
        if (declared is None or _unbounded(declared[output])) and _is_float(value)
    }
    told = answer.get("samples")
    samples = told if is_count(told) else None
    told_finite = finite is None or bool(finite.all())
    if not told_finite and not call.at.scoring:
        raise NotFiniteError("it keeps models that are not finite; a lower rate or clipping may help")
    return Contribution(outputs, kept, letters, samples, told_finite, distances)


class NotFiniteError(CoterieError):
    """What a site has trained is not finite."""


def too_far(contributions: Mapping[int, Contribution]) -> dict[int, str]:
    """Which sites contribute what is too far off what the others do, each with a sentence that says so."""
    found: dict[int, str] = {}
    sites = list(contributions)
    names = sorted({name for one in contributions.values() for name in one.distances})
    for name in names:
        rows = [contributions[site].distances.get(name, (np.nan, 0.0)) for site in sites]
        distances, floors = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        for place in far_off(distances, floors).nonzero()[0]:
            others = f"half of all are not beyond {np.nanmedian(distances):.2g}"
            found[sites[place]] = f"its {name} is {distances[place]:.2g} away from what it was sent, {others}"
    return found


def is_count(value: Any) -> bool:
    """Whether a value is a number of samples that a site may have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_SAMPLES


def is_plain(value: Any) -> bool:
    """Whether a value is made of texts, numbers and lists of them, and so can be compared without surprises."""
    if isinstance(value, list):
        return all(is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str)


def is_name(value: Any) -> bool:
    """Whether a value can be what a site is called: some printable text, and so one line in a log."""
    return isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()


def brief(value: Any) -> str:
    """A value that came from a site as a short text of one line."""
    text = " ".join("".join(one if one.isprintable() else " " for one in str(value)[:2000]).split())
    return text if len(text) <= 1000 else text[:1000] + " ..."


def _check_letters(letters: list[Any], call: Call, name: str, others: Collection[str]) -> None:
    """Refuse letters of a program that writes none, and those that are not letters of this site to another."""
    if letters and not call.program.letters:
        raise CoterieError("letters, and the program writes none")
    for letter in letters:
        sound = (
            isinstance(letter, Letter)
            and letter.sender == name
            and isinstance(letter.receiver, str)
            and letter.receiver in others
            and is_name(letter.subject)
            and isinstance(letter.content, bytes)
        )
        if not sound:
            raise CoterieError("a letter that is none, or not in its own name")


def _asked(call: Call) -> dict[str, Any]:
    """The inputs and settings of a call for a single client, as that client gets them."""
    return {**call.settings, **call.shared, **{name: value[0] for name, value in call.each.items()}}


def _tensors_of(value: Value) -> tuple[Tensor, ...]:
    return value.tensors if isinstance(value, Stack) else (value,)


def _is_float(value: Value) -> bool:
    return isinstance(value, Stack) or value.is_floating_point()


def _finite(value: Value) -> bool:
    return all(bool(one.isfinite().all()) for one in _tensors_of(value) if one.is_floating_point())


def _unbounded(output: Output) -> bool:
    return output.kind in (float, *_STACKS) and (output.least, output.most) in ((-inf, inf), (0, inf))


_STACKS = tuple(Stack.__subclasses__())


def _distance(value: Value, asked: Mapping[str, Any], net: Net) -> tuple[float, float]:
    """How far off a value [1, ...] is from what the client was sent, and below what that is never too much."""
    if not _finite(value):
        return np.nan, 0.0
    if isinstance(value, Stack):
        sent = [one.flattened() if one.shape else one.expand(1) for one in asked.values() if isinstance(one, Models)]
        floor = max([_scale(net), *(_norm(row) for one in sent for row in one.parameters)])
        rows = value.flattened().parameters
        if not (isinstance(value, Models) and sent):
            return max(map(_norm, rows)), floor
        starts = torch.cat([one.parameters for one in sent]).double()
        far = max(min(_norm(row.double() - start) for start in starts) for row in rows)
        # Running statistics have no scale of their own: only what no data has is too far.
        usual = max((_norm(row) for one in sent for row in one.buffers), default=0.0)
        off = max(map(_norm, value.flattened().buffers)) / (_LOOSE * (1 + usual))
        return max(far, floor * off), floor
    like = [one for one in asked.values() if isinstance(one, Tensor) and one.shape == value.shape[1:] and one.dim()]
    if like:
        start = like[0].double()
        return _norm(value[0].double() - start), max(_norm(start), 1.0)
    return _norm(value), _LOOSE


@lru_cache(maxsize=4)
def _scale(net: Net) -> float:
    """The norm of a model that nobody has trained."""
    return _norm(net.new(0, 0)[0])


def _norm(numbers: Tensor) -> float:
    """The Euclidean norm, of numbers of any size."""
    return float(torch.linalg.vector_norm(numbers.double()))
