"""Coterie beside a plain hand-written PyTorch loop that does the same: FedAvg on Fashion-MNIST, on 2 cores.

    python benchmarks/plain_loop.py --data-dir DIR [--rounds 5] [--repeats 3]

The plain loop is written for speed, as two processes of one thread each: data as float tensors in shared memory, no
logging, no `.item()` inside the loop, evaluation in large batches. It trains the same clients, for as many epochs, and
evaluates as often and on as many samples: every client's test and validation data and the global test set in every
round. Both run in turns in one call; the figure to look at is the ratio. `channels last` is the same plain loop with
the memory format that few people know of.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, multiprocessing, nn

from coterie import CoterieError, Settings, load
from measure import Measured, measure

PROCESSES = 2
RATE, BATCH, EPOCHS = 0.1, 32, 2


def options(arguments: argparse.Namespace) -> list[str]:
    """The command line of the same run with Coterie."""
    data = ["--data", "fashion-mnist", "--split", "dirichlet", "--alpha", "0.5", "--clients", "20"]
    if arguments.data_dir:
        data += ["--data-dir", arguments.data_dir]
    return ["run", "fedavg", *data, "--net", "cnn-16-32", "--rounds", str(arguments.rounds), "--batch", str(BATCH)]


def net() -> nn.Module:
    """AutoCFL's net for Fashion-MNIST, as anybody would write it down."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Correct predictions."""
    with torch.no_grad():
        return sum((model(a).argmax(1) == b).sum() for a, b in zip(x.split(256), y.split(256), strict=True))


def work(rank: int, arguments: argparse.Namespace, shards: list, pool: dict, shared: dict, barrier) -> None:
    """One process: train its clients from the shared model, add up their models, evaluate the mean."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = net()
    if arguments.channels_last:
        model = model.to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    x, y = pool["x"], pool["y"]
    total = sum(len(train) for train, _, _ in shards)
    for _ in range(arguments.rounds):
        sums = [torch.zeros_like(p) for p in parameters]
        for train, _, _ in shards[rank::PROCESSES]:
            with torch.no_grad():
                for p, value in zip(parameters, shared["model"], strict=True):
                    p.copy_(value)
            optimizer = torch.optim.SGD(parameters, lr=RATE)
            for _ in range(EPOCHS):
                for index in train[torch.randperm(len(train))].split(BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[index]), y[index]).backward()
                    optimizer.step()
            with torch.no_grad():
                for s, p in zip(sums, parameters, strict=True):
                    s.add_(p, alpha=len(train) / total)
        for mine, s in zip(shared["sums"][rank], sums, strict=True):
            mine.copy_(s)
        barrier.wait()
        with torch.no_grad():
            for place, p in enumerate(parameters):
                p.copy_(sum(shared["sums"][process][place] for process in range(PROCESSES)))
                if rank == 0:
                    shared["model"][place].copy_(p)
        correct = evaluate(model, pool["test_x"][rank::PROCESSES], pool["test_y"][rank::PROCESSES])
        own = [evaluate(model, x[i], y[i]) / len(i) for _, *parts in shards[rank::PROCESSES] for i in parts]
        shared["accuracy"][rank] = correct / len(pool["test_y"])
        shared["own"][rank] = torch.stack(own).mean()
        barrier.wait()


def plain(arguments: argparse.Namespace) -> None:
    """The plain loop: prints its training time and its global accuracy as JSON."""
    given = {"data": "fashion-mnist", "split": "dirichlet", "alpha": 0.5, "clients": 20, "net": "cnn-16-32"}
    if arguments.data_dir:
        given["data_dir"] = arguments.data_dir
    population = Settings.of(given, "fedavg")[0].world.population
    images = (torch.from_numpy(population.x).float() - population.shift[0]) / population.scale[0]
    images = images.float()
    if arguments.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(population.y)
    test = torch.from_numpy(population.server.test)
    pool = {"x": images, "y": labels, "test_x": images[test], "test_y": labels[test]}
    shards = [tuple(torch.from_numpy(i) for i in (s.train, s.validation, s.test)) for s in population.shards]
    shards.sort(key=lambda shard: -len(shard[0]))
    model = [p.detach().clone() for p in net().parameters()]
    sums = [[torch.zeros_like(p) for p in model] for _ in range(PROCESSES)]
    shared = {"model": model, "sums": sums, "accuracy": torch.zeros(PROCESSES), "own": torch.zeros(PROCESSES)}
    for tensor in [*pool.values(), *model, *(p for s in sums for p in s), shared["accuracy"], shared["own"]]:
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
    print(json.dumps({"seconds": seconds, "global_accuracy_mean": float(shared["accuracy"].sum())}))


def main() -> None:
    """Run both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", default=os.environ.get("COTERIE_DATA"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--plain", action="store_true", help="run the plain loop alone, in this process")
    arguments = parser.parse_args()
    if arguments.plain:
        plain(arguments)
        return
    try:
        load("fashion-mnist", arguments.data_dir)
    except CoterieError as error:
        raise SystemExit(str(error)) from None
    again = [sys.executable, __file__, "--plain", "--rounds", str(arguments.rounds)]
    again += ["--data-dir", arguments.data_dir] if arguments.data_dir else []
    commands = {"plain loop": again, "plain loop, channels last": [*again, "--channels-last"], "coterie": []}
    found: dict[str, list[tuple[Measured, dict]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            out = Path(folder) / str(repeat)
            commands["coterie"] = [
                sys.executable, "-m", "coterie", *options(arguments), "--out", str(out), "--json"
            ]  # fmt: skip
            for name, command in commands.items():
                measured = measure(command)
                found[name].append((measured, json.loads(measured.output)))
    print(
        f"FedAvg, Fashion-MNIST, 20 clients, {arguments.rounds} rounds, batch {BATCH}, {EPOCHS} epochs; median of runs"
    )
    print(f"{'':28}{'rounds s':>10}{'whole s':>10}{'memory MB':>11}{'global test %':>15}{'over plain':>12}")
    reference = statistics.median(result["seconds"] for _, result in found["plain loop"])
    for name, runs in found.items():
        seconds = statistics.median(result["seconds"] for _, result in runs)
        whole = statistics.median(measured.seconds for measured, _ in runs)
        memory = max(measured.megabytes for measured, _ in runs)
        accuracy = 100 * statistics.mean(result["global_accuracy_mean"] for _, result in runs)
        print(f"{name:28}{seconds:10.1f}{whole:10.1f}{memory:11.0f}{accuracy:15.1f}{reference / seconds:11.2f}x")


if __name__ == "__main__":
    main()
