"""The data sets that are known by name. What is known of each, and its files, stands in `sources.toml`."""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, dataclass_transform

import numpy as np

from coterie.core.errors import SettingsError
from coterie.core.fields import Checked, within
from coterie.core.randomness import generator
from coterie.core.registry import Registry
from coterie.data import readers
from coterie.data.dataset import Dataset
from coterie.data.storage import Collection, Download, PublishedFile

_Samples = tuple[np.ndarray, np.ndarray]


class Source(Checked, ABC):
    """A published data set. Subclasses declare their options as fields and define `read`."""

    name: ClassVar[str]

    shape: ClassVar[tuple[int, int, int]]
    """The shape of one image: channels, height, width."""

    labels: ClassVar[tuple[str, ...]]
    """What the classes are called."""

    net: ClassVar[str]
    """The network that is used with it unless another is asked for."""

    terms: ClassVar[str]
    """The licence or the terms of use, in a line."""

    published: ClassVar[Collection]
    """The files, with sizes and checksums, and where they come from."""

    @abstractmethod
    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder; missing files are downloaded into it, if that is allowed."""

    def _dataset(self, train: _Samples, test: _Samples) -> Dataset:
        return Dataset(*train, test=self._part(*test), labels=self.labels, name=self.name)

    def _part(self, x: np.ndarray, y: np.ndarray, users: np.ndarray | None = None) -> Dataset:
        return Dataset(x, y, labels=self.labels, users=users, name=self.name)


sources: Registry[Source] = Registry("data set")
"""All published data sets by name."""

_CATALOGUE = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


@dataclass_transform(frozen_default=True)
def _catalogued(name: str) -> Callable[[type[Source]], type[Source]]:
    """Register a class for the data set of this name, with what the catalogue says of it."""

    def decorate(cls: type[Source]) -> type[Source]:
        for key in ("shape", "labels", "net", "terms"):
            value = _CATALOGUE[name].get(key)
            if value is not None:
                setattr(cls, key, tuple(value) if isinstance(value, list) else value)
        cls.published = _collection(name)
        return sources.register(name)(cls)

    return decorate


def _collection(name: str, files: str = "files") -> Collection:
    """The files that the catalogue lists for a data set under a key, and how to get them."""
    known = _CATALOGUE[name]
    wanted = {file["name"]: _file(**file) for file in known.get(files, ())}

    def download(file: PublishedFile, into: str, members: Sequence[str] = ()) -> Download:
        urls = tuple(base + file.name for base in known["bases"])
        return Download(file, urls, into, tuple(wanted[member] for member in members))

    if archives := known.get("archives"):
        downloads = [download(_file(**one["file"]), one["into"], one.get("members", wanted)) for one in archives]
    else:
        downloads = [download(file, known["layouts"][0]) for file in wanted.values()]
    return Collection(name, tuple(wanted.values()), tuple(known["layouts"]), tuple(downloads), known["source"])


def _file(unpacked: Mapping[str, Any] | None = None, **said: Any) -> PublishedFile:
    return PublishedFile(**said, unpacked=None if unpacked is None else PublishedFile(**unpacked))


@_catalogued("digits")
class Digits(Source):
    """Handwritten digits, 1,797 grey images of 8x8 in 10 classes; embedded, nothing to download. (UCI, 1998)

    They come with scikit-learn and have no test part: the same fifth of every class is always set aside. The 17 levels
    of grey are spread over 0 to 255, so that pixels are bytes as in all other data sets.
    """

    def read(self, folder: Path, download: bool) -> Dataset:
        """The embedded data; neither argument matters."""
        images, labels = _digits()
        pixels = np.rint(images * (255 / 16)).astype(np.uint8)
        return self._part(pixels, labels).held_out(0.2, seed=0)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [sample, 8, 8] and labels, from the file that scikit-learn brings: importing it would take a second."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    content = load_digits()
    return content.images, content.target


@_catalogued("balanced-labels")
class BalancedLabels(Source):
    """Labels alone, 5,000 + 1,000 of each of 10 classes as in CIFAR-10, with a black pixel each. (made, not read)

    For what looks at labels only, such as CAFA's classification of clients: no file is needed, and a split that draws
    at random draws from it as it would from CIFAR-10. Nothing can be learned from it.
    """

    def read(self, folder: Path, download: bool) -> Dataset:
        """The labels in turn; neither argument matters."""
        return self._dataset(self._blank(50_000), self._blank(10_000))

    def _blank(self, samples: int) -> _Samples:
        return np.zeros((samples, *self.shape), dtype=np.uint8), np.arange(samples) % len(self.labels)


class _IdxSource(Source):
    """Four idx files: training images and labels, test images and labels."""

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        images, labels, test_images, test_labels = self.published.obtain(folder, download)
        return self._dataset(self._read_pair(images, labels), self._read_pair(test_images, test_labels))

    def _read_pair(self, images: Path, labels: Path) -> _Samples:
        return readers.read_idx_pair(images, labels, len(self.labels))


@_catalogued("mnist")
class MNIST(_IdxSource):
    """Handwritten digits, 60,000 + 10,000 grey images of 28x28 in 10 classes. (LeCun et al., 1998)"""


@_catalogued("fashion-mnist")
class FashionMNIST(_IdxSource):
    """Pieces of clothing, 60,000 + 10,000 grey images of 28x28 in 10 classes. (Xiao et al., 2017)"""


@_catalogued("emnist")
class EMNIST(_IdxSource):
    """Handwritten digits and letters, 697,932 + 116,323 grey images of 28x28 in 62 classes. (Cohen et al., 2017)

    This is its division by class. The files hold every image transposed; here they are upright, as in MNIST.
    """

    def _read_pair(self, images: Path, labels: Path) -> _Samples:
        x, y = super()._read_pair(images, labels)
        return x.swapaxes(1, 2), y


class _CifarSource(Source):
    """CIFAR's binary files, the last of which is the test part."""

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        *train, test = (readers.read_cifar(path, len(self.labels)) for path in self.published.obtain(folder, download))
        images, labels = zip(*train, strict=True)
        return self._dataset((np.concatenate(images), np.concatenate(labels)), test)


