"""AutoCFL besides accuracy: losses of local training, distances of models, and clusters found in these."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.methods.autocfl import AutoCFL
from coterie.moves import evidence, grouping
from coterie.moves.agreement import agreement
from coterie.moves.grouping import Grouping
from coterie.runs.settings import World
from coterie.server.fitting import Checkpoint, Record, Result
from coterie.server.scoring import Scoring
from coterie.studies.measures import Measure, measures
from coterie.training.local import LocalTraining

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
            reported = _Reported()
            scoring = Scoring(evaluate_every=self.rounds, views=("served", "last"), global_test=False)
            result = self._method().fit(fed, scoring=scoring, observers=[reported])
            replies = fed.run(last_model)
            pace = result.state.pace
            samples, there = replies.samples.numpy(), replies.clients
            truth = None if fed.true_groups is None else fed.true_groups[there]
            distance = evidence.weight_distance(replies.model, self.layer)
        finally:
            fed.close()
        losses = np.stack(reported.losses)[:, there]
        summary: Record = {name: result.summary[name] for name in ("accuracy_mean", "loss_mean")}
        summary |= {"local_loss_mean": float(losses[-1].mean()), "local_loss_std": float(losses[-1].std())}
        summary["stop_round"] = first_rise(pace.variances)
        details: Record = {
            "clients": [fed.names[client] for client in there],
            "samples": samples.tolist(),
            "true_groups": None if truth is None else truth.tolist(),
            "losses": losses.tolist(),
            "loss_variance": list(pace.variances),
            "epochs": np.stack(reported.epochs)[:, there].tolist(),
            "distance": distance.tolist(),
        }
        if truth is not None:
            found = clusterings(distance, samples, truth, self.guard)
            summary |= _contrast(distance, truth) | _compared(found, truth)
            details["clusterings"] = {name: groups.labels.tolist() for name, groups in found.items()}
        return summary, details


class _Reported:
    """Keeps what clients reported in each round."""

    def __init__(self) -> None:
        self.losses: list[np.ndarray] = []
        self.epochs: list[np.ndarray] = []

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """Their losses of this round, and how many epochs they get in the next, [client]."""
        self.losses.append(checkpoint.state.pace.last.numpy())
        self.epochs.append(checkpoint.state.pace.epochs.numpy())

    def run_done(self, checkpoint: Checkpoint, result: Result) -> None:
        """Nothing is left to keep at the end."""


@program(simulated=True, gives={"model": MODEL})
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
