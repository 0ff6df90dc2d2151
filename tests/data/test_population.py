"""From a data set and a split to what every client holds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import DataError, SettingsError
from coterie.core.randomness import generator
from coterie.data import Dataset, Split
from coterie.data.division import Division
from coterie.data.population import Pool, populate
from coterie.data.splits import split_rules

COUNTS = [30, 20, 10]
"""Published test samples of each class."""


def images(samples=60, shape=(2, 5, 5), tests=COUNTS, seed=0):
    """Bytes of images with three classes in turn, and a test part with unequal classes."""
    rng = np.random.default_rng(seed)
    labels = ("a", "b", "c")
    y = np.repeat([0, 1, 2], tests)
    test = Dataset(rng.integers(0, 256, (len(y), *shape), dtype=np.uint8), y, labels=labels)
    x = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    return Dataset(x, np.arange(samples) % 3, test=test, labels=labels)


DATA = images()
THREE = Split((np.arange(30), np.arange(30, 50), np.arange(50, 60)))


def parts(shard):
    return shard.train, shard.validation, shard.test


# Dividing


def test_own_test_data_is_a_share_of_the_clients_samples():
    population = populate(DATA, THREE, Division(validation=0.1, test_share=0.2, test="own"))
    assert [[len(part) for part in parts(shard)] for shard in population.shards] == [[21, 3, 6], [14, 2, 4], [7, 1, 2]]
    for index, shard in zip(THREE.indices, population.shards, strict=True):
        assert sorted(np.concatenate(parts(shard))) == list(index)


@given(
    owned=st.lists(st.sets(st.integers(0, 59), min_size=1), min_size=1, max_size=6),
    validation=st.sampled_from([0.05, 0.1, 0.5, 0.95]),
)
def test_what_validates_one_client_is_trained_on_by_nobody(owned, validation):
    split = Split(tuple(np.array(sorted(index)) for index in owned), repeats=True)
    population = populate(DATA, split, Division(validation=validation, test="global"))
    trained = np.concatenate([shard.train for shard in population.shards])
    validated = np.concatenate([shard.validation for shard in population.shards])
    assert not np.isin(validated, trained).any()
    for index, shard in zip(split.indices, population.shards, strict=True):
        assert sorted([*shard.train, *shard.validation]) == list(index)
        assert len(shard.train) >= 1


@pytest.mark.parametrize("name", ["slfed-dist0", "slfed-dist1", "slfed-dist2", "slfed-dist3", "cafa-mixed"])
def test_splits_that_share_samples_keep_about_the_share_that_is_asked_for(name):
    x = np.zeros((5000, 1, 2, 2), dtype=np.uint8)
    labels = tuple("abcdefghij")
    data = Dataset(x, np.arange(5000) % 10, test=Dataset(x[:100], np.arange(100) % 10, labels=labels), labels=labels)
    options = {"iid": 0.5} if name == "cafa-mixed" else {}
    population = populate(data, split_rules.make(name, clients=10, **options), Division(validation=0.2, test="global"))
    trained = set(np.concatenate([shard.train for shard in population.shards]).tolist())
    for shard in population.shards:
        assert not trained & set(shard.validation.tolist())
        assert 0.1 < len(shard.validation) / (len(shard.train) + len(shard.validation)) < 0.3


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    validation=st.sampled_from([0.0, 0.05, 0.1, 0.5]),
    share=st.sampled_from([0.0, 0.06, 0.2, 0.49]),
)
def test_every_part_gets_a_sample_before_any_gets_a_second(sizes, validation, share):
    split = Split(tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])))
    population = populate(DATA, split, Division(validation=validation, test="own", test_share=share))
    for index, shard in zip(split.indices, population.shards, strict=True):
        assert sorted(np.concatenate(parts(shard))) == list(index)
        pairs = list(zip((1, validation, share), map(len, parts(shard)), strict=True))
        wanted = [count for asked, count in pairs if asked]
        assert len(shard.train) >= 1
        assert max(wanted) <= 1 or min(wanted) >= 1
        assert sum(wanted) == len(index)


@pytest.mark.parametrize(
    ("samples", "division", "expected"),
    [
        (1, Division(), [1, 0, 0]),
        (2, Division(), [1, 0, 1]),
        (3, Division(), [1, 1, 1]),
        (3, Division(test_share=0.8), [1, 1, 1]),
        (3, Division(validation=0.0, test_share=0.8), [1, 0, 2]),
        (10, Division(), [7, 1, 2]),
        (10, Division(validation=0.0), [8, 0, 2]),
        (10, Division(test_share=0.0), [9, 1, 0]),
        (2, Division(test="global"), [1, 1, 60]),
        (1, Division(test="global"), [1, 0, 60]),
    ],
    ids=str,
)
def test_small_clients_keep_something_to_train_on(samples, division, expected):
    shard = populate(DATA, Split((np.arange(samples),)), division).shards[0]
    assert [len(part) for part in parts(shard)] == expected


def test_a_division_depends_on_the_seed_and_the_clients_name_alone():
    def trains(split, seed=0):
        return {shard.name: shard.train.tolist() for shard in populate(DATA, split, seed=seed).shards}

    whole = trains(THREE)
    assert whole == trains(THREE)
    assert whole["0"] != trains(THREE, seed=1)["0"]
    assert whole["2"] == trains(Split((np.arange(50, 60),), names=("2",)))["2"]


# Kinds of test data


def published(split, kind, data=DATA, seed=0):
    population = populate(data, split, Division(test=kind), seed)
    return population, [shard.test - len(data) for shard in population.shards]


def test_global_test_data_is_the_whole_published_part():
    _, tests = published(THREE, "global")
    for test in tests:
        assert test.tolist() == list(range(60))


def test_test_data_by_labels_is_all_of_the_labels_trained_on():
    split = Split((np.arange(0, 60, 3), np.concatenate([np.arange(1, 60, 3), np.arange(2, 60, 3)])))
    _, (first, second) = published(split, "labels")
    assert first.tolist() == list(range(30))
    assert second.tolist() == list(range(30, 60))


def test_test_data_in_proportions_has_the_clients_own():
    # Twice as many of a as of c in training; 10 of c are published, so 20 of a are taken.
    split = Split((np.concatenate([np.arange(0, 60, 3), np.arange(2, 32, 3)]),))
    population, (test,) = published(split, "proportions")
    counts = np.bincount(DATA.test.y[test], minlength=3)
    trained = population.label_counts()[0]
    assert counts[1] == 0
    assert counts[2] == 10
    assert counts[0] == pytest.approx(10 * trained[0] / trained[2], abs=0.5)
    assert len(np.unique(test)) == len(test)


def test_proportions_are_drawn_by_seed():
    split = Split((np.concatenate([np.arange(0, 60, 3), np.arange(2, 60, 3)]),))
    (one,), (same,), (other,) = (published(split, "proportions", seed=seed)[1] for seed in (0, 0, 1))
    assert one.tolist() == same.tolist()
    assert one.tolist() != other.tolist()


def test_proportions_without_published_samples_of_a_label_are_an_error():
    data = images(tests=[30, 20, 0])
    with pytest.raises(DataError, match="no test samples of some labels"):
        populate(data, THREE, Division(test="proportions"))


@pytest.mark.parametrize("kind", ["labels", "proportions", "global"])
def test_published_test_data_needs_a_test_part(kind):
    bare = Dataset(DATA.x, DATA.y)
    with pytest.raises(DataError, match=f"test={kind}: own has no test part"):
        populate(bare, THREE, Division(test=kind))


def test_clients_that_share_samples_cannot_be_tested_on_their_own():
    split = Split((np.arange(40), np.arange(20, 60)), repeats=True)
    assert [len(shard.test) for shard in populate(DATA, split, Division(test="own", test_share=0)).shards] == [0, 0]
    with pytest.raises(SettingsError, match="test=own: clients of this split share samples"):
        populate(DATA, split, Division(test="own"))
    shared, alone = populate(DATA, split), populate(DATA, THREE)
    assert all((shard.test >= len(DATA)).all() for shard in shared.shards)
    assert all((shard.test < len(DATA)).all() for shard in alone.shards)


# What is done to inputs


def test_transforms_apply_to_train_validation_and_test_alike():
    split = Split((np.arange(30), np.arange(30, 60)), transforms=("rotate-90", None), groups=np.array([0, 1]))
    for kind, offset in (("own", 0), ("global", len(DATA))):
        population = populate(DATA, split, Division(test=kind))
        plain = populate(DATA, Split(split.indices), Division(test=kind))
        for part in ("train", "validation", "test"):
            turned, straight = population.shards[0].part(part), plain.shards[0].part(part)
            x = (DATA.test if part == "test" and offset else DATA).x
            original = x[straight - (offset if part == "test" else 0)]
            np.testing.assert_array_equal(population.x[turned], np.rot90(original, 1, axes=(2, 3)))
            np.testing.assert_array_equal(population.y[turned], plain.y[straight])
            np.testing.assert_array_equal(population.shards[1].part(part), plain.shards[1].part(part))
    assert population.groups.tolist() == [0, 1]


def test_samples_shared_by_clients_of_one_transform_are_copied_once():
    split = Split((np.arange(60), np.arange(60)), transforms=("rotate-180",) * 2, repeats=True)
    population = populate(DATA, split, Division(test="global"))
    assert len(population.x) == 2 * (60 + 60)


def test_untransformed_data_is_not_copied_at_all():
    bare = Dataset(DATA.x, DATA.y)
    assert populate(bare, THREE).x is bare.x


# The server


@pytest.mark.parametrize("rule", ["iid", "dirichlet"])
def test_server_samples_are_disjoint_from_the_clients(rule):
    population = populate(DATA, split_rules.make(rule, clients=3), Division(server_samples=12), seed=3)
    held = np.concatenate([np.concatenate([shard.train, shard.validation, shard.test]) for shard in population.shards])
    assert len(population.server.train) == 12
    assert not np.intersect1d(held, population.server.train).size
    assert sorted([*held, *population.server.train]) == list(range(60))


def test_server_samples_come_from_what_a_given_split_leaves():
    split = Split((np.arange(10), np.arange(10, 40)))
    population = populate(DATA, split, Division(server_samples=15))
    assert len(population.server.train) == 15
    assert population.server.train.min() >= 40


@pytest.mark.parametrize(
    ("split", "count", "message"),
    [
        (Split((np.arange(10), np.arange(10, 40))), 21, "only 20 of 60 samples are free"),
        (split_rules.make("iid", clients=2), 61, "only 60 of 60"),
        (split_rules.make("iid", clients=2), 60, "server_samples=60"),
    ],
    ids=["given", "more than all", "all"],
)
def test_the_server_cannot_hold_what_is_not_free(split, count, message):
    with pytest.raises(SettingsError, match=message):
        populate(DATA, split, Division(server_samples=count))


def test_the_server_can_be_given_the_last_published_test_samples_of_each_class():
    population = populate(DATA, THREE, Division(server_samples=6, server_from="test"))
    plain = populate(DATA, THREE)
    for one, other in zip(population.shards, plain.shards, strict=True):  # no client has less to train on
        np.testing.assert_array_equal(one.train, other.train)
    held = population.server.train
    assert np.isin(held, population.server.test).all()
    labels = population.y[held]
    for label in np.unique(DATA.test.y):
        of_label = population.server.test[population.y[population.server.test] == label]
        np.testing.assert_array_equal(held[labels == label], of_label[-(labels == label).sum() :])
    counts = np.bincount(labels)
    assert counts.max() - counts.min() <= 1
    with pytest.raises(SettingsError, match="published test samples"):
        populate(DATA, THREE, Division(server_samples=10_000, server_from="test"))


def test_the_server_holds_the_published_test_part():
    population = populate(DATA, THREE)
    np.testing.assert_array_equal(population.x[population.server.test], DATA.test.x)
    assert len(populate(Dataset(DATA.x, DATA.y), THREE).server.test) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"validation": -0.1},
        {"validation": 1.0},
        {"test_share": 1.2},
        {"validation": 0.5, "test_share": 0.5},
        {"server_samples": -1},
    ],
    ids=str,
)
def test_a_division_out_of_range_names_the_field(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        Division(**options)


# Prepared inputs


def pool_of(data, dtype=torch.float64, **division):
    population = populate(data, Split((np.arange(len(data)),)), Division(**division))
    return population, Pool.of(population, "cpu", dtype)


FEATURES = Dataset(np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32), np.arange(50) % 2)
FLOATS = Dataset(np.random.default_rng(0).normal(3, 2, (50, 2, 5, 5)).astype(np.float32), np.arange(50) % 2)


@pytest.mark.parametrize("data", [DATA, FEATURES, FLOATS], ids=["bytes", "features", "float images"])
def test_inputs_are_normalised_per_channel(data):
    _, pool = pool_of(data)
    axes = tuple(axis for axis in range(data.x.ndim) if axis != 1)
    x = data.x.astype(np.float64)
    expected = (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
    found = pool.inputs(torch.arange(len(data)))
    assert found.shape == data.x.shape
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_statistics_come_from_training_samples_alone():
    far = Dataset(DATA.x, DATA.y, test=Dataset(np.full((3, 2, 5, 5), 255, np.uint8), [0, 1, 2]))
    assert pool_of(far)[0].shift.tolist() == pool_of(DATA)[0].shift.tolist()


@pytest.mark.parametrize(
    ("data", "scaling", "factor"),
    [(DATA, "unit", 1 / 255), (FLOATS, "unit", 1), (DATA, "none", 1), (FLOATS, "none", 1)],
)
def test_inputs_are_scaled_as_told(data, scaling, factor):
    _, pool = pool_of(data, scaling=scaling)
    np.testing.assert_allclose(pool.inputs(torch.arange(5)), data.x[:5] * np.float64(factor), atol=1e-12)


def test_a_channel_without_variance_is_only_shifted():
    x = np.zeros((6, 2, 5, 5), np.uint8)
    x[:, 1] = 7
    _, pool = pool_of(Dataset(x, np.arange(6) % 2))
    assert not pool.inputs(torch.arange(6)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_gathered_in_any_arrangement(dtype):
    _, pool = pool_of(DATA, dtype)
    places = torch.tensor([[3, 1], [4, 1], [5, 9]])
    found = pool.inputs(places)
    assert found.shape == (3, 2, 2, 5, 5)
    assert found.dtype == dtype
    assert torch.equal(found[2, 0], pool.inputs(torch.tensor([5]))[0])


def test_gathered_images_lie_channels_last():
    _, pool = pool_of(DATA)
    assert pool.inputs(torch.arange(4)).is_contiguous(memory_format=torch.channels_last)


# Augmentation


def test_crops_are_windows_of_the_padded_image_flipped_or_not():
    population, pool = pool_of(DATA, augment="crop-flip")
    crops = pool.draw_crops(generator(0), (3, 40))
    places = torch.from_numpy(np.random.default_rng(0).integers(0, 60, (3, 40)))
    found = pool.inputs(places, torch.from_numpy(crops)).numpy()
    padded = np.pad(DATA.x, ((0, 0), (0, 0), (4, 4), (4, 4))).astype(np.float64)
    shift, scale = (values[:, None, None] for values in (population.shift, population.scale))
    for client in range(3):
        for row in range(40):
            top, left, flip = crops[client, row]
            window = padded[places[client, row], :, top : top + 5, left : left + 5]
            window = window[:, :, ::-1] if flip else window
            np.testing.assert_allclose(found[client, row], (window - shift) / scale, atol=1e-12)


def test_crops_reach_every_place_and_flip_half_of_the_time():
    _, pool = pool_of(DATA, augment="crop-flip")
    crops = pool.draw_crops(generator(0), (5000,))
    assert {tuple(crop) for crop in crops} == {(t, s, f) for t in range(9) for s in range(9) for f in range(2)}
    assert crops[:, 2].mean() == pytest.approx(0.5, abs=0.03)


def test_the_middle_crop_is_the_image_itself():
    _, pool = pool_of(DATA, augment="crop-flip")
    middle = torch.tensor([[4, 4, 0]] * 6)
    assert torch.equal(pool.inputs(torch.arange(6), middle), pool.inputs(torch.arange(6)))


def test_augmentation_is_for_images():
    with pytest.raises(SettingsError, match="augment=crop-flip: needs images; own has inputs of shape"):
        pool_of(FEATURES, augment="crop-flip")


# The population


def test_a_population_knows_its_clients():
    population = populate(DATA, Split(THREE.indices, names=("here", "there", "yonder")))
    assert len(population) == 3
    assert population.names == ("here", "there", "yonder")
    assert (population.classes, population.shape, population.data) == (3, (2, 5, 5), "own")


def test_label_counts_are_of_the_training_samples():
    population = populate(DATA, THREE)
    expected = [np.bincount(DATA.y[shard.train], minlength=3) for shard in population.shards]
    np.testing.assert_array_equal(population.label_counts(), expected)
    assert population.label_counts("test").sum(axis=1).tolist() == [6, 4, 2]


def test_a_split_is_checked_against_the_data():
    with pytest.raises(DataError, match="names samples that own does not have"):
        populate(DATA, Split((np.arange(61),)))


# What inputs are


def test_ids_stay_whole_numbers_and_are_not_scaled():
    data = Dataset([[0, 5, 7], [3, 3, 1], [1, 2, 0]], [0, 1, 0], kind="tokens")
    population = populate(data, Split((range(3),)))
    pool = Pool.of(population, "cpu", torch.float32)
    assert (population.kind, population.vocabulary) == ("tokens", 8)
    inputs = pool.inputs(torch.tensor([[0, 2]]))
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[[0, 5, 7], [1, 2, 0]]]


def test_series_are_scaled_by_their_channels():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6, 3)) * [1, 10, 100] + [5, 0, -7]
    pool = Pool.of(populate(Dataset(x, [0, 1] * 25, kind="series"), Split((range(50),))), "cpu", torch.float64)
    inputs = pool.inputs(torch.arange(50))
    assert inputs.shape == (50, 6, 3)
    torch.testing.assert_close(inputs.mean((0, 1)), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.std((0, 1), correction=0), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["series", "tokens"])
def test_only_images_are_turned_and_cropped(kind):
    x = np.zeros((4, 6, 6), int)[:, :, 0] if kind == "tokens" else np.zeros((4, 6, 6))
    data = Dataset(x, [0, 1, 0, 1], kind=kind)
    with pytest.raises(SettingsError, match="crop-flip: needs images"):
        populate(data, Split((range(4),)), Division(augment="crop-flip"))
    with pytest.raises(DataError, match="rotate-90 needs images"):
        populate(data, Split((range(4),), transforms=("rotate-90",)))
