"""Statistics of runs by name, over seeds, and of one method against another.

A study says what its tables show in words such as `accuracy_mean`, `best_round.accuracy_mean` or
`rounds_to(accuracy_mean, 0.8)`; where a function takes a key of rounds, `smoothed(accuracy_mean, 0.9)` may stand
instead, for papers that print their smoothed curves. `statistic` reads them, so that a slip is found when the study is
read and not after its runs. A figure over seeds is an `Estimate`, which knows the runs that it comes from.
"""

import csv
import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot, inf, isfinite, sqrt
from pathlib import Path
from typing import Any, NamedTuple, NewType, TypeVar, get_type_hints

import numpy as np

from coterie.core.errors import SettingsError, unknown
from coterie.data.tasks import TASKS
from coterie.runs.folder import StoredRun
from coterie.server.metrics import known_facts, metric_in
from coterie.studies.measures import measures

Peers = Mapping[str, StoredRun | None]
"""The runs with the same seed that a run is compared with, and the run itself, by their names in the study; None for
a method that has no run with this seed yet."""

RoundKey = NewType("RoundKey", str)
ClientKey = NewType("ClientKey", str)
Weight = NewType("Weight", float)
ScoreKey = NewType("ScoreKey", str)
BytesKey = NewType("BytesKey", str)
Other = NewType("Other", str)
"""The label of a method in the study."""


def round_keys() -> set[str]:
    """Figures of an evaluated round."""
    spread = ("mean", "std", "min", "max", "worst_tenth")
    metrics = known_facts()
    found = {f"{name}_{figure}" for name in metrics for figure in spread} | {f"validation_{name}" for name in metrics}
    for name in _of_tasks():
        found |= {f"{name}_{view}_mean" for view in ("adapted", "last")}
        found |= {f"global_{name}_{figure}" for figure in ("mean", "min", "max")}
    return found | bytes_keys() | {"loss_mean", "groups", "seconds", "steps_mean"}


def bytes_keys() -> set[str]:
    """All traffic until an evaluated round. `bytes` is what was sent up, down and between clients."""
    return {"bytes", *(f"bytes_{direction}" for direction in ("up", "down", "peer", "evaluation"))}


def summary_keys() -> set[str]:
    """Figures of a whole run; besides, there are `ledger.DIRECTION.KIND` and what measures give."""
    found = round_keys() | {f"best_round.{key}" for key in (*round_keys(), "round")}
    found |= {f"pooled_{name}" for name in known_facts()}
    return found | {"clients", "rounds", "seed", "parameters", "ari", "nmi", "purity", "placed_right", "stable_since"}


def client_keys() -> set[str]:
    """Figures of a client."""
    found = {form.format(name) for name in _of_tasks() for form in ("{}_adapted", "{}_last", "global_{}")}
    found |= {*known_facts(), "loss", "samples", "test_samples"}
    return found | {"steps", "rounds_taken_part", "true_group", "group_found"}


def score_keys() -> set[str]:
    """Those of a client's figures of which more is better, or less."""
    return {key for key in client_keys() if metric_in(key) or key == "loss"}


def _of_tasks() -> set[str]:
    """The metrics that tasks have if nobody names one, by which views and the global test set are judged."""
    return {task.score for task in TASKS.values()} & known_facts().keys()


COUNTED = ("accuracy", "accuracy_adapted", "accuracy_last")
"""Figures of a client that are shares of its test samples, so that the number of these says how sure they are."""

_EQUAL = 1e-9
"""Smaller differences count as none: rounding alone leaves that much."""


# Statistics of a run


class Smoothed(NamedTuple):
    """The course of a figure as a smoothed curve: `smoothed(key, weight)` where a function takes a key of rounds."""

    key: RoundKey
    weight: float

    def __str__(self) -> str:
        return f"smoothed({self.key}, {self.weight:g})"


