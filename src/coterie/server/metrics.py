"""Metrics: what says how good predictions are, by name. All are in `metrics`; scikit-learn computes most of them.

A metric is a function of targets and predictions in the data's own units: of the numbers of classes [sample] and their
probabilities [sample, class], of tables of 0 and 1 [sample, label] and the labels' probabilities, or of two tables of
numbers [sample, number]. Users add their own with `@coterie.metric`.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.errors import SettingsError, unknown
from coterie.data.tasks import task_named

Function = Callable[[np.ndarray, np.ndarray], Any]
"""Gives a number for targets and predictions."""

_CLASSES, _LABELS, _NUMBERS = ("classification", "binary"), ("multi-label",), ("regression",)
_RESERVED = frozenset(
    {"bytes", "client", "global", "group_found", "groups", "loss", "pooled", "round", "rounds_taken_part", "samples"}
    | {"seconds", "steps", "test_samples", "true_group", "validation"}
)
"""What a run's records call something else."""
_BEFORE = re.compile(r"^(?:\w+\()*(?:best_round\.)?(?:global_|validation_|pooled_)?")
"""What may stand before the name of a metric in a key, or in a statistic of one."""
_BINS = 15
"""Bins of confidence in which the calibration error compares it with accuracy."""


@dataclass(frozen=True)
class Metric:
    """A metric: its function, and what tables, figures and the choice of the best round must know of it."""

    name: str
    about: str
    function: Function
    higher: bool
    """Whether higher is better."""
    tasks: tuple[str, ...]
    """The tasks that it is for."""
    share: bool
    """Whether it is a share, which is printed as a percentage."""
    pooled: Literal["mean", "mean of squares", "samples"] = "samples"
    """How the value for the samples of several clients together comes about: as a mean of the clients' values, or of
    their squares, weighted by samples; or only from all samples in one place."""

    def __call__(self, y: np.ndarray, predicted: np.ndarray) -> float:
        """Its value; not a number where there is none, as for no samples, or the AUC of a single class."""
        if not len(y) or not np.isfinite(predicted).all():
            return np.nan
        with warnings.catch_warnings():  # that a client lacks a class is no news
            warnings.simplefilter("ignore")
            return float(self.function(y, predicted))

    def combined(self, values: np.ndarray, samples: np.ndarray) -> float | None:
        """The value for the samples of several clients together, from theirs; None if that does not follow."""
        there = samples > 0
        if self.pooled == "samples" or not there.any():
            return None
        power = 2 if self.pooled == "mean of squares" else 1
        mean = np.average(values[there] ** power, weights=samples[there])
        return float(mean ** (1 / power)) if np.isfinite(mean) else None

    @property
    def facts(self) -> dict[str, bool]:
        """What tables and figures must know, as it stands in a run's summary."""
        return {"higher": self.higher, "share": self.share}


metrics: dict[str, Metric] = {}
"""All metrics by name."""

_recorded: dict[str, Mapping[str, bool]] = {}
"""What stored runs say of metrics whose module is not there: enough to show their figures, not to compute them."""


def metric(
    name: str,
    *,
    higher: bool,
    tasks: Sequence[str] = (*_CLASSES, *_LABELS, *_NUMBERS),
    share: bool = False,
    pooled: Literal["mean", "mean of squares", "samples"] = "samples",
) -> Callable[[Function], Function]:
    """Make a function of targets and predictions a metric, which settings then know by this name.

    >>> @coterie.metric("over_half", higher=True, tasks=["classification"], share=True)
    ... def over_half(y, predicted):
    ...     "How often the label's probability is above one half."
    ...     return (predicted[range(len(y)), y] > 0.5).mean()
    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> result = coterie.FedAvg(rounds=1).fit(fed, scoring=coterie.Scoring(metrics=("over_half",)))
    >>> "over_half_mean" in result.summary, 0 <= result.clients[0]["over_half"] <= 1
    (True, True)
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _RESERVED:
        raise SettingsError(f"metric {name!r}: small letters, digits and _, and no word that records have already")
    for task in tasks:
        task_named(task)

    def register(function: Function) -> Function:
        about = (function.__doc__ or name).strip().split("\n", 1)[0]
        metrics[name] = Metric(name, about, function, higher, tuple(tasks), share, pooled)
        return function

    return register


def metric_named(name: str) -> Metric:
    """A metric by name."""
    if name not in metrics:
        raise unknown("metric", name, metrics)
    return metrics[name]


def facts_of(summary: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """What tables and figures must know of a run's metrics, by name; the first is the one by which runs are compared.

    Runs that were stored before there were others have accuracy alone.
    """
    return summary.get("metrics") or {"accuracy": metrics["accuracy"].facts}


def remember(summary: Mapping[str, Any]) -> None:
    """Take down what a stored run says of its metrics, as those of a user's module may be known from there alone."""
    _recorded.update(facts_of(summary))


