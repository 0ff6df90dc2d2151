"""What holds for every baseline that groups or personalises: odd federations, late and lost clients, permutations."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.data import Split
from coterie.nets import codec
from support.federations import at_round, lost, uneven

METHODS = {
    "ifca": {"clusters": 3, "init_retry": 1},
    "fesem": {"clusters": 2},
    "fedem": {"components": 2},
    "per-fedavg": {"order": "hessian-free"},
    "cfl": {"warmup": 1, "mean_norm": 2.0, "client_norm": 0.0, "gamma": None},
    "fl-hc": {"cluster_round": 2},
    "hdbscan": {"cluster_round": 2, "recluster_every": 2},
    "hdbscan, outliers": {"cluster_round": 2, "noise": "global", "min_size": 3},
    "pacfl": {},
    "pacfl, all data": {"by_class": False, "measure": "sum", "clusters": 2},
}
EVERY = pytest.mark.parametrize("name", METHODS)


def made(name, **options):
    return coterie.methods.make(name.split(",")[0], **{"rounds": 4} | METHODS[name] | options)


def finite(result):
    return all(client["loss"] is None or np.isfinite(client["loss"]) for client in result.clients)


def divided(*parts, y=None, **options):
    """Clients with these samples of one data set; several may have the same."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = (x @ rng.normal(size=(5, 3))).argmax(1) if y is None else np.asarray(y)
    index = np.concatenate(parts)
    data = coterie.Dataset(x[index], y[index], labels=tuple("abc"))
    split = Split(tuple(np.split(np.arange(len(index)), np.cumsum([len(part) for part in parts])[:-1])))
    return coterie.simulate(data, split, "mlp", **{"precision": "float64", "validation": 0, **options})


@EVERY
@pytest.mark.parametrize("sizes", [[12], [12, 5], [40, 2, 20], [80, 2, 2, 3]], ids=str)
def test_odd_federations_work(name, sizes):
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    assert finite(made(name).fit(divided(*parts, test_share=0.1)))


@EVERY
def test_clients_of_one_class_each_work(name):
    assert finite(made(name).fit(divided(*np.split(np.arange(90), 6), y=np.repeat([0, 1, 2], 30))))


@EVERY
def test_clients_that_are_all_the_same_work(name):
    assert finite(made(name, batch=0).fit(divided(*[np.arange(20)] * 4)))


@EVERY
def test_a_cohort_of_one_works_and_who_never_takes_part_is_served_too(name):
    result = made(name, rounds=1, participation=0.01).fit(uneven(clients=8))
    assert len(result.clients) == 8
    assert finite(result)


@EVERY
def test_clients_may_come_late(name):
    result = made(name, rounds=5).fit(uneven(arrivals={4: 2, 5: 4}))
    assert finite(result)
    assert [client["rounds_taken_part"] for client in result.clients] == [5, 5, 5, 5, 4, 2]


@EVERY
def test_who_never_answers_is_left_out_and_served_all_the_same(name):
    result = made(name).fit(lost(uneven(), 1, 3))
    assert finite(result)
    assert len(result.clients) == 6


@EVERY
def test_names_may_be_appended_in_mid_run(name):
    few, more = divided(*np.split(np.arange(60), 4)), divided(*np.split(np.arange(90), 6))
    method = made(name)
    state = method.begin(at_round(few))
    for number in (1, 2, 3):
        state = method.round(at_round(few, number), state)
    for number in (4, 5):
        assert method.serve(at_round(more, number), state) is not None
        state = method.round(more, state)
    served = method.serve(more, state)
    assert served.index is None or len(served.index) == 6


@EVERY
def test_a_state_can_be_stored(name):
    fed = uneven()
    state = made(name).fit(fed).state
    again = codec.load(codec.dump(state), {fed.net.name: fed.net})
    assert codec.dump(again) == codec.dump(state)


@EVERY
def test_permuting_clients_permutes_the_result(name):
    parts = np.split(np.arange(90), [14, 40, 55, 78])
    order = [3, 0, 4, 1, 2]
    results = []
    for arrangement in (range(5), order):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(90, 5)).astype(np.float32)
        data = coterie.Dataset(x, (x @ rng.normal(size=(5, 3))).argmax(1), labels=tuple("abc"))
        split = Split(tuple(parts[client] for client in arrangement), names=tuple(f"c{c}" for c in arrangement))
        results.append(made(name).fit(coterie.simulate(data, split, "mlp", precision="float64", split_seed=0)))
    by_name = {client["client"]: client for client in results[1].clients}
    for client in results[0].clients:
        assert by_name[client["client"]]["loss"] == pytest.approx(client["loss"], abs=1e-8)


def normed(shape, classes):
    """Batch normalisation, whose running statistics are no parameters."""
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


@EVERY
def test_running_statistics_are_averaged_too(name):
    # Public code often averages the parameters alone: the statistics then stay as they were at the start.
    fed = uneven(net=normed)
    served = made(name).fit(fed).served
    used = torch.unique(served.index) if served.index is not None else slice(None)
    trained = (served.models.parameters[used] != fed.new_models(4).parameters[:, None]).any(dim=2).all(dim=0)
    assert trained.any()
    assert (served.models.buffers[used] != fed.new_model().buffers).all(dim=1)[trained].all()
    assert (served.models.buffers[used][:, 4:] > 0).all()  # variances