@dataclass(frozen=True)
class Statistic:
    """A figure of a run, by name. It is called with a run and, if it depends on them, with the runs beside it."""

    text: str
    """As it stands in the study."""
    name: str
    """The function, or `key`."""
    arguments: tuple[Any, ...]

    def __call__(self, run: StoredRun, peers: Peers | None = None) -> float | None:
        """The figure, or nothing if the run does not have it."""
        return _number(self.measured(run, peers)[0])

    def measured(self, run: StoredRun, peers: Peers | None = None) -> tuple[float | None, float]:
        """The figure, and how finely it is measured: 0 if it is exact.

        A count that never came to its target is infinite; what was not measured is nothing.
        """
        function = _functions[self.name]
        found = function.call(run, *((peers or {},) if function.among else ()), *self.arguments)
        return (found.value, found.resolution) if isinstance(found, Counted) else (_number(found), 0.0)

    @property
    def other(self) -> str | None:
        """The label of the method that runs are held against, if it names one."""
        kinds = _functions[self.name].parameters.values()
        return next((str(said) for kind, said in zip(kinds, self.arguments, strict=True) if kind is Other), None)

    @property
    def client_key(self) -> str | None:
        """The figure of each client whose mean this is, if it is one."""
        if self.name == "clients_mean":
            return str(self.arguments[0])
        mean = str(self.arguments[0]).removesuffix("_mean")
        is_mean = self.name == "key" and str(self.arguments[0]).endswith("_mean")
        return mean if is_mean and mean in client_keys() - {"steps"} else None

    @property
    def at_equal_steps(self) -> "Statistic | None":
        """For a figure of the last round, the same figure where no method has taken more local steps than another."""
        if self.name == "key" and self.arguments[0] in round_keys():
            return statistic(f"equal_steps({self.arguments[0]})")
        return None


class Counted(NamedTuple):
    """What was counted until an evaluation: rounds, bytes."""

    value: float
    resolution: float
    """How much was counted since the evaluation before: the target may have been reached at any time between the two.
    0 if there was no round between them."""


_NEVER = Counted(inf, 0.0)


@dataclass(frozen=True)
class _Function:
    call: "Callable[..., Counted | float | None]"
    parameters: Mapping[str, Any]
    among: bool


F = TypeVar("F", bound="Callable[..., Counted | float | None]")

_functions: dict[str, _Function] = {}


def _function(name: str) -> Callable[[F], F]:
    """Register a function of a run, perhaps its peers, and arguments whose kinds are its annotations."""

    def decorate(call: F) -> F:
        hints = get_type_hints(call)
        given = [parameter for parameter in inspect.signature(call).parameters if parameter not in ("run", "peers")]
        _functions[name] = _Function(call, {one: hints[one] for one in given}, "peers" in hints)
        return call

    return decorate


def functions() -> dict[str, str]:
    """How each function is written, and what it gives."""
    listed = {f"{name}({', '.join(one.parameters)})": one.call for name, one in _functions.items() if name != "key"}
    return {written: inspect.getdoc(call) or "" for written, call in listed.items()}


@lru_cache
def statistic(text: str) -> Statistic:
    """The statistic of this name: a key of a run's or measure's summary, or a function with its arguments."""
    if len(text.splitlines()) > 1:
        raise SettingsError(f"{text!r}: write a statistic in one line")
    call = re.fullmatch(r"\s*([a-z_]+)\s*\((.*)\)\s*", text)
    if call is None:
        key = text.strip()
        if not re.fullmatch(r"ledger\.(up|down|peer|evaluation)\..+", key):
            measured = {key for name in measures for key in measures[name].gives}
            _require(key, summary_keys() | measured, "statistic", _functions.keys() - {"key"})
        return Statistic(text, "key", (key,))
    name, given = call[1], _split(call[2])
    _require(name, _functions.keys() - {"key"}, "statistic")
    parameters = _functions[name].parameters
    if len(given) != len(parameters):
        raise SettingsError(
            f"statistic {text!r}: {name} takes {len(parameters)} arguments, {name}({', '.join(parameters)}), "
            f"not {len(given)}"
        )
    kinds = parameters.items()
    arguments = tuple(_argument(text, one, kind, said.strip()) for (one, kind), said in zip(kinds, given, strict=True))
    if name == "window" and arguments[1] > arguments[2]:
        raise SettingsError(f"statistic {text!r}: the window ends before it begins")
    return Statistic(text, name, arguments)


_SMOOTHED = r"smoothed\s*\(([^()]*)\)"


