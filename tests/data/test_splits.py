"""Split rules: what each definition promises, on synthetic data with tiny inputs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.core.registry import first_line, options
from coterie.data.dataset import Dataset
from coterie.data.division import Division
from coterie.data.population import populate
from coterie.data.split import Split
from coterie.data.splits import split_rules
from coterie.data.splits._dealing import cut, draw_columns, gather, imbalance, log_dirichlet, top_up
from coterie.data.splits.dirichlet import _in_turns

DEFINITIONS = ("class-balanced", "class", "client", "client-prior")
NAMES = {
    *("iid", "dirichlet", "label-skew", "quantity", "autocfl-label", "autocfl-input", "autocfl-motivation", "cafa"),
    *("cafa-mixed", "cafa-chunks", "cafa-consecutive", "slfed-dist0", "slfed-dist1", "slfed-dist2", "slfed-dist3"),
    *("rotated-label-skew", "swapped-labels", "natural", "given"),
}
EXHAUSTIVE = (
    *("iid", "dirichlet", "label-skew", "quantity", "autocfl-input", "cafa", "cafa-chunks", "cafa-consecutive"),
    *("rotated-label-skew", "swapped-labels"),
)
GROUPED = ("rotated-label-skew", "swapped-labels")
RANDOM = sorted(NAMES - {"natural", "given"})


def labelled(y: np.ndarray, channels: int = 1) -> Dataset:
    return Dataset(np.zeros((len(y), channels, 2, 2), dtype=np.uint8), y, name="toy")


@cache
def even(samples: int, classes: int, channels: int = 1) -> Dataset:
    """The same number of samples of every class, within one."""
    return labelled(np.arange(samples) % classes, channels)


def divided(name: str, data: Dataset, seed: int = 0, **values: object) -> Split:
    return split_rules.make(name, **values).split(data, seed)


def everything(split: Split) -> np.ndarray:
    return np.sort(np.concatenate(split.indices))


def disjoint(split: Split) -> bool:
    used = everything(split)
    return len(np.unique(used)) == len(used)


# --- every rule -------------------------------------------------------------------------------------------------------


def test_names_are_the_interface():
    assert set(split_rules) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_rules_and_their_options_are_documented(name):
    line = first_line(split_rules[name])
    assert line.endswith(".")
    assert len(line) <= 110
    assert all(option.help for option in options(split_rules[name]))


@pytest.mark.parametrize("name", RANDOM)
def test_same_seed_same_split_and_another_seed_another(name):
    data = even(3000, 10)
    first, again, other = (divided(name, data, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.indices, again.indices, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True))


@pytest.mark.parametrize("name", RANDOM)
def test_samples_are_sorted_and_never_twice_at_a_client(name):
    split = divided(name, even(3000, 10))
    assert all((np.diff(index) > 0).all() for index in split.indices)


@pytest.mark.parametrize("name", RANDOM)
def test_samples_are_shared_only_where_the_definition_says_so(name):
    split = divided(name, even(3000, 10))
    repeating = name.startswith("slfed") or name == "cafa-mixed"
    assert split.repeats == repeating
    assert disjoint(split) != repeating


@pytest.mark.parametrize("name", EXHAUSTIVE)
def test_every_sample_is_dealt_out(name):
    assert np.array_equal(everything(divided(name, even(3001, 10))), np.arange(3001))


@pytest.mark.parametrize("name", [name for name in RANDOM if not name.startswith("slfed")])
def test_more_clients_than_samples_is_an_error_that_names_both(name):
    with pytest.raises(SettingsError, match=r"clients=101: toy has 100 samples"):
        divided(name, even(100, 10), clients=101)


@pytest.mark.parametrize("name", RANDOM)
def test_no_clients_is_an_error(name):
    with pytest.raises(SettingsError, match="clients=0: at least"):
        divided(name, even(100, 10), clients=0)


@pytest.mark.parametrize("name", [name for name in RANDOM if not name.startswith("autocfl") and name not in GROUPED])
def test_one_client(name):
    split = divided(name, even(100, 10), clients=1)
    assert len(split) == 1
    assert split.sizes[0] > 0


@pytest.mark.parametrize("name", ["iid", "dirichlet", "quantity", "autocfl-input", "cafa", "slfed-dist3"])
def test_one_class_only(name):
    split = divided(name, even(400, 1), clients=8)
    assert len(split) == 8
    assert split.sizes.min() > 0


@pytest.mark.parametrize("name", RANDOM)
def test_a_label_without_samples_is_nobodys(name):
    """Labels 0 to 11, but only 1 to 10 occur: the rule works on these ten."""
    y = np.arange(1000) % 10 + 1
    data = Dataset(np.zeros((1000, 1, 2, 2), dtype=np.uint8), y, labels=tuple("abcdefghijkl"))
    gaps = divided(name, data)
    plain = divided(name, even(1000, 10))
    assert all(np.array_equal(a, b) for a, b in zip(gaps.indices, plain.indices, strict=True))


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("dirichlet", "alpha", 0, "alpha=0.0: a number above 0"),
        ("dirichlet", "alpha", float("nan"), "alpha=nan: expected a finite number"),
        ("dirichlet", "alpha", float("inf"), "alpha=inf: expected a finite number"),
        ("dirichlet", "min_size", 0, "min_size=0: at least 1"),
        ("dirichlet", "min_size", 21, "clients=20: toy has 400 samples, 20 for each, and min_size is 21"),
        ("dirichlet", "definition", "clientprior", "did you mean client-prior"),
        ("quantity", "alpha", -1, "alpha=-1.0: a number above 0"),
        ("quantity", "min_size", 0, "min_size=0: at least 1"),
        ("label-skew", "classes", 0, "classes=0: at least 1"),
        ("label-skew", "classes", 11, "classes=11: toy has 10 classes"),
        ("iid", "samples", 0, "samples=0: 1 to 20 for 20 clients of toy"),
        ("iid", "samples", 21, "samples=21: 1 to 20 for 20 clients of toy"),
        ("autocfl-label", "samples", 16, "samples=16: at most 15 for each client"),
        ("autocfl-label", "clients", 3, "clients=3: at least 4"),
        ("autocfl-label", "alpha", 0, "alpha=0.0: a number above 0"),
        ("autocfl-input", "rotations", 3, "rotations=3: 2 or 4"),
        ("autocfl-input", "clients", 1, "clients=1: at least 2"),
        ("autocfl-motivation", "clients", 1, "clients=1: at least 2"),
        ("autocfl-motivation", "shift", "inputs", "did you mean input"),
        ("rotated-label-skew", "rotations", 3, "rotations=3: 2 or 4"),
        ("rotated-label-skew", "clients", 1, "clients=1: at least 2, one for each rotation"),
        ("rotated-label-skew", "classes", 11, "classes=11: toy has 10 classes"),
        ("swapped-labels", "swapped", 1.5, r"swapped=1.5: in \[0, 1\]"),
        ("swapped-labels", "clients", 1, "clients=1: at least 2, one with swapped labels"),
        ("swapped-labels", "classes", 0, "classes=0: at least 1"),
        ("cafa-mixed", "iid", 1.5, r"iid=1.5: a share in \[0, 1\]"),
        ("cafa-mixed", "classes", 11, "classes=11: toy has 10 classes"),
        ("cafa-mixed", "alpha", 0, "alpha=0.0: a number above 0"),
        ("cafa-consecutive", "classes", 11, "classes=11: toy has 10 classes"),
        ("cafa-consecutive", "classes", 0, "classes=0: at least 1"),
        ("slfed-dist0", "scale", 0, "scale=0.0: a number above 0"),
        ("slfed-dist0", "scale", 1, "scale=1.0: at most 0.02"),
    ],
)
def test_settings_out_of_range_say_what_is_allowed(name, option, value, message):
    with pytest.raises(SettingsError, match=message):
        divided(name, even(400, 10), **{option: value})


def test_direct_construction_checks_the_definition_too():
    with pytest.raises(SettingsError, match="did you mean client"):
        split_rules["dirichlet"](definition="clients")


# --- iid --------------------------------------------------------------------------------------------------------------


def test_iid_sizes_are_equal_within_one_and_all_are_one_group():
    split = divided("iid", even(1003, 10))
    assert set(split.sizes) == {50, 51}
    assert split.groups.tolist() == [0] * 20


def test_iid_labels_are_alike():
    data = even(50_000, 10)
    shares = divided("iid", data).label_counts(data) / 2500
    assert np.abs(shares - 0.1).max() < 0.03  # five standard deviations


def test_iid_takes_as_many_samples_as_told():
    split = divided("iid", even(1000, 10), samples=30)
    assert split.sizes.tolist() == [30] * 20


@pytest.mark.parametrize("name", ["iid", "autocfl-input", "autocfl-label"])
def test_imbalanced_cuts_nine_of_twenty(name):
    """Three clients each at 10, 30 and 60 % of 50 samples; the other eleven keep theirs."""
    split = divided(name, even(5000, 10), samples=50, imbalanced=True)
    assert sorted(split.sizes.tolist()) == [5] * 3 + [15] * 3 + [30] * 3 + [50] * 11


def test_imbalance_cuts_random_clients_and_the_same_part_of_others():
    rng = np.random.default_rng(0)
    cuts = [imbalance(rng, np.full(20, 100)) < 100 for _ in range(400)]
    assert np.abs(np.mean(cuts, axis=0) - 9 / 20).max() < 0.13
    # 9/20 of ten, rounded, is 4: the levels take turns and begin anew.
    assert sorted(imbalance(rng, np.full(10, 100)).tolist()) == [10, 10, 30, 60] + [100] * 6
    assert imbalance(rng, np.full(20, 1)).min() == 1


# --- dirichlet --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_dirichlet_500_clients_100_classes_ends(definition):
    data = even(50_000, 100)
    split = divided("dirichlet", data, clients=500, alpha=0.05, definition=definition)
    assert np.array_equal(everything(split), np.arange(50_000))
    assert split.sizes.min() >= (10 if definition == "class-balanced" else 1)
    # Skewed, as asked for: half of the labels are missing, and far more.
    assert (split.label_counts(data) > 0).sum(axis=1).mean() < 25


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1e300])
def test_dirichlet_ends_at_extreme_concentrations(definition, alpha):
    split = divided("dirichlet", even(1000, 10), clients=50, alpha=alpha, definition=definition, min_size=5)
    assert np.array_equal(everything(split), np.arange(1000))
    assert split.sizes.min() >= 5


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_dirichlet_with_as_many_clients_as_samples(definition):
    split = divided("dirichlet", even(60, 3), clients=60, definition=definition, min_size=1)
    assert split.sizes.tolist() == [1] * 60


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_dirichlet_with_large_alpha_is_nearly_iid(definition):
    data = even(20_000, 10)
    split = divided("dirichlet", data, alpha=1e6, definition=definition)
    counts = split.label_counts(data)
    assert np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.1).max() < 0.06
    assert np.abs(split.sizes - 1000).max() <= 20


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_dirichlet_with_small_alpha_is_more_skewed_than_with_large(definition):
    data = even(5000, 10)

    def labels(alpha: float) -> float:
        return (
            (divided("dirichlet", data, alpha=alpha, definition=definition).label_counts(data) > 0).sum(axis=1).mean()
        )

    assert labels(0.05) < labels(0.5) < labels(50) == 10


def test_dirichlet_by_class_is_a_plain_draw():
    """Shares of Dir(1/2) over n clients have mean 1/n and variance (1/n)(1 - 1/n) / (n/2 + 1)."""
    data = even(400_000, 40)
    counts = divided("dirichlet", data, clients=5, alpha=0.5, definition="class", seed=3).label_counts(data)
    shares = counts / counts.sum(axis=0)
    assert np.abs(shares.mean(axis=1) - 0.2).max() < 0.1
    assert shares.var() == pytest.approx(0.2 * 0.8 / 3.5, rel=0.2)


def test_balance_gate_bounds_sizes():
    """A client below the mean size of 500 gets at most one more class, of 1000, before it is closed."""
    data = even(10_000, 10)
    for seed in range(20):
        balanced = divided("dirichlet", data, seed, alpha=0.1, definition="class-balanced")
        assert balanced.sizes.max() < 500 + 1000
    plain = [divided("dirichlet", data, seed, alpha=0.1, definition="class").sizes.max() for seed in range(20)]
    assert max(plain) > 1500


@pytest.mark.parametrize("definition", ["client", "client-prior"])
def test_dirichlet_by_client_has_equal_sizes(definition):
    sizes = divided("dirichlet", even(20_000, 10), clients=100, alpha=0.1, definition=definition).sizes
    slack = 0 if definition == "client" else 10  # FLGo's are equal as far as the mean of the shares matches
    assert np.abs(sizes - 200).max() <= slack


def test_client_prior_matches_the_class_shares_on_average():
    share = np.array([0.5, 0.25, 0.15, 0.1])
    data = labelled(np.repeat(np.arange(4), (20_000 * share).astype(int)))
    counts = divided("dirichlet", data, clients=100, alpha=0.3, definition="client-prior").label_counts(data)
    assert np.abs((counts / counts.sum(axis=1, keepdims=True)).mean(axis=0) - share).max() < 0.01


def test_client_prior_is_more_skewed_than_client_by_the_number_of_classes():
    """Dir(alpha * share) of ten even classes is Dir(alpha / 10, ...)."""
    data = even(50_000, 10)

    def concentration(definition: str, alpha: float) -> float:
        counts = divided("dirichlet", data, clients=100, alpha=alpha, definition=definition).label_counts(data)
        return ((counts / 500) ** 2).sum(axis=1).mean()

    prior = concentration("client-prior", 5.0)
    # The mean of the sum of squared shares of Dir(a, ..., a) over C classes is (a + 1) / (C a + 1).
    assert prior == pytest.approx(1.5 / 6, rel=0.1)
    assert concentration("client", 0.5) == pytest.approx(prior, rel=0.15)
    assert concentration("client", 5.0) < 0.6 * prior


def expected_in_turns(shares, left, slots):
    """The expected counts of FedDC's procedure, by going through all its outcomes."""
    expected = np.zeros(shares.shape)
    if sum(slots) == 0:
        return expected
    waiting = [client for client, slot in enumerate(slots) if slot]
    for client in waiting:
        open_shares = shares[client] * (np.array(left) > 0)
        for label in np.flatnonzero(open_shares):
            chance = open_shares[label] / open_shares.sum() / len(waiting)
            fewer = [count - (place == label) for place, count in enumerate(left)]
            free = [slot - (place == client) for place, slot in enumerate(slots)]
            expected += chance * expected_in_turns(shares, fewer, free)
            expected[client, label] += chance
    return expected


