"""What a site's answers tell a hostile server of its samples, with and without the bounds of `site.toml`.

    python benchmarks/leaks.py [--samples 40] [--rounds 20]

One site with digits and an MLP answers FedAvg's program, over the messages of a real site. The server tries:

- inversion: after one step on one sample the change of a layer is that sample, times the change of its bias;
- imprint: it sends a model whose first layer sorts samples by brightness, so that differences of rows are single
  samples (Fowl et al., "Robbing the Fed", ICLR 2022), and asks for nothing but what the method allows; the best of four
  scales, since a round may be tried again;
- labels: it sends a model of zeros, and reads shares of labels off the change of the last bias;
- membership: it compares how well a model that the site has trained does on the site's samples and on others.

A sample counts as found if it is known to within a hundredth of its length. Labels: the mean error of a share.
Membership: the area under the curve, 0.5 if nothing is told.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import coterie
from coterie import programs
from coterie.clients.clients import CallContext, new_models
from coterie.clients.guard import Limits
from coterie.engines.flower.leaving import Leaving
from coterie.engines.flower.site import PROTOCOL, RemoteSite, Rules
from coterie.nets import codec
from coterie.nets.stacks import Models
from coterie.training.local import LocalTraining

OPEN = Limits(samples=1, batch=1, rounds=10**6, attempts=10**6)
"""What a site without bounds would answer."""


@dataclass
class Site:
    """A site in this process, and what the server of this script must not learn."""

    samples: int
    rounds: int
    limits: Limits
    leaving: Leaving
    pinned: bool

    def __post_init__(self) -> None:
        fed = coterie.simulate("digits", split="iid", clients=1, net="mlp", test_share=0.5, workers=0, device="cpu")
        host = fed._engine._host
        places = host.shards[0].train
        self.own, self.others = (self._data(host, part) for part in (places[: self.samples], host.shards[0].test))
        own = type(host.shards[0])("a", places[: self.samples], places[:0], host.shards[0].test)
        self.net = host.net
        self.method = coterie.FedAvg(rounds=self.rounds)
        rules = Rules(
            *("a", (), Path(tempfile.mkdtemp()), ("coterie.*",)),
            method=self.method if self.pinned else None,
            limits=self.limits,
            leaving=self.leaving,
        )
        self.site = RemoteSite(rules, type(host)(self.net, host.pool, [own], host.common, host.form))
        self.start = new_models(self.net, 0)

    @staticmethod
    def _data(host: object, part: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(part)
        return host.pool.inputs(index).flatten(1), host.pool.y[index]  # type: ignore[attr-defined]

    def trained(self, start: Models, number: int, local: LocalTraining | None = None) -> Models | None:
        """The model that the site sends back; None if it refuses."""
        local = self.method.local.at(number, self.rounds) if local is None else local
        content = {
            "format": PROTOCOL,
            "ask": "call",
            "run": "run",
            "program": programs.train.name,
            "at": asdict(CallContext(number=number)),
            "settings": {"local": local},
            "scales": None,
            "each": {},
            "letters": [],
            "base": None,
            "builds_on": None,
            "announcements": {},
        }
        parts = {"request": codec.dump(content), "shared": codec.dump({"start": start})}
        answer = codec.load(self.site.answer(parts), {self.net.name: self.net})
        return answer["outputs"]["model"][0] if "outputs" in answer else None

    def changes(self, start: Models, trained: Models) -> list[Tensor]:
        """The changes of weights and biases, layer by layer."""
        change = (trained.parameters - start.parameters).double()
        parts = change.split(list(self.net.parameters.sizes))
        return [part.reshape(shape) for part, shape in zip(parts, self.net.parameters.shapes, strict=True)]

    def found(self, guesses: Tensor) -> int:
        """How many of the site's samples are among these guesses."""
        guesses = guesses[guesses.isfinite().all(dim=1)]
        if not len(guesses):
            return 0
        apart = torch.cdist(self.own[0].double(), guesses).amin(dim=1)
        return int((apart < 0.01 * self.own[0].norm(dim=1)).sum())

    def inverted(self) -> int:
        """Samples found by asking for one step on one sample, again and again."""
        one, guesses = LocalTraining(steps=1, batch=1, rate=1.0), []
        for number in range(1, 5 * self.samples):
            trained = self.trained(self.start, number, one)
            if trained is not None:
                weight, bias = self.changes(self.start, trained)[:2]
                guesses.append(weight[bias.abs().argmax()] / bias[bias.abs().argmax()])
        return self.found(torch.stack(guesses)) if guesses else 0

    def imprinted(self, scale: float) -> int:
        """Samples found by one model that is made for it, in one round of the method."""
        hidden, inputs = self.net.parameters.shapes[0]
        brightness = self.others[0].mean(dim=1)
        borders = torch.quantile(brightness, torch.linspace(0, 1, hidden))
        first = torch.full((hidden, inputs), 1.0 / inputs)
        classes = self.net.parameters.shapes[2][0]
        last = scale * torch.linspace(-1, 1, classes)[:, None].expand(classes, hidden)
        tensors = [first, -borders, last, torch.zeros(classes)]
        start = Models(self.net, torch.cat([tensor.flatten() for tensor in tensors]), self.start.buffers)
        trained = self.trained(start, 1)
        if trained is None:
            return 0
        weight, bias = self.changes(start, trained)[:2]
        return self.found((weight[:-1] - weight[1:]) / (bias[:-1] - bias[1:])[:, None])

    def labels(self) -> float:
        """The mean error of the shares of labels that a model of zeros gives away."""
        start = Models(self.net, torch.zeros_like(self.start.parameters), self.start.buffers)
        trained = self.trained(start, 1)
        if trained is None:
            return float("nan")
        local = self.method.local
        steps = local.steps_for(self.samples)
        shares = self.changes(start, trained)[3] / (local.rate * steps) + 0.1
        true = torch.bincount(self.own[1], minlength=10) / self.samples
        return float((shares - true).abs().mean())

    def membership(self) -> float:
        """How well losses under a model that the site has trained tell its samples from others."""
        model = self.start
        for number in range(1, self.rounds + 1):
            trained = self.trained(model, number)
            if trained is None:
                return float("nan")
            model = trained
        weight, bias, last, offset = (
            part.reshape(shape)
            for part, shape in zip(
                model.parameters.split(list(self.net.parameters.sizes)), self.net.parameters.shapes, strict=True
            )
        )
        losses = []
        for x, y in (self.own, self.others):
            outputs = torch.relu(x @ weight.T + bias) @ last.T + offset
            losses.append(torch.nn.functional.cross_entropy(outputs, y, reduction="none"))
        truth = np.repeat([1, 0], [len(one) for one in losses])
        return float(roc_auc_score(truth, -torch.cat(losses).numpy()))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    settings = {
        "no bounds, any method": (OPEN, Leaving(), False),
        "limits, any method": (Limits(rounds=10**6), Leaving(), False),
        "limits, FedAvg pinned": (Limits(), Leaving(), True),
        "the same, clip 1": (Limits(), Leaving(clip=1.0), True),
        "the same, clip 1, noise 0.01": (Limits(), Leaving(clip=1.0, noise=0.01), True),
        "the same, clip 1, noise 0.1": (Limits(), Leaving(clip=1.0, noise=0.1), True),
    }
    print(f"{given.samples} samples, {given.rounds} rounds")
    print(f"{'':30} {'inversion':>10} {'imprint':>8} {'labels':>7} {'membership':>11}")
    for name, (limits, leaving, pinned) in settings.items():

        def site(limits: Limits = limits, leaving: Leaving = leaving, pinned: bool = pinned) -> Site:
            return Site(given.samples, given.rounds, limits, leaving, pinned)

        imprinted = max(map(site().imprinted, (1e-3, 1e-2, 1e-1, 1.0)))
        told = site().inverted(), imprinted, site().labels(), site().membership()
        print(f"{name:30} {told[0]:>10} {told[1]:>8} {told[2]:>7.3f} {told[3]:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