def _split(arguments: str) -> list[str]:
    """The arguments of a function; a smoothed course among them, which can only be the first, is one."""
    course = re.match(rf"\s*{_SMOOTHED}\s*(?:,|$)", arguments)
    rest = arguments[course.end() :] if course else arguments
    return [*([course[0].rstrip(", ")] if course else []), *next(csv.reader([rest], skipinitialspace=True), [])]


def _require(name: str, known: Collection[str], kind: str, more: Iterable[str] = ()) -> None:
    if name not in known:
        raise unknown(kind, name, {*known, *more})


def _argument(text: str, name: str, kind: Any, said: str) -> Any:
    smoothed = re.fullmatch(_SMOOTHED, said)
    if smoothed and kind is RoundKey:
        course = statistic(said)
        return Smoothed(*course.arguments)
    keys = {RoundKey: round_keys, ClientKey: client_keys, ScoreKey: score_keys, BytesKey: bytes_keys}
    if kind in keys:
        _require(said, keys[kind](), f"key in the statistic {text!r}")
        return said
    if kind in (str, Other):
        return said
    try:
        value = int(said) if kind is int else float(said)
    except ValueError:
        value = None
    if value is None or not isfinite(value) or (kind is Weight and not 0 <= value < 1):
        words = {int: "a whole number", float: "a number", Weight: "a number from 0 to below 1"}[kind]
        raise SettingsError(f"statistic {text!r}: {name}={said!r}: expected {words}")
    return value


def _number(value: Any) -> float | None:
    """A number that can be averaged; None for text, None, infinity and not-a-number."""
    if isinstance(value, bool | int | float | np.number) and isfinite(value):
        return float(value)
    return None


def figure_of(record: Mapping[str, Any], key: str) -> float | None:
    """The figure of this name in a record of a round, a client or a summary; None if it is not there, or no number."""
    if key == "bytes":
        parts = [_number(record.get(f"bytes_{direction}")) for direction in ("up", "down", "peer")]
        return None if any(part is None for part in parts) else float(sum(part for part in parts if part is not None))
    return _number(record.get(key))


def _course(run: StoredRun, key: str | Smoothed) -> list[tuple[int, float]]:
    """The evaluated rounds in which there is a figure, and the figure."""
    if isinstance(key, Smoothed):
        course = _course(run, key.key)
        rounds, values = [number for number, _ in course], [value for _, value in course]
        return [*zip(rounds, smooth(rounds, values, key.weight).tolist(), strict=True)]
    found = ((record["round"], figure_of(record, key)) for record in run.rounds)
    return [(number, value) for number, value in found if value is not None]


@_function("key")
def _key(run: StoredRun, key: str) -> float | None:
    """A figure of the summary, with dots between the parts of its name."""
    parts = key.split(".", 2)  # kinds of traffic may have dots in their names
    record: Any = run.summary
    for part in parts[:-1]:
        record = record.get(part) if isinstance(record, Mapping) else None
    return figure_of(record, parts[-1]) if isinstance(record, Mapping) else None


@_function("window")
def _window(run: StoredRun, key: RoundKey, first: int, last: int) -> float | None:
    """The mean over evaluated rounds from the first to the last of a window."""
    values = [value for number, value in _course(run, key) if first <= number <= last]
    return float(np.mean(values)) if values else None


@_function("best")
def _best(run: StoredRun, key: RoundKey) -> float | None:
    """The highest over all rounds. On test data this is an optimistic figure, which some papers print."""
    return max((value for _, value in _course(run, key)), default=None)


@_function("least")
def _least(run: StoredRun, key: RoundKey) -> float | None:
    """The lowest over all rounds."""
    return min((value for _, value in _course(run, key)), default=None)


@_function("at")
def _at(run: StoredRun, key: RoundKey, number: int) -> float | None:
    """The figure of the round with this number, if it was evaluated."""
    return dict(_course(run, key)).get(number)


@_function("smoothed")
def _smoothed(run: StoredRun, key: RoundKey, weight: Weight) -> float | None:
    """The last point of the curve in which a value counts `weight` times less with every round."""
    course = _course(run, Smoothed(key, weight))
    return course[-1][1] if course else None


