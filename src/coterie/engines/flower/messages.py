"""Named bytes as Flower's records and back, and Flower's grid as a transport."""

import logging
from collections.abc import Collection, Mapping
from functools import partial

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

from coterie.core.errors import CoterieError

log = logging.getLogger("coterie")

MESSAGE_TYPE = "query"
"""The only kind of Flower message that sites answer."""

_KIND = "coterie"

_SMALL = 1 << 20
"""Bytes up to which all parts travel in one record: every object of a message is a request of its own."""


def packed(parts: Mapping[str, bytes]) -> RecordDict:
    """Named bytes as records.

    Large ones are arrays, which Flower cuts into pieces, and of which it stores one that many messages share only once.
    """
    if sum(map(len, parts.values())) <= _SMALL:
        return RecordDict({_KIND: ConfigRecord(dict(parts))})
    arrays = {name: Array(dtype="uint8", shape=(len(part),), stype=_KIND, data=part) for name, part in parts.items()}
    return RecordDict({name: ArrayRecord({name: array}) for name, array in arrays.items()})


def unpacked(records: RecordDict) -> dict[str, bytes]:
    """The named bytes in records."""
    parts: dict[str, bytes] = {}
    for name, record in records.items():
        if name == _KIND and isinstance(record, ConfigRecord):
            parts |= {str(key): value for key, value in record.items() if isinstance(value, bytes)}
        elif not isinstance(record, ArrayRecord) or list(record) != [name] or record[name].stype != _KIND:
            raise CoterieError(f"a message with a record {name!r} that is none of ours")
        else:
            parts[str(name)] = record[name].data
    return parts


class GridTransport:
    """Messages over a Flower grid."""

    def __init__(self, grid: Grid, lifetime: float, kind: str = MESSAGE_TYPE) -> None:
        self._grid, self._lifetime, self._kind = grid, lifetime, kind
        # A reply can be seen a moment before its content is there. Flower's grid would sleep for a second then, which
        # nothing in its interface changes: it is most of what a short round takes.
        http_grid.pull_objects = partial(pull_objects, initial_backoff=0.05, backoff_cap=1.0)

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
