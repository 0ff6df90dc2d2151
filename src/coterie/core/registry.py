"""Methods, splits, data sets and the like, which are chosen by name. Each is a class whose fields are its options."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from functools import cached_property
from typing import Any, Generic, TypeVar, dataclass_transform

from coterie.core.declarations import Declared, Option, declared, options
from coterie.core.errors import SettingsError, unknown
from coterie.core.fields import checked, known_keywords

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by name. Registering makes a class a frozen dataclass, so that its options are declared once.

    A registry may be told of a package whose files register classes. Which ones, and with which options, is then read
    from these files without importing them; a file is imported when its class is asked for. A class from elsewhere
    takes the place of one of the package that has its name.

    >>> coterie.methods["ditto"] is coterie.Ditto
    True
    >>> coterie.methods.make("ditto", rounds=3).rounds
    3
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}
        self._variants: dict[str, type[T]] = {}
        self._package = ""
        self._decorators = ("", "")

    def found_in(self, package: str, register: str, variant: str) -> None:
        """Set the package whose files register classes, and the names of the two decorators in these files."""
        self._package, self._decorators = package, (register, variant)

    @dataclass_transform(frozen_default=True)
    def register(self, name: str | None = None) -> Callable[[type[T]], type[T]]:
        """Decorate a class; its name on the command line is the class's own, in lower case, unless another is given."""

        if isinstance(name, type):  # the decorator without brackets would register nothing, and say nothing
            raise SettingsError(f'{self.kind} {name.__name__}: the decorator takes a name, e.g. `("mine")`')

        def decorate(cls: type[T]) -> type[T]:
            cls = known_keywords(dataclasses.dataclass(frozen=True)(cls))
            key = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
            cls.name = key  # type: ignore[attr-defined]
            self._keep(self._classes, key, cls)
            return cls

        return decorate

    @dataclass_transform(frozen_default=True)
    def variant(self, name: str) -> Callable[[type[T]], type[T]]:
        """Decorate a subclass of a registered class, with fields that only it has.

        It goes by the same name: `make` takes it where one of these fields is given another value than its default.
        """

        def decorate(cls: type[T]) -> type[T]:
            cls = known_keywords(dataclasses.dataclass(frozen=True)(cls))
            self._keep(self._variants, name, cls)
            return cls

        return decorate

    def _keep(self, classes: dict[str, type[T]], name: str, cls: type[T]) -> None:
        """Remember a class, unless it is of the package: those are always found in its files, also when imported."""
        if not self._package or not cls.__module__.startswith(f"{self._package}."):
            classes[name] = cls

    @cached_property
    def _declared(self) -> Mapping[str, Declared]:
        return declared(self._package, self._decorators[0]) if self._package else {}

    @cached_property
    def _declared_variants(self) -> Mapping[str, Declared]:
        return declared(self._package, self._decorators[1]) if self._package else {}

    def __getitem__(self, name: str) -> type[T]:
        return _imported(self._found(name))

    def __contains__(self, name: str) -> bool:
        return name in self._classes or name in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._classes, *self._declared}))

    def load(self) -> None:
        """Import all classes and variants of the package, and with them what else their files register."""
        for one in (*self._declared.values(), *self._declared_variants.values()):
            one.imported()

    def declared(self, name: str) -> Declared:
        """A class of the package as its file declares it, without importing it."""
        if name not in self._declared:
            raise unknown(self.kind, name, self)
        return self._declared[name]

    def is_own(self, name: str) -> bool:
        """Whether it is registered from elsewhere than the files of the package."""
        return name in self._classes

    def doc(self, name: str) -> str:
        """The docstring of a class."""
        found = self._found(name)
        return found.doc if isinstance(found, Declared) else _doc(found)

    def summary(self, name: str) -> str:
        """The first line of a class's docstring, for lists."""
        return self.doc(name).split("\n", 1)[0]

    def class_name(self, name: str) -> str:
        """The name of a class in Python."""
        found = self._found(name)
        return found.node.name if isinstance(found, Declared) else found.__name__

    def make(self, name: str, **values: Any) -> T:
        """An instance with the given options; an unknown option or a value of the wrong kind is an error that helps."""
        known = {option.name: option for option in self.options(name)}
        for key, value in values.items():
            if key not in known:
                raise unknown(f"option of the {self.kind} {name}", key, known)
            values[key] = checked(key, value, known[key].type)
        if missing := [option for option in known.values() if option.default is MISSING and option.name not in values]:
            told = "; ".join(f"{option.name}: {option.help}" for option in missing)
            raise SettingsError(f"the {self.kind} {name} needs {', '.join(option.name for option in missing)} ({told})")
        plain = {option.name for option in _fields(self._found(name))}
        if any(values[key] != known[key].default for key in values.keys() - plain):
            return _imported(self._variant(name))(**values)
        return self[name](**{key: value for key, value in values.items() if key in plain})

    def options(self, name: str) -> tuple[Option, ...]:
        """The fields of a class, and those that only its variant has."""
        plain, variant = _fields(self._found(name)), self._variant(name)
        names = {option.name for option in plain}
        return plain + tuple(option for option in _fields(variant) if option.name not in names) if variant else plain

    def _found(self, name: str) -> type[T] | Declared:
        """A class, or how its file declares it."""
        return self._classes.get(name) or self.declared(name)

    def _variant(self, name: str) -> type[T] | Declared | None:
        """The variant of a class, or how its file declares it, if there is one."""
        return self._variants.get(name) or self._declared_variants.get(name)


def _fields(cls: Any) -> tuple[Option, ...]:
    return cls.options if isinstance(cls, Declared) else options(cls)


def _imported(cls: Any) -> Any:
    return cls.imported() if isinstance(cls, Declared) else cls


def first_line(thing: Any) -> str:
    """The first line of a thing's docstring, for lists."""
    return _doc(thing).split("\n", 1)[0]


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""