def test_dirichlet_by_client_is_the_one_by_one_procedure():
    shares = np.array([[0.9, 0.1, 1e-9], [0.5, 0.2, 0.3]])
    available = np.array([3, 2, 1])
    rng = np.random.default_rng(0)
    mean = np.mean([_in_turns(rng, np.log(shares), available) for _ in range(6000)], axis=0)
    assert mean == pytest.approx(expected_in_turns(shares, [3, 2, 1], [3, 3]), abs=0.04)


@settings(max_examples=60)
@given(
    definition=st.sampled_from(DEFINITIONS),
    clients=st.integers(1, 40),
    extra=st.integers(0, 300),
    classes=st.integers(1, 12),
    minimum=st.integers(1, 6),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**16),
)
def test_dirichlet_is_a_partition_with_a_minimum(definition, clients, extra, classes, minimum, alpha, seed):
    samples = clients * minimum + extra
    data = labelled(np.random.default_rng(seed).integers(0, classes, samples))
    rule = split_rules.make("dirichlet", clients=clients, alpha=alpha, definition=definition, min_size=minimum)
    split = rule.split(data, seed)
    assert len(split) == clients
    assert np.array_equal(everything(split), np.arange(samples))
    assert split.sizes.min() >= minimum


# --- label skew and quantity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "classes", "owned"), [(20, 10, 2), (20, 10, 3), (100, 100, 20), (7, 5, 5), (10, 10, 1)]
)
def test_label_skew_gives_everyone_that_many_classes(clients, classes, owned):
    data = even(clients * classes * 4, classes)
    split = divided("label-skew", data, clients=clients, classes=owned)
    present = split.label_counts(data) > 0
    assert (present.sum(axis=1) == owned).all()
    assert present[np.arange(clients), np.arange(clients) % classes].all()


