"""Compose: any evidence with any grouping and any mixing, to try what no paper did, and to take methods apart.

Rounds are FedAvg's until `group_round`. In that round all clients train and are compared, once or every `regroup`
rounds; from then on each trains and is served the model of its group. Every part is a move that published methods are
made of:

| part | move | what it is, and who has it |
|---|---|---|
| evidence | `labels` | shares of labels (CAFA Eq. 1): similarity 1 - d / sqrt(2) |
| | `weights` | distances of a layer's weights (AutoCFL Eq. 6): 1 - d / the greatest |
| | `updates` | cosines of changes (CFL, FL+HC): (1 + cosine) / 2 |
| | `inference` | agreement on samples of the server's (FLIS, Section 2.2) |
| grouping | `one` | all together: FedAvg |
| | `key` | by dominant label (CFIC Eq. 2); needs the evidence `labels` |
| | `vote` | gaps and votes (AutoCFL Algorithm 1) |
| | `neighbourhoods` | around every client those at least so similar; they overlap (FLIS-DC) |
| | `linkage` | a tree, cut by similarity or into so many clusters (FL+HC, FLIS-HC) |
| | `bipartition` | two groups as dissimilar as can be (CFL) |
| | `kmeans`, `silhouette` | k-means with k given, or chosen by silhouette (CAFA Eqs. 3-6) |
| | `dbscan`, `density` | dense regions (AutoCFL Table 4; HDBSCAN) |
| mixing | `samples`, `uniform` | members count by their samples, or alike |
| | `similarity` | for each client its own mix of its group, by similarity (SLFed Eq. 19) |

Distances are 1 - similarity, and features are the shares of labels, or a client's distances to all others.

What is sent: a model each way per client and round, and a label histogram with every comparison by `labels`. A client
gives away its trained model, and with `labels` how many samples of each label it has. A client that was not there when
groups were made is sent all models, chooses the one that fits its validation data best, and joins that group.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.clients.programs import choose, label_histogram, train
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, at_least, within
from coterie.core.records import state
from coterie.moves.evidence import dominant_label, inference_similarity, label_shares, update_cosine, weight_distance
from coterie.moves.grouping import (
    Grouping,
    bipartition,
    by_key,
    dbscan,
    density,
    kmeans,
    kmeans_silhouette,
    linkage,
    neighbourhoods,
    vote,
)
from coterie.moves.mixing import personal
from coterie.nets.stacks import Models, distances
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.server.serving import Served

__all__ = ["Compose"]


@state
class State:
    """The groups' models, which each client trains, and whose models they are mixed of."""

    models: Models
    home: Tensor
    """The place of each client's model, [client]; -1 before it is known."""
    weights: Tensor
    """What a client's model counts for in a group's, [group, client]."""


class Alike(NamedTuple):
    """How alike clients are."""

    similarity: np.ndarray
    """From 0 to 1, [client, client]."""
    features: np.ndarray
    """[client, feature]."""


