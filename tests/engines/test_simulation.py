"""The simulation: forms, chunks and workers change no result."""

import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import Clients, Models, program
from coterie.clients.programs import evaluate, label_histogram, predict, train
from coterie.core.errors import CoterieError, ProgramError, SettingsError
from coterie.engines.simulation import Computing, processes
from coterie.engines.simulation.engine import _gpu_is_usable
from coterie.engines.simulation.workers import take
from coterie.training.forms import Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from support.every_method import METHODS
from support.worlds import runs, tensors_of


def images(samples=150, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=samples)
    x = rng.integers(0, 120, (samples, 2, 8, 8)) + 30 * y[:, None, None, None]
    return coterie.Dataset(x.astype(np.uint8), y, labels=tuple(map(str, range(classes)))).held_out(0.2)


def noisy_net(shape, classes):
    """Batch normalisation and dropout: what padding and positions would disturb."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, classes),
    )


def federation(engine="loop", net=noisy_net, **options):
    """Unequal clients: from 6 samples to many."""
    options = {"precision": "float64", "workers": 0, **options}
    return coterie.simulate(images(), "quantity", net, clients=7, min_size=6, alpha=0.7, engine=engine, **options)


def finished(name, engine, augment):
    """A method after three rounds, and what its clients keep."""
    fed = federation("loop" if engine == "loop" else "vectorised", augment=augment, server_samples=20)
    if engine == "recorded":  # as on a GPU, but that a record is just run again
        fed._engine.form = Vectorised(recorder=Recorder(lambda step: step))
    made = coterie.methods.make(name, rounds=3, batch=8, participation=0.8, **METHODS[name])
    return made.fit(fed), fed._engine._memory


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("engine", "augment"), [("vectorised", "none"), ("recorded", "crop-flip")])
def test_forms_agree_with_the_loop_after_three_rounds(name, engine, augment):
    (loop, memory), (other, memory_too) = (finished(name, form, augment) for form in ("loop", engine))
    for one, another in ((memory.values, memory_too.values), (loop.state, other.state)):
        ours, theirs = tensors_of(one), tensors_of(another)
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9, msg=key)
    for one, another in zip(loop.clients, other.clients, strict=True):
        assert one["accuracy"] == another["accuracy"]
        assert one["loss"] == pytest.approx(another["loss"], abs=1e-9)


@program
def what_clients_have(clients: Clients):
    """The models that clients keep, or start from."""
    return {"model": clients.state("model", otherwise=clients.initial())}


def outputs_of_every_program(fed):
    models = fed.new_models(3)
    x = torch.linspace(-1, 1, 5 * 128, dtype=torch.float64).reshape(5, 2, 8, 8)
    local = LocalTraining(batch=5, rate=0.05)
    calls = [
        fed.run(train, shared=fed.new_model(), local=local, pull=0.2),
        fed.run(evaluate, shared=models, on="train"),
        fed.run(evaluate, shared=fed.new_model(), on="validation"),
        fed.run(predict, shared={"models": models[1], "inputs": x}),
        fed.run(label_histogram),
    ]
    found = {}
    for number, replies in enumerate(calls):
        for name, value in replies.outputs.items():
            found[number, name] = value.parameters if isinstance(value, Models) else value.double()
    return found


@pytest.mark.parametrize("options", [{"engine": "vectorised"}, {"engine": "vectorised", "memory": 2e-5}])
def test_every_program_agrees_with_the_loop_in_chunks_of_any_size(options):
    reference = outputs_of_every_program(federation())
    other = outputs_of_every_program(federation(**options))
    assert reference.keys() == other.keys()
    for key, value in reference.items():
        assert (value - other[key]).abs().max() < 1e-9, key


def test_memory_decides_how_many_clients_are_computed_together():
    few, many = (federation("vectorised", memory=memory)._engine for memory in (2e-5, 1.0))
    call = coterie.server.federation.Call(train, np.arange(7))
    assert len(few._chunks(call)) > 1
    assert len(many._chunks(call)) == 1


def test_what_clients_keep_stays_on_the_device_as_far_as_memory_goes():
    engine = federation("vectorised", memory=1e-4)._engine  # a quarter: 25,000 bytes
    elsewhere = torch.device("meta")  # stands for a GPU
    small, large = (torch.zeros(7, numbers, device=elsewhere) for numbers in (100, 2000))
    assert engine._home(small) == elsewhere
    assert engine._home(large).type == "cpu"
    assert engine._home(large.new_zeros(7, 2000, device="cpu")).type == "cpu"
    engine._memory.update(torch.arange(7), {"one": small, "two": small, "more": torch.zeros(7, 400, device=elsewhere)})
    kept = {name: value.device.type for name, value in engine._memory.values.items()}
    assert kept == {"one": "meta", "two": "meta", "more": "meta"}
    assert engine._home(small).type == "cpu"  # now it is full


@program
def hungry(clients: Clients):
    """Runs out of memory for more than two clients."""
    if len(clients) > 2:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return {"sizes": clients.sizes}


def test_when_memory_runs_out_fewer_clients_are_computed_together(caplog):
    fed = federation("vectorised")
    before = fed._engine._memory_limit
    assert fed.run(hungry).sizes.tolist() == fed.sizes.tolist()
    assert fed._engine._memory_limit < before
    assert "memory ran out for 7 clients together: going on with 3" in caplog.text


@program
def insatiable(clients: Clients):
    """Runs out of memory for every client."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_client_for_which_memory_never_suffices_is_an_error():
    with pytest.raises(CoterieError, match="one client alone"):
        federation("vectorised").run(insatiable)