def test_label_skew_cuts_each_class_evenly():
    data = even(5003, 10)
    counts = divided("label-skew", data, clients=30, classes=3).label_counts(data)
    for column in counts.T:
        owners = column[column > 0]
        assert owners.max() - owners.min() <= 1


def test_label_skew_of_all_classes_is_even_for_any_number_of_classes():
    data = even(4000, 20)
    counts = divided("label-skew", data, clients=10, classes=20).label_counts(data)
    assert (counts == 20).all()


def test_label_skew_leaves_classes_without_owner_unused():
    data = even(1000, 10)
    split = divided("label-skew", data, clients=3, classes=2)
    present = split.label_counts(data) > 0
    assert (present.sum(axis=1) == 2).all()
    assert split.sizes.sum() == 100 * present.any(axis=0).sum() < 1000


def test_quantity_sizes_differ_and_keep_the_minimum():
    sizes = divided("quantity", even(5000, 10), clients=50, alpha=0.1).sizes
    assert sizes.min() >= 10
    assert sizes.max() > 500


def test_quantity_with_large_alpha_is_even():
    assert np.abs(divided("quantity", even(5000, 10), alpha=1e6).sizes - 250).max() <= 3


def test_quantity_leaves_labels_alike():
    data = even(50_000, 10)
    split = divided("quantity", data)
    large = split.sizes > 1000
    shares = split.label_counts(data)[large] / split.sizes[large, None]
    assert large.sum() > 5
    assert np.abs(shares - 0.1).max() < 0.05


