"""Studies that extend others: they take over options and axes, and say what they have besides.

    [[extends]]
    study = "../flis/table1.toml"     # its path, from the folder of the file that says so
    only = { data = ["FMNIST"] }      # of these axes only these entries; of the others all

What is taken over are `options`, `sources`, `axes` and `exceptions`. Of several studies later ones count more, and what
the file says itself counts most: its options replace single ones, its entries of an axis are added to the others or
replace those of the same label. Titles, tables and figures are every study's own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import SettingsError, unknown
from coterie.core.modules import own_module
from coterie.core.registry import checked
from coterie.methods import methods
from coterie.runs.settings import read_table
from coterie.studies.patterns import fitting

Content = dict[str, Any]
"""What a study file says, as TOML gives it."""

_PARTS = ("options", "sources", "axes")
"""What is taken over and is a TOML table."""


def extended(path: Path, on_the_way: Sequence[Path] = ()) -> Content:
    """What a study file says with all that it takes over; modules that it names are imported."""
    content = read_table(path)
    try:
        if path.resolve() in on_the_way:
            raise SettingsError("extends itself")
        for module in checked("modules", content.get("modules", []), tuple[str, ...]):
            own_module(module, path.parent)
        listed = content.pop("extends", None)
        if listed is None:
            return content
        found = _parts({})
        for one in _listed(listed):
            other = extended(path.parent / one["study"], (*on_the_way, path.resolve()))
            found = _joined(found, _only(_parts(other), one.get("only", {})))
        return content | _joined(found, _parts(content))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _listed(extends: Any) -> list[Content]:
    """What a file says that it extends, if it says it as it must."""
    listed: list[Any] = extends if isinstance(extends, list) else [extends]
    if not all(isinstance(one, dict) and "study" in one and not one.keys() - {"study", "only"} for one in listed):
        raise SettingsError(
            'extends: write [[extends]] once for each study, with study = "FILE" and perhaps only = {...}'
        )
    for one in listed:
        checked("extends.study", one["study"], str)
        checked("extends.only", one.get("only", {}), Mapping)
    return listed


def _parts(content: Content) -> Content:
    """The parts of a study that others take over."""
    parts = {name: checked(name, content.get(name, {}), Mapping) for name in _PARTS}
    for axis, entries in parts["axes"].items():
        for label, entry in checked(f"axes.{axis}", entries, Mapping).items():
            checked(f"axes.{axis}.{label}", entry, Mapping)
    return {**parts, "exceptions": [*checked("exceptions", content.get("exceptions", []), tuple[Mapping, ...])]}


def _only(parts: Content, only: Mapping[str, Any]) -> Content:
    """What is left of a study of whose axes only some entries are taken over, and what it says of these."""
    axes = dict(parts["axes"])
    for axis, said in only.items():
        if axis not in axes:
            raise unknown("axis in extends.only", axis, axes)
        labels = checked(f"extends.only.{axis}", said, tuple[str, ...])
        for label in labels:
            if label not in axes[axis]:
                raise unknown(f"entry of extends.only.{axis}", label, axes[axis])
        axes[axis] = {label: options for label, options in axes[axis].items() if label in labels}
    exceptions = [one for one in parts["exceptions"] if all(fitting(axes, one.get("where", {})).values())]
    used = {entry.get("method") for entry in axes.get("method", {}).values()}
    sources = {name: why for name, why in parts["sources"].items() if name.partition(".")[0] not in {*methods} - used}
    return {**parts, "axes": axes, "exceptions": exceptions, "sources": sources}


def _joined(first: Content, second: Content) -> Content:
    """The parts of two studies as those of one; the second counts more."""
    axes = [parts["axes"] for parts in (first, second)]
    return {
        **{name: {**first[name], **second[name]} for name in _PARTS},
        "axes": {axis: {**axes[0].get(axis, {}), **axes[1].get(axis, {})} for axis in {**axes[0], **axes[1]}},
        "exceptions": [*first["exceptions"], *second["exceptions"]],
    }
