"""Command lines, taken apart before a command has options: these depend on the method, split and data named."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.core.errors import SettingsError


@dataclass(frozen=True)
class Asked:
    """The words and options behind a command."""

    words: tuple[str, ...] = ()
    """What is neither an option nor an option's value: methods, a split, folders."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The values of the options that are given, by their names in Python; that of a switch is empty."""


NOTHING = Asked()


def behind(command: str, arguments: Sequence[str]) -> list[str] | None:
    """The arguments behind a command; None if they choose another one. Options such as `--help` may stand in front."""
    place = next((place for place, argument in enumerate(arguments) if not argument.startswith("-")), None)
    return list(arguments[place + 1 :]) if place is not None and arguments[place] == command else None


def split_off(option: str, arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """What is given to an option that every command has, a list with commas, and the arguments without it."""
    found: list[str] = []
    rest: list[str] = []
    waiting = deque(arguments)
    while waiting:
        argument = waiting.popleft()
        if argument == "--":
            rest += [argument, *waiting]
            break
        name, equals, value = argument.partition("=")
        if name != option:
            rest.append(argument)
            continue
        if not equals and (not waiting or waiting[0].startswith("-")):
            raise SettingsError(f"{option}: names are missing; write {option} NAME,NAME")
        found += listed(value if equals else waiting.popleft())
    return found, rest


def listed(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def take_apart(arguments: Iterable[str], switches: Mapping[str, Iterable[str]]) -> Asked:
    """Tell words from options. An option takes the next argument as its value, a switch only if it knows that word."""
    words: list[str] = []
    values: dict[str, str] = {}
    waiting = deque(arguments)
    while waiting:
        argument = waiting.popleft()
        if argument == "--":  # there are no options any more
            words += waiting
            break
        if not argument.startswith("-"):
            words.append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option.lstrip("-").replace("-", "_")
        name = name.removeprefix("no_") if name.removeprefix("no_") in switches else name
        if not equals and waiting and (name not in switches or waiting[0] in switches[name]):
            value = waiting.popleft()
        values.setdefault(name, value)
    return Asked(tuple(words), values)
