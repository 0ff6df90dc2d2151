"""The command line: what people and scripts type, and what they get."""

import csv
import html.parser
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import coterie
from coterie.cli.options import method_options, world_options
from coterie.data.sources import sources
from coterie.data.splits import split_rules
from coterie.methods import methods
from coterie.nets import nets
from coterie.runs.settings import Settings
from coterie.server.method import Method, method
from coterie.server.registered import by_family

TINY = "--clients 4 --net logistic --rounds 2 --limit 400"


def without_seconds(value):
    """The same without what the clock decides."""
    if isinstance(value, dict):
        return {name: without_seconds(one) for name, one in value.items() if not name.endswith("seconds")}
    return [without_seconds(one) for one in value] if isinstance(value, list) else value


def summary(folder):
    return json.loads(Path(folder, "summary.json").read_text())


# Running


def test_tables_that_lie_about_are_nobodys_clients(call):
    Path("visits.csv").write_text("age,outcome\n50,yes\n60,no\n")
    assert call("run local --clients 2 --net mlp --rounds 1 --json").json["split"] == "dirichlet"


def test_models_are_kept_unless_told_otherwise(call):
    world = "--clients 2 --net mlp --rounds 1"
    assert call(f"run local {world} --out with").code == 0
    assert call(f"run local {world} --keep-models false --out without").code == 0
    assert call(f"compare local fedavg {world} --keep-models false --out several").code == 0
    kept = {str(path.parent) for path in Path().rglob("models.safetensors")}
    assert kept == {"with"}
    assert "its models were not kept" in call("export without --all").err


def test_a_run_prints_its_table_and_says_where_it_is(call):
    outcome = call(f"run fedavg {TINY} --out a")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "fedavg · digits · dirichlet · 4 clients · logistic · 650 parameters" in outcome.out
    assert "worst tenth of clients" in outcome.out
    assert outcome.out.endswith("written to a\n")
    assert summary("a")["rounds"] == 2


def test_options_reach_the_run(call):
    call(f"run fedprox {TINY} --out a --split label-skew --classes 3 --mu 0.5 --test labels --views last --seed 4")
    settings = tomllib.loads(Path("a/settings.toml").read_text())
    assert settings["split"]["classes"] == 3
    assert settings["method"]["mu"] == 0.5
    assert settings["division"]["test"] == "labels"
    assert settings["scoring"]["views"] == ["last"]
    assert settings["seed"] == 4
    assert "accuracy_last_mean" in summary("a")


def test_options_may_stand_before_the_method(call):
    assert call(f"run {TINY} fedavg --out a").code == 0
    assert summary("a")["method"] == "fedavg"


def test_runs_without_a_place_get_one_each(call):
    for number in ("", "-2", "-3"):
        outcome = call(f"run local {TINY}")
        assert outcome.out.endswith(f"written to runs/local-digits-dirichlet{number}\n")
        assert summary(f"runs/local-digits-dirichlet{number}")["method"] == "local"


def test_json_is_the_summary_and_nothing_else(call):
    outcome = call(f"run fedavg {TINY} --out a --json")
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    assert outcome.json == summary("a")


def test_nothing_but_the_result_is_printed_where_nobody_looks(call):
    outcome = call(f"run fedavg {TINY} --out a")
    assert outcome.err == ""
    assert "\x1b" not in outcome.out


def test_a_runs_own_settings_reproduce_it(call):
    first = call(f"run fedavg {TINY} --out a --server-momentum 0.5 --arrivals 2:2 --json").json
    for settings in ("a/settings.toml", "a"):
        again = call(f"run --settings {settings} --json").json
        assert without_seconds(again) == without_seconds(first)
    folder = Path("runs/fedavg-digits-dirichlet")
    assert (folder / "settings.toml").read_text() == Path("a/settings.toml").read_text()
    assert (folder / "state/checkpoint.safetensors").read_bytes() == Path("a/state/checkpoint.safetensors").read_bytes()


def test_own_data_is_found_again_from_another_folder(call, own_data, tmp_path, monkeypatch):
    first = call(f"run local --data {own_data} --clients 3 --rounds 2 --out a --json").json
    assert first["data"] == "mine"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("coterie.cli.run.RUNS", tmp_path / "elsewhere")
    outcome = call(f"run --settings {tmp_path}/a --out {tmp_path}/b --json")
    assert without_seconds(outcome.json) == without_seconds(first)


def test_options_go_before_the_settings_file(call):
    call(f"run fedavg {TINY} --out a")
    assert call("run --settings a --rounds 1 --json").json["rounds"] == 1
    other = call("run local --settings a --json").json
    assert (other["method"], other["rounds"], other["clients"]) == ("local", 2, 4)


