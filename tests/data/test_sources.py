"""The catalogue, on tiny files in the published formats."""

import gzip
import hashlib
import inspect
import json
import re
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.io import savemat

from coterie.core.errors import DataError, SettingsError
from coterie.core.registry import first_line, options
from coterie.data import sources, split_rules, storage
from coterie.data.sources import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    FEMNIST,
    MNIST,
    SVHN,
    BalancedLabels,
    Digits,
    FashionMNIST,
    ImageNet32,
    Shakespeare,
)
from support import published_files
from support.published_files import cifar, idx, images, leaf, put

SUM = re.compile(r"(md5:[0-9a-f]{32}|sha1:[0-9a-f]{40}|sha256:[0-9a-f]{64})?")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "user-cache" / name))


@pytest.fixture
def tiny(monkeypatch):
    """Let a source accept files of any size and content."""

    return partial(published_files.accept, monkeypatch)


@pytest.mark.parametrize("name", list(sources))
def test_every_entry_knows_all_about_itself(name):
    source = sources[name]
    assert source.name == name == source.published.name
    assert first_line(source).endswith(")")
    assert inspect.getdoc(source.read)
    assert all(size > 0 for size in source.shape)
    assert len(set(source.labels)) == len(source.labels) >= (1 if source.task == "regression" else 2)
    assert source.net
    assert source.terms
    assert source.published.source
    assert all(option.help for option in options(source))


@pytest.mark.parametrize("name", list(sources))
def test_every_published_file_can_be_judged(name):
    collection = sources[name].published
    forms = [*collection.files, *(file.unpacked for file in collection.files if file.unpacked)]
    for file in [*forms, *(item.file for item in collection.downloads)]:
        assert SUM.fullmatch(file.checksum)
    for item in collection.downloads:
        assert item.file.checksum
        assert item.urls
        assert all(re.match(r"https?://", url) and url.endswith(item.file.name) for url in item.urls)
        assert item.into in collection.layouts
    assert {file for item in collection.downloads for file in item.supplies} == set(collection.files)


def test_the_networks_are_those_of_the_papers():
    assert {name: sources[name].net for name in sources} == {
        "balanced-labels": "logistic",
        "breast-cancer": "mlp",
        "cifar10": "lenet5",
        "cifar100": "resnet9",
        "diabetes": "mlp",
        "digits": "cnn",
        "emnist": "cfic-emnist",
        "fashion-mnist": "cnn-16-32",
        "femnist": "cfic-emnist",
        "imagenet32": "resnet18",
        "mnist": "cnn-20-50",
        "shakespeare": "gru",
        "svhn": "lenet5",
        "uci-har": "cnn-1d",
        "waves": "cnn-1d",
        "wine": "mlp",
    }


@pytest.mark.parametrize("there", [True, False], ids=["its file", "itself"])
def test_digits_are_those_of_scikit_learn(there, monkeypatch):
    from sklearn.datasets import load_digits

    module = sys.modules[Digits.__module__]
    if not there:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    images, labels = module._digits()
    assert np.array_equal(images, load_digits().images)
    assert np.array_equal(labels, load_digits().target)