@_function("rounds_to")
def _rounds_to(run: StoredRun, key: RoundKey, target: float) -> Counted | None:
    """The first evaluated round that reaches the target."""
    course, before = _course(run, key), 0
    for number, value in course:
        if value >= target:
            return Counted(float(number), float(number - before) if number - before > 1 else 0.0)
        before = number
    # To stay below the target is a result; to have no course is none.
    return _NEVER if course else None


@_function("rounds_to_final")
def _rounds_to_final(run: StoredRun, peers: Peers, key: RoundKey, method: Other) -> Counted | None:
    """The first evaluated round that reaches what another method has in its last."""
    other = peers.get(method)
    course = _course(other, key) if other is not None else []
    return _rounds_to(run, key, course[-1][1]) if course else None


@_function("bytes_to")
def _bytes_to(run: StoredRun, key: RoundKey, target: float) -> Counted | None:
    """All that was sent, in bytes, until the target is reached."""
    rounds = _rounds_to(run, key, target)
    if rounds is None or rounds == _NEVER:
        return rounds
    sent = {0: 0.0, **dict(_course(run, "bytes"))}
    reached, before = int(rounds.value), int(rounds.value - rounds.resolution)
    return Counted(sent[reached], sent[reached] - sent[before]) if {reached, before} <= sent.keys() else None


@_function("megabits_to")
def _megabits_to(run: StoredRun, key: RoundKey, target: float) -> Counted | None:
    """What a client has sent and received on average, in megabits, until the target is reached (FLIS, Table 3)."""
    sent, clients = _bytes_to(run, key, target), _key(run, "clients")
    return Counted(*(amount * 8 / 1e6 / clients for amount in sent)) if sent is not None and clients else None


@_function("megabytes_each")
def _megabytes_each(run: StoredRun, key: BytesKey) -> float | None:
    """What was sent in the whole run, in megabytes, over the number of clients: `bytes` is both ways."""
    sent, clients = _key(run, key), _key(run, "clients")
    return sent / 1e6 / clients if sent is not None and clients else None


@_function("client")
def _client(run: StoredRun, name: str, key: ClientKey) -> float | None:
    """The figure of one client."""
    return next((figure_of(record, key) for record in run.clients if record["client"] == name), None)


@_function("clients_mean")
def _clients_mean(run: StoredRun, key: ClientKey) -> float | None:
    """The mean over clients."""
    values = _of_clients(run, key).values()
    return float(np.mean([*values])) if values else None


@_function("clients_std")
def _clients_std(run: StoredRun, key: ClientKey) -> float | None:
    """The deviation over clients. They are all that there are, so it is not the deviation of a sample."""
    values = _of_clients(run, key).values()
    return float(np.std([*values])) if values else None


@_function("few_samples_mean")
def _few_samples_mean(run: StoredRun, key: ClientKey) -> float | None:
    """The mean over clients that have fewer samples than clients have on average (AutoCFL, Table 2)."""
    values, samples = _of_clients(run, key), _of_clients(run, "samples")
    few = [value for name, value in values.items() if samples[name] < np.mean([*samples.values()])]
    return float(np.mean(few)) if few else None


@_function("equal_steps")
def _equal_steps(run: StoredRun, peers: Peers, key: RoundKey) -> float | None:
    """The figure of the last evaluated round in which clients had taken no more local steps than in the whole run of
    the peer that takes fewest."""
    others = [one for one in peers.values() if one is not None]
    courses = [_course(one, "steps_mean") for one in (run, *others) if one.rounds]
    # A peer without a run under this seed may be the one that takes fewest.
    if not courses or not all(courses) or len(others) < len(peers):
        return None
    fewest = min(course[-1][1] for course in courses)
    # A mean over clients may come out a last bit higher in one run than in the other.
    rounds = [number for number, steps in _course(run, "steps_mean") if steps <= fewest * (1 + 1e-9)]
    return _at(run, key, rounds[-1]) if rounds else None


@_function("worse_off")
def _worse_off(run: StoredRun, peers: Peers, key: ScoreKey, method: Other) -> float | None:
    """How many clients are worse off than with another method."""
    lost = _lost(run, peers, key, method)
    return None if lost is None else float(sum(amount > _EQUAL for amount, _ in lost))


