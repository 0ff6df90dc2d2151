"""Coterie beside plain PyTorch loops on a GPU: FedAvg on CIFAR-10, whole rounds.

    python benchmarks/gpu.py --data-dir DIR [--only small large runs] [--rounds 5] [--precision tf32] [--out FILE]

A round samples the cohort, trains it, takes the mean and evaluates the model on every client's test and validation data
and on the global test set. The `loop` is eager PyTorch written for speed: data on the GPU before it starts, evaluation
in large batches, no logging, no `.item()`. The `graph loop` is the same with one CUDA graph per step. All three train
the same clients from the same first model, and run in one process, in turns, a round of each; the figures to look at
are the ratios. They compute in the same precision, but that the loops stay with tf32 where Coterie has bf16. Times are
medians of all rounds but the first; operations are those of training alone, over the time of whole rounds, beside the
rate of one large product of matrices in bf16.
"""

import argparse
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
from torch.utils.flop_counter import FlopCounterMode

import coterie
from coterie.data.division import Division
from coterie.data.population import Population, populate
from coterie.data.splits import split_rules
from coterie.engines.simulation import Computing, Simulation
from coterie.runs.comparison import compare
from coterie.runs.settings import Settings
from coterie.server.federation import Federation
from coterie.server.scoring import Scoring
from drawing import store, stored
from measure import Clock


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
    "resnet18": Workload("ResNet-18, 10 clients, batch 64", "resnet18", 10, 64, 2.5),
    "vgg19": Workload("VGG-19, 10 clients, batch 64", "vgg19", 10, 64, 2.5),
}


GROUPS = {
    "small": ("lenet", "unequal", "cfic", "cnn"),
    "large": ("resnet9", "resnet18", "vgg19"),
    "runs": ("many-seeds", "many-rounds", "study"),
}
"""What can be asked for by one name, so that a call takes only some minutes."""


@dataclass
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
    samples: float = 0.0
    """How many a second are trained, over whole rounds."""
    operations: float = 0.0
    """How many a second that makes, of training alone."""


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


@dataclass
class Watch:
    """Seconds and GPU memory of one way of computing, while others take their turns in between."""

    seconds: list[float] = field(default_factory=list)
    own: int = 0
    """Bytes that it holds between its turns."""
    peak: int = 0
    _begun: float = 0.0
    _others: int = 0

    def start(self) -> None:
        """Its turn begins."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._others = torch.cuda.memory_allocated() - self.own
        self._begun = time.perf_counter()

    def stop(self) -> None:
        """Its turn is over."""
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._begun)
        self.own = torch.cuda.memory_allocated() - self._others
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() - self._others)

    def figures(self, accuracy: float) -> Figures:
        """What it took."""
        return Figures(self.seconds[0], statistics.median(self.seconds[1:]), self.peak / 1e9, 100 * accuracy)


class Turns:
    """Follows a run of Coterie, and lets each of the loops do a round after each of its rounds."""

    def __init__(self, population: Population, model: Callable[[], nn.Module], work: Workload) -> None:
        self.watches = {name: Watch() for name in ("coterie", "graph loop", "loop")}
        self.accuracy = dict.fromkeys(self.watches, 0.0)
        self._make = {name: (lambda graphs=name != "loop": Plain(population, model(), work, graphs)) for name in WAYS}
        self._made: dict[str, Plain] = {}

    def round_done(self, *_: Any) -> None:
        """A round of Coterie is done, and evaluated on the host."""
        self.watches["coterie"].stop()
        for name, make in self._make.items():
            watch = self.watches[name]
            watch.start()
            if name not in self._made:
                self._made[name] = make()
            right = self._made[name].round()
            watch.stop()
            self.accuracy[name] = float(right)
        self.watches["coterie"].start()

    def run_done(self, *_: Any) -> None:
        """All rounds are done."""


WAYS = ("graph loop", "loop")


def set_precision(precision: str) -> None:
    """The plain loops' precision; Coterie sets its own."""
    quick = precision in ("tf32", "bf16")
    torch.set_float32_matmul_precision("high" if quick else "highest")
    torch.backends.cudnn.allow_tf32 = quick


def operations(module: nn.Module, x: Tensor) -> float:
    """Operations of a training step for each sample."""
    with FlopCounterMode(display=False) as counter:
        module.cuda()(x.cuda()).sum().backward()
    return counter.get_total_flops() / len(x)


