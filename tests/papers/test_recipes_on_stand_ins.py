"""The recipes of CFIC, SLFed and FLIS, on small files in the formats of the data sets that they need."""

import json

import pytest

from coterie.data import sources
from coterie.papers.recipes import names, recipe
from coterie.report.results import own_methods
from coterie.runs.settings import Settings
from coterie.server.fitting import fit
from support import published_files

PAPERS = ("cfic", "flis", "slfed")
RECIPES = [name for name in names() if name.partition("/")[0] in PAPERS]
PUBLISHED = ("cifar10", "cifar100", "emnist", "fashion-mnist", "femnist", "imagenet32", "mnist", "svhn")

TINY = {
    "clients": 6,
    "rounds": 2,
    "steps": 1,
    "batch": 4,
    "evaluate_every": 1,
    "workers": 0,
    "device": "cpu",
    "precision": "float32",
}
"""What is smaller than in the recipes, in all runs."""

SMALLER = {
    "server_samples": 20,
    "images": 10,
    "scale": 0.002,
    "synthetic": 8,
    "gan_steps": 2,
    "shown": 2,
    "cluster_round": 1,
}
"""What is smaller where it counts."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stand-ins for all data sets."""
    made = tmp_path_factory.mktemp("data")
    for name in PUBLISHED:
        published_files.stand_in(made, name)
    return made


@pytest.fixture(autouse=True)
def _accepted(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "user-cache" / name))
    for name in PUBLISHED:
        published_files.accept(monkeypatch, sources[name])


def tiny(cell, folder, **given):
    """What runs in a cell, made small."""
    told = {*cell.options, *({"gan_steps"} if cell.options.get("method") == "slfed" else ())}
    told |= {"scale"} if cell.options.get("split", "").startswith("slfed") else set()
    smaller = {name: value for name, value in SMALLER.items() if name in told}
    asked = {**TINY, **smaller, **given}
    if "measure" in cell.options:
        asked = {name: value for name, value in asked.items() if name in ("clients", "workers", *smaller)}
    if cell.options["data"] in PUBLISHED:
        asked["data_dir"] = str(folder)
    return cell.task(0, asked).settings


def test_there_are_recipes_of_all_experiments():
    assert [name.split("/")[1] for name in RECIPES if name.startswith("cfic")] == [
        "table2",
        "fig2",
        "fig3",
        "fig4",
        "fig5",
    ]
    assert [name.split("/")[1] for name in RECIPES if name.startswith("flis")] == ["table1", "table2", "table3", "fig2"]
    slfed = {"table1", "table1-scaled", "fig5", "fig6", "fig7", "fig7-scaled", "fig8", "fig8-scaled"}
    assert {name.split("/")[1] for name in RECIPES if name.startswith("slfed")} == slfed


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_where_it_comes_from_and_what_it_costs(name):
    study = recipe(name)
    paper, _, experiment = name.partition("/")
    assert study.paper.lower() == paper
    place = study.place.lower().replace("figure ", "fig").replace("table ", "table")
    assert place == experiment.removesuffix("-scaled")
    assert study.about
    assert study.cost
    assert study.tables
    assert all(table.scaled for table in study.tables) == experiment.endswith("-scaled")
    if study.methods:
        assert {"rounds", "epochs", "batch", "rate", "clients", "net"} <= set(study.sources)


def test_leads_are_counted_of_a_papers_own_methods_and_not_of_variants():
    own = {name: own_methods(recipe(name)) for name in names()}
    both = ("FLIS (DC)", "FLIS (HC)")
    expected = {("AutoCFL",), ("weighted",), ("CAFA",), ("CFIC",), ("FLIS (DC)",), both, ("SLFed",), ("Accord",)}
    assert {labels for labels in own.values() if labels} == expected
    assert not any({*labels} & {*recipe(name).variants} for name, labels in own.items())


