"""Pilots: short runs of several methods and settings, halved by how well they serve clients on validation data.

No pilot can reach test data: it runs on the clients without it, where a part of what else they have stands for it. All
pilots of a stage are scored on the same samples of the same clients, so they are compared client by client. After each
stage the better half goes on, from where it is; of several settings of a method only the best. What is best at the end
gives way to a simpler method that it leads by less than one standard error.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import t

from coterie.core.errors import CoterieError, SettingsError
from coterie.engines.simulation import Simulation
from coterie.methods import methods
from coterie.server.federation import Federation
from coterie.server.fitting import Beginning, Checkpoint, Record, Result, fit
from coterie.server.method import Method
from coterie.server.metrics import metric_named
from coterie.server.scoring import ClientScores, Scoring

RATES = (0.03, 0.1, 0.3)
"""Learning rates that are tried for every method."""

PORTFOLIO: tuple[tuple[str, Mapping[str, Sequence[Any]]], ...] = (
    ("local", {}),
    ("fedavg", {}),
    ("fedavg-ft", {}),
    ("accord", {}),
    ("ifca", {"clusters": (2, 4)}),
    ("fl-hc", {}),
    ("ditto", {}),
    ("fedrep", {}),
)
"""The methods that are tried, the simpler ones first, and the settings of each besides the rate."""

REFERENCES = ("local", "fedavg")
"""What advice is measured against: training alone, and one model for all."""

_STAGES = (0.25, 0.5, 1.0)
"""The shares of all rounds after which pilots are halved."""

_SHARE = 0.25
"""The part of a client's samples on which pilots are scored."""


class _Paused(Exception):  # noqa: N818  # nothing went wrong
    """A pilot has done the rounds of its stage."""


@dataclass
class Pilot:
    """A method with settings, and how far it has come."""

    method: Method
    place: int
    """Where its method stands in the portfolio: the simpler, the earlier."""
    scores: np.ndarray = field(default_factory=lambda: np.empty(0))
    """The clients' scores when it was looked at last, more being better, [client]."""
    rounds: int = 0
    seconds: float = 0.0
    failed: str = ""
    """Why it could not go on."""
    _until: int = 0
    _checkpoint: Checkpoint | None = None
    _sign: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """Its settings, but for the method's name."""
        return {name: getattr(self.method, name) for name in ("rate", *_settings_of(self.method.name))}

    @property
    def mean(self) -> float:
        """The mean of its clients' scores."""
        known = self.scores[np.isfinite(self.scores)]
        return float(known.mean()) if len(known) else -np.inf

    def go_on(self, fed: Federation, until: int) -> None:
        """Go on until a round, from where it is."""
        self._until, began = until, time.monotonic()
        self._sign = 1 if metric_named(fed.net.task.score).higher else -1
        scoring = Scoring(evaluate_every=max(1, round(_STAGES[0] * self.method.rounds)), global_test=False)
        try:
            fit(self.method, fed, scoring=scoring, observers=[self], resume=self._checkpoint, keep_models=False)
        except _Paused:
            pass
        except CoterieError as error:
            self.failed = str(error)
        self.seconds += time.monotonic() - began

    # As an observer of its own run

    def run_begun(self, beginning: Beginning) -> None:
        """Nothing is done when it begins."""

    def clients_scored(self, number: int, scores: ClientScores) -> None:
        """Remember how clients do."""
        self.scores, self.rounds = self._sign * np.asarray(next(iter(scores.values.values())), float), number

    def round_done(self, checkpoint: Checkpoint, record: Record | None, groups: Record | None) -> None:
        """Remember where it is, and pause where its stage ends."""
        number = checkpoint.federation["round"]
        if number == self._until < self.method.rounds:
            self._checkpoint = checkpoint
            raise _Paused

    def run_done(self, checkpoint: Checkpoint, result: Result) -> None:
        """Nothing is left to do."""

    def run_left(self) -> None:
        """It goes on later, or not at all."""


@dataclass(frozen=True)
class Trial:
    """What the pilots came to."""

    pilots: Sequence[Pilot]
    """All of them; those that went on are ahead of those that did not."""
    chosen: Pilot
    sure: float
    """How often the same method is chosen if clients are drawn anew, as many, with replacement."""
    rounds: int
    complete: bool
    """Whether there was time for all stages."""
    expected: tuple[float, float, float] | None
    """What clients gain on average over training alone, by the pilots, and the ends of its 90 % interval."""


def candidates(fed: Federation, rounds: int, private: str = "none") -> list[Pilot]:
    """All methods and settings that this federation can try, and that give away no more than is allowed."""
    found = []
    for place, (name, settings) in enumerate(PORTFOLIO):
        if name not in methods or (
            private == "labels" and "label" in f"{methods[name].sends} {methods[name].gives_away}"
        ):
            continue
        for values in product(RATES, *settings.values()):
            made = methods.make(name, rounds=rounds, **dict(zip(("rate", *settings), values, strict=True)))
            try:
                made.check(fed)
            except SettingsError:
                continue
            found.append(Pilot(made, place))
    return found


