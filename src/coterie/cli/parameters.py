"""How Cyclopts reads a command: signatures of functions, made of options that derive from documented fields."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, Optional, get_args, get_origin

from cyclopts import Group, Parameter, Token

from coterie.core.errors import SettingsError, unknown
from coterie.core.registry import Option

_TITLES = ("Experiment", "Method", "Local training", "Split", "Clients' data", "Scoring", "Computing", "Output")
GROUPS = {title: Group(title, sort_key=place) for place, title in enumerate(_TITLES)}
"""The panels of a help page, in their order."""


@dataclass(frozen=True)
class Shown:
    """An option on the command line."""

    option: Option
    group: Group
    name: str
    """Its name, with a prefix such as `split.` where the plain one means something else."""
    visible: bool = True
    """Whether the help shows it."""


TRUTH = {"true": True, "false": False}
"""The words for a switch."""


def own_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function, by the names of their options in Python."""
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = [get_args(p.annotation)[1].name or (p.name,) for p in own]
    return {flags[0].removeprefix("--").replace("-", "_"): p for flags, p in zip(names, own, strict=True)}


def command(
    function: Callable[..., None], shown: Sequence[Shown], arguments: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """A command made of a function `(given, *arguments, **own)`.

    `given` becomes the values of those `shown` options that are given, `arguments` have no names on the command line,
    and the function's own keyword parameters are options too.
    """
    own = own_options(function).values()

    def called(*positional: Any, **keywords: Any) -> None:
        mine = {p.name: keywords.pop(p.name) for p in own if p.name in keywords}
        function(_values(keywords, shown), *positional, **mine)

    parameters = [*arguments, *own, *(_parameter(item) for item in shown)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__doc__ = function.__doc__
    return called


def flag(text: str, group: str = "Experiment", name: str | list[str] | None = None, **more: Any) -> Any:
    """A command's own option, named as its parameter or otherwise; `show_default=None` adds its default to the text."""
    return Parameter(name=name, help=text, negative="", group=GROUPS[group], **{"show_default": False, **more})


def argument(name: str, kind: Any, default: Any = inspect.Parameter.empty, **said: Any) -> inspect.Parameter:
    """An argument of a command that has no name on the command line."""
    annotation: Any = Annotated[kind, Parameter(**said)]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, default=default, annotation=annotation)


def several(name: str, shown_as: str, text: str) -> inspect.Parameter:
    """Any number of words as arguments of a command that have no name on the command line."""
    said = Parameter(name=shown_as, help=text, group=GROUPS["Experiment"], show_default=False)
    return inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL, annotation=Annotated[str, said])


def _parameter(item: Shown) -> inspect.Parameter:
    """An option as a parameter. Its default is None, so that only what is given is passed on."""
    kind = readable(item.option.type)
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
    words = [option.written] if option.written else []
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
    return {int: whole, float: _number(float, "a number")}.get(kind)


def _number(kind: Callable[[str], Any], called: str) -> Callable[[Any, Sequence[Token]], Any]:
    def convert(_: type, tokens: Sequence[Token]) -> Any:
        try:
            return kind(tokens[0].value)
        except ValueError:
            raise ValueError(f"{tokens[0].value!r} is not {called}") from None

    return convert


whole = _number(int, "a whole number")
"""How a whole number is read."""


def _truth(_: type, tokens: Sequence[Token]) -> bool:
    """A word for a switch."""
    if tokens[0].value not in TRUTH:
        raise ValueError(f"{tokens[0].value!r} is neither true nor false")
    return TRUTH[tokens[0].value]


KeepModels = Annotated[
    Literal[True, False],  # not bool, which would take no word behind it
    flag(
        "Whether run folders keep what clients predict with, for `coterie export`. [true; in studies false]",
        "Output",
        "--keep-models",
        converter=_truth,
        show_choices=False,
    ),
]
"""The option of commands that write run folders."""


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


def readable(hint: Any) -> Any:
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
            # Where one method has a switch and another a choice of words, `true` and `false` are the switch's.
            value = TRUTH.get(value, value) if get_origin(item.option.type) is Literal else value
            values[item.name] = _listed(item, value) if get_origin(item.option.type) is tuple else value
    return values


def _listed(item: Shown, text: str) -> tuple[Any, ...]:
    convert: Callable[[str], Any] = float if get_args(item.option.type)[0] is float else str
    try:
        return tuple(convert(part.strip()) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{item.name}={text!r}: numbers with commas between them") from None
