"""A net as a function of two flat vectors: its trained parameters, and its buffers such as running statistics.

A model is a row of `parameters` [n, P] and a row of `buffers` [n, Q]. So distances, mixing and steps of the server are
operations on matrices; a `Layout` gives the layers back as views.

Parameters that the factory has frozen are constants of the net, and so are the running statistics of batch
normalisation whose parameters are all frozen. They are in neither vector: so they are not sent, averaged or stored with
a model, and nothing changes them. Whoever builds the net has them from the factory, which reads them from a file.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.errors import DataError, SettingsError
from coterie.core.randomness import torch_generator
from coterie.data.tasks import TASKS, Task
from coterie.nets.layers import BatchNorm, GroupNorm, Pass, adopt, as_stock, note_features, passing

Factory = Callable[..., nn.Module]
"""Builds a module for inputs of a shape and a number of outputs, one for each class. If inputs are token ids and it has
an argument `vocabulary`, it is told how many different ones there are, with 0, which fills up."""


@dataclass(frozen=True)
class Layout:
    """Which part of a flat vector is which named tensor.

    Kernels of convolutions are stored channels-last: so their views have the memory format in which convolutions are
    fastest on a CPU (1.4 times for a net of 16 and 32 channels), without a copy in every step.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> list[int]:
        """The number of elements of each tensor."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @cached_property
    def total(self) -> int:
        """The length of the vector."""
        return sum(self.sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The named tensors of vectors [..., total], as views that have the leading axes in front."""
        return self.tensors_of(flat.split(self.sizes, dim=-1) if self.names else ())

    def tensors_of(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """The named tensors, as views of the parts of vectors [..., size] in which they lie."""
        return {
            name: _shaped(part, part.shape[:-1], shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: dict[str, Tensor]) -> Tensor:
        """The vector of these tensors, which have no leading axes."""
        parts = [_in_order(tensors[name]).reshape(-1) for name in self.names]
        return torch.cat(parts) if parts else torch.empty(0)


def _in_order(tensor: Tensor) -> Tensor:
    """The tensor with its axes in the order of the vector: kernels of convolutions channels-last."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


def _shaped(part: Tensor, lead: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The tensor of this shape in its part of vectors with these leading axes, as a view."""
    if len(shape) != 4:
        return part.reshape((*lead, *shape))
    out, channels, height, width = shape
    last = len(lead)
    return part.reshape(*lead, out, height, width, channels).movedim(last + 3, last + 1)


def parts_of(flat: Tensor, sizes: Sequence[int], halved: Sequence[bool] | None) -> tuple[Tensor, ...]:
    """The parts of a vector that have these sizes, of which some are cast to bfloat16."""
    parts: tuple[Tensor, ...] = _Parts.apply(flat, sizes, halved)
    return parts


class _Parts(torch.autograd.Function):
    """The parts of a vector, of which some are in bfloat16; on the way back, gradients are gathered in one vector.

    Torch would cast each layer by itself, and join the gradients with `cat`, which on a GPU takes several times as long
    as memory allows if there are few large ones.
    """

    @staticmethod
    def forward(flat: Tensor, sizes: Sequence[int], halved: Sequence[bool] | None) -> tuple[Tensor, ...]:
        parts = flat.split(sizes)
        if halved is None:
            return tuple(parts)
        low = flat.to(torch.bfloat16).split(sizes)
        return tuple(half if is_half else part for half, part, is_half in zip(low, parts, halved, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        flat, ctx.sizes, _ = inputs
        ctx.dtype, ctx.device = flat.dtype, flat.device
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            zeros = (torch.zeros(size, dtype=ctx.dtype, device=ctx.device) for size in ctx.sizes)
            whole = (zero if part is None else part.to(ctx.dtype) for zero, part in zip(zeros, gradients, strict=True))
            return torch.cat(list(whole)), None, None
        flat = torch.empty(sum(ctx.sizes), dtype=ctx.dtype, device=ctx.device)
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        unused = []
        for target, gradient in zip(flat.split(ctx.sizes), gradients, strict=True):
            if gradient is None:
                unused.append(target)
            else:
                targets, sources = by_dtype.setdefault(gradient.dtype, ([], []))
                targets.append(target)
                sources.append(gradient)
        if unused:
            torch._foreach_zero_(unused)
        for targets, sources in by_dtype.values():
            torch._foreach_copy_(targets, sources)
        return flat, None, None


class Net:
    """What a module computes, as a function of its trained parameters and its buffers, which are flat vectors.

    >>> net = coterie.simulate(clients=3, net="mlp").net
    >>> net.parameters.total, net.classes, net.shape
    (4810, 10, (1, 8, 8))
    """

    classes: int
    """How many outputs it has, one for each class; 0 where only the clients know that."""
    constants: Mapping[str, Tensor]
    """What is the same in all models, by name: frozen parameters and the statistics of frozen normalisation."""
    frozen: int
    """How many numbers the frozen parameters have."""

    def __init__(
        self,
        factory: Factory,
        shape: tuple[int, ...],
        classes: int,
        name: str = "own",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        task: Task = TASKS["classification"],
        vocabulary: int = 0,
    ) -> None:
        self.factory, self.shape, self.classes, self.name, self.task = factory, tuple(shape), classes, name, task
        self.vocabulary = vocabulary
        self.device, self.dtype = torch.device(device), dtype
        self.module = adopt(self.build(torch.Generator()))
        named = dict(self.module.named_parameters())
        still = {n: p for n, p in named.items() if not p.requires_grad}
        statistics = {n: b for n, b in self.module.named_buffers() if b.is_floating_point()}
        kept = [f"{n}." for n, layer in self.module.named_modules() if isinstance(layer, BatchNorm) and layer.frozen]
        known = {n: b for n, b in statistics.items() if n.startswith(tuple(kept))}
        self.frozen = sum(p.numel() for p in still.values())
        self.parameters = _layout({n: p for n, p in named.items() if n not in still})
        self.buffers = _layout({n: b for n, b in statistics.items() if n not in known})
        if self.parameters.total == 0:
            raise SettingsError(f"net {name}: nothing to train")
        self._check_constants(still | known)
        # To look for tied weights in every pass would take longer than a small layer does.
        self._tied = len(named) < len(list(self.module.named_parameters(remove_duplicate=False)))
        self._check_fit()
        self.module.to(device=self.device, dtype=dtype)
        self.module.requires_grad_(False)
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        self.constants = {n: tensors[n] for n in (*still, *known)}
        self._last.register_forward_pre_hook(note_features)

    def build(self, generator: torch.Generator) -> nn.Module:
        """A fresh module from the factory, which initialises itself by its own rules from this generator."""
        try:
            hears = self.vocabulary > 0 and _takes_vocabulary(self.factory)
            told = {"vocabulary": self.vocabulary} if hears else {}
            with _Drawing(generator):
                module = self.factory(self.shape, self.classes, **told)
        except Exception as error:
            raise SettingsError(self._misfit(error)) from error
        if not isinstance(module, nn.Module):
            raise SettingsError(f"net {self.name}: gives {type(module).__name__}, not an nn.Module")
        return module

    def _blank(self, rows: int) -> Tensor:
        """Inputs of zeros, as many samples as are asked for; whole numbers if inputs are token ids."""
        return torch.zeros(rows, *self.shape, dtype=torch.int64 if self.vocabulary else torch.float32)

    def _misfit(self, error: object) -> str:
        shape = "x".join(map(str, self.shape))
        return f"net {self.name} does not fit inputs of shape {shape} with {self.classes} classes: {error}"

    def _check_fit(self) -> None:
        """Refuse a net that does not take the inputs, gives wrong outputs, or draws noise that is not keyed."""
        drawn = torch.Generator()
        before = drawn.get_state()
        try:
            with torch.no_grad(), passing(Pass(training=True, key=torch.tensor(0))), _Drawing(drawn):
                # Layers assign new running statistics: this dict takes them, and is thrown away.
                tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
                output = functional_call(self.module, tensors, (self._blank(2),))
        except Exception as error:
            raise SettingsError(self._misfit(error)) from error
        if not torch.equal(before, drawn.get_state()):
            raise SettingsError(
                f"net {self.name} draws random numbers in its forward pass: use nn.Dropout layers, whose noise is keyed"
            )
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if shape != (2, self.classes):
            raise SettingsError(self._misfit(f"2 samples give outputs of shape {shape}"))

    def _check_constants(self, constants: Mapping[str, Tensor]) -> None:
        """Refuse constants that the factory draws: clients that build the net elsewhere would have other ones."""
        if not constants:
            return
        again = adopt(self.build(torch.Generator().manual_seed(1)))
        others = dict(again.named_parameters()) | dict(again.named_buffers())
        for name, tensor in constants.items():
            if name not in others or not torch.equal(tensor, others[name]):
                raise SettingsError(
                    f"net {self.name}: {name} is frozen, but differs each time the net is built; frozen parameters "
                    "must come from a file, not from the generator"
                )

    @cached_property
    def digest(self) -> str:
        """What tells the constants of two nets apart; empty without any."""
        if not self.constants:
            return ""
        found = hashlib.sha256()
        for name, tensor in sorted(self.constants.items()):
            values = tensor.detach().cpu().contiguous()
            found.update(f"{name} {tuple(values.shape)} {values.dtype} ".encode())
            found.update(values.numpy().tobytes())
        return found.hexdigest()[:32]

    def initial(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Fresh parameters [P] and buffers [Q], as the module itself initialises them, drawn from this generator."""
        module = self.build(generator)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        parameters, buffers = self.parameters.flatten(tensors), self.buffers.flatten(tensors)
        return parameters.detach().to(self.device, self.dtype), buffers.detach().to(self.device, self.dtype)

    def new(self, seed: int, number: int) -> tuple[Tensor, Tensor]:
        """The parameters [P] and buffers [Q] from which the model with this number starts under a seed."""
        return self.initial(torch_generator(seed, "net", number))

    def plain(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A module of torch's own layers with these tensors by name, ready to predict."""
        module = self.build(torch.Generator()).to(self.dtype)
        known = module.state_dict()
        for name in (*self.parameters.names, *self.buffers.names, *self.constants):
            given = tensors.get(name)
            if given is None or given.shape != known[name].shape:
                found = "missing" if given is None else f"of shape {tuple(given.shape)}"
                raise DataError(f"net {self.name}: {name} is {found}, not {tuple(known[name].shape)}")
        module.load_state_dict(dict(tensors), strict=False)
        blank = self._blank(1)
        return as_stock(module, blank.to(self.dtype) if blank.is_floating_point() else blank)

    def __call__(self, parameters: Tensor, buffers: Tensor, inputs: Sequence[Any], current: Pass) -> tuple[Any, Tensor]:
        """The module's output for one model, and the model's buffers after this pass."""
        if self.module.training != current.training:
            self.module.train(current.training)
        trained = self._tensors(parameters, current)
        if self.device.type == "cuda" and (current.stacked or not self._channels_last):
            inputs = [x.contiguous() if isinstance(x, Tensor) else x for x in inputs]
            if not current.stacked:
                trained = {name: tensor.contiguous() for name, tensor in trained.items()}
        # Buffers are copied: a module may change them in place, and the given ones must stay.
        tensors = trained | self.buffers.views(buffers.clone())
        with passing(current):
            output = functional_call(self.module, tensors, tuple(inputs), tie_weights=self._tied)
        if not (current.training and self.buffers.names):
            return output, buffers
        return output, self.buffers.flatten(tensors)

    def _tensors(self, parameters: Tensor, current: Pass) -> dict[str, Tensor]:
        """The trained parameters of one model, by name, in the precision in which layers compute."""
        if self.device.type != "cuda" or current.stacked:
            return self.parameters.views(parameters)
        halved = self._halved if torch.is_autocast_enabled("cuda") else None
        return self.parameters.tensors_of(parts_of(parameters, self.parameters.sizes, halved))

    @cached_property
    def _halved(self) -> list[bool]:
        """For each trained tensor whether it is of a layer that computes in bfloat16 where the form does."""
        low = {name for name, layer in self.module.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
        return [_owner(name) in low and not self._tied for name in self.parameters.names]

    @cached_property
    def _channels_last(self) -> bool:
        """Whether images should stay channels-last on a GPU: not where torch's group normalisation would copy them."""
        norms = [module for module in self.module.modules() if isinstance(module, nn.GroupNorm)]
        return not norms or (
            self.dtype == torch.float32 and all(isinstance(n, GroupNorm) and n.takes_channels_last for n in norms)
        )

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the modules that own trained parameters, in the order of the net."""
        return tuple(dict.fromkeys(map(_owner, self.parameters.names)))

    @property
    def _last(self) -> nn.Module:
        return self.module.get_submodule(self.layers[-1])

    @cached_property
    def features(self) -> int:
        """How many features a sample has: what the last layer gets, which must be linear and give the outputs."""
        current, blank = Pass(), self._blank(1).to(self.device)
        with torch.no_grad(), passing(current):
            output = self.module.eval()(blank if self.vocabulary else blank.to(self.dtype))
            found, fits = current.features, type(self._last) is nn.Linear
            if fits and found is not None and found.dim() == 2 and torch.allclose(self._last(found), output):
                return found.shape[1]
        raise SettingsError(f"net {self.name}: its last layer, {self.layers[-1]}, is not linear or not the end of it")

    @cached_property
    def up_to_head(self) -> "Net":
        """This net without its last layer: models of it have the same numbers, and give features as outputs."""
        made = _UpToHead.__new__(_UpToHead)
        vars(made).update(vars(self), classes=self.features)
        return made

    @cached_property
    def head(self) -> Layout:
        """The tensors of the part `head`, the last layer, in its vector: of a linear one weights, then biases."""
        names, shapes = self.parameters.names, self.parameters.shapes
        places = [place for place, belongs in enumerate(self._belong(names, "head")) if belongs]
        return Layout(tuple(names[place] for place in places), tuple(shapes[place] for place in places))

    @property
    def head_names(self) -> tuple[str, str]:
        """What the weights and the biases of the last layer are called among the parameters, if it has any."""
        weight, bias = (".".join(filter(None, (self.layers[-1], name))) for name in ("weight", "bias"))
        return weight, bias

    def check_offsets(self) -> None:
        """Refuse a net whose last layer is not linear, or has no bias that could take up an offset of its features."""
        if self.features and self.head_names[1] not in self.parameters.names:
            raise SettingsError(f"net {self.name}: its last layer, {self.layers[-1]}, has no bias to take an offset up")

    def shift(self, parameters: Tensor, offset: Tensor) -> Tensor:
        """What outputs [..., class] gain if an offset [..., feature] is added to what the last layer, linear, gets."""
        weight = self.parameters.views(parameters)[self.head_names[0]]
        return (weight @ offset.unsqueeze(-1)).squeeze(-1)

    @property
    def batch_norms(self) -> Sequence[str]:
        """The names of the layers of batch normalisation."""
        return [name for name, layer in self.module.named_modules() if isinstance(layer, BatchNorm)]

    def part(self, part: str | Iterable[str]) -> Tensor:
        """Which parameters belong to a part: a mask [P].

        A part is "all", "none", "head" (the last layer), "top-2" (the last two layers, or another number), "body" (all
        but the head), "batch-norm" (layers of batch normalisation), "not ..." (all but another part), or names of
        layers, several or one text with commas. A name stands for everything below it.
        """
        return self._mask(self.parameters, part)

    def statistics(self, part: str | Iterable[str]) -> Tensor:
        """Which buffers belong to a part: a mask [Q]. Those of layers without parameters belong to the body.

        Who shares a part must share its running statistics too: a layer that is averaged without them is broken.
        """
        return self._mask(self.buffers, part)

    @cached_property
    def _masks(self) -> dict[tuple[bool, str | tuple[str, ...]], Tensor]:
        """Masks made so far, on the device: a step that a CUDA graph records must not fetch one from the host."""
        return {}

    def _mask(self, layout: Layout, part: str | Iterable[str]) -> Tensor:
        """Which numbers of a vector of this layout belong to a part."""
        key = (layout is self.parameters, part if isinstance(part, str) else tuple(part))
        if key not in self._masks:
            flags = torch.tensor(self._belong(layout.names, key[1]), dtype=torch.bool)
            sizes = torch.tensor(layout.sizes, dtype=torch.int64)
            self._masks[key] = flags.repeat_interleave(sizes).to(self.device)
        return self._masks[key]

    def _belong(self, names: Sequence[str], part: str | Iterable[str]) -> list[bool]:
        """For each of these tensors whether it belongs to a part."""
        if isinstance(part, str):
            part = {"all": "not none", "body": "not head", "head": "top-1", "none": "top-0"}.get(part, part)
            if part.startswith("not "):
                return [not belongs for belongs in self._belong(names, part.removeprefix("not "))]
            if top := re.fullmatch(r"top-(\d+)", part):
                last = self.layers[max(len(self.layers) - int(top[1]), 0) :]
                return [_owner(name) in last for name in names]
            if part == "batch-norm":
                norms = self.batch_norms
                return [_owner(name) in norms for name in names]
            part = [layer.strip() for layer in part.split(",")]
        layers = list(part)
        for layer in layers:
            self.below(layer)
        return [any(_is_below(name, layer) for layer in layers) for name in names]

    def below(self, layer: str) -> list[str]:
        """The names of the parameters of a layer and of all layers inside of it."""
        names = [name for name in self.parameters.names if _is_below(name, layer)]
        if not names:
            known = ", ".join(filter(None, self.layers))
            raise SettingsError(f"net {self.name} has no layer {layer!r}: it has {known}")
        return names

    @cached_property
    def work(self) -> int:
        """How many multiply-and-adds one sample's forward pass takes, in layers that have a matrix of weights."""
        return self._measured[0]

    @cached_property
    def activations(self) -> int:
        """How many numbers all layers together put out for one sample, from which the need for memory is estimated."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[int, int]:
        work, activations = 0, 0

        def count(module: nn.Module, _: Any, output: Any) -> None:
            nonlocal work, activations
            if isinstance(output, Tensor):
                weight = None if isinstance(module, nn.Embedding) else getattr(module, "weight", None)
                work += output.numel() * weight[0].numel() if isinstance(weight, Tensor) and weight.dim() > 1 else 0
                activations += output.numel()

        hooks = [m.register_forward_hook(count) for m in self.module.modules() if not list(m.children())]
        try:
            with torch.no_grad():
                blank = self._blank(1).to(self.device)
                self.module(blank if self.vocabulary else blank.to(self.dtype))
        finally:
            for hook in hooks:
                hook.remove()
        return work, activations


class _UpToHead(Net):
    """A net whose outputs are what its last layer gets."""

    def __call__(self, parameters: Tensor, buffers: Tensor, inputs: Sequence[Any], current: Pass) -> tuple[Any, Tensor]:
        _, after = super().__call__(parameters, buffers, inputs, current)
        assert current.features is not None
        return current.features, after


def _takes_vocabulary(factory: Factory) -> bool:
    """Whether a factory has an argument for the size of the vocabulary."""
    try:
        return "vocabulary" in inspect.signature(factory).parameters
    except ValueError:  # written in C
        return False


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _is_below(name: str, layer: str) -> bool:
    return layer in (name, _owner(name)) or name.startswith(layer + ".")


def _layout(named: Mapping[str, Tensor]) -> Layout:
    return Layout(tuple(named), tuple(tuple(tensor.shape) for tensor in named.values()))


class _Drawing(TorchDispatchMode):
    """Inside of this, all random numbers are drawn from one generator, and never from the global one.

    Modules initialise themselves with functions that are given no generator. To seed the global one instead would
    disturb runs in other threads.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator


def _dispatch(self: _Drawing, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = dict(kwargs or {})
    drawing = _with_generator(func)
    if drawing is None:
        return func(*args, **kwargs)
    return drawing(*args, **kwargs | {"generator": self.generator})


@cache
def _with_generator(func: Any) -> Any:
    """The overload of an operation that takes a generator besides the same arguments; None if there is none."""
    packet = func.overloadpacket
    for other in (func, *(getattr(packet, name) for name in packet.overloads())):
        takes = any(argument.name == "generator" for argument in other._schema.arguments)
        if takes and _arguments(other) == _arguments(func):
            return other
    return None


def _arguments(func: Any) -> list[tuple[str, str]]:
    return [(each.name, str(each.type)) for each in func._schema.arguments if each.name != "generator"]


# Not in the class body: torch would wrap it there in a way that imports its compiler, which takes a second.
_Drawing.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]
