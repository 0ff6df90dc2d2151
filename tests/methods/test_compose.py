"""Compose: every evidence with every grouping and every mixing, reductions, newcomers, what is sent."""

from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.programs import train
from coterie.core.errors import CoterieError, SettingsError
from coterie.core.registry import options
from coterie.data import Split
from coterie.methods.compose import ComposeState
from coterie.moves.composing import Alike
from coterie.moves.mixing import by_samples, personal
from coterie.nets.stacks import Models
from coterie.server.federation import Answers
from support.federations import at_round, same, uneven

LEARN = {"rate": 1.0, "epochs": 3.0}


def choices(name):
    """What a field can be."""
    return get_args(next(option.type for option in options(coterie.Compose) if option.name == name))


def two_worlds(clients=8, by="meaning", server=40, order=None, **more):
    """Clients in turns of two groups: those of one swap the labels, or they have different labels of four."""
    rng = np.random.default_rng(1)
    samples = 40 * clients
    x = rng.normal(size=(samples + server, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    parts = np.array_split(np.arange(samples), clients)
    for client in range(1, clients, 2):
        y[parts[client]] = 1 - y[parts[client]] if by == "meaning" else y[parts[client]] + 2
    data = coterie.Dataset(x, y, labels=tuple("abcd" if by == "labels" else "ab"))
    order = range(clients) if order is None else order
    names = tuple(f"c{client}" for client in order)
    split = Split(tuple(parts[client] for client in order), groups=np.array(order) % 2, names=names)
    more = {"precision": "float64", **more}
    return coterie.simulate(data, split, "logistic", server_samples=server, **more)


FED = two_worlds(4)


@pytest.mark.parametrize(
    ("evidence", "grouping", "mixing"),
    [
        case
        for case in product(choices("evidence"), choices("grouping"), choices("mixing"))
        if case[1] != "key" or case[0] == "labels"
    ],
)
def test_any_evidence_works_with_any_grouping_and_any_mixing(evidence, grouping, mixing):
    clusters = 2 if grouping == "kmeans" else None
    made = coterie.Compose(
        evidence=evidence, grouping=grouping, mixing=mixing, clusters=clusters, rounds=2, group_round=1
    )
    result = made.fit(FED)
    state = result.state
    assert state.models.parameters.isfinite().all()
    assert state.weights.shape == (len(state.models), 4)
    assert sorted(set(state.home.tolist())) == list(range(len(state.models)))
    assert (state.weights[state.home, torch.arange(4)] > 0).all()  # everybody counts in the model it is served
    assert len(state.models) == 4 or mixing != "similarity"
    if grouping == "one" and mixing != "similarity":
        assert (state.weights > 0).all()
    if grouping in ("kmeans", "bipartition") and mixing != "similarity":
        assert len(state.models) == 2


# Reductions


@pytest.mark.parametrize(
    "parts",
    [
        {"grouping": "one"},
        {"group_round": 9},
        {"grouping": "linkage", "threshold": 0.0},
        {"grouping": "neighbourhoods", "threshold": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("mixing", ["samples", "uniform"])
def test_one_group_is_fedavg(parts, mixing):
    made = coterie.Compose(mixing=mixing, rounds=4, momentum=0.5, **parts).fit(uneven())
    plain = coterie.FedAvg(weighting=mixing, rounds=4, momentum=0.5).fit(uneven())
    assert len(made.state.models) == 1
    assert same(made.state.models[0], plain.state.model)
    assert made.summary["bytes_up"] == plain.summary["bytes_up"]


def test_before_groups_are_made_a_cohort_takes_part_as_in_fedavg():
    made = coterie.Compose(rounds=2, group_round=3, participation=0.5).fit(uneven())
    plain = coterie.FedAvg(rounds=2, participation=0.5).fit(uneven())
    assert same(made.state.models[0], plain.state.model)


def test_dynamic_neighbourhoods_by_inference_begin_like_flis_dc():
    fed = two_worlds()
    parts = {"evidence": "inference", "grouping": "neighbourhoods", "group_round": 1, "regroup": 1}
    made = coterie.Compose(rounds=1, **parts).fit(fed)
    flis = coterie.FLISDC(rounds=1, threshold=0.5).fit(fed)
    assert same(made.state.models, flis.state.models)


# Groups

SENSIBLE = [
    *product(["weights", "updates", "inference"], ["vote", "linkage", "bipartition", "kmeans", "silhouette"]),
    *product(["updates", "inference"], ["neighbourhoods", "dbscan", "density"]),
]


@pytest.mark.parametrize(("evidence", "grouping"), SENSIBLE)
def test_opposed_groups_are_found(evidence, grouping):
    clusters = 2 if grouping in ("kmeans", "linkage") else None
    parts = {"evidence": evidence, "grouping": grouping, "clusters": clusters, "layer": "all", "smallest": 3}
    made = coterie.Compose(rounds=2, group_round=1, **parts, **LEARN)
    assert made.fit(two_worlds()).summary["ari"] == 1


class TestRobust:
    """What stands in for a group's mean."""

    def test_each_group_gets_what_its_members_have_in_common(self):
        fed = at_round(two_worlds(6), 2)
        before = fed.new_models(3)
        home, weights = torch.tensor([0, 1] * 3), torch.tensor([[1, 0] * 3, [0, 1] * 3, [0] * 6]).double()
        for name, rule in (
            ("median", coterie.robust.median),
            ("trimmed-mean", lambda w, m: coterie.robust.trimmed_mean(w, m, 0.3)),
            ("geometric-median", coterie.robust.geometric_median),
        ):
            made = coterie.Compose(robust=name, trimmed=0.3, mixing="uniform")
            state = ComposeState(before, home, weights)
            after = made.round(at_round(fed, 2), state).models
            sent = at_round(fed, 2).run(train, each=before[home], local=made.local).model
            assert same(after[:2], rule(weights[:2], sent))
            assert same(after[2], before[2])  # nobody is in it

    def test_a_trimmed_mean_that_trims_nothing_is_the_mean(self):
        fed, options = uneven(), {"rounds": 3, "grouping": "linkage", "group_round": 1}
        trimmed = coterie.Compose(robust="trimmed-mean", trimmed=0.0, **options).fit(fed)
        plain = coterie.Compose(**options).fit(fed)
        torch.testing.assert_close(trimmed.state.models.parameters, plain.state.models.parameters, atol=1e-12, rtol=0)

    @pytest.mark.parametrize("rule", ["median", "trimmed-mean", "geometric-median"])
    def test_a_hostile_member_of_each_group_costs_little(self, rule):
        # Two of ten clients, one in each of two groups, send their updates turned round and ten times as long.
        def served(robust):
            fed = two_worlds(10)
            run = fed._engine.run

            def hostile(call):
                answers = run(call)
                if call.program is not train or call.at.number < 3:
                    return answers
                models, sent = answers.outputs["model"], call.each["start"]
                parameters = models.parameters.clone()
                parameters[[4, 7]] = sent.parameters[[4, 7]] - 10 * (parameters - sent.parameters)[[4, 7]]
                turned = Models(models.net, parameters, models.buffers)
                return Answers(answers.clients, {**answers.outputs, "model": turned}, answers.letters)

            fed._engine.run = hostile
            made = coterie.Compose(
                grouping="linkage", evidence="updates", clusters=2, group_round=2, rounds=8, robust=robust, **LEARN
            )
            return made.fit(fed).summary["accuracy_mean"]

        assert served(rule) > served("none") + 0.2
        assert served(rule) > 0.85


@pytest.mark.parametrize("grouping", ["vote", "linkage", "kmeans", "bipartition"])
def test_clients_with_different_labels_are_found_by_their_labels(grouping):
    clusters = 2 if grouping == "kmeans" else None
    made = coterie.Compose(evidence="labels", grouping=grouping, clusters=clusters, rounds=2, group_round=1)
    assert made.fit(two_worlds(by="labels")).summary["ari"] == 1


def test_a_key_is_the_dominant_label():
    fed = uneven()
    state = coterie.Compose(evidence="labels", grouping="key", rounds=1, group_round=1).fit(fed).state
    counts = fed.run(coterie.programs.label_histogram).label_histogram.numpy()
    keys = np.abs(counts / counts.sum(1, keepdims=True) - 1 / 3).argmax(1)
    assert len(set(keys)) > 1
    for one, other in product(range(6), repeat=2):
        assert (keys[one] == keys[other]) == (state.home[one] == state.home[other])


def test_groups_stay_unless_told(monkeypatch):
    compared, rounds = coterie.Compose._compared, []

    def spy(self, fed, *more):
        rounds.append(fed.round)
        return compared(self, fed, *more)

    monkeypatch.setattr(coterie.Compose, "_compared", spy)
    parts = {"grouping": "linkage", "clusters": 3, "group_round": 2}
    once = coterie.Compose(rounds=6, **parts).fit(uneven())
    assert [change["round"] for change in once.groups] == [1, 2]
    assert rounds == [2]
    coterie.Compose(rounds=6, regroup=2, **parts).fit(uneven())
    assert rounds == [2, 2, 4, 6]


# Mixing


def in_the_first_round(fed, made, similarity, monkeypatch):
    """The state after a round in which clients are exactly so similar, and what clients trained in it."""
    monkeypatch.setattr(coterie.Compose, "_compared", lambda *_: Alike(similarity, similarity))
    replies = at_round(fed).run(train, shared=fed.new_model(), local=made.local)
    return made.fit(fed).state, replies


NEAR = np.array(
    [[1, 0.9, 0.2, 0.1], [0.9, 1, 0.6, 0.1], [0.2, 0.6, 1, 0.1], [0.1, 0.1, 0.1, 1]],
)


@pytest.mark.parametrize(
    ("mixing", "rows"),
    [
        ("samples", lambda samples, member: by_samples(samples, member)),
        ("uniform", lambda samples, member: by_samples(torch.ones(4), member)),
        ("similarity", lambda samples, member: personal(NEAR * member)),
    ],
)
def test_models_are_mixed_of_their_neighbourhoods(mixing, rows, monkeypatch):
    fed = uneven(4)
    made = coterie.Compose(grouping="neighbourhoods", threshold=0.5, mixing=mixing, rounds=1, group_round=1)
    state, replies = in_the_first_round(fed, made, NEAR, monkeypatch)
    expected = rows(replies.samples, NEAR >= 0.5) @ replies.model.parameters
    assert torch.allclose(state.models.parameters[state.home], expected, atol=1e-12)


def test_in_groups_a_similarity_mix_leaves_others_out(monkeypatch):
    # (M_0 + .9 M_1 + .2 M_2) / 2.1 for client 0: client 3 is another group's, however similar.
    fed = uneven(4)
    made = coterie.Compose(
        grouping="linkage", clusters=2, linkage="single", mixing="similarity", rounds=1, group_round=1
    )
    state, replies = in_the_first_round(fed, made, NEAR, monkeypatch)
    model = replies.model.parameters
    assert torch.allclose(state.models.parameters[0], (model[0] + 0.9 * model[1] + 0.2 * model[2]) / 2.1, atol=1e-12)
    assert torch.allclose(state.models.parameters[3], model[3], atol=1e-12)


def test_a_group_without_participants_keeps_its_model():
    fed = two_worlds()
    made = coterie.Compose(
        grouping="linkage", clusters=2, layer="all", rounds=3, group_round=2, participation=0.1, **LEARN
    )
    two = coterie.Compose(
        grouping="linkage", clusters=2, layer="all", rounds=2, group_round=2, participation=0.1, **LEARN
    ).fit(fed)
    three = made.fit(fed)
    kept = [same(one, other) for one, other in zip(two.state.models, three.state.models, strict=True)]
    assert sorted(kept) == [False, True]


@pytest.mark.parametrize("mixing", choices("mixing"))
def test_permuting_clients_permutes_the_result(mixing):
    order = [3, 0, 6, 1, 7, 2, 5, 4]
    made = coterie.Compose(evidence="updates", mixing=mixing, rounds=3, group_round=2, **LEARN)
    plain, permuted = made.fit(two_worlds()), made.fit(two_worlds(order=order))
    by_name = {client["client"]: client for client in permuted.clients}
    for client in plain.clients:
        assert by_name[client["client"]]["loss"] == pytest.approx(client["loss"], abs=1e-9)


# Coming and going


@pytest.mark.parametrize("mixing", ["samples", "similarity"])
def test_a_newcomer_joins_the_group_that_fits_it_best(mixing):
    fed = two_worlds(arrivals={6: 4, 7: 5})
    made = coterie.Compose(evidence="updates", mixing=mixing, rounds=6, group_round=2, **LEARN)
    result = made.fit(fed)
    state = result.state
    groups = [set((state.weights[state.home[client]] > 0).nonzero().flatten().tolist()) for client in (6, 7)]
    assert 6 in groups[0]
    assert 7 in groups[1]
    assert groups[0] - {6} <= {0, 2, 4}
    assert groups[1] - {7} <= {1, 3, 5}
    assert mixing == "similarity" or result.summary["ari"] == 1


def test_newcomers_before_groups_are_made_train_the_common_model():
    result = coterie.Compose(evidence="updates", rounds=4, group_round=3, **LEARN).fit(two_worlds(arrivals={7: 2}))
    assert result.summary["ari"] == 1
    assert result.clients[7]["rounds_taken_part"] == 3


def test_clients_may_appear_in_mid_run(monkeypatch):
    fed = two_worlds()
    made = coterie.Compose(evidence="updates", rounds=4, group_round=1, **LEARN)
    fed.begin(4)
    names = fed._engine.names
    monkeypatch.setattr(fed._engine, "names", names[:6])
    monkeypatch.setattr(fed._engine, "present", lambda: np.arange(len(fed._engine.names)))
    state = made.begin(fed)
    for number in (1, 2, 3):
        if number == 3:
            monkeypatch.setattr(fed._engine, "names", names)
        fed.start_round(number)
        state = made.round(fed, state)
    assert state.home.tolist() == [0, 1] * 4
    assert state.weights.shape == (2, 8)


@pytest.mark.parametrize("evidence", ["labels", "updates"])
def test_clients_that_do_not_answer_are_left_out(evidence, monkeypatch):
    fed = two_worlds(by="labels")
    run = fed._engine.run

    def without_the_first(call):
        answers = run(call)
        if call.at.scoring or len(answers.clients) == 1:
            return answers
        outputs = {key: value[1:] for key, value in answers.outputs.items()}
        return Answers(answers.clients[1:], outputs, answers.letters)

    monkeypatch.setattr(fed._engine, "run", without_the_first)
    made = coterie.Compose(evidence=evidence, grouping="linkage", clusters=2, rounds=3, group_round=2, **LEARN)
    assert made.fit(fed).summary["ari"] == 1


# What is sent


def test_parts_are_put_together_on_the_command_line(call):
    line = "run compose --evidence inference --grouping vote --mixing samples --server-samples 40 --group-round 1"
    outcome = call(f"{line} --clients 4 --net logistic --rounds 2 --limit 400 --out run --json")
    assert outcome.json["method"] == "compose"
    assert outcome.json["groups"] >= 1
    written = (Path("run") / "settings.toml").read_text()
    assert 'evidence = "inference"\ngrouping = "vote"\nmixing = "samples"' in written


def test_label_histograms_travel_only_where_they_are_the_evidence():
    fed = two_worlds(4)
    by_labels = coterie.Compose(evidence="labels", grouping="linkage", rounds=3, group_round=2).fit(fed)
    by_weights = coterie.Compose(evidence="weights", grouping="linkage", rounds=3, group_round=2).fit(fed)
    size = fed.net.parameters.total * 8 * 4 * 3
    assert by_labels.summary["ledger"]["up"] == {"label histogram": 4 * 2 * 8, "model": size}
    assert by_weights.summary["ledger"]["up"] == {"model": size}
    assert by_weights.summary["ledger"]["down"] == {"model": size}


def test_without_samples_at_the_server_it_says_what_to_do():
    with pytest.raises(CoterieError, match="the server holds no samples: set server_samples"):
        coterie.Compose(evidence="inference", rounds=1).fit(uneven())


# Degenerate federations

DEGENERATE = {
    "one client": [[0, 1, 2, 3]],
    "two clients": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "one sample": [[0, 1, 2, 3], [4], [5, 6, 7]],
    "one class": [[0, 2, 4], [1, 3, 5], [6, 7, 8]],
}


@pytest.mark.parametrize("parts", DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("grouping", choices("grouping"))
def test_degenerate_federations_work(grouping, parts):
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(14, 3)).astype(np.float32), np.arange(14) % 2, labels=("a", "b"))
    fed = coterie.simulate(data, Split(tuple(map(np.array, parts))), "logistic", server_samples=4)
    for evidence in ("labels", *(() if grouping == "key" else ("updates", "inference"))):
        made = coterie.Compose(
            evidence=evidence, grouping=grouping, clusters=2, rounds=2, group_round=1, participation=0.01
        )
        assert len(made.fit(fed).clients) == len(parts)


@pytest.mark.parametrize("grouping", [name for name in choices("grouping") if name != "bipartition"])
@pytest.mark.parametrize("evidence", choices("evidence"))
def test_identical_clients_are_one_group(evidence, grouping):
    if grouping == "key" and evidence != "labels":
        return
    x = np.tile(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), (5, 1))
    data = coterie.Dataset(x, np.arange(30) % 2, labels=("a", "b"))
    split = Split(tuple(np.arange(24).reshape(4, 6)))
    fed = coterie.simulate(data, split, "logistic", server_samples=6, test_share=0, validation=0, precision="float64")
    clusters = 2 if grouping == "kmeans" else None
    made = coterie.Compose(evidence=evidence, grouping=grouping, clusters=clusters, rounds=1, group_round=1, batch=0)
    assert len(made.fit(fed).state.models) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grouping": "key"}, "use evidence=labels"),
        ({"grouping": "kmeans"}, "say how many with clusters"),
        ({"clusters": 0}, "clusters=0"),
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"group_round": 0}, "group_round=0"),
        ({"regroup": -1}, "regroup=-1"),
        ({"guard": -0.1}, "guard=-0.1"),
        ({"smallest": 1}, "smallest=1"),
        ({"evidence": "rumours"}, "rumours"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        coterie.methods.make("compose", **given)
