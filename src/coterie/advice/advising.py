"""Advice: which method serves the clients of a federation, what it is worth to each of them, and how sure that is.

Clients are looked at (`causes`), methods are tried without test data (`pilots`), and test data is looked at once: for
what was chosen, for training alone and for one model for all.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

from coterie.advice import words
from coterie.advice.advised import Advice
from coterie.advice.causes import diagnose
from coterie.advice.pilots import REFERENCES, Pilot, Trial, candidates, try_out, without_test_data
from coterie.core.errors import SettingsError
from coterie.core.fields import above, at_least, check_range
from coterie.engines.simulation import Simulation
from coterie.report.score import Score
from coterie.runs.settings import Settings, as_toml
from coterie.server.federation import Federation
from coterie.server.fitting import fit
from coterie.server.scoring import Scoring

Private = Literal["none", "labels"]
"""What clients keep to themselves: nothing but their data, or also how often they have which label."""


def advise(
    federation: Federation,
    *,
    budget: float = 2.0,
    rounds: int = 40,
    private: Private = "none",
    told: Callable[[str], None] = lambda said: None,
) -> Advice:
    """Which method serves the clients of a simulated federation.

    `budget` is in minutes; what it has no time for is left out. `rounds` is the length of a run. With
    `private="labels"` no method is tried by which others learn how often a client has which label. `told` is called
    with what is done at the moment.

    >>> fed = coterie.simulate("digits", split="iid", clients=4, net="logistic")
    >>> advice = coterie.advise(fed, rounds=8)
    >>> advice.method in coterie.methods, len(advice.gained)
    (True, 4)
    """
    if not isinstance(federation, Federation):
        raise SettingsError(f"federation={federation!r}: expected a federation, such as coterie.simulate(...) gives")
    check_range("budget", budget, above(0, "minutes, above 0"))
    check_range("rounds", rounds, at_least(4))
    if private not in ("none", "labels"):
        raise SettingsError(f"private={private!r}: none or labels")
    engine = federation._engine
    if not isinstance(engine, Simulation):
        raise SettingsError("advise: needs simulated clients, whose data is on this machine")
    if len(federation.names) < 2:
        raise SettingsError("advise: there is one client, who has nobody to train with; there must be two at least")
    began = time.monotonic()
    told("looking at how clients differ")
    diagnosis = diagnose(engine.population, federation.seed)
    pilot_clients = without_test_data(federation, federation.seed)
    left = 60 * budget - (time.monotonic() - began)
    trial = try_out(pilot_clients, candidates(pilot_clients, rounds, private), rounds, left, told)
    results = {}
    for name, pilot in _finalists(trial).items():
        told(f"{name}: all {rounds} rounds, on test data")
        results[name] = fit(pilot.method, federation, scoring=Scoring(evaluate_every=rounds, global_test=False))
    settings = _settings(federation, trial.chosen)
    score = Score(federation.net.task.score)
    caveats = tuple(words.caveats(engine.population, trial))
    return Advice(diagnosis, trial, results, settings, score, caveats, time.monotonic() - began)


def _finalists(trial: Trial) -> dict[str, Pilot]:
    """What is chosen and the references, each with its best setting."""
    found = {trial.chosen.method.name: trial.chosen}
    for pilot in trial.pilots:
        if pilot.method.name in REFERENCES and not pilot.failed:
            found.setdefault(pilot.method.name, pilot)
    return found


def _settings(federation: Federation, chosen: Pilot) -> dict[str, Any] | None:
    """The settings file of a run of what is chosen; nothing if no file can name what the federation was made of."""
    if federation.world is None:
        return None
    table = {**federation.world, "method": {"name": chosen.method.name, **vars(chosen.method)}}
    try:
        return Settings.from_table(as_toml(table)).resolved().table()
    except SettingsError:
        return None
