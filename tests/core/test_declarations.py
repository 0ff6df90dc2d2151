"""What source files declare, read and not imported, is what their classes have when they are imported."""

import importlib
import inspect
import pkgutil
import sys

import pytest

from coterie.core.declarations import declaration, declared, options, read
from coterie.core.registry import Registry
from coterie.data.sources import sources
from coterie.data.splits import split_rules
from coterie.methods import methods

SPLITS_AND_DATA = [registry[name] for registry in (split_rules, sources) for name in registry]
CLASSES = [
    ("coterie.server.method", "Method"),
    ("coterie.training.local", "LocalTraining"),
    ("coterie.data.division", "Division"),
    ("coterie.server.scoring", "Scoring"),
    ("coterie.engines.simulation.engine", "Computing"),
    *((cls.__module__, cls.__name__) for cls in SPLITS_AND_DATA),
]


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_a_class_is_read_as_it_is(module, name):
    cls = getattr(importlib.import_module(module), name)
    found = declaration(module, name)
    assert found.options == options(cls)
    assert found.doc == inspect.getdoc(cls)
    assert found.imported() is cls


@pytest.mark.parametrize("name", list(methods))
def test_a_method_is_read_as_it_is(name):
    cls = methods[name]
    found = methods.declared(name)
    assert cls.name == name
    assert found.imported() is cls
    assert found.options == options(cls)
    assert found.doc == methods.doc(name) == inspect.getdoc(cls)
    assert methods.summary(name) == found.doc.splitlines()[0]
    assert methods.class_name(name) == cls.__name__
    ours = [base for base in cls.__mro__ if base.__module__.startswith("coterie.")]
    assert [one.node.name for one in found.lineage] == [base.__name__ for base in ours]


def test_every_method_in_the_package_is_read():
    package = importlib.import_module("coterie.methods")
    names = [f"coterie.methods.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    things = [thing for name in names for thing in vars(importlib.import_module(name)).values()]
    made = {thing.name for thing in things if inspect.isclass(thing) and "name" in vars(thing)}
    assert made == declared("coterie.methods", "method").keys()


BASE = '''
"""What animals have in common."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from coterie.core.fields import WITHOUT_EFFECT, Count, above

raise RuntimeError("this need not be imported")

FEW = 4
Weight = Annotated[float | None, above(0), WITHOUT_EFFECT]


class Told:
    legs: int = 0
    """How many legs
    it stands on."""


@dataclass(frozen=True)
class Animal(Told):
    """What all animals are told."""

    name: ClassVar[str]
    kind: ClassVar = None

    legs: Count = FEW

    weight: Weight = None
    """How heavy it is."""

    coats: tuple[Literal["brown", "grey"], ...] = field(default_factory=lambda: ("brown",))
'''

CAT = '''
from zoo_for_tests import animals
from zoo_for_tests.base import Animal as Base

animal, animal_variant = animals.register, animals.variant


@animal("cat")
class Felis(Base):
    """Purrs.

    And sleeps.
    """

    lives: int = 9


class Toy(Felis):
    """Is none."""


@animal_variant("cat")
class Lion(Felis):
    """Roars."""

    mane: bool = False
'''


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A package of animals, whose files cannot be imported."""
    folder = tmp_path / "zoo_for_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from coterie.core.registry import Registry\nanimals = Registry('animal')\n"
        "animals.found_in(__name__, 'animal', 'animal_variant')\n"
    )
    (folder / "base.py").write_text(BASE)
    (folder / "cat.py").write_text(CAT)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("zoo_for_tests").animals
    read.cache_clear()
    declaration.cache_clear()
    for name in [name for name in sys.modules if name.startswith("zoo_for_tests")]:
        del sys.modules[name]


@pytest.fixture
def open_zoo(zoo, tmp_path):
    """The same, after somebody has seen to it that they can."""
    (tmp_path / "zoo_for_tests/base.py").write_text(BASE.replace("raise", "# "))
    return zoo


def test_a_registry_knows_the_classes_of_its_package_without_importing_them(zoo):
    assert list(zoo) == ["cat"]
    assert "cat" in zoo
    assert "lion" not in zoo
    assert (zoo.class_name("cat"), zoo.summary("cat"), zoo.doc("cat")) == ("Felis", "Purrs.", "Purrs.\n\nAnd sleeps.")
    found = {option.name: option for option in zoo.options("cat")}
    assert list(found) == ["legs", "weight", "coats", "lives", "mane"]
    assert (found["legs"].type, found["legs"].default, found["legs"].help) == (int, 4, "How many legs it stands on.")
    assert found["legs"].allowed.words == "at least 1"
    assert (found["weight"].type, found["weight"].decides, found["lives"].decides) == (float | None, False, True)
    assert found["coats"].default == ("brown",)
    assert "zoo_for_tests.cat" not in sys.modules


def test_a_class_is_imported_when_it_is_asked_for(zoo):
    for ask in (zoo.__getitem__, zoo.make, lambda name: zoo.make(name, mane=True), lambda name: zoo.load()):
        with pytest.raises(RuntimeError, match="this need not be imported"):
            ask("cat")


def test_a_class_from_elsewhere_goes_before_that_of_the_package(open_zoo):
    @open_zoo.register("cat")
    class Garfield:
        """Eats."""

        lasagne: int = 3

    importlib.import_module("zoo_for_tests.cat")
    assert open_zoo["cat"] is Garfield
    assert (open_zoo.class_name("cat"), open_zoo.summary("cat")) == ("Garfield", "Eats.")
    assert open_zoo.make("cat", lasagne=4).lasagne == 4
    assert list(open_zoo) == ["cat"]


def test_a_variant_of_the_package_is_made_where_its_own_field_is_given(open_zoo):
    assert type(open_zoo.make("cat", lives=7, mane=False)).__name__ == "Felis"
    assert type(open_zoo.make("cat", lives=7, mane=True)).__name__ == "Lion"
    assert open_zoo["cat"].name == "cat"
    assert open_zoo.declared("cat").options == options(open_zoo["cat"])


def test_an_unknown_name_has_near_ones(zoo):
    for ask in (zoo.__getitem__, zoo.declared, zoo.doc, zoo.options, zoo.make, zoo.class_name):
        with pytest.raises(ValueError, match="unknown animal 'cta': did you mean cat"):
            ask("cta")


def test_a_registry_without_a_package_declares_nothing():
    with pytest.raises(ValueError, match="unknown thing 'x'"):
        Registry("thing").declared("x")
