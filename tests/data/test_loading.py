"""Data by name or by path."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import DataError, SettingsError
from coterie.data import load, loading
from coterie.data.sources import MNIST, ImageNet32


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No test sees the user's data or the files of the folder it is run from."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "user-cache" / name))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.arange(40).reshape(20, 2), y=np.arange(20) % 2)
    return tmp_path / "mine.npz"


def test_a_name_of_the_catalogue():
    assert load("digits").name == "digits"


def test_a_path_as_text_or_path(own):
    assert len(load(own)) == len(load(str(own))) == len(load("mine.npz")) == 20


def test_a_folder_of_images_with_its_option(tmp_path):
    (tmp_path / "pictures/a").mkdir(parents=True)
    Image.new("L", (4, 6)).save(tmp_path / "pictures/a/1.png")
    assert load("pictures").shape == (1, 6, 4)
    assert load("pictures", size=5).shape == (1, 5, 5)


def test_a_name_goes_before_a_folder(tmp_path):
    (tmp_path / "digits/a").mkdir(parents=True)
    Image.new("L", (4, 6)).save(tmp_path / "digits/a/1.png")
    assert len(load("digits")) == 1438
    assert len(load("./digits")) == 1


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ("mnst", SettingsError, "unknown data set 'mnst': did you mean mnist"),
        ("zzz", SettingsError, "known are balanced-labels, breast-cancer, cifar10, cifar100"),
        ("", SettingsError, "unknown data set ''"),
        ("data/mnst", DataError, r"data/mnst: no such file or folder; did you mean the data set mnist"),
        ("cifar.npz", DataError, r"cifar.npz: no such file or folder; did you mean the data set cifar10"),
        ("../zzz", DataError, r"no such file or folder; data sets by name are balanced-labels, breast-cancer"),
        ("~/zzz", DataError, "no such file or folder"),
    ],
)
def test_what_is_nowhere_gets_a_hint(data, kind, message):
    with pytest.raises(kind, match=message):
        load(data)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "table.xlsx").touch()
    with pytest.raises(DataError, match=r"table.xlsx: own data is an .npz file, a table \(.csv, .tsv, .parquet\), or"):
        load("table.xlsx")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("digits", {"size": 8}, "unknown option of the data set digits 'size'"),
        ("svhn", {"extra": "yes"}, "extra='yes': expected true or false"),
        ("svhn", {"extras": True}, "did you mean extra"),
        ("mine.npz", {"size": 8}, "unknown option of an .npz file 'size': known are kind, task"),
        (".", {"sizes": 8}, "did you mean size"),
    ],
)
@pytest.mark.usefixtures("own")
def test_unknown_options_are_refused(data, options, message):
    with pytest.raises(SettingsError, match=message):
        load(data, **options)


def test_limit_keeps_that_many_training_samples():
    data = load("digits", limit=100)
    assert len(data) == 100
    assert len(data.test) == 359
    assert data.x.tolist() == load("digits", limit=100).x.tolist()
    assert data.x.tolist() != load("digits", limit=100, seed=1).x.tolist()
    with pytest.raises(DataError, match="limit=5000"):
        load("digits", limit=5000)


def test_hold_out_makes_a_test_part_where_there_is_none(own):
    data = load(own, hold_out=0.2)
    assert (len(data), len(data.test)) == (16, 4)
    assert np.bincount(data.test.y).tolist() == [2, 2]
    assert load(own).test is None


def test_hold_out_is_refused_where_there_is_a_test_part():
    with pytest.raises(SettingsError, match=r"hold_out=0.5: digits has a test part already"):
        load("digits", hold_out=0.5)


def test_the_test_part_does_not_depend_on_the_limit(own):
    whole, part = load(own, hold_out=0.2), load(own, hold_out=0.2, limit=5)
    assert part.test.x.tolist() == whole.test.x.tolist()
    assert len(part) == 5


def test_the_folder_is_where_files_are_looked_for(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"no train-images.* in .*given"):
        load("mnist", folder=tmp_path / "given", download=False)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "variable"))
    with pytest.raises(DataError, match=r"no train-images.* in .*variable"):
        load("mnist", download=False)
    monkeypatch.delenv("COTERIE_DATA")
    with pytest.raises(DataError, match=r"no train-images.* in .*user-cache"):
        load("mnist", download=False)


def test_download_is_allowed_by_default(monkeypatch):
    seen = {}
    monkeypatch.setattr(MNIST, "read", lambda self, folder, download: seen.update(download=download) or load("digits"))
    load("mnist")
    assert seen == {"download": True}


def test_the_seed_reaches_a_data_set_that_picks(monkeypatch):
    seen = []
    monkeypatch.setattr(ImageNet32, "read", lambda self, folder, download: seen.append(self) or load("digits"))
    load("imagenet32", classes=40, seed=3)
    assert seen == [replace(ImageNet32(), classes=40, seed=3)]


def test_the_package_is_quick_to_import():
    """What only some data sets need is imported when they are read."""
    heavy = {"pooch", "requests", "PIL", "scipy.io", "sklearn"}
    code = f"import coterie.data, sys; print(*{heavy}.intersection(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(Path(loading.__file__).parents[2])}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
