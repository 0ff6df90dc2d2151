"""FedRC: the E step by hand, shares of labels, reductions to FedEM and FedAvg, newcomers."""

from math import log

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients, program
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.methods.fedem import FedEM
from coterie.methods.fedrc import FedRC, FedRCState, train_clusters
from coterie.moves.mixing import label_frequencies, responsibilities
from support.federations import at_round, lost, opposed, same, uneven


@program
def own_omega(clients: Clients):
    """What clients keep."""
    return {"omega": clients.state("shares")}


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_e_step_by_hand():
    # A sample with losses (0, ln 3) and even shares: the likelihoods 1 and 1/3 are FedEM's (3/4, 1/4). If its label is
    # 4/5 of the first cluster and 1/5 of the second, I is 5/4 to 5/3: it belongs 3/7 to the first, 4/7 to the second.
    losses, shares = numbers([[0.0], [log(3)]]), numbers([0.5, 0.5])
    assert responsibilities(losses, shares).flatten().tolist() == pytest.approx([3 / 4, 1 / 4])
    frequencies = numbers([[0.8], [0.2]])
    assert responsibilities(losses + frequencies.log(), shares).flatten().tolist() == pytest.approx([3 / 7, 4 / 7])


def test_shares_of_labels_by_hand():
    found = label_frequencies(numbers([3, 1, 0], [0, 0, 0], [2, 2, 4]))
    assert found.tolist() == [[0.75, 0.25, 1e-8], [1 / 3] * 3, [0.25, 0.25, 0.5]]


def test_a_client_s_sums_weights_and_shares_are_those_of_its_samples():
    # One step over all samples: the change of a cluster's model is the gradient of sum_j gamma_jk l_jk / n.
    fed = at_round(uneven())
    models, frequencies = fed.new_models(2), numbers([0.2, 0.3, 0.5], [0.6, 0.3, 0.1])
    local = FedRC(steps=1, batch=0, rate=1.0).local
    found = fed.run(train_clusters, shared={"models": models, "frequencies": frequencies}, local=local)
    omega = fed.run(own_omega).omega
    site = fed._engine._host
    for client in range(6):
        index = torch.from_numpy(site.shards[client].train)
        x, y = site.pool.inputs(index), site.pool.y[index]
        losses = torch.stack([torch.nn.functional.cross_entropy(m.module()(x), y, reduction="none") for m in models])
        gamma = (-losses).exp().detach() / frequencies[:, y]
        gamma = gamma / gamma.sum(dim=0)
        torch.testing.assert_close(omega[client], gamma.mean(dim=1), atol=1e-12, rtol=0)
        sums = torch.stack([gamma[:, y == label].sum(dim=1) for label in range(3)], dim=1)
        torch.testing.assert_close(found.labels[client], sums, atol=1e-12, rtol=0)
        for number, model in enumerate(models):
            module = model.module()
            loss = torch.nn.functional.cross_entropy(module(x), y, reduction="none")
            gradient = torch.autograd.grad((gamma[number] * loss).mean(), list(module.parameters()))
            flat = fed.net.parameters.flatten(dict(zip(fed.net.parameters.names, gradient, strict=True)))
            change = models.parameters[number] - found.model.parameters[client, number]
            torch.testing.assert_close(change, flat, atol=1e-12, rtol=0)


class TestReductions:
    """What it is where labels tell nothing."""

    def test_with_one_cluster_it_is_fedavg_to_the_last_bit(self):
        # With one cluster every sample belongs to it, whatever its label.
        fed = uneven()
        fedrc = FedRC(rounds=3, clusters=1, participation=0.7).fit(fed)
        fedavg = coterie.FedAvg(rounds=3, participation=0.7).fit(fed)
        assert same(fedrc.state.models[0], fedavg.state.model)
        assert [client["accuracy"] for client in fedrc.clients] == [client["accuracy"] for client in fedavg.clients]

    def test_the_first_round_is_fedem_and_the_second_one_is_not(self):
        fed = uneven()
        for rounds, equal in ((1, True), (2, False)):
            fedrc = FedRC(rounds=rounds, clusters=3).fit(fed).state.models.parameters
            fedem = FedEM(rounds=rounds, components=3).fit(fed).state.models.parameters
            assert torch.allclose(fedrc, fedem, atol=1e-12) is equal

    def test_where_all_have_one_label_it_is_fedem(self):
        rng = np.random.default_rng(0)
        data = coterie.Dataset(rng.normal(size=(60, 5)).astype(np.float32), np.zeros(60, dtype=int), labels=("a", "b"))
        split = Split(tuple(np.split(np.arange(60), [15, 40])))
        fed = coterie.simulate(data, split, "mlp", precision="float64")
        fedrc, fedem = FedRC(rounds=3, clusters=2).fit(fed), FedEM(rounds=3, components=2).fit(fed)
        torch.testing.assert_close(fedrc.state.models.parameters, fedem.state.models.parameters, atol=1e-10, rtol=0)