# --- rotations with label skew, and swapped labels --------------------------------------------------------------------


def test_labels_say_nothing_of_the_rotation():
    data = even(4000, 10)
    split = divided("rotated-label-skew", data, clients=20, classes=3, rotations=4)
    present = split.label_counts(data) > 0
    assert (present.sum(axis=1) == 3).all()
    assert split.groups.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    names = [None, "rotate-90", "rotate-180", "rotate-270"]
    assert split.transforms == tuple(names[group] for group in split.groups)
    for block in range(4):  # every block has the same sets of labels
        assert np.array_equal(present[:5], present[5 * block : 5 * block + 5])


def test_half_a_turn_is_the_second_of_two_rotations():
    split = divided("rotated-label-skew", even(400, 10), clients=7)
    assert split.groups.tolist() == [0] * 3 + [1] * 4
    assert set(split.transforms[:3]) == {None}
    assert set(split.transforms[3:]) == {"rotate-180"}


def test_swapped_labels_are_swapped_in_all_parts_and_for_a_part_of_the_clients():
    data = replace(even(900, 5), test=even(100, 5))
    split = divided("swapped-labels", data, clients=10, swapped=0.3)
    assert split.groups.tolist() == [0] * 7 + [1] * 3
    assert split.relabels == (None,) * 7 + ((1, 0, 3, 2, 4),) * 3  # of five classes the last keeps its name
    x = np.arange(1000, dtype=np.float32).reshape(-1, 1, 1, 1)  # each input is the place of its sample
    named = replace(data, x=x[:900], test=replace(data.test, x=x[900:]))
    population = populate(named, split, Division(test="global"))
    truth = np.concatenate([data.y, data.test.y])
    for shard, group in zip(population.shards, split.groups, strict=True):
        for part in (shard.train, shard.validation, shard.test):
            original = truth[population.x[part].reshape(-1).astype(int)]
            assert np.array_equal(population.y[part], np.array([1, 0, 3, 2, 4])[original] if group else original)
    assert np.array_equal(population.y[population.server.test], data.test.y)  # the published test set stays as it is
    trained = np.stack([np.bincount(population.y[shard.train], minlength=5) for shard in population.shards])
    assert np.array_equal(population.label_counts(), trained)


