"""Coterie beside a plain hand-written PyTorch loop that does the same, on 2 cores: FedAvg or IFCA on Fashion-MNIST.

    python benchmarks/plain_loop.py --data-dir DIR [--method ifca] [--rounds 5] [--repeats 3] [--all]

20 clients with 2,000 images each, in four groups by rotation, 1,400 of them to train on: a convolutional net with 16
and 32 channels, batches of 32, two epochs a round. IFCA keeps four models; each client trains the one with the lowest
loss on its training data.

The plain loop is written for speed, as two processes of one thread each: data as float tensors in shared memory, no
logging, no `.item()` inside the loop, evaluation in large batches. It trains the same clients from the same first
models, for as many epochs, and evaluates as often and on as many samples: every client's test and validation data and
the global test set in every round. The loss of IFCA's models on the training data is computed once after every round,
and serves both for what a client is tested with and for what it trains next.

All run in turns in one call; the figures to look at are the ratios. `channels last` is the same plain loop with the
memory format that few people know of; with `--all` there is also `memory kept`, that one with what fewer know of:
settings of glibc's allocator under which it keeps memory that was freed and uses large pages.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, multiprocessing, nn

from coterie import CoterieError, Settings, load
from coterie.clients.clients import new_models
from coterie.data.population import Population
from coterie.nets import make_net
from measure import Measured, machine, measure

PROCESSES = 2
RATE, BATCH, EPOCHS, ROWS = 0.1, 32, 2, 256
MODELS = {"fedavg": 1, "ifca": 4}
WORLD = {"data": "fashion-mnist", "split": "autocfl-input", "rotations": 4, "samples": 2000, "clients": 20}
NET = "cnn-16-32"
Run = tuple[Measured, dict[str, Any]]
KEPT = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={32 << 20}:glibc.malloc.trim_threshold={1 << 30}"
    ":glibc.malloc.hugetlb=1"
}


def net() -> nn.Module:
    """AutoCFL's net for Fashion-MNIST, as anybody would write it down."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


@torch.inference_mode()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Correct predictions."""
    return sum((model(a).argmax(1) == b).sum() for a, b in zip(x.split(ROWS), y.split(ROWS), strict=True))


@torch.inference_mode()
def best(models: list[nn.Module], x: Tensor, y: Tensor) -> int:
    """Which model has the lowest loss."""
    batches = list(zip(x.split(ROWS), y.split(ROWS), strict=True))
    losses = [sum(F.cross_entropy(model(a), b, reduction="sum") for a, b in batches) for model in models]
    return int(torch.stack(losses).argmin())


def work(rank: int, arguments: argparse.Namespace, shards: list, pool: dict, shared: dict, barrier: Any) -> None:
    """One process: train its clients from the shared models, add up what they make of them, evaluate the means."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    own = shards[rank::PROCESSES]
    x, y, world = pool["x"], pool["y"], shared["models"]
    models, trained = [net() for _ in world], net()
    if arguments.channels_last:
        for each in [*models, trained]:
            each.to(memory_format=torch.channels_last)
    copies = [list(model.parameters()) for model in models]
    parameters = list(trained.parameters())

    def choose() -> list[int]:
        with torch.no_grad():
            for values, copy in zip(world, copies, strict=True):
                torch._foreach_copy_(copy, values)
        return [best(models, x[train], y[train]) if len(models) > 1 else 0 for train, _, _ in own]

    choice = choose()
    for _ in range(arguments.rounds):
        sums, weights = shared["sums"][rank], shared["weights"][rank]
        weights.zero_()
        for each in sums:
            torch._foreach_zero_(each)
        for (train, _, _), chosen in zip(own, choice, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(parameters, world[chosen])
            optimizer = torch.optim.SGD(parameters, lr=RATE)
            for _ in range(EPOCHS):
                for index in train[torch.randperm(len(train))].split(BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(trained(x[index]), y[index]).backward()
                    optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(sums[chosen], parameters, alpha=len(train))
            weights[chosen] += len(train)
        barrier.wait()
        if rank == 0:
            for number, total in enumerate(shared["weights"].sum(0).tolist()):
                if total:
                    for place, value in enumerate(world[number]):
                        value.copy_(sum(part[number][place] for part in shared["sums"]) / total)
        barrier.wait()
        choice = choose()
        for number, model in enumerate(models):
            test = slice(rank, None, PROCESSES)
            shared["global"][rank, number] = correct(model, pool["test_x"][test], pool["test_y"][test])
        scores = [
            [correct(models[chosen], x[part], y[part]) / len(part) for part in parts]
            for (_, *parts), chosen in zip(own, choice, strict=True)
        ]
        shared["own"][rank] = torch.tensor(scores).mean(0)
        barrier.wait()


def plain(arguments: argparse.Namespace) -> None:
    """The plain loop: prints its time and its clients' mean accuracy on their own test data as JSON."""
    population = settings(arguments).world.population
    images = torch.from_numpy(population.x).float()
    images = ((images - population.shift[0]) / population.scale[0]).float()
    if arguments.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(population.y)
    test = torch.from_numpy(population.server.test)
    pool = {"x": images, "y": labels, "test_x": images[test], "test_y": labels[test]}
    shards = [tuple(torch.from_numpy(i) for i in (s.train, s.validation, s.test)) for s in population.shards]
    models = first_models(population, MODELS[arguments.method])
    shared = {
        "models": models,
        "sums": [[[torch.zeros_like(p) for p in model] for model in models] for _ in range(PROCESSES)],
        "weights": torch.zeros(PROCESSES, len(models)),
        "global": torch.zeros(PROCESSES, len(models)),
        "own": torch.zeros(PROCESSES, 2),
    }
    for tensor in [*pool.values(), *tensors(shared)]:
        tensor.share_memory_()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)
    started = time.perf_counter()
    processes = [
        context.Process(target=work, args=(rank, arguments, shards, pool, shared, barrier)) for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "accuracy_mean": float(shared["own"][:, 1].mean())}))


