"""Readers of published formats, on tiny files that are written here, whole and damaged."""

import gzip
import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from coterie.core.errors import DataError
from coterie.data import readers


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def images(*shape):
    return (np.arange(np.prod(shape)) * 37 % 251).astype(np.uint8).reshape(shape)


def written(path, content):
    path.write_bytes(content)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), packed=st.booleans())
def test_idx_gives_back_what_was_written(tmp_path, shape, packed):
    array = images(*shape)
    content = gzip.compress(idx(array)) if packed else idx(array)
    found = readers.read_idx(written(tmp_path / "array", content))
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), packed=st.booleans())
def test_idx_cut_anywhere_is_refused(tmp_path, data, packed):
    content = gzip.compress(idx(images(3, 2, 2))) if packed else idx(images(3, 2, 2))
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(DataError, match="images-file"):
        readers.read_idx(written(tmp_path / "images-file", content[:length]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(images(2, 2)) + b"\0", r"expected 4 bytes after the header, for 2 x 2; found more"),
        (idx(images(2, 2))[:-1], r"expected 4 bytes after the header, for 2 x 2; found 3"),
        (b"\0\0\x0d\x01\0\0\0\0", "magic number 000008..; found 00000d01"),
        (b"\0\0\x08\0", "magic number"),
        (b"PK\x03\x04 something else", "magic number"),
        (b"", "found nothing"),
        (b"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "found 0"),
        (gzip.compress(idx(images(9, 9)))[:-9] + b"\0\0\0\0\0\0\0\0\0", "cannot be read"),
    ],
)
def test_idx_of_another_kind_is_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        readers.read_idx(written(tmp_path / "file", content))


def test_a_missing_file_is_named(tmp_path):
    for read in (readers.read_idx, readers.read_svhn, lambda path: readers.read_cifar(path, 10)):
        with pytest.raises(DataError, match="nowhere"):
            read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="nowhere"):
        readers.read_leaf([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="nowhere"):
        readers.read_npz(tmp_path / "nowhere", ("x",))


def test_idx_images_and_labels_must_fit(tmp_path):
    x = written(tmp_path / "x", idx(images(3, 4, 5)))
    y = written(tmp_path / "y", idx(np.array([0, 9, 1])))
    found_x, found_y = readers.read_idx_pair(x, y, 10)
    assert found_x.shape == (3, 4, 5)
    assert found_y.tolist() == [0, 9, 1]
    with pytest.raises(DataError, match=r"y: expected labels from 0 to 8; found 0 to 9"):
        readers.read_idx_pair(x, y, 9)
    with pytest.raises(DataError, match=r"short: expected 3 labels"):
        readers.read_idx_pair(x, written(tmp_path / "short", idx(np.array([0, 1]))), 10)
    with pytest.raises(DataError, match=r"y: expected images"):
        readers.read_idx_pair(y, y, 10)
    with pytest.raises(DataError, match=r"x: expected labels"):
        readers.read_idx_pair(x, x, 10)


def cifar(pixels, *labels):
    return np.concatenate([*(np.array(column, np.uint8)[:, None] for column in labels), pixels], axis=1).tobytes()


def test_cifar10_has_one_label_byte(tmp_path):
    pixels = images(3, 3072)
    x, y = readers.read_cifar(written(tmp_path / "batch.bin", cifar(pixels, [4, 0, 9])), 10)
    np.testing.assert_array_equal(x, pixels.reshape(3, 3, 32, 32))
    assert y.tolist() == [4, 0, 9]


def test_cifar100_has_a_coarse_and_a_fine_label(tmp_path):
    pixels = images(3, 3072)
    x, y = readers.read_cifar(written(tmp_path / "train.bin", cifar(pixels, [19, 0, 19], [99, 5, 99])), 100)
    np.testing.assert_array_equal(x, pixels.reshape(3, 3, 32, 32))
    assert y.tolist() == [99, 5, 99]


@pytest.mark.parametrize(
    ("content", "classes", "message"),
    [
        (cifar(images(2, 3072), [1, 2])[:-1], 10, "expected a multiple of 3,073 bytes; found 6,145"),
        (cifar(images(2, 3072), [1, 2]) + b"\0", 10, "expected a multiple of 3,073 bytes; found 6,147"),
        (cifar(images(2, 3072), [1, 2]), 100, "expected a multiple of 3,074 bytes"),
        (b"", 10, "found 0"),
        (cifar(images(2, 3072), [1, 10]), 10, "expected labels from 0 to 9; found 1 to 10"),
        (cifar(images(2, 3072), [1, 20], [1, 2]), 100, "expected labels from 0 to 19"),
        (cifar(images(2, 3072), [1, 2], [1, 100]), 100, "expected labels from 0 to 99"),
        (cifar(images(2, 3072), [1, 2], [7, 7]), 100, "one superclass for each class"),
    ],
)
def test_other_cifar_files_are_refused(tmp_path, content, classes, message):
    with pytest.raises(DataError, match=message):
        readers.read_cifar(written(tmp_path / "batch.bin", content), classes)


def svhn(path, **changes):
    labels = np.array([[10], [1], [9]], np.uint8)
    savemat(path, {"X": images(32, 32, 3, 3), "y": labels} | changes, do_compression=True)
    return path


def test_svhn_counts_the_digit_0_as_10(tmp_path):
    pixels = images(32, 32, 3, 3)
    x, y = readers.read_svhn(svhn(tmp_path / "train_32x32.mat", X=pixels))
    assert y.tolist() == [0, 1, 9]
    assert x.shape == (3, 3, 32, 32)
    assert x[2, 1, 7, 30] == pixels[7, 30, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([[0], [1], [9]], np.uint8)}, "expected labels from 1 to 10; found 0 to 9"),
        ({"y": np.array([[1], [11], [9]], np.uint8)}, "expected labels from 1 to 10"),
        ({"y": np.array([[1], [2]], np.uint8)}, "expected 3 whole numbers as labels; found 2"),
        ({"y": np.array([[1.5], [2], [3]])}, "whole numbers"),
        ({"X": images(32, 32, 1, 3)}, "32 x 32 x 3 x samples"),
        ({"X": np.zeros((32, 32, 3, 3))}, "X of bytes"),
    ],
)
def test_other_svhn_files_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        readers.read_svhn(svhn(tmp_path / "train_32x32.mat", **changes))


