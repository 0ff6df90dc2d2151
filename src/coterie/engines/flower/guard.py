"""What a real site holds to: bounds of its owner's, and a list on its disk of what it gave away.

The list is not among what a client keeps in a run (`coterie.engines.flower.versions`): there a server may go back to an
older version, and a site must not forget what it gave.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.clients.guard import Guard
from coterie.core.errors import CoterieError

_TABLES = ("CREATE TABLE IF NOT EXISTS given (secret BLOB PRIMARY KEY, question BLOB NOT NULL)",)


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
