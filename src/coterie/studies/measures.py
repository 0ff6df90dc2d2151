"""Measures: what experiments look at besides the accuracy of a method.

A measure stands in a study where a method could stand, and runs in the same kind of world. It gives a summary, flat
numbers for tables, and details, lists for figures. What it trains, it trains through methods and programs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.programs import Outputs, program
from coterie.clients.synthesis import synthetic, unpacked
from coterie.core.errors import SettingsError
from coterie.core.registry import Registry
from coterie.methods.autocfl import AutoCFL
from coterie.moves import evidence, grouping, trust
from coterie.moves.agreement import agreement
from coterie.moves.grouping import Grouping
from coterie.runs.identity import REGISTRIES
from coterie.runs.settings import World
from coterie.server.fitting import Checkpoint, Record, Result
from coterie.server.scoring import Scoring
from coterie.training.local import LocalTraining

__all__ = [
    "ClientLabels",
    "LabelClusters",
    "LocalModels",
    "Measure",
    "SyntheticSamples",
    "TrustCourse",
    "measures",
]

_FREQUENT = 0.01
"""The share of a client's training data from which on a label counts as frequent."""

_MOMENTS = (4, 10, 30)
"""Rounds in which the uncertainty of opinions is told, besides the last."""

_EQUAL = 1e-9
"""Similarities that differ by less are the same."""


class Measure(ABC):
    """Base of all measures. A subclass declares its options as fields with a default and a docstring below."""

    name: ClassVar[str]

    gives: ClassVar[tuple[str, ...]] = ()
    """The numbers that may be in a summary: a study that asks for others is refused when it is read, and not after its
    runs."""

    @abstractmethod
    def run(self, world: World) -> tuple[Record, Record]:
        """Summary and details of a world; in the details, clients are in the order of `clients`."""


measures: Registry[Measure] = Registry("measure")
"""All measures by name."""

REGISTRIES["measure"] = measures


@measures.register("label-clusters")
class LabelClusters(Measure):
    """CAFA's classification of clients by their labels: is the largest cluster that of the IID ones?

    Clients are clustered by k-means over the label shares of their training data, and who is in the largest cluster
    passes for IID (Section III-A). Where the split says which clients are (its first true group), accuracy, precision,
    recall and F1 tell how right that is (Tables II and III). Nothing is trained. Figures find the label shares (Figs. 2
    and 5) and the silhouette of every k (Fig. 4).
    """

    gives = ("k", "silhouette", "accuracy", "precision", "recall", "f1")

    clusters: int | None = None
    """k; by default the one with the highest mean silhouette of 2 to the number of clients less one."""

    def __post_init__(self) -> None:
        if self.clusters is not None and self.clusters < 1:
            raise SettingsError(f"clusters={self.clusters}: at least 1")

    def run(self, world: World) -> tuple[Record, Record]:
        """Cluster the clients of a world, and compare the largest cluster with the IID clients."""
        population = world.population
        shares = evidence.label_shares(population.label_counts())
        found, scores = self._found(shares, world.seed)
        largest = grouping.largest_group(found.labels, shares).matrix[0]
        summary: Record = {"k": len(found)}
        if scores:
            summary["silhouette"] = max(scores.values())
        if population.groups is not None:
            summary |= classification(largest, population.groups == 0)
        details = {
            "clients": list(population.names),
            "true_groups": None if population.groups is None else population.groups.tolist(),
            "classes": list(population.labels),
            "label_shares": shares.tolist(),
            "clusters": found.labels.tolist(),
            "iid": largest.tolist(),
            "silhouette": [[k, score] for k, score in scores.items()],
        }
        return summary, details

    def _found(self, shares: np.ndarray, seed: int) -> tuple[Grouping, Mapping[int, float]]:
        """The clusters, and the mean silhouette of every k that was tried."""
        if self.clusters is not None:
            return grouping.kmeans(shares, self.clusters, seed=seed), {}
        found = grouping.kmeans_silhouette(shares, seed=seed)
        return found, found.scores


def classification(flagged: np.ndarray, truth: np.ndarray) -> dict[str, float | None]:
    """Accuracy, precision, recall and F1 of a flag per client; nothing where a share is of no clients at all."""
    flagged, truth = np.asarray(flagged, dtype=bool), np.asarray(truth, dtype=bool)
    right = int((flagged & truth).sum())
    shares = {
        "accuracy": (int((flagged == truth).sum()), len(truth)),
        "precision": (right, int(flagged.sum())),
        "recall": (right, int(truth.sum())),
        "f1": (2 * right, int(flagged.sum() + truth.sum())),
    }
    return {name: part / whole if whole else None for name, (part, whole) in shares.items()}


_CLUSTERINGS = ("voting", "unweighted", "kmeans", "linkage", "dbscan")


