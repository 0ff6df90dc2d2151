"""Data that users bring: from an npz file, a folder of images or a torch dataset."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.errors import DataError, SettingsError
from coterie.data.dataset import Dataset
from coterie.data.readers import read_npz, reading

log = logging.getLogger("coterie")

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_GREY_MODES = frozenset({"1", "L", "LA"})
_COLOUR_MODES = frozenset({"CMYK", "HSV", "LAB", "P", "PA", "RGB", "RGBA", "RGBX", "YCbCr"})


NPZ = ("x_test", "y_test", "labels", "users", "kind")
"""The arrays that an npz file may have besides x and y."""


def from_npz(path: str | Path, kind: str = "", task: str = "") -> Dataset:
    """Data from the arrays x and y of an npz file, and x_test, y_test, labels, users and kind if they are there.

    `kind` says what inputs are and `task` what is predicted (see `Dataset`); the file may say the kind itself.
    """
    path = Path(path)
    arrays = read_npz(path, ("x", "y"), NPZ)
    said = kind_in(arrays)
    if kind and said and kind != said:
        raise SettingsError(f"kind={kind}: {path} says kind={said}")
    kind = kind or said
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path}: x_test and y_test belong together, but only one of them is there")
    labels = tuple(map(str, arrays.get("labels", ())))
    test = None
    if "x_test" in arrays:
        test = Dataset(arrays["x_test"], arrays["y_test"], labels=labels, name=path.stem, task=task, kind=kind)
    return Dataset(
        *(arrays["x"], arrays["y"]),
        test=test,
        labels=labels,
        users=arrays.get("users"),
        name=path.stem,
        task=task,
        kind=kind,
    )


def kind_in(arrays: Mapping[str, np.ndarray]) -> str:
    """What the arrays of an npz file say that inputs are; nothing if they do not say it."""
    return str(arrays["kind"].item()) if "kind" in arrays and arrays["kind"].size == 1 else ""


def from_folder(path: str | Path, size: int | tuple[int, int] | None = None) -> Dataset:
    """Data from a folder that has one folder of images per class, or such folders in `train` and `test`.

    The images are grey if all files are, else RGB; transparency is dropped. They must have one size, unless a `size`
    (or height and width) is given, to which they are scaled.
    """
    path = Path(path).absolute()
    parts = {folder.name: folder for folder in _folders(path)}
    divided = "train" in parts and not set(parts) - {"train", "test"}
    train = _image_files(parts["train"] if divided else path)
    test = _image_files(parts["test"]) if divided and "test" in parts else {}
    if strange := sorted(set(test) - set(train)):
        raise DataError(f"{path}: class {strange[0]!r} is in test but not in train")
    labels = tuple(train)
    files = [file for part in (train, test) for members in part.values() for file in members]
    mode, shape = _common_form(files, size)
    part = Dataset(*_pixels(test, labels, mode, shape), labels=labels, name=path.name) if test else None
    return Dataset(*_pixels(train, labels, mode, shape), test=part, labels=labels, name=path.name)


def read_images(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The images [sample, channel, height, width] in a folder, by their names, or the one in a file.

    They become grey or RGB and are scaled, as `shape` [channel, height, width] has it.
    """
    channels, *pixels = shape
    if channels not in (1, 3):
        raise DataError(f"{path}: images are grey or RGB, but inputs of {channels} channels are expected")
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES and file.name[0] != ".")
    else:
        found = [path]
    if not found:
        raise DataError(f"{path}: no images ({', '.join(sorted(_SUFFIXES))})")
    mode, size = "L" if channels == 1 else "RGB", (pixels[0], pixels[1])
    for file in found:
        own, (height, width) = _header(file)
        if mode == "L" and own not in _GREY_MODES:
            raise DataError(f"{file}: has colours, but grey images are expected")
        if (height, width) != size:
            log.warning("%s: %dx%d pixels, scaled to %dx%d", file, height, width, *size)
    return _pixels({"": found}, [""], mode, size)[0]


def from_torch(
    dataset: Any, test: Any = None, labels: Sequence[str] | None = None, kind: str = "", task: str = ""
) -> Dataset:
    """Data from a map-style torch dataset of pairs (x, y), and its test part from another.

    An x is a tensor, an array or a PIL image; a y is a number or a word. The label names are the given ones, else the
    dataset's `classes`, as torchvision's datasets have them. `kind` says what an x is and `task` what is predicted, if
    that is not what they look like (see `Dataset`).
    """
    names = tuple(map(str, getattr(dataset, "classes", ()) if labels is None else labels))
    name = type(dataset).__name__
    part = Dataset(*_items(test), labels=names, name=name, kind=kind, task=task) if test is not None else None
    return Dataset(*_items(dataset), test=part, labels=names, name=name, kind=kind, task=task)


