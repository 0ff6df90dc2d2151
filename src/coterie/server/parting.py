"""Groups that are tried on their clients before they are made: they are parted only where that serves them better.

Whether a group's own model is better for its members cannot be asked of the members' mean: a client's own model is a
larger part of the mean of few. So each client compares means without itself (`mixing.without_oneself`), of its group
and of everybody. Its training samples have then gone into neither in this round, and both started from the same model:
so they are as good as validation samples, and there are more of them. Errors are compared, not losses: the mean of
fewer models has moved farther, which lowers early losses also where there is nothing to part.

A client is sent a model for each grouping that is tried, and tells errors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.clients.clients import Clients
from coterie.clients.outputs import Declared, Output
from coterie.clients.programs import Outputs, evaluate, program
from coterie.core.arrays import everywhere
from coterie.moves import choosing, evidence, grouping, mixing
from coterie.moves.grouping import Grouping
from coterie.nets.net import Net
from coterie.nets.stacks import Models
from coterie.server.federation import Federation, Replies
from coterie.server.trained_groups import TrainedGroups

_FEWEST = 4
"""How many clients there must be for two groups in which nobody is alone."""


def paying_groups(
    fed: Federation, replies: Replies, groups: TrainedGroups, most: int, significance: float
) -> tuple[Replies, Grouping | None, Mapping[str, Any]]:
    """The groups that clients are better off in, of those who have trained the one model that there is.

    They are of the clients whose replies come back with them: those that have told. With them comes what figures show;
    None is one group for all.
    """
    told = fed.run(describe_classes, replies.clients, shared=groups.clusters.models[0])
    replies = replies.of(np.isin(replies.clients, told.clients))
    features = evidence.standardised(told.means, told.spread, told.known)
    clients = len(replies)
    if clients < _FEWEST:
        return replies, None, {}
    cuts = grouping.merging(features, min(most, clients // 2))
    counts = replies.counts(groups.weighting)
    options = [None, *cuts.values()]
    means = (mixing.without_oneself(counts, cut) @ replies.model for cut in options)
    errors = np.stack([_errors(fed, replies, models) for models in means])
    distance = everywhere(evidence.class_distance(features), replies.clients, len(fed.names))
    noted = {"distance": distance, "errors_by_groups": errors.T}
    return replies, options[choosing.paying(errors, significance)], noted


def _errors(fed: Federation, replies: Replies, models: Models) -> np.ndarray:
    """The share of its training samples that a model [client] gets wrong, for each of the clients that answered."""
    found = fed.run(evaluate, replies.clients, each=models, on="train")
    errors = np.full(len(fed.names), np.nan)
    errors[found.clients] = 1 - found.accuracy.cpu().numpy()
    return errors[replies.clients]


def _described(net: Net, asked: Mapping[str, Any]) -> Declared:
    spread, known = Output(float, (net.classes,), least=0), Output(bool, (net.classes,))
    return {"means": Output(float, (net.classes, net.features)), "spread": spread, "known": known}


@program(gives=_described)
def describe_classes(clients: Clients, models: Models) -> Outputs:
    """Which labels the client has, what the last layer of a model gets for them in the mean, and how far that spreads.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> from coterie.server.parting import describe_classes
    >>> fed.run(describe_classes, shared=fed.new_model()).known.shape
    torch.Size([3, 10])
    """
    means, squares = clients.class_means(models)
    spread = (squares - means.square().sum(dim=2)).clamp(min=0)  # a mean of squares less a squared mean: the variance
    known = clients.label_counts() > 0
    return {"means": means.to(clients.net.dtype), "spread": spread.to(clients.net.dtype), "known": known}
