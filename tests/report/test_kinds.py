"""Kinds of figures: what is drawn is what runs recorded, options are checked, and what is missing is said."""

import re
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection

from coterie.core.errors import SettingsError
from coterie.core.registry import options
from coterie.papers import recipes
from coterie.report.figures import NotRecordedError, Plot, asked, draw, kinds, save, style, svg
from coterie.report.figures.records import gains, setting
from coterie.runs.folder import StoredRun
from coterie.studies.campaign import Results
from coterie.studies.study import FigureSpec
from support.drawn_runs import drawn, evaluated, images, lines, stored, titles, with_accuracies

# Of all kinds

EXAMPLE = {"sweep": {"x": "mu"}}
KINDS = (
    *("bars", "curves", "gain", "images", "labels", "loss-variance", "losses", "matrix", "mixing", "pca", "ranked"),
    *("silhouette", "spread", "sweep", "trust"),
)


def test_these_kinds_exist():
    assert tuple(kinds) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_says_what_it_means(kind):
    assert kinds[kind].__doc__
    assert all(option.help.endswith(".") for option in options(kinds[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_option_is_refused(kind):
    with pytest.raises(SettingsError, match=f"option of the kind of figure {kind} 'colour'"):
        kinds.make(kind, **EXAMPLE.get(kind, {}), colour="red")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("labels", "pca")])
def test_runs_without_a_record_are_an_error_that_says_so(kind):
    with pytest.raises(NotRecordedError, match=f"^{kind}: no run"):
        kinds.make(kind, **EXAMPLE.get(kind, {})).draw({"a": [stored()]})


@pytest.mark.parametrize("kind", ["labels", "pca"])
def test_a_split_is_not_shown_without_its_data(kind):
    run = stored()
    run.settings["data"] = {"name": "nowhere.npz"}
    with pytest.raises(NotRecordedError, match="its data is needed to show the split"):
        kinds.make(kind).draw({"a": [run]})


@pytest.mark.parametrize(
    ("kind", "told", "message"),
    [
        ("curves", {"over": "money"}, "over 'money'"),
        ("curves", {"smooth": 1.0}, r"smooth=1\.0: from 0"),
        ("curves", {"key": "acuracy_mean"}, "'acuracy_mean'.*accuracy_mean"),
        ("curves", {"band": "clients", "key": "loss_mean"}, "worst and best client are not recorded"),
        ("sweep", {"x": "mu", "value": "best(accuracy)"}, "best"),
        ("matrix", {"round": 0}, "round=0: counted from 1"),
        ("matrix", {"seed": -1}, "seed=-1: counted from 0"),
        ("images", {"clients": 0}, "clients=0: at least 1"),
        ("losses", {"seed": -1}, "seed=-1: counted from 0"),
        ("mixing", {"rounds": [0, 3]}, r"rounds=\[0, 3\]: counted from 1"),
        ("spread", {"of": ["loss"]}, "of='loss': a metric, or global_METRIC; metrics are accuracy, "),
        ("pca", {"of": "dreams"}, "of 'dreams'"),
        ("bars", {"value": 3}, "value=3: expected a text"),
        ("bars", {"value": "acuracy_mean"}, "'acuracy_mean'.*accuracy_mean"),
    ],
)
def test_options_are_checked(kind, told, message):
    with pytest.raises(SettingsError, match=message):
        kinds.make(kind, **told)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figures_are_written_in_both_forms(tmp_path, ending):
    figure = drawn("curves", {"a": [stored(rounds=evaluated(0.1, 0.2))]})
    save(figure, tmp_path / f"x.{ending}")
    assert (tmp_path / f"x.{ending}").stat().st_size > 1000


def everything():
    """A run that has something for every kind but for images."""
    insight = {
        "round": 2,
        "distance": np.eye(6).tolist(),
        "mixing": (np.ones((6, 6)) / 6).tolist(),
        "clusters": [0] * 6,
        "uncertainty": [0.5] * 6,
        "chosen": [2] * 6,
        "cumulative_loss": [1.0] * 6,
        "loss_variance": [0.1, 0.2],
        "label_shares": np.eye(6).tolist(),
        "silhouette": [[2, 0.1], [3, 0.2]],
    }
    clients = with_accuracies(*[0.5] * 6, groups=[0, 0, 0, 1, 1, 1])
    summary = {"accuracy_min": 0.2, "accuracy_mean": 0.5, "accuracy_max": 0.9}
    return {"rounds": evaluated(0.1, 0.2), "clients": clients, "insights": [insight], "summary": summary, "mu": 1.0}


@pytest.mark.parametrize("count", [2, 7])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "images"])
def test_titles_are_inside_of_the_figure_and_over_nothing_else(kind, count):
    methods = ("local", "fedavg", "ifca", "cafa", "cfic", "slfed", "ditto")[:count]
    runs = {f"method {name} with a name": [stored(name, **everything())] for name in methods}
    title = (
        "A title that is so long that no figure of a usual width could have all of it in a single line, CIFAR10, IID"
    )
    figure = drawn(kind, runs, title, **EXAMPLE.get(kind, {}))
    figure.draw_without_rendering()
    shown = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
    shown = [text for text in [*shown, figure._suptitle] if text is not None and text.get_text()]
    assert "A title that" in "".join(text.get_text() for text in shown).replace("\n", " ")
    for text in shown:
        box = text.get_window_extent()
        assert box.x1 <= figure.bbox.x1 + 1, text.get_text()
        assert box.y1 <= figure.bbox.y1 + 1
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
        for legend in legends if text is not figure._suptitle else figure.legends:
            assert not box.overlaps(legend.get_window_extent()), text.get_text()


