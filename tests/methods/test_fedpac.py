"""FedPAC: weights of heads by hand, what is told of features, who trains what, and FedRep where it adds nothing."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

import coterie
from coterie.core.errors import SettingsError
from coterie.methods.fedpac import train_aligned
from coterie.moves.mixing import collaboration
from coterie.training.forms import Branch, Vectorised
from coterie.training.graphs import Recorder
from coterie.training.local import LocalTraining
from support.federations import at_round, opposed
from support.worked_examples import apart, kept_model, normed, of_sizes, same, unequal
from support.worlds import close, mlp, world
from support.worlds import normed as normed_images

NETS = pytest.mark.parametrize("net", ["mlp", normed])
PLAIN = {"strength": 0.0, "collaboration": False}


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_two_clients_mix_heads_by_their_variances_and_their_distance():
    # With b on the other's head, (1 - b)^2 V_i + b^2 (V_j + D) is least at b = V_i / (V_i + V_j + D); here D is 0.1.
    shares = numbers([[0.1, 0.0], [0.2, 0.1]], [[0.1, 0.3], [0.2, 0.0]])
    found = collaboration(shares, numbers(0.2, 0.1))
    close(found, numbers([0.5, 0.5], [0.25, 0.75]), 1e-9)


def test_who_is_certain_needs_nobody_and_who_is_unlike_all_mixes_little():
    close(collaboration(numbers([[0.5]], [[0.1]]), numbers(0.0, 0.2)), numbers([1, 0], [0.2 / 0.36, 0.16 / 0.36]), 1e-9)
    close(collaboration(numbers([[7.0]]), numbers(0.3)), numbers([1.0]))
    alike = collaboration(torch.zeros(3, 2, 4, dtype=torch.float64), numbers(0.1, 0.2, 0.2))
    close(alike, numbers([0.5, 0.25, 0.25]).expand(3, 3), 1e-9)  # by the inverse of their variances


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_the_quadratic_program_is_solved_as_by_another_solver(scale):
    # Without the sum of 1, |A a|^2 + (sum a - 1)^2 has the same solution but for a factor: non-negative least squares.
    rng = np.random.default_rng(0)
    shares = torch.from_numpy(rng.normal(size=(12, 3, 5))) * scale
    variance = torch.from_numpy(rng.uniform(0.01, 0.1, size=12)) * scale**2
    found = collaboration(shares, variance)
    rows = shares.flatten(1).numpy() / scale
    for client in range(12):
        system = np.vstack([(rows[client] - rows).T, np.diag(np.sqrt(variance.numpy()) / scale), np.ones(12)])
        other, _ = nnls(system, np.append(np.zeros(len(system) - 1), 1))
        close(found[client], torch.from_numpy(other / other.sum()), 1e-6)
    assert ((found > 1e-6).sum(dim=1) > 1).all()  # else nobody mixed


def test_clients_mix_more_of_those_that_are_alike():
    fed = at_round(opposed())
    told = fed.run(train_aligned, **first_round(fed), local=LocalTraining(rate=0.5), alone=LocalTraining(epochs=1))
    weights = collaboration(told.shares, told.variance).fill_diagonal_(0)
    within = weights[::2, ::2].sum() + weights[1::2, 1::2].sum()
    assert within > 2 * (weights[::2, 1::2].sum() + weights[1::2, ::2].sum())


def first_round(fed):
    """What the server sends then."""
    centroids = torch.zeros(fed.net.classes, fed.net.features, dtype=torch.float64)
    told = {"body": fed.new_model().packed("body"), "centroids": centroids, "pull": centroids[:, 0]}
    return {"shared": told}


def features_of(model, x):
    """What the last layer gets."""
    seen = []
    module = model.module().requires_grad_(False)
    module[-1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    module(x)
    return seen[0]


@NETS
def test_what_is_told_of_features_before_and_after_training(net):
    fed = at_round(unequal(net=net))
    told = fed.run(train_aligned, **first_round(fed), local=LocalTraining(), alone=LocalTraining(epochs=1))
    site, trained = fed._engine._host, fed.run(kept_model).model
    for client in range(6):
        index = torch.from_numpy(site.shards[client].train)
        x, y = site.pool.inputs(index), site.pool.y[index]
        one_hot = torch.nn.functional.one_hot(y, 3).double()
        before, after = (features_of(model, x) for model in (fed.new_model(), trained[client]))
        # V_i is the variance of the mean of a sample's features in the row of its class, [sample, class, feature].
        rows = one_hot.unsqueeze(2) * before.unsqueeze(1)
        close(told.shares[client], rows.mean(dim=0))
        variance = (rows - rows.mean(dim=0)).square().sum(dim=(1, 2)).mean() / len(y)
        close(told.variance[client], variance)
        close(told.means[client], one_hot.T @ after / one_hot.sum(dim=0).clamp(min=1)[:, None])
        assert told.label_counts[client].tolist() == one_hot.sum(dim=0).tolist()


@NETS
def test_without_pull_and_collaboration_it_is_fedrep(net):
    fed, options = unequal(net=net), {"rounds": 3, "participation": 0.5, "head_epochs": 2.0}
    ours = coterie.FedPAC(**PLAIN, **options).fit(fed)
    heads = fed.run(kept_model).model
    fedrep = coterie.FedRep(**options).fit(fed)
    assert same(heads, fed.run(kept_model).model)
    assert torch.equal(ours.state.body, fedrep.state.body)
    assert [client["loss"] for client in ours.clients] == [client["loss"] for client in fedrep.clients]


def test_one_client_has_nobody_to_mix_with():
    fed = of_sizes([30])
    coterie.FedPAC(rounds=3, strength=0.0).fit(fed)
    ours = fed.run(kept_model).model
    coterie.FedRep(rounds=3, head_epochs=1.0).fit(fed)
    assert same(ours, fed.run(kept_model).model)


@pytest.mark.parametrize("options", [{"strength": 1.0}, {"collaboration": True}])
def test_each_part_alone_makes_it_another_method(options):
    fed = unequal()
    plain = coterie.FedPAC(rounds=3, **PLAIN).fit(fed).state
    ours = coterie.FedPAC(rounds=3, **(PLAIN | options)).fit(fed).state
    assert (ours.body - plain.body).abs().max() > 1e-5


def test_clients_keep_mixes_of_the_heads_that_were_trained():
    fed = unequal()
    coterie.FedPAC(rounds=1, **PLAIN).fit(fed)
    trained = fed.run(kept_model).model
    coterie.FedPAC(rounds=1).fit(fed)
    mixed = fed.run(kept_model).model
    at_round(fed, 1)
    told = fed.run(train_aligned, **first_round(fed), local=LocalTraining(), alone=LocalTraining(epochs=1))
    weights = collaboration(told.shares, told.variance)
    assert (weights > 1e-3).sum() > 6  # else nobody mixed
    close(mixed.packed("head"), weights @ trained.packed("head"), 1e-9)
    assert torch.equal(mixed.packed("body"), trained.packed("body"))


def test_the_pull_moves_the_body_under_a_frozen_head_and_not_the_head(monkeypatch):
    here, calls = world(mlp), []
    train = coterie.Clients.train

    def watched(self, start, local, **options):
        trained = train(self, start, local, **options)
        calls.append((start, trained.models, options["trains"], local.rate))
        return trained

    monkeypatch.setattr(coterie.Clients, "train", watched)
    centroids = torch.from_numpy(np.random.default_rng(5).normal(size=(3, 6))).expand(4, -1, -1)
    for strength in (0.0, 2.0):
        clients = here.clients()
        body, pull = clients.initial().packed("body"), numbers(1.0, 1.0, 1.0).expand(4, -1) * strength
        local, alone = LocalTraining(rate=0.3), LocalTraining(epochs=1, rate=0.2)
        train_aligned(clients, body=body, centroids=centroids, pull=pull, local=local, alone=alone)
    (first, middle, *how), (again, last, *then), (_, also, *_), (_, pulled, *_) = calls
    assert (how, then) == (["head", 0.2], ["body", 0.3])
    assert same(middle, again)
    assert same(middle, also)
    assert torch.equal(first.part("body"), middle.part("body"))
    assert torch.equal(middle.part("head"), last.part("head"))
    assert torch.equal(middle.part("head"), pulled.part("head"))
    away = [
        torch.stack([(clients.class_means(models)[0] - centroids)[clients.label_counts() > 0].square().mean()])
        for models in (last, pulled)
    ]
    assert away[1] < away[0]


def test_all_forms_agree_also_with_recorded_steps():
    here = world(normed_images, shape=(2, 4, 4))
    given = {
        "centroids": torch.from_numpy(np.random.default_rng(5).normal(size=(3, 64))).expand(4, -1, -1),
        "pull": numbers(1.0, 0.5, 0.0).expand(4, -1),
        "local": LocalTraining(batch=4, rate=0.2),
        "alone": LocalTraining(epochs=1, batch=4),
    }
    recorder, found = {"recorder": Recorder(lambda step: lambda: step())}, []
    for form in (None, Vectorised(), Vectorised(strict=True), Vectorised(**recorder), Branch(**recorder)):
        clients = here.clients("loop")
        clients._form = form or clients._form
        found.append(train_aligned(clients, body=clients.initial().packed("body"), **given))
    for told in found[1:]:
        for name, value in told.items():
            close(value.double(), found[0][name].double(), 1e-10)


def test_what_travels():
    fed = unequal()
    ledger = coterie.FedPAC(rounds=2, participation=0.5).fit(fed).summary["ledger"]
    net, times = fed.net, 2 * 3 * 8
    body, head, classes = int(net.part("body").sum()), int(net.part("head").sum()), 3 * 64
    down = {"body": body, "head": head, "centroids": classes, "pull": 3}
    up = {"body": body, "head": head, "means": classes, "shares": classes, "variance": 1, "label counts": 3}
    assert ledger["down"] == {name: times * size for name, size in down.items()}
    assert ledger["up"] == {name: times * size for name, size in up.items()}


def test_clients_predict_with_the_newest_body_under_their_own_head():
    fed = unequal()
    result = coterie.FedPAC(rounds=2, participation=0.5).fit(fed)
    own = fed.run(kept_model).model
    served = own.patched("body", result.state.body.expand(6, -1))
    assert apart(served, own) > 0
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": served}, {})
    assert [client["loss"] for client in result.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"head_rate": 0.0}, {"head_epochs": -1.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.methods.make("fedpac", **options)
