"""Users' own data: npz files, folders of images, torch datasets."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset, TensorDataset

from coterie.core.errors import DataError, SettingsError
from coterie.data import from_folder, from_npz, from_torch


def pixels(*shape, start=0):
    return ((np.arange(np.prod(shape)) + start) * 37 % 251).astype(np.uint8).reshape(shape)


def test_npz_with_everything(tmp_path):
    x, x_test = pixels(4, 8, 8), pixels(2, 8, 8)
    np.savez(
        tmp_path / "mine.npz",
        x=x,
        y=np.array([0, 2, 1, 0]),
        x_test=x_test,
        y_test=np.array([2, 2]),
        labels=np.array(["a", "b", "c", "d"]),
        users=np.array(["ann", "bob", "ann", "bob"]),
    )
    data = from_npz(tmp_path / "mine.npz")
    np.testing.assert_array_equal(data.x[:, 0], x)
    np.testing.assert_array_equal(data.test.x[:, 0], x_test)
    assert data.y.tolist() == [0, 2, 1, 0]
    assert data.test.y.tolist() == [2, 2]
    assert data.labels == ("a", "b", "c", "d")
    assert data.users.tolist() == ["ann", "bob", "ann", "bob"]
    assert data.name == "mine"


def test_npz_with_the_least(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros((3, 5)), y=np.array(["dog", "cat", "dog"]))
    data = from_npz(str(tmp_path / "mine.npz"))
    assert data.test is None
    assert data.users is None
    assert data.labels == ("cat", "dog")


def test_npz_may_say_what_inputs_and_targets_are(tmp_path):
    arrays = {"x": np.zeros((4, 5, 2)), "y": [3, 5, 9, 3], "x_test": np.zeros((1, 5, 2)), "y_test": [5]}
    np.savez(tmp_path / "mine.npz", **arrays, kind="series")
    data = from_npz(tmp_path / "mine.npz", task="regression")
    assert (data.kind, data.test.kind, data.task, data.test.task) == ("series", "series", "regression", "regression")
    with pytest.raises(SettingsError, match=r"kind=image: .* says kind=series"):
        from_npz(tmp_path / "mine.npz", kind="image")
    np.savez(tmp_path / "mine.npz", **arrays)
    assert from_npz(tmp_path / "mine.npz", kind="series").kind == "series"


def test_npz_test_labels_are_numbered_as_the_others(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros((3, 5)), y=[1, 5, 9], x_test=np.zeros((1, 5)), y_test=[9])
    assert from_npz(tmp_path / "mine.npz").test.y.tolist() == [2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": np.zeros((1, 2)), "y_train": [0]}, "expected arrays named x, y; found x_train, y_train, no x, y$"),
        ({"x": np.zeros((1, 2)), "y": [0], "xtest": np.zeros((1, 2))}, "found xtest"),
        ({"x": np.zeros((1, 2)), "y": [0], "x_test": np.zeros((1, 2))}, "belong together"),
        ({"x": np.zeros((1, 2)), "y": [0, 1]}, "mine: 1 inputs but 2 labels"),
        ({"x": np.array([[{}]], dtype=object), "y": [0]}, "cannot be read"),
    ],
)
def test_other_npz_files_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message):
        from_npz(tmp_path / "mine.npz")


def picture(path, array=None, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(4, 6) if array is None else array)
    (image if mode is None else image.convert(mode)).save(path)


def test_a_folder_of_grey_images(tmp_path):
    picture(tmp_path / "zebra/1.png", pixels(4, 6, start=1))
    picture(tmp_path / "ant/2.png", pixels(4, 6, start=2))
    picture(tmp_path / "ant/10.bmp", pixels(4, 6, start=3))
    (tmp_path / "ant/notes.txt").write_text("not an image")
    (tmp_path / "ant/.hidden.png").write_text("not an image either")
    (tmp_path / ".git").mkdir()
    data = from_folder(tmp_path)
    assert data.labels == ("ant", "zebra")
    assert data.y.tolist() == [0, 0, 1]
    assert data.shape == (1, 4, 6)
    for place, start in enumerate((3, 2, 1)):
        np.testing.assert_array_equal(data.x[place, 0], pixels(4, 6, start=start))
    assert data.test is None
    assert data.name == tmp_path.name


def test_a_folder_of_colour_images(tmp_path):
    picture(tmp_path / "a/1.PNG", pixels(4, 6, 3))
    data = from_folder(str(tmp_path))
    np.testing.assert_array_equal(data.x[0], pixels(4, 6, 3).transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_grey_and_colour_mixed_are_colour(tmp_path, mode):
    grey, colour = pixels(4, 6), np.full((4, 6, 3), (255, 0, 0), np.uint8)
    picture(tmp_path / "a/1.png", grey)
    picture(tmp_path / "a/2.png", colour, mode)
    data = from_folder(tmp_path)
    np.testing.assert_array_equal(data.x[0], np.broadcast_to(grey, (3, 4, 6)))
    np.testing.assert_array_equal(data.x[1], colour.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_modes_stay_grey(tmp_path, mode):
    picture(tmp_path / "a/1.png", np.zeros((4, 6), np.uint8), mode)
    assert from_folder(tmp_path).shape == (1, 4, 6)


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "gif", "tiff", "webp", "pgm"])
def test_common_formats_are_read(tmp_path, suffix):
    picture(tmp_path / f"a/1.{suffix}", np.full((4, 6), 77, np.uint8))
    assert abs(int(from_folder(tmp_path).x.mean()) - 77) <= 1


def test_a_folder_with_train_and_test(tmp_path):
    picture(tmp_path / "train/a/1.png")
    picture(tmp_path / "train/b/1.png")
    picture(tmp_path / "test/b/1.png")
    data = from_folder(tmp_path)
    assert data.labels == data.test.labels == ("a", "b")
    assert data.test.y.tolist() == [1]


def test_a_colour_image_in_the_test_part_makes_all_colour(tmp_path):
    picture(tmp_path / "train/a/1.png")
    picture(tmp_path / "test/a/1.png", pixels(4, 6, 3))
    assert from_folder(tmp_path).shape == (3, 4, 6)


def test_train_may_be_a_class_among_others(tmp_path):
    picture(tmp_path / "train/1.png")
    picture(tmp_path / "plane/1.png")
    assert from_folder(tmp_path).labels == ("plane", "train")


def test_a_test_class_that_nobody_trains_on_is_refused(tmp_path):
    picture(tmp_path / "train/a/1.png")
    picture(tmp_path / "test/b/1.png")
    with pytest.raises(DataError, match="class 'b' is in test but not in train"):
        from_folder(tmp_path)


@pytest.mark.parametrize(("size", "shape"), [(5, (5, 5)), ((3, 7), (3, 7)), ([3, 7], (3, 7)), ((4, 6), (4, 6))])
def test_images_are_scaled_to_a_size(tmp_path, size, shape):
    picture(tmp_path / "a/1.png", np.full((4, 6), 9, np.uint8))
    picture(tmp_path / "a/2.png", np.full((8, 2), 9, np.uint8))
    data = from_folder(tmp_path, size=size)
    assert data.shape == (1, *shape)
    assert (data.x == 9).all()


def test_images_of_several_sizes_need_a_size(tmp_path):
    picture(tmp_path / "a/1.png", pixels(4, 6))
    picture(tmp_path / "a/2.png", pixels(6, 4))
    with pytest.raises(DataError, match=r"2.png: 6x4 pixels, but 1.png has 4x6; give a size"):
        from_folder(tmp_path)


@pytest.mark.parametrize("size", [0, -1, (3,), (3, 0), "32", 1.5])
def test_a_size_is_a_number_of_pixels(tmp_path, size):
    picture(tmp_path / "a/1.png")
    with pytest.raises(SettingsError, match="size="):
        from_folder(tmp_path, size=size)


def test_damaged_images_are_named(tmp_path):
    picture(tmp_path / "a/1.png", pixels(40, 60))
    content = (tmp_path / "a/1.png").read_bytes()
    for broken in (b"", b"no image", content[: len(content) // 2]):
        (tmp_path / "a/2.png").write_bytes(broken)
        with pytest.raises(DataError, match=r"2.png: cannot be read as an image"):
            from_folder(tmp_path)


def test_deep_pixels_are_refused(tmp_path):
    picture(tmp_path / "a/1.png", np.full((4, 6), 1000, np.uint16))
    with pytest.raises(DataError, match=r"1.png: pixels of kind I;16"):
        from_folder(tmp_path)


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="found no folder"):
        from_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"a: no images \([^)]*\)$"):
        from_folder(tmp_path)
    for part in ("train", "val"):
        picture(tmp_path / part / "a" / "1.png", np.zeros((4, 6), np.uint8))
    (tmp_path / "a").rmdir()
    with pytest.raises(DataError, match=r"train: no images .*; parts of the data are called train and test"):
        from_folder(tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        from_folder(tmp_path / "nowhere")


class Pictures(TorchDataset):
    classes = ("cat", "dog", "emu")

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_a_tensor_dataset(tmp_path):
    x, y = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    data = from_torch(TensorDataset(x, y), test=TensorDataset(x[:2], y[:2]))
    np.testing.assert_array_equal(data.x, x.numpy())
    assert data.y.tolist() == y.tolist()
    assert len(data.test) == 2
    assert data.name == "TensorDataset"


def test_a_subset_with_names():
    whole = TensorDataset(torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    data = from_torch(Subset(whole, [0, 3]), labels=["a", "b", "c"])
    assert data.classes == 3
    assert data.y.tolist() == [0, 0]


@pytest.mark.parametrize("convert", [np.asarray, Image.fromarray, lambda array: torch.from_numpy(array)])
def test_inputs_of_all_kinds(convert):
    array = pixels(8, 8, 3)
    data = from_torch(Pictures((convert(array), 2)))
    np.testing.assert_array_equal(data.x[0], array.transpose(2, 0, 1))
    assert data.labels == Pictures.classes
    assert data.y.tolist() == [2]


def test_pil_images_with_a_palette_are_colour_and_bitmaps_grey():
    red = Image.fromarray(np.full((8, 8, 3), (255, 0, 0), np.uint8)).convert("P")
    assert from_torch(Pictures((red, 0))).x[0, :, 0, 0].tolist() == [255, 0, 0]
    white = Image.fromarray(np.full((8, 8), 255, np.uint8)).convert("1")
    assert from_torch(Pictures((white, 0))).x[0, :, 0, 0].tolist() == [255]


def test_words_as_labels():
    assert from_torch(Pictures((torch.zeros(3), "emu"), (torch.zeros(3), "cat"))).y.tolist() == [2, 0]


def test_tensors_that_carry_gradients():
    assert from_torch(Pictures((torch.ones(3, requires_grad=True), torch.tensor(1)))).y.tolist() == [1]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Stream: not a map-style dataset"),
        (Pictures(), "Pictures: no samples"),
        (Pictures(torch.zeros(3)), r"Pictures\[0\]: expected a pair"),
        (Pictures((torch.zeros(3), 0, 1)), r"Pictures\[0\]: expected a pair"),
        (Pictures((torch.zeros(3), 0), (torch.zeros(4), 0)), r"Pictures\[1\]: x of shape \(4,\)"),
        (Pictures((torch.zeros(3), torch.tensor([0, 1]))), r"Pictures\[0\]: expected one number or word"),
        (Pictures((torch.zeros(3), 3)), "label 3, but there are 3 classes"),
    ],
)
def test_other_torch_datasets_are_refused(dataset, message):
    with pytest.raises(DataError, match=message):
        from_torch(dataset)
