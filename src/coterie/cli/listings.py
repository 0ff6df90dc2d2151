"""What there is to choose from: lists of methods, splits, data sets and nets, and all about each."""

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markdown import Markdown
from rich.text import Text

from coterie.cli.console import console, plain_table, print_table, tell
from coterie.cli.method_docs import about, shown_default, write_pages
from coterie.cli.parameters import flag
from coterie.core.errors import SettingsError, unknown
from coterie.core.registry import Option, first_line
from coterie.methods import methods
from coterie.server.registered import by_family

if TYPE_CHECKING:
    from coterie.data.sources import Source

_WRITE = "Write a page of documentation about each into this folder."


def show_methods(name: str | None = None, /, *, write: Annotated[Path | None, flag(_WRITE, "Output")] = None) -> None:
    """List the methods, or tell all about one: `coterie methods fedavg`."""
    if write is not None:
        if name is not None:
            raise SettingsError(f"write={write}: writes the pages of all methods; leave out {name}")
        tell("written to", f"{write}: {len(write_pages(write))} pages")
    elif name is None:
        listed = by_family(methods).items()
        rows = [(name, family, methods.summary(name)) for family, names in listed for name in names]
        _list(("method", "family", "what it does"), rows)
    elif name in methods and methods.is_own(name):
        own = methods[name]
        said_of = {"What travels": own.sends, "What a client gives away": own.gives_away}
        texts = [f"**{what}:** {said}." for what, said in said_of.items() if said]
        _describe(name, [methods.doc(name), *texts], methods.options(name), [("module", own.__module__)])
    else:
        known = about(name)
        told = f"**What travels:** {known.sends}.\n\n**What a client gives away:** {known.gives_away}."
        sections = {"what happens": known.steps, "what runs at a client": known.programs}
        _describe(name, [known.summary, known.text, told], (*known.own, *known.common), sections=sections)


def show_splits(name: str | None = None, /) -> None:
    """List the splits, or tell all about one: `coterie splits dirichlet`."""
    from coterie.data.splits import split_rules

    if name is None:
        _list(("split", "how samples are divided"), [(key, split_rules.summary(key)) for key in split_rules])
    else:
        _describe(name, [split_rules.doc(name)], split_rules.options(name))


def show_data(name: str | None = None, /) -> None:
    """List the data sets, or tell all about one: `coterie data mnist`."""
    from coterie.data.sources import sources
    from coterie.runs.options import data_options

    if name is None:
        own = (
            "PATH",
            "Own data: a table (CSV, Parquet) or a folder with one per client, an .npz file with arrays x and y, or a "
            "folder with a folder of images per class.",
        )
        _list(("data", "what it is"), [*((key, sources.summary(key)) for key in sources), own])
        return
    _describe(name, [sources.doc(name)], data_options(name), _facts(sources[name]))


def _facts(source: "type[Source]") -> list[tuple[str, str]]:
    from coterie.data.storage import data_folder
    from coterie.data.tasks import task_named

    shape = "x".join(map(str, source.shape))
    outputs = f"{len(source.labels)} classes" if task_named(source.task).one_class else ", ".join(source.labels)
    inputs = f"{shape}, ids below {source.vocabulary}" if source.vocabulary else shape
    facts = [("inputs", inputs), ("predicted", outputs), ("net by default", source.net)]
    facts += [("terms", source.terms), ("source", source.published.source)]
    if source.published.layouts:
        facts.append(("looked for in", f"{data_folder()} (--data-dir or COTERIE_DATA for another folder)"))
    return facts


_NONE = "–"
"""Stands for the number of parameters where a net does not take the data: they are no images, or too small ones."""


def show_nets(name: str | None = None, /) -> None:
    """List the networks with their numbers of parameters, or tell all about one: `coterie nets lenet5`."""
    from coterie.data.sources import sources
    from coterie.nets import nets

    if name is None:
        few = ("digits", "mnist", "cifar10")
        own = ("module:name", *[""] * len(few), "Own net: a function of the inputs' shape and the number of classes.")
        rows = [(net, *(_parameters(net, data) for data in few), first_line(nets[net])) for net in nets]
        _list(("net", *few, "what it is, with its number of parameters for these data sets"), [*rows, own], numeric=few)
        return
    if name not in nets:
        raise unknown("net", name, nets)
    counts = [(data, _parameters(name, data)) for data in sources]
    _describe(name, [inspect.getdoc(nets[name])], (), [(data, count) for data, count in counts if count != _NONE])


def show_metrics(name: str | None = None, /) -> None:
    """List the metrics by which predictions are judged, or tell about one: `coterie metrics f1`."""
    from coterie.server.metrics import metric_named, metrics

    if name is None:
        _list(
            ("metric", "for the tasks", "what it is"), [(m.name, ", ".join(m.tasks), m.about) for m in metrics.values()]
        )
        return
    known = metric_named(name)
    better = "higher is better" if known.higher else "lower is better"
    _describe(name, [known.about, better], (), [("for the tasks", ", ".join(known.tasks))])


def show_losses(name: str | None = None, /) -> None:
    """List the losses that training can lower, or tell about one: `coterie losses focal`."""
    from coterie.data.tasks import TASKS
    from coterie.training.losses import loss_named, losses

    if name is None:
        usual = [("", task.name, f"{first_line(task.losses)} Used if no loss is named.") for task in TASKS.values()]
        own = ("module:name", "", "Own loss: a function of outputs and targets that gives a loss for each sample.")
        _list(
            ("loss", "for the tasks", "what it is"),
            [*usual, *((o.name, ", ".join(o.tasks), o.about) for o in losses.values()), own],
        )
        return
    known = loss_named(name)
    _describe(name, [inspect.getdoc(known.function)], (), [("for the tasks", ", ".join(known.tasks))])


def _parameters(net: str, data: str) -> str:
    """How many parameters a net has for a data set."""
    import torch

    from coterie.data.sources import sources
    from coterie.nets import nets

    try:
        with torch.device("meta"):  # nothing is allocated or drawn
            ids = {"vocabulary": sources[data].vocabulary} if sources[data].vocabulary else {}
            module = nets[net](sources[data].shape, len(sources[data].labels), **ids)
    except SettingsError:
        return _NONE
    return f"{sum(parameter.numel() for parameter in module.parameters()):,}"


def _describe(
    name: str,
    texts: Iterable[str | None],
    known: Sequence[Option],
    facts: Sequence[tuple[str, str]] = (),
    sections: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> None:
    """Print all about one thing: its texts, its facts, further tables by their titles, and its options."""
    console.print(Text(name, style="bold"))
    console.print(Markdown("\n\n".join(text for text in texts if text)))
    options = [(f"--{option.name.replace('_', '-')}", shown_default(option), option.help) for option in known]
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = [(("", ""), facts)]
    tables += [((title, ""), rows) for title, rows in (sections or {}).items()]
    for header, rows in [*tables, (("option", "default", "what it means"), options)]:
        if rows:
            console.print()
            _list(header, rows)


def _list(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Collection[str] = ()) -> None:
    table = plain_table(header, numeric)
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)