def test_own_images_are_scaled(call, tmp_path):
    for label in "ab":
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("L", (6, 5 + number % 2), color=20 * number).save(tmp_path / f"pictures/{label}/{number}.png")
    outcome = call("run local --data pictures --size 4 --clients 2 --rounds 1 --out a --json")
    assert outcome.json["parameters"] == 8 * 10 + 16 * 73 + 2 * 17
    assert outcome.json["data"] == "pictures"


@pytest.fixture
def interruptible():
    """A shell lets what it starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_how_to_go_on(call, interruptible, monkeypatch, number):
    before = signal.getsignal(number)

    class Stopped(methods["fedavg"]):
        def round(self, fed, state):
            assert callable(signal.getsignal(number))  # else all tests would end here
            signal.raise_signal(number)

    monkeypatch.setitem(methods._classes, "fedavg", Stopped)
    outcome = call(f"run fedavg {TINY}")
    assert outcome.code == 130
    assert outcome.err == "stopped; to go on: coterie run --resume --out runs/fedavg-digits-dirichlet\n"
    outcome = call(f"compare fedavg {TINY} --out c")
    assert outcome.err == "stopped; to go on: the same command with --resume --out c\n"
    assert call("demo").err == "stopped; to go on: coterie demo, which begins anew\n"
    assert signal.getsignal(number) is before


def test_a_stop_before_anything_was_written_says_so(call, monkeypatch):
    def stopped(world):
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.runs.settings.World.federation", stopped)
    outcome = call(f"run fedavg {TINY}")
    assert (outcome.code, outcome.err) == (130, "stopped: nothing was written\n")
    assert not Path("runs").exists()


def test_a_program_that_fails_is_not_the_users_mistake(call, monkeypatch):
    class Broken(methods["local"]):
        def round(self, fed, state):
            raise coterie.core.errors.ProgramError("program x failed on client 3: [/oh]")

    monkeypatch.setitem(methods._classes, "local", Broken)
    outcome = call(f"run local {TINY} --out a")
    assert (outcome.code, outcome.err) == (1, "error: program x failed on client 3: [/oh]\n")


# Resuming


def test_a_finished_run_is_resumed_without_a_change(call):
    first = call(f"run fedavg {TINY} --out a --json").json
    before = {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file() and path.name != "clock.json"}
    assert call("run --resume --out a --json").json == first
    assert call(f"run fedavg {TINY} --resume --out a --json").json == first
    assert {path: path.read_bytes() for path in before} == before


def test_a_finished_run_trains_longer_when_it_is_resumed_with_more_rounds(call, refused):
    call(f"run fedavg {TINY} --out a")
    assert call("run --resume --out a --rounds 3").code == 0
    assert [json.loads(line)["round"] for line in Path("a/rounds.jsonl").read_text().splitlines()] == [1, 2, 3]
    assert (summary("a")["rounds"], tomllib.loads(Path("a/settings.toml").read_text())["method"]["rounds"]) == (3, 3)
    refused("run --resume --out a --rounds 2", "it can get more, not fewer")


def test_resuming_where_nothing_is_begins_the_run(call):
    assert call(f"run local {TINY} --resume --out new").code == 0
    assert summary("new")["rounds"] == 2


def test_what_changes_no_result_may_change_when_a_run_is_resumed(call):
    call(f"run local {TINY} --out a")
    assert call(f"run local {TINY} --out a --resume --workers 0 --memory 0.5 --data-dir .").code == 0
    assert call("run --resume --out a --device cpu --engine loop").code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --resume", "resume: say which run with --out"),
        ("run fedavg --resume", "resume: say which run with --out"),
        ("compare fedavg --resume", "resume: say which run with --out"),
        ("run --resume --out none", "out=none: there is no run to continue; to begin one, name a method"),
        (
            "run --resume --out a --batch 8",
            r"other settings \(method.batch is 32 there, 8 here\); continue it with its",
        ),
        ("run local --resume --out a", r"other settings \(method is fedavg there, local here\)"),
        ("run --resume --out a --seed 1", "seed is 0 there, 1 here"),
        ("run --resume --out a --rate 0.2 --device cpu", r"other settings \(method.rate is 0.1 there, 0.2 here\)"),
        ("run --resume --out a --split iid", "split is dirichlet there, iid here"),
        ("run --resume --out a --precision float64", "computing.precision is float32 there, float64 here"),
        ("compare fedavg --resume --out a", "out=a: holds a single run, not a comparison"),
        (f"run fedavg {TINY} --out a", "out=a: holds another run; choose another folder, or go on with `run --resume`"),
        (f"compare fedavg {TINY} --out a", "out=a: holds another run"),
        ("demo --out a", "out=a: holds another run"),
    ],
)
def test_another_run_is_neither_continued_nor_harmed(call, refused, line, message):
    call(f"run fedavg {TINY} --out a")
    refused(line, message)


# Comparing


def test_a_comparison_prints_methods_sorted_with_their_deviations(call):
    outcome = call(f"compare fedavg local {TINY} --seeds 2 --out c")
    lines = [line for line in outcome.out.splitlines() if line.strip().startswith(("local", "fedavg"))]
    accuracies = [float(line.split()[1]) for line in lines]
    assert accuracies == sorted(accuracies, reverse=True)
    assert all(line.split()[2] == "±" for line in lines)
    assert "digits, dirichlet split, 4 clients, 2 seeds" in outcome.out
    assert outcome.out.endswith("look at c/index.html\n")
    folders = sorted(path.name for path in Path("c").iterdir() if path.is_dir())
    assert folders == ["fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1", "tables"]


def test_a_comparison_has_the_tables_and_tests_of_a_study(call):
    outcome = call(f"compare local fedavg {TINY} --seeds 3 --out c")
    assert "tables, tests, LaTeX and CSV: c/tables\n" in outcome.out
    assert sorted(path.name for path in Path("c/tables").iterdir()) == [
        f"comparison.{end}" for end in ("csv", "md", "tex")
    ]
    lines = [*csv.DictReader(Path("c/tables/comparison.csv").read_text().splitlines())]
    of_local = next(line for line in lines if (line["method"], line["value"]) == ("local", "accuracy"))
    accuracies = [summary(f"c/local-seed{seed}")["accuracy_mean"] for seed in range(3)]
    assert float(of_local["mean"]) == pytest.approx(100 * sum(accuracies) / 3)
    assert of_local["runs"] == "local-seed0;local-seed1;local-seed2"
    assert of_local["p"], "three seeds are enough for a test"
    page = Path("c/index.html").read_text()
    assert "paired t-test over seeds" in page
    assert "paired t-test over seeds" in Path("c/tables/comparison.tex").read_text()


def test_a_comparison_of_two_seeds_claims_no_test(call):
    call(f"compare local fedavg {TINY} --seeds 2 --out c")
    assert "t-test" not in Path("c/index.html").read_text()
    assert "t-test" not in Path("c/tables/comparison.md").read_text()


def test_a_comparison_without_test_data_has_no_tables(call):
    outcome = call(f"compare local {TINY} --test-share 0 --out c")
    assert "tables" not in outcome.out
    assert not Path("c/tables").exists()


def test_a_comparison_of_one_seed_has_no_deviation(call):
    outcome = call(f"compare fedavg {TINY}")
    assert "±" not in outcome.out
    assert outcome.out.endswith("look at runs/compare-digits-dirichlet/index.html\n")


def test_a_comparisons_runs_are_those_that_run_makes(call):
    call(f"compare local fedavg {TINY} --seeds 2 --out c")
    alone = call(f"run fedavg {TINY} --seed 1 --out a --json").json
    assert without_seconds(summary("c/fedavg-seed1")) == without_seconds(alone)
    assert Path("c/fedavg-seed1/settings.toml").read_text() == Path("a/settings.toml").read_text()


def test_all_means_every_method(call):
    found = call(f"compare all {TINY} --server-samples 40 --json").json
    assert [one["method"] for one in found] == list(methods)


def test_json_of_a_comparison_is_one_list(call):
    outcome = call(f"compare local fedavg {TINY} --seeds 2 --out c --json")
    assert outcome.err == ""
    assert [(one["method"], one["seed"]) for one in outcome.json] == [
        ("local", 0),
        ("fedavg", 0),
        ("local", 1),
        ("fedavg", 1),
    ]
    assert outcome.json[1] == summary("c/fedavg-seed0")
    assert Path("c/index.html").is_file()


def test_an_option_goes_to_the_methods_that_have_it(call):
    call(f"compare local fedavg fedprox {TINY} --mu 0.7 --server-rate 0.5 --rate 0.2 --out c")
    names = ("local", "fedavg", "fedprox")
    tables = [tomllib.loads(Path(f"c/{name}-seed0/settings.toml").read_text())["method"] for name in names]
    assert [table.get("mu") for table in tables] == [None, None, 0.7]
    assert [table.get("server_rate") for table in tables] == [None, 0.5, 0.5]
    assert {table["rate"] for table in tables} == {0.2}


def test_an_option_that_methods_understand_differently_reaches_each(call, refused):
    call(f"compare cfl fl-hc {TINY} --linkage single --out a")
    call(f"compare fl-hc {TINY} --linkage ward --out b")
    call(f"compare fedavg fedfa {TINY} --compat --out c")
    folders = ("a/cfl-seed0", "a/fl-hc-seed0", "b/fl-hc-seed0", "c/fedfa-seed0")
    tables = [tomllib.loads(Path(folder, "settings.toml").read_text())["method"] for folder in folders]
    assert [table.get("linkage") for table in tables] == ["single", "single", "ward", None]
    assert tables[-1]["compat"] is True
    refused(f"compare cfl fl-hc {TINY} --linkage ward", "unknown linkage 'ward': known are complete, single")


def test_none_is_what_a_method_calls_none(call):
    call("compare slfed --clients 4 --net logistic --rounds 1 --limit 400 --sharing none --out c")
    assert 'sharing = "none"' in Path("c/slfed-seed0/settings.toml").read_text()


def test_a_comparison_takes_over_what_a_settings_file_says_of_all_methods(call):
    call(f"run fedprox {TINY} --rate 0.2 --mu 0.7 --out a")
    found = call("compare local fedprox --settings a --out c --json").json
    assert {one["rounds"] for one in found} == {2}
    table = tomllib.loads(Path("c/local-seed0/settings.toml").read_text())["method"]
    assert table["rate"] == 0.2
    assert tomllib.loads(Path("c/fedprox-seed0/settings.toml").read_text())["method"]["mu"] == 0.7


def test_a_comparison_goes_on_with_what_is_missing(call):
    first = call(f"compare local fedavg {TINY} --out c --json").json
    kept = Path("c/local-seed0/rounds.jsonl").read_bytes()
    for path in Path("c/fedavg-seed0").rglob("*.*"):
        path.unlink()
    again = call(f"compare local fedavg {TINY} --out c --resume --json").json
    assert without_seconds(again) == without_seconds(first)
    assert Path("c/local-seed0/rounds.jsonl").read_bytes() == kept


# Showing


def test_show_prints_the_table_of_a_run_again(call):
    printed = call(f"run fedavg {TINY} --out a").out
    shown = call("show a").out
    assert printed.startswith(shown)
    assert call("show a --json").json == summary("a")


def test_show_puts_runs_side_by_side(call):
    call(f"compare local fedavg {TINY} --seeds 2 --out c")
    for line in ("show c", "show c/local-seed0 c/local-seed1 c/fedavg-seed0 c/fedavg-seed1"):
        outcome = call(line)
        assert "4 runs" in outcome.out
        assert outcome.out.count("±") == 5  # accuracy and worst tenth of both, global test of one
    assert len(call("show c --json").json) == 4


def test_show_keeps_runs_apart_that_differ(call):
    call(f"run fedavg {TINY} --out runs/a")
    call(f"run fedavg {TINY} --alpha 0.1 --out runs/b")
    call(f"run fedavg {TINY} --alpha 0.1 --seed 1 --out runs/c")
    outcome = call("show runs")
    assert "fedavg, alpha=0.5" in outcome.out
    assert "fedavg, alpha=0.1" in outcome.out
    assert "±" in outcome.out


def test_show_finds_the_runs_of_comparisons(call):
    call(f"compare local fedavg {TINY}")
    call(f"run local {TINY}")
    assert len(call("show runs --json").json) == 3


def test_show_tells_how_far_an_unfinished_run_is(call):
    call(f"run fedavg {TINY} --out a")
    call(f"run fedavg {TINY} --seed 1 --out b")
    shutil.copytree("a", "with space")
    Path("with space/summary.json").unlink()
    assert "coterie run --resume --out 'with space'" in " ".join(call("show 'with space'").out.split())
    Path("a/summary.json").unlink()
    outcome = call("show a b")
    assert "a: 2 of 2 rounds done; to go on: coterie run --resume --out a" in outcome.out
    assert "fedavg · digits" in outcome.out
    outcome = call("show a --json")
    assert outcome.json == []
    assert "2 of 2 rounds done" in outcome.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show", "no runs: name run folders"),
        ("show none", "none: not a run folder"),
        ("show empty", "empty: neither a run folder nor a folder that holds some"),
        ("show file", "file: not a run folder"),
        ("show a", "summary.json: damaged"),
        ("show b", r"rounds.jsonl: line 1 is damaged"),
        ("show c", "format=7: this version of Coterie reads format 1"),
    ],
)
def test_show_names_what_it_cannot_read(refused, tmp_path, line, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, content in (("a", ""), ("b", ""), ("c", "format = 7")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.toml").write_text(content)
    (tmp_path / "a/summary.json").write_bytes(b"\xff{")
    (tmp_path / "b/rounds.jsonl").write_bytes(b'{"round"\n{"round": 1}\n')
    refused(line, message)


# Splits


def test_a_split_is_drawn_and_printed(call):
    outcome = call("split label-skew --classes 3 --clients 5")
    assert "digits, label-skew split, 5 clients, 806 training samples" in outcome.out
    assert outcome.out.endswith("drawn in split-label-skew.png\n")
    with Image.open("split-label-skew.png") as picture:
        assert picture.width > 500
    assert call("split --split label-skew --classes 3 --clients 5").out.endswith("drawn in split-label-skew-2.png\n")


@pytest.mark.parametrize(("name", "start"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("below/x.pdf", b"%PDF")])
def test_a_split_is_drawn_where_asked(call, name, start):
    assert call(f"split iid --out {name}").code == 0
    assert Path(name).read_bytes().startswith(start)


def test_json_of_a_split_is_its_counts_and_draws_nothing(call, tmp_path):
    outcome = call("split autocfl-label --clients 4 --json")
    assert outcome.err == ""
    found = outcome.json
    assert found["labels"] == list("0123456789")
    assert list(found["clients"]) == list("0123")
    assert found["groups"] == [0, 1, 2, 3]
    assert [bool(count) for count in found["clients"]["0"]] == [True] * 3 + [False] * 7
    assert list(tmp_path.iterdir()) == []


def test_names_of_labels_are_printed_as_they_are(call, own_data):
    outcome = call(f"split --data {own_data} --clients 3")
    assert "[bold]a  b [/x]  $c$ <script>" in outcome.out


def test_many_labels_are_counted(call):
    np.savez("many.npz", x=np.zeros((60, 2)), y=np.arange(60) % 30)
    outcome = call("split iid --data many.npz --clients 2")
    assert outcome.out.splitlines()[1].split() == ["client", "group", "train", "validation", "test", "labels"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("split dirichle", "unknown split 'dirichle': did you mean dirichlet"),
        ("split iid --split dirichlet", "split: iid or dirichlet"),
        ("split iid --out x.txt", "out=x.txt: a file that ends in .png, .svg or .pdf"),
        ("split iid --out there.png", "out=there.png: exists already"),
        ("split iid --out there.png/x.png", "out=there.png/x.png: cannot be written"),
        ("split iid --rounds 3", "unknown option: --rounds"),
    ],
)
def test_a_bad_split_is_refused(refused, tmp_path, line, message):
    (tmp_path / "there.png").write_bytes(b"mine")
    refused(line, message)


# The demo


@pytest.fixture
def tiny_demo(monkeypatch):
    given = {"split": "autocfl-label", "clients": 4, "net": "logistic", "rounds": 2, "test": "labels"}
    made = [Settings.of(given, name)[0] for name in ("local", "fedavg")]
    monkeypatch.setattr("coterie.cli.demo.demo_settings", lambda: made)


def test_the_demo_shows_methods_side_by_side_and_a_page(call, tiny_demo):
    outcome = call("demo")
    assert outcome.out.startswith("20 clients hold scanned digits.")
    assert "local" in outcome.out
    assert "ARI" in outcome.out
    assert outcome.out.endswith("look at demo/index.html\n")
    page = Path("demo/index.html").read_text()
    html.parser.HTMLParser().feed(page)
    assert page.count("<svg") == page.count("<figure") == 7
    assert call("demo").out.endswith("look at demo-2/index.html\n")
    assert call("demo --out mine").out.endswith("look at mine/index.html\n")


def test_the_demo_overwrites_nothing(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    refused("demo --out mine", "out=mine: is not empty; choose another folder")


def test_the_real_demo(call):
    outcome = call("demo")
    assert outcome.code == 0
    for name in ("local", "fedavg"):
        assert summary(f"demo/{name}-seed0")["accuracy_mean"] > 0.85
    assert summary("demo/local-seed0")["clients"] == 20


# What there is


def test_lists_have_a_line_for_each(call):
    listed = [name for names in by_family(methods).values() for name in names]
    for what, names in (("methods", listed), ("splits", split_rules), ("nets", nets)):
        lines = call(what).out.splitlines()[1:]
        assert [line.split()[0] for line in lines if not line.startswith("module:name")] == list(names)
        assert all(len(line.split()) > 4 for line in lines)
    assert len(call("data").out.splitlines()) == len([*sources]) + 2


def test_nets_are_listed_with_their_parameters(call):
    lines = {line.split()[0]: line.split()[1:4] for line in call("nets").out.splitlines()}
    assert lines["lenet5"] == ["–", "44,426", "62,006"]
    assert lines["resnet18"] == ["11,172,810", "11,172,810", "11,173,962"]
    assert lines["vgg19"] == ["–", "–", "20,565,834"]


@pytest.mark.parametrize("name", list(methods))
def test_all_about_a_method(call, name):
    said = call(f"methods {name}").out
    assert said.startswith(f"{name}\n")
    assert "--participation" in said


@pytest.mark.parametrize("name", list(split_rules))
def test_all_about_a_split(call, name):
    said = call(f"splits {name}").out
    assert said.startswith(f"{name}\n")
    assert "--clients" in said


def test_all_about_a_data_set(call, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", "/somewhere")
    said = call("data imagenet32").out
    assert "non-commercial research" in said
    assert "https://image-net.org" in said
    assert "looked for in   /somewhere" in said
    assert "--classes" in said
    assert "--seed" not in said


def test_all_about_a_net(call):
    said = call("nets resnet9").out
    assert "ResNet-9 with group normalisation" in said
    assert ["cifar100", "6,621,540"] in [line.split() for line in said.splitlines()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("methods fedavgg", "unknown method 'fedavgg': did you mean fedavg"),
        ("splits dirichle", "unknown split 'dirichle': did you mean dirichlet"),
        ("data minst", "unknown data set 'minst': did you mean mnist"),
        ("nets lenet", "unknown net 'lenet': did you mean lenet5"),
        ("methods fedavg local", "unexpected 'local'"),
    ],
)
def test_what_there_is_not_has_near_names(refused, line, message):
    refused(line, message)


# Help


@pytest.mark.parametrize("name", ["", "run", "compare", "show", "split", "demo", "methods", "data", "splits", "nets"])
def test_every_command_explains_itself(call, name):
    outcome = call(f"{name} --help")
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: coterie")
    assert outcome.err == ""


@pytest.mark.parametrize("name", list(methods))
def test_the_help_of_a_method_has_all_its_options(call, name):
    said = call(f"run {name} --help").out
    world = world_options()
    for item in world + method_options(name, world):
        assert (f" --{item.name.replace('_', '-')} " in said) is item.visible, item.name
    assert max(map(len, said.splitlines())) <= 80


def test_the_help_shows_the_options_of_the_named_split(call):
    assert "--classes" in call("run fedavg --split label-skew --help").out
    assert "--classes" in call("split label-skew --help").out
    assert "--classes" not in call("run fedavg --help").out


def test_the_help_of_a_comparison_shows_the_options_of_the_named_methods(call):
    assert "--mu" in call("compare fedavg fedprox --help").out
    assert "--mu" not in call("compare fedavg local --help").out
    assert "--mu" in call("compare --help").out
    assert "--gan-steps" in call("deploy local slfed --help").out
    assert "--gan-steps" not in call("deploy local fedavg --help").out
    assert "--gan-steps" in call("deploy local --help").out


def test_a_value_that_is_called_like_a_method_is_no_method(call, tmp_path):
    assert "--mu" not in call("compare fedavg --out fedprox --help").out
    assert "--mu" not in call("compare fedavg --data fedprox --help").out
    assert "--gan-steps" not in call("deploy local fedavg --out slfed --help").out
    assert "--gan-steps" not in call("deploy init slfed fedavg --help").out
    for label in "ab":
        (tmp_path / "fedprox" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("L", (4, 4), color=20 * number).save(tmp_path / f"fedprox/{label}/{number}.png")
    given = "--data fedprox --clients 2 --rounds 1"
    assert call(f"run --out local {given} fedavg --json").json["method"] == "fedavg"
    assert summary("local")["method"] == "fedavg"
    assert call(f"compare --out ifca {given} local fedavg").code == 0
    assert sorted(path.name for path in Path("ifca").glob("*-seed*")) == ["fedavg-seed0", "local-seed0"]


def test_without_a_command_there_is_help(call):
    assert call("").out == call("--help").out


def test_the_version(call):
    assert call("--version").out.strip() == coterie.__version__


# Whose an option is


@pytest.fixture
def skewed():
    """A method whose option `alpha` the default split has too."""

    @method("skewed")
    class Skewed(methods["local"]):
        """Trains alone."""

        alpha: float = 7.0
        """Not the split's."""

    assert issubclass(Skewed, Method)
    yield
    del methods._classes["skewed"]


