"""What is shown of a world before any model is trained."""

import numpy as np
import pytest

from coterie import evidence, trust
from coterie.core.errors import SettingsError
from coterie.papers.cfic.measures import ClientLabels
from coterie.papers.slfed.measures import SyntheticSamples, TrustCourse
from coterie.runs.settings import Settings
from coterie.studies.measures import measures


def world(**given):
    return Settings.of({"workers": 0, **given}, "local")[0].world


def test_measures_are_found_by_name():
    assert {"client-labels", "synthetic-samples", "trust-course"} <= set(measures)


def test_labels_are_counted_where_they_are():
    given = world(split="label-skew", classes=2, clients=10)
    summary, details = ClientLabels().run(given)
    counts = np.array(details["counts"])
    assert counts.shape == (10, 10)
    assert counts.sum() == sum(len(shard.train) for shard in given.population.shards)
    assert set(summary) == set(ClientLabels.gives)
    assert summary["labels_mean"] == 2
    assert summary["samples_max"] == counts.sum(axis=1).max()
    assert 0.5 <= summary["largest_share_mean"] < 1
    assert summary["dominant_labels"] == len({int(row.argmax()) for row in counts})


def test_who_is_all_alike_has_one_dominant_label_at_most_per_client():
    summary, _ = ClientLabels().run(world(split="iid", clients=3))
    assert summary["labels_mean"] == summary["frequent_labels_mean"] == 10
    assert 1 <= summary["dominant_labels"] <= 3


def test_the_course_of_opinions_is_that_of_given_similarities():
    given = world(split="label-skew", classes=2, clients=12, seed=3)
    summary, details = TrustCourse(rounds=12, direct=1, opinions="direct").run(given)
    shares = evidence.label_shares(given.population.label_counts())
    cosine = shares @ shares.T / np.sqrt(np.outer((shares**2).sum(axis=1), (shares**2).sum(axis=1)))
    np.testing.assert_allclose(details["similarity"], cosine, atol=1e-12)
    expected = trust.course(np.clip(cosine, 0, 1), rounds=12, direct=1, store="direct", seed=3)
    np.testing.assert_allclose(details["uncertainty"], expected.uncertainty, atol=1e-9)
    np.testing.assert_array_equal(details["chosen"], expected.chosen)
    np.testing.assert_array_equal(details["known"], expected.known)
    assert summary["chosen_max"] == expected.chosen.max()
    assert summary["reached"] == expected.reached
    assert summary["uncertainty_mean"] == pytest.approx(expected.uncertainty[-1].mean())
    assert set(summary) == set(TrustCourse.gives) - {"uncertainty_mean_30"}
    assert summary["uncertainty_mean_10"] == pytest.approx(expected.uncertainty[9].mean())


def test_opinions_at_first_hand_tell_clients_apart():
    given = world(split="iid", clients=20)
    passed_on, at_first_hand = (TrustCourse(opinions=kind, groups=4).run(given)[0] for kind in ("persistent", "direct"))
    assert passed_on["reached"] < at_first_hand["reached"]
    assert passed_on["uncertainty_mean"] < at_first_hand["uncertainty_mean"]
    assert at_first_hand["contrast"] > 2 * passed_on["contrast"] > 0


def test_nothing_can_be_said_about_clients_that_are_all_alike():
    summary, _ = TrustCourse(rounds=3, groups=1).run(world(split="iid", clients=4))
    assert summary["contrast"] is None


def test_synthetic_samples_are_shown_as_images():
    given = world(split="iid", clients=3, net="logistic")
    summary, details = SyntheticSamples(gan_steps=20, synthetic=10, shown=2).run(given)
    pictures = np.array(details["images"])
    assert pictures.shape == (3, 2, 1, 8, 8)
    assert pictures.min() >= 0
    assert pictures.max() <= 255
    assert len(np.unique(pictures)) > 10
    assert set(summary) == set(SyntheticSamples.gives)
    assert 0 < summary["spread_mean"] < 2
    assert summary["gap_mean"] > 0
    assert details["clients"] == list(given.population.names)


def test_more_training_makes_synthetic_samples_differ():
    given = world(split="iid", clients=2, net="logistic")
    little, much = (SyntheticSamples(gan_steps=steps).run(given)[0]["spread_mean"] for steps in (1, 150))
    assert much > little


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TrustCourse(rounds=0), "rounds=0: at least 1"),
        (lambda: TrustCourse(direct=0), "direct=0: at least 1"),
        (lambda: TrustCourse(groups=-1), "groups=-1: 0 or more"),
        (lambda: TrustCourse(within=1.5), "within=1.5: a similarity from 0 to 1"),
        (lambda: SyntheticSamples(gan_steps=0), "gan_steps=0: at least 1"),
        (lambda: SyntheticSamples(shown=300), "shown=300: there are 200"),
    ],
)
def test_what_makes_no_sense_is_refused(made, message):
    with pytest.raises(SettingsError, match=message):
        made()
