"""Options of the command line, derived from documented fields: of methods, splits, data sets and settings."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Annotated, Any, Literal, Optional, get_args, get_origin

from cyclopts import Group, Parameter, Token

from coterie.core.errors import SettingsError, unknown
from coterie.core.registry import Option, options
from coterie.data.division import Division
from coterie.data.sources import sources
from coterie.data.splits import split_rules
from coterie.engines.simulation import Computing
from coterie.methods import methods
from coterie.runs.settings import GENERAL, data_options
from coterie.server.scoring import Scoring
from coterie.training.local import LocalTraining

__all__ = ["GROUPS", "Shown", "command", "hidden", "method_options", "methods_options", "whole", "world_options"]

_TITLES = ("Experiment", "Method", "Local training", "Split", "Clients' data", "Scoring", "Computing", "Output")
GROUPS = {title: Group(title, sort_key=place) for place, title in enumerate(_TITLES)}
"""The panels of a help page, in their order."""


@dataclass(frozen=True)
class Shown:
    """An option as the command line has it."""

    option: Option
    group: Group
    name: str
    """Its name, with a prefix such as `split.` where the plain one means something else."""
    visible: bool = True
    """Whether the help shows it."""


def world_options(arguments: Sequence[str] = ()) -> list[Shown]:
    """The options of everything but the method, each name once.

    There are many splits and data sets, each with options of its own. All can be given, but the help shows those of the
    split and the data set that the arguments name. Each of them can also be written with a prefix, e.g. `split.alpha`.
    """
    shown = [Shown(option, GROUPS["Experiment"], option.name) for option in GENERAL]
    for title, kind in (("Clients' data", Division), ("Scoring", Scoring), ("Computing", Computing)):
        shown += [Shown(option, GROUPS[title], option.name) for option in options(kind)]
    by_name = {item.name: item for item in shown}
    splits = {name: split_rules.options(name) for name in split_rules}
    # A name that is not in the catalogue stands for all own data.
    data = {name: data_options(name) for name in (*sources, _OWN)}
    for part, choices, title in (("split", splits, "Split"), ("data", data, "Clients' data")):
        named = _named(arguments, part)
        named = named if named in choices else _OWN
        # The named one comes first: its help and its default are the ones to show.
        for choice in sorted(choices, key=lambda choice: choice != named):
            for option in choices[choice]:
                full = f"{part}.{option.name}"
                free = by_name.get(option.name) is None or by_name[option.name].group is GROUPS[title]
                # The plain name of a data set's option goes to the split, if that has one.
                seen = Shown(option, GROUPS[title], option.name if free else full, visible=choice == named)
                by_name.setdefault(seen.name, seen)
                by_name.setdefault(full, replace(seen, name=full, visible=False))
    return list(by_name.values())


_OWN = "own data"


def _named(arguments: Sequence[str], option: str) -> str:
    """The value of an option, as far as it can be seen before the arguments are parsed."""
    default = next(item.default for item in GENERAL if item.name == option)
    for place, argument in enumerate(arguments):
        if argument == f"--{option}" and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"--{option}="):
            return argument.partition("=")[2]
    if option == "split" and len(arguments) > 1 and arguments[0] == "split" and not arguments[1].startswith("-"):
        return arguments[1]  # `coterie split NAME`
    return str(default)


def method_options(method: str, world: Iterable[Shown]) -> list[Shown]:
    """A method's own options; one that something else has too is written `--method.name`, as all of them can be."""
    local = {field.name for field in fields(LocalTraining)}
    taken = {item.name for item in world}
    shown = []
    for option in sorted(methods.options(method), key=lambda option: option.name not in ("rounds", "participation")):
        group = GROUPS["Local training" if option.name in local else "Method"]
        full = Shown(option, group, f"method.{option.name}", visible=option.name in taken)
        shown += [full] if full.visible else [replace(full, name=option.name, visible=True), full]
    return shown


def methods_options(world: Sequence[Shown], arguments: Sequence[str] = ()) -> list[Shown]:
    """The options of all methods, each name once. Where the arguments name methods, theirs are the ones to show.

    Methods may mean different things by a name. What any of them understands can be given then, and each checks it.
    """
    named = [name for name in methods if name in arguments] or list(methods)
    by_name: dict[str, Shown] = {}
    for name in sorted(methods, key=lambda name: name not in named):
        for item in method_options(name, world):
            if item.name not in by_name:
                by_name[item.name] = item if name in named else replace(item, visible=False)
            elif name in named:
                known = by_name[item.name]
                by_name[item.name] = replace(known, option=_either(known.option, item.option))
    return list(by_name.values())


