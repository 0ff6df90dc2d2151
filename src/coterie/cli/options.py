"""Options of the command line, derived from documented fields: of methods, splits, data sets and settings."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from coterie.cli.arguments import NOTHING, Asked, take_apart
from coterie.cli.parameters import GROUPS, TRUTH, Shown, own_options, readable
from coterie.core.registry import Option, options
from coterie.methods import methods
from coterie.training.local import LocalTraining


def world_options(asked: Asked = NOTHING) -> list[Shown]:
    """The options of everything but the method, each name once.

    There are many splits and data sets, each with options of its own. All can be given, but the help shows those of the
    split and the data set that are asked for. Each of them can also be written with a prefix, e.g. `split.alpha`.
    """
    from coterie.data.sources import sources  # here, because many commands need no data
    from coterie.data.splits import split_rules
    from coterie.runs.options import DEFAULTS, GENERAL, SECTIONS, data_options

    shown = [Shown(option, GROUPS["Experiment"], option.name) for option in GENERAL]
    for title, section in (("Clients' data", "division"), ("Scoring", "scoring"), ("Computing", "computing")):
        shown += [Shown(option, GROUPS[title], option.name) for option in SECTIONS[section]]
    by_name = {item.name: item for item in shown}
    splits = {name: split_rules.options(name) for name in split_rules}
    # A name that is not in the catalogue stands for all own data.
    datasets = {name: data_options(name) for name in (*sources, _OWN)}
    for part, choices, title in (("split", splits, "Split"), ("data", datasets, "Clients' data")):
        # The one that is asked for comes first: its help and its default are the ones to show.
        named = asked.values.get(part, DEFAULTS[part])
        first = named if named in choices else _OWN
        for choice in sorted(choices, key=lambda choice: choice != first):
            for option in choices[choice]:
                full = f"{part}.{option.name}"
                free = by_name.get(option.name) is None or by_name[option.name].group is GROUPS[title]
                # The plain name of a data set's option goes to the split, if that has one.
                seen = Shown(option, GROUPS[title], option.name if free else full, visible=choice == first)
                by_name.setdefault(seen.name, seen)
                by_name.setdefault(full, replace(seen, name=full, visible=False))
    return list(by_name.values())


_OWN = "own data"


def method_options(method: str, world: Iterable[Shown]) -> list[Shown]:
    """A method's options. Each can be written as `--method.NAME`, and must be if the world has one of its name."""
    local = {option.name for option in options(LocalTraining)}
    taken = {item.name for item in world}
    shown = []
    for option in sorted(methods.options(method), key=lambda option: option.name not in ("rounds", "participation")):
        group = GROUPS["Local training" if option.name in local else "Method"]
        full = Shown(option, group, f"method.{option.name}", visible=option.name in taken)
        shown += [full] if full.visible else [replace(full, name=option.name, visible=True), full]
    return shown


def methods_options(world: Sequence[Shown], named: Collection[str] = ()) -> list[Shown]:
    """The options of all methods, each name once. Where methods are named, theirs are the ones to show.

    Methods may have different options of one name. Then all values are read that any of them takes, and each method
    checks what it gets.
    """
    shown = _together(named or methods, world)
    return shown + hidden(_together([name for name in methods if name not in named], world), but=shown)


def _together(names: Iterable[str], world: Sequence[Shown]) -> list[Shown]:
    by_name: dict[str, Shown] = {}
    for name in names:
        for item in method_options(name, world):
            known = by_name.setdefault(item.name, item)
            by_name[item.name] = replace(known, option=_either(known.option, item.option))
    return list(by_name.values())


def _either(first: Option, second: Option) -> Option:
    """One option for two of the same name: if both are switches or choices, it has the choices of both."""
    kinds = [readable(option.type) for option in (first, second)]
    if kinds[0] == kinds[1] or not all(kind is bool or get_origin(kind) is Literal for kind in kinds):
        return first
    choices = dict.fromkeys(word for kind in kinds for word in (TRUTH if kind is bool else get_args(kind)))
    default = first.default if first.default == second.default else None
    text = first.help if first.help == second.help else "Differs by method: see `coterie run METHOD --help`."
    return Option(first.name, Literal[tuple(choices)], default, text)


def hidden(shown: Iterable[Shown], but: Iterable[Shown] = ()) -> list[Shown]:
    """These options, but not shown in the help, and without those that have a name of `but`."""
    names = {item.name for item in but}
    return [replace(item, visible=False) for item in shown if item.name not in names]


def of_methods(arguments: Iterable[str] | None, function: Callable[..., Any], place: slice) -> list[Shown]:
    """The options that a command needs whose words at `place` are methods; none if the arguments choose another."""
    if arguments is None:
        return []
    asked = ask(arguments, function)
    world = world_options(asked)
    shown = world + methods_options(world, [word for word in asked.words[place] if word in methods])
    return needed(shown, asked, function)


def ask(arguments: Iterable[str], function: Callable[..., Any]) -> Asked:
    """Take apart the arguments of a command that has the options of a run and those of a function."""
    world = world_options()
    kinds = {item.name: readable(item.option.type) for item in world + methods_options(world)}
    kinds |= {name: get_args(own.annotation)[0] for name, own in own_options(function).items()}
    kinds |= dict.fromkeys(_HELP, bool)
    # One method may have a switch where another has a choice of words.
    words = {name: get_args(kind) for name, kind in kinds.items()}
    return take_apart(arguments, {name: words[name] for name in kinds if kinds[name] is bool or "true" in words[name]})


_HELP = ("help", "h")


def needed(shown: Iterable[Shown], asked: Asked, function: Callable[..., Any]) -> list[Shown]:
    """The options that a command line needs: those that the help shows, and those that are given.

    An option of another method is read too if it is given, for an error that says whose it is; and all options are
    needed if one is given that nobody has, for an error that names the nearest.
    """
    known = {*_HELP, *own_options(function), *(item.name for item in shown)}
    return [item for item in shown if item.visible or item.name in asked.values or not asked.values.keys() <= known]