@pytest.mark.parametrize("beside", [1, 7])
def test_titles_are_broken_only_where_they_must_be_and_only_between_words(beside):
    runs = {f"method {number}": [stored(rounds=evaluated(0.1, 0.2))] for number in range(beside)}
    short = "Accuracy over local steps, CIFAR10, NonIID-La-Im"
    assert titles(drawn("curves", runs, short)) == [short]  # over the legend too
    long = " ".join(["Accuracy", *["NonIID-La-Im"] * 9])
    (broken,) = titles(drawn("curves", runs, long))
    assert broken.split() == long.split()
    assert 1 < len(broken.splitlines()) < 4


# Curves


def test_curves_are_means_with_a_deviation_over_seeds():
    runs = {"a": [stored(rounds=evaluated(0.1, 0.3)), stored(seed=1, rounds=evaluated(0.3, 0.5, 0.7))]}
    axes = drawn("curves", runs).axes[0]
    assert lines(axes)["a"].get_xdata().tolist() == [1, 2]  # what all seeds have
    assert lines(axes)["a"].get_ydata() == pytest.approx([20, 40])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    deviation = 10 * np.sqrt(2)
    assert (band.min(), band.max()) == pytest.approx((20 - deviation, 40 + deviation))


def test_curves_go_from_the_worst_client_to_the_best():
    axes = drawn("curves", {"a": [stored(rounds=evaluated(0.2, 0.4))]}, band="clients").axes[0]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((10, 60))


@pytest.mark.parametrize(
    ("over", "places"), [("bytes", [30, 60]), ("seconds", [0.5, 1]), ("steps", [7, 7]), ("rounds", [1, 2])]
)
def test_curves_go_over_what_it_cost(over, places):
    run = stored(rounds=evaluated(0.2, 0.4, steps_mean=7))
    assert lines(drawn("curves", {"a": [run]}, over=over).axes[0])["a"].get_xdata().tolist() == places


def test_curves_over_steps_need_them():
    with pytest.raises(NotRecordedError, match="curves over steps: the rounds do not tell"):
        kinds.make("curves", over="steps").draw({"a": [stored(rounds=evaluated(0.2))]})


def test_curves_on_a_logarithmic_axis_leave_out_what_cost_nothing():
    free = stored("local", rounds=evaluated(0.2, bytes_up=0, bytes_down=0))
    axes = drawn("curves", {"free": [free], "a": [stored(rounds=evaluated(0.2, 0.3))]}, over="bytes", log=True).axes[0]
    assert set(lines(axes)) == {"a"}
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize(("last", "labels"), [(60, {"50 B"}), (6e6, {"1 kB", "1 MB"})])
def test_logarithmic_axes_have_plain_numbers(last, labels):
    records = evaluated(0.1, 0.2)
    records[-1]["bytes_up"], records[-1]["bytes_down"] = last, 0
    figure = drawn("curves", {"a": [stored(rounds=records)]}, over="bytes", log=True)
    shown = set(re.findall(r">([^<]*B)</text>", svg(figure)))
    assert labels <= shown
    assert not any("$" in text for text in shown)
    assert "mathdefault" not in svg(figure)


def test_other_logarithmic_axes_have_plain_numbers_too():
    runs = [stored("fedprox", mu=mu, summary={"accuracy_mean": 0.5}) for mu in (0.001, 0.1)]
    variances = {"a": [stored(insights=[{"round": 2, "loss_variance": [0.02, 0.03]}])]}
    assert ">0.01</text>" in svg(drawn("sweep", {"a": runs}, x="mu", log=True))
    assert "mathdefault" not in svg(drawn("loss-variance", variances, log=True))


