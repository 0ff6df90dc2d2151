"""Sentences that say what runs come to: each says what is in the records, and no more than they show."""

import numpy as np
import pytest

from coterie.report.verdict import leader, verdict
from coterie.runs.folder import StoredRun


def run(name, accuracies, seed=0, samples=100, **summary):
    """A stored run in which clients have these accuracies."""
    clients = [
        {"client": f"c{number}", "samples": 50, "test_samples": samples, "true_group": None, "accuracy": value}
        for number, value in enumerate(accuracies)
    ]
    facts = {
        "method": name,
        "seed": seed,
        "clients": len(clients),
        "rounds": 10,
        "bytes_up": 0 if name == "local" else 40_000 * len(clients),
        "bytes_down": 0,
        "bytes_peer": 0,
        "accuracy_worst_tenth": min(accuracies),
    }
    settings = {"method": {"name": name}, "data": {"name": "digits"}, "split": {"name": "iid"}, "seed": seed}
    return StoredRun(None, settings, {**facts, **summary}, [], clients, [], [])


def said(*runs, **more):
    named = {}
    for one in runs:
        named.setdefault(one.settings["method"]["name"], []).append(one)
    return verdict(named, **more)


LOW, HIGH = [0.5, 0.52, 0.48, 0.5, 0.51, 0.49], [0.8, 0.81, 0.78, 0.8, 0.79, 0.82]


def test_who_is_ahead_is_said_with_its_lead_and_how_sure_that_is():
    first, *_ = said(run("fedavg", LOW), run("ifca", HIGH))
    assert first.startswith("`ifca` serves clients best: accuracy 80.0 % on average, 30.0 points ahead of `fedavg` (")
    low, _, high = first.partition("(")[2].partition(" over")[0].partition(" to ")
    gained = 100 * (np.array(HIGH) - np.array(LOW))
    reach = 2.5706 * gained.std(ddof=1) / np.sqrt(6)  # Student's t with five degrees of freedom
    assert (float(low), float(high)) == pytest.approx((30 - reach, 30 + reach), abs=0.051)
    assert first.endswith("The tenth of its clients that fare worst have 78.0 %.")


def test_a_lead_that_may_be_chance_is_called_so():
    first, *_ = said(run("fedavg", [0.5, 0.7, 0.5, 0.7]), run("ifca", [0.7, 0.5, 0.52, 0.72]))
    assert "`ifca` is 1.0 points ahead of `fedavg`, which may be chance (" in first


def test_the_leader_is_the_one_with_the_higher_mean_and_of_losses_the_lower():
    from coterie.report.score import Score

    runs = {"a": [run("local", LOW)], "b": [run("fedavg", HIGH)]}
    assert leader(runs) == "b"
    for some in runs.values():
        for client in some[0].clients:
            client["loss"] = client["accuracy"]
    assert leader(runs, Score("loss")) == "a"
    assert leader({}) == ""


def test_who_gains_over_training_alone_is_counted_and_who_clearly_loses_is_named():
    sentences = said(run("local", [0.5, 0.5, 0.9, 0.5, 0.7]), run("ifca", [0.8, 0.9, 0.6, 0.51, 0.69]))
    (told,) = [one for one in sentences if "training alone" in one]
    # With 100 samples 0.9 to 0.6 is more than chance, 0.7 to 0.69 is not; so are 0.5 to 0.8 and 0.9, not to 0.51.
    assert told == (
        "`ifca` gives 3 of 5 clients more than training alone, 2 of them by more than chance; "
        "2 get less, 1 of them by more than chance: client c2."
    )


def test_without_training_alone_nothing_is_said_of_what_it_pays():
    sentences = said(run("fedavg", LOW), run("ifca", HIGH))
    assert "Whether it pays to take part is not known: `local`, training alone, is not among these runs." in sentences


def test_where_training_alone_is_best_it_says_that_no_method_pays():
    sentences = said(run("fedavg", LOW), run("local", HIGH))
    assert "On average no method among these serves clients better than training alone." in sentences
    assert "`local` sends nothing. A client gives away nothing but whether its training went well." in sentences


def test_many_names_are_not_listed():
    before, after = [0.9] * 8 + [0.1] * 9, [0.5] * 8 + [0.9] * 9
    (told,) = [one for one in said(run("local", before), run("ifca", after)) if "training alone" in one]
    assert told.endswith("client c0, client c1, client c2, client c3, client c4 and 3 more.")


@pytest.mark.parametrize(("seeds", "words"), [(1, "one seed"), (2, "2 seeds"), (3, None)])
def test_few_seeds_are_said_to_be_few(seeds, words):
    runs = [run(name, values, seed) for name, values in (("fedavg", LOW), ("ifca", HIGH)) for seed in range(seeds)]
    told = [one for one in said(*runs) if one.startswith("The order of methods")]
    assert told == ([] if words is None else [f"The order of methods is of {words}: another draw of data and first "
                                              "models may change it."])  # fmt: skip


def test_how_sure_a_client_s_score_is_depends_on_its_test_samples():
    few, many = (said(run("ifca", [0.5] * 4, samples=samples)) for samples in (16, 1600))
    # Wilson's interval: about 2 standard errors of a half, 22 points for 16 samples and 2.4 for 1600.
    assert "A client is tested on 16 samples: a single client's score is sure to about ± 22.0 points." in few
    assert "A client is tested on 1600 samples: a single client's score is sure to about ± 2.4 points." in many


def test_groups_are_of_the_best_method_or_of_the_one_that_finds_them_best():
    found = {"groups": 3, "ari": 0.5, "placed_right": 4}
    assert "`ifca` finds 3 groups: 4 of 6 clients are where they belong." in said(run("ifca", HIGH, **found))
    told = said(run("ifca", LOW, **found), run("fedavg", HIGH))
    assert any(one.startswith("Who belongs together is found best by another method: `ifca` finds 3") for one in told)


def test_what_it_costs_stands_beside_one_model_for_all():
    told = said(run("fedavg", LOW), run("ifca", HIGH, bytes_down=600_000))[-1]
    assert told.startswith("`ifca` moves 14.0 kB a client and round, 840.0 kB in all, 3.5 times one model for all.")
    assert "A client gives away" in told


def test_runs_in_other_worlds_are_not_compared():
    other = run("ifca", HIGH)
    other.settings["split"] = {"name": "dirichlet"}
    told = verdict({"fedavg": [run("fedavg", LOW)], "ifca": [other]})
    assert [one.partition(" clients get")[0] for one in told] == ["With `fedavg`", "With `ifca`"]
    many = {}
    for number in range(5):
        many[str(number)] = [run("ifca", HIGH)]
        many[str(number)][0].settings["split"] = {"name": "dirichlet", "alpha": number}
    assert verdict(many) == ["These runs are of 5 data sets or splits: the table below has the best of each."]


def test_runs_without_scores_of_clients_have_no_verdict():
    unscored = run("ifca", HIGH)
    for client in unscored.clients:
        client["accuracy"] = None
    assert verdict({"ifca": [unscored]}) == []