def test_every_target_of_flis_is_asked_of_its_data_alone():
    tables = recipe("flis/table3").tables
    assert [(table.where["data"], table.where["skew"]) for table in tables] == [
        (data, skew) for data in ("FMNIST", "CIFAR-10", "CIFAR-100", "SVHN") for skew in ("20 %", "30 %")
    ]
    for table in tables:
        assert len(table.published) == 9
        counted = "rounds_to(" if table.where["skew"] == "20 %" else "megabits_to("
        assert all(text.startswith(counted) for text in table.values.values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_world_of_a_recipe_can_be_made_from_files_in_the_real_formats(name, folder):
    made = {}
    for cell in recipe(name).cells():
        if not cell.skip:
            settings = tiny(cell, folder)
            table = settings.table()
            made.setdefault(json.dumps([table[part] for part in ("data", "split", "division")]), settings.world)
    for world in made.values():
        population = world.population
        assert len(population) == TINY["clients"]
        assert all(len(shard.train) for shard in population.shards)
        assert population.classes == {"imagenet32": 40}.get(world.data, len(sources[world.data].labels))
        assert len(population.server.train) == world.division.server_samples


def names_of(study, only=None):
    return {cell.task(0).name for cell in study.cells(only) if not cell.skip}


@pytest.mark.parametrize(
    ("one", "only", "other"),
    [
        ("cfic/fig3", None, "cfic/table2"),
        ("cfic/fig4", "clients=100", "cfic/table2"),
        ("cfic/fig5", "method=FedAvg", "cfic/table2"),
        ("flis/table3", None, "flis/table1"),
        ("flis/fig2", "data=CIFAR-10,threshold=0.3,epochs=10 epochs", "flis/table1"),
        ("flis/fig2", "data=FMNIST,threshold=0.5,epochs=10 epochs", "flis/table1"),
        ("slfed/fig8", None, "slfed/fig7"),
        ("slfed/fig8-scaled", None, "slfed/fig7-scaled"),
    ],
)
def test_recipes_share_runs(one, only, other):
    assert names_of(recipe(one), only) <= names_of(recipe(other))


def run(cell, folder, **given):
    settings = tiny(cell, folder, **given)
    if not isinstance(settings, Settings):
        return settings.measure.run(settings.world)[0]
    fed = settings.world.federation()
    try:
        settings.method.check(fed)
        return fit(settings.method, fed, scoring=settings.scoring).summary
    finally:
        fed.close()


def wanted(study, summary):
    """The keys of a summary that the tables of a study show, where they are plain keys."""
    return {text for table in study.tables for text in table.values.values() if text in summary}


@pytest.mark.parametrize(
    ("name", "only", "shown"),
    [
        ("cfic/table2", "data=SVHN,dirichlet=Dir(0.05),method=CFIC", "global_accuracy_mean"),
        ("cfic/table2", "data=CIFAR-100,dirichlet=Dir(0.05),method=CFIC", "global_accuracy_mean"),
        ("cfic/table2", "data=EMNIST,dirichlet=Dir(0.05),method=CFIC", "global_accuracy_mean"),
        ("cfic/table2", "data=FEMNIST,dirichlet=Dir(0.05),method=CFIC", "global_accuracy_mean"),
        ("flis/table1", "data=CIFAR-100,skew=20 %,method=FLIS (DC)", "accuracy_last_mean"),
        ("flis/table1", "data=SVHN,skew=30 %,method=FLIS (HC)", "accuracy_last_mean"),
        ("slfed/table1", "skew=DD2,method=SLFed", "accuracy_min"),
        ("slfed/fig7", "distribution=Dist-3,method=SLFed", "global_accuracy_mean"),
        ("slfed/fig6", "direct=DS = 1,method=opinions passed on", "uncertainty_mean"),
    ],
)
def test_a_method_runs_on_every_data_set(name, only, shown, folder):
    # A method is found by its own name too: of its entries the first is the paper's.
    cell = recipe(name).cells(only)[0]
    summary = run(cell, folder, net="cnn")
    assert summary[shown] is not None


COLUMNS = [
    ("cfic/table2", "dirichlet=Dir(0.05)"),
    ("cfic/fig5", "dirichlet=Dir(0.5)"),
    ("flis/table1", "skew=20 %"),
    ("flis/table2", "data=FMNIST"),
    ("accord/flis-table1", "data=FMNIST,skew=30 %"),
    ("slfed/fig7", "distribution=Dist-3"),
    ("slfed/fig7-scaled", "distribution=Dist-1"),
    ("slfed/table1", "skew=DD1"),
    ("slfed/table1-scaled", "skew=DD1"),
    ("slfed/fig5", None),
]


LARGE = {"rounds": 1, "clients": 3, "batch": 2, "views": ["served", "last"], "global_test": False}
"""What is smaller still with nets for GPUs."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "only"), COLUMNS)
def test_all_methods_run_with_the_nets_of_the_paper(name, only, folder):
    study = recipe(name)
    for cell in study.cells(only):
        if cell.skip:
            continue
        more = LARGE if cell.options["net"] in ("resnet9", "resnet18") else {}
        limit = {"limit": 150} if more and cell.options["data"] in ("cifar100", "imagenet32") else {}
        summary = run(cell, folder, **more, **limit)
        assert wanted(study, summary), cell.title