def test_clients_with_other_labels_stay_together_where_fedem_parts_them():
    # Two clients, each with one label of its own, and clusters of which the first is a little better at label 0 and the
    # second at label 1. FedEM gives each client wholly to one. C is omega_1k / (omega_1k + omega_2k) for label 0; so
    # gamma is in proportion to exp(-l_k) (omega_1k + omega_2k), and these sums stay 1: the losses alone decide.
    losses = numbers([[0.1] * 9, [0.9] * 9], [[0.9] * 9, [0.1] * 9])  # [client, cluster, sample]
    labels = torch.tensor([[0] * 9, [1] * 9])
    found = {}
    for name, prior_free in (("fedem", False), ("fedrc", True)):
        omega, frequencies = torch.full((2, 2), 0.5).double(), torch.full((2, 2), 0.5).double()
        for _ in range(30):
            taken = frequencies[:, labels].transpose(0, 1).log() if prior_free else 0  # [client, cluster, sample]
            gamma = responsibilities(losses + taken, omega)
            omega, sums = gamma.mean(dim=2), gamma.sum(dim=2)
            frequencies = label_frequencies(sums.T)
        found[name] = omega[0].tolist()
    assert found["fedem"] == pytest.approx([1, 0], abs=1e-6)
    assert found["fedrc"] == pytest.approx([1 / (1 + np.exp(-0.8)), 1 / (1 + np.exp(0.8))])


def test_it_tells_apart_what_labels_mean():
    fed = opposed(samples=480)
    result = FedRC(rounds=15, clusters=2, rate=1.0).fit(fed)
    omega = fed.run(own_omega).omega
    one = coterie.FedAvg(rounds=15, rate=1.0).fit(fed)
    assert result.summary["accuracy_mean"] > one.summary["accuracy_mean"] + 0.15
    assert (omega[::2].mean(0) - omega[1::2].mean(0)).abs().min() > 0.3


def test_shares_stay_with_the_client_and_counts_of_labels_do_not():
    fed = uneven()
    result = FedRC(rounds=2, clusters=2).fit(fed)
    models, table = 2 * 2 * 6 * fed.net.parameters.total * 8, 2 * 6 * 2 * 3 * 8
    assert result.summary["ledger"]["up"] == {"model": models, "labels": table}
    assert result.summary["ledger"]["down"] == {"model": models, "frequencies": table}
    histogram = fed.run(coterie.programs.label_histogram).label_histogram.double()
    torch.testing.assert_close(result.state.labels.sum(dim=1), histogram, atol=1e-9, rtol=0)  # what they give away


def test_permuting_the_clusters_permutes_the_result():
    fed, made, order = at_round(uneven()), FedRC(clusters=3), [2, 0, 1]
    labels = torch.from_numpy(np.random.default_rng(0).uniform(size=(6, 3, 3)))
    models = fed.new_models(3)
    straight = made.round(fed, FedRCState(models, labels))
    omega = fed.run(own_omega).omega
    turned = made.round(at_round(fed), FedRCState(models[order], labels[:, order]))
    torch.testing.assert_close(turned.models.parameters, straight.models.parameters[order], atol=1e-12, rtol=0)
    torch.testing.assert_close(turned.labels, straight.labels[:, order], atol=1e-12, rtol=0)
    torch.testing.assert_close(fed.run(own_omega).omega, omega[:, order], atol=1e-12, rtol=0)


class TestNewcomers:
    """Clients that come later, or do not answer."""

    def test_the_last_sums_of_who_is_absent_go_on_counting(self):
        fed, made = uneven(), FedRC(clusters=2)
        run = fed._engine.run
        first = made.round(at_round(fed), made.begin(fed))
        second = made.round(lost(at_round(fed, 2), 1), first)
        fed._engine.run = run
        assert torch.equal(second.labels[1], first.labels[1])
        assert not torch.equal(second.labels[0], first.labels[0])

    def test_names_may_be_appended_in_mid_run(self):
        few, more, made = uneven(clients=3), uneven(clients=4), FedRC(clusters=2)
        state = made.round(at_round(few), made.begin(few))
        after = made.round(at_round(more, 2), state)
        assert after.labels.sum(dim=(1, 2)).tolist() == pytest.approx(more.sizes.tolist())

    def test_one_that_never_took_part_finds_its_shares_by_itself(self):
        fed, made = opposed(samples=480), FedRC(rounds=15, clusters=2, rate=1.0)
        result = made.fit(fed)
        fed.begin(1)  # everybody forgets its shares, as if all had just arrived
        fed.start_round(16)
        scores = coterie.server.scoring.score(fed, made.serve(fed, result.state), coterie.Scoring(), made.local)
        assert scores.values["accuracy"].mean() > 0.7  # even shares of two opposed models would give a half


def test_both_forms_agree():
    results = [FedRC(rounds=2, clusters=2).fit(uneven(engine=engine)) for engine in ("vectorised", "loop")]
    for part in (lambda state: state.models.parameters, lambda state: state.labels):
        torch.testing.assert_close(*(part(result.state) for result in results), atol=1e-9, rtol=0)


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients(clients):
    assert FedRC(rounds=2, clusters=4).fit(uneven(clients=clients)).state.models.parameters.isfinite().all()


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="clusters=0: at least 1"):
        coterie.methods.make("fedrc", clusters=0)