def test_clients_with_most_samples_are_computed_first():
    fed = federation("vectorised", memory=2e-5)
    call = coterie.server.federation.Call(train, np.arange(7))
    order = np.concatenate(fed._engine._chunks(call))
    assert sorted(order) == list(range(7))
    assert (np.diff(fed.sizes.numpy()[order]) <= 0).all()


def test_small_nets_are_vectorised_and_large_ones_are_not():
    assert "vectorised form" in federation("simulation", net="mlp").explain()
    assert "loop form" in federation("simulation", net="resnet9").explain()
    assert "as told" in federation("vectorised").explain()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:77"}, "device=cuda:77"),
        ({"device": "typewriter"}, "device=typewriter"),
        ({"workers": -1}, "workers=-1"),
        ({"memory": 0.0}, "memory=0.0"),
    ],
)
def test_bad_computing_is_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        federation(**options)


def test_a_gpu_that_does_not_work_is_told_of_once(monkeypatch, caplog):
    def broken():
        warnings.warn("CUDA initialization: the driver is too old", stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    _gpu_is_usable.cache_clear()
    try:
        assert {Computing().find_device().type for _ in range(2)} == {"cpu"}
    finally:
        _gpu_is_usable.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "computing on the CPU: CUDA initialization: the driver is too old"
    ]


def test_the_thread_count_of_the_process_is_left_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        coterie.FedAvg(rounds=1).fit(federation())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_every_precision_learns(precision):
    fed = federation(precision=precision, net="cnn")
    result = coterie.FedAvg(rounds=6, batch=8).fit(fed)
    assert result.summary["accuracy_mean"] > 0.5
    assert fed.net.dtype == torch.float32


