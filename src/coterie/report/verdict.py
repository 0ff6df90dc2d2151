"""What runs come to, in sentences: who is ahead and how surely, for whom it pays, what is uncertain, what it costs.

Every sentence is made of the runs' records. Intervals of means are over clients, so they say whether these runs helped
their clients, not what other seeds would give; those of single clients are by the number of their test samples.
"""

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from coterie.methods import methods
from coterie.report.figures.records import Gained, Runs, gains
from coterie.report.figures.scores import gained_over
from coterie.report.score import Score, first_score
from coterie.report.tables import megabytes, worlds_of
from coterie.runs.folder import StoredRun
from coterie.studies.statistics import Ends

_NAMED = 5
"""At most so many clients are named in a sentence."""

_WORLDS = 4
"""Of more worlds than this, a page has no room for a verdict on each."""

_FEW_SEEDS = 3
"""With fewer seeds than this the order of methods is called a matter of one draw."""


def verdict(runs: Runs, score: Score | None = None) -> list[str]:
    """What runs come to: sentences of prose, the most important first. Runs in other worlds are told apart.

    The score is by default that by which the runs are compared.
    """
    score = score or _score_of(runs)
    scored = {name: some for name, some in runs.items() if _scores(some, score)}
    numbers = worlds_of([some[0].settings for some in scored.values()])
    worlds: dict[int, dict[str, Sequence[StoredRun]]] = {}
    for (name, some), number in zip(scored.items(), numbers, strict=True):
        worlds.setdefault(number, {})[name] = some
    if len(worlds) == 1:
        return _of_one_world(scored, score)
    if len(worlds) > _WORLDS:
        return [f"These runs are of {len(worlds)} data sets or splits: the table below has the best of each."]
    return [sentence for world in worlds.values() for sentence in _ahead(world, score)[:1]]


def _score_of(runs: Runs) -> Score:
    """The score by which runs are compared."""
    return first_score(run.summary for some in runs.values() for run in some if run.summary)


def leader(runs: Runs, score: Score | None = None) -> str:
    """The name of the runs whose clients fare best on average; empty if no run has the score."""
    score = score or _score_of(runs)
    means = {name: np.mean(values) for name, some in runs.items() if (values := _scores(some, score))}
    return max(means, key=lambda name: score.sign * means[name]) if means else ""


def _of_one_world(runs: Runs, score: Score) -> list[str]:
    best = leader(runs, score)
    parts = (_ahead(runs, score), _pays(runs, best, score), _uncertain(runs, best, score), _groups(runs, best))
    return [sentence for part in (*parts, _costs(runs, best)) for sentence in part]


def _scores(some: Sequence[StoredRun], score: Score) -> list[float]:
    """The scores of all clients under all seeds."""
    return [client[score.key] for run in some for client in run.clients if client.get(score.key) is not None]


# Who is ahead


def _ahead(runs: Runs, score: Score) -> list[str]:
    ranked = sorted(runs, key=lambda name: -score.sign * float(np.mean(_scores(runs[name], score))))
    means = {name: float(np.mean(_scores(runs[name], score))) for name in ranked}
    best, unit = ranked[0], " %" if score.unit else ""
    shown = f"{score.text(means[best])}{unit}"
    tenth = _worst_tenth(runs[best], score)
    below = f" The tenth of its clients that fare worst have {score.text(tenth)}{unit}." if tenth is not None else ""
    if len(ranked) == 1:
        return [f"With `{best}` clients get {score.word} {shown} on average.{below}"]
    second = ranked[1]
    gained = gains(runs[best], runs[second], score)
    lead = score.sign * (means[best] - means[second])
    ends = _mean_ends(gained, score)
    over = "" if ends is None else f" ({_between(ends, score)} over its clients, with 95 % confidence)"
    ahead = f"{score.text(lead)} {score.points} ahead of `{second}`"
    if ends is not None and ends[0] <= 0:
        shown = f"`{best}` is {ahead}, which may be chance{over}: {score.word} {shown} on average"
        return [f"{shown} against {score.text(means[second])}.{below}"]
    return [f"`{best}` serves clients best: {score.word} {shown} on average, {ahead}{over}.{below}"]


def _worst_tenth(some: Sequence[StoredRun], score: Score) -> float | None:
    found = [(run.summary or {}).get(f"{score.key}_worst_tenth") for run in some]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None


def _mean_ends(gained: Mapping[str, Gained], score: Score) -> Ends | None:
    """The 95 % confidence interval of the mean gain over clients, more being better; nothing for fewer than three."""
    values = score.sign * np.array([one.value for one in gained.values()])
    if len(values) < 3 or not np.ptp(values):
        return None
    from scipy import stats

    reach = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / sqrt(len(values))
    return float(values.mean()) - reach, float(values.mean()) + reach


def _between(ends: Ends, score: Score) -> str:
    return " to ".join(score.text(end) for end in ends)


# For whom it pays


