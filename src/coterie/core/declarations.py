"""What classes declare: of classes at hand, and of classes in files that are read and not imported.

Importing a method takes torch, and more than a second. What it is called, what it does and what it can be told stands
in its file as plain text: `read` gives such a file, `declaration` and `declared` the classes in it.
"""

import ast
import builtins
import dataclasses
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Mapping
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast, get_origin, get_type_hints

from coterie.core.fields import Effect, Range, effect_of, range_of


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a class: what the command line, the settings file and the documentation derive from."""

    name: str
    type: Any
    default: Any
    help: str
    effect: Effect = Effect.RESULTS
    """What another value changes."""
    allowed: Range | None = None
    """Which numbers it takes, if the field says so."""

    @property
    def decides(self) -> bool:
        """Whether runs with another value are others, in their results or in what is written down of them."""
        return self.effect >= Effect.RECORD


@cache
def options(cls: type) -> tuple[Option, ...]:
    """The fields of a dataclass with their types, defaults and the docstrings below them, inherited ones first."""
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        helps |= _helps(_body(base))
    return _options(cls, helps)


def _options(cls: type, helps: Mapping[str, str]) -> tuple[Option, ...]:
    hints, extras = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        name, extra = field.name, extras[field.name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found.append(Option(name, hints[name], default, helps.get(name, ""), effect_of(extra), range_of(extra)))
    return tuple(found)


@cache
def _body(cls: type) -> list[ast.stmt]:
    """The statements in a class, where its source is at hand."""
    if not inspect.get_annotations(cls):
        return []  # and so it has no fields
    try:
        # Python finds a class by parsing its whole module, each time. One inside of a function is left to it.
        found = read(cls.__module__).definition(cls.__qualname__)
        node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0] if found is None else found[1]
    except (AttributeError, ImportError, OSError, SyntaxError, TypeError, ValueError):
        return []
    return node.body if isinstance(node, ast.ClassDef) else []


def _helps(body: list[ast.stmt]) -> dict[str, str]:
    """Docstrings below fields: Python does not keep them, so they are read from the source."""
    docs = {}
    for field, doc in pairwise(body):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text).replace("\n", " ")
    return docs


class Source:
    """A module's file, read and not run. As a mapping it gives the values of names, for evaluating expressions."""

    def __init__(self, module: str) -> None:
        self.module = module
        path = _file_of(module)
        tree = ast.parse(path.read_text(encoding="utf-8"), path)
        self.doc = ast.get_docstring(tree) or ""
        self.classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        self._definitions: dict[str, ast.ClassDef | ast.FunctionDef] = {}
        self._values: dict[str, ast.expr] = {}
        self._imports: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            match node:
                case ast.ClassDef() | ast.FunctionDef():
                    self._definitions[node.name] = node
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self._values[name] = value
                case ast.ImportFrom(module=str(origin), level=0):
                    self._imports |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}

    def __getitem__(self, name: str) -> Any:
        """What a name stands for. A constant is evaluated; for what must be run, its module is imported."""
        if name in self._values:
            return self.value(self._values[name])
        if name in self._imports:
            origin, original = self._imports[name]
            return read(origin)[original] if self._is_ours(origin) else getattr(import_module(origin), original)
        if hasattr(builtins, name):
            raise KeyError(name)  # Python looks there next
        return getattr(import_module(self.module), name)

    def value(self, expression: ast.expr) -> Any:
        """What an expression at the top of the module, or in a class there, stands for."""
        return eval(compile(ast.Expression(expression), self.module, "eval"), {}, cast(Any, self))

    def definition(self, name: str) -> "tuple[Source, ast.ClassDef | ast.FunctionDef] | None":
        """Where the class or function of ours that a name stands for is defined, and how."""
        if name in self._definitions:
            return self, self._definitions[name]
        origin, original = self._imports.get(name, ("", ""))
        return read(origin).definition(original) if self._is_ours(origin) else None

    def _is_ours(self, module: str) -> bool:
        return module.split(".")[0] == self.module.split(".")[0]


def _file_of(module: str) -> Path:
    """A module's file, if need be by its place in the package that holds all, which alone is imported for that."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None:
        return Path(file)
    package, *folders = module.split(".")
    place = Path(import_module(package).__path__[0], *folders)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


read = cache(Source)
"""A module's file by the name of the module; each is read once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Declared:
    """A class as its file declares it."""

    source: Source
    node: ast.ClassDef

    @property
    def doc(self) -> str:
        """Its docstring."""
        return ast.get_docstring(self.node) or ""

    @cached_property
    def lineage(self) -> "tuple[Declared, ...]":
        """The class itself and the classes of ours that it derives from, nearest first."""
        found = {self.node: self}
        for base in self.node.bases:
            where = self.source.definition(base.id) if isinstance(base, ast.Name) else None
            if where is not None and isinstance(where[1], ast.ClassDef):
                found |= {cls.node: cls for cls in declaration(where[0].module, where[1].name).lineage}
        return tuple(found.values())

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What `options` says of the class when it is imported."""
        fields: dict[str, Any] = {}
        helps: dict[str, str] = {}
        for cls in reversed(self.lineage):
            helps |= _helps(cls.node.body)
            if cls.node.decorator_list:  # the fields of a class that is no dataclass are no options
                fields |= cls._fields
        stand_in = dataclasses.make_dataclass(self.node.name, fields.values(), init=False, repr=False, eq=False)
        return _options(stand_in, helps)

    @cached_property
    def _fields(self) -> dict[str, tuple[Any, ...]]:
        """The fields in the body of the class: name, type and default of each."""
        found: dict[str, tuple[Any, ...]] = {}
        for statement in self.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default):
                    kind = self.source.value(annotation)
                    if ClassVar not in (kind, get_origin(kind)):
                        found[name] = (name, kind) if default is None else (name, kind, self.source.value(default))
        return found

    def constant(self, name: str) -> Any:
        """What a plain name in the body of the class stands for, or of the nearest class that it derives from."""
        for cls in self.lineage:
            for statement in cls.node.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=known)], value=value) if known == name:
                        return cls.source.value(value)
        return None

    def imported(self) -> Any:
        """The class itself."""
        return getattr(import_module(self.source.module), self.node.name)


@cache
def declaration(module: str, name: str) -> Declared:
    """A class of a module, by its name in Python."""
    source = read(module)
    return next(Declared(source, node) for node in source.classes if node.name == name)


def declared(package: str, decorator: str) -> dict[str, Declared]:
    """The classes in the files of a package that a decorator is given a name for, by that name."""
    found = {}
    for module in pkgutil.iter_modules(import_module(package).__path__):
        source = read(f"{package}.{module.name}")
        for node in source.classes:
            for call in node.decorator_list:
                match call:
                    case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(name))]) if word == decorator:
                        found[name] = declaration(source.module, node.name)
    return found
