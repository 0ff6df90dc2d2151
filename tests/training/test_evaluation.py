"""How models do on samples, whatever blocks they are asked in."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from coterie.data.tasks import TASKS
from coterie.training import evaluation
from coterie.training.evaluation import EvaluationJob, evaluate, predictions, rank_and_loss
from coterie.training.forms import FORMS
from support.worlds import close, mlp, world

PLACES = {
    "the same": [np.arange(20)] * 4,
    "unequal": [np.arange(3), np.array([7]), np.arange(11)[::-1].copy(), np.arange(4, 9)],
    "some without any": [np.arange(3), np.empty(0, np.int64), np.arange(9), np.empty(0, np.int64)],
    "none": [np.empty(0, np.int64)] * 4,
}


@pytest.mark.parametrize("rows", [1, 4, 256])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("form", ["loop", "vectorised"])
def test_every_sample_is_judged_under_its_own_model(form, places, rows, monkeypatch):
    monkeypatch.setattr(evaluation, "_ROWS", rows)
    here = world(mlp)
    models, run = here.models(), FORMS[form]().outputs
    asked = EvaluationJob(here.pool, models, places)
    rank, loss = evaluate(run, asked)
    outputs = predictions(run, asked)
    assert rank.shape == loss.shape == (4, max(map(len, places)))
    for model, own in enumerate(places):
        index = torch.from_numpy(own)
        alone = FORMS["loop"]().outputs(models[model : model + 1], here.pool.inputs(index), shared=True)[0]
        close(outputs[model, : len(own)], alone)
        close(loss[model, : len(own)], F.cross_entropy(alone, here.pool.y[index], reduction="none"))
        right = alone.argmax(dim=1) == here.pool.y[index]
        assert torch.equal(rank[model, : len(own)] == 0, right)


def test_samples_are_padded_to_no_more_than_twice_of_what_most_have():
    here, shapes = world(mlp), []

    def run(models, x, shared):
        shapes.append(tuple(x.shape[:2]))
        return torch.zeros(*x.shape[:2], 3, dtype=torch.float64)

    places = [np.arange(size) for size in (2, 2, 3, 20, 2)]
    evaluate(run, EvaluationJob(here.pool, here.models(5), places))
    assert shapes == [(5, 2), (2, 1), (1, 17)]


def test_the_rank_is_the_number_of_classes_before_the_label():
    nan = float("nan")
    outputs = torch.tensor([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [nan, 1.0, 0.0], [0.0, nan, 1.0]])
    # Of equals the lower number comes first, like argmax; what is not a number comes before everything.
    assert rank_and_loss(TASKS["classification"], outputs, torch.tensor([2, 0, 1, 1, 1]))[0].tolist() == [2, 0, 1, 1, 3]
