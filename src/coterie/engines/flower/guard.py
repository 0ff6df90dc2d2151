"""What a real site holds to: bounds of its owner's, and a list on its disk of what it gave away and was asked.

The list is not among what a client keeps in a run (`coterie.engines.flower.versions`): there a server may go back to an
older version, and a site must not forget what it gave. Nor does a new run begin a new list.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.clients.guard import BoundError, Guard
from coterie.core.errors import CoterieError

_TABLES = (
    "CREATE TABLE IF NOT EXISTS given (secret BLOB PRIMARY KEY, question BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rounds (run BLOB, round INTEGER, PRIMARY KEY (run, round))",
    "CREATE TABLE IF NOT EXISTS asked (run BLOB, round INTEGER, program TEXT, question BLOB, "
    "PRIMARY KEY (run, round, program, question))",
)


@dataclass(frozen=True)
class SiteGuard(Guard):
    """The guard of a site, whose list is in a folder of its own."""

    folder: Path = Path()

    def gives(self, subject: str, receiver: str, secret: bytes, question: bytes) -> bool:
        """Whether the site was never asked anything else about this secret by this receiver."""
        about = _digest(subject.encode(), receiver.encode(), secret)
        with self._store() as store:
            store.execute("INSERT OR IGNORE INTO given VALUES (?, ?)", (about, _digest(question)))
            (known,) = store.execute("SELECT question FROM given WHERE secret = ?", (about,)).fetchone()
        return bool(known == _digest(question))

    def check_training(self, samples: int, steps: int, batch: int, leaves: bool = True) -> None:
        """Refuse a training outside of the owner's bounds. One without a step tells nothing, and is none."""
        limits = self.limits
        if steps > limits.steps:
            raise BoundError(f"a training of {steps} steps: at most {limits.steps} here (limits.steps)")
        if not leaves or not steps:
            return
        at_once = min(batch, samples) if batch else samples
        gone_through = min(samples, steps * at_once)
        if at_once < min(limits.batch, samples):
            raise BoundError(f"steps on {at_once} samples: at least {limits.batch} here (limits.batch)")
        if gone_through < limits.samples:
            raise BoundError(f"a training on {gone_through} samples: at least {limits.samples} here (limits.samples)")
        if steps < limits.least_steps:
            raise BoundError(f"a training of {steps} steps: at least {limits.least_steps} here (limits.least_steps)")

    def count_round(self, run: str, number: int) -> None:
        """Note that something is asked in a round; refuse if that is one more than the owner wants to take part in."""
        with self._store() as store:
            store.execute("INSERT OR IGNORE INTO rounds VALUES (?, ?)", (run.encode(), number))
            (count,) = store.execute("SELECT COUNT(*) FROM rounds").fetchone()
            if count > self.limits.rounds:
                store.execute("DELETE FROM rounds WHERE run = ? AND round = ?", (run.encode(), number))
        if count > self.limits.rounds:
            raise BoundError(f"{self.limits.rounds} rounds are all that this site takes part in (limits.rounds)")

    def count_call(self, run: str, number: int, program: str, question: bytes, calls: int) -> None:
        """Note what a program is asked in a round; refuse if that is asked more often than the method asks it.

        The same question again is none, since it gets the same answer.
        """
        most = calls * self.limits.attempts
        where, about = "run = ? AND round = ? AND program = ?", (run.encode(), number, program)
        with self._store() as store:
            store.execute("INSERT OR IGNORE INTO asked VALUES (?, ?, ?, ?)", (*about, _digest(question)))
            (count,) = store.execute(f"SELECT COUNT(*) FROM asked WHERE {where}", about).fetchone()
            if count > most:
                own = (*about, _digest(question))
                store.execute(f"DELETE FROM asked WHERE {where} AND question = ?", own)
        if count > most:
            raise BoundError(
                f"program {program}: asked {count} times in round {number}; this site's method asks {calls} times in a "
                f"round, which may be tried {self.limits.attempts} times (limits.attempts)"
            )

    @contextmanager
    def _store(self) -> Iterator[sqlite3.Connection]:
        """The list, in a transaction that no other process interrupts."""
        path = self.folder / "given.sqlite"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as store:
                store.execute("BEGIN IMMEDIATE")
                with store:
                    for table in _TABLES:
                        store.execute(table)
                    yield store
        except (OSError, sqlite3.Error) as error:
            raise CoterieError(f"{path}: cannot be used ({error}); a site gives nothing without this list") from error


def _digest(*parts: bytes) -> bytes:
    """A digest of parts, each with its length: no two lists of parts have the same."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
