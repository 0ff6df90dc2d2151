"""Things that are chosen by name: methods, splits, data sets. Each is a class whose fields are its options."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import isfinite
from numbers import Integral, Real
from types import UnionType
from typing import Any, Generic, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

from coterie.core.errors import SettingsError, unknown
from coterie.core.fields import Effect, effect_of

__all__ = ["Option", "Registry", "checked", "first_line", "options"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a registered class: what the command line, the settings file and the documentation derive from."""

    name: str
    type: Any
    default: Any
    help: str
    effect: Effect = Effect.RESULTS
    """What another value changes."""

    @property
    def decides(self) -> bool:
        """Whether runs with another value are others, in their results or in what is written down of them."""
        return self.effect >= Effect.RECORD


class Registry(Generic[T]):
    """Classes by name. Registering makes a class a frozen dataclass, so that its options are declared once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}
        self._variants: dict[str, type[T]] = {}

    @dataclass_transform(frozen_default=True)
    def register(self, name: str | None = None) -> Callable[[type[T]], type[T]]:
        """Decorate a class; its name on the command line is the class's own, in lower case, unless another is given."""

        if isinstance(name, type):  # the decorator without brackets would register nothing, and say nothing
            raise SettingsError(f'{self.kind} {name.__name__}: the decorator takes a name, e.g. `("mine")`')

        def decorate(cls: type[T]) -> type[T]:
            cls = dataclasses.dataclass(frozen=True)(cls)
            key = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
            cls.name = key  # type: ignore[attr-defined]
            self._classes[key] = cls
            return cls

        return decorate

    @dataclass_transform(frozen_default=True)
    def variant(self, name: str) -> Callable[[type[T]], type[T]]:
        """Decorate a subclass of a registered class, with fields that only it has.

        It goes by the same name: `make` takes it where one of these fields is given another value than its default.
        """

        def decorate(cls: type[T]) -> type[T]:
            self._variants[name] = cls = dataclasses.dataclass(frozen=True)(cls)
            return cls

        return decorate

    def __getitem__(self, name: str) -> type[T]:
        try:
            return self._classes[name]
        except KeyError:
            raise unknown(self.kind, name, self._classes) from None

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def make(self, name: str, **values: Any) -> T:
        """An instance with the given options; an unknown option or a value of the wrong kind is an error that helps."""
        cls = self[name]
        known = {option.name: option for option in self.options(name)}
        for key, value in values.items():
            if key not in known:
                raise unknown(f"option of the {self.kind} {name}", key, known)
            values[key] = checked(f"{key}", value, known[key].type)
        apart = {option.name: option.default for option in self._apart(name)}
        if any(values[key] != usual for key, usual in apart.items() if key in values):
            return self._variants[name](**values)
        return cls(**{key: value for key, value in values.items() if key not in apart})

    def options(self, name: str) -> tuple[Option, ...]:
        """What a class can be told, also what only its variant can."""
        return options(cast(type, self[name])) + self._apart(name)

    def _apart(self, name: str) -> tuple[Option, ...]:
        """The fields that only the variant of a class has."""
        if name not in self._variants:
            return ()
        common = {option.name for option in options(cast(type, self[name]))}
        return tuple(option for option in options(cast(type, self._variants[name])) if option.name not in common)


def first_line(thing: Any) -> str:
    """The first sentence of a docstring, for lists."""
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]


@cache
def options(cls: type) -> tuple[Option, ...]:
    """The fields of a dataclass with their types, defaults and the docstrings below them, inherited ones first."""
    hints, extras = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        helps |= _field_docs(base)
    found = []
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        told = helps.get(field.name, "")
        found.append(Option(field.name, hints[field.name], default, told, effect_of(extras[field.name])))
    return tuple(found)


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """Docstrings below fields: they are not kept at run time, so they are read from the source where there is one."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, doc in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(doc, ast.Expr)
            and isinstance(doc.value, ast.Constant)
            and isinstance(doc.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(doc.value.value).replace("\n", " ")
    return docs


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the declared kind.

    Whole numbers pass for floats, lists for tuples, NumPy's numbers for ours. Infinity and not-a-number do not pass: no
    option means anything with them.
    """
    allowed = get_args(hint) if _is_union(hint) else (hint,)
    for kind in allowed:
        origin = get_origin(kind)
        if kind is Any or (kind is type(None) and value is None):
            return value
        if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        if kind is float and isinstance(value, Real) and not isinstance(value, bool):
            if not isfinite(value):
                raise SettingsError(f"{name}={value}: expected a finite number")
            return float(value)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(checked(name, item, get_args(kind)[0]) for item in value)
        if str(origin) == "typing.Literal":
            if any(value == word and type(value) is type(word) for word in get_args(kind)):  # True is not 1
                return value
        elif kind is not int and isinstance(value, origin or kind):  # a bool is an int to Python, but not to us
            return value
    literal = [word for kind in allowed if str(get_origin(kind)) == "typing.Literal" for word in get_args(kind)]
    if literal:
        raise unknown(name, value, map(str, literal))
    raise SettingsError(f"{name}={value!r}: expected {_describe(hint)}")


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union)


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "nothing"}
    kinds = get_args(hint) if _is_union(hint) else (hint,)
    return " or ".join("a list" if get_origin(kind) is tuple else words.get(kind, str(kind)) for kind in kinds)
