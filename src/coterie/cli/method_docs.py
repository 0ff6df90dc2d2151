"""All about a method, from what is written in its own file: for the terminal, and as pages of documentation.

Files are read and not imported: a word on a method should not wait for torch.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Literal, get_args, get_origin

from coterie.core.declarations import Declared, Option, SourceFile, declaration
from coterie.methods import methods
from coterie.server.registered import FAMILIES, by_family

_COMMAND = "coterie methods --write docs/methods"
_NOTE = "<!-- Made from docstrings by `{command}`: edit {source} instead. -->\n"


@dataclass(frozen=True)
class About:
    """What a method's file says."""

    name: str
    summary: str
    """The idea in a line, with the reference."""
    text: str
    """The idea, the sources of its equations, and its symbols."""
    sends: str
    """What clients and server send each other."""
    gives_away: str
    """What others learn of a client."""
    steps: tuple[tuple[str, str], ...]
    """What happens before the first round, in a round, and when clients predict."""
    programs: tuple[tuple[str, str], ...]
    """The programs that run at clients, with what each does."""
    own: tuple[Option, ...]
    """The options that only it has, or with another default than every method."""
    common: tuple[Option, ...]
    """The options that it has as every method."""
    source: str
    """Its file, from the root of the project."""


def about(name: str) -> About:
    """All that is written about a method of ours."""
    cls = methods.declared(name)
    summary, _, rest = cls.doc.partition("\n")
    functions = _functions(cls)
    common = _common()
    return About(
        name,
        summary,
        "\n\n".join(text for text in (rest.strip(), cls.source.doc) if text),
        cls.constant("sends"),
        cls.constant("gives_away"),
        tuple((step, _first_line(functions[step][1])) for step in ("begin", "round", "serve")),
        tuple((_call(program), _first_line(program)) for program in _programs(functions)),
        tuple(option for option in methods.options(name) if option not in common),
        tuple(option for option in methods.options(name) if option in common),
        f"src/{cls.source.module.replace('.', '/')}.py",
    )


def _common() -> tuple[Option, ...]:
    return declaration("coterie.server.method", "Method").options


Functions = dict[str, tuple[SourceFile, ast.FunctionDef]]
"""Functions by name, with the files in which they are defined."""


def _functions(cls: Declared) -> Functions:
    """The functions of a class, its own and inherited ones."""
    found: Functions = {}
    for one in reversed(cls.lineage):
        found |= {node.name: (one.source, node) for node in one.node.body if isinstance(node, ast.FunctionDef)}
    return found


def _programs(functions: Functions) -> Iterable[ast.FunctionDef]:
    """The programs that a method runs: those that its code names."""
    found = {}
    for _, (source, function) in sorted(functions.items()):
        for name in [] if function.decorator_list else _names(_compiled(function)):
            origin, node = source.definition(name) or (None, None)
            if origin is not None and isinstance(node, ast.FunctionDef) and _is_program(node):
                found[origin.module, node.name] = node
    return found.values()


def _compiled(function: ast.FunctionDef) -> CodeType:
    """The code of a function, which is not run."""
    compiled = compile(ast.Module([function], []), function.name, "exec").co_consts
    return next(one for one in compiled if isinstance(one, CodeType) and one.co_name == function.name)


def _names(code: CodeType) -> Iterator[str]:
    """The global names in a function, and in functions and comprehensions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_program(function: ast.FunctionDef) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return any(isinstance(one, ast.Name) and one.id == "program" for one in decorators)


def _call(program: ast.FunctionDef) -> str:
    inputs = [*program.args.args, *program.args.kwonlyargs]
    return f"{program.name}({', '.join(one.arg for one in inputs[1:])})"


def _first_line(node: ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").split("\n", 1)[0]


def shown_default(option: Option) -> str:
    """An option's default as one writes it on the command line, and what else it can be."""
    others = [str(word) for word in get_args(option.type) if word != option.default]
    choice = get_origin(option.type) is Literal and others
    return f"{option.written} (or {', '.join(others)})" if choice else option.written


def page(name: str) -> str:
    """A method's page of documentation, in Markdown."""
    known = about(name)
    steps = {"begin": "before the first round", "round": "in a round", "serve": "what a client predicts with"}
    parts = [
        f"# {name}",
        known.summary,
        known.text,
        f"**What travels:** {known.sends}.",
        f"**What a client gives away:** {known.gives_away}.",
        "## What happens",
        _table(("when", "what"), [(steps[step], said) for step, said in known.steps]),
    ]
    if known.programs:
        programs = [(f"`{call}`", said) for call, said in known.programs]
        parts += ["## What runs at a client", _table(("program", "what it does"), programs)]
    if known.own:
        parts += ["## Options", _options(known.own)]
    parts.append(
        f"Rounds, participation and local training are told as to [every method](README.md). "
        f"`coterie run {name} --help` shows everything."
    )
    return _finished(known.source, parts)


def index(names: Sequence[str]) -> str:
    """The page that lists the methods, and what all of them can be told."""
    parts = ["# Methods"]
    for family, listed in by_family(names).items():
        rows = [(f"[{name}]({name}.md)", methods.summary(name)) for name in listed]
        parts += [f"## {family.capitalize()}: {FAMILIES[family]}", _table(("method", "what it does"), rows)]
    parts += ["## Options of every method", _options(_common())]
    return _finished("the files in src/coterie/methods", parts)


def write_pages(folder: Path, names: Iterable[str] | None = None) -> list[Path]:
    """Write a page for each method, and one that lists them; what is there already is replaced."""
    names = [name for name in methods if not methods.is_own(name)] if names is None else list(names)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: page(name) for name in names} | {"README": index(names)}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return [folder / f"{name}.md" for name in pages]


def _finished(source: str, parts: Iterable[str]) -> str:
    return "\n\n".join([_NOTE.format(command=_COMMAND, source=source).strip(), *parts]) + "\n"


def _options(known: Iterable[Option]) -> str:
    rows = [(f"`--{option.name.replace('_', '-')}`", shown_default(option), option.help) for option in known]
    return _table(("option", "default", "what it means"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
