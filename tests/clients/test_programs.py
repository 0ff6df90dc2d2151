"""Programs: registered by name, checked in what they give."""

import pytest
import torch

from coterie.clients.clients import Clients
from coterie.clients.programs import (
    Program,
    evaluate,
    label_histogram,
    predict,
    program,
    program_named,
    programs,
    train,
)
from coterie.core.errors import CoterieError, SettingsError
from coterie.training.local import LocalTraining
from support.worlds import close, mlp, resized, world

HERE = world(mlp)
LOCAL = LocalTraining(epochs=1, batch=4)


@program
def doubled(clients: Clients, number, times: int = 2):
    """A number per client, times a setting."""
    return {"result": times * number}


@program(scoring=True)
def peeking(clients: Clients):
    """Reads test data."""
    return {}


def test_a_program_is_found_by_the_module_and_name_of_its_function():
    assert doubled.name == "test_programs.doubled"
    assert program_named("test_programs.doubled") is doubled
    assert programs["coterie.programs.train"] is train


def test_an_unknown_program_gets_the_nearest_known_ones():
    with pytest.raises(SettingsError, match=r"did you mean .*coterie\.programs\.train"):
        program_named("coterie.programs.trian")


def test_a_program_knows_its_inputs_and_keeps_its_docstring():
    assert doubled.inputs == ["number", "times"]
    assert doubled.__doc__ == "A number per client, times a setting."
    assert (doubled.scoring, peeking.scoring) == (False, True)


def test_a_program_needs_clients():
    with pytest.raises(SettingsError, match="first parameter must be the clients"):
        Program(lambda: None)


def test_a_program_runs_on_clients():
    assert doubled(HERE.clients(), number=torch.arange(4), times=3)["result"].tolist() == [0, 3, 6, 9]


def test_models_alone_are_the_output_model():
    outputs = Program(lambda clients: clients.initial())(HERE.clients())
    assert list(outputs) == ["model"]


def test_a_program_may_give_nothing():
    assert Program(lambda clients: None)(HERE.clients()) == {}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"loss": 0.5}, "output 'loss' is float, not a tensor or models"),
        ({"loss": [1, 2, 3, 4]}, "output 'loss' is list"),
        ({"loss": torch.ones(3)}, r"output 'loss' has shape \(3,\) for 4 clients"),
        ({"loss": torch.tensor(1.0)}, r"output 'loss' has shape \(\) for 4 clients"),
        ({"model": HERE.models()[0]}, r"output 'model' has shape \(\) for 4 clients"),
        (torch.ones(4), "gives Tensor, not outputs by name or models"),
        (HERE.models() - HERE.models(), "gives Changes, not outputs by name or models"),
        (3, "gives int"),
    ],
    ids=["number", "list", "rows", "no rows", "single model", "tensor", "changes", "whole"],
)
def test_outputs_without_a_row_per_client_are_refused(outputs, message):
    with pytest.raises(CoterieError, match=message):
        Program(lambda clients: outputs)(HERE.clients())


# The built-in programs


def test_train_is_what_clients_do():
    start = HERE.models()
    found = train(HERE.clients(), start=start, local=LOCAL, pull=0.5)["model"]
    close(found.parameters, HERE.clients().train(start, LOCAL, pull=0.5).models.parameters)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_evaluate_gives_accuracy_and_loss(part):
    found = evaluate(HERE.clients(), models=HERE.models(), on=part)
    expected = HERE.clients().evaluate(HERE.models(), part)
    close(found["accuracy"], expected.accuracy)
    close(found["loss"], expected.loss)
    assert found["evaluated"].tolist() == expected.samples.tolist()


def test_evaluate_is_finite_where_a_client_has_no_samples():
    found = evaluate(resized(HERE, (7, 0, 2, 1)).clients(), models=HERE.models(), on="train")
    assert found["evaluated"].tolist() == [7, 0, 2, 1]
    assert (found["accuracy"][1], found["loss"][1]) == (0, 0)


def test_label_histogram_counts_every_class():
    found = label_histogram(HERE.clients())["label_histogram"]
    assert found.shape == (4, 3)
    assert found.sum(dim=1).tolist() == [7, 3, 12, 1]


def test_predict_gives_logits():
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = predict(HERE.clients(), models=HERE.models(), inputs=x)["predictions"]
    close(found[2], HERE.models()[2].module()(x[2]).detach())
