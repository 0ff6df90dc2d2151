"""Models in formats that need no Coterie: programs of `torch.export`, and ONNX.

Both take raw inputs [sample, ...], any number of samples at once, and give what a user wants to know: probabilities
[sample, output], or numbers in their own units. Beside each file stands another, in JSON, that says what goes in and
what comes out; the same text is inside of the file.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole
from coterie.nets.predictor import Predictor

ABOUT = "coterie.json"
"""What the description is called inside of a file."""


class _Scorer(nn.Module):
    """A predictor that gives probabilities, or numbers in their own units, instead of bare outputs."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, x: Tensor) -> Tensor:
        return self.predictor.task.predicted(self.predictor(x))


def description(predictor: Predictor) -> dict[str, Any]:
    """What goes into a predictor, and what comes out of it, as JSON has it."""
    preparation = predictor.preparation
    schema = preparation.schema
    inputs: dict[str, Any] = {
        "kind": preparation.kind,
        "type": "int64" if preparation.kind == "tokens" else "float32",
        "shape": ["sample", *preparation.shape],
    }
    if schema is not None:
        inputs |= {"names": list(schema.inputs), "missing": "not-a-number", "columns": schema.table()["columns"]}
    meaning = "numbers in their own units" if preparation.task == "regression" else "probabilities"
    output = {"meaning": meaning, "shape": ["sample", len(preparation.labels)], "labels": list(preparation.labels)}
    if schema is not None:
        output["target"] = schema.target
    client = {"client": predictor.client} if predictor.client else {}
    return {**client, "data": preparation.data, "task": preparation.task, "input": inputs, "output": output}


def write_program(predictor: Predictor, path: Path) -> None:
    """Write a predictor as a program, which `torch.export.load` reads."""
    about, content = _about(predictor), BytesIO()
    with _quiet():
        torch.export.save(_program(predictor), content, extra_files={ABOUT: about})
    _write(path, content.getvalue(), about)


def write_onnx(predictor: Predictor, path: Path) -> None:
    """Write a predictor as ONNX, with the input `x` and the output `y`."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise CoterieError(f"{path}: needs ONNX: pip install 'coterie[onnx]'") from error
    about = _about(predictor)
    with _quiet():
        names: Any = {"input_names": ["x"], "output_names": ["y"]}
        made = torch.onnx.export(_program(predictor), dynamo=True, verbose=False, **names)
    assert made is not None
    made.model.metadata_props[ABOUT] = about
    _write(path, made.model_proto.SerializeToString(), about)


FORMATS: dict[str, Callable[[Predictor, Path], None]] = {".pt2": write_program, ".onnx": write_onnx}
"""What writes a file, by the end of its name."""


def _program(predictor: Predictor) -> torch.export.ExportedProgram:
    """What a predictor computes, for any number of samples."""
    dtype = torch.int64 if predictor.preparation.kind == "tokens" else torch.float32
    like = torch.zeros(2, *predictor.preparation.shape, dtype=dtype, device=predictor.factor.device)
    samples = torch.export.Dim("samples", min=1)
    try:
        return torch.export.export(_Scorer(predictor).eval(), (like,), dynamic_shapes=({0: samples},))
    except Exception as error:  # of many kinds, for whatever the user's own net may do
        said = str(error).strip().split("\n", 1)[0]
        raise CoterieError(
            f"this net cannot be exported for any number of samples ({said}); the safetensors file has its tensors. "
            "Often `len(x)` is why: write `x.shape[0]`"
        ) from error


def _about(predictor: Predictor) -> str:
    return json.dumps(description(predictor), indent=2) + "\n"


def _write(path: Path, content: bytes, about: str) -> None:
    write_whole(path, content)
    write_whole(path.with_suffix(".json"), about)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from telling what it deprecates in itself, and what it could export if it were installed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
