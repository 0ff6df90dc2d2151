"""Small stand-ins for published data sets: files in the real formats, with few images that mean nothing."""

import gzip
import json
import struct
from dataclasses import replace

import numpy as np
from scipy.io import savemat

from coterie.data import sources

FILES_OF = {
    "mnist": ("train", "t10k", ""),
    "fashion-mnist": ("train", "t10k", ""),
    "emnist": ("emnist-byclass-train", "emnist-byclass-test", ".gz"),
}
"""How the idx files of a data set begin, those of its training and of its test part, and how they end."""


def anything(file):
    """The same published file, but of any size and content."""
    return replace(file, size=None, checksum="", unpacked=file.unpacked and anything(file.unpacked))


def accept(monkeypatch, source, attribute="published"):
    """Let a source take stand-ins for its files."""
    collection = getattr(source, attribute)
    monkeypatch.setattr(source, attribute, replace(collection, files=tuple(map(anything, collection.files))))


def images(*shape):
    """Bytes that are not all alike."""
    return (np.arange(np.prod(shape)) * 37 % 251).astype(np.uint8).reshape(shape)


def put(folder, contents):
    """Write files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def idx(array):
    """An array as MNIST's files have it."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def cifar(pixels, *labels):
    """Images [image, 3072] as CIFAR's binary files have them, behind one column of labels or two."""
    return np.concatenate([*(np.array(column, np.uint8)[:, None] for column in labels), pixels], axis=1).tobytes()


def leaf(writers):
    """The labels of each writer as LEAF's files have them, with images."""
    content = {
        "users": list(writers),
        "num_samples": list(map(len, writers.values())),
        "user_data": {
            name: {"x": (images(len(labels), 784) / 255).tolist(), "y": labels} for name, labels in writers.items()
        },
    }
    return json.dumps(content).encode()


def stand_in(folder, name, train=12, test=4):
    """Files of a published data set in a folder, with so many images of every class; only 60 classes of ImageNet32."""
    classes = 60 if name == "imagenet32" else len(sources[name].labels)
    y, test_y = (np.tile(np.arange(classes), count) for count in (train, test))
    _WRITERS[name](folder, name, y, test_y)


def _idx_files(folder, name, y, test_y):
    *parts, ending = FILES_OF[name]
    contents = {}
    for part, labels in zip(parts, (y, test_y), strict=True):
        contents[f"{part}-images-idx3-ubyte"] = idx(images(len(labels), 28, 28))
        contents[f"{part}-labels-idx1-ubyte"] = idx(labels)
    if ending:
        contents = {file + ending: gzip.compress(content, 1) for file, content in contents.items()}
    put(folder / sources[name].published.layouts[0], contents)


def _cifar10_files(folder, name, y, test_y):
    parts = {f"data_batch_{number + 1}.bin": y[number::5] for number in range(5)} | {"test_batch.bin": test_y}
    put(
        folder / "cifar-10-batches-bin",
        {file: cifar(images(len(labels), 3072), labels) for file, labels in parts.items()},
    )


def _cifar100_files(folder, name, y, test_y):
    parts = {"train.bin": y, "test.bin": test_y}
    contents = {file: cifar(images(len(labels), 3072), labels // 5, labels) for file, labels in parts.items()}
    put(folder / "cifar-100-binary", contents)


def _svhn_files(folder, name, y, test_y):
    (folder / "SVHN").mkdir(parents=True)
    for part, labels in {"train": y, "test": test_y}.items():
        written = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / "SVHN" / f"{part}_32x32.mat", {"X": images(32, 32, 3, len(labels)), "y": written})


def _femnist_files(folder, name, y, test_y):
    for part, labels in {"train": y, "test": test_y}.items():
        writers = {f"f{number:04}": labels[number::7].tolist() for number in range(7)}
        put(folder / "femnist/data" / part, {"all_data_0.json": leaf(writers)})


def _imagenet32_files(folder, name, y, test_y):
    (folder / "imagenet32").mkdir(parents=True)
    parts = {f"train_data_batch_{number + 1}": y[number::10] for number in range(10)} | {"val_data": test_y}
    for file, labels in parts.items():
        batch = {"data": images(len(labels), 3072), "labels": labels + 1, "mean": np.zeros(3072)}
        np.savez(folder / "imagenet32" / f"{file}.npz", **batch)


_WRITERS = {
    **dict.fromkeys(FILES_OF, _idx_files),
    "cifar10": _cifar10_files,
    "cifar100": _cifar100_files,
    "svhn": _svhn_files,
    "femnist": _femnist_files,
    "imagenet32": _imagenet32_files,
}
