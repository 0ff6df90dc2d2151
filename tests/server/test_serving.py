"""What each client predicts with."""

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.server.serving import best_fit, each, kept, mixture, one
from coterie.training.local import LocalTraining
from support.worlds import linear, world

MODELS = world(linear).models(3)


def test_one_model_for_all():
    served = one(MODELS[1], 5)
    assert served.models.shape == (1,)
    assert served.index.tolist() == [0] * 5


def test_each_client_gets_one_of_the_servers_models():
    assert each(MODELS, [2, 0, 2]).index.tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("models", "index"), [(MODELS, [0, 3]), (MODELS, [-1]), (MODELS, []), (MODELS[0], [0])], ids=str
)
def test_places_must_be_among_the_models(models, index):
    with pytest.raises(CoterieError, match=r"serving: .*places"):
        each(models, index)


def test_an_offset_is_a_clients_own_and_those_that_mix_have_no_one_model_to_shift():
    assert one(MODELS[0], 2).with_offset("offset").personal
    with pytest.raises(CoterieError, match="no one model whose features an offset could shift"):
        mixture(MODELS, "shares").with_offset("offset")


@pytest.mark.parametrize(
    ("served", "personal"),
    [
        (one(MODELS[0], 2), False),
        (best_fit(MODELS), False),
        (mixture(MODELS, torch.full((2, 3), 1 / 3)), True),
        (kept("model"), True),
        (one(MODELS[0], 2).after(LocalTraining()), True),
        (one(MODELS[0], 2).plus("head", "own"), True),
    ],
    ids=["one", "best fit", "mixture", "kept", "adapted", "added"],
)
def test_what_is_a_clients_own_is_known(served, personal):
    assert served.personal == personal


def test_clients_that_mix_have_nothing_to_add_to():
    with pytest.raises(CoterieError, match="no one model to which they could add"):
        mixture(MODELS, "shares").plus("head", "own")