def test_labels_are_counted_as_clients_call_them():
    data = even(1000, 10)
    split = divided("swapped-labels", data, clients=10, classes=2, swapped=0.5)
    counts = split.label_counts(data)
    assert (counts > 0).sum(axis=1).tolist() == [2] * 10
    swapped = np.arange(10) ^ 1
    assert np.array_equal(counts[:5] > 0, counts[5:][:, swapped] > 0)


def test_at_least_one_client_swaps_and_one_does_not():
    assert divided("swapped-labels", even(100, 10), clients=4, swapped=0).groups.tolist() == [0, 0, 0, 1]
    assert divided("swapped-labels", even(100, 10), clients=4, swapped=1).groups.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("name", GROUPED)
def test_the_true_groups_are_known_to_whoever_scores_a_grouping(name):
    fed = coterie.simulate("digits", name, "mlp", clients=6)
    assert fed.true_groups.tolist() == [0, 0, 0, 1, 1, 1]
    scores = coterie.FedAvg(rounds=1, steps=1).fit(fed).summary
    assert scores["ari"] == 0.0  # one group for all


@pytest.mark.parametrize(
    ("relabels", "message"),
    [
        (((1, 0), None), "relabels=.1, 0.: expected for each of 3 classes"),
        (((1, 0, 3), None), "relabels=.1, 0, 3.: expected for each of 3 classes"),
        ((None,), "the split has 2 clients but 1 relabels"),
    ],
)
def test_relabels_that_do_not_fit_are_refused(relabels, message):
    with pytest.raises(DataError, match=message):
        Split(([0, 1], [2]), relabels=relabels).checked(even(6, 3))


# --- AutoCFL ----------------------------------------------------------------------------------------------------------


def test_autocfl_label_groups_have_their_labels_in_equal_parts():
    data = even(50_000, 10)
    split = divided("autocfl-label", data)
    assert split.groups.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    counts = split.label_counts(data)
    for group, labels in enumerate([range(3), range(3, 7), range(4, 10), range(10)]):
        inside = counts[split.groups == group][:, list(labels)]
        assert inside.sum() == counts[split.groups == group].sum()
        assert inside.max() - inside.min() <= 1


def test_autocfl_label_gives_as_much_as_the_scarcest_class_allows():
    """Classes 4 to 6 are in three groups: 5 (1/4 + 1/6 + 1/10) s <= 5000, so s is 1935."""
    assert divided("autocfl-label", even(50_000, 10)).sizes.tolist() == [1935] * 20


def test_autocfl_label_imbalanced_cuts_the_balanced_size_in_the_same_labels():
    data = even(50_000, 10)
    split = divided("autocfl-label", data, imbalanced=True)
    assert sorted(split.sizes.tolist()) == [194] * 3 + [580] * 3 + [1161] * 3 + [1935] * 11
    shares = split.label_counts(data)[split.groups == 0] / split.sizes[split.groups == 0, None]
    assert np.abs(shares[:, :3] - 1 / 3).max() < 0.01


def test_autocfl_label_scales_its_ranges_to_other_numbers_of_classes():
    data = even(40_000, 100)
    split = divided("autocfl-label", data)
    present = split.label_counts(data) > 0
    ranges = [(0, 29), (30, 69), (40, 99), (0, 99)]
    for group, ends in enumerate(ranges):
        found = np.flatnonzero(present[split.groups == group].any(axis=0))
        assert (found.min(), found.max()) == ends


def test_autocfl_label_needs_three_classes():
    assert len(divided("autocfl-label", even(300, 3))) == 20
    with pytest.raises(SettingsError, match="needs at least 3 classes; toy has 2"):
        divided("autocfl-label", even(300, 2))


def test_autocfl_label_draws_shares_within_the_group():
    data = even(50_000, 10)
    split = divided("autocfl-label", data, alpha=1.0, samples=200)
    counts = split.label_counts(data)
    assert split.sizes.tolist() == [200] * 20
    assert counts[:5, 3:].sum() == 0
    assert counts[:5, :3].std() > 20


