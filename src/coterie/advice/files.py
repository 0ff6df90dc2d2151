"""Advice as files: a page, JSON, and the settings of a run that does what is advised."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from coterie.advice import words
from coterie.advice.advised import NAMES, Advice
from coterie.advice.causes import Cause
from coterie.advice.page import write_advice
from coterie.advice.pilots import Pilot
from coterie.core.files import write_whole
from coterie.report.score import Score
from coterie.server.fitting import Result


def save(advice: Advice, folder: str | Path) -> Path:
    """Write the page, the advice as JSON, and the settings file of what is advised; give the page."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if advice.settings is not None:
        write_whole(place / NAMES[0], tomli_w.dumps(dict(advice.settings)))
    write_whole(place / NAMES[1], json.dumps(record(advice), indent=2) + "\n")
    write_advice(place / NAMES[2], advice)
    return place / NAMES[2]


def record(advice: Advice) -> dict[str, Any]:
    """Everything, as JSON has it."""
    clients = {client["client"]: client for client in advice.results[advice.method].clients}
    return {
        "advice": advice.method,
        "options": advice.trial.chosen.options,
        "rounds": advice.trial.chosen.method.rounds,
        "verdict": words.verdict_of(advice),
        "sentences": advice.sentences,
        "sure": round(advice.trial.sure, 3),
        "expected_gain": advice.trial.expected,
        "causes": {name: _cause(cause) for name, cause in advice.diagnosis.causes.items()},
        "main_causes": list(advice.diagnosis.main),
        "groups": {str(group): names for group, names in advice.groups.items()},
        "clients": [
            {
                "client": name,
                "samples": clients[name]["samples"],
                "test_samples": clients[name]["test_samples"],
                "gain": one.value,
                "ends": one.ends,
                "says": words.of_client(one, advice.score),
            }
            for name, one in advice.gained.items()
        ],
        "pilots": [_pilot(pilot) for pilot in advice.trial.pilots],
        "complete": advice.trial.complete,
        "test": {name: _headline(result, advice.score) for name, result in advice.results.items()},
        "caveats": list(advice.caveats),
        "seconds": round(advice.seconds, 1),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {name: value for name, value in asdict(cause).items() if name != "name"}


def _pilot(pilot: Pilot) -> dict[str, Any]:
    return {
        "method": pilot.method.name,
        "options": pilot.options,
        "rounds": pilot.rounds,
        "validation": None if not np.isfinite(pilot.mean) else abs(pilot.mean),
        "seconds": round(pilot.seconds, 2),
        "failed": pilot.failed or None,
    }


def _headline(result: Result, score: Score) -> dict[str, Any]:
    keys = (f"{score.key}_mean", f"{score.key}_worst_tenth", "bytes_up", "bytes_down", "bytes_peer", "seconds")
    return {key: result.summary.get(key) for key in keys}
