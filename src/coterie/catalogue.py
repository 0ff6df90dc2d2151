"""What there is to choose from: lists of methods, splits, data sets and nets, and all about each."""

import inspect
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import torch
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from coterie.console import console, print_table
from coterie.data.sources import Source, sources
from coterie.data.splits import split_rules
from coterie.data.storage import data_folder
from coterie.errors import SettingsError, unknown
from coterie.method import Method
from coterie.methods import methods
from coterie.nets import nets
from coterie.registry import Option, first_line, options
from coterie.settings import data_options

__all__ = ["plain_table", "show_data", "show_methods", "show_nets", "show_splits"]


def show_methods(name: str | None = None, /) -> None:
    """List the methods, or tell all about one: `coterie methods fedavg`."""
    if name is None:
        _list(("method", "what it does"), [(key, first_line(methods[key])) for key in methods])
        return
    cls = methods[name]
    common = options(Method)
    own_first = sorted(options(cls), key=lambda option: option in common)
    _describe(name, [inspect.getdoc(cls), inspect.getdoc(sys.modules[cls.__module__])], own_first)


def show_splits(name: str | None = None, /) -> None:
    """List the splits, or tell all about one: `coterie splits dirichlet`."""
    if name is None:
        _list(("split", "how samples are divided"), [(key, first_line(split_rules[key])) for key in split_rules])
    else:
        _describe(name, [inspect.getdoc(split_rules[name])], options(split_rules[name]))


def show_data(name: str | None = None, /) -> None:
    """List the data sets, or tell all about one: `coterie data mnist`."""
    if name is None:
        own = ("PATH", "Own data: an .npz file with arrays x and y, or a folder with a folder of images per class.")
        _list(("data", "what it is"), [*((key, first_line(sources[key])) for key in sources), own])
        return
    source = sources[name]
    _describe(name, [inspect.getdoc(source)], data_options(name), _facts(source))


def _facts(source: type[Source]) -> list[tuple[str, str]]:
    shape = "x".join(map(str, source.shape))
    facts = [("inputs", f"{shape} in {len(source.labels)} classes"), ("net by default", source.net)]
    facts += [("terms", source.terms), ("source", source.published.source)]
    if source.published.layouts:
        facts.append(("looked for in", f"{data_folder()} (--data-dir or COTERIE_DATA for another folder)"))
    return facts


def show_nets(name: str | None = None, /) -> None:
    """List the networks with their numbers of parameters, or tell all about one: `coterie nets lenet5`."""
    if name is None:
        few = ("digits", "mnist", "cifar10")
        own = ("module:name", *[""] * len(few), "Own net: a function of the inputs' shape and the number of classes.")
        rows = [(net, *(_parameters(net, data) for data in few), first_line(nets[net])) for net in nets]
        _list(("net", *few, "what it is, with its number of parameters for these data sets"), [*rows, own], numeric=few)
        return
    if name not in nets:
        raise unknown("net", name, nets)
    _describe(name, [inspect.getdoc(nets[name])], (), [(data, _parameters(name, data)) for data in sources])


def _parameters(net: str, data: str) -> str:
    """How many parameters a net has for a data set."""
    try:
        with torch.device("meta"):  # nothing is allocated or drawn
            module = nets[net](sources[data].shape, len(sources[data].labels))
    except SettingsError:
        return "–"  # the images are too small for it
    return f"{sum(parameter.numel() for parameter in module.parameters()):,}"


def _describe(
    name: str, texts: Iterable[str | None], known: Sequence[Option], facts: Sequence[tuple[str, str]] = ()
) -> None:
    """All that is written about something, what else is known of it, and its options."""
    console.print(Text(name, style="bold"))
    console.print(Markdown("\n\n".join(text for text in texts if text)))
    if facts:
        console.print()
        _list(("", ""), facts)
    if known:
        rows = [(f"--{option.name.replace('_', '-')}", _shown(option.default), option.help) for option in known]
        console.print()
        _list(("option", "default", "what it means"), rows)


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _list(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Collection[str] = ()) -> None:
    table = plain_table(header, numeric)
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)


def plain_table(header: Sequence[str], numeric: Collection[str] = ()) -> Table:
    """A table without rules, for lists; numeric columns are aligned to the right."""
    table = Table(header_style="dim", show_header=any(header), box=None, pad_edge=False)
    for number, name in enumerate(header):
        side: Literal["left", "right"] = "right" if name in numeric else "left"
        table.add_column(Text(name), style="bold" if number == 0 else "", justify=side, no_wrap=number == 0)
    return table
