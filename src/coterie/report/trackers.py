"""Runs in the places where teams look at theirs: MLflow, TensorBoard, Weights & Biases.

    coterie run ifca --track mlflow
    coterie.FedAvg(rounds=20).fit(fed, observers=[coterie.trackers.TensorBoard("logs")])

A tracker is an observer of a run. It hands on the settings, every record, how scores are spread over clients, who is
grouped with whom, the bytes that crossed, and at the end the figures, the page and the records' files. Where a service
is, and whose account it takes, the service's own variables say, such as MLFLOW_TRACKING_URI and WANDB_MODE.

`trackers.json` in the run's folder says which run of the service this is and which round it has got last: a run that
goes on does so there, too, and a tracker that comes later gets the earlier records. A service that fails is left alone
from then on; the run itself never fails by it.

    >>> fed = coterie.simulate(clients=2, net="logistic", limit=200)
    >>> result = coterie.FedAvg(rounds=1).fit(fed, observers=[coterie.trackers.TensorBoard(folder)])
    >>> [place.name for place in folder.iterdir()]
    ['fedavg-seed0']
"""

import json
import logging
import math
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coterie.core.errors import CoterieError, unknown
from coterie.core.files import write_whole

if TYPE_CHECKING:
    from coterie.server.fitting import Beginning, Checkpoint, Record, Result
    from coterie.server.scoring import ClientScores

NOTES = "trackers.json"
"""The file in a run's folder that says where its trackers are."""

log = logging.getLogger("coterie")

Spreads = Mapping[str, np.ndarray]
"""The finite scores of all clients, by name."""


class Tracker(ABC):
    """Base of all trackers. A subclass says how its service is told; when, and of what, is said here.

    >>> issubclass(coterie.trackers.WandB, coterie.trackers.Tracker)
    True
    """

    name: ClassVar[str]
    library: ClassVar[str]

    def __init__(self) -> None:
        if find_spec(self.library) is None:
            raise CoterieError(f"track={self.name}: needs {self.library}: pip install 'coterie[trackers]'")
        self._failed = True  # until a run begins, there is nobody to tell
        self._told = 0
        """The last round that the service has the record of."""
        self._spreads: dict[str, np.ndarray] = {}
        self._folder: Path | None = None
        self._run = ""
        self._clients: Sequence[str] = ()

    # What a service does

    @abstractmethod
    def open(self, beginning: "Beginning", run: str) -> str:
        """Go on with a run of the service, or begin one if none is named, and give what names it."""

    @abstractmethod
    def tell(self, number: int, figures: Mapping[str, float], spreads: Spreads) -> None:
        """Hand on the figures of a round."""

    @abstractmethod
    def group(self, number: int, groups: Mapping[str, int]) -> None:
        """Hand on who is in which group from this round on, by the clients' names."""

    @abstractmethod
    def keep(self, file: Path) -> None:
        """Hand on a file."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """The run is finished, or was stopped before."""

    # As an observer

    def run_begun(self, beginning: "Beginning") -> None:
        """Begin a run of the service or go on with it, and hand on what it has not got of the rounds before."""
        self._failed, self._folder, self._clients = False, beginning.folder, beginning.clients
        self._try(self._begin, beginning)

    def clients_scored(self, number: int, scores: "ClientScores") -> None:
        """Remember how the clients' scores are spread, until the record of the round is there."""
        found = {**scores.values, **scores.more, "loss": scores.loss}
        self._spreads = {name: values[np.isfinite(values)] for name, values in found.items()}

    def round_done(self, checkpoint: "Checkpoint", record: "Record | None", groups: "Record | None") -> None:
        """Hand on the record of a round, and the groups if they changed."""
        self._try(self._hand_on, record, groups)

    def run_done(self, checkpoint: "Checkpoint", result: "Result") -> None:
        """Hand on what is known at the end."""
        self._try(self._end, result)
        self._failed = True

    def run_left(self) -> None:
        """The run was stopped, or has failed."""
        self._try(self.close, False)
        self._failed = True

    def _try(self, step: Callable[..., None], *values: Any) -> None:
        """Take a step, unless the service has failed before; if it fails now, warn."""
        if self._failed:
            return
        try:
            step(*values)
        except Exception as error:  # whatever a service does: it costs no run
            self._failed = True
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("%s fails (%s): the run goes on without it", self.name, why)

    def _begin(self, beginning: "Beginning") -> None:
        noted = _notes(self._folder).get(self.name, {})
        self._told = noted.get("round", 0)
        self._run = self.open(beginning, noted.get("run", ""))
        self._note()
        for change in beginning.groups:
            self._hand_on(None, change)
        for record in beginning.rounds:
            self._hand_on(record, None)

    def _hand_on(self, record: "Record | None", groups: "Record | None") -> None:
        spreads, self._spreads = self._spreads, {}
        if groups is not None and groups["round"] > self._told:
            known = [*self._clients, *map(str, range(len(self._clients), len(groups["groups"])))]
            self.group(groups["round"], dict(zip(known, groups["groups"], strict=False)))
        if record is not None and record["round"] > self._told:
            self.tell(record["round"], _numbers(record), {name: own for name, own in spreads.items() if len(own)})
            self._told = record["round"]
            self._note()

    def _end(self, result: "Result") -> None:
        bytes_by_kind = {
            f"bytes/{direction}/{kind}": float(size)
            for direction, kinds in result.summary["ledger"].items()
            for kind, size in kinds.items()
        }
        known = _numbers(result.rounds[-1])
        facts = {name: value for name, value in _numbers(result.summary).items() if name not in known}
        self.tell(result.summary["rounds"], facts | bytes_by_kind, {})
        if result.settings is not None:
            with tempfile.TemporaryDirectory() as folder:
                for file in _files(Path(folder) / "run", result):
                    self.keep(file)
        self.close(True)

    def _note(self) -> None:
        """Write down which run of the service this is, and what it has got."""
        if self._folder is not None:
            notes = _notes(self._folder) | {self.name: {"run": self._run, "round": self._told}}
            write_whole(self._folder / NOTES, json.dumps(notes, indent=2) + "\n")


