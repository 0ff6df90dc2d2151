"""Synthetic samples: a real GAN through the one training loop, and samples as bytes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from coterie.clients.synthesis import adversarial, class_counts, gan_net, packed, synthetic, unpacked
from coterie.core.randomness import uniform
from coterie.training.local import LocalTraining
from support.worlds import mlp, normed, world

TRAINING = LocalTraining(steps=30, batch=4, rate=0.1, momentum=0.5, clip=1.0)


@pytest.mark.parametrize(("factory", "shape"), [(mlp, (5,)), (normed, (2, 4, 4))])
def test_samples_have_the_shape_of_inputs_and_both_forms_agree(factory, shape):
    here = world(factory, shape=shape)
    found = []
    for form in ("loop", "vectorised"):
        clients = here.clients(form)
        shown, bounds = synthetic(clients, TRAINING, 6, since=1)
        found.append((clients.kept["gan"], unpacked(shown, bounds)))
        assert shown.shape == (4, 6, *shape)
        assert shown.dtype == torch.uint8
    (gan, samples), (gan_too, samples_too) = found
    assert (gan - gan_too).abs().max() < 1e-9
    assert (samples - samples_too).abs().max() < 1e-9


def test_the_generator_learns_what_the_client_has():
    # Two clients with data around +2 and around -2: after some training each one's samples are on its own side.
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32) / 3
    x[:20] += 2
    x[20:] -= 2
    here = world(mlp, sizes=(20, 20), x=x, y=np.zeros(40, int))
    training = LocalTraining(steps=200, batch=10, rate=0.1, momentum=0.5, clip=1.0)
    trained = unpacked(*synthetic(here.clients(), training, 50, since=1)).mean(dim=(1, 2))
    untrained = unpacked(*synthetic(here.clients(), LocalTraining(steps=1, rate=1e-9), 50, since=1)).mean(dim=(1, 2))
    assert untrained.abs().max() < 0.5
    assert trained[0] > 1
    assert trained[1] < -1


def test_each_player_lowers_its_own_term_alone():
    # The GAN in plain PyTorch: the discriminator moves by its own loss, the generator by that of being found out.
    clients = world(mlp, sizes=(8,)).clients("loop")
    net = gan_net((5,), torch.device("cpu"), torch.float64)
    start = clients.initial(net)
    seen = []

    def watch(model, batch, key):
        seen.append((batch.x, 2 * uniform(key, 8, 32).double() - 1))
        return adversarial(model, batch, key)

    trained = clients.train(start, LocalTraining(steps=1, batch=0, rate=1.0), objective=watch).models
    moved = net.parameters.views(start.parameters[0] - trained.parameters[0])
    module = start[0].module()
    module.requires_grad_()
    x, noise = seen[0]
    made = module(noise, True)
    told_apart = F.softplus(-module(x)).mean() + F.softplus(module(made.detach())).mean()
    found_out = F.softplus(-module(made)).mean()
    for loss, player in ((told_apart, "discriminator"), (found_out, "generator")):
        named = {name: p for name, p in module.named_parameters() if name.startswith(player)}
        for name, gradient in zip(named, torch.autograd.grad(loss, named.values(), retain_graph=True), strict=True):
            assert (moved[name] - gradient).abs().max() < 1e-12


def test_samples_stay_until_they_are_due_and_then_come_from_new_noise():
    here = world(mlp)
    first = here.clients(number=1)
    shown, _ = synthetic(first, TRAINING, 6, since=1)
    memory = _remembered(first)
    again = here.clients(memory=memory, number=3)
    assert torch.equal(synthetic(again, TRAINING, 6, since=1)[0], shown)
    assert "gan" not in again.kept  # nothing was trained
    later = here.clients(memory=memory, number=4)
    fresh, _ = synthetic(later, TRAINING, 6, since=4)
    assert (fresh != shown).float().mean() > 0.9
    assert later.kept["made"].tolist() == [4] * 4
    # New noise even if the GAN did not move.
    still = here.clients(memory=memory, number=4)
    other, _ = synthetic(still, LocalTraining(steps=1, rate=1e-12), 6, since=4)
    assert (other != shown).float().mean() > 0.9


def test_who_missed_a_refresh_catches_up_alone():
    here = world(mlp)
    first = here.clients(number=1)
    shown, bounds = synthetic(first, TRAINING, 6, since=1)
    memory = _remembered(first)
    memory.update(torch.tensor([0, 2]), {"made": torch.tensor([4, 4])})
    late = here.clients(memory=memory, number=5)
    fresh, fresh_bounds = synthetic(late, TRAINING, 6, since=4)
    assert [torch.equal(a, b) for a, b in zip(fresh, shown, strict=True)] == [True, False, True, False]
    assert [torch.equal(a, b) for a, b in zip(fresh_bounds, bounds, strict=True)] == [True, False, True, False]
    assert late.kept["made"].tolist() == [4, 5, 4, 5]
    moved = (late.kept["gan"] - memory.values["gan"]).abs().amax(dim=1) > 0
    assert moved.tolist() == [False, True, False, True]


def _remembered(clients):
    memory = clients._memory
    memory.update(torch.arange(len(clients)), clients.kept)
    return memory


def test_the_gans_steps_are_not_the_models():
    clients = world(mlp).clients()
    clients.train(clients.initial(), LocalTraining(steps=3))
    synthetic(clients, TRAINING, 6, since=1)
    assert clients.kept["_steps"].tolist() == [3] * 4
    assert clients.kept["_rounds"].tolist() == [1] * 4


def test_bytes_are_as_fine_as_they_can_be():
    samples = torch.randn(3, 7, 5, dtype=torch.float64)
    shown, bounds = packed(samples)
    span = bounds[:, 1] - bounds[:, 0]
    error = (unpacked(shown, bounds) - samples).abs().amax(dim=(1, 2))
    assert (error <= span / 255 / 2 + 1e-12).all()
    assert torch.equal(bounds[:, 0], samples.amin(dim=(1, 2)))


def test_samples_that_are_all_the_same_can_be_packed():
    same = torch.full((1, 2, 3), 0.7)
    assert torch.equal(unpacked(*packed(same)), same)


def test_class_counts_count_predictions():
    here = world(mlp)
    clients, models = here.clients(), here.models()
    shown, bounds = packed(torch.randn(4, 9, 5, dtype=torch.float64))
    counts = class_counts(clients, models, shown, bounds)
    samples = unpacked(shown, bounds)
    assert counts.sum(dim=1).tolist() == [9] * 4
    predicted = clients.predict(models, samples).argmax(dim=2)
    assert counts[2].tolist() == [(predicted[2] == label).sum().item() for label in range(3)]
