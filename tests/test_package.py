"""The public package: what `import coterie` offers, and that it is imported when it is asked for."""

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie


def imports_for_type_checkers():
    """The names that `coterie/__init__.py` imports for type checkers, with their modules."""
    tree = ast.parse(Path(coterie.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_what_is_said_to_type_checkers_is_so():
    assert imports_for_type_checkers() == coterie._HOMES
    assert sorted([*coterie._HOMES, "__version__", "methods", "nets"]) == sorted(coterie.__all__)


@pytest.mark.parametrize("name", coterie.__all__)
def test_every_public_name_is_there(name):
    found = getattr(coterie, name)
    if name in coterie._HOMES:
        assert found is getattr(sys.modules[coterie._HOMES[name]], name)
    assert name in dir(coterie)


@pytest.mark.parametrize("name", list(coterie.methods))
def test_every_method_is_there_under_the_name_of_its_class(name):
    cls = coterie.methods[name]
    assert getattr(coterie, cls.__name__) is cls
    assert cls.__name__ in dir(coterie)


def test_what_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'FedAverage'"):
        coterie.FedAverage  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'coterie\.nets' has no attribute 'Nett'"):
        sys.modules["coterie.nets"].Nett  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import coterie, sys; list(coterie.methods); dir(coterie); assert 'torch' not in sys.modules",
        "import coterie.methods.ifca, coterie.nets.stacks; assert list(coterie.methods) and coterie.nets['mlp']",
        "from coterie import FedAvg, evidence, methods, nets; assert methods['fedavg'] is FedAvg and 'mlp' in nets",
        "import coterie; assert coterie.data.from_torch and coterie.programs.train and coterie.serving.one",
        "from coterie import *; assert simulate and Scoring and Net",
        "from coterie.nets import make_net; import coterie; coterie.nets['my'] = 1; assert 'my' in coterie.nets",
        "from coterie.methods import methods; assert methods.make('ditto', mu=2).mu == 2",
    ],
)
def test_names_mean_the_same_whatever_is_imported_first(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_site_knows_the_programs_of_all_methods():
    code = (
        "from pathlib import Path; from types import SimpleNamespace as N; "
        "from coterie.clients.programs import programs; "
        "from coterie.engines.flower.site import RemoteSite; "
        "RemoteSite(N(limits=None, state=Path(), method=None, audit=None), N(net=N(name='mlp'))); "
        "assert 'coterie.methods.ditto.train_both' in programs; "
        "assert 'coterie.methods.as_published.choose_on_test_and_train' in programs"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Examples


def with_examples():
    """What is public, by name: all that the package offers, and all that its modules offer."""
    found = {name: getattr(coterie, name) for name in coterie.__all__ if name != "__version__"}
    for name, module in [item for item in found.items() if inspect.ismodule(item[1])]:
        own = {key: thing for key, thing in vars(module).items() if not key.startswith("_")}
        found |= {
            f"{name}.{key}": thing
            for key, thing in own.items()
            if (inspect.isroutine(thing) or isinstance(thing, type | coterie.programs.Program))
            and thing.__module__ == module.__name__
            # What a real client keeps to itself is no program that anybody could call.
            and not getattr(thing, "simulated", False)
        }
    return found


PUBLIC = with_examples()


@pytest.fixture
def registries():
    """Whatever an example registers is gone afterwards."""
    kept = [(registry, dict(registry)) for registry in (coterie.methods._classes, coterie.programs.programs)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.usefixtures("registries")
def test_the_example_at_a_public_name_works(name, tmp_path):
    names = {"coterie": coterie, "np": np, "torch": torch, "folder": tmp_path}
    (test,) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, module=False, globs=names)
    assert test.examples
    told = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert not failed, "".join(told)
