"""Accord: what it becomes without its parts, groups only where they pay, and shares that nobody is told."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import Scoring
from coterie.clients.programs import program
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.moves import choosing
from coterie.nets import codec
from coterie.server.fitting import Checkpoint
from coterie.training.priors import log_prior
from support.federations import lost, opposed, same, uneven
from support.worked_examples import of_sizes
from support.worlds import tensors_of

BARE = {"blends": 0, "group_round": 0}
"""Neither groups nor a choice."""

BASES = pytest.mark.parametrize("base", ["fedavg", "scaffold"])


def labelled(parts, classes=3, net="mlp", samples=180, labels=None, **options):
    """Clients that have so many samples of each class: `parts` [client][class]."""
    rng = np.random.default_rng(4)
    y = np.arange(samples) % classes
    x = (rng.normal(size=(samples, 5)) + 2 * np.eye(classes, 5)[y]).astype(np.float32)
    left = [list(np.flatnonzero(y == label)) for label in range(classes)]
    places = tuple(np.array([left[c].pop() for c, count in enumerate(part) for _ in range(count)]) for part in parts)
    y = y if labels is None else np.asarray(labels)[y]
    labels = tuple("abcdef"[:classes])
    data = coterie.Dataset(x, y, labels=labels, test=coterie.Dataset(x[:30], y[:30], labels=labels))
    given = {"precision": "float64", "test": "proportions", **options}
    return coterie.simulate(data, Split(places), net, **given)


UNEVEN = [[12, 2, 0], [1, 9, 3], [0, 0, 8], [6, 6, 6], [2, 0, 14]]


@program
def kept(clients, name):
    return {"kept": clients.state(name)}


# What it becomes without its parts


@BASES
def test_without_groups_and_choice_it_is_its_base_without_priors_to_the_last_bit(base):
    fed, options = uneven(), {"rounds": 3, "participation": 0.5, "prior": "own", "clip": 1.0}
    ours = coterie.Accord(base=base, **BARE, **options).fit(fed)
    theirs = coterie.methods.make(base, **options).fit(fed)
    assert same(ours.state.groups.clusters.models[0], theirs.state.model)
    assert [client["accuracy"] for client in ours.clients] == [client["accuracy"] for client in theirs.clients]
    assert ours.summary["ledger"] == theirs.summary["ledger"]


@BASES
def test_where_shares_are_equal_it_is_its_base_to_the_last_bit(base):
    fed = labelled([[4] * 3, [10] * 3, [6] * 3], validation=0)
    ours = coterie.Accord(base=base, rounds=3, clip=0.0, **BARE).fit(fed)
    theirs = coterie.methods.make(base, rounds=3, clip=0.0).fit(fed)
    assert same(ours.state.groups.clusters.models[0], theirs.state.model)


@BASES
def test_with_smoothing_without_end_it_is_its_base_to_the_last_bit(base):
    fed = uneven()
    ours = coterie.Accord(base=base, rounds=3, clip=0.0, prior_smoothing=1e18, **BARE).fit(fed)
    assert same(
        ours.state.groups.clusters.models[0], coterie.methods.make(base, rounds=3, clip=0.0).fit(fed).state.model
    )


def test_choosing_changes_nothing_of_what_is_trained():
    fed = uneven()
    bare, whole = (coterie.Accord(rounds=3, **options).fit(fed) for options in (BARE, {"group_round": 0}))
    assert same(bare.state.groups.clusters.models[0], whole.state.groups.clusters.models[0])


def test_without_validation_data_everybody_is_served_the_model():
    fed = uneven(validation=0)
    ours, bare = (coterie.Accord(rounds=3, **options).fit(fed) for options in ({"group_round": 0}, BARE))
    assert [c["accuracy"] for c in ours.clients] == [c["accuracy"] for c in bare.clients]
    assert [c["loss"] for c in ours.clients] == pytest.approx([c["loss"] for c in bare.clients], abs=1e-12)


def test_who_has_one_label_alone_is_served_that_label():
    fed = labelled([[20, 0, 0], [0, 20, 0], [0, 0, 20]])
    result = coterie.Accord(rounds=3).fit(fed)
    assert result.summary["accuracy_mean"] == 1
    assert len(result.state.groups) == 1  # they share no label: nothing says that they are alike, or are not


class Blank(nn.Module):
    """A net whose last layer begins at 0, and so knows no order of classes."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, classes)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def blank(shape, classes):
    return Blank(shape[0], classes)


def test_permuting_labels_permutes_the_result():
    order = torch.tensor([2, 0, 1])
    method = coterie.Accord(rounds=4, rate=0.3, insured=True, group_round=2, significance=0.5)
    plain = method.fit(labelled(UNEVEN, net=blank, test="global"))
    renamed = method.fit(labelled(UNEVEN, net=blank, labels=order.tolist(), test="global"))
    for one, other in zip(plain.clients, renamed.clients, strict=True):
        assert other["accuracy"] == one["accuracy"]
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-9)
    one, other = (result.state.groups.clusters.models[0].layer("last")["last.weight"] for result in (plain, renamed))
    torch.testing.assert_close(other[order], one, atol=1e-10, rtol=0)
    torch.testing.assert_close(renamed.state.seen, plain.state.seen, atol=1e-9, rtol=0)