def _pays(runs: Runs, best: str, score: Score) -> list[str]:
    alone = gained_over(runs, "local", score)
    said = [_against(found[best], best, "training alone", score) for found in alone.values() if best in found]
    if not alone and not _of_method(runs[best], "local"):
        said.append("Whether it pays to take part is not known: `local`, training alone, is not among these runs.")
    if _of_method(runs[best], "local") and len(runs) > 1:
        said.append("On average no method among these serves clients better than training alone.")
    common = gained_over(runs, "fedavg", score)
    said += [_against(found[best], best, "one model for all", score) for found in common.values() if best in found]
    return said


def _of_method(some: Sequence[StoredRun], name: str) -> bool:
    return bool(some) and some[0].settings.get("method", {}).get("name") == name


def _against(gained: Mapping[str, Gained], best: str, reference: str, score: Score) -> str:
    """How many clients a method gives more than a reference, and who clearly loses."""
    more = {name: one for name, one in gained.items() if score.sign * one.value > 0}
    less = {name: one for name, one in gained.items() if score.sign * one.value < 0}
    clearly = [name for name, one in less.items() if one.clear]
    known = any(one.ends for one in gained.values())
    told = f", {sum(one.clear for one in more.values())} of them by more than chance" if known else ""
    first = f"`{best}` gives {len(more)} of {len(gained)} clients more than {reference}{told}"
    if not less:
        return f"{first}; nobody gets less."
    if not known:
        return f"{first}; {_counted(less, 'gets', 'get')} less: {_listed([*less])}."
    sure = f"{len(clearly)} of them" if clearly else "nobody"
    sure += f" by more than chance{f': {_listed(clearly)}' if clearly else ''}"
    return f"{first}; {_counted(less, 'gets', 'get')} less, {sure}."


def _counted(names: Mapping[str, Gained], one: str, several: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else several}"


def _listed(names: Sequence[str]) -> str:
    """Names of clients, or of many the first."""
    shown = ", ".join(f"client {name}" for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


# What is uncertain


def _uncertain(runs: Runs, best: str, score: Score) -> list[str]:
    said, seeds = [], min(map(len, runs.values()))
    if len(runs) > 1 and seeds < _FEW_SEEDS:
        counted = "one seed" if seeds == 1 else f"{seeds} seeds"
        said.append(f"The order of methods is of {counted}: another draw of data and first models may change it.")
    counts = [client["test_samples"] for run in runs[best] for client in run.clients if client.get("test_samples")]
    if counts:
        least, most = min(counts), max(counts)
        samples = str(least) if least == most else f"{least} to {most}"
        middle = int(np.median(counts))
        ends = score.ends(float(np.mean(_scores(runs[best], score))), middle)
        if ends is not None:
            reach = score.text((ends[1] - ends[0]) / 2)
            wide = f"a single client's score is sure to about ± {reach} {score.points}"
            said.append(f"A client is tested on {samples} samples: {wide}.")
    return said


# Groups, and what it costs


def _groups(runs: Runs, best: str) -> list[str]:
    told = []
    for name in (best, *(name for name in runs if name != best)):
        found = [run.summary or {} for run in runs[name]]
        agreement = [one["ari"] for one in found if one.get("ari") is not None]
        if agreement and found[0].get("groups", 1) > 1:
            right = float(np.mean([one["placed_right"] for one in found if one.get("placed_right") is not None]))
            placed = f"{right:g} of {found[0]['clients']} clients are where they belong"
            told.append((float(np.mean(agreement)), f"`{name}` finds {found[0]['groups']} groups: {placed}", name))
    if not told:
        return []
    own = [words for _, words, name in told if name == best]
    if own:
        return [f"{own[0]}."]
    return [f"Who belongs together is found best by another method: {max(told)[1]}."]


def _costs(runs: Runs, best: str) -> list[str]:
    sent, (clients, rounds) = _sent(runs[best]), _size(runs[best])
    name = runs[best][0].settings.get("method", {}).get("name", "")
    given = methods[name].gives_away if name in methods else ""
    away = f" A client gives away {given}." if given else ""
    if not sent:
        return [f"`{best}` sends nothing.{away}"]
    each, beside = megabytes(sent / clients / rounds), ""
    common = next((some for some in runs.values() if _of_method(some, "fedavg") and some is not runs[best]), None)
    if common is not None and (theirs := _sent(common)):
        same = abs(sent / theirs - 1) < 0.005
        beside = f", {'as much as' if same else f'{sent / theirs:.2g} times'} one model for all"
    return [f"`{best}` moves {each} a client and round, {megabytes(sent)} in all{beside}.{away}"]


def _sent(some: Sequence[StoredRun]) -> float:
    """The bytes that were sent while training, mean over seeds."""
    kinds = ("bytes_down", "bytes_up", "bytes_peer")
    return float(np.mean([sum((run.summary or {}).get(kind, 0) for kind in kinds) for run in some]))


def _size(some: Sequence[StoredRun]) -> tuple[int, int]:
    """How many clients and rounds there were."""
    summary = some[0].summary or {}
    return summary["clients"], summary["rounds"]
