"""MOON: a step by plain PyTorch, who is contrasted with whom, and FedAvg where there is no contrast."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import coterie
from coterie.clients.memory import Memory
from coterie.core.errors import SettingsError
from coterie.methods.moon import train_contrasted
from coterie.training.local import LocalTraining
from support.worked_examples import apart, kept_model, same, unequal
from support.worked_examples import normed as normed_vectors
from support.worlds import close, mlp, normed, world

FORMS = pytest.mark.parametrize("form", ["loop", "vectorised"])
NETS = pytest.mark.parametrize(("factory", "shape"), [(mlp, (5,)), (normed, (2, 4, 4))], ids=["mlp", "normed"])


def remembering(here, last):
    """The memory of clients that have sent these models last."""
    memory = Memory(len(here.shards))
    memory.update(torch.arange(len(here.shards)), {"last": last})
    return memory


def by_torch(here, client, sent, last, rate, mu, temperature):
    """A client's module after a step on all of its samples, as the paper has it."""
    index = here.shards[client].train
    x, y = here.pool.inputs(torch.from_numpy(index)), here.pool.y[index]
    model = sent[client].module().train()
    z = model[:-1](x)
    z_sent, z_last = (other[client].module().eval()[:-1](x).detach() for other in (sent, last))
    like, unlike = (torch.exp(F.cosine_similarity(z, other) / temperature) for other in (z_sent, z_last))
    loss = F.cross_entropy(model[-1](z), y) - mu * torch.log(like / (like + unlike)).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    return model.state_dict()


@FORMS
@NETS
def test_a_step_by_plain_torch(factory, shape, form):
    here = world(factory, (7, 3, 12), shape)
    sent, last = here.models(), here.models(seed=1)
    local = LocalTraining(steps=1, batch=0, rate=0.3)
    clients = here.clients(form, memory=remembering(here, last))
    found = train_contrasted(clients, start=sent, local=local, mu=2.0, temperature=0.4)["model"]
    for client in range(3):
        expected = by_torch(here, client, sent, last, 0.3, 2.0, 0.4)
        state = found[client].state_dict()
        for name in (*here.net.parameters.names, *here.net.buffers.names):
            close(state[name], expected[name])
    assert same(clients.kept["last"], found)


def noisy(shape, classes):
    """Drops half of its features, before normalisation and before the last layer."""
    return nn.Sequential(
        nn.Linear(5, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, classes)
    )


def test_what_it_is_contrasted_with_draws_no_noise_and_has_no_part_in_its_own():
    here = world(noisy)
    sent, local = here.models(), LocalTraining(epochs=2, batch=4, rate=0.1)
    plain = here.clients().train(sent, local).models
    # Where both constants are the same model the contrast has no gradient, whatever noise the trained one draws.
    found = train_contrasted(here.clients(), start=sent, local=local, mu=5.0, temperature=0.5)["model"]
    close(found.parameters, plain.parameters)
    close(found.buffers, plain.buffers)
    step = LocalTraining(steps=1, batch=0, rate=0.1)
    moved, buffers = [], []
    for seed in (1, 2):
        clients = here.clients(memory=remembering(here, here.models(seed=seed)))
        after = train_contrasted(clients, start=sent, local=step, mu=5.0, temperature=0.5)["model"]
        moved.append(after.parameters)
        buffers.append(after.buffers)
    assert not torch.allclose(*moved, atol=1e-4)
    close(*buffers, within=0)  # the running statistics are of the trained model's pass alone


@pytest.mark.parametrize("net", ["mlp", normed_vectors])
@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "momentum": 0.5, "server_momentum": 0.5}])
def test_without_a_contrast_it_is_fedavg_to_the_last_bit(net, options):
    fed = unequal(net=net)
    ours = coterie.MOON(rounds=3, mu=0.0, **options).fit(fed)
    plain = coterie.FedAvg(rounds=3, **options).fit(fed)
    assert same(ours.state.model, plain.state.model)
    assert [c["loss"] for c in ours.clients] == [c["loss"] for c in plain.clients]


def test_who_takes_part_for_the_first_time_trains_as_in_fedavg():
    fed = unequal()
    first, second = (coterie.MOON(rounds=rounds, mu=5.0).fit(fed).state.model for rounds in (1, 2))
    plain = [coterie.FedAvg(rounds=rounds).fit(fed).state.model for rounds in (1, 2)]
    assert apart(first, plain[0]) < 1e-12
    assert apart(second, plain[1]) > 1e-4


def test_with_the_contrast_features_stay_nearer_to_the_global_models():
    def away(mu):
        fed = unequal()
        sent, _ = (coterie.MOON(rounds=rounds, mu=mu, epochs=5).fit(fed).state.model for rounds in (2, 3))
        own = fed.run(kept_model, name="last").model
        x = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        z, z_sent = (torch.stack([one.module()[:-1](x) for one in models]) for models in (own, sent.expand(6)))
        return float(1 - F.cosine_similarity(z, z_sent, dim=2).mean().detach())

    assert away(10.0) < 0.9 * away(0.0)


def test_traffic_and_steps_are_fedavgs():
    fed = unequal()
    ours, plain = coterie.MOON(rounds=2).fit(fed), coterie.FedAvg(rounds=2).fit(fed)
    for way in ("up", "down"):
        assert ours.summary["ledger"][way] == plain.summary["ledger"][way]
    assert [one["steps"] for one in ours.clients] == [one["steps"] for one in plain.clients]


@pytest.mark.parametrize("options", [{"mu": -1.0}, {"temperature": 0.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        coterie.MOON(**options)
