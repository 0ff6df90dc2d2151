"""Advice in plain words: each sentence is made of what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.advice.causes import Cause
from coterie.data.population import Population
from coterie.methods import methods
from coterie.report.figures.records import Gained
from coterie.report.score import Score
from coterie.report.tables import megabytes

if TYPE_CHECKING:
    from coterie.advice.advised import Advice
    from coterie.advice.pilots import Trial

_NAMED = 5
_FEW_NUMBERS = 30
"""Samples of a client below which nothing is said about numbers that are predicted for it."""

VERDICTS: Mapping[str, str] = {
    "alone": "Every client is best off on its own",
    "global": "One model serves all clients",
    "clustered": "Train a model for each of a few groups",
    "personal": "Give every client a model of its own, trained together",
    "own": "Give every client what suits it, out of what all train together",
}


def verdict_of(advice: "Advice") -> str:
    """Which kind of method is advised: alone, global, clustered, personal or own."""
    return "alone" if advice.method == "local" else methods[advice.method].family


def sentences(advice: "Advice") -> list[str]:
    """What to do, what differs, who gains and who loses, what it costs, and how sure all that is."""
    return [
        _first(advice),
        *_differences(advice),
        *_gains(advice),
        *_groups(advice),
        _costs(advice),
        *_sureness(advice),
    ]


def _first(advice: "Advice") -> str:
    score, results = advice.score, advice.results
    key, unit = f"{score.key}_mean", " %" if score.unit else ""
    means = {name: result.summary[key] for name, result in results.items() if result.summary.get(key) is not None}
    told = [f"{score.text(means[name])}{unit} {called}" for name, called in _CALLED.items() if name in means]
    others = f"; {' and '.join(told)}" if told else ""
    own = "" if advice.method in _CALLED else f": {score.word} {score.text(means[advice.method])}{unit}"
    with_it = "" if advice.method == "local" else f" with `{advice.method}` ({_settings(advice)})"
    return f"{VERDICTS[verdict_of(advice)]}{with_it}{own}{others}, on test data."


_CALLED = {"local": "for training alone", "fedavg": "for one model for all"}


def _settings(advice: "Advice") -> str:
    return ", ".join(f"{name} {value}" for name, value in advice.trial.chosen.options.items())


# How clients differ


def _differences(advice: "Advice") -> Iterator[str]:
    causes, main = advice.diagnosis.causes, advice.diagnosis.main
    said = {"concepts": _concepts, "inputs": _inputs, "labels": _labels, "sizes": _sizes, "few samples": _few}
    differing = [name for name in main if name in ("concepts", "inputs", "labels")]
    if not differing:
        yield "Clients' data do not differ by more than chance, neither in labels nor in what inputs look like."
    for name in dict.fromkeys((*main, *(name for name in ("sizes", "few samples") if causes[name].found))):
        yield said[name](causes[name])


def _concepts(cause: Cause) -> str:
    some = []
    for client in cause.differing[:_NAMED]:
        names = ", ".join(f"{own} is others' {other}" for own, other in cause.renamed[client].items())
        some.append(f"client {client} ({names})")
    more = f" and {len(cause.differing) - _NAMED} more" if len(cause.differing) > _NAMED else ""
    return f"Labels mean something else at {'; '.join(some)}{more}: look at its data before anybody trains with it."


def _inputs(cause: Cause) -> str:
    share = f"{len(cause.differing)} of {len(cause.clients)} clients"
    told = f"told from others' in {100 * cause.effect:.0f} of 100 pairs of one label (50 would be chance)"
    return f"Inputs look different: samples of {share} can be {told}."


def _labels(cause: Cause) -> str:
    far = f"{100 * cause.effect:.0f} % of a client's samples would need another label to have everybody's shares"
    return f"Clients have different labels: on average {far}, beyond what chance does."


def _sizes(cause: Cause) -> str:
    sizes = cause.clients.values()
    return f"Clients have very different numbers of samples, from {min(sizes):.0f} to {max(sizes):.0f}."


def _few(cause: Cause) -> str:
    points = f"{100 * cause.effect:.0f} points"
    return (
        f"A client alone has few samples: the same learner gains {points} of accuracy from everybody's, mixed evenly."
    )


# For whom it pays, what it costs, how sure it is


def of_client(gained: Gained, score: Score) -> str:
    """What can be said of one client."""
    if gained.ends is None or not gained.clear:
        return "too few samples to say"
    return "gains" if score.sign * gained.value > 0 else "loses"


def _gains(advice: "Advice") -> Iterator[str]:
    if advice.method == "local":
        yield "Nobody would be served better on average by any of the methods that were tried."
        return
    says = {name: of_client(one, advice.score) for name, one in advice.gained.items()}
    counts = {word: [name for name, said in says.items() if said == word] for word in set(says.values())}
    gaining, losing = counts.get("gains", []), counts.get("loses", [])
    unsure = len(counts.get("too few samples to say", []))
    lost = f"{_listed(losing)} would lose" if losing else "nobody clearly loses"
    yield (
        f"Against training alone {len(gaining)} of {len(says)} clients clearly gain, {lost}, and for {unsure} there "
        "are too few samples to say."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"client {name}" for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _groups(advice: "Advice") -> Iterator[str]:
    found = advice.groups
    if verdict_of(advice) == "clustered" and found:
        told = "; ".join(f"{_listed(names)}" for names in found.values())
        yield f"It finds {len(found)} groups: {told}."


def _costs(advice: "Advice") -> str:
    summary = advice.results[advice.method].summary
    away = methods[advice.method].gives_away
    given = f" A client gives away {away}." if away else ""
    sent = sum(summary[kind] for kind in ("bytes_up", "bytes_down", "bytes_peer"))
    if not sent:
        return f"It sends nothing.{given}"
    each = megabytes(sent / summary["clients"])
    return f"It moves {each} for each client in {summary['rounds']} rounds.{given}"


def _sureness(advice: "Advice") -> Iterator[str]:
    again = (
        f"Had the clients been others like them, the same would be chosen {100 * advice.trial.sure:.0f} times of 100"
    )
    short = "" if advice.trial.complete else "; there was no time for all pilots: a larger budget may choose better"
    yield f"{again}{short}."
    yield from advice.caveats


def caveats(population: Population, trial: "Trial") -> Iterator[str]:
    """What is not known."""
    sizes = np.array([len(shard.train) + len(shard.validation) + len(shard.test) for shard in population.shards])
    if not population.task.one_class and (sizes < _FEW_NUMBERS).any():
        few = [name for name, size in zip(population.names, sizes, strict=True) if size < _FEW_NUMBERS]
        yield f"Not known: what it is worth to {_listed(few)}, with fewer than {_FEW_NUMBERS} samples each."
    if population.task.one_class:
        counts = population.label_counts() > 0
        lonely = [label for label, clients in zip(population.labels, counts.sum(axis=0), strict=True) if clients == 1]
        if lonely:
            labels = ", ".join(lonely[:_NAMED])
            yield f"Not known: whether others would call {labels} what its owner does: only one client has that label."
    failed = dict.fromkeys(pilot.method.name for pilot in trial.pilots if pilot.failed)
    if failed:
        yield f"Not tried to the end: {', '.join(failed)}."
