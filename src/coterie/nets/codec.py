"""Writes values as bytes and reads them back: tensors as safetensors, all else as JSON beside them, nothing as pickle.

Checkpoints, worker processes and real sites all use this encoding. Reading makes objects only of classes that are
registered as records where they are defined: no message can name a module that is then imported.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole
from coterie.core.records import records, stored_name
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models

Nets = Mapping[str, Net]
"""The nets that models may be of, by name."""

_STACKS: dict[str, type[Models] | type[Changes]] = {"models": Models, "changes": Changes}


_NO_CHECKSUM = "0" * 64
_CHECKSUM = b'\\"sha256\\": \\"'
"""What stands before a checksum in the header of a file: JSON within JSON."""


def dump(value: Any, checked: bool = False) -> bytes:
    """Write a value as bytes, which have a checksum of themselves if they are to be `checked` when they are read."""
    tensors: dict[str, Tensor] = {}
    tree = _tree_of(value, tensors)
    if checked:
        tree = {"$": "checked", "sha256": _NO_CHECKSUM, "of": tree}
    taken: set[int] = set()
    for key, tensor in tensors.items():
        # safetensors refuses tensors that share memory: all but the first are copied.
        place = tensor.untyped_storage().data_ptr()
        tensors[key] = tensor.clone() if place in taken else tensor
        taken.add(place)
    content = save_tensors(tensors, {"tree": json.dumps(tree)})
    return with_checksum(content) if checked else content


def with_checksum(content: bytes) -> bytes:
    """Safetensors with their checksum in them, for which JSON in their metadata leaves room: `UNCHECKED`."""
    place = _place_of_checksum(content)
    return content[:place] + hashlib.sha256(content).hexdigest().encode() + content[place + len(_NO_CHECKSUM) :]


def check(content: bytes) -> None:
    """Refuse bytes that are not those of which `with_checksum` has made the checksum; one from before has none."""
    if (place := _place_of_checksum(content)) < 0:
        return
    end = place + len(_NO_CHECKSUM)
    total = hashlib.sha256(content[:place])
    total.update(_NO_CHECKSUM.encode())
    total.update(memoryview(content)[end:])
    if total.hexdigest().encode() != content[place:end]:
        raise CoterieError("damaged content: it is not as it was written")


UNCHECKED = {"sha256": _NO_CHECKSUM}
"""What the first JSON in the metadata of safetensors begins with, so that `with_checksum` has a place for it."""


def _place_of_checksum(content: bytes) -> int:
    """Where the checksum stands; below 0 if there is none."""
    length = int.from_bytes(content[:8], "little")
    found = content.find(_CHECKSUM, 8, 8 + length)
    return found + len(_CHECKSUM) if found >= 0 else -1


def load(content: bytes, nets: Nets) -> Any:
    """Read the value that `dump` has written. Models in it are of one of `nets`, which are known by their names."""
    try:
        check(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        return _value_of(json.loads(header["__metadata__"]["tree"]), _TakenOnce(load_tensors(content)), nets)
    except (SafetensorError, ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CoterieError(f"damaged content: {error}") from error


class _TakenOnce(dict[str, Tensor]):
    """Tensors each of which is taken once, as `dump` writes them: so a value is never larger than its bytes are."""

    def __getitem__(self, key: str) -> Tensor:
        return self.pop(key)


def write(path: Path, value: Any, lasting: bool = True) -> None:
    """Store a value in a file, whole or not at all; with a checksum and for good, unless it need not be `lasting`."""
    write_whole(path, dump(value, checked=lasting), lasting)


def read(path: Path, nets: Nets) -> Any:
    """The value stored in a file."""
    try:
        return load(path.read_bytes(), nets)
    except CoterieError as error:
        raise CoterieError(f"{path}: {error}") from error


def _tree_of(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON. Its tensors go into `tensors`, each under a number that stands in their place."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise CoterieError(f"an array of {value.dtype} cannot be stored: only of numbers")
        native = value.astype(value.dtype.newbyteorder("="), order="C")
        return {"$": "array", "of": _tree_of(torch.from_numpy(native), tensors)}
    if isinstance(value, bytes):
        return {"$": "bytes", "of": _tree_of(torch.from_numpy(np.frombuffer(value, dtype=np.uint8).copy()), tensors)}
    if isinstance(value, Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().contiguous()
        return {"$": "tensor", "of": key}
    if isinstance(value, Models | Changes):
        kind = "models" if isinstance(value, Models) else "changes"
        tree = {"$": kind, "net": value.net.name, "of": [_tree_of(tensor, tensors) for tensor in value.tensors]}
        return tree | ({"frozen": value.net.digest} if value.net.constants else {})
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"$": kind, "of": [_tree_of(item, tensors) for item in value]}
    if isinstance(value, Mapping):
        return {"$": "dict", "of": [[_tree_of(k, tensors), _tree_of(v, tensors)] for k, v in value.items()]}
    name = stored_name(type(value))
    if name in records:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"$": "record", "type": name, "of": _tree_of(fields, tensors)}
    raise CoterieError(f"{name} cannot be stored: use numbers, tensors, models, or a class marked with @state")


def _value_of(tree: Any, tensors: Mapping[str, Tensor], nets: Nets) -> Any:
    """The value of which `_tree_of` has made this JSON and these tensors."""
    if not isinstance(tree, dict):
        return tree
    kind, content = tree["$"], tree["of"]
    if kind == "tensor":
        return tensors[content]
    if kind == "checked":
        return _value_of(content, tensors, nets)
    if kind == "array":
        return _value_of(content, tensors, nets).numpy()
    if kind == "bytes":
        return _value_of(content, tensors, nets).numpy().tobytes()
    if kind in _STACKS:
        if tree["net"] not in nets:
            raise CoterieError(f"models of the net {tree['net']}, which is not in use here ({', '.join(nets)})")
        net = nets[tree["net"]]
        parts = [_value_of(part, tensors, nets).to(net.device) for part in content]
        _check_width(net, parts)
        if tree.get("frozen", "") != net.digest:
            raise CoterieError(
                f"models that belong to other frozen parameters than the net {net.name} has here: give it the file of "
                "weights that they were trained with"
            )
        return _STACKS[kind](net, *parts)
    if kind in ("list", "tuple"):
        items = [_value_of(item, tensors, nets) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_value_of(k, tensors, nets): _value_of(v, tensors, nets) for k, v in content}
    if kind == "record" and tree["type"] in records:
        return records[tree["type"]](**_value_of(content, tensors, nets))
    raise CoterieError(f"content of an unknown type {tree.get('type', kind)!r}")


def _check_width(net: Net, parts: list[Tensor]) -> None:
    """Refuse parameters and buffers that do not have the net's size, one shape and the net's type."""
    widths = (net.parameters.total, net.buffers.total)
    for part, width in zip(parts, widths, strict=False):
        if part.dim() == 0 or part.shape[-1] != width or part.shape[:-1] != parts[0].shape[:-1]:
            raise CoterieError(f"models of shape {tuple(part.shape)} for the net {net.name} with {width} numbers")
        if part.dtype != net.dtype:
            raise CoterieError(f"models of {part.dtype} for the net {net.name} of {net.dtype}")