def test_balanced_labels_are_as_many_as_those_of_cifar10(tmp_path):
    data = BalancedLabels().read(tmp_path / "nowhere", download=False)
    assert np.bincount(data.y).tolist() == [5000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    assert data.shape == BalancedLabels.shape
    assert not data.x.any()


def test_digits_need_no_files(tmp_path):
    data = Digits().read(tmp_path / "nowhere", download=False)
    assert (len(data), len(data.test)) == (1438, 359)
    assert data.shape == Digits.shape
    assert data.x.dtype == np.uint8
    assert set(np.unique(data.x)) <= {round(level * 255 / 16) for level in range(17)}
    assert data.x.max() == 255
    assert np.bincount(data.test.y).min() >= 34  # a fifth of the rarest class, 174 images


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_and_its_like(tmp_path, tiny, source, packed):
    tiny(source)
    x, test_x = images(5, 28, 28), images(2, 28, 28)[::-1]
    contents = {
        "train-images-idx3-ubyte": idx(x),
        "train-labels-idx1-ubyte": idx(np.array([5, 0, 4, 1, 9])),
        "t10k-images-idx3-ubyte": idx(test_x),
        "t10k-labels-idx1-ubyte": idx(np.array([7, 2])),
    }
    if packed:
        contents = {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}
    put(tmp_path / source.published.layouts[0], contents)
    data = source().read(tmp_path, download=False)
    np.testing.assert_array_equal(data.x[:, 0], x)
    np.testing.assert_array_equal(data.test.x[:, 0], test_x)
    assert data.y.tolist() == [5, 0, 4, 1, 9]
    assert data.test.y.tolist() == [7, 2]
    assert data.labels == data.test.labels == source.labels
    assert data.name == source.name


@pytest.mark.parametrize(
    ("source", "name"), [(MNIST, "train-images-idx3-ubyte"), (CIFAR10, "data_batch_1.bin"), (SVHN, "train_32x32.mat")]
)
def test_a_file_that_is_not_the_published_one_is_refused(tmp_path, source, name):
    put(tmp_path, {name: idx(images(2, 28, 28))})
    with pytest.raises(DataError, match=rf"{name}: expected [\d,]+ bytes, found 1,584"):
        source().read(tmp_path, download=False)


def test_emnist_images_are_put_upright(tmp_path, tiny):
    tiny(EMNIST)
    x = images(3, 28, 28)
    put(
        tmp_path / "emnist",
        {
            "emnist-byclass-train-images-idx3-ubyte.gz": gzip.compress(idx(x)),
            "emnist-byclass-train-labels-idx1-ubyte.gz": gzip.compress(idx(np.array([0, 61, 36]))),
            "emnist-byclass-test-images-idx3-ubyte.gz": gzip.compress(idx(x[:1])),
            "emnist-byclass-test-labels-idx1-ubyte.gz": gzip.compress(idx(np.array([10]))),
        },
    )
    data = EMNIST().read(tmp_path, download=False)
    assert data.x[1, 0, 3, 20] == x[1, 20, 3]
    assert data.test.x[0, 0, 3, 20] == x[0, 20, 3]
    assert [data.labels[label] for label in data.y] == ["0", "z", "a"]
    assert data.labels[data.test.y[0]] == "A"


def test_cifar10_joins_its_batches_in_order(tmp_path, tiny):
    tiny(CIFAR10)
    pixels = images(12, 3072)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    batches = {name: cifar(pixels[2 * place :][:2], [place, 9]) for place, name in enumerate(names)}
    put(tmp_path / "cifar-10-batches-bin", batches)
    data = CIFAR10().read(tmp_path, download=False)
    np.testing.assert_array_equal(data.x.reshape(10, -1), pixels[:10])
    assert data.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert data.test.y.tolist() == [5, 9]


def test_cifar100_uses_the_fine_labels(tmp_path, tiny):
    tiny(CIFAR100)
    put(
        tmp_path / "cifar-100-binary",
        {"train.bin": cifar(images(2, 3072), [11, 4], [19, 0]), "test.bin": cifar(images(1, 3072), [14], [98])},
    )
    data = CIFAR100().read(tmp_path, download=False)
    assert [data.labels[label] for label in data.y] == ["cattle", "apple"]
    assert data.labels[data.test.y[0]] == "woman"
    assert data.classes == 100


def test_svhn_with_and_without_the_extra_images(tmp_path, tiny):
    tiny(SVHN)
    tiny(SVHN, "published_extra")
    for name, labels in {"train": [10, 1], "test": [2], "extra": [3, 4, 5]}.items():
        content = {"X": images(32, 32, 3, len(labels)), "y": np.array(labels, np.uint8)[:, None]}
        savemat(tmp_path / f"{name}_32x32.mat", content)
    assert SVHN().read(tmp_path, download=False).y.tolist() == [0, 1]
    more = SVHN(extra=True).read(tmp_path, download=False)
    assert more.y.tolist() == [0, 1, 3, 4, 5]
    assert more.test.y.tolist() == [2]
    assert more.shape == SVHN.shape


@pytest.mark.parametrize("place", ["femnist/data", "leaf/data/femnist/data", "femnist", "data", ""])
def test_femnist_keeps_its_users(tmp_path, place):
    put(tmp_path / place / "train", {"a_0.json": leaf({"ann": [0, 61]}), "a_1.json": leaf({"bob": [36]})})
    put(tmp_path / place / "test", {"a_0.json": leaf({"ann": [1]}), "a_1.json": leaf({"bob": [2]})})
    data = FEMNIST().read(tmp_path, download=False)
    assert data.users.tolist() == ["ann", "ann", "bob"]
    assert data.test.users.tolist() == ["ann", "bob"]
    assert data.y.tolist() == [0, 61, 36]
    assert data.shape == FEMNIST.shape
    assert FEMNIST(test_part=False).read(tmp_path, download=False).test is None


def test_femnist_says_how_to_make_its_files(tmp_path):
    with pytest.raises(DataError, match=r"train/\*\.json in .*preprocess.sh"):
        FEMNIST().read(tmp_path, download=True)
    put(tmp_path / "femnist/data/train", {"a_0.json": leaf({"ann": [0]})})
    with pytest.raises(DataError, match=r"test/\*\.json"):
        FEMNIST().read(tmp_path, download=True)


@pytest.mark.parametrize(
    ("name", "rows", "inputs", "outputs", "task"),
    [
        ("breast-cancer", 569, 30, 2, "binary"),
        ("wine", 178, 13, 3, "classification"),
        ("diabetes", 442, 10, 1, "regression"),
    ],
)
def test_tables_of_scikit_learn_are_as_they_were_measured(tmp_path, name, rows, inputs, outputs, task):
    from sklearn import datasets

    data = sources[name]().read(tmp_path / "nowhere", download=False)
    assert len(data) + len(data.test) == rows
    assert abs(len(data.test) - 0.2 * rows) < 1
    assert (data.shape, data.classes, data.task, data.kind) == ((inputs,), outputs, task, "features")
    assert (data.labels, data.shape) == (sources[name].labels, sources[name].shape)
    assert data.schema.target not in data.schema.inputs
    told = {"scaled": False} if name == "diabetes" else {}
    theirs = getattr(datasets, f"load_{name.replace('-', '_')}")(**told)
    ours, rest = np.concatenate([data.x, data.test.x]), np.concatenate([data.y, data.test.y]).ravel()
    named = theirs.target if task == "regression" else theirs.target_names[theirs.target]
    told = rest if task == "regression" else np.array(data.labels)[rest]
    if name == "wine":
        named, told = theirs.target, rest
    pairs = sorted(zip(ours[:, :2].tolist(), told.tolist(), strict=True))
    assert pairs == sorted(zip(theirs.data[:, :2].astype(np.float32).tolist(), named.tolist(), strict=True))


def test_waves_are_the_same_each_time_and_devices_differ(tmp_path):
    data, again = (sources["waves"]().read(tmp_path, download=False) for _ in range(2))
    assert data.checksum == again.checksum
    assert (data.kind, data.shape, len(data), len(data.test)) == ("series", (48, 2), 1600, 400)
    assert np.bincount(data.y).min() > 350
    devices = np.unique(data.users)
    assert len(devices) == 20
    loud = [data.x[data.users == device].std() for device in devices]
    assert max(loud) > 2 * min(loud)
    assert len(split_rules["natural"]().split(data)) == 20


LETTERS = sources["shakespeare"].labels


def play(roles):
    """Texts by role as LEAF's files have them: what was said, and the letter behind it."""
    data = {name: {"x": [text for text, _ in said], "y": [y for _, y in said]} for name, said in roles.items()}
    counts = list(map(len, roles.values()))
    return json.dumps({"users": list(roles), "num_samples": counts, "user_data": data}).encode()


def test_shakespeare_is_texts_by_role(tmp_path, caplog):
    text = "The raven himself is hoarse\nThat croaks the fatal entrance of Duncan under my ba"
    assert len(text) == 80
    put(tmp_path / "shakespeare/data/train", {"a.json": play({"LADY": [(text, "t"), (text[:79] + "é", " ")]})})
    put(tmp_path / "shakespeare/data/test", {"a.json": play({"LADY": [(text, "\n")], "KING": [(text, "é")]})})
    data = Shakespeare().read(tmp_path, download=False)
    assert (data.kind, data.shape, data.classes, data.vocabulary) == ("tokens", (80,), 80, 82)
    assert [data.labels[place] for place in data.y] == ["t", "space"]
    assert "".join(LETTERS[one - 1] if LETTERS[one - 1] not in ("space", "newline") else " " for one in data.x[0]) == (
        text.replace("\n", " ")
    )
    assert data.x[1, -1] == 81
    assert data.x.min() > 0  # 0 fills up
    assert [data.labels[place] for place in data.test.y] == ["newline"]
    assert "1 of 2 texts left out: the letter behind them is unknown" in caplog.text
    assert Shakespeare(test_part=False).read(tmp_path, download=False).test is None


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"LADY": [("too short", "t")]}, "texts of 80 letters of user 'LADY'"),
        ({"LADY": [("x" * 80, "two")]}, "one letter behind each"),
        ({"LADY": [(7, "t")]}, "texts of user 'LADY'"),
        ({}, "no samples"),
    ],
)
def test_other_plays_are_refused(tmp_path, roles, message):
    put(tmp_path / "shakespeare/data/train", {"a.json": play(roles)})
    with pytest.raises(DataError, match=rf"a\.json.*{message}"):
        Shakespeare(test_part=False).read(tmp_path, download=False)


