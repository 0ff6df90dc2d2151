"""Options of the command line, as they derive from documented fields."""

import inspect
from collections import Counter
from typing import Annotated, Literal, get_args, get_origin

import pytest
from cyclopts import Parameter

from coterie.cli.look import split_options
from coterie.cli.options import ask, hidden, method_options, methods_options, needed, world_options
from coterie.cli.parameters import command
from coterie.core.errors import SettingsError
from coterie.core.registry import options
from coterie.data.sources import sources
from coterie.data.splits import split_rules
from coterie.methods import methods
from coterie.runs.options import GENERAL, data_options
from coterie.runs.settings import Settings


def visible(shown):
    return {item.name for item in shown if item.visible}


def called(shown, **keywords):
    """What a command's function is given for these keywords."""
    seen = []
    command(lambda given: seen.append(given), shown)(**keywords)
    return seen[0]


def nothing(
    given, *, out: Annotated[str, Parameter()] = "", as_json: Annotated[bool, Parameter(name="--json")] = False
):
    """A command with an option and a switch of its own."""


def asked(*arguments):
    return ask(arguments, nothing)


def the_help(shown, name):
    signature = inspect.signature(command(lambda given: None, shown))
    return get_args(signature.parameters[name].annotation)[1].help


@pytest.mark.parametrize("name", list(methods))
def test_every_name_is_there_once(name):
    world = world_options()
    shown = world + method_options(name, world)
    shown += hidden(methods_options(world), but=shown)
    assert max(Counter(item.name for item in shown).values()) == 1


@pytest.mark.parametrize("name", list(methods))
def test_everything_that_can_be_set_is_an_option(name):
    world = world_options()
    names = {item.name for item in world + method_options(name, world)}
    assert {option.name for option in GENERAL} <= names
    assert {option.name for option in methods.options(name)} <= names
    for split in split_rules:
        assert {option.name for option in options(split_rules[split])} <= names
    for data in (*sources, "own"):
        assert {option.name for option in data_options(data)} <= names


@pytest.mark.parametrize("name", list(methods))
def test_every_option_has_a_help(name):
    world = world_options()
    for item in world + method_options(name, world):
        assert item.option.help, item.name


def test_the_default_split_is_shown_and_the_others_are_not():
    names = visible(world_options())
    assert {"clients", "alpha", "definition"} <= names
    assert not {"classes", "imbalanced", "assignment", "extra", "size"} & names


@pytest.mark.parametrize("arguments", [["--split", "label-skew"], ["--split=label-skew"], ["split", "label-skew"]])
def test_the_named_split_is_shown(arguments):
    shown = split_options(arguments[1:]) if arguments[0] == "split" else world_options(asked(*arguments))
    names = visible(shown)
    assert {"clients", "classes"} <= names
    assert "alpha" not in names


def test_the_named_data_set_is_shown_with_a_prefix_where_a_split_has_the_name():
    names = visible(world_options(asked("--data", "imagenet32")))
    assert {"data.classes", "images"} <= names
    assert "seed" in names
    assert "data.seed" not in names


def test_own_data_has_its_option():
    assert "size" in visible(world_options(asked("--data", "some/folder")))


@pytest.mark.parametrize("arguments", [["--split"], ["--split", "nonsense"], ["split"], ["--data="]])
def test_nonsense_does_not_keep_options_from_being_made(arguments):
    assert {"split", "clients", "data"} <= {item.name for item in world_options(asked(*arguments))}


def test_the_shown_default_is_that_of_the_named_split():
    assert the_help(world_options(), "clients").endswith("[20]")
    assert the_help(world_options(asked("--split", "slfed-dist0")), "clients").endswith("[50]")


def test_the_help_has_the_default_and_the_choices():
    shown = methods_options(world_options())
    assert the_help(shown, "optimizer").endswith("[sgd; or adam]")
    assert the_help(shown, "milestones").endswith("[0.5,0.75]")
    assert the_help(world_options(asked("--split", "iid")), "imbalanced").endswith("[false]")
    assert not the_help(shown, "steps").endswith("]")


