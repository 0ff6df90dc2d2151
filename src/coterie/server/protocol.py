"""What a method asks of a client, read from the method itself: which programs, how often in a round, how they are set.

A real site pins the method that it takes part in, with its settings. What a server may then ask for is what that method
asks for: the programs that its code names, as often as it names them, with settings that come from its fields. Nobody
has to write that down twice, and it holds for own methods, too.

>>> sorted(program.name for program in calls_of(coterie.IFCA()))
['coterie.methods.ifca.choose_and_train', 'coterie.programs.choose']
>>> local = coterie.FedProx(mu=0.1).local
>>> objection(coterie.FedProx(mu=0.1), coterie.programs.train, {"local": local, "pull": 0.1}, round=1)
''
>>> objection(coterie.FedProx(mu=0.1), coterie.programs.train, {"local": local, "pull": 0.2}, round=1)
'pull=0.2, where this method has mu=0.1'
"""

import dis
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isclose, isfinite
from types import FunctionType, ModuleType
from typing import Any

from coterie.clients.programs import Program
from coterie.server.method import Method
from coterie.training.local import LocalTraining

ANY = "*"
"""Stands in a program's `told` for a setting that the server may choose."""

REPEATS = 20
"""How often a program may be called in a round that a method calls in a loop."""


def calls_of(method: Method) -> Counter[Program]:
    """The programs that a method's code names, and how often in a round it may call each.

    >>> calls_of(coterie.FedAvg())[coterie.programs.train]
    1
    """
    found: Counter[Program] = Counter()
    seen: set[tuple[FunctionType, bool]] = set()
    waiting = [(function, False) for name in dir(type(method)) for function in _functions(type(method), name)]
    while waiting:
        function, inside = waiting.pop()
        if (function, inside) in seen:
            continue
        seen.add((function, inside))
        for value, repeated in _named(function):
            if isinstance(value, Program):
                found[value] += REPEATS if inside or repeated else 1
            elif isinstance(value, FunctionType) and value.__module__ not in _OTHERS:
                waiting.append((value, inside or repeated))  # what a loop calls is called as often
    return found


_OTHERS = frozenset({Method.__module__, __name__, "coterie.server.fitting"})
"""Modules whose functions belong to no method."""


def _functions(cls: type, name: str) -> Iterator[FunctionType]:
    """The function that a class has under a name, and those that it stands on by `super()`."""
    for base in cls.__mro__:
        if base in Method.__mro__ or name not in vars(base):
            continue
        own = vars(base)[name]
        own = own.fget if isinstance(own, property) else getattr(own, "__func__", own)
        if isinstance(own, FunctionType):
            yield own
            if "super" not in own.__code__.co_names:
                return


def _named(function: FunctionType) -> Iterator[tuple[Any, bool]]:
    """What a function's code names of what lies outside of it, and whether it does so in a loop."""
    cells = inspect.getclosurevars(function).nonlocals
    codes = [(function.__code__, False)]
    while codes:
        code, inside = codes.pop()
        steps = list(dis.get_instructions(code))
        loops = [(one.argval, one.offset) for one in steps if "JUMP_BACKWARD" in one.opname]
        for place, one in enumerate(steps):
            repeated = inside or any(first <= one.offset <= last for first, last in loops)
            if inspect.iscode(one.argval):  # a comprehension runs its code many times
                codes.append((one.argval, repeated or one.argval.co_name.startswith("<")))
                continue
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = function.__globals__.get(one.argval)
            elif one.opname == "LOAD_DEREF":
                value = cells.get(one.argval)
            else:
                continue
            for after in steps[place + 1 :]:  # as in coterie.programs.train
                if not isinstance(value, ModuleType) or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                value = getattr(value, after.argval, None)
            yield value, repeated


def objection(method: Method, program: Program, settings: Mapping[str, Any], round: int) -> str:  # noqa: A002
    """Why these settings are not those with which a method calls a program in a round; empty if they are."""
    for name, value in settings.items():
        source = program.told.get(name, name)
        field, _, wanted = source.partition("=")
        if value is None or source == ANY or _is_names(value):
            fine = not isinstance(value, float) or isfinite(value)
            expected = "a finite number"
        elif hasattr(method, field):
            own = getattr(method, field)
            own = str(own) == wanted if wanted else own
            own = own.at(round, method.rounds) if isinstance(own, LocalTraining) else own
            fine, expected = _same(value, own), f"{field}={getattr(method, field)!r}"
            if isinstance(value, LocalTraining) and isinstance(own, LocalTraining):
                wrong = [one.name for one in fields(own) if not _same(getattr(value, one.name), getattr(own, one.name))]
                if wrong:
                    return f"{wrong[0]}={getattr(value, wrong[0])!r}, where this method has {getattr(own, wrong[0])!r}"
        elif name in program.defaults:
            fine, expected = _same(value, program.defaults[name]), f"{program.defaults[name]!r}"
        else:
            return f"{name}={value!r}, which no field of this method says: name it in the program's told"
        if not fine:
            return f"{name}={value!r}, where this method has {expected}"
    return ""


def _is_names(value: Any) -> bool:
    """Whether a value is a sequence of names of clients, or of numbers of rounds and the like: no settings."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)


def _same(value: Any, other: Any) -> bool:
    """Whether two values of settings are of one type and equal, numbers up to rounding."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return value == other or isclose(value, other, rel_tol=1e-9)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    return type(value) is type(other) and bool(value == other)
