"""The way of five hospitals: from their tables to a method, to real sites, to a model of its own at each of them."""

import csv
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from coterie.deploy.processes import free_port
from coterie.deploy.site import SiteSettings
from coterie.runs.folder import StoredRun
from coterie.runs.settings import Settings

HOSPITALS = ("aachen", "bonn", "celle", "dresden", "essen")
SWAPPED = "dresden"
"""The hospital that writes benign where the others write malignant."""


@pytest.fixture
def hospitals(tmp_path):
    """One CSV file per hospital: measurements of tumours of which some are missing, a ward, a truth value."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    data, rng = load_breast_cancer(), np.random.default_rng(0)
    names = [str(name).replace(" ", "_") for name in data.feature_names[:10]]
    for hospital, rows in zip(HOSPITALS, np.array_split(rng.permutation(len(data.target)), 5), strict=True):
        with (folder / f"{hospital}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*names, "ward", "smoker", "diagnosis"])
            for row in rows:
                cells = [f"{value:.5g}" if rng.random() > 0.08 else "" for value in data.data[row, :10]]
                label = data.target[row] ^ (hospital == SWAPPED)
                ward = rng.choice(["A", "B", "C"]) if rng.random() > 0.05 else ""
                writer.writerow([*cells, ward, rng.choice(["true", "false"]), data.target_names[label]])
    return folder


def read(path):
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_without_target(rows, path):
    """The rows as they come in from a patient of whom nobody knows yet."""
    with path.open("w", newline="") as file:
        names = [name for name in rows[0] if name != "diagnosis"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def agreeing(call, model, rows, folder):
    """Which of these raw rows a model in a file predicts rightly, as `coterie predict` has it."""
    write_without_target(rows, folder / "rows.csv")
    (folder / "predicted.csv").unlink(missing_ok=True)
    outcome = call(f"predict {model} --data {folder}/rows.csv --out {folder}/predicted.csv")
    assert outcome.code == 0, outcome.err
    predicted = [one["diagnosis"] for one in read(folder / "predicted.csv")]
    return [name == row["diagnosis"] for name, row in zip(predicted, rows, strict=True)]


@pytest.mark.usefixtures("hospitals")
def test_on_a_pooled_copy_the_hospital_with_swapped_words_is_found_and_all_take_their_models_home(call, tmp_path):
    compared = call("compare local fedavg ifca --data hospitals --target diagnosis --rounds 10 --out pooled")
    assert compared.code == 0, compared.err
    runs = {method: StoredRun.read(Path(f"pooled/{method}-seed0")) for method in ("local", "fedavg", "ifca")}
    scores = {method: {one["client"]: one["accuracy"] for one in run.clients} for method, run in runs.items()}
    # One model for all fails the hospital that means something else by its words.
    assert scores["ifca"][SWAPPED] > 0.7 > 0.5 > scores["fedavg"][SWAPPED]
    assert runs["ifca"].summary["accuracy_worst_tenth"] > runs["fedavg"].summary["accuracy_worst_tenth"] + 0.3
    groups = {one["client"]: one["group_found"] for one in runs["ifca"].clients}
    assert [name for name in HOSPITALS if groups[name] != groups["aachen"]] == [SWAPPED]
    # Models in files predict raw rows as they were scored, one by one.
    pool = [row for name in HOSPITALS for row in read(Path(f"hospitals/{name}.csv"))]
    for method in runs:
        shards = Settings.read(Path(f"pooled/{method}-seed0/settings.toml")).world.population.shards
        assert call(f"export pooled/{method}-seed0 --all --to {method}").code == 0
        for shard in shards:
            rows = [pool[place] for place in shard.test]
            right = agreeing(call, f"{method}/{shard.name}.safetensors", rows, tmp_path)
            assert np.mean(right) == pytest.approx(scores[method][shard.name])


@contextmanager
def running(names, superlink):
    """The server and its sites, as their commands, in processes of their own; they end with the block."""
    coterie = [sys.executable, "-m", "coterie", "deploy"]
    processes = [subprocess.Popen([*coterie, "server", "certs/server", "--port", superlink.partition(":")[2]])]
    try:
        for name in names:
            site = f"certs/sites/{name}/site.toml"
            processes.append(subprocess.Popen([*coterie, "site", site, "--superlink", superlink]))
        deadline, log = time.monotonic() + 180, Path("superlink/superlink.log")
        while not log.is_file() or log.read_text(errors="replace").count("activate-node") < len(names):
            assert time.monotonic() < deadline, "the sites do not connect"
            assert all(process.poll() is None for process in processes)
            time.sleep(0.5)
        yield
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)


@pytest.mark.slow
@pytest.mark.usefixtures("hospitals")
def test_over_real_sites_each_hospital_ends_with_its_own_model_on_its_own_disk(call):
    # The leader has the schema alone.
    assert call("schema hospitals --target diagnosis").code == 0
    assert call("deploy init federation ifca --schema hospitals.toml --rounds 8").code == 0
    settings = Path("federation/federation/settings.toml")
    settings.write_text(settings.read_text().replace("min_sites = 2", "min_sites = 5"))
    assert call(f"deploy certs certs --sites {','.join(HOSPITALS)}").code == 0
    for name in HOSPITALS:
        site = Path("certs/sites") / name
        (site / "data.csv").write_text(Path(f"hospitals/{name}.csv").read_text())
        (site / "schema.toml").write_text(Path("federation/site/schema.toml").read_text())
        own = Path("federation/site/site.toml").read_text().replace('name = "north"', f'name = "{name}"')
        (site / "site.toml").write_text(own)
    superlink = f"127.0.0.1:{free_port()}"
    with running(HOSPITALS, superlink):
        outcome = call("deploy run federation --out real --json")
        assert outcome.code == 0, outcome.err
    reported = {client["client"]: client for client in StoredRun.read(Path("real")).clients}
    assert set(reported) == set(HOSPITALS)
    assert json.loads(outcome.out)["accuracy_min"] > 0.6
    # Every site predicts raw rows with its own model, as it was scored.
    for name in HOSPITALS:
        site = Path("certs/sites") / name
        rows = read(site / "data.csv")
        tested = SiteSettings.read(site / "site.toml").population().shards[0].test
        right = agreeing(call, site / "model.safetensors", [rows[place] for place in tested], site)
        assert len(right) == reported[name]["test_samples"]
        assert np.mean(right) == pytest.approx(reported[name]["accuracy"])
