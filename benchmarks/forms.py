"""The two forms of the engine beside each other, by net: where does computing many clients at once pay?

    python benchmarks/forms.py [--device cpu]

Twenty clients train for some steps in both forms in turns; printed are milliseconds per step of one client and the
ratio. `_SMALL_NET` of the simulation engine comes from here: it lies where the ratio crosses two, because the loop has
a second core to spread over and the vectorised form stays in one process.
"""

import argparse
import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import coterie
from coterie.clients.programs import train
from coterie.training.local import LocalTraining

NETS = (
    ("logistic", (1, 8, 8)),
    ("mlp", (1, 8, 8)),
    ("cnn", (1, 8, 8)),
    ("mlp", (1, 28, 28)),
    ("cnn", (1, 28, 28)),
    ("lenet5", (1, 28, 28)),
    ("lenet5", (3, 32, 32)),
    ("cnn-16-32", (1, 28, 28)),
)
CLIENTS, STEPS = 20, 20


def milliseconds(fed: coterie.Federation, local: LocalTraining) -> float:
    """Time of a step of one client."""
    started = time.perf_counter()
    fed.run(train, shared=fed.new_model(), local=local)
    return 1000 * (time.perf_counter() - started) / CLIENTS / STEPS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'net':12}{'shape':>10}{'batch':>7}{'work/sample':>13}{'loop ms':>10}{'vectorised ms':>15}{'ratio':>8}")
    for net, shape in NETS:
        for batch in (10, 32):
            x = rng.integers(0, 256, (CLIENTS * 80, *shape), dtype=np.uint8)
            data = coterie.Dataset(x, rng.integers(0, 10, len(x)), labels=tuple(map(str, range(10))))
            local = LocalTraining(steps=STEPS, batch=batch)
            feds = {
                form: coterie.simulate(
                    data, "iid", net, clients=CLIENTS, engine=form, device=arguments.device, workers=0
                )
                for form in ("loop", "vectorised")
            }
            for fed in feds.values():
                milliseconds(fed, local)
            times = {form: [] for form in feds}
            for _ in range(arguments.repeats):
                for form, fed in feds.items():
                    times[form].append(milliseconds(fed, local))
            loop, vectorised = (statistics.median(times[form]) for form in ("loop", "vectorised"))
            size = "x".join(map(str, shape))
            work = feds["loop"].net.work
            print(f"{net:12}{size:>10}{batch:7}{work:13,}{loop:10.3f}{vectorised:15.3f}{loop / vectorised:8.2f}")


if __name__ == "__main__":
    main()
