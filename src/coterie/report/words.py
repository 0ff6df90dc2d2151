"""What tables, figures and pages call things. The words are in `words.toml`, which says what each part is."""

import tomllib
from importlib import resources

_WORDS = tomllib.loads((resources.files("coterie.report") / "words.toml").read_text(encoding="utf-8"))

COLUMNS: dict[str, str] = _WORDS["columns"]
FIGURES: dict[str, str] = _WORDS["figures"]
METRICS: dict[str, str] = _WORDS["metrics"]
FUNCTIONS: dict[str, str] = _WORDS["functions"]
DIRECTIONS: dict[str, str] = _WORDS["directions"]
KINDS: dict[str, str] = _WORDS["kinds"]


def axis_and_label(axis: str, label: str) -> str:
    """What stands above a column or a panel: a number alone would not say of what."""
    return label if any(letter.isalpha() for letter in label) else f"{axis} = {label}"