def _notes(folder: Path | None) -> dict[str, Any]:
    """What is written down of the trackers of a run."""
    if folder is None or not (folder / NOTES).is_file():
        return {}
    notes: dict[str, Any] = json.loads((folder / NOTES).read_text(encoding="utf-8"))
    return notes


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record but its round, by name."""
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "round"}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _flat(settings: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Settings by names such as `method.rate`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{within}{name}.") if isinstance(value, Mapping) else {within + name: value}
    return found


def _files(folder: Path, result: "Result") -> list[Path]:
    """The page, the figures and the records of a result, written to a folder."""
    from coterie.report import figures
    from coterie.report.runs import write_report
    from coterie.report.score import Score
    from coterie.runs.folder import StoredRun

    replace(result, models=None).save(folder)
    records = sorted(folder.iterdir())
    method = result.summary["method"]
    page, course, clients = (folder / name for name in ("report.html", "course.png", "clients.png"))
    write_report(page, f"{method}, seed {result.summary['seed']}", [StoredRun.read(folder)])
    figures.save(figures.run_figure(result), course)
    score = Score(next(iter(result.summary["metrics"])))
    figures.save(figures.clients_figure({method: result.clients}, score), clients)
    return [page, course, clients, *records]


class MLflow(Tracker):
    """A run of an MLflow experiment: settings are its parameters, records its metrics, with the round as step.

    How scores are spread over clients is given as quantiles, `clients/accuracy/p25`: MLflow has no histograms.

    >>> coterie.trackers.MLflow.library
    'mlflow'
    """

    name, library = "mlflow", "mlflow"

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        """`uri` and `experiment` stand before MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""
        super().__init__()
        self._uri, self._experiment = uri, experiment

    def open(self, beginning: "Beginning", run: str) -> str:
        """Begin a run, or go on with the one of this id."""
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

        self._client = MlflowClient(self._uri)
        if not run:
            name = self._experiment or MLFLOW_EXPERIMENT_NAME.get() or "coterie"
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            run = self._client.create_run(experiment, run_name=beginning.name).info.run_id
        self._id = run
        self._client.set_terminated(run, "RUNNING")
        if beginning.folder is not None:
            self._client.set_tag(run, "coterie.folder", str(beginning.folder.absolute()))
        # Parameters of a run cannot change; what can of a run that goes on, such as its rounds, is in settings.toml.
        known = self._client.get_run(run).data.params
        settings = {name: str(value)[:500] for name, value in _flat(beginning.settings or {}).items()}
        new = [Param(name, value) for name, value in settings.items() if name not in known]
        for first in range(0, len(new), 100):  # as many as MLflow takes at once
            self._client.log_batch(run, params=new[first : first + 100])
        log.info("mlflow: run %s at %s", run, self._client.tracking_uri)
        return run

    def tell(self, number: int, figures: Mapping[str, float], spreads: Spreads) -> None:
        """Log figures, and quantiles of the clients' scores."""
        from mlflow.entities import Metric

        everything = dict(figures)
        for name, values in spreads.items():
            for share in (5, 25, 50, 75, 95):
                everything[f"clients/{name}/p{share:02}"] = float(np.percentile(values, share))
        now = round(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, number) for name, value in everything.items()])

    def group(self, number: int, groups: Mapping[str, int]) -> None:
        """Keep the groups as a file of their round."""
        self._client.log_dict(self._id, dict(groups), f"groups/round-{number:05}.json")

    def keep(self, file: Path) -> None:
        """Keep a file."""
        self._client.log_artifact(self._id, str(file))

    def close(self, finished: bool) -> None:
        """Say how the run has ended."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


class TensorBoard(Tracker):
    """Event files for TensorBoard, by default in the run's folder: `tensorboard --logdir runs` shows all runs there.

    >>> fed = coterie.simulate(clients=2, net="logistic", limit=200)
    >>> result = coterie.FedAvg(rounds=1).fit(fed, observers=[coterie.trackers.TensorBoard(folder)])
    >>> sorted(file.name for file in (folder / "fedavg-seed0").iterdir() if file.suffix in (".html", ".png"))
    ['clients.png', 'course.png', 'report.html']
    """

    name, library = "tensorboard", "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder` is where the event files go, in a folder of its own for each run."""
        super().__init__()
        self._parent = None if folder is None else Path(folder)

    def open(self, beginning: "Beginning", run: str) -> str:
        """Open a file for events beside those of the run, if it has some already."""
        from torch.utils.tensorboard import SummaryWriter

        from coterie.runs.experiment import free_path

        if beginning.folder is not None and self._parent is None:
            place = beginning.folder / self.name
        else:
            place = Path(run) if run else free_path(self._parent or Path("runs") / self.name, beginning.name)
        self._place, self._writer = place, SummaryWriter(str(place))
        rows = "".join(f"| {name} | {value} |\n" for name, value in _flat(beginning.settings or {}).items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", 0)
        self._writer.flush()
        log.info("tensorboard: %s", place)
        return str(place.absolute())

    def tell(self, number: int, figures: Mapping[str, float], spreads: Spreads) -> None:
        """Write figures, and a histogram of the clients' scores."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        for name, values in spreads.items():
            self._writer.add_histogram(f"clients/{name}", values, number)
        self._writer.flush()

    def group(self, number: int, groups: Mapping[str, int]) -> None:
        """Write who is in which group."""
        members: dict[int, list[str]] = {}
        for client, own in groups.items():
            members.setdefault(own, []).append(client)
        lines = (f"- group {own}: {', '.join(names)}\n" for own, names in sorted(members.items()))
        self._writer.add_text("groups", "".join(lines), number)

    def keep(self, file: Path) -> None:
        """Show a figure, and put the page beside the events. Records are in the run's folder anyway."""
        from matplotlib.image import imread

        if file.suffix == ".png":
            self._writer.add_image(file.stem, imread(file), self._told, dataformats="HWC")
        if file.suffix in (".png", ".html"):
            shutil.copy(file, self._place)

    def close(self, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases: settings are its config, and all figures stand over the round.

    With WANDB_MODE=offline nothing leaves the machine; a run that went on has several folders then, which `wandb sync`
    joins in one run.

    >>> coterie.trackers.WandB.library
    'wandb'
    """

    name, library = "wandb", "wandb"

    def __init__(self, project: str | None = None, folder: str | Path | None = None) -> None:
        """`project` and `folder` stand before WANDB_PROJECT and WANDB_DIR."""
        super().__init__()
        self._project, self._parent = project, folder

    def open(self, beginning: "Beginning", run: str) -> str:
        """Begin a run, or go on with the one of this id."""
        import wandb

        run = run or uuid.uuid4().hex[:12]
        self._handle = wandb.init(
            project=self._project or wandb.Settings().project or "coterie",
            dir=self._parent,
            id=run,
            name=beginning.name,
            group=None if beginning.folder is None else beginning.folder.absolute().parent.name,
            config=_flat(beginning.settings or {}),
            allow_val_change=True,  # of a run that goes on to more rounds
            resume="allow",
            reinit="create_new",  # several runs may go on at once
            settings=wandb.Settings(console="off", silent=True),
        )
        self._handle.define_metric("*", step_metric="round")
        log.info("wandb: %s", self._handle.dir if self._handle.offline else self._handle.url)
        return run

    def tell(self, number: int, figures: Mapping[str, float], spreads: Spreads) -> None:
        """Log figures, and histograms of the clients' scores."""
        import wandb

        histograms = {f"clients/{name}": wandb.Histogram(values.tolist()) for name, values in spreads.items()}
        self._handle.log({"round": number, **figures, **histograms})

    def group(self, number: int, groups: Mapping[str, int]) -> None:
        """Log who is in which group as a table."""
        import wandb

        table = wandb.Table(columns=["client", "group"], data=[list(entry) for entry in groups.items()])
        self._handle.log({"round": number, "members": table})

    def keep(self, file: Path) -> None:
        """Keep a file, and show figures and the page."""
        import wandb

        kept = shutil.copy(file, self._handle.dir)  # what is not in there, W&B would only link to
        self._handle.save(kept, base_path=self._handle.dir, policy="now")
        if file.suffix in (".png", ".html"):
            shown = wandb.Image(kept) if file.suffix == ".png" else wandb.Html(kept)
            self._handle.log({"round": self._told, file.stem: shown})

    def close(self, finished: bool) -> None:
        """Say how the run has ended."""
        self._handle.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, type[MLflow] | type[TensorBoard] | type[WandB]] = {
    kind.name: kind for kind in (MLflow, TensorBoard, WandB)
}
"""All trackers by name."""


def trackers_of(names: str | None) -> Callable[[], list[Tracker]]:
    """What makes the trackers with these names, with commas between, for each run anew.

    A name that nobody has, or a library that is missing, is an error before anything runs.

    >>> [tracker.name for tracker in coterie.trackers.trackers_of("tensorboard")()]
    ['tensorboard']
    """
    chosen = list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))
    for name in chosen:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)

    def made() -> list[Tracker]:
        return [TRACKERS[name]() for name in chosen]

    made()
    return made