@_function("clearly_worse_off")
def _clearly_worse_off(run: StoredRun, peers: Peers, key: ScoreKey, method: Other) -> float | None:
    """How many are by more than so few test samples show by chance, to judge by the 95 % interval of an accuracy."""
    lost = _lost(run, peers, key, method)
    if lost is None or key not in COUNTED or any(ends is None for _, ends in lost):
        return None
    return float(sum(ends is not None and ends[0] > 0 for _, ends in lost))


@_function("most_lost")
def _most_lost(run: StoredRun, peers: Peers, key: ScoreKey, method: Other) -> float | None:
    """What the client loses that loses most, beside another method; 0 if nobody loses."""
    lost = _lost(run, peers, key, method)
    return None if lost is None else max(0.0, *(amount for amount, _ in lost))


def _lost(run: StoredRun, peers: Peers, key: ScoreKey, method: str) -> "list[tuple[float, Ends | None]] | None":
    """What each client loses beside another method, with its interval where the number of test samples is known."""
    other = peers.get(method)
    if other is None:
        return None
    before = {client["client"]: client for client in other.clients}
    metric = known_facts().get(metric_in(key))
    sign = 1 if metric and metric["higher"] else -1  # only a loss has no metric
    found: list[tuple[float, Ends | None]] = []
    for client in run.clients:
        now, then = figure_of(client, key), figure_of(before.get(client["client"], {}), key)
        if now is not None and then is not None:
            samples = figure_of(client, "test_samples")
            ends = difference_ends(then, now, int(samples)) if samples and key in COUNTED else None
            found.append((sign * (then - now), ends))
    return found or None


def _of_clients(run: StoredRun, key: str) -> dict[str, float]:
    found = {record["client"]: figure_of(record, key) for record in run.clients}
    return {name: value for name, value in found.items() if value is not None}


def smooth(rounds: Sequence[float], values: Sequence[float], weight: float) -> np.ndarray:
    """A curve smoothed by a mean over the past in which a value counts `weight` times less with every round.

    Rounds that were not evaluated make the past count less too: the mean is weighted by time, not by position. The
    first value counts as any other, and not as if it had been there for ever.
    """
    smoothed, total, mass = [], 0.0, 0.0
    for number, value in enumerate(values):
        fading = weight ** (rounds[number] - rounds[number - 1]) if number else 0.0
        total, mass = fading * total + value, fading * mass + 1
        smoothed.append(total / mass)
    return np.array(smoothed)


# Over seeds


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds, and the runs that it comes from."""

    values: Mapping[int, float]
    """By seed."""
    runs: tuple[Path, ...]
    """The folders of the runs that have a figure."""
    never: tuple[Path, ...] = ()
    """The folders of the runs that never came to the target of a count."""
    without: tuple[Path, ...] = ()
    """The folders of the runs in which there was nothing to measure it by."""
    resolution: float = 0.0
    """How finely it is measured, mean over seeds."""

    @property
    def count(self) -> int:
        """How many seeds there are figures of."""
        return len(self.values)

    @property
    def tried(self) -> int:
        """How many seeds there are runs of."""
        return self.count + len(self.never) + len(self.without)

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return float(np.mean([*self.values.values()])) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The deviation of a sample, which one seed does not have."""
        return float(np.std([*self.values.values()], ddof=1)) if len(self.values) > 1 else None


def estimate(
    what: Statistic, runs: Iterable[StoredRun], among: Mapping[str, Iterable[StoredRun]] | None = None
) -> Estimate:
    """A statistic over the seeds of runs; `among` has the runs that it may be compared with, by the names of methods.

    Of several runs with one seed the last counts, as they are the same run. Measures do not train, and are no peers.
    """
    beside = {name: {_seed(run): run for run in others if run.rounds} for name, others in (among or {}).items()}
    values, found, never, without, resolutions = {}, [], [], [], []
    for seed, run in sorted({_seed(run): run for run in runs}.items()):
        value, resolution = what.measured(run, {name: others.get(seed) for name, others in beside.items() if others})
        if value is None:
            without.append(run.path)
        elif value == inf:
            never.append(run.path)
        else:
            values[seed] = value
            found.append(run.path)
            resolutions.append(resolution)
    fineness = float(np.mean(resolutions)) if resolutions else 0.0
    return Estimate(values, tuple(found), tuple(never), tuple(without), fineness)