def test_smoothing_is_weighted_by_time():
    # Round 3 counts 1, and round 1 a quarter, as a value fades by half with each of two rounds: (0 / 4 + 1) / 1.25.
    records = [{**record, "round": number} for record, number in zip(evaluated(0.0, 1.0), (1, 3), strict=True)]
    axes = drawn("curves", {"a": [stored(rounds=records)]}, smooth=0.5).axes[0]
    assert lines(axes)["a"].get_ydata() == pytest.approx([0, 80])


# Who is like whom

DISTANCE = [[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]]


def test_a_matrix_is_ordered_by_group():
    run = stored(insights=[{"round": 1, "distance": DISTANCE}], clients=with_accuracies(1, 1, 1, groups=[0, 1, 0]))
    figure = drawn("matrix", {"a": [run]}, title="Far apart")
    order = [0, 2, 1]
    assert images(figure)[0].tolist() == np.array(DISTANCE)[np.ix_(order, order)].tolist()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["c0", "c2", "c1"]
    assert titles(figure) == ["Far apart"]
    plain = drawn("matrix", {"a": [run]}, order="none")
    assert images(plain)[0].tolist() == DISTANCE


def test_a_matrix_is_ordered_by_the_groups_found():
    run = stored(insights=[{"round": 1, "distance": DISTANCE, "clusters": [1, 0, 1]}])
    found = images(drawn("matrix", {"a": [run]}, order="found"))[0]
    assert found.tolist() == np.array(DISTANCE)[np.ix_([1, 0, 2], [1, 0, 2])].tolist()


def test_a_matrix_is_that_of_a_round_and_seed():
    first = [{"round": 2, "similarity": [[1, 0.2], [0.2, 1]]}, {"round": 4, "similarity": [[1, 0.4], [0.4, 1]]}]
    second = [{"round": 4, "similarity": [[1, None], [None, 1]]}]
    runs = {"a": [stored(insights=first), stored(seed=1, insights=second)]}
    assert images(drawn("matrix", runs, round=3))[0][0, 1] == 0.2
    assert images(drawn("matrix", runs, of="similarity"))[0][0, 1] == 0.4
    assert images(drawn("matrix", runs, seed=1))[0].mask[0, 1]  # not known
    with pytest.raises(NotRecordedError, match="no run recorded distance"):
        kinds.make("matrix", of="distance").draw(runs)


def test_matrices_of_several_runs_have_a_panel_each():
    runs = {name: [stored(insights=[{"round": 1, "distance": DISTANCE}])] for name in ("a", "b", "c", "d")}
    figure = drawn("matrix", runs, title="All", same_scale=True)
    assert len(images(figure)) == 4
    assert titles(figure) == ["a", "b", "c", "d"]
    assert figure.get_suptitle() == "All"


def shares_run():
    shares = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    insights = [{"round": 1, "label_shares": shares, "clusters": [0, 1, 0, -1]}]
    return stored(insights=insights, clients=with_accuracies(1, 1, 1, 1, groups=[0, 1, 0, 1]))


def test_labels_are_dots_by_client_and_label():
    axes = drawn("labels", {"a": [shares_run()]}).axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[0, 0], [1, 0], [2, 1], [3, 1]]  # in the order of groups
    assert "100 % of a client's samples" in axes.get_title(loc="left").replace("\n", " ")


def test_labels_of_runs_with_the_same_clients_are_drawn_once():
    assert len(drawn("labels", {"a": [shares_run()], "b": [shares_run()]}).axes) == 1


def test_labels_in_counts_and_in_shares_are_the_same():
    counted = shares_run()
    counted.insights[0]["label_shares"] = [[3, 0], [0, 3], [3, 0], [0, 3]]
    assert len(drawn("labels", {"a": [shares_run()], "b": [counted]}).axes) == 1
    counted.insights[0]["label_shares"][0] = [1, 2]
    assert len(drawn("labels", {"a": [shares_run()], "b": [counted]}).axes) == 2


@pytest.mark.parametrize("real", ["task", "app"])
def test_labels_of_real_sites_are_theirs(real):
    run = stored()
    run.settings[real] = {}
    with pytest.raises(NotRecordedError, match="real sites keep their labels to themselves"):
        kinds.make("labels").draw({"a": [run]})


