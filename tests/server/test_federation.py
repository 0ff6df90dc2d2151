"""The port: what a method can ask, what crosses, and what a client's failure costs."""

import logging

import numpy as np
import pytest
import torch

import coterie
from coterie import Clients, Models, program
from coterie.clients.programs import evaluate, label_histogram, train
from coterie.core.errors import CoterieError, NoAnswerError, ProgramError
from coterie.data import Split
from coterie.training.local import LocalTraining
from support.federations import lost, uneven

LOCAL = LocalTraining(epochs=1, batch=8, rate=0.1)


def world(clients=6, **options):
    """Clients with 12, 15, 18 ... samples of three classes."""
    rng = np.random.default_rng(1)
    sizes = 12 + 3 * np.arange(clients)
    x = rng.normal(size=(sizes.sum(), 5)).astype(np.float32)
    y = (x @ rng.normal(size=(5, 3))).argmax(1)
    data = coterie.Dataset(x, y, labels=("a", "b", "c"))
    split = Split(tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])))
    return coterie.simulate(data, split, "mlp", engine="loop", workers=0, **options)


@program
def doubled(clients: Clients, number: torch.Tensor, offset: torch.Tensor):
    """Twice a number per client, plus a shared one."""
    return {"result": 2 * number + offset}


@program
def stained(clients: Clients, start: Models):
    """Client 2 answers with a number that is not finite, and everybody keeps a mark."""
    clients.keep(mark=clients.state("mark", torch.zeros(len(clients))) + 1)
    bad = torch.tensor([name == "2" for name in clients.names])
    models = Models(start.net, torch.where(bad[:, None], torch.nan, start.parameters), start.buffers)
    return {"model": models}


@program
def stained_at_home(clients: Clients):
    """Client 2 keeps a model that is not finite, everybody keeps a mark, and nobody answers anything."""
    start = clients.initial()
    bad = torch.tensor([name == "2" for name in clients.names])
    parameters = torch.where(bad[:, None], torch.inf, start.parameters)
    clients.keep(model=Models(start.net, parameters, start.buffers))
    clients.keep(mark=clients.state("mark", torch.zeros(len(clients))) + 1)


@program
def mark(clients: Clients):
    """What clients have kept."""
    return {"mark": clients.state("mark", torch.zeros(len(clients)))}


@program
def failing(clients: Clients):
    """Fails on client 3."""
    if "3" in clients.names:
        raise ZeroDivisionError("of this client's own making")
    return {}


@program
def peeking(clients: Clients):
    """Tries to read test data."""
    return {"accuracy": clients.evaluate(clients.initial(), on="test").accuracy}


def test_each_gives_one_row_per_client_and_shared_the_same_to_all():
    fed = world()
    cohort = np.array([1, 3, 4])
    replies = fed.run(doubled, cohort, each={"number": [1.0, 3.0, 4.0]}, shared={"offset": 0.5})
    assert replies.clients.tolist() == [1, 3, 4]
    assert replies.result.tolist() == [2.5, 6.5, 8.5]


def test_a_single_input_is_for_the_first_parameter():
    fed = world()
    replies = fed.run(evaluate, shared=fed.new_models(3), on="train")
    assert replies.loss.shape == (6, 3)


def test_replies_know_the_clients_samples():
    fed = world()
    replies = fed.run(train, [0, 5], shared=fed.new_model(), local=LOCAL)
    assert replies.samples.tolist() == fed.sizes[[0, 5]].tolist()


def test_the_average_weighs_by_samples_or_uniformly():
    fed = world()
    replies = fed.run(train, shared=fed.new_model(), local=LOCAL)
    weights = fed.sizes / fed.sizes.sum()
    expected = weights.to(replies.model.parameters) @ replies.model.parameters
    assert torch.allclose(replies.average().parameters, expected, atol=1e-6)
    assert torch.allclose(replies.average("uniform").parameters, replies.model.parameters.mean(0), atol=1e-6)


def test_the_average_by_groups_leaves_the_models_of_groups_without_clients():
    fed = world()
    replies = fed.run(train, [0, 1, 4], shared=fed.new_model(), local=LOCAL)
    before = fed.new_models(3)
    after = replies.average(by=[2, 0, 2], otherwise=before)
    first, third = fed.sizes[[0, 4]] / fed.sizes[[0, 4]].sum(), replies.model.parameters[[0, 2]]
    assert torch.allclose(after.parameters[0], replies.model.parameters[1], atol=1e-6)
    assert torch.equal(after.parameters[1], before.parameters[1])
    assert torch.allclose(after.parameters[2], first.to(third) @ third, atol=1e-6)
    alike = replies.average("uniform", by=[2, 0, 2], otherwise=before)
    assert torch.allclose(alike.parameters[2], third.mean(0), atol=1e-6)
    nobody = replies.average(by=[-1, -1, -1], otherwise=before)
    assert torch.equal(nobody.parameters, before.parameters)


