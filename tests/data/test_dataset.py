"""What a Dataset makes of arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

import coterie
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.data import Dataset


@pytest.mark.parametrize(
    ("given_shape", "kept_shape"),
    [
        ((5, 7), (7,)),
        ((5, 8, 8), (1, 8, 8)),
        ((5, 8, 8, 3), (3, 8, 8)),
        ((5, 8, 8, 1), (1, 8, 8)),
        ((5, 3, 8, 8), (3, 8, 8)),
        ((5, 1, 3, 3), (1, 3, 3)),
    ],
)
def test_images_are_kept_channels_first(given_shape, kept_shape):
    data = Dataset(np.zeros(given_shape), np.zeros(5, int), kind="image" if len(given_shape) == 3 else "")
    assert (data.shape, data.kind) == (kept_shape, "features" if len(given_shape) == 2 else "image")


def test_grey_images_and_series_look_alike_unless_they_are_bytes():
    for x in (np.zeros((2, 3, 3)), np.full((2, 3, 3), 256), np.full((2, 3, 3), -1)):
        with pytest.raises(DataError, match=r"shape \(2, 3, 3\) may be .* say kind=image or kind=series"):
            Dataset(x, [0, 1])
    assert Dataset(np.full((2, 3, 3), 255), [0, 1]).kind == "image"


def test_series_are_no_images_and_are_scaled_by_their_channels():
    x = np.arange(60.0).reshape(3, 4, 5) ** 2
    data = Dataset(x, [0, 1, 0], kind="series")
    assert (data.shape, data.channels, data.x.dtype, data.vocabulary) == ((4, 5), 5, np.float32, 0)
    np.testing.assert_allclose(data.moments[0], x.mean((0, 1)))
    np.testing.assert_allclose(data.moments[1], x.std((0, 1)), rtol=1e-6)
    assert Dataset(x.astype(np.uint8), [0, 1, 0], kind="series").x.dtype == np.float32


def test_series_whose_last_axis_is_short_keep_their_axes():
    assert Dataset(np.zeros((2, 7, 3)), [0, 1], kind="series").shape == (7, 3)


def test_tokens_are_ids_and_counted_over_train_and_test():
    test = Dataset([[0, 9], [1, 1]], [0, 1], kind="tokens")
    data = Dataset([[0, 5], [3, 3], [1, 2]], [0, 1, 0], kind="tokens", test=test)
    assert (data.x.dtype, data.vocabulary, data.test.vocabulary) == (np.int32, 10, 10)
    assert data.subset([1]).vocabulary == 10
    assert Dataset([[0, 5]], [0], kind="tokens", vocabulary=80).vocabulary == 80
    assert Dataset([[0, 5], [1, 2]], [0, 1]).kind == "features"


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (np.zeros((2, 4), int), {"kind": "token"}, "unknown kind of inputs 'token': did you mean tokens"),
        (np.zeros((2, 4)), {"kind": "tokens"}, "takes ids, which are whole numbers, not float64"),
        (np.full((2, 4), -1), {"kind": "tokens"}, "ids from -1 to -1; expected 0 to"),
        (np.zeros((2, 4, 4), int), {"kind": "tokens"}, r"takes inputs \[sample, time\], not of shape \(2, 4, 4\)"),
        (np.zeros((2, 4)), {"kind": "series"}, r"takes inputs \[sample, time, channel\], not of shape \(2, 4\)"),
        (np.full((2, 4), 7), {"kind": "tokens", "vocabulary": 7}, "id 7, but vocabulary=7"),
        (np.zeros((2, 4)), {"vocabulary": 7}, "vocabulary=7, but inputs are no tokens"),
        (
            np.zeros((2, 4), int),
            {"kind": "tokens", "test": Dataset(np.zeros((2, 4), int), [0, 1])},
            "test samples are features, the others tokens",
        ),
    ],
)
def test_inputs_that_do_not_fit_their_kind_are_refused(x, options, message):
    with pytest.raises(CoterieError, match=message):
        Dataset(x, [0, 1], **options)


def test_channels_last_keeps_each_pixel_in_its_place():
    x = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    data = Dataset(x, [0, 1])
    assert data.x[1, 2, 3, 4] == x[1, 3, 4, 2]


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (np.zeros((2, 3, 3), np.int64), np.uint8),
        (np.full((2, 3, 3), 255, np.int32), np.uint8),
        (np.full((2, 1, 3, 3), 256), np.float32),
        (np.full((2, 1, 3, 3), -1), np.float32),
        (np.zeros((2, 4), np.int64), np.float32),
        (np.zeros((2, 4), bool), np.float32),
        (np.zeros((2, 4), np.float64), np.float32),
        (torch.zeros(2, 4), np.float32),
    ],
)
def test_inputs_are_bytes_or_single_precision(x, kind):
    assert Dataset(x, [0, 1]).x.dtype == kind


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), [0, 1], "3 inputs but 2 labels"),
        (np.zeros((0, 2)), [], "no samples"),
        (np.zeros(3), [0, 1, 2], "expected"),
        (5, [0], "expected"),
        ([[1, 2], [3]], [0, 1], "cannot be made an array"),
        ([["a"], ["b"]], [0, 1], "expected numbers"),
        ([[np.nan], [1.0]], [0, 1], "1 input values are not finite"),
        ([[1e300], [1.0]], [0, 1], "1 input values are not finite"),
        (np.zeros((2, 2)), [np.nan, 1.0], "1 labels are not finite"),
        (np.zeros((2, 2)), [np.inf, 1.0], "1 labels are not finite"),
    ],
)
def test_bad_arrays_are_refused(x, y, message):
    with pytest.raises(DataError, match=message):
        Dataset(x, y)


@pytest.mark.parametrize(
    ("y", "labels", "encoded"),
    [
        ([0, 2, 1], ("0", "1", "2"), [0, 2, 1]),
        ([3, 5, 3], ("3", "5"), [0, 1, 0]),
        ([1, 2, 10], ("1", "2", "10"), [0, 1, 2]),
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([1.0, 0.0, 1.0], ("0", "1"), [1, 0, 1]),
        (["dog", "cat", "dog"], ("cat", "dog"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([10**12, 7, 7], ("7", "1000000000000"), [1, 0, 0]),
    ],
)
def test_labels_are_numbered_in_sorted_order(y, labels, encoded):
    data = Dataset(np.zeros((3, 2)), y)
    assert data.labels == labels
    assert data.y.tolist() == encoded


def test_given_names_fix_the_number_of_classes():
    data = Dataset(np.zeros((2, 2)), [0, 2], labels=("a", "b", "c", "d"))
    assert data.classes == 4
    assert data.y.tolist() == [0, 2]
    assert Dataset(np.zeros((2, 2)), ["d", "a"], labels=("a", "b", "c", "d")).y.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("y", "labels", "message"),
    [
        ([0, 2], ("a", "b"), "label 2, but there are 2 classes"),
        (["a", "z"], ("a", "b"), "labels z are not among"),
        ([-1, 0], ("a", "b"), "labels -1, 0 are not among"),
        ([0, 1], ("a", "a"), "occurs twice"),
    ],
)
def test_labels_outside_the_given_names_are_refused(y, labels, message):
    with pytest.raises(DataError, match=message):
        Dataset(np.zeros((2, 2)), y, labels=labels)


def test_a_test_part_is_numbered_as_the_training_part():
    test = Dataset(np.zeros((2, 2)), ["dog", "dog"])
    assert test.y.tolist() == [0, 0]
    data = Dataset(np.zeros((3, 2)), ["cat", "dog", "emu"], test=test)
    assert data.test.y.tolist() == [1, 1]
    assert data.test.labels == data.labels


def test_whole_numbers_of_a_test_part_are_places_where_names_are_given():
    test = Dataset(np.zeros((2, 2)), [1, 0])
    assert Dataset(np.zeros((3, 2)), [0, 1, 2], labels=("cat", "dog", "emu"), test=test).test.y.tolist() == [1, 0]


def test_whole_numbers_of_a_test_part_are_names_where_none_are_given():
    test = Dataset(np.zeros((2, 2)), [5, 3])
    assert Dataset(np.zeros((3, 2)), [3, 5, 9], test=test).test.y.tolist() == [1, 0]
    with pytest.raises(DataError, match="labels 0, 1 are not among"):
        Dataset(np.zeros((3, 2)), [3, 5, 9], test=Dataset(np.zeros((2, 2)), [0, 1]))


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (Dataset(np.zeros((2, 3)), [0, 1]), "test samples have shape"),
        (Dataset(np.zeros((2, 4, 4), np.uint8), [0, 1]), "test samples are uint8"),
        (Dataset(np.zeros((2, 1, 4, 4)), ["x", "y"]), "labels x, y are not among"),
    ],
)
def test_a_test_part_must_fit(test, message):
    with pytest.raises(DataError, match=message):
        Dataset(np.zeros((2, 1, 4, 4)), [0, 1], test=test)


def test_users_belong_to_samples():
    data = Dataset(np.zeros((3, 2)), [0, 1, 0], users=["ann", "bob", "ann"])
    assert data.subset([2, 0]).users.tolist() == ["ann", "ann"]
    with pytest.raises(DataError, match="3 samples but 2 users"):
        Dataset(np.zeros((3, 2)), [0, 1, 0], users=["ann", "bob"])


def test_a_subset_keeps_labels_and_test_part():
    test = Dataset(np.zeros((1, 2)), [1])
    data = Dataset(np.arange(8).reshape(4, 2), [0, 1, 0, 1], test=test).subset([2])
    assert data.x.tolist() == [[4, 5]]
    assert data.classes == 2
    assert len(data.test) == 1


@given(samples=st.integers(2, 60), share=st.floats(0.05, 0.95), seed=st.integers(0, 3))
def test_held_out_divides_every_class(samples, share, seed):
    y = np.arange(samples) % 2
    data = Dataset(np.arange(samples)[:, None], y)
    try:
        divided = data.held_out(share, seed)
    except DataError:
        assert all(round(share * count) in (0, count) for count in np.bincount(y))
        return
    values = np.concatenate([divided.x, divided.test.x]).ravel()
    assert sorted(values) == list(range(samples))
    assert np.bincount(divided.test.y, minlength=2).tolist() == [round(share * count) for count in np.bincount(y)]


def test_held_out_depends_on_the_seed_alone():
    data = Dataset(np.arange(100)[:, None], np.arange(100) % 10)
    first, again, other = (data.held_out(0.3, seed).x.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5])
def test_held_out_needs_a_share(share):
    with pytest.raises(DataError, match="hold_out"):
        Dataset(np.zeros((4, 2)), [0, 1, 0, 1]).held_out(share)


@given(samples=st.integers(1, 30), kept=st.integers(1, 30), seed=st.integers(0, 3))
def test_limited_keeps_that_many_in_order(samples, kept, seed):
    data = Dataset(np.arange(samples)[:, None], np.zeros(samples, int))
    if kept > samples:
        with pytest.raises(DataError, match=f"limit={kept}"):
            data.limited(kept, seed)
        return
    values = data.limited(kept, seed).x.ravel()
    assert len(values) == kept
    assert (np.diff(values) > 0).all()


@given(values=st.lists(st.integers(0, 255), min_size=1, max_size=4), channels=st.integers(1, 3))
def test_moments_of_bytes_are_those_of_all_pixels(values, channels):
    x = np.resize(np.array(values, dtype=np.uint8), (4, channels, 256, 257))  # more than are counted at once
    mean, deviation = Dataset(x, np.zeros(4, dtype=int)).moments
    assert mean == pytest.approx(x.mean((0, 2, 3)), abs=1e-9)
    assert deviation == pytest.approx(x.std((0, 2, 3)), abs=1e-9)


def test_dates_are_no_targets():
    with pytest.raises(DataError, match="own: targets are dates such as 2024-03-01"):
        Dataset(np.zeros((2, 3)), np.array(["2024-03-01", "2024-03-02"], dtype="datetime64[D]"))


def test_whole_numbers_that_may_be_ids_are_not_taken_for_amounts_in_silence(caplog):
    ids = [[3, 17, 0], [4, 4, 9]]
    assert Dataset(ids, ["a", "b"]).kind == "features"
    assert "kind=features, amounts; or say kind=tokens, if they are ids" in caplog.text
    caplog.clear()
    for told in (Dataset(ids, ["a", "b"], kind="tokens"), Dataset(ids, ["a", "b"], kind="features")):
        assert told.x.shape == (2, 3)
    assert Dataset(np.array(ids, dtype=float), ["a", "b"]).kind == "features"
    assert caplog.text == ""


def test_what_is_no_data_is_said_by_its_type_alone():
    with pytest.raises(SettingsError, match="data of type ndarray: expected the name of a data set, a path"):
        coterie.simulate(np.zeros((900, 900)))


@pytest.mark.parametrize(
    ("x", "y", "users", "message"),
    [
        (np.ma.masked_greater([[1.0], [2.0]], 1.5), [0, 1], None, "1 values are masked; fill them in"),
        (np.zeros((2, 1)), [None, "a"], None, "1 targets are missing, the first at place 0"),
        (np.zeros((2, 1)), ["a", float("nan")], None, "1 targets are missing, the first at place 1"),
        (np.zeros((2, 1)), np.array(["a", None], dtype=object), None, "1 targets are missing, the first at place 1"),
        (np.zeros((2, 1)), [0, 1], [float("nan"), 1.0], "1 users are missing"),
        (torch.zeros(2, 1, requires_grad=True), [0, 1], None, "cannot be made an array .*detach"),
        (csr_matrix(np.eye(2)), [0, 1], None, r"a sparse matrix; give its \.toarray\(\)"),
    ],
)
def test_what_is_missing_is_not_made_a_value(x, y, users, message):
    with pytest.raises(DataError, match=message):
        Dataset(x, y, users=users)


def test_rounding_that_matters_is_said(caplog):
    seconds = np.array([[1_700_000_000 + 10 * row, row] for row in range(40)])
    for x in (seconds, seconds.astype(float)):
        caplog.clear()
        Dataset(x, np.arange(40) % 2, kind="features")
        assert "1 of 2 inputs are rounded by up to" in caplog.text
        assert "subtract what is common to all rows" in caplog.text
    caplog.clear()
    Dataset(seconds - seconds.min(axis=0), np.arange(40) % 2, kind="features")
    Dataset(np.random.default_rng(0).normal(1000, 1, (40, 2)), np.arange(40) % 2)
    Dataset(np.full((40, 2), 0.1), np.arange(40) % 2)
    assert "rounded" not in caplog.text
    Dataset(np.zeros((40, 1)), seconds[:, 0].astype(float), task="regression")
    assert "targets are rounded" in caplog.text