@measures.register("local-models")
class LocalModels(LocalTraining, Measure):
    """What all clients make of one model in some rounds of FedAvg: losses, distances, and clusters found in these.

    Clients are compared as AutoCFL compares them when it clusters in the last of these rounds: to the last bit, it is
    the same training. The losses are those of local training, a client's last epoch (AutoCFL's Figs. 4, 5 and 10); the
    distances those between the models that clients return in the last round (Figs. 2, 3 and 8). `contrast` is the mean
    distance of clients of different true groups over that of clients of the same.

    The same distances then go to five clusterings (Tables 4 and 5): AutoCFL's voting, weighted and not, k-means over
    the rows of the matrix and complete linkage, which are told the true number of groups, and DBSCAN. The paper
    configures its competitors "with the optimal values": so DBSCAN gets the one of all radii with which it comes
    nearest to the truth, an oracle to its advantage.
    """

    gives = (
        *("accuracy_mean", "loss_mean", "local_loss_mean", "local_loss_std", "stop_round", "contrast", "identical"),
        *(f"{name}_{key}" for name in _CLUSTERINGS for key in ("groups", "ari", "placed_right")),
    )

    rounds: int = 3
    """How many rounds of FedAvg there are, with all clients; AutoCFL clusters in round 3 unless told otherwise."""

    adjust: bool = False
    """Give clients that lag behind more epochs, as AutoCFL does."""

    growth: float = 0.5
    """alpha of that adjustment: how fast epochs grow."""

    layer: Literal["last", "all"] = "last"
    """Which weights are compared: the last layer's, as AutoCFL does, or all, as in its Section 3.3."""

    guard: float = 0.1
    """How wide the widest gap in a row of distances must be for the voting to count, as part of their median."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._method()  # it checks what is told to it

    def _method(self) -> AutoCFL:
        """FedAvg whose clients report losses: AutoCFL that never comes to clustering."""
        local = {field.name: getattr(self, field.name) for field in fields(LocalTraining)}
        return AutoCFL(
            **local,
            rounds=self.rounds,
            adjust=self.adjust,
            growth=self.growth,
            guard=self.guard,
            cluster_round=self.rounds + 1,
        )

    def run(self, world: World) -> tuple[Record, Record]:
        """Train, and look at losses and distances."""
        fed = world.federation()
        try:
            course = _Course()
            scoring = Scoring(evaluate_every=self.rounds, views=("served", "last"), global_test=False)
            result = self._method().fit(fed, scoring=scoring, observers=[course])
            replies = fed.run(last_model)
            pace = result.state.pace
            samples, there = replies.samples.numpy(), replies.clients
            truth = None if fed.true_groups is None else fed.true_groups[there]
            distance = evidence.weight_distance(replies.model, self.layer)
        finally:
            fed.close()
        losses = np.stack(course.losses)[:, there]
        summary: Record = {name: result.summary[name] for name in ("accuracy_mean", "loss_mean")}
        summary |= {"local_loss_mean": float(losses[-1].mean()), "local_loss_std": float(losses[-1].std())}
        summary["stop_round"] = first_rise(pace.variances)
        details: Record = {
            "clients": [fed.names[client] for client in there],
            "samples": samples.tolist(),
            "true_groups": None if truth is None else truth.tolist(),
            "losses": losses.tolist(),
            "loss_variance": list(pace.variances),
            "epochs": np.stack(course.epochs)[:, there].tolist(),
            "distance": distance.tolist(),
        }
        if truth is not None:
            found = clusterings(distance, samples, truth, self.guard)
            summary |= _contrast(distance, truth) | _compared(found, truth)
            details["clusterings"] = {name: groups.labels.tolist() for name, groups in found.items()}
        return summary, details


class _Course:
    """Keeps what clients reported in each round."""

    def __init__(self) -> None:
        self.losses: list[np.ndarray] = []
        self.epochs: list[np.ndarray] = []

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """Their losses of this round, and how many epochs they get in the next, [client]."""
        self.losses.append(checkpoint.state.pace.last.numpy())
        self.epochs.append(checkpoint.state.pace.epochs.numpy())

    def run_done(self, checkpoint: Checkpoint, result: Result) -> None:
        """There is no more."""


@program
def last_model(clients: Clients) -> Outputs:
    """The model that the client trained last."""
    return {"model": clients.state("_last", otherwise=clients.initial())}


def first_rise(variances: tuple[float, ...]) -> int:
    """The round, counted from 1, in which a course first rises; the last if it never does."""
    rises = np.flatnonzero(np.diff(variances) > 0)
    return int(rises[0]) + 2 if len(rises) else len(variances)


def clusterings(
    distance: np.ndarray, samples: np.ndarray, truth: np.ndarray, guard: float = 0.1
) -> dict[str, Grouping]:
    """What different clusterings make of the same distances [client, client]; see `LocalModels`."""
    groups = len(np.unique(truth))
    return {
        "voting": grouping.vote(distance, samples, guard=guard),
        "unweighted": grouping.vote(distance, samples, weighted=False, guard=guard),
        "kmeans": grouping.kmeans(distance, groups),
        "linkage": grouping.linkage(distance, groups=groups, method="complete"),
        "dbscan": _best_dbscan(distance, truth),
    }


def _best_dbscan(distance: np.ndarray, truth: np.ndarray) -> Grouping:
    """DBSCAN with the radius that comes nearest to the truth, the smallest of equals."""
    radii = np.unique(distance[np.triu_indices(len(distance), 1)])
    tried = [grouping.dbscan(distance, radius, relative=False) for radius in radii[radii > 0]]
    return max(tried, key=lambda found: agreement(found.labels, truth)["ari"], default=Grouping.of(0 * truth))


def _contrast(distance: np.ndarray, truth: np.ndarray) -> Record:
    """How much farther apart clients of different groups are than clients of the same, on average."""
    same, pairs = truth[:, None] == truth, np.triu(np.ones_like(distance, dtype=bool), 1)
    within, between = distance[same & pairs], distance[~same & pairs]
    if not len(within) or not len(between) or not within.mean():
        return {"contrast": None}
    return {"contrast": float(between.mean() / within.mean())}


def _compared(found: Mapping[str, Grouping], truth: np.ndarray) -> Record:
    """How each clustering agrees with the truth, and whether voting, k-means, linkage and DBSCAN agree in all."""
    summary: Record = {}
    for name, groups in found.items():
        agreed = agreement(groups.labels, truth)
        summary |= {f"{name}_groups": len(groups)} | {f"{name}_{key}": agreed[key] for key in ("ari", "placed_right")}
    labels: list[Any] = [found[name].labels.tolist() for name in ("voting", "kmeans", "linkage", "dbscan")]
    return summary | {"identical": float(all(other == labels[0] for other in labels))}


@measures.register("client-labels")
class ClientLabels(Measure):
    """Who has which labels: how many samples and labels clients have, and how far one label dominates (CFIC's Fig. 2).

    Of the training data. `dominant_labels` is how many clusters CFIC would make of the clients.
    """

    gives = (
        *("samples_min", "samples_mean", "samples_max", "labels_mean"),
        *("frequent_labels_mean", "largest_share_mean", "dominant_labels"),
    )

    def run(self, world: World) -> tuple[Record, Record]:
        """Count the labels of every client."""
        population = world.population
        counts = population.label_counts()
        shares, sizes = evidence.label_shares(counts), counts.sum(axis=1)
        summary = {
            "samples_min": int(sizes.min()),
            "samples_mean": float(sizes.mean()),
            "samples_max": int(sizes.max()),
            "labels_mean": float((counts > 0).sum(axis=1).mean()),
            "frequent_labels_mean": float((shares > _FREQUENT).sum(axis=1).mean()),
            "largest_share_mean": float(shares.max(axis=1).mean()),
            "dominant_labels": len(np.unique(evidence.dominant_label(shares))),
        }
        details = {
            "clients": list(population.names),
            "classes": list(population.labels),
            "counts": counts.tolist(),
            "shares": shares.tolist(),
        }
        return summary, details


@measures.register("trust-course")
class TrustCourse(Measure):
    """How opinions spread among clients, as in SLFed but without any model (its Fig. 6).

    Clients are as similar as the cosine of their label shares: what Eq. 2 gives for classifiers and GANs without error.
    With `groups` they are alike in groups instead, whatever their data is. `contrast` is how much of a difference in
    true similarity shows in what clients believe in the end, the s of their opinions: mixed models depend on it.
    """

    gives = (
        *("reached", "chosen_mean", "chosen_max", "uncertainty_mean", "contrast"),
        *(f"uncertainty_mean_{number}" for number in _MOMENTS),
    )

    rounds: int = 50
    """How many rounds clients meet and talk."""

    direct: int = 2
    """DS: how many others a client picks to meet in a round."""

    opinions: Literal["persistent", "direct"] = "persistent"
    """Clients keep what they made of what they were told, and tell it on; or tell only what they have seen."""

    groups: int = 0
    """Clients in so many groups of equal size, instead of by their labels."""

    within: float = 0.9
    """Similarity of clients of the same group."""

    between: float = 0.3
    """Similarity of clients of different groups."""

    def __post_init__(self) -> None:
        for name in ("rounds", "direct"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: at least 1")
        if self.groups < 0:
            raise SettingsError(f"groups={self.groups}: 0 or more")
        for name in ("within", "between"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name}={getattr(self, name)}: a similarity from 0 to 1")

    def run(self, world: World) -> tuple[Record, Record]:
        """Let the clients of a world meet."""
        similarity = self._similarity(world)
        course = trust.course(similarity, self.rounds, self.direct, self.opinions, world.seed)
        means = course.uncertainty.mean(axis=1)
        summary: Record = {
            "reached": course.reached,
            "chosen_mean": float(course.chosen[-1].mean()),
            "chosen_max": int(course.chosen.max()),
            "uncertainty_mean": float(means[-1]),
            "contrast": _told_apart(course.opinions, similarity),
        }
        summary |= {
            f"uncertainty_mean_{number}": float(means[number - 1]) for number in _MOMENTS if number <= self.rounds
        }
        details = {
            "clients": list(world.population.names),
            "uncertainty": course.uncertainty.tolist(),
            "chosen": course.chosen.tolist(),
            "known": course.known.tolist(),
            "similarity": similarity.tolist(),
            "believed": course.opinions[..., 0].tolist(),
        }
        return summary, details

    def _similarity(self, world: World) -> np.ndarray:
        """How similar clients truly are, [client, client]."""
        if self.groups:
            group = np.arange(len(world.population)) % self.groups
            return np.where(group[:, None] == group, self.within, self.between)
        shares = evidence.label_shares(world.population.label_counts())
        directions = shares / np.linalg.norm(shares, axis=1, keepdims=True)
        return np.clip(directions @ directions.T, 0, 1)


def _told_apart(opinions: np.ndarray, similarity: np.ndarray) -> float | None:
    """The slope of believed over true similarity, for pairs that know each other; nothing if all are equally alike."""
    known = ~np.eye(len(similarity), dtype=bool) & (opinions[..., 2] < 1)
    believed, true = opinions[..., 0][known], similarity[known]
    deviations = true - true.mean() if len(true) else true
    if not np.abs(deviations).max(initial=0) > _EQUAL:
        return None
    return float(deviations @ believed / (deviations @ deviations))


@measures.register("synthetic-samples")
class SyntheticSamples(Measure):
    """What the weak GANs of SLFed's clients show of their data (its Fig. 5).

    `spread` is the deviation over a client's synthetic samples as part of that over its own, both per number and then
    averaged: 0 if the GAN makes one sample again and again. `gap` is how far the mean sample is from the mean of the
    client's own, in deviations of its data.
    """

    gives = ("spread_mean", "gap_mean")

    gan_steps: int = 200
    """Steps of the training of the GAN."""

    gan_rate: float = 0.1
    """Learning rate of the GAN, with SGD and momentum."""

    synthetic: int = 200
    """Synthetic samples of each client that are compared with its data."""

    shown: int = 8
    """Samples of each client that a figure finds in the details."""

    def __post_init__(self) -> None:
        for name in ("gan_steps", "synthetic", "shown"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: at least 1")
        if self.shown > self.synthetic:
            raise SettingsError(f"shown={self.shown}: there are {self.synthetic} synthetic samples of a client")

    def run(self, world: World) -> tuple[Record, Record]:
        """Train the GANs of all clients once, as they do in SLFed's first round."""
        gan = LocalTraining(steps=self.gan_steps, batch=32, rate=self.gan_rate, momentum=0.5, clip=1.0)
        fed = world.federation()
        try:
            fed.begin(rounds=1)
            fed.start_round(1)
            replies = fed.run(show_samples, gan=gan, count=self.synthetic)
            names = [fed.names[client] for client in replies.clients]
        finally:
            fed.close()
        population = world.population
        channel = (-1, *[1] * (len(population.shape) - 1))
        scale, shift = population.scale.reshape(channel), population.shift.reshape(channel)
        spreads, gaps, shown = [], [], []
        for client, samples in zip(replies.clients, replies.samples.numpy(), strict=True):
            own = (population.x[population.shards[client].train].astype(np.float64) - shift) / scale
            spreads.append(float(samples.std(axis=0).mean() / max(own.std(axis=0).mean(), 1e-12)))
            gaps.append(float(np.abs(samples.mean(axis=0) - own.mean(axis=0)).mean() / max(own.std(), 1e-12)))
            images = np.clip(np.rint(samples[: self.shown] * scale + shift), 0, 255)
            shown.append(images.astype(np.uint8).tolist())
        summary = {"spread_mean": float(np.mean(spreads)), "gap_mean": float(np.mean(gaps))}
        counts = population.label_counts()[replies.clients]
        details = {"clients": names, "counts": counts.tolist(), "spread": spreads, "gap": gaps, "images": shown}
        return summary, details


@program
def show_samples(clients: Clients, gan: LocalTraining, count: int) -> Outputs:
    """Synthetic samples of every client, in the units of prepared inputs."""
    samples: Tensor = unpacked(*synthetic(clients, gan, count, since=1))
    return {"samples": samples.float().cpu()}
