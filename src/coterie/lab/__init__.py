"""Experiments: runs with a folder each, seeds, comparisons."""

from coterie.lab.comparison import compare
from coterie.lab.experiment import run
from coterie.lab.folder import RunFolder, StoredRun

__all__ = ["RunFolder", "StoredRun", "compare", "run"]
