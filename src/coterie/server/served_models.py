"""The models that clients predict with at the end of a run, and the file in which they are taken home.

A file is safetensors. Its tensors are called and shaped as in the module that the net's factory builds; of several
models those of each have its number and a stroke in front. Beside them stands, as JSON, all that is needed to predict:
the net, how inputs are prepared, and which client uses which model.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from coterie.clients.clients import HOME, HOME_BLEND, HOME_WEIGHTS
from coterie.clients.programs import own_prior
from coterie.core.errors import CoterieError, DataError, SettingsError, unknown
from coterie.core.files import write_whole
from coterie.data.preparation import Preparation
from coterie.nets import codec
from coterie.nets.exports import FORMATS
from coterie.nets.making import make_net
from coterie.nets.net import Factory, Net
from coterie.nets.predictor import Predictor
from coterie.nets.stacks import Models
from coterie.server.federation import Federation
from coterie.server.serving import Served

FORMAT, FORMAT_WITH_PRIORS, FORMAT_WITH_BLENDS = 1, 2, 3
"""The version of the file. Where clients add priors it is the second, and where they blend outputs the third: who knows
only earlier ones would leave priors out, or mix probabilities instead."""

SUFFIX = ".safetensors"
"""How the names of these files end."""

_ABOUT = "coterie"
"""The entry of the file's metadata that says everything."""


@dataclass(frozen=True, eq=False)
class ServedModels:
    """Models, and which of them each client predicts with."""

    models: Models
    """[model], on the host."""
    preparation: Preparation
    clients: tuple[str, ...]
    """The clients that predict with something, by name."""
    index: Tensor | None = None
    """Which model each client has, [client]."""
    weights: Tensor | None = None
    """Or how it mixes all models, [client, model]."""
    prior: Tensor | None = None
    """What each client adds to what models give, [client, class], if it adds anything."""
    blend: bool = False
    """Whether clients mix what their models give before the softmax, and not probabilities."""

    @classmethod
    def of(cls, fed: Federation, served: Served, choice: np.ndarray | None = None) -> "ServedModels | None":
        """What the clients of a federation are served; `choice` [client] says what they have chosen themselves.

        It is None if the server does not have it: where real sites keep their own models or priors, or prepare their
        inputs in ways of their own.
        """
        preparation = fed.preparation
        if preparation is None or (fed.real and (fed.prior or (served.personal and served.weights is None))):
            return None
        made = cls._without_priors(fed, served, choice, preparation)
        if not fed.prior:
            return made
        replies = fed.shortcut(own_prior, [client for client in fed.clients if fed.names[client] in made.clients])
        return replace(made, prior=replies.prior.cpu())

    @classmethod
    def _without_priors(
        cls, fed: Federation, served: Served, choice: np.ndarray | None, preparation: Preparation
    ) -> "ServedModels":
        """What `of` gives, but for the clients' priors."""
        there = fed.clients
        names = tuple(fed.names[client] for client in there)
        if served.weights is not None:
            assert served.models is not None
            return cls(
                served.models.to("cpu"), preparation, names, weights=served.weights[torch.from_numpy(there)].cpu()
            )
        if served.personal:
            home = fed.taken_home()
            clients, rows = home[HOME]
            names = tuple(fed.names[client] for client in clients.tolist())
            if HOME_BLEND in home:
                weights = home[HOME_WEIGHTS][1]
                assert isinstance(rows, Models)
                assert isinstance(weights, Tensor)
                blocks = _own_blocks(weights)
                mixed = blocks.any(dim=0).nonzero()[:, 0]
                return cls(rows.flattened()[mixed], preparation, names, weights=blocks[:, mixed], blend=True)
            if HOME_WEIGHTS in home:
                assert served.models is not None
                return cls(served.models.to("cpu"), preparation, names, weights=home[HOME_WEIGHTS][1])  # type: ignore[arg-type]
            assert isinstance(rows, Models)
            return cls(rows, preparation, names, index=torch.arange(len(names)))
        assert served.models is not None
        assert choice is not None
        used, index = np.unique(choice[there], return_inverse=True)
        return cls(served.models[torch.from_numpy(used)].to("cpu"), preparation, names, index=torch.from_numpy(index))

    def __repr__(self) -> str:
        noun = "model" if len(self.models) == 1 else "models"
        how = "each mixes all" if self.weights is not None else "each has one"
        return f"ServedModels({len(self.models)} {noun} of {self.net.name} for {len(self.clients)} clients: {how})"

    @property
    def net(self) -> Net:
        """The net of all models."""
        return self.models.net

    def _row(self, client: str | int) -> int:
        """The place of a client."""
        if str(client) not in self.clients:
            raise unknown("client", str(client), self.clients)
        return self.clients.index(str(client))

    def model(self, client: str) -> Predictor:
        """What a client predicts with."""
        row = self._row(client)
        prior = None if self.prior is None else self.prior[row]
        if self.weights is None:
            assert self.index is not None
            return Predictor([self.models[int(self.index[row])].module()], self.preparation, client=client, prior=prior)
        mixed = self.weights[row].nonzero()[:, 0]  # a model without any weight is not computed
        modules = [self.models[place].module() for place in mixed.tolist()]
        return Predictor(modules, self.preparation, self.weights[row, mixed], client, prior, self.blend)

    def of_client(self, client: str) -> "ServedModels":
        """What one client predicts with, alone."""
        row = self._row(client)
        prior = None if self.prior is None else self.prior[row : row + 1]
        if self.weights is not None:
            mixed = self.weights[row].nonzero()[:, 0] if self.blend else slice(None)
            own = self.weights[row : row + 1, mixed]
            return ServedModels(self.models[mixed], self.preparation, (client,), None, own, prior, self.blend)
        assert self.index is not None
        models, only = self.models[self.index[row : row + 1]], torch.zeros(1, dtype=torch.int64)
        return ServedModels(models, self.preparation, (client,), index=only, prior=prior)

    def export(self, client: str, path: str | Path) -> None:
        """Write what a client predicts with into a file: `.safetensors`, `.pt2` (`torch.export`) or `.onnx`.

        The first is read by `load_model` and `coterie predict`, and has the tensors by their names; the others need no
        Coterie, and a description lies beside them, in JSON.
        """
        path = Path(path)
        if path.suffix == SUFFIX:
            self.of_client(client).write(path)
        elif path.suffix in FORMATS:
            FORMATS[path.suffix](self.model(client), path)
        else:
            raise SettingsError(f"{path}: a model is a file that ends in {SUFFIX}, {', '.join(FORMATS)}")

    def write(self, path: Path) -> None:
        """Store everything in a file, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        for place in range(len(self.models)):
            front = "" if len(self.models) == 1 else f"{place}/"
            tensors |= {front + name: tensor for name, tensor in self.models[place].state_dict().items()}
        version = FORMAT if self.prior is None else FORMAT_WITH_PRIORS
        about = {
            **codec.UNCHECKED,
            "format": FORMAT_WITH_BLENDS if self.blend else version,
            "net": self.net.name,
            "models": len(self.models),
            "clients": list(self.clients),
            "index": None if self.index is None else self.index.tolist(),
            "weights": None if self.weights is None else self.weights.tolist(),
            "double": self.net.dtype == torch.float64,
            "preparation": self.preparation.table(),
        }
        if self.prior is not None:
            about["prior"] = self.prior.tolist()
        # A copy of what is shared or a view of something larger: safetensors stores whole tensors of their own.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        write_whole(path, codec.with_checksum(save_tensors(tensors, {_ABOUT: json.dumps(about)})))

    @classmethod
    def read(cls, path: Path, net: str | Factory | None = None) -> "ServedModels":
        """What is stored in a file. A net that is no longer where it was can be given."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            codec.check(content)
            length = int.from_bytes(content[:8], "little")
            about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_ABOUT])
            if about["format"] not in (FORMAT, FORMAT_WITH_PRIORS, FORMAT_WITH_BLENDS):
                known = f"{FORMAT} to {FORMAT_WITH_BLENDS}"
                raise DataError(f"{path}: models of format {about['format']}; this version of Coterie reads {known}")
            return cls._made(about, load_tensors(content), net)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: no models of ours, or damaged ({error})") from error
        except CoterieError as error:
            raise DataError(f"{path}: {error}") from error

    @classmethod
    def _made(cls, about: dict[str, Any], tensors: dict[str, Tensor], net: str | Factory | None) -> "ServedModels":
        preparation = Preparation.from_table(about["preparation"])
        dtype = torch.float64 if about["double"] else torch.float32
        task = preparation.kind_of_task
        said = (preparation.shape, len(preparation.labels), "cpu", dtype, task, preparation.vocabulary)
        made = make_net(net or about["net"], *said)
        count = about["models"]
        models = Models.stack([_model(made, tensors, "" if count == 1 else f"{place}/") for place in range(count)])
        index, weights, prior = about["index"], about["weights"], about.get("prior")
        return cls(
            models,
            preparation,
            tuple(about["clients"]),
            None if index is None else torch.tensor(index, dtype=torch.int64),
            None if weights is None else torch.tensor(weights, dtype=torch.float64),
            None if prior is None else torch.tensor(prior, dtype=torch.float64),
            about["format"] == FORMAT_WITH_BLENDS,
        )


