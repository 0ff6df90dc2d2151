"""What a study found: its tables in every format, its figures, and a page with all of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from matplotlib.figure import Figure

from coterie.core.errors import CoterieError, SettingsError
from coterie.core.files import write_whole
from coterie.report import page, printing
from coterie.report.figures import asked, draw, save, style
from coterie.report.page import Section, parts
from coterie.report.results import ResultTable, Summary, study_summary, study_tables
from coterie.studies.campaign import Results
from coterie.studies.study import Study


@dataclass(frozen=True)
class Report:
    """The tables of a study, and what they come to."""

    tables: list[ResultTable]
    summary: Summary

    @property
    def shown(self) -> list[ResultTable]:
        """The tables of which anything was run, or all if nothing was of any; the summary names the others."""
        return [table for table in self.tables if table.begun] or self.tables


def check_figures(study: Study) -> None:
    """Refuse kinds of figures that do not exist, and options and panels that they do not have."""
    for figure in study.figures:
        try:
            asked(figure)
        except CoterieError as error:
            where = f"figure {figure.title!r}: "
            # Some errors say already in which figure they are.
            raise SettingsError(f"{study.name}: {where}{str(error).removeprefix(where)}") from error


def check_folder(out: Path) -> None:
    """Refuse a folder that results cannot be written to. Folders that are not there yet are made."""
    with _writing(out):
        for folder in (out, out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        path = error.filename2 or error.filename or out
        why = error.strerror or error
        raise SettingsError(f"{path}: cannot be written ({why}); choose another folder with --out") from error


def stem(study: Study) -> str:
    """What the names of a study's files begin with."""
    return study.name.replace("/", "-")


def write_study(results: Results, out: Path) -> Report:
    """Write tables, figures and the page of a study below a folder."""
    study = results.study
    with style.same_looks(study.axes["method"]):
        figures = list(study_figures(results))
    check_folder(out)
    report = write_tables(results, out / "tables")
    with _writing(out):
        _write_figures(out / "figures", stem(study), figures)
        _write_page(out / f"{stem(study)}.html", results, report, figures)
    return report


def write_tables(results: Results, folder: Path) -> Report:
    """Write the tables of a study to a folder, in Markdown, LaTeX and CSV."""
    study, report = results.study, Report(study_tables(results), study_summary(results))
    title = f"# {printing.markdown_text(_heading(study))}"
    parts = [title, *map(printing.markdown, report.shown), printing.summary_markdown(report.summary)]
    texts = {
        "md": "\n\n".join(parts) + "\n",
        "tex": "\n\n".join(map(printing.latex, report.shown)) + "\n",
        "csv": printing.csv_text(report.tables),
    }
    with _writing(folder):
        for ending, text in texts.items() if report.tables else ():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / f"{stem(study)}.{ending}", text)
    return report


def _write_figures(folder: Path, name: str, figures: list[tuple[str, Figure]]) -> None:
    for number, (_, figure) in enumerate(figures, 1):
        for ending in ("svg", "png", "pdf"):
            save(figure, folder / f"{name}-{number}.{ending}")
    for path in folder.iterdir():
        numbered = re.fullmatch(rf"{re.escape(name)}-(\d+)", path.stem)
        if numbered and int(numbered[1]) > len(figures):
            path.unlink()  # of an earlier state of the study, which had more figures


def _heading(study: Study) -> str:
    where = " ".join(part for part in (study.paper, study.place) if part)
    return f"{where}: {study.title}" if where else study.title


def study_figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """The figures of a study that there are runs for, with their titles."""
    for spec in results.study.figures:
        yield from draw(spec, results)


def _write_page(path: Path, results: Results, report: Report, figures: list[tuple[str, Figure]]) -> None:
    study = results.study
    done = sum(map(len, results.runs.values()))
    lead = f"{study.about} {done} of {results.seeds * len(results.runs)} runs are done.".strip()
    sections = [Section(table.spec.title, printing.html(table)) for table in report.shown]
    if sections:
        sections.append(Section("What it comes to", printing.summary_html(report.summary)))
    if figures:
        drawn = parts.figures(page.figure(figure, title) for title, figure in figures)
        sections.append(Section("Figures", drawn))
    if study.sources:
        choices = (page.prose(f"`{name}`: {why}") for name, why in study.sources.items())
        sections.append(Section("Choices and where they come from", parts.listed(choices), folded=True))
    options = "\n".join(f"{name} = {value}" for name, value in study.options.items())
    sections.append(Section("Options of every run", parts.code(options), folded=True))
    page.write_page(path, _heading(study), lead, sections)
