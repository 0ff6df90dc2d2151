"""What is shown of things in a notebook or at a prompt: a sentence or a table, whatever their size; and a bar."""

import sys
from copy import deepcopy
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import coterie
from coterie.core.display import Records, html_table
from coterie.core.errors import CoterieError


class Table(HTMLParser):
    """The cells of an HTML table, row by row, and all text outside of it."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.text, self._cell = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self._cell = tag in ("td", "th")

    def handle_endtag(self, tag):
        self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1].append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def fed():
    return coterie.simulate("digits", "autocfl-label", "mlp", clients=8, imbalanced=True)


@pytest.fixture(scope="module")
def result(fed):
    return coterie.FedAvg(rounds=2).fit(fed, scoring=coterie.Scoring(metrics=("f1", "log_loss")))


def test_a_result_is_its_scores(result):
    ends = [f"{100 * result.summary[f'f1_{end}']:.1f} %" for end in ("mean", "min", "max")]
    said = f"f1 {ends[0]} of {ends[1]} to {ends[2]} over clients"
    assert repr(result) == f"Result(fedavg, digits, autocfl-label split, mlp, 8 clients, 2 rounds: {said})"
    table = Table(result._repr_html_())
    assert table.rows[0] == ["over clients", "mean", "worst tenth", "least", "most"]
    assert [row[0] for row in table.rows[1:]] == ["f1", "log loss", "accuracy"]
    assert table.rows[1][1] == ends[0]
    assert "%" not in table.rows[2][1]


def test_clients_are_records_and_a_table_of_pandas(result):
    assert result.clients[0]["client"] == "0"
    assert [record["client"] for record in result.clients] == [str(number) for number in range(8)]
    pandas = pytest.importorskip("pandas")
    frame = result.clients.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["f1"].tolist() == [record["f1"] for record in result.clients]
    assert frame.groupby("true_group")["test_samples"].sum().sum() == frame["test_samples"].sum()
    table = Table(result.clients._repr_html_())
    assert table.rows[0] == list(result.clients[0])
    assert len(table.rows) == 9
    assert len(result.rounds.to_pandas()) == 2


def test_without_pandas_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CoterieError, match="needs pandas: pip install pandas"):
        Records([{"a": 1}]).to_pandas()


def test_a_federation_is_its_clients(fed):
    sizes = fed.sizes.tolist()
    assert repr(fed) == (
        f"Federation(digits, autocfl-label split, 8 clients with {min(sizes)} to {max(sizes)} samples to train on; "
        "net mlp, 4,810 parameters)"
    )
    table = Table(fed._repr_html_())
    assert table.rows[0] == ["client", "samples to train on", "true group"]
    assert [int(row[1]) for row in table.rows[1:]] == sizes


def test_data_is_its_classes_or_its_numbers():
    data = coterie.load("digits")
    assert repr(data) == (
        "Dataset(digits: 1,438 samples and 359 to test with; image 1x8x8; "
        "classification: 10 classes (0, 1, 2, 3, 4, ...))"
    )
    table = Table(data._repr_html_())
    assert table.rows[0] == ["class", "to train on", "to test with"]
    assert sum(int(row[1]) for row in table.rows[1:]) == 1438
    amounts = coterie.Dataset(
        np.zeros((3, 2)), [0.5, 1.5, 4.0], labels=("stay",), users=["a", "b", "a"], task="regression"
    )
    assert repr(amounts) == "Dataset(own: 3 samples, from 2 users; features 2; regression: stay)"
    assert Table(amounts._repr_html_()).rows[1] == ["stay", "2", "0.5", "4"]


def test_a_split_is_who_has_how_much():
    split = coterie.Split(([0, 1, 2], [3]), groups=[0, 1], names=("<b>", "south"), relabels=((1, 0), None))
    assert repr(split) == "Split(2 clients in 2 true groups with 1 to 3 samples)"
    table = Table(split._repr_html_())
    assert table.rows == [
        ["client", "samples", "true group", "labels called"],
        ["<b>", "3", "0", "(1, 0)"],
        ["south", "1", "1", "–"],
    ]
    assert repr(coterie.Split(())) == "Split(no clients)"
    assert "<table>" in coterie.Split(())._repr_html_()


def test_of_many_rows_the_first_are_shown_and_the_others_counted():
    table = Table(html_table("", ["n"], ([number] for number in range(10_000))))
    assert len(table.rows) == 21
    assert table.text == "and 9,980 more"
    huge = coterie.Dataset(np.zeros((5000, 3)), np.arange(5000), task="classification")
    assert len(repr(huge)) < 200


# Progress


def fit(**more):
    return coterie.FedAvg(rounds=3).fit(coterie.simulate(clients=3, net="mlp"), **more)


def test_a_notebook_shows_how_far_a_run_is(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("coterie.server.progress.find_spec", lambda name: None)
    result = fit()
    err = capsys.readouterr().err
    assert "fedavg" in err
    assert "3/3" in err
    assert f"accuracy {100 * result.rounds[-1]['accuracy_mean']:.1f} %" in err
    fit(progress=False)
    assert capsys.readouterr().err == ""


def test_elsewhere_it_does_if_asked(capsys):
    plain = fit()
    assert capsys.readouterr().err == ""
    shown = fit(progress=True)
    assert "3/3" in capsys.readouterr().err
    assert [{**record, "seconds": 0} for record in shown.rounds] == [{**one, "seconds": 0} for one in plain.rounds]


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    fit()
    assert capsys.readouterr().err == ""


def test_a_run_that_goes_on_begins_its_bar_where_it_was(capsys):
    kept = []

    class Keeping:
        def round_done(self, checkpoint, record, groups):
            kept.append(deepcopy(checkpoint))

        def run_done(self, checkpoint, result):
            """Nothing more."""

    fit(observers=[Keeping()])
    capsys.readouterr()
    fit(progress=True, resume=kept[1])
    err = capsys.readouterr().err
    assert "2/3" in err
    assert "3/3" in err
    assert "1/3" not in err