def over_clients(what: Statistic, runs: Iterable[StoredRun]) -> dict[tuple[int, str], float]:
    """What each client has in each run, by seed and name, if the statistic is a mean over clients."""
    key = what.client_key
    if key is None:
        return {}
    return {(_seed(run), name): value for run in runs for name, value in _of_clients(run, key).items()}


def _seed(run: StoredRun) -> int:
    return int(run.settings.get("seed", 0))


# One method against another


@dataclass(frozen=True)
class PairedTest:
    """How figures differ from those of a reference under the same seeds."""

    difference: float
    """The mean difference."""
    pairs: int
    t_test: float | None = None
    """The probability of such a difference by chance, if differences are normal."""
    wilcoxon: float | None = None
    """The same from ranks alone. With n pairs it cannot be below 2^(1-n): five seeds never give less than 0.0625."""


_FEWEST = 3
"""Pairs below which there is no test: two differences say next to nothing about their spread."""


def paired(ours: Mapping[Any, float], reference: Mapping[Any, float]) -> PairedTest | None:
    """Paired two-sided tests of figures against those of a reference with the same keys; nothing without any pair.

    Keys are seeds, or seeds and clients (see `over_clients`). Clients of a run share its models and are not
    independent: pairs of clients say whether these runs helped their clients, not what other seeds would give.
    """
    shared: list[Hashable] = [key for key in ours if key in reference]
    if not shared:
        return None
    left, right = (np.array([side[key] for key in shared], dtype=float) for side in (ours, reference))
    # What rounding leaves is no difference, and equal differences are ties.
    scale = max(np.abs(left).max(), np.abs(right).max(), np.finfo(float).tiny)
    differences = np.round((left - right) / scale, 12) * scale
    mean = float(differences.mean())
    if len(shared) < _FEWEST:
        return PairedTest(mean, len(shared))
    if not differences.any():
        return PairedTest(0.0, len(shared), 1.0, 1.0)
    from scipy import stats

    # Differences that are all the same have no spread to test against; calling that certain would claim too much.
    t_test = float(stats.ttest_1samp(differences, 0.0).pvalue) if np.ptp(differences) else None
    wilcoxon = float(stats.wilcoxon(differences[differences != 0]).pvalue)
    return PairedTest(mean, len(shared), t_test, wilcoxon)


def holm(probabilities: Sequence[float | None]) -> list[float | None]:
    """Probabilities corrected for being several (Holm 1979); where there was no test there is none."""
    tested = sorted((value, number) for number, value in enumerate(probabilities) if value is not None)
    corrected: list[float | None] = [None] * len(probabilities)
    highest = 0.0
    for rank, (value, number) in enumerate(tested):
        highest = max(highest, min(1.0, value * (len(tested) - rank)))
        corrected[number] = highest
    return corrected


# How sure a share is


Ends = tuple[float, float]
"""The lower and the upper end of a confidence interval."""

_QUANTILE = 1.959963984540054
"""Of the normal distribution, for intervals of 95 %."""


def wilson(share: float, samples: int) -> Ends:
    """The 95 % confidence interval of a share of samples (Wilson 1927). It also holds for few samples."""
    square = _QUANTILE**2
    centre = (share + square / (2 * samples)) / (1 + square / samples)
    reach = _QUANTILE / (1 + square / samples) * sqrt(share * (1 - share) / samples + square / (4 * samples**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)


def difference_ends(share: float, other: float, samples: int) -> Ends:
    """The 95 % confidence interval of a share less another one, each of so many samples (Newcombe 1998, method 10).

    It takes the two as independent. Two models that err on the same samples differ by less chance than that: for them
    the interval is too wide rather than too narrow.
    """
    (low, high), (its_low, its_high) = wilson(share, samples), wilson(other, samples)
    difference = share - other
    return difference - hypot(share - low, its_high - other), difference + hypot(high - share, other - its_low)
