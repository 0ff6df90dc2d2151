"""Recipes: the experiments of the papers as studies that ship with the package, and studies by path."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

from coterie.core.errors import SettingsError, unknown
from coterie.studies.study import Study

_FOLDER = resources.files("coterie.papers")


def template() -> str:
    """A study file to start from."""
    return (resources.files("coterie.studies") / "study.toml").read_text(encoding="utf-8")


def names() -> list[str]:
    """All recipes, as `paper/experiment`, tables before figures and by number."""
    papers = [paper for paper in _FOLDER.iterdir() if paper.is_dir() and not paper.name.startswith("_")]
    found = [
        f"{paper.name}/{file.name[:-5]}"
        for paper in papers
        for file in paper.iterdir()
        if file.name[-5:] == ".toml" and not file.name.startswith("_")  # which is only there to be extended
    ]
    return sorted(found, key=_order)


def _order(name: str) -> tuple[str, bool, list[int], str]:
    paper, _, experiment = name.partition("/")
    digits = "".join(letter if letter.isdigit() else " " for letter in experiment)
    return paper, not experiment.startswith("table"), [int(number) for number in digits.split()], experiment


def recipe(name: str) -> Study:
    """A recipe by its name."""
    if name not in names():
        raise unknown("recipe", name, names())
    paper, _, experiment = name.partition("/")
    with resources.as_file(_FOLDER) as folder:  # all of it: recipes extend each other
        return Study.read(folder / paper / f"{experiment}.toml", name)


def study(path: Path) -> Study:
    """A study by its path; it can name the measures and kinds of figures of all papers, without saying where from."""
    return Study.read(path)


def find(wanted: Sequence[str]) -> list[Study]:
    """Recipes by name, by paper or by pattern (`autocfl/table1`, `autocfl`, `*/table*`), and studies by path."""
    found: dict[str, Study] = {}
    for name in wanted:
        if name.endswith(".toml"):
            found[name] = study(Path(name))
            continue
        fitting = [one for one in names() if fnmatchcase(one, name) or one.startswith(f"{name}/")]
        if not fitting:
            raise unknown("recipe", name, [*names(), *{one.partition("/")[0] for one in names()}])
        found |= {one: recipe(one) for one in fitting}
    if not found:
        raise SettingsError("no study: name recipes, see `coterie reproduce`, or study files")
    return list(found.values())