def test_a_name_that_split_and_method_have_is_the_splits(call, skewed):
    outcome = call(f"run skewed {TINY} --alpha 0.3 --out a --json")
    assert outcome.err == "note: alpha is the split's; the method has one too: method.alpha\n"
    assert outcome.json["method"] == "skewed"
    settings = tomllib.loads(Path("a/settings.toml").read_text())
    assert (settings["split"]["alpha"], settings["method"]["alpha"]) == (0.3, 7.0)


def test_a_prefix_says_that_it_is_the_methods(call, skewed):
    assert call(f"run skewed {TINY} --method.alpha 0.2 --split.alpha 0.4 --out a --json").err == ""
    settings = tomllib.loads(Path("a/settings.toml").read_text())
    assert (settings["split"]["alpha"], settings["method"]["alpha"]) == (0.4, 0.2)
    assert "--method.alpha" in call("run skewed --help").out


def test_a_comparison_gives_the_prefixed_option_to_who_has_it(call, skewed):
    outcome = call(f"compare local skewed {TINY} --method.alpha 0.2 --alpha 0.4 --out c --json")
    assert outcome.err == "note: alpha is the split's; the method has one too: method.alpha\n"
    settings = tomllib.loads(Path("c/skewed-seed0/settings.toml").read_text())
    assert (settings["split"]["alpha"], settings["method"]["alpha"]) == (0.4, 0.2)


