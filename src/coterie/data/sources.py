"""The catalogue of published data sets.

Checksums are those of the publishers, or of loaders that many people use (torchvision, TensorFlow Datasets,
Deeplearning4j). Where neither gives one, the comment says so, and size and structure are verified instead.
"""

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.core.errors import SettingsError
from coterie.core.randomness import generator
from coterie.core.registry import Registry
from coterie.data import readers
from coterie.data.dataset import Dataset
from coterie.data.storage import Collection, Download, PublishedFile

_Samples = tuple[np.ndarray, np.ndarray]


class Source(ABC):
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

_DIGITS = tuple(string.digits)
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@sources.register("digits")
class Digits(Source):
    """Handwritten digits, 1,797 grey images of 8x8 in 10 classes; embedded, nothing to download. (UCI, 1998)

    They come with scikit-learn and have no test part: the same fifth of every class is always set aside. The 17 levels
    of grey are spread over 0 to 255, so that pixels are bytes as in all other data sets.
    """

    shape = (1, 8, 8)
    labels = _DIGITS
    net = "cnn"
    terms = "part of scikit-learn (BSD 3-clause); from the UCI repository, with citation"
    published = Collection("digits", files=(), layouts=(), source="scikit-learn")

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


@sources.register("balanced-labels")
class BalancedLabels(Source):
    """Labels alone, 5,000 + 1,000 of each of 10 classes as in CIFAR-10, with a black pixel each. (made, not read)

    For what looks at labels only, such as CAFA's classification of clients: no file is needed, and a split that draws
    at random draws from it as it would from CIFAR-10. Nothing can be learned from it.
    """

    shape = (1, 1, 1)
    labels = _DIGITS
    net = "logistic"
    terms = "there is nothing in it to have terms"
    published = Collection("balanced-labels", files=(), layouts=(), source="made when it is asked for")

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


def _gzipped(name: str, size: int | None, md5: str, plain_size: int, plain_md5: str = "") -> PublishedFile:
    plain = PublishedFile(name, plain_size, f"md5:{plain_md5}" if plain_md5 else "")
    return PublishedFile(f"{name}.gz", size, f"md5:{md5}", unpacked=plain)


