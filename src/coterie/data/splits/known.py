"""Splits that are known beforehand: by the users of the data, or by an assignment that is given."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.core.errors import DataError, SettingsError
from coterie.core.fields import Count, at_least
from coterie.data.dataset import Dataset
from coterie.data.readers import reading
from coterie.data.split import Split, SplitRule, split_rules
from coterie.data.splits._dealing import gather, require


@dataclass(frozen=True)
class _FromPublishedUsers(SplitRule):
    """Clients that exist before the split, of which all or some take part."""

    clients: Annotated[int, at_least(0, "0 for all, or more")] = 0
    """How many of the clients take part, drawn at random; 0 for all."""

    min_size: Count = 1
    """Clients with fewer samples are left out."""

    def _some(self, everyone: Split, data: Dataset, rng: np.random.Generator) -> Split:
        """The clients that are large enough, or as many random ones of them as are asked for, in their order."""
        chosen = np.flatnonzero(everyone.sizes >= self.min_size)
        if not len(chosen):
            raise SettingsError(f"min_size={self.min_size}: no client of {data.name} has that many samples")
        if self.clients:
            allowed = f"{data.name} has {len(chosen)} with at least {self.min_size} samples"
            require(self.clients <= len(chosen), "clients", self.clients, allowed)
            chosen = np.sort(rng.permutation(chosen)[: self.clients])
        return Split(
            tuple(everyone.indices[client] for client in chosen),
            groups=None if everyone.groups is None else everyone.groups[chosen],
            names=tuple(everyone.names[client] for client in chosen),
            repeats=everyone.repeats,
        )


@split_rules.register("natural")
class Natural(_FromPublishedUsers):
    """By user: each user of the data, e.g. each writer of FEMNIST, is a client.

    Clients have their users' names, in sorted order.
    """

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """One client per user."""
        if data.users is None:
            raise SettingsError(f"split={self.name}: {data.name} does not say who its samples are from; use another")
        return self._some(_by_owner(data.users), data, rng)


@split_rules.register("given")
class Given(_FromPublishedUsers):
    """By an assignment that you give, as an array or in a file.

    An assignment is either one client per sample, as numbers or names (-1 or nothing: the sample is unused), or the
    samples of each client, as a list of lists or as a mapping from names. A file is `.json`, `.npy`, `.npz` (its only
    array, or the one called `assignment`), or `.csv` or `.txt` with one client per line. Clients of a list of lists and
    of a mapping keep their order; others are sorted.
    """

    whole_data: ClassVar[bool] = True

    assignment: str | Path | np.ndarray | Sequence[Any] | Mapping[str, Any] = ""
    """The assignment, or a file that holds it."""

    groups: str | Path | np.ndarray | Sequence[Any] | None = None
    """The true group of each client, in the order of the clients, or a file with one per line; by default unknown."""

    repeats: bool = False
    """Whether clients may have samples in common; otherwise that is an error."""

    def divide(self, data: Dataset, rng: np.random.Generator) -> Split:
        """The clients of the assignment."""
        assignment = _loaded("assignment", self.assignment)
        if isinstance(assignment, Mapping) or _is_nested(assignment):
            everyone = by_samples(assignment)
        else:
            everyone = _by_owner(_owners(assignment, data), nobody="-1")
        groups = None
        if self.groups is not None:
            groups = np.unique(np.asarray(_loaded("groups", self.groups)), return_inverse=True)[1]
            require(len(groups) == len(everyone), "groups", f"{len(groups)} of them", f"{len(everyone)} clients")
        return self._some(Split(everyone.indices, groups, names=everyone.names, repeats=self.repeats), data, rng)


def _by_owner(owners: np.ndarray, nobody: str | None = None) -> Split:
    """Clients from the owner of each sample; the samples of `nobody` are not used."""
    owner_names, owner = np.unique(owners, return_inverse=True)
    names = owner_names.astype(str)
    clients = zip(names, gather(owner, len(names)), strict=True)
    found = {str(name): index for name, index in clients if name != nobody}
    return Split(tuple(found.values()), names=tuple(found))


def by_samples(assignment: Mapping[str, Any] | Sequence[Any]) -> Split:
    """Clients from a list of the samples of each, or from a mapping of names to samples."""
    if not isinstance(assignment, Mapping | Sequence | np.ndarray):
        raise SettingsError(
            f"split={assignment!r:.60}: expected the name of a split or a coterie.Split, or the samples of each client"
        )
    if not isinstance(assignment, Mapping) and not _is_nested(assignment):
        raise DataError(f"split={assignment!r:.60}: expected the samples of each client, e.g. [[0, 1, 5], [2, 3]]")
    named = assignment if isinstance(assignment, Mapping) else dict(enumerate(assignment))
    indices = []
    for name, samples in named.items():
        index = np.asarray(samples).reshape(-1)
        if len(index) and not np.issubdtype(index.dtype, np.integer):
            raise DataError(f"assignment: the samples of client {name} are not whole numbers")
        indices.append(np.sort(index.astype(np.int64)))
    return Split(tuple(indices), names=tuple(map(str, named)))


def _owners(assignment: Any, data: Dataset) -> np.ndarray:
    """The owner of each sample, -1 for nobody: whole numbers if all of them are, else words."""
    words = np.array([_word(owner) for owner in np.asarray(assignment, dtype=object).reshape(-1)], dtype=str)
    if len(words) != len(data):
        raise DataError(f"assignment: {len(words)} entries, but {data.name} has {len(data)} samples")
    try:
        numbers = words.astype(np.int64)
    except (ValueError, OverflowError):
        return words
    # Where a name such as 007 is among them, it stays as it is written.
    return numbers if (numbers.astype(str) == words).all() else words


def _word(owner: Any) -> str:
    """An owner as a word: whole numbers without a point, None, not-a-number and an empty text as -1."""
    if owner is None or owner != owner:
        return "-1"
    if isinstance(owner, float) and owner.is_integer():
        owner = int(owner)
    return str(owner).strip() or "-1"


def _is_nested(assignment: Any) -> bool:
    return len(assignment) > 0 and all(isinstance(part, list | tuple | range | np.ndarray) for part in assignment)


def _loaded(option: str, value: Any) -> Any:
    """The value of an option, or what is in the file that it names."""
    if not isinstance(value, str | Path):
        return value
    if str(value) == "":
        raise SettingsError(f"{option}: name a file, or give an array")
    path = Path(value)
    if path.suffix not in _SUFFIXES:
        raise SettingsError(f"{option}={path}: a file that ends in {', '.join(_SUFFIXES)}")
    with reading(f"{option}={path}"):
        found = _read(path, option)
    if not isinstance(found, list | dict | np.ndarray):
        raise DataError(f"{option}={path}: neither a list nor an object")
    return found


def _read(path: Path, array: str) -> Any:
    """What is in a file; of several arrays the one of that name."""
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix in (".csv", ".txt"):
        return path.read_text(encoding="utf-8").splitlines()
    with path.open("rb") as file:  # NumPy leaves a damaged file open that it opened itself
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        if array not in found.files and len(found.files) != 1:
            raise ValueError(f"no array {array!r} among {', '.join(found.files)}")
        return found[array if array in found.files else found.files[0]]


_SUFFIXES = (".json", ".npy", ".npz", ".csv", ".txt")