def without_test_data(fed: Federation, seed: int) -> Federation:
    """The same simulated clients, none of whom has test data: what is scored is a part of their other samples."""
    engine = fed._engine
    if not isinstance(engine, Simulation):
        raise SettingsError("advise: needs simulated clients, whose data is on this machine")
    population = engine.population.for_pilots(_SHARE, seed)
    beside = Simulation(population, engine.net.name, engine.computing, engine)
    return Federation(beside, fed.seed, true_groups=None)


def try_out(
    fed: Federation,
    pilots: Sequence[Pilot],
    rounds: int,
    seconds: float,
    told: Callable[[str], None] = lambda words: None,
) -> Trial:
    """Run pilots on clients without test data, stage by stage, as far as the time allows.

    What training the winner and both references at full length takes is kept free.
    """
    began, going, complete = time.monotonic(), list(pilots), True
    for stage, share in enumerate(_STAGES):
        until = max(stage + 1, round(share * rounds))
        for number, pilot in enumerate(going):
            # The first stage is always done for all: without it there is nothing to choose from.
            left = seconds - (time.monotonic() - began) - _kept_free(going, rounds)
            if stage and left < pilot.seconds * (until / max(pilot.rounds, 1) - 1):
                complete = False
                break
            told(
                f"{pilot.method.name} {_words(pilot.options)}: to round {until} of {rounds} ({number + 1}/{len(going)})"
            )
            pilot.go_on(fed, until)
        going = [pilot for pilot in going if not pilot.failed]
        if not going:
            raise SettingsError(f"advise: no pilot could be run ({pilots[0].failed})")
        if not complete:
            break
        if share < 1:
            going = _better_half(going)
    done = max(pilot.rounds for pilot in going)
    compared = [pilot for pilot in going if pilot.rounds == done]
    chosen = _simplest(compared)
    others = sorted((pilot for pilot in pilots if pilot not in compared), key=lambda one: (-one.rounds, -one.mean))
    ranked = [*sorted(compared, key=lambda one: -one.mean), *others]
    return Trial(ranked, chosen, _sureness(compared, chosen), done, complete, _expected(compared, chosen))


def _kept_free(going: Sequence[Pilot], rounds: int) -> float:
    """The seconds that three runs at full length take, by the slowest of the pilots so far."""
    paces = [pilot.seconds / pilot.rounds for pilot in going if pilot.rounds]
    return 3 * rounds * max(paces, default=0.0)


def _better_half(going: Sequence[Pilot]) -> list[Pilot]:
    """The best setting of each method, and of these the better half; the references always go on."""
    best: dict[int, Pilot] = {}
    for pilot in sorted(going, key=lambda one: -one.mean):
        best.setdefault(pilot.place, pilot)
    kept = set([*best][: max(2, -(-len(best) // 2))])
    return [best[place] for place in sorted(best) if place in kept or best[place].method.name in REFERENCES]


def _simplest(compared: Sequence[Pilot], rows: np.ndarray | None = None) -> Pilot:
    """The simplest of the pilots that the best leads by less than a standard error, over clients or some of them."""
    rows = np.arange(len(compared[0].scores)) if rows is None else rows
    means = [float(np.nanmean(pilot.scores[rows])) for pilot in compared]
    best = compared[int(np.argmax(means))]
    for pilot in sorted(compared, key=lambda one: one.place):
        leads = (best.scores - pilot.scores)[rows]
        leads = leads[np.isfinite(leads)]
        error = float(leads.std(ddof=1)) / np.sqrt(len(leads)) if len(leads) > 1 else 0.0
        if pilot is best or leads.mean() < error:
            return pilot
    return best


_REDRAWS = 500


def _sureness(compared: Sequence[Pilot], chosen: Pilot) -> float:
    rng, clients = np.random.default_rng(0), len(chosen.scores)
    same = [_simplest(compared, rng.integers(clients, size=clients)) is chosen for _ in range(_REDRAWS)]
    return float(np.mean(same))


def _expected(compared: Sequence[Pilot], chosen: Pilot) -> tuple[float, float, float] | None:
    """The mean gain over training alone, and where it is on as many other samples with 90 % confidence."""
    alone = next((pilot for pilot in compared if pilot.method.name == "local"), None)
    if alone is None or alone is chosen:
        return None
    gained = chosen.scores - alone.scores
    gained = gained[np.isfinite(gained)]
    if len(gained) < 3:
        return None
    # Both the pilots' samples and those on which it is to come true vary.
    reach = float(t.ppf(0.95, len(gained) - 1) * gained.std(ddof=1) * np.sqrt(2 / len(gained)))
    mean = float(gained.mean())
    return mean, mean - reach, mean + reach


def _settings_of(name: str) -> Sequence[str]:
    return [*dict(PORTFOLIO).get(name, {})]


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
