"""Readers of published file formats.

Each takes a path and gives arrays. A file that is truncated, too long or otherwise not what its format promises raises
a `DataError` that names it; nothing is ever half-read, and nothing is ever unpickled.
"""

import gzip
import json
import logging
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from coterie.core.errors import DataError

log = logging.getLogger("coterie")

_COLOUR = (3, 32, 32)
_COLOUR_BYTES = math.prod(_COLOUR)
_COARSE_CLASSES = 20  # of CIFAR-100
_FAILURES: tuple[type[Exception], ...] = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)


@contextmanager
def reading(path: object, kind: str = "", *more: type[Exception]) -> Iterator[None]:
    """Turn what fails while a file is read into an error that names the file and the kind that it should be of.

    What is meant are the failures of Python's and NumPy's readers, and `more` that another library has.
    """
    try:
        yield
    except _FAILURES + more as error:
        raise DataError(f"{path}: cannot be read{kind and f' as {kind}'} ({error})") from error


def read_idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes in the idx format of MNIST, plain or gzipped."""
    with reading(path), _opened(path) as stream:
        shape = _idx_shape(path, stream)
        expected = math.prod(shape)
        content = _read(stream, expected + 1)
    if len(content) != expected:
        found = "more" if len(content) > expected else f"{len(content):,}"
        _refuse(path, f"{expected:,} bytes after the header, for {_times(shape)}", found)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, height, width] and their labels [sample], from two idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3:
        _refuse(images, "images, an idx file of 3 dimensions", f"{x.ndim}")
    if y.ndim != 1:
        _refuse(labels, "labels, an idx file of 1 dimension", f"{y.ndim}")
    if len(x) != len(y):
        _refuse(labels, f"{len(x):,} labels, as many as {images.name} has images", f"{len(y):,}")
    return x, _within(labels, y, 0, classes - 1)


def read_cifar(path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, 3, 32, 32] and labels of a file of CIFAR's binary version.

    CIFAR-10 has one label byte before the pixels. CIFAR-100 has two, of which the second is the class.
    """
    label_bytes = 2 if classes == 100 else 1
    record = label_bytes + _COLOUR_BYTES
    with reading(path):
        content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % record:
        _refuse(path, f"a multiple of {record:,} bytes", f"{len(content):,}")
    rows = content.reshape(-1, record)
    if label_bytes == 2:
        _check_coarse(path, rows[:, 0], rows[:, 1])
    y = _within(path, rows[:, label_bytes - 1], 0, classes - 1)
    return rows[:, label_bytes:].reshape(-1, *_COLOUR), y


def read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, 3, 32, 32] and labels of a file of SVHN's format 2, cropped digits."""
    from scipy.io import loadmat

    with reading(path, "a MATLAB file", Exception):  # scipy raises a dozen kinds for a file that is cut off
        content = loadmat(path, variable_names=("X", "y"))
    if missing := {"X", "y"} - set(content):
        _refuse(path, "the variables X and y", f"no {' and no '.join(sorted(missing))}")
    x, y = content["X"], content["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        _refuse(path, "X of bytes, 32 x 32 x 3 x samples", f"{x.dtype}, {_times(x.shape)}")
    if len(y) != x.shape[3] or not np.issubdtype(y.dtype, np.integer):
        _refuse(path, f"{x.shape[3]:,} whole numbers as labels", f"{len(y):,}, {y.dtype}")
    # The digit 0 is published as label 10.
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), _within(path, y, 1, 10) % 10


def read_leaf(paths: Sequence[Path], classes: int = 62) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images [sample, 28, 28], labels and users [sample] from all files of the training or test part of LEAF's FEMNIST.

    LEAF divides bytes by 255 and writes them as decimals; here they are bytes again.
    """
    return _leaf_part(paths, lambda path, user, data, count: _leaf_images(path, user, data, count, classes))


def read_leaf_text(paths: Sequence[Path], letters: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts [sample, 80] as ids, the letter behind each, and users, from all files of a part of LEAF's Shakespeare.

    An id is the place of a letter in `letters`, counted from 1, or the next number for any other letter: 0 stands for
    nothing. A text is left out, with a warning, if the letter behind it is none of these.
    """
    x, y, users = _leaf_part(paths, lambda path, user, data, count: _leaf_texts(path, user, data, count, letters))
    known = y < len(letters)
    if not known.all():
        log.warning("%s: %d of %d texts left out: the letter behind them is unknown", paths[0], (~known).sum(), len(y))
    return x[known], y[known], users[known]


