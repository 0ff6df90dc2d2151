"""Messages of named bytes as Flower carries them: as records, over its grid."""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from coterie.core.errors import CoterieError

log = logging.getLogger("coterie")

MESSAGE_TYPE = "query"
"""The only kind of Flower message that sites answer."""

_KIND = "coterie"

_SMALL = 1 << 20
"""Up to this many bytes all parts travel in one record, since Flower makes a request for each object of a message."""

_PIECES, _PIECE = 64, 1 << 16
"""How many pieces an answer may have: some, and one for so many bytes."""

_ENVELOPE = 1 << 20
"""Bytes that Flower may add to an answer."""


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


@dataclass
class _Announced:
    """An answer that the SuperLink knows of, while its content arrives piece by piece."""

    objects: list[str]
    """The names of all pieces."""
    there: dict[str, bytes] = field(default_factory=dict)
    """The pieces that have been fetched."""


class GridTransport:
    """Carries messages over Flower's grid.

    Answers are fetched one by one, piece by piece, and never waited for: one that is announced and whose content never
    comes, one that is too large, and one that cannot be read cost the site that sent it, and nobody else a moment.
    """

    def __init__(self, grid: Grid, lifetime: float, kind: str = MESSAGE_TYPE) -> None:
        self._grid, self._lifetime, self._kind = grid, lifetime, kind
        self._names: dict[int, str] = {}
        self._asked: dict[str, int] = {}
        self._announced: dict[str, _Announced] = {}

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
        sent = {node: name for node, name in names if name}
        self._asked = {name: node for node, name in sent.items()}
        return sent

    def receive(self, messages: Collection[str], most: int) -> dict[str, bytes | Exception | None]:
        """The answers that have arrived, by the name of the message; None where the node could not answer.

        An answer of more than `most` bytes, or one that cannot be read, is an error.
        """
        found: dict[str, bytes | Exception | None] = {}
        for name, fetch in self._arrivals(messages, most):
            try:
                if (reply := fetch()) is not None:
                    found[name] = self._content(reply, self._asked.get(name))
            except Exception as error:  # whatever a node has sent, it must not be felt by others
                found[name] = error
        return found

    def _arrivals(self, messages: Collection[str], most: int) -> Iterator[tuple[str, Callable[[], Message | None]]]:
        """The messages whose answers may have arrived, each with a function that gives the answer if it is there."""
        if not isinstance(self._grid, HttpGrid):  # a grid within this process: its answers are there as a whole
            for name in messages:
                yield name, partial(self._pulled, name)
            return
        self._announced = {name: one for name, one in self._announced.items() if name in messages}
        if unheard := [name for name in messages if name not in self._announced]:
            answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unheard))
            for envelope, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                about = envelope.metadata
                self._announced[about.reply_to_message_id] = _Announced([about.message_id, *_names_in(tree)])
        for name in [name for name in self._announced if name in messages]:
            yield name, partial(self._fetched, self._grid, name, most)

    def _pulled(self, name: str) -> Message | None:
        """The answer to a message, from a grid that hands out whole answers."""
        return next(iter(self._grid.pull_messages([name])), None)

    def _fetched(self, grid: HttpGrid, name: str, most: int) -> Message | None:
        """The answer to a message, if all its pieces have arrived; those that have are fetched."""
        announced = self._announced[name]
        head, *pieces = announced.objects
        if len(pieces) > _PIECES + most // _PIECE:
            raise CoterieError(f"an answer in {len(pieces)} pieces")
        assert grid._run is not None
        run, client = grid._run.run_id, grid._runtime_client
        pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
        for piece in pieces:
            if piece in announced.there:
                continue
            try:
                announced.there[piece] = pull(piece)
            except ObjectUnavailableError:
                return None
            _check_size(sum(map(len, announced.there.values())), most)
        client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=head))
        del self._announced[name]
        _check_size(_unfolded(announced.there), most)
        reply = inflate_object_from_contents(head, announced.there)
        if not isinstance(reply, Message):
            raise CoterieError(f"{type(reply).__name__} instead of a message")
        return reply

    def _content(self, reply: Message, node: int | None) -> bytes | None:
        """What the node that was asked answers. For one that is dead the SuperLink does so, under its own number."""
        if reply.has_error():
            log.warning("a node could not answer: %s (error %s)", reply.error.reason, reply.error.code)
            return None
        if reply.metadata.src_node_id != node:
            raise CoterieError(f"an answer of node {reply.metadata.src_node_id}, which was not asked")
        return self._answer(reply.metadata.src_node_id, from_records(reply.content))

    def _answer(self, node: int, parts: Mapping[str, bytes]) -> bytes | None:
        """The part of a node's message that the engine gets."""
        if "answer" not in parts:
            raise CoterieError("a message without an answer")
        return parts["answer"]


def _names_in(tree: ObjectTree) -> list[str]:
    """The names of all pieces of an answer, each once; the tree is a site's, so it is taken apart without recursion."""
    found, left = dict[str, None](), [tree]
    while left:
        here = left.pop()
        found[here.object_id] = None
        left.extend(here.children)
    return list(found)


def _check_size(size: int, most: int) -> None:
    if size > most + _ENVELOPE:
        raise CoterieError(f"more than {most} bytes")


def _unfolded(pieces: Mapping[str, bytes]) -> int:
    """How many bytes the arrays in an answer have once they are put together: they may name a piece many times."""
    total = 0
    for content in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(pieces[children[place]]) for place in places)
    return total
