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
| | `linkage` | a tree, cut by similarity or into `clusters` (FL+HC, FLIS-HC) |
| | `bipartition` | two groups as dissimilar as can be (CFL) |
| | `kmeans`, `silhouette` | k-means with k given, or chosen by silhouette (CAFA Eqs. 3-6) |
| | `dbscan`, `density` | dense regions (AutoCFL Table 4; HDBSCAN) |
| mixing | `samples`, `uniform` | members count by their samples, or alike |
| | `similarity` | for each client its own mix of its group, by similarity (SLFed Eq. 19) |
| robust | `median`, `trimmed-mean` | of each number, by these weights, where a group's mean would be (Yin et al.) |
| | `geometric-median` | of the models (Pillutla et al.) |

`coterie.moves.composing` puts evidence and groupings together. A client that was not there when groups were made is
sent all models, chooses the one that fits its validation data best, and joins that group.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients.programs import choose, label_histogram, train
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, at_least, within
from coterie.core.records import state
from coterie.moves import composing
from coterie.moves.mixing import personal
from coterie.nets.stacks import Models
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method


@state
class ComposeState:
    """The groups' models, which of them each client trains, and of whose models they are mixed."""

    models: Models
    home: Tensor
    """The place of each client's model, [client]; -1 before it is known."""
    weights: Tensor
    """The weight of each client's model in each group's, [group, client]."""