def _items(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """All inputs and labels of a torch dataset, stacked."""
    name = type(dataset).__name__
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name}: not a map-style dataset; it needs __len__ and __getitem__")
    if len(dataset) == 0:
        raise DataError(f"{name}: no samples")
    inputs: list[np.ndarray] = []
    labels: list[Any] = []
    for index in range(len(dataset)):
        x, y = _pair(f"{name}[{index}]", dataset[index])
        if inputs and x.shape != inputs[0].shape:
            raise DataError(f"{name}[{index}]: x of shape {x.shape}, but {name}[0] has {inputs[0].shape}")
        inputs.append(x)
        labels.append(y)
    return np.stack(inputs), np.asarray(labels)


def _pair(name: str, item: Any) -> tuple[np.ndarray, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{name}: expected a pair (x, y), found {type(item).__name__}")
    x, y = map(as_array, item)
    if y.size != 1:
        raise DataError(f"{name}: expected one number or word as label, found an array of shape {y.shape}")
    return x, y.item()


def as_array(value: Any) -> np.ndarray:
    """A tensor, a picture of Pillow's, or whatever NumPy takes, as an array."""
    from torch import Tensor

    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "getbands"):  # a PIL image
        return np.asarray(value.convert("L" if value.mode in _GREY_MODES else "RGB"))
    return np.asarray(value)


def _folders(path: Path) -> list[Path]:
    with reading(path, "a folder"):
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _image_files(folder: Path) -> dict[str, list[Path]]:
    """The image files in the folder of each class; files that are no images are left out."""
    classes = {
        place.name: sorted(
            file for file in place.iterdir() if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        )
        for place in _folders(folder)
    }
    if not classes:
        raise DataError(f"{folder}: expected one folder of images per class, found no folder")
    if empty := [name for name, files in classes.items() if not files]:
        parts = "; parts of the data are called train and test" if "train" in classes else ""
        raise DataError(f"{folder / empty[0]}: no images ({', '.join(sorted(_SUFFIXES))}){parts}")
    return classes


def _common_form(files: Sequence[Path], size: int | tuple[int, int] | None) -> tuple[str, tuple[int, int]]:
    """The mode, L or RGB, and the height and width to which all images are converted. Only headers are read."""
    modes, shapes = zip(*map(_header, files), strict=True)
    mode = "L" if _GREY_MODES.issuperset(modes) else "RGB"
    if size is not None:
        return mode, _height_and_width(size)
    for file, (height, width) in zip(files, shapes, strict=True):
        if (height, width) != shapes[0]:
            first = f"{files[0].name} has {shapes[0][0]}x{shapes[0][1]}"
            raise DataError(f"{file}: {height}x{width} pixels, but {first}; give a size to scale all images to")
    return mode, shapes[0]


def _height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise SettingsError(f"size={size!r}: expected a number of pixels, or a height and a width")
    return sides[0], sides[1]


def _header(file: Path) -> tuple[str, tuple[int, int]]:
    with _opened(file) as image:
        if image.mode not in _GREY_MODES | _COLOUR_MODES:
            raise DataError(f"{file}: pixels of kind {image.mode}; expected 8 bits per channel")
        return image.mode, (image.height, image.width)


def _opened(file: Path) -> "Image":
    from PIL import Image

    with reading(file, "an image", Image.DecompressionBombError):
        return Image.open(file)


def _pixels(
    files: dict[str, list[Path]], labels: Sequence[str], mode: str, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, channel, height, width] and their places in `labels`."""
    chosen = [(labels.index(name), file) for name, members in files.items() for file in members]
    x = np.empty((len(chosen), 1 if mode == "L" else 3, *shape), dtype=np.uint8)
    for place, (_, file) in enumerate(chosen):
        x[place] = np.atleast_3d(_loaded(file, mode, shape)).transpose(2, 0, 1)
    return x, np.array([label for label, _ in chosen])


def _loaded(file: Path, mode: str, shape: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    height, width = shape
    with reading(file, "an image", SyntaxError), _opened(file) as image:
        # Through the mode with transparency: some palettes have it, and dropping it at once makes Pillow warn.
        plain = image.convert("RGBA").convert(mode) if image.mode in ("P", "PA") else image.convert(mode)
        if plain.size != (width, height):
            plain = plain.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(plain)
