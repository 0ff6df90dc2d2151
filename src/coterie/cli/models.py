"""Models to take home: `coterie export` writes them into files, `coterie predict` uses such a file."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO
from urllib.parse import quote

import numpy as np
from cyclopts import Parameter

from coterie.cli.console import following, tell
from coterie.cli.parameters import flag
from coterie.core.errors import SettingsError, unknown

if TYPE_CHECKING:
    from coterie.nets.predictor import Predictor
    from coterie.server.served_models import ServedModels

_ENDINGS = {"safetensors": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}

Format = Literal["safetensors", "torch", "onnx"]


def export(
    run: Annotated[Path, Parameter(help="Folder of a finished run.")],
    *,
    client: Annotated[str, flag("Whose model; several names with commas between.")] = "",
    every: Annotated[bool, flag("The models of all clients.", name="--all")] = False,
    to: Annotated[Path, flag("Folder of the files, one for each client. [models]", "Output")] = Path("models"),
    form: Annotated[
        Format,
        flag(
            "`safetensors` is read by `coterie predict` and has the tensors by their names; `torch` (a program of "
            "`torch.export`) and `onnx` need no Coterie.",
            "Output",
            "--format",
            show_default=None,
        ),
    ] = "safetensors",
) -> None:
    """Take models of a run home: each file has what one client predicts with, and takes inputs as the data has them.

    Scaling, what stands for missing values, and the names of the labels are inside.
    """
    models = _models_of(run)
    if every == bool(client):
        raise SettingsError(f"say whose models: --client NAME or --all; there are {_some(models.clients)}")
    chosen = models.clients if every else tuple(name.strip() for name in client.split(","))
    for name in chosen:
        if name not in models.clients:
            raise unknown("client", name, models.clients)
    files = {name: to / (quote(name, safe=" ,") + _ENDINGS[form]) for name in chosen}
    if there := [file for file in files.values() if file.exists()]:
        raise SettingsError(f"{there[0]}: exists already; choose another folder with --to")
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            models.export(name, file)
    except OSError as error:
        raise SettingsError(f"to={to}: cannot be written ({error.strerror})") from error
    tell("written to", next(iter(files.values())) if len(files) == 1 else f"{to}: {len(files)} models")


def predict(
    model: Annotated[Path, Parameter(help="A file of models (`.safetensors`), or the folder of a run.")],
    *,
    data: Annotated[
        Path, flag("A table, an .npz file with x, an .npy file, an image, or a folder of images: as trained on.")
    ],
    client: Annotated[str, flag("Whose model, if there are several.")] = "",
    out: Annotated[Path | None, flag("CSV file of what is predicted; else it is printed.", "Output")] = None,
) -> None:
    """Predict for new data, which needs no targets: a line for each row, in their order.

    For classes there is the likeliest, and the probability of each; for numbers there are the numbers.
    """
    if out is not None and out.exists():
        raise SettingsError(f"out={out}: exists already; choose another file")

    from coterie.data.unlabelled import unlabelled

    predictor = _predictor(model, client)
    with following(quiet=True):
        scores = predictor.scores(unlabelled(data, predictor.preparation))
    rows = _rows(predictor, scores)
    if out is None:
        _write(sys.stdout, rows)
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            _write(file, rows)
    except OSError as error:
        raise SettingsError(f"out={out}: cannot be written ({error.strerror})") from error
    tell("written to", out)


def _models_of(run: Path) -> "ServedModels":
    """The models in the folder of a run."""
    from coterie.runs.folder import StoredRun, models_in
    from coterie.runs.options import import_modules

    stored = StoredRun.read(run)
    import_modules(stored.settings)
    return models_in(stored)


def _predictor(model: Path, client: str) -> "Predictor":
    from coterie.server.served_models import load_model, one_of

    return one_of(_models_of(model), str(model), client) if model.is_dir() else load_model(model, client)


def _rows(predictor: "Predictor", scores: np.ndarray) -> Iterable[Sequence[Any]]:
    """The head, and what is said of each sample."""
    labels, task = predictor.labels, predictor.task
    schema = predictor.preparation.schema
    if task.name == "regression":
        yield labels
        yield from scores.tolist()
        return
    told = [f"probability of {label}" for label in labels]
    if task.one_class:
        yield [schema.target if schema is not None else "prediction", *told]
        names = np.array(labels)[scores.argmax(axis=1)].tolist()
        yield from ([name, *row] for name, row in zip(names, scores.tolist(), strict=True))
        return
    yield [*labels, *told]
    for row in scores.tolist():
        yield [*(int(score > 0.5) for score in row), *row]


def _write(file: TextIO, rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])


def _some(clients: Sequence[str]) -> str:
    return ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