class TestWorkers:
    """Worker processes: the same bits as in process."""

    @pytest.fixture(params=[True, False], ids=["forked", "fresh"])
    def fed(self, request, monkeypatch):
        monkeypatch.setattr("coterie.engines.simulation.processes.can_fork", lambda: request.param)
        fed = federation(net="cnn", precision="float32", workers=2)
        yield fed
        fed.close()

    def test_workers_change_no_bit(self, fed):
        here = federation(net="cnn", precision="float32")
        for name in ("fedavg", "local", "ifca"):
            made = coterie.methods.make(name, rounds=2, participation=0.7)
            results = [made.fit(one) for one in (fed, here)]
            kept = [one.run(what_clients_have).model.parameters for one in (fed, here)]
            assert torch.equal(*kept)
            accuracies = [[client["loss"] for client in result.clients] for result in results]
            assert accuracies[0] == accuracies[1]

    def test_a_worker_takes_clients_that_it_had_before_anything_else(self):
        clients, had = [7, 3, -1, 5], {3: 20, 5: 20, 7: 10}
        waiting = [0, 1, 2, 3]
        assert [take(waiting, clients, had, 20) for _ in range(3)] == [1, 3, 0]
        assert take(waiting, clients, had, 10) == 2
        assert not waiting
        assert had == {3: 20, 5: 20, 7: 20, -1: 10}

    def test_an_exception_in_a_worker_surfaces_with_the_clients_name(self, fed):
        with pytest.raises(ProgramError, match=r"failed on client \d: CoterieError: start of shape \(1, 2\)"):
            fed.run(train, shared=fed.new_models(2), local=LocalTraining())

    def test_a_worker_that_is_killed_is_an_error_and_not_a_hang(self, fed):
        fed.run(label_histogram)
        fed._engine._workers._processes[0].kill()
        with pytest.raises(CoterieError, match="worker process ended by signal 9"):
            fed.run(label_histogram)

    def test_nothing_is_left_behind(self, fed):
        folder = fed._engine._workers._folder
        processes = fed._engine._workers._processes
        fed.run(label_histogram)
        assert sorted(path.name.split("-")[0] for path in folder.iterdir()) == ["call", "call", "pool", "setup"]
        fed.close()
        assert not folder.exists()
        assert all(process.code == 0 for process in processes)

    def test_workers_end_and_clean_up_when_their_parent_is_killed(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "import coterie, sys, time\n"
            "fed = coterie.simulate('digits', 'iid', 'mlp', clients=4, workers=2)\n"
            "coterie.FedAvg(rounds=1).fit(fed)\n"
            "workers = fed._engine._workers\n"
            "print(workers._folder, *[p.pid for p in workers._processes], flush=True)\n"
            "time.sleep(60)\n"
        )
        parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        folder, *workers = parent.stdout.readline().split()
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for _ in range(100):
            if not Path(folder).exists() and not any(runs(int(pid)) for pid in workers):
                return
            time.sleep(0.1)
        pytest.fail("workers or their files are still there")

    @pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
    def test_samples_of_processes_that_were_all_killed_are_removed_by_the_next_and_those_of_others_stay(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "import coterie, os, signal, sys\n"
            "fed = coterie.simulate('digits', 'iid', 'mlp', clients=4, workers=2)\n"
            "coterie.FedAvg(rounds=1).fit(fed)\n"
            "workers = fed._engine._workers\n"
            "print(workers._folder, *[p.pid for p in workers._processes], flush=True)\n"
            "if len(sys.argv) > 1:\n"
            "    for process in workers._processes: process.kill()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "sys.stdin.readline()\n"
        )
        command, pipe = [sys.executable, str(script)], subprocess.PIPE
        with (
            subprocess.Popen([*command, "killed"], stdout=pipe, text=True) as killed,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as alive,
        ):
            (dead, *workers), (living, *_) = (one.stdout.readline().split() for one in (killed, alive))
            dead, living = Path(dead), Path(living)
            killed.wait()
            while any(runs(int(pid)) for pid in workers):
                time.sleep(0.1)
            assert (living / "pool").is_file()
            fed = federation(net="cnn", precision="float32", workers=2)
            fed.run(label_histogram)
            own = fed._engine._workers._folder
            assert not dead.exists()
            assert (living / "pool").is_file()
            assert (own / "pool").is_file()
            fed.close()
            alive.communicate("end\n")
        assert not living.exists()
        assert not own.exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
    def test_forks_work_after_their_parent_has_computed_with_many_threads(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "import os, torch, coterie\n"
            "from coterie.engines.simulation import processes\n"
            "def threads(): return len(os.listdir('/proc/self/task'))\n"
            "torch.set_num_threads(4)\n"
            "layer, x = torch.nn.Conv2d(8, 8, 5), torch.rand(64, 8, 32, 32)\n"
            "layer(x).square().sum().backward()\n"
            "(torch.rand(500, 500) @ torch.rand(500, 500)).sum()\n"
            "many, forks = threads() > 3, processes.can_fork()\n"
            "fed = coterie.simulate('digits', 'iid', 'cnn', clients=4, workers=2)\n"
            "print('once')\n"
            "accuracy = coterie.FedAvg(rounds=1).fit(fed).summary['accuracy_mean']\n"
            "print(many, forks, accuracy > 0.2, threads() > 3)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.split() == ["once", "True", "True", "True", "True"]

    def test_nothing_is_forked_while_another_threadruns(self):
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        assert not processes.can_fork()
        over.set()
        thread.join()

    @pytest.mark.parametrize("forked", [True, False])
    def test_what_a_program_prints_is_no_answer(self, forked, tmp_path):
        (tmp_path / "talk.py").write_text(
            "import coterie\n"
            "@coterie.program\n"
            "def talk(clients):\n"
            "    print('a word')\n"
            "    return {'sizes': clients.sizes}\n"
        )
        script = tmp_path / "script.py"
        script.write_text(
            "import coterie\n"
            "from coterie.engines.simulation import processes\n"
            "from talk import talk\n"
            f"processes.can_fork = lambda: {forked}\n"
            "print('first', end=' ')\n"
            "fed = coterie.simulate('digits', 'iid', 'mlp', clients=4, workers=2)\n"
            "print(fed.run(talk).sizes.tolist() == fed.sizes.tolist())\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == "first True\n"
        assert set(done.stderr.splitlines()) == {"a word"}


def test_a_script_without_a_main_guard_can_use_workers_and_its_own_programs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import coterie, torch\n"
        "@coterie.program\n"
        "def own(clients):\n"
        "    return {'sizes': clients.sizes}\n"
        "fed = coterie.simulate('digits', 'iid', 'mlp', clients=4, workers=2)\n"
        "rounds = coterie.FedAvg(rounds=1).fit(fed).summary['rounds']\n"
        "print(rounds, fed.run(own).sizes.tolist() == fed.sizes.tolist())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["1", "True"]


def test_workers_start_only_if_there_is_enough_to_do():
    small = Computing()
    assert federation("simulation", net="mlp", workers=small.workers)._engine._workers is None


@pytest.mark.slow
def test_a_thousand_clients_of_lenet_run_in_four_gigabytes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import coterie, numpy as np, resource\n"
        "rng = np.random.default_rng(0)\n"
        "x = rng.integers(0, 256, (20000, 3, 32, 32), dtype=np.uint8)\n"
        "data = coterie.Dataset(x, np.arange(20000) % 10)\n"
        "fed = coterie.simulate(data, 'iid', 'lenet5', clients=1000, engine='vectorised', workers=0)\n"
        "coterie.FedAvg(rounds=1, epochs=1).fit(fed)\n"
        "coterie.Local(rounds=1, epochs=1).fit(fed)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=900, check=True)
    assert int(done.stdout) / 1e6 < 4


# Ids as inputs


class Bag(nn.Module):
    """The mean of what stands for each id, and a linear layer."""

    def __init__(self, classes, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.embedding(x).mean(1))


def bag(shape, classes, vocabulary):
    return Bag(classes, vocabulary)


def test_ids_are_learned_from_alike_in_all_forms_and_workers():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = np.where(rng.random((120, 6)) < 0.5, y[:, None] * 2, rng.integers(0, 11, (120, 6)))
    data = coterie.Dataset(x, y, kind="tokens", vocabulary=12)
    results = []
    for options in ({"engine": "loop", "workers": 0}, {"engine": "vectorised", "workers": 0}, {"workers": 2}):
        fed = coterie.simulate(data, "iid", bag, clients=4, precision="float64", **options)
        try:
            results.append(coterie.FedAvg(rounds=8, batch=8, rate=1.0).fit(fed))
        finally:
            fed.close()
    for result in results:
        assert result.summary["accuracy_mean"] > 0.8
        assert result.summary["loss_mean"] == pytest.approx(results[0].summary["loss_mean"], rel=1e-9)