def test_a_comparison_gives_a_plain_option_to_the_method_if_the_split_has_none(call, skewed):
    call(f"compare local skewed {TINY} --split iid --alpha 0.2 --out c")
    assert tomllib.loads(Path("c/skewed-seed0/settings.toml").read_text())["method"]["alpha"] == 0.2


# Bad input


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("runn", 'unknown command "runn"'),
        ("run fedavgg", "unknown method 'fedavgg': did you mean fedavg"),
        ("run", "no method: name one"),
        ("run --rounds 3", "no method: name one"),
        ("run fedavg more", "unexpected 'more'"),
        ("run fedavg --alhpa 1", "unknown option: --alhpa. Did you mean --alpha"),
        ("run fedavg --mu 1", "option 'mu': nothing that is used here has it, only method ditto, .*method fedprox"),
        ("run lg-fedavg --shares feet", "net cnn has no layer 'feet': it has 0, 3, 7"),
        ("run fedrep --head top-x", "net cnn has no layer 'top-x'"),
        ("run fedavg --split iid --alpha 1", "option 'alpha': nothing that is used here has it, only split"),
        ("run fedavg --data.classes 3", "option 'data.classes': nothing .* only data set imagenet32"),
        ("run fedavg --rounds", "--rounds requires an argument"),
        ("run fedavg --rounds 1 --rounds 2", "--rounds specified multiple times"),
        ("run fedavg --rounds many", "--rounds: 'many' is not a whole number"),
        ("run fedavg --rounds 2.5", "--rounds: '2.5' is not a whole number"),
        ("run fedavg --rate fast", "--rate: 'fast' is not a number"),
        ("run feddyn --clip none", "--clip: 'none' is not a number"),
        ("run fedavg --rate nan", "rate=nan: expected a finite number"),
        ("run fedavg --weighting unifrom", "--weighting: unknown choice 'unifrom': did you mean uniform?"),
        ("run fedavg --schedule none", "--schedule: unknown choice 'none'"),
        ("run fedavg --top 3", "for --top"),
        ("run fedavg --views seved", "unknown views 'seved': did you mean served"),
        ("run fedavg --data mnst", "unknown data set 'mnst': did you mean mnist"),
        ("run fedavg --data none.npz", "none.npz: no such file or folder"),
        ("run fedavg --data prose.txt", "prose.txt: own data is an .npz file, a table"),
        ("run fedavg --data damaged.npz", "damaged.npz"),
        ("run fedavg --split dirichle", "unknown split 'dirichle': did you mean dirichlet"),
        ("run fedavg --split natural", "digits does not say who its samples are from"),
        ("run fedavg --split given", "assignment: name a file"),
        ("run fedavg --split given --assignment none.json", "assignment=none.json: cannot be read"),
        ("run fedavg --net lenet", "unknown net 'lenet': did you mean lenet5"),
        ("run fedavg --net lenet5", "8x8 are too small"),
        ("run fedavg --net no.such:net", "net 'no.such:net': cannot be imported"),
        ("run fedavg --clients 1439", "digits has 1438 samples, and every client needs one"),
        ("run fedavg --split label-skew --classes 1 --clients 1430", "without samples: use fewer clients"),
        ("run fedavg --test-share 0.95", "nothing is left to train on"),
        ("run fedavg --server-samples 1439", "server_samples=1439: only 1438"),
        ("run fedavg --optimizer adam --momentum 0.5", "momentum=0.5: belongs to sgd"),
        ("run fedavg --arrivals 3", "arrivals='3': write client:round"),
        ("run fedavg --arrivals 3:0", "client 3 in round 0; rounds are counted from 1"),
        ("run fedavg --arrivals 3:21", "client 3 comes in round 21, after the last of 20"),
        ("run fedavg --arrivals 99:2", "arrivals: there is no client 99"),
        ("run fedavg --clients 2 --arrivals 0:2,1:2", "nobody is there in the first round"),
        ("run fedavg --device tpu9", "device=tpu9: not available"),
        ("run fedavg --settings none.toml", "none.toml: cannot be read"),
        ("run fedavg --settings prose.txt", "prose.txt: not a TOML file"),
        ("run fedavg --settings damaged.npz", "damaged.npz: not a TOML file"),
        ("run fedavg --settings folder", "folder/settings.toml: cannot be read"),
        ("run --settings nameless.toml", "no method: name one, or a settings file that does"),
        ("run --settings text.toml", r"method = 'fedavg': expected a section \[method\]"),
        ("run --settings typo.toml", r"unknown entry of \[division\] 'tset': did you mean test"),
        ("run fedavg --out folder", "out=folder: is not empty; choose another folder"),
        ("run fedavg --out prose.txt", "out=prose.txt: a file; choose a folder"),
        ("run fedavg --out prose.txt/below", "out=prose.txt/below: cannot be written"),
        ("run fedavg --out /proc/none", "out=/proc/none: cannot be written"),
        ("compare", "no methods: name some of"),
        ("compare fedavg locl", "unknown method 'locl': did you mean local"),
        ("compare fedavg --seeds 0", "seeds=0: at least 1"),
        (
            "compare fedavg local --mu 1",
            "option 'mu': nothing that is used here has it, only method ditto, .*method fedprox",
        ),
        ("compare fedavg --net lenet5", "8x8 are too small"),
        ("compare fedavg --out prose.txt", "out=prose.txt: a file"),
        ("compare fedavg --out folder", "out=folder: is not empty"),
    ],
)
def test_bad_input_gets_one_message_and_starts_nothing(refused, tmp_path, line, message):
    (tmp_path / "prose.txt").write_text("to be or not to be\n")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04\xff\xff\xff")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").touch()
    (tmp_path / "nameless.toml").write_text("seed = 1\n")
    (tmp_path / "text.toml").write_text('method = "fedavg"\n')
    (tmp_path / "typo.toml").write_text("[method]\nname = 'fedavg'\n[division]\ntset = 'own'\n")
    refused(line, message)


