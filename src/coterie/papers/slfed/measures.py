"""SLFed besides accuracy: how opinions spread, and what the weak GANs of its clients show of their data."""

from typing import Annotated, Literal

import numpy as np
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import Output
from coterie.clients.programs import Outputs, program
from coterie.clients.synthesis import synthetic, unpacked
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, at_least, within
from coterie.moves import evidence, trust
from coterie.runs.settings import World
from coterie.server.fitting import Record
from coterie.studies.measures import Measure, measures
from coterie.training.local import LocalTraining

_MOMENTS = (4, 10, 30)
"""Rounds in which the uncertainty of opinions is told, besides the last."""

_EQUAL = 1e-9
"""Similarities that differ by less are the same."""

_Similarity = Annotated[float, within("[0, 1]", "a similarity from 0 to 1")]


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

    rounds: Count = 50
    """How many rounds clients meet and talk."""

    direct: Count = 2
    """DS: how many others a client picks to meet in a round."""

    opinions: Literal["persistent", "direct"] = "persistent"
    """Clients keep what they made of what they were told, and tell it on; or tell only what they have seen."""

    groups: Annotated[int, at_least(0)] = 0
    """Clients in so many groups of equal size, instead of by their labels."""

    within: _Similarity = 0.9
    """Similarity of clients of the same group."""

    between: _Similarity = 0.3
    """Similarity of clients of different groups."""

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

    gan_steps: Count = 200
    """Steps of the training of the GAN."""

    gan_rate: float = 0.1
    """Learning rate of the GAN, with SGD and momentum."""

    synthetic: Count = 200
    """Synthetic samples of each client that are compared with its data."""

    shown: Count = 8
    """Samples of each client that a figure finds in the details."""

    def __post_init__(self) -> None:
        super().__post_init__()
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


@program(simulated=True, gives=lambda net, asked: {"samples": Output(float, (asked["count"], *net.shape))})
def show_samples(clients: Clients, gan: LocalTraining, count: int) -> Outputs:
    """Synthetic samples of every client, in the units of prepared inputs."""
    samples: Tensor = unpacked(*synthetic(clients, gan, count, since=1))
    return {"samples": samples.float().cpu()}
