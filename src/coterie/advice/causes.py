"""How clients differ, from their training and validation data alone, each cause with an effect, an interval and a test.

| cause | effect | test |
|---|---|---|
| `sizes` | evenness (sum n)^2 / (k sum n^2) of the sizes n of k clients: 1 if all are equal | none: they are counted |
| `labels` | how far shares are from everybody's (total variation), less what chance gives | permutations |
| `inputs` | how well clients are told apart within a label (area under the curve, 0.5: not at all) | Mann-Whitney |
| `concepts` | how many more of a client's labels others predict once its labels are renamed | sign test |
| `few samples` | what a learner gains from all samples over as many as a client has, drawn evenly | spread over draws |

Several clients are tested at once, so probabilities are corrected for that (Holm). Numbers that are to be predicted are
put into ten classes of equal frequency first. Whose labels are renamed is found on one half of the client's samples and
tested on the other; and inputs are compared only between samples of one label, so that other shares of labels, or other
names for them, do not pass for other inputs. Where inputs look different all the same, no labels are called renamed:
others may merely misread them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest, norm, rankdata

from coterie.core.randomness import generator
from coterie.data.population import Population
from coterie.studies.statistics import Ends, holm

CAUSES = ("concepts", "inputs", "labels", "sizes", "few samples")
"""All causes, the ones that matter most for the choice of a method first."""

LEVEL = 0.05
"""Probability below which a difference is more than chance."""

_EVEN, _GAIN, _TOLD_APART, _LABELS = 0.6, 0.4, 0.55, 0.05
"""Below which evenness sizes count as unequal, and above which effects the others count at all: chosen on digits."""

_PERMUTATIONS, _DRAWS, _FOLDS, _TREES, _COMPONENTS = 200, 8, 4, 100, 30
_APART, _KNOWN = 20, 5
"""In how many parts clients are asked what others make of their samples, and how many of a label others need."""
_UNDERSTOOD = 0.6
"""The part of the usual agreement that others must come to under new names, for these to explain anything."""
_MOST = 6000
"""Of more samples than this, that many are looked at."""
_BINS = 10


@dataclass(frozen=True)
class Cause:
    """One way in which clients may differ."""

    name: str
    effect: float
    ends: Ends | None
    """The 90 % confidence interval of the effect."""
    found: bool
    """Whether it is there, by more than chance and by enough to matter."""
    clients: Mapping[str, float] = field(default_factory=dict)
    """Each client's own effect, by name."""
    differing: tuple[str, ...] = ()
    """The clients that differ by more than chance."""
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For clients that call labels otherwise: what others call each of these."""
    note: str = ""
    """What could not be looked at, and why."""


@dataclass(frozen=True)
class Diagnosis:
    """How clients differ."""

    causes: Mapping[str, Cause]

    @property
    def main(self) -> tuple[str, ...]:
        """The causes that decide: how clients' data differ, or else unequal sizes, or else few samples."""
        found = [name for name in CAUSES if self.causes[name].found]
        differing = tuple(name for name in found if name in ("concepts", "inputs", "labels"))
        return differing or tuple(found[:1])