def test_autocfl_label_groups_of_other_numbers_of_clients_are_equal_within_one():
    groups = divided("autocfl-label", even(5000, 10), clients=10).groups
    assert sorted(np.bincount(groups).tolist()) == [2, 2, 3, 3]
    assert (np.diff(groups) >= 0).all()


def test_autocfl_label_with_too_little_data_is_an_error():
    with pytest.raises(SettingsError, match="clients=20: too many for 20 samples"):
        divided("autocfl-label", even(20, 10))


@pytest.mark.parametrize(
    ("channels", "rotations", "names"),
    [
        (1, None, [None, "rotate-180"]),
        (3, None, [None, "rotate-90", "rotate-180", "rotate-270"]),
        (3, 2, [None, "rotate-180"]),
        (1, 4, [None, "rotate-90", "rotate-180", "rotate-270"]),
    ],
)
def test_autocfl_input_rotates_each_group(channels, rotations, names):
    split = divided("autocfl-input", even(1000, 10, channels), rotations=rotations)
    assert split.groups.tolist() == np.repeat(np.arange(len(names)), 20 // len(names)).tolist()
    assert [names[group] for group in split.groups] == list(split.transforms)
    assert set(split.sizes) == {50}


def test_autocfl_input_needs_images():
    with pytest.raises(DataError, match="needs images"):
        divided("autocfl-input", Dataset(np.zeros((100, 3)), np.arange(100) % 2))


def test_motivation_sizes_are_those_of_figure_1():
    data = even(50_000, 10)
    normal = divided("autocfl-motivation", data)
    imbalanced = divided("autocfl-motivation", data, imbalanced=True)
    assert normal.sizes.tolist() == [1400, 1530, 1530, 1400, 1280] * 2
    assert imbalanced.sizes.tolist() == [380, 3100, 1150, 510, 640, 380, 2680, 2200, 380, 1020]
    assert normal.groups.tolist() == imbalanced.groups.tolist() == [0] * 5 + [1] * 5


def test_motivation_shifts_labels_or_inputs():
    data = even(50_000, 10)
    label, inputs = (divided("autocfl-motivation", data, shift=shift) for shift in ("label", "input"))
    assert label.label_counts(data)[:5, 5:].sum() == label.label_counts(data)[5:, :5].sum() == 0
    assert label.transforms == (None,) * 10
    assert (inputs.label_counts(data).sum(axis=0) > 0).all()
    assert inputs.transforms == (None,) * 5 + ("rotate-180",) * 5


def test_motivation_shares_are_drawn_from_a_flat_dirichlet():
    """The mean of the sum of squared shares of Dir(1) over 5 classes is 2 / 6."""
    data = even(50_000, 10)
    splits = [divided("autocfl-motivation", data, seed) for seed in range(30)]
    squares = [((split.label_counts(data) / split.sizes[:, None]) ** 2).sum(axis=1).mean() for split in splits]
    assert np.mean(squares) == pytest.approx(1 / 3, abs=0.02)


def test_motivation_sizes_shrink_in_proportion_on_small_data():
    split = divided("autocfl-motivation", even(1800, 10), imbalanced=True)
    published = np.array([380, 3100, 1150, 510, 640, 380, 2680, 2200, 380, 1020])
    scale = split.sizes[1] / 3100
    assert scale < 0.2
    assert np.abs(split.sizes - scale * published).max() <= 1
    assert split.sizes.sum() > 180


def test_motivation_sizes_repeat_for_more_clients():
    split = divided("autocfl-motivation", even(100_000, 10), clients=14)
    assert split.sizes.tolist() == [1400, 1530, 1530, 1400, 1280, 1400, 1530] * 2


# --- CAFA -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "fewest", "most"), [(10, 2, 4), (100, 20, 40), (5, 1, 2), (2, 1, 1), (1, 1, 1)])
def test_cafa_gives_20_to_40_percent_of_the_classes_to_each(classes, fewest, most):
    data = even(200 * classes, classes)
    seen = set()
    for seed in range(5):
        seen |= set((divided("cafa", data, seed).label_counts(data) > 0).sum(axis=1).tolist())
    assert (min(seen), max(seen)) == (fewest, most)


def test_cafa_gives_every_class_an_owner_even_with_few_clients():
    data = even(1000, 10)
    for seed in range(50):
        split = divided("cafa", data, seed, clients=5)  # 10 to 20 places for 10 classes
        assert (split.label_counts(data).sum(axis=0) == 100).all()
        assert np.isin((split.label_counts(data) > 0).sum(axis=1), (2, 3, 4)).all()


def test_cafa_with_fewer_places_than_classes_leaves_some_unused():
    data = even(1000, 10)
    split = divided("cafa", data, clients=2)
    assert 200 <= split.sizes.sum() <= 800


def test_cafa_sizes_are_unequal():
    sizes = divided("cafa", even(50_000, 10)).sizes
    assert sizes.max() > 2 * sizes.min()


def test_cafa_mixed_groups_are_iid_and_others():
    data = even(50_000, 10)
    split = divided("cafa-mixed", data, clients=40, iid=0.25)
    assert split.groups.tolist() == [0] * 10 + [1] * 30
    assert split.sizes.tolist() == [1250] * 40
    labels = (split.label_counts(data) > 0).sum(axis=1)
    assert (labels[:10] == 10).all()
    assert set(labels[10:]) == {1, 2}
    assert len(np.unique(np.concatenate(split.indices[:10]))) == 12_500


def test_cafa_mixed_draws_each_number_of_classes_equally_often():
    data = even(5000, 10)
    split = divided("cafa-mixed", data, clients=400, iid=0, classes=4)
    numbers = np.bincount((split.label_counts(data) > 0).sum(axis=1), minlength=5)
    assert numbers[0] == 0
    assert numbers[1:].min() > 60  # of 100 each


def test_cafa_mixed_makes_up_for_scarce_classes():
    """Each client should have 200 samples, but a class has 100: one class gives 100, two give 200."""
    data = even(1000, 10)
    for seed in range(10):
        split = divided("cafa-mixed", data, seed, clients=5, iid=0)
        labels = (split.label_counts(data) > 0).sum(axis=1)
        assert (split.sizes == 100 * labels).all()


@pytest.mark.parametrize(("share", "alike"), [(0, 0), (0.5, 10), (1, 20)])
def test_cafa_mixed_shares_of_iid_clients(share, alike):
    assert (divided("cafa-mixed", even(1000, 10), iid=share).groups == 0).sum() == alike


def test_cafa_chunks_are_one_to_nine_classes_in_equal_parts():
    data = even(50_000, 10)
    numbers = set()
    for seed in range(10):
        counts = divided("cafa-chunks", data, seed).label_counts(data)
        assert (counts.sum(axis=0) == 5000).all()
        numbers |= set((counts > 0).sum(axis=1).tolist())
        for column in counts.T:
            # All parts of a class are of one size, but for who had to take several.
            owned = column[column > 0]
            assert np.allclose(owned / owned.min(), np.rint(owned / owned.min()), atol=0.05)
    assert (min(numbers), max(numbers)) == (1, 9)


@pytest.mark.parametrize(("classes", "most"), [(10, 9), (3, 2), (2, 1), (1, 1)])
def test_cafa_chunks_with_other_numbers_of_classes_and_hardly_any_clients(classes, most):
    data = even(100 * classes, classes)
    for seed in range(20):
        labels = (divided("cafa-chunks", data, seed, clients=2).label_counts(data) > 0).sum(axis=1)
        assert 1 <= labels.min() <= labels.max() <= most


def test_cafa_consecutive_classes_follow_each_other_in_a_circle():
    data = even(50_000, 10)
    for seed in range(5):
        counts = divided("cafa-consecutive", data, seed, clients=20, classes=6).label_counts(data)
        assert (counts.sum(axis=0) == 5000).all()
        first = counts[0]  # nothing has run out yet
        owned = np.flatnonzero(first)
        assert len(owned) == 6
        assert sorted(np.diff(np.flatnonzero(np.tile(first > 0, 2))))[-1] == 5  # one gap of four
        assert np.ptp(first[owned]) <= 6


def test_cafa_consecutive_sizes_are_unequal_and_nobody_gets_only_what_is_left():
    sizes = divided("cafa-consecutive", even(50_000, 10)).sizes
    assert sizes.sum() == 50_000
    assert sizes.max() > 2 * sizes.min()
    assert sizes.min() > 50_000 * 10 / (20 * 100) - 1


# --- SLFed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("slfed-dist0", [5] * 3 + [1000] * 2 + [1500] * 2 + [2000] * 3),
        ("slfed-dist1", [5] * 7 + [2500] * 3),
        ("slfed-dist2", [5] * 3 + [2000] * 7),
    ],
)
def test_slfed_counts_are_the_published_ones(name, counts):
    data = even(50_000, 10)
    table = divided(name, data).label_counts(data)
    assert table.shape == (50, 10)
    assert (np.sort(table, axis=1) == counts).all()
    # The classes are drawn anew for each client.
    assert len(np.unique(table, axis=0)) > 30