def first_models(population: Population, count: int) -> list[list[Tensor]]:
    """The parameters of the models that Coterie starts from."""
    models = new_models(make_net(NET, population.shape, population.classes, "cpu", torch.float32), 0, count)
    return [[value.clone() for value in models[number].state_dict().values()] for number in range(count)]


def tensors(value: Any) -> list[Tensor]:
    """All tensors in dictionaries and lists."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in (value.values() if isinstance(value, dict) else value) for tensor in tensors(item)]


def settings(arguments: argparse.Namespace) -> Settings:
    """What is run."""
    folder = {"data_dir": arguments.data_dir} if arguments.data_dir else {}
    given = WORLD | folder | {"net": NET, "rounds": arguments.rounds, "batch": BATCH, "epochs": EPOCHS, "rate": RATE}
    return Settings.of(given, arguments.method)[0]


def commands(arguments: argparse.Namespace, out: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What is measured: command lines with their environments."""
    given = ["--rounds", str(arguments.rounds)] + (["--data-dir", arguments.data_dir] if arguments.data_dir else [])
    world = [text for name, value in WORLD.items() for text in (f"--{name}", str(value))]
    local = ["--net", NET, "--batch", str(BATCH), "--epochs", str(EPOCHS), "--rate", str(RATE)]
    again = [sys.executable, __file__, "--plain", "--method", arguments.method, *given]
    run = [sys.executable, "-m", "coterie", "run", arguments.method, *world, *local, *given]
    found = {"plain loop": (again, {}), "  channels last": ([*again, "--channels-last"], {})}
    if arguments.all:
        found["  channels last, memory kept"] = ([*again, "--channels-last"], KEPT)
    return found | {"coterie": ([*run, "--out", str(out), "--json"], {})}


def main() -> None:
    """Run all in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", default=os.environ.get("COTERIE_DATA"))
    parser.add_argument("--method", choices=MODELS, default="fedavg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="also with memory kept")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--plain", action="store_true", help="run the plain loop alone, in this process")
    arguments = parser.parse_args()
    if arguments.plain:
        plain(arguments)
        return
    try:
        load("fashion-mnist", arguments.data_dir)
    except CoterieError as error:
        where = "The folder of its files is named by --data-dir or COTERIE_DATA, for make by DATA=."
        raise SystemExit(f"{error}\n{where}") from None
    found: dict[str, list[Run]] = {}
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            for name, (command, environment) in commands(arguments, Path(folder) / str(repeat)).items():
                measured = measure(command, environment)
                found.setdefault(name, []).append((measured, json.loads(measured.output)))
    what = f"{arguments.method}, Fashion-MNIST, 20 clients x 2,000, batch {BATCH}, {EPOCHS} epochs"
    print(f"{what}, {arguments.rounds} rounds; medians of {arguments.repeats} runs in turns")
    print(f"{before} at the beginning, {machine()} at the end")
    print(table(found))


def table(found: dict[str, list[Run]]) -> str:
    """What everything took, and how many times faster it is than the first."""
    lines = [f"{'':30}{'rounds':>16}{'whole run':>16}{'CPU time':>16}{'memory':>9}{'own test':>10}"]
    reference: list[float] = []
    for name, runs in found.items():
        columns = zip(*((result["seconds"], measured.seconds, measured.cpu) for measured, result in runs), strict=True)
        taken = [statistics.median(column) for column in columns]
        reference = reference or taken
        ratios = "".join(f"{own:8.1f} s {first / own:4.2f}x" for own, first in zip(taken, reference, strict=True))
        memory = max(measured.megabytes for measured, _ in runs)
        accuracy = 100 * statistics.mean(result["accuracy_mean"] for _, result in runs)
        lines.append(f"{name:30}{ratios}{memory:6.0f} MB{accuracy:8.1f} %")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
