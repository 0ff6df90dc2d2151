"""Answers on their way over Flower's grid: whatever one node sends, those of the others arrive."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK
from flwr.supercore.inflatable.inflatable_object import (
    HEAD_BODY_DIVIDER,
    get_all_nested_objects,
    get_object_tree,
)
from flwr.superlink.grid.http_grid import HttpGrid

from coterie.engines.flower.messages import MESSAGE_TYPE, GridTransport, as_records

MOST = 1 << 20


class SuperLink:
    """The part of a SuperLink that an answer passes, with its pieces by name."""

    def __init__(self):
        self.replies, self.pieces, self.confirmed = [], {}, []

    def PullMessages(self, request):
        new, self.replies = self.replies, []
        asked = [one for one in new if one[0].metadata.reply_to_message_id in request.message_ids]
        messages, trees = zip(*asked, strict=True) if asked else ((), ())
        return SimpleNamespace(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request):
        content = self.pieces.get(request.object_id)
        return SimpleNamespace(object_found=True, object_available=content is not None, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link():
    return SuperLink()


@pytest.fixture
def transport(link):
    grid = HttpGrid(token="t")
    grid._client = link
    grid._run = SimpleNamespace(run_id=1)
    transport = GridTransport(grid, 60)
    transport._asked = {"to 1": 1, "to 2": 2}
    return transport


def announce(link, node, records, source=None):
    """Announce a node's answer; gives its pieces, which are not there yet."""
    source = node if source is None else source
    about = Metadata(1, "", source, SUPERLINK, f"to {node}", "", 0.0, 60.0, MESSAGE_TYPE)
    reply = make_message(about, records)
    pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(reply).items()}
    reply.metadata.__dict__["_message_id"] = reply.object_id
    link.replies.append((reply, get_object_tree(reply)))
    return pieces


def answer(link, node, records, **more):
    link.pieces |= announce(link, node, records, **more)


GOOD = {"answer": b"fine"}


@pytest.mark.parametrize("size", [10, 3 << 19])
def test_answers_arrive(size, link, transport):
    content = {"answer": b"x" * size}
    answer(link, 1, as_records(content))
    assert transport.receive(["to 1", "to 2"], 2 * MOST) == {"to 1": content["answer"]}
    assert transport.receive(["to 2"], MOST) == {}
    assert len(link.confirmed) == 1


def test_one_that_is_announced_is_not_waited_for_and_comes_when_it_is_whole(link, transport):
    pieces = announce(link, 1, as_records(GOOD))
    answer(link, 2, as_records(GOOD))
    assert transport.receive(["to 1", "to 2"], MOST) == {"to 2": b"fine"}
    *first, last = pieces
    link.pieces |= {name: pieces[name] for name in first}
    assert transport.receive(["to 1"], MOST) == {}
    link.pieces[last] = pieces[last]
    assert transport.receive(["to 1"], MOST) == {"to 1": b"fine"}


def not_inflatable(link):
    """A record whose content is cut off in the middle."""
    pieces = announce(link, 1, as_records({"answer": b"never seen"}))
    for name, piece in pieces.items():
        head, _, body = piece.partition(HEAD_BODY_DIVIDER)
        if head.startswith(b"ConfigRecord"):
            pieces[name] = head + HEAD_BODY_DIVIDER + body[: len(body) // 2]
    link.pieces |= pieces


def folded(link):
    """Gigabytes of one piece that an array names again and again: on the way it has less than a megabyte."""
    array = Array("uint8", (MOST // 2,), "coterie", b"\0" * (MOST // 2))
    pieces = announce(link, 1, RecordDict({"answer": ArrayRecord({"answer": array})}))
    for name, piece in pieces.items():
        head, _, body = piece.partition(HEAD_BODY_DIVIDER)
        if head.startswith(b"Array "):
            body = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 50_000}).encode()
            head = b" ".join([*head.split(b" ")[:2], str(len(body)).encode()])
            pieces[name] = head + HEAD_BODY_DIVIDER + body
    link.pieces |= pieces


def large(content):
    return as_records({"answer": content, "more": b"\0" * MOST})


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (not_inflatable, "Error parsing message"),
        (folded, "more than 1048576 bytes"),
        (lambda link: answer(link, 1, large(b"\0" * 4 * MOST)), "more than 1048576 bytes"),
        (lambda link: answer(link, 1, RecordDict({"strange": ConfigRecord({"a": 1})})), "none of ours"),
        (lambda link: answer(link, 1, RecordDict({"answer": ArrayRecord()})), "none of ours"),
        (lambda link: answer(link, 1, as_records({"else": b"x"})), "without an answer"),
        (lambda link: answer(link, 1, as_records(GOOD), source=2), "of node 2, which was not asked"),
    ],
)
def test_a_hostile_answer_is_an_error_of_its_sender_and_others_arrive(hostile, message, link, transport):
    hostile(link)
    answer(link, 2, as_records(GOOD))
    found = transport.receive(["to 1", "to 2"], MOST)
    assert found.pop("to 2") == b"fine"
    assert isinstance(found["to 1"], Exception)
    assert message in str(found["to 1"]), str(found["to 1"])


def test_a_second_answer_and_one_that_nobody_asked_for_are_left_alone(link, transport):
    answer(link, 1, as_records(GOOD))
    assert transport.receive(["to 1", "to 2"], MOST) == {"to 1": b"fine"}
    answer(link, 1, as_records({"answer": b"again"}))
    assert transport.receive(["to 2"], MOST) == {}
