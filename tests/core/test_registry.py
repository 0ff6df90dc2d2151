"""Things by name, with their options declared once."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Literal

import pytest

from coterie.core.errors import SettingsError
from coterie.core.registry import Registry, checked, first_line, options

animals: Registry[Any] = Registry("animal")


class Animal:
    """What all animals are told."""

    legs: int = 4
    """How many legs
    it stands on."""

    weight: float = 1.5


@animals.register()
class SeaOtter(Animal):
    """Swims on its back.

    And holds hands.
    """

    coat: Literal["brown", "grey"] = "brown"
    """Colour of its fur."""

    legs: int = 4
    tools: tuple[float, ...] = ()


@animals.register("cat")
class Felis(Animal):
    """Purrs."""


def test_a_class_is_known_by_its_own_name_or_by_one_given():
    assert list(animals) == ["cat", "sea-otter"]
    assert animals["cat"] is Felis
    assert SeaOtter.name == "sea-otter"
    assert "cat" in animals
    assert "dog" not in animals


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(SettingsError, match=r"method Mine: the decorator takes a name, e\.g\. `\(\"mine\"\)`"):

        @Registry("method").register
        class Mine:
            pass


def test_making_gives_a_frozen_instance_with_its_options():
    otter = animals.make("sea-otter", legs=3, tools=[1, 2.5])
    assert (otter.legs, otter.coat, otter.tools) == (3, "brown", (1.0, 2.5))
    with pytest.raises(FrozenInstanceError):
        otter.legs = 5


def test_options_carry_type_default_and_the_docstring_below():
    found = {option.name: option for option in options(SeaOtter)}
    assert found["coat"].help == "Colour of its fur."
    assert (found["coat"].default, found["legs"].type) == ("brown", int)


def test_help_is_inherited_on_one_line():
    assert {option.name: option.help for option in options(SeaOtter)}["legs"] == "How many legs it stands on."


def test_the_first_line_stands_for_a_thing_in_lists():
    assert first_line(SeaOtter) == "Swims on its back."


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sea-oter", {}, "unknown animal 'sea-oter': did you mean sea-otter"),
        ("zzz", {}, "known are cat, sea-otter"),
        ("sea-otter", {"leg": 2}, "unknown option of the animal sea-otter 'leg': did you mean legs"),
        ("sea-otter", {"coat": "gray"}, "unknown coat 'gray': did you mean grey"),
        ("sea-otter", {"legs": 2.5}, "legs=2.5: expected a whole number"),
        ("sea-otter", {"legs": True}, "legs=True: expected a whole number"),
        ("sea-otter", {"tools": ["hammer"]}, "tools='hammer': expected a number"),
    ],
)
def test_a_wrong_name_or_value_gets_an_error_that_helps(name, values, message):
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        animals.make(name, **values)


@pytest.mark.parametrize(
    ("value", "hint", "kept"),
    [
        (3, float, 3.0),
        (3, int | None, 3),
        (None, int | None, None),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 2], tuple[int, ...] | None, (1, 2)),
        (5, Literal[1, 5], 5),
        (Path("a"), Path | None, Path("a")),
        (True, bool, True),
        (object, Any, object),
    ],
)
def test_values_of_the_declared_kind_pass(value, hint, kept):
    result = checked("x", value, hint)
    assert result == kept
    assert type(result) is type(kept)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("3", int),
        (3.0, int),
        (1, bool),
        (True, float),
        (True, Literal[1, 5]),
        (1, str),
        (None, float),
        ("12", tuple[int, ...]),
        (float("nan"), float),
        (float("inf"), float | None),
    ],
)
def test_values_of_another_kind_are_refused(value, hint):
    with pytest.raises(SettingsError, match="x"):
        checked("x", value, hint)


def test_a_variant_goes_by_the_same_name_and_is_made_where_its_own_field_is_given():
    things = Registry("thing")

    @things.register("plain")
    class Plain:
        size: int = 1

    @things.variant("plain")
    class Odd(Plain):
        odd: bool = False

    assert [option.name for option in things.options("plain")] == ["size", "odd"]
    assert things["plain"] is Plain
    assert things.make("plain", size=2) == things.make("plain", size=2, odd=False) == Plain(2)
    assert things.make("plain", odd=True) == Odd(1, odd=True)
    assert things.make("plain", odd=True).name == "plain"