@method("compose")
class Compose(Method):
    """Any evidence with any grouping and any mixing, which need not be from the same paper."""

    evidence: Literal["labels", "weights", "updates", "inference"] = "weights"
    """What clients are compared by."""

    grouping: Literal[
        "one", "key", "vote", "neighbourhoods", "linkage", "bipartition", "kmeans", "silhouette", "dbscan", "density"
    ] = "vote"
    """How groups are made of it."""

    mixing: Literal["samples", "uniform", "similarity"] = "samples"
    """What members of a group count for."""

    group_round: Count = 3
    """The round in which clients are compared and grouped. 3 is where AutoCFL does so."""

    regroup: Annotated[int, at_least(0)] = 0
    """Rounds after which they are grouped anew; 0 keeps the groups."""

    threshold: Annotated[float, within("[0, 1)", "a similarity in [0, 1); 0 is one group for all")] = 0.5
    """How similar clients of a group are at least, for `neighbourhoods`, `linkage` and `dbscan`."""

    clusters: Count | None = None
    """How many groups `kmeans` makes, or `linkage` instead of going by the threshold."""

    linkage: Literal["average", "complete", "single", "ward"] = "average"
    """What similarity between groups means to `linkage`."""

    guard: Annotated[float, at_least(0, "at least 0")] = 0.1
    """For `vote`: smaller gaps, relative to the median distance, are none (see AutoCFL)."""

    weighted: bool = True
    """For `vote`: votes count by samples, as in AutoCFL, or alike."""

    smallest: Annotated[int, at_least(2)] = 2
    """For `density` and `dbscan`: how many clients make a dense region."""

    layer: str = "last"
    """The layer whose `weights` are compared: the last as in AutoCFL, another by its name, or `all`."""

    predictions: Literal["hard", "soft"] = "hard"
    """For `inference`: predicted labels, or probabilities."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grouping == "key" and self.evidence != "labels":
            raise SettingsError(
                f"grouping=key with evidence={self.evidence}: only labels give a key; use evidence=labels"
            )
        if self.grouping == "kmeans" and self.clusters is None:
            raise SettingsError("grouping=kmeans: say how many with clusters, or let silhouette find out")

    @property
    def server_samples(self) -> int:
        """What FLIS has, where predictions on them are compared."""
        return 100 if self.evidence == "inference" else 0

    def begin(self, fed: Federation) -> State:
        """One fresh model for all."""
        if self.evidence == "inference":
            _ = fed.server  # says what to do if there is nothing to compare models on
        clients = len(fed.names)
        weights = torch.ones(1, clients, dtype=torch.float64)
        return State(fed.new_model().expand(1), torch.zeros(clients, dtype=torch.int64), weights)

    def round(self, fed: Federation, state: State) -> State:
        """Train the groups' models and mix them; in a round for that, compare everybody and make groups first."""
        since = fed.round - self.group_round
        grouping_now = since == 0 or (since > 0 and self.regroup > 0 and since % self.regroup == 0)
        state = self.placed(fed, state)
        cohort = fed.clients if grouping_now else fed.sample(self.participation)
        cohort = cohort[(state.home[cohort] >= 0).numpy()]
        if not len(cohort):
            return state
        counts = None
        if grouping_now and self.evidence == "labels":
            histograms = fed.run(label_histogram, cohort)
            cohort, counts = histograms.clients, histograms.label_histogram
        start = state.models[state.home[cohort]]
        replies = fed.run(train, cohort, each=start, local=self.local)
        if grouping_now:
            answered = np.isin(cohort, replies.clients)
            alike = self.compared(fed, replies, start[answered], None if counts is None else counts[answered])
            state = self.grouped(fed, replies, alike)
        weights = state.weights[:, replies.clients]
        weights = weights * replies.samples if self.mixing == "samples" else weights
        return State(replies.mixed(weights, state.models), state.home, state.weights)

    def placed(self, fed: Federation, state: State) -> State:
        """The state with a place for every client: one that has come since groups were made chooses the best."""
        more = len(fed.names) - len(state.home)
        only = len(state.models) == 1
        home, weights = F.pad(state.home, (0, more), value=-1), F.pad(state.weights, (0, more))
        new = fed.clients[(home[fed.clients] < 0).numpy()]
        if only:
            choice = torch.zeros(len(new), dtype=torch.int64)
        elif len(new):
            replies = fed.run(choose, new, shared=state.models, on="validation")
            new, choice = replies.clients, replies.choice.cpu()
        if len(new):
            home[new] = choice
            weights[choice, new] = weights.max(dim=1).values[choice]  # as much as the weightiest member
        return State(state.models, home, weights)

    def compared(self, fed: Federation, replies: Replies, start: Models, counts: Tensor | None) -> Alike:
        """How alike the clients are that answered."""
        if counts is not None:
            shares = label_shares(counts)
            return Alike(1 - distances(torch.from_numpy(shares)).numpy() / np.sqrt(2), shares)
        if self.evidence == "weights":
            distance = weight_distance(replies.model, self.layer)
            similarity = 1 - distance / (distance.max() or 1)
        elif self.evidence == "updates":
            similarity = (1 + update_cosine(replies.model - start)) / 2
            np.fill_diagonal(similarity, 1)
        else:
            outputs = fed.server.predict(replies.model)
            hard = self.predictions == "hard"
            similarity = inference_similarity(outputs.argmax(dim=-1) if hard else outputs.softmax(dim=-1))
        return Alike(similarity, 1 - similarity)

    def grouped(self, fed: Federation, replies: Replies, alike: Alike) -> State:
        """Groups of the clients that answered, each with a member's model until they are mixed."""
        groups = self.grouping_of(alike, replies.samples, fed.seed)
        if groups.disjoint:
            home = groups.labels
        else:  # a neighbourhood around every client, some of which may be the same
            groups, around = groups.distinct(), groups.matrix
            home = (groups.matrix[:, None] == around[None]).all(axis=-1).argmax(axis=0)
        if self.mixing == "similarity":
            weights = personal(alike.similarity * groups.matrix[home])
            home = np.arange(len(home))
        else:
            weights = torch.from_numpy(groups.matrix).double()
        everywhere = torch.zeros(len(weights), len(fed.names), dtype=torch.float64)
        everywhere[:, replies.clients] = weights
        homes = torch.full((len(fed.names),), -1)
        homes[replies.clients] = torch.from_numpy(home)
        return State(replies.model[weights.argmax(dim=1)], homes, everywhere)

    def grouping_of(self, alike: Alike, samples: Tensor, seed: int) -> Grouping:
        """The groups that a move makes of the evidence."""
        similarity, features = alike
        distance = 1 - similarity
        apart = 1 - self.threshold
        match self.grouping:
            case "one":
                return Grouping(np.ones((1, len(distance)), dtype=bool))
            case "key":
                return by_key(dominant_label(features))
            case "vote":
                return vote(distance, samples, self.weighted, self.guard)
            case "neighbourhoods":
                return neighbourhoods(similarity, self.threshold)
            case "linkage" if self.clusters is not None:
                return linkage(distance, groups=self.clusters, method=self.linkage)
            case "linkage":
                return linkage(distance, apart, method=self.linkage)
            case "bipartition":
                return bipartition(similarity)
            case "kmeans":
                return kmeans(features, self.clusters or 1, seed)
            case "silhouette":
                return kmeans_silhouette(features, seed=seed)
            case "dbscan":
                return dbscan(distance, apart, self.smallest, relative=False)
            case _:
                return density(distance, self.smallest)

    def serve(self, fed: Federation, state: State) -> Served:
        """To each client its group's model."""
        return serving.each(state.models, state.home.clamp(min=0))

    def insight(self, fed: Federation, state: State) -> Mapping[str, Any]:
        """Whose models each client's is mixed of, if all take part."""
        weights = state.weights * fed.sizes[: state.weights.shape[1]] if self.mixing == "samples" else state.weights
        mixed = (weights / weights.sum(dim=1, keepdim=True))[state.home.clamp(min=0)]
        return {"mixing": torch.where((state.home < 0)[:, None], torch.nan, mixed)}
