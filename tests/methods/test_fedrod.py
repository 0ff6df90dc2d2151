"""FedRoD: a step of both heads by hand, who moves what, and FedAvg where the risk needs no balance."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedrod import train_both_heads
from coterie.training.local import LocalTraining
from support.worked_examples import apart, of_sizes, same, unequal
from support.worlds import close, linear, mlp, normed, world

LABELS = ([0, 0, 0, 0, 1], [2, 2, 1, 1, 0, 0], [1] * 7)


def labelled(factory=linear, features=4):
    """Three clients with these labels."""
    y = np.concatenate(LABELS)
    x = np.random.default_rng(4).normal(size=(len(y), features)).astype(np.float32)
    return world(factory, [len(own) for own in LABELS], (features,), 3, x=x, y=y)


def softmax(logits):
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("form", ["loop", "vectorised"])
def test_two_steps_by_hand(form):
    # A linear net is its generic head, and its features are the inputs. Both heads step at once, from the same logits.
    here, rate, gamma = labelled(), 0.5, 0.7
    start, clients = here.models(), here.clients(form)
    found = train_both_heads(clients, start=start, local=LocalTraining(steps=2, batch=0, rate=rate), gamma=gamma)
    for client in range(3):
        index = here.shards[client].train
        x, y = here.pool.x[index].double().numpy(), here.pool.y[index].numpy()
        x, truth = np.hstack([x, np.ones((len(x), 1))]), np.eye(3)[y]  # the last column is for the bias
        state = start[client].state_dict()
        generic = np.hstack([state["weight"].numpy(), state["bias"].numpy()[:, None]])
        personal = np.zeros_like(generic)
        counts = truth.sum(axis=0)
        with np.errstate(divide="ignore"):
            balance = gamma * np.log(counts)
        for _ in range(2):
            logits = x @ generic.T
            errors = (softmax(logits + balance) - truth, softmax(logits + x @ personal.T) - truth)
            generic, personal = (
                head - rate * error.T @ x / len(y) for head, error in zip((generic, personal), errors, strict=True)
            )
        state = found["model"][client].state_dict()
        close(state["weight"], torch.from_numpy(generic[:, :-1].copy()))
        close(state["bias"], torch.from_numpy(generic[:, -1].copy()))
        own = here.net.head.views(clients.kept["personal_head"][client])
        close(own["weight"], torch.from_numpy(personal[:, :-1].copy()))
        close(own["bias"], torch.from_numpy(personal[:, -1].copy()))


@pytest.mark.parametrize(("factory", "shape"), [(mlp, (5,)), (normed, (2, 4, 4))])
def test_where_labels_are_equally_frequent_the_model_trains_as_fedavgs(factory, shape):
    # log n_c is then the same for all classes, and the personal risk must not reach the model.
    here = world(factory, (6, 12, 3), shape, y=np.arange(21) % 3)
    start, local = here.models(), LocalTraining(epochs=2, batch=4, rate=0.2)
    ours = train_both_heads(here.clients(), start=start, local=local, gamma=1.0)["model"]
    plain = here.clients().train(start, local).models
    close(ours.parameters, plain.parameters, 1e-10)
    close(ours.buffers, plain.buffers, 1e-10)


def test_nothing_moves_the_generic_logit_of_a_class_that_the_client_has_not():
    here = labelled()
    start, clients = here.models(), here.clients()
    local = LocalTraining(epochs=5, batch=2, rate=0.5)
    found = train_both_heads(clients, start=start, local=local, gamma=1.0)["model"]
    assert torch.equal(found.layer("")["weight"][0, 2], start.layer("")["weight"][0, 2])
    assert torch.equal(found.parameters[2], start.parameters[2])  # it has one class alone
    own = here.net.head.views(clients.kept["personal_head"])["weight"]
    assert (own[0, 2] != 0).all()  # but its own head learns that it has none of it


def test_with_gamma_0_the_model_is_fedavgs():
    fed = unequal()
    assert (fed.run(coterie.programs.label_histogram).label_histogram > 0).all()  # else this test means nothing
    plain = coterie.FedAvg(rounds=2, participation=0.5).fit(fed)
    ours = coterie.FedRoD(rounds=2, participation=0.5, gamma=0.0).fit(fed)
    assert apart(ours.state.model, plain.state.model) < 1e-12
    assert apart(coterie.FedRoD(rounds=2, participation=0.5).fit(fed).state.model, plain.state.model) > 1e-4
    ways = [result.summary["ledger"] for result in (ours, plain)]
    assert ways[0]["up"] == ways[1]["up"]  # heads do not travel
    assert ways[0]["down"] == ways[1]["down"]


def test_clients_predict_with_the_newest_model_whose_head_has_their_own_added():
    fed = unequal()
    personal = coterie.FedRoD(rounds=3, participation=0.5).fit(fed)
    memory = fed._engine._memory
    own, known = memory.values["personal_head"], memory.known["personal_head"]
    assert own[known].abs().sum() > 0
    assert not known.all()
    model = personal.state.model.expand(6)
    served = model.patched("head", model.packed("head") + torch.where(known[:6, None], own[:6], 0))
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": served}, {})
    assert [client["loss"] for client in personal.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)


def test_who_has_not_taken_part_predicts_with_the_generic_model_and_all_do_if_asked():
    fed = unequal()
    personal, generic = (
        coterie.FedRoD(rounds=2, participation=0.34, predicts=how).fit(fed) for how in ("personal", "generic")
    )
    assert same(personal.state.model, generic.state.model)
    absent = [client["rounds_taken_part"] == 0 for client in personal.clients]
    assert any(absent)
    alike = [one["loss"] == two["loss"] for one, two in zip(personal.clients, generic.clients, strict=True)]
    assert alike == absent


def test_a_head_goes_on_from_round_to_round():
    fed = of_sizes([20] * 3)
    heads = []
    for rounds in (1, 2):
        coterie.FedRoD(rounds=rounds, epochs=1).fit(fed)
        heads.append(fed._engine._memory.values["personal_head"][:3].clone())
    assert (heads[1].norm(dim=1) > heads[0].norm(dim=1)).all()


def test_what_it_cannot_be_is_refused():
    with pytest.raises(SettingsError, match=r"gamma=-1.0"):
        coterie.FedRoD(gamma=-1.0)
    with pytest.raises(SettingsError, match=r"loss=focal: fedrod balances the cross-entropy"):
        coterie.FedRoD(rounds=1).fit(unequal(loss="focal"))
    with pytest.raises(SettingsError, match=r"prior=own: .* use prior=learned"):
        coterie.FedRoD(rounds=1, prior="own").fit(unequal())
    with pytest.raises(SettingsError, match=r"its last layer, 0, is not linear or not the end of it"):
        coterie.FedRoD(rounds=1).fit(unequal(net=squashed))


def squashed(shape, classes):
    """A net with something behind its last layer."""
    return torch.nn.Sequential(torch.nn.Linear(shape[0], classes), torch.nn.Tanh())
