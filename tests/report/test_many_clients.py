"""Ten thousand clients: a page that is small and says something, from generated records."""

import re

import numpy as np
import pytest

from coterie.report.figures import NotRecordedError, clients_figure, kinds, split_figure, svg
from coterie.report.figures.records import MANY_CLIENTS
from coterie.report.figures.relations import MOST_MIXED
from coterie.report.runs import write_report
from support.drawn_runs import drawn, evaluated, images, lines, stored, titles

COUNT = 10_000
METHODS = ("local", "fedavg", "ifca", "ditto")


def run_of_many(method, number, seed, count=COUNT):
    """A run whose clients get more or less, with groups and shares of labels."""
    rng = np.random.default_rng([number, seed])
    accuracies = np.clip(rng.normal(0.6 + 0.05 * number, 0.15, count), 0, 1)
    tests = rng.integers(5, 60, count)
    clients = [
        {
            "client": f"client {client:05}",
            "samples": int(4 * tests[client]),
            "test_samples": int(tests[client]),
            "true_group": client % 4,
            "group_found": 0,
            "accuracy": float(accuracies[client]),
            "loss": 1.0,
            "rounds_taken_part": client % 3,
        }
        for client in range(count)
    ]
    shares = np.zeros((count, 10))
    shares[np.arange(count), np.arange(count) % 10] = 0.75
    shares[np.arange(count), (np.arange(count) + 1) % 10] = 0.25
    spread = {"accuracy_mean": float(accuracies.mean()), "accuracy_worst_tenth": 0.3, "accuracy_std": 0.15}
    spread |= {"accuracy_min": float(accuracies.min()), "accuracy_max": float(accuracies.max())}
    summary = {"method": method, "clients": count, "rounds": 3, "seed": seed, "data": "generated", "split": "iid"}
    summary |= spread | {
        "net": "mlp",
        "parameters": 10,
        "bytes_up": 1,
        "bytes_down": 1,
        "bytes_peer": 0,
        "seconds": 1.0,
    }
    summary |= {"best_round": None, "ledger": {"up": {"model": 10}, "down": {"model": 10}, "evaluation": {"model": 1}}}
    return stored(
        method,
        seed,
        rounds=evaluated(0.3, 0.5, summary["accuracy_mean"]),
        clients=clients,
        groups=[{"round": 1, "groups": [client % 4 for client in range(count)]}],
        insights=[{"round": 3, "label_shares": shares.tolist()}] if seed == 0 else [],
        summary=summary,
        path=f"{method}-{seed}",
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    runs = [run_of_many(method, number, seed) for number, method in enumerate(METHODS) for seed in (0, 1)]
    path = tmp_path_factory.mktemp("many") / "x.html"
    write_report(path, "Many", runs)
    return path.read_text()


def test_the_page_is_small(text):
    assert len(text.encode()) < 3e6 / 3, "three times as many methods would fit, too"


def test_the_page_has_the_best_and_the_worst_clients_instead_of_all(text):
    folded = re.findall(r"<details><summary>(The .*?)</summary>(.*?)</details>", text, re.DOTALL)
    assert [summary for summary, _ in folded] == [
        *(
            "The 20 clients that fare worst by the mean over methods",
            "The 20 clients that fare best by the mean over methods",
        )
    ] * 3  # gains over local and over FedAvg, and accuracies
    worst, best = (
        [float(row) for row in re.findall(r'data-value="([\d.]+)">[\d.]+ \(', content)] for _, content in folded[4:]
    )
    assert len(worst) == len(best) == 20 * len(METHODS)
    assert max(np.reshape(worst, (20, -1)).mean(axis=1)) < min(np.reshape(best, (20, -1)).mean(axis=1))


def test_the_page_says_how_clients_are_spread(text):
    rows = re.findall(r"<tr><td>(\w+)</td>(.*?)</tr>", text[text.index(">Accuracy of every client, %<") :])
    shown = {
        name: [float(cell) for cell in re.findall(r"<td>([\d.]+)</td>", cells)] for name, cells in rows[: len(METHODS)]
    }
    assert [*shown] == sorted(METHODS, key=METHODS.index)
    for number, method in enumerate(METHODS):
        mean, least, *quantiles, most = shown[method]
        means = (run_of_many(method, number, seed).clients for seed in (0, 1))
        values = np.mean([[client["accuracy"] for client in clients] for clients in means], axis=0)
        assert mean == pytest.approx(100 * values.mean(), abs=0.051)
        assert quantiles == pytest.approx(100 * np.percentile(values, [5, 25, 50, 75, 95]), abs=0.051)
        assert (least, most) == pytest.approx((100 * values.min(), 100 * values.max()), abs=0.051)
    assert "better off" in text
    assert "clearly" in text
    assert f"Who mixes with whom is shown of at most {MOST_MIXED:,} clients" in text


def test_gains_of_many_are_a_curve_from_the_lowest_to_the_highest():
    runs = {method: [run_of_many(method, n, 0, 1000)] for n, method in enumerate(("local", "ifca"))}
    figure = drawn("gain", runs)
    ours = np.array([client["accuracy"] for client in runs["ifca"][0].clients])
    theirs = np.array([client["accuracy"] for client in runs["local"][0].clients])
    curve = lines(figure.axes[0])["ifca"]
    assert curve.get_xdata().tolist() == list(range(101))
    assert curve.get_ydata() == pytest.approx(np.percentile(100 * (ours - theirs), range(101)))


def test_scores_of_many_are_a_curve_and_those_who_have_none_are_left_out():
    clients = [{"client": str(n), "accuracy": n / 1000, "true_group": None} for n in range(1000)]
    clients += [{"client": "none", "accuracy": None, "true_group": None}]
    curve = lines(clients_figure({"a": clients}).axes[0])["a"]
    assert curve.get_ydata() == pytest.approx(np.linspace(0, 99.9, 101))


@pytest.mark.parametrize("shares", [False, True])
def test_splits_of_many_are_histograms(shares):
    counts = np.zeros((COUNT, 10), dtype=int)
    counts[:, 0] = 3
    counts[: COUNT // 2, 1] = 1
    counts = counts / counts.sum(axis=1, keepdims=True) if shares else counts
    figure = split_figure(counts, [str(n) for n in range(10)], [str(n) for n in range(COUNT)])
    assert len(svg(figure)) < 100_000
    first, second = figure.axes
    assert second.get_xlabel() == "labels of a client"
    heights = np.histogram((counts > 0).sum(axis=1), [0.5, 1.5, 2.5])[0]
    assert heights.tolist() == [COUNT // 2, COUNT // 2]
    assert second.patches[0].get_path().vertices[:, 1].max() == COUNT // 2
    assert ("commonest" in first.get_xlabel()) == shares


def test_a_map_of_many_pairs_has_means_over_squares():
    count = 2 * MANY_CLIENTS
    matrix = np.arange(count**2, dtype=float).reshape(count, count) / count**2
    matrix[0, :2] = np.nan
    matrix[1, :2] = 0.25
    run = stored(
        "cfl", insights=[{"round": 1, "distance": [[None if x != x else x for x in row] for row in matrix.tolist()]}]
    )
    shown = images(drawn("matrix", {"a": [run]}))[0]
    assert shown.shape == (MANY_CLIENTS, MANY_CLIENTS)
    assert shown[0, 0] == pytest.approx(0.25)  # over what is known
    assert shown[3, 5] == pytest.approx(matrix[6:8, 10:12].mean())


def test_a_map_of_too_many_is_refused_before_it_fills_memory():
    run = stored("ifca", clients=[{"client": str(n), "samples": 1} for n in range(MOST_MIXED + 1)])
    run.groups.append({"round": 1, "groups": [0] * (MOST_MIXED + 1)})
    with pytest.raises(NotRecordedError, match="at most 2,000 clients"):
        kinds.make("mixing").draw({"a": [run]})


def test_losses_of_many_are_bands_of_their_groups():
    count = 2 * MANY_CLIENTS
    losses = [[(1 + client % 2) / number for client in range(count)] for number in (1, 2)]
    clients = [{"client": str(n), "true_group": n % 2} for n in range(count)]
    figure = drawn("losses", {"a": [stored("autocfl", clients=clients, insights=[{"round": 2, "losses": losses}])]})
    found = lines(figure.axes[0])
    assert {name: line.get_ydata().tolist() for name, line in found.items()} == {
        "group 0": [1, 0.5],
        "group 1": [2, 1],
    }
    assert titles(figure) == ["a"]
