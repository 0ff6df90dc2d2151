"""What crossed between server and clients, and between clients: what a method costs and what a client gives away."""

from collections import defaultdict
from typing import Literal

Direction = Literal["down", "up", "peer", "evaluation"]


class Ledger:
    """Bytes by direction and kind.

    Every value that crosses in `Federation.run` is counted: models, losses, label histograms. Not counted are settings
    and message headers, and what a client says once when it joins (its name and how many samples it has). So
    FedAvg costs a model each way for each client and round, to the byte.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, direction: Direction, kind: str, amount: int) -> None:
        """Count bytes of a kind (model, loss, label histogram ...) in a direction."""
        if amount:
            self._bytes[direction][kind] += amount

    def total(self, direction: Direction) -> int:
        """All bytes in a direction so far."""
        return sum(self._bytes[direction].values())

    def by_kind(self) -> dict[str, dict[str, int]]:
        """All bytes so far, by direction and kind."""
        return {direction: dict(sorted(kinds.items())) for direction, kinds in sorted(self._bytes.items()) if kinds}

    def restore(self, amounts: dict[str, dict[str, int]]) -> None:
        """Go back to amounts that `by_kind` gave."""
        self._bytes.clear()
        for direction, kinds in amounts.items():
            self._bytes[direction].update(kinds)