def test_svhn_without_a_variable_is_refused(tmp_path):
    savemat(tmp_path / "test_32x32.mat", {"X": images(32, 32, 3, 1)})
    with pytest.raises(DataError, match="the variables X and y; found no y"):
        readers.read_svhn(tmp_path / "test_32x32.mat")


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.9, 0.99])
def test_svhn_cut_short_is_refused(tmp_path, share):
    content = svhn(tmp_path / "whole.mat").read_bytes()
    with pytest.raises(DataError, match=r"cut\.mat"):
        readers.read_svhn(written(tmp_path / "cut.mat", content[: int(share * len(content))]))


def leaf(path, writers, **changes):
    content = {
        "users": list(writers),
        "num_samples": [len(labels) for _, labels in writers.values()],
        "user_data": {name: {"x": (pixels / 255).tolist(), "y": labels} for name, (pixels, labels) in writers.items()},
    }
    path.write_text(json.dumps(content | changes))
    return path


def test_leaf_keeps_users_and_gives_bytes_back(tmp_path):
    ann, bob, eve = images(2, 784), images(1, 784), images(3, 784)
    first = leaf(tmp_path / "all_data_0.json", {"ann": (ann, [0, 61]), "bob": (bob, [5])})
    second = leaf(tmp_path / "all_data_1.json", {"eve-the-third": (eve, [1, 1, 2])})
    x, y, users = readers.read_leaf([first, second])
    np.testing.assert_array_equal(x, np.concatenate([ann, bob, eve]).reshape(-1, 28, 28))
    assert x.dtype == np.uint8
    assert y.tolist() == [0, 61, 5, 1, 1, 2]
    assert users.tolist() == ["ann", "ann", "bob", "eve-the-third", "eve-the-third", "eve-the-third"]


def test_leaf_users_who_were_left_out_are_left_out(tmp_path):
    writers = {"ann": (images(2, 784), [0, 1]), "bob": (images(0, 784), [])}
    path = leaf(tmp_path / "data.json", writers, users=["ann"], num_samples=[2])
    assert readers.read_leaf([path])[2].tolist() == ["ann", "ann"]


def test_leaf_users_without_samples_do_no_harm(tmp_path):
    path = leaf(tmp_path / "data.json", {"bob": (images(0, 784), []), "ann": (images(2, 784), [0, 1])})
    assert readers.read_leaf([path])[2].tolist() == ["ann", "ann"]


