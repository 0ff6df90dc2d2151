"""Coterie beside plain PyTorch loops on a GPU: FedAvg on CIFAR-10, whole rounds.

    python benchmarks/gpu.py --data-dir DIR [--only NAME ...] [--rounds 3] [--precision tf32] [--out FILE]

A round samples the cohort, trains it, takes the mean and evaluates the model on every client's test and validation data
and on the global test set. The `loop` is eager PyTorch written for speed: data on the GPU before it starts, evaluation
in large batches, no logging, no `.item()`. The `graph loop` is the same with one CUDA graph per step. All three train
the same clients from the same first model in the same precision, and run in one process, one after another; the figures
to look at are the ratios.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import coterie
from coterie.data.population import Division, Population, populate
from coterie.data.splits import split_rules
from coterie.engines.simulation import Computing, Simulation
from coterie.federation import Federation
from coterie.lab import compare
from coterie.scoring import Scoring
from coterie.settings import Settings


def cnn_32_64(shape: tuple[int, ...], classes: int) -> nn.Module:
    """5x5 convolutions of 32 and 64 channels and a hidden layer of 512."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """What is run, and how much faster than the loop it should be."""

    title: str
    net: Any
    clients: int
    batch: int
    target: float
    split: str = "iid"
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    share: float = 1.0
    rate: float = 0.05


WORKLOADS = {
    "lenet": Workload("LeNet-5, 100 clients, batch 10", "lenet5", 100, 10, 100),
    "unequal": Workload(
        "LeNet-5, 100 clients, Dirichlet(0.1), batch 10", "lenet5", 100, 10, 30, "dirichlet", {"alpha": 0.1}
    ),
    "cfic": Workload(
        "CFIC's CNN 64/64, 30 of 100 clients, batch 64, 5 epochs", "cfic-cifar", 100, 64, 8, epochs=5, share=0.3
    ),
    "cnn": Workload("CNN 32/64, 20 clients, batch 10", cnn_32_64, 20, 10, 25),
    "resnet9": Workload("ResNet-9, 10 clients, batch 64", "resnet9", 10, 64, 2.5),
    "vgg19": Workload("VGG-19, 10 clients, batch 64", "vgg19", 10, 64, 2.5),
}


@dataclass(frozen=True)
class Figures:
    """What a way of computing took."""

    first: float
    """Seconds of the first round, with everything that is set up in it."""
    round: float
    """Seconds of a later round, the median."""
    gigabytes: float
    """Peak of the GPU memory."""
    accuracy: float
    """On the global test set, in percent."""


class Plain:
    """The hand-written loop."""

    def __init__(self, population: Population, module: nn.Module, work: Workload, graphs: bool) -> None:
        self.work, self.graphs, self.model = work, graphs, module.cuda()
        scale = (
            torch.from_numpy(values).float().cuda()[:, None, None] for values in (population.shift, population.scale)
        )
        shift, scale = scale
        self.x = torch.cat(
            [(part.cuda().float() - shift) / scale for part in torch.from_numpy(population.x).split(5000)]
        )
        self.y = torch.from_numpy(population.y).cuda()
        self.train = [torch.from_numpy(shard.train).cuda() for shard in population.shards]
        tested = [torch.from_numpy(part) for shard in population.shards for part in (shard.test, shard.validation)]
        self.owner = torch.arange(len(tested)).repeat_interleave(torch.tensor([len(part) for part in tested])).cuda()
        self.tested = torch.cat([*tested, torch.from_numpy(population.server.test)]).cuda()
        self.parameters = list(self.model.parameters())
        self.state = [*self.parameters, *(b for b in self.model.buffers() if b.is_floating_point())]
        self.world = [value.detach().clone() for value in self.state]
        self.index = torch.zeros(work.batch, dtype=torch.int64, device="cuda")
        self.graph = self._captured() if graphs else None

    def step(self, index: Tensor) -> None:
        """One step of SGD."""
        loss = F.cross_entropy(self.model(self.x[index]), self.y[index])
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, gradients, alpha=-self.work.rate)

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self.model.train()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(self.index)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(self.index)
        return graph

    def round(self) -> Tensor:
        """Train a cohort and evaluate the mean: accuracy per client and part, and on the global test set."""
        work = self.work
        cohort = torch.randperm(work.clients)[: round(work.share * work.clients)].tolist()
        total = sum(len(self.train[client]) for client in cohort)
        sums = [torch.zeros_like(value) for value in self.state]
        self.model.train()
        for client in cohort:
            own = self.train[client]
            with torch.no_grad():
                torch._foreach_copy_(self.state, self.world)
            optimizer = torch.optim.SGD(self.parameters, lr=work.rate)
            for _ in range(work.epochs):
                for index in own[torch.randperm(len(own), device="cuda")].split(work.batch):
                    if self.graph is not None and len(index) == work.batch:
                        self.index.copy_(index)
                        self.graph.replay()
                    else:
                        optimizer.zero_grad()
                        F.cross_entropy(self.model(self.x[index]), self.y[index]).backward()
                        optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(sums, self.state, alpha=len(own) / total)
        with torch.no_grad():
            torch._foreach_copy_(self.world, sums)
            torch._foreach_copy_(self.state, self.world)
            self.model.eval()
            right = torch.cat([(self.model(self.x[i]).argmax(1) == self.y[i]) for i in self.tested.split(4096)]).float()
        self.per_client = torch.zeros(2 * work.clients, device="cuda").index_add_(
            0, self.owner, right[: len(self.owner)]
        )
        return right[len(self.owner) :].mean()


def measured(rounds: int, begin: Callable[[], Callable[[], Any]]) -> tuple[list[float], float, Any]:
    """Seconds of each round, the peak of the GPU memory, and what the last round gave."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, seconds, result = torch.cuda.memory_allocated(), [], None
    started = time.perf_counter()
    run = begin()
    for _ in range(rounds):
        result = run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    return seconds, (torch.cuda.max_memory_allocated() - before) / 1e9, result