def test_shakespeare_says_how_to_make_its_files(tmp_path):
    with pytest.raises(DataError, match=r"train/\*\.json in .*preprocess.sh"):
        Shakespeare(test_part=False).read(tmp_path, download=True)


SIGNALS = [f"{what}_{axis}" for what in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


def phones(folder, **changes):
    """The published folder with 5 samples of persons 1 and 3, and 2 of person 2 to test with."""
    for part, people in {"train": [1, 1, 3, 3, 3], "test": [2, 2]}.items():
        rows = len(people)
        files = {f"y_{part}.txt": np.arange(rows)[:, None] % 6 + 1, f"subject_{part}.txt": np.array(people)[:, None]}
        files[f"X_{part}.txt"] = np.arange(rows * 561).reshape(rows, 561) / 1e3
        for number, signal in enumerate(SIGNALS):
            files[f"Inertial Signals/{signal}_{part}.txt"] = number + np.arange(rows * 128).reshape(rows, 128) / 1e4
        for name, numbers in {**files, **{key: value for key, value in changes.items() if key in files}}.items():
            path = folder / "UCI HAR Dataset" / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, numbers, fmt=" % .7e" if "y_" not in name[:2] else "%d")


def test_har_is_series_by_person(tmp_path):
    phones(tmp_path)
    data = sources["uci-har"]().read(tmp_path, download=False)
    assert (data.kind, data.shape, len(data), len(data.test)) == ("series", (128, 9), 5, 2)
    assert data.users.tolist() == ["1", "1", "3", "3", "3"]
    assert [data.labels[place] for place in data.y] == list(data.labels[:5])
    assert data.x[2, 7].tolist() == pytest.approx([number + (2 * 128 + 7) / 1e4 for number in range(9)])
    everybody = sources["uci-har"](test_part=False).read(tmp_path, download=False)
    assert (everybody.test, len(everybody), set(everybody.users.tolist())) == (None, 7, {"1", "2", "3"})
    features = sources["uci-har"](inputs="features").read(tmp_path, download=False)
    assert (features.kind, features.shape) == ("features", (561,))
    assert features.x[1, 3] == pytest.approx(0.564)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject_train.txt": np.ones((4, 1))}, "subject_train.txt: expected 5 rows, as many as y_train.txt has"),
        ({"y_train.txt": np.full((5, 1), 7)}, "y_train.txt: expected labels from 1 to 6; found 7.0 to 7.0"),
        ({"Inertial Signals/body_gyro_y_train.txt": np.ones((5, 127))}, "body_gyro_y_train.txt: expected rows of 128"),
        ({"Inertial Signals/body_gyro_y_train.txt": np.full((5, 128), np.nan)}, "finite numbers; found 640 others"),
    ],
)
def test_other_har_files_are_refused(tmp_path, changes, message):
    phones(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        sources["uci-har"]().read(tmp_path, download=False)


def test_har_says_where_it_is_from(tmp_path):
    with pytest.raises(DataError, match=r"train/y_train.txt in .*is to be unpacked by hand.*archive.ics.uci.edu"):
        sources["uci-har"]().read(tmp_path, download=True)


@pytest.fixture
def imagenet(tmp_path):
    """Ten batches of five images. Of the classes 1 to 20, the even ones have four training images, the odd ones one."""
    frequent, rare = np.arange(2, 21, 2), np.arange(1, 20, 2)
    labels = np.concatenate([np.repeat(frequent, 4), rare])
    for number in range(10):
        batch = {"data": images(5, 3072), "labels": labels[number::10]}
        np.savez(tmp_path / f"train_data_batch_{number + 1}.npz", **batch, mean=np.zeros(3072))
    np.savez(tmp_path / "val_data.npz", data=images(20, 3072), labels=np.arange(1, 21))
    return tmp_path


def test_imagenet32_has_all_classes_by_default(imagenet):
    data = ImageNet32().read(imagenet, download=False)
    assert (len(data), len(data.test), data.classes) == (50, 20, 1000)
    assert data.labels[data.y[0]] == "2"
    np.testing.assert_array_equal(data.x[5:10].reshape(5, -1), images(5, 3072))


def test_imagenet32_picks_classes_with_enough_images(imagenet):
    data = ImageNet32(classes=6, images=4).read(imagenet, download=False)
    assert data.classes == 6
    assert all(int(label) % 2 == 0 for label in data.labels)
    assert np.bincount(data.y).tolist() == [4] * 6
    assert np.bincount(data.test.y).tolist() == [1] * 6
    numbers = [int(label) for label in data.labels]
    assert numbers == sorted(numbers)


def test_imagenet32_keeps_image_and_label_together(imagenet):
    everything = ImageNet32().read(imagenet, download=False)
    some = ImageNet32(classes=3, images=4).read(imagenet, download=False)
    kept = [everything.labels[label] in some.labels for label in everything.y]
    np.testing.assert_array_equal(some.x, everything.x[kept])
    assert [some.labels[y] for y in some.y] == [everything.labels[y] for y in everything.y[kept]]


def test_imagenet32_depends_on_its_seed_alone(imagenet):
    picks = [ImageNet32(classes=3, images=4, seed=seed).read(imagenet, download=False).labels for seed in (0, 0, 1, 2)]
    assert picks[0] == picks[1]
    assert len(set(picks)) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 0}, "classes=0: from 1 to 1000"),
        ({"classes": 1001}, "classes=1001: from 1 to 1000"),
        ({"classes": 11, "images": 4}, "classes=11: only 10 have at least 4 training images"),
        ({"classes": 10}, "only 0 have at least 1000"),
    ],
)
def test_imagenet32_refuses_what_cannot_be_picked(imagenet, settings, message):
    with pytest.raises(SettingsError, match=message):
        ImageNet32(**settings).read(imagenet, download=False)


def test_a_source_downloads_what_it_lacks(tmp_path, monkeypatch):
    def sent(name, array):
        content = gzip.compress(idx(array), mtime=0)
        answers[f"http://a/{name}"] = content
        file = storage.PublishedFile(name, len(content), f"md5:{hashlib.md5(content).hexdigest()}")
        return storage.Download(file, (f"http://a/{name}",), "MNIST/raw")

    answers: dict[str, bytes] = {}
    downloads = (
        sent("train-images.gz", images(3, 28, 28)),
        sent("train-labels.gz", np.array([0, 1, 2])),
        sent("test-images.gz", images(1, 28, 28)),
        sent("test-labels.gz", np.array([3])),
    )
    files = tuple(item.file for item in downloads)
    monkeypatch.setattr(MNIST, "published", replace(MNIST.published, files=files, downloads=downloads))
    monkeypatch.setattr(storage, "_retrieve", lambda url, path: path.write_bytes(answers[url]))
    data = MNIST().read(tmp_path, download=True)
    assert data.y.tolist() == [0, 1, 2]
    assert (tmp_path / "MNIST/raw/test-labels.gz").exists()
    answers.clear()
    assert MNIST().read(tmp_path, download=True).test.y.tolist() == [3]