def test_fedavg_costs_exactly_a_model_down_and_a_model_up_per_client_and_round():
    fed = world()
    result = coterie.FedAvg(rounds=3, participation=0.5, epochs=1).fit(fed)
    parameters = fed.net.parameters.total
    for record in result.rounds:
        assert record["bytes_down"] == record["bytes_up"] == parameters * 4 * 3 * record["round"]
        assert record["bytes_peer"] == 0
    assert result.summary["ledger"]["up"] == {"model": parameters * 4 * 3 * 3}


def test_a_label_histogram_is_counted_under_its_own_name():
    fed = world()
    fed.run(label_histogram)
    assert fed.ledger.by_kind() == {"up": {"label histogram": 6 * 3 * 8}}


def test_scoring_is_counted_apart():
    fed = world()
    result = coterie.Local(rounds=1).fit(fed)
    assert result.rounds[0]["bytes_up"] == result.rounds[0]["bytes_down"] == 0
    assert result.rounds[0]["bytes_evaluation"] > 0


def test_a_shortcut_of_a_simulation_is_not_counted():
    fed = world()
    assert not fed.real
    assert fed.shortcut(label_histogram).label_histogram.shape == (6, 3)
    assert fed.ledger.by_kind() == {}


@pytest.mark.parametrize("says", [True, False])
def test_real_clients_allow_no_shortcut(says):
    class Elsewhere:
        """An engine that says that its clients are real, or says nothing."""

        def __init__(self, inner):
            self._inner = inner
            if says:
                self.real = True

        def __getattr__(self, name):
            if name == "real":
                raise AttributeError(name)
            return getattr(self._inner, name)

    fed = world()
    fed._engine = Elsewhere(fed._engine)
    assert fed.real
    with pytest.raises(CoterieError, match="a shortcut shows what real clients keep from the server"):
        fed.shortcut(label_histogram)


def test_a_client_whose_numbers_are_not_finite_costs_only_itself(caplog):
    fed = world()
    with caplog.at_level(logging.WARNING, logger="coterie"):
        replies = fed.run(stained, shared=fed.new_model())
    assert replies.clients.tolist() == [0, 1, 3, 4, 5]
    assert len(replies.samples) == len(replies.model) == 5
    assert "client 2" in caplog.text


def test_what_a_rejected_client_kept_in_the_round_is_forgotten():
    fed = world()
    fed.run(stained, shared=fed.new_model())
    assert fed.run(mark).mark.tolist() == [1, 1, 0, 1, 1, 1]


def test_a_client_that_keeps_a_model_that_is_not_finite_is_rejected_too(caplog):
    fed = world()
    with caplog.at_level(logging.WARNING, logger="coterie"):
        replies = fed.run(stained_at_home)
    assert replies.clients.tolist() == [0, 1, 3, 4, 5]
    assert not replies.outputs
    assert "client 2" in caplog.text
    assert fed.ledger.total("up") == 0
    assert fed.run(mark).mark.tolist() == [1, 1, 0, 1, 1, 1]
    with pytest.raises(CoterieError, match="no client gave finite numbers"):
        fed.run(stained_at_home, [2])


def test_when_no_client_gives_finite_numbers_the_error_says_so():
    fed = world()
    with pytest.raises(CoterieError, match="no client gave finite numbers"):
        fed.run(stained, [2], shared=fed.new_model())


def test_an_exception_in_a_program_surfaces_with_the_clients_name():
    fed = world()
    with pytest.raises(
        ProgramError, match=r"failing failed on client 3: ZeroDivisionError: of this client's own making"
    ):
        fed.run(failing)


def test_the_guilty_client_is_found_among_many_that_were_computed_together():
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(60, 4)), np.arange(60) % 3)
    fed = coterie.simulate(data, "iid", "mlp", clients=6, engine="vectorised")
    with pytest.raises(ProgramError, match="failed on client 3: ZeroDivisionError"):
        fed.run(failing)


def test_a_program_cannot_read_test_data():
    with pytest.raises(ProgramError, match="test data is for scoring only"):
        world().run(peeking)


def test_a_method_cannot_run_a_scoring_program():
    from coterie.server.scoring import score_client

    with pytest.raises(CoterieError, match="reads test data"):
        world().run(score_client)


def test_a_method_cannot_score_while_it_is_at_work():
    from coterie.server.scoring import score_client

    fed = world()
    with fed.method_at_work(), pytest.raises(CoterieError, match="test data is for scoring only"):
        fed.score(score_client, fed.clients, {}, {}, kept="model")