def plain(population: Population, module: nn.Module, work: Workload, rounds: int, graphs: bool) -> Figures:
    """The loop, or the loop of graphs."""
    seconds, memory, accuracy = measured(rounds, lambda: Plain(population, module, work, graphs).round)
    return Figures(seconds[0], statistics.median(seconds[1:]), memory, 100 * float(accuracy))


class Clock:
    """Notes when each round of a run is done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round_done(self, *_: Any) -> None:
        """A round is done, and evaluated on the host: the GPU has nothing left to do."""
        self.times.append(time.perf_counter())

    def run_done(self, *_: Any) -> None:
        """All rounds are done."""


def with_coterie(fed: Federation, work: Workload, rounds: int) -> Figures:
    """The same with Coterie."""
    settings = {"epochs": work.epochs, "batch": work.batch, "rate": work.rate, "participation": work.share}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, started = torch.cuda.memory_allocated(), time.perf_counter()
    coterie.FedAvg(rounds=1, **settings).fit(fed)
    first, seconds = time.perf_counter() - started, []
    for _ in range(3):
        clock = Clock()
        result = coterie.FedAvg(rounds=rounds, **settings).fit(fed, observers=[clock])
        seconds += [after - earlier for earlier, after in pairwise(clock.times)]
    memory = (torch.cuda.max_memory_allocated() - before) / 1e9
    return Figures(first, statistics.median(seconds), memory, 100 * result.summary["global_accuracy_mean"])


def set_precision(precision: str) -> None:
    """The plain loops' precision; Coterie sets its own."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def compared(data: coterie.Dataset, work: Workload, rounds: int, precision: str, engine: str) -> dict[str, Figures]:
    """The three ways, one after another."""
    population = populate(data, split_rules.make(work.split, clients=work.clients, **work.options), Division())
    computing = Computing(precision=precision, device="cuda", engine=engine)
    fed = Federation(Simulation(population, work.net, computing))
    print(work.title, "|", fed.explain(), flush=True)
    found = {"coterie": with_coterie(fed, work, rounds)}
    set_precision(precision)
    for name, graphs in (("graph loop", True), ("loop", False)):
        found[name] = plain(population, fed.new_model().module(), work, rounds, graphs)
    for name, figures in found.items():
        print(f"  {name:12}", *(f"{key} {value:.4g}" for key, value in vars(figures).items()), flush=True)
    fed.close()
    return found