@dataclass(frozen=True)
class _Samples:
    """What may be looked at: inputs [sample, feature], labels [sample] and whose they are [sample]."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    names: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def counts(self) -> np.ndarray:
        """How often each client has each label, [client, label]."""
        counts = np.zeros((len(self.names), len(self.labels)), dtype=np.int64)
        np.add.at(counts, (self.client, self.y), 1)
        return counts


def diagnose(population: Population, seed: int = 0) -> Diagnosis:
    """How the clients of a population differ, from what they train and validate on."""
    samples = _samples(population, generator(seed, "samples to look at"))
    sizes = np.array([len(shard.train) + len(shard.validation) for shard in population.shards])
    features = _features(samples.x, seed)
    renamed = _renamings(samples, features, seed)
    inputs = _inputs(samples, features, renamed.labels(samples), seed)
    confirmed = tuple(one for one in renamed.clients if samples.names[one] not in inputs.differing)
    if confirmed != renamed.clients:
        renamed = replace(renamed, clients=confirmed)
        inputs = _inputs(samples, features, renamed.labels(samples), seed)
    causes = [
        _concepts(samples, renamed),
        inputs,
        _labels(samples, generator(seed, "permutations")),
        _sizes(sizes, population.names, generator(seed, "sizes")),
        _few_samples(samples, features, int(np.median(sizes)), seed),
    ]
    return Diagnosis({cause.name: cause for cause in causes})


def _samples(population: Population, rng: np.random.Generator) -> _Samples:
    places = [np.concatenate([shard.train, shard.validation]) for shard in population.shards]
    client = np.repeat(np.arange(len(places)), [len(place) for place in places])
    place = np.concatenate(places)
    if len(place) > _MOST:
        kept = np.sort(rng.permutation(len(place))[:_MOST])
        client, place = client[kept], place[kept]
    x = population.x[place].reshape(len(place), -1).astype(np.float64)
    scale = population.scale if population.x.ndim == 2 else np.ones(1)
    x = (x - (population.shift if population.x.ndim == 2 else 0)) / scale
    targets = population.y[place]
    if population.task.one_class:
        return _Samples(x, targets.astype(np.int64), client, population.names, population.labels)
    first = targets.reshape(len(targets), -1)[:, 0].astype(np.float64)
    edges = np.unique(np.quantile(first, np.linspace(0, 1, _BINS + 1)[1:-1]))
    binned = np.searchsorted(edges, first)
    return _Samples(x, binned, client, population.names, tuple(map(str, range(len(edges) + 1))))


def _features(x: np.ndarray, seed: int) -> np.ndarray:
    """Inputs in few numbers: their principal components."""
    from sklearn.decomposition import PCA

    x = np.nan_to_num(x)
    count = min(_COMPONENTS, *x.shape)
    return PCA(count, svd_solver="randomized", random_state=seed).fit_transform(x) if x.shape[1] > count else x


def _trees(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(_TREES, min_samples_leaf=2, random_state=seed)


# What labels mean


@dataclass(frozen=True)
class _Renamings:
    """What others call each client's labels."""

    names: Sequence[np.ndarray]
    """By client, what others call each label, [label]."""
    gains: np.ndarray
    """How many more of a client's samples others call as it does under these names, as a share, [client]."""
    clients: tuple[int, ...]
    """The clients for which that is more than chance, and which others understand under these names."""

    def labels(self, samples: _Samples) -> np.ndarray:
        """All labels as others would call them, [sample]."""
        y = samples.y.copy()
        for one in self.clients:
            own = samples.client == one
            y[own] = self.names[one][y[own]]
        return y


def _renamings(samples: _Samples, features: np.ndarray, seed: int) -> _Renamings:
    """Under which names others call most of each client's samples as it does."""
    clients, count = len(samples.names), len(samples.labels)
    gains, agreement, tests, names = np.zeros(clients), np.full(clients, np.nan), [], []
    predicted = _by_others(samples, features, seed) if clients > 2 else np.full_like(samples.y, -1)
    for one in range(clients):
        own = np.flatnonzero((samples.client == one) & (predicted >= 0))
        y, told = samples.y[own], predicted[own]
        halves = np.array_split(generator(seed, "halves", samples.names[one]).permutation(len(own)), 2)
        better = worse = 0
        for fit, test in (halves, halves[::-1]):
            right, before = _renaming(y[fit], told[fit], count)[y[test]] == told[test], y[test] == told[test]
            better, worse = better + int((right & ~before).sum()), worse + int((before & ~right).sum())
        if len(own):
            gains[one], agreement[one] = (better - worse) / len(own), float(np.mean(y == told))
        changed = better + worse
        tests.append(binomtest(better, changed, alternative="greater").pvalue if changed else 1.0)
        names.append(_renaming(y, told, count))
    usual = float(np.nanmedian(agreement)) if np.isfinite(agreement).any() else 1.0
    found = (
        one
        for one, probability in enumerate(holm(tests))
        if probability is not None and probability < LEVEL and agreement[one] + gains[one] > _UNDERSTOOD * usual
    )
    return _Renamings(names, gains, tuple(found))


