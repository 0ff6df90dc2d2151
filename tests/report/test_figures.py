"""Figures: drawn for any number of clients and rounds, with what was not measured left out."""

import warnings

import numpy as np
import pytest

import coterie
from coterie.report.figures import clients_figure, kinds, run_figure, save, split_figure, style, svg
from coterie.report.figures.records import named


def rounds(*accuracies, **more):
    return [{"round": number, "accuracy_mean": accuracy, **more} for number, accuracy in enumerate(accuracies, start=1)]


def clients(count, groups=None, accuracy=0.5):
    return [
        {"client": f"client {number}", "true_group": groups and number % groups, "accuracy": accuracy}
        for number in range(count)
    ]


def labelled(figure):
    """Whether every axis says what it is."""
    return all(axes.get_xlabel() and axes.get_ylabel() and axes.get_title(loc="left") for axes in figure.axes)


def curves_figure(runs):
    return kinds.make("curves").picture(runs, "Accuracy over rounds")


def drawn(figure, tmp_path):
    """The figure, after it has been drawn without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, tmp_path / "x.png")
    return figure


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines() if not line.get_label().startswith("_")}


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_says_the_format(tmp_path, ending, start):
    save(curves_figure({"a": [rounds(0.1, 0.2)]}), tmp_path / f"x.{ending}")
    assert (tmp_path / f"x.{ending}").read_bytes().startswith(start)


def test_the_same_figure_is_the_same_text():
    first, second = (svg(curves_figure({"a": [rounds(0.1, 0.2)]})) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")


# Accuracy over rounds


def test_curves_are_means_over_seeds(tmp_path):
    figure = drawn(curves_figure({"a": [rounds(0.1, 0.3), rounds(0.3, 0.5)], "b": [rounds(0.0, 1.0)]}), tmp_path)
    found = lines(figure)
    assert found["a"].get_xdata().tolist() == [1, 2]
    assert found["a"].get_ydata() == pytest.approx([20, 40])
    assert found["b"].get_ydata() == pytest.approx([0, 100])  # an accuracy of zero is one
    assert labelled(figure)


def test_curves_of_one_round_and_without_figures_are_drawn(tmp_path):
    figure = drawn(curves_figure({"a": [rounds(None)], "b": [rounds(0.5)], "c": [rounds(None), rounds(0.3)]}), tmp_path)
    assert np.isnan(lines(figure)["a"].get_ydata()).all()


def test_rounds_are_whole_numbers():
    figure = curves_figure({"a": [rounds(0.1, 0.2)]})
    assert all(tick == round(tick) for tick in figure.axes[0].get_xticks())


@pytest.mark.parametrize("count", [2, 9])
def test_every_curve_is_in_the_legend_and_looks_different(tmp_path, count):
    figure = drawn(curves_figure({f"method {n}": [rounds(0.1, 0.2)] for n in range(count)}), tmp_path)
    legend = figure.legends[0] if figure.legends else figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"method {n}" for n in range(count)]
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines(figure).values()}
    assert len(styles) == count


# Every client


@pytest.mark.parametrize("count", [1, 20, 100])
@pytest.mark.parametrize("groups", [None, 4])
def test_clients_are_drawn(tmp_path, count, groups):
    figure = drawn(clients_figure({"a": clients(count, groups), "b": clients(count, groups, None)}), tmp_path)
    found = lines(figure)
    assert len(found["a"].get_xdata()) == count
    assert np.isnan(found["b"].get_ydata()).all()
    assert len(figure.axes[0].get_xticklabels()) <= 20
    assert labelled(figure)


def test_clients_stand_in_their_true_groups():
    figure = clients_figure({"a": clients(4, groups=2)})
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names == ["client 0", "client 2", "client 1", "client 3"]


def test_a_client_that_a_method_does_not_have_is_left_out():
    figure = clients_figure({"a": clients(3), "b": clients(2)})
    assert np.isnan(lines(figure)["b"].get_ydata()).tolist() == [False, False, True]


# Splits


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (3, 10), (100, 10), (20, 100)])
@pytest.mark.parametrize("grouped", [True, False])
def test_splits_are_drawn(tmp_path, count, classes, grouped):
    counts = np.arange(count * classes).reshape(count, classes)
    groups = np.arange(count) % 3 if grouped else None
    names, labels = [f"writer {n}" for n in range(count)], [f"label {n}" for n in range(classes)]
    figure = drawn(split_figure(counts, labels, names, groups), tmp_path)
    assert labelled(figure)
    # A dot for every label that a client has.
    assert len(figure.axes[0].collections[0].get_offsets()) == (counts > 0).sum()


def test_a_split_without_samples_is_drawn(tmp_path):
    drawn(split_figure(np.zeros((2, 3), dtype=int), list("abc"), list("xy")), tmp_path)


def test_names_are_drawn_as_they_are(tmp_path):
    names = ["$\\frac", "a_b^c", "<script>"]
    text = svg(drawn(split_figure(np.eye(3, dtype=int), ["$x$", "&amp", "50 %"], names), tmp_path))
    for shown in ("$\\frac", "a_b^c", "&lt;script&gt;", "$x$", "&amp;amp", "50 %"):
        assert f">{shown}<" in text


def test_long_names_are_shortened_and_stay_distinct():
    ends = [f"{'a' * 60}{number:04}" for number in range(3)]
    starts = [f"{number:04}{'a' * 60}" for number in range(3)]
    middles = [f"{'a' * 12}{number}{'a' * 60}" for number in range(3)]
    for names in (ends, starts, middles):
        short = style.shortened(names)
        assert len({*short}) == 3
        assert max(map(len, short)) <= 16
        assert all("…" in name for name in short)
    assert style.shortened(["client 0", ends[0]]) == ["client 0", "aaaaaaaa…aaa0000"]


def test_long_names_leave_a_figure_its_room(tmp_path):
    names, labels = [f"{number:064}" for number in range(6)], [f"{number:099}" for number in range(3)]
    figure = drawn(split_figure(np.ones((6, 3), dtype=int), labels, names), tmp_path)
    box = figure.axes[0].get_position()
    assert box.width > 0.5
    assert box.height > 0.4
    assert len({label.get_text() for label in figure.axes[0].get_xticklabels()}) == 6


@pytest.mark.parametrize("name", ["数字", "عربي"])
def test_letters_that_the_font_does_not_have_are_no_warning(tmp_path, name):
    figure = split_figure(np.eye(2, dtype=int), [name, "b"], [name, "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg(drawn(figure, tmp_path))
        drawn(curves_figure({f"{name} {'x' * 40}": [rounds(0.1, 0.2)], "b": [rounds(0.1, 0.2)]}), tmp_path)
        style.headed(figure, name)
        entitled, (axes,) = style.figure(4, 3)
        style.entitle(axes, name)
        save(entitled, tmp_path / "x.png")


# Results


def test_a_result_is_plotted(tmp_path):
    fed = coterie.simulate("digits", net="logistic", clients=3, limit=200)
    figure = drawn(coterie.FedAvg(rounds=2).fit(fed).plot(), tmp_path)
    assert labelled(figure)
    assert set(lines(figure)) == {"fedavg", "worst tenth", "global test"}
    assert len(figure.axes[1].patches) == 3


def test_a_result_without_test_data_is_plotted(tmp_path):
    fed = coterie.simulate("digits", net="logistic", clients=3, limit=200, test_share=0.0)
    drawn(run_figure(coterie.Local(rounds=1).fit(fed)), tmp_path)


@pytest.mark.parametrize(
    ("statistic", "words"),
    [
        ("accuracy_mean", "mean accuracy of clients, %"),
        ("groups", "groups"),
        ("window(accuracy_mean, 151, 200)", "mean accuracy of clients, rounds 151 to 200, %"),
        (
            "rounds_to_final(global_accuracy_mean, FedAvg)",
            "rounds to what FedAvg ends with, accuracy on the global test set",
        ),
        ("rounds_to(accuracy_mean, 0.8)", "rounds to 0.8 of mean accuracy of clients"),
    ],
)
def test_axes_say_in_words_what_is_shown(statistic, words):
    assert named(statistic) == words


# The same method looks the same


def looks_of(figure):
    return {name: (line.get_color(), line.get_marker(), line.get_linestyle()) for name, line in lines(figure).items()}


def test_a_name_looks_the_same_in_all_figures_of_a_page():
    names = [f"method {n}" for n in range(12)]
    with style.same_looks(names):
        every = looks_of(curves_figure({name: [rounds(0.1, 0.2)] for name in names}))
        some = looks_of(curves_figure({name: [rounds(0.1, 0.2)] for name in reversed(names[3::2])}))
        dots = lines(clients_figure({name: clients(3) for name in names[5:]}))
        other = looks_of(curves_figure({"another": [rounds(0.1, 0.2)]}))["another"]
    assert some == {name: every[name] for name in names[3::2]}
    assert {name: (line.get_color(), line.get_marker()) for name, line in dots.items()} == {
        name: every[name][:2] for name in names[5:]
    }
    assert other not in every.values()
    assert len({*every.values()}) == 12


def test_outside_of_a_page_every_figure_begins_anew():
    with style.same_looks(["a", "b"]):
        assert style.number("b", 7) == 1
    assert style.number("b", 7) == 7


@pytest.mark.parametrize("count", [3, 9])
def test_a_method_has_one_colour_in_all_cases_and_each_case_its_own_marker(count):
    names = [f"method {n}" for n in range(count)]
    with style.same_looks(names):
        found = {}
        for case in ("", "IID", "label skew"):
            for name in names:
                called = f"{case}, {name}" if case else name
                style.give_look(called, name, case)
                found[case, name] = style.look(style.number(called, 0))
    for name in names:
        assert len({found[case, name]["color"] for case in ("", "IID", "label skew")}) == 1
    assert len({(one["color"], one["marker"], str(one["linestyle"])) for one in found.values()}) == 3 * count


def test_equal_curves_do_not_hide_each_other():
    course = rounds(*np.linspace(0.1, 0.9, 30))
    figure = curves_figure({"a": [course], "b": [course], "c": [rounds(*np.linspace(0.2, 0.5, 30))], "d": [course]})
    widths = {name: line.get_linewidth() for name, line in lines(figure).items()}
    assert widths["a"] > widths["b"] > widths["d"] == widths["c"]  # what lies below is wider
    markers = {name: line.get_markersize() for name, line in lines(figure).items()}
    assert markers["a"] > markers["b"] > markers["d"]
    first, second = (lines(figure)[name].get_markevery() for name in "ab")
    assert first != second