def test_leaf_files_of_two_runs_are_refused(tmp_path):
    first = leaf(tmp_path / "first.json", {"ann": (images(1, 784), [0])})
    second = leaf(tmp_path / "second.json", {"ann": (images(1, 784), [0])})
    with pytest.raises(DataError, match=r"second.json: user 'ann' is also in first.json"):
        readers.read_leaf([first, second])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": [3]}, "expected 3 samples of user 'ann'; found x of 2 x 784 and y of 2"),
        ({"num_samples": [2, 2]}, "as many num_samples as users"),
        ({"users": ["bob"]}, "user 'bob' has no proper x and y"),
        ({"user_data": {"ann": {"x": [[0.5] * 783] * 2, "y": [0, 1]}}}, "784 pixels in each image of user 'ann'"),
        ({"user_data": {"ann": {"x": [[0.5] * 784, [0.5]], "y": [0, 1]}}}, "no proper x and y"),
        ({"user_data": {"ann": {"x": [[1.5] * 784] * 2, "y": [0, 1]}}}, "from 0 to 1; found 1.5 to 1.5"),
        ({"user_data": {"ann": {"x": [[float("nan")] * 784] * 2, "y": [0, 1]}}}, "from 0 to 1"),
        ({"user_data": {"ann": {"x": [[0.5] * 784] * 2, "y": [0, 62]}}}, "labels from 0 to 61; found 0 to 62"),
        ({"user_data": {"ann": {"x": [[0.5] * 784] * 2, "y": [0, 0.5]}}}, "whole numbers"),
        ({"user_data": {"ann": {"x": 7, "y": 7}}}, "expected 2 samples"),
        ({"user_data": {"ann": 7}}, "no proper x and y"),
        ({"user_data": 7}, "no proper x and y"),
        ({"users": [], "num_samples": []}, "no samples"),
    ],
)
def test_other_leaf_files_are_refused(tmp_path, changes, message):
    path = leaf(tmp_path / "data.json", {"ann": (images(2, 784), [0, 1])}, **changes)
    with pytest.raises(DataError, match=rf"data.json.*{message}"):
        readers.read_leaf([path])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"users": ["ann"', "JSON"), (b"\xff\xfe", "JSON"), (b"[]", "found list"), (b'{"users": []}', "found no num_")],
)
def test_other_json_files_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        readers.read_leaf([written(tmp_path / "data.json", content)])


def batch(path, **changes):
    content = {"data": images(3, 3072), "labels": np.array([1, 1000, 7]), "mean": np.zeros(3072)} | changes
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path


def test_imagenet32_labels_start_at_1(tmp_path):
    pixels = images(3, 3072)
    path = batch(tmp_path / "train_data_batch_1.npz", data=pixels)
    x, y = readers.read_imagenet32(path)
    np.testing.assert_array_equal(x, pixels.reshape(3, 3, 32, 32))
    assert y.tolist() == [0, 999, 6]
    assert readers.read_imagenet32_labels(path).tolist() == [0, 999, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([0, 1, 2])}, "labels from 1 to 1000; found 0 to 2"),
        ({"labels": np.array([1, 1001, 2])}, "labels from 1 to 1000"),
        ({"labels": np.array([1.0, 2.0, 3.0])}, "whole numbers"),
        ({"labels": np.array([1, 2])}, "expected data of bytes, 2 x 3072; found uint8, 3 x 3072"),
        ({"data": images(3, 3071)}, "3 x 3071"),
        ({"data": np.zeros((3, 3072))}, "found float64"),
        ({"labels": None}, "no labels"),
        ({"data": None}, "no data"),
        ({"labels": np.array([1, None, 2], dtype=object)}, "cannot be read"),
    ],
)
def test_other_imagenet32_files_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        readers.read_imagenet32(batch(tmp_path / "val_data.npz", **changes))


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_npz_cut_short_is_refused(tmp_path, share):
    content = batch(tmp_path / "whole.npz").read_bytes()
    with pytest.raises(DataError, match=r"cut.npz"):
        readers.read_imagenet32(written(tmp_path / "cut.npz", content[: int(share * len(content))]))


def test_npz_with_a_flipped_bit_is_refused(tmp_path):
    content = bytearray(batch(tmp_path / "whole.npz").read_bytes())
    content[5000] ^= 1  # among the pixels
    with pytest.raises(DataError, match=r"bad.npz"):
        readers.read_imagenet32(written(tmp_path / "bad.npz", bytes(content)))


def test_npz_names_are_checked(tmp_path):
    path = batch(tmp_path / "file.npz")
    assert set(readers.read_npz(path, ("data",))) == {"data"}
    with pytest.raises(DataError, match=r"expected arrays named x; found data, labels, mean, no x$"):
        readers.read_npz(path, ("x",))
    with pytest.raises(DataError, match=r"expected only data, labels; found mean"):
        readers.read_npz(path, ("data",), ("labels",))


def test_a_single_array_is_not_an_npz_file(tmp_path):
    np.save(tmp_path / "file.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"expected an .npz file"):
        readers.read_npz(tmp_path / "file.npy", ("x",))