def _mnist_like(*sums: tuple[int, str, str]) -> tuple[PublishedFile, ...]:
    """MNIST's four files: size and sum of each as published, and its sum when unpacked."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    plain_sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    return tuple(
        _gzipped(name, size, md5, plain_size, plain_md5)
        for name, plain_size, (size, md5, plain_md5) in zip(names, plain_sizes, sums, strict=True)
    )


def _one_by_one(files: Sequence[PublishedFile], bases: Sequence[str], into: str) -> tuple[Download, ...]:
    """Downloads of files that are not in an archive."""
    return tuple(Download(file, tuple(base + file.name for base in bases), into) for file in files)


_MNIST_FILES = _mnist_like(
    (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    (28_881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    (1_648_877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    (4_542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)


@sources.register("mnist")
class MNIST(_IdxSource):
    """Handwritten digits, 60,000 + 10,000 grey images of 28x28 in 10 classes. (LeCun et al., 1998)"""

    shape = (1, 28, 28)
    labels = _DIGITS
    net = "cnn-20-50"
    terms = "no licence stated; for research, with citation"
    published = Collection(
        "mnist",
        _MNIST_FILES,
        layouts=("MNIST/raw",),
        # The authors' page has turned visitors away since 2024; the mirrors are those of TensorFlow and PyTorch.
        downloads=_one_by_one(
            _MNIST_FILES,
            (
                "https://yann.lecun.com/exdb/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            into="MNIST/raw",
        ),
        source="https://yann.lecun.com/exdb/mnist (mirror: https://storage.googleapis.com/cvdf-datasets/mnist)",
    )


_FASHION_FILES = _mnist_like(
    (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    (29_515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    (4_422_102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    (5_148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
)


@sources.register("fashion-mnist")
class FashionMNIST(_IdxSource):
    """Pieces of clothing, 60,000 + 10,000 grey images of 28x28 in 10 classes. (Xiao et al., 2017)"""

    shape = (1, 28, 28)
    labels = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    net = "cnn-16-32"
    terms = "MIT licence"
    published = Collection(
        "fashion-mnist",
        _FASHION_FILES,
        layouts=("FashionMNIST/raw",),
        downloads=_one_by_one(
            _FASHION_FILES,
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            into="FashionMNIST/raw",
        ),
        source="https://github.com/zalandoresearch/fashion-mnist",
    )


# NIST publishes no sums of the files in its archive: these are Deeplearning4j's. None is known of the unpacked files.
_EMNIST_FILES = (
    _gzipped("emnist-byclass-train-images-idx3-ubyte", None, "712dda0bd6f00690f32236ae4325c377", 16 + 697_932 * 784),
    _gzipped("emnist-byclass-train-labels-idx1-ubyte", None, "ee299a3ee5faf5c31e9406763eae7e43", 8 + 697_932),
    _gzipped("emnist-byclass-test-images-idx3-ubyte", None, "1435209e34070a9002867a9ab50160d7", 16 + 116_323 * 784),
    _gzipped("emnist-byclass-test-labels-idx1-ubyte", None, "7a0f934bd176c798ecba96b36fda6657", 8 + 116_323),
)


@sources.register("emnist")
class EMNIST(_IdxSource):
    """Handwritten digits and letters, 697,932 + 116,323 grey images of 28x28 in 62 classes. (Cohen et al., 2017)

    This is its division by class. The files hold every image transposed; here they are upright, as in MNIST.
    """

    shape = (1, 28, 28)
    labels = _CHARACTERS
    net = "cfic-emnist"
    terms = "no licence stated; made from NIST Special Database 19 of the US government; with citation"
    published = Collection(
        "emnist",
        _EMNIST_FILES,
        layouts=("EMNIST/raw", "EMNIST/raw/gzip"),
        downloads=(
            Download(
                PublishedFile("gzip.zip", 561_753_746, "md5:58c8d27c78d21e728a6bc7b3cc06412e"),
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                into="EMNIST/raw",
                members=_EMNIST_FILES,
            ),
        ),
        source="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    )

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


_CIFAR_TERMS = "no licence stated; for research, with citation (Krizhevsky, 2009)"
_CIFAR_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (the binary version)"

_CIFAR10_FILES = (
    PublishedFile("data_batch_1.bin", 30_730_000, "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    PublishedFile("data_batch_2.bin", 30_730_000, "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    PublishedFile("data_batch_3.bin", 30_730_000, "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    PublishedFile("data_batch_4.bin", 30_730_000, "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    PublishedFile("data_batch_5.bin", 30_730_000, "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
    PublishedFile("test_batch.bin", 30_730_000, "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),
)


@sources.register("cifar10")
class CIFAR10(_CifarSource):
    """Animals and vehicles, 50,000 + 10,000 colour images of 32x32 in 10 classes. (Krizhevsky, 2009)"""

    shape = (3, 32, 32)
    labels = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    net = "lenet5"
    terms = _CIFAR_TERMS
    published = Collection(
        "cifar10",
        _CIFAR10_FILES,
        layouts=("cifar-10-batches-bin",),
        downloads=(
            Download(
                PublishedFile("cifar-10-binary.tar.gz", 170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530"),
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                into="cifar-10-batches-bin",
                members=_CIFAR10_FILES,
            ),
        ),
        source=_CIFAR_SOURCE,
    )


# Only the archive's sum is published. The reader checks the labels of these files all the more strictly.
_CIFAR100_FILES = (PublishedFile("train.bin", 50_000 * 3_074), PublishedFile("test.bin", 10_000 * 3_074))

_CIFAR100_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@sources.register("cifar100")
class CIFAR100(_CifarSource):
    """Everyday things, 50,000 + 10,000 colour images of 32x32 in 100 classes. (Krizhevsky, 2009)"""

    shape = (3, 32, 32)
    labels = tuple(_CIFAR100_LABELS.split())
    net = "resnet9"
    terms = _CIFAR_TERMS
    published = Collection(
        "cifar100",
        _CIFAR100_FILES,
        layouts=("cifar-100-binary",),
        downloads=(
            Download(
                PublishedFile("cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8"),
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                into="cifar-100-binary",
                members=_CIFAR100_FILES,
            ),
        ),
        source=_CIFAR_SOURCE,
    )


_SVHN_BASE = "http://ufldl.stanford.edu/housenumbers/"
_SVHN_FILES = (
    PublishedFile("train_32x32.mat", 182_040_794, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
    PublishedFile("test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"),
)
_SVHN_EXTRA = (PublishedFile("extra_32x32.mat", 1_329_278_602, "md5:a93ce644f1a588dc4d68dda5feec44a7"),)


@sources.register("svhn")
class SVHN(Source):
    """Digits of house numbers, 73,257 + 26,032 colour images of 32x32 in 10 classes. (Netzer et al., 2011)"""

    extra: bool = False
    """Whether the 531,131 additional, easier images are part of the training data."""

    shape = (3, 32, 32)
    labels = _DIGITS
    net = "lenet5"
    terms = "for non-commercial use only"
    published = Collection(
        "svhn",
        _SVHN_FILES,
        layouts=("SVHN",),
        downloads=_one_by_one(_SVHN_FILES, (_SVHN_BASE,), into="SVHN"),
        source=f"{_SVHN_BASE} (format 2)",
    )
    published_extra: ClassVar[Collection] = Collection(
        "svhn",
        _SVHN_EXTRA,
        layouts=("SVHN",),
        downloads=_one_by_one(_SVHN_EXTRA, (_SVHN_BASE,), into="SVHN"),
        source=f"{_SVHN_BASE} (format 2)",
    )

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        train, test = map(readers.read_svhn, self.published.obtain(folder, download))
        if self.extra:
            more = map(readers.read_svhn, self.published_extra.obtain(folder, download))
            images, labels = zip(train, *more, strict=True)
            train = np.concatenate(images), np.concatenate(labels)
        return self._dataset(train, test)


@sources.register("femnist")
class FEMNIST(Source):
    """Handwritten digits and letters by writer, grey images of 28x28 in 62 classes. (LEAF: Caldas et al., 2018)

    LEAF makes its files itself, with the sample its user asks for: neither sizes nor checksums are published, and
    there is nothing to download. As in the files, and unlike in EMNIST, the ink is dark and the paper bright.
    """

    test_part: bool = True
    """Whether LEAF's test files are the test part; otherwise there is none, and only the training files are read."""

    shape = (1, 28, 28)
    labels = _CHARACTERS
    net = "cfic-emnist"
    terms = "made from NIST Special Database 19 of the US government; LEAF's code: BSD 2-clause"
    published = Collection(
        "femnist",
        files=(),
        layouts=("femnist/data", "leaf/data/femnist/data"),
        source="https://github.com/TalwalkarLab/leaf (data/femnist: ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample)",
    )

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