def _concepts(samples: _Samples, renamed: _Renamings) -> Cause:
    """Clients whose labels others would call otherwise, though their inputs look like others'."""
    gains, differing = renamed.gains, [*renamed.clients]
    had = samples.counts > 0
    return Cause(
        "concepts",
        float(gains[differing].mean()) if differing else float(gains.max()),
        _ends_over(gains[differing]) if len(differing) > 1 else None,
        bool(differing),
        dict(zip(samples.names, gains.tolist(), strict=True)),
        tuple(samples.names[one] for one in differing),
        {
            samples.names[one]: {
                samples.labels[label]: samples.labels[other]
                for label, other in enumerate(renamed.names[one].tolist())
                if label != other and had[one, label]
            }
            for one in differing
        },
        "" if len(samples.names) > 2 else "needs at least three clients",
    )


def _by_others(samples: _Samples, features: np.ndarray, seed: int) -> np.ndarray:
    """The label of each sample [sample] as a learner predicts it that has seen other clients alone.

    It is -1 where others have hardly any sample of the label that the client gives: they cannot know it.
    """
    predicted, clients = np.full_like(samples.y, -1), len(samples.names)
    folds = generator(seed, "clients apart").permutation(clients) % min(_APART, clients)
    for fold in range(folds.max() + 1):
        held = folds[samples.client] == fold
        known = np.bincount(samples.y[~held], minlength=len(samples.labels)) >= _KNOWN
        asked = held & known[samples.y]
        if asked.any() and known.any():
            learner = _trees(seed).set_params(class_weight="balanced").fit(features[~held], samples.y[~held])
            predicted[asked] = learner.predict(features[asked])
    return predicted


def _renaming(y: np.ndarray, predicted: np.ndarray, labels: int) -> np.ndarray:
    """What others call each label, [label]: the names, each used once, under which most samples agree."""
    agree = np.zeros((labels, labels))
    np.add.at(agree, (y, predicted), 1)
    agree += 1e-3 * np.eye(labels)  # where nothing speaks for another name, a label keeps its own
    rows, columns = linear_sum_assignment(-agree)
    renamed = np.arange(labels)
    renamed[rows] = columns
    return renamed


# What inputs look like


def _inputs(samples: _Samples, features: np.ndarray, y: np.ndarray, seed: int) -> Cause:
    """How well each client is told apart from others by its inputs, label by label."""
    from sklearn.model_selection import StratifiedKFold

    clients = len(samples.names)
    fewest = int(np.bincount(samples.client, minlength=clients).min())
    if clients < 2 or fewest < 2:
        return Cause("inputs", 0.5, None, False, note="needs at least two clients with two samples each")
    labelled = np.concatenate([features, 10 * np.eye(len(samples.labels))[y]], axis=1)
    chances = np.zeros((len(y), clients))
    folds = StratifiedKFold(min(_FOLDS, fewest), shuffle=True, random_state=seed)
    for fit, test in folds.split(labelled, samples.client):
        learner = _trees(seed).fit(labelled[fit], samples.client[fit])
        chances[np.ix_(test, learner.classes_)] = learner.predict_proba(labelled[test])
    areas, tests = np.full(clients, np.nan), []
    for one in range(clients):
        area, error = _area_within(chances[:, one], samples.client == one, y)
        areas[one] = area
        tests.append(float(norm.sf((area - 0.5) / error)) if error > 0 else None)
    corrected = holm(tests)
    differing = [one for one, p in enumerate(corrected) if p is not None and p < LEVEL and areas[one] > _TOLD_APART]
    known = areas[np.isfinite(areas)]
    effect = max(0.5, float(known.mean())) if len(known) else 0.5  # learners of nothing are a little below chance
    ends = _ends_over(known) if len(known) > 2 else None
    return Cause(
        "inputs",
        effect,
        ends,
        bool(differing),
        {name: float(area) for name, area in zip(samples.names, areas, strict=True) if np.isfinite(area)},
        tuple(samples.names[one] for one in differing),
    )