def many_rounds(data: coterie.Dataset, precision: str, rounds: int = 1500) -> dict[str, float]:
    """1,000 users with 50 images each, cohorts of 50, the global test set every 10 rounds."""
    division = Division(validation=0.0, test_share=0.0)
    population = populate(data, split_rules.make("iid", clients=1000), division)
    fed = Federation(Simulation(population, cnn_32_64, Computing(precision=precision, device="cuda")))
    method = coterie.FedAvg(rounds=rounds, epochs=1, batch=10, rate=0.1, participation=0.05)
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    result = coterie.fit(method, fed, scoring=Scoring(evaluate_every=10))
    torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - started,
        "accuracy": 100 * result.summary["global_accuracy_mean"],
        "gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }


def many_seeds(data_dir: str, precision: str, rounds: int = 6) -> dict[str, float]:
    """Seconds of a round of one seed, and of five seeds at once: LeNet-5, 20 clients, batch 10."""
    given = {"data": "cifar10", "data_dir": data_dir, "split": "iid", "clients": 20, "net": "lenet5", "batch": 10}
    given |= {"rounds": rounds, "epochs": 1, "precision": precision, "device": "cuda"}
    settings, _ = Settings.of(given, "fedavg")
    seconds = {}
    for seeds in (1, 5):
        clocks = [Clock() for _ in range(seeds)]
        entries = compare([settings], seeds, watch=lambda _, seed, clocks=clocks: [clocks[seed]])
        # Runs that are computed together finish a round at about the same time; the last one counts.
        ends = [max(times) for times in zip(*(clock.times for clock in clocks), strict=True)]
        seconds[f"{seeds} seeds"] = statistics.median(after - before for before, after in pairwise(ends))
        accuracy = [100 * result.summary["global_accuracy_mean"] for _, result in entries]
        print(f"{seeds} seeds: {seconds[f'{seeds} seeds']:.4f} s a round, global test {accuracy}", flush=True)
    return seconds | {"ratio": seconds["5 seeds"] / seconds["1 seeds"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--only", nargs="*", default=[*WORKLOADS, "many-seeds", "many-rounds"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--engine", default="simulation")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    data = coterie.load("cifar10", arguments.data_dir)
    found: dict[str, Any] = {}
    for name in arguments.only:
        if name == "many-rounds":
            found[name] = many_rounds(data, arguments.precision)
            print("1,500 rounds:", found[name], flush=True)
        elif name == "many-seeds":
            found[name] = many_seeds(arguments.data_dir, arguments.precision)
            print("Five seeds at once:", found[name], flush=True)
        else:
            work = WORKLOADS[name]
            figures = compared(data, work, arguments.rounds, arguments.precision, arguments.engine)
            found[name] = {way: vars(value) for way, value in figures.items()}
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1))
        torch.cuda.empty_cache()
    print(f"\nCIFAR-10, {arguments.precision}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    head = ("workload", "loop, s a round", "coterie, s a round", "over the loop", "target", "over the graph loop")
    head += ("global test, % (loop)", "GPU memory, GB (loop)", "first round, s")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, ways in found.items():
        if name in WORKLOADS:
            loop, graphs, ours = (Figures(**ways[way]) for way in ("loop", "graph loop", "coterie"))
            cells = [WORKLOADS[name].title, f"{loop.round:.3f}", f"{ours.round:.4f}", f"{loop.round / ours.round:.1f}x"]
            cells += [f"{WORKLOADS[name].target:g}x", f"{graphs.round / ours.round:.1f}x"]
            cells += [f"{ours.accuracy:.1f} ({loop.accuracy:.1f})", f"{ours.gigabytes:.1f} ({loop.gigabytes:.1f})"]
            print(f"| {' | '.join(cells)} | {ours.first:.1f} |")


if __name__ == "__main__":
    main()