OUT_OF_RANGE = {
    "limit": "0",
    "hold_out": "1.0",
    "rounds": "0",
    "participation": "1.5",
    "server_rate": "0",
    "server_momentum": "1",
    "mu": "-0.1",
    "epochs": "-1",
    "steps": "0",
    "batch": "-1",
    "rate": "0",
    "momentum": "1",
    "decay": "-1",
    "clip": "-1",
    "rate_decay": "0",
    "prior_smoothing": "0",
    "clients": "0",
    "alpha": "0",
    "min_size": "0",
    "validation": "1",
    "test_share": "-0.1",
    "server_samples": "-1",
    "evaluate_every": "0",
    "adapt_epochs": "0",
    "workers": "-1",
    "memory": "0",
}
ANYTHING_GOES = {"seed", "split_seed"}


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE.items())
def test_numbers_out_of_range_are_refused(refused, own_data, name, value):
    refused(f"run fedprox --data {own_data} --{name.replace('_', '-')} {value}", f"{name}={float(value):g}")


def test_every_number_has_a_range():
    world = world_options()
    shown = [item for item in world + method_options("fedprox", world) if item.visible]
    numeric = {item.name for item in shown if item.option.type in (int, float, int | None, float | None)}
    assert numeric == OUT_OF_RANGE.keys() | ANYTHING_GOES


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(refused):
    refused("run fedavg --device cuda", "device=cuda: not available")


def test_brackets_in_names_are_taken_as_they_are(call, refused, own_data):
    assert call(f"run local --data {own_data} --clients 3 --rounds 1 --out '[/a] [b]'").out.endswith(
        "written to [/a] [b]\n"
    )
    refused("show '[/none]'", r"\[/none\]: not a run folder")


# As a program of its own


def test_python_runs_it_as_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "run", "none"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown method 'none'")


def test_a_reader_who_has_enough_is_no_error(tmp_path):
    """As `coterie splits | true` does it: the output is closed before anything is written to it."""
    program = subprocess.Popen(
        [sys.executable, "-m", "coterie", "split", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # as users have it: what is printed may wait until the end
    )
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 1


def test_a_run_can_be_explained_instead_of_run(call, tmp_path):
    outcome = call("run fedavg --clients 5 --net mlp --device cpu --workers 0 --explain")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].startswith("vectorised form (chosen for this net on cpu)")
    assert "4,810 parameters" in outcome.out
    assert "clients together, as 1 GB allow" in outcome.out
    assert not list(tmp_path.iterdir())
    assert "loop form (as told)" in call("run fedavg --clients 5 --engine loop --explain").out