def test_slfed_dist3_is_the_published_mix():
    data = even(50_000, 10)
    table = divided("slfed-dist3", data).label_counts(data)
    ordered = np.sort(table, axis=1)
    assert (ordered[:8] == [5] * 3 + [1000] * 2 + [1500] * 2 + [2000] * 3).all()
    assert (ordered[8:15] == [5] * 7 + [2500] * 3).all()
    assert (ordered[15:22] == [5] * 3 + [2000] * 7).all()
    assert (ordered[22:30] == 2000).all()
    random = table[30:]
    assert random.min() >= 1
    assert random.max() <= 4000
    assert random.mean() == pytest.approx(2000, rel=0.15)


def test_slfed_dist3_mix_scales_with_the_clients():
    data = even(50_000, 10)
    ordered = np.sort(divided("slfed-dist3", data, clients=100).label_counts(data), axis=1)
    kinds = [(ordered[:, -1] == 2500).sum(), (ordered == 2000).all(axis=1).sum()]
    assert kinds == [14, 16]


def test_slfed_scales_numbers_of_classes():
    data = even(50_000, 20)
    table = divided("slfed-dist1", data).label_counts(data)
    assert ((table == 2500).sum(axis=1) == 6).all()
    assert ((table == 5).sum(axis=1) == 14).all()


