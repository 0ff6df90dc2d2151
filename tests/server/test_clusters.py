"""Clusters with a model each: who is where, who trains, and what is served."""

import numpy as np
import pytest
import torch

from coterie.clients.programs import train
from coterie.moves.grouping import Grouping
from coterie.server.clusters import Clusters
from coterie.training.local import LocalTraining
from support.federations import at_round, same, uneven


def three(fed, labels=(0, 1, 0, 2, 1, -1)):
    return Clusters(fed.new_models(3), torch.tensor(labels))


def test_at_first_all_are_in_one():
    fed = uneven()
    one = Clusters.one(fed.new_model(), fed)
    assert one.labels.tolist() == [0] * 6
    assert not len(one.missing(fed))


def test_clients_whose_names_were_appended_are_in_none():
    clusters, grown = three(uneven()), uneven(clients=8)
    assert clusters.of(grown).tolist() == [0, 1, 0, 2, 1, -1, -1, -1]
    assert clusters.missing(grown).tolist() == [5, 6, 7]
    assert clusters.joined(grown, np.array([6, 5]), [2, 0]).labels.tolist() == [0, 1, 0, 2, 1, 0, 2, -1]
    assert clusters.labels.tolist() == [0, 1, 0, 2, 1, -1]


def test_clients_that_are_not_there_are_not_missing():
    fed = at_round(uneven(arrivals={5: 3}))
    assert not len(three(fed).missing(fed))
    assert three(fed).missing(at_round(fed, 3)).tolist() == [5]


def test_a_cohort_has_its_share_of_every_cluster():
    fed = at_round(uneven(clients=12))
    clusters = Clusters(fed.new_models(3), torch.tensor([0] * 6 + [1] * 4 + [2, -1]))
    cohort = clusters.sample(fed, 0.5)
    assert np.bincount(clusters.labels[cohort]).tolist() == [3, 2, 1]
    assert (np.diff(cohort) > 0).all()
    assert clusters.sample(fed, 1.0).tolist() == list(range(11))


def test_the_cohort_of_a_single_cluster_is_fedavgs():
    fed = at_round(uneven(clients=12))
    assert Clusters.one(fed.new_model(), fed).sample(fed, 0.4).tolist() == fed.sample(0.4).tolist()


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_cluster_is_the_mean_of_its_members_and_stays_without(weighting):
    fed = at_round(uneven())
    clusters, cohort = three(fed), np.array([0, 2, 4])
    start = clusters.start(fed, cohort)
    assert same(start, clusters.models[[0, 0, 1]])
    replies = fed.run(train, cohort, each=start, local=LocalTraining())
    after = clusters.averaged(fed, replies, weighting)
    weights = fed.sizes[[0, 2]].double() if weighting == "samples" else torch.ones(2)
    mean = ((weights / weights.sum())[:, None] * replies.model.parameters[:2]).sum(dim=0)
    assert torch.allclose(after.models.parameters[0], mean, atol=1e-14)
    assert same(after.models[1], replies.model[2])
    assert same(after.models[2], clusters.models[2])
    found = Clusters.found(fed, replies, Grouping.of([0, 0, 1]), weighting)
    assert found.labels.tolist() == [0, -1, 0, -1, 1, -1]
    assert torch.allclose(found.models.parameters[0], mean, atol=1e-14)


def test_who_is_in_none_is_served_another_model():
    fed = at_round(uneven())
    clusters, other = three(fed), fed.new_models(1, first=9)[0]
    served = clusters.serve(fed, otherwise=other)
    assert served.index.tolist() == [0, 1, 0, 2, 1, 3]
    assert same(served.models[3], other)
    complete = clusters.joined(fed, np.array([5]), 2).serve(fed, otherwise=other)
    assert (complete.index.tolist(), len(complete.models)) == ([0, 1, 0, 2, 1, 2], 3)
