"""Messages of named bytes as Flower carries them: as records, over its grid."""

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
"""Up to this many bytes all parts travel in one record, since Flower makes a request for each object of a message."""


def as_records(parts: Mapping[str, bytes]) -> RecordDict:
    """Named bytes as Flower's records.

    Large ones become arrays: these Flower cuts into pieces, and stores only once where many messages have the same.
    """
    if sum(map(len, parts.values())) <= _SMALL:
        return RecordDict({_KIND: ConfigRecord(dict(parts))})
    arrays = {name: Array(dtype="uint8", shape=(len(part),), stype=_KIND, data=part) for name, part in parts.items()}
    return RecordDict({name: ArrayRecord({name: array}) for name, array in arrays.items()})


def from_records(records: RecordDict) -> dict[str, bytes]:
    """The named bytes that `as_records` has put into records."""
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
    """Carries messages over Flower's grid."""

    def __init__(self, grid: Grid, lifetime: float, kind: str = MESSAGE_TYPE) -> None:
        self._grid, self._lifetime, self._kind = grid, lifetime, kind
        self._names: dict[int, str] = {}
        # A reply can be seen a moment before its content is there. Then Flower's grid sleeps for a second: most of what
        # a short round takes, and it has no option for that.
        http_grid.pull_objects = partial(pull_objects, initial_backoff=0.05, backoff_cap=1.0)

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        self._names = {node.node_id: node.name for node in self._grid.get_nodes()}
        return set(self._names)

    def registered(self, node: int) -> str:
        """The name under which the key of a node is registered; an empty text if it has none."""
        return self._names.get(node, "")

    def send(self, messages: Mapping[int, Mapping[str, bytes]]) -> dict[int, str]:
        """Send each node its message. Returns for each node the name that its message has got."""
        made = [
            Message(as_records(parts), dst_node_id=node, message_type=self._kind, ttl=self._lifetime)
            for node, parts in messages.items()
        ]
        # To a node that has just left Flower sends no message, which then has no name: it will not answer.
        names = zip(messages, self._grid.push_messages(made), strict=False)
        return {node: name for node, name in names if name}

    def receive(self, messages: Collection[str]) -> dict[str, bytes | None]:
        """The answers that have arrived, by the name of the message; None where the node could not answer.

        For a node that is dead the SuperLink answers, under its own number: so answers are not matched by node.
        """
        replies = self._grid.pull_messages(messages)
        return {reply.metadata.reply_to_message_id: self._content(reply) for reply in replies}

    def _content(self, reply: Message) -> bytes | None:
        if reply.has_error():
            log.warning("a node could not answer: %s (error %s)", reply.error.reason, reply.error.code)
            return None
        try:
            return self._answer(reply.metadata.src_node_id, from_records(reply.content))
        except CoterieError as error:
            return str(error).encode()  # no answer that can be read: the engine reports it with the site's name

    def _answer(self, node: int, parts: Mapping[str, bytes]) -> bytes | None:
        """The part of a node's message that the engine gets."""
        return parts.get("answer")