def _area_within(chance: np.ndarray, own: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """How often a client's own sample is told from another's of the same label, and the standard error by chance."""
    wins = pairs = variance = 0.0
    for label in np.unique(y[own]):
        among = y == label
        mine, others = int((own & among).sum()), int((~own & among).sum())
        if not mine or not others:
            continue
        ranks = rankdata(chance[among])
        wins += float(ranks[own[among]].sum()) - mine * (mine + 1) / 2
        pairs += mine * others
        variance += mine * others * (mine + others + 1) / 12
    return (wins / pairs, float(np.sqrt(variance)) / pairs) if pairs else (np.nan, 0.0)


# How often labels occur, how many samples there are


def _labels(samples: _Samples, rng: np.random.Generator) -> Cause:
    """How far clients' shares of labels are from everybody's, beyond chance."""
    clients = len(samples.names)

    def distances(y: np.ndarray) -> np.ndarray:
        counts = np.zeros((clients, len(samples.labels)))
        np.add.at(counts, (samples.client, y), 1)
        shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
        return 0.5 * np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1)

    seen = distances(samples.y)
    chance = np.stack([distances(rng.permutation(samples.y)) for _ in range(_PERMUTATIONS)])
    # A client's distance by chance is nearly normal; a rank among permutations could not be below 1/200.
    z = (seen - chance.mean(axis=0)) / chance.std(axis=0).clip(min=1e-12)
    differing = [
        one for one, p in enumerate(holm([float(norm.sf(value)) for value in z])) if p is not None and p < LEVEL
    ]
    beyond = seen - chance.mean(axis=0)
    overall = float(norm.sf((seen.mean() - chance.mean()) / max(chance.mean(axis=1).std(), 1e-12)))
    return Cause(
        "labels",
        float(beyond.mean()),
        _ends_over(beyond) if clients > 2 else None,
        overall < LEVEL and float(beyond.mean()) > _LABELS,
        dict(zip(samples.names, beyond.tolist(), strict=True)),
        tuple(samples.names[one] for one in differing),
    )


def _sizes(sizes: np.ndarray, names: Sequence[str], rng: np.random.Generator) -> Cause:
    """How even the clients' numbers of samples are."""

    def even(some: np.ndarray) -> float:
        return float(some.sum() ** 2 / (len(some) * (some.astype(float) ** 2).sum()))

    drawn = np.array([even(rng.choice(sizes, len(sizes))) for _ in range(_PERMUTATIONS)])
    ends = float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))
    small = tuple(name for name, size in zip(names, sizes, strict=True) if size < 0.25 * sizes.mean())
    clients = dict(zip(names, sizes.astype(float).tolist(), strict=True))
    return Cause("sizes", even(sizes), ends, even(sizes) < _EVEN, clients, small)


def _few_samples(samples: _Samples, features: np.ndarray, size: int, seed: int) -> Cause:
    """What a learner gains from all samples over as many as a client has, if both are drawn evenly from all clients."""
    total = len(samples.y)
    if len(samples.names) < 2 or size >= total // 2:
        return Cause("few samples", 0.0, None, False, note="there are no more samples than one client has")
    gains = []
    for draw in range(_DRAWS):
        order = generator(seed, "few samples", draw).permutation(total)
        test, rest = order[: total // 5], order[total // 5 :]
        right = [
            float(_trees(seed).fit(features[some], samples.y[some]).score(features[test], samples.y[test]))
            for some in (rest[:size], rest)
        ]
        gains.append(right[1] - right[0])
    return Cause("few samples", float(np.mean(gains)), _ends_over(np.array(gains)), float(np.mean(gains)) > _GAIN)


def _ends_over(values: np.ndarray) -> Ends:
    """The 90 % confidence interval of a mean, by Student's t."""
    from scipy.stats import t

    reach = float(t.ppf(0.95, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - reach, float(values.mean()) + reach
