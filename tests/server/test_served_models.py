"""Models to take home: they predict, from raw inputs and also from a file, what was scored, sample by sample."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie
from coterie import Scoring
from coterie.core.errors import CoterieError, DataError, SettingsError
from coterie.data.tables import from_columns
from coterie.server.metrics import metrics
from coterie.server.served_models import ServedModels
from support.every_method import METHODS


@pytest.fixture
def scored():
    """What was predicted for the test samples of each client, by its name, when it was scored last."""
    seen = []

    @coterie.metric("seen", higher=True)
    def see(y, predicted):
        seen.append(predicted)
        return 0.0

    yield lambda fed: dict(zip(fed.names, seen[-len(fed.names) - 1 : -1], strict=True))  # the last is of all together
    del metrics["seen"]


def images(samples=240, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    x = rng.integers(0, 60, (samples, 1, 8, 8)) + 45 * y[:, None, None, None]
    return coterie.Dataset(x.astype(np.uint8), y, labels=("ant", "bee", "cat", "dog")).held_out(0.2)


def small(shape, classes):
    """Convolution, batch normalisation and dropout: what is prepared, counted and left out while predicting."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )


def own_tests(fed):
    """The raw test inputs of each client."""
    host = fed._engine._host
    pool = host.pool.x.movedim(-1, 1) if host.pool.images else host.pool.x
    return {shard.name: pool[torch.from_numpy(shard.test)] for shard in host.shards[: len(fed.names)]}


def run(method, data=None, net=small, scoring=None, split="dirichlet"):
    options = {"alpha": 1.0, "min_size": 8} if split == "dirichlet" else {}
    fed = coterie.simulate(data or images(), split, net, clients=5, server_samples=20, engine="vectorised", **options)
    scoring = scoring or Scoring(metrics=("accuracy", "seen"))
    return fed, method.fit(fed, scoring=scoring)


OWN = ("ditto", "fedavg", "fedem", "fedrep", "flis-dc", "ifca", "lg-fedavg", "per-fedavg")
"""Methods that serve in every way there is, whose clients add priors of their own."""


@pytest.mark.parametrize(
    ("name", "prior"), [*((name, "learned") for name in sorted(METHODS)), *((name, "own") for name in OWN)]
)
def test_what_is_taken_home_predicts_what_was_scored(name, prior, scored, tmp_path):
    options = {"rounds": 3, "batch": 10, "prior": prior} | METHODS[name]
    options |= {"shares": "not 8"} if name == "lg-fedavg" else {}
    fed, result = run(coterie.methods.make(name, **options))
    predicted = scored(fed)
    result.models.write(tmp_path / "models.safetensors")
    stored = ServedModels.read(tmp_path / "models.safetensors", net=small)
    tests = own_tests(fed)
    for row, client in enumerate(fed.names):
        if not len(tests[client]):
            continue
        for models in (result.models, stored, stored.of_client(client)):
            probabilities = models.model(client).scores(tests[client])
            np.testing.assert_allclose(probabilities, predicted[client], atol=2e-5)
            assert np.array_equal(probabilities.argmax(1), predicted[client].argmax(1))
        assert result.clients[row]["client"] == client