# Groups


@BASES
def test_clients_that_call_labels_otherwise_are_parted_and_others_are_not(base):
    for fed, found in ((opposed((0, 1) * 6, samples=480), 2), (labelled([[6, 6, 6]] * 12, samples=360), 1)):
        result = coterie.Accord(base=base, rounds=7, rate=0.5).fit(fed, scoring=Scoring(insights=True))
        assert result.summary["groups"] == found
        assert result.summary.get("ari", 1) == 1
        assert np.array(result.insights[-1]["errors_by_groups"]).shape == (12, 6)


def test_labels_alone_part_nobody():
    # The same two labels at every other client, and others at the rest.
    parts = [[12, 12, 0, 0], [0, 0, 12, 12]] * 6
    fed = labelled(parts, classes=4, samples=720)
    assert len(coterie.Accord(rounds=7, rate=0.3).fit(fed).state.groups) == 1


def test_after_parting_control_variates_are_means_over_the_group():
    fed = opposed((0, 1) * 6, samples=480)
    for rounds in (3, 5):
        state = coterie.Accord(base="scaffold", rounds=rounds, rate=0.5, participation=0.7).fit(fed).state
        assert len(state.groups) == 2
        assert state.groups.known.tolist() == [6, 6]
        for place, control in enumerate(state.groups.controls.parameters):
            own = fed.run(kept, np.flatnonzero(state.groups.clusters.labels == place), name="control").kept
            torch.testing.assert_close(control, own.parameters.mean(dim=0), atol=1e-9, rtol=0)


def test_who_comes_late_joins_the_group_that_fits_and_is_served():
    fed = opposed((0, 1) * 6, samples=960, arrivals={10: 5, 11: 6})
    result = coterie.Accord(rounds=6, rate=0.5).fit(fed)
    assert result.state.groups.clusters.labels.tolist() == [0, 1] * 6
    assert all(client["loss"] is not None for client in result.clients)


def test_who_never_answers_costs_nobody_else_anything():
    result = coterie.Accord(rounds=4, rate=0.5).fit(lost(opposed((0, 1) * 6, samples=480), 3))
    assert len(result.state.groups) == 2
    assert result.state.seen[3].isnan().all()


# The choice


def test_who_is_insured_trains_what_it_would_train_alone():
    fed = uneven()
    result = coterie.Accord(rounds=3, insured=True).fit(fed)
    alone = fed.run(kept, name="alone").kept
    steps = [client["steps"] for client in result.clients]
    local = coterie.Local(rounds=3, prior="own", clip=10.0).fit(fed)
    assert same(alone, fed.run(kept, name="model").kept)
    assert steps == [2 * client["steps"] for client in local.clients]


def test_nobody_is_served_worse_than_alone_where_validation_data_says_so():
    # Every client calls labels otherwise: no model of several is of any use.
    fed = opposed((0, 1, 2) * 2, samples=900, validation=0.3)
    ours = coterie.Accord(rounds=8, rate=0.5, group_round=0, insured=True).fit(fed)
    alone = coterie.Local(rounds=8, rate=0.5, prior="own", clip=10.0).fit(fed)
    bare = coterie.Accord(rounds=8, rate=0.5, **BARE).fit(fed)
    for one, other in zip(ours.clients, alone.clients, strict=True):
        assert one["accuracy"] >= other["accuracy"] - 0.05
    assert ours.summary["accuracy_mean"] > bare.summary["accuracy_mean"] + 0.2


def test_insights_are_gains_by_client_and_blend():
    fed = uneven()
    result = coterie.Accord(rounds=2, group_round=0).fit(fed, scoring=Scoring(insights=True, views=("served", "last")))
    gains = np.array(result.insights[-1]["gains"])
    assert gains.shape == (6, len(choosing.lattice(3, 2)))
    assert not gains[:, 0].any()
    assert result.summary["accuracy_last_mean"] is not None


# What holds for every method


def test_permuting_clients_permutes_the_result():
    order = [3, 0, 4, 1, 2]
    results = []
    for arrangement in (range(5), order):
        rng = np.random.default_rng(7)
        x, y = rng.normal(size=(150, 5)).astype(np.float32), rng.integers(0, 3, 150)
        data, parts = coterie.Dataset(x, y, labels=tuple("abc")), np.split(np.arange(150), [20, 60, 90, 110])
        split = Split(tuple(parts[client] for client in arrangement), names=tuple(f"c{c}" for c in arrangement))
        fed = coterie.simulate(data, split, "mlp", precision="float64", split_seed=0)
        results.append(coterie.Accord(rounds=4, insured=True, significance=0.9).fit(fed))
    by_name = {client["client"]: client for client in results[1].clients}
    for client in results[0].clients:
        assert by_name[client["client"]]["loss"] == pytest.approx(client["loss"], abs=1e-8)


