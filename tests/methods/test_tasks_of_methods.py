"""Every method with data that has no classes: it learns, or it says so before anything is run."""

import numpy as np
import pytest

import coterie
from coterie.core.errors import SettingsError
from support.every_method import METHODS

NEED_CLASSES = {
    *("accord", "cafa", "cfic", "compose", "fedfa", "fedlc", "fedpac", "fedproto", "fedrc", "fedrod"),
    *("flis-dc", "flis-hc", "pacfl", "slfed"),
}


LAYERS = {"lg-fedavg": {"shares": "head"}}
"""Layers that the net of these tests has."""


def data(task):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 5)).astype(np.float32)
    amounts = x @ rng.normal(size=(5, 2)) * 50 + 400
    y = (amounts > 400).astype(np.float32) if task == "multi-label" else amounts.astype(np.float32)
    return coterie.Dataset(x, y, task=task).held_out(0.3)


def run(name, task, **options):
    options = {"rounds": 4, "batch": 10, "rate": 0.05} | METHODS[name] | LAYERS.get(name, {}) | options
    fed = coterie.simulate(data(task), "iid", "mlp", clients=4, server_samples=20)
    return coterie.methods.make(name, **options).fit(fed)


@pytest.mark.parametrize("task", ["regression", "multi-label"])
@pytest.mark.parametrize("name", sorted(set(METHODS) - NEED_CLASSES))
def test_a_method_that_needs_no_classes_learns(name, task):
    first, last = run(name, task, rounds=1, rate=1e-9), run(name, task)
    if task == "regression":
        assert last.summary["rmse_mean"] < 0.9 * first.summary["rmse_mean"]
    else:
        assert last.summary["accuracy_mean"] > first.summary["accuracy_mean"] + 0.1
    assert last.summary["loss_mean"] < first.summary["loss_mean"]


@pytest.mark.parametrize("task", ["regression", "multi-label"])
@pytest.mark.parametrize("name", sorted(NEED_CLASSES))
def test_a_method_that_needs_classes_says_so_before_anything_is_run(name, task, monkeypatch):
    def none_runs(self, call):
        raise AssertionError(f"{call.program.name} ran")

    monkeypatch.setattr("coterie.engines.simulation.engine.Simulation.run", none_runs)
    with pytest.raises(SettingsError, match=f"{name} .* and task={task} has no classes"):
        run(name, task)


@pytest.mark.parametrize(
    ("name", "options"),
    [("pacfl", {"by_class": False}), ("compose", {"evidence": "updates"}), ("compose", {"evidence": "weights"})],
)
def test_what_makes_them_do_without_is_what_the_error_says(name, options):
    assert run(name, "regression", **options).summary["rmse_mean"] > 0