# The authors publish no sums of the batches, but a damaged one fails the checks of its own zip format.
_IMAGENET32_TRAIN = tuple(PublishedFile(f"train_data_batch_{number}.npz") for number in range(1, 11))
_IMAGENET32_TEST = (PublishedFile("val_data.npz"),)
_IMAGENET32_BASE = "https://image-net.org/data/downsample/"


@sources.register("imagenet32")
class ImageNet32(Source):
    """ImageNet scaled down, 1,281,167 + 50,000 colour images of 32x32 in 1,000 classes. (Chrabaszcz et al., 2017)

    The validation images, which have labels, are the test part. Classes are called by their published numbers.
    """

    classes: int = 1000
    """How many classes there are. Fewer than all are picked at random from those with enough images."""

    images: int = 1000
    """How many training images a class needs to be picked. With all 1,000 classes nothing is picked."""

    seed: int = 0
    """What the pick depends on."""

    shape = (3, 32, 32)
    labels = tuple(str(number) for number in range(1, 1001))
    net = "resnet18"
    terms = "ImageNet's terms of access: non-commercial research and education only"
    published = Collection(
        "imagenet32",
        _IMAGENET32_TRAIN + _IMAGENET32_TEST,
        layouts=("Imagenet32_train_npz", "Imagenet32_val_npz"),
        downloads=(
            Download(
                PublishedFile(
                    "Imagenet32_train_npz.zip",
                    3_580_435_279,
                    "sha256:94226337ecc1b0309d9fcd0167127aaadc931587035fbcb53925235edbaec4fc",
                ),
                (f"{_IMAGENET32_BASE}Imagenet32_train_npz.zip",),
                into="Imagenet32_train_npz",
                members=_IMAGENET32_TRAIN,
            ),
            Download(
                PublishedFile(
                    "Imagenet32_val_npz.zip",
                    139_697_668,
                    "sha256:013990e6dec1237dcd1f9beadbab81ead6604cc119af5cacbfb59ae28148377a",
                ),
                (f"{_IMAGENET32_BASE}Imagenet32_val_npz.zip",),
                into="Imagenet32_val_npz",
                members=_IMAGENET32_TEST,
            ),
        ),
        source="https://image-net.org/download-images (downsampled, 32x32, npz format)",
    )

    def read(self, folder: Path, download: bool) -> Dataset:
        """The data from the files in a folder."""
        everything = len(self.labels)
        if not 1 <= self.classes <= everything:
            raise SettingsError(f"classes={self.classes}: from 1 to {everything}")
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