def _either(first: Option, second: Option) -> Option:
    """An option that reads the choices of both."""
    kinds = [_readable(option.type) for option in (first, second)]
    if kinds[0] == kinds[1] or not all(kind is bool or get_origin(kind) is Literal for kind in kinds):
        return first
    choices = dict.fromkeys(word for kind in kinds for word in (_TRUTH if kind is bool else get_args(kind)))
    default = first.default if first.default == second.default else None
    text = first.help if first.help == second.help else "Differs by method: see `coterie run METHOD --help`."
    return Option(first.name, Literal[tuple(choices)], default, text)


_TRUTH = {"true": True, "false": False}


def hidden(shown: Iterable[Shown], but: Iterable[Shown] = ()) -> list[Shown]:
    """The same options out of sight, without those whose names are among others."""
    names = {item.name for item in but}
    return [replace(item, visible=False) for item in shown if item.name not in names]


def command(
    function: Callable[..., None], shown: Sequence[Shown], arguments: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """A command from a function `(given, *arguments, **own)`: `given` holds what was said of the options shown.

    The function's own keyword parameters are options too. The arguments are those without a name.
    """
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def called(*positional: Any, **keywords: Any) -> None:
        mine = {p.name: keywords.pop(p.name) for p in own if p.name in keywords}
        function(_values(keywords, shown), *positional, **mine)

    parameters = [*arguments, *own, *(_parameter(item) for item in shown)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__doc__ = function.__doc__
    return called


def _parameter(item: Shown) -> inspect.Parameter:
    """An option as a parameter. Its default is always nothing: only what is given is passed on."""
    kind = _readable(item.option.type)
    said = Parameter(
        name=_flag(item.name),
        help=_help(item.option, kind),
        group=item.group,
        converter=_converter(kind),
        show=item.visible,
        show_default=False,
        show_choices=False,
    )
    annotation: Any = Annotated[Optional[kind], said]  # noqa: UP045  # the type is known at run time only
    return inspect.Parameter(
        _identifier(item.name), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _help(option: Option, kind: Any) -> str:
    """What the help says: the field's docstring, its default, and what else there is to choose from."""
    default = option.default
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    elif isinstance(default, bool):
        default = str(default).lower()
    words = [] if default in (None, "") else [str(default)]
    if get_origin(kind) is Literal:
        others = ", ".join(str(choice) for choice in get_args(kind) if choice != option.default)
        words.append(f"or {others}" if words else others)
    # Fields are called as in Python, e.g. `rate_decay`; here they are options.
    text = re.sub(r"`([a-z]+(?:_[a-z]+)+)`", lambda found: f"`{_flag(found[1])}`", option.help)
    return f"{text} [{'; '.join(words)}]" if words else text


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _converter(kind: Any) -> Callable[[Any, Sequence[Token]], Any] | None:
    """How a value is read. Left alone, the parser would take 2.5 for 2, and the word `none` for not given."""
    if get_origin(kind) is Literal:
        return _choice(get_args(kind))
    return {int: whole, float: _number}.get(kind)


def whole(kind: type, tokens: Sequence[Token]) -> int:
    """A whole number."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def _number(kind: type, tokens: Sequence[Token]) -> float:
    try:
        return float(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a number") from None


def _choice(choices: Sequence[Any]) -> Callable[[Any, Sequence[Token]], Any]:
    by_word = {str(choice): choice for choice in choices}

    def convert(kind: type, tokens: Sequence[Token]) -> Any:
        word = tokens[0].value
        if word not in by_word:
            raise unknown("choice", word, by_word)
        return by_word[word]

    return convert


def _identifier(name: str) -> str:
    return name.replace(".", "__")


def _readable(hint: Any) -> Any:
    """The type that the command line reads: a list is written with commas, a path or an array is a file's name."""
    several = get_origin(hint) not in (None, Literal, tuple)
    kind = next(kind for kind in get_args(hint) if kind is not NoneType) if several else hint
    return kind if get_origin(kind) is Literal or kind in (int, float, bool) else str


def _values(given: Mapping[str, Any], shown: Iterable[Shown]) -> dict[str, Any]:
    """What was given, by the names that settings know, with lists taken apart."""
    values = {}
    for item in shown:
        value = given.get(_identifier(item.name))
        if value is not None:
            # The words for a switch among words, where methods differ, are read as such.
            value = _TRUTH.get(value, value) if get_origin(item.option.type) is Literal else value
            values[item.name] = _listed(item, value) if get_origin(item.option.type) is tuple else value
    return values


def _listed(item: Shown, text: str) -> tuple[Any, ...]:
    convert: Callable[[str], Any] = float if get_args(item.option.type)[0] is float else str
    try:
        return tuple(convert(part.strip()) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{item.name}={text!r}: numbers with commas between them") from None
