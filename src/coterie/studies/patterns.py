"""Places in a study by patterns: `label *` fits every label that begins so, upper or lower case alike."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase


def matches(place: Mapping[str, str], wanted: Mapping[str, str], also: Mapping[str, str] | None = None) -> bool:
    """Whether the label on every axis fits the pattern wanted there, upper or lower case alike.

    `also` has a second label for some axes, which may fit instead. A label always fits itself, even if it contains
    signs such as `*` that patterns give a meaning.
    """
    return all(
        any(
            label.lower() == pattern.lower() or fnmatchcase(label.lower(), pattern.lower())
            for label in (place.get(axis, ""), (also or {}).get(axis))
            if label is not None
        )
        for axis, pattern in wanted.items()
    )


def fitting(axes: Mapping[str, Iterable[str]], wanted: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The entries of every axis that fit the pattern wanted there; all entries of an axis without a pattern."""
    return {
        axis: tuple(label for label in entries if axis not in wanted or matches({axis: label}, {axis: wanted[axis]}))
        for axis, entries in axes.items()
    }
