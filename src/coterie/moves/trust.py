"""Subjective logic: what a client believes of others, from own experience and from what they tell it.

An *opinion* is an array [..., 3] of (similarity, dissimilarity, uncertainty), three shares of 1. Who knows nothing has
the opinion (0, 0, 1): fused with another it changes nothing, and neither does what a stranger tells, nor what anybody
tells about a stranger. So a table of opinions [client, 3] needs no mark of who is known. All functions take arrays,
lists or tensors of any leading axes and give arrays of float64.

Jøsang, "A logic for uncertain probabilities", 2001, in the form of Eqs. 3-16 of SLFed (Palanisamy Sundar, Li, Zou and
Gao, "Subjective logic-based decentralized federated learning for non-IID data", ARES 2024).

>>> mine, told = coterie.trust.opinion(4, 0), coterie.trust.opinion(1, 1)
>>> coterie.trust.consensus(coterie.trust.NOTHING, coterie.trust.discount(mine, told)).round(2)
array([0.17, 0.17, 0.67])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.errors import SettingsError
from coterie.core.randomness import generator

Store = Literal["persistent", "direct"]

NOTHING = np.array([0.0, 0.0, 1.0])
"""The opinion of somebody who knows nothing."""

_SLACK = 1e-12
"""An uncertainty that is above the threshold by less counts as on it: a mean of equal numbers may be rounded."""


def opinion(alpha: Any, beta: Any) -> np.ndarray:
    """The opinion [..., 3] that evidence for (alpha) and against (beta) similarity gives (Eqs. 3-5).

    SLFed starts from 1 and 1, which is (.25, .25, .5), and an encounter adds exactly 1 to their sum: after k of them
    the uncertainty is 2 / (4 + k), whether they agree or not.

    >>> coterie.trust.opinion(alpha=1, beta=1)
    array([0.25, 0.25, 0.5 ])
    """
    alpha, beta = np.broadcast_arrays(_numbers(alpha), _numbers(beta))
    if (alpha < 0).any() or (beta < 0).any():
        raise SettingsError("opinion: evidence below 0")
    return np.stack([alpha, beta, np.full_like(alpha, 2.0)], axis=-1) / (alpha + beta + 2)[..., None]


def are_opinions(values: np.ndarray) -> bool:
    """Whether values [..., 3] are opinions: shares that sum to 1, but for rounding.

    >>> coterie.trust.are_opinions(np.array([0.5, 0.2, 0.3])), coterie.trust.are_opinions(np.array([0.5, 0.2, 0.4]))
    (True, False)
    """
    return bool((values >= -_SLACK).all() and np.allclose(values.sum(axis=-1), 1, rtol=0, atol=1e-6))


def discount(a: Any, b: Any) -> np.ndarray:
    """What to make of an opinion `b` that one is told by somebody of whom one's own opinion is `a` (Eqs. 7-10).

    >>> coterie.trust.discount([0.5, 0.0, 0.5], [0.8, 0.2, 0.0])
    array([0.4, 0.1, 0.5])
    """
    a, b = _opinions(a), _opinions(b)
    believed = a[..., :1]
    told = believed * b
    return np.concatenate([told[..., :2], 1 - believed + told[..., 2:]], axis=-1)  # d_B + u_B is 1 - s_B


def consensus(a: Any, b: Any) -> np.ndarray:
    """Two opinions on the same client as one (Eqs. 11-15): commutative and associative, but not idempotent.

    Whatever is told twice counts twice. Two opinions without any uncertainty, for which Eq. 15 gives 0 / 0, are given
    the limit for equal uncertainties: their mean.

    >>> coterie.trust.consensus([0.5, 0.0, 0.5], [0.5, 0.0, 0.5]).round(3)
    array([0.667, 0.   , 0.333])
    """
    a, b = _opinions(a), _opinions(b)
    u, v = a[..., 2:], b[..., 2:]
    total = u + v - u * v  # K
    certain = total <= 0
    safe = np.where(certain, 1, total)
    fused = np.concatenate([(a[..., :2] * v + b[..., :2] * u) / safe, u * v / safe], axis=-1)
    return np.where(certain, (a + b) / 2, fused)


def uncertainty_threshold(uncertainties: Any) -> np.ndarray:
    """SLFed's tau, [...], for uncertainties [..., client] (Eq. 16); NaN stands for a client that is not known.

    It is their mean where that is below the median, and otherwise the mean of the lower half (rounded down, but at
    least one). With nobody known it is NaN, which nothing is below.

    >>> float(coterie.trust.uncertainty_threshold([0.25, 0.5, 0.75, np.nan]))
    0.25
    """
    ordered = np.sort(_numbers(uncertainties), axis=-1)  # NaN comes last
    known = (~np.isnan(ordered)).sum(axis=-1, keepdims=True)
    sums = np.cumsum(np.nan_to_num(ordered), axis=-1)

    def at(values: np.ndarray, place: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, np.maximum(place, 0), axis=-1)

    half = np.maximum(known // 2, 1)
    mean = at(sums, known - 1) / np.maximum(known, 1)
    median = (at(ordered, (known - 1) // 2) + at(ordered, known // 2)) / 2
    tau = np.where(mean < median, mean, at(sums, half - 1) / half)
    return np.where(known > 0, tau, np.nan)[..., 0][()]


def trusted(opinions: Any) -> np.ndarray:
    """Who of opinions [..., client, 3] is certain enough to contribute, [..., client]: SLFed's PAM_list.

    >>> coterie.trust.trusted([[0.8, 0.1, 0.1], [0.4, 0.1, 0.5], [0.0, 0.0, 1.0]])
    array([ True, False, False])
    """
    uncertainty = _opinions(opinions)[..., 2]
    known = np.where(uncertainty < 1, uncertainty, np.nan)
    return known <= uncertainty_threshold(known)[..., None] + _SLACK


# From encounters to a table of opinions


def meetings(generators: Sequence[np.random.Generator], direct: int) -> np.ndarray:
    """Who meets whom, [client, client]: each client draws `direct` others, and a meeting is mutual.

    >>> generators = [np.random.default_rng(client) for client in range(3)]
    >>> coterie.trust.meetings(generators, direct=2).astype(int)
    array([[0, 1, 1],
           [1, 0, 1],
           [1, 1, 0]])
    """
    count = len(generators)
    links = np.zeros((count, count), dtype=bool)
    for client, rng in enumerate(generators):
        others = np.delete(np.arange(count), client)
        links[client, rng.permutation(others)[:direct]] = True
    return links | links.T


def met(
    evidence: np.ndarray, opinions: np.ndarray, similarity: np.ndarray, store: Store = "persistent"
) -> tuple[np.ndarray, np.ndarray]:
    """Evidence [..., client, 2] and opinions [..., client, 3] after encounters (Section 5.3.1).

    `similarity` [..., client] is NaN for clients that were not met. The fresh opinion is fused with the stored one; in
    the store `direct` nothing but evidence is kept, and opinions are what it gives.

    >>> evidence, opinions = np.ones((2, 2)), np.array([[0.0, 0.0, 1.0]] * 2)
    >>> evidence, opinions = coterie.trust.met(evidence, opinions, similarity=np.array([np.nan, 1.0]))
    >>> opinions[1]  # of the one that was met
    array([0.4, 0.2, 0.4])
    """
    new = ~np.isnan(similarity)
    value = np.where(new, similarity, 0)
    if ((value < 0) | (value > 1)).any():
        raise SettingsError("similarity: shares from 0 to 1")
    evidence = evidence + np.where(new[..., None], np.stack([value, 1 - value], axis=-1), 0)
    direct = opinion(evidence[..., 0], evidence[..., 1])
    if store == "direct":
        seen = evidence.sum(axis=-1, keepdims=True) > 2
        return evidence, np.where(seen, direct, NOTHING)
    return evidence, np.where(new[..., None], consensus(opinions, direct), opinions)


def heard(own: np.ndarray, me: int, told: Mapping[int, np.ndarray]) -> np.ndarray:
    """A client's opinions [client, 3] after others, by position, have told it theirs (Section 5.3.2, Fig. 2).

    What they think of the client itself does not matter, and they have no opinion of themselves.

    >>> own = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    >>> coterie.trust.heard(own, me=0, told={1: np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.8, 0.0, 0.2]])})
    array([[0. , 0. , 1. ],
           [0.5, 0. , 0.5],
           [0.4, 0. , 0.6]])
    """
    result = own
    for other, opinions in told.items():
        second_hand = discount(own[other], opinions)
        second_hand[me] = second_hand[other] = NOTHING
        result = consensus(result, second_hand)
    return result


def summarised(uncertainty: np.ndarray) -> dict[str, np.ndarray]:
    """Each client's mean uncertainty [client, other] about those it knows, and how many it has chosen and knows.

    >>> coterie.trust.summarised(np.array([[1.0, 0.2, 0.4], [0.2, 1.0, 1.0], [0.4, 1.0, 1.0]]))["known"]
    array([2, 1, 1])
    """
    known = uncertainty < 1
    opinions = np.stack([np.zeros_like(uncertainty), 1 - uncertainty, uncertainty], axis=-1)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, uncertainty, 0).sum(axis=1) / known.sum(axis=1)
    return {"uncertainty": mean, "chosen": trusted(opinions).sum(axis=1), "known": known.sum(axis=1)}


# The trust layer without any learning


@dataclass(frozen=True)
class OpinionCourse:
    """How opinions develop over rounds, the two halves of SLFed's Fig. 6.

    >>> coterie.trust.course(np.ones((4, 4)), rounds=3, direct=1).chosen.shape
    (3, 4)
    """

    uncertainty: np.ndarray
    """Mean uncertainty of each client about those it knows, [round, client]."""
    chosen: np.ndarray
    """Clients in each client's PAM_list, [round, client]."""
    known: np.ndarray
    """How many others each client has reached so far, [round, client]."""
    opinions: np.ndarray
    """What everybody thinks of everybody in the end, [client, client, 3]."""

    @property
    def reached(self) -> int | None:
        """The first round after which everybody has reached everybody, counted from 1."""
        everybody = (self.known >= self.known.shape[1] - 1).all(axis=1)
        return int(everybody.argmax()) + 1 if everybody.any() else None


