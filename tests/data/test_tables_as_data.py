"""Tables as data: what becomes of columns, what is refused and where, and what is fitted on training rows alone."""

import datetime
import logging
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.data import Column, Schema, Split, from_frame, from_table
from coterie.data.division import Division
from coterie.data.population import Pool, populate

VISITS = """id,age,ward,smoker,outcome,hospital
1,40,A,true,yes,north
2,,B,false,no,south
3,60,A,,no,north
4,50,,true,yes,south
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text=VISITS, name="visits.csv"):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def visits(text=VISITS, **options):
    return from_table(write(text), **{"target": "outcome", "client": "hospital", "drop": ("id",), **options})


# What becomes of columns


def test_each_type_of_column_becomes_its_inputs():
    data = visits()
    assert data.schema.inputs == (
        *("age", "age missing", "ward=A", "ward=B", "ward missing"),
        *("smoker", "smoker missing"),
    )
    nan = np.nan
    expected = [
        [40, 0, 1, 0, 0, 1, 0],
        [nan, 1, 0, 1, 0, 0, 0],
        [60, 0, 1, 0, 0, nan, 1],
        [50, 0, 0, 0, 1, 1, 0],
    ]
    np.testing.assert_array_equal(data.x, expected)
    assert (data.kind, data.task, data.labels) == ("features", "binary", ("no", "yes"))
    assert data.y.tolist() == [1, 0, 0, 1]
    assert data.users.tolist() == ["north", "south", "north", "south"]
    assert data.name == "visits"


def test_the_log_tells_what_was_made_of_which_column(caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        visits()
    assert caplog.messages == [
        "visits: 4 rows; target outcome; numbers: age [1 missing]; true or false: smoker [1 missing]; "
        "categories: ward (A, B) [1 missing]; left out: id; missing values become the mean of training rows, and an "
        "input says where; 2 clients"
    ]


@pytest.mark.parametrize("text", [VISITS.replace(",", ";"), VISITS.replace(",", "\t"), "\ufeff" + VISITS + "\n,,,,,\n"])
def test_files_of_spreadsheets_are_read_as_they_are(text):
    np.testing.assert_array_equal(visits(text).x, visits().x)


def test_quotes_hold_commas_and_lines():
    data = from_table(write('text,y\n"a, b",0\n"c\nd",1\n'), target="y")
    assert data.schema.columns == (Column("text", "category", ("a, b", "c\nd")),)


def test_whole_numbers_are_inferred_classes_or_amounts_as_in_arrays():
    rows = "x,y\n" + "".join(f"{row},{row * 13 + 5}\n" for row in range(40))
    amounts = from_table(write(rows), target="y")
    assert (amounts.task, amounts.labels, amounts.schema.labels) == ("regression", ("y",), ("y",))
    assert amounts.y[:2].tolist() == [[5], [18]]
    told = from_table(write("x,y\n1,3\n2,7\n3,3\n"), target="y")
    assert (told.task, told.labels) == ("binary", ("3", "7"))
    assert from_table(write("x,y\n1,3\n2,7\n3,3\n"), target="y", task="regression").y.tolist() == [[3], [7], [3]]


def test_names_of_clients_stay_and_are_the_split(tmp_path):
    rows = "".join(f"{number},{number % 2},{'007' if number % 3 else 'Sankt Anna'}\n" for number in range(60))
    data = from_table(write("x,y,site\n" + rows), target="y", client="site")
    assert list(coterie.simulate(data, net="mlp").names) == ["007", "Sankt Anna"]
    fed = coterie.simulate("visits.csv", target="y", client="site", net="mlp")
    assert list(fed.names) == ["007", "Sankt Anna"]
    assert len(coterie.simulate("visits.csv", "iid", target="y", client="site", clients=3, net="mlp").names) == 3


def test_a_folder_has_a_file_per_client():
    header, *rows = VISITS.strip().split("\n")
    write("\n".join([header, rows[0], rows[2]]), "sites/north.csv")
    write("\n".join([header, rows[1], rows[3]]), "sites/south.csv")
    Path("sites/notes.txt").touch()
    data = from_table("sites", target="outcome", drop=("id", "hospital"))
    assert data.users.tolist() == ["north", "north", "south", "south"]
    np.testing.assert_array_equal(data.x, visits().x[[0, 2, 1, 3]])
    assert list(coterie.load("sites", target="outcome").users) == list(data.users)


def test_a_schema_says_it_all_and_survives_a_file():
    first = visits()
    first.schema.write(Path("visits.toml"))
    assert Schema.read("visits.toml") == first.schema
    few = "ward,hospital,age,outcome,smoker,more\nB,west,1,no,true,x\n"
    data = from_table(write(few), schema="visits.toml")
    assert data.x.tolist() == [[1, 0, 0, 1, 0, 1, 0]]
    assert (data.y.tolist(), data.labels, data.users.tolist()) == ([0], ("no", "yes"), ["west"])
    assert data.schema == first.schema


def test_numbers_are_labels_by_their_names_where_a_schema_says_so():
    schema = Schema("y", (Column("x", "number"),), "classification", ("3", "5", "9"))
    assert from_table(write("x,y\n1,9\n2,5.0\n"), schema=schema).y.tolist() == [2, 1]


def test_missing_values_that_a_schema_does_not_know_are_told_of(caplog):
    schema = Schema("y", (Column("x", "number"),), "binary", ("0", "1"))
    data = from_table(write("x,y\n1,0\n,1\n"), schema=schema)
    assert np.isnan(data.x[1, 0])
    assert "visits: column x: 1 missing values become the mean, unmarked" in caplog.text


# Data frames


class Series(list):
    dtype = "object"

    def to_list(self):
        return list(self)


class Codes(Series):
    dtype = "category"


class Frame(dict):
    @property
    def columns(self):
        return list(self)


def test_a_data_frame_is_a_table():
    gone = type("NAType", (), {})()
    frame = Frame(
        age=Series([40.0, float("nan"), 60.0, 50.0]),
        code=Codes([1, 2, 1, 2]),
        smoker=Series([np.bool_(True), gone, False, True]),
        outcome=Series(["yes", "no", "no", "yes"]),
        site=Series([1.0, 2.0, 1.0, 2.0]),
    )
    data = from_frame(frame, target="outcome", client="site")
    assert data.schema.inputs == ("age", "age missing", "code=1", "code=2", "smoker", "smoker missing")
    np.testing.assert_array_equal(data.x[1], [np.nan, 1, 0, 1, np.nan, 1])
    assert data.users.tolist() == ["1", "2", "1", "2"]
    frame["age"][2] = "old"
    with pytest.raises(DataError, match="table: column age, row 2: 'old' is no number"):
        from_frame(frame, target="outcome")


def test_a_pandas_frame_is_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(write(), dtype={"ward": "category"})
    np.testing.assert_array_equal(from_frame(frame, "outcome", "hospital", ("id",)).x, visits().x)


# Parquet


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("visits.parquet").touch()
    with pytest.raises(CoterieError, match=r"needs pyarrow: pip install 'coterie\[tables\]', or save it as CSV"):
        from_table("visits.parquet", target="outcome")


def test_columns_of_parquet_files_keep_their_types(monkeypatch):
    content = {"x": [1, None], "y": ["a", "b"], "when": [datetime.date(2024, 3, 1)] * 2}
    module = ModuleType("pyarrow")
    module.parquet = ModuleType("pyarrow.parquet")
    module.parquet.read_table = lambda path: type("Table", (), {"to_pydict": lambda self: dict(content)})()
    monkeypatch.setitem(sys.modules, "pyarrow", module)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module.parquet)
    data = from_table("visits.parquet", target="y", drop=("when",))
    np.testing.assert_array_equal(data.x, [[1, 0], [np.nan, 1]])
    with pytest.raises(DataError, match=r"visits.parquet: column when holds dates such as 2024-03-01"):
        from_table("visits.parquet", target="y")


def test_a_parquet_file_is_read():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1.5, None], "y": ["a", "b"]}), "visits.parquet")
    np.testing.assert_array_equal(from_table("visits.parquet", target="y").x, [[1.5, 0], [np.nan, 1]])
    Path("visits.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"visits.parquet: cannot be read as a Parquet file"):
        from_table("visits.parquet", target="y")


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            VISITS.replace("60", "n/a"),
            "visits.csv: column age, row 4: 'n/a' is no number; write it empty, or leave the column out with --drop",
        ),
        (VISITS.replace("60", "inf"), "visits.csv: column age, row 4: 'inf' is no number"),
        (VISITS.replace("60", "6_0"), "'6_0' is no number"),
        (VISITS.replace("yes,south", ",south"), "visits.csv: column outcome, row 5: is empty, and every row needs it"),
        (VISITS.replace("yes,south", "yes,"), "visits.csv: column hospital, row 5: is empty"),
        (VISITS.replace(",A,", ",2024-03-01,").replace(",B,", ",2024-03-02 10:30,"), "column ward holds dates such as"),
        *(
            (VISITS.replace(",A,", f',"{one}",').replace(",B,", f',"{one}",'), "column ward holds dates such as")
            for one in (
                "2024/03/01",
                "1-3-2024",
                "1 March 2024",
                "Mar 1, 2024",
                "01-Mar-24",
                "1.3.2024 8:30",
                "08:30:15",
            )
        ),
        (VISITS.replace(",yes,", ",2024-03-01,").replace(",no,", ",2024-03-02,"), "target=outcome holds dates such as"),
        (VISITS.replace(",A,", ",1.3.2024,").replace(",B,", ",02.03.24,"), "--drop ward, or write an amount such as"),
        (VISITS.replace(",A,", ",,").replace(",B,", ",,"), "column ward is empty; leave it out with --drop ward"),
        (VISITS.replace("3,60,A", "3,60"), "visits.csv: row 4 has 5 values for 6 columns"),
        (VISITS.replace("ward", "age"), "visits.csv: two columns are called age"),
        (VISITS.replace("ward", " "), "the first row must name the columns"),
        ("", "the first row must name the columns"),
        ("id,age,outcome,hospital\n", "visits.csv: no rows"),
        ("id,outcome,hospital\n1,a,x\n", "no column is left for inputs"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text, message):
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        visits(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ""}, "say with target=... which column is predicted; there are id, age, ward"),
        ({"target": "outcom"}, "unknown column of visits.csv 'outcom': did you mean outcome"),
        ({"client": "hopital"}, "did you mean hospital"),
        ({"drop": ("ID",)}, "unknown column of visits.csv 'ID': did you mean id"),
        ({"client": "outcome"}, "target=outcome: is the client too"),
        ({"drop": ("id", "outcome")}, "target=outcome: is dropped too"),
        ({"schema": "none.toml", "target": ""}, "none.toml: cannot be read"),
    ],
)
def test_wrong_columns_are_refused(options, message):
    with pytest.raises(CoterieError, match=message):
        visits(**options)


def test_words_that_are_all_different_are_no_categories():
    rows = "".join(f"word{row},{row % 2}\n" for row in range(101))
    with pytest.raises(DataError, match="column name has 101 different words, more than 100 categories"):
        from_table(write("name,y\n" + rows), target="y")


def test_a_number_among_words_is_a_word_and_a_word_among_targets_an_error():
    assert visits(VISITS.replace(",B,", ",7,")).schema.columns[1].categories == ("7", "A")
    rows = "x,y\n1,1\n2,2\n3,three\n4,4\n"
    with pytest.raises(DataError, match="column y, row 4: 'three' is no number, but most targets are"):
        from_table(write(rows), target="y")


SCHEMA = Schema("y", (Column("x", "number"), Column("w", "category", ("A", "B"))), "binary", ("no", "yes"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,no\n", "visits.csv: no column w, which the schema has"),
        ("x,w,y\n1,A,no\n2,C,yes\n", "visits.csv: column w, row 3: 'C' is none of A, B; write it empty, or add it to"),
        ("x,w,y\n1,A,maybe\n", "visits.csv: column y, row 2: 'maybe' is none of the labels no, yes"),
        ("x,w,y\none,A,no\n", "visits.csv: column x, row 2: 'one' is no number"),
    ],
)
def test_what_does_not_fit_a_schema_is_named(text, message):
    with pytest.raises(DataError, match=message):
        from_table(write(text), schema=SCHEMA)
    with pytest.raises(SettingsError, match="target: the schema says it"):
        from_table(write("x,w,y\n1,A,no\n"), target="y", schema=SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("format = 1", "format = 2"), "format=2: a schema of format 1 is expected"),
        (('type = "number"', 'type = "numbr"'), "unknown type of column x 'numbr': did you mean number"),
        (('type = "number"', 'type = "category"'), "column x: categories are for a category, which needs some"),
        (('name = "w"', 'name = "x"'), "column x is there twice"),
        (('task = "binary"', 'task = "binry"'), "unknown task 'binry': did you mean binary"),
        (('target = "y"', 'tarket = "y"'), "unknown entry of the schema 'tarket': did you mean target"),
        (('name = "x"\n', ""), "a column does not say its name"),
        (('type = "number"', 'type = "number"\nmissing = 0'), "missing=0: expected true or false"),
        (("[[columns]]", "[[columns"), "not a TOML file"),
    ],
)
def test_what_is_wrong_in_a_schema_is_named(change, message):
    SCHEMA.write(Path("s.toml"))
    text = Path("s.toml").read_text()
    assert change[0] in text
    with pytest.raises(SettingsError, match=f"s.toml: {message}"):
        Schema.read(write(text.replace(*change, 1), "s.toml"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"north.csv": "x,y\n1,0\n", "south.csv": "x,z\n1,0\n"}, "sites/south.csv: no column y, which sites/north.csv"),
        ({"north.csv": "x,y\n1,0\n", "south.csv": "x,y\nA,1\n2,1\n3,1\n"}, "sites/south.csv: column x, row 2: 'A'"),
        ({"north.csv": "x,y\n1,0\n", "north.tsv": "x\ty\n1\t0\n"}, "sites: north is there in two formats"),
        ({"notes.txt": ""}, r"sites: no tables \(.csv, .tsv, .parquet\)"),
    ],
)
def test_folders_that_do_not_fit_together_are_refused(files, message):
    for name, text in files.items():
        write(text, f"sites/{name}")
    with pytest.raises(DataError, match=message):
        from_table("sites", target="y")


# Fitted on training rows alone


def test_missing_values_and_scaling_come_from_training_rows_alone():
    rng = np.random.default_rng(0)
    rows = "".join(f"{'' if row % 5 == 0 else rng.normal(50, 9)},{'AB'[row % 2]},{row % 2}\n" for row in range(100))
    data = from_table(write("age,ward,y\n" + rows), target="y")
    population = populate(data, Split((range(40), range(40, 100))))
    trained = np.concatenate([shard.train for shard in population.shards])
    known = data.x[trained, 0].astype(np.float64)
    mean, deviation = np.nanmean(known), np.nanstd(known)
    assert len(trained) < 100
    assert population.filling == pytest.approx([mean, 0, 0, 0])
    assert population.shift == pytest.approx([mean, 0, 0, 0])
    assert population.scale == pytest.approx([deviation, 1, 1, 1])
    assert population.schema == data.schema
    x = Pool.of(population, "cpu", torch.float64).inputs(torch.arange(100))
    gone = torch.from_numpy(np.isnan(data.x[:, 0]))
    torch.testing.assert_close(x[gone, 0], torch.zeros(20, dtype=torch.float64), atol=1e-6, rtol=0)
    np.testing.assert_allclose(x[~gone, 0], (data.x[~gone.numpy(), 0] - mean) / deviation, rtol=1e-5)
    np.testing.assert_array_equal(x[:, 1:], data.x[:, 1:])


def test_without_scaling_missing_values_are_filled_in_all_the_same():
    data = visits()
    population = populate(data, Split((range(4),)), Division(scaling="none", validation=0.0, test_share=0.0))
    assert (population.shift.tolist(), population.scale.tolist()) == ([0] * 7, [1] * 7)
    assert population.x[:, 0].tolist() == [40, 50, 60, 50]
    assert population.x[:, 5] == pytest.approx([1, 0, 2 / 3, 1])


def test_a_table_is_learned_from(call):
    rng = np.random.default_rng(1)
    rows = []
    for row in range(240):
        age, ward = rng.normal(50, 10), "ABC"[row % 3]
        cost = 1000 + 30 * age + 400 * (ward == "A")
        rows.append(f"{row},{'' if row % 11 == 0 else round(age, 2)},{ward},{cost:.1f},site {row % 4}\n")
    write("id,age,ward,cost,site\n" + "".join(rows), "costs.csv")
    options = "--data costs.csv --target cost --client site --drop id --rounds 20 --net logistic"
    outcome = call(f"run fedavg {options} --out out --json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["split"] == "natural"
    assert outcome.json["loss_mean"] < 0.35
    again = call("run --settings out --rounds 2 --out again --json")
    assert (again.code, again.json["split"]) == (0, "natural")


def test_a_damaged_table_is_refused_on_the_command_line(refused):
    write(VISITS.replace("60", "n/a"))
    refused("run fedavg --data visits.csv --target outcome --drop id", "visits.csv: column age, row 4: 'n/a'")
    refused("run fedavg --data visits.csv --drop id", "say with target=...")
    refused("run fedavg --data visits.csv --size 4", "unknown option of a table 'size'")


@pytest.mark.parametrize("word", ["A", "1-2", "3/4", "May", "mar", "ward 12:30", "10.5.1", "sept 4"])
def test_words_are_not_taken_for_dates(word):
    text = VISITS.replace(",A,", f",{word},").replace(",B,", ",other,")
    Path("visits.csv").write_text(text)
    column = next(one for one in from_table("visits.csv", "outcome", "hospital").schema.columns if one.name == "ward")
    assert word in column.categories


def test_a_data_frame_goes_straight_into_a_simulation():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": range(20), "y": ["a", "b"] * 10, "site": ["s", "t"] * 10})
    fed = coterie.simulate(frame, target="y", client="site", net="logistic")
    assert fed.names == ("s", "t")
    assert coterie.simulate(frame, "iid", clients=3, target="y", drop=["site"]).names == ("0", "1", "2")
    with pytest.raises(SettingsError, match=r"say with target=\.\.\. which column is predicted; there are x, y, site"):
        coterie.simulate(frame)
    with pytest.raises(DataError, match=r"expected numbers; columns of words are read by coterie\.data\.from_frame"):
        coterie.Dataset(frame, frame["y"])


def test_codes_keep_their_zeros():
    Path("visits.csv").write_text("zip,y\n01234,a\n99999,b\n01234,a\n")
    (column,) = from_table("visits.csv", "y").schema.columns
    assert column == Column("zip", "category", ("01234", "99999"))


def test_decimal_commas_are_numbers_where_no_comma_parts_columns(caplog):
    Path("visits.csv").write_text("dose;ward;y\n1,5;A;a\n2;B;b\n;A;b\n")
    data = from_table("visits.csv", "y")
    assert [column.type for column in data.schema.columns] == ["number", "category"]
    np.testing.assert_array_equal(data.x[:, 0], [1.5, 2, np.nan])
    Path("visits.csv").write_text('dose,y\n"1,5",a\n"2,5",b\n')
    with pytest.raises(DataError, match=r"visits.csv: column dose has decimal commas, as in 1,5; write points"):
        from_table("visits.csv", "y")


def test_large_numbers_of_a_table_are_not_rounded_in_silence(caplog):
    rows = "".join(f"{1_700_000_000 + 10 * row},{'ab'[row % 2]}\n" for row in range(20))
    Path("visits.csv").write_text(f"seconds,y\n{rows}")
    from_table("visits.csv", "y")
    assert "1 of 1 inputs are rounded by up to" in caplog.text


def test_a_site_may_have_no_value_of_a_column():
    Path("all.csv").write_text("a,b,y\n0.1,1,n\n,2,y\n")
    schema = from_table("all.csv", "y").schema
    Path("one.csv").write_text("a,b,y\n,0.1,n\n,0.3,y\n")
    assert np.isnan(from_table("one.csv", schema=schema).x[:, 0]).all()
