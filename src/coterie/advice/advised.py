"""What advice consists of: what was found out about the clients, what was tried, and what came out on test data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.advice.causes import Diagnosis
from coterie.advice.pilots import Trial
from coterie.core.links import linked
from coterie.report.figures.records import Gained, gains
from coterie.report.score import Score
from coterie.runs.folder import StoredRun
from coterie.server.fitting import Result

NAMES = ("settings.toml", "advice.json", "index.html")
"""The files of advice."""


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    >>> advice = coterie.advise(coterie.simulate("digits", split="iid", clients=3, net="logistic"), rounds=4)
    >>> page = advice.save(folder / "advice")
    >>> page.name, sorted(advice.record())[:3]
    ('index.html', ['advice', 'causes', 'caveats'])
    """

    diagnosis: Diagnosis
    trial: Trial
    results: Mapping[str, Result]
    """By method: what was chosen, training alone and one model for all, each at full length, with test data."""
    settings: Mapping[str, Any] | None
    """The settings file of what was chosen, if a file can say how the federation came about."""
    score: Score
    caveats: tuple[str, ...]
    """What is not known."""
    seconds: float

    @property
    def method(self) -> str:
        """The name of the method that is advised."""
        return self.trial.chosen.method.name

    @property
    def stored(self) -> dict[str, list[StoredRun]]:
        """The runs at full length as reports take them."""
        return {name: [_stored(name, result)] for name, result in self.results.items()}

    @property
    def gained(self) -> dict[str, Gained]:
        """What each client gains over training alone with what is advised."""
        return gains(self.stored[self.method], self.stored["local"], self.score)

    @property
    def groups(self) -> dict[int, list[str]]:
        """The clients of each group that the advised method found, if it looked for groups."""
        found: dict[int, list[str]] = {}
        for client in self.results[self.method].clients:
            if client["group_found"] is not None:
                found.setdefault(client["group_found"], []).append(client["client"])
        return found if len(found) > 1 else {}

    @property
    def sentences(self) -> list[str]:
        """The advice in plain words, the most important sentence first."""
        found: list[str] = linked("Advice.sentences")(self)
        return found

    @property
    def command(self) -> str:
        """The command that does what is advised, with the settings file of `save`."""
        return f"coterie run --settings {NAMES[0]}"

    def record(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        found: dict[str, Any] = linked("Advice.record")(self)
        return found

    def save(self, folder: str | Path) -> Path:
        """Write the page, the advice as JSON, and the settings file of what is advised; give the page."""
        page: Path = linked("Advice.save")(self, folder)
        return page


def _stored(name: str, result: Result) -> StoredRun:
    settings = result.settings or {"method": {"name": name}, "seed": result.summary["seed"]}
    records = (result.summary, result.rounds, result.clients, result.groups, result.insights)
    return StoredRun(Path(name), {**settings, "method": {**settings.get("method", {}), "name": name}}, *records)
