"""Named bytes as Flower's records and back, and Flower's grid as a transport."""

import logging
from collections.abc import Collection, Mapping

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.errors import CoterieError

__all__ = ["MESSAGE_TYPE", "GridTransport", "packed", "unpacked"]

log = logging.getLogger("coterie")

MESSAGE_TYPE = "query"
"""The only kind of Flower message that sites answer."""

_KIND = "coterie"


def packed(parts: Mapping[str, bytes]) -> RecordDict:
    """Named bytes as records. Flower cuts arrays into pieces, and stores a part that many messages share only once."""
    arrays = {name: Array(dtype="uint8", shape=(len(part),), stype=_KIND, data=part) for name, part in parts.items()}
    return RecordDict({name: ArrayRecord({name: array}) for name, array in arrays.items()})


def unpacked(records: RecordDict) -> dict[str, bytes]:
    """The named bytes in records."""
    parts = {}
    for name, record in records.items():
        if not isinstance(record, ArrayRecord) or list(record) != [name] or record[name].stype != _KIND:
            raise CoterieError(f"a message with a record {name!r} that is none of ours")
        parts[str(name)] = record[name].data
    return parts


class GridTransport:
    """Messages over a Flower grid."""

    def __init__(self, grid: Grid, lifetime: float, kind: str = MESSAGE_TYPE) -> None:
        self._grid, self._lifetime, self._kind = grid, lifetime, kind

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        return set(self._grid.get_node_ids())

    def send(self, messages: Mapping[int, Mapping[str, bytes]]) -> dict[int, str]:
        """Send each node its message."""
        made = [
            Message(packed(parts), dst_node_id=node, message_type=self._kind, ttl=self._lifetime)
            for node, parts in messages.items()
        ]
        # A node that has just gone gets no message, and so gives no answer.
        names = zip(messages, self._grid.push_messages(made), strict=False)
        return {node: name for node, name in names if name}

    def receive(self, messages: Collection[str]) -> dict[str, bytes | None]:
        """Answers that have arrived. An error comes from the SuperLink, so only the message that it answers says whose
        it is."""
        replies = self._grid.pull_messages(messages)
        return {reply.metadata.reply_to_message_id: self._content(reply) for reply in replies}

    def _content(self, reply: Message) -> bytes | None:
        if reply.has_error():
            log.warning("a node could not answer: %s (error %s)", reply.error.reason, reply.error.code)
            return None
        try:
            return self._answer(reply.metadata.src_node_id, unpacked(reply.content))
        except CoterieError as error:
            return str(error).encode()  # nonsense, which the engine reports with the site's name

    def _answer(self, node: int, parts: Mapping[str, bytes]) -> bytes | None:
        return parts.get("answer")