def course(
    similarity: Any, rounds: int = 50, direct: int = 2, store: Store = "persistent", seed: int = 0
) -> OpinionCourse:
    """Let clients of given similarities [client, client] meet and talk for some rounds, as in SLFed but without models.

    In the store `persistent` clients keep what they made of what they were told, and tell it on; in `direct` they tell
    what they have seen themselves, and make up their minds anew every round.

    >>> coterie.trust.course(np.ones((4, 4)), rounds=3, direct=3).reached
    1
    """
    similarity = _numbers(similarity)
    count = len(similarity)
    if rounds < 1 or direct < 1:
        raise SettingsError(f"rounds={rounds}, direct={direct}: at least 1")
    if similarity.shape != (count, count):
        raise SettingsError(f"similarity of shape {similarity.shape}: a number for every pair, [client, client]")
    evidence, table = np.ones((count, count, 2)), np.tile(NOTHING, (count, count, 1))
    reached = np.zeros((count, count), dtype=bool)
    figures = []
    for number in range(1, rounds + 1):
        links = meetings([generator(seed, "meetings", number, client) for client in range(count)], direct)
        evidence, table = met(evidence, table, np.where(links, similarity, np.nan), store)
        told = [{int(other): table[other] for other in np.flatnonzero(links[me])} for me in range(count)]
        table = np.stack([heard(table[me], me, told[me]) for me in range(count)])
        known = table[..., 2] < 1
        reached |= known
        mean = np.where(known, table[..., 2], 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        figures.append((mean, trusted(table).sum(axis=1), reached.sum(axis=1)))
    uncertainty, chosen, so_far = (np.array(column) for column in zip(*figures, strict=True))
    return OpinionCourse(uncertainty, chosen, so_far, table)


def _numbers(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)


def _opinions(value: Any) -> np.ndarray:
    opinions = _numbers(value)
    if opinions.shape[-1:] != (3,):
        raise SettingsError(
            f"opinions of shape {opinions.shape}: (similarity, dissimilarity, uncertainty) on the last axis"
        )
    return opinions
