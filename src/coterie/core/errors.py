"""Errors whose messages say which setting or thing is wrong, its value, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose; the command line prints it without a traceback.

    >>> try:
    ...     coterie.FedAvg(participation=1.5)
    ... except coterie.CoterieError as error:
    ...     print(error)
    participation=1.5: a fraction in (0, 1]; use 1.0 for all clients
    """


class SettingsError(CoterieError, ValueError):
    """A setting is unknown, out of range or does not fit the others."""


class DataError(CoterieError):
    """Data is missing, damaged or does not fit the task."""


class NoAnswerError(CoterieError):
    """No client answered."""


class ProgramError(CoterieError):
    """A program failed on a client; the message names the client and the cause is chained."""


def unknown(kind: str, name: str, known: Iterable[str]) -> SettingsError:
    """The error for a name that is not among the known ones; it proposes the most similar of these."""
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
    return SettingsError(f"unknown {kind} {name!r}: {hint}")