def test_labels_that_nobody_recorded_are_those_of_the_split(tmp_path):
    from coterie.runs.settings import Settings

    settings = Settings.of({"clients": 3, "limit": 90, "net": "logistic"}, "fedavg")[0]
    run = StoredRun(tmp_path, settings.resolved().table(), {}, [], [], [])
    axes = drawn("labels", {"a": [run]}).axes[0]
    counts = settings.world.population.label_counts()
    assert len(axes.collections[0].get_offsets()) == (counts > 0).sum()
    assert f"largest dot: {counts.max()} samples" in axes.get_title(loc="left")


def test_labels_are_those_of_clients_that_arrive_late_too(tmp_path):
    from coterie.runs.settings import Settings

    given = {"clients": 3, "limit": 90, "net": "logistic", "rounds": 120, "arrivals": "2:60"}
    table = Settings.of(given, "fedavg")[0].resolved().table()
    assert table["arrivals"] == {"2": 60}
    assert len(drawn("labels", {"a": [StoredRun(tmp_path, table, {}, [], [], [])]}).axes) == 1


def test_runs_whose_labels_are_not_known_are_left_out():
    real = stored()
    real.settings["task"] = {}
    assert len(drawn("labels", {"a": [real], "b": [shares_run()]}).axes) == 1


def test_clients_are_shown_before_and_after_clustering():
    before, after = drawn("pca", {"a": [shares_run()]}).axes
    # Two kinds of clients on a line through both labels, half the square root of 2 to either side.
    assert np.abs(lines(before)["group 0"].get_xdata()) == pytest.approx([np.sqrt(0.5)] * 2)
    apart = lines(before)["group 0"].get_xdata()[0] - lines(before)["group 1"].get_xdata()[0]
    assert abs(apart) == pytest.approx(np.sqrt(2))
    assert lines(before)["group 0"].get_ydata() == pytest.approx([0, 0], abs=1e-12)
    assert {name: len(line.get_xdata()) for name, line in lines(after).items()} == {
        "cluster 0": 2,
        "cluster 1": 1,
        "no cluster": 1,
    }
    assert before.get_xlabel() == "component 1 (100 % of the variance)"


def test_mixing_is_what_was_recorded_in_some_rounds():
    insights = [{"round": n, "mixing": [[1 - n / 10, n / 10], [0.5, 0.5]]} for n in (1, 2, 3, 4, 5)]
    run = stored(rounds=evaluated(*[0.1] * 5), insights=insights)
    shown = images(drawn("mixing", {"a": [run]}))
    assert [round(float(image[0, 1] ** 2), 6) for image in shown[:3]] == [0.1, 0.3, 0.5]  # colours go by roots
    assert len(images(drawn("mixing", {"a": [run], "b": [run]}, rounds=[2, 4]))) == 4


def test_mixing_inside_of_groups_is_by_samples():
    groups = [{"round": 1, "groups": [0, 0, 0]}, {"round": 3, "groups": [0, 1, 0]}]
    run = stored(rounds=evaluated(*[0.1] * 4), groups=groups, clients=with_accuracies(1, 1, 1))
    first, second = images(drawn("mixing", {"a": [run]}, rounds=[2, 4], order="none"))
    assert first.data[0] ** 2 == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert second.data[0] ** 2 == pytest.approx([1 / 4, 0, 3 / 4])
    assert second.data[1] ** 2 == pytest.approx([0, 1, 0])


# What came out


def test_a_sweep_is_ordered_by_the_option():
    runs = [
        stored("fedprox", seed, mu=mu, summary={"accuracy_mean": mu / 10 + seed / 10})
        for mu in (1.0, 0.1, 0.5)
        for seed in (0, 1)
    ]
    container = drawn("sweep", {"a": runs}, x="mu").axes[0].containers[0]
    line, _, (bars,) = container.lines
    assert line.get_xdata().tolist() == [0.1, 0.5, 1]
    assert line.get_ydata() == pytest.approx([6, 10, 15])
    low, high = bars.get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 10 / np.sqrt(2))


def test_a_sweep_over_words_has_them_on_its_axis():
    runs = [stored(schedule=word, summary={"accuracy_mean": 0.5}) for word in ("cosine", "constant")]
    axes = drawn("sweep", {"a": runs}, x="schedule").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["constant", "cosine"]


def test_a_setting_is_found_in_its_part():
    run = stored(alpha=2)
    assert setting(run, "alpha") == 2  # the method's goes first
    assert setting(run, "split.alpha") == 0.5
    assert setting(run, "net") == "mlp"
    assert setting(run, "colour") is None