def test_where_methods_mean_different_things_by_a_name_every_choice_is_read():
    world = world_options()
    every = {item.name: set(get_args(item.option.type)) for item in methods_options(world)}
    assert every["linkage"] == {"single", "complete", "average", "ward"}
    assert every["serves"] == {"corrected", "average", "cloud", "mean"}
    assert {"positions", "pacfl", "true"} <= every["compat"]
    assert the_help(methods_options(world), "linkage").endswith("[single, complete, average, ward]")
    for name in methods:
        for item in method_options(name, world):
            choices = get_args(item.option.type) if get_origin(item.option.type) is Literal else ()
            assert set(choices) <= every[item.name], f"{item.name} of {name}"


def test_a_switch_among_words_is_read_as_one():
    shown = methods_options(world_options())
    assert called(shown, compat="true") == {"compat": True}
    assert called(shown, compat="positions") == {"compat": "positions"}


def test_named_methods_have_their_own_options_and_no_others():
    world = world_options()
    shown = methods_options(world, ["fedavg", "fedfa"])
    assert "compat" in visible(shown)
    assert not {"linkage", "threshold"} & visible(shown)
    assert {"linkage", "threshold"} <= {item.name for item in shown}
    assert next(item.option.type for item in shown if item.name == "compat") is bool


def test_the_help_speaks_of_options_not_of_fields():
    assert "`--rate-decay`" in the_help(methods_options(world_options()), "schedule")


def test_only_what_is_given_is_passed_on():
    world = world_options()
    assert called(world) == {}
    assert called(world, clients=3, data__classes=5, alpha=None) == {"clients": 3, "data.classes": 5}


def test_lists_are_written_with_commas():
    shown = methods_options(world_options()) + world_options()
    assert called(shown, milestones="0.25, 0.5", views="served,last") == {
        "milestones": (0.25, 0.5),
        "views": ("served", "last"),
    }
    with pytest.raises(SettingsError, match="milestones='a,b': numbers with commas between them"):
        called(shown, milestones="a,b")


def test_everything_that_the_command_line_passes_on_is_understood():
    """Every option of every method, written plainly and with its prefix, finds its place in the settings."""
    world = world_options()
    for name in methods:
        for item in method_options(name, world):
            value = item.option.default
            if value is not None:
                Settings.of({item.name: value}, name)
    for split in split_rules:
        for option in options(split_rules[split]):
            if option.default not in (None, ""):
                for written in (option.name, f"split.{option.name}"):
                    Settings.of({"split": split, written: option.default}, "local")


def test_words_are_told_from_values_of_options():
    line = asked(
        "--rounds", "3", "local", "--out", "fedavg", "--json", "fedprox", "--split=iid", "--rate", "-1", "ifca"
    )
    assert line.words == ("local", "fedprox", "ifca")
    assert line.values == {"rounds": "3", "out": "fedavg", "json": "", "split": "iid", "rate": "-1"}


def test_behind_two_dashes_there_are_words_only():
    assert asked("--out", "a", "--", "--out", "b").words == ("--out", "b")


@pytest.mark.parametrize(
    "switch", ["--strict", "--no-strict", "--global-test", "--insights", "--merge", "--help", "-h"]
)
def test_a_switch_takes_no_word_behind_it(switch):
    assert asked(switch, "local").words == ("local",)


def test_what_is_a_switch_for_some_methods_takes_the_words_of_others():
    assert asked("--compat", "positions", "cfl").words == ("cfl",)
    assert asked("--compat", "true", "--method.compat", "cfl").words == ("cfl",)


def test_names_of_options_are_those_of_python():
    assert asked("--data-dir", "a", "--data.classes=3").values == {"data_dir": "a", "data.classes": "3"}
    assert asked("--data_dir", "a").values == {"data_dir": "a"}


def test_what_is_out_of_sight_is_made_only_if_it_is_given():
    def made(*arguments):
        world = world_options()
        shown = needed(world + methods_options(world, ["fedavg"]), asked(*arguments), nothing)
        return {item.name for item in shown}

    assert "rounds" in made()
    assert not {"mu", "split.alpha", "gan_steps"} & made()
    assert {"mu", "split.alpha"} <= made("--mu", "1", "--split.alpha=3")
    assert "gan_steps" not in made("--mu", "1", "--json", "--out", "gan_steps")
    assert "gan_steps" in made("--gan-stesp", "1"), "it may be meant"