@method("compose")
class Compose(Method):
    """Any evidence with any grouping and any mixing, which need not be from the same paper."""

    family = "own"
    sends = "a model each way, and a label histogram up with every comparison by labels"
    gives_away = "its trained model, and with the evidence `labels` how many samples of each label it has"

    evidence: Literal["labels", "weights", "updates", "inference"] = "weights"
    """What clients are compared by."""

    grouping: Literal[
        "one", "key", "vote", "neighbourhoods", "linkage", "bipartition", "kmeans", "silhouette", "dbscan", "density"
    ] = "vote"
    """How clients are grouped by it."""

    mixing: Literal["samples", "uniform", "similarity"] = "samples"
    """How the members of a group are weighted."""

    robust: Literal["none", "median", "trimmed-mean", "geometric-median"] = "none"
    """What stands in for the mean of a group's models, so that a few hostile or broken members cannot lead it astray;
    see `coterie.robust`. Weights are those of `mixing`: with `samples`, who claims many has much to say."""

    trimmed: Annotated[float, within("[0, 0.5)")] = 0.2
    """For `trimmed-mean`: the part of a group's weight that is cut at either end; as much may be in hostile hands."""

    group_round: Count = 3
    """The round in which clients are compared and grouped. 3 is where AutoCFL does so."""

    regroup: Annotated[int, at_least(0)] = 0
    """Rounds after which they are grouped anew; 0 keeps the groups."""

    threshold: Annotated[float, within("[0, 1)", "a similarity in [0, 1); 0 is one group for all")] = 0.5
    """For `neighbourhoods`, `linkage` and `dbscan`: how similar clients of a group must be."""

    clusters: Count | None = None
    """How many groups `kmeans` makes, or `linkage` instead of going by the threshold."""

    linkage: Literal["average", "complete", "single", "ward"] = "average"
    """For `linkage`: how the similarity of two groups follows from that of their clients."""

    guard: Annotated[float, at_least(0, "at least 0")] = 0.1
    """For `vote`: gaps that are a smaller part of the median distance do not count (see AutoCFL)."""

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
        """As many as FLIS has if predictions on them are compared, else none."""
        return 100 if self.evidence == "inference" else 0

    @property
    def needs_classes(self) -> str:
        """Why it needs classes with this evidence."""
        about = {"labels": "shares of classes", "inference": "predicted classes"}.get(self.evidence)
        return f"compares clients by {about} (evidence=weights and updates do not)" if about else ""

    def begin(self, fed: Federation) -> ComposeState:
        """One fresh model for all clients, who are one group."""
        if self.evidence == "inference":
            _ = fed.server  # says what to do if there is nothing to compare models on
        clients = len(fed.names)
        weights = torch.ones(1, clients, dtype=torch.float64)
        return ComposeState(fed.new_model().expand(1), torch.zeros(clients, dtype=torch.int64), weights)

    def round(self, fed: Federation, state: ComposeState) -> ComposeState:
        """Let clients train their groups' models, and mix them; in some rounds make new groups of all clients first."""
        due, state = fed.is_due(self.group_round, self.regroup), self._placed(fed, state)
        cohort = np.setdiff1d(fed.clients if due else fed.sample(self.participation), fed.unplaced(state.home))
        if not len(cohort):
            return state
        counts = torch.zeros(0)
        if due and self.evidence == "labels":
            histograms = fed.run(label_histogram, cohort)
            cohort, counts = histograms.clients, histograms.label_histogram
        start = state.models[state.home[cohort]]
        replies = fed.run(train, cohort, each=start, local=self.local)
        if due:
            answered = torch.from_numpy(np.isin(cohort, replies.clients))
            alike = self._compared(fed, replies, start[answered], counts[answered] if len(counts) else counts)
            state = self._grouped(fed, replies, alike)
        weights = state.weights[:, replies.clients]
        weights = weights * replies.samples if self.mixing == "samples" else weights
        if self.robust != "none":
            models = composing.robustly_mixed(weights, replies.model, state.models, self)
            return ComposeState(models, state.home, state.weights)
        return ComposeState(replies.mixed(weights, state.models), state.home, state.weights)

    def _placed(self, fed: Federation, state: ComposeState) -> ComposeState:
        """The state with a place for every client: one that has come since groups were made chooses the best."""
        home, weights = fed.grown(state.home, -1), fed.grown(state.weights, axis=1).clone()
        new = fed.unplaced(home)
        choice = torch.zeros(len(new), dtype=torch.int64)
        if len(new) and len(state.models) > 1:
            replies = fed.run(choose, new, shared=state.models, on="validation")
            new, choice = replies.clients, replies.choice.cpu()
        weights[choice, new] = weights.max(dim=1).values[choice]  # as much as the weightiest member
        return ComposeState(state.models, fed.updated(home, new, choice), weights)

    def _compared(self, fed: Federation, replies: Replies, start: Models, counts: Tensor) -> composing.Alike:
        """How alike the clients are that answered."""
        match self.evidence:
            case "labels":
                return composing.by_labels(counts)
            case "weights":
                return composing.by_weights(replies.model, self.layer)
            case "updates":
                return composing.by_updates(replies.model - start)
            case _:
                return composing.by_inference(fed.server.predict(replies.model), self.predictions == "hard")

    def _grouped(self, fed: Federation, replies: Replies, alike: composing.Alike) -> ComposeState:
        """Groups of the clients that answered; each has a member's model until they are mixed."""
        groups, home = composing.home_of(composing.grouped(alike, replies.samples, fed.seed, self))
        weights = torch.from_numpy(groups.matrix).double()
        if self.mixing == "similarity":
            weights, home = personal(alike.similarity * groups.matrix[home]), np.arange(len(home))
        nobody = torch.empty(0, len(weights), dtype=torch.float64)
        everywhere = fed.updated(nobody, replies.clients, weights.T).T
        homes = fed.updated(torch.empty(0, dtype=torch.int64), replies.clients, home, otherwise=-1)
        return ComposeState(replies.model[weights.argmax(dim=1)], homes, everywhere)

    def serve(self, fed: Federation, state: ComposeState) -> serving.Served:
        """To each client its group's model."""
        return serving.each(state.models, state.home.clamp(min=0))

    def insight(self, fed: Federation, state: ComposeState) -> Mapping[str, Any]:
        """The weights by which each client's model is mixed of all models, if all take part; none if it is no mean."""
        if self.robust != "none":
            return {}
        weights = state.weights * fed.sizes[: state.weights.shape[1]] if self.mixing == "samples" else state.weights
        mixed = (weights / weights.sum(dim=1, keepdim=True))[state.home.clamp(min=0)]
        return {"mixing": torch.where((state.home < 0)[:, None], torch.nan, mixed)}
