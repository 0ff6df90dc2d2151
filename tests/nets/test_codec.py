"""Values as bytes and back, and what becomes of bytes that are none of ours."""

import json
import struct
from collections import OrderedDict, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import save

from coterie.core.errors import CoterieError
from coterie.core.records import state
from coterie.nets import codec
from coterie.nets.stacks import Changes, Models
from coterie.training.local import LocalTraining
from support.worlds import linear, mlp, normed, world

HERE = world(normed, shape=(2, 4, 4))
NETS = {HERE.net.name: HERE.net}


@state
class Basket:
    """A state with a bit of everything."""

    models: Models
    change: Changes | None = None
    history: tuple = ()
    counts: dict | None = None


def same(one, other):
    """Deep equality that tells types apart, and takes NaN for NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Models | Changes):
        return one.net is other.net and all(map(same, one.tensors, other.tensors))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return same(vars(one), vars(other))
    return one == other or (one != one and other != other)


def _bits(tensor):
    return tensor if tensor.numel() == 0 else tensor.contiguous().reshape(-1).view(torch.uint8)


def there_and_back(value):
    return codec.load(codec.dump(value), NETS)


DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0))
)
TENSORS = ARRAYS.map(torch.from_numpy)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN | ARRAYS | TENSORS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(VALUES)
def test_values_come_back_as_they_were(value):
    assert same(there_and_back(value), value)


@given(VALUES)
def test_equal_values_give_equal_bytes(value):
    assert codec.dump(value) == codec.dump(value) == codec.dump(there_and_back(value))


@pytest.mark.parametrize(
    "value",
    [
        HERE.models(),
        HERE.models()[0],
        HERE.models() - HERE.models(seed=1),
        Basket(HERE.models(), HERE.models().zeros(), (1, 2.5, "x"), {"a": np.arange(3), 4: torch.ones(2)}),
        Basket(HERE.models(2)),
        LocalTraining(epochs=1.5, steps=3, milestones=(0.25,)),
        torch.tensor(3.5),
        torch.tensor([1.5], dtype=torch.bfloat16),
        np.array(7.5),
        [float("inf"), float("-inf"), float("nan"), -0.0],
        "\ud800 is half a character",
        2**100,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_methods_carry_comes_back_as_it_was(value):
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float64(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (torch.Size([2, 3]), (2, 3)),
        (namedtuple("Pair", "a b")(1, 2), (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        (np.arange(6, dtype=">i4").reshape(2, 3), np.arange(6, dtype="<i4").reshape(2, 3)),
        (np.arange(6)[::-2], np.array([5, 3, 1])),
        (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (torch.ones(1).expand(3), torch.ones(3)),
    ],
)
def test_relatives_of_what_is_supported_come_back_plain(value, kept):
    assert same(there_and_back(value), kept)


def test_arrays_that_cannot_be_written_to_are_stored_without_a_word():
    array = np.arange(3)
    array.flags.writeable = False
    assert same(there_and_back(array), np.arange(3))


def test_tensors_that_share_memory_are_stored_each():
    base = torch.arange(4.0)
    first, second = there_and_back([base, base[1:]])
    assert torch.equal(first, base)
    assert torch.equal(second, base[1:])


@dataclass
class Stranger:
    number: int = 1


@pytest.mark.parametrize(
    "value",
    [Stranger(), Path("a"), {1, 2}, 1j, print, np.array(["text"]), np.array([None]), np.array([1j])],
    ids=repr,
)
def test_what_cannot_be_stored_is_refused_by_name(value):
    with pytest.raises(CoterieError, match="cannot be stored"):
        codec.dump([value])


# Bytes that are none of ours


def forged(tree, **tensors):
    """Well-formed bytes with a content that our own code would not write."""
    return save(tensors, {"tree": json.dumps(tree)})


TENSOR = {"$": "tensor", "of": "t"}


def model_of(*parts, net=HERE.net.name, kind="models"):
    return {"$": kind, "net": net, "of": list(parts)}


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "record", "type": "test_wire.Stranger", "of": {"$": "dict", "of": []}},
        {"$": "record", "type": "subprocess.Popen", "of": {"$": "dict", "of": [["args", "true"]]}},
        {"$": "record", "type": "builtins.eval", "of": {"$": "dict", "of": []}},
        {"$": "os.system", "of": "true"},
        {"$": "record", "type": ["unhashable"], "of": None},
        {"$": "record", "type": "test_wire.Basket", "of": {"$": "dict", "of": []}},
        {"$": "record", "type": "test_wire.Basket", "of": {"$": "dict", "of": [["unknown", 1]]}},
        {"$": "record", "type": "test_wire.Basket", "of": 5},
        {"$": "record", "type": "coterie.training.LocalTraining", "of": {"$": "dict", "of": [["rate", -1]]}},
        {"of": 1},
        {"$": "list"},
        {"$": "list", "of": 7},
        {"$": "dict", "of": [[1]]},
        {"$": "dict", "of": [[{"$": "list", "of": []}, 1]]},
        {"$": "tensor", "of": "absent"},
        {"$": "tensor", "of": ["t"]},
        {"$": "array", "of": 5},
        {"$": "array", "of": "t"},
        model_of(5, 6),
        model_of(TENSOR),
        model_of(TENSOR, TENSOR, TENSOR),
        model_of("t", "t"),
        model_of(TENSOR, net="other"),
        model_of(TENSOR, net=["other"]),
        model_of(TENSOR, TENSOR, kind="changes"),
    ],
    ids=str,
)
def test_forged_content_is_refused(tree):
    with pytest.raises(CoterieError):
        codec.load(forged(tree, t=torch.ones(3)), NETS)


def test_content_nested_without_end_is_refused():
    tree = '{"$":"list","of":[' * 50_000 + "]}" * 50_000
    with pytest.raises(CoterieError, match="damaged"):
        codec.load(save({}, {"tree": tree}), NETS)


P, Q = HERE.net.parameters.total, HERE.net.buffers.total


@pytest.mark.parametrize(
    ("parameters", "buffers", "dtype", "message"),
    [
        ((2, P + 1), (2, Q), torch.float64, "models of shape"),
        ((2, P), (2, Q - 1), torch.float64, "models of shape"),
        ((2, P), (3, Q), torch.float64, "models of shape"),
        ((2, P), (Q,), torch.float64, "models of shape"),
        ((), (2, Q), torch.float64, "models of shape"),
        ((2, P), (2, Q), torch.float32, "models of torch.float32"),
        ((2, P), (2, Q), torch.int64, "models of torch.int64"),
    ],
    ids=["width", "width of buffers", "rows of buffers", "axes", "number", "precision", "whole numbers"],
)
def test_models_that_do_not_fit_their_net_are_refused(parameters, buffers, dtype, message):
    tree = model_of({"$": "tensor", "of": "p"}, {"$": "tensor", "of": "b"})
    content = forged(tree, p=torch.zeros(parameters, dtype=dtype), b=torch.zeros(buffers, dtype=dtype))
    with pytest.raises(CoterieError, match=message):
        codec.load(content, NETS)


def test_models_of_another_net_are_refused():
    content = codec.dump(world(mlp).models())
    with pytest.raises(CoterieError, match=r"models of the net support.worlds:mlp, which is not in use here"):
        codec.load(content, {"support.worlds:linear": world(linear).net})


BASKET = codec.dump(Basket(HERE.models(2), history=(1, "x"), counts={"a": torch.ones(3)}))


@given(st.integers(0, len(BASKET) - 1))
def test_truncated_bytes_are_refused(length):
    with pytest.raises(CoterieError):
        codec.load(BASKET[:length], NETS)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content):
    with pytest.raises(CoterieError):
        codec.load(content, NETS)


@given(st.binary(max_size=100), st.integers(0, 120))
def test_random_headers_are_refused(content, length):
    with pytest.raises(CoterieError):
        codec.load(struct.pack("<Q", length) + content, NETS)


@settings(max_examples=300)
@given(st.data())
def test_damaged_bytes_give_a_value_or_an_error_of_ours(data):
    # A flipped byte among the numbers cannot be noticed here; everywhere else it must not do worse than an error.
    place = data.draw(st.integers(0, 600))
    content = bytearray(BASKET)
    content[place] = data.draw(st.integers(0, 255))
    with suppress(CoterieError):
        codec.load(bytes(content), NETS)


# Files


def test_files_are_written_whole_and_read_back(tmp_path):
    path = tmp_path / "state"
    codec.write(path, [1, torch.ones(2)])
    codec.write(path, [2, torch.ones(2)])
    assert codec.read(path, NETS)[0] == 2
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_value_that_cannot_be_stored_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    codec.write(path, 1)
    with pytest.raises(CoterieError):
        codec.write(path, Stranger())
    assert codec.read(path, NETS) == 1


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "state").write_bytes(BASKET[:100])
    with pytest.raises(CoterieError, match="state: damaged content"):
        codec.read(tmp_path / "state", NETS)
