"""What every method says of itself, and what its variants are."""

import pytest

import coterie
from coterie.core.errors import SettingsError
from coterie.server.fitting import Noted
from coterie.server.registered import FAMILIES, by_family
from support.federations import at_round, uneven

NAMES = [name for name in coterie.methods if coterie.methods[name].__module__.startswith("coterie.methods.")]
PUBLISHED = {
    "cfl": "positions",
    "feddc": True,
    "fedfa": True,
    "fedprox": True,
    "flis-dc": True,
    "flis-hc": True,
    "ifca": True,
    "scaffold": "pacfl",
}
"""The methods of which there is a variant as published, and what asks for it."""


@pytest.mark.parametrize("name", NAMES)
def test_a_method_says_what_it_sends_and_what_a_client_gives_away(name):
    for words in (coterie.methods[name].sends, coterie.methods[name].gives_away):
        assert words
        assert not words.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_of_a_family(name):
    (family,) = by_family([name])
    assert family == coterie.methods[name].family
    assert family in FAMILIES


def test_families_are_listed_in_their_order_and_a_method_of_ones_own_comes_last(monkeypatch):
    class Mine(coterie.Method):
        """Mine. (Me, 2026)"""

    monkeypatch.setitem(coterie.methods._classes, "a-mine", Mine)
    listed = by_family(["a-mine", "ifca", "ditto", "fedprox", "cfl", "compose"])
    assert list(listed) == list(FAMILIES)
    assert listed == {
        "global": ["fedprox"],
        "clustered": ["ifca", "cfl"],
        "personal": ["ditto"],
        "own": ["a-mine", "compose"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_only_variants_have_the_field_compat(name):
    plain = coterie.methods.make(name)
    assert not hasattr(plain, "compat")
    assert ("compat" in {option.name for option in coterie.methods.options(name)}) == (name in PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_variant_is_made_where_it_is_asked_for_and_goes_by_the_method_s_name(name):
    variant = coterie.methods.make(name, compat=PUBLISHED[name])
    assert type(variant) is not coterie.methods[name]
    assert isinstance(variant, coterie.methods[name])
    assert variant.name == name
    usual = False if PUBLISHED[name] is True else "none"
    assert type(coterie.methods.make(name, compat=usual)) is coterie.methods[name]


def test_a_variant_still_checks_what_its_method_checks():
    with pytest.raises(SettingsError, match=r"mu=-1.0: 0 or more"):
        coterie.methods.make("fedprox", mu=-1.0, compat=True)


@pytest.mark.parametrize("name", ["autocfl", "cafa", "flis-dc"])
def test_what_figures_show_is_beside_the_state_and_not_in_it(name):
    fed, made = at_round(uneven(server_samples=20)), coterie.methods.make(name, batch=8)
    begun = made.begin(fed)
    noted = made.round(fed, begun.state if isinstance(begun, Noted) else begun)
    assert noted.findings
    assert not set(noted.findings) & set(vars(noted.state)) - {"weights"}
