"""FedAvg with fine-tuning: its rounds are FedAvg's, and what a client predicts with is tuned on its own data alone."""

import pytest

import coterie
from coterie.core.errors import SettingsError
from coterie.training.local import LocalTraining
from support.federations import opposed
from support.worked_examples import normed, same, unequal


@pytest.mark.parametrize("net", ["mlp", normed])
def test_its_rounds_are_fedavgs_to_the_last_bit(net):
    fed = unequal(net=net)
    options = {"rounds": 3, "participation": 0.5, "server_momentum": 0.5}
    tuned, plain = coterie.FedAvgFT(**options).fit(fed), coterie.FedAvg(**options).fit(fed)
    assert same(tuned.state.model, plain.state.model)
    assert [one["steps"] for one in tuned.clients] == [one["steps"] for one in plain.clients]
    assert tuned.summary["ledger"]["up"] == plain.summary["ledger"]["up"]
    assert tuned.summary["loss_mean"] != plain.summary["loss_mean"]


def test_without_tuning_it_is_fedavg_in_everything():
    fed = unequal()
    tuned, plain = coterie.FedAvgFT(rounds=2, tune_epochs=0.0).fit(fed), coterie.FedAvg(rounds=2).fit(fed)
    assert tuned.served.adapt == ()
    assert [one["loss"] for one in tuned.clients] == [one["loss"] for one in plain.clients]


def test_probing_comes_first_and_is_of_the_head_alone():
    made = coterie.FedAvgFT(rounds=1, probe_epochs=2.0, tune_epochs=3.0, tune_rate=0.02, steps=7, schedule="cosine")
    probing, tuning = made.fit(unequal()).served.adapt
    expected = {"steps": None, "rate": 0.02}
    assert probing == ("head", LocalTraining(epochs=2.0, **expected))
    assert tuning == ("all", LocalTraining(epochs=3.0, **expected))


def test_what_is_scored_is_the_tuned_model():
    # By hand: adapt the global model in the stages that are served, and score that.
    fed = unequal(net=normed)
    result = coterie.FedAvgFT(rounds=2, probe_epochs=2.0, tune_epochs=1.0).fit(fed)
    (head, probe), (part, tune) = result.served.adapt

    @coterie.program
    def tuned(clients, start):
        probed = clients.adapt(start, probe, head, 0)
        return {"model": clients.adapt(probed, tune, part, 1)}

    models = fed.run(tuned, shared=result.state.model).model
    scored = fed.score(coterie.server.scoring.score_client, fed.clients, {"models": models}, {})
    assert [client["loss"] for client in result.clients] == pytest.approx(scored.loss.tolist(), abs=1e-12)
    del coterie.clients.programs.programs[tuned.name]


def test_tuning_serves_opposed_groups_better_than_one_model():
    fed = opposed()
    options = {"rounds": 10, "batch": 0, "steps": 10}
    tuned = coterie.FedAvgFT(tune_epochs=30.0, **options).fit(fed)
    plain = coterie.FedAvg(**options).fit(fed)
    assert tuned.summary["accuracy_mean"] > plain.summary["accuracy_mean"] + 0.1


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="tune_epochs=-1"):
        coterie.FedAvgFT(tune_epochs=-1.0)
    with pytest.raises(SettingsError, match="has no layer 'hat'"):
        coterie.FedAvgFT(rounds=1, tunes="hat").fit(unequal())
