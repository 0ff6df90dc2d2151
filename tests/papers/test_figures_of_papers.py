"""Figures that only the records of one paper's method feed."""

import json

import pytest

import coterie.papers  # noqa: F401  registers its kinds of figures
from coterie.papers import page_figures
from coterie.report.figures import kinds
from support.drawn_runs import drawn, lines, stored, with_accuracies


def test_pages_show_those_that_say_what_stands_below():
    shown = page_figures()
    assert {kind.name for kind in shown} == {name for name in kinds if kinds[name].caption}


# Losses and opinions


def test_variances_of_losses_are_drawn_over_rounds():
    runs = {"a": [stored(insights=[{"round": 3, "loss_variance": [0.1, 0.2, 0.4]}]) for _ in range(2)]}
    line = lines(drawn("loss-variance", runs).axes[0])["a"]
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx([0.1, 0.2, 0.4])


def test_losses_of_clients_have_the_colours_of_their_groups():
    sums = [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5], [1.5, 2.5, 3.5]]
    insights = [{"round": number, "cumulative_loss": row} for number, row in enumerate(sums, start=1)]
    run = stored(insights=insights, clients=with_accuracies(1, 1, 1, groups=[0, 1, 0]))
    curves = drawn("losses", {"a": [run]}).axes[0].get_lines()
    assert [line.get_ydata().tolist() for line in curves] == [[1, 0.5], [2, 0.5], [3, 0.5]]  # none after clustering
    assert curves[0].get_color() == curves[2].get_color() != curves[1].get_color()
    curves = drawn("losses", {"a": [run]}, cumulative=True).axes[0].get_lines()
    assert curves[1].get_ydata().tolist() == [2, 2.5]


def test_trust_shows_uncertainty_and_the_sizes_of_lists():
    insights = [
        {"round": 1, "uncertainty": [0.8, None], "chosen": [2, 0]},
        {"round": 2, "uncertainty": [0.4, 0.6], "chosen": [3, 1]},
    ]
    left, right = drawn("trust", {"a": [stored(insights=insights)]}).axes
    assert left.get_lines()[0].get_ydata() == pytest.approx([0.8, 0.5])
    assert right.get_lines()[0].get_ydata() == pytest.approx([1, 2])
    assert right.collections[0].get_paths()[0].vertices[:, 1].max() == 3


def test_trust_of_a_measure_is_all_rounds_at_once(tmp_path):
    details = {"uncertainty": [[0.9, 0.7], [0.5, 0.3]], "chosen": [[1, 1], [2, 4]]}
    (tmp_path / "details.json").write_text(json.dumps(details))
    left, right = drawn("trust", {"a": [stored(path=tmp_path)]}).axes
    assert left.get_lines()[0].get_ydata() == pytest.approx([0.8, 0.4])
    assert right.get_lines()[0].get_xdata().tolist() == [1, 2]


# Clusters


def test_the_highest_silhouette_has_a_ring():
    insights = [{"round": 1, "silhouette": [[2, 0.3], [3, 0.7], [4, 0.5]]}]
    axes = drawn("silhouette", {"a": [stored(insights=insights)]}).axes[0]
    assert lines(axes)["a"].get_xdata().tolist() == [2, 3, 4]
    ring = axes.get_lines()[1]
    assert (ring.get_xdata().tolist(), ring.get_ydata().tolist()) == ([3], [0.7])


def test_a_silhouette_of_a_measure_is_a_mean_over_seeds(tmp_path):
    runs = []
    for seed, scores in enumerate([[0.2, 0.4, 0.9], [0.4, 0.6]]):
        (tmp_path / str(seed)).mkdir()
        details = {"k": list(range(2, 2 + len(scores))), "silhouettes": scores}
        (tmp_path / str(seed) / "details.json").write_text(json.dumps(details))
        runs.append(stored(seed=seed, path=tmp_path / str(seed)))
    line = lines(drawn("silhouette", {"a": runs}).axes[0])["a"]
    assert line.get_xdata().tolist() == [2, 3]  # what all seeds have tried
    assert line.get_ydata() == pytest.approx([0.3, 0.5])
