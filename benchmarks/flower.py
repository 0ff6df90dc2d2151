"""What a federation of real processes costs: time per round besides training, memory per process, bytes on the wire.

    python benchmarks/flower.py [--sites 3] [--rounds 10] [--net mlp]

Sites, SuperLink and server app run on this machine with encryption and node authentication, as in `coterie deploy
local`. The same run in simulation gives the time that training takes; bytes are counted by the kernel on the loopback
interface. Linux only.
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from pathlib import Path

from coterie.deploy.local import LocalFederation, prepare
from coterie.engines.flower.engine import Waiting
from coterie.runs.experiment import run
from coterie.runs.settings import Settings


def loopback_bytes() -> int:
    """Bytes that have been sent over the loopback interface so far."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def memory(folder: Path) -> dict[str, int]:
    """Most memory of every process that was started below a folder, in MB, by what it is."""
    found: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() not in (process / "environ").read_bytes():
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = (process / "status").read_text()
        except OSError:
            continue
        kinds = {"deploy site": "site", "deploy.superlink": "SuperLink", "flower-superexec": "SuperExec"}
        kind = next((kind for word, kind in kinds.items() if word in command), None)
        kind = kind or ("ServerApp" if "serverapp" in command else None)
        peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
        if kind and peak:
            found[kind] = max(found.get(kind, 0), int(peak.split()[1]) // 1024)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--net", default="mlp")
    arguments = parser.parse_args()
    given = {"data": "digits", "net": arguments.net, "clients": arguments.sites, "rounds": arguments.rounds}
    settings, _ = Settings.of({**given, "workers": 0, "engine": "loop"}, "fedavg")
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(settings, folder / "deployment", Waiting(sites=arguments.sites))
        started = time.perf_counter()
        with LocalFederation(folder / "deployment") as federation:
            ready = time.perf_counter() - started
            before = loopback_bytes()
            done = threading.Event()

            def watch() -> None:
                while not done.wait(0.5):
                    for kind, megabytes in memory(folder).items():
                        peaks[kind] = max(peaks.get(kind, 0), megabytes)

            watcher = threading.Thread(target=watch)
            watcher.start()
            real = federation.run(folder, lambda record: None)
            crossed = loopback_bytes() - before
            done.set()
            watcher.join()
    simulated = run(settings)
    rounds = per_round([record["seconds"] for record in real.rounds])
    training = per_round([record["seconds"] for record in simulated.rounds])
    assert real.summary is not None
    payload = sum(real.summary[f"bytes_{way}"] for way in ("up", "down", "peer", "evaluation"))
    print(f"{arguments.sites} sites, {arguments.rounds} rounds, {real.summary['parameters']:,} parameters")
    print(f"SuperLink started and keys registered, sites on their way: {ready:.1f} s")
    print(f"a round over Flower {rounds:.2f} s, in simulation {training:.2f} s: {rounds - training:.2f} s besides")
    print(f"accuracy {real.summary['accuracy_mean']:.4f}, in simulation {simulated.summary['accuracy_mean']:.4f}")
    print(f"on the wire {crossed / 1e6:.2f} MB, payload {payload / 1e6:.2f} MB: {crossed / payload:.2f}x")
    print("peak memory, MB: " + ", ".join(f"{kind} {megabytes}" for kind, megabytes in sorted(peaks.items())))


def per_round(seconds: list[float]) -> float:
    """The median time of a round after the first."""
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(seconds))


if __name__ == "__main__":
    main()