@_catalogued("cifar10")
class CIFAR10(_CifarSource):
    """Animals and vehicles, 50,000 + 10,000 colour images of 32x32 in 10 classes. (Krizhevsky, 2009)"""


@_catalogued("cifar100")
class CIFAR100(_CifarSource):
    """Everyday things, 50,000 + 10,000 colour images of 32x32 in 100 classes. (Krizhevsky, 2009)"""


@_catalogued("svhn")
class SVHN(Source):
    """Digits of house numbers, 73,257 + 26,032 colour images of 32x32 in 10 classes. (Netzer et al., 2011)"""

    extra: bool = False
    """Whether the 531,131 additional, easier images are part of the training data."""

    published_extra: ClassVar[Collection] = _collection("svhn", "extra")

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        train, test = map(readers.read_svhn, self.published.obtain(folder, download))
        if self.extra:
            more = map(readers.read_svhn, self.published_extra.obtain(folder, download))
            images, labels = zip(train, *more, strict=True)
            train = np.concatenate(images), np.concatenate(labels)
        return self._dataset(train, test)


@_catalogued("femnist")
class FEMNIST(Source):
    """Handwritten digits and letters by writer, grey images of 28x28 in 62 classes. (LEAF: Caldas et al., 2018)

    LEAF makes its files itself, with the sample its user asks for: neither sizes nor checksums are published, and
    there is nothing to download. As in the files, and unlike in EMNIST, the ink is dark and the paper bright.
    """

    test_part: bool = True
    """Whether LEAF's test files are the test part; otherwise there is none, and only the training files are read."""

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from LEAF's folders `train` and `test`."""
        x, y, users = readers.read_leaf(self._files(folder, "train"), len(self.labels))
        test = self._part(*readers.read_leaf(self._files(folder, "test"), len(self.labels))) if self.test_part else None
        return Dataset(x, y, test=test, labels=self.labels, users=users, name=self.name)

    def _files(self, folder: Path, part: str) -> list[Path]:
        for place in self.published.places(folder):
            if found := sorted((place / part).glob("*.json")):
                return found
        raise self.published.absent([f"{part}/*.json"], folder, "LEAF publishes no files, but makes them")


@_catalogued("imagenet32")
class ImageNet32(Source):
    """ImageNet scaled down, 1,281,167 + 50,000 colour images of 32x32 in 1,000 classes. (Chrabaszcz et al., 2017)

    The validation images, which have labels, are the test part. Classes are called by their published numbers.
    """

    classes: Annotated[int, within("[1, 1000]", "from 1 to 1000")] = 1000
    """How many classes there are. Fewer than all are picked at random from those with enough images."""

    images: int = 1000
    """How many training images a class needs to be picked. With all 1,000 classes nothing is picked."""

    seed: int = 0
    """What the pick depends on."""

    labels = tuple(str(number) for number in range(1, 1001))

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        everything = len(self.labels)
        *train, test = self.published.obtain(folder, download)
        published = [readers.read_imagenet32_labels(path, everything) for path in train]
        picked = self._picked(np.bincount(np.concatenate(published), minlength=everything))
        labels = tuple(self.labels[label] for label in picked)
        part = Dataset(*self._samples([test], picked), labels=labels, name=self.name)
        return Dataset(*self._samples(train, picked), test=part, labels=labels, name=self.name)

    def _picked(self, counts: np.ndarray) -> np.ndarray:
        """The classes that are used, sorted."""
        if self.classes == len(self.labels):
            return np.arange(self.classes)
        enough = np.flatnonzero(counts >= self.images)
        if len(enough) < self.classes:
            raise SettingsError(
                f"classes={self.classes}: only {len(enough)} have at least {self.images} training images; "
                f"ask for fewer classes or fewer images"
            )
        return np.sort(generator(self.seed, "imagenet32 classes").choice(enough, self.classes, replace=False))

    def _samples(self, paths: Sequence[Path], picked: np.ndarray) -> _Samples:
        """The samples of the picked classes. They go straight into one array: all together they are 4 GB."""
        published = [readers.read_imagenet32_labels(path, len(self.labels)) for path in paths]
        wanted = [np.isin(labels, picked) for labels in published]
        x = np.empty((sum(map(np.count_nonzero, wanted)), *self.shape), dtype=np.uint8)
        start = 0
        for path, rows in zip(paths, wanted, strict=True):
            stop = start + int(np.count_nonzero(rows))
            np.compress(rows, readers.read_imagenet32(path, len(self.labels))[0], axis=0, out=x[start:stop])
            start = stop
        return x, np.searchsorted(picked, np.concatenate(published)[np.concatenate(wanted)])
