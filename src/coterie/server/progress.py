"""The progress of a run in a notebook: a bar of its rounds, with the score so far."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from coterie.server.metrics import first_metric, shown


def in_notebook() -> bool:
    """Whether this process computes for a notebook: its shell has a kernel, one in a terminal has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class ProgressBar:
    """An observer that draws a bar of the rounds; what is done already, of a run that goes on, is drawn at once."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._bar: Any = None

    def run_begun(self, beginning: Any) -> None:
        """Draw the bar."""
        # Without ipywidgets its bars of letters do; asking tqdm to choose would print a warning.
        if in_notebook() and find_spec("ipywidgets"):
            from tqdm.notebook import tqdm
        else:
            from tqdm import tqdm
        done = beginning.rounds[-1]["round"] if beginning.rounds else 0
        self._bar = tqdm(total=self._rounds, initial=done, desc=beginning.method, unit="round")

    def clients_scored(self, number: int, scores: Any) -> None:
        """Nothing to draw: the record follows."""

    def round_done(self, checkpoint: Any, record: Mapping[str, Any] | None, groups: Any) -> None:
        """Move the bar, and show the score if there is one."""
        assert self._bar is not None
        if record is not None:
            name = first_metric(record)
            self._bar.set_postfix_str(f"{name.replace('_', ' ')} {shown(name, record[f'{name}_mean'])}", refresh=False)
        self._bar.update(checkpoint.federation["round"] - self._bar.n)

    def run_done(self, checkpoint: Any, result: Any) -> None:
        """Leave the bar as it is."""
        self.run_left()

    def run_left(self) -> None:
        """Leave the bar as it is: the run was stopped or has failed."""
        if self._bar is not None:
            self._bar.close()