def test_the_cohort_is_keyed_by_seed_and_round_and_by_nothing_else():
    cohorts = {}
    for seed in (0, 1):
        fed = world(seed=seed)
        for fed.round in (1, 2):
            cohorts[seed, fed.round] = tuple(fed.sample(0.5))
            fed.generator("something else").random(100)
            assert tuple(fed.sample(0.5)) == cohorts[seed, fed.round]
    assert len(set(cohorts.values())) > 1
    assert all(len(set(cohort)) == 3 for cohort in cohorts.values())


def test_clients_that_arrive_late_are_not_there_before():
    fed = world(arrivals={1: 3, 4: 1, 5: 2})
    there = []
    for fed.round in (0, 1, 2, 3):
        there.append(fed.clients.tolist())
    assert there == [[0, 2, 3, 4], [0, 2, 3, 4], [0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_a_late_client_is_scored_from_its_arrival_on_and_counts_its_rounds():
    fed = world(arrivals={5: 3})
    result = coterie.FedAvg(rounds=4, epochs=1).fit(fed)
    assert [client["rounds_taken_part"] for client in result.clients] == [4, 4, 4, 4, 4, 2]
    parameters = fed.net.parameters.total
    assert [record["bytes_up"] // (4 * parameters) for record in result.rounds] == [5, 10, 16, 22]


def test_an_arrival_of_a_client_that_is_not_there_is_an_error():
    with pytest.raises(CoterieError, match="there is no client 6"):
        world(arrivals={6: 2})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fed: fed.run(train, [0, 0], shared=fed.new_model(), local=LOCAL), "asked twice"),
        (lambda fed: fed.run(train, [0], shared=fed.new_model(), lokal=LOCAL), "no input 'lokal'"),
        (lambda fed: fed.run(doubled, [0, 1], each={"number": [1.0]}, shared={"offset": 0.0}), "for 2 clients"),
        (lambda fed: fed.run(train, [], shared=fed.new_model(), local=LOCAL), "no clients"),
        (lambda fed: fed.run(train, [1, 0], each=fed.new_models(2), local=LOCAL), "ascending"),
        (lambda fed: fed.run(mark, shared=fed.new_model()), "takes no inputs"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(call, message):
    with pytest.raises(CoterieError, match=message):
        call(world())


def test_the_schedule_reaches_programs_as_the_rate_of_the_round():
    seen = []

    @program
    def note_rate(clients: Clients, local: LocalTraining):
        seen.append((local.rate, local.schedule))

    fed = world()
    fed.begin(rounds=4)
    for fed.round in (1, 2, 3):
        fed.run(note_rate, [0], local=LocalTraining(rate=0.8, schedule="exponential", rate_decay=0.5))
    assert seen == [(0.8, "constant"), (0.4, "constant"), (0.2, "constant")]


def test_the_server_can_ask_its_own_samples():
    rng = np.random.default_rng(0)
    data = coterie.Dataset(rng.normal(size=(60, 4)), np.arange(60) % 3)
    fed = coterie.simulate(data, "iid", "mlp", clients=4, server_samples=9)
    assert fed.server.samples == 9
    assert int(fed.server.label_counts().sum()) == 9
    predictions = fed.server.predict(fed.new_models(2))
    assert predictions.shape == (2, 9, 3)
    assert fed.ledger.by_kind() == {}


def test_a_server_without_samples_says_so():
    with pytest.raises(CoterieError, match="server_samples"):
        _ = world().server


def test_replies_are_mixed_by_proportions_and_rows_without_weight_stay():
    fed = world()
    fed.begin(1)
    replies = fed.run(train, [0, 2, 3], shared=fed.new_model(), local=LOCAL)
    before = fed.new_models(3)
    weights = torch.tensor([[2.0, 0.0, 6.0], [0.0, 0.0, 0.0], [1.0, 1.0, 2.0]])
    mixed = replies.mixed(weights, before)
    model = replies.model.parameters
    assert torch.allclose(mixed.parameters[0], model[0] / 4 + model[2] * 3 / 4, atol=1e-7)
    assert torch.equal(mixed.parameters[1], before.parameters[1])
    assert torch.allclose(mixed.parameters[2], (model[0] + model[1] + 2 * model[2]) / 4, atol=1e-7)
    assert torch.equal(replies.mixed(torch.zeros(3, 3), before).parameters, before.parameters)
    by = replies.average(by=[1, 1, 1], otherwise=before)
    assert torch.equal(by.parameters[1], replies.average().parameters)
    assert torch.equal(by.parameters[0], before.parameters[0])


def test_if_no_client_answers_the_error_says_of_what():
    fed = lost(uneven(clients=2), 0, 1)
    with pytest.raises(NoAnswerError, match=r"round 0: no client answered \(coterie.programs.label_histogram\)"):
        fed.run(label_histogram)
