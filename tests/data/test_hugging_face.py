"""Data sets of Hugging Face's library: as it gives them, and the library's own where it is installed."""

import numpy as np
import pytest
from PIL import Image

import coterie
from coterie.core.errors import DataError, SettingsError
from coterie.data import from_hugging_face


class Names:
    """A `ClassLabel` of the library."""

    def __init__(self, *names):
        self.names = list(names)


class Part:
    """What we use of a `datasets.Dataset`."""

    def __init__(self, columns, **features):
        self.columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns) | features

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: row[key] for name, row in self.columns.items()}


def real(columns, **features):
    """The same as the library makes it."""
    datasets = pytest.importorskip("datasets", reason="a data set of the real library")
    kinds = {name: datasets.ClassLabel(names=one.names) for name, one in features.items()}
    made = datasets.Dataset.from_dict(columns)
    for name, one in kinds.items():
        made = made.cast_column(name, one)
    return made


@pytest.fixture(params=[Part, real], ids=["stand-in", "library"])
def part(request):
    return request.param


def pictures(count, size=6):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (size, size), dtype=np.uint8)) for _ in range(count)]


def test_pictures_with_named_labels_and_a_test_part(part):
    names = Names("ant", "bee")
    train = part({"image": pictures(4), "label": [0, 1, 1, 0]}, label=names)
    data = from_hugging_face({"train": train, "test": part({"image": pictures(2), "label": [1, 0]}, label=names)})
    assert (data.shape, data.kind, data.labels, len(data.test)) == ((1, 6, 6), "image", ("ant", "bee"), 2)
    np.testing.assert_array_equal(data.x[:, 0], [np.asarray(one) for one in pictures(4)])
    assert data.test.y.tolist() == [1, 0]


def test_ids_with_clients(part):
    rows = {"input_ids": [[5, 6, 0], [1, 2, 3]], "label": [0, 1], "author": ["ann", "bob"], "text": ["a b", "c d e"]}
    data = from_hugging_face(part(rows), kind="tokens", client="author")
    assert (data.x.tolist(), data.kind, data.vocabulary) == ([[5, 6, 0], [1, 2, 3]], "tokens", 7)
    assert data.users.tolist() == ["ann", "bob"]


def test_columns_of_numbers_and_words_are_a_table(part):
    rows = {"age": [50.0, None, 61.0], "ward": ["A", "B", "A"], "outcome": [0, 1, 1]}
    data = from_hugging_face(part(rows, outcome=Names("well", "ill")), target="outcome")
    assert data.schema.inputs == ("age", "age missing", "ward=A", "ward=B")
    assert [data.labels[place] for place in data.y] == ["well", "ill", "ill"]
    np.testing.assert_array_equal(data.x[:, :2], [[50, 0], [np.nan, 1], [61, 0]])


def test_a_data_set_goes_straight_into_a_simulation(part):
    rows = {"age": list(np.arange(24.0)), "label": [0, 1] * 12, "site": ["a", "b", "c"] * 8}
    fed = coterie.simulate(part(rows), client="site", net="logistic")
    assert fed.names == ("a", "b", "c")
    assert coterie.FedAvg(rounds=1).fit(fed).summary["accuracy_mean"] is not None


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0], "y": [0]}, {}, "say with target=... which column is predicted; there are x, y"),
        ({"x": [1.0], "label": [0]}, {"client": "site"}, "unknown column of the data set 'site'"),
        ({"a": [[1, 2]], "b": [[3]], "label": [0]}, {}, "say with inputs=... which column is the input: a or b"),
        ({"a": [[1, 2], [3]], "label": [0, 1]}, {"kind": "tokens"}, "column a, row 1: of shape .* pad or cut ids"),
    ],
)
def test_what_is_unclear_is_refused(columns, options, message):
    with pytest.raises((DataError, SettingsError), match=message):
        from_hugging_face(Part(columns), **options)


def test_parts_without_training_data_are_refused():
    with pytest.raises(DataError, match="the parts validation: one must be called train"):
        from_hugging_face({"validation": Part({"x": [1.0], "label": [0]})})