def _leaf_part(
    paths: Sequence[Path], samples: Callable[[Path, str, Any, int], tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels and users from all files of a part; `samples` reads those of a user."""
    home: dict[str, Path] = {}
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for path in paths:
        for user, x, y in _leaf_users(path, samples):
            if user in home:
                raise DataError(f"{path}: user {user!r} is also in {home[user].name}; keep one run's files")
            home[user] = path
            parts.append((x, y, np.full(len(y), user)))
    if not sum(len(y) for _, y, _ in parts):
        raise DataError(f"{', '.join(map(str, paths)) or 'no files'}: no samples")
    inputs, labels, users = zip(*(part for part in parts if len(part[1])), strict=True)
    return np.concatenate(inputs), np.concatenate(labels), np.concatenate(users)


def read_numbers(path: Path, columns: int) -> np.ndarray:
    """Numbers [row, column] of a text file with blanks between them, as UCI's HAR data has them."""
    with reading(path, "rows of numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty file is refused below
        found = np.loadtxt(path, dtype=np.float32, ndmin=2)
    if found.shape[1] != columns or not len(found):
        _refuse(path, f"rows of {columns} numbers", _times(found.shape))
    if not np.isfinite(found).all():
        _refuse(path, "finite numbers", f"{(~np.isfinite(found)).sum()} others")
    return found


def read_har(folder: Path, part: str, signals: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels from 0 on, and people of a part, `train` or `test`, of UCI's data about human activities.

    With `signals`, inputs are series [sample, 128, signal] of these; without any the 561 published features.
    """
    place = folder / part
    y = read_numbers(place / f"y_{part}.txt", 1)[:, 0]
    users = read_numbers(place / f"subject_{part}.txt", 1)[:, 0]
    if signals:
        files = [place / "Inertial Signals" / f"{signal}_{part}.txt" for signal in signals]
        found = [read_numbers(file, 128) for file in files]
    else:
        files = [place / f"X_{part}.txt"]
        found = [read_numbers(files[0], 561)]
    for file, rows in [(place / f"subject_{part}.txt", users), *zip(files, found, strict=True)]:
        if len(rows) != len(y):
            _refuse(file, f"{len(y):,} rows, as many as y_{part}.txt has", f"{len(rows):,}")
    labels = _within(place / f"y_{part}.txt", y, 1, 6) - 1
    return np.stack(found, axis=2) if signals else found[0], labels, users.astype(np.int64).astype(str)


def read_imagenet32_labels(path: Path, classes: int = 1000) -> np.ndarray:
    """The labels [sample] of one of ImageNet32's npz batches, from 0 on (they are published from 1 on)."""
    y = read_npz(path, ("labels",))["labels"].reshape(-1)
    if not np.issubdtype(y.dtype, np.integer):
        _refuse(path, "labels that are whole numbers", f"{y.dtype}")
    return _within(path, y, 1, classes) - 1


def read_imagenet32(path: Path, classes: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, 3, 32, 32] and labels of one of ImageNet32's npz batches."""
    y = read_imagenet32_labels(path, classes)
    x = read_npz(path, ("data",))["data"]
    if x.dtype != np.uint8 or x.shape != (len(y), _COLOUR_BYTES):
        _refuse(path, f"data of bytes, {len(y)} x {_COLOUR_BYTES}", f"{x.dtype}, {_times(x.shape)}")
    return x.reshape(-1, *_COLOUR), y


def read_npz(path: Path, required: Sequence[str], optional: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name; with `optional` given, a name that is in neither list is an error."""
    with reading(path, "an .npz file"), path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            _refuse(path, "an .npz file", "another kind, or part of one")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as archive:
            _check_names(path, set(archive.files), required, optional)
            return {name: archive[name] for name in (*required, *(optional or ())) if name in archive.files}


def _check_names(path: Path, names: set[str], required: Sequence[str], optional: Sequence[str] | None) -> None:
    if missing := set(required) - names:
        wanted = ", ".join(required)
        raise DataError(f"{path}: expected arrays named {wanted}; found {_listed(names)}, no {_listed(missing)}")
    if optional is not None and (strange := names.difference(required, optional)):
        raise DataError(f"{path}: expected only {', '.join((*required, *optional))}; found {_listed(strange)}")


def _opened(path: Path) -> BinaryIO:
    """A file as a stream, unpacked on the way if its content is gzipped, whatever its name says."""
    stream = path.open("rb")
    if stream.read(2) != b"\x1f\x8b":
        stream.seek(0)
        return stream
    stream.close()
    return gzip.open(path)  # type: ignore[return-value]


def _read(stream: BinaryIO, most: int) -> bytearray:
    """The rest of a stream, but at most that many bytes.

    It is read in pieces, because a wrong header may promise any number of bytes. It is a bytearray, because torch warns
    about arrays over memory that cannot be written to.
    """
    content = bytearray()
    while piece := stream.read(min(most - len(content), 1 << 24)):
        content += piece
    return content


def _idx_shape(path: Path, stream: BinaryIO) -> tuple[int, ...]:
    """The shape in the header: two zero bytes, the type (8: bytes), the number of axes, then each length as 32 bits."""
    magic = stream.read(4)
    if len(magic) != 4 or magic[:3] != b"\0\0\x08" or magic[3] == 0:
        _refuse(path, "an idx file of bytes, magic number 000008..", magic.hex() or "nothing")
    header = stream.read(4 * magic[3])
    if len(header) != 4 * magic[3]:
        _refuse(path, f"a header of {magic[3]} dimensions", f"{4 + len(header)} bytes in all")
    return struct.unpack(f">{magic[3]}I", header)


def _check_coarse(path: Path, coarse: np.ndarray, fine: np.ndarray) -> None:
    """Refuse files of CIFAR-100 in which a class has several superclasses: there are no checksums that would tell."""
    _within(path, coarse, 0, _COARSE_CLASSES - 1)
    pairs = np.unique(np.stack([fine, coarse]), axis=1)
    if len(pairs[0]) != len(np.unique(pairs[0])):
        _refuse(path, "one superclass for each class", "a class with several")


def _leaf_users(
    path: Path, samples: Callable[[Path, str, Any, int], tuple[np.ndarray, np.ndarray]]
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The name, inputs and labels of each user in a file."""
    with reading(path, "JSON"):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or (missing := {"users", "num_samples", "user_data"} - set(content)):
        found = f"no {_listed(missing)}" if isinstance(content, dict) else type(content).__name__
        _refuse(path, "an object with users, num_samples and user_data", found)
    users, counts, data = content["users"], content["num_samples"], content["user_data"]
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        _refuse(path, "as many num_samples as users", f"{counts!r:.40} for {users!r:.40}")
    # A user whom LEAF left out is still in user_data, without samples: only `users` says who counts.
    return [(user, *samples(path, user, data, count)) for user, count in zip(users, counts, strict=True)]


def _leaf_texts(path: Path, user: str, data: Any, count: int, letters: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = data[user]["x"], data[user]["y"]
        texts = isinstance(x, list) and isinstance(y, list) and all(isinstance(text, str) for text in (*x, *y))
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: user {user!r} has no proper x and y ({error})") from error
    if not texts or len(x) != count or len(y) != count:
        _refuse(path, f"{count} texts of user {user!r}, with as many letters behind them", f"{x!r:.30} and {y!r:.30}")
    if any(len(text) != 80 for text in x) or any(len(letter) != 1 for letter in y):
        _refuse(path, f"texts of 80 letters of user {user!r}, and one letter behind each", "others")
    place = {letter: number for number, letter in enumerate(letters)}
    ids = [[place.get(letter, len(letters)) + 1 for letter in text] for text in x]
    return np.array(ids, dtype=np.int32).reshape(count, 80), np.array(
        [place.get(letter, len(letters)) for letter in y], dtype=np.int64
    )


def _leaf_images(path: Path, user: str, data: Any, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(data[user]["x"], dtype=np.float64), np.asarray(data[user]["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: user {user!r} has no proper x and y ({error})") from error
    if x.shape[:1] != (count,) or y.shape != (count,):
        _refuse(path, f"{count} samples of user {user!r}", f"x of {_times(x.shape)} and y of {_times(y.shape)}")
    if count == 0:
        return np.empty((0, 28, 28), dtype=np.uint8), np.empty(0, dtype=np.int64)
    if x.shape != (count, 784):
        _refuse(path, f"784 pixels in each image of user {user!r}", _times(x.shape[1:]))
    if not ((x >= 0) & (x <= 1)).all():
        _refuse(path, f"pixels of user {user!r} from 0 to 1", f"{x.min()} to {x.max()}")
    if not np.issubdtype(y.dtype, np.integer):
        _refuse(path, f"labels of user {user!r} that are whole numbers", f"{y.dtype}")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 28, 28), _within(path, y, 0, classes - 1)


def _within(path: Path, labels: np.ndarray, lowest: int, highest: int) -> np.ndarray:
    """The labels as int64, if all are in range."""
    if len(labels) and (labels.min() < lowest or labels.max() > highest):
        _refuse(path, f"labels from {lowest} to {highest}", f"{labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    raise DataError(f"{path}: expected {expected}; found {found}. The file is damaged or of another kind: get it again")


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
