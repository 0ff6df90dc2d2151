"""`coterie export` and `coterie predict`: from the folder of a run to files, and from a file to predictions."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import coterie


@pytest.fixture
def digits(call):
    """A finished run, in the folder `run`."""
    assert call("run ifca --clusters 2 --net mlp --clients 3 --rounds 1 --out run").code == 0


def table(text):
    return list(csv.reader(text.splitlines()))


@pytest.mark.usefixtures("digits")
def test_models_are_exported_and_predict(call):
    outcome = call("export run --all --to models")
    assert outcome.out == "written to models: 3 models\n"
    x, result = coterie.load("digits").test.x[:4], coterie.Result.load("run")
    np.save("x.npy", x)
    np.savez("x.npz", x=x, y=[0, 1, 2, 3])
    for data in ("x.npy", "x.npz"):
        head, *rows = table(call(f"predict models/1.safetensors --data {data}").out)
        assert head == ["prediction", *(f"probability of {digit}" for digit in range(10))]
        assert [row[0] for row in rows] == result.predict("1", x).tolist()
        probabilities = np.array([row[1:] for row in rows], dtype=float)
        np.testing.assert_allclose(probabilities, result.model("1").scores(x), rtol=1e-4)
    assert table(call("predict run --client 1 --data x.npy").out) == [head, *rows]


@pytest.mark.usefixtures("digits")
def test_images_are_predicted_one_by_one_or_a_folder_at_once(call, tmp_path):
    x = coterie.load("digits").test.x[:3]
    (tmp_path / "pictures").mkdir()
    for number, picture in enumerate(x[:, 0]):
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{number}.png")
    call("export run --client 0 --to models")
    np.save("x.npy", x)
    whole = call("predict models/0.safetensors --data x.npy").out
    assert call("predict models/0.safetensors --data pictures").out == whole
    assert call("predict models/0.safetensors --data pictures/0.png").out == "".join(whole.splitlines(True)[:2])
    Image.fromarray(x[0, 0]).resize((20, 20)).save("large.png")
    said = " ".join(call("predict models/0.safetensors --data large.png").err.split())
    assert "large.png: 20x20 pixels, scaled to 8x8" in said


def test_names_of_clients_may_be_anything(call):
    rows = "".join(f"/,{i},{i % 2}\nnorth,{i},{i % 2}\n" for i in range(40))
    Path("visits.csv").write_text(f"site,age,outcome\n{rows}")
    own = "--data visits.csv --target outcome --client site"
    assert call(f"run local {own} --rounds 1 --out run").code == 0
    assert call("export run --client / --to models").out == "written to models/%2F.safetensors\n"


@pytest.mark.usefixtures("digits")
def test_what_is_wrong_is_said_and_nothing_written(call, refused):
    refused("export run", "say whose models: --client NAME or --all; there are 0, 1, 2")
    refused("export run --client 1 --all", "--client NAME or --all")
    refused("export run --client 7", "unknown client '7'")
    refused("export nothing --all", "nothing: not a run folder")
    refused("predict run --data x.npy --client 0", "x.npy: no such file")
    refused("predict nothing.safetensors --data x.npy", "nothing.safetensors: cannot be read")
    np.save("x.npy", np.zeros((3, 5)))
    refused("predict run --data x.npy", "run: has models of 3 clients; name one with client=: 0, 1, 2")
    refused("predict run --client 0 --data x.npy", "expected")
    Path("x.csv").write_text("a,b\n1,2\n")
    refused("predict run --client 0 --data x.csv", "x.csv")
    assert call("export run --client 1").code == 0
    refused("export run --client 1", "exists already; choose another folder with --to")
    refused("predict run --client 1 --data x.npy --out x.npy", "exists already")


def test_numbers_and_several_labels_have_columns_of_their_own(call, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez("amounts.npz", x=x, y=x @ rng.normal(size=(3, 2)), labels=["weight", "height"])
    np.savez("labels.npz", x=x, y=(x[:, :2] > 0).astype(int), labels=["fever", "cough"])
    np.save("x.npy", x[:5])
    said = {
        "amounts": ["weight", "height"],
        "labels": ["fever", "cough", "probability of fever", "probability of cough"],
    }
    for name, columns in said.items():
        assert call(f"run local --data {name}.npz --split iid --clients 2 --rounds 1 --out {name}").code == 0
        head, *rows = table(call(f"predict {name} --client 0 --data x.npy").out)
        assert head == columns
        assert len(rows) == 5
    assert {row[0] for row in rows} <= {"0", "1"}
    assert all((row[0] == "1") == (float(row[2]) > 0.5) for row in rows)