def known_facts() -> dict[str, Mapping[str, bool]]:
    """What tables and figures must know of all metrics that there are here or in runs that were read, by name."""
    return {**_recorded, **{name: one.facts for name, one in metrics.items()}}


def metric_in(key: str) -> str:
    """The metric that a figure is of, such as `f1` of `best_round.f1_mean`; empty if it is of none."""
    rest = _BEFORE.sub("", key)
    fitting = (name for name in known_facts() if re.match(rf"{name}(?![a-z0-9])", rest))
    return max(fitting, key=len, default="")


def first_metric(record: Mapping[str, Any]) -> str:
    """The metric by which runs are compared, in the record of a round: its mean stands first."""
    return next(key for key in record if key.endswith("_mean")).removesuffix("_mean")


def shown(name: str, value: float | None) -> str:
    """A metric's value as people read it, with the unit behind it."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if known_facts().get(name, {"share": True})["share"] else f"{value:.4g}"


@metric("accuracy", higher=True, tasks=(*_CLASSES, *_LABELS), share=True, pooled="mean")
def _accuracy(y: np.ndarray, predicted: np.ndarray) -> Any:
    """How often the likeliest class is right; of several labels, how often all of them are."""
    from sklearn.metrics import accuracy_score

    return accuracy_score(y, _chosen(predicted, y))


@metric("balanced_accuracy", higher=True, tasks=_CLASSES, share=True)
def _balanced_accuracy(y: np.ndarray, predicted: np.ndarray) -> Any:
    """The mean over the classes that occur of how often each is recognised."""
    from sklearn.metrics import balanced_accuracy_score

    return balanced_accuracy_score(y, _chosen(predicted, y))


@metric("f1", higher=True, tasks=(*_CLASSES, *_LABELS), share=True)
def _f1(y: np.ndarray, predicted: np.ndarray) -> Any:
    """F1: of the second class if there are two, else the mean over the classes or labels that occur."""
    from sklearn.metrics import f1_score

    chosen = _chosen(predicted, y)
    if y.ndim > 1:
        there = np.flatnonzero(y.any(axis=0) | chosen.any(axis=0))
        return f1_score(y, chosen, labels=there, average="macro", zero_division=0) if len(there) else np.nan
    if predicted.shape[1] == 2:
        return f1_score(y, chosen, zero_division=0)
    return f1_score(y, chosen, average="macro", zero_division=0)


@metric("auc", higher=True, tasks=(*_CLASSES, *_LABELS), share=True)
def _auc(y: np.ndarray, predicted: np.ndarray) -> Any:
    """Area under the ROC curve: of the second class if there are two, else the mean of one class against the others."""
    from sklearn.metrics import roc_auc_score

    truth = y if y.ndim > 1 else (y[:, None] == np.arange(predicted.shape[1]))
    if y.ndim == 1 and predicted.shape[1] == 2:
        truth, predicted = truth[:, 1:], predicted[:, 1:]
    both = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    return np.mean([roc_auc_score(truth[:, one], predicted[:, one]) for one in both]) if len(both) else np.nan


@metric("calibration_error", higher=False, tasks=_CLASSES, share=True)
def _calibration_error(y: np.ndarray, predicted: np.ndarray) -> Any:
    """How far confidence is from accuracy: the mean distance in 15 bins of confidence, weighted by their samples."""
    confidence = predicted.max(axis=1)
    right = predicted.argmax(axis=1) == y
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(place, weights=right, minlength=_BINS) - np.bincount(place, weights=confidence, minlength=_BINS)
    return np.abs(gaps).sum() / len(y)


@metric("log_loss", higher=False, tasks=_CLASSES, pooled="mean")
def _log_loss(y: np.ndarray, predicted: np.ndarray) -> Any:
    """The mean of -log of the probability that the true class is given."""
    from sklearn.metrics import log_loss

    return log_loss(y, predicted / predicted.sum(axis=1, keepdims=True), labels=np.arange(predicted.shape[1]))


@metric("mae", higher=False, tasks=_NUMBERS, pooled="mean")
def _mae(y: np.ndarray, predicted: np.ndarray) -> Any:
    """The mean absolute error, in the target's own units."""
    from sklearn.metrics import mean_absolute_error

    return mean_absolute_error(y, predicted)


@metric("rmse", higher=False, tasks=_NUMBERS, pooled="mean of squares")
def _rmse(y: np.ndarray, predicted: np.ndarray) -> Any:
    """The root of the mean squared error, in the target's own units."""
    from sklearn.metrics import mean_squared_error

    return np.sqrt(mean_squared_error(y, predicted))


@metric("r2", higher=True, tasks=_NUMBERS)
def _r2(y: np.ndarray, predicted: np.ndarray) -> Any:
    """The share of the targets' variance that predictions explain; below 0 they are worse than the mean."""
    from sklearn.metrics import r2_score

    return r2_score(y, predicted)


def _chosen(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What is predicted: the likeliest class, or the labels with more than one half."""
    return predicted > 0.5 if y.ndim > 1 else predicted.argmax(axis=1)
