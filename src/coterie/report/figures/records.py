"""What figures read in stored runs: courses over rounds, what methods found out, and each client's gain."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.fields import at_least
from coterie.report.score import ACCURACY, Score, is_share, word
from coterie.report.words import FUNCTIONS
from coterie.runs.folder import StoredRun
from coterie.runs.identity import world_of
from coterie.studies.statistics import Ends, Smoothed, statistic

Runs = Mapping[str, Sequence[StoredRun]]
"""Runs by what to call them: those of one name are of different seeds."""

Seed = Annotated[int, at_least(0, "counted from 0")]
"""Which of the runs over seeds a figure shows; the last if there are not so many."""


MANY_CLIENTS = 200
"""Of more clients than this, distributions are shown instead of a dot or a row for each."""


class NotRecordedError(CoterieError):
    """Runs do not have what a figure shows."""


def one_of_each(runs: Runs, seed: int) -> dict[str, StoredRun]:
    """For each name its run number `seed`, or its last one if it has fewer."""
    return {name: some[min(seed, len(some) - 1)] for name, some in runs.items() if some}


def named(key: str) -> str:
    """What a figure of a run is called on an axis."""
    what = statistic(key)
    words = [word(str(part)) if isinstance(part, str | Smoothed) else part for part in what.arguments]
    called = FUNCTIONS[what.name].format(*words) if what.name in FUNCTIONS else word(key)
    return called + (", %" if is_share(key) else "")


def scaled(key: str, values: Any) -> np.ndarray:
    """Figures as they are shown: shares in per cent, what was not measured as not-a-number."""
    array = np.array(values, dtype=np.float64)
    return 100 * array if is_share(key) else array


def value(run: StoredRun, text: str, beside: Runs | None = None) -> float | None:
    """A statistic of a run, as `coterie.studies.statistics` lists them, with the runs of its seed beside it."""
    seed = run.settings.get("seed")
    peers = {
        name: next((one for one in some if one.settings.get("seed") == seed), None)
        for name, some in (beside or {}).items()
        if any(one.rounds for one in some)
    }
    return statistic(text)(run, peers)


def setting(run: StoredRun, name: str) -> Any:
    """The value of an option of a run: `rate`, or `split.alpha` if several parts have it; None if it is not set."""
    part, _, option = name.rpartition(".")
    if part:
        return run.settings.get(part, {}).get(option)
    sections = ("method", "measure", "split", "data", "division", "scoring")
    found = (run.settings.get(section, {}).get(option) for section in sections)
    return next((one for one in found if one is not None), run.settings.get(option))


# What methods and measures found out


def recorded(run: StoredRun, *names: str) -> list[tuple[int | None, Any]]:
    """What a run recorded under the first of these names that it has, with the round, oldest first.

    Of a measure, which has no rounds, it is the one thing in its details.
    """
    for name in names:
        lines = [(line["round"], line[name]) for line in run.insights if line.get(name) is not None]
        if lines:
            return lines
    details = _details(run)
    return next(([(None, details[name])] for name in names if details.get(name) is not None), [])


def latest(run: StoredRun, *names: str) -> Any:
    """What a run recorded last under one of these names; if nothing, an error that says how to record it."""
    lines = recorded(run, *names)
    if not lines:
        raise NotRecordedError(f"{run.path}: has no record of {' or '.join(names)}; run it with --insights")
    return lines[-1][1]


def _details(run: StoredRun) -> dict[str, Any]:
    path = run.path / "details.json"
    return json.loads(path.read_bytes()) if path.is_file() else {}


def clients_of(run: StoredRun, count: int) -> tuple[list[str], list[int | None]]:
    """Names and true groups of a run's clients; numbers and no groups if it does not name exactly `count` clients."""
    details = _details(run)
    names = details.get("clients") or [client["client"] for client in run.clients]
    groups = details.get("true_groups") or [client.get("true_group") for client in run.clients]
    if len(names) != count:
        return [str(number) for number in range(count)], [None] * count
    return names, groups if len(groups) == count else [None] * count


def found_groups(run: StoredRun, count: int) -> list[int | None]:
    """The groups that the run found last; None for each of `count` clients if it has not recorded them."""
    groups = recorded(run, "clusters", "groups_found")
    last = groups[-1][1] if groups else run.groups[-1]["groups"] if run.groups else None
    last = next(iter(last.values()), None) if isinstance(last, Mapping) else last  # of several clusterings the first
    return last if isinstance(last, list) and len(last) == count else [None] * count


def label_counts(run: StoredRun) -> tuple[np.ndarray, Sequence[str]]:
    """How often each client has each label, or its share, [client, class], and the labels.

    Where it is not recorded, the world of the run is made again, for which its data must be at hand.
    """
    from coterie.runs.settings import Settings

    if "task" in run.settings or "app" in run.settings:
        raise NotRecordedError(f"{run.path}: real sites keep their labels to themselves")
    shares = recorded(run, "shares", "label_shares")
    if shares:
        counts = np.array(shares[-1][1], dtype=np.float64)
        labels = _details(run).get("classes") or run.settings.get("data", {}).get("labels")
        return np.nan_to_num(counts), labels or [str(label) for label in range(counts.shape[1])]
    # Not its arrivals, which change no split, and may be after the last round that any other method has by default.
    table = {**run.settings, "method": {"name": "local"}, "arrivals": {}}
    try:
        population = Settings.from_table(table).world.population
        return population.label_counts(), population.labels
    except CoterieError as error:
        raise NotRecordedError(f"{run.path}: its data is needed to show the split ({error})") from error


# What each client gained


@dataclass(frozen=True)
class Gained:
    """How much higher a client's score is than in other runs, mean over seeds."""

    value: float
    ends: Ends | None
    """Its 95 % confidence interval, by the number of the client's test samples, if that is recorded."""

    @property
    def clear(self) -> bool:
        """Whether it is more than so few samples show by chance."""
        return self.ends is not None and not self.ends[0] <= 0 <= self.ends[1]


def gains(runs: Sequence[StoredRun], references: Sequence[StoredRun], score: Score = ACCURACY) -> dict[str, Gained]:
    """How much higher each client's score is than in reference runs of the same world and seed, mean over these seeds.

    Clients are known by name; who is not in both, or has no figure, is left out. The interval is by the test samples
    that a client has under one seed: with several seeds they may be the same again.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    samples: dict[str, list[int | None]] = {}
    beside = {world_of(one.settings): one for one in reversed(references)}
    for run in runs:
        other = beside.get(world_of(run.settings))
        before = {} if other is None else {client["client"]: client.get(score.key) for client in other.clients}
        for client in run.clients:
            name, now, then = client["client"], client.get(score.key), before.get(client["client"])
            if now is not None and then is not None:
                found.setdefault(name, []).append((now, then))
                samples.setdefault(name, []).append(client.get("test_samples"))
    gained = {}
    for name, pairs in found.items():
        now, then = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        gained[name] = Gained(now - then, score.ends_of_difference(now, then, fewest(samples[name])))
    return gained


def fewest(counts: Sequence[int | None]) -> int | None:
    """The least of several numbers of samples; None if one of them is not known."""
    known = [count for count in counts if count is not None]
    return min(known) if len(known) == len(counts) else None
