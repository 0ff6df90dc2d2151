"""What classes declare as their options, read from imported classes or from source files that are not imported.

Importing a method takes torch, and more than a second. But its name, what it does and its options stand in its file as
plain text: `read` parses such a file, `declaration` gives one class of it, `declared` those that a decorator names.
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
    """One field of a class. The command line, the settings file and the documentation derive from it."""

    name: str
    type: Any
    default: Any
    help: str
    effect: Effect = Effect.RESULTS
    """What another value of it changes."""
    allowed: Range | None = None
    """The numbers that it takes, if the field has a range."""

    @property
    def written(self) -> str:
        """The default as one writes it on the command line; empty if it is None."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "" if self.default is None else str(self.default)

    @property
    def decides(self) -> bool:
        """Whether a run with another value is another run, in its results or in what is written down of it."""
        return self.effect >= Effect.RECORD


@cache
def options(cls: type) -> tuple[Option, ...]:
    """The fields of a dataclass, inherited ones first, with their types, defaults and the docstrings below them."""
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
    """The statements in a class; none where there are no fields in it, or its source cannot be found."""
    if not inspect.get_annotations(cls):
        return []
    try:
        # `inspect` would parse the whole module for each class. It is left the classes that are defined in functions.
        found = read(cls.__module__).definition(cls.__qualname__)
        node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0] if found is None else found[1]
    except (AttributeError, ImportError, OSError, SyntaxError, TypeError, ValueError):
        return []
    return node.body if isinstance(node, ast.ClassDef) else []


def _helps(body: list[ast.stmt]) -> dict[str, str]:
    """The docstrings below the fields of a class, on one line each. Python does not keep them."""
    docs = {}
    for field, doc in pairwise(body):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text).replace("\n", " ")
    return docs


class SourceFile:
    """A module's file, parsed and not run. As a mapping of names to values it serves to evaluate expressions."""

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
        """The value of a name: a constant is evaluated; for anything else, the module that defines it is imported."""
        if name in self._values:
            return self.value(self._values[name])
        if name in self._imports:
            origin, original = self._imports[name]
            return read(origin)[original] if self._is_ours(origin) else getattr(import_module(origin), original)
        if hasattr(builtins, name):
            raise KeyError(name)  # Python looks there next
        return getattr(import_module(self.module), name)

    def value(self, expression: ast.expr) -> Any:
        """The value of an expression that stands at the top of the module or in a class there."""
        return eval(compile(ast.Expression(expression), self.module, "eval"), {}, cast(Any, self))

    def definition(self, name: str) -> "tuple[SourceFile, ast.ClassDef | ast.FunctionDef] | None":
        """The definition that a name here stands for, and its file; None if it is no class or function of ours."""
        if name in self._definitions:
            return self, self._definitions[name]
        origin, original = self._imports.get(name, ("", ""))
        return read(origin).definition(original) if self._is_ours(origin) else None

    def _is_ours(self, module: str) -> bool:
        return module.split(".")[0] == self.module.split(".")[0]


def _file_of(module: str) -> Path:
    """A module's file. If it is not imported yet, only the topmost package is, to find the file below its folder."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None:
        return Path(file)
    package, *folders = module.split(".")
    place = Path(import_module(package).__path__[0], *folders)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


read = cache(SourceFile)
"""The file of a module, by the name of the module; each is parsed once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Declared:
    """A class as it stands in its file."""

    source: SourceFile
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
        """The same as `options` gives for the imported class."""
        fields: dict[str, Any] = {}
        helps: dict[str, str] = {}
        for cls in reversed(self.lineage):
            helps |= _helps(cls.node.body)
            if cls.node.decorator_list:  # without a decorator it is no dataclass, and has no fields of its own
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
        """The value that the class, or the nearest one that it derives from, assigns to a name; None if none does."""
        for cls in self.lineage:
            for statement in cls.node.body:
                match statement:
                    case (
                        ast.Assign(targets=[ast.Name(id=known)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=known), value=ast.expr() as value)
                    ) if known == name:
                        return cls.source.value(value)
        return None

    def imported(self) -> Any:
        """The class itself; its module is imported now."""
        return getattr(import_module(self.source.module), self.node.name)


@cache
def declaration(module: str, name: str) -> Declared:
    """A class of a module, by its name in Python."""
    source = read(module)
    return next(Declared(source, node) for node in source.classes if node.name == name)


def declared(package: str, decorator: str) -> dict[str, Declared]:
    """The classes in the files of a package that are decorated with `@decorator("name")`, by these names."""
    found = {}
    for module in pkgutil.iter_modules(import_module(package).__path__):
        source = read(f"{package}.{module.name}")
        for node in source.classes:
            for call in node.decorator_list:
                match call:
                    case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(name))]) if word == decorator:
                        found[name] = declaration(source.module, node.name)
    return found
