"""One page of advice, for who decides: what to do, for whom it pays, how clients differ, and what was tried."""

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from coterie.advice.causes import CAUSES, Cause
from coterie.report import page, sections
from coterie.report.clients import every_client
from coterie.report.figures import style
from coterie.report.page import Section, parts

if TYPE_CHECKING:
    from coterie.advice.advised import Advice

_EFFECTS = {
    "concepts": "agree once renamed",
    "inputs": "told apart",
    "labels": "distance",
    "sizes": "samples",
}
"""What is shown of each client, by cause."""

_MANY = 60


def write_advice(path: Path, advice: "Advice") -> None:
    """Write the page."""
    runs = advice.stored
    summary = advice.results[advice.method].summary
    net, took = summary.get("net", "of your own"), f"{advice.seconds:.0f} s"
    lead = f"{summary['clients']} clients, net {net}, {summary['rounds']} rounds; found in {took}."
    with style.same_looks(runs):
        main = sections.drawn(
            "ranked", runs, _CAPTION.format(advice.method), method=advice.method, over="local", key=advice.score.key
        )
        content = [
            Section("What to do", _todo(advice)),
            Section("How clients differ", _causes_table(advice) + page.figure(_causes_figure(advice), _DIFFER)),
            Section("What was tried", _pilots_table(advice) + parts.paragraphs(_TRIED)),
            Section("Every client", every_client(runs), folded=True),
            Section("What it costs", sections.costs(runs), folded=True),
        ]
        page.write_page(path, "Which method for this federation?", lead, content, advice.sentences, main)


_CAPTION = (
    "What each client gains with {} over training alone, on its test data, with 95 % confidence intervals by the "
    "number of its test samples. Hollow: too few samples to say."
)
_DIFFER = "Every client by each cause; clients that differ by more than chance are filled."
_TRIED = (
    "Pilots are scored on samples that clients would otherwise train or validate on: test data was looked at once, for "
    "what is advised, for training alone and for one model for all. After each stage the better half goes on."
)


def _todo(advice: "Advice") -> Markup:
    if advice.settings is None:
        made = f"coterie.methods.make({advice.method!r}, rounds={advice.trial.chosen.method.rounds}, "
        values = ", ".join(f"{name}={value!r}" for name, value in advice.trial.chosen.options.items())
        return parts.code(f"{made}{values}).fit(federation)")
    return parts.code(advice.command)


def _causes_table(advice: "Advice") -> Markup:
    rows = []
    for name in CAUSES:
        cause = advice.diagnosis.causes[name]
        ends = "–" if cause.ends is None else f"{cause.ends[0]:.2f} to {cause.ends[1]:.2f}"
        says = "yes" if cause.found else "no"
        who = f"{len(cause.differing)} of {len(cause.clients)}" if cause.clients and name != "sizes" else "–"
        rows.append([name, says, "–" if cause.note else f"{cause.effect:.2f}", ends, who, cause.note or _MEANING[name]])
    header = ["cause", "found", "effect", "90 % interval", "clients", "what the effect is"]
    return parts.table(header, rows, kind="few")


_MEANING = {
    "concepts": "share of a client's labels that others predict only once they are renamed",
    "inputs": "pairs of samples of one label whose client is told right; 0.5 is chance",
    "labels": "total variation from everybody's shares of labels, less what chance gives",
    "sizes": "evenness of sizes: 1 if all clients have as many samples",
    "few samples": "accuracy that the same learner gains from everybody's samples over a client's number of them",
}


def _causes_figure(advice: "Advice") -> Figure:
    shown = [name for name in _EFFECTS if advice.diagnosis.causes[name].clients]
    figure, panels = style.panels(len(shown), 3.7, 2.6, most=2)
    with matplotlib.rc_context(style.SMALL):
        for axes, name in zip(panels, shown, strict=True):
            _one_cause(axes, name, advice.diagnosis.causes[name])
    return figure


def _one_cause(axes: matplotlib.axes.Axes, name: str, cause: Cause) -> None:
    """A dot for each client, from the lowest effect to the highest."""
    ordered = sorted(cause.clients.items(), key=lambda item: item[1])
    names, values = [client for client, _ in ordered], np.array([value for _, value in ordered])
    filled = np.array([client in cause.differing for client in names])
    color = style.PALETTE[0]
    places = np.arange(len(values))
    size = 4.5 if len(values) <= _MANY else 2
    axes.plot(places[filled], values[filled], "o", markersize=size, color=color)
    axes.plot(places[~filled], values[~filled], "o", markersize=size, color=color, markerfacecolor="white")
    style.name_clients(axes, names, most=12)
    axes.set(title=name, ylabel=_EFFECTS[name], xlabel="client")


def _pilots_table(advice: "Advice") -> Markup:
    rows, best = [], []
    for pilot in advice.trial.pilots:
        score = "–" if not np.isfinite(pilot.mean) else advice.score.text(abs(pilot.mean))
        settings = ", ".join(f"{name} {value}" for name, value in pilot.options.items())
        rows.append([pilot.method.name, settings, str(pilot.rounds), score, f"{pilot.seconds:.1f} s", pilot.failed])
        best.append([pilot is advice.trial.chosen] + [False] * 5)
    shown = f"validation {advice.score.word}{advice.score.unit}"
    table = parts.table(["method", "settings", "rounds", shown, "took", "failed because"], rows, best)
    return (
        table
        if any(row[-1] for row in rows)
        else parts.table(
            ["method", "settings", "rounds", shown, "took"], [row[:-1] for row in rows], [one[:-1] for one in best]
        )
    )
