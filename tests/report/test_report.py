"""The page about stored runs: what is on it, and that a real browser shows it, on a phone too, without a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.report import clients, page, sections
from coterie.report.clients import every_client
from coterie.report.runs import by_name, write_report
from coterie.runs.comparison import compare
from coterie.runs.folder import RunFolder, StoredRun
from coterie.runs.settings import Settings

METHODS = ("local", "fedavg", "autocfl", "cafa", "slfed", "flis-dc")
TINY = {"clients": 6, "net": "logistic", "limit": 400, "rounds": 4, "split": "autocfl-label", "server_samples": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of several methods, with insights."""
    folder = tmp_path_factory.mktemp("runs")
    given = {**TINY, "insights": True, "gan_steps": 3, "synthetic": 20}
    chosen = [Settings.of(given, name, others=METHODS)[0] for name in METHODS]
    compare(chosen, seeds=2, out=folder)
    return folder


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    """Their page."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    runs = [StoredRun.read(one) for one in sorted(folder.iterdir()) if one.is_dir()]
    write_report(path, "A & B", runs)
    return path


@pytest.fixture(scope="module")
def text(report):
    return report.read_text()


def tables(text):
    """Header and rows of every table on a page."""
    found = []
    for table in re.findall(r"<table.*?</table>", text):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
        found.append((rows[0], rows[1:]))
    return found


def number(shown):
    """A figure of a table, without the interval behind it."""
    return float(shown.partition(" ")[0].replace("−", "-"))


def over_local(text):
    """The table of gains over training alone."""
    return next((header, rows) for header, rows in tables(text) if header[0] == "client" and "local" not in header)


# What is on it


def test_the_page_has_all_its_parts(text):
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == ["Methods", "Every client", "Figures", "The split", "What it cost", "Settings"]
    assert "<h1>A &amp; B</h1>" in text
    assert "digits, autocfl-label split, 6 clients, net logistic, 4 rounds; 2 seeds" in text


def test_every_figure_that_the_records_allow_is_there(text):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    words = (
        "gains with",
        "gained",
        "Mean accuracy",
        "sent while",
        "worst client",
        "How far",
        "CAFA",
        "AutoCFL",
        "SLFed",
        "mixed of",
    )
    for word in words:
        assert any(word in caption for caption in captions), word
    assert len(captions) == len(set(captions)) == 11


def test_without_insights_there_are_fewer_figures(folder, tmp_path):
    runs = [StoredRun.read(folder / f"{name}-seed0") for name in ("local", "fedavg")]
    for run in runs:
        run.insights.clear()
    write_report(tmp_path / "x.html", "x", runs)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", (tmp_path / "x.html").read_text())
    assert len(captions) == 6  # gains with the best and with all, two curves, the spread over clients, the split


def test_gains_of_clients_are_those_of_the_records(folder, text):
    accuracy = {
        (method, seed, client["client"]): client["accuracy"]
        for method in METHODS
        for seed in (0, 1)
        for client in StoredRun.read(folder / f"{method}-seed{seed}").clients
    }
    header, rows = over_local(text)
    assert header == ["client", "group", "samples", "test samples", "autocfl", "cafa", "fedavg", "flis-dc", "slfed"]
    assert len(rows) == 6
    for row in rows:
        for method, shown in zip(header[4:], row[4:], strict=True):
            gained = [accuracy[method, seed, row[0]] - accuracy["local", seed, row[0]] for seed in (0, 1)]
            assert number(shown) == pytest.approx(50 * sum(gained), abs=0.051)


def test_gains_have_intervals_and_those_beyond_them_are_counted(text):
    _, gains = over_local(text)
    verdict = next(rows for header, rows in tables(text) if "better off" in header)
    shown = dict(zip(["method", "better", "clearly", "worse", "clearly worse"], verdict[0][:5], strict=True))
    column = [row[4] for row in gains]  # of the first method
    ends = [tuple(map(number, re.search(r"\((.*) to (.*)\)", cell).groups())) for cell in column]
    assert all(low <= number(cell) <= high for cell, (low, high) in zip(column, ends, strict=True))
    assert int(shown["clearly"]) == sum(low > 0 for low, _ in ends) <= int(shown["better"].split()[0])
    assert int(shown["clearly worse"]) == sum(high < 0 for _, high in ends) <= int(shown["worse"])
    assert "95 % confidence interval" in text


def test_runs_of_before_without_numbers_of_test_samples_are_shown_without_intervals(folder):
    runs = {name: [StoredRun.read(folder / f"{name}-seed0")] for name in ("local", "fedavg")}
    for some in runs.values():
        for client in some[0].clients:
            del client["test_samples"]
    content = every_client(runs)
    assert "clearly" not in content
    assert "interval" not in content
    assert tables(content)[1][0] == ["client", "group", "samples", "fedavg"]
    assert all("(" not in cell for row in tables(content)[1][1] for cell in row)


def test_clients_that_are_better_off_are_counted(text):
    verdicts = [(header, rows) for header, rows in tables(text) if "better off" in header]
    assert len(verdicts) == 2
    _, gains = over_local(text)
    column = [number(row[4]) for row in gains]
    shown = next(row for row in verdicts[0][1] if row[0] == "autocfl")
    assert int(shown[1].split()[0]) >= sum(value > 0 for value in column)
    assert shown[1].endswith("of 6")
    assert number(shown[7]) == max(column)


def test_costs_are_those_of_the_ledger(folder, text):
    _, rows = next((header, rows) for header, rows in tables(text) if "what was sent" in header)
    shown = {}
    name = ""
    for first, *rest in rows:
        name = first or name
        shown[name, html.unescape(rest[0])] = rest[1:]
    parameters = StoredRun.read(folder / "fedavg-seed0").summary["parameters"]
    sent = 4 * parameters * 6 * 4  # bytes of a model, clients, rounds
    assert shown["fedavg", "to the server: models"] == [f"{sent / 1e3:.1f} kB", f"{4 * parameters / 1e3:.1f} kB"]
    assert ("cafa", "to the server: how many samples of each label a client has") in shown
    assert ("slfed", "between clients: secret shares of models") in shown
    assert [what for name, what in shown if name == "local"] == ["for scoring, which is no part of the method"]


def test_the_page_says_what_clients_give_away(text):
    said = html.unescape(text)
    assert "cafa: A client gives away its label histogram to the server" in said
    assert "slfed: A client gives away weak synthetic samples and predicted classes to those it meets" in said
    assert "local: A client gives away nothing but whether its training went well." in said


def test_settings_are_complete_and_folded(text):
    folded = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", text, re.DOTALL)
    names = [summary for summary, content in folded if "<pre>" in content]
    assert names == ["autocfl", "cafa", "fedavg", "flis-dc", "local", "slfed"]
    assert text.count("format = 1") == 6


def test_runs_that_are_not_finished_are_named(folder, tmp_path):
    settings = Settings.of(TINY, "fedprox")[0]
    fed = settings.world.federation()
    RunFolder(tmp_path / "begun", settings.resolved().table()).open(fed.net, resume=False, origin=fed.origin)
    write_report(tmp_path / "x.html", "x", [StoredRun.read(folder / "local-seed0"), StoredRun.read(tmp_path / "begun")])
    assert "Not finished, and not on this page: begun (0 rounds done)." in (tmp_path / "x.html").read_text()


def test_clients_of_other_splits_are_told_apart(folder):
    one, other = (StoredRun.read(folder / f"{name}-seed0") for name in ("local", "fedavg"))
    assert "other samples" not in every_client({"local": [one], "fedavg": [other]})
    other.clients[0] |= {"samples": 5, "true_group": 3}
    other.settings["split"]["alpha"] = 7.0
    text = every_client({"local": [one], "fedavg": [other]})
    (header, rows), *more = tables(text)
    assert header == ["client", "group", "samples", "test samples", "local", "fedavg"]  # no gain over another world
    assert more == []
    assert rows[0][1:3] == ["–", f"5–{one.clients[0]['samples']}"]
    assert rows[1][1:3] == [str(one.clients[1]["true_group"]), str(one.clients[1]["samples"])]
    assert "other samples" in text


def test_a_single_run_is_not_the_best_of_anything(folder):
    assert "class=best" not in sections.methods_table({"a": [StoredRun.read(folder / "local-seed0")]})


def test_runs_are_told_apart_by_what_was_chosen_for_them(folder):
    runs = [StoredRun.read(one) for one in sorted(folder.iterdir()) if one.is_dir()]
    # CAFA and SLFed both have an option `sharing`, whose defaults are others.
    assert {name: len(some) for name, some in by_name([*runs, *runs]).items()} == dict.fromkeys(sorted(METHODS), 2)


def test_gains_say_which_variant_of_a_method_they_are_over(folder, tmp_path):
    slow, fast, other = (StoredRun.read(folder / f"{name}-seed0") for name in ("fedavg", "fedavg", "autocfl"))
    fast.settings["method"]["rate"] = 7.0
    for client in fast.clients:
        client["accuracy"] = 0.0
    pages = []
    for order in ([slow, fast, other], [fast, slow, other]):
        write_report(tmp_path / "x.html", "x", order)
        text = (tmp_path / "x.html").read_text()
        headings = re.findall(r"<h3>(Gain over one model for all .*?)</h3>", text)
        verdicts = [rows for header, rows in tables(text) if "better off" in header]
        pages.append(dict(zip(headings, verdicts, strict=True)))
    assert pages[0] == pages[1]
    rate = slow.settings["method"]["rate"]
    assert {*pages[0]} == {f"Gain over one model for all (fedavg, rate={one}), in points" for one in (rate, 7.0)}
    (of_none,) = pages[0]["Gain over one model for all (fedavg, rate=7.0), in points"]
    assert number(of_none[5]) == pytest.approx(100 * other.summary["accuracy_mean"], abs=0.1)


def test_a_run_that_is_there_twice_with_other_results_is_told_of(folder, tmp_path):
    one, two = (StoredRun.read(folder / "local-seed0") for _ in range(2))
    two.summary["seconds"] += 1
    write_report(tmp_path / "x.html", "x", [one, two])
    assert "other results" not in (tmp_path / "x.html").read_text()
    two.summary["accuracy_mean"] = 0.0
    runs = write_report(tmp_path / "x.html", "x", [one, two])
    assert runs == {"local": [one]}
    said = html.unescape((tmp_path / "x.html").read_text())
    assert f"{two.path} has the settings and the seed of {one.path}, but other results: it is not on this page." in said


def test_every_split_is_shown_once_and_named(folder):
    local, other, late = (StoredRun.read(folder / f"{name}-seed0") for name in ("local", "fedavg", "autocfl"))
    late.settings["split"] = {"name": "iid", "clients": 6}
    for run in (local, other, late):
        run.insights.clear()
    text = sections.split({"local": [local], "fedavg": [other], "autocfl, iid": [late]})
    assert [name for name in ("local", "fedavg", "autocfl, iid") if f">{name} (largest" in text] == [
        *("local", "autocfl, iid")
    ]
    assert "Labels by client" in sections.split({"local": [local], "fedavg": [other]})


def test_the_best_of_a_page_is_that_of_a_split(folder):
    local, other = (StoredRun.read(folder / f"{name}-seed0") for name in ("local", "fedavg"))
    assert "class=best" in sections.methods_table({"local": [local], "fedavg": [other]})
    other.settings["split"]["alpha"] = 7.0
    assert "class=best" not in sections.methods_table({"local": [local], "fedavg, alpha=7.0": [other]})


def test_names_are_text(folder, tmp_path):
    runs = [StoredRun.read(folder / f"{name}-seed0") for name in ("local", "fedavg")]
    for run in runs:
        run.clients[0]["client"] = "<script>alert(1)</script>"
    write_report(tmp_path / "x.html", "<b>", runs)
    text = (tmp_path / "x.html").read_text()
    assert text.count("<script") == 1
    assert "&lt;script&gt;alert(1)" in text
    assert "<b>" not in text


def test_many_clients_are_folded_up(monkeypatch, folder):
    monkeypatch.setattr(clients, "_MANY", 5)
    runs = {name: [StoredRun.read(folder / f"{name}-seed0")] for name in ("local", "fedavg")}
    assert "<summary>All 6 clients</summary>" in every_client(runs)


# The command


def test_the_command_writes_a_page_and_replaces_it(call, tmp_path, folder):
    for _ in range(2):
        outcome = call(f"report {folder / 'local-seed0'} {folder / 'fedavg-seed0'} -o new/page.html")
        assert outcome.code == 0, outcome
        assert "new/page.html" in outcome.out
    assert page.is_page(tmp_path / "new/page.html")
    assert "<h1>local-seed0, fedavg-seed0</h1>" in (tmp_path / "new/page.html").read_text()


def test_the_names_of_many_folders_are_no_title(call, tmp_path, folder):
    folders = " ".join(str(folder / f"{name}-seed0") for name in METHODS[:4])
    assert call(f"report {folders} -o page.html").code == 0
    assert "<h1>4 runs</h1>" in (tmp_path / "page.html").read_text()


def test_the_command_replaces_nothing_else(refused, tmp_path, folder):
    (tmp_path / "thesis.html").write_text("<!doctype html>mine")
    refused(f"report {folder} -o thesis.html", "thesis.html: is there already and no page of ours")
    refused(f"report {folder} -o .", "no page of ours")
    refused("report", "no runs: name run folders")
    refused("report nothing", "not a run folder")
    refused(f"report {folder} -o thesis.html/x.html", "cannot be written")


# A real browser

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")


def browse(path: Path, *flags: str) -> str:
    """What a browser makes of a file."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--no-first-run", "--disable-component-update", "--disable-sync", f"--user-data-dir={path}.profile"]
    done = subprocess.run([*command, *flags, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


_PROBE = """
<script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(() => {
  const inner = frame.contentDocument, root = inner.documentElement;
  const clicked = inner.querySelectorAll("table.sortable th")[1];
  if (clicked) clicked.click();
  const column = clicked ? [...clicked.closest("table").tBodies[0].rows].map(row => row.cells[1].dataset.value) : [];
  const asked = frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name);
  const drawn = [...inner.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().height > 50);
  const told = {width: root.scrollWidth, figures: drawn.length, asked: asked.filter(name => !name.startsWith("data:")),
    blocked: frame.contentWindow.blocked, column, failed: frame.contentWindow.failed};
  document.title = JSON.stringify(told);
}, 300);
</script>
"""
_WATCH = """<script>
blocked = []; failed = [];
addEventListener("securitypolicyviolation", event => blocked.push(event.blockedURI));
addEventListener("error", event => failed.push(event.message));
</script>"""


def probed(text, width, tmp_path):
    """How a page does in a frame of this width: browsers' own windows do not get as narrow as a phone."""
    watched = html.escape(text.replace("<head>", "<head>" + _WATCH, 1))
    frame = f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{watched}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!doctype html><title>-</title><body>{frame}{_PROBE}")
    dom = browse(tmp_path / "frame.html", "--virtual-time-budget=5000", "--dump-dom")
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom)[1]))


@browser
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_the_page_without_asking_for_anything(text, tmp_path, width):
    told = probed(text, width, tmp_path)
    assert told["width"] <= width  # tables and figures scroll, the page does not
    assert told["asked"] == told["blocked"] == told["failed"] == []
    assert told["figures"] == text.count("<figure") > 5
    numbers = [float(value) for value in told["column"]]
    assert numbers == sorted(numbers, reverse=True)  # a click on a header has sorted by it


@browser
def test_a_page_that_asks_for_something_or_is_too_wide_would_be_noticed(text, tmp_path):
    bad = text.replace("</h1>", '</h1><img src="http://127.0.0.1:9/x.png"><div style="width:700px">x</div>', 1)
    told = probed(bad, 360, tmp_path)
    assert told["width"] >= 700
    assert told["blocked"] == ["http://127.0.0.1:9/x.png"]  # our policy keeps the browser from asking


@browser
def test_a_browser_draws_the_page(report, tmp_path):
    from PIL import Image

    browse(report, "--window-size=800,1000", f"--screenshot={tmp_path / 'page.png'}")
    shot = Image.open(tmp_path / "page.png").convert("L")
    assert shot.size == (800, 1000)
    dark, light = shot.getextrema()
    assert light - dark > 200  # text on its ground