def product_rate(size: int = 8192, repeats: int = 50) -> float:
    """Operations a second of a product of two large matrices in bf16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        a @ b
    end.record()
    end.synchronize()
    return 2 * size**3 * repeats / (start.elapsed_time(end) / 1e3)


def compared(data: coterie.Dataset, work: Workload, rounds: int, precision: str, engine: str) -> dict[str, Figures]:
    """The three ways, a round of each in turns."""
    population = populate(data, split_rules.make(work.split, clients=work.clients, **work.options), Division())
    computing = Computing(precision=precision, device="cuda", engine=engine)
    fed = Federation(Simulation(population, work.net, computing))
    print(work.title, "|", fed.explain(), flush=True)
    set_precision(precision)
    turns = Turns(population, fed.new_model().module, work)
    settings = {"epochs": work.epochs, "batch": work.batch, "rate": work.rate, "participation": work.share}
    turns.watches["coterie"].start()
    result = coterie.FedAvg(rounds=rounds, **settings).fit(fed, observers=[turns])
    turns.accuracy["coterie"] = result.summary["global_accuracy_mean"]
    found = {name: watch.figures(turns.accuracy[name]) for name, watch in turns.watches.items()}
    samples = work.epochs * work.share * sum(len(shard.train) for shard in population.shards)
    each = operations(fed.new_model().module, torch.rand(work.batch, *population.x.shape[1:]))
    for name, figures in found.items():
        figures.samples = samples / figures.round
        figures.operations = each * figures.samples
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


def study(data_dir: str, precision: str, rounds: int = 20) -> dict[str, float]:
    """Seconds of a study of five methods with five seeds at once: LeNet-5, 20 clients, batch 10."""
    given = {"data": "cifar10", "data_dir": data_dir, "split": "dirichlet", "clients": 20, "net": "lenet5", "batch": 10}
    given |= {"rounds": rounds, "epochs": 1, "precision": precision, "device": "cuda", "split_seed": 0, "limit": 10_000}
    names = ("fedavg", "ifca", "cfl", "fl-hc", "autocfl")
    started, clock = time.perf_counter(), Clock()
    compare([Settings.of(given, name)[0] for name in names], 5, watch=lambda *_: [clock])
    ends = sorted(clock.times)
    later = ends[-1] - ends[len(ends) // 2]
    runs = 5 * len(names)
    return {
        "seconds": time.perf_counter() - started,
        "milliseconds of a run and round": 1e3 * later / (runs * rounds / 2),
        "seconds of 150 runs with 100 rounds": later / (runs * rounds / 2) * 150 * 100,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--only", nargs="*", default=list(GROUPS), help="workloads, or small, large, runs")
    parser.add_argument("--rounds", type=int, default=5, help="of all three ways; the first is not in the median")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--engine", default="simulation")
    parser.add_argument("--out", type=Path, help="where results are stored as they come, beside those of before")
    arguments = parser.parse_args()
    data = coterie.load("cifar10", arguments.data_dir)
    found = stored([arguments.out] if arguments.out else [])
    for name in dict.fromkeys(name for given in arguments.only for name in GROUPS.get(given, (given,))):
        if name == "many-rounds":
            found[name] = many_rounds(data, arguments.precision)
            print("1,500 rounds:", found[name], flush=True)
        elif name == "many-seeds":
            found[name] = many_seeds(arguments.data_dir, arguments.precision)
            print("Five seeds at once:", found[name], flush=True)
        elif name == "study":
            found[name] = study(arguments.data_dir, arguments.precision)
            print("25 runs at once:", found[name], flush=True)
        else:
            work = WORKLOADS[name]
            figures = compared(data, work, arguments.rounds, arguments.precision, arguments.engine)
            found[name] = {way: vars(value) for way, value in figures.items()} | {"rounds": arguments.rounds}
        store(arguments.out, found)
        torch.cuda.empty_cache()
    print(f"\nCIFAR-10, {arguments.precision}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    head = ("workload", "loop, s a round", "coterie, s a round", "over the loop", "target", "over the graph loop")
    head += ("global test, % (loop, graph loop)", "rounds", "GPU memory, GB (loop)", "samples a second")
    head += ("TFLOP/s (share of a product in bf16)", "first round, s")
    fastest = product_rate()
    print(f"A product of matrices in bf16: {fastest / 1e12:.0f} TFLOP/s")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, ways in found.items():
        if name in WORKLOADS:
            loop, graphs, ours = (Figures(**ways[way]) for way in ("loop", "graph loop", "coterie"))
            cells = [WORKLOADS[name].title, f"{loop.round:.3f}", f"{ours.round:.4f}", f"{loop.round / ours.round:.1f}x"]
            cells += [f"{WORKLOADS[name].target:g}x", f"{graphs.round / ours.round:.1f}x"]
            cells += [f"{ours.accuracy:.1f} ({loop.accuracy:.1f}, {graphs.accuracy:.1f})", str(ways["rounds"])]
            cells += [f"{ours.gigabytes:.1f} ({loop.gigabytes:.1f})", f"{ours.samples:,.0f}"]
            cells += [f"{ours.operations / 1e12:.0f} ({100 * ours.operations / fastest:.0f} %)"]
            print(f"| {' | '.join(cells)} | {ours.first:.1f} |")


if __name__ == "__main__":
    main()