@BASES
def test_all_forms_agree(base):
    results = []
    for engine in ("loop", "vectorised"):
        fed = opposed((0, 1) * 6, samples=480, engine=engine)
        results.append(coterie.Accord(base=base, rounds=5, rate=0.5, insured=True).fit(fed))
    loop, stacked = results
    assert torch.equal(loop.state.groups.clusters.labels, stacked.state.groups.clusters.labels)
    for key, tensor in tensors_of(loop.state).items():
        torch.testing.assert_close(tensors_of(stacked.state)[key], tensor, atol=1e-8, rtol=0, equal_nan=True)
    for one, other in zip(loop.clients, stacked.clients, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-8)


class Stop:
    """Keeps the checkpoint after one round, as a file has it."""

    def __init__(self, fed, number):
        self.fed, self.number = fed, number
        self.checkpoint = None

    def round_done(self, checkpoint: Checkpoint, record, groups):
        if record["round"] == self.number:
            self.checkpoint = codec.load(codec.dump(vars(checkpoint)), {self.fed.net.name: self.fed.net})

    def run_done(self, checkpoint, result):
        pass


@BASES
@pytest.mark.parametrize("number", [2, 4])
def test_a_run_that_goes_on_is_the_same_to_the_last_bit(base, number):
    method = coterie.Accord(base=base, rounds=5, rate=0.5, participation=0.7, insured=True)
    fed = opposed((0, 1) * 6, samples=480)
    stop = Stop(fed, number)
    whole = method.fit(fed, observers=[stop])
    again = opposed((0, 1) * 6, samples=480)
    resumed = method.fit(again, resume=Checkpoint(**stop.checkpoint))
    assert tensors_of(resumed.state).keys() == tensors_of(whole.state).keys()
    for key, tensor in tensors_of(whole.state).items():
        assert torch.equal(tensor.nan_to_num(7), tensors_of(resumed.state)[key].nan_to_num(7))
    assert resumed.clients == whole.clients


@pytest.mark.parametrize("sizes", [[12], [12, 5], [30, 2, 20], [100, 2, 2, 3]], ids=str)
@BASES
def test_odd_federations_work(base, sizes):
    fed = of_sizes(sizes, test_share=0.1)
    result = coterie.Accord(base=base, rounds=3, insured=True).fit(fed)
    assert all(client["loss"] is None or np.isfinite(client["loss"]) for client in result.clients)


def test_what_crosses_is_what_it_says():
    # Every input and output of every program that runs on clients, by name: no counts, no shares, no priors.
    fed = labelled(UNEVEN, samples=360)
    counts = fed.run(coterie.programs.label_histogram).label_histogram
    run, crossed = fed._engine.run, {}

    def seen(call):
        answers = run(call)
        crossed.setdefault("down", {}).update({**call.each, **call.shared})
        crossed.setdefault("up", {}).update(answers.outputs)
        return answers

    fed._engine.run = seen
    result = coterie.Accord(rounds=4, base="scaffold", insured=True).fit(fed, keep_models=False)
    told = {"model", "control_change", "before", "gains", "means", "spread", "known", "accuracy", "loss", "evaluated"}
    scored = {"test_samples", "test_accuracy", "validation", "steps", "rounds"}
    assert set(crossed["up"]) - {"_kept_finite"} == told | scored
    assert set(crossed["down"]) == {"start", "control", "models", "found"}
    secrets = [counts, counts / counts.sum(dim=1, keepdim=True), log_prior(counts, 0.5)]
    for value in (*crossed["up"].values(), *tensors_of(result.state).values()):
        if isinstance(value, torch.Tensor) and value.shape == counts.shape:
            assert not any(torch.allclose(value.double(), secret.double()) for secret in secrets)
    assert crossed["up"]["known"].tolist() == (counts > 0).tolist()  # which labels a client has is told, as it says


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"base": "scaffold", "optimizer": "adam"},
            "optimizer=adam: control variates are made for sgd; use base=fedavg",
        ),
        ({"insured": True, "blends": 0}, "insured=true with blends=0: nobody could choose"),
        ({"most_groups": 1}, "most_groups"),
        ({"significance": 1.5}, "significance"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        coterie.Accord(**options)


def test_data_without_classes_is_refused_in_a_sentence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    fed = coterie.simulate(coterie.Dataset(x, x[:, :1], task="regression"), "iid", "mlp", clients=3)
    said = "accord keeps clients' shares of classes out of training, and task=regression has no classes"
    with pytest.raises(SettingsError, match=said):
        coterie.Accord(rounds=1).fit(fed)