def exported(path, x):
    """What a file predicts for raw inputs, without anything of ours."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(x if x.dtype == torch.int64 else x.float()).numpy(force=True)
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX files are run with it")
    return onnxruntime.InferenceSession(path).run(None, {"x": (x if x.dtype == torch.int64 else x.float()).numpy()})[0]


def check_exports(name, prior, ending, scored, folder):
    options = {"rounds": 2, "batch": 10, "prior": prior} | METHODS[name]
    options |= {"shares": "not 8"} if name == "lg-fedavg" else {}
    fed, result = run(coterie.methods.make(name, **options))
    predicted, tests = scored(fed), own_tests(fed)
    client = max(tests, key=lambda client: len(tests[client]))
    result.export(client, folder / f"mine{ending}")
    for samples in (1, len(tests[client])):
        probabilities = exported(folder / f"mine{ending}", tests[client][:samples])
        np.testing.assert_allclose(probabilities, predicted[client][:samples], atol=2e-5)
    about = json.loads((folder / "mine.json").read_text())
    assert about["output"]["labels"] == ["ant", "bee", "cat", "dog"]
    assert about["input"]["shape"] == ["sample", 1, 8, 8]


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", ["fedem", "ifca"])
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
def test_a_program_predicts_what_was_scored(name, ending, scored, tmp_path):
    check_exports(name, "own", ending, scored, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
def test_a_program_predicts_what_was_scored_by_every_method(name, ending, scored, tmp_path):
    check_exports(name, "learned", ending, scored, tmp_path)


SERIES = {"x": np.random.default_rng(0).normal(size=(30, 6, 2)).astype(np.float32), "kind": "series"}
TOKENS = {"x": np.random.default_rng(0).integers(0, 9, (30, 6)), "kind": "tokens"}


@pytest.mark.parametrize(
    ("data", "net"),
    [(SERIES, "gru"), (SERIES, "transformer"), (TOKENS, "gru"), (TOKENS, "transformer"), (TOKENS, "embedding-bag")],
)
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
def test_nets_for_series_and_tokens_are_exported_for_any_number_of_samples(data, net, tmp_path):
    made = coterie.Dataset(y=np.arange(30) % 3, **data)
    result = coterie.FedAvg(rounds=1).fit(coterie.simulate(made, "iid", net, clients=2))
    result.export("0", tmp_path / "mine.pt2")
    program = torch.export.load(tmp_path / "mine.pt2").module()
    for samples in (1, 7):
        x = torch.from_numpy(made.x[:samples])
        np.testing.assert_allclose(
            program(x.long() if net == "embedding-bag" or made.kind == "tokens" else x).numpy(force=True),
            result.model("0").scores(made.x[:samples]),
            atol=1e-5,
        )


def fixed(shape, classes):
    """A net that is made for one number of samples, once it is exported."""

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(shape[0], classes)

        def forward(self, x):
            return self.layer(x) + torch.zeros(len(x), classes)

    return Fixed()


def test_what_cannot_be_exported_says_why_and_what_can(tmp_path):
    data = coterie.Dataset(np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32), np.arange(30) % 2)
    result = coterie.Local(rounds=1, steps=1).fit(coterie.simulate(data, "iid", fixed, clients=2, engine="loop"))
    with pytest.raises(CoterieError, match=r"any number of samples .*write `x.shape\[0\]`"):
        result.export("0", tmp_path / "mine.pt2")
    with pytest.raises(SettingsError, match=r"mine.bin: a model is a file that ends in .safetensors, .pt2, .onnx"):
        result.export("0", tmp_path / "mine.bin")
    assert list(tmp_path.iterdir()) == []


def test_inputs_may_have_any_form_that_data_may_have():
    data = images()
    _, result = run(coterie.FedAvg(rounds=1), data, "mlp", Scoring())
    model, x = result.model("0"), data.test.x[:6]
    for same in (x[:, 0], x.astype(int), x[:, 0].tolist(), torch.from_numpy(x)):
        assert np.array_equal(model.scores(same), model.scores(x))
    colours = np.random.default_rng(0).integers(0, 255, (40, 9, 8, 3)).astype(np.uint8)
    data = coterie.Dataset(colours, np.arange(40) % 2)
    model = coterie.Local(rounds=1).fit(coterie.simulate(data, "iid", "mlp", clients=2)).model("0")
    assert np.array_equal(model.scores(colours), model.scores(data.x))


def test_a_file_of_several_models_asks_for_a_client(tmp_path):
    _, result = run(coterie.IFCA(rounds=1, clusters=2), scoring=Scoring())
    result.models.write(tmp_path / "all.safetensors")
    with pytest.raises(SettingsError, match=r"models of 5 clients; name one with client=: 0, 1, 2, 3, 4"):
        coterie.load_model(tmp_path / "all.safetensors")


def test_numbers_come_out_in_their_own_units(scored):
    rng = np.random.default_rng(3)
    x = rng.normal(50, 20, size=(200, 3)).astype(np.float32)
    data = coterie.Dataset(x, (4000 + 20 * x[:, 0]).astype(np.float32)).held_out(0.2)
    fed, result = run(coterie.Ditto(rounds=5), data, "mlp", Scoring(metrics=("rmse", "seen")), "iid")
    for client, predicted in scored(fed).items():
        ours = result.predict(client, own_tests(fed)[client])
        np.testing.assert_allclose(ours, predicted, rtol=1e-4)
        assert 4000 < ours.mean() < 6000


def test_the_scaling_is_inside():
    data = images()
    fed, result = run(coterie.FedAvg(rounds=4, batch=10), data, "mlp", Scoring())
    model = result.model(fed.names[0])
    inside = (model.predict(data.test.x) == np.array(data.labels)[data.test.y]).mean()
    bare = model.nets[0](torch.from_numpy(data.test.x).float()).argmax(1).numpy()
    assert inside == pytest.approx(result.summary["global_accuracy_mean"])
    assert (bare == data.test.y).mean() < inside - 0.1


def test_a_module_is_of_torchs_own_layers_only():
    _, result = run(coterie.FedAvg(rounds=1), scoring=Scoring())
    module = result.model("0").nets[0]
    assert {type(layer).__module__.split(".")[0] for layer in module.modules()} == {"torch"}
    assert isinstance(module[1], nn.BatchNorm2d)
    assert not module.training


def test_a_file_of_one_model_is_a_state_dict_of_the_users_own_module(tmp_path):
    _, result = run(coterie.FedAvg(rounds=1), scoring=Scoring())
    result.models.write(tmp_path / "one.safetensors")
    module = small((1, 8, 8), 4)
    module.load_state_dict(load_file(tmp_path / "one.safetensors"), strict=False)
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(module.eval()(x), result.model("0").nets[0](x))


def test_clients_that_share_a_model_share_it_in_the_file():
    _, result = run(coterie.IFCA(rounds=2, clusters=3), scoring=Scoring())
    groups = [client["group_found"] for client in result.clients]
    assert len(result.models.models) == len(set(groups))
    assert "5 clients" in repr(result.models)


def test_what_is_taken_home_is_in_no_checkpoint_and_changes_no_result():
    class Watching:
        def round_done(self, checkpoint, record, groups):
            self.kept = set(checkpoint.federation["clients"])

        def run_done(self, checkpoint, result):
            assert set(checkpoint.federation["clients"]) == self.kept

    watching, results = Watching(), []
    for keep in (True, False):
        fed = coterie.simulate(images(), "iid", "mlp", clients=3)
        results.append(coterie.PerFedAvg(rounds=2).fit(fed, keep_models=keep, observers=[watching]))
        assert not [name for name in watching.kept if "home" in name]
    with_models, without = results
    assert with_models.models is not None
    assert without.models is None
    same = [{**result.summary, "seconds": 0, "best_round": 0} for result in results]
    assert same[0] == same[1]
    with pytest.raises(coterie.CoterieError, match="no models"):
        without.model("0")


def test_errors_name_what_is_wrong(tmp_path):
    _, result = run(coterie.FedAvg(rounds=1), scoring=Scoring())
    with pytest.raises(SettingsError, match="client"):
        result.model("nobody")
    with pytest.raises(DataError, match=r"expected \[sample, 1, 8, 8\]"):
        result.predict("0", np.zeros((2, 3, 8, 8)))
    path = tmp_path / "models.safetensors"
    path.write_bytes(b"nothing of ours")
    with pytest.raises(DataError, match=r"models\.safetensors"):
        ServedModels.read(path)
    result.models.write(path)
    with pytest.raises(DataError, match="shape"):
        ServedModels.read(path, net="logistic")


def amounts(task):
    """Rows of a table with values missing, by site."""
    rng = np.random.default_rng(4)
    age = rng.normal(50, 10, 120)
    columns = {
        "age": [None if rng.random() < 0.1 else value for value in age.tolist()],
        "ward": [None if rng.random() < 0.1 else str(rng.choice(["A", "B", "C"])) for _ in age],
        "smoker": (rng.random(120) < 0.5).tolist(),
        "site": ["abc"[row % 3] for row in range(120)],
        "out": (age / 7).tolist() if task == "regression" else ["ill" if one > 50 else "well" for one in age],
    }
    return from_columns(columns, "out", "site", (), task, "visits")


def several_labels():
    rng = np.random.default_rng(5)
    return coterie.Dataset(rng.normal(5, 3, (90, 4)), rng.integers(0, 2, (90, 3)), task="multi-label")


KINDS = {
    "words of a table": lambda: amounts("binary"),
    "numbers of a table": lambda: amounts("regression"),
    "several labels": several_labels,
    "series": lambda: coterie.Dataset(y=np.arange(30) % 3, **SERIES),
    "tokens": lambda: coterie.Dataset(y=np.arange(30) % 3, **TOKENS),
}
"""Data of every kind and task but images."""


def check_kind(kind, name, ending, scored, folder):
    data = KINDS[kind]()
    split, more = ("natural", {}) if data.users is not None else ("iid", {"clients": 3})
    fed = coterie.simulate(data, split, **more)
    scoring = Scoring(metrics=(data.kind_of_task.score, "seen"))
    result = coterie.methods.make(name, rounds=1, batch=16).fit(fed, scoring=scoring)
    predicted, host = scored(fed), fed._engine._host
    client = fed.names[1]
    raw = data.x[host.shards[1].test]  # what is missing is missing still
    result.export(client, folder / f"mine{ending}")
    if ending == ".safetensors":
        ours = coterie.load_model(folder / "mine.safetensors").scores(raw)
    else:
        x = torch.from_numpy(raw)
        ours = exported(folder / f"mine{ending}", x.long() if data.kind == "tokens" else x)
    np.testing.assert_allclose(ours, predicted[client], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["ditto", "fedem"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_for_every_kind_of_data_predict_what_was_scored(kind, name, scored, tmp_path):
    check_kind(kind, name, ".safetensors", scored, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", ["fedavg", "ifca", "ditto", "fedem", "per-fedavg"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
def test_programs_for_every_kind_of_data_predict_what_was_scored(kind, name, ending, scored, tmp_path):
    check_kind(kind, name, ending, scored, tmp_path)