def test_bars_are_means_with_their_numbers():
    runs = {"a": [stored(seed=s, summary={"accuracy_mean": 0.5 + s / 10}) for s in (0, 1)], "none": [stored()]}
    axes = drawn("bars", runs).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([55])
    assert [text.get_text() for text in axes.texts] == ["55"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a"]


def test_bars_can_be_any_statistic():
    runs = {"a": [stored(rounds=evaluated(0.2, 0.6, 0.7))], "b": [stored(rounds=evaluated(0.7, 0.6, 0.7))]}
    bars = drawn("bars", runs, value="rounds_to(accuracy_mean, 0.65)").axes[0].patches
    assert [bar.get_width() for bar in bars] == [3, 1]


def test_spread_goes_from_the_worst_client_to_the_best():
    summary = {"accuracy_min": 0.2, "accuracy_mean": 0.5, "accuracy_max": 0.9}
    more = summary | {f"global_{key}": value / 2 for key, value in summary.items()}
    figure = drawn("spread", {"a": [stored(summary=summary)], "b": [stored(summary=more)]})
    own, globally = (one.get_segments() for one in figure.axes[0].collections if isinstance(one, LineCollection))
    assert [segment[:, 0].tolist() for segment in own] == [[20, 90], [20, 90]]
    assert globally[0][:, 0].tolist() == [10, 45]
    means = [one.get_offsets()[:, 0].tolist() for one in figure.axes[0].collections if isinstance(one, PathCollection)]
    assert means[2::3] == [[50, 50], [25]]
    assert [*lines(figure.axes[0])] == ["own test data", "global test set"]


def values(gained):
    return {name: one.value for name, one in gained.items()}


def test_gain_is_over_the_same_client_with_the_same_seed():
    runs = {
        "alone": [
            stored("local", 0, clients=with_accuracies(0.5, 0.4)),
            stored("local", 1, clients=with_accuracies(0.1)),
        ],
        "ours": [stored("ifca", 0, clients=with_accuracies(0.6, 0.2)), stored("ifca", 1, clients=with_accuracies(0.4))],
    }
    figure = drawn("gain", runs)
    assert titles(figure) == ["Gain over alone"]  # FedAvg was not run
    assert lines(figure.axes[0])["ours"].get_ydata() == pytest.approx([20, -20])
    assert values(gains(runs["ours"], runs["alone"])) == pytest.approx({"c0": 0.2, "c1": -0.2})


def test_gain_over_another_world_is_none():
    other = stored("local", clients=with_accuracies(0.5))
    other.settings["split"] = {"name": "iid", "alpha": 0.1}
    assert gains([stored("ifca", clients=with_accuracies(0.6))], [other]) == {}
    fast = stored("local", clients=with_accuracies(0.5), rate=3.0)
    assert values(gains([stored("ifca", clients=with_accuracies(0.6))], [fast])) == pytest.approx({"c0": 0.1})


def test_gain_over_a_method_with_other_options_has_a_panel_for_each():
    runs = {
        "fedavg, rate=0.1": [stored("fedavg", rate=0.1, clients=with_accuracies(0.5))],
        "fedavg, rate=9": [stored("fedavg", rate=9, clients=with_accuracies(0.1))],
        "ifca": [stored("ifca", clients=with_accuracies(0.6))],
    }
    for order in (runs, dict(reversed(runs.items()))):
        figure = drawn("gain", order)
        found = {title: lines(axes) for title, axes in zip(titles(figure), figure.axes, strict=True)}
        assert {title: [*curves] for title, curves in found.items()} == {
            "Gain over fedavg, rate=0.1": ["ifca"],
            "Gain over fedavg, rate=9": ["ifca"],
        }
        assert found["Gain over fedavg, rate=0.1"]["ifca"].get_ydata() == pytest.approx([10])
        assert found["Gain over fedavg, rate=9"]["ifca"].get_ydata() == pytest.approx([50])


def test_gain_over_a_method_that_each_world_has_once_is_one_panel():
    runs = {}
    for alpha in (0.1, 0.5):
        for name in ("fedavg", "ifca"):
            run = stored(name, clients=with_accuracies(alpha + 0.2 * (name == "ifca")))
            run.settings["split"] = {"name": "dirichlet", "alpha": alpha}
            runs[f"{name}, alpha={alpha}"] = [run]
    figure = drawn("gain", runs)
    assert titles(figure) == ["Gain over fedavg"]
    found = {name: line.get_ydata() for name, line in lines(figure.axes[0]).items()}
    assert found == {"ifca, alpha=0.1": pytest.approx([20]), "ifca, alpha=0.5": pytest.approx([20])}


def test_gains_leave_out_who_was_not_scored():
    ours = [stored("ifca", clients=with_accuracies(0.6, None, 0.9))]
    assert values(gains(ours, [stored("local", clients=with_accuracies(0.5, 0.5))])) == pytest.approx({"c0": 0.1})


def test_a_gain_from_few_samples_is_hollow_and_one_from_many_is_not():
    now, before = with_accuracies(0.6, 0.6, 0.6), with_accuracies(0.5, 0.5, 0.5)
    for client, other, samples in zip(now, before, (10, 1000, None), strict=True):
        client["test_samples"] = other["test_samples"] = samples
    few, many, unknown = gains([stored("ifca", clients=now)], [stored("local", clients=before)]).values()
    assert not few.clear
    assert many.clear
    assert unknown.ends is None
    assert not unknown.clear
    figure = drawn("gain", {"ifca": [stored("ifca", clients=now)], "local": [stored("local", clients=before)]})
    (hollow,) = [line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"]
    assert hollow.get_xdata() == pytest.approx([0])
    (bars,) = figure.axes[0].collections
    shown = [segment[:, 1] for segment in bars.get_segments()]
    assert shown == [pytest.approx([100 * end for end in one.ends]) for one in (few, many)]


def test_every_method_is_in_the_legend_of_gains():
    runs = {name: [stored(name, clients=with_accuracies(0.5, 0.6))] for name in ("local", "fedavg", "ifca", "cafa")}
    figure = drawn("gain", runs)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["fedavg", "ifca", "cafa", "local"]
    assert titles(figure) == ["Gain over local", "Gain over fedavg"]


# Of studies


@dataclass
class Described:
    """As much of a study as figures look at."""

    axes: dict = field(default_factory=lambda: {"data": {"X": {}, "Y": {}}, "beta": {"1": {}, "2": {}}, "method": {}})


def results(**methods):
    runs = {
        (data, beta, name): [stored(method, rounds=evaluated(0.5), beta=int(beta), summary={"accuracy_mean": 0.5})]
        for data in ("X", "Y")
        for beta in ("1", "2")
        for name, method in methods.items()
    }
    return Results(Described(), 1, {**runs, ("Y", "2", "M"): []}, {})


def test_a_study_gets_a_figure_for_each_combination():
    found = draw(FigureSpec("Curves", "curves", by=("data",)), results(M="ifca", N="fedavg"))
    assert [name for name, _ in found] == ["Curves, X", "Curves, Y"]
    assert list(lines(found[0][1].axes[0])) == ["1, M", "1, N", "2, M", "2, N"]
    assert list(lines(found[1][1].axes[0])) == ["1, M", "1, N", "2, N"]  # one was not run


def test_a_study_shows_what_it_is_asked_for():
    spec = FigureSpec("Curves", "curves", by=("data", "beta"), where={"data": "x", "method": "N*"})
    found = draw(spec, results(M="ifca", N="fedavg"))
    assert [name for name, _ in found] == ["Curves, X, 1", "Curves, X, 2"]
    assert list(lines(found[0][1].axes[0])) == ["N"]


def test_a_sweep_of_a_study_goes_over_its_axis():
    spec = FigureSpec("Sweep", "sweep", by=("data",), options={"x": "beta", "over": "beta"})
    (_, figure), _ = draw(spec, results(M="ifca", N="fedavg"))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    assert labels == ["M", "N"]
    assert handles[0].lines[0].get_xdata().tolist() == [1, 2]


def test_a_figure_without_records_is_left_out_with_a_word(caplog):
    caplog.set_level("INFO")
    assert draw(FigureSpec("Trust", "trust"), results(M="ifca")) == []
    assert "Trust: not drawn (trust: no run recorded opinions" in caplog.text


def test_recipes_ask_for_figures_that_exist():
    for name in recipes.names():
        for spec in recipes.recipe(name).figures:
            asked(spec)


def test_a_wrong_option_of_a_study_is_refused():
    with pytest.raises(SettingsError, match="smooth=2"):
        draw(FigureSpec("Curves", "curves", options={"smooth": 2}), results(M="ifca"))


# Panels of studies

PLOTS = ("bars", "curves", "loss-variance", "silhouette", "spread", "sweep")


def paneled(*axes, runs=None, kind="curves", **told):
    """The one figure of a study whose panels are by these axes, after it has been drawn without a warning."""
    ((_, figure),) = draw(FigureSpec("Grid", kind, panels=axes, options=told), runs or results(M="ifca", N="fedavg"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg(figure)
    return figure


def shown_numbers(axes, which):
    axis = axes.xaxis if which == "x" else axes.yaxis
    return axis.get_tick_params()["labelbottom" if which == "x" else "labelleft"]


def test_these_kinds_can_be_panels():
    assert tuple(kind for kind in kinds if issubclass(kinds[kind], Plot)) == PLOTS


def test_a_grid_has_a_row_for_each_entry_of_one_axis_and_a_column_for_each_of_another():
    figure = paneled("data", "method")
    assert [axes.get_subplotspec().get_gridspec().get_geometry() for axes in figure.axes] == [(2, 2)] * 4
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["M", "N", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["X", "", "Y", ""]
    assert (figure.get_suptitle(), figure.get_supxlabel()) == ("Grid", "round")
    assert figure.get_supylabel() == "mean accuracy of clients, %"
    assert [list(lines(axes)) for axes in figure.axes] == [["1", "2"], ["1", "2"], ["1"], ["1", "2"]]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3)])
def test_panels_of_one_axis_are_in_reading_order(count, columns):
    study = Described({"data": {}, "method": {}})
    runs = {(f"D{n}", "M"): [stored(rounds=evaluated(0.1, 0.2))] for n in range(count)}
    figure = paneled("data", runs=Results(study, 1, runs, {}))
    assert titles(figure) == [f"D{n}" for n in range(count)]
    places = [axes.get_subplotspec() for axes in figure.axes]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [
        divmod(n, columns) for n in range(count)
    ]
    below = [n + columns >= count for n in range(count)]
    assert [shown_numbers(axes, "x") for axes in figure.axes] == below


def test_panels_have_one_legend_in_which_all_look_as_in_every_panel():
    runs = dict(results(M="ifca", N="fedavg", O="cfl").runs)
    runs["X", "1", "M"] = []  # the first panel lacks the first method
    figure = paneled("data", "beta", runs=Results(Described(), 1, runs, {}))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["M", "N", "O"]
    assert not any(axes.get_legend() for axes in figure.axes)
    for name, handle in zip("MNO", legend.get_lines(), strict=True):
        same = [lines(axes)[name] for axes in figure.axes if name in lines(axes)]
        assert len(same) == (2 if name == "M" else 4)
        assert {(line.get_color(), line.get_linestyle()) for line in same} == {
            (handle.get_color(), handle.get_linestyle())
        }


def test_a_panel_that_was_not_run_says_so():
    figure = paneled("data", "beta", runs=results(M="ifca"))
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [[], [], [], ["not run"]]


def test_a_panel_whose_runs_lack_the_record_says_so():
    runs = results(M="ifca", N="fedavg")
    for labels, (run, *_) in ((labels, some) for labels, some in runs.runs.items() if some):
        run.rounds[:] = [] if labels[0] == "X" else run.rounds
    figure = paneled("data", runs=runs)
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [["not recorded"], []]


def test_a_figure_of_which_no_panel_has_runs_is_not_drawn(caplog):
    caplog.set_level("INFO")
    none = Results(Described(), 1, {("X", "1", "M"): [], ("Y", "1", "M"): []}, {})
    assert draw(FigureSpec("Grid", "curves", panels=("data",)), none) == []
    assert draw(FigureSpec("Grid", "loss-variance", panels=("data",)), results(M="ifca")) == []
    assert "Grid: not drawn (loss-variance: no run recorded cumulative losses" in caplog.text


def test_separate_figures_have_panels_each():
    found = draw(FigureSpec("Grid", "curves", by=("data",), panels=("method",)), results(M="ifca", N="fedavg"))
    assert [name for name, _ in found] == ["Grid, X", "Grid, Y"]
    assert [titles(figure) for _, figure in found] == [["M", "N"]] * 2


def test_a_number_above_a_panel_says_of_what():
    assert titles(paneled("beta")) == ["beta = 1", "beta = 2"]


@pytest.mark.parametrize(("levels", "common"), [((0.5, 0.7), True), ((0.11, 0.9), False)])
def test_panels_have_a_common_scale_where_they_all_fit(levels, common):
    study = Described({"data": {}, "method": {}})
    runs = {(name, "M"): [stored(rounds=evaluated(0.1, top))] for name, top in zip("XY", levels, strict=True)}
    left, right = paneled("data", runs=Results(study, 1, runs, {})).axes
    assert (left.get_ylim() == right.get_ylim()) == common
    assert left.get_ylim()[1] >= 100 * levels[0]
    assert right.get_ylim()[1] >= 100 * levels[1]
    assert left.get_xlim() == right.get_xlim()
    assert shown_numbers(left, "y")
    assert shown_numbers(right, "y") == (not common)


def test_scales_are_common_to_a_row_of_a_grid():
    study = Described({"data": {}, "beta": {}, "method": {}})
    tops = {("X", "1"): 0.5, ("X", "2"): 0.6, ("Y", "1"): 0.11, ("Y", "2"): 0.12}
    runs = {(*place, "M"): [stored(rounds=evaluated(0.1, top))] for place, top in tops.items()}
    first, second, third, fourth = paneled("data", "beta", runs=Results(study, 1, runs, {})).axes
    assert first.get_ylim() == second.get_ylim() != third.get_ylim() == fourth.get_ylim()


def test_rows_of_bars_are_the_same_in_every_panel():
    runs = dict(results(M="ifca", N="fedavg").runs)
    runs["X", "1", "M"] = runs["X", "2", "M"] = []
    left, right = paneled("data", runs=Results(Described(), 1, runs, {}), kind="bars").axes
    assert [bar.get_y() + bar.get_height() / 2 for bar in left.patches] == pytest.approx([1, 2])
    assert [bar.get_y() + bar.get_height() / 2 for bar in right.patches] == pytest.approx([0, 1, 2])
    assert [label.get_text() for label in left.get_yticklabels()] == ["1, M", "1, N", "2, N"]
    assert not shown_numbers(right, "y")


def test_words_of_a_sweep_are_at_the_same_places_in_every_panel():
    study = Described({"data": {}, "schedule": {}, "method": {}})
    runs = {
        (data, word, "M"): [stored(schedule=word, summary={"accuracy_mean": 0.5})]
        for data, word in (("X", "constant"), ("X", "step"), ("Y", "cosine"), ("Y", "step"))
    }
    told = {"x": "schedule", "over": "schedule"}
    left, right = paneled("data", runs=Results(study, 1, runs, {}), kind="sweep", **told).axes
    assert left.containers[0].lines[0].get_xdata().tolist() == [0, 2]
    assert right.containers[0].lines[0].get_xdata().tolist() == [1, 2]
    assert [label.get_text() for label in left.get_xticklabels()] == ["constant", "cosine", "step"]


@pytest.mark.parametrize("kind", PLOTS)
@pytest.mark.parametrize("axes", [("data",), ("data", "beta")])
def test_nothing_is_clipped_and_nothing_overlaps_in_figures_of_panels(kind, axes):
    methods = ("local", "fedavg", "ifca", "cafa", "cfic", "slfed", "ditto")
    runs = {
        (data, beta, f"{name} by another name"): [stored(name, **everything())]
        for data in ("CIFAR10", "A-set-of-data with a long name")
        for beta in ("1", "2", "3")
        for name in methods
    }
    figure = paneled(*axes, runs=Results(Described(), 1, runs, {}), kind=kind, **EXAMPLE.get(kind, {}))
    figure.draw_without_rendering()
    panels = [axes.get_tightbbox() for axes in figure.axes]
    around = [text.get_window_extent() for text in (figure._suptitle, figure._supxlabel, figure._supylabel) if text]
    around += [legend.get_window_extent() for legend in figure.legends]
    for number, box in enumerate([*panels, *around]):
        assert min(box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1) > -1
        assert not any(box.overlaps(other) for other in [*panels, *around][:number])


def test_kinds_that_cannot_be_panels_are_refused():
    spec = FigureSpec("Grid", "matrix", panels=("data",))
    with pytest.raises(
        SettingsError, match=r"figure 'Grid': matrix cannot be drawn in panels, only bars, curves, .*by ="
    ):
        draw(spec, results(M="ifca"))


@pytest.mark.parametrize("curves", [2, 8, 30])
def test_a_legend_has_room_for_all_curves(curves):
    made, (axes,) = style.figure(7, 3.4)
    for number in range(curves):
        axes.plot([0, 1], [0, number], label=f"method {number}", **style.look(number))
    style.legend(axes)
    style.entitle(axes, "Many curves")
    made.draw_without_rendering()
    box, whole = axes.get_legend().get_window_extent(), made.bbox
    assert box.y0 >= whole.y0
    assert box.y1 <= whole.y1
    assert axes.get_window_extent().width > whole.width / 3


@pytest.mark.parametrize("curves", [2, 12])
def test_long_names_stand_below_and_leave_curves_their_room(curves):
    made, (axes,) = style.figure(7, 3.4)
    for number in range(curves):
        label = f"method {number}, epochs 10, participation 0.1, batch 10"
        axes.plot([0, 1], [0, number], label=label, **style.look(number))
    style.legend(axes)
    made.draw_without_rendering()
    (legend,) = made.legends
    box, room, whole = legend.get_window_extent(), axes.get_tightbbox(), made.bbox
    assert len(legend.get_texts()) == curves
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= room.y0
    assert room.width > 0.9 * whole.width
    assert room.height > 3 * made.dpi