def load_model(path: str | Path, client: str = "") -> Predictor:
    """The model in a file that `coterie export` or a site has written, or of one client in a file with several.

    >>> result = coterie.FedAvg(rounds=1).fit(coterie.simulate(clients=3, net="mlp"))
    >>> result.export("0", folder / "mine.safetensors")
    >>> coterie.load_model(folder / "mine.safetensors").predict(coterie.load("digits").test.x[:2]).shape
    (2,)
    """
    return one_of(ServedModels.read(Path(path)), str(path), client)


def one_of(models: ServedModels, where: str, client: str = "") -> Predictor:
    """What a client predicts with; it may be left out where there is only one. `where` is for errors."""
    if not client and len(models.clients) > 1:
        some = ", ".join(models.clients[:5]) + (", ..." if len(models.clients) > 5 else "")
        raise SettingsError(f"{where}: has models of {len(models.clients)} clients; name one with client=: {some}")
    return models.model(client or models.clients[0])


def _own_blocks(weights: Tensor) -> Tensor:
    """Weights [client, model] of models that each client has for itself, as weights of all of them in one row.

    >>> _own_blocks(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.0000, 0.0000]])
    """
    return torch.block_diag(*weights.split(1))


def _model(net: Net, tensors: dict[str, Tensor], front: str) -> Models:
    """The model whose tensors have this in front of their names."""
    layouts = (net.parameters, net.buffers)
    for name, shape in (
        (name, shape) for layout in layouts for name, shape in zip(layout.names, layout.shapes, strict=True)
    ):
        found = tuple(tensors[front + name].shape) if front + name in tensors else "missing"
        if found != shape:
            raise DataError(f"{front}{name} is {found}; in the net {net.name} it has the shape {shape}")
    for name, tensor in net.constants.items():
        if not torch.equal(tensors[front + name], tensor.cpu()):
            raise DataError(
                f"{front}{name} is frozen in the net {net.name}, but it has other numbers now than when it was stored"
            )
    flat = (layout.flatten({name: tensors[front + name] for name in layout.names}) for layout in layouts)
    return Models(net, *(vector.to(net.dtype) for vector in flat))
