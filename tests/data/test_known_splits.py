"""Splits that are known beforehand: users, and assignments that are given as values or as files."""

import json

import numpy as np
import pytest

from coterie.core.errors import DataError, SettingsError
from coterie.data.dataset import Dataset
from coterie.data.split import Split
from coterie.data.splits import split_rules

OWNERS = [2, 0, 2, -1, 10, 0]
"""Who has the six samples: clients 0, 2 and 10, and nobody the fourth."""


def six(users: object = None) -> Dataset:
    return Dataset(np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1]), users=users, name="six")


def given(assignment: object, seed: int = 0, **values: object) -> Split:
    return split_rules.make("given", assignment=assignment, **values).split(six(), seed)


def samples(split: Split) -> dict[str, list[int]]:
    return {name: index.tolist() for name, index in zip(split.names, split.indices, strict=True)}


def test_natural_makes_a_client_of_every_user():
    split = split_rules["natural"]().split(six(["bo", "al", "bo", "cy", "al", "al"]))
    assert samples(split) == {"al": [1, 4, 5], "bo": [0, 2], "cy": [3]}
    assert split.groups is None


def test_natural_sorts_numbered_users_by_number():
    assert split_rules["natural"]().split(six([10, 9, 10, 9, 2, 2])).names == ("2", "9", "10")


def test_natural_leaves_small_users_out():
    split = split_rules["natural"](min_size=2).split(six(["bo", "al", "bo", "cy", "al", "al"]))
    assert split.names == ("al", "bo")


def test_natural_takes_a_seeded_subset_of_users():
    data = Dataset(np.zeros((40, 2)), np.arange(40) % 2, users=np.arange(40) // 2)
    rule = split_rules["natural"](clients=5)
    first, again, other = (rule.split(data, seed).names for seed in (0, 0, 1))
    assert len(first) == 5
    assert first == again != other
    assert list(first) == sorted(first, key=int)


def test_natural_without_users_is_an_error():
    with pytest.raises(SettingsError, match="six does not say who its samples are from"):
        split_rules["natural"]().split(six())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clients": 4}, "clients=4: six has 3 with at least 1 samples"),
        ({"clients": 3, "min_size": 2}, "clients=3: six has 2 with at least 2 samples"),
        ({"clients": -1}, "clients=-1: 0 for all, or more"),
        ({"min_size": 0}, "min_size=0: at least 1"),
        ({"min_size": 4}, "min_size=4: no client of six has that many samples"),
    ],
)
def test_natural_settings_out_of_range(values, message):
    with pytest.raises(SettingsError, match=message):
        split_rules["natural"](**values).split(six(["bo", "al", "bo", "cy", "al", "al"]))


@pytest.mark.parametrize(
    "assignment",
    [
        OWNERS,
        tuple(OWNERS),
        np.array(OWNERS),
        np.array(OWNERS, dtype=float),
        [2, 0, 2, None, 10, 0],
        ["2", "0", "2", "", "10", "0"],
        [2.0, 0.0, 2.0, float("nan"), 10.0, 0.0],
        {"0": [1, 5], "2": [0, 2], "10": [4]},
    ],
)
def test_given_takes_one_client_per_sample_or_the_samples_of_each(assignment):
    assert samples(given(assignment)) == {"0": [1, 5], "2": [0, 2], "10": [4]}


def test_given_takes_names():
    split = given(["bo", "al", "", "bo", "-1", "al"])
    assert samples(split) == {"al": [1, 5], "bo": [0, 3]}


def test_given_keeps_names_that_only_look_like_numbers():
    assert given(["007", "7", "007", "7", "007", "7"]).names == ("007", "7")


@pytest.mark.parametrize("lists", [[[5, 1], [0], [2, 3]], np.array([[5, 1], [0, 4], [2, 3]])])
def test_given_takes_lists_of_samples(lists):
    split = given(lists)
    assert split.names == ("0", "1", "2")
    assert [index.tolist() for index in split.indices] == [sorted(part) for part in lists]


def test_given_leaves_empty_clients_out():
    assert given([[0], [], [1]]).names == ("0", "2")


def test_given_keeps_the_true_groups_of_those_who_take_part():
    split = given(OWNERS, groups=["x", "y", "x"])
    assert split.groups.tolist() == [0, 1, 0]
    part = given(OWNERS, groups=["x", "y", "x"], min_size=2)
    assert part.names == ("0", "2")
    assert part.groups.tolist() == [0, 1]


def test_given_shares_samples_only_when_told():
    lists = [[0, 1], [1, 2]]
    with pytest.raises(DataError, match="a sample to several clients"):
        given(lists)
    assert given(lists, repeats=True).repeats


def write(path, kind):
    if kind == "list.json":
        path.write_text(json.dumps(OWNERS))
    elif kind == "object.json":
        path.write_text(json.dumps({"0": [1, 5], "2": [0, 2], "10": [4]}))
    elif kind == "a.npy":
        np.save(path, np.array(OWNERS))
    elif kind == "one.npz":
        np.savez(path, whatever=np.array(OWNERS))
    elif kind == "two.npz":
        np.savez(path, assignment=np.array(OWNERS), other=np.zeros(3))
    elif kind == "a.csv":
        path.write_text("2\n0\n2\n\n10\n0\n")
    else:
        path.write_text("2\n0\n2\n-1\n10\n0")


@pytest.mark.parametrize("kind", ["list.json", "object.json", "a.npy", "one.npz", "two.npz", "a.csv", "a.txt"])
@pytest.mark.parametrize("as_text", [True, False])
def test_given_reads_files(tmp_path, kind, as_text):
    path = tmp_path / kind
    write(path, kind)
    assert samples(given(str(path) if as_text else path)) == {"0": [1, 5], "2": [0, 2], "10": [4]}


def test_given_reads_groups_from_a_file(tmp_path):
    path = tmp_path / "groups.txt"
    path.write_text("north\nsouth\nnorth\n")
    assert given(OWNERS, groups=str(path)).groups.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("assignment", "error", "message"),
    [
        ("", SettingsError, "assignment: name a file, or give an array"),
        ("clients.xlsx", SettingsError, r"a file that ends in \.json"),
        ("nowhere.csv", DataError, "nowhere.csv: cannot be read"),
        ([0, 1], DataError, "2 entries, but six has 6 samples"),
        ([-1] * 6, SettingsError, "no client of six has that many samples"),
        ([[0.5], [1]], DataError, "samples of client 0 are not whole numbers"),
        ([[0], [6]], DataError, "six does not have"),
    ],
)
def test_given_says_what_is_wrong(assignment, error, message):
    with pytest.raises(error, match=message):
        given(assignment)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"[1, 2"),
        ("a.json", b"3"),
        ("a.npy", b"not an array"),
        ("a.npz", b"PK\x03\x04 not an archive"),
        ("a.npy", b""),
        ("a.txt", b"\xff\xfe\xff"),
    ],
)
def test_given_names_a_damaged_file(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        given(path)


def test_given_reads_no_pickles(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}, 0, 0, 0, 0, 0], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        given(path)


def test_given_chooses_among_arrays_by_name_only(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, one=np.array(OWNERS), two=np.array(OWNERS))
    with pytest.raises(DataError, match="no array 'assignment' among one, two"):
        given(path)


def test_given_groups_must_be_one_per_client():
    with pytest.raises(SettingsError, match="groups=2 of them: 3 clients"):
        given(OWNERS, groups=[0, 1])