def test_slfed_scales_counts_when_told():
    data = even(50_000, 10)
    table = divided("slfed-dist0", data, scale=0.1).label_counts(data)
    # 5 x 0.1 is rounded to none, but one sample stays.
    assert (np.sort(table, axis=1) == [1] * 3 + [100] * 2 + [150] * 2 + [200] * 3).all()


def test_slfed_scales_down_by_itself_on_small_data():
    """178 samples of the rarest class: 2500 becomes 178, and 5 becomes 0.36, which stays one."""
    y = np.repeat(np.arange(10), [178, *[183] * 9])
    table = divided("slfed-dist1", labelled(y)).label_counts(labelled(y))
    assert (np.sort(table, axis=1) == [1] * 7 + [178] * 3).all()


# --- mechanics --------------------------------------------------------------------------------------------------------


@given(
    total=st.integers(0, 10**6),
    weights=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3),
    offset=st.floats(0, 0.999),
)
def test_cut_adds_up_and_is_proportional(total, weights, offset):
    parts = cut(total, np.array(weights), offset)
    exact = total * np.array(weights) / sum(weights)
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert (np.abs(parts - exact) <= 1 + 1e-6).all()
    assert (parts[np.array(weights) == 0] == 0).all()


@given(total=st.integers(0, 5000), parts=st.integers(1, 200))
def test_cut_of_equal_weights_is_equal_within_one(total, parts):
    sizes = cut(total, np.ones(parts))
    assert sizes.sum() == total
    assert sizes.max() - sizes.min() <= 1


def test_top_up_takes_from_the_largest_clients_most_frequent_class():
    counts = np.array([[0, 0], [9, 3], [2, 4]])
    # The empty one lacks 3; the largest has 12 and gives them from its first class.
    assert top_up(counts, 3).tolist() == [[3, 0], [6, 3], [2, 4]]


def test_top_up_reaches_the_minimum_when_nothing_is_to_spare():
    counts = np.array([[0, 0, 0], [2, 2, 2], [0, 0, 0]])
    assert top_up(counts, 2).sum(axis=1).tolist() == [2, 2, 2]


def test_log_dirichlet_has_the_moments_of_the_distribution():
    """Dir(0.2, 0.3, 0.5) has mean (0.2, 0.3, 0.5) and variance m (1 - m) / 2."""
    mean = np.array([0.2, 0.3, 0.5])
    shares = np.exp(log_dirichlet(np.random.default_rng(0), mean, (40_000, 3)))
    assert shares.sum(axis=1) == pytest.approx(np.ones(40_000))
    assert shares.mean(axis=0) == pytest.approx(mean, abs=0.01)
    assert shares.var(axis=0) == pytest.approx(mean * (1 - mean) / 2, abs=0.01)


def test_draw_columns_follows_each_rows_shares():
    shares = np.array([[0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])
    rows = np.repeat([0, 1], 20_000)
    columns = draw_columns(np.random.default_rng(0), shares, rows)
    assert (columns[rows == 0] == 1).all()
    assert np.bincount(columns[rows == 1], minlength=3) / 20_000 == pytest.approx([0.25, 0, 0.75], abs=0.02)


def test_gather_leaves_out_what_nobody_owns():
    parts = gather(np.array([1, -1, 0, 1, -1]), 3)
    assert [part.tolist() for part in parts] == [[2], [0, 3], []]


# --- any data ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    name=st.sampled_from(RANDOM),
    clients=st.integers(1, 30),
    classes=st.integers(1, 15),
    samples=st.integers(1, 600),
    seed=st.integers(0, 2**16),
)
def test_any_data_gives_a_valid_split_or_a_clear_error(name, clients, classes, samples, seed):
    y = np.random.default_rng(seed).integers(0, classes, samples)
    try:
        split = split_rules.make(name, clients=clients).split(labelled(y), seed)
    except CoterieError:
        assert samples < 40 * clients or classes < 4 or clients < 4
        return
    assert len(split) == clients
    assert split.sizes.min() >= 1
    assert split.repeats or disjoint(split)
    assert split.groups is None or len(split.groups) == clients
